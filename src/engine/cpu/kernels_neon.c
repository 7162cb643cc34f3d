/* SPDX-License-Identifier: Apache-2.0 */
/* NEON with dotprod (Armv8.2: Neoverse-N1, Graviton2, Cortex-A76 and later). The tile is 4 rows by
 * 8 outputs: 8 whole and 8 float sums in registers, the rows' quants by lane, so that 12 loads feed
 * 32 dot products. */
#include "cpu_kernels.h"
#include "lanes_neon.h"
#include "neon_weights.h"

#include <math.h>

#include "element_kernels.inc"
#include "float_kernels.inc"

/* A ready block's quants are [8 groups][16 outputs][4 inputs]. */
static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++, block += packed_block_bytes(format), out++) {
        neon_prepare_scales(format, block, out);
        for (int g = 0; g < 8; g++)
            for (int c = 0; c < PANEL_VECTORS; c++)
                vst1q_s8(out->quants + 64 * g + 16 * c,
                         neon_quant_vector(format, packed_quants(format, block), g, c));
    }
}

static void prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                    struct ready_block *out)
{
#define PREPARE(name) prepare_format(name, blocks, count, out)
    PACKED_DISPATCH(format, PREPARE)
#undef PREPARE
}

/* ---- rows by 8 outputs ------------------------------------------------------------------------
 * `rows` and `kind` are constants at every call. */

#define TILE_GROUP(half, g)                                             \
    {                                                                   \
        int8x16_t w0 = vld1q_s8(quants + 64 * (4 * (half) + (g)));      \
        int8x16_t w1 = vld1q_s8(quants + 64 * (4 * (half) + (g)) + 16); \
        for (uint32_t r = 0; r < rows; r++) {                           \
            whole[r][0] = vdotq_laneq_s32(whole[r][0], w0, a[r], g);    \
            whole[r][1] = vdotq_laneq_s32(whole[r][1], w1, a[r], g);    \
        }                                                               \
    }

/* What the rows have twice, once. */
static ALWAYS_INLINE float32x4_t neon_of_rows(const float *of)
{
    return vuzp1q_f32(vld1q_f32(of), vld1q_f32(of + GROUP_ROWS));
}

static ALWAYS_INLINE void tile_half(const int8_t *quants, const struct quant_group *group,
                                    const int half, const uint32_t rows,
                                    int32x4_t whole[GROUP_ROWS][2])
{
    int8x16_t a[GROUP_ROWS];
    for (uint32_t r = 0; r < rows; r++)
        a[r] = neon_inputs(group, r, half);
    TILE_GROUP(half, 0)
    TILE_GROUP(half, 1)
    TILE_GROUP(half, 2)
    TILE_GROUP(half, 3)
}

static ALWAYS_INLINE void tile_clear(int32x4_t whole[GROUP_ROWS][2], const uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++)
        whole[r][0] = whole[r][1] = vdupq_n_s32(0);
}

#define TILE_ADD_ROW(r)                                                \
    if ((r) < rows) {                                                  \
        sum[r][0] = vfmaq_f32(sum[r][0], vcvtq_f32_s32(whole[r][0]),   \
                              vmulq_laneq_f32(scale0, row_scales, r)); \
        sum[r][1] = vfmaq_f32(sum[r][1], vcvtq_f32_s32(whole[r][1]),   \
                              vmulq_laneq_f32(scale1, row_scales, r)); \
    }

static ALWAYS_INLINE void tile_add(const float *scale, const struct quant_group *group,
                                   const uint32_t rows, int32x4_t whole[GROUP_ROWS][2],
                                   float32x4_t sum[GROUP_ROWS][2])
{
    float32x4_t scale0 = vld1q_f32(scale), scale1 = vld1q_f32(scale + 4);
    float32x4_t row_scales = neon_of_rows(group->scale);
    TILE_ADD_ROW(0)
    TILE_ADD_ROW(1)
    TILE_ADD_ROW(2)
    TILE_ADD_ROW(3)
}

