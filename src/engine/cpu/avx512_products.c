/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 with VNNI. A register holds the 4 inputs of a whole panel's 16 outputs, and one
 * instruction adds their products with a row's 4 inputs, broadcast from memory. It wants weights
 * without a sign: those that have one are lifted, and the lift times the sum of the row's quants
 * (which the activations carry) is where the sum begins below zero. Rows go 8 at a time, as many as
 * the registers hold; up to 8 meet the packed weights. */
#include "avx512_products.h"
#include "avx_weights.h"

#include <string.h>

#define TILE_ROWS AVX512_DIRECT_ROWS
#define QUANT_GROUPS 8 /* of 4 inputs in a block */

/* ---- weights -------------------------------------------------------------------------------- */

/* Quants of four and six bits straight from the file are lifted by 8 and 32 only. */
#define LIFT AVX512_LIFT

static ALWAYS_INLINE int lift_of(enum packed_format format)
{
    if (block_kind_of(format) == BLOCK_MINIMA)
        return 0;
    return format == PACKED_Q4_CENTRED ? 8 : format == PACKED_Q6_HALF_BLOCKS ? 32 : LIFT;
}

/* Inputs of group g of all 16 outputs, lifted by lift_of. */
static ALWAYS_INLINE __m512i lifted_quants(enum packed_format format, const uint8_t *block,
                                           int g)
{
    const uint8_t *at = packed_quants(format, block);
    if (!packed_has_nibbles(format)) {
        __m512i bytes = _mm512_loadu_si512(at + 64 * g);
        return lift_of(format) ? _mm512_xor_si512(bytes, _mm512_set1_epi8((char)LIFT)) : bytes;
    }
    __m512i both = _mm512_loadu_si512(at + 64 * (g & 3));
    if (g >= 4)
        both = _mm512_srli_epi16(both, 4);
    __m512i quants = _mm512_and_si512(both, _mm512_set1_epi8(15));
    if (format != PACKED_Q6_HALF_BLOCKS)
        return quants;
    __m512i high = _mm512_loadu_si512(at - PACKED_HIGH_BYTES + 64 * (g / 4));
    high = g % 4 < 3 ? _mm512_slli_epi16(high, (unsigned)(4 - g % 4 * 2))
                     : _mm512_srli_epi16(high, 2);
    return _mm512_or_si512(quants, _mm512_and_si512(high, _mm512_set1_epi8(0x30)));
}

static ALWAYS_INLINE __m512 both_halves(__m256 first, __m256 second)
{
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(first)),
                                               _mm256_castps_pd(second), 1));
}

static ALWAYS_INLINE __m512 sixteen_halves(const uint8_t *halves)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves));
}

static ALWAYS_INLINE __m512 block_scale(enum packed_format format, const uint8_t *block,
                                        int half)
{
    if (format == PACKED_Q4_CENTRED || format == PACKED_Q4_HALF || format == PACKED_Q8_HALF)
        return sixteen_halves(block);
    return both_halves(avx_scale(format, block, half, 0), avx_scale(format, block, half, 1));
}

static ALWAYS_INLINE __m512 block_minimum(enum packed_format format, const uint8_t *block)
{
    if (format == PACKED_Q4_HALF)
        return sixteen_halves(block + PANEL_OUTPUTS * sizeof(uint16_t));
    return _mm512_loadu_ps(block + PANEL_OUTPUTS * sizeof(float));
}

/* A ready block's quants are [8 groups][16 outputs][4 inputs], lifted. */
static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    const __m512i more = _mm512_set1_epi8((char)(LIFT - lift_of(format)));
    for (uint32_t b = 0; b < count; b++, block += packed_block_bytes(format), out++) {
        avx_prepare_scales(format, block, out);
        for (int g = 0; g < QUANT_GROUPS; g++) {
            __m512i quants = lifted_quants(format, block, g);
            if (packed_has_nibbles(format) && lift_of(format))
                quants = _mm512_add_epi8(quants, more);
            _mm512_storeu_si512(out->quants + 64 * g, quants);
        }
    }
}

void avx512_prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                    struct ready_block *out)
{
#define PREPARE(name) prepare_format(name, blocks, count, out)
    PACKED_DISPATCH(format, PREPARE)
#undef PREPARE
}

/* ---- a block of some rows ------------------------------------------------------------------- */

