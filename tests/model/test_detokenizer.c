/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens back to text, one by one: characters that come in pieces, pieces that never become one,
 * byte tokens, the first space, control tokens. On random ids every part must be whole characters,
 * and all parts together what a decoder makes that sees all the bytes at once.
 *
 * usage: test_detokenizer GOLDEN_FOLDER     BATON_TEST_SEED repeats a run */
#include "test_tokenizer_files.h"

#include "model/detokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPLACED "\xef\xbf\xbd"

static const char *golden;
static uint64_t random_state, run_seed;

static uint32_t random_below(uint32_t bound) /* splitmix64 */
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % bound);
}

/* The token of this very output; for one byte over characters, the byte token. */
static uint32_t token_of(const struct tokenizer *tokenizer, const char *text, size_t length)
{
    for (uint32_t id = 0; id < tokenizer_vocabulary_size(tokenizer); id++) {
        struct text_view output = tokenizer_text(tokenizer, id);
        if (output.length == length && memcmp(output.bytes, text, length) == 0)
            return id;
    }
    fail_msg("no token \"%.*s\"", (int)length, text);
    return TOKEN_NONE;
}

/* Pushes the tokens of single bytes, and expects each part, and the end. */
static void bytes_expect(const struct tokenizer *tokenizer, const char *bytes,
                         const char *const *parts)
{
    struct detokenizer detokenizer;
    struct byte_buffer out = {0};
    size_t length = strlen(bytes);
    detokenizer_init(&detokenizer, tokenizer, DETOKENIZER_CONTINUES);
    for (size_t i = 0; i <= length; i++) {
        out.length = 0;
        int rc = i < length
                     ? detokenizer_push(&detokenizer, token_of(tokenizer, bytes + i, 1), &out)
                     : detokenizer_flush(&detokenizer, &out);
        assert_int_equal(rc, 0);
        if (out.length != strlen(parts[i]) || memcmp(out.bytes, parts[i], out.length) != 0)
            fail_msg("byte %zu gave \"%.*s\", expected \"%s\"", i, (int)out.length, out.bytes,
                     parts[i]);
    }
    byte_buffer_free(&out);
}

static void test_characters_come_whole(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    bytes_expect(
        tokenizer, "a\xc3\xa9\xf0\x9f\x98\x80z",
        (const char *[]){"a", "", "\xc3\xa9", "", "", "", "\xf0\x9f\x98\x80", "z", ""});
    tokenizer_close(tokenizer);
}

static void test_broken_bytes_are_replaced(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    bytes_expect(tokenizer, "\xf0\x9f\x98x\xe4\xbd",
                 (const char *[]){"", "", "", REPLACED "x", "", "", REPLACED});
    bytes_expect(tokenizer, "\xe4\xe4\xbd\xa0",
                 (const char *[]){"", REPLACED, "", "\xe4\xbd\xa0", ""});
    tokenizer_close(tokenizer);
    /* Byte fallback: one for each byte. */
    tokenizer = test_tokenizer_open(golden, "tokenizer_characters.json");
    bytes_expect(tokenizer, "\xf0\x9f\x98\n\xe4\xbd",
                 (const char *[]){"", "", "", REPLACED REPLACED REPLACED "\n", "", "",
                                  REPLACED REPLACED});
    bytes_expect(tokenizer, "\xe4\xbd\xa0\xbd",
                 (const char *[]){"", "", "\xe4\xbd\xa0", REPLACED, ""});
    tokenizer_close(tokenizer);
}

static void decode_expect(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                          uint32_t flags, const char *expected)
{
    struct byte_buffer out = {0};
    assert_int_equal(detokenizer_decode(tokenizer, ids, count, flags, &out), 0);
    if (out.length != strlen(expected) ||
        (out.length && memcmp(out.bytes, expected, out.length) != 0))
        fail_msg("decoded \"%.*s\", expected \"%s\"", (int)out.length, out.bytes, expected);
    byte_buffer_free(&out);
}

