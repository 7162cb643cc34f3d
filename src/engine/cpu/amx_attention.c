/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with bfloats for many rows by AMX. The instruction multiplies 16 rows by 16 columns over 32
 * inputs (amx_products.c says how); its first tile has rows of 32 bfloats, its second pairs of inputs of 16
 * columns. Keys are turned once for all queries, so that a query's scores are a row; its weights become
 * one, and that meets the values.
 *
 *   queries  [16 of them][dim / 32][1024 bytes]
 *   tile     keys [dim / 32][4 times 16 positions][1024 bytes]
 *            values [2 times 32 positions][dim / 16][1024 bytes]: pairs of positions */
#include "amx_attention.h"
#include "amx_products.h"
#include "bfloat_avx512.h"

#define TILE_NUMBERS 512 /* bfloats of a tile */
#define ROW_BYTES 64

/* ---- tiles out of numbers ------------------------------------------------------------------- */

/* Sixteen queries: inputs [at, at + 32) of each. */
static ALWAYS_INLINE void set_sixteen(const float *const *queries, uint32_t count, float scale,
                                      uint32_t at, uint16_t *out)
{
    __m512 by = _mm512_set1_ps(scale);
    for (uint32_t i = 0; i < BFLOAT_QUERIES; i++) {
        __m512i row = _mm512_setzero_si512();
        if (i < count)
            row = bfloats_pack(_mm512_mul_ps(_mm512_loadu_ps(queries[i] + at), by),
                               _mm512_mul_ps(_mm512_loadu_ps(queries[i] + at + LANES), by));
        _mm512_store_si512(out + i * BFLOAT_INPUTS, row);
    }
}

void amx_set_queries(const float *const *queries, uint32_t count, float scale, uint32_t dim,
                     uint16_t *out)
{
    for (uint32_t i = 0; i < count; i += BFLOAT_QUERIES)
        for (uint32_t d = 0; d < dim; d += BFLOAT_INPUTS, out += TILE_NUMBERS)
            set_sixteen(queries + i, count - i, scale, d, out);
}

/* The second 32 positions are not touched where they are not there, and not used. */
void amx_set_tile(const uint16_t *const *keys, const uint16_t *const *values, uint32_t tokens,
                  uint32_t dim, uint16_t *out)
{
    for (uint32_t t = 0; t < tokens; t += LANES) {
        for (uint32_t d = 0; d < dim; d += BFLOAT_INPUTS) {
            uint16_t *to = out + d * ATTENTION_TILE + t * BFLOAT_INPUTS;
            __m512 turned[LANES];
            bfloats_turn_keys(keys + t, tokens - t, d, turned);
            for (uint32_t i = 0; i < LANES; i++)
                _mm512_store_ps(to + i * BFLOAT_INPUTS, turned[i]);
        }
    }
    out += ATTENTION_TILE * dim;
    for (uint32_t begin = 0; begin < tokens;
         begin += BFLOAT_INPUTS, out += BFLOAT_INPUTS * dim) {
        for (uint32_t t = 0; t < BFLOAT_INPUTS; t += 2) {
            const uint16_t *first = value_at(values, tokens, begin + t);
            const uint16_t *second = value_at(values, tokens, begin + t + 1);
            for (uint32_t d = 0; d < dim; d += BFLOAT_INPUTS) {
                uint16_t *to = out + d * BFLOAT_INPUTS + t * LANES;
                __m512i pairs[2];
                bfloats_pair(first + d, second + d, pairs);
                _mm512_store_si512(to, pairs[0]);
                _mm512_store_si512(to + TILE_NUMBERS, pairs[1]);
            }
        }
    }
}

/* ---- scores --------------------------------------------------------------------------------- */

typedef float score_rows[BFLOAT_QUERIES][ATTENTION_TILE];

#define LOAD(tile, from) _tile_loadd(tile, from, ROW_BYTES)