/* Four bytes of a row. */
static ALWAYS_INLINE __m512i four_bytes(const int8_t *at)
{
    int32_t four;
    memcpy(&four, at, sizeof(four));
    return _mm512_set1_epi32(four);
}

/* Where the whole sum of a row begins: inputs of `half`, or of the whole block. */
static ALWAYS_INLINE __m512i start_of(const enum block_kind kind, const int lift,
                                      const struct quant_group *group, uint32_t row, int half)
{
    if (!lift)
        return _mm512_setzero_si512();
    int sum = group->quant_sums[half][row];
    if (kind != BLOCK_HALVES)
        sum += group->quant_sums[1][row];
    return _mm512_set1_epi32(-lift * sum);
}

/* A block's weights: of a panel that is ready, or just unpacked. */
struct block {
    __m512i quants[QUANT_GROUPS];
    __m512 scale, other;
};

/* Adds the products of group g to the whole sums; `part`: of the rows' bytes, or upper or lower ones. */
enum part { PART_ALL, PART_UPPER, PART_LOWER };

static ALWAYS_INLINE void add_four(const enum part part, __m512i quants,
                                   const struct quant_group *group, uint32_t first,
                                   const uint32_t rows, uint32_t g, __m512i whole[TILE_ROWS])
{
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t at = part == PART_ALL ? quant_index(first + r, 4 * g)
                                       : fine_quant_index(first + r, 4 * g);
        whole[r] = _mm512_dpbusd_epi32(
            whole[r], quants,
            four_bytes(group->quants + at + (part == PART_LOWER ? PACKED_BLOCK : 0)));
    }
}

/* Adds up the products of inputs of groups [begin, end). Fine quants: few rows have sums of their own
 * for the lower parts, which need not wait for the upper ones; of many they would not fit. */
#define ROWS_APART 3

static ALWAYS_INLINE void add_groups(const bool fine, const struct block *block,
                                     const struct quant_group *group, uint32_t first,
                                     const uint32_t rows, const uint32_t begin,
                                     const uint32_t end, const __m512i start[TILE_ROWS],
                                     __m512i whole[TILE_ROWS])
{
    __m512i lower[TILE_ROWS];
    for (uint32_t r = 0; r < rows; r++) {
        whole[r] = fine ? _mm512_setzero_si512() : start[r];
        if (fine && rows <= ROWS_APART)
            lower[r] = start[r];
    }
    for (uint32_t g = begin; g < end; g++) {
        add_four(fine ? PART_UPPER : PART_ALL, block->quants[g], group, first, rows, g, whole);
        if (fine && rows <= ROWS_APART)
            add_four(PART_LOWER, block->quants[g], group, first, rows, g, lower);
    }
    if (!fine)
        return;
    for (uint32_t r = 0; r < rows; r++)
        whole[r] = _mm512_add_epi32(_mm512_slli_epi32(whole[r], 4),
                                    rows <= ROWS_APART ? lower[r] : start[r]);
    for (uint32_t g = begin; rows > ROWS_APART && g < end; g++)
        add_four(PART_LOWER, block->quants[g], group, first, rows, g, whole);
}

/* Adds a block to the sums of `rows` rows, from row `first` of the group on. */
static ALWAYS_INLINE void add_block(const bool fine, const enum block_kind kind, const int lift,
                                    const struct block *block, const struct quant_group *group,
                                    uint32_t first, const uint32_t rows, __m512 sum[TILE_ROWS])
{
    const uint32_t halves = kind == BLOCK_HALVES ? 2 : 1;
    __m512i start[TILE_ROWS], whole[TILE_ROWS];
    for (uint32_t half = 0; half < halves; half++) {
        __m512 scale = half ? block->other : block->scale;
        for (uint32_t r = 0; r < rows; r++)
            start[r] = start_of(kind, lift, group, first + r, (int)half);
        add_groups(fine, block, group, first, rows, half * 4,
                   (half + 1) * QUANT_GROUPS / halves, start, whole);
        for (uint32_t r = 0; r < rows; r++)
            sum[r] = _mm512_fmadd_ps(
                _mm512_cvtepi32_ps(whole[r]),
                _mm512_mul_ps(scale, _mm512_set1_ps(group->scale[first + r])), sum[r]);
    }
    if (kind == BLOCK_MINIMA)
        for (uint32_t r = 0; r < rows; r++)
            sum[r] = _mm512_fmadd_ps(block->other, _mm512_set1_ps(group->scaled_sum[first + r]),
                                     sum[r]);
}

