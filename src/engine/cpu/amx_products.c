/* SPDX-License-Identifier: Apache-2.0 */
/* AMX: one instruction multiplies 16 rows by 16 outputs over 32 inputs, all of them bfloat16, and adds
 * to sums in a tile. Fine quants are such numbers, and so are weights without their scale.
 *
 *   rows     16 bfloats[32]              a group of activations as it lies in memory, the first tile
 *   weights  [16 pairs][16 outputs][2]   a ready block, the second tile; where halves have scales of
 *                                        their own there is one for each, 1024 bytes apart
 *
 * The instruction adds the first numbers of the 16 pairs in order, and the second ones, both from zero
 * and rounding each time; then the two sums to each other. All of it is exact here: quants have 11 bits
 * and a sign, weights 8, and there are 32 of them. So it gives what cpu_kernels.h says, and as a float.
 *
 * The 256 sums go through memory, since tiles have no way to the vector registers, and are then scaled
 * and added as everywhere. */
#define _GNU_SOURCE
#include "amx_products.h"
#include "avx_weights.h"

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

static const struct tile_shapes shapes = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* A thread's tiles keep their shapes: setting them takes as long as a product of them. */
void amx_shape_tiles(void)
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

/* Nibble `nibble` of a group of four inputs, of all outputs: taking out of sixteen numbers looks at the
 * lowest four bits only. */
static ALWAYS_INLINE __m512 nibble_of(enum packed_format format, __m512i four, unsigned nibble)
{
    __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    if (format == PACKED_Q4_CENTRED)
        numbers = _mm512_sub_ps(numbers, _mm512_set1_ps(8.0f));
    return _mm512_permutexvar_ps(_mm512_srli_epi32(four, 4 * nibble), numbers);
}

static ALWAYS_INLINE void prepare_nibbles(enum packed_format format, const uint8_t *block,
                                          struct ready_block *out)
{
    const uint8_t *at = packed_quants(format, block);
    avx_prepare_scales(format, block, out);
    for (int g = 0; g < QUANT_GROUPS; g++) {
        __m512i four = _mm512_loadu_si512(at + 64 * (g % 4));
        for (unsigned odd = 0; odd < 2; odd++) {
            /* Of bytes `odd` and `odd` + 2 the lower or the upper half. */
            const unsigned nibble = (g < 4 ? 0 : 1) + 2 * odd;
            store_pair(ready_tile(out, 0) + (2 * g + (int)odd) * PAIR_BYTES,
                       nibble_of(format, four, nibble), nibble_of(format, four, nibble + 4));
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
        if (packed_has_nibbles(format) && block_kind_of(format) != BLOCK_HALVES)
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

/* ---- products ------------------------------------------------------------------------------- */

/* The numbers of tiles are part of the instructions. Two of each, for blocks in turn: sums 0 and 1, and 2
 * and 3 of second halves; activations 4 and 5, weights 6 and 7. */
#define LOAD_ROWS(tile, group) _tile_loadd(tile, (group)->bfloats, 64)
#define LOAD_WEIGHTS(tile, block, part) \
    _tile_loadd(tile, (block)->quants + (part)*TILE_BYTES, PAIR_BYTES)

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
    /* All of them: an index that is no constant would take them out of registers. */
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        _mm512_store_ps(total[r], sum[r]);
    for (uint32_t r = 0; r < rows && r < GROUP_ROWS; r++) {
        __m512 row = _mm512_load_ps(total[r]);
        _mm512_storeu_ps(sums[r], add ? _mm512_add_ps(_mm512_loadu_ps(sums[r]), row) : row);
    }
}

static ALWAYS_INLINE void multiply_kind(const enum block_kind kind,
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
    amx_shape_tiles();
#define MULTIPLY(kind) \
    multiply_kind(kind, weight, blocks, activations, group_stride, rows, sums, add)
    BLOCK_KIND_DISPATCH(format, MULTIPLY)
#undef MULTIPLY
}
