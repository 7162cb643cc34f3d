/* SPDX-License-Identifier: Apache-2.0 */
/* NEON with the int8 matrix product (Armv8.6: Neoverse-V1, N2 and later): one instruction adds the
 * products of 2 rows and 2 outputs over 8 inputs. Whole sums and float sums are kept as
 *
 *   row 0 output 0 | row 0 output 1 | row 1 output 0 | row 1 output 1
 *
 * The tile is 4 rows by 8 outputs. Everything else is as in kernels_neon.c. */
#include "cpu_kernels.h"
#include "lanes_neon.h"
#include "neon_weights.h"

#include <math.h>

#include "float_kernels.inc"

/* ---- weights ready for use -------------------------------------------------------------------
 * The quants are [4 groups of 8 inputs][8 pairs of outputs][2 outputs][8 inputs]. */

static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++, block += neon_block_bytes(format), out++) {
        const uint8_t *quants = neon_quants(format, block);
        neon_prepare_scales(format, block, out);
        for (int g = 0; g < 4; g++) {
            for (int c = 0; c < PANEL_VECTORS; c++) {
                int32x4_t first =
                    vreinterpretq_s32_s8(neon_quant_vector(format, quants, 2 * g, c));
                int32x4_t second =
                    vreinterpretq_s32_s8(neon_quant_vector(format, quants, 2 * g + 1, c));
                int8_t *to = out->quants + 128 * g + 32 * c;
                vst1q_s8(to, vreinterpretq_s8_s32(vzip1q_s32(first, second)));
                vst1q_s8(to + 16, vreinterpretq_s8_s32(vzip2q_s32(first, second)));
            }
        }
    }
}

static void prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                    struct ready_block *out)
{
    switch (format) {
    case PACKED_Q4_CENTRED: prepare_format(PACKED_Q4_CENTRED, blocks, count, out); return;
    case PACKED_Q4_HALF: prepare_format(PACKED_Q4_HALF, blocks, count, out); return;
    case PACKED_Q4_FLOAT: prepare_format(PACKED_Q4_FLOAT, blocks, count, out); return;
    case PACKED_Q8_HALF: prepare_format(PACKED_Q8_HALF, blocks, count, out); return;
    case PACKED_Q8_FLOAT: prepare_format(PACKED_Q8_FLOAT, blocks, count, out); return;
    default: prepare_format(PACKED_Q8_HALF_BLOCKS, blocks, count, out); return;
    }
}

/* ---- pairs of rows by 8 outputs --------------------------------------------------------------
 * `pairs` (of rows) and `kind` are constants at every call. */

#define OUTPUT_PAIRS 4
#define ROW_PAIRS (GROUP_ROWS / 2)

/* 16 inputs, from `half` on. */
static ALWAYS_INLINE void tile_half(const int8_t *quants, const struct quant_group *group,
                                    const int half, const uint32_t pairs,
                                    int32x4_t whole[ROW_PAIRS][OUTPUT_PAIRS])
{
    for (uint32_t p = 0; p < pairs; p++) {
        int64x2_t row0 = vreinterpretq_s64_s8(vld1q_s8(group->quants[2 * p] + 16 * half));
        int64x2_t row1 = vreinterpretq_s64_s8(vld1q_s8(group->quants[2 * p + 1] + 16 * half));
        int8x16_t first = vreinterpretq_s8_s64(vzip1q_s64(row0, row1));
        int8x16_t second = vreinterpretq_s8_s64(vzip2q_s64(row0, row1));
        for (int c = 0; c < OUTPUT_PAIRS; c++) {
            const int8_t *from = quants + 256 * half + 16 * c;
            whole[p][c] = vmmlaq_s32(whole[p][c], first, vld1q_s8(from));
            whole[p][c] = vmmlaq_s32(whole[p][c], second, vld1q_s8(from + 128));
        }
    }
}

static ALWAYS_INLINE void tile_clear(int32x4_t whole[ROW_PAIRS][OUTPUT_PAIRS],
                                     const uint32_t pairs)
{
    for (uint32_t p = 0; p < pairs; p++)
        for (int c = 0; c < OUTPUT_PAIRS; c++)
            whole[p][c] = vdupq_n_s32(0);
}

/* The numbers of two outputs, once for each row. */
static ALWAYS_INLINE float32x4_t two_outputs(const float *of)
{
    float32x2_t two = vld1_f32(of);
    return vcombine_f32(two, two);
}

/* The numbers of two rows, each once for each output. */
static ALWAYS_INLINE float32x4_t two_rows(const float *of)
{
    float32x4_t all = vld1q_f32(of);
    return vzip1q_f32(all, all);
}

static ALWAYS_INLINE float32x4_t two_last_rows(const float *of)
{
    float32x4_t all = vld1q_f32(of);
    return vzip2q_f32(all, all);
}

