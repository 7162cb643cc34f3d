/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops, one table of them per instruction set. kernels_portable.c is the definition;
 * every other table gives the same bits for the same input, quants of 8 bits or fine ones. So each
 * function says its order:
 *
 * - A product with a quantised weight is exact in int32 within a block of 32 inputs, and the blocks
 *   of a range are added in ascending order in float, one multiply-add each:
 *       sum = fma((float)whole, weight scale * activation scale, sum)
 *       sum = fma(minimum, scaled sum of the activations, sum)           where there are minima
 *   (Two such steps for a block whose halves have their own scales.)
 * - A product with a float weight is one multiply-add per input, ascending.
 * - A sum over a row (norm, dot product, softmax) has eight partial sums, input i in partial sum
 *   i % 8, joined as lanes_portable.h says.
 * Multiply-adds round once, everywhere. Nothing depends on how many rows there are. */
#ifndef BATON_ENGINE_CPU_KERNELS_H
#define BATON_ENGINE_CPU_KERNELS_H

#include "packed_weight.h"

/* ---- activations ---------------------------------------------------------------------------- */

/* 32 inputs of some rows, as the integer kernels read them. Row r of a matrix is in group
 * r / GROUP_ROWS; the blocks of a group follow each other. Inside, it is as the matrix instructions
 * of the architecture want it. x86's take 16 rows, one after another. ARM's take two rows,
 *
 *   row 0, inputs 0..7 | row 1, inputs 0..7 | row 0, inputs 8..15 | row 1, inputs 8..15 | ...
 *
 * and what a row has one of twice, once for each of two outputs. */
#if defined(__x86_64__)
#define GROUP_ROWS 16
#define GROUP_COPIES 1
#define GROUP_PARTS 2 /* bytes that a quant has room for: fine ones have two */
#else
#define GROUP_ROWS 4
#define GROUP_COPIES 2
#define GROUP_PARTS 1
#endif
struct quant_group {
    float scale[GROUP_COPIES * GROUP_ROWS];      /* of row r: from GROUP_COPIES * r on */
    float scaled_sum[GROUP_COPIES * GROUP_ROWS]; /* scale * sum of the quants */
    int16_t quant_sums[2][GROUP_ROWS];           /* of inputs 0..15 and 16..31 */
    union {
        int8_t quants[GROUP_PARTS * GROUP_ROWS * PACKED_BLOCK];
#if GROUP_PARTS > 1
        uint16_t bfloats[GROUP_ROWS * PACKED_BLOCK]; /* fine quants of many rows, times scale */
#endif
    };
};

/* Where input `input` of row `row` is. Eight inputs from a multiple of 8 on are consecutive. */
static inline uint32_t quant_index(uint32_t row, uint32_t input)
{
#if defined(__x86_64__)
    return row * PACKED_BLOCK + input;
#else
    return row / 2 * (2 * PACKED_BLOCK) + input / 8 * 16 + row % 2 * 8 + input % 8;
#endif
}

/* Fine quants, of the tables that say so, have 12 bits of which only the first 8 that are not zero
 * count, and their scale is a power of two: they are numbers of bfloat16 too. Those of few rows, which
 * meet packed weights, are bytes: first the upper 8 bits of a row's 32 inputs, with the sign, and then
 * the lower 4 of each, without. Those of many rows are bfloats. */
#define QUANT_MOST 127
#define QUANT_LEAST 1e-30f /* a block below it would divide by a subnormal number; it is zero */
#define FINE_QUANT_MOST 2040
#define FINE_LEAST 0x1p-40f /* what is smaller is zero, so that no sum is subnormal */
#define FINE_LOWER 16       /* a quant is upper * FINE_LOWER + lower */

/* The scale of a block, as bits: the exponent of its largest bfloat less 10. */
#define FINE_EXPONENT 0x7f800000u
#define FINE_EXPONENT_LESS (10u << 23)

/* As bfloats: in pairs, as nibbles and bytes are easily made pairs of, (0, 2) (1, 3) (4, 6) ... */
static inline uint32_t bfloat_index(uint32_t row, uint32_t input)
{
    return row * PACKED_BLOCK + (input & ~3u) + input % 2 * 2 + input / 2 % 2;
}

static inline uint32_t fine_quant_index(uint32_t row, uint32_t input)
{
    return row * (2 * PACKED_BLOCK) + input;
}

/* ---- weights, ready for use with many rows -------------------------------------------------- */

enum block_kind {
    BLOCK_PLAIN,  /* a scale */
    BLOCK_MINIMA, /* a scale, and a minimum as the other number */
    BLOCK_HALVES  /* a scale for inputs 0..15, the other number is that for 16..31 */
};

