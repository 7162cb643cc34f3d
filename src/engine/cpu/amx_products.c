/* SPDX-License-Identifier: Apache-2.0 */
/* AMX: one instruction multiplies 16 rows by 16 outputs over 32 inputs, all of them bfloat16, and adds
 * to sums in a tile. Fine quants are such numbers, and nibbles are the sum of two of them
 * (fine_weights.h): so a panel of nibbles is multiplied from its first block to its last without
 * anything being scaled, or the sums leaving their tiles.
 *
 *   rows     16 bfloats[32]          a group of activations as it lies in memory, the first tile
 *   nibbles  upper [16 pairs][16 outputs][2]   a ready block, the second tile
 *            lower                             and that of the second product, 1024 bytes later
 *
 * The instruction adds the first numbers of the 16 pairs in order, and the second ones, both from zero
 * and rounding each time; then the two sums to each other, and the result to the tile. All but the
 * last addition is exact here, so that it gives what cpu_kernels.h says.
 *
 * Weights of six and eight bits are bfloats without their scale. Their sums go through memory after
 * every block, since tiles have no way to the vector registers, and are scaled and added as everywhere. */
#define _GNU_SOURCE
#include "amx_products.h"
#include "avx512_weights.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Of <asm/prctl.h>; older headers do not have them. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

bool amx_allowed(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* What LDTILECFG reads. */
struct tile_shapes {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Sums 0 to 3, activations 4 and 5, weights 6 and 7. All are whole. */
static const struct tile_shapes shapes = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* A thread's tiles keep their shapes: setting them takes as long as a product of them. */
static void shape_tiles(void)
{
    static _Thread_local bool shaped;
    if (shaped)
        return;
    _tile_loadconfig(&shapes);
    shaped = true;
}

/* ---- weights -------------------------------------------------------------------------------- */

#define TILE_BYTES 1024
#define PAIR_BYTES 64
#define QUANT_GROUPS 8 /* of 4 inputs in a block; each is two pairs */

static ALWAYS_INLINE uint8_t *ready_tile(struct ready_block *block, int part)
{
    return (uint8_t *)block->quants + part * TILE_BYTES;
}

/* A pair's first and second numbers; floats that bfloats hold. */
static ALWAYS_INLINE void store_pair(uint8_t *to, __m512 first, __m512 second)
{
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
    _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_castps_si512(second)));
}

/* Both parts of nibble `nibble` of a group of four inputs, of all outputs. */
struct both_parts {
    __m512 of[2];
};

static ALWAYS_INLINE struct both_parts nibble_parts(__m512i four, const unsigned nibble,
                                                    const struct avx512_fine_weight *weight)
{
    /* Taking out of sixteen numbers looks at the lowest four bits only. */
    const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512 number = _mm512_permutexvar_ps(_mm512_srli_epi32(four, 4 * nibble), numbers);
    struct both_parts parts;
    for (int i = 0; i < 2; i++)
        parts.of[i] = _mm512_fmadd_ps(number, weight->scale[i], weight->minimum[i]);
    return parts;
}

static ALWAYS_INLINE void prepare_nibbles(enum packed_format format, const uint8_t *block,
                                          struct ready_block *out)
{
    const uint8_t *at = packed_quants(format, block);
    const struct avx512_fine_weight weight = avx512_fine_weight_of(format, block);
    for (int g = 0; g < QUANT_GROUPS; g++) {
        __m512i four = _mm512_loadu_si512(at + 64 * (g % 4));
        for (unsigned odd = 0; odd < 2; odd++) {
            /* Bytes of inputs 0 .. 3, of which this is the lower or the upper half. */
            const unsigned nibble = (g < 4 ? 0 : 1) + 2 * odd;
            struct both_parts first = nibble_parts(four, nibble, &weight);
            struct both_parts second = nibble_parts(four, nibble + 4, &weight);
            for (int i = 0; i < 2; i++)
                store_pair(ready_tile(out, i) + (2 * g + (int)odd) * PAIR_BYTES, first.of[i],
                           second.of[i]);
        }
    }
}

/* Signed bytes of a group; those of six bits are made of two parts. */
static ALWAYS_INLINE __m512i group_bytes(enum packed_format format, const uint8_t *block, int g)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(avx_quants(format, block, g, 0)),
                              avx_quants(format, block, g, 1), 1);
}

static ALWAYS_INLINE __m512 byte_of(__m512i four, unsigned byte)
{
    __m512i first = _mm512_slli_epi32(four, 24 - 8 * byte);
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(first, 24));
}

/* Where halves have scales of their own each has a tile, in which the other one is zero. */
static ALWAYS_INLINE void prepare_bytes(enum packed_format format, const uint8_t *block,
                                        struct ready_block *out)
{
    const bool halves = block_kind_of(format) == BLOCK_HALVES;
    avx_prepare_scales(format, block, out);
    for (int g = 0; g < QUANT_GROUPS; g++) {
        __m512i four = group_bytes(format, block, g);
        for (unsigned odd = 0; odd < 2; odd++) {
            int part = halves && g >= 4 ? 1 : 0, at = (2 * g + (int)odd) * PAIR_BYTES;
            store_pair(ready_tile(out, part) + at, byte_of(four, odd), byte_of(four, odd + 2));
            if (halves)
                _mm512_storeu_si512(ready_tile(out, 1 - part) + at, _mm512_setzero_si512());
        }
    }
}

