/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of four bits as the sum of two numbers that bfloat16 holds exactly, whatever the nibble:
 *
 *   scale * nibble + minimum  ~  (nibble * scale[0] + minimum[0]) + (nibble * scale[1] + minimum[1])
 *
 * The upper numbers are multiples of a unit, a power of two, and the lower ones of a 32nd of it and no
 * larger than half a unit. An upper sum has at most 249 units, a lower one 256 of its own, so that
 * eight bits hold each of them. A scale keeps nine to ten bits of its eleven; the minimum is chosen so
 * that the error is least in the middle, at nibble 8.
 *
 * So a matrix of them needs no scaling while it is multiplied by tiles of bfloat16, and the same
 * product still comes from the nibbles and sums of whole numbers: they are exact on both ways, as
 * long as the activations are fine quants (12 bits of which 8 count). */
#ifndef BATON_ENGINE_FINE_WEIGHTS_H
#define BATON_ENGINE_FINE_WEIGHTS_H

#include "cpu_kernels.h"
#include "number.h"

#include <math.h>

#define FINE_MIDDLE 8 /* a nibble */

/* The unit is the smallest power of two of which the largest weight has no more than 240. Adding 1.5 *
 * 2^23 units to a number and subtracting them again rounds it to whole units. As bits: the carry out
 * of the fraction comes where that of 240 is exceeded. */
#define FINE_CARRY 0xfffffu
#define FINE_EXPONENT 0x7f800000u
#define FINE_UPPER_ROUND (((23u - 7) << 23) + 0x400000)
#define FINE_LOWER_ROUND (((23u - 7 - 5) << 23) + 0x400000)

struct fine_weight {
    float scale[2], minimum[2]; /* upper, lower */
};

static inline float fine_rounded(float x, float round)
{
    return (x + round) - round;
}

static inline void fine_split(float x, float upper_round, float parts[2])
{
    parts[0] = fine_rounded(x, upper_round);
    parts[1] = x - parts[0];
}

static inline struct fine_weight fine_weight_of(float scale, float minimum)
{
    struct fine_weight out;
    float least = fabsf(minimum), most = fabsf(fmaf(15.0f, scale, minimum));
    float largest = most > least ? most : least;
    largest = largest > FINE_LEAST ? largest : FINE_LEAST;
    uint32_t unit = (float_to_bits(largest) + FINE_CARRY) & FINE_EXPONENT;
    float upper = float_from_bits(unit + FINE_UPPER_ROUND);
    float lower = float_from_bits(unit + FINE_LOWER_ROUND);
    float rounded = fine_rounded(scale, lower);
    float middle = fine_rounded(fmaf(FINE_MIDDLE, scale, minimum), lower);
    fine_split(rounded, upper, out.scale);
    fine_split(fmaf(-FINE_MIDDLE, rounded, middle), upper, out.minimum);
    return out;
}

#endif
