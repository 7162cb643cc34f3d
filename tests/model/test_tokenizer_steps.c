/* SPDX-License-Identifier: Apache-2.0 */
/* The steps before the merges, one by one, against what Hugging Face's library does with the same
 * texts (golden/tokenizer_steps.json): pre-tokenizers of every behavior, normalizers. The classes
 * of patterns must hold the very characters that they hold in Oniguruma, over all of Unicode
 * (golden/tokenizer_classes.json: number and CRC-32 of the characters). And what the two
 * languages of patterns differ in is translated, or refused.
 *
 * usage: test_tokenizer_steps GOLDEN_FOLDER */
#include "test_tokenizer_files.h"

#include <stdlib.h>
#include <string.h>

static const char *golden;

static void buffers_free(struct normalizer_space *space)
{
    byte_buffer_free(&space->text);
    byte_buffer_free(&space->other);
}

/* ---- pre-tokenizers ---------------------------------------------------------------------- */

static bool pieces_equal(const struct split_space *split, const json_t *pieces)
{
    if (split->pieces.count != json_array_size(pieces))
        return false;
    for (size_t i = 0; i < split->pieces.count; i++) {
        struct text_range range = split->pieces.ranges[i];
        const json_t *piece = json_array_get(pieces, i);
        if (range.end - range.start != json_string_length(piece) ||
            memcmp(split->text.bytes + range.start, json_string_value(piece),
                   range.end - range.start) != 0)
            return false;
    }
    return true;
}

static void splitter_expect(const json_t *example, const json_t *texts,
                            struct pattern_space *patterns)
{
    struct tokenizer *tokenizer;
    char reason[512];
    assert_int_equal(tokenizer_new(&tokenizer, ERROR_NONE), 0);
    struct json_reader reader = {
        .path = "golden", .tokenizer = tokenizer, .err = ERROR_BUFFER(reason)};
    const json_t *step = json_object_get(example, "step"), *text;
    size_t index;
    if (tokenizer_json_splitter(&reader, step))
        fail_msg("%s", reason);
    json_array_foreach(texts, index, text)
    {
        struct split_space split = {0};
        assert_int_equal(splitter_apply(&tokenizer->splitter, &split, patterns,
                                        json_string_value(text), json_string_length(text), true,
                                        ERROR_BUFFER(reason)),
                         0);
        const json_t *pieces = json_array_get(json_object_get(example, "pieces"), index);
        if (!pieces_equal(&split, pieces)) {
            for (size_t i = 0; i < split.pieces.count; i++)
                print_message("[%.*s]",
                              (int)(split.pieces.ranges[i].end - split.pieces.ranges[i].start),
                              split.text.bytes + split.pieces.ranges[i].start);
            fail_msg(" \"%s\" split by %s, expected %s", json_string_value(text),
                     json_dumps(step, 0), json_dumps(pieces, 0));
        }
        split_space_free(&split);
    }
    tokenizer_close(tokenizer);
}

static void test_pre_tokenizers_equal_golden(void **state)
{
    (void)state;
    json_t *steps = test_json_read(golden, "tokenizer_steps.json");
    const json_t *examples = json_object_get(steps, "pre_tokenizers"), *example;
    struct pattern_space *patterns;
    size_t index;
    assert_int_equal(pattern_space_open(&patterns), 0);
    assert_true(json_array_size(examples) > 100);
    json_array_foreach(examples, index, example)
        splitter_expect(example, json_object_get(steps, "texts"), patterns);
    pattern_space_close(patterns);
    json_decref(steps);
}

/* ---- normalizers ------------------------------------------------------------------------- */

