/* SPDX-License-Identifier: Apache-2.0 */
/* Every table of kernels that this processor can run gives the bits of the portable one (there is one
 * for quants of 8 bits and one for fine ones), and the portable ones are close to the obvious
 * computation in double precision. Attention is in test_attention.c. Run it under an emulator
 * (qemu-aarch64 -cpu max, qemu-x86_64 -cpu max) for instruction sets that are not here. */
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

/* The forms of quants: bytes, fine ones of few rows and of many. */
static void quant_put(bool fine, bool few, struct quant_group *group, uint32_t row,
                      uint32_t input, int32_t quant)
{
    if (!fine) {
        group->quants[quant_index(row, input)] = (int8_t)quant;
        return;
    }
#if GROUP_PARTS > 1
    if (!few) {
        group->bfloats[bfloat_index(row, input)] =
            bfloat_from_float((float)quant * group->scale[row]);
        return;
    }
#endif
    int8_t *at = group->quants + fine_quant_index(row, input);
    at[0] = (int8_t)(quant >> 4);
    at[PACKED_BLOCK] = (int8_t)(quant & 15);
    (void)few;
}

static double quant_value(bool fine, bool few, const struct quant_group *group, uint32_t row,
                          uint32_t input)
{
    double scale = group->scale[GROUP_COPIES * row];
    if (!fine)
        return group->quants[quant_index(row, input)] * scale;
#if GROUP_PARTS > 1
    if (!few)
        return float_from_bfloat(group->bfloats[bfloat_index(row, input)]);
#endif
    (void)few;
    const int8_t *at = group->quants + fine_quant_index(row, input);
    return (at[0] * FINE_LOWER + at[PACKED_BLOCK]) * scale;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static void test_norm(void **state)
{
    (void)state;
    struct random_stream random = {1};
    const uint32_t counts[] = {1, 7, 8, 16, 64, 100, 576};
    float x[576], weight[576], expected[576], found[576];
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
        uint32_t count = counts[c];
        fill(&random, x, count, 3.0f);
        fill(&random, weight, count, 2.0f);
        reference->norm(x, weight, 1e-5f, count, expected);
        double squares = 0;
        for (uint32_t i = 0; i < count; i++)
            squares += (double)x[i] * x[i];
        for (uint32_t i = 0; i < count; i++)
            check_close("norm", expected[i], x[i] / sqrt(squares / count + 1e-5) * weight[i],
                        2e-6);
        for (uint32_t t = 0; t < table_count; t++) {
            tables[t]->norm(x, weight, 1e-5f, count, found);
            check_bits(tables[t], "norm", found, expected, count);
            memcpy(found, x, count * sizeof(float));
            tables[t]->norm(found, weight, 1e-5f, count, found); /* in place */
            check_bits(tables[t], "norm in place", found, expected, count);
        }
    }
}

#define BLOCKS 20

static void check_quants(const struct cpu_kernels *plain, bool few,
                         const struct quant_group *groups, uint32_t row, const float *x)
{
    for (uint32_t i = 0; i < BLOCKS * PACKED_BLOCK; i++) {
        const struct quant_group *group = &groups[i / PACKED_BLOCK];
        double scale = group->scale[GROUP_COPIES * row];
        double value = quant_value(plain->fine, few, group, row, i % PACKED_BLOCK);
        double eight_bits = plain->fine ? fabsf(x[i]) * 0x1p-8 + FINE_LEAST : 1e-30;
        check_close("quantise", value, x[i], scale * 0.5001 + eight_bits);
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        double sums[2] = {0}, scale = groups[b].scale[GROUP_COPIES * row];
        for (uint32_t i = 0; i < PACKED_BLOCK; i++)
            sums[i / 16] += quant_value(plain->fine, few, &groups[b], row, i);
        for (int half = 0; half < 2 && few; half++)
            check_close("sum", groups[b].quant_sums[half][row] * scale, sums[half],
                        fabs(sums[half]) * 1e-6);
        check_close("scaled sum", groups[b].scaled_sum[GROUP_COPIES * row], sums[0] + sums[1],
                    fabs(sums[0] + sums[1]) * 1e-6 + 1e-30);
    }
}

