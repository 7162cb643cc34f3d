/* SPDX-License-Identifier: Apache-2.0 */
/* How to generate: the sampling parameters of a request, whichever API they come from. SGLang's
 * /generate puts them into "sampling_params", the OpenAI endpoints beside everything else, partly
 * under other names; all names are understood in both places. */
#ifndef BATON_SERVER_GENERATION_SETTINGS_H
#define BATON_SERVER_GENERATION_SETTINGS_H

#include "request_reader.h"

#include "sched/generation.h"

#define GENERATION_N_MAX 128u
#define STOP_TOKENS_MAX 64u

struct generation_settings {
    struct sampling sampling;
    uint32_t max_new_tokens, min_new_tokens;
    uint32_t n;
    int32_t *stop_tokens;
    uint32_t stop_token_count;
    struct stop_strings *stop_strings;
    char **stop_texts; /* copies, for matched_stop */
    uint32_t stop_string_count;
    struct logit_bias *biases;
    bool ignore_eos, keep_stop, show_special;
};

/* Reads `reader` over the defaults: max_new_tokens is that of the endpoint. What is wrong goes to the
 * reader's error. Release it in any case. */
void generation_settings_read(const struct request_reader *reader, uint32_t max_new_tokens,
                              uint32_t vocab_size, struct generation_settings *out);
void generation_settings_release(struct generation_settings *settings);

/* The part of a generation that is said here; number: which of the n. A seed that was not given is
 * drawn for each; one that was given is counted up, so that n replies are n different ones. */
void generation_settings_apply(const struct generation_settings *settings, uint32_t number,
                               struct generation *generation);

#endif
