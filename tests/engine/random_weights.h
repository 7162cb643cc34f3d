/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers and random weights for the tests of the engine. The same seed gives the same
 * numbers: a failure can be had again. */
#ifndef BATON_TESTS_ENGINE_RANDOM_WEIGHTS_H
#define BATON_TESTS_ENGINE_RANDOM_WEIGHTS_H

#include "model/weights.h"

#include <stdint.h>

struct random_stream {
    uint64_t state;
};

uint64_t random_stream_next(struct random_stream *random);
uint32_t random_stream_below(struct random_stream *random, uint32_t bound);
float random_stream_float(struct random_stream *random, float scale); /* -scale .. scale */

/* A matrix of the type, its values around -scale .. scale. The memory is malloc'ed. */
struct weight random_weight(struct random_stream *random, const char *name,
                            enum tensor_type type, uint32_t rows, uint32_t columns,
                            float scale);
void random_weight_free(struct weight *weight);

#endif
