/* SPDX-License-Identifier: Apache-2.0 */
/* The scales and minima of packed blocks for AVX-512, all 16 outputs at a time. */
#ifndef BATON_ENGINE_AVX512_WEIGHTS_H
#define BATON_ENGINE_AVX512_WEIGHTS_H

#include "avx_weights.h"

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

#endif
