/* SPDX-License-Identifier: Apache-2.0 */
/* lanes_portable.h with AVX-512: sixteen lanes for what goes number by number, and half a register
 * for the eight partial sums of a row. */
#ifndef BATON_ENGINE_LANES_AVX512_H
#define BATON_ENGINE_LANES_AVX512_H

#include "cpu_kernels.h"
#include "eight_avx.h"
#include "number.h"

#define LANES 16

typedef __m512 lanes;

static inline lanes lanes_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

static inline void lanes_store(float *to, lanes a)
{
    _mm512_storeu_ps(to, a);
}

static inline lanes lanes_set(float value)
{
    return _mm512_set1_ps(value);
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return _mm512_add_ps(a, b);
}

static inline lanes lanes_subtract(lanes a, lanes b)
{
    return _mm512_sub_ps(a, b);
}

static inline lanes lanes_multiply(lanes a, lanes b)
{
    return _mm512_mul_ps(a, b);
}

static inline lanes lanes_divide(lanes a, lanes b)
{
    return _mm512_div_ps(a, b);
}

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline lanes lanes_fma_scalar(lanes a, float b, lanes c)
{
    return _mm512_fmadd_ps(a, _mm512_set1_ps(b), c);
}

/* In a register now: gcc would load it again for every use, and loads are what is short. */
#define lanes_hold lanes_hold
static inline lanes lanes_hold(lanes a)
{
    __asm__("" : "+v"(a));
    return a;
}

static inline lanes lanes_larger(lanes a, lanes b)
{
    return _mm512_max_ps(a, b);
}

static inline lanes lanes_smaller(lanes a, lanes b)
{
    return _mm512_min_ps(a, b);
}

static inline lanes lanes_magnitude(lanes a)
{
    return _mm512_abs_ps(a);
}

#define LANES_SHIFT 0x1.8p+23f
static inline lanes lanes_power_of_shifted(lanes shifted)
{
    __m512i exponent = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}

/* y times it, where neither y nor the product is subnormal. */
static inline lanes lanes_times_power(lanes y, lanes shifted)
{
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), power));
}

static inline float lanes_largest(lanes a)
{
    return _mm512_reduce_max_ps(a);
}

/* Sums of fours: those of the first and of the second 16 numbers. */
static inline void lanes_sum_quarters(__m256i fours, int16_t sums[2])
{
    __m128i pairs =
        _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    pairs = _mm_hadd_epi32(pairs, pairs);
    sums[0] = (int16_t)_mm_extract_epi32(pairs, 0);
    sums[1] = (int16_t)_mm_extract_epi32(pairs, 1);
}

/* 32 numbers at once: the conversion rounds to nearest, and the dot product with ones adds up. */
#define LANES_ROUND_BLOCK
static inline void lanes_round_block(const float *x, float inverse, int8_t *to, int16_t sums[2])
{
    lanes by = _mm512_set1_ps(inverse);
    __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), by));
    __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + LANES), by));
    __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
    lanes_sum_quarters(_mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes),
                       sums);
}

/* ---- sixteen rows of a block ----------------------------------------------------------------
 * The same as quantise() of each, but a lane is a row wherever there is one number for a row. */

/* Lane r of the result is what `join` makes of the lanes of a[r]: of each quarter (0, 2) and (1, 3), of the
 * quarters (0, 1) and (2, 3). */
static inline __attribute__((always_inline)) lanes lanes_join_each(const lanes a[16],
                                                                   lanes (*join)(lanes, lanes))
{
    lanes b[8], c[4], d[2];
    for (int i = 0; i < 8; i++)
        b[i] = join(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                    _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 4; i++) { /* rows 4i .. 4i+3 in each quarter */
        __m512d even = _mm512_castps_pd(b[2 * i]), odd = _mm512_castps_pd(b[2 * i + 1]);
        c[i] = join(_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd)));
    }
    for (int i = 0; i < 2; i++)
        d[i] = join(_mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0x88),
                    _mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0xdd));
    return join(_mm512_shuffle_f32x4(d[0], d[1], 0x88), _mm512_shuffle_f32x4(d[0], d[1], 0xdd));
}

/* 32 numbers become words, four of the first 16 and four of the second in turn. */
static inline __m512i lanes_round_words(const float *first, const float *second, float inverse)
{
    lanes by = _mm512_set1_ps(inverse);
    return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(first), by)),
                              _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(second), by)));
}

