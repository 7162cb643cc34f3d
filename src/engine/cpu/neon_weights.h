/* SPDX-License-Identifier: Apache-2.0 */
/* What the NEON and the i8mm kernels have in common: scales as floats, nibbles as bytes, and the
 * product of one row with a panel straight from its packed form. A row alone reads each weight
 * once, so that it is bound by memory and by unpacking; i8mm has nothing to add there. */
#ifndef BATON_ENGINE_NEON_WEIGHTS_H
#define BATON_ENGINE_NEON_WEIGHTS_H

#include "cpu_kernels.h"

#include <arm_neon.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define PANEL_VECTORS (PANEL_OUTPUTS / 4)

static ALWAYS_INLINE float32x4_t neon_halves(const uint16_t *halves)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
}

/* Vector c (outputs 4c .. 4c+3) of the block's scales. */
static ALWAYS_INLINE float32x4_t neon_scale(enum packed_format format, const uint8_t *block,
                                            int half, int c)
{
    if (format == PACKED_Q6_HALF_BLOCKS) {
        const struct packed_q6_half_blocks *from = (const void *)block;
        int32_t four;
        memcpy(&four, from->factor[half] + 4 * c, sizeof(four));
        int16x8_t factors = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
        return vmulq_f32(neon_halves(from->scale + 4 * c),
                         vcvtq_f32_s32(vmovl_s16(vget_low_s16(factors))));
    }
    if (format == PACKED_Q4_CENTRED || format == PACKED_Q4_HALF || format == PACKED_Q8_HALF)
        return neon_halves((const uint16_t *)(const void *)block + 4 * c);
    return vld1q_f32((const float *)(const void *)block + half * PANEL_OUTPUTS + 4 * c);
}

static ALWAYS_INLINE float32x4_t neon_minimum(enum packed_format format, const uint8_t *block,
                                              int c)
{
    if (format == PACKED_Q4_HALF)
        return neon_halves((const uint16_t *)(const void *)block + PANEL_OUTPUTS + 4 * c);
    return vld1q_f32((const float *)(const void *)block + PANEL_OUTPUTS + 4 * c);
}

/* Outputs 4c .. 4c+3, inputs of group g (0..7). */
static ALWAYS_INLINE int8x16_t neon_quant_vector(enum packed_format format,
                                                 const uint8_t *quants, int g, int c)
{
    if (!packed_has_nibbles(format))
        return vreinterpretq_s8_u8(vld1q_u8(quants + 64 * g + 16 * c));
    uint8x16_t both = vld1q_u8(quants + 64 * (g & 3) + 16 * c);
    uint8x16_t one = g < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
    if (format == PACKED_Q6_HALF_BLOCKS) {
        uint8x16_t high = vld1q_u8(quants - PACKED_HIGH_BYTES + 64 * (g / 4) + 16 * c);
        high = vandq_u8(vshlq_u8(high, vdupq_n_s8((int8_t)(4 - g % 4 * 2))), vdupq_n_u8(0x30));
        return vsubq_s8(vreinterpretq_s8_u8(vorrq_u8(one, high)), vdupq_n_s8(32));
    }
    int8x16_t quant = vreinterpretq_s8_u8(one);
    return format == PACKED_Q4_CENTRED ? vsubq_s8(quant, vdupq_n_s8(8)) : quant;
}

/* Four inputs of group g, and of group g + 4, times all outputs: a line of the cache. g is the
 * number of a lane, so it must be written out. */
#define NEON_NIBBLES(g)                                                      \
    for (int c = 0; c < PANEL_VECTORS; c++) {                                \
        uint8x16_t both = vld1q_u8(quants + 64 * (g) + 16 * c);              \
        int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))); \
        int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));           \
        whole[c] = vdotq_laneq_s32(whole[c], low, a0, g);                    \
        whole[c] = vdotq_laneq_s32(whole[c], high, a1, g);                   \
    }

#define NEON_SIX_BITS(g)                                                                      \
    for (int c = 0; c < PANEL_VECTORS; c++)                                                   \
        whole[c] = vdotq_laneq_s32(                                                           \
            whole[c], neon_quant_vector(PACKED_Q6_HALF_BLOCKS, quants, 4 * half + (g), c), a, \
            g);

#define NEON_BYTES(g)                                                               \
    for (int c = 0; c < PANEL_VECTORS; c++) {                                       \
        int8x16_t four = vreinterpretq_s8_u8(vld1q_u8(quants + 64 * (g) + 16 * c)); \
        whole[c] = vdotq_laneq_s32(whole[c], four, a, g);                           \
    }

/* The products of a block, added to `whole`. */
static ALWAYS_INLINE void neon_nibbles(int32x4_t whole[PANEL_VECTORS], const uint8_t *quants,
                                       int8x16_t a0, int8x16_t a1)
{
    NEON_NIBBLES(0)
    NEON_NIBBLES(1)
    NEON_NIBBLES(2)
    NEON_NIBBLES(3)
}

/* The same of one half of it. */
static ALWAYS_INLINE void neon_six_bits(int32x4_t whole[PANEL_VECTORS], const uint8_t *quants,
                                        int half, int8x16_t a)
{
    NEON_SIX_BITS(0)
    NEON_SIX_BITS(1)
    NEON_SIX_BITS(2)
    NEON_SIX_BITS(3)
}

static ALWAYS_INLINE void neon_bytes(int32x4_t whole[PANEL_VECTORS], const uint8_t *quants,
                                     int8x16_t a)
{
    NEON_BYTES(0)
    NEON_BYTES(1)
    NEON_BYTES(2)
    NEON_BYTES(3)
}