static void test_quantise(void **state)
{
    (void)state;
    struct random_stream random = {2};
    float x[BLOCKS * PACKED_BLOCK];
    struct quant_group expected[BLOCKS], found[BLOCKS];
    fill(&random, x, BLOCKS * PACKED_BLOCK, 5.0f);
    memset(x, 0, PACKED_BLOCK * sizeof(float)); /* a block of zeros */
    for (int i = 0; i < PACKED_BLOCK; i++) {
        x[PACKED_BLOCK + i] = i == 7 ? -1000.0f : x[PACKED_BLOCK + i]; /* an outlier */
        x[2 * PACKED_BLOCK + i] *= 1e-35f;                             /* nearly nothing */
        x[3 * PACKED_BLOCK + i] = (float)(i - 16) * 0.5f;              /* ties */
        x[4 * PACKED_BLOCK + i] = (float)(i - 16) * 0.5f;              /* of fine ones */
    }
    x[3 * PACKED_BLOCK] = QUANT_MOST;
    x[4 * PACKED_BLOCK] = FINE_QUANT_MOST;
    for (uint32_t t = 0; t < table_count; t++) {
        const struct cpu_kernels *plain = reference_of(tables[t]);
        for (uint32_t i = 0; i < 2 * GROUP_ROWS; i++) {
            uint32_t row = i / 2;
            bool few = i % 2;
            memset(expected, 0, sizeof(expected));
            memset(found, 0, sizeof(found));
            plain->quantise(x, BLOCKS, expected, row, few);
            check_quants(plain, few, expected, row, x);
            tables[t]->quantise(x, BLOCKS, found, row, few);
            assert_memory_equal(found, expected, sizeof(found));
        }
    }
}

/* Of fine ones there are only bfloats. */
static void check_same_groups(bool fine, const struct quant_group *found,
                              const struct quant_group *expected, uint32_t blocks)
{
    for (uint32_t b = 0; b < blocks; b++) {
        if (!fine)
            assert_memory_equal(&found[b], &expected[b], sizeof(found[b]));
#if GROUP_PARTS > 1
        assert_memory_equal(found[b].scale, expected[b].scale, sizeof(found[b].scale));
        assert_memory_equal(found[b].scaled_sum, expected[b].scaled_sum,
                            sizeof(found[b].scaled_sum));
        assert_memory_equal(found[b].bfloats, expected[b].bfloats, sizeof(found[b].bfloats));
#endif
    }
}

/* All rows of a group at once, and with the halves of the blocks apart: the same as each alone. */
static void test_quantise_rows(void **state)
{
    (void)state;
    struct random_stream random = {12};
    static float x[GROUP_ROWS][BLOCKS * PACKED_BLOCK], halves[2][GROUP_ROWS][PACKED_BLOCK / 2];
    struct quant_group expected[BLOCKS], found[BLOCKS];
    fill(&random, x[0], GROUP_ROWS * BLOCKS * PACKED_BLOCK, 5.0f);
    memset(x[1], 0, sizeof(x[1]));
    for (uint32_t i = 0; i < PACKED_BLOCK; i++) {
        x[2][i] = i == 20 ? -1000.0f : x[2][i];
        x[3][i] *= 1e-35f;
    }
    for (uint32_t r = 0; r < GROUP_ROWS; r++) {
        memcpy(halves[0][r], x[r], sizeof(halves[0][r]));
        memcpy(halves[1][r], x[r] + PACKED_BLOCK / 2, sizeof(halves[1][r]));
    }
    for (uint32_t t = 0; t < table_count; t++) {
        if (!tables[t]->quantise_rows)
            continue;
        memset(expected, 0, sizeof(expected));
        for (uint32_t r = 0; r < GROUP_ROWS; r++)
            reference_of(tables[t])->quantise(x[r], BLOCKS, expected, r, false);
        memset(found, 0, sizeof(found));
        tables[t]->quantise_rows(x[0], x[0] + PACKED_BLOCK / 2, BLOCKS * PACKED_BLOCK, BLOCKS,
                                 found);
        check_same_groups(tables[t]->fine, found, expected, BLOCKS);
        memset(found, 0, sizeof(found));
        tables[t]->quantise_rows(halves[0][0], halves[1][0], PACKED_BLOCK / 2, 1, found);
        check_same_groups(tables[t]->fine, found, expected, 1);
    }
}

