/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer as an object: made, asked about its vocabulary, closed. How it is filled in is in
 * tokenizer_gguf.c and tokenizer_json*.c, how it encodes in tokenizer_encode.c. */
#include "tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- lists of tokens --------------------------------------------------------------------- */

int token_list_append(struct token_list *list, uint32_t id)
{
    void *ids = list->ids;
    int rc = array_reserve(&ids, &list->capacity, list->count + 1, sizeof(*list->ids));
    list->ids = ids;
    if (rc)
        return rc;
    list->ids[list->count++] = id;
    return BATON_OK;
}

void token_list_free(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

/* ---- making one -------------------------------------------------------------------------- */

int tokenizer_new(struct tokenizer **out, struct error err)
{
    struct tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (!tokenizer)
        return error_set(err, BATON_ENOMEM, "out of memory for a tokenizer");
    tokenizer->unknown = TOKEN_NONE;
    tokenizer->bos = tokenizer->eos = tokenizer->eot = TOKEN_NONE;
    memset(tokenizer->byte_ids, 0xff, sizeof(tokenizer->byte_ids));
    pthread_mutex_init(&tokenizer->lock, NULL);
    *out = tokenizer;
    return BATON_OK;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    encoder_close(tokenizer->idle);
    vocabulary_free(&tokenizer->vocabulary);
    merges_free(&tokenizer->merges);
    joints_free(&tokenizer->joints);
    added_tokens_free(&tokenizer->added);
    added_tokens_free(&tokenizer->normalized);
    normalizer_free(&tokenizer->normalizer);
    splitter_free(&tokenizer->splitter);
    token_list_free(&tokenizer->prefix);
    token_list_free(&tokenizer->suffix);
    token_list_free(&tokenizer->ends);
    byte_buffer_free(&tokenizer->scratch);
    pthread_mutex_destroy(&tokenizer->lock);
    free(tokenizer);
}

static int id_compare(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

int tokenizer_add_end(struct tokenizer *tokenizer, uint32_t id, struct error err)
{
    if (vocabulary_kind(&tokenizer->vocabulary, id) == TOKEN_ABSENT ||
        tokenizer_is_end(tokenizer, id))
        return BATON_OK;
    if (token_list_append(&tokenizer->ends, id))
        return error_set(err, BATON_ENOMEM, "out of memory for a tokenizer");
    qsort(tokenizer->ends.ids, tokenizer->ends.count, sizeof(id), id_compare);
    return BATON_OK;
}

/* The names under which families end a turn or a text. Only where they are special tokens: any
 * vocabulary may hold such a text as text. Those of turns come first. */
static const char *const end_names[] = {
    "<|eot_id|>",    "<|im_end|>",      "<|end|>",
    "<end_of_turn>", "<|eom_id|>",      "<|endoftext|>",
    "</s>",          "<EOT>",           "[EOT]",
    "<eos>",         "<|end_of_text|>", "<｜end▁of▁sentence｜>",
};
#define TURN_NAMES 4 /* how many of them end turns */

static int ends_find_by_name(struct tokenizer *tokenizer, struct error err)
{
    int rc = BATON_OK;
    for (size_t i = 0; i < sizeof(end_names) / sizeof(end_names[0]) && !rc; i++) {
        uint32_t id =
            vocabulary_find_name(&tokenizer->vocabulary, end_names[i], strlen(end_names[i]));
        if (id == TOKEN_NONE || !tokenizer_is_special(tokenizer, id))
            continue;
        if (i < TURN_NAMES && tokenizer->eot == TOKEN_NONE)
            tokenizer->eot = id;
        rc = tokenizer_add_end(tokenizer, id, err);
    }
    return rc;
}

/* A model may name ids that its vocabulary does not have. */
static void absent_forget(const struct tokenizer *tokenizer, uint32_t *id)
{
    if (vocabulary_kind(&tokenizer->vocabulary, *id) == TOKEN_ABSENT)
        *id = TOKEN_NONE;
}

/* Unknown characters in a row may have to become one token, which cutting between them would
 * prevent; with the bytes of all characters at hand there are none. */
static bool cutting_is_safe(const struct tokenizer *tokenizer)
{
    bool all_bytes = tokenizer->byte_fallback;
    for (unsigned byte = 0; byte < 256; byte++)
        all_bytes = all_bytes && tokenizer->byte_ids[byte] != TOKEN_NONE;
    return all_bytes || !tokenizer->fuse_unknown || tokenizer->unknown == TOKEN_NONE;
}

int tokenizer_finish(struct tokenizer *tokenizer, struct error err)
{
    byte_buffer_free(&tokenizer->scratch);
    absent_forget(tokenizer, &tokenizer->bos);
    absent_forget(tokenizer, &tokenizer->eos);
    absent_forget(tokenizer, &tokenizer->eot);
    absent_forget(tokenizer, &tokenizer->unknown);
    int rc = ends_find_by_name(tokenizer, err);
    if (!rc)
        rc = tokenizer_add_end(tokenizer, tokenizer->eos, err);
    if (!rc)
        rc = tokenizer_add_end(tokenizer, tokenizer->eot, err);
    if (!rc && !tokenizer->over_bytes && cutting_is_safe(tokenizer))
        rc = joints_build(&tokenizer->joints, &tokenizer->vocabulary, err);
    return rc;
}

/* ---- asking ------------------------------------------------------------------------------ */

uint32_t tokenizer_vocabulary_size(const struct tokenizer *tokenizer)
{
    return (uint32_t)tokenizer->vocabulary.count;
}

struct text_view tokenizer_text(const struct tokenizer *tokenizer, uint32_t id)
{
    return vocabulary_output(&tokenizer->vocabulary, id);
}

uint32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t length)
{
    return vocabulary_find_name(&tokenizer->vocabulary, text, length);
}

bool tokenizer_is_control(const struct tokenizer *tokenizer, uint32_t id)
{
    enum token_kind kind = vocabulary_kind(&tokenizer->vocabulary, id);
    return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id)
{
    return tokenizer_is_control(tokenizer, id) ||
           vocabulary_kind(&tokenizer->vocabulary, id) == TOKEN_USER_DEFINED;
}

bool tokenizer_is_byte(const struct tokenizer *tokenizer, uint32_t id)
{
    return vocabulary_kind(&tokenizer->vocabulary, id) == TOKEN_BYTE;
}

uint32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

uint32_t tokenizer_eot(const struct tokenizer *tokenizer)
{
    return tokenizer->eot;
}

const uint32_t *tokenizer_ends(const struct tokenizer *tokenizer, size_t *count)
{
    *count = tokenizer->ends.count;
    return tokenizer->ends.ids;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id)
{
    return tokenizer->ends.count && bsearch(&id, tokenizer->ends.ids, tokenizer->ends.count,
                                            sizeof(id), id_compare) != NULL;
}

bool tokenizer_drops_first_space(const struct tokenizer *tokenizer)
{
    return tokenizer->drop_first_space;
}

bool tokenizer_over_bytes(const struct tokenizer *tokenizer)
{
    return tokenizer->over_bytes;
}

size_t tokenizer_memory(const struct tokenizer *tokenizer)
{
    const struct vocabulary *vocabulary = &tokenizer->vocabulary;
    return sizeof(*tokenizer) + vocabulary->capacity * sizeof(*vocabulary->tokens) +
           vocabulary->texts.capacity + 2 * (size_t)vocabulary->slots * sizeof(uint32_t) +
           tokenizer->merges.slot_count * sizeof(struct merge) +
           tokenizer->joints.slots * sizeof(uint64_t) +
           (tokenizer->added.node_capacity + tokenizer->normalized.node_capacity) *
               sizeof(struct added_node);
}
