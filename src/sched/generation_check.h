/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a generation is told to whoever submits it, at once and with numbers; past this
 * the scheduler relies on what it was given. */
#ifndef BATON_SCHED_GENERATION_CHECK_H
#define BATON_SCHED_GENERATION_CHECK_H

#include "generation.h"

struct generation_limits {
    uint32_t context;  /* tokens, prompt and answer together, that the model takes */
    uint32_t capacity; /* tokens that the pool holds */
    uint32_t vocab_size;
};

int generation_check(const struct generation *generation,
                     const struct generation_limits *limits, struct error err);

/* New tokens that a checked generation can have: max_new_tokens, or what context and pool leave. */
uint32_t generation_limit(const struct generation *generation,
                          const struct generation_limits *limits);

#endif