static void test_silu_multiply(void **state)
{
    (void)state;
    struct random_stream random = {3};
    float gate[1000], up[1000], expected[1000], found[1000];
    for (int i = 0; i < 1000; i++)
        gate[i] = (float)(i - 500) * 0.25f;
    fill(&random, up, 1000, 2.0f);
    for (uint32_t count = 1; count <= 1000; count += count < 20 ? 1 : 245) {
        memcpy(expected, gate, sizeof(gate));
        reference->silu_multiply(expected, up, count);
        for (uint32_t i = 0; i < count; i++) {
            double exact = gate[i] / (1 + exp(-(double)gate[i])) * up[i];
            check_close("silu", expected[i], exact, fabs(exact) * 4e-7 + 2e-36);
        }
        for (uint32_t t = 0; t < table_count; t++) {
            memcpy(found, gate, sizeof(gate));
            tables[t]->silu_multiply(found, up, count);
            check_bits(tables[t], "silu", found, expected, 1000);
        }
    }
}

static void test_rotation(void **state)
{
    (void)state;
    struct random_stream random = {4};
    const uint32_t counts[] = {2, 16, 64, 100, 128};
    float x[128], cosine[64], sine[64], expected[128], found[128];
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
        uint32_t count = counts[c];
        fill(&random, x, count, 3.0f);
        for (uint32_t i = 0; i < count / 2; i++) {
            cosine[i] = cosf((float)i * 0.7f);
            sine[i] = sinf((float)i * 0.7f);
        }
        for (int pairs = 0; pairs < 2; pairs++) {
            memcpy(expected, x, sizeof(x));
            (pairs ? reference->rotate_pairs : reference->rotate_halves)(expected, cosine, sine,
                                                                         count);
            for (uint32_t i = 0; i < count / 2; i++) {
                uint32_t a = pairs ? 2 * i : i, b = pairs ? 2 * i + 1 : i + count / 2;
                check_close("rotation", expected[a],
                            (double)x[a] * cosine[i] - (double)x[b] * sine[i], 1e-6);
                check_close("rotation", expected[b],
                            (double)x[b] * cosine[i] + (double)x[a] * sine[i], 1e-6);
            }
            for (uint32_t t = 0; t < table_count; t++) {
                memcpy(found, x, sizeof(x));
                (pairs ? tables[t]->rotate_pairs : tables[t]->rotate_halves)(found, cosine,
                                                                             sine, count);
                check_bits(tables[t], "rotation", found, expected, count);
            }
        }
    }
}

/* ---- 16-bit numbers ------------------------------------------------------------------------- */

static void test_halves_as_floats(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits += 8) {
        uint16_t halves[8];
        float found[8];
        for (uint32_t i = 0; i < 8; i++)
            halves[i] = (uint16_t)(bits + i);
        if ((bits & 0x7c00) == 0x7c00)
            continue; /* not numbers */
        for (uint32_t t = 0; t < table_count; t++) {
            tables[t]->load_half(halves, 8, found);
            for (int i = 0; i < 8; i++) {
                double exponent =
                    (halves[i] >> 10 & 31) ? (halves[i] >> 10 & 31) - 25.0 : -24.0;
                double fraction = (halves[i] & 0x3ff) + ((halves[i] >> 10 & 31) ? 1024.0 : 0.0);
                double value = ldexp(fraction, (int)exponent);
                assert_true(found[i] == (float)(halves[i] & 0x8000 ? -value : value));
            }
        }
    }
}