/* A block of a panel with every quant in a byte of its own and every scale a float. The order in
 * it is the business of the table that made it; AMX has bfloats, and those of two halves apart. */
#define READY_QUANTS (PANEL_OUTPUTS * PACKED_BLOCK)
struct ready_block {
    float scale[2 * PANEL_OUTPUTS];
    float other[2 * PANEL_OUTPUTS];
    int8_t quants[(GROUP_PARTS == 1 ? 1 : 4) * READY_QUANTS];
};

static inline enum block_kind block_kind_of(enum packed_format format)
{
    switch (format) {
    case PACKED_Q4_HALF:
    case PACKED_Q4_FLOAT:
    case PACKED_Q8_FLOAT: return BLOCK_MINIMA;
    case PACKED_Q6_HALF_BLOCKS: return BLOCK_HALVES;
    default: return BLOCK_PLAIN;
    }
}

/* For functions whose kind must be a constant, as PACKED_DISPATCH. */
#define BLOCK_KIND_DISPATCH(format, what)         \
    switch (block_kind_of(format)) {              \
    case BLOCK_PLAIN: what(BLOCK_PLAIN); break;   \
    case BLOCK_MINIMA: what(BLOCK_MINIMA); break; \
    default: what(BLOCK_HALVES);                  \
    }

#define PANELS_TOGETHER 4

/* Sums of one panel for `rows` rows; with `add`, added to what is there. */
typedef float panel_sums[PANEL_OUTPUTS];

/* ---- attention ------------------------------------------------------------------------------ */

/* Keys and values are taken in tiles that begin at multiples of this position. */
#define ATTENTION_TILE 64

/* The softmax of some queries over the tiles so far. `weighted` (head_dim floats for each) is the sum
 * of values, weighted relative to the largest score. */
struct attention_state {
    float *largest;
    float *sum;
    float *weighted;
};

/* Of query `query` and those after it. */
static inline struct attention_state attention_state_at(struct attention_state all,
                                                        uint64_t query, uint32_t dim)
{
    return (struct attention_state){all.largest + query, all.sum + query,
                                    all.weighted + query * dim};
}

/* Of `count` queries that are left, how many are taken together: each vector of keys and values is then
 * loaded once for all of them. Four are twice two. */
#define QUERIES_TOGETHER 3
static inline uint32_t queries_together(uint32_t count)
{
    return count == 3 || count > 4 ? 3 : count > 1 ? 2 : 1;
}

/* Attention with bfloats, for pages of halves and heads of whole 32 inputs. Its order:
 *
 * - A product of 32 numbers with 32 adds up those of even inputs in ascending order, one multiply-add
 *   each, and those of odd ones, both from zero; then the two to each other.
 * - Queries (times the scale), keys and values are rounded to bfloats; halves by adding 4 to their bits
 *   and leaving out the last three, and what is below 2^-14 is zero. A score adds the products of 32
 *   inputs, ascending.
 * - A weight is exp(score - the tile's largest), as lanes_weight.h has it, rounded to bfloat. Weights
 *   2i, 2i + 1, 32 + 2i and 33 + 2i are partial sum i, (first + second) + (third + fourth). The sixteen
 *   are joined in fours, (0 + 2) + (1 + 3), and those (0 + 1) + (2 + 3).
 * - The weighted values of a tile are the product of its first 32 positions and that of the others.
 *   Tiles are folded as those of the other attention. */
#define BFLOAT_INPUTS 32
#define BFLOAT_QUERIES 16 /* are taken together */
struct bfloat_attention {
    /* Queries and a tile's keys and values, wherever each is, in the form that `attend` wants:
     * `dim` numbers for each query of whole BFLOAT_QUERIES, and 2 * dim for each of ATTENTION_TILE
     * positions. */
    void (*set_queries)(const float *const *queries, uint32_t count, float scale, uint32_t dim,
                        uint16_t *out);
    void (*set_tile)(const uint16_t *const *keys, const uint16_t *const *values,
                     uint32_t tokens, uint32_t dim, uint16_t *out);

    /* Folds the tile into the state of `count` queries. Query i sees the first seen[i] positions;
     * of the first tile at least one. */
    void (*attend)(const uint16_t *queries, uint32_t count, const uint32_t *seen,
                   const uint16_t *tile, uint32_t dim, struct attention_state state,
                   bool first);

    /* The same for one row's queries, of which each sees all `tokens`. */
    void (*attend_row)(const float *const *queries, uint32_t count, float scale,
                       const uint16_t *const *keys, const uint16_t *const *values,
                       uint32_t tokens, uint32_t dim, struct attention_state state, bool first);
};

