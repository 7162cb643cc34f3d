/* SPDX-License-Identifier: Apache-2.0 */
/* test_kernels.c for attention: every table gives the bits of the portable one, with floats and with bfloats, of
 * one row and of many, and those are close to the obvious computation in double precision. */
#include "engine/cpu/cpu_kernels.h"
#include "engine/cpu/number.h"
#include "kernel_tables.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

/* ---- with floats ---------------------------------------------------------------------------- */

#define TOKENS_MAX (3 * ATTENTION_TILE)
#define DIM_MAX 128

struct attention_case {
    uint32_t tokens, dim;
    float query[DIM_MAX];
    float keys[TOKENS_MAX * DIM_MAX], values[TOKENS_MAX * DIM_MAX];
};

/* QUERIES queries: as many as are taken together, and more; each is a multiple of the first. */
#define QUERIES 7

static void attend(const struct cpu_kernels *table, const struct attention_case *in,
                   float out[QUERIES * DIM_MAX])
{
    float weighted[QUERIES * DIM_MAX], scaled[QUERIES][DIM_MAX];
    const float *queries[QUERIES];
    float largest[QUERIES], sums[QUERIES];
    struct attention_state state = {largest, sums, weighted};
    for (int i = 0; i < QUERIES; i++) {
        for (uint32_t d = 0; d < in->dim; d++)
            scaled[i][d] = in->query[d] * (float)(i + 1);
        queries[i] = scaled[i];
    }
    for (uint32_t begin = 0; begin < in->tokens; begin += ATTENTION_TILE) {
        uint32_t left = in->tokens - begin;
        uint32_t tokens = left < ATTENTION_TILE ? left : ATTENTION_TILE;
        const float *keys = in->keys + begin * in->dim;
        float turned[ATTENTION_TILE * DIM_MAX];
        if (table->turn_keys)
            table->turn_keys(keys, tokens, in->dim, turned);
        table->attend(queries, QUERIES, 0.125f, table->turn_keys ? turned : keys,
                      in->values + begin * in->dim, tokens, in->dim, state, begin == 0);
    }
    for (uint32_t i = 0; i < QUERIES; i++)
        for (uint32_t d = 0; d < in->dim; d++)
            out[i * in->dim + d] = weighted[i * in->dim + d] / sums[i];
}

static void exact_attention(const struct attention_case *in, uint32_t factor, double *out)
{
    double scores[TOKENS_MAX], largest = -1e300, sum = 0;
    for (uint32_t t = 0; t < in->tokens; t++) {
        scores[t] = 0;
        for (uint32_t d = 0; d < in->dim; d++)
            scores[t] += (double)in->query[d] * factor * in->keys[t * in->dim + d] * 0.125;
        largest = scores[t] > largest ? scores[t] : largest;
    }
    memset(out, 0, in->dim * sizeof(*out));
    for (uint32_t t = 0; t < in->tokens; t++) {
        double weight = exp(scores[t] - largest);
        sum += weight;
        for (uint32_t d = 0; d < in->dim; d++)
            out[d] += weight * in->values[t * in->dim + d];
    }
    for (uint32_t d = 0; d < in->dim; d++)
        out[d] /= sum;
}

static void test_attention(void **state)
{
    (void)state;
    const uint32_t dims[] = {16, 20, 64, 80, 128};
    const uint32_t tokens[] = {1, 2, 5, 8, 63, 64, 65, 100, 128, 191};
    struct attention_case *in = malloc(sizeof(*in));
    float expected[QUERIES * DIM_MAX], found[QUERIES * DIM_MAX];
    double exact[DIM_MAX];
    assert_non_null(in);
    for (size_t i = 0; i < sizeof(dims) / sizeof(*dims); i++) {
        for (size_t j = 0; j < sizeof(tokens) / sizeof(*tokens); j++) {
            struct random_stream random = {1000 * i + j};
            in->dim = dims[i];
            in->tokens = tokens[j];
            fill(&random, in->query, in->dim, j % 3 == 0 ? 40.0f : 4.0f); /* sharp, or flat */
            fill(&random, in->keys, in->tokens * in->dim, 2.0f);
            fill(&random, in->values, in->tokens * in->dim, 1.0f);
            attend(reference, in, expected);
            for (uint32_t q = 0; q < QUERIES; q++) {
                exact_attention(in, q + 1, exact);
                for (uint32_t d = 0; d < in->dim; d++)
                    check_close("attention", expected[q * in->dim + d], exact[d], 5e-5);
            }
            for (uint32_t t = 0; t < table_count; t++) {
                attend(tables[t], in, found);
                check_bits(tables[t], "attend", found, expected, QUERIES * in->dim);
            }
        }
    }
    free(in);
}