static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++, block += packed_block_bytes(format), out++) {
        if (is_fine_weight(format))
            prepare_nibbles(format, block, out);
        else
            prepare_bytes(format, block, out);
    }
}

void amx_prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                 struct ready_block *out)
{
#define PREPARE(name) prepare_format(name, blocks, count, out)
    PACKED_DISPATCH(format, PREPARE)
#undef PREPARE
}

/* ---- nibbles -------------------------------------------------------------------------------- */

/* The numbers of tiles are part of the instructions. */
#define LOAD_ROWS(tile, group) _tile_loadd(tile, (group)->bfloats, 64)
#define LOAD_WEIGHTS(tile, block, part) \
    _tile_loadd(tile, (block)->quants + (part)*TILE_BYTES, PAIR_BYTES)

/* The sums of four groups of rows into tiles 0 to 3: the upper part of a block and then the lower. */
static void sum_four(const struct ready_block *weight, uint32_t blocks,
                     const struct quant_group *group, uint32_t stride)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t b = 0; b < blocks; b++, weight++, group++) {
        LOAD_WEIGHTS(6, weight, 0);
        LOAD_ROWS(4, group);
        LOAD_ROWS(5, group + stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        LOAD_WEIGHTS(7, weight, 1);
        _tile_dpbf16ps(0, 4, 7);
        _tile_dpbf16ps(1, 5, 7);
        LOAD_ROWS(4, group + 2 * stride);
        LOAD_ROWS(5, group + 3 * stride);
        _tile_dpbf16ps(2, 4, 6);
        _tile_dpbf16ps(3, 5, 6);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
}

static void sum_two(const struct ready_block *weight, uint32_t blocks,
                    const struct quant_group *group, uint32_t stride)
{
    _tile_zero(0);
    _tile_zero(1);
    for (uint32_t b = 0; b < blocks; b++, weight++, group++) {
        LOAD_WEIGHTS(6, weight, 0);
        LOAD_ROWS(4, group);
        LOAD_ROWS(5, group + stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        LOAD_WEIGHTS(7, weight, 1);
        _tile_dpbf16ps(0, 4, 7);
        _tile_dpbf16ps(1, 5, 7);
    }
}

static void sum_one(const struct ready_block *weight, uint32_t blocks,
                    const struct quant_group *group)
{
    _tile_zero(0);
    for (uint32_t b = 0; b < blocks; b++, weight++, group++) {
        LOAD_WEIGHTS(6, weight, 0);
        LOAD_WEIGHTS(7, weight, 1);
        LOAD_ROWS(4, group);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(0, 4, 7);
    }
}

static void add_rows(panel_sums *sums, const panel_sums *more, uint32_t rows, bool add)
{
    for (uint32_t r = 0; r < rows && r < GROUP_ROWS; r++) {
        __m512 row = _mm512_load_ps(more[r]);
        _mm512_storeu_ps(sums[r], add ? _mm512_add_ps(_mm512_loadu_ps(sums[r]), row) : row);
    }
}

/* A tile's rows to where they belong; `rows` of them, or all. */
#define STORE_SUMS(tile, sums, rows, add)                       \
    do {                                                        \
        _Alignas(64) panel_sums group_sums[GROUP_ROWS];         \
        if (!(add) && (rows) >= GROUP_ROWS) {                   \
            _tile_stored(tile, sums, sizeof(panel_sums));       \
        } else {                                                \
            _tile_stored(tile, group_sums, sizeof(panel_sums)); \
            add_rows(sums, group_sums, rows, add);              \
        }                                                       \
    } while (0)

static void multiply_nibbles(const struct ready_block *weight, uint32_t blocks,
                             const struct quant_group *group, uint32_t stride, uint32_t rows,
                             panel_sums *sums, bool add)
{
    for (; rows > 3 * GROUP_ROWS; group += 4 * stride) {
        sum_four(weight, blocks, group, stride);
        STORE_SUMS(0, sums, GROUP_ROWS, add);
        STORE_SUMS(1, sums + GROUP_ROWS, GROUP_ROWS, add);
        STORE_SUMS(2, sums + 2 * GROUP_ROWS, GROUP_ROWS, add);
        STORE_SUMS(3, sums + 3 * GROUP_ROWS, rows - 3 * GROUP_ROWS, add);
        if (rows <= 4 * GROUP_ROWS)
            return;
        rows -= 4 * GROUP_ROWS;
        sums += 4 * GROUP_ROWS;
    }
    for (; rows > GROUP_ROWS; group += 2 * stride) {
        sum_two(weight, blocks, group, stride);
        STORE_SUMS(0, sums, GROUP_ROWS, add);
        STORE_SUMS(1, sums + GROUP_ROWS, rows - GROUP_ROWS, add);
        if (rows <= 2 * GROUP_ROWS)
            return;
        rows -= 2 * GROUP_ROWS;
        sums += 2 * GROUP_ROWS;
    }
    sum_one(weight, blocks, group);
    STORE_SUMS(0, sums, rows, add);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* Of a block; `second` only where halves have scales of their own. */
struct block_sums {
    _Alignas(64) panel_sums first[GROUP_ROWS], second[GROUP_ROWS];
};

#define MULTIPLY_BLOCK(first_tile, second_tile, rows_tile, weights_tile, halves, group, block, \
                       to)                                                                     \
    do {                                                                                       \
        _tile_zero(first_tile);                                                                \
        LOAD_ROWS(rows_tile, group);                                                           \
        LOAD_WEIGHTS(weights_tile, block, 0);                                                  \
        _tile_dpbf16ps(first_tile, rows_tile, weights_tile);                                   \
        if (halves) {                                                                          \
            _tile_zero(second_tile);                                                           \
            LOAD_WEIGHTS(weights_tile, block, 1);                                              \
            _tile_dpbf16ps(second_tile, rows_tile, weights_tile);                              \
            _tile_stored(second_tile, (to)->second, sizeof(panel_sums));                       \
        }                                                                                      \
        _tile_stored(first_tile, (to)->first, sizeof(panel_sums));                             \
    } while (0)

/* Tiles in turn, so that two blocks overlap. */
static ALWAYS_INLINE void multiply_block(const bool halves, uint32_t turn,
                                         const struct quant_group *group,
                                         const struct ready_block *block, struct block_sums *to)
{
    if (turn % 2)
        MULTIPLY_BLOCK(1, 3, 5, 7, halves, group, block, to);
    else
        MULTIPLY_BLOCK(0, 2, 4, 6, halves, group, block, to);
}

static ALWAYS_INLINE void add_block(const enum block_kind kind, const struct block_sums *whole,
                                    const struct quant_group *group,
                                    const struct ready_block *block, __m512 sum[GROUP_ROWS])
{
    __m512 scale = _mm512_loadu_ps(block->scale), other = _mm512_loadu_ps(block->other);
    for (uint32_t r = 0; r < GROUP_ROWS; r++) {
        sum[r] = _mm512_fmadd_ps(_mm512_load_ps(whole->first[r]), scale, sum[r]);
        if (kind == BLOCK_HALVES)
            sum[r] = _mm512_fmadd_ps(_mm512_load_ps(whole->second[r]), other, sum[r]);
        if (kind == BLOCK_MINIMA)
            sum[r] = _mm512_fmadd_ps(other, _mm512_set1_ps(group->scaled_sum[r]), sum[r]);
    }
}

/* One group; what its rows beyond `rows` hold does not matter. The tiles of a block are started before
 * the sums of the one before are taken, so that the two overlap. */
static ALWAYS_INLINE void multiply_group(const enum block_kind kind,
                                         const struct ready_block *weight, uint32_t blocks,
                                         const struct quant_group *group, uint32_t rows,
                                         panel_sums *sums, bool add)
{
    const bool halves = kind == BLOCK_HALVES;
    struct block_sums whole[2];
    _Alignas(64) panel_sums total[GROUP_ROWS];
    __m512 sum[GROUP_ROWS];
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        sum[r] = _mm512_setzero_ps();
    if (blocks)
        multiply_block(halves, 0, &group[0], &weight[0], &whole[0]);
    for (uint32_t b = 0; b < blocks; b++) {
        if (b + 1 < blocks)
            multiply_block(halves, b + 1, &group[b + 1], &weight[b + 1], &whole[(b + 1) % 2]);
        add_block(kind, &whole[b % 2], &group[b], &weight[b], sum);
    }
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        _mm512_store_ps(total[r], sum[r]);
    add_rows(sums, total, rows, add);
}

static ALWAYS_INLINE void multiply_bytes(const enum block_kind kind,
                                         const struct ready_block *weight, uint32_t blocks,
                                         const struct quant_group *group, uint32_t stride,
                                         uint32_t rows, panel_sums *sums, bool add)
{
    for (uint32_t r = 0; r < rows; r += GROUP_ROWS, group += stride)
        multiply_group(kind, weight, blocks, group, rows - r, sums + r, add);
}

void amx_multiply(enum packed_format format, const struct ready_block *weight, uint32_t blocks,
                  const struct quant_group *activations, uint32_t group_stride, uint32_t rows,
                  panel_sums *sums, bool add)
{
    const enum block_kind kind = block_kind_of(format);
    shape_tiles();
    if (is_fine_weight(format))
        multiply_nibbles(weight, blocks, activations, group_stride, rows, sums, add);
    else if (kind == BLOCK_PLAIN)
        multiply_bytes(BLOCK_PLAIN, weight, blocks, activations, group_stride, rows, sums, add);
    else if (kind == BLOCK_MINIMA)
        multiply_bytes(BLOCK_MINIMA, weight, blocks, activations, group_stride, rows, sums,
                       add);
    else
        multiply_bytes(BLOCK_HALVES, weight, blocks, activations, group_stride, rows, sums,
                       add);
}