static void test_the_first_space_is_dropped_once(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_characters.json");
    uint32_t space = token_of(tokenizer, " ", 1), a = token_of(tokenizer, "a", 1);
    uint32_t bos = token_of(tokenizer, "<s>", 3);
    const uint32_t ids[] = {space, space, a}, with_bos[] = {bos, space, a};
    decode_expect(tokenizer, ids, 3, 0, " a");
    decode_expect(tokenizer, ids, 3, DETOKENIZER_CONTINUES, "  a");
    decode_expect(tokenizer, with_bos, 3, 0, "a");
    decode_expect(tokenizer, with_bos, 3, DETOKENIZER_SHOW_CONTROL, "<s> a");
    tokenizer_close(tokenizer);
    tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    space = token_of(tokenizer, " ", 1);
    decode_expect(tokenizer, &space, 1, 0, " "); /* nothing was put before it */
    tokenizer_close(tokenizer);
}

/* A control token that is left out does not separate the bytes around it; one that is shown does. */
static void test_control_tokens_between_bytes(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    const uint32_t ids[] = {token_of(tokenizer, "\xc3", 1), token_of(tokenizer, "</s>", 4),
                            token_of(tokenizer, "\xa9", 1)};
    decode_expect(tokenizer, ids, 3, 0, "\xc3\xa9");
    decode_expect(tokenizer, ids, 3, DETOKENIZER_SHOW_CONTROL, REPLACED "</s>" REPLACED);
    const uint32_t none[] = {TOKEN_NONE, tokenizer_vocabulary_size(tokenizer)};
    decode_expect(tokenizer, none, 2, DETOKENIZER_SHOW_CONTROL, "");
    tokenizer_close(tokenizer);
}

/* A user-defined token is its own text, also when its letters could stand for bytes. */
static void test_added_tokens_are_their_text(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    uint32_t id = token_of(tokenizer, "\xc3\xa9!", 3);
    decode_expect(tokenizer, &id, 1, 0, "\xc3\xa9!");
    tokenizer_close(tokenizer);
}

/* ---- random ids -------------------------------------------------------------------------- */

static void random_ids_compare(const struct tokenizer *tokenizer)
{
    struct detokenizer detokenizer;
    struct byte_buffer stream = {0}, bytes = {0}, expected = {0};
    detokenizer_init(&detokenizer, tokenizer, DETOKENIZER_SHOW_CONTROL);
    uint32_t count = random_below(30);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = random_below(tokenizer_vocabulary_size(tokenizer) + 2);
        struct text_view text = tokenizer_text(tokenizer, id);
        size_t before = stream.length;
        assert_int_equal(detokenizer_push(&detokenizer, id, &stream), 0);
        assert_int_equal(byte_buffer_append(&bytes, text.bytes, text.length), 0);
        if (stream.length > before)
            assert_int_equal(utf8_valid_prefix(stream.bytes + before, stream.length - before),
                             stream.length - before);
        assert_true(detokenizer.pending_length < 4);
    }
    assert_int_equal(detokenizer_flush(&detokenizer, &stream), 0);
    assert_int_equal(utf8_repair(bytes.bytes, bytes.length, NULL, 0, &expected), 0);
    if (stream.length != expected.length ||
        (stream.length && memcmp(stream.bytes, expected.bytes, stream.length) != 0))
        fail_msg("seed %llu: the stream differs from the whole", (unsigned long long)run_seed);
    byte_buffer_free(&stream);
    byte_buffer_free(&bytes);
    byte_buffer_free(&expected);
}

static void test_streams_equal_the_whole(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    for (int round = 0; round < 20000; round++)
        random_ids_compare(tokenizer);
    tokenizer_close(tokenizer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_come_whole),
        cmocka_unit_test(test_broken_bytes_are_replaced),
        cmocka_unit_test(test_the_first_space_is_dropped_once),
        cmocka_unit_test(test_control_tokens_between_bytes),
        cmocka_unit_test(test_added_tokens_are_their_text),
        cmocka_unit_test(test_streams_equal_the_whole),
    };
    const char *seed = getenv("BATON_TEST_SEED");
    if (argc != 2)
        return 2;
    golden = argv[1];
    run_seed = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
    random_state = run_seed;
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)run_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
