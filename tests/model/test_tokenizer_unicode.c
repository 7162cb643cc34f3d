/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 that is whole, partial and broken; repairs piece for piece as Python makes them; ranges that
 * move with them; normal forms of marks in every order, also so many that sorting them badly
 * would not end; white space and words. */
#include "test_tokenizer_files.h"

#include <stdlib.h>
#include <string.h>

#define REPLACED "\xef\xbf\xbd"

static void test_every_character_survives(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        char text[4];
        size_t size;
        uint32_t found;
        if (code >= 0xd800 && code <= 0xdfff)
            continue;
        size_t length = utf8_encode(code, text);
        assert_int_equal(utf8_next(text, length, &size, &found), UTF8_WHOLE);
        assert_int_equal(size, length);
        assert_int_equal(found, code);
        for (size_t cut = 1; cut < length; cut++)
            assert_int_equal(utf8_next(text, cut, &size, &found), UTF8_PARTIAL);
    }
}

/* What Python's bytes.decode(errors="replace") makes of it. */
static const struct {
    const char *bytes;
    size_t length;
    const char *repaired;
} repairs[] = {
    {"", 0, ""},
    {"plain", 5, "plain"},
    {"\x80", 1, REPLACED},
    {"\xff\xff", 2, REPLACED REPLACED},
    {"\xc0\x80", 2, REPLACED REPLACED},
    {"\xc3", 1, REPLACED},
    {"\xc3\xc3\xa9", 3, REPLACED "\xc3\xa9"},
    {"\xe4\xbd", 2, REPLACED},
    {"\xe4\xbd(", 3, REPLACED "("},
    {"\xe0\x80\xaf", 3, REPLACED REPLACED REPLACED},
    {"\xed\xa0\x80", 3, REPLACED REPLACED REPLACED},
    {"\xf0\x9f\x98", 3, REPLACED},
    {"\xf0\x9f\x98\x80\xf0", 5, "\xf0\x9f\x98\x80" REPLACED},
    {"\xf0\x80\x80\xaf", 4, REPLACED REPLACED REPLACED REPLACED},
    {"\xf4\x90\x80\x80", 4, REPLACED REPLACED REPLACED REPLACED},
    {"\xf5\x80", 2, REPLACED REPLACED},
    {"12345678\xff"
     "12345678",
     17, "12345678" REPLACED "12345678"},
    {"a\0b\xff", 4, "a\0b" REPLACED},
};

static void test_repairs_are_those_of_python(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(repairs) / sizeof(repairs[0]); i++) {
        struct byte_buffer out = {0};
        size_t expected =
            i == sizeof(repairs) / sizeof(repairs[0]) - 1 ? 6 : strlen(repairs[i].repaired);
        assert_int_equal(utf8_repair(repairs[i].bytes, repairs[i].length, NULL, 0, &out), 0);
        assert_int_equal(out.length, expected);
        if (expected)
            assert_memory_equal(out.bytes, repairs[i].repaired, expected);
        assert_int_equal(utf8_valid_prefix(out.bytes, out.length), out.length);
        byte_buffer_free(&out);
    }
}

static void test_ranges_move_with_repairs(void **state)
{
    (void)state;
    /*                  0  1   2   3    4  5   6 */
    const char text[] = "a\xff"
                        "b"
                        "\xe4\xbd"
                        "c\xff";
    struct text_range ranges[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 7}};
    struct byte_buffer out = {0};
    assert_int_equal(utf8_repair(text, 7, ranges, 6, &out), 0);
    /* a REPLACED b REPLACED c REPLACED: a at 0, b at 4, c at 8 */
    static const struct text_range expected[] = {{0, 1}, {1, 4}, {4, 5},
                                                 {5, 8}, {8, 8}, {8, 12}};
    assert_int_equal(out.length, 12);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(ranges[i].start, expected[i].start);
        assert_int_equal(ranges[i].end, expected[i].end);
    }
    byte_buffer_free(&out);
    struct text_range nothing = {0, 0};
    assert_int_equal(utf8_repair("", 0, &nothing, 1, &out), 0);
    assert_int_equal(nothing.start + nothing.end, 0);
}

static void test_ranges_touch(void **state)
{
    (void)state;
    static const struct text_range ranges[] = {{2, 4}, {6, 6}, {8, 9}};
    assert_false(text_ranges_touch(ranges, 3, 0, 2));
    assert_true(text_ranges_touch(ranges, 3, 0, 3));
    assert_true(text_ranges_touch(ranges, 3, 3, 5));
    assert_false(text_ranges_touch(ranges, 3, 4, 8));
    assert_true(text_ranges_touch(ranges, 3, 5, 9));
    assert_false(text_ranges_touch(ranges, 3, 9, 100));
    assert_false(text_ranges_touch(NULL, 0, 0, 100));
}