struct cpu_kernels {
    const char *name;
    bool fine; /* activations become fine quants */

    /* out = x / sqrt(mean of squares + epsilon) * weight */
    void (*norm)(const float *x, const float *weight, float epsilon, uint32_t count,
                 float *out);

    /* Row `row` of a group: `blocks` blocks of 32. The scale is the largest magnitude / 127. `few`:
     * of so few rows that they meet packed weights, up to direct_rows; fine ones have another form
     * then. */
    void (*quantise)(const float *x, uint32_t blocks, struct quant_group *group, uint32_t row,
                     bool few);

    /* All rows of a group, `stride` apart; the second 16 inputs of each block may be elsewhere than
     * behind the first. NULL: a row at a time. */
    void (*quantise_rows)(const float *first, const float *second, uint32_t stride,
                          uint32_t blocks, struct quant_group *group);

    /* gate = gate / (1 + exp(-gate)) * up */
    void (*silu_multiply)(float *gate, const float *up, uint32_t count);

    void (*prepare)(enum packed_format format, const uint8_t *blocks, uint32_t count,
                    struct ready_block *out);

    /* `blocks` blocks of weight and activations; the groups of the rows are `group_stride`
     * blocks apart. */
    void (*multiply)(enum packed_format format, const struct ready_block *weight,
                     uint32_t blocks, const struct quant_group *activations,
                     uint32_t group_stride, uint32_t rows, panel_sums *sums, bool add);

    /* The same straight from the packed weight, for up to direct_rows rows: fewer than these
     * are not worth making a panel ready. */
    uint32_t direct_rows;
    void (*multiply_direct)(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                            const struct quant_group *activations, uint32_t group_stride,
                            uint32_t rows, panel_sums *sums, bool add);

    /* The same of several panels at once, for up to panels_rows rows: what is read in several places
     * is read faster. NULL: one after another. */
    uint32_t panels_rows;
    void (*multiply_panels)(enum packed_format format, const uint8_t *const *weights,
                            uint32_t blocks, const struct quant_group *activations,
                            uint32_t rows, panel_sums *const *sums, bool add);

    /* Float weights: `inputs` of them; row r is x + r * stride. */
    void (*multiply_float)(enum packed_format format, const uint8_t *weight, uint32_t inputs,
                           const float *x, uint32_t stride, uint32_t rows, panel_sums *sums,
                           bool add);

    /* Turns pairs (x[i], x[i + count / 2]) or (x[2i], x[2i + 1]) of a head by angle i. */
    void (*rotate_halves)(float *x, const float *cosine, const float *sine, uint32_t count);
    void (*rotate_pairs)(float *x, const float *cosine, const float *sine, uint32_t count);

    void (*store_half)(const float *x, uint32_t count, uint16_t *out);
    void (*load_half)(const uint16_t *x, uint32_t count, float *out);

    /* A tile's keys as `attend` wants them, ATTENTION_TILE * dim floats; NULL: as they are. */
    void (*turn_keys)(const float *keys, uint32_t tokens, uint32_t dim, float *out);

    /* Folds one tile of `tokens` keys and values (each `dim` floats, 1..ATTENTION_TILE tokens)
     * into the state of `count` queries; `first`: it is not yet set. */
    void (*attend)(const float *const *queries, uint32_t count, float scale, const float *keys,
                   const float *values, uint32_t tokens, uint32_t dim,
                   struct attention_state state, bool first);

    /* The same with keys and values in half precision, wherever each is; `dim` is a multiple
     * of 8. */
    void (*attend_half)(const float *const *queries, uint32_t count, float scale,
                        const uint16_t *const *keys, const uint16_t *const *values,
                        uint32_t tokens, uint32_t dim, struct attention_state state,
                        bool first);

    /* What `attend` does with a tile's own sums: folds those of one query into its state of the tiles
     * before. */
    void (*fold)(struct attention_state tile, uint32_t dim, struct attention_state state);

    /* NULL: the above is for all pages. */
    const struct bfloat_attention *bfloats;
};

extern const struct cpu_kernels cpu_kernels_portable;
#if defined(__aarch64__)
extern const struct cpu_kernels cpu_kernels_neon;
extern const struct cpu_kernels cpu_kernels_i8mm;
#elif defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_portable_fine;
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_amx;
#endif

/* The tables that this processor can run, best first; the last is the portable one. */
#define CPU_KERNELS_MAX 5
uint32_t cpu_kernels_available(const struct cpu_kernels *out[CPU_KERNELS_MAX]);

/* By name; NULL or "": the best. ENOTFOUND with the names that there are. */
int cpu_kernels_find(const char *name, const struct cpu_kernels **out, struct error err);

#endif
