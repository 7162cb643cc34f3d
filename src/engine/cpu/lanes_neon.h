/* SPDX-License-Identifier: Apache-2.0 */
/* lanes_portable.h with NEON: two registers of four. */
#ifndef BATON_ENGINE_LANES_NEON_H
#define BATON_ENGINE_LANES_NEON_H

#include "number.h"

#include <arm_neon.h>

#define LANES 8

typedef struct {
    float32x4_t low, high;
} lanes;

#define LANES_BOTH(low_half, high_half) return ((lanes){(low_half), (high_half)})

static inline lanes lanes_load(const float *from)
{
    LANES_BOTH(vld1q_f32(from), vld1q_f32(from + 4));
}

static inline void lanes_store(float *to, lanes a)
{
    vst1q_f32(to, a.low);
    vst1q_f32(to + 4, a.high);
}

static inline lanes lanes_set(float value)
{
    LANES_BOTH(vdupq_n_f32(value), vdupq_n_f32(value));
}

static inline lanes lanes_add(lanes a, lanes b)
{
    LANES_BOTH(vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high));
}

static inline lanes lanes_subtract(lanes a, lanes b)
{
    LANES_BOTH(vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high));
}

static inline lanes lanes_multiply(lanes a, lanes b)
{
    LANES_BOTH(vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high));
}

static inline lanes lanes_divide(lanes a, lanes b)
{
    LANES_BOTH(vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high));
}

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    LANES_BOTH(vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high));
}

static inline lanes lanes_fma_scalar(lanes a, float b, lanes c)
{
    LANES_BOTH(vfmaq_n_f32(c.low, a.low, b), vfmaq_n_f32(c.high, a.high, b));
}

/* Differs from the definition where zeros of both signs meet: no kernel can tell them apart. */
static inline lanes lanes_larger(lanes a, lanes b)
{
    LANES_BOTH(vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high));
}

static inline lanes lanes_smaller(lanes a, lanes b)
{
    LANES_BOTH(vminq_f32(a.low, b.low), vminq_f32(a.high, b.high));
}

static inline lanes lanes_magnitude(lanes a)
{
    LANES_BOTH(vabsq_f32(a.low), vabsq_f32(a.high));
}

static inline lanes lanes_round(lanes a)
{
    LANES_BOTH(vrndnq_f32(a.low), vrndnq_f32(a.high));
}

#define LANES_SHIFT 0x1.8p+23f
static inline float32x4_t power_of_shifted(float32x4_t shifted)
{
    int32x4_t exponent = vaddq_s32(vreinterpretq_s32_f32(shifted), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
}

static inline lanes lanes_power_of_shifted(lanes shifted)
{
    LANES_BOTH(power_of_shifted(shifted.low), power_of_shifted(shifted.high));
}

static inline float lanes_sum(lanes a)
{
    return vaddvq_f32(vaddq_f32(a.low, a.high)); /* adds pairs: (0+1) + (2+3) */
}

static inline float lanes_largest(lanes a)
{
    return vmaxvq_f32(vmaxq_f32(a.low, a.high));
}

static inline void lanes_sum4(lanes a, lanes b, lanes c, lanes d, float out[4])
{
    float32x4_t ab = vpaddq_f32(vaddq_f32(a.low, a.high), vaddq_f32(b.low, b.high));
    float32x4_t cd = vpaddq_f32(vaddq_f32(c.low, c.high), vaddq_f32(d.low, d.high));
    vst1q_f32(out, vpaddq_f32(ab, cd));
}

static inline void lanes_store_int8(int8_t *to, lanes a)
{
    int16x8_t whole =
        vcombine_s16(vmovn_s32(vcvtq_s32_f32(a.low)), vmovn_s32(vcvtq_s32_f32(a.high)));
    vst1_s8(to, vmovn_s16(whole));
}

static inline lanes lanes_load_half(const uint16_t *from)
{
    float16x8_t half = vreinterpretq_f16_u16(vld1q_u16(from));
    LANES_BOTH(vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half));
}

static inline void lanes_store_half(uint16_t *to, lanes a)
{
    float16x8_t half = vcvt_high_f16_f32(vcvt_f16_f32(a.low), a.high);
    vst1q_u16(to, vreinterpretq_u16_f16(half));
}

static inline lanes lanes_load_bfloat(const uint16_t *from)
{
    uint16x8_t bfloat = vld1q_u16(from);
    LANES_BOTH(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bfloat), 16)),
               vreinterpretq_f32_u32(vshll_high_n_u16(bfloat, 16)));
}

#undef LANES_BOTH
#include "lanes_eight.h"

#endif
