/* SPDX-License-Identifier: Apache-2.0 */
/* What `baton bench serve` sends, and when: a list of requests with their lengths and instants, made from
 * a seed or read from a trace. The tokens of a prompt are a function of the seed, so that the same seed
 * sends the same bytes and nothing is kept in memory. */
#ifndef BATON_CLI_SERVE_PLAN_H
#define BATON_CLI_SERVE_PLAN_H

#include "base/error.h"

#include <stdbool.h>

#define SERVE_TRACE_BLOCK 512 /* tokens that one hash of a trace stands for */

struct serve_plan_options {
    uint32_t requests; /* of a trace: at most so many; 0: all */
    uint32_t input_tokens, output_tokens;
    uint32_t length_percent; /* lengths are even between this part of the above and all of it */
    uint32_t shared_prefix;  /* tokens with which every prompt begins */
    double rate;        /* requests a second, at random (Poisson); 0: all are due at once */
    const char *trace;  /* a file of Mooncake's; NULL: none */
    double trace_scale; /* so many times as fast as recorded */
    uint32_t input_max, output_max; /* longer ones of a trace are cut; 0: not */
    uint64_t seed;
};

struct serve_item {
    uint64_t due_ns; /* after the start */
    uint32_t input_tokens, output_tokens;
    uint32_t first_block, block_count; /* of plan->blocks, for a trace */
};

struct serve_plan {
    struct serve_item *items;
    uint32_t count, room;
    uint32_t *blocks;
    size_t block_count, block_room;
    uint32_t shared_prefix;
    uint64_t seed;
};

int serve_plan_make(const struct serve_plan_options *options, struct serve_plan *plan,
                    struct error err);
void serve_plan_free(struct serve_plan *plan);

/* A random number for the token at this place; prompts that share a beginning share these. */
uint64_t serve_plan_token(const struct serve_plan *plan, uint32_t item, uint32_t position);

#endif
