/* SPDX-License-Identifier: Apache-2.0 */
/* What the AVX2 and the AVX-512 kernels have in common: reading packed blocks, 8 outputs (c = 0 or
 * 1: the panel's first or second half) at a time. */
#ifndef BATON_ENGINE_AVX_WEIGHTS_H
#define BATON_ENGINE_AVX_WEIGHTS_H

#include "cpu_kernels.h"

#include <immintrin.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE __m256 avx_halves(const uint16_t *halves)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)halves));
}

static ALWAYS_INLINE __m256 avx_scale(enum packed_format format, const uint8_t *block, int half,
                                      int c)
{
    if (format == PACKED_Q6_HALF_BLOCKS) {
        const struct packed_q6_half_blocks *from = (const void *)block;
        __m128i factors =
            _mm_loadl_epi64((const __m128i *)(const void *)(from->factor[half] + 8 * c));
        return _mm256_mul_ps(avx_halves(from->scale + 8 * c),
                             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(factors)));
    }
    if (format == PACKED_Q4_CENTRED || format == PACKED_Q4_HALF || format == PACKED_Q8_HALF)
        return avx_halves((const uint16_t *)(const void *)block + 8 * c);
    return _mm256_loadu_ps((const float *)(const void *)block + half * PANEL_OUTPUTS + 8 * c);
}

static ALWAYS_INLINE __m256 avx_minimum(enum packed_format format, const uint8_t *block, int c)
{
    if (format == PACKED_Q4_HALF)
        return avx_halves((const uint16_t *)(const void *)block + PANEL_OUTPUTS + 8 * c);
    return _mm256_loadu_ps((const float *)(const void *)block + PANEL_OUTPUTS + 8 * c);
}

/* Inputs of group g (0..7), as signed bytes. */
static ALWAYS_INLINE __m256i avx_quants(enum packed_format format, const uint8_t *block, int g,
                                        int c)
{
    const uint8_t *at = packed_quants(format, block) + 32 * c;
    if (!packed_has_nibbles(format))
        return _mm256_loadu_si256((const __m256i *)(const void *)(at + 64 * g));
    __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)(at + 64 * (g & 3)));
    if (g >= 4)
        both = _mm256_srli_epi16(both, 4);
    __m256i quants = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if (format == PACKED_Q6_HALF_BLOCKS) {
        __m256i high = _mm256_loadu_si256(
            (const __m256i *)(const void *)(at - PACKED_HIGH_BYTES + 64 * (g / 4)));
        high = g % 4 < 3 ? _mm256_slli_epi16(high, 4 - g % 4 * 2) : _mm256_srli_epi16(high, 2);
        quants = _mm256_or_si256(quants, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
        return _mm256_sub_epi8(quants, _mm256_set1_epi8(32));
    }
    return format == PACKED_Q4_CENTRED ? _mm256_sub_epi8(quants, _mm256_set1_epi8(8)) : quants;
}

/* The scales and minima of a ready block. */
static ALWAYS_INLINE void avx_prepare_scales(enum packed_format format, const uint8_t *block,
                                             struct ready_block *out)
{
    for (int c = 0; c < 2; c++) {
        _mm256_storeu_ps(out->scale + 8 * c, avx_scale(format, block, 0, c));
        if (format == PACKED_Q6_HALF_BLOCKS)
            _mm256_storeu_ps(out->other + 8 * c, avx_scale(format, block, 1, c));
        if (block_kind_of(format) == BLOCK_MINIMA)
            _mm256_storeu_ps(out->other + 8 * c, avx_minimum(format, block, c));
    }
}

#endif
