/* SPDX-License-Identifier: Apache-2.0 */
/* See generation.h, and generation_check.h for what is refused. */
#include "generation_check.h"

#include <string.h>

void generation_init(struct generation *generation)
{
    memset(generation, 0, sizeof(*generation));
    generation->sampling = SAMPLING_DEFAULT;
    generation->key = PREFIX_KEY_NONE;
    atomic_init(&generation->abort, false);
}

static int check_tokens(const char *what, const int32_t *tokens, uint32_t count,
                        uint32_t vocab_size, struct error err)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab_size)
            return error_set(err, BATON_EINVAL,
                             "%s %u is token %d; the model knows tokens 0 to %u", what, i,
                             tokens[i], vocab_size - 1);
    return BATON_OK;
}

static int check_length(const struct generation *generation,
                        const struct generation_limits *limits, struct error err)
{
    uint32_t count = generation->prompt_count;
    if (count == 0)
        return error_set(err, BATON_EINVAL, "the prompt is empty; it needs a token at least");
    if (count > limits->context)
        return error_set(err, BATON_EINVAL,
                         "the prompt has %u tokens; the context of this model holds %u", count,
                         limits->context);
    if (count > limits->capacity)
        return error_set(err, BATON_EINVAL,
                         "the prompt has %u tokens; the KV cache of this worker holds %u",
                         count, limits->capacity);
    return BATON_OK;
}

int generation_check(const struct generation *generation,
                     const struct generation_limits *limits, struct error err)
{
    int rc = check_length(generation, limits, err);
    if (!rc)
        rc = check_tokens("prompt token", generation->prompt, generation->prompt_count,
                          limits->vocab_size, err);
    if (!rc)
        rc = check_tokens("stop token", generation->stop_tokens, generation->stop_token_count,
                          limits->vocab_size, err);
    if (!rc)
        rc = sampling_check(&generation->sampling, limits->vocab_size, err);
    if (!rc && generation->prompt_logprobs &&
        generation->prompt_logprobs_start > generation->prompt_count)
        rc = error_set(err, BATON_EINVAL,
                       "logprobs are asked for from prompt token %u on; the prompt has %u",
                       generation->prompt_logprobs_start, generation->prompt_count);
    if (!rc && generation->prompt_logprobs && generation->prompt_top_logprobs > SAMPLER_TOP_MAX)
        rc = error_set(err, BATON_EINVAL, "%u top logprobs of the prompt; at most %d are given",
                       generation->prompt_top_logprobs, SAMPLER_TOP_MAX);
    return rc;
}

uint32_t generation_limit(const struct generation *generation,
                          const struct generation_limits *limits)
{
    uint32_t most = limits->context < limits->capacity ? limits->context : limits->capacity;
    uint32_t left = most - generation->prompt_count;
    return generation->max_new_tokens < left ? generation->max_new_tokens : left;
}
