/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings over streamed text. On random texts, cut at random into tokens (also through the middle
 * of characters), what is let out must at every moment be the beginning of what an obvious search
 * through the whole text leaves, and no more may be kept than a stop string could need.
 *
 * usage: test_sampler_stop GOLDEN_FOLDER (of the tokenizers)     BATON_TEST_SEED repeats a run */
#include "engine/sampler_stop.h"
#include "model/test_tokenizer_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *golden;
static uint64_t random_state, run_seed;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % bound);
}

/* ---- tokens by their text ------------------------------------------------------------------- */

/* The token of these bytes; TOKEN_NONE where there is none. */
static uint32_t token_of(const struct tokenizer *tokenizer, const char *bytes, size_t length)
{
    for (uint32_t id = 0; id < tokenizer_vocabulary_size(tokenizer); id++) {
        struct text_view text = tokenizer_text(tokenizer, id);
        if (text.length == length && !tokenizer_is_control(tokenizer, id) &&
            memcmp(text.bytes, bytes, length) == 0)
            return id;
    }
    return TOKEN_NONE;
}

static struct stop_strings *open_strings(const char *const *strings, uint32_t count)
{
    struct text_view views[8];
    struct stop_strings *made;
    char text[256] = "";
    for (uint32_t i = 0; i < count; i++)
        views[i] = (struct text_view){strings[i], strlen(strings[i])};
    if (stop_strings_open(views, count, &made, ERROR_BUFFER(text)))
        fail_msg("%s", text);
    return made;
}

/* ---- examples ------------------------------------------------------------------------------- */

struct example {
    const char *strings[3];
    const char *text; /* one token for each byte */
    const char *out;
    int32_t matched;
    bool keep_stop;
};

static const struct example examples[] = {
    {{"END", "\n\n"}, "a\nb\nEND!", "a\nb\n", 0, false},
    {{"END", "\n\n"}, "a\nb\n\nEND", "a\nb", 1, false},
    {{"END", "\n\n"}, "a\nb\n\nEND", "a\nb\n\n", 1, true},
    {{"END"}, "ENEND", "EN", 0, false},
    {{"aab"}, "aaaab", "aa", 0, false},
    {{"abc", "b"}, "abc", "a", 1, false},        /* "b" is complete first */
    {{"c", "bc", "abc"}, "xabc", "x", 2, false}, /* all at once: the longest */
    {{"\xc3\xa9"}, "caf\xc3\xa9!", "caf", 0, false},
    {{"\xc3\xa9!"}, "\xc3\xa9.\xc3\xa9!", "\xc3\xa9.", 0, false},
    {{"END"}, "EN", "EN", -1, false},             /* kept until the end */
    {{"x"}, "a\xc3", "a\xef\xbf\xbd", -1, false}, /* half a character at the end */
    {{NULL}, "plain", "plain", -1, false},
};

static void run_example(const struct tokenizer *tokenizer, const struct example *example)
{
    uint32_t count = 0;
    while (count < 3 && example->strings[count])
        count++;
    struct stop_strings *strings = open_strings(example->strings, count);
    struct stop_text text;
    struct text_view out;
    char all[256];
    size_t length = 0;
    assert_int_equal(
        stop_text_open(&text, tokenizer, DETOKENIZER_CONTINUES, strings, example->keep_stop),
        0);
    for (const char *byte = example->text; *byte && text.matched < 0; byte++) {
        assert_int_equal(stop_text_push(&text, token_of(tokenizer, byte, 1), true, &out), 0);
        memcpy(all + length, out.bytes, out.length);
        length += out.length;
    }
    assert_int_equal(text.matched, example->matched);
    assert_int_equal(stop_text_flush(&text, &out), 0);
    memcpy(all + length, out.bytes, out.length);
    length += out.length;
    if (length != strlen(example->out) || memcmp(all, example->out, length))
        fail_msg("\"%s\" gave \"%.*s\" instead of \"%s\"", example->text, (int)length, all,
                 example->out);
    stop_text_close(&text);
    stop_strings_close(strings);
}

static void test_examples(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    for (size_t i = 0; i < sizeof(examples) / sizeof(*examples); i++)
        run_example(tokenizer, &examples[i]);
    tokenizer_close(tokenizer);
}

/* Nothing is found in tokens in which nothing may be. */
static void test_min_tokens_hide_stop_strings(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    const char *names[] = {"ab"};
    struct stop_strings *strings = open_strings(names, 1);
    struct stop_text text;
    struct text_view out;
    const char *bytes = "abaab";
    assert_int_equal(stop_text_open(&text, tokenizer, DETOKENIZER_CONTINUES, strings, false),
                     0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(text.matched, -1);
        assert_int_equal(stop_text_push(&text, token_of(tokenizer, bytes + i, 1), i >= 3, &out),
                         0);
        assert_int_equal(out.length, i < 3 ? 1 : 0);
    }
    assert_int_equal(text.matched, 0);
    stop_text_close(&text);
    stop_strings_close(strings);
    tokenizer_close(tokenizer);
}

