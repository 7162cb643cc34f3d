/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies with bootstrap fields spliced in, against jansson: the fields are there and right, all else is
 * as it was, and what was no JSON does not become any. */
#include "router/room_splice.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROOM 8821514230958995926ull

static char joined[1 << 16];
static size_t joined_length;

static int splice(const char *body, size_t length, int port)
{
    char text[ROOM_SPLICE_BYTES];
    struct iovec pieces[2];
    int rc = room_splice(body, length, "10.0.0.1", port, ROOM, text, pieces, ERROR_NONE);
    joined_length = 0;
    for (int i = 0; rc == BATON_OK && i < 2; i++) {
        memcpy(joined + joined_length, pieces[i].iov_base, pieces[i].iov_len);
        joined_length += pieces[i].iov_len;
    }
    return rc;
}

static void expect_fields(const json_t *object, int port)
{
    const json_t *found = json_object_get(object, "bootstrap_port");
    assert_string_equal(json_string_value(json_object_get(object, "bootstrap_host")),
                        "10.0.0.1");
    assert_int_equal(json_integer_value(json_object_get(object, "bootstrap_room")), ROOM);
    if (port < 0)
        assert_true(json_is_null(found));
    else
        assert_int_equal(json_integer_value(found), port);
}

/* What jansson reads out of the spliced body is what it reads out of the body, and the fields. */
static void expect_spliced(const char *body)
{
    json_t *before = json_loads(body, 0, NULL);
    assert_non_null(before);
    for (int port = -1; port < 9000; port += 8999) {
        assert_int_equal(splice(body, strlen(body), port), BATON_OK);
        json_t *after = json_loadb(joined, joined_length, 0, NULL);
        assert_non_null(after);
        expect_fields(after, port);
        static const char *const fields[] = {"bootstrap_host", "bootstrap_port",
                                             "bootstrap_room"};
        json_t *rest = json_copy(before);
        for (int i = 0; i < 3; i++) {
            json_object_del(after, fields[i]);
            json_object_del(rest, fields[i]);
        }
        assert_true(json_equal(rest, after));
        json_decref(rest);
        json_decref(after);
    }
    json_decref(before);
}

static void test_fields_are_added(void **state)
{
    (void)state;
    expect_spliced("{}");
    expect_spliced(" \r\n{ \t} \n");
    expect_spliced("{\"text\":\"hello\"}");
    expect_spliced("{\"text\":\"}\\\"}\",\"stop\":[\"}\"],\"a\":{\"b\":{}} }\n");
    expect_spliced("{\"a\":1e3,\"b\":null}");
}

static void test_fields_of_the_client_are_overridden(void **state)
{
    (void)state;
    expect_spliced("{\"bootstrap_room\":1,\"text\":\"x\",\"bootstrap_host\":\"evil\"}");
    expect_spliced("{\"bootstrap_port\":[1,2],\"bootstrap_room\":[7,8]}");
}

static void test_what_is_no_object_is_refused(void **state)
{
    static const char *const bodies[] = {"",       " ",   "{",  "}",   "[]",
                                         "\"{}\"", "[{}", "{]", "null"};
    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        assert_int_equal(splice(bodies[i], strlen(bodies[i]), 1), BATON_EINVAL);
}

static uint64_t seed = 7;
static uint32_t below(uint32_t count)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((seed >> 33) % count);
}

static json_t *random_value(int depth)
{
    static const char *const texts[] = {"", "}", "{\"", "\\", "ü", "a\nb", "\"}"};
    json_t *value;
    switch (below(depth > 3 ? 4 : 6)) {
    case 0: return json_integer((json_int_t)below(1000000) - 500000);
    case 1: return json_string(texts[below(7)]);
    case 2: return json_null();
    case 3: return json_real(below(1000) / 7.0);
    case 4:
        value = json_array();
        for (uint32_t i = below(4); i; i--)
            json_array_append_new(value, random_value(depth + 1));
        return value;
    default:
        value = json_object();
        for (uint32_t i = below(4); i; i--)
            json_object_set_new(value, texts[below(7)], random_value(depth + 1));
        return value;
    }
}

static void test_random_objects(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        json_t *object = json_object();
        char key[16];
        for (uint32_t j = below(6); j; j--) {
            snprintf(key, sizeof(key), "k%u", below(100));
            json_object_set_new(object, key, random_value(0));
        }
        char *text = json_dumps(object, below(2) ? JSON_INDENT(2) : JSON_COMPACT);
        expect_spliced(text);
        free(text);
        json_decref(object);
    }
}

/* A byte lost, doubled or replaced: if the body is no JSON, the spliced one must not be either, or a
 * worker would serve what nobody has asked for. */
static void test_broken_bodies_stay_broken(void **state)
{
    static const char whole[] =
        "{\"text\":\"a } b\",\"list\":[1,{\"x\":\"}\"}],\"stream\":true,\"n\":{\"m\":{}}}";
    static const char replacements[] = "{}[],:\"\\ 0a";
    char body[sizeof(whole) + 2];
    uint32_t broken = 0;
    (void)state;
    for (size_t at = 0; at < sizeof(whole) - 1; at++)
        for (size_t with = 0; with < sizeof(replacements); with++) {
            size_t length = 0;
            for (size_t i = 0; i < sizeof(whole) - 1; i++) {
                if (i != at)
                    body[length++] = whole[i];
                else if (with < sizeof(replacements) - 1)
                    body[length++] = replacements[with];
            }
            json_t *before = json_loadb(body, length, JSON_REJECT_DUPLICATES, NULL);
            json_t *after = splice(body, length, 1) == BATON_OK
                                ? json_loadb(joined, joined_length, 0, NULL)
                                : NULL;
            if (!before || !json_is_object(before)) {
                assert_null(after);
                broken++;
            }
            json_decref(before);
            json_decref(after);
        }
    assert_true(broken > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_are_added),
        cmocka_unit_test(test_fields_of_the_client_are_overridden),
        cmocka_unit_test(test_what_is_no_object_is_refused),
        cmocka_unit_test(test_random_objects),
        cmocka_unit_test(test_broken_bodies_stay_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
