/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 with VNNI. A register holds the 4 inputs of a whole panel's 16 outputs, and one
 * instruction adds their products with a row's 4 inputs, broadcast from memory. It wants weights
 * without a sign: those that have one are moved up by 128, and 128 times the sum of the row's quants
 * (which the activations carry) is where the sum begins below zero. Rows go 8 at a time. */
#include "cpu_kernels.h"
#include "lanes_avx2.h"

#include <math.h>
#include <string.h>

#include "float_kernels.inc"
#include "avx_weights.h"

#define LIFT 128

static ALWAYS_INLINE bool has_sign(enum block_kind kind)
{
    return kind != BLOCK_MINIMA;
}

/* Inputs of group g of all 16 outputs, lifted where they have a sign. */
static ALWAYS_INLINE __m512i lifted_quants(enum packed_format format, const uint8_t *block,
                                           int g)
{
    __m512i quants = _mm512_inserti64x4(_mm512_castsi256_si512(avx_quants(format, block, g, 0)),
                                        avx_quants(format, block, g, 1), 1);
    return has_sign(block_kind_of(format))
               ? _mm512_xor_si512(quants, _mm512_set1_epi8((char)LIFT))
               : quants;
}

/* A ready block's quants are [8 groups][16 outputs][4 inputs], lifted. */
static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++, block += avx_block_bytes(format), out++) {
        avx_prepare_scales(format, block, out);
        for (int g = 0; g < 8; g++)
            _mm512_storeu_si512(out->quants + 64 * g, lifted_quants(format, block, g));
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

/* ---- products ------------------------------------------------------------------------------- */

/* Inputs of group g of a row. */
static ALWAYS_INLINE __m512i four_inputs(const struct quant_group *group, uint32_t row, int g)
{
    int32_t four;
    memcpy(&four, group->quants + quant_index(row, 4 * (uint32_t)g), sizeof(four));
    return _mm512_set1_epi32(four);
}

/* Where the whole sum of a row begins: inputs of `half`, or of the whole block. */
static ALWAYS_INLINE __m512i start_of(const enum block_kind kind,
                                      const struct quant_group *group, uint32_t row, int half)
{
    if (!has_sign(kind))
        return _mm512_setzero_si512();
    int sum = group->quant_sums[half][row];
    if (kind != BLOCK_HALVES)
        sum += group->quant_sums[1][row];
    return _mm512_set1_epi32(-LIFT * sum);
}

static ALWAYS_INLINE __m512 add_whole(__m512 sum, __m512i whole, __m512 scale, float row_scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole),
                           _mm512_mul_ps(scale, _mm512_set1_ps(row_scale)), sum);
}

static ALWAYS_INLINE void store_sum(float *to, __m512 sum, bool add)
{
    _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sum) : sum);
}

#define TILE_ROWS (2 * GROUP_ROWS)

/* Row r of the tile is row r % 4 of group r / 4. `rows` and `kind` are constants at every call. */
static ALWAYS_INLINE void tile(const enum block_kind kind, const struct ready_block *weight,
                               uint32_t blocks, const struct quant_group *groups,
                               uint32_t group_stride, const uint32_t rows, panel_sums *sums,
                               bool add)
{
    const int halves = kind == BLOCK_HALVES ? 2 : 1;
    __m512 sum[TILE_ROWS];
    __m512i whole[TILE_ROWS];
    for (uint32_t r = 0; r < rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, weight++, groups++) {
        const struct quant_group *of[2] = {groups, groups + group_stride};
        for (int half = 0; half < halves; half++) {
            __m512 scale = _mm512_loadu_ps(half ? weight->other : weight->scale);
            for (uint32_t r = 0; r < rows; r++)
                whole[r] = start_of(kind, of[r / GROUP_ROWS], r % GROUP_ROWS, half);
            for (int g = half * 4; g < (half + 1) * 8 / halves; g++) {
                __m512i quants = _mm512_loadu_si512(weight->quants + 64 * g);
                for (uint32_t r = 0; r < rows; r++)
                    whole[r] = _mm512_dpbusd_epi32(
                        whole[r], quants, four_inputs(of[r / GROUP_ROWS], r % GROUP_ROWS, g));
            }
            for (uint32_t r = 0; r < rows; r++)
                sum[r] = add_whole(sum[r], whole[r], scale,
                                   of[r / GROUP_ROWS]->scale[2 * (r % GROUP_ROWS)]);
        }
        if (kind == BLOCK_MINIMA)
            for (uint32_t r = 0; r < rows; r++)
                sum[r] = _mm512_fmadd_ps(
                    _mm512_loadu_ps(weight->other),
                    _mm512_set1_ps(of[r / GROUP_ROWS]->scaled_sum[2 * (r % GROUP_ROWS)]),
                    sum[r]);
    }
    for (uint32_t r = 0; r < rows; r++)
        store_sum(sums[r], sum[r], add);
}