static ALWAYS_INLINE float32x4_t neon_add(float32x4_t sum, int32x4_t whole, float32x4_t scale,
                                          float row_scale)
{
    return vfmaq_f32(sum, vcvtq_f32_s32(whole), vmulq_n_f32(scale, row_scale));
}

static ALWAYS_INLINE void neon_add_block(enum packed_format format, const uint8_t *block,
                                         int half, int32x4_t whole[PANEL_VECTORS],
                                         float row_scale, float32x4_t sum[PANEL_VECTORS])
{
    for (int c = 0; c < PANEL_VECTORS; c++)
        sum[c] = neon_add(sum[c], whole[c], neon_scale(format, block, half, c), row_scale);
}

static ALWAYS_INLINE void neon_start(int32x4_t whole[PANEL_VECTORS], int32_t start)
{
    for (int c = 0; c < PANEL_VECTORS; c++)
        whole[c] = vdupq_n_s32(start);
}

static ALWAYS_INLINE void neon_row_block(enum packed_format format, const uint8_t *block,
                                         int8x16_t a0, int8x16_t a1, int32_t start,
                                         float row_scale, float row_sum,
                                         float32x4_t sum[PANEL_VECTORS])
{
    const uint8_t *quants = packed_quants(format, block);
    int32x4_t whole[PANEL_VECTORS];
    neon_start(whole, start);
    if (format == PACKED_Q6_HALF_BLOCKS) {
        neon_six_bits(whole, quants, 0, a0);
        neon_add_block(format, block, 0, whole, row_scale, sum);
        neon_start(whole, start);
        neon_six_bits(whole, quants, 1, a1);
        neon_add_block(format, block, 1, whole, row_scale, sum);
    } else if (packed_has_nibbles(format)) {
        neon_nibbles(whole, quants, a0, a1);
        neon_add_block(format, block, 0, whole, row_scale, sum);
    } else {
        neon_bytes(whole, quants, a0);
        neon_bytes(whole, quants + 256, a1);
        neon_add_block(format, block, 0, whole, row_scale, sum);
    }
    if (block_kind_of(format) == BLOCK_MINIMA)
        for (int c = 0; c < PANEL_VECTORS; c++)
            sum[c] = vfmaq_n_f32(sum[c], neon_minimum(format, block, c), row_sum);
}

/* Sixteen inputs of a row, from 16 * half on. */
static ALWAYS_INLINE int8x16_t neon_inputs(const struct quant_group *group, uint32_t row,
                                           int half)
{
    const int8_t *at = group->quants + quant_index(row, 16 * (uint32_t)half);
    return vcombine_s8(vld1_s8(at), vld1_s8(at + 16));
}

/* A row alone is over with a block before the processor's own prefetcher has brought the next ones
 * from memory. */
#define NEON_AHEAD 2048
static ALWAYS_INLINE void neon_prefetch(enum packed_format format, const uint8_t *block)
{
    for (uint32_t at = 0; at < packed_block_bytes(format); at += 64)
        __builtin_prefetch(block + NEON_AHEAD + at, 0, 0);
}

static ALWAYS_INLINE void neon_row_format(enum packed_format format, const uint8_t *weight,
                                          uint32_t blocks,
                                          const struct quant_group *activations, uint32_t row,
                                          float *sums, bool add)
{
    float32x4_t sum[PANEL_VECTORS];
    for (int c = 0; c < PANEL_VECTORS; c++)
        sum[c] = vdupq_n_f32(0.0f);
    for (uint32_t b = 0; b < blocks; b++, weight += packed_block_bytes(format)) {
        const struct quant_group *group = &activations[b];
        neon_prefetch(format, weight);
        int8x16_t a0 = neon_inputs(group, row, 0), a1 = neon_inputs(group, row, 1);
        int32_t start = 0;
        if (format == PACKED_Q4_CENTRED) /* sum of (q - 8) a = sum of q a - 8 * sum of a */
            start = -8 * (group->quant_sums[0][row] + group->quant_sums[1][row]);
        neon_row_block(format, weight, a0, a1, start, group->scale[2 * row],
                       group->scaled_sum[2 * row], sum);
    }
    for (int c = 0; c < PANEL_VECTORS; c++) {
        if (add)
            sum[c] = vaddq_f32(vld1q_f32(sums + 4 * c), sum[c]);
        vst1q_f32(sums + 4 * c, sum[c]);
    }
}

static inline void neon_multiply_row(enum packed_format format, const uint8_t *weight,
                                     uint32_t blocks, const struct quant_group *activations,
                                     uint32_t row, float *sums, bool add)
{
#define NEON_FORMAT(name) neon_row_format(name, weight, blocks, activations, row, sums, add)
    PACKED_DISPATCH(format, NEON_FORMAT)
#undef NEON_FORMAT
}

/* The scales and minima of a ready block. */
static ALWAYS_INLINE void neon_prepare_scales(enum packed_format format, const uint8_t *block,
                                              struct ready_block *out)
{
    for (int c = 0; c < PANEL_VECTORS; c++) {
        vst1q_f32(out->scale + 4 * c, neon_scale(format, block, 0, c));
        if (format == PACKED_Q6_HALF_BLOCKS)
            vst1q_f32(out->other + 4 * c, neon_scale(format, block, 1, c));
        if (block_kind_of(format) == BLOCK_MINIMA)
            vst1q_f32(out->other + 4 * c, neon_minimum(format, block, c));
    }
}

#endif
