/* SPDX-License-Identifier: Apache-2.0 */
/* Floats as bits, and the two 16-bit types. The portable kernels are the definition of what the
 * others compute, so these round as the processors' own instructions do: to nearest, ties to
 * even, subnormal numbers kept. */
#ifndef BATON_ENGINE_NUMBER_H
#define BATON_ENGINE_NUMBER_H

#include <stdint.h>
#include <string.h>

static inline float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* sign 1 | exponent 5, bias 15 | fraction 10 */
static inline float float_from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = half & 0x7fff;
    if (rest >= 0x7c00) /* infinity, or not a number */
        return float_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x0400)
        return float_from_bits(sign | ((rest << 13) + (112u << 23)));
    /* Subnormal: fraction * 2^-24, exact. */
    return float_from_bits(sign | float_to_bits((float)rest * 0x1p-24f));
}

static inline uint16_t half_from_float(float value)
{
    uint32_t bits = float_to_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return sign | 0x7e00;
    if (rest >= 0x47800000) /* 65536 and more */
        return sign | 0x7c00;
    if (rest < 0x38800000) { /* below 2^-14: adding 0.5 rounds at the last subnormal place */
        float magnitude = float_from_bits(rest) + 0.5f;
        return sign | (uint16_t)(float_to_bits(magnitude) - 0x3f000000);
    }
    uint32_t odd = rest >> 13 & 1;
    return sign | (uint16_t)((rest - (112u << 23) + 0xfff + odd) >> 13);
}

static inline float float_from_bfloat(uint16_t bfloat)
{
    return float_from_bits((uint32_t)bfloat << 16);
}

static inline uint16_t bfloat_from_float(float value)
{
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