/* Keys and values in half precision give the bits that their floats give. */
static void test_attention_of_halves(void **state)
{
    (void)state;
    const uint32_t dims[] = {16, 64, 80, 128}, tokens[] = {1, 3, 4, 30, 63, 64};
    struct attention_case *in = malloc(sizeof(*in));
    uint16_t keys[ATTENTION_TILE * DIM_MAX], values[ATTENTION_TILE * DIM_MAX];
    const uint16_t *key_of[ATTENTION_TILE], *value_of[ATTENTION_TILE];
    assert_non_null(in);
    for (size_t i = 0; i < sizeof(dims) / sizeof(*dims); i++) {
        for (size_t j = 0; j < sizeof(tokens) / sizeof(*tokens); j++) {
            struct random_stream random = {500 + 10 * i + j};
            float expected[2 * DIM_MAX], found[2 * DIM_MAX], largest[2], sums[2], found_sums[2];
            const float *queries[2] = {in->query, in->query};
            uint32_t count = tokens[j] * dims[i];
            fill(&random, in->query, dims[i], 4.0f);
            fill(&random, in->keys, count, 2.0f);
            fill(&random, in->values, count, 1.0f);
            reference->store_half(in->keys, count, keys);
            reference->store_half(in->values, count, values);
            reference->load_half(keys, count, in->keys);
            reference->load_half(values, count, in->values);
            reference->attend(queries, 2, 0.125f, in->keys, in->values, tokens[j], dims[i],
                              (struct attention_state){largest, sums, expected}, true);
            for (uint32_t k = 0; k < tokens[j]; k++) {
                key_of[k] = keys + k * dims[i];
                value_of[k] = values + k * dims[i];
            }
            for (uint32_t t = 0; t < table_count; t++) {
                tables[t]->attend_half(queries, 2, 0.125f, key_of, value_of, tokens[j], dims[i],
                                       (struct attention_state){largest, found_sums, found},
                                       true);
                check_bits(tables[t], "attend_half", found, expected, 2 * dims[i]);
                check_bits(tables[t], "attend_half", found_sums, sums, 2);
            }
        }
    }
    free(in);
}

/* Tiles that keep their own sums and are folded afterwards give what folding at once gives. */
static void test_folding_later(void **state)
{
    (void)state;
    const uint32_t dims[] = {20, 64};
    struct attention_case *in = malloc(sizeof(*in));
    assert_non_null(in);
    for (size_t i = 0; i < sizeof(dims) / sizeof(*dims); i++) {
        struct random_stream random = {i};
        float weighted[4][DIM_MAX], largest[4], sums[4];
        struct attention_state states[4];
        const float *query = in->query;
        in->dim = dims[i];
        fill(&random, in->query, in->dim, 4.0f);
        fill(&random, in->keys, TOKENS_MAX * in->dim, 2.0f);
        fill(&random, in->values, TOKENS_MAX * in->dim, 1.0f);
        for (uint32_t t = 0; t < table_count; t++) {
            for (int s = 0; s < 4; s++)
                states[s] = (struct attention_state){&largest[s], &sums[s], weighted[s]};
            for (uint32_t tile = 0; tile < 3; tile++) {
                const float *keys = in->keys + tile * ATTENTION_TILE * in->dim;
                const float *values = in->values + tile * ATTENTION_TILE * in->dim;
                tables[t]->attend(&query, 1, 0.125f, keys, values, ATTENTION_TILE, in->dim,
                                  states[tile], true);
                tables[t]->attend(&query, 1, 0.125f, keys, values, ATTENTION_TILE, in->dim,
                                  states[3], tile == 0);
            }
            tables[t]->fold(states[1], in->dim, states[0]);
            tables[t]->fold(states[2], in->dim, states[0]);
            check_bits(tables[t], "fold", weighted[0], weighted[3], in->dim);
            check_bits(tables[t], "fold", &sums[0], &sums[3], 1);
        }
    }
    free(in);
}

