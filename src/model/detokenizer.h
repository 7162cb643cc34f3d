/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to text, as they come: each token gives the characters that it completes, never a part
 * of one. All texts together are what decoding all tokens at once gives.
 *
 *   struct detokenizer detokenizer;
 *   detokenizer_init(&detokenizer, tokenizer, DETOKENIZER_CONTINUES);
 *   for each token: detokenizer_push(&detokenizer, id, &text);
 *   at the end:     detokenizer_flush(&detokenizer, &text); */
#ifndef BATON_MODEL_DETOKENIZER_H
#define BATON_MODEL_DETOKENIZER_H

#include "tokenizer.h"

enum detokenizer_flags {
    /* Text goes before these tokens: a space at their beginning is a space. Without it the
     * one that encoding put before a text is dropped (tokenizer_drops_first_space). */
    DETOKENIZER_CONTINUES = 1,
    /* Control tokens appear with their names; otherwise they are left out. */
    DETOKENIZER_SHOW_CONTROL = 2,
};

/* Plain data, to be copied and forgotten at will. One thread's at a time. */
struct detokenizer {
    const struct tokenizer *tokenizer;
    char pending[4]; /* the beginning of a character */
    uint8_t pending_length;
    bool show_control;
    bool at_start; /* the next text may begin with a space that is none */
};

void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer,
                      uint32_t flags);

/* Appends what the token completes, which may be nothing. Bytes that cannot be part of a character
 * become U+FFFD. An id that is no token adds nothing. ENOMEM, with nothing changed. */
int detokenizer_push(struct detokenizer *detokenizer, uint32_t id, struct byte_buffer *out);

/* The end: the beginning of a character that still waits becomes U+FFFD. */
int detokenizer_flush(struct detokenizer *detokenizer, struct byte_buffer *out);

/* All at once. */
int detokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                       uint32_t flags, struct byte_buffer *out);

#endif
