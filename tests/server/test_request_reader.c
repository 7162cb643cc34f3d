/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: types, nulls, limits, and the sentences that clients are told. */
#include "server/request_reader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct request_error error;
    struct request_reader reader;
    json_t *body;
};

static void fixture_open(struct fixture *fixture, const char *text)
{
    memset(fixture, 0, sizeof(*fixture));
    fixture->body = request_parse(text, strlen(text), &fixture->error);
    fixture->reader = (struct request_reader){fixture->body, &fixture->error};
}

/* The error, or that there is none (NULL). */
static void fixture_close(struct fixture *fixture, const char *parameter, const char *sentence)
{
    assert_int_equal(fixture->error.status, sentence ? 400 : 0);
    if (sentence) {
        assert_string_equal(fixture->error.text, sentence);
        assert_string_equal(fixture->error.parameter, parameter);
    }
    json_decref(fixture->body);
}

static void test_what_is_no_json_object(void **state)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "the request has no body; a JSON object is expected"},
        {"[1]", "the body is an array; a JSON object is expected"},
        {"{\"a\": }", "the body is not JSON: unexpected token near '}' (line 1, column 7)"},
        {"{\"a\":1} x",
         "the body is not JSON: end of file expected near 'x' (line 1, column 9)"},
        {"{\"a\":\"\xff\"}", NULL}, /* any sentence will do */
        {"{\"a\":99999999999999999999}", NULL},
        {"{\"a\":1e999}", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct request_error error = {0};
        assert_null(request_parse(cases[i].text, strlen(cases[i].text), &error));
        assert_int_equal(error.status, 400);
        assert_true(error.text[0]);
        if (cases[i].sentence)
            assert_string_equal(error.text, cases[i].sentence);
    }
}

static void test_deep_bodies_are_refused(void **state)
{
    enum { DEPTH = 200000 };
    struct request_error error = {0};
    char *text = malloc(DEPTH + 16);
    (void)state;
    assert_non_null(text);
    strcpy(text, "{\"a\":");
    memset(text + 5, '[', DEPTH);
    assert_null(request_parse(text, DEPTH + 5, &error));
    assert_int_equal(error.status, 400);
    assert_non_null(strstr(error.text, "depth"));
    free(text);
}

static void test_absent_and_null_leave_the_value(void **state)
{
    struct fixture fixture;
    bool flag = true;
    uint32_t number = 7;
    int64_t large = -8;
    float real = 0.5f;
    (void)state;
    fixture_open(&fixture,
                 "{\"b\":null,\"u\":null,\"i\":null,\"f\":null,\"s\":null,\"o\":null}");
    request_bool(&fixture.reader, "b", &flag);
    request_u32(&fixture.reader, "u", 1, 2, &number);
    request_i64(&fixture.reader, "i", 1, 2, &large);
    request_float(&fixture.reader, "f", 1, 2, &real);
    request_bool(&fixture.reader, "absent", &flag);
    assert_null(request_string(&fixture.reader, "s"));
    assert_null(request_object(&fixture.reader, "o"));
    assert_null(request_array(&fixture.reader, "o"));
    assert_false(request_has(&fixture.reader, "s"));
    assert_true(flag && number == 7 && large == -8 && real == 0.5f);
    fixture_close(&fixture, "", NULL);
}

static void test_values_are_read(void **state)
{
    struct fixture fixture;
    bool flag = false;
    uint32_t number = 0;
    int64_t large = 0, whole = 0;
    float real = 0;
    (void)state;
    fixture_open(&fixture,
                 "{\"b\":true,\"u\":4294967295,\"i\":9223372036854775807,\"w\":3.0,\"f\":1,"
                 "\"s\":\"text\",\"o\":{},\"a\":[1],\"unknown\":{\"x\":[]}}");
    request_bool(&fixture.reader, "b", &flag);
    request_u32(&fixture.reader, "u", 0, UINT32_MAX, &number);
    request_i64(&fixture.reader, "i", 0, INT64_MAX, &large);
    request_i64(&fixture.reader, "w", 0, 5, &whole);
    request_float(&fixture.reader, "f", 0, 2, &real);
    assert_string_equal(request_string(&fixture.reader, "s"), "text");
    assert_non_null(request_object(&fixture.reader, "o"));
    assert_int_equal(json_array_size(request_array(&fixture.reader, "a")), 1);
    assert_true(flag && number == UINT32_MAX && large == INT64_MAX && whole == 3 && real == 1);
    fixture_close(&fixture, "", NULL);
}

