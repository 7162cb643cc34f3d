/* SPDX-License-Identifier: Apache-2.0 */
/* Keys get numbers, keep them while they are held, and give them back. */
#include "kv/prefix_keys.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define MANY 5000u

static struct prefix_key key_number(uint32_t number, char *text, size_t size)
{
    snprintf(text, size, "tenant-%u", number);
    return (struct prefix_key){text, (uint32_t)strlen(text)};
}

static void test_keys_none_is_always_number_0(void **state)
{
    (void)state;
    struct prefix_keys keys;
    assert_int_equal(prefix_keys_open(&keys, 1), 0);
    assert_int_equal(prefix_keys_find(&keys, PREFIX_KEY_NONE), 0);
    assert_int_equal(prefix_keys_intern(&keys, PREFIX_KEY_NONE), 0);
    assert_int_equal(prefix_keys_hash(&keys, 0), 0);
    prefix_keys_close(&keys);
}

static void test_keys_keep_their_numbers_while_the_table_grows(void **state)
{
    (void)state;
    struct prefix_keys keys;
    char text[32];
    assert_int_equal(prefix_keys_open(&keys, 2), 0);
    for (uint32_t i = 1; i <= MANY; i++) {
        struct prefix_key key = key_number(i, text, sizeof(text));
        assert_int_equal(prefix_keys_find(&keys, key), -1);
        assert_int_equal(prefix_keys_intern(&keys, key), i);
        prefix_keys_hold(&keys, (int32_t)i);
        memset(text, 0, sizeof(text)); /* it was copied */
    }
    for (uint32_t i = 1; i <= MANY; i++)
        assert_int_equal(prefix_keys_find(&keys, key_number(i, text, sizeof(text))), i);
    assert_int_equal(keys.live, MANY + 1);
    prefix_keys_close(&keys);
}

static void test_keys_are_forgotten_with_the_last_hold(void **state)
{
    (void)state;
    struct prefix_keys keys;
    char text[32];
    assert_int_equal(prefix_keys_open(&keys, 3), 0);
    for (uint32_t i = 0; i < MANY; i++) {
        int32_t number = prefix_keys_intern(&keys, key_number(i, text, sizeof(text)));
        prefix_keys_hold(&keys, number);
        prefix_keys_hold(&keys, number);
        prefix_keys_drop(&keys, number);
        assert_int_equal(prefix_keys_find(&keys, key_number(i, text, sizeof(text))), number);
        prefix_keys_drop(&keys, number);
        assert_int_equal(prefix_keys_find(&keys, key_number(i, text, sizeof(text))), -1);
    }
    assert_int_equal(keys.live, 1);
    assert_int_equal(keys.count, 2); /* one number was enough */
    prefix_keys_close(&keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_none_is_always_number_0),
        cmocka_unit_test(test_keys_keep_their_numbers_while_the_table_grows),
        cmocka_unit_test(test_keys_are_forgotten_with_the_last_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