static void test_floats_as_halves(void **state)
{
    (void)state;
    struct random_stream random = {5};
    float x[8], back[3];
    uint16_t expected[8], found[8];
    for (int turn = 0; turn < 20000; turn++) {
        float scale = ldexpf(1.0f, (int)random_stream_below(&random, 40) - 25);
        fill(&random, x, 8, scale);
        if (turn % 4 == 0) /* exactly between two halves */
            x[0] = float_from_bits((float_to_bits(x[0]) & 0xffffe000) | 0x1000);
        reference->store_half(x, 8, expected);
        for (int i = 0; i < 8; i++) {
            uint16_t near[3] = {expected[i], (uint16_t)(expected[i] + 1),
                                (uint16_t)(expected[i] - 1)};
            if ((expected[i] & 0x7fff) == 0 || (expected[i] & 0x7fff) >= 0x7bff)
                continue;
            reference->load_half(near, 3, back);
            assert_true(fabsf(back[0] - x[i]) <= fabsf(back[1] - x[i]));
            assert_true(fabsf(back[0] - x[i]) <= fabsf(back[2] - x[i]));
        }
        for (uint32_t t = 0; t < table_count; t++) {
            tables[t]->store_half(x, 8, found);
            assert_memory_equal(found, expected, sizeof(found));
            tables[t]->store_half(x, 3, found); /* a part of a vector */
            assert_memory_equal(found, expected, 3 * sizeof(*found));
        }
    }
}

/* ---- matrices ------------------------------------------------------------------------------- */

#define ROWS 70 /* more than any kernel takes at once */

struct product {
    struct weight_arena arena;
    struct packed_weight weight;
    float x[ROWS][BLOCKS * PACKED_BLOCK];
    const struct cpu_kernels *plain; /* how the groups were made */
    /* As for many rows and for few. */
    struct quant_group groups[2][(ROWS + GROUP_ROWS - 1) / GROUP_ROWS][BLOCKS];
    struct ready_block ready[BLOCKS];
};

static struct product *product_make(enum tensor_type type, const struct cpu_kernels *plain)
{
    struct random_stream random = {100 + type};
    char text[256];
    uint32_t columns = tensor_type_block_values(type) == 256 ? 512 : BLOCKS * PACKED_BLOCK;
    struct weight source =
        random_weight(&random, "test", type, PANELS_TOGETHER * PANEL_OUTPUTS, columns, 1.0f);
    struct product *product = aligned_alloc(64, (sizeof(*product) + 63) / 64 * 64);
    assert_non_null(product);
    memset(product, 0, sizeof(*product));
    product->plain = plain;
    assert_int_equal(
        packed_weight_open(&product->arena, &source, &product->weight, ERROR_BUFFER(text)), 0);
    packed_weight_fill(&product->weight, &source, 0, PANELS_TOGETHER);
    random_weight_free(&source);
    for (uint32_t r = 0; r < ROWS; r++) {
        fill(&random, product->x[r], columns, 4.0f);
        for (int few = 0; few < 2; few++)
            plain->quantise(product->x[r], columns / PACKED_BLOCK,
                            product->groups[few][r / GROUP_ROWS], r % GROUP_ROWS, few);
    }
    return product;
}

static void product_free(struct product *product)
{
    weight_arena_close(&product->arena);
    free(product);
}

/* Output `output` of row `row` over `inputs` inputs, and how far a sum of floats may be from it. */
static double exact_sum(const struct product *product, uint32_t row, uint32_t output,
                        uint32_t inputs, double *tolerance)
{
    float weights[BLOCKS * PACKED_BLOCK];
    double sum = 0;
    *tolerance = 0;
    packed_weight_row(&product->weight, output, weights);
    for (uint32_t i = 0; i < inputs; i++) {
        double value = product->x[row][i];
        if (packed_is_quantised(product->weight.format))
            value = quant_value(product->plain->fine, false,
                                &product->groups[0][row / GROUP_ROWS][i / PACKED_BLOCK],
                                row % GROUP_ROWS, i % PACKED_BLOCK);
        sum += weights[i] * value;
        *tolerance += fabs(weights[i] * value) * 2e-6;
    }
    return sum;
}

static void multiply(const struct cpu_kernels *table, struct product *product, uint32_t blocks,
                     uint32_t rows, panel_sums *sums, bool add)
{
    enum packed_format format = product->weight.format;
    memset(product->ready, 0, sizeof(product->ready));
    table->prepare(format, product->weight.panels_data, blocks, product->ready);
    table->multiply(format, product->ready, blocks, product->groups[0][0], BLOCKS, rows, sums,
                    add);
}