/* Reads the field x of {"x": value} as a type. */
static void refuses(char type, const char *value, const char *sentence)
{
    struct fixture fixture;
    char text[256];
    bool flag = false;
    uint32_t number = 5;
    int64_t large = 5;
    float real = 5;
    snprintf(text, sizeof(text), "{\"x\":%s}", value);
    fixture_open(&fixture, text);
    switch (type) {
    case 'b': request_bool(&fixture.reader, "x", &flag); break;
    case 'u': request_u32(&fixture.reader, "x", 1, 9, &number); break;
    case 'i': request_i64(&fixture.reader, "x", -9, 9, &large); break;
    case 'f': request_float(&fixture.reader, "x", 0, 2, &real); break;
    case 's': assert_null(request_string(&fixture.reader, "x")); break;
    case 'o': assert_null(request_object(&fixture.reader, "x")); break;
    default: assert_null(request_array(&fixture.reader, "x")); break;
    }
    assert_true(!flag && number == 5 && large == 5 && real == 5);
    fixture_close(&fixture, "x", sentence);
}

static void test_wrong_types_and_ranges(void **state)
{
    (void)state;
    refuses('b', "1", "\"x\" must be true or false, not an integer");
    refuses('b', "\"true\"", "\"x\" must be true or false, not a string");
    refuses('u', "\"3\"", "\"x\" must be an integer, not a string");
    refuses('u', "3.5", "\"x\" must be an integer, not a number with a fraction");
    refuses('u', "0", "\"x\" is 0; it must be from 1 to 9");
    refuses('u', "-1", "\"x\" is -1; it must be from 1 to 9");
    refuses('i', "10", "\"x\" is 10; it must be from -9 to 9");
    refuses('i', "1e300", "\"x\" must be an integer, not a number with a fraction");
    refuses('i', "[]", "\"x\" must be an integer, not an array");
    refuses('f', "2.5", "\"x\" is 2.5; it must be from 0 to 2");
    refuses('f', "true", "\"x\" must be a number, not a boolean");
    refuses('s', "{}", "\"x\" must be a string, not an object");
    refuses('s', "\"a\\u0000b\"", "\"x\" has a NUL character in it");
    refuses('o', "[]", "\"x\" must be an object, not an array");
    refuses('a', "{}", "\"x\" must be an array, not an object");
}

static void test_first_mistake_counts(void **state)
{
    struct fixture fixture;
    uint32_t number = 5;
    bool flag = false;
    (void)state;
    fixture_open(&fixture, "{\"a\":\"x\",\"b\":7,\"c\":true}");
    request_u32(&fixture.reader, "a", 0, 9, &number);
    request_u32(&fixture.reader, "b", 0, 9, &number);
    request_bool(&fixture.reader, "c", &flag);
    assert_int_equal(number, 5);
    assert_false(flag);
    assert_false(request_has(&fixture.reader, "c"));
    fixture_close(&fixture, "a", "\"a\" must be an integer, not a string");
}

static void test_long_sentences_are_cut(void **state)
{
    struct request_error error = {0};
    char name[300];
    (void)state;
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    request_refuse(&error, 400, name, "%s %s %s", name, name, name);
    assert_int_equal(strlen(error.parameter), sizeof(error.parameter) - 1);
    assert_int_equal(strlen(error.text), sizeof(error.text) - 1);
}

static void test_codes_have_a_status(void **state)
{
    (void)state;
    assert_int_equal(request_status(BATON_EINVAL), 400);
    assert_int_equal(request_status(BATON_EUNSUPPORTED), 400);
    assert_int_equal(request_status(BATON_EEXIST), 409);
    assert_int_equal(request_status(BATON_ELIMIT), 503);
    assert_int_equal(request_status(BATON_ESTATE), 503);
    assert_int_equal(request_status(BATON_ETIMEOUT), 504);
    assert_int_equal(request_status(BATON_ENOMEM), 500);
    assert_int_equal(request_status(BATON_ESYSTEM), 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_no_json_object),
        cmocka_unit_test(test_deep_bodies_are_refused),
        cmocka_unit_test(test_absent_and_null_leave_the_value),
        cmocka_unit_test(test_values_are_read),
        cmocka_unit_test(test_wrong_types_and_ranges),
        cmocka_unit_test(test_first_mistake_counts),
        cmocka_unit_test(test_long_sentences_are_cut),
        cmocka_unit_test(test_codes_have_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
