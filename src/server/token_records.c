/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a choice and their probabilities: two arrays that grow. */
#include "reply.h"

#include <stdlib.h>
#include <string.h>

static int room_make(struct token_records *records, size_t count, size_t tops)
{
    return array_reserve((void **)&records->items, &records->capacity, records->count + count,
                         sizeof(*records->items)) ||
                   array_reserve((void **)&records->tops, &records->top_capacity,
                                 records->top_count + tops, sizeof(*records->tops))
               ? BATON_ENOMEM
               : BATON_OK;
}

static void record_add(struct token_records *records, int32_t token, float logprob,
                       const struct token_logprob *tops, uint32_t top_count)
{
    records->items[records->count++] =
        (struct token_record){token, logprob, (uint32_t)records->top_count, top_count};
    if (top_count)
        memcpy(records->tops + records->top_count, tops, top_count * sizeof(*tops));
    records->top_count += top_count;
}

int token_records_add(struct token_records *records, const struct token_choice *choices,
                      uint32_t count)
{
    size_t tops = 0;
    for (uint32_t i = 0; i < count; i++)
        tops += choices[i].top_count;
    if (room_make(records, count, tops))
        return BATON_ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        record_add(records, choices[i].token, choices[i].logprob, choices[i].top,
                   choices[i].top_count);
    return BATON_OK;
}

int token_records_join(struct token_records *records, const struct token_records *more)
{
    if (room_make(records, more->count, more->top_count))
        return BATON_ENOMEM;
    for (size_t i = 0; i < more->count; i++) {
        const struct token_record *item = &more->items[i];
        record_add(records, item->token, item->logprob, more->tops + item->top_first,
                   item->top_count);
    }
    return BATON_OK;
}

void token_records_free(struct token_records *records)
{
    free(records->items);
    free(records->tops);
    *records = (struct token_records){0};
}
