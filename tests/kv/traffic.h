/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as they come to a worker: prompts of conversations that go on, that share a system prompt,
 * that are edited in the middle. Made up, with the shape of Mooncake's public conversation trace
 * (FAST '25), or read from such a trace; tokens are a function of what they stand for, so that two
 * prompts share exactly the tokens that they should. */
#ifndef BATON_TESTS_KV_TRAFFIC_H
#define BATON_TESTS_KV_TRAFFIC_H

#include "random_source.h"

#include <stdbool.h>

#define TRAFFIC_TOKENS_MAX 131072u

struct traffic_request {
    uint32_t input;  /* tokens of the prompt */
    uint32_t output; /* tokens that will be generated */
    int32_t *tokens; /* input + output of them */
};

struct traffic;

/* `count` requests made up from the seed; or those of a file, at most `count`. The file has one JSON
 * object a line, with input_length, output_length and hash_ids (one number for each 512 tokens). */
struct traffic *traffic_make(uint64_t seed, uint32_t count);
struct traffic *traffic_read(const char *path, uint32_t count);
void traffic_free(struct traffic *traffic);

/* The next one, valid until the one after it; false at the end. */
bool traffic_next(struct traffic *traffic, struct traffic_request *out);

#endif
