/* SPDX-License-Identifier: Apache-2.0 */
/* AMX: one instruction multiplies 16 rows by 16 outputs over the 32 inputs of a block. A group of
 * activations is the first tile as it lies in memory, a ready block the second; the 256 whole sums
 * go through memory, since tiles have no way to the vector registers, and are then scaled and added
 * as everywhere. The tiles of a block are started before the sums of the one before are taken, so
 * that the two halves of the work overlap. */
#define _GNU_SOURCE
#include "amx_products.h"
#include "avx512_products.h"
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

/* Two of each, for blocks in turn: whole sums 0 and 1, activations 2 and 3, weights 4 and 5. */
static const struct tile_shapes shapes = {
    .palette = 1,
    .row_bytes = {64, 64, PACKED_BLOCK, PACKED_BLOCK, 64, 64},
    .rows = {GROUP_ROWS, GROUP_ROWS, GROUP_ROWS, GROUP_ROWS, PACKED_BLOCK / 4,
             PACKED_BLOCK / 4},
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

typedef int32_t whole_sums[GROUP_ROWS][PANEL_OUTPUTS];

/* The numbers of tiles are part of the instructions. Weights have no sign: see LIFT. */
#define MULTIPLY_TILES(sums, rows, weights, group, block, to) \
    do {                                                      \
        _tile_zero(sums);                                     \
        _tile_loadd(rows, (group)->quants, PACKED_BLOCK);     \
        _tile_loadd(weights, (block)->quants, 64);            \
        _tile_dpbsud(sums, rows, weights);                    \
        _tile_stored(sums, to, sizeof((to)[0]));              \
    } while (0)

static ALWAYS_INLINE void multiply_tiles(uint32_t turn, const struct quant_group *group,
                                         const struct ready_block *block, whole_sums to)
{
    if (turn % 2)
        MULTIPLY_TILES(1, 3, 5, group, block, to);
    else
        MULTIPLY_TILES(0, 2, 4, group, block, to);
}

static ALWAYS_INLINE void add_block(const enum block_kind kind, whole_sums whole,
                                    const struct quant_group *group,
                                    const struct ready_block *block, __m512 sum[GROUP_ROWS])
{
    __m512 scale = _mm512_loadu_ps(block->scale), minimum = _mm512_loadu_ps(block->other);
    for (uint32_t r = 0; r < GROUP_ROWS; r++) {
        __m512i of_row = _mm512_load_si512(whole[r]);
        if (kind == BLOCK_PLAIN)
            of_row = _mm512_sub_epi32(
                of_row, _mm512_set1_epi32(AVX512_LIFT *
                                          (group->quant_sums[0][r] + group->quant_sums[1][r])));
        sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(of_row),
                                 _mm512_mul_ps(scale, _mm512_set1_ps(group->scale[r])), sum[r]);
        if (kind == BLOCK_MINIMA)
            sum[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(group->scaled_sum[r]), sum[r]);
    }
}

/* An index that is no constant would take the sums out of their registers. */
static ALWAYS_INLINE void store_sums(const __m512 sum[GROUP_ROWS], uint32_t rows,
                                     panel_sums *sums, bool add)
{
    panel_sums all[GROUP_ROWS];
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        _mm512_storeu_ps(all[r], sum[r]);
    for (uint32_t r = 0; r < GROUP_ROWS && r < rows; r++) {
        __m512 row = _mm512_loadu_ps(all[r]);
        _mm512_storeu_ps(sums[r], add ? _mm512_add_ps(_mm512_loadu_ps(sums[r]), row) : row);
    }
}

/* Up to 16 rows of one group; what the group's other rows hold does not matter. */
static ALWAYS_INLINE void multiply_group(const enum block_kind kind,
                                         const struct ready_block *weight, uint32_t blocks,
                                         const struct quant_group *group, uint32_t rows,
                                         panel_sums *sums, bool add)
{
    _Alignas(64) whole_sums whole[2];
    __m512 sum[GROUP_ROWS];
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        sum[r] = _mm512_setzero_ps();
    if (blocks)
        multiply_tiles(0, &group[0], &weight[0], whole[0]);
    for (uint32_t b = 0; b < blocks; b++) {
        if (b + 1 < blocks)
            multiply_tiles(b + 1, &group[b + 1], &weight[b + 1], whole[(b + 1) % 2]);
        add_block(kind, whole[b % 2], &group[b], &weight[b], sum);
    }
    store_sums(sum, rows, sums, add);
}

#define WORTH_A_TILE 4 /* fewer rows are not */

void amx_multiply(enum block_kind kind, const struct ready_block *weight, uint32_t blocks,
                  const struct quant_group *activations, uint32_t group_stride, uint32_t rows,
                  panel_sums *sums, bool add)
{
    uint32_t r = 0;
    if (kind != BLOCK_HALVES) {
        shape_tiles();
        for (; r + WORTH_A_TILE <= rows; r += GROUP_ROWS, activations += group_stride) {
            if (kind == BLOCK_PLAIN)
                multiply_group(BLOCK_PLAIN, weight, blocks, activations, rows - r, sums + r,
                               add);
            else
                multiply_group(BLOCK_MINIMA, weight, blocks, activations, rows - r, sums + r,
                               add);
        }
    }
    if (r < rows)
        avx512_multiply(kind, weight, blocks, activations, group_stride, rows - r, sums + r,
                        add);
}