static void normalizer_expect(const json_t *example, const json_t *texts,
                              struct pattern_space *patterns)
{
    struct tokenizer *tokenizer;
    char reason[512];
    assert_int_equal(tokenizer_new(&tokenizer, ERROR_NONE), 0);
    struct json_reader reader = {
        .path = "golden", .tokenizer = tokenizer, .err = ERROR_BUFFER(reason)};
    const json_t *step = json_object_get(example, "step"), *text;
    struct normalizer_space space = {0};
    size_t index;
    if (tokenizer_json_normalizer(&reader, step))
        fail_msg("%s", reason);
    json_array_foreach(texts, index, text)
    {
        struct text_view out;
        const json_t *result = json_array_get(json_object_get(example, "results"), index);
        assert_int_equal(normalizer_apply(&tokenizer->normalizer, &space, patterns,
                                          json_string_value(text), json_string_length(text),
                                          &out, ERROR_BUFFER(reason)),
                         0);
        if (out.length != json_string_length(result) ||
            memcmp(out.bytes, json_string_value(result), out.length) != 0)
            fail_msg("\"%s\" by %s is \"%.*s\", expected \"%s\"", json_string_value(text),
                     json_dumps(step, 0), (int)out.length, out.bytes,
                     json_string_value(result));
    }
    buffers_free(&space);
    tokenizer_close(tokenizer);
}

static void test_normalizers_equal_golden(void **state)
{
    (void)state;
    json_t *steps = test_json_read(golden, "tokenizer_steps.json");
    const json_t *examples = json_object_get(steps, "normalizers"), *example;
    struct pattern_space *patterns;
    size_t index;
    assert_int_equal(pattern_space_open(&patterns), 0);
    assert_true(json_array_size(examples) > 10);
    json_array_foreach(examples, index, example)
        normalizer_expect(example, json_object_get(steps, "texts"), patterns);
    pattern_space_close(patterns);
    json_decref(steps);
}

/* ---- patterns ---------------------------------------------------------------------------- */

static uint32_t crc32_add(uint32_t crc, uint32_t code)
{
    for (int i = 0; i < 32; i++) {
        uint32_t bit = (crc ^ code >> i) & 1;
        crc = crc >> 1 ^ (bit ? 0xedb88320u : 0);
    }
    return crc;
}