static ALWAYS_INLINE void store_sums(const uint32_t rows, const __m512 sum[TILE_ROWS],
                                     panel_sums *sums, bool add)
{
    for (uint32_t r = 0; r < rows; r++)
        _mm512_storeu_ps(sums[r],
                         add ? _mm512_add_ps(_mm512_loadu_ps(sums[r]), sum[r]) : sum[r]);
}

/* ---- many rows ------------------------------------------------------------------------------ */

static ALWAYS_INLINE void tile(const enum block_kind kind, const struct ready_block *weight,
                               uint32_t blocks, const struct quant_group *group, uint32_t first,
                               const uint32_t rows, panel_sums *sums, bool add)
{
    __m512 sum[TILE_ROWS];
    for (uint32_t r = 0; r < rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, weight++, group++) {
        struct block block;
        for (int g = 0; g < QUANT_GROUPS; g++)
            block.quants[g] = _mm512_loadu_si512(weight->quants + 64 * g);
        block.scale = _mm512_loadu_ps(weight->scale);
        block.other = _mm512_loadu_ps(weight->other);
        add_block(false, kind, kind == BLOCK_MINIMA ? 0 : LIFT, &block, group, first, rows,
                  sum);
    }
    store_sums(rows, sum, sums, add);
}

static ALWAYS_INLINE void multiply_kind(const enum block_kind kind,
                                        const struct ready_block *weight, uint32_t blocks,
                                        const struct quant_group *activations,
                                        uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                        bool add)
{
    uint32_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
        tile(kind, weight, blocks, activations + r / GROUP_ROWS * group_stride, r % GROUP_ROWS,
             TILE_ROWS, sums + r, add);
    for (; r < rows; r++)
        tile(kind, weight, blocks, activations + r / GROUP_ROWS * group_stride, r % GROUP_ROWS,
             1, sums + r, add);
}

void avx512_multiply(enum packed_format format, const struct ready_block *weight,
                     uint32_t blocks, const struct quant_group *activations,
                     uint32_t group_stride, uint32_t rows, panel_sums *sums, bool add)
{
#define MULTIPLY(kind) \
    multiply_kind(kind, weight, blocks, activations, group_stride, rows, sums, add)
    BLOCK_KIND_DISPATCH(format, MULTIPLY)
#undef MULTIPLY
}

/* ---- few rows ------------------------------------------------------------------------------- */

static ALWAYS_INLINE struct block packed_block(enum packed_format format, const uint8_t *at)
{
    struct block block;
    for (int g = 0; g < QUANT_GROUPS; g++)
        block.quants[g] = lifted_quants(format, at, g);
    block.scale = block_scale(format, at, 0);
    block.other = block.scale;
    if (block_kind_of(format) == BLOCK_MINIMA)
        block.other = block_minimum(format, at);
    if (block_kind_of(format) == BLOCK_HALVES)
        block.other = block_scale(format, at, 1);
    return block;
}

static ALWAYS_INLINE void add_packed(const bool fine, enum packed_format format,
                                     const uint8_t *at, const struct quant_group *group,
                                     const uint32_t rows, __m512 sum[TILE_ROWS])
{
    const struct block block = packed_block(format, at);
    add_block(fine, block_kind_of(format), lift_of(format), &block, group, 0, rows, sum);
}

static ALWAYS_INLINE void direct_tile(const bool fine, enum packed_format format,
                                      const uint8_t *weight, uint32_t blocks,
                                      const struct quant_group *group, const uint32_t rows,
                                      panel_sums *sums, bool add)
{
    __m512 sum[TILE_ROWS];
    for (uint32_t r = 0; r < rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, weight += packed_block_bytes(format), group++)
        add_packed(fine, format, weight, group, rows, sum);
    store_sums(rows, sum, sums, add);
}

/* A block of each panel in turn: the processor fetches ahead in all of them, and it is told to. */
#define AHEAD_BYTES 2560
#define LINE_BYTES 64

static ALWAYS_INLINE void prefetch_ahead(enum packed_format format, const uint8_t *block)
{
    for (uint32_t at = 0; at < packed_block_bytes(format); at += LINE_BYTES)
        __builtin_prefetch(block + AHEAD_BYTES + at);
}