static ALWAYS_INLINE void tile_add(const float *scale, const struct quant_group *group,
                                   const uint32_t pairs,
                                   int32x4_t whole[ROW_PAIRS][OUTPUT_PAIRS],
                                   float32x4_t sum[ROW_PAIRS][OUTPUT_PAIRS])
{
    for (uint32_t p = 0; p < pairs; p++) {
        float32x4_t rows = p ? two_last_rows(group->scale) : two_rows(group->scale);
        for (int c = 0; c < OUTPUT_PAIRS; c++)
            sum[p][c] = vfmaq_f32(sum[p][c], vcvtq_f32_s32(whole[p][c]),
                                  vmulq_f32(two_outputs(scale + 2 * c), rows));
    }
}

static ALWAYS_INLINE void tile_add_minima(const float *minimum, const struct quant_group *group,
                                          const uint32_t pairs,
                                          float32x4_t sum[ROW_PAIRS][OUTPUT_PAIRS])
{
    for (uint32_t p = 0; p < pairs; p++) {
        float32x4_t rows = p ? two_last_rows(group->scaled_sum) : two_rows(group->scaled_sum);
        for (int c = 0; c < OUTPUT_PAIRS; c++)
            sum[p][c] = vfmaq_f32(sum[p][c], two_outputs(minimum + 2 * c), rows);
    }
}

static ALWAYS_INLINE void tile_store(float32x2_t two, float *to, bool add)
{
    vst1_f32(to, add ? vadd_f32(vld1_f32(to), two) : two);
}

static ALWAYS_INLINE void tile(const enum block_kind kind, const struct ready_block *weight,
                               uint32_t blocks, const struct quant_group *group,
                               const uint32_t pairs, uint32_t rows, uint32_t column,
                               panel_sums *sums, bool add)
{
    float32x4_t sum[ROW_PAIRS][OUTPUT_PAIRS];
    int32x4_t whole[ROW_PAIRS][OUTPUT_PAIRS];
    for (uint32_t p = 0; p < pairs; p++)
        for (int c = 0; c < OUTPUT_PAIRS; c++)
            sum[p][c] = vdupq_n_f32(0.0f);
    for (uint32_t b = 0; b < blocks; b++, weight++, group++) {
        const int8_t *quants = weight->quants + 8 * column;
        tile_clear(whole, pairs);
        tile_half(quants, group, 0, pairs, whole);
        if (kind == BLOCK_HALVES) {
            tile_add(weight->scale[0] + column, group, pairs, whole, sum);
            tile_clear(whole, pairs);
        }
        tile_half(quants, group, 1, pairs, whole);
        tile_add(weight->scale[kind == BLOCK_HALVES] + column, group, pairs, whole, sum);
        if (kind == BLOCK_MINIMA)
            tile_add_minima(weight->minimum + column, group, pairs, sum);
    }
    for (uint32_t p = 0; p < pairs; p++) {
        for (int c = 0; c < OUTPUT_PAIRS; c++) {
            tile_store(vget_low_f32(sum[p][c]), sums[2 * p] + column + 2 * c, add);
            if (2 * p + 1 < rows)
                tile_store(vget_high_f32(sum[p][c]), sums[2 * p + 1] + column + 2 * c, add);
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
        uint32_t left = rows - r;
        for (uint32_t column = 0; column < PANEL_OUTPUTS; column += 2 * OUTPUT_PAIRS) {
            if (left <= 2)
                tile(kind, weight, blocks, activations, 1, left, column, sums + r, add);
            else
                tile(kind, weight, blocks, activations, 2, left, column, sums + r, add);
        }
    }
}

static void multiply(enum block_kind kind, const struct ready_block *weight, uint32_t blocks,
                     const struct quant_group *activations, uint32_t group_stride,
                     uint32_t rows, panel_sums *sums, bool add)
{
    if (kind == BLOCK_PLAIN)
        multiply_kind(BLOCK_PLAIN, weight, blocks, activations, group_stride, rows, sums, add);
    else if (kind == BLOCK_MINIMA)
        multiply_kind(BLOCK_MINIMA, weight, blocks, activations, group_stride, rows, sums, add);
    else
        multiply_kind(BLOCK_HALVES, weight, blocks, activations, group_stride, rows, sums, add);
}

const struct cpu_kernels cpu_kernels_i8mm = {
    .name = "i8mm",
    .norm = norm,
    .quantise = quantise,
    .silu_multiply = silu_multiply,
    .prepare = prepare,
    .multiply = multiply,
    .multiply_row = neon_multiply_row,
    .multiply_float = multiply_float,
    .rotate_halves = rotate_halves,
    .rotate_pairs = rotate_pairs,
    .store_half = store_half,
    .load_half = load_half,
    .attend = attend,
    .fold = fold,
};
