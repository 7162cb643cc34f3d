/* SPDX-License-Identifier: Apache-2.0 */
/* What attention with bfloats has in common for one row and for many: numbers in pairs, and the softmax of a
 * tile, sixteen positions in a register. */
#ifndef BATON_ENGINE_BFLOAT_AVX512_H
#define BATON_ENGINE_BFLOAT_AVX512_H

#include "avx_weights.h"
#include "lanes_avx512.h"
#include "lanes_exp.h"
#include "lanes_weight.h"

#include <math.h>

#define SCORE_VECTORS (ATTENTION_TILE / LANES)

/* ---- numbers -------------------------------------------------------------------------------- */

/* 32 floats, rounded. */
static ALWAYS_INLINE __m512i bfloats_pack(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/* 32 halves, rounded: the exponent has 112 more there, and three bits fewer follow it. */
static ALWAYS_INLINE __m512i bfloats_from_halves(const uint16_t *from)
{
    __m512i half = _mm512_add_epi16(_mm512_loadu_si512(from), _mm512_set1_epi16(4));
    __mmask32 normal = _mm512_test_epi16_mask(half, _mm512_set1_epi16(0x7c00));
    __m512i bits =
        _mm512_and_si512(_mm512_srai_epi16(half, 3), _mm512_set1_epi16((short)0x8fff));
    return _mm512_maskz_add_epi16(normal, bits, _mm512_set1_epi16(112 << 7));
}

/* Those of a pair's first numbers, and its second ones. */
static ALWAYS_INLINE __m512 bfloats_first(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

static ALWAYS_INLINE __m512 bfloats_second(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* 32 inputs of 16 keys become pairs of inputs, a lane for each key. Of those that are not there nothing is
 * used. */
static ALWAYS_INLINE void bfloats_turn_keys(const uint16_t *const *keys, uint32_t count,
                                            uint32_t at, __m512 out[LANES])
{
    for (uint32_t t = 0; t < LANES; t++)
        out[t] = _mm512_castsi512_ps(bfloats_from_halves(keys[t < count ? t : 0] + at));
    lanes_turn(out);
}

/* 32 inputs of two values in pairs. */
static ALWAYS_INLINE void bfloats_pair(const uint16_t *first, const uint16_t *second,
                                       __m512i out[2])
{
    const __m512i apart =
        _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0); /* for what unpacking joins */
    __m512i a = _mm512_permutexvar_epi64(apart, bfloats_from_halves(first));
    __m512i b = _mm512_permutexvar_epi64(apart, bfloats_from_halves(second));
    out[0] = _mm512_unpacklo_epi16(a, b);
    out[1] = _mm512_unpackhi_epi16(a, b);
}

/* A value that is not there has no weight, but must be finite. */
static const uint16_t no_value[MODEL_HEAD_DIM_MAX];

static ALWAYS_INLINE const uint16_t *value_at(const uint16_t *const *values, uint32_t tokens,
                                              uint32_t t)
{
    return t < tokens ? values[t] : no_value;
}

/* ---- softmax -------------------------------------------------------------------------------- */

static ALWAYS_INLINE __mmask16 seen_of(uint32_t seen, uint32_t vector)
{
    if (seen >= LANES * (vector + 1))
        return 0xffff;
    return seen <= LANES * vector ? 0 : (__mmask16)((1u << (seen - LANES * vector)) - 1);
}

static ALWAYS_INLINE __m512 largest_of(const __m512 scores[SCORE_VECTORS])
{
    return _mm512_max_ps(_mm512_max_ps(scores[0], scores[1]),
                         _mm512_max_ps(scores[2], scores[3]));
}

/* A query's weights, of each 32 positions; returns the partial sums. `less` as lanes_weight's. */
static ALWAYS_INLINE __m512 soften(const __m512 scores[SCORE_VECTORS], float less,
                                   uint32_t seen, const bool whole, __m512i out[2])
{
    __m512 weight[SCORE_VECTORS];
    for (uint32_t i = 0; i < SCORE_VECTORS; i++) {
        weight[i] = lanes_weight(scores[i], _mm512_set1_ps(less));
        if (!whole)
            weight[i] = _mm512_maskz_mov_ps(seen_of(seen, i), weight[i]);
    }
    out[0] = bfloats_pack(weight[0], weight[1]);
    out[1] = bfloats_pack(weight[2], weight[3]);
    return _mm512_add_ps(_mm512_add_ps(bfloats_first(out[0]), bfloats_second(out[0])),
                         _mm512_add_ps(bfloats_first(out[1]), bfloats_second(out[1])));
}

/* 16 inputs of a tile's weighted values to those of the tiles before, `keep` and `take` what both count for. */
static ALWAYS_INLINE void fold_values(__m512 tile, float keep, float take, bool first,
                                      float *weighted)
{
    if (!first)
        tile = _mm512_fmadd_ps(tile, _mm512_set1_ps(take),
                               _mm512_mul_ps(_mm512_loadu_ps(weighted), _mm512_set1_ps(keep)));
    _mm512_storeu_ps(weighted, tile);
}

#endif
