/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers out of GGUF metadata: what each key does, what happens without it, and what is refused
 * and why. Files are made here, small enough to see every id; real vocabularies are in
 * test_tokenizer_corpus.c. */
#include "test_tokenizer_files.h"

#include "gguf_writer.h"
#include "model/tokenizer_families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name
#define SPACE "\xe2\x96\x81"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

struct file {
    struct gguf_writer writer;
    struct bytes bytes;
    struct gguf *gguf;
};

static void array_write(struct gguf_writer *writer, const char *key, uint32_t type,
                        const void *items, uint64_t count)
{
    struct bytes value = {0};
    bytes_add(&value, &type, sizeof(type));
    bytes_add(&value, &count, sizeof(count));
    bytes_add(&value, items, (size_t)count * 4);
    gguf_writer_key(writer, key, GGUF_ARRAY, value.data, value.size);
    bytes_free(&value);
}

static void bool_write(struct gguf_writer *writer, const char *key, bool value)
{
    uint8_t byte = value;
    gguf_writer_key(writer, key, GGUF_BOOL, &byte, 1);
}

/* ---- two small vocabularies -------------------------------------------------------------- */

#define LETTER_SPACE "\xc4\xa0" /* how a space is spelled over bytes */

static const char *const byte_tokens[] = {"a",   "b",   LETTER_SPACE, "ab", (LETTER_SPACE "ab"),
                                          "<s>", "<e>", "<|im_end|>", "1",  "<u>"};
static const int32_t byte_types[] = {NORMAL,  NORMAL,  NORMAL,  NORMAL, NORMAL,
                                     CONTROL, CONTROL, CONTROL, NORMAL, USER};
static const char *const byte_merges[] = {"a b", (LETTER_SPACE " ab")};

/* BPE over bytes: a, b, space, ab, " ab", and special ones. */
static void bytes_begin(struct file *file, const char *family)
{
    gguf_writer_init(&file->writer);
    gguf_writer_string(&file->writer, KEY("model"), "gpt2");
    if (family)
        gguf_writer_string(&file->writer, KEY("pre"), family);
    gguf_writer_strings(&file->writer, KEY("tokens"), byte_tokens, 10);
    gguf_writer_u32(&file->writer, KEY("bos_token_id"), 5);
    gguf_writer_u32(&file->writer, KEY("eos_token_id"), 6);
    gguf_writer_u32(&file->writer, KEY("unknown_token_id"), 6); /* not used over bytes */
}

static const char *const piece_tokens[] = {"<unk>",  "<s>",    "</s>",       "<0x0A>",
                                           "<0xC3>", "<0xA9>", SPACE,        "a",
                                           "b",      "ab",     (SPACE "ab"), "<u>"};
static const int32_t piece_types[] = {UNKNOWN, CONTROL, CONTROL, BYTE,   BYTE,   BYTE,
                                      NORMAL,  NORMAL,  NORMAL,  NORMAL, NORMAL, USER};
static const float piece_scores[] = {0, 0, 0, 0, 0, 0, -3, -4, -5, -1, -2, 0};

/* SentencePiece. */
static void pieces_begin(struct file *file)
{
    gguf_writer_init(&file->writer);
    gguf_writer_string(&file->writer, KEY("model"), "llama");
    gguf_writer_strings(&file->writer, KEY("tokens"), piece_tokens, 12);
    gguf_writer_u32(&file->writer, KEY("bos_token_id"), 1);
    gguf_writer_u32(&file->writer, KEY("eos_token_id"), 2);
    gguf_writer_u32(&file->writer, KEY("unknown_token_id"), 0);
}

static int file_open(struct file *file, struct tokenizer **tokenizer, struct error err)
{
    file->bytes = gguf_writer_finish(&file->writer);
    gguf_writer_free(&file->writer);
    if (gguf_parse(file->bytes.data, file->bytes.size, "small.gguf", &file->gguf, err))
        fail_msg("%s", err.text);
    int rc = tokenizer_open_gguf(file->gguf, tokenizer, err);
    gguf_close(file->gguf); /* the tokenizer must not need it */
    bytes_free(&file->bytes);
    return rc;
}