/* Bytes of two vectors of such words: 32 in their order, and then the other 32. */
static inline __m512i lanes_bytes_in_order(__m512i words, __m512i others)
{
    const __m512i in_order =
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(in_order, _mm512_packs_epi16(words, others));
}

/* The upper 8 and the lower 4 bits of words. */
static inline __m512i lanes_fine_bytes(__m512i words)
{
    return lanes_bytes_in_order(_mm512_srai_epi16(words, 4),
                                _mm512_and_si512(words, _mm512_set1_epi16(FINE_LOWER - 1)));
}

static inline __m512i lanes_fours(__m512i bytes)
{
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
}

/* Sums of fours of a row's quants from its upper and lower bytes: a quarter for each 16 quants. */
static inline __m256i lanes_fine_fours(__m512i bytes)
{
    __m512i fours = lanes_fours(bytes);
    return _mm256_add_epi32(_mm256_slli_epi32(_mm512_castsi512_si256(fours), 4),
                            _mm512_extracti64x4_epi64(fours, 1));
}

/* Rounded to bfloat16, ties to even, and still floats. */
static inline lanes lanes_to_bfloat(lanes x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000)));
}

/* Such floats of inputs 0..15 and 16..31 as bfloats, in the order of bfloat_index. */
static inline __m512i lanes_pack_bfloats(lanes first, lanes second)
{
    /* The upper words of inputs (0, 2) (1, 3) (4, 6) (5, 7), and so on. */
    const __m512i order =
        _mm512_set_epi16(63, 59, 61, 57, 55, 51, 53, 49, 47, 43, 45, 41, 39, 35, 37, 33, 31, 27,
                         29, 25, 23, 19, 21, 17, 15, 11, 13, 9, 7, 3, 5, 1);
    return _mm512_permutex2var_epi16(_mm512_castps_si512(first), order,
                                     _mm512_castps_si512(second));
}

#define LANES_ROUND_FINE
static inline void lanes_round_fine(const float *x, float inverse, int8_t *to, int16_t sums[2])
{
    lanes by = _mm512_set1_ps(inverse);
    __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(lanes_to_bfloat(lanes_load(x)), by));
    __m512i second =
        _mm512_cvtps_epi32(_mm512_mul_ps(lanes_to_bfloat(lanes_load(x + LANES)), by));
    __m512i bytes = lanes_fine_bytes(_mm512_packs_epi32(first, second));
    _mm512_storeu_si512(to, bytes);
    lanes_sum_quarters(lanes_fine_fours(bytes), sums);
}

/* Fours of eight pairs of rows: lane r of sums[h] is the sum of row r's half h. */
static inline void lanes_sum_fours(const __m512i fours[8], __m512i sums[2])
{
    /* Row 2k + j, half h is in lane 4 (2j + h) + k % 4 of the first or the second vector. */
    const __m512i halves =
        _mm512_set_epi32(27, 19, 26, 18, 25, 17, 24, 16, 11, 3, 10, 2, 9, 1, 8, 0);
    __m512i b[4], c[2];
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(fours[2 * i], fours[2 * i + 1]),
                                _mm512_unpackhi_epi32(fours[2 * i], fours[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(b[2 * i], b[2 * i + 1]),
                                _mm512_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
    for (int h = 0; h < 2; h++)
        sums[h] = _mm512_permutex2var_epi32(
            c[0], _mm512_add_epi32(halves, _mm512_set1_epi32(4 * h)), c[1]);
}

/* Rows r and r + 1 of a block into their places; returns the sums of fours. */
static inline __m512i lanes_round_two(const float *first, const float *second, uint32_t stride,
                                      const float inverse[2], uint32_t r,
                                      struct quant_group *group)
{
    __m512i words = lanes_round_words(first, second, inverse[0]);
    __m512i others = lanes_round_words(first + stride, second + stride, inverse[1]);
    __m512i bytes = lanes_bytes_in_order(words, others);
    _mm512_storeu_si512(group->quants + quant_index(r, 0), bytes);
    return lanes_fours(bytes);
}

/* The largest magnitude of each row of a block. */
static inline lanes lanes_row_largest(const float *low, const float *high, uint32_t stride)
{
    lanes largest[GROUP_ROWS];
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        largest[r] = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(low + r * stride)),
                                   _mm512_abs_ps(_mm512_loadu_ps(high + r * stride)));
    return lanes_join_each(largest, lanes_larger);
}

