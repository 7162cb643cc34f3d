/* SPDX-License-Identifier: Apache-2.0 */
/* From a row of logits to the next token. The token is a function of the row, of what the request asks
 * for, of the tokens before it, and of (seed, position): nothing else in the batch can change it.
 *
 * In this order: penalties, biases and forbidden tokens change logits; temperature divides them; of
 * the tokens ordered by logit (equal ones by id) top_k keeps the first k, top_p of those the
 * shortest beginning with so much of their probability, min_p those at least so likely relative to
 * the likeliest. One of the kept is drawn by its probability, in the order of ids.
 *
 * Log-probabilities are the model's own: of its logits as they are, before all of this. */
#ifndef BATON_ENGINE_SAMPLER_H
#define BATON_ENGINE_SAMPLER_H

#include "sampler_history.h"

#define SAMPLER_TOP_MAX 128
#define SAMPLER_BIASES_MAX 1024

struct logit_bias {
    int32_t token;
    float bias;
};

struct sampling {
    float temperature; /* 0 (or below SAMPLER_TEMPERATURE_MIN): the likeliest token */
    uint32_t top_k;    /* 0: all */
    float top_p;       /* 1: all */
    float min_p;       /* 0: all */
    float repetition_penalty;
    float frequency_penalty;
    float presence_penalty;
    uint64_t seed;
    const struct logit_bias *biases; /* of different tokens; added up otherwise */
    uint32_t bias_count;
    bool logprobs;         /* that of the token itself */
    uint32_t top_logprobs; /* and of so many likeliest ones; needs logprobs */
};
#define SAMPLER_TEMPERATURE_MIN 1e-5f
#define SAMPLING_DEFAULT \
    ((struct sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1})

/* EINVAL: a number that means nothing, with its name and value. */
int sampling_check(const struct sampling *sampling, uint32_t vocab_size, struct error err);

/* Does it need a token_history? */
static inline bool sampling_has_penalties(const struct sampling *sampling)
{
    return sampling->repetition_penalty != 1 || sampling->frequency_penalty != 0 ||
           sampling->presence_penalty != 0;
}

struct token_logprob {
    int32_t token;
    float logprob;
};

struct token_choice {
    int32_t token;
    float logprob; /* where logprobs were asked for, otherwise 0 */
    uint32_t top_count;
    struct token_logprob top[SAMPLER_TOP_MAX]; /* the likeliest first */
};

struct sampler_row {
    float *logits; /* changed by the call */
    const struct sampling *sampling;
    const struct token_history *history; /* NULL: none, no penalties */
    const int32_t *forbidden;            /* tokens that must not come now */
    uint32_t forbidden_count;
    uint64_t position; /* of the token to be drawn in its sequence */
};

/* The working memory of one thread, for rows of vocab_size. */
struct sampler;
int sampler_open(uint32_t vocab_size, struct sampler **out, struct error err);
void sampler_close(struct sampler *sampler); /* NULL is fine */

/* EINVAL: a logit is not a number, or no token is possible. */
int sampler_pick(struct sampler *sampler, const struct sampler_row *row,
                 struct token_choice *out, struct error err);

/* How likely `token` was, as the logprobs of sampler_pick: for tokens that are already known. */
int sampler_rate(struct sampler *sampler, const float *logits, int32_t token, uint32_t top,
                 struct token_choice *out, struct error err);

#endif