/* 32 positions; the numbers of tiles are part of the instructions. */
#define SCORE(left, right, keys, to)                             \
    do {                                                         \
        _tile_zero(left);                                        \
        _tile_zero(right);                                       \
        for (uint32_t d = 0; d < dim; d += BFLOAT_INPUTS) {      \
            LOAD(4, queries + d * BFLOAT_QUERIES);               \
            LOAD(6, (keys) + d * ATTENTION_TILE);                \
            LOAD(7, (keys) + d * ATTENTION_TILE + TILE_NUMBERS); \
            _tile_dpbf16ps(left, 4, 6);                          \
            _tile_dpbf16ps(right, 4, 7);                         \
        }                                                        \
        _tile_stored(left, to, sizeof(*out));                    \
        _tile_stored(right, (to) + LANES, sizeof(*out));         \
    } while (0)

/* Of the first 32 positions or of 64; they have different tiles, so that they overlap. */
static ALWAYS_INLINE void score(const uint16_t *queries, const uint16_t *tile, uint32_t dim,
                                bool both, score_rows out)
{
    SCORE(0, 1, tile, out[0]);
    if (both)
        SCORE(2, 3, tile + 2 * TILE_NUMBERS, out[0] + BFLOAT_INPUTS);
}

/* ---- weights -------------------------------------------------------------------------------- */

struct tile_weights {
    _Alignas(64) uint16_t of[2][BFLOAT_QUERIES][BFLOAT_INPUTS]; /* of each 32 positions */
};

/* What is seen of a query's scores; the rest is below all. */
static ALWAYS_INLINE void load_scores(const float *from, uint32_t seen, const bool whole,
                                      __m512 scores[SCORE_VECTORS])
{
    const __m512 below = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < SCORE_VECTORS; i++)
        scores[i] = whole ? _mm512_load_ps(from + LANES * i)
                          : _mm512_mask_load_ps(below, seen_of(seen, i), from + LANES * i);
}

/* Of sixteen queries; a lane of `largest` and of the sums that are returned is one. */
static ALWAYS_INLINE __m512 soften_rows(score_rows all, const uint32_t *seen, const bool whole,
                                        struct tile_weights *to, __m512 *largest)
{
    __m512 scores[SCORE_VECTORS], each[BFLOAT_QUERIES];
    __m512i rounded[2];
    _Alignas(64) float less[BFLOAT_QUERIES];
    for (uint32_t q = 0; q < BFLOAT_QUERIES; q++) {
        load_scores(all[q], seen[q], whole, scores);
        each[q] = largest_of(scores);
    }
    *largest = lanes_join_each(each, lanes_larger);
    _mm512_store_ps(less, _mm512_mul_ps(*largest, _mm512_set1_ps(-LANES_PER_LN2)));
    for (uint32_t q = 0; q < BFLOAT_QUERIES; q++) {
        load_scores(all[q], seen[q], whole, scores);
        each[q] = soften(scores, less[q], seen[q], whole, rounded);
        _mm512_store_si512(to->of[0][q], rounded[0]);
        _mm512_store_si512(to->of[1][q], rounded[1]);
    }
    return lanes_join_each(each, lanes_add);
}

/* ---- values --------------------------------------------------------------------------------- */

/* What the tiles so far and this one count for, of each query. */
struct shares {
    _Alignas(64) float keep[BFLOAT_QUERIES], take[BFLOAT_QUERIES];
};

static ALWAYS_INLINE void fold_sums(__m512 largest, __m512 sums, uint32_t count, bool first,
                                    struct attention_state state, struct shares *shares)
{
    __mmask16 some = (__mmask16)((1u << count) - 1);
    __m512 before = first ? largest : _mm512_maskz_loadu_ps(some, state.largest);
    __m512 after = _mm512_max_ps(before, largest);
    if (!first) {
        __m512 keep = lanes_exp(_mm512_sub_ps(before, after));
        __m512 take = lanes_exp(_mm512_sub_ps(largest, after));
        __m512 sums_before = _mm512_maskz_loadu_ps(some, state.sum);
        sums = _mm512_fmadd_ps(sums, take, _mm512_mul_ps(sums_before, keep));
        _mm512_store_ps(shares->keep, keep);
        _mm512_store_ps(shares->take, take);
    }
    _mm512_mask_storeu_ps(state.largest, some, after);
    _mm512_mask_storeu_ps(state.sum, some, sums);
}

typedef float value_rows[BFLOAT_QUERIES][BFLOAT_INPUTS];