/* Several panels at once: each as alone. */
static void check_panels(const struct cpu_kernels *table, const struct product *product,
                         uint32_t blocks, uint32_t rows, const panel_sums *start, bool add)
{
    const struct packed_weight *weight = &product->weight;
    panel_sums found[PANELS_TOGETHER][ROWS], expected[ROWS], *sums[PANELS_TOGETHER];
    const uint8_t *weights[PANELS_TOGETHER];
    for (uint32_t p = 0; p < PANELS_TOGETHER; p++) {
        memcpy(found[p], start, sizeof(found[p]));
        sums[p] = found[p];
        weights[p] = packed_weight_panel(weight, p);
    }
    table->multiply_panels(weight->format, weights, blocks, product->groups[1][0], rows, sums,
                           add);
    for (uint32_t p = 0; p < PANELS_TOGETHER; p++) {
        memcpy(expected, start, sizeof(expected));
        product->plain->multiply_direct(weight->format, weights[p], blocks,
                                        product->groups[1][0], BLOCKS, rows, expected, add);
        check_bits(table, "multiply_panels", found[p][0], expected[0], ROWS * PANEL_OUTPUTS);
    }
}

static void check_product(struct product *product, uint32_t blocks, uint32_t rows, bool add)
{
    panel_sums start[ROWS], expected[ROWS], found[ROWS];
    struct random_stream random = {blocks * 100 + rows};
    fill(&random, start[0], ROWS * PANEL_OUTPUTS, 10.0f);
    memcpy(expected, start, sizeof(start));
    multiply(product->plain, product, blocks, rows, expected, add);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t n = 0; n < PANEL_OUTPUTS; n++) {
            double tolerance;
            double exact = exact_sum(product, r, n, blocks * PACKED_BLOCK, &tolerance);
            check_close("product", expected[r][n], exact + (add ? start[r][n] : 0.0f),
                        tolerance + 2e-5);
        }
    }
    for (uint32_t t = 0; t < table_count; t++) {
        if (tables[t]->fine != product->plain->fine)
            continue;
        memcpy(found, start, sizeof(start));
        multiply(tables[t], product, blocks, rows, found, add);
        check_bits(tables[t], "multiply", found[0], expected[0], ROWS * PANEL_OUTPUTS);
        if (tables[t]->multiply_panels && rows <= tables[t]->panels_rows)
            check_panels(tables[t], product, blocks, rows, start, add);
        if (rows > tables[t]->direct_rows)
            continue;
        memcpy(found, start, sizeof(start));
        tables[t]->multiply_direct(product->weight.format, product->weight.panels_data, blocks,
                                   product->groups[1][0], BLOCKS, rows, found, add);
        check_bits(tables[t], "multiply_direct", found[0], expected[0], ROWS * PANEL_OUTPUTS);
    }
}

static void check_types(const struct cpu_kernels *plain)
{
    const enum tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,
                                      TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        struct product *product = product_make(types[i], plain);
        for (uint32_t rows = 1; rows <= ROWS; rows += rows < 18 ? 1 : 13)
            for (uint32_t blocks = 0; blocks <= product->weight.panel_blocks; blocks += 3)
                check_product(product, blocks, rows, (rows + blocks) % 2);
        product_free(product);
    }
}

static void test_quantised_products(void **state)
{
    (void)state;
    check_types(reference);
#if GROUP_PARTS > 1
    check_types(&cpu_kernels_portable_fine);
#endif
}