static struct tokenizer *file_expect(struct file *file)
{
    struct tokenizer *tokenizer;
    char reason[512];
    if (file_open(file, &tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    return tokenizer;
}

static void file_expect_refused(struct file *file, int code, const char *expected)
{
    struct tokenizer *tokenizer = NULL;
    char reason[512] = "";
    int rc = file_open(file, &tokenizer, ERROR_BUFFER(reason));
    if (rc != code || tokenizer || !strstr(reason, expected) || !strstr(reason, "small.gguf"))
        fail_msg("code %d, reason \"%s\"; expected \"%s\"", rc, reason, expected);
}

/* ---- over bytes -------------------------------------------------------------------------- */

static void test_bytes_are_merged(void **state)
{
    (void)state;
    struct file file;
    bytes_begin(&file, "gpt-2");
    array_write(&file.writer, KEY("token_type"), GGUF_INT32, byte_types, 10);
    gguf_writer_strings(&file.writer, KEY("merges"), byte_merges, 2);
    bool_write(&file.writer, KEY("add_bos_token"), true);
    bool_write(&file.writer, KEY("add_eos_token"), true);
    gguf_writer_u32(&file.writer, KEY("eot_token_id"), 7);
    struct tokenizer *tokenizer = file_expect(&file);
    test_encode_expect(tokenizer, "ab ab", 5, 0, (uint32_t[]){3, 4}, 2, "merged");
    test_encode_expect(tokenizer, "ab", 2, TOKENIZER_ADD_SPECIAL, (uint32_t[]){5, 3, 6}, 3,
                       "around");
    test_encode_expect(tokenizer, "azb", 3, 0, (uint32_t[]){3}, 1,
                       "z is dropped, as if not there");
    test_encode_expect(tokenizer, "a<s>b<u>", 8, TOKENIZER_PARSE_SPECIAL,
                       (uint32_t[]){0, 5, 1, 9}, 4, "special");
    test_encode_expect(tokenizer, "a<s>b<u>", 8, 0, (uint32_t[]){0, 1, 9}, 3, "user-defined");
    assert_int_equal(tokenizer_eot(tokenizer), 7);
    assert_true(tokenizer_is_end(tokenizer, 6));
    assert_true(tokenizer_is_end(tokenizer, 7));
    assert_false(tokenizer_is_end(tokenizer, 5));
    tokenizer_close(tokenizer);
}

static void test_missing_keys_have_defaults(void **state)
{
    (void)state;
    struct file file;
    bytes_begin(&file, "llama-bpe"); /* no kinds; BOS by family */
    gguf_writer_strings(&file.writer, KEY("merges"), byte_merges, 2);
    struct tokenizer *tokenizer = file_expect(&file);
    test_encode_expect(tokenizer, "ab", 2, TOKENIZER_ADD_SPECIAL, (uint32_t[]){5, 3}, 2, "bos");
    assert_true(tokenizer_is_control(tokenizer, 5));
    assert_true(tokenizer_is_control(tokenizer, 6));
    assert_false(tokenizer_is_control(tokenizer, 7)); /* nothing says so */
    tokenizer_close(tokenizer);
    bytes_begin(&file, NULL); /* no family: the default one */
    gguf_writer_strings(&file.writer, KEY("merges"), byte_merges, 2);
    tokenizer = file_expect(&file);
    test_encode_expect(tokenizer, "ab", 2, TOKENIZER_ADD_SPECIAL, (uint32_t[]){3}, 1, "none");
    tokenizer_close(tokenizer);
}

static void test_every_family_opens(void **state)
{
    (void)state;
    static const char *const names[] = {
        "default",    "gpt-2",  "phi-2",     "mpt",          "olmo",
        "llama-bpe",  "llama3", "llama-v3",  "qwen2",        "deepseek-r1-qwen",
        "qwen35",     "smollm", "starcoder", "refact",       "command-r",
        "tekken",     "gpt-4o", "llama4",    "deepseek-llm", "deepseek-coder",
        "deepseek-v3"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct file file;
        assert_non_null(tokenizer_family_find(names[i], strlen(names[i])));
        bytes_begin(&file, names[i]);
        gguf_writer_strings(&file.writer, KEY("merges"), byte_merges, 2);
        struct tokenizer *tokenizer = file_expect(&file);
        test_encode_expect(tokenizer, "ab", 2, 0, (uint32_t[]){3}, 1, names[i]);
        tokenizer_close(tokenizer);
    }
    assert_null(tokenizer_family_find("gpt", 3));
    assert_null(tokenizer_family_find("gpt-2|phi-2", 11));
}

/* ---- over characters --------------------------------------------------------------------- */

static void test_pieces_are_merged_by_score(void **state)
{
    (void)state;
    struct file file;
    pieces_begin(&file);
    array_write(&file.writer, KEY("token_type"), GGUF_INT32, piece_types, 12);
    array_write(&file.writer, KEY("scores"), GGUF_FLOAT32, piece_scores, 12);
    struct tokenizer *tokenizer = file_expect(&file);
    test_encode_expect(tokenizer, "ab", 2, TOKENIZER_ADD_SPECIAL, (uint32_t[]){1, 10}, 2,
                       "bos");
    test_encode_expect(tokenizer, "a\n\xc3\xa9", 4, 0, (uint32_t[]){6, 7, 3, 4, 5}, 5, "bytes");
    test_encode_expect(tokenizer, "xyb", 3, 0, (uint32_t[]){6, 0, 8}, 3, "unknown, once");
    test_encode_expect(tokenizer, "<s>ab</s>ab", 11, TOKENIZER_PARSE_SPECIAL,
                       (uint32_t[]){1, 10, 2, 10}, 4, "a space behind each");
    assert_true(tokenizer_is_byte(tokenizer, 3));
    assert_true(tokenizer_drops_first_space(tokenizer));
    assert_true(tokenizer_is_end(tokenizer, 2));
    assert_memory_equal(tokenizer_text(tokenizer, 10).bytes, " ab", 3);
    assert_memory_equal(tokenizer_text(tokenizer, 3).bytes, "\n", 1);
    tokenizer_close(tokenizer);
}

static void test_pieces_without_a_space_before(void **state)
{
    (void)state;
    struct file file;
    pieces_begin(&file); /* no kinds: bytes are told by their names */
    array_write(&file.writer, KEY("scores"), GGUF_FLOAT32, piece_scores, 12);
    bool_write(&file.writer, KEY("add_space_prefix"), false);
    bool_write(&file.writer, KEY("add_bos_token"), false);
    struct tokenizer *tokenizer = file_expect(&file);
    test_encode_expect(tokenizer, "ab ab", 5, TOKENIZER_ADD_SPECIAL, (uint32_t[]){9, 10}, 2,
                       "no prefix");
    assert_true(tokenizer_is_byte(tokenizer, 4));
    assert_false(tokenizer_drops_first_space(tokenizer));
    tokenizer_close(tokenizer);
}

/* ---- refused ----------------------------------------------------------------------------- */

static void test_bad_files_are_refused_with_a_reason(void **state)
{
    (void)state;
    static const char *const one[] = {"ab"}, *const stranger[] = {"a x"},
                             *const letters[] = {"a \xe2\x82\xac"};
    struct file file;
    bytes_begin(&file, "no such way");
    file_expect_refused(&file, BATON_EUNSUPPORTED, "no such way");
    bytes_begin(&file, "gpt-2");
    file_expect_refused(&file, BATON_ENOTFOUND, "merges");
    bytes_begin(&file, "gpt-2");
    gguf_writer_strings(&file.writer, KEY("merges"), one, 1);
    file_expect_refused(&file, BATON_EINVAL, "merge 0 is not two tokens");
    bytes_begin(&file, "gpt-2");
    gguf_writer_strings(&file.writer, KEY("merges"), stranger, 1);
    file_expect_refused(&file, BATON_EINVAL, "merge 0: its second half is no token");
    bytes_begin(&file, "gpt-2");
    gguf_writer_strings(&file.writer, KEY("merges"), letters, 1);
    file_expect_refused(&file, BATON_EINVAL, "not spelled in bytes");
    bytes_begin(&file, "gpt-2");
    gguf_writer_string(&file.writer, KEY("token_type"), "x");
    file_expect_refused(&file, BATON_EINVAL, "token_type");
    pieces_begin(&file);
    file_expect_refused(&file, BATON_ENOTFOUND, "scores");
    pieces_begin(&file);
    array_write(&file.writer, KEY("scores"), GGUF_FLOAT32, piece_scores, 11);
    file_expect_refused(&file, BATON_EINVAL, "12 tokens, but 11 scores");
    gguf_writer_init(&file.writer);
    file_expect_refused(&file, BATON_ENOTFOUND, "tokenizer.ggml.model");
    gguf_writer_init(&file.writer);
    gguf_writer_string(&file.writer, KEY("model"), "bert");
    file_expect_refused(&file, BATON_EUNSUPPORTED, "bert");
    gguf_writer_init(&file.writer);
    gguf_writer_string(&file.writer, KEY("model"), "gpt2");
    file_expect_refused(&file, BATON_ENOTFOUND, "tokens");
}

/* Ids that the vocabulary does not have are forgotten, not believed. */
static void test_ids_beyond_the_vocabulary_are_forgotten(void **state)
{
    (void)state;
    struct file file;
    gguf_writer_init(&file.writer);
    gguf_writer_string(&file.writer, KEY("model"), "gpt2");
    gguf_writer_string(&file.writer, KEY("pre"), "llama-bpe");
    gguf_writer_strings(&file.writer, KEY("tokens"), byte_tokens, 10);
    gguf_writer_strings(&file.writer, KEY("merges"), byte_merges, 2);
    gguf_writer_u32(&file.writer, KEY("bos_token_id"), 10);
    gguf_writer_u32(&file.writer, KEY("eos_token_id"), UINT32_MAX);
    gguf_writer_u32(&file.writer, KEY("eom_token_id"), 77);
    struct tokenizer *tokenizer = file_expect(&file);
    size_t count;
    assert_int_equal(tokenizer_bos(tokenizer), TOKEN_NONE);
    assert_int_equal(tokenizer_eos(tokenizer), TOKEN_NONE);
    tokenizer_ends(tokenizer, &count);
    assert_int_equal(count, 0);
    test_encode_expect(tokenizer, "ab", 2, TOKENIZER_ADD_SPECIAL, (uint32_t[]){3}, 1, "bare");
    tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_merged),
        cmocka_unit_test(test_missing_keys_have_defaults),
        cmocka_unit_test(test_every_family_opens),
        cmocka_unit_test(test_pieces_are_merged_by_score),
        cmocka_unit_test(test_pieces_without_a_space_before),
        cmocka_unit_test(test_bad_files_are_refused_with_a_reason),
        cmocka_unit_test(test_ids_beyond_the_vocabulary_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