#define TILE_ADD_MINIMA(r)                                             \
    if ((r) < rows) {                                                  \
        sum[r][0] = vfmaq_laneq_f32(sum[r][0], minimum0, row_sums, r); \
        sum[r][1] = vfmaq_laneq_f32(sum[r][1], minimum1, row_sums, r); \
    }

static ALWAYS_INLINE void tile_add_minima(const float *minimum, const struct quant_group *group,
                                          const uint32_t rows, float32x4_t sum[GROUP_ROWS][2])
{
    float32x4_t minimum0 = vld1q_f32(minimum), minimum1 = vld1q_f32(minimum + 4);
    float32x4_t row_sums = neon_of_rows(group->scaled_sum);
    TILE_ADD_MINIMA(0)
    TILE_ADD_MINIMA(1)
    TILE_ADD_MINIMA(2)
    TILE_ADD_MINIMA(3)
}

static ALWAYS_INLINE void tile(const enum block_kind kind, const struct ready_block *weight,
                               uint32_t blocks, const struct quant_group *group,
                               const uint32_t rows, uint32_t column, panel_sums *sums, bool add)
{
    float32x4_t sum[GROUP_ROWS][2];
    int32x4_t whole[GROUP_ROWS][2];
    for (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);
    for (uint32_t b = 0; b < blocks; b++, weight++, group++) {
        const int8_t *quants = weight->quants + 4 * column;
        tile_clear(whole, rows);
        tile_half(quants, group, 0, rows, whole);
        if (kind == BLOCK_HALVES) {
            tile_add(weight->scale + column, group, rows, whole, sum);
            tile_clear(whole, rows);
        }
        tile_half(quants, group, 1, rows, whole);
        tile_add((kind == BLOCK_HALVES ? weight->other : weight->scale) + column, group, rows,
                 whole, sum);
        if (kind == BLOCK_MINIMA)
            tile_add_minima(weight->other + column, group, rows, sum);
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (int c = 0; c < 2; c++) {
            float *to = sums[r] + column + 4 * c;
            vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), sum[r][c]) : sum[r][c]);
        }
    }
}

static ALWAYS_INLINE void multiply_kind(const enum block_kind kind,
                                        const struct ready_block *weight, uint32_t blocks,
                                        const struct quant_group *activations,
                                        uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                        bool add)
{
    for (uint32_t r = 0; r < rows; r += GROUP_ROWS, activations += group_stride) {
        for (uint32_t column = 0; column < PANEL_OUTPUTS; column += 8) {
            switch (rows - r) {
            case 1: tile(kind, weight, blocks, activations, 1, column, sums + r, add); break;
            case 2: tile(kind, weight, blocks, activations, 2, column, sums + r, add); break;
            case 3: tile(kind, weight, blocks, activations, 3, column, sums + r, add); break;
            default: tile(kind, weight, blocks, activations, 4, column, sums + r, add); break;
            }
        }
    }
}

static void multiply(enum packed_format format, const struct ready_block *weight,
                     uint32_t blocks, const struct quant_group *activations,
                     uint32_t group_stride, uint32_t rows, panel_sums *sums, bool add)
{
#define MULTIPLY(kind) \
    multiply_kind(kind, weight, blocks, activations, group_stride, rows, sums, add)
    BLOCK_KIND_DISPATCH(format, MULTIPLY)
#undef MULTIPLY
}

static void multiply_direct(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                            const struct quant_group *activations, uint32_t group_stride,
                            uint32_t rows, panel_sums *sums, bool add)
{
    for (uint32_t r = 0; r < rows; r++)
        neon_multiply_row(format, weight, blocks, activations + r / GROUP_ROWS * group_stride,
                          r % GROUP_ROWS, sums[r], add);
}

const struct cpu_kernels cpu_kernels_neon = {
    .name = "neon",
    .quantise = quantise,
    .prepare = prepare,
    .multiply = multiply,
    .direct_rows = 2,
    .multiply_direct = multiply_direct,
    FLOAT_KERNELS,
};