/* The largest quants of both signs: nothing saturates. */
static void check_extremes(const struct cpu_kernels *plain)
{
    const int32_t largest = plain->fine ? FINE_QUANT_MOST : QUANT_MOST;
    const enum tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_Q6_K};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        for (int pattern = 0; pattern < 4; pattern++) {
            struct product *product = product_make(types[i], plain);
            struct packed_weight *weight = &product->weight;
            uint32_t quant_bytes = types[i] == TENSOR_Q8_0   ? 512
                                   : types[i] == TENSOR_Q6_K ? 384
                                                             : 256;
            int least = types[i] == TENSOR_Q8_0 ? 0x80 : 0;
            int most = types[i] == TENSOR_Q8_0 ? 0x7f : 0xff;
            for (uint32_t b = 0; b < weight->panel_blocks; b++)
                memset(weight->panels_data + (b + 1) * weight->block_bytes - quant_bytes,
                       pattern & 1 ? least : most, quant_bytes);
            for (uint32_t r = 0; r < 2 * ROWS; r++)
                for (uint32_t b = 0; b < weight->panel_blocks; b++) {
                    bool few = r >= ROWS;
                    struct quant_group *group = &product->groups[few][r % ROWS / GROUP_ROWS][b];
                    int32_t quant = pattern & 2 ? -largest : largest;
                    uint32_t row = r % ROWS % GROUP_ROWS;
                    for (uint32_t j = 0; j < PACKED_BLOCK; j++)
                        quant_put(plain->fine, few, group, row, j, quant);
                    for (uint32_t j = GROUP_COPIES * row; j < GROUP_COPIES * (row + 1); j++)
                        group->scaled_sum[j] = group->scale[j] * (float)(quant * PACKED_BLOCK);
                    group->quant_sums[0][row] = (int16_t)(quant * 16);
                    group->quant_sums[1][row] = (int16_t)(quant * 16);
                }
            check_product(product, weight->panel_blocks, ROWS, false);
            check_product(product, weight->panel_blocks, 1, false);
            product_free(product);
        }
    }
}

static void test_extreme_quants(void **state)
{
    (void)state;
    check_extremes(reference);
#if GROUP_PARTS > 1
    check_extremes(&cpu_kernels_portable_fine);
#endif
}

static void test_float_products(void **state)
{
    (void)state;
    const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    const uint32_t counts[] = {0, 1, 31, 64, 640};
    panel_sums expected[ROWS], found[ROWS];
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        struct product *product = product_make(types[i], reference);
        const struct packed_weight *weight = &product->weight;
        for (uint32_t rows = 1; rows <= ROWS; rows += 2) {
            for (uint32_t c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
                memset(expected, 0, sizeof(expected));
                reference->multiply_float(weight->format, weight->panels_data, counts[c],
                                          product->x[0], BLOCKS * PACKED_BLOCK, rows, expected,
                                          c & 1);
                for (uint32_t r = 0; r < rows; r++) {
                    double tolerance;
                    double exact = exact_sum(product, r, c, counts[c], &tolerance);
                    check_close("float product", expected[r][c], exact, tolerance * 2.5 + 1e-9);
                }
                for (uint32_t t = 0; t < table_count; t++) {
                    memset(found, 0, sizeof(found));
                    tables[t]->multiply_float(weight->format, weight->panels_data, counts[c],
                                              product->x[0], BLOCKS * PACKED_BLOCK, rows, found,
                                              c & 1);
                    check_bits(tables[t], "multiply_float", found[0], expected[0],
                               ROWS * PANEL_OUTPUTS);
                }
            }
        }
        product_free(product);
    }
}

/* ---- choosing ------------------------------------------------------------------------------- */

static void test_kernels_by_name(void **state)
{
    (void)state;
    const struct cpu_kernels *found;
    char text[256];
    assert_int_equal(cpu_kernels_find("portable", &found, ERROR_BUFFER(text)), BATON_OK);
    assert_ptr_equal(found, reference);
    assert_int_equal(cpu_kernels_find(NULL, &found, ERROR_BUFFER(text)), BATON_OK);
    assert_ptr_equal(found, tables[0]);
    assert_int_equal(cpu_kernels_find("abacus", &found, ERROR_BUFFER(text)), BATON_ENOTFOUND);
    assert_non_null(strstr(text, "abacus"));
    assert_non_null(strstr(text, "portable"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_quantise),
        cmocka_unit_test(test_quantise_rows),
        cmocka_unit_test(test_silu_multiply),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_halves_as_floats),
        cmocka_unit_test(test_floats_as_halves),
        cmocka_unit_test(test_quantised_products),
        cmocka_unit_test(test_extreme_quants),
        cmocka_unit_test(test_float_products),
        cmocka_unit_test(test_kernels_by_name),
    };
    tables_find();
    return cmocka_run_group_tests_name("engine.kernels", tests, NULL, NULL);
}
