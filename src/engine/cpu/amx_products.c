/* SPDX-License-Identifier: Apache-2.0 */
/* AMX: one instruction multiplies 16 rows by 16 outputs over 64 bytes of depth. A block has 32 inputs,
 * so half of the depth is free, and pays for fine quants: their upper and lower parts meet 16 times
 * the weight and the weight. Weights of a byte have no room for 16 times; they take two products.
 *
 *   rows     upper | lower      a group of activations as it lies in memory, the first tile
 *   nibbles  16 w               a ready block, the second tile
 *            w
 *   bytes    w                  the second tile, and that of the second product 512 bytes later
 *            0
 *            w
 *
 * The 256 whole sums go through memory, since tiles have no way to the vector registers, and are then
 * scaled and added as everywhere. While tiles are at work the processor has one unit for vectors of
 * floats instead of two; so it is the scaling that takes the time, and the products are hidden in it. */
#define _GNU_SOURCE
#include "amx_products.h"
#include "avx512_products.h"
#include "avx_weights.h"

#include <string.h>
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

/* Two of each, for blocks in turn: whole sums 0 and 1, activations 2 and 3, weights 4 and 5; 6 and 7
 * are the sums of second products. All are whole. */
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

static ALWAYS_INLINE bool fits_sixteen_times(enum packed_format format)
{
    return packed_has_nibbles(format) && block_kind_of(format) != BLOCK_HALVES;
}

/* What the ready quants are lifted by. */
static ALWAYS_INLINE int lift_of(enum packed_format format)
{
    if (block_kind_of(format) == BLOCK_MINIMA)
        return 0;
    return fits_sixteen_times(format) ? 8 : AVX512_LIFT;
}