/* ---- with bfloats --------------------------------------------------------------------------- */

#define BFLOAT_COUNT 37 /* queries: two whole groups and some */

struct bfloat_case {
    uint32_t tokens, dim, count;
    uint32_t limit[BFLOAT_COUNT]; /* positions that a query sees */
    float queries[BFLOAT_COUNT][DIM_MAX];
    uint16_t keys[TOKENS_MAX * DIM_MAX], values[TOKENS_MAX * DIM_MAX];
};

struct bfloat_result {
    float largest[BFLOAT_COUNT], sum[BFLOAT_COUNT], weighted[BFLOAT_COUNT * DIM_MAX];
};

static struct attention_state result_state(struct bfloat_result *result)
{
    return (struct attention_state){result->largest, result->sum, result->weighted};
}

/* Halves of a normal size, some of them subnormal or zero. */
static void fill_halves(struct random_stream *random, uint16_t *to, uint32_t count)
{
    float number;
    for (uint32_t i = 0; i < count; i++) {
        fill(random, &number, 1, 2.0f);
        to[i] = half_from_float(i % 97 == 0 ? number * 0x1p-15f : i % 89 == 0 ? 0.0f : number);
    }
}

static void set_bfloat_case(struct bfloat_case *in, uint32_t seed, uint32_t tokens,
                            uint32_t dim, uint32_t count, bool same_limits)
{
    struct random_stream random = {seed};
    in->tokens = tokens;
    in->dim = dim;
    in->count = count;
    for (uint32_t i = 0; i < count; i++) {
        in->limit[i] = same_limits ? tokens : (i * 29 + seed) % tokens + 1;
        fill(&random, in->queries[i], dim, i % 3 == 0 ? 40.0f : 4.0f);
    }
    fill_halves(&random, in->keys, tokens * dim);
    fill_halves(&random, in->values, tokens * dim);
}

static uint32_t find_tile(const struct bfloat_case *in, uint32_t begin, const uint16_t **keys,
                          const uint16_t **values)
{
    uint32_t tokens = in->tokens - begin < ATTENTION_TILE ? in->tokens - begin : ATTENTION_TILE;
    for (uint32_t t = 0; t < tokens; t++) {
        keys[t] = in->keys + (begin + t) * in->dim;
        values[t] = in->values + (begin + t) * in->dim;
    }
    return tokens;
}

static void attend_bfloats(const struct bfloat_attention *with, const struct bfloat_case *in,
                           struct bfloat_result *out)
{
    static _Alignas(64) uint16_t queries[(BFLOAT_COUNT + BFLOAT_QUERIES) * DIM_MAX];
    static _Alignas(64) uint16_t tile[2 * ATTENTION_TILE * DIM_MAX];
    const float *of[BFLOAT_COUNT];
    const uint16_t *keys[ATTENTION_TILE], *values[ATTENTION_TILE];
    uint32_t seen[BFLOAT_COUNT];
    for (uint32_t i = 0; i < in->count; i++)
        of[i] = in->queries[i];
    memset(tile, 0xff,
           sizeof(tile)); /* not a number, wherever something is used that is not there */
    with->set_queries(of, in->count, 0.125f, in->dim, queries);
    for (uint32_t begin = 0; begin < in->tokens; begin += ATTENTION_TILE) {
        uint32_t tokens = find_tile(in, begin, keys, values);
        for (uint32_t i = 0; i < in->count; i++) {
            uint32_t left = in->limit[i] > begin ? in->limit[i] - begin : 0;
            seen[i] = left < tokens ? left : tokens;
        }
        with->set_tile(keys, values, tokens, in->dim, tile);
        with->attend(queries, in->count, seen, tile, in->dim, result_state(out), begin == 0);
    }
}

