/* SPDX-License-Identifier: Apache-2.0 */
/* A packed matrix has the numbers of the file, bit for bit, in every type. */
#include "engine/cpu/packed_weight.h"
#include "model/dequant.h"
#include "random_weights.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void check_type(enum tensor_type type, uint32_t rows, uint32_t columns)
{
    struct random_stream random = {type * 1000u + rows};
    char text[256];
    struct weight source = random_weight(&random, "test", type, rows, columns, 1.0f);
    struct packed_weight packed;
    struct weight_arena arena = {0};
    assert_int_equal(packed_weight_open(&arena, &source, &packed, ERROR_BUFFER(text)),
                     BATON_OK);
    packed_weight_fill(&packed, &source, 0, packed.panels / 2); /* in two parts */
    packed_weight_fill(&packed, &source, packed.panels / 2, packed.panels);
    float *expected = malloc(columns * sizeof(float)), *found = malloc(columns * sizeof(float));
    assert_true(expected && found);
    for (uint32_t r = 0; r < rows; r++) {
        dequant_weight_row(&source, r, expected);
        packed_weight_row(&packed, r, found);
        for (uint32_t i = 0; i < columns; i++)
            if (expected[i] != found[i])
                fail_msg("%s row %u column %u: %.9g packed, %.9g in the file",
                         tensor_type_name(type), r, i, (double)found[i], (double)expected[i]);
    }
    free(found);
    free(expected);
    weight_arena_close(&arena);
    random_weight_free(&source);
}

static void test_every_type_keeps_its_numbers(void **state)
{
    (void)state;
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        check_type((enum tensor_type)type, 37, 512); /* the last panel is not full */
        check_type((enum tensor_type)type, 64, 256);
        check_type((enum tensor_type)type, 1, 256);
    }
    check_type(TENSOR_F32, 5, 7);
    check_type(TENSOR_BF16, 17, 33);
}

static void test_outputs_beyond_the_last_are_zero(void **state)
{
    (void)state;
    struct random_stream random = {1};
    char text[256];
    struct weight source = random_weight(&random, "test", TENSOR_Q4_1, 17, 64, 1.0f);
    struct packed_weight packed;
    struct weight_arena arena = {0};
    float row[64];
    assert_int_equal(packed_weight_open(&arena, &source, &packed, ERROR_BUFFER(text)),
                     BATON_OK);
    memset(packed.panels_data, 0xff, packed.panels * packed.panel_bytes);
    packed_weight_fill(&packed, &source, 0, packed.panels);
    for (uint32_t output = 17; output < 32; output++) {
        packed_weight_row(&packed, output, row);
        for (int i = 0; i < 64; i++)
            assert_true(row[i] == 0.0f);
    }
    weight_arena_close(&arena);
    random_weight_free(&source);
}

static void test_too_large_is_refused(void **state)
{
    (void)state;
    char text[256];
    const struct weight source = {
        .name = "huge", .type = TENSOR_F32, .rows = UINT32_MAX, .columns = UINT32_MAX};
    struct packed_weight packed;
    struct weight_arena arena = {0};
    assert_true(packed_weight_open(&arena, &source, &packed, ERROR_BUFFER(text)) < 0);
    assert_non_null(strstr(text, "huge"));
}

static void test_arena_gives_separate_memory(void **state)
{
    (void)state;
    struct weight_arena arena = {0};
    const size_t sizes[] = {1, 64, 1000, 40u << 20, 3u << 20, 31u << 20, 5};
    unsigned char *given[7];
    for (int i = 0; i < 7; i++) {
        given[i] = weight_arena_alloc(&arena, sizes[i]);
        assert_non_null(given[i]);
        assert_int_equal((uintptr_t)given[i] % 64, 0);
        given[i][0] = (unsigned char)(i + 1);
        given[i][sizes[i] - 1] = (unsigned char)(i + 1);
    }
    for (int i = 0; i < 7; i++)
        assert_true(given[i][0] == i + 1 && given[i][sizes[i] - 1] == i + 1);
    assert_null(weight_arena_alloc(&arena, SIZE_MAX - 10));
    weight_arena_close(&arena);
    weight_arena_close(&arena); /* empty */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_keeps_its_numbers),
        cmocka_unit_test(test_outputs_beyond_the_last_are_zero),
        cmocka_unit_test(test_too_large_is_refused),
        cmocka_unit_test(test_arena_gives_separate_memory),
    };
    return cmocka_run_group_tests_name("engine.packed_weight", tests, NULL, NULL);
}
