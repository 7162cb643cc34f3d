/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor type means here what it means elsewhere: random blocks are read bit for bit as
 * the package `gguf` reads them (make_dequant_golden.py). */
#include "model/dequant.h"

#include "dequant_golden.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static size_t row_bytes(size_t row)
{
    uint64_t bytes;
    assert_int_equal(tensor_row_bytes(golden_rows[row].type, golden_rows[row].count, &bytes),
                     BATON_OK);
    return (size_t)bytes;
}

/* The row at an address that is `shift` bytes past a 16-byte boundary, with nothing behind it. */
static void check_row(size_t row, size_t shift)
{
    size_t bytes = row_bytes(row), count = golden_rows[row].count;
    uint8_t *data = malloc(shift + bytes);
    float *out = malloc(count * sizeof(*out));
    assert_non_null(data);
    assert_non_null(out);
    memcpy(data + shift, golden_rows[row].bytes, bytes);
    dequant_row(golden_rows[row].type, data + shift, count, out);
    for (size_t i = 0; i < count; i++)
        if (float_bits(out[i]) != golden_rows[row].floats[i])
            fail_msg("%s: value %zu is %08x, should be %08x",
                     tensor_type_name(golden_rows[row].type), i, float_bits(out[i]),
                     golden_rows[row].floats[i]);
    free(out);
    free(data);
}

static void test_every_type(void **state)
{
    (void)state;
    bool seen[TENSOR_TYPE_COUNT] = {false};
    for (size_t i = 0; i < COUNT(golden_rows); i++) {
        check_row(i, 0);
        seen[golden_rows[i].type] = true;
    }
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++)
        if (!seen[type])
            fail_msg("there is no golden row of %s", tensor_type_name(type));
}

static void test_odd_addresses(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(golden_rows); i++)
        check_row(i, 1);
}

static void test_halves(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(golden_halves); i++)
        assert_int_equal(float_bits(half_to_float(golden_halves[i].half)),
                         golden_halves[i].single);
}

/* All 65,536 halves, against the definition of the format. */
static void test_halves_by_definition(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        uint32_t exponent = bits >> 10 & 31;
        if (exponent == 31)
            continue;
        double fraction = (double)(bits & 1023) / 1024, power = 1;
        for (uint32_t i = exponent ? exponent : 1; i < 15; i++)
            power /= 2;
        for (uint32_t i = 15; i < exponent; i++)
            power *= 2;
        double value = (exponent ? 1 + fraction : fraction) * power;
        float expected = (float)(bits & 0x8000 ? -value : value);
        if (float_bits(half_to_float((uint16_t)bits)) != float_bits(expected))
            fail_msg("half %04x is %g, should be %g", bits,
                     (double)half_to_float((uint16_t)bits), (double)expected);
    }
}

static void test_weight_rows(void **state)
{
    (void)state;
    float out[3 * 32], one[32];
    size_t row = 0;
    while (golden_rows[row].type != TENSOR_Q8_0)
        row++;
    assert_int_equal(golden_rows[row].count, COUNT(out));
    struct weight weight = {.data = golden_rows[row].bytes,
                            .type = TENSOR_Q8_0,
                            .rows = 3,
                            .columns = 32,
                            .row_bytes = 34};
    dequant_row(TENSOR_Q8_0, weight.data, COUNT(out), out);
    for (uint32_t i = 0; i < weight.rows; i++) {
        dequant_weight_row(&weight, i, one);
        assert_memory_equal(one, out + 32 * i, sizeof(one));
    }
}

static void test_row_bytes(void **state)
{
    (void)state;
    uint64_t bytes = 7;
    assert_int_equal(tensor_row_bytes(TENSOR_Q4_K, 512, &bytes), BATON_OK);
    assert_int_equal(bytes, 288);
    assert_int_equal(tensor_row_bytes(TENSOR_Q4_K, 300, &bytes), BATON_EINVAL);
    assert_int_equal(tensor_row_bytes(TENSOR_F32, UINT64_MAX / 2, &bytes), BATON_EINVAL);
    assert_int_equal(bytes, 288);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),  cmocka_unit_test(test_odd_addresses),
        cmocka_unit_test(test_halves),      cmocka_unit_test(test_halves_by_definition),
        cmocka_unit_test(test_weight_rows), cmocka_unit_test(test_row_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