static void attend_bfloat_row(const struct bfloat_attention *with, const struct bfloat_case *in,
                              struct bfloat_result *out)
{
    const float *of[BFLOAT_COUNT];
    const uint16_t *keys[ATTENTION_TILE], *values[ATTENTION_TILE];
    for (uint32_t i = 0; i < in->count; i++)
        of[i] = in->queries[i];
    for (uint32_t begin = 0; begin < in->tokens; begin += ATTENTION_TILE) {
        uint32_t tokens = find_tile(in, begin, keys, values);
        with->attend_row(of, in->count, 0.125f, keys, values, tokens, in->dim,
                         result_state(out), begin == 0);
    }
}

static void check_results(const struct cpu_kernels *table, const char *what,
                          const struct bfloat_case *in, const struct bfloat_result *found,
                          const struct bfloat_result *expected)
{
    check_bits(table, what, found->largest, expected->largest, in->count);
    check_bits(table, what, found->sum, expected->sum, in->count);
    check_bits(table, what, found->weighted, expected->weighted, in->count * in->dim);
}

/* Each of the rounded numbers is within a 256th of itself: so is the result, and scores that are not large
 * change little. */
static void check_near_exact(const struct bfloat_case *in, const struct bfloat_result *result)
{
    struct attention_case *exact = malloc(sizeof(*exact));
    double expected[DIM_MAX];
    assert_non_null(exact);
    exact->dim = in->dim;
    reference->load_half(in->keys, in->tokens * in->dim, exact->keys);
    reference->load_half(in->values, in->tokens * in->dim, exact->values);
    for (uint32_t i = 0; i < in->count; i++) {
        if (i % 3 == 0)
            continue;
        exact->tokens = in->limit[i];
        memcpy(exact->query, in->queries[i], in->dim * sizeof(float));
        exact_attention(exact, 1, expected);
        for (uint32_t d = 0; d < in->dim; d++)
            check_close("attention with bfloats",
                        result->weighted[i * in->dim + d] / result->sum[i], expected[d], 0.05);
    }
    free(exact);
}

static void test_attention_with_bfloats(void **state)
{
    (void)state;
    const uint32_t dims[] = {32, 64, 96, 128}, tokens[] = {1, 7, 32, 33, 64, 100, 192};
    const uint32_t counts[] = {1, 2, 3, 4, 7, 16, 17, BFLOAT_COUNT};
    struct bfloat_case *in = calloc(1, sizeof(*in));
    struct bfloat_result *expected = calloc(2, sizeof(*expected)), *found = expected + 1;
    assert_true(in && expected);
    for (uint32_t i = 0; i < 4 * 7 * 8 * 2; i++) {
        set_bfloat_case(in, i, tokens[i / 8 % 7], dims[i / 56 % 4], counts[i % 8], i >= 224);
        for (uint32_t t = 0; t < table_count; t++) {
            const struct bfloat_attention *with = tables[t]->bfloats;
            if (!with)
                continue;
            attend_bfloats(reference_of(tables[t])->bfloats, in, expected);
            check_near_exact(in, expected);
            attend_bfloats(with, in, found);
            check_results(tables[t], "attend with bfloats", in, found, expected);
            if (i < 224)
                continue;
            attend_bfloat_row(with, in, found);
            check_results(tables[t], "attend_row", in, found, expected);
        }
    }
    free(in);
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_of_halves),
        cmocka_unit_test(test_folding_later),
        cmocka_unit_test(test_attention_with_bfloats),
    };
    tables_find();
    return cmocka_run_group_tests_name("engine.attention", tests, NULL, NULL);
}