static ALWAYS_INLINE void multiply_kind(const enum block_kind kind,
                                        const struct ready_block *weight, uint32_t blocks,
                                        const struct quant_group *activations,
                                        uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                        bool add)
{
    uint32_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS, activations += 2 * (uint64_t)group_stride)
        tile(kind, weight, blocks, activations, group_stride, TILE_ROWS, sums + r, add);
    for (; r < rows; r += GROUP_ROWS, activations += group_stride) {
        switch (rows - r) {
        case 1: tile(kind, weight, blocks, activations, 0, 1, sums + r, add); break;
        case 2: tile(kind, weight, blocks, activations, 0, 2, sums + r, add); break;
        case 3: tile(kind, weight, blocks, activations, 0, 3, sums + r, add); break;
        default: tile(kind, weight, blocks, activations, 0, 4, sums + r, add); break;
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

/* ---- one row -------------------------------------------------------------------------------- */

static ALWAYS_INLINE __m512 both_halves(__m256 first, __m256 second)
{
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(first)),
                                               _mm256_castps_pd(second), 1));
}

static ALWAYS_INLINE void row_format(enum packed_format format, const uint8_t *weight,
                                     uint32_t blocks, const struct quant_group *group,
                                     uint32_t row, float *sums, bool add)
{
    const enum block_kind kind = block_kind_of(format);
    const int halves = kind == BLOCK_HALVES ? 2 : 1;
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, weight += avx_block_bytes(format), group++) {
        for (int half = 0; half < halves; half++) {
            __m512i whole = start_of(kind, group, row, half);
            for (int g = half * 4; g < (half + 1) * 8 / halves; g++)
                whole = _mm512_dpbusd_epi32(whole, lifted_quants(format, weight, g),
                                            four_inputs(group, row, g));
            sum = add_whole(sum, whole,
                            both_halves(avx_scale(format, weight, half, 0),
                                        avx_scale(format, weight, half, 1)),
                            group->scale[2 * row]);
        }
        if (kind == BLOCK_MINIMA)
            sum = _mm512_fmadd_ps(
                both_halves(avx_minimum(format, weight, 0), avx_minimum(format, weight, 1)),
                _mm512_set1_ps(group->scaled_sum[2 * row]), sum);
    }
    store_sum(sums, sum, add);
}

static void multiply_row(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                         const struct quant_group *activations, uint32_t row, float *sums,
                         bool add)
{
#define ROW_FORMAT(name) \
    case name: row_format(name, weight, blocks, activations, row, sums, add); return;
    switch (format) {
        ROW_FORMAT(PACKED_Q4_CENTRED)
        ROW_FORMAT(PACKED_Q4_HALF)
        ROW_FORMAT(PACKED_Q4_FLOAT)
        ROW_FORMAT(PACKED_Q8_HALF)
        ROW_FORMAT(PACKED_Q8_FLOAT)
    default: row_format(PACKED_Q8_HALF_BLOCKS, weight, blocks, activations, row, sums, add);
    }
#undef ROW_FORMAT
}

static void multiply_direct(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                            const struct quant_group *activations, uint32_t group_stride,
                            uint32_t rows, panel_sums *sums, bool add)
{
    for (uint32_t r = 0; r < rows; r++)
        multiply_row(format, weight, blocks, activations + r / GROUP_ROWS * group_stride,
                     r % GROUP_ROWS, sums[r], add);
}

const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512",
    .norm = norm,
    .quantise = quantise,
    .silu_multiply = silu_multiply,
    .prepare = prepare,
    .multiply = multiply,
    .direct_rows = 2,
    .multiply_direct = multiply_direct,
    .multiply_float = multiply_float,
    .rotate_halves = rotate_halves,
    .rotate_pairs = rotate_pairs,
    .store_half = store_half,
    .load_half = load_half,
    .attend = attend,
    .attend_half = attend_half,
    .fold = fold,
};