static ALWAYS_INLINE void panels_tile(const bool fine, enum packed_format format,
                                      const uint8_t *const *weights, uint32_t blocks,
                                      const struct quant_group *group, const uint32_t rows,
                                      panel_sums *const *sums, bool add)
{
    __m512 sum[PANELS_TOGETHER][TILE_ROWS];
    for (uint32_t p = 0; p < PANELS_TOGETHER; p++)
        for (uint32_t r = 0; r < rows; r++)
            sum[p][r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, group++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < PANELS_TOGETHER; p++) {
            const uint8_t *at = weights[p] + (uint64_t)b * packed_block_bytes(format);
            prefetch_ahead(format, at);
            add_packed(fine, format, at, group, rows, sum[p]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t p = 0; p < PANELS_TOGETHER; p++)
        store_sums(rows, sum[p], sums[p], add);
}

static ALWAYS_INLINE void panels_format(const bool fine, enum packed_format format,
                                        const uint8_t *const *weights, uint32_t blocks,
                                        const struct quant_group *group, uint32_t rows,
                                        panel_sums *const *sums, bool add)
{
    switch (rows) {
    case 1: panels_tile(fine, format, weights, blocks, group, 1, sums, add); return;
    case 2: panels_tile(fine, format, weights, blocks, group, 2, sums, add); return;
    default: panels_tile(fine, format, weights, blocks, group, 3, sums, add); return;
    }
}

void avx512_multiply_panels(enum packed_format format, const uint8_t *const *weights,
                            uint32_t blocks, const struct quant_group *activations,
                            uint32_t rows, panel_sums *const *sums, bool add)
{
#define PANELS_FORMAT(name) \
    panels_format(false, name, weights, blocks, activations, rows, sums, add)
    PACKED_DISPATCH(format, PANELS_FORMAT)
#undef PANELS_FORMAT
}

void avx512_multiply_panels_fine(enum packed_format format, const uint8_t *const *weights,
                                 uint32_t blocks, const struct quant_group *activations,
                                 uint32_t rows, panel_sums *const *sums, bool add)
{
#define PANELS_FORMAT(name) \
    panels_format(true, name, weights, blocks, activations, rows, sums, add)
    PACKED_DISPATCH(format, PANELS_FORMAT)
#undef PANELS_FORMAT
}

static ALWAYS_INLINE void direct_format(const bool fine, enum packed_format format,
                                        const uint8_t *weight, uint32_t blocks,
                                        const struct quant_group *group, uint32_t rows,
                                        panel_sums *sums, bool add)
{
    switch (rows) {
    case 1: direct_tile(fine, format, weight, blocks, group, 1, sums, add); return;
    case 2: direct_tile(fine, format, weight, blocks, group, 2, sums, add); return;
    case 3: direct_tile(fine, format, weight, blocks, group, 3, sums, add); return;
    case 4: direct_tile(fine, format, weight, blocks, group, 4, sums, add); return;
    case 5: direct_tile(fine, format, weight, blocks, group, 5, sums, add); return;
    case 6: direct_tile(fine, format, weight, blocks, group, 6, sums, add); return;
    case 7: direct_tile(fine, format, weight, blocks, group, 7, sums, add); return;
    default: direct_tile(fine, format, weight, blocks, group, 8, sums, add); return;
    }
}

/* So few rows are in one group. */
void avx512_multiply_direct(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                            const struct quant_group *activations, uint32_t group_stride,
                            uint32_t rows, panel_sums *sums, bool add)
{
    (void)group_stride;
#define DIRECT_FORMAT(name) \
    direct_format(false, name, weight, blocks, activations, rows, sums, add)
    PACKED_DISPATCH(format, DIRECT_FORMAT)
#undef DIRECT_FORMAT
}

void avx512_multiply_direct_fine(enum packed_format format, const uint8_t *weight,
                                 uint32_t blocks, const struct quant_group *activations,
                                 uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                 bool add)
{
    (void)group_stride;
#define DIRECT_FORMAT(name) \
    direct_format(true, name, weight, blocks, activations, rows, sums, add)
    PACKED_DISPATCH(format, DIRECT_FORMAT)
#undef DIRECT_FORMAT
}
