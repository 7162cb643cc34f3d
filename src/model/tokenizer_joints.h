/* SPDX-License-Identifier: Apache-2.0 */
/* Which two characters ever stand next to each other within a token. Where two neighbours of a text
 * are no such joint, no token spans them, and the text can be cut there without changing a single
 * id. SentencePiece knows no words: without this, a book would be one piece, merged in one go,
 * and nothing of it could be remembered from one time to the next. */
#ifndef BATON_MODEL_TOKENIZER_JOINTS_H
#define BATON_MODEL_TOKENIZER_JOINTS_H

#include "tokenizer_vocabulary.h"

struct joints {
    uint64_t *pairs; /* open addressing: left << 32 | right, 0 is free */
    size_t slots, count;
};

/* Of all tokens that merges may make. */
int joints_build(struct joints *joints, const struct vocabulary *vocabulary, struct error err);
bool joints_have(const struct joints *joints, uint32_t left, uint32_t right);
void joints_free(struct joints *joints);

#endif
