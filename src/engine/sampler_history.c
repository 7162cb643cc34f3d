/* SPDX-License-Identifier: Apache-2.0 */
/* See sampler_history.h. Open addressing, at most half full. */
#include "sampler_history.h"
#include "sampler_random.h"

#include <stdlib.h>

#define CAPACITY_FIRST 64u

void token_history_free(struct token_history *history)
{
    free(history->entries);
    *history = (struct token_history){0};
}

static struct history_entry *find(const struct token_history *history, int32_t token)
{
    uint32_t mask = history->capacity - 1;
    uint32_t slot = (uint32_t)sampler_mix((uint64_t)token) & mask;
    while (history->entries[slot].token != token && history->entries[slot].token >= 0)
        slot = (slot + 1) & mask;
    return &history->entries[slot];
}

static int grow(struct token_history *history)
{
    uint32_t capacity = history->capacity ? 2 * history->capacity : CAPACITY_FIRST;
    struct token_history larger = {calloc(capacity, sizeof(*larger.entries)), capacity,
                                   history->count};
    if (!larger.entries)
        return BATON_ENOMEM;
    for (uint32_t i = 0; i < capacity; i++)
        larger.entries[i].token = -1;
    for (uint32_t i = 0; i < history->capacity; i++)
        if (history->entries[i].token >= 0)
            *find(&larger, history->entries[i].token) = history->entries[i];
    free(history->entries);
    *history = larger;
    return BATON_OK;
}

static int add(struct token_history *history, int32_t token, uint32_t outputs)
{
    if (2 * history->count >= history->capacity && grow(history))
        return BATON_ENOMEM;
    struct history_entry *entry = find(history, token);
    history->count += entry->token < 0;
    entry->token = token;
    entry->outputs += outputs;
    return BATON_OK;
}

int token_history_add_prompt(struct token_history *history, const int32_t *tokens,
                             uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (add(history, tokens[i], 0))
            return BATON_ENOMEM;
    return BATON_OK;
}

int token_history_add_output(struct token_history *history, int32_t token)
{
    return add(history, token, 1);
}

void token_history_apply(const struct token_history *history, float repetition, float frequency,
                         float presence, float *logits)
{
    for (uint32_t i = 0; i < history->capacity; i++) {
        const struct history_entry *entry = &history->entries[i];
        if (entry->token < 0)
            continue;
        float logit = logits[entry->token];
        logit = logit > 0 ? logit / repetition : logit * repetition;
        if (entry->outputs)
            logit -= (float)entry->outputs * frequency + presence;
        logits[entry->token] = logit;
    }
}
