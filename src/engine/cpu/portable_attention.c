/* SPDX-License-Identifier: Apache-2.0 */
/* The definition of attention with bfloats, as cpu_kernels.h describes it. Where the processor has such
 * instructions nobody computes it like this; it is what they are tested against.
 *
 *   queries  [query][dim]
 *   tile     keys [position][dim], then values
 *
 * Instructions take subnormal numbers for zero. Here they are what they are; nothing that matters is so
 * small. */
#include "portable_attention.h"
#include "lanes_portable.h"
#include "lanes_exp.h"
#include "lanes_weight.h"

/* The number without its last three bits, rounded away from zero if in doubt. */
static uint16_t bfloat_from_half(uint16_t half)
{
    uint16_t rounded = (uint16_t)((half + 4) & ~7);
    return rounded & 0x7c00 ? bfloat_from_float(float_from_half(rounded)) : 0;
}

static void set_queries(const float *const *queries, uint32_t count, float scale, uint32_t dim,
                        uint16_t *out)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t d = 0; d < dim; d++)
            *out++ = bfloat_from_float(queries[i][d] * scale);
}

static void set_tile(const uint16_t *const *keys, const uint16_t *const *values,
                     uint32_t tokens, uint32_t dim, uint16_t *out)
{
    uint16_t *value = out + ATTENTION_TILE * dim;
    memset(out, 0, 2ull * ATTENTION_TILE * dim * sizeof(*out));
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t d = 0; d < dim; d++) {
            out[t * dim + d] = bfloat_from_half(keys[t][d]);
            value[t * dim + d] = bfloat_from_half(values[t][d]);
        }
    }
}

/* 32 numbers, the second ones `stride` apart. */
static float product(const uint16_t *a, const uint16_t *b, uint32_t stride)
{
    float even = 0.0f, odd = 0.0f;
    for (uint32_t i = 0; i < BFLOAT_INPUTS; i += 2) {
        even = fmaf(float_from_bfloat(a[i]), float_from_bfloat(b[i * stride]), even);
        odd = fmaf(float_from_bfloat(a[i + 1]), float_from_bfloat(b[(i + 1) * stride]), odd);
    }
    return even + odd;
}

static float score(const uint16_t *query, const uint16_t *key, uint32_t dim)
{
    float sum = 0.0f;
    for (uint32_t d = 0; d < dim; d += BFLOAT_INPUTS)
        sum += product(query + d, key + d, 1);
    return sum;
}

static float sum_of(const float *weights)
{
    float partial[16], fours[4];
    for (int i = 0; i < 16; i++)
        partial[i] =
            (weights[2 * i] + weights[2 * i + 1]) + (weights[32 + 2 * i] + weights[33 + 2 * i]);
    for (int i = 0; i < 4; i++)
        fours[i] =
            (partial[4 * i] + partial[4 * i + 2]) + (partial[4 * i + 1] + partial[4 * i + 3]);
    return (fours[0] + fours[1]) + (fours[2] + fours[3]);
}

static float exponential(float x)
{
    float out[LANES];
    lanes_store(out, lanes_exp(lanes_set(x)));
    return out[0];
}

static uint16_t weight_of(float of_score, float largest)
{
    float out[LANES];
    lanes_store(out, lanes_weight(lanes_set(of_score), lanes_set(-largest * LANES_PER_LN2)));
    return bfloat_from_float(out[0]);
}

static void attend_query(const uint16_t *query, uint32_t seen, const uint16_t *tile,
                         uint32_t dim, struct attention_state state, bool first)
{
    const uint16_t *values = tile + ATTENTION_TILE * dim;
    float scores[ATTENTION_TILE], weights[ATTENTION_TILE] = {0}, largest = -INFINITY;
    uint16_t rounded[ATTENTION_TILE] = {0};
    for (uint32_t t = 0; t < seen; t++) {
        scores[t] = score(query, tile + t * dim, dim);
        largest = scores[t] > largest ? scores[t] : largest;
    }
    for (uint32_t t = 0; t < seen; t++) {
        rounded[t] = weight_of(scores[t], largest);
        weights[t] = float_from_bfloat(rounded[t]);
    }
    float before = first ? largest : *state.largest;
    *state.largest = largest > before ? largest : before;
    float keep = exponential(before - *state.largest);
    float take = exponential(largest - *state.largest);
    float sum = sum_of(weights);
    *state.sum = first ? sum : fmaf(sum, take, *state.sum * keep);
    for (uint32_t d = 0; d < dim; d++) {
        float value = product(rounded, values + d, dim);
        value += product(rounded + BFLOAT_INPUTS, values + BFLOAT_INPUTS * dim + d, dim);
        state.weighted[d] = first ? value : fmaf(value, take, state.weighted[d] * keep);
    }
}

static void attend(const uint16_t *queries, uint32_t count, const uint32_t *seen,
                   const uint16_t *tile, uint32_t dim, struct attention_state state, bool first)
{
    for (uint32_t i = 0; i < count; i++)
        attend_query(queries + i * dim, seen[i], tile, dim, attention_state_at(state, i, dim),
                     first);
}

static void attend_row(const float *const *queries, uint32_t count, float scale,
                       const uint16_t *const *keys, const uint16_t *const *values,
                       uint32_t tokens, uint32_t dim, struct attention_state state, bool first)
{
    uint16_t query[MODEL_HEAD_DIM_MAX], tile[2 * ATTENTION_TILE * MODEL_HEAD_DIM_MAX];
    set_tile(keys, values, tokens, dim, tile);
    for (uint32_t i = 0; i < count; i++) {
        set_queries(queries + i, 1, scale, dim, query);
        attend_query(query, tokens, tile, dim, attention_state_at(state, i, dim), first);
    }
}

const struct bfloat_attention portable_attention = {
    .set_queries = set_queries,
    .set_tile = set_tile,
    .attend = attend,
    .attend_row = attend_row,
};
