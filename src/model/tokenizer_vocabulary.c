/* SPDX-License-Identifier: Apache-2.0 */
/* One array of tokens, one of their bytes, and two hash tables of ids. Text that occurs twice in a
 * file (GPT-NeoX has "  " as a user-defined token and as a normal one) keeps both ids; the table
 * by key leads to the normal one, since that is the one that merges make. */
#include "tokenizer_vocabulary.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int vocabulary_reserve(struct vocabulary *vocabulary, uint32_t id, struct error err)
{
    if (id >= VOCABULARY_TOKENS_MAX)
        return error_set(err, BATON_EINVAL, "token id %u is too large; at most %u are read", id,
                         VOCABULARY_TOKENS_MAX - 1);
    void *tokens = vocabulary->tokens;
    int rc = array_reserve(&tokens, &vocabulary->capacity, (size_t)id + 1,
                           sizeof(*vocabulary->tokens));
    vocabulary->tokens = tokens;
    if (rc)
        return error_set(err, rc, "out of memory for %u tokens", id + 1);
    if (vocabulary->count <= id) {
        memset(vocabulary->tokens + vocabulary->count, 0,
               (id + 1 - vocabulary->count) * sizeof(*vocabulary->tokens));
        vocabulary->count = (size_t)id + 1;
    }
    return BATON_OK;
}

static int text_store(struct vocabulary *vocabulary, const char *text, size_t length,
                      uint32_t *at, struct error err)
{
    if (length > UINT32_MAX - vocabulary->texts.length)
        return error_set(err, BATON_EINVAL, "the tokens have more than 4 GB of text");
    *at = (uint32_t)vocabulary->texts.length;
    if (byte_buffer_append(&vocabulary->texts, text, length))
        return error_set(err, BATON_ENOMEM, "out of memory for the text of the tokens");
    return BATON_OK;
}

int vocabulary_set(struct vocabulary *vocabulary, uint32_t id, const char *key, size_t length,
                   enum token_kind kind, struct error err)
{
    uint32_t at = 0;
    int rc = vocabulary_reserve(vocabulary, id, err);
    if (!rc)
        rc = text_store(vocabulary, key, length, &at, err);
    if (rc)
        return rc;
    uint32_t stored = (uint32_t)length;
    vocabulary->tokens[id] = (struct vocabulary_token){at, stored, at, stored, (uint8_t)kind};
    return BATON_OK;
}

int vocabulary_set_output(struct vocabulary *vocabulary, uint32_t id, const char *output,
                          size_t length, struct error err)
{
    BATON_ASSERT(id < vocabulary->count);
    uint32_t at = 0;
    int rc = text_store(vocabulary, output, length, &at, err);
    if (rc)
        return rc;
    vocabulary->tokens[id].output = at;
    vocabulary->tokens[id].output_length = (uint32_t)length;
    return BATON_OK;
}

struct text_view vocabulary_key(const struct vocabulary *vocabulary, uint32_t id)
{
    if (id >= vocabulary->count)
        return (struct text_view){"", 0};
    const struct vocabulary_token *token = &vocabulary->tokens[id];
    return token->key_length
               ? (struct text_view){vocabulary->texts.bytes + token->key, token->key_length}
               : (struct text_view){"", 0};
}

struct text_view vocabulary_output(const struct vocabulary *vocabulary, uint32_t id)
{
    if (id >= vocabulary->count)
        return (struct text_view){"", 0};
    const struct vocabulary_token *token = &vocabulary->tokens[id];
    return token->output_length ? (struct text_view){vocabulary->texts.bytes + token->output,
                                                     token->output_length}
                                : (struct text_view){"", 0};
}

enum token_kind vocabulary_kind(const struct vocabulary *vocabulary, uint32_t id)
{
    return id < vocabulary->count ? (enum token_kind)vocabulary->tokens[id].kind : TOKEN_ABSENT;
}

typedef struct text_view text_of(const struct vocabulary *vocabulary, uint32_t id);

/* Where the text is, or the free slot where it would be. */
static uint32_t *slot_find(const struct vocabulary *vocabulary, uint32_t *table, text_of *text,
                           const char *bytes, size_t length)
{
    uint32_t mask = vocabulary->slots - 1;
    uint32_t slot = (uint32_t)XXH3_64bits(bytes, length) & mask;
    for (;; slot = (slot + 1) & mask) {
        if (table[slot] == TOKEN_NONE)
            return &table[slot];
        struct text_view other = text(vocabulary, table[slot]);
        if (other.length == length && memcmp(other.bytes, bytes, length) == 0)
            return &table[slot];
    }
}

/* Adds the tokens of one kind whose text has no token in the table yet. */
static void table_add(struct vocabulary *vocabulary, uint32_t *table, text_of *text,
                      enum token_kind kind)
{
    for (uint32_t id = 0; id < vocabulary->count; id++) {
        struct text_view mine = text(vocabulary, id);
        if (vocabulary->tokens[id].kind != kind || !mine.length)
            continue;
        uint32_t *slot = slot_find(vocabulary, table, text, mine.bytes, mine.length);
        if (*slot == TOKEN_NONE)
            *slot = id;
    }
}

int vocabulary_index(struct vocabulary *vocabulary, struct error err)
{
    uint32_t slots = 64;
    while (slots < 2 * vocabulary->count)
        slots *= 2;
    vocabulary->by_key = malloc(slots * sizeof(*vocabulary->by_key));
    vocabulary->by_name = malloc(slots * sizeof(*vocabulary->by_name));
    if (!vocabulary->by_key || !vocabulary->by_name)
        return error_set(err, BATON_ENOMEM, "out of memory for the index of the tokens");
    vocabulary->slots = slots;
    memset(vocabulary->by_key, 0xff, slots * sizeof(*vocabulary->by_key));
    memset(vocabulary->by_name, 0xff, slots * sizeof(*vocabulary->by_name));

    static const enum token_kind made[] = {TOKEN_NORMAL, TOKEN_USER_DEFINED};
    static const enum token_kind named[] = {TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_NORMAL,
                                            TOKEN_UNKNOWN, TOKEN_BYTE,         TOKEN_UNUSED};
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
        table_add(vocabulary, vocabulary->by_key, vocabulary_key, made[i]);
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        table_add(vocabulary, vocabulary->by_name, vocabulary_output, named[i]);
    return BATON_OK;
}

uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *key, size_t length)
{
    return *slot_find(vocabulary, vocabulary->by_key, vocabulary_key, key, length);
}

uint32_t vocabulary_find_name(const struct vocabulary *vocabulary, const char *output,
                              size_t length)
{
    return *slot_find(vocabulary, vocabulary->by_name, vocabulary_output, output, length);
}

void vocabulary_free(struct vocabulary *vocabulary)
{
    free(vocabulary->tokens);
    free(vocabulary->by_key);
    free(vocabulary->by_name);
    byte_buffer_free(&vocabulary->texts);
    *vocabulary = (struct vocabulary){0};
}