/* Every character, and whether the pattern matches it. */
static void class_expect(const char *expression, const json_t *expected,
                         struct pattern_space *patterns)
{
    struct pattern *pattern;
    char reason[512];
    uint32_t count = 0, crc = 0xffffffffu;
    if (pattern_open(expression, strlen(expression), &pattern, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    for (uint32_t code = 0; code < 0x110000; code++) {
        char text[4];
        size_t start, end;
        if (code >= 0xd800 && code <= 0xdfff)
            continue;
        int found = pattern_find(pattern, patterns, text, utf8_encode(code, text), 0, &start,
                                 &end, ERROR_NONE);
        assert_true(found >= 0);
        if (found) {
            count++;
            crc = crc32_add(crc, code);
        }
    }
    if (count != json_integer_value(json_object_get(expected, "count")) ||
        ~crc != (uint32_t)json_integer_value(json_object_get(expected, "crc32")))
        fail_msg("%s holds %u characters, expected %lld", expression, count,
                 json_integer_value(json_object_get(expected, "count")));
    pattern_close(pattern);
}

static void test_classes_hold_the_same_characters(void **state)
{
    (void)state;
    json_t *file = test_json_read(golden, "tokenizer_classes.json");
    json_t *classes = json_object_get(file, "classes"), *expected;
    const char *name;
    struct pattern_space *patterns;
    assert_int_equal(pattern_space_open(&patterns), 0);
    assert_true(json_object_size(classes) > 15);
    json_object_foreach(classes, name, expected)
    {
        char set[64];
        class_expect(name, expected, patterns);
        snprintf(set, sizeof(set), "[%s]", name);
        if (strcmp(name, "\\P{L}") != 0) /* within a set it is PCRE2's own */
            class_expect(set, expected, patterns);
    }
    pattern_space_close(patterns);
    json_decref(file);
}

static const struct {
    const char *source, *translated; /* NULL: refused */
} translations[] = {
    {"a|b", "a|b"},
    {"a{2}", "a{2}"},
    {"a{1,3}+", "(?:a{1,3})+"},
    {"(ab){2,}+c", "(?:(ab){2,})+c"},
    {"[ab]{2}+", "(?:[ab]{2})+"},
    {"\xc3\xa9{2}+", "(?:\xc3\xa9{2})+"},
    {"a{x}+", "a{x}+"},
    {"\\u00e9", "\\x{00e9}"},
    {"[]a]", "[]a]"},
    {"[^]a]", "[^]a]"},
    {"[[:alpha:]x]", "[[:alpha:]x]"},
    {"\\p{Thai}", "[\\p{sc:Thai}]"},
    {"\\p{^Thai}", "[^\\p{sc:Thai}]"},
    {"[\\P{Thai}]", "[\\P{sc:Thai}]"},
    {"\\p{Alphabetic}", "[\\p{Alphabetic}]"},
    {"\\h", "[0-9A-Fa-f]"},
    {"[\\hx]", "[0-9A-Fa-fx]"},
    {"\\H", "[^0-9A-Fa-f]"},
    {"\\[\\]", "\\[\\]"},
    {"\\", "\\"}, /* PCRE2 refuses it */
    {"(?i:x)", "(?i:x)"},
    {"(?#m)x", "(?#m)x"},
    {"(?m:x)", NULL},
    {"[a[b]]", NULL},
    {"[a&&b]", NULL},
    {"[\\W]", NULL},
    {"\\pL", NULL},
    {"\\p{L", NULL},
    {"\\u12", NULL},
    {"\\Qx\\E", NULL},
    {"x\\K", NULL},
    {"(a", NULL},
    {"a)", NULL},
    {"[a", NULL},
    {"[[:alpha", NULL},
};

static void test_patterns_are_translated_or_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(translations) / sizeof(translations[0]); i++) {
        struct byte_buffer out = {0};
        char reason[512] = "";
        const char *source = translations[i].source, *expected = translations[i].translated;
        int rc = pattern_translate(source, strlen(source), &out, ERROR_BUFFER(reason));
        if (!expected) {
            assert_int_equal(rc, BATON_EUNSUPPORTED);
            assert_non_null(strstr(reason, source));
        } else if (rc || out.length != strlen(expected) ||
                   memcmp(out.bytes, expected, out.length) != 0) {
            fail_msg("%s became %.*s, expected %s (%s)", source, (int)out.length, out.bytes,
                     expected, reason);
        }
        byte_buffer_free(&out);
    }
}

/* A pattern that backtracks without end is given up, and says so; one that needs much stack is
 * not. */
static void test_patterns_have_limits(void **state)
{
    (void)state;
    struct pattern_space *patterns;
    struct pattern *pattern;
    size_t start, end, length = 200000;
    char reason[512] = "", *text = malloc(length);
    assert_non_null(text);
    memset(text, 'a', length);
    assert_int_equal(pattern_space_open(&patterns), 0);
    assert_int_equal(pattern_open("(a+)+[bd]", 9, &pattern, ERROR_NONE), 0);
    memset(text, 'a', 64);
    text[64] = 'c';
    assert_int_equal(
        pattern_find(pattern, patterns, text, 65, 0, &start, &end, ERROR_BUFFER(reason)),
        BATON_ELIMIT);
    assert_non_null(strstr(reason, "gave up"));
    pattern_close(pattern);

    text[64] = 'a';
    assert_int_equal(pattern_open("(?:a|b)+", 8, &pattern, ERROR_NONE), 0);
    assert_int_equal(
        pattern_find(pattern, patterns, text, length, 0, &start, &end, ERROR_BUFFER(reason)),
        1);
    assert_int_equal(end - start, length);
    pattern_close(pattern);
    pattern_space_close(patterns);
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pre_tokenizers_equal_golden),
        cmocka_unit_test(test_normalizers_equal_golden),
        cmocka_unit_test(test_classes_hold_the_same_characters),
        cmocka_unit_test(test_patterns_are_translated_or_refused),
        cmocka_unit_test(test_patterns_have_limits),
    };
    if (argc != 2)
        return 2;
    golden = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
