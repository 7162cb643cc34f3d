/* SPDX-License-Identifier: Apache-2.0 */
/* See sampler_weights.h. The loops are written so that compilers turn them into vector instructions
 * without being allowed to change the order of a sum: LANES numbers side by side. (CMakeLists.txt
 * tells gcc that a comparison does not trap, which changes no result.) */
#include "sampler_weights.h"

#include <math.h>
#include <string.h>

#define LANES 16u

/* ---- the largest ---------------------------------------------------------------------------- */

/* `strange` becomes non-zero where a number is none: comparisons would not see it. */
static float block_scan(const float *logits, uint32_t count, uint32_t *strange)
{
    float max[LANES];
    uint32_t odd[LANES] = {0}, i = 0;
    for (uint32_t lane = 0; lane < LANES; lane++)
        max[lane] = -INFINITY;
    for (; i + LANES <= count; i += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++) {
            float x = logits[i + lane];
            max[lane] = x > max[lane] ? x : max[lane];
            odd[lane] |= x != x;
        }
    for (; i < count; i++) {
        max[0] = logits[i] > max[0] ? logits[i] : max[0];
        odd[0] |= logits[i] != logits[i];
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        max[0] = max[lane] > max[0] ? max[lane] : max[0];
        *strange |= odd[lane];
    }
    return max[0];
}

static int report_strange(const float *logits, uint32_t count, struct error err)
{
    for (uint32_t i = 0; i < count; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return error_set(err, BATON_EINVAL,
                             "the model's logit of token %u is %s: its weights or its KV cache "
                             "are damaged, or its numbers overflow",
                             i, isnan(logits[i]) ? "not a number" : "infinite");
    return error_set(err, BATON_EINVAL, "none of the %u tokens is possible", count);
}

int logits_scan(const float *logits, uint32_t count, float *block_max, float *max,
                struct error err)
{
    float largest = -INFINITY;
    uint32_t strange = 0;
    for (uint32_t i = 0; i < count; i += WEIGHT_BLOCK) {
        uint32_t size = count - i < WEIGHT_BLOCK ? count - i : WEIGHT_BLOCK;
        float here = block_scan(logits + i, size, &strange);
        block_max[i / WEIGHT_BLOCK] = here;
        largest = here > largest ? here : largest;
    }
    if (strange || isinf(largest))
        return report_strange(logits, count, err);
    *max = largest;
    return BATON_OK;
}

/* ---- weights -------------------------------------------------------------------------------- */

/* exp(x) = 2^n * exp(r) with r = x - n ln 2 in +-0.35, where eight terms of the series suffice.
 * n is rounded by adding a number whose last bit is worth 1; its bits then hold n too. */
static inline float exp_of_negative(float x)
{
    const float lowest = -87.0f; /* 2^-126 is the smallest normal number */
    const float rounder = 12582912.0f, log2_e = 1.44269504f;
    const float ln2_high = 0.693359375f,
                ln2_low = -2.12194440e-4f; /* high: 9 bits, n*high is exact */
    float clamped = x > lowest ? x : lowest;
    float shifted = clamped * log2_e + rounder, n = shifted - rounder;
    float r = (clamped - n * ln2_high) - n * ln2_low;
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof(power));
    return x > lowest ? sum * power : 0.0f;
}

/* No lane has more than WEIGHT_BLOCK / LANES numbers, so float is good enough within a block. */
static double block_sum(const float *weights, uint32_t count)
{
    float sums[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++)
            sums[lane] += weights[i + lane];
    for (uint32_t lane = 0; i < count; i++, lane++)
        sums[lane] += weights[i];
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return (double)sums[0];
}

double weights_make(const float *logits, uint32_t count, float max, float scale, float *weights,
                    double *block_sums)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i += WEIGHT_BLOCK) {
        uint32_t size = count - i < WEIGHT_BLOCK ? count - i : WEIGHT_BLOCK;
        for (uint32_t j = i; j < i + size; j++)
            weights[j] = exp_of_negative((logits[j] - max) * scale);
        double sum = block_sum(weights + i, size);
        block_sums[i / WEIGHT_BLOCK] = sum;
        total += sum;
    }
    return total;
}
