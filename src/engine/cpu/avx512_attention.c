/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with bfloats for one row by AVX-512. Its few queries would leave AMX's tiles nearly empty, and
 * keys and values have to become bfloats just for them; this takes 0.7 to 0.85 of the time. It does what
 * the tiles do, in their order: a lane is a key, and later an input, and even and odd numbers have sums of
 * their own.
 *
 * Up to QUERIES_TOGETHER queries at a time; `queries` is a constant at every call, so that the sums stay in
 * registers. */
#include "avx512_attention.h"
#include "bfloat_avx512.h"

/* Adds a product of 32 inputs to the scores of 16 keys. */
static ALWAYS_INLINE void score_inputs(const __m512 keys[LANES], const float *const *query,
                                       const uint32_t queries, uint32_t at,
                                       __m512 sums[QUERIES_TOGETHER])
{
    __m512 even[QUERIES_TOGETHER], odd[QUERIES_TOGETHER];
    for (uint32_t a = 0; a < queries; a++)
        even[a] = odd[a] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < BFLOAT_INPUTS / 2; i++) {
        __m512i pairs = _mm512_castps_si512(keys[i]);
        __m512 first = bfloats_first(pairs), second = bfloats_second(pairs);
        for (uint32_t a = 0; a < queries; a++) {
            const float *of = query[a] + at + 2 * i;
            even[a] = _mm512_fmadd_ps(first, _mm512_set1_ps(of[0]), even[a]);
            odd[a] = _mm512_fmadd_ps(second, _mm512_set1_ps(of[1]), odd[a]);
        }
    }
    for (uint32_t a = 0; a < queries; a++)
        sums[a] = _mm512_add_ps(sums[a], _mm512_add_ps(even[a], odd[a]));
}

typedef __m512 score_vectors[SCORE_VECTORS];

/* What is not there is below all. */
static ALWAYS_INLINE void score_tile(const float *const *query, const uint32_t queries,
                                     const uint16_t *const *keys, uint32_t tokens, uint32_t dim,
                                     score_vectors scores[QUERIES_TOGETHER])
{
    for (uint32_t v = 0; v < SCORE_VECTORS; v++) {
        __m512 sums[QUERIES_TOGETHER];
        __mmask16 seen = seen_of(tokens, v);
        for (uint32_t a = 0; a < queries; a++)
            sums[a] = _mm512_setzero_ps();
        for (uint32_t d = 0; seen && d < dim; d += BFLOAT_INPUTS) {
            __m512 turned[LANES];
            bfloats_turn_keys(keys + v * LANES, tokens - v * LANES, d, turned);
            score_inputs(turned, query, queries, d, sums);
        }
        for (uint32_t a = 0; a < queries; a++)
            scores[a][v] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, sums[a]);
    }
}

/* The order of lanes_join_each. */
static ALWAYS_INLINE float join(__m512 a)
{
    a = _mm512_add_ps(a, _mm512_shuffle_ps(a, a, 0x4e));
    a = _mm512_add_ps(a, _mm512_shuffle_ps(a, a, 0xb1));
    a = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0xb1));
    return _mm512_cvtss_f32(_mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0x4e)));
}

/* Weights of positions 2i and then of 2i + 1; what the tile and those before count for. */
struct row_weights {
    _Alignas(64) float even[ATTENTION_TILE / 2], odd[ATTENTION_TILE / 2];
    float keep, take;
};

static ALWAYS_INLINE void soften_query(const __m512 scores[SCORE_VECTORS], uint32_t tokens,
                                       bool first, float *largest, float *sum,
                                       struct row_weights *to)
{
    __m512i rounded[2];
    float most = _mm512_reduce_max_ps(largest_of(scores));
    float total = join(soften(scores, -most * LANES_PER_LN2, tokens, false, rounded));
    for (int h = 0; h < 2; h++) {
        _mm512_store_ps(to->even + h * LANES, bfloats_first(rounded[h]));
        _mm512_store_ps(to->odd + h * LANES, bfloats_second(rounded[h]));
    }
    float before = first ? most : *largest, after = most > before ? most : before;
    if (!first) {
        _Alignas(64) float less[LANES] = {before - after, most - after};
        _mm512_store_ps(less, lanes_exp(_mm512_load_ps(less)));
        to->keep = less[0];
        to->take = less[1];
        total = fmaf(total, to->take, *sum * to->keep);
    }
    *largest = after;
    *sum = total;
}

typedef __m512 value_sums[QUERIES_TOGETHER][2];

