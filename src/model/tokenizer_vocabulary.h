/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a tokenizer: each id's text in two forms, its kind, and ids by text.
 *
 * The *key* is what the merges speak of, the *output* what a reader sees. For BPE over bytes both
 * are the bytes themselves: the letters that stand for bytes in files ("Ġ" for a space) are
 * translated when they are read, and nothing here knows of them. For BPE over characters the
 * key of " the" is "▁the" and that of a byte is "<0x0A>". */
#ifndef BATON_MODEL_TOKENIZER_VOCABULARY_H
#define BATON_MODEL_TOKENIZER_VOCABULARY_H

#include "tokenizer.h"

#define VOCABULARY_TOKENS_MAX (1u << 22)

enum token_kind {
    TOKEN_ABSENT = 0,   /* a hole between ids */
    TOKEN_NORMAL,       /* text; merges make it */
    TOKEN_BYTE,         /* one byte of a character that has no token */
    TOKEN_CONTROL,      /* a signal; never made from text by merges */
    TOKEN_USER_DEFINED, /* text that is always one token */
    TOKEN_UNKNOWN,      /* stands for what has no token */
    TOKEN_UNUSED,       /* has an id and a text, but no text becomes it */
};

struct vocabulary_token {
    uint32_t key, key_length; /* in `texts` */
    uint32_t output, output_length;
    uint8_t kind;
};

struct vocabulary {
    struct vocabulary_token *tokens;
    size_t count, capacity;
    struct byte_buffer texts;
    uint32_t *by_key; /* open addressing; TOKEN_NONE: free */
    uint32_t *by_name;
    uint32_t slots; /* of each, a power of two */
};

/* Gives an id a key, and the key as its output; a second time overwrites. EINVAL: the id is
 * beyond VOCABULARY_TOKENS_MAX. */
int vocabulary_set(struct vocabulary *vocabulary, uint32_t id, const char *key, size_t length,
                   enum token_kind kind, struct error err);
int vocabulary_set_output(struct vocabulary *vocabulary, uint32_t id, const char *output,
                          size_t length, struct error err);

/* After the last vocabulary_set: makes vocabulary_find and vocabulary_find_name work. */
int vocabulary_index(struct vocabulary *vocabulary, struct error err);

struct text_view vocabulary_key(const struct vocabulary *vocabulary, uint32_t id);
struct text_view vocabulary_output(const struct vocabulary *vocabulary, uint32_t id);

/* The token that text of this key may become: control tokens, bytes and the like are not found, so
 * that nobody gets one by spelling it. TOKEN_NONE. */
uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *key, size_t length);
/* Any token by its output; control tokens first. */
uint32_t vocabulary_find_name(const struct vocabulary *vocabulary, const char *output,
                              size_t length);

enum token_kind vocabulary_kind(const struct vocabulary *vocabulary, uint32_t id);
void vocabulary_free(struct vocabulary *vocabulary);

#endif
