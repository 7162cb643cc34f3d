/* SPDX-License-Identifier: Apache-2.0 */
/* NEON with the int8 matrix product (Armv8.6: Neoverse-V1, N2 and later): one instruction adds the
 * products of 2 rows and 2 outputs over 8 inputs. Whole sums and float sums are kept as
 *
 *   row 0 output 0 | row 0 output 1 | row 1 output 0 | row 1 output 1
 *
 * Many rows meet weights that were made ready, in tiles of 4 rows by 8 outputs; few rows meet the
 * packed weights, in tiles of up to 8 rows by 4 outputs. Both tiles have eight whole sums and eight
 * float sums: as many as the registers hold. */
#include "i8mm_products.h"
#include "neon_weights.h"

/* ---- weights ready for use -------------------------------------------------------------------
 * The quants are [4 eights of inputs][8 pairs of outputs][2 outputs][8 inputs]. The numbers of a
 * pair of outputs are there twice, once for each of two rows. */

#define EIGHTS (PACKED_BLOCK / 8)

/* Inputs 8e .. 8e+7 of outputs 4c .. 4c+3, as two pairs. */
static ALWAYS_INLINE int8x16x2_t two_pairs(enum packed_format format, const uint8_t *quants,
                                           int e, int c)
{
    int32x4_t first = vreinterpretq_s32_s8(neon_quant_vector(format, quants, 2 * e, c));
    int32x4_t second = vreinterpretq_s32_s8(neon_quant_vector(format, quants, 2 * e + 1, c));
    return (int8x16x2_t){{vreinterpretq_s8_s32(vzip1q_s32(first, second)),
                          vreinterpretq_s8_s32(vzip2q_s32(first, second))}};
}

/* The numbers of four outputs, as two pairs. */
static ALWAYS_INLINE float32x4x2_t twice(float32x4_t four)
{
    float64x2_t pairs = vreinterpretq_f64_f32(four);
    return (float32x4x2_t){{vreinterpretq_f32_f64(vzip1q_f64(pairs, pairs)),
                            vreinterpretq_f32_f64(vzip2q_f64(pairs, pairs))}};
}

static ALWAYS_INLINE void store_twice(float *to, float32x4_t four)
{
    float32x4x2_t pairs = twice(four);
    vst1q_f32(to, pairs.val[0]);
    vst1q_f32(to + 4, pairs.val[1]);
}

static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++, block += packed_block_bytes(format), out++) {
        const uint8_t *quants = packed_quants(format, block);
        for (int c = 0; c < PANEL_VECTORS; c++) {
            store_twice(out->scale + 8 * c, neon_scale(format, block, 0, c));
            if (format == PACKED_Q6_HALF_BLOCKS)
                store_twice(out->other + 8 * c, neon_scale(format, block, 1, c));
            if (block_kind_of(format) == BLOCK_MINIMA)
                store_twice(out->other + 8 * c, neon_minimum(format, block, c));
            for (int e = 0; e < EIGHTS; e++) {
                int8x16x2_t pairs = two_pairs(format, quants, e, c);
                vst1q_s8(out->quants + 128 * e + 32 * c, pairs.val[0]);
                vst1q_s8(out->quants + 128 * e + 32 * c + 16, pairs.val[1]);
            }
        }
    }
}

void i8mm_prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                  struct ready_block *out)
{
#define PREPARE(name) prepare_format(name, blocks, count, out)
    PACKED_DISPATCH(format, PREPARE)
#undef PREPARE
}

/* ---- 4 rows by 8 outputs of ready weights ----------------------------------------------------
 * `pairs` (of rows) and `kind` are constants at every call. */

#define OUTPUT_PAIRS 4
#define ROW_PAIRS (GROUP_ROWS / 2)

static ALWAYS_INLINE void tile_clear(int32x4_t whole[ROW_PAIRS][OUTPUT_PAIRS],
                                     const uint32_t pairs)
{
    for (uint32_t p = 0; p < pairs; p++)
        for (int c = 0; c < OUTPUT_PAIRS; c++)
            whole[p][c] = vdupq_n_s32(0);
}

/* Eights [begin, end) of the inputs. */
static ALWAYS_INLINE void tile_whole(const int8_t *quants, const struct quant_group *group,
                                     const int begin, const int end, const uint32_t pairs,
                                     int32x4_t whole[ROW_PAIRS][OUTPUT_PAIRS])
{
    for (int e = begin; e < end; e++) {
        int8x16_t rows[ROW_PAIRS];
        for (uint32_t p = 0; p < pairs; p++)
            rows[p] = vld1q_s8(group->quants + 64 * p + 16 * e);
        for (int c = 0; c < OUTPUT_PAIRS; c++) {
            int8x16_t outputs = vld1q_s8(quants + 128 * e + 16 * c);
            for (uint32_t p = 0; p < pairs; p++)
                whole[p][c] = vmmlaq_s32(whole[p][c], rows[p], outputs);
        }
    }
}