#define WEIGH(left, right)                                        \
    do {                                                          \
        _tile_zero(left);                                         \
        _tile_zero(right);                                        \
        LOAD(6, values);                                          \
        LOAD(7, values + TILE_NUMBERS);                           \
        _tile_dpbf16ps(left, 4, 6);                               \
        _tile_dpbf16ps(right, 4, 7);                              \
        if (both) {                                               \
            LOAD(6, values + BFLOAT_INPUTS * dim);                \
            LOAD(7, values + BFLOAT_INPUTS * dim + TILE_NUMBERS); \
            _tile_dpbf16ps(left, 5, 6);                           \
            _tile_dpbf16ps(right, 5, 7);                          \
        }                                                         \
        _tile_stored(left, out[0], sizeof(*out));                 \
        _tile_stored(right, out[0] + LANES, sizeof(*out));        \
    } while (0)

/* 32 inputs of sixteen weighted sums; tiles in turn. */
static ALWAYS_INLINE void weigh(const uint16_t *values, uint32_t dim, bool both, bool odd,
                                value_rows out)
{
    if (odd)
        WEIGH(2, 3);
    else
        WEIGH(0, 1);
}

static ALWAYS_INLINE void fold_rows(value_rows tile, const struct shares *shares,
                                    uint32_t count, uint32_t dim, bool first, float *weighted)
{
    for (uint32_t q = 0; q < count; q++, weighted += dim)
        for (uint32_t i = 0; i < BFLOAT_INPUTS; i += LANES)
            fold_values(_mm512_load_ps(tile[q] + i), shares->keep[q], shares->take[q], first,
                        weighted + i);
}

/* The tiles of 32 inputs are started before the sums of those before are folded. */
static ALWAYS_INLINE void weigh_tile(const struct tile_weights *weights, const uint16_t *tile,
                                     bool both, const struct shares *shares, uint32_t count,
                                     uint32_t dim, bool first, float *weighted)
{
    _Alignas(64) value_rows sums[2];
    const uint16_t *values = tile + ATTENTION_TILE * dim;
    LOAD(4, weights->of[0]);
    LOAD(5, weights->of[1]);
    weigh(values, dim, both, false, sums[0]);
    for (uint32_t d = 0, odd = 0; d < dim; d += BFLOAT_INPUTS, odd = !odd) {
        if (d + BFLOAT_INPUTS < dim)
            weigh(values + (d + BFLOAT_INPUTS) * BFLOAT_INPUTS, dim, both, !odd, sums[!odd]);
        fold_rows(sums[odd], shares, count, dim, first, weighted + d);
    }
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Sixteen queries, of which `count` count. `both`: somebody sees more than 32 positions; the others would
 * add nothing. */
static void attend_sixteen(const uint16_t *queries, uint32_t count, const uint32_t *seen,
                           const uint16_t *tile, bool both, uint32_t dim,
                           struct attention_state state, bool first)
{
    _Alignas(64) score_rows scores;
    struct tile_weights weights;
    struct shares shares;
    uint32_t least = ATTENTION_TILE, all[BFLOAT_QUERIES] = {0};
    __m512 largest, sums;
    for (uint32_t q = 0; q < count; q++) {
        all[q] = seen[q];
        least = all[q] < least ? all[q] : least;
    }
    score(queries, tile, dim, both, scores);
    if (least == ATTENTION_TILE)
        sums = soften_rows(scores, all, true, &weights, &largest);
    else
        sums = soften_rows(scores, all, false, &weights, &largest);
    fold_sums(largest, sums, count, first, state, &shares);
    weigh_tile(&weights, tile, both, &shares, count, dim, first, state.weighted);
}

void amx_attend(const uint16_t *queries, uint32_t count, const uint32_t *seen,
                const uint16_t *tile, uint32_t dim, struct attention_state state, bool first)
{
    bool both = false;
    for (uint32_t i = 0; i < count; i++)
        both = both || seen[i] > BFLOAT_INPUTS;
    amx_shape_tiles();
    for (uint32_t i = 0, some; i < count; i += some, queries += BFLOAT_QUERIES * dim) {
        some = count - i < BFLOAT_QUERIES ? count - i : BFLOAT_QUERIES;
        attend_sixteen(queries, some, seen + i, tile, both, dim,
                       attention_state_at(state, i, dim), first);
    }
}
