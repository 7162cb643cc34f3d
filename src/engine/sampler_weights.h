/* SPDX-License-Identifier: Apache-2.0 */
/* The two passes over all logits of a row that sampling cannot avoid, in blocks, so that what comes
 * after them (a top-k, a draw) can skip most of the vocabulary. Sums have one fixed order: the same
 * row gives the same numbers on every machine. */
#ifndef BATON_ENGINE_SAMPLER_WEIGHTS_H
#define BATON_ENGINE_SAMPLER_WEIGHTS_H

#include "base/error.h"

#define WEIGHT_BLOCK 256u

static inline uint32_t weight_blocks(uint32_t count)
{
    return (count + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
}

/* The largest logit of each block, and of all. EINVAL, with the index in the text: one is not a
 * number or is +infinity; or all are -infinity. */
int logits_scan(const float *logits, uint32_t count, float *block_max, float *max,
                struct error err);

/* weights[i] = exp((logits[i] - max) * scale), 0 below about 1e-38; their sum for each block, and
 * of all. Relative error of a weight below 1e-6. */
double weights_make(const float *logits, uint32_t count, float max, float scale, float *weights,
                    double *block_sums);

#endif
