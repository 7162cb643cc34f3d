/* SPDX-License-Identifier: Apache-2.0 */
/* What the writer writes is read back by jansson, which was written by somebody else. */
#include "server/json_writer.h"

#include "kv/random_source.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Parses what was written, which must be one whole value, and empties the writer. */
static json_t *read_back(struct json_writer *writer)
{
    json_error_t where;
    assert_false(writer->failed);
    json_t *value = json_loadb(writer->out.bytes, writer->out.length,
                               JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    if (!value)
        fail_msg("%s at %d: %.*s", where.text, where.position, (int)writer->out.length,
                 writer->out.bytes);
    json_writer_reset(writer);
    return value;
}

static void test_commas_come_where_they_belong(void **state)
{
    static const char expected[] =
        "{\"a\":1,\"b\":[],\"c\":[{},[true,null]],\"d\":{\"e\":\"f\"},\"g\":0.5}";
    struct json_writer out = {0};
    (void)state;
    json_put_open(&out, '{');
    json_put_key_int(&out, "a", 1);
    json_put_key(&out, "b");
    json_put_open(&out, '[');
    json_put_close(&out, ']');
    json_put_key(&out, "c");
    json_put_open(&out, '[');
    json_put_open(&out, '{');
    json_put_close(&out, '}');
    json_put_open(&out, '[');
    json_put_bool(&out, true);
    json_put_null(&out);
    json_put_close(&out, ']');
    json_put_close(&out, ']');
    json_put_key(&out, "d");
    json_put_open(&out, '{');
    json_put_key_text(&out, "e", "f");
    json_put_close(&out, '}');
    json_put_key_real(&out, "g", 0.5);
    json_put_close(&out, '}');
    assert_int_equal(out.out.length, sizeof(expected) - 1);
    assert_memory_equal(out.out.bytes, expected, sizeof(expected) - 1);
    json_decref(read_back(&out));
    json_writer_free(&out);
}

static void test_numbers_survive(void **state)
{
    static const int64_t integers[] = {0, -1, 1, INT64_MAX, INT64_MIN, 8821514230958995926};
    static const double reals[] = {0, -0.25, 1e-30, 1e300, -17.125, 3};
    struct json_writer out = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
        json_put_int(&out, integers[i]);
        json_t *value = read_back(&out);
        assert_true(json_is_integer(value) && json_integer_value(value) == integers[i]);
        json_decref(value);
    }
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
        json_put_real(&out, reals[i]);
        json_t *value = read_back(&out);
        assert_true(json_is_number(value));
        assert_true(fabs(json_number_value(value) - reals[i]) <= 1e-8 * fabs(reals[i]));
        json_decref(value);
    }
    json_writer_free(&out);
}

static void test_every_float_comes_back_exactly(void **state)
{
    struct json_writer out = {0};
    struct random_source random = {42};
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)random_next(&random);
        float number;
        memcpy(&number, &bits, sizeof(number));
        json_put_real(&out, number);
        json_t *value = read_back(&out);
        if (isfinite(number))
            assert_true((float)json_number_value(value) == number);
        else
            assert_true(json_is_null(value));
        json_decref(value);
    }
    json_writer_free(&out);
}

/* The text as a client must get it: broken bytes replaced by somebody else's code. */
static void expect_text(struct json_writer *out, const char *bytes, size_t length)
{
    struct byte_buffer repaired = {0};
    assert_int_equal(utf8_repair(bytes, length, NULL, 0, &repaired), 0);
    json_put_view(out, (struct text_view){bytes, length});
    json_t *value = read_back(out);
    assert_true(json_is_string(value));
    assert_int_equal(json_string_length(value), repaired.length);
    if (repaired.length)
        assert_memory_equal(json_string_value(value), repaired.bytes, repaired.length);
    json_decref(value);
    byte_buffer_free(&repaired);
}

static void test_every_byte_and_pair(void **state)
{
    struct json_writer out = {0};
    (void)state;
    expect_text(&out, "", 0);
    for (int a = 0; a < 256; a++) {
        char one = (char)a;
        expect_text(&out, &one, 1);
        for (int b = 0; b < 256; b++) {
            char two[2] = {(char)a, (char)b};
            expect_text(&out, two, 2);
        }
    }
    json_writer_free(&out);
}

static void test_random_bytes(void **state)
{
    static const char *const pieces[] = {
        "\xf0\x9f\x98\x80", "\xe4\xbd\xa0", "\xc3\xa9", "\"", "\\", "\n", "\x7f", "abc"};
    struct json_writer out = {0};
    struct random_source random = {random_seed()};
    (void)state;
    print_message("seed %llu\n", (unsigned long long)random.state);
    for (int i = 0; i < 20000; i++) {
        char bytes[64];
        size_t length = 0;
        uint32_t wanted = random_below(&random, 40);
        while (length < wanted) {
            const char *piece = pieces[random_below(&random, 8)];
            if (random_below(&random, 3) == 0)
                bytes[length++] = (char)random_next(&random);
            else /* perhaps not whole */
                for (uint32_t k = random_below(&random, 5); k > 0 && *piece; k--)
                    bytes[length++] = *piece++;
        }
        expect_text(&out, bytes, length);
    }
    json_writer_free(&out);
}

static void test_absent_text_is_null(void **state)
{
    struct json_writer out = {0};
    (void)state;
    json_put_text(&out, NULL);
    json_t *value = read_back(&out);
    assert_true(json_is_null(value));
    json_decref(value);
    json_writer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commas_come_where_they_belong),
        cmocka_unit_test(test_numbers_survive),
        cmocka_unit_test(test_every_float_comes_back_exactly),
        cmocka_unit_test(test_every_byte_and_pair),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_absent_text_is_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