static void test_strings_are_checked(void **state)
{
    (void)state;
    char longest[STOP_STRING_BYTES_MAX + 1];
    memset(longest, 'x', sizeof(longest));
    const struct {
        struct text_view string;
        uint32_t count;
        const char *reason;
    } bad[] = {
        {{"", 0}, 1, "stop string 0 is empty"},
        {{longest, sizeof(longest)}, 1, "at most 1024"},
        {{"\xc3", 1}, 1, "not UTF-8"},
        {{"x", 1}, STOP_STRINGS_MAX + 1, "65 stop strings"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct stop_strings *strings = NULL;
        char text[256] = "";
        assert_int_equal(
            stop_strings_open(&bad[i].string, bad[i].count, &strings, ERROR_BUFFER(text)),
            BATON_EINVAL);
        assert_null(strings);
        assert_non_null(strstr(text, bad[i].reason));
    }
    struct text_view fine = {longest, STOP_STRING_BYTES_MAX};
    struct stop_strings *strings;
    assert_int_equal(stop_strings_open(&fine, 1, &strings, ERROR_NONE), 0);
    stop_strings_close(strings);
}

/* ---- random texts --------------------------------------------------------------------------- */

#define TEXT_MAX 64
static const char *const letters[] = {"a", "b", "\n", "\xc3\xa9", "\xc3\xa8", "\xe6\x97\xa5"};

static size_t random_text(char *text, uint32_t characters)
{
    size_t length = 0;
    for (uint32_t i = 0; i < characters; i++) {
        const char *letter = letters[random_below(random_below(2) ? 2 : 6)];
        memcpy(text + length, letter, strlen(letter));
        length += strlen(letter);
    }
    text[length] = '\0';
    return length;
}

/* Where the text ends by the first stop string to be complete; its index, or -1. */
static int32_t obvious_end(const char *text, size_t length, char strings[][TEXT_MAX],
                           uint32_t count, size_t *end)
{
    for (size_t i = 1; i <= length; i++) {
        int32_t found = -1;
        size_t longest = 0;
        for (uint32_t s = 0; s < count; s++) {
            size_t size = strlen(strings[s]);
            if (size <= i && size > longest && !memcmp(text + i - size, strings[s], size)) {
                found = (int32_t)s;
                longest = size;
            }
        }
        if (found >= 0) {
            *end = i - longest;
            return found;
        }
    }
    *end = length;
    return -1;
}

/* A token for the next bytes: now and then as long as one can be found. */
static uint32_t random_token(const struct tokenizer *tokenizer, const char *text, size_t left,
                             size_t *taken)
{
    for (size_t size = 1 + random_below(4); size > 1; size--) {
        uint32_t id = size <= left ? token_of(tokenizer, text, size) : TOKEN_NONE;
        *taken = size;
        if (id != TOKEN_NONE)
            return id;
    }
    *taken = 1;
    return token_of(tokenizer, text, 1);
}

static void run_random(const struct tokenizer *tokenizer)
{
    char strings[3][TEXT_MAX], content[3 * TEXT_MAX], all[3 * TEXT_MAX + 1];
    const char *names[3];
    uint32_t count = random_below(4);
    size_t longest = 0, end, emitted = 0, pushed = 0, taken;
    for (uint32_t s = 0; s < count; s++) {
        size_t size = random_text(strings[s], 1 + random_below(5));
        longest = size > longest ? size : longest;
        names[s] = strings[s];
    }
    size_t length = random_text(content, random_below(TEXT_MAX));
    int32_t expected = obvious_end(content, length, strings, count, &end);
    struct stop_strings *made = open_strings(names, count);
    struct stop_text text;
    struct text_view out;
    assert_int_equal(stop_text_open(&text, tokenizer, DETOKENIZER_CONTINUES, made, false), 0);
    while (pushed < length && text.matched < 0) {
        uint32_t id = random_token(tokenizer, content + pushed, length - pushed, &taken);
        assert_int_equal(stop_text_push(&text, id, true, &out), 0);
        assert_true(out.length <= stop_text_out_max(made, taken));
        pushed += taken;
        memcpy(all + emitted, out.bytes, out.length);
        emitted += out.length;
        assert_true(emitted <= end && !memcmp(all, content, emitted));
        if (text.matched < 0) /* kept: less than a stop string and half a character */
            assert_true(emitted + longest + 3 >= pushed);
    }
    assert_int_equal(stop_text_flush(&text, &out), 0);
    assert_true(emitted + out.length == end &&
                !memcmp(out.bytes, content + emitted, out.length));
    /* Strings that are equal are the same to us; the index may be that of another. */
    assert_true(expected < 0 ? text.matched < 0
                             : !strcmp(strings[text.matched], strings[expected]));
    stop_text_close(&text);
    stop_strings_close(made);
}

static void test_random_texts(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)run_seed);
    for (int i = 0; i < 2000; i++)
        run_random(tokenizer);
    tokenizer_close(tokenizer);
}

int main(int argc, char **argv)
{
    const char *seed = getenv("BATON_TEST_SEED");
    if (argc != 2)
        return 2;
    golden = argv[1];
    run_seed = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
    random_state = run_seed;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_min_tokens_hide_stop_strings),
        cmocka_unit_test(test_strings_are_checked),
        cmocka_unit_test(test_random_texts),
    };
    return cmocka_run_group_tests_name("engine.sampler_stop", tests, NULL, NULL);
}
