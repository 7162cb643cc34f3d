/* SPDX-License-Identifier: Apache-2.0 */
/* lanes_portable.h with AVX2, FMA and F16C: one register of eight. */
#ifndef BATON_ENGINE_LANES_AVX2_H
#define BATON_ENGINE_LANES_AVX2_H

#include "eight_avx.h"
#include "number.h"

#define LANES 8

typedef eight lanes;

#define lanes_load eight_load
#define lanes_load_half eight_load_half
#define lanes_set eight_set
#define lanes_add eight_add
#define lanes_fma eight_fma
#define lanes_sum eight_sum

static inline void lanes_store(float *to, lanes a)
{
    _mm256_storeu_ps(to, a);
}

static inline lanes lanes_subtract(lanes a, lanes b)
{
    return _mm256_sub_ps(a, b);
}

static inline lanes lanes_multiply(lanes a, lanes b)
{
    return _mm256_mul_ps(a, b);
}

static inline lanes lanes_divide(lanes a, lanes b)
{
    return _mm256_div_ps(a, b);
}

static inline lanes lanes_fma_scalar(lanes a, float b, lanes c)
{
    return _mm256_fmadd_ps(a, _mm256_set1_ps(b), c);
}

static inline lanes lanes_larger(lanes a, lanes b)
{
    return _mm256_max_ps(a, b); /* a > b ? a : b, as the definition says */
}

static inline lanes lanes_smaller(lanes a, lanes b)
{
    return _mm256_min_ps(a, b);
}

static inline lanes lanes_magnitude(lanes a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

static inline lanes lanes_round(lanes a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#define LANES_SHIFT 0x1.8p+23f
static inline lanes lanes_power_of_shifted(lanes shifted)
{
    __m256i exponent = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

static inline float lanes_largest(lanes a)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline void lanes_store_int8(int8_t *to, lanes a)
{
    __m256i whole = _mm256_cvttps_epi32(a);
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packs_epi16(words, words));
}

static inline void lanes_store_half(uint16_t *to, lanes a)
{
    _mm_storeu_si128((__m128i *)(void *)to,
                     _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline lanes lanes_load_bfloat(const uint16_t *from)
{
    __m128i bfloat = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bfloat), 16));
}

#endif
