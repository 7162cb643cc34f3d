/* SPDX-License-Identifier: Apache-2.0 */
/* Eight floats that are computed on together: the vocabulary in which float_kernels.inc is written.
 * This is the definition; lanes_neon.h and lanes_avx2.h say the same with instructions, bit for
 * bit. That works because every operation is one that IEEE 754 fixes (each lane for itself, rounded
 * to nearest even, multiply-add with one rounding), and because sums across lanes have one order:
 *
 *   ((0+4) + (1+5)) + ((2+6) + (3+7))
 *
 * Only one lanes_*.h can be included in a file. */
#ifndef BATON_ENGINE_LANES_PORTABLE_H
#define BATON_ENGINE_LANES_PORTABLE_H

#include "number.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 8

typedef struct {
    float x[LANES];
} lanes;

#define LANES_EACH(expression)      \
    lanes result;                   \
    for (int i = 0; i < LANES; i++) \
        result.x[i] = (expression); \
    return result

static inline lanes lanes_load(const float *from)
{
    LANES_EACH(from[i]);
}

static inline void lanes_store(float *to, lanes a)
{
    memcpy(to, a.x, sizeof(a.x));
}

static inline lanes lanes_set(float value)
{
    LANES_EACH(value);
}

static inline lanes lanes_add(lanes a, lanes b)
{
    LANES_EACH(a.x[i] + b.x[i]);
}

static inline lanes lanes_subtract(lanes a, lanes b)
{
    LANES_EACH(a.x[i] - b.x[i]);
}

static inline lanes lanes_multiply(lanes a, lanes b)
{
    LANES_EACH(a.x[i] * b.x[i]);
}

static inline lanes lanes_divide(lanes a, lanes b)
{
    LANES_EACH(a.x[i] / b.x[i]);
}

/* a * b + c, rounded once. */
static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    LANES_EACH(fmaf(a.x[i], b.x[i], c.x[i]));
}

static inline lanes lanes_fma_scalar(lanes a, float b, lanes c)
{
    LANES_EACH(fmaf(a.x[i], b, c.x[i]));
}

static inline lanes lanes_larger(lanes a, lanes b)
{
    LANES_EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]);
}

static inline lanes lanes_smaller(lanes a, lanes b)
{
    LANES_EACH(a.x[i] < b.x[i] ? a.x[i] : b.x[i]);
}

static inline lanes lanes_magnitude(lanes a)
{
    LANES_EACH(fabsf(a.x[i]));
}

/* To the nearest whole number, ties to even. */
static inline lanes lanes_round(lanes a)
{
    LANES_EACH(nearbyintf(a.x[i]));
}

/* 2^n for whole n from -126 to 127. */
/* 2^n of a whole number n, -126 .. 127, to which 1.5 * 2^23 was added: its last bits are n. */
#define LANES_SHIFT 0x1.8p+23f
static inline lanes lanes_power_of_shifted(lanes shifted)
{
    LANES_EACH(float_from_bits((float_to_bits(shifted.x[i]) + 127) << 23));
}

/* y times it, where neither y nor the product is subnormal. */
static inline lanes lanes_times_power(lanes y, lanes shifted)
{
    LANES_EACH(float_from_bits(float_to_bits(y.x[i]) + (float_to_bits(shifted.x[i]) << 23)));
}

static inline float lanes_sum(lanes a)
{
    return ((a.x[0] + a.x[4]) + (a.x[1] + a.x[5])) + ((a.x[2] + a.x[6]) + (a.x[3] + a.x[7]));
}

static inline float lanes_largest(lanes a)
{
    float largest = a.x[0];
    for (int i = 1; i < LANES; i++)
        largest = a.x[i] > largest ? a.x[i] : largest;
    return largest;
}

/* The sums of four, side by side. */
static inline void lanes_sum4(lanes a, lanes b, lanes c, lanes d, float out[4])
{
    out[0] = lanes_sum(a);
    out[1] = lanes_sum(b);
    out[2] = lanes_sum(c);
    out[3] = lanes_sum(d);
}

/* Whole numbers from -127 to 127. */
static inline void lanes_store_int8(int8_t *to, lanes a)
{
    for (int i = 0; i < LANES; i++)
        to[i] = (int8_t)a.x[i];
}

static inline lanes lanes_load_half(const uint16_t *from)
{
    LANES_EACH(float_from_half(from[i]));
}

static inline void lanes_store_half(uint16_t *to, lanes a)
{
    for (int i = 0; i < LANES; i++)
        to[i] = half_from_float(a.x[i]);
}

static inline lanes lanes_load_bfloat(const uint16_t *from)
{
    LANES_EACH(float_from_bfloat(from[i]));
}

#undef LANES_EACH
#include "lanes_eight.h"

#endif
