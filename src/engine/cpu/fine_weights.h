/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of four bits as the sum of two numbers that bfloat16 holds exactly, whatever the nibble:
 *
 *   scale * nibble + minimum  ~  (quant * scale[0] + middle[0]) + (quant * scale[1] + middle[1])
 *
 * quant is the nibble less 8, and `middle` what quant 0 stands for. The upper numbers are multiples of
 * a unit, a power of two, and the lower ones of a 32nd of it and no larger than half a unit. An upper
 * sum has at most 253 units, a lower one 144 of its own, so that eight bits hold each of them. A scale
 * keeps nine to ten bits of its eleven.
 *
 * So a matrix of them needs no scaling while it is multiplied by tiles of bfloat16, and the same
 * product still comes from the nibbles and sums of whole numbers: they are exact on both ways, as
 * long as the activations are fine quants (12 bits of which 8 count). */
#ifndef BATON_ENGINE_FINE_WEIGHTS_H
#define BATON_ENGINE_FINE_WEIGHTS_H

#include "cpu_kernels.h"
#include "number.h"

#include <math.h>

#define FINE_OFFSET 8 /* quant = nibble - 8 */

/* The unit is the smallest power of two of which the largest weight has no more than 248. Adding 1.5 *
 * 2^23 units to a number and subtracting them again rounds it to whole units. As bits: the carry out
 * of the fraction comes where that of 248 is exceeded. */
#define FINE_CARRY 0x7ffffu
#define FINE_EXPONENT 0x7f800000u
#define FINE_UPPER_ROUND (((23u - 7) << 23) + 0x400000)
#define FINE_LOWER_ROUND (((23u - 7 - 5) << 23) + 0x400000)

struct fine_weight {
    float scale[2], middle[2]; /* upper, lower */
};

static inline float fine_rounded(float x, float round)
{
    return (x + round) - round;
}

static inline void fine_split(float x, float upper_round, float lower_round, float parts[2])
{
    float rounded = fine_rounded(x, lower_round);
    parts[0] = fine_rounded(rounded, upper_round);
    parts[1] = rounded - parts[0];
}

/* `minimum` is what nibble 0 stands for. */
static inline struct fine_weight fine_weight_of(float scale, float minimum)
{
    struct fine_weight out;
    float least = fabsf(minimum), most = fabsf(fmaf(15.0f, scale, minimum));
    float largest = most > least ? most : least;
    largest = largest > FINE_LEAST ? largest : FINE_LEAST;
    uint32_t unit = (float_to_bits(largest) + FINE_CARRY) & FINE_EXPONENT;
    float upper = float_from_bits(unit + FINE_UPPER_ROUND);
    float lower = float_from_bits(unit + FINE_LOWER_ROUND);
    fine_split(scale, upper, lower, out.scale);
    fine_split(fmaf(FINE_OFFSET, scale, minimum), upper, lower, out.middle);
    return out;
}

#endif
