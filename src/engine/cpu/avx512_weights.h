/* SPDX-License-Identifier: Apache-2.0 */
/* What AVX-512 and AMX have in common: reading packed blocks, all 16 outputs at a time, and
 * fine_weights.h in vectors. */
#ifndef BATON_ENGINE_AVX512_WEIGHTS_H
#define BATON_ENGINE_AVX512_WEIGHTS_H

#include "avx_weights.h"
#include "fine_weights.h"

static ALWAYS_INLINE __m512 avx512_both(__m256 first, __m256 second)
{
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(first)),
                                               _mm256_castps_pd(second), 1));
}

static ALWAYS_INLINE __m512 avx512_halves(const uint8_t *halves)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves));
}

static ALWAYS_INLINE __m512 avx512_scale(enum packed_format format, const uint8_t *block,
                                         int half)
{
    if (format == PACKED_Q4_CENTRED || format == PACKED_Q4_HALF || format == PACKED_Q8_HALF)
        return avx512_halves(block);
    return avx512_both(avx_scale(format, block, half, 0), avx_scale(format, block, half, 1));
}

static ALWAYS_INLINE __m512 avx512_minimum(enum packed_format format, const uint8_t *block)
{
    if (format == PACKED_Q4_HALF)
        return avx512_halves(block + PANEL_OUTPUTS * sizeof(uint16_t));
    return _mm512_loadu_ps(block + PANEL_OUTPUTS * sizeof(float));
}

struct avx512_fine_weight {
    __m512 scale[2], minimum[2];
};

static ALWAYS_INLINE __m512 avx512_rounded(__m512 x, __m512 round)
{
    return _mm512_sub_ps(_mm512_add_ps(x, round), round);
}

static ALWAYS_INLINE void avx512_split(__m512 x, __m512 upper_round, __m512 parts[2])
{
    parts[0] = avx512_rounded(x, upper_round);
    parts[1] = _mm512_sub_ps(x, parts[0]);
}

static ALWAYS_INLINE struct avx512_fine_weight avx512_fine_weight_of(enum packed_format format,
                                                                     const uint8_t *block)
{
    struct avx512_fine_weight out;
    const __m512 eight = _mm512_set1_ps(FINE_MIDDLE);
    __m512 scale = avx512_scale(format, block, 0), minimum;
    if (block_kind_of(format) == BLOCK_MINIMA)
        minimum = avx512_minimum(format, block);
    else
        minimum = _mm512_mul_ps(_mm512_set1_ps(-FINE_MIDDLE), scale);
    __m512 most = _mm512_fmadd_ps(_mm512_set1_ps(15.0f), scale, minimum);
    __m512 largest = _mm512_range_ps(most, minimum, 0xb); /* the larger magnitude of both */
    largest = _mm512_max_ps(largest, _mm512_set1_ps(FINE_LEAST));
    __m512i unit = _mm512_and_si512(
        _mm512_add_epi32(_mm512_castps_si512(largest), _mm512_set1_epi32(FINE_CARRY)),
        _mm512_set1_epi32(FINE_EXPONENT));
    __m512 upper =
        _mm512_castsi512_ps(_mm512_add_epi32(unit, _mm512_set1_epi32(FINE_UPPER_ROUND)));
    __m512 lower =
        _mm512_castsi512_ps(_mm512_add_epi32(unit, _mm512_set1_epi32(FINE_LOWER_ROUND)));
    __m512 rounded = avx512_rounded(scale, lower);
    __m512 middle = avx512_rounded(_mm512_fmadd_ps(eight, scale, minimum), lower);
    avx512_split(rounded, upper, out.scale);
    avx512_split(_mm512_fnmadd_ps(eight, rounded, middle), upper, out.minimum);
    return out;
}

#endif
