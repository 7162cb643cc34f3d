/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2 with FMA and F16C (x86-64-v3). A register holds 8 outputs of 4 inputs; a row's 4 inputs are
 * broadcast. The int8 product wants one side without a sign, so the weight's is moved to the row:
 * |w| * (sign(w) a). 128 * 127 twice still fits in the 16 bits between. */
#include "cpu_kernels.h"
#include "lanes_avx2.h"

#include <math.h>
#include <string.h>

#include "element_kernels.inc"
#include "float_kernels.inc"
#include "avx_weights.h"

/* A ready block's quants are [8 groups][16 outputs][4 inputs]. */
static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++, block += packed_block_bytes(format), out++) {
        avx_prepare_scales(format, block, out);
        for (int g = 0; g < 8; g++)
            for (int c = 0; c < 2; c++)
                _mm256_storeu_si256((__m256i *)(void *)(out->quants + 64 * g + 32 * c),
                                    avx_quants(format, block, g, c));
    }
}

static void prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                    struct ready_block *out)
{
#define PREPARE(name) prepare_format(name, blocks, count, out)
    PACKED_DISPATCH(format, PREPARE)
#undef PREPARE
}

/* ---- products ------------------------------------------------------------------------------- */

/* Inputs of group g of a row. */
static ALWAYS_INLINE __m256i four_inputs(const struct quant_group *group, uint32_t row, int g)
{
    int32_t four;
    memcpy(&four, group->quants + quant_index(row, 4 * (uint32_t)g), sizeof(four));
    return _mm256_set1_epi32(four);
}

/* Weights with minima have no sign. */
static ALWAYS_INLINE __m256i dot(const enum block_kind kind, __m256i whole, __m256i weight,
                                 __m256i row)
{
    __m256i pairs = kind == BLOCK_MINIMA ? _mm256_maddubs_epi16(weight, row)
                                         : _mm256_maddubs_epi16(_mm256_abs_epi8(weight),
                                                                _mm256_sign_epi8(row, weight));
    return _mm256_add_epi32(whole, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static ALWAYS_INLINE __m256 add_whole(__m256 sum, __m256i whole, __m256 scale, float row_scale)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole),
                           _mm256_mul_ps(scale, _mm256_set1_ps(row_scale)), sum);
}

static ALWAYS_INLINE void store_sum(float *to, __m256 sum, bool add)
{
    _mm256_storeu_ps(to, add ? _mm256_add_ps(_mm256_loadu_ps(to), sum) : sum);
}

#define TILE_ROWS 4

/* `rows`, from row `first` of the group on, and `kind` are constants at every call. Groups
 * [begin, end) of 4 inputs. */
static ALWAYS_INLINE void tile_groups(const enum block_kind kind, const int8_t *quants,
                                      const struct quant_group *group, uint32_t first,
                                      const int begin, const int end, const uint32_t rows,
                                      __m256i whole[TILE_ROWS])
{
    for (uint32_t r = 0; r < rows; r++)
        whole[r] = _mm256_setzero_si256();
    for (int g = begin; g < end; g++) {
        __m256i weight = _mm256_loadu_si256((const __m256i *)(const void *)(quants + 64 * g));
        for (uint32_t r = 0; r < rows; r++)
            whole[r] = dot(kind, whole[r], weight, four_inputs(group, first + r, g));
    }
}