static ALWAYS_INLINE void tile_add(const float *scale, const struct quant_group *group,
                                   const uint32_t pairs,
                                   int32x4_t whole[ROW_PAIRS][OUTPUT_PAIRS],
                                   float32x4_t sum[ROW_PAIRS][OUTPUT_PAIRS])
{
    for (int c = 0; c < OUTPUT_PAIRS; c++) {
        float32x4_t outputs = vld1q_f32(scale + 4 * c);
        for (uint32_t p = 0; p < pairs; p++)
            sum[p][c] = vfmaq_f32(sum[p][c], vcvtq_f32_s32(whole[p][c]),
                                  vmulq_f32(outputs, vld1q_f32(group->scale + 4 * p)));
    }
}

static ALWAYS_INLINE void tile_add_minima(const float *minimum, const struct quant_group *group,
                                          const uint32_t pairs,
                                          float32x4_t sum[ROW_PAIRS][OUTPUT_PAIRS])
{
    for (int c = 0; c < OUTPUT_PAIRS; c++) {
        float32x4_t outputs = vld1q_f32(minimum + 4 * c);
        for (uint32_t p = 0; p < pairs; p++)
            sum[p][c] = vfmaq_f32(sum[p][c], outputs, vld1q_f32(group->scaled_sum + 4 * p));
    }
}

static ALWAYS_INLINE void store_four(float *to, float32x4_t four, bool add)
{
    vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), four) : four);
}

/* Two rows of two pairs of outputs; the second row where there is one. */
static ALWAYS_INLINE void store_pairs(panel_sums *sums, uint32_t rows, uint32_t column,
                                      float32x4_t first, float32x4_t second, bool add)
{
    float64x2_t a = vreinterpretq_f64_f32(first), b = vreinterpretq_f64_f32(second);
    store_four(sums[0] + column, vreinterpretq_f32_f64(vzip1q_f64(a, b)), add);
    if (rows > 1)
        store_four(sums[1] + column, vreinterpretq_f32_f64(vzip2q_f64(a, b)), add);
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
        const float *scale = weight->scale + 2 * column, *other = weight->other + 2 * column;
        tile_clear(whole, pairs);
        tile_whole(quants, group, 0, EIGHTS / 2, pairs, whole);
        if (kind == BLOCK_HALVES) {
            tile_add(scale, group, pairs, whole, sum);
            tile_clear(whole, pairs);
        }
        tile_whole(quants, group, EIGHTS / 2, EIGHTS, pairs, whole);
        tile_add(kind == BLOCK_HALVES ? other : scale, group, pairs, whole, sum);
        if (kind == BLOCK_MINIMA)
            tile_add_minima(other, group, pairs, sum);
    }
    for (uint32_t p = 0; p < pairs; p++)
        for (uint32_t c = 0; c < OUTPUT_PAIRS; c += 2)
            store_pairs(sums + 2 * p, rows - 2 * p, column + 2 * c, sum[p][c], sum[p][c + 1],
                        add);
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

void i8mm_multiply(enum packed_format format, const struct ready_block *weight, uint32_t blocks,
                   const struct quant_group *activations, uint32_t group_stride, uint32_t rows,
                   panel_sums *sums, bool add)
{
#define MULTIPLY(kind) \
    multiply_kind(kind, weight, blocks, activations, group_stride, rows, sums, add)
    BLOCK_KIND_DISPATCH(format, MULTIPLY)
#undef MULTIPLY
}

/* ---- up to 8 rows by 4 outputs of packed weights ----------------------------------------------
 * The quants are unpacked into registers and meet all rows there. `format` and `pairs` are
 * constants at every call. */

#define DIRECT_PAIRS 4

/* Eights [begin, end) of two rows times four outputs, and their scales: `sum` is two pairs of
 * outputs. */
