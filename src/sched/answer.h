/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a token once it is drawn: the text that it lets out, and whether it ends the
 * generation. And, before it is drawn, which tokens must not come yet. */
#ifndef BATON_SCHED_ANSWER_H
#define BATON_SCHED_ANSWER_H

#include "generation_state.h"

#define ANSWER_ENDS_MAX 64

/* The tokens that end an answer of this model, whatever a request says: the tokenizer's and the
 * config's. */
struct answer_ends {
    int32_t tokens[ANSWER_ENDS_MAX];
    uint32_t count;
};
struct model_config;
void answer_ends_init(struct answer_ends *ends, const struct tokenizer *tokenizer,
                      const struct model_config *config);

/* How it ended; the fields of generation_output. */
struct answer_finish {
    enum generation_finish finish;
    int32_t matched_token, matched_string;
    int error;
    const char *reason;
};
#define ANSWER_GOES_ON       \
    ((struct answer_finish){ \
        .finish = GENERATION_RUNNING, .matched_token = -1, .matched_string = -1})

/* Tokens that would end it too early, as min_new_tokens says. Returns how many; `out` has room for
 * ANSWER_ENDS_MAX and the request's own stop tokens. */
uint32_t answer_forbidden(const struct answer_ends *ends, const struct generation_state *state,
                          int32_t *out);

/* Takes the next token in. Appends to `text` what it lets out; if it ends the answer, all the rest
 * too. ENOMEM. */
int answer_token(const struct answer_ends *ends, struct generation_state *state, int32_t token,
                 struct byte_buffer *text, struct answer_finish *finish);

/* It ends without another token: what was kept back of the text. ENOMEM. */
int answer_flush(struct generation_state *state, struct byte_buffer *text);

/* Hands it all to the maker. With a finish the generation is the maker's from then on. `choice` NULL:
 * no new token. */
void answer_deliver(struct generation_state *state, const struct token_choice *choice,
                    const struct byte_buffer *text, const struct answer_finish *finish);

#endif
