/* SPDX-License-Identifier: Apache-2.0 */
/* What a tokenizer consists of. Seen by the files that fill it in (tokenizer_gguf.c,
 * tokenizer_json*.c), the one that uses it (tokenizer_encode.c) and nobody else. */
#ifndef BATON_MODEL_TOKENIZER_STATE_H
#define BATON_MODEL_TOKENIZER_STATE_H

#include "tokenizer.h"
#include "tokenizer_added.h"
#include "tokenizer_joints.h"
#include "tokenizer_merges.h"
#include "tokenizer_normalizer.h"
#include "tokenizer_split.h"
#include "tokenizer_vocabulary.h"

#include <pthread.h>

struct encoder; /* what one thread needs to encode: tokenizer_encode.c */

struct tokenizer {
    struct vocabulary vocabulary;
    struct merges merges;

    /* How the pieces become tokens. */
    bool over_bytes;        /* BPE over bytes; otherwise over characters */
    bool whole_piece_first; /* a piece that is a token is that token, whatever the merges say */
    bool byte_fallback; /* over characters: one that is no token becomes its bytes' tokens */
    uint32_t byte_ids[256]; /* of bytes, or for the fallback; TOKEN_NONE */
    uint32_t unknown;       /* for what has no token at all; TOKEN_NONE: it is dropped */
    bool fuse_unknown;      /* several in a row are one */
    struct joints joints;   /* over characters */

    /* How a text becomes pieces. */
    struct added_tokens added; /* found in the text as it is */
    struct normalizer normalizer;
    struct added_tokens normalized; /* found in the normalized text */
    struct splitter splitter;

    struct token_list prefix, suffix; /* around a text, when special tokens are asked for */

    uint32_t bos, eos, eot;
    struct token_list ends; /* ascending */
    bool drop_first_space;

    struct byte_buffer scratch; /* while it is filled in */

    pthread_mutex_t lock; /* of the idle ones */
    struct encoder *idle;
    size_t idle_count;
};

/* ---- filling one in ---------------------------------------------------------------------- */

int tokenizer_new(struct tokenizer **out, struct error err);

/* The letter that stands for a byte in the vocabularies of BPE over bytes, read back: "Ġthe" to
 * " the". False when one of the characters stands for no byte; `out` is then as it was. */
bool byte_letters_decode(const char *text, size_t length, struct byte_buffer *out);

/* The byte that "<0x0A>" stands for; -1 for any other text. */
int byte_token_value(const char *text, size_t length);

/* Gives an id its text as it stands in the file: over bytes in letters that stand for them, over
 * characters with `space_letter` ("▁"; may be empty) for a space. A normal token over bytes that
 * is not all letters can come out of no text, and becomes TOKEN_UNUSED. */
int tokenizer_set_token(struct tokenizer *tokenizer, uint32_t id, struct text_view text,
                        enum token_kind kind, struct text_view space_letter, struct error err);

/* Notes which ids are bytes: single ones over bytes, those of kind TOKEN_BYTE over characters.
 * After vocabulary_index. */
void tokenizer_find_bytes(struct tokenizer *tokenizer);

/* Adds a merge by its two halves as they stand in the file. EINVAL if one of them, or both together, are no
 * token. One that would make a control token is left out: no text may become one. */
int tokenizer_add_merge(struct tokenizer *tokenizer, struct text_view left,
                        struct text_view right, uint32_t rank, struct error err);

/* Adds an id to those that end a generation; TOKEN_NONE and ids without a token are ignored. */
int tokenizer_add_end(struct tokenizer *tokenizer, uint32_t id, struct error err);

/* Last: ids that are still unknown (EOT), ends by their usual names, and the joints. Ids that are
 * named but not there are forgotten. */
int tokenizer_finish(struct tokenizer *tokenizer, struct error err);

/* ---- encoders ---------------------------------------------------------------------------- */

void encoder_close(struct encoder *encoder); /* with those behind it */
size_t encoder_memory(const struct encoder *encoder);

#endif