static ALWAYS_INLINE void tile(const enum block_kind kind, const struct ready_block *weight,
                               uint32_t blocks, const struct quant_group *group, uint32_t first,
                               const uint32_t rows, uint32_t column, panel_sums *sums, bool add)
{
    __m256 sum[TILE_ROWS];
    __m256i whole[TILE_ROWS];
    const int halves = kind == BLOCK_HALVES ? 2 : 1;
    for (uint32_t r = 0; r < rows; r++)
        sum[r] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, weight++, group++) {
        for (int half = 0; half < halves; half++) {
            __m256 scale = _mm256_loadu_ps((half ? weight->other : weight->scale) + column);
            tile_groups(kind, weight->quants + 4 * column, group, first, half * 4,
                        (half + 1) * 8 / halves, rows, whole);
            for (uint32_t r = 0; r < rows; r++)
                sum[r] = add_whole(sum[r], whole[r], scale, group->scale[first + r]);
        }
        if (kind == BLOCK_MINIMA)
            for (uint32_t r = 0; r < rows; r++)
                sum[r] = _mm256_fmadd_ps(_mm256_loadu_ps(weight->other + column),
                                         _mm256_set1_ps(group->scaled_sum[first + r]), sum[r]);
    }
    for (uint32_t r = 0; r < rows; r++)
        store_sum(sums[r] + column, sum[r], add);
}

static ALWAYS_INLINE void multiply_kind(const enum block_kind kind,
                                        const struct ready_block *weight, uint32_t blocks,
                                        const struct quant_group *activations,
                                        uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                        bool add)
{
    for (uint32_t r = 0; r < rows; r += TILE_ROWS) {
        const struct quant_group *group = activations + r / GROUP_ROWS * group_stride;
        uint32_t first = r % GROUP_ROWS;
        for (uint32_t column = 0; column < PANEL_OUTPUTS; column += 8) {
            switch (rows - r) {
            case 1: tile(kind, weight, blocks, group, first, 1, column, sums + r, add); break;
            case 2: tile(kind, weight, blocks, group, first, 2, column, sums + r, add); break;
            case 3: tile(kind, weight, blocks, group, first, 3, column, sums + r, add); break;
            default: tile(kind, weight, blocks, group, first, 4, column, sums + r, add); break;
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

/* ---- one row -------------------------------------------------------------------------------- */

static ALWAYS_INLINE __m256i row_groups(enum packed_format format, const uint8_t *block, int c,
                                        const struct quant_group *group, uint32_t row,
                                        const int begin, const int end)
{
    __m256i whole = _mm256_setzero_si256();
    for (int g = begin; g < end; g++)
        whole = dot(block_kind_of(format), whole, avx_quants(format, block, g, c),
                    four_inputs(group, row, g));
    return whole;
}

static ALWAYS_INLINE void row_format(enum packed_format format, const uint8_t *weight,
                                     uint32_t blocks, const struct quant_group *group,
                                     uint32_t row, float *sums, bool add)
{
    const int halves = block_kind_of(format) == BLOCK_HALVES ? 2 : 1;
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t b = 0; b < blocks; b++, weight += packed_block_bytes(format), group++) {
        for (int c = 0; c < 2; c++) {
            for (int half = 0; half < halves; half++) {
                __m256i whole = row_groups(format, weight, c, group, row, half * 4,
                                           (half + 1) * 8 / halves);
                sum[c] = add_whole(sum[c], whole, avx_scale(format, weight, half, c),
                                   group->scale[row]);
            }
            if (block_kind_of(format) == BLOCK_MINIMA)
                sum[c] = _mm256_fmadd_ps(avx_minimum(format, weight, c),
                                         _mm256_set1_ps(group->scaled_sum[row]), sum[c]);
        }
    }
    store_sum(sums, sum[0], add);
    store_sum(sums + 8, sum[1], add);
}

static void multiply_row(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                         const struct quant_group *activations, uint32_t row, float *sums,
                         bool add)
{
#define ROW_FORMAT(name) row_format(name, weight, blocks, activations, row, sums, add)
    PACKED_DISPATCH(format, ROW_FORMAT)
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

const struct cpu_kernels cpu_kernels_avx2 = {
    .name = "avx2",
    .quantise = quantise,
    .prepare = prepare,
    .multiply = multiply,
    .direct_rows = 2,
    .multiply_direct = multiply_direct,
    FLOAT_KERNELS,
};