static inline void quantise_rows(const float *first, const float *second, uint32_t stride,
                                 uint32_t blocks, struct quant_group *group)
{
    for (uint32_t b = 0; b < blocks; b++, group++) {
        const float *low = first + b * PACKED_BLOCK, *high = second + b * PACKED_BLOCK;
        __m512i fours[GROUP_ROWS / 2], sums[2];
        _Alignas(64) float inverse[GROUP_ROWS];
        lanes largest = lanes_row_largest(low, high, stride);
        lanes most = _mm512_set1_ps(QUANT_MOST);
        lanes scale = _mm512_div_ps(largest, most);
        __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(QUANT_LEAST), _CMP_GT_OQ);
        _mm512_store_ps(inverse, _mm512_maskz_div_ps(some, most, largest));
        for (uint32_t r = 0; r < GROUP_ROWS; r += 2)
            fours[r / 2] = lanes_round_two(low + r * stride, high + r * stride, stride,
                                           inverse + r, r, group);
        lanes_sum_fours(fours, sums);
        _mm512_storeu_ps(group->scale, scale);
        _mm512_storeu_ps(
            group->scaled_sum,
            _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_add_epi32(sums[0], sums[1]))));
        for (int h = 0; h < 2; h++)
            _mm256_storeu_si256((__m256i *)(void *)group->quant_sums[h],
                                _mm512_cvtepi32_epi16(sums[h]));
    }
}

/* To bfloats: adding and subtracting 1.5 * 2^23 scales rounds to whole multiples of the scale. */
static inline void quantise_rows_fine(const float *first, const float *second, uint32_t stride,
                                      uint32_t blocks, struct quant_group *group)
{
    for (uint32_t b = 0; b < blocks; b++, group++) {
        const float *low = first + b * PACKED_BLOCK, *high = second + b * PACKED_BLOCK;
        _Alignas(64) float shifts[GROUP_ROWS];
        lanes rows[GROUP_ROWS], largest = lanes_row_largest(low, high, stride);
        __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(FINE_LEAST), _CMP_GE_OQ);
        __m512i exponent = _mm512_and_si512(_mm512_castps_si512(lanes_to_bfloat(largest)),
                                            _mm512_set1_epi32(FINE_EXPONENT));
        lanes scale = _mm512_castsi512_ps(
            _mm512_maskz_sub_epi32(some, exponent, _mm512_set1_epi32(FINE_EXPONENT_LESS)));
        _mm512_store_ps(shifts, _mm512_mul_ps(scale, _mm512_set1_ps(LANES_SHIFT)));
        for (uint32_t r = 0; r < GROUP_ROWS; r++) {
            lanes shift = _mm512_set1_ps(shifts[r]);
            lanes left = lanes_to_bfloat(_mm512_loadu_ps(low + r * stride));
            lanes right = lanes_to_bfloat(_mm512_loadu_ps(high + r * stride));
            if (!(some >> r & 1))
                left = right = _mm512_setzero_ps();
            left = _mm512_sub_ps(_mm512_add_ps(left, shift), shift);
            right = _mm512_sub_ps(_mm512_add_ps(right, shift), shift);
            _mm512_storeu_si512(group->bfloats + bfloat_index(r, 0),
                                lanes_pack_bfloats(left, right));
            rows[r] = _mm512_add_ps(left, right);
        }
        _mm512_storeu_ps(group->scale, scale);
        /* Whole multiples of the scale: exact in any order. */
        _mm512_storeu_ps(group->scaled_sum, lanes_join_each(rows, lanes_add));
    }
}

/* ---- halves --------------------------------------------------------------------------------- */

static inline lanes lanes_load_half(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

static inline void lanes_store_half(uint16_t *to, lanes a)
{
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline lanes lanes_load_bfloat(const uint16_t *from)
{
    __m256i bfloat = _mm256_loadu_si256((const __m256i *)(const void *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bfloat), 16));
}

/* ---- turned keys ---------------------------------------------------------------------------- */

#define TURNED_KEYS

/* Sixteen rows of 16 floats become 16 columns. */
static inline __attribute__((always_inline)) void lanes_turn(lanes a[16])
{
    lanes b[16];
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            __m512d low = _mm512_castps_pd(b[i + j]), high = _mm512_castps_pd(b[i + j + 2]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    for (int i = 0; i < 4; i++) { /* a[i], a[i + 4], ...: column i of every quarter */
        lanes first = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        lanes second = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        lanes third = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        lanes fourth = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        a[i] = _mm512_shuffle_f32x4(first, second, 0x88);
        a[i + 8] = _mm512_shuffle_f32x4(first, second, 0xdd);
        a[i + 4] = _mm512_shuffle_f32x4(third, fourth, 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(third, fourth, 0xdd);
    }
}

#endif
