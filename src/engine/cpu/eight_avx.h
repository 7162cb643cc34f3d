/* SPDX-License-Identifier: Apache-2.0 */
/* The eight partial sums of a row in one register of AVX: for AVX2, whose lanes they are, and for
 * AVX-512, which has twice as many lanes. */
#ifndef BATON_ENGINE_EIGHT_AVX_H
#define BATON_ENGINE_EIGHT_AVX_H

#include <immintrin.h>
#include <stdint.h>

#define EIGHT 8

typedef __m256 eight;

static inline eight eight_load(const float *from)
{
    return _mm256_loadu_ps(from);
}

static inline eight eight_load_half(const uint16_t *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
}

static inline eight eight_set(float value)
{
    return _mm256_set1_ps(value);
}

static inline eight eight_add(eight a, eight b)
{
    return _mm256_add_ps(a, b);
}

static inline eight eight_fma(eight a, eight b, eight c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline __m128 eight_fold(eight a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

static inline float eight_sum(eight a)
{
    __m128 four = eight_fold(a);
    __m128 two = _mm_hadd_ps(four, four);
    return _mm_cvtss_f32(_mm_hadd_ps(two, two));
}

static inline void eight_sum4(eight a, eight b, eight c, eight d, float out[4])
{
    __m128 ab = _mm_hadd_ps(eight_fold(a), eight_fold(b));
    __m128 cd = _mm_hadd_ps(eight_fold(c), eight_fold(d));
    _mm_storeu_ps(out, _mm_hadd_ps(ab, cd));
}

#endif