/* ---- normal forms ------------------------------------------------------------------------ */

static void normalize_expect(enum unicode_form form, const char *text, const char *expected)
{
    struct byte_buffer out = {0};
    assert_int_equal(unicode_normalize(form, text, strlen(text), &out), 0);
    if (out.length != strlen(expected) || memcmp(out.bytes, expected, out.length) != 0)
        fail_msg("\"%s\" became \"%.*s\", expected \"%s\"", text, (int)out.length, out.bytes,
                 expected);
    byte_buffer_free(&out);
}

static void test_normal_forms(void **state)
{
    (void)state;
    normalize_expect(UNICODE_NFC, "plain caf\xc3\xa9", "plain caf\xc3\xa9");
    normalize_expect(UNICODE_NFC, "cafe\xcc\x81s", "caf\xc3\xa9s");
    normalize_expect(UNICODE_NFD, "caf\xc3\xa9s", "cafe\xcc\x81s");
    normalize_expect(UNICODE_NFC, "q\xcc\x87\xcc\xa3",
                     "q\xcc\xa3\xcc\x87"); /* order of marks */
    normalize_expect(UNICODE_NFC, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c");
    normalize_expect(UNICODE_NFC, "\xe2\x84\xab", "\xc3\x85"); /* Angstrom */
    normalize_expect(UNICODE_NFC, "\xef\xac\x81", "\xef\xac\x81");
    normalize_expect(UNICODE_NFKC, "\xef\xac\x81\xe2\x91\xa0", "fi1");
    normalize_expect(UNICODE_NFKD, "\xc2\xbd",
                     "1\xe2\x81\x84"
                     "2");
    normalize_expect(UNICODE_NFC, "\xcc\x81", "\xcc\x81"); /* a mark on nothing */
    /* U+0898, newer than the tables: neither moves nor lets marks pass. */
    normalize_expect(UNICODE_NFC, "a\xcd\x85\xe0\xa2\x98\xcc\xa3",
                     "a\xcd\x85\xe0\xa2\x98\xcc\xa3");
}

/* Marks in descending order of their class: what sorting by insertion is worst at. */
static void test_many_marks_are_sorted_in_time(void **state)
{
    (void)state;
    const size_t pairs = 200000;
    struct byte_buffer text = {0}, out = {0};
    assert_int_equal(byte_buffer_append(&text, "q", 1), 0);
    for (size_t i = 0; i < pairs; i++) /* 230, then 220 */
        assert_int_equal(byte_buffer_append(&text, "\xcc\x81\xcc\x96", 4), 0);
    assert_int_equal(unicode_normalize(UNICODE_NFC, text.bytes, text.length, &out), 0);
    assert_int_equal(out.length, text.length);
    for (size_t i = 0; i < 2 * pairs; i++)
        assert_memory_equal(out.bytes + 1 + 2 * i, i < pairs ? "\xcc\x96" : "\xcc\x81", 2);
    byte_buffer_free(&text);
    byte_buffer_free(&out);
}

/* ---- classes ----------------------------------------------------------------------------- */

static void test_spaces_around(void **state)
{
    (void)state;
    const char *text = "a \xe3\x80\x80\n b";
    assert_int_equal(unicode_space_after(text, strlen(text), 1), 6);
    assert_int_equal(unicode_space_before(text, 7), 6);
    assert_int_equal(unicode_space_before(text, 1), 0);
    assert_int_equal(unicode_space_before(text, 0), 0);
    assert_int_equal(unicode_space_after("  ", 2, 0), 2);
    assert_int_equal(unicode_space_before("  ", 2), 2);
    assert_false(unicode_is_space(0x180e));
    assert_false(unicode_is_space(0x200b));
    assert_true(unicode_is_space(0x2028));
}

static void test_words(void **state)
{
    (void)state;
    static const uint32_t yes[] = {'a',   'Z',    '0',   '_',    0xe9,
                                   0x301, 0x4e00, 0x660, 0x200d, 0x24b6};
    static const uint32_t no[] = {' ', '-', '.', '<', 0xb2, 0x2014, 0x1f600, 0x3001};
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        assert_true(unicode_is_word(yes[i]));
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        assert_false(unicode_is_word(no[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character_survives),
        cmocka_unit_test(test_repairs_are_those_of_python),
        cmocka_unit_test(test_ranges_move_with_repairs),
        cmocka_unit_test(test_ranges_touch),
        cmocka_unit_test(test_normal_forms),
        cmocka_unit_test(test_many_marks_are_sorted_in_time),
        cmocka_unit_test(test_spaces_around),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
