/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens a sequence has had, for the penalties on repeating them. Kept only by requests that
 * ask for a penalty: a small hash table, since a sequence knows few of the vocabulary's tokens. */
#ifndef BATON_ENGINE_SAMPLER_HISTORY_H
#define BATON_ENGINE_SAMPLER_HISTORY_H

#include "base/error.h"

struct history_entry {
    int32_t token;    /* -1: empty */
    uint32_t outputs; /* how often it was generated; 0: it is in the prompt only */
};

/* All zero is empty. */
struct token_history {
    struct history_entry *entries;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t count;
};

void token_history_free(struct token_history *history);

/* ENOMEM, with what was added until then. */
int token_history_add_prompt(struct token_history *history, const int32_t *tokens,
                             uint32_t count);
int token_history_add_output(struct token_history *history, int32_t token);

/* Repetition divides (multiplies, below 0) the logit of every token of prompt and output; frequency
 * is taken off for each time a token was generated, presence once. 1, 0 and 0 change nothing. */
void token_history_apply(const struct token_history *history, float repetition, float frequency,
                         float presence, float *logits);

#endif