static ALWAYS_INLINE void prepare_nibbles(enum packed_format format, const uint8_t *block,
                                          struct ready_block *out)
{
    const uint8_t *at = packed_quants(format, block);
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8((char)0xf0);
    int8_t *times = out->quants, *once = out->quants + READY_QUANTS;
    avx_prepare_scales(format, block, out);
    for (int g = 0; g < 4; g++, at += 64, times += 64, once += 64) {
        __m512i both = _mm512_loadu_si512(at);
        _mm512_storeu_si512(once, _mm512_and_si512(both, low));
        _mm512_storeu_si512(times, _mm512_and_si512(_mm512_slli_epi16(both, 4), high));
        _mm512_storeu_si512(once + 256, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
        _mm512_storeu_si512(times + 256, _mm512_and_si512(both, high));
    }
}

static void prepare_bytes(enum packed_format format, const uint8_t *block,
                          struct ready_block *out)
{
    avx512_prepare(format, block, 1, out);
    if (block_kind_of(format) == BLOCK_HALVES)
        return; /* it meets no tile */
    memset(out->quants + READY_QUANTS, 0, READY_QUANTS);
    memcpy(out->quants + 2 * READY_QUANTS, out->quants, READY_QUANTS);
}

static ALWAYS_INLINE void prepare_format(enum packed_format format, const uint8_t *block,
                                         uint32_t count, struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++, block += packed_block_bytes(format), out++) {
        if (fits_sixteen_times(format))
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

typedef int32_t whole_sums[GROUP_ROWS][PANEL_OUTPUTS];

/* Of a block; `lower` only where there are two products. */
struct whole_block {
    _Alignas(64) whole_sums sums, lower;
};

/* The numbers of tiles are part of the instructions. Weights have no sign: they are lifted. */
#define MULTIPLY_TILES(sum, rows, weights, second, twice, group, block, to) \
    do {                                                                    \
        _tile_zero(sum);                                                    \
        _tile_loadd(rows, (group)->quants, 64);                             \
        _tile_loadd(weights, (block)->quants, 64);                          \
        _tile_dpbsud(sum, rows, weights);                                   \
        if (twice) {                                                        \
            _tile_zero(second);                                             \
            _tile_loadd(weights, (block)->quants + READY_QUANTS, 64);       \
            _tile_dpbsud(second, rows, weights);                            \
            _tile_stored(second, (to)->lower, 64);                          \
        }                                                                   \
        _tile_stored(sum, (to)->sums, 64);                                  \
    } while (0)

static ALWAYS_INLINE void multiply_tiles(const bool twice, uint32_t turn,
                                         const struct quant_group *group,
                                         const struct ready_block *block,
                                         struct whole_block *to)
{
    if (turn % 2)
        MULTIPLY_TILES(1, 3, 5, 7, twice, group, block, to);
    else
        MULTIPLY_TILES(0, 2, 4, 6, twice, group, block, to);
}

/* What is one instruction set's way of the sums in cpu_kernels.h, for the first `rows` rows. */
static ALWAYS_INLINE void add_block(enum packed_format format, const uint32_t rows,
                                    const struct whole_block *whole,
                                    const struct quant_group *group,
                                    const struct ready_block *block, __m512 sum[GROUP_ROWS])
{
    __m512 scale = _mm512_loadu_ps(block->scale), minimum = _mm512_loadu_ps(block->other);
    for (uint32_t r = 0; r < rows; r++) {
        __m512i of_row = _mm512_load_si512(whole->sums[r]);
        if (!fits_sixteen_times(format))
            of_row = _mm512_add_epi32(_mm512_slli_epi32(of_row, 4),
                                      _mm512_load_si512(whole->lower[r]));
        if (lift_of(format))
            of_row = _mm512_sub_epi32(
                of_row, _mm512_set1_epi32(lift_of(format) *
                                          (group->quant_sums[0][r] + group->quant_sums[1][r])));
        sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(of_row),
                                 _mm512_mul_ps(scale, _mm512_set1_ps(group->scale[r])), sum[r]);
        if (block_kind_of(format) == BLOCK_MINIMA)
            sum[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(group->scaled_sum[r]), sum[r]);
    }
}

static ALWAYS_INLINE void store_sums(const uint32_t used, const __m512 sum[GROUP_ROWS],
                                     uint32_t rows, panel_sums *sums, bool add)
{
    panel_sums
        all[GROUP_ROWS]; /* an index that is no constant would take them out of registers */
    for (uint32_t r = 0; r < used; r++)
        _mm512_storeu_ps(all[r], sum[r]);
    for (uint32_t r = 0; r < used && r < rows; r++) {
        __m512 row = _mm512_loadu_ps(all[r]);
        _mm512_storeu_ps(sums[r], add ? _mm512_add_ps(_mm512_loadu_ps(sums[r]), row) : row);
    }
}

/* Up to `used` rows of one group; what the group's other rows hold does not matter. The tiles of a
 * block are started before the sums of the one before are taken, so that the two overlap. */
static ALWAYS_INLINE void multiply_rows(enum packed_format format, const uint32_t used,
                                        const struct ready_block *weight, uint32_t blocks,
                                        const struct quant_group *group, uint32_t rows,
                                        panel_sums *sums, bool add)
{
    const bool twice = !fits_sixteen_times(format);
    struct whole_block whole[2];
    __m512 sum[GROUP_ROWS];
    for (uint32_t r = 0; r < used; r++)
        sum[r] = _mm512_setzero_ps();
    if (blocks)
        multiply_tiles(twice, 0, &group[0], &weight[0], &whole[0]);
    for (uint32_t b = 0; b < blocks; b++) {
        if (b + 1 < blocks)
            multiply_tiles(twice, b + 1, &group[b + 1], &weight[b + 1], &whole[(b + 1) % 2]);
        add_block(format, used, &whole[b % 2], &group[b], &weight[b], sum);
    }
    store_sums(used, sum, rows, sums, add);
}

#define FEW_ROWS 4 /* of a last group that is hardly used */

static ALWAYS_INLINE void multiply_format(enum packed_format format,
                                          const struct ready_block *weight, uint32_t blocks,
                                          const struct quant_group *activations,
                                          uint32_t group_stride, uint32_t rows,
                                          panel_sums *sums, bool add)
{
    shape_tiles();
    for (uint32_t r = 0; r < rows; r += GROUP_ROWS, activations += group_stride) {
        if (rows - r > FEW_ROWS)
            multiply_rows(format, GROUP_ROWS, weight, blocks, activations, rows - r, sums + r,
                          add);
        else
            multiply_rows(format, FEW_ROWS, weight, blocks, activations, rows - r, sums + r,
                          add);
    }
}

void amx_multiply(enum packed_format format, const struct ready_block *weight, uint32_t blocks,
                  const struct quant_group *activations, uint32_t group_stride, uint32_t rows,
                  panel_sums *sums, bool add)
{
    if (block_kind_of(format) == BLOCK_HALVES) {
        avx512_multiply_halves_fine(weight, blocks, activations, group_stride, rows, sums, add);
        return;
    }
#define MULTIPLY(name) \
    multiply_format(name, weight, blocks, activations, group_stride, rows, sums, add)
    PACKED_DISPATCH(format, MULTIPLY)
#undef MULTIPLY
}