static ALWAYS_INLINE void direct_pair(const int8x16x2_t outputs[EIGHTS], const int begin,
                                      const int end, float32x4x2_t scale,
                                      const struct quant_group *group, uint32_t pair,
                                      float32x4_t sum[2])
{
    float32x4_t rows = vld1q_f32(group->scale + 4 * pair);
    int32x4_t whole[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    for (int e = begin; e < end; e++) {
        int8x16_t two = vld1q_s8(group->quants + 64 * pair + 16 * e);
        whole[0] = vmmlaq_s32(whole[0], two, outputs[e].val[0]);
        whole[1] = vmmlaq_s32(whole[1], two, outputs[e].val[1]);
    }
    for (int i = 0; i < 2; i++)
        sum[i] = vfmaq_f32(sum[i], vcvtq_f32_s32(whole[i]), vmulq_f32(scale.val[i], rows));
}

static ALWAYS_INLINE void direct_minima(float32x4x2_t minimum, const struct quant_group *group,
                                        uint32_t pair, float32x4_t sum[2])
{
    float32x4_t rows = vld1q_f32(group->scaled_sum + 4 * pair);
    for (int i = 0; i < 2; i++)
        sum[i] = vfmaq_f32(sum[i], minimum.val[i], rows);
}

/* Four passes go over a panel, one for each vector of outputs: each brings a part of what comes
 * after it. */
static ALWAYS_INLINE void direct_prefetch(enum packed_format format, const uint8_t *block,
                                          uint32_t blocks, int c)
{
    const uint32_t lines = (packed_block_bytes(format) + 63) / 64;
    for (uint32_t line = (uint32_t)c; line < lines; line += PANEL_VECTORS)
        __builtin_prefetch(block + blocks * packed_block_bytes(format) + 64 * line, 0, 0);
}

/* Outputs 4c .. 4c+3. */
static ALWAYS_INLINE void direct_tile(enum packed_format format, const uint8_t *weight,
                                      uint32_t blocks, const struct quant_group *groups,
                                      uint32_t group_stride, const uint32_t pairs,
                                      uint32_t rows, int c, panel_sums *sums, bool add)
{
    const enum block_kind kind = block_kind_of(format);
    const int first = kind == BLOCK_HALVES ? EIGHTS / 2 : EIGHTS;
    float32x4_t sum[DIRECT_PAIRS][2];
    for (uint32_t p = 0; p < pairs; p++)
        sum[p][0] = sum[p][1] = vdupq_n_f32(0.0f);
    for (uint32_t b = 0; b < blocks; b++, weight += packed_block_bytes(format), groups++) {
        const struct quant_group *of[2] = {groups, groups + group_stride};
        int8x16x2_t outputs[EIGHTS];
        direct_prefetch(format, weight, blocks, c);
        for (int e = 0; e < EIGHTS; e++)
            outputs[e] = two_pairs(format, packed_quants(format, weight), e, c);
        float32x4x2_t scale = twice(neon_scale(format, weight, 0, c));
        float32x4x2_t other = scale;
        if (kind == BLOCK_MINIMA)
            other = twice(neon_minimum(format, weight, c));
        else if (kind == BLOCK_HALVES)
            other = twice(neon_scale(format, weight, 1, c));
        for (uint32_t p = 0; p < pairs; p++) {
            direct_pair(outputs, 0, first, scale, of[p / 2], p % 2, sum[p]);
            if (kind == BLOCK_HALVES)
                direct_pair(outputs, first, EIGHTS, other, of[p / 2], p % 2, sum[p]);
            if (kind == BLOCK_MINIMA)
                direct_minima(other, of[p / 2], p % 2, sum[p]);
        }
    }
    for (uint32_t p = 0; p < pairs; p++)
        store_pairs(sums + 2 * p, rows - 2 * p, 4 * (uint32_t)c, sum[p][0], sum[p][1], add);
}

/* Up to 8 rows. */
static ALWAYS_INLINE void direct_format(enum packed_format format, const uint8_t *weight,
                                        uint32_t blocks, const struct quant_group *groups,
                                        uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                        bool add)
{
#define DIRECT_TILE(pairs) \
    direct_tile(format, weight, blocks, groups, group_stride, pairs, rows, c, sums, add)
    for (int c = 0; c < PANEL_VECTORS; c++) {
        switch ((rows + 1) / 2) {
        case 1: DIRECT_TILE(1); break;
        case 2: DIRECT_TILE(2); break;
        case 3: DIRECT_TILE(3); break;
        default: DIRECT_TILE(4); break;
        }
    }
#undef DIRECT_TILE
}

static void direct_rows(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                        const struct quant_group *groups, uint32_t group_stride, uint32_t rows,
                        panel_sums *sums, bool add)
{
#define DIRECT_FORMAT(name) \
    direct_format(name, weight, blocks, groups, group_stride, rows, sums, add)
    PACKED_DISPATCH(format, DIRECT_FORMAT)
#undef DIRECT_FORMAT
}

void i8mm_multiply_direct(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                          const struct quant_group *activations, uint32_t group_stride,
                          uint32_t rows, panel_sums *sums, bool add)
{
    if (rows == 1) {
        neon_multiply_row(format, weight, blocks, activations, 0, sums[0], add);
        return;
    }
    for (uint32_t r = 0; r < rows; r += 2 * DIRECT_PAIRS)
        direct_rows(format, weight, blocks, activations + r / GROUP_ROWS * group_stride,
                    group_stride, rows - r < 2 * DIRECT_PAIRS ? rows - r : 2 * DIRECT_PAIRS,
                    sums + r, add);
}