/* Adds a product of up to 32 positions, from `begin` on, to the sums of 32 inputs, from `at` on. */
static ALWAYS_INLINE void weigh_positions(const struct row_weights *weights,
                                          const uint32_t queries, const uint16_t *const *values,
                                          uint32_t tokens, uint32_t begin, uint32_t at,
                                          value_sums sums)
{
    value_sums even, odd;
    uint32_t end = begin + BFLOAT_INPUTS < tokens ? begin + BFLOAT_INPUTS : tokens;
    for (uint32_t a = 0; a < queries; a++)
        for (uint32_t v = 0; v < 2; v++)
            even[a][v] = odd[a][v] = _mm512_setzero_ps();
    for (uint32_t t = begin; t < end; t += 2) {
        __m512i pairs[2];
        bfloats_pair(values[t] + at, value_at(values, tokens, t + 1) + at, pairs);
        for (uint32_t v = 0; v < 2; v++) {
            __m512 first = bfloats_first(pairs[v]), second = bfloats_second(pairs[v]);
            for (uint32_t a = 0; a < queries; a++) {
                __m512 one = _mm512_set1_ps(weights[a].even[t / 2]);
                __m512 other = _mm512_set1_ps(weights[a].odd[t / 2]);
                even[a][v] = _mm512_fmadd_ps(first, one, even[a][v]);
                odd[a][v] = _mm512_fmadd_ps(second, other, odd[a][v]);
            }
        }
    }
    for (uint32_t a = 0; a < queries; a++)
        for (uint32_t v = 0; v < 2; v++)
            sums[a][v] = _mm512_add_ps(sums[a][v], _mm512_add_ps(even[a][v], odd[a][v]));
}

/* The values' weighted sums, 32 inputs from `at` on. */
static ALWAYS_INLINE void weigh(const struct row_weights *weights, const uint32_t queries,
                                const uint16_t *const *values, uint32_t tokens, uint32_t dim,
                                uint32_t at, float *weighted, bool first)
{
    value_sums sums;
    for (uint32_t a = 0; a < queries; a++)
        sums[a][0] = sums[a][1] = _mm512_setzero_ps();
    for (uint32_t begin = 0; begin < tokens; begin += BFLOAT_INPUTS)
        weigh_positions(weights, queries, values, tokens, begin, at, sums);
    for (uint32_t a = 0; a < queries; a++) {
        float *to = weighted + a * dim + at;
        for (uint32_t v = 0; v < 2; v++)
            fold_values(sums[a][v], weights[a].keep, weights[a].take, first, to + v * LANES);
    }
}

static ALWAYS_INLINE void attend_together(const float *const *queries, const uint32_t count,
                                          float scale, const uint16_t *const *keys,
                                          const uint16_t *const *values, uint32_t tokens,
                                          uint32_t dim, struct attention_state state,
                                          bool first)
{
    _Alignas(64) float rounded[QUERIES_TOGETHER][MODEL_HEAD_DIM_MAX];
    const float *query[QUERIES_TOGETHER];
    score_vectors scores[QUERIES_TOGETHER];
    struct row_weights weights[QUERIES_TOGETHER];
    for (uint32_t a = 0; a < count; a++) {
        for (uint32_t d = 0; d < dim; d += LANES)
            _mm512_store_ps(rounded[a] + d,
                            lanes_to_bfloat(_mm512_mul_ps(_mm512_loadu_ps(queries[a] + d),
                                                          _mm512_set1_ps(scale))));
        query[a] = rounded[a];
    }
    score_tile(query, count, keys, tokens, dim, scores);
    for (uint32_t a = 0; a < count; a++)
        soften_query(scores[a], tokens, first, &state.largest[a], &state.sum[a], &weights[a]);
    for (uint32_t at = 0; at < dim; at += BFLOAT_INPUTS)
        weigh(weights, count, values, tokens, dim, at, state.weighted, first);
}

void avx512_attend_row(const float *const *queries, uint32_t count, float scale,
                       const uint16_t *const *keys, const uint16_t *const *values,
                       uint32_t tokens, uint32_t dim, struct attention_state state, bool first)
{
#define ATTEND(some) \
    attend_together(queries, some, scale, keys, values, tokens, dim, state, first)
    for (uint32_t some; count; count -= some, queries += some) {
        some = queries_together(count);
        if (some == 3)
            ATTEND(3);
        else if (some == 2)
            ATTEND(2);
        else
            ATTEND(1);
        state = attention_state_at(state, some, dim);
    }
#undef ATTEND
}
