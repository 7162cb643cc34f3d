/* SPDX-License-Identifier: Apache-2.0 */
/* Real vocabularies, a corpus of every script and of whatever splits text in unusual places, and for
 * each text the ids that Hugging Face's `tokenizers` gives: we must give the same, from the GGUF
 * file and from tokenizer.json alike. And the other way: tokens decoded, all at once and one by
 * one, give the text that Hugging Face's library gives.
 *
 * get-vocabularies.sh downloads the vocabularies and has the expected ids made; without it there
 * is nothing to compare with, and the test is skipped.
 *
 * usage: test_tokenizer_corpus SCRIPT     BATON_CACHE names the folder of downloads */
#include "model/detokenizer.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define SKIPPED 77
#define NOT_DOWNLOADED 69 /* the script's exit status */
#define SHOWN_MAX 5       /* differences that are printed for one vocabulary */
#define VOCABULARIES_MAX 64

/* ---- files of numbers -------------------------------------------------------------------- */

struct bytes {
    uint8_t *data;
    size_t size, at;
};

static struct bytes file_read(const char *folder, const char *name)
{
    char path[4200];
    struct bytes bytes = {0};
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    bytes.data = malloc((size_t)size + 1);
    assert_non_null(bytes.data);
    bytes.size = fread(bytes.data, 1, (size_t)size, file);
    fclose(file);
    return bytes;
}

static uint32_t next_number(struct bytes *bytes)
{
    uint32_t number;
    assert_true(bytes->size - bytes->at >= sizeof(number));
    memcpy(&number, bytes->data + bytes->at, sizeof(number));
    bytes->at += sizeof(number);
    return number;
}

static const uint8_t *next_items(struct bytes *bytes, size_t item_size, uint32_t *count)
{
    *count = next_number(bytes);
    const uint8_t *items = bytes->data + bytes->at;
    assert_true((bytes->size - bytes->at) / item_size >= *count);
    bytes->at += *count * item_size;
    return items;
}

/* ---- one vocabulary ---------------------------------------------------------------------- */

struct comparison {
    const char *name;
    const char *source; /* "gguf" or "json" */
    struct tokenizer *tokenizer;
    uint32_t texts, differences;
};

static void ids_print(const char *what, const uint8_t *ids, uint32_t count)
{
    printf("  %s", what);
    for (uint32_t i = 0; i < count && i < 60; i++) {
        uint32_t id;
        memcpy(&id, ids + i * sizeof(id), sizeof(id));
        printf(" %u", id);
    }
    printf("\n");
}

static bool difference_shown(struct comparison *comparison, const char *what, uint32_t index,
                             const uint8_t *text, uint32_t length)
{
    if (comparison->differences++ >= SHOWN_MAX)
        return false;
    printf("%s (%s), text %u, %s: ", comparison->name, comparison->source, index, what);
    for (uint32_t i = 0; i < length && i < 80; i++)
        printf(text[i] >= 0x20 && text[i] < 0x7f ? "%c" : "\\x%02x", text[i]);
    printf("\n");
    return true;
}

static void ids_compare(struct comparison *comparison, uint32_t index, const uint8_t *text,
                        uint32_t length, uint32_t flags, struct bytes *expected)
{
    static const char *const names[] = {"plain", "around", "parsed", "parsed and around"};
    struct token_list list = {0};
    char reason[256];
    uint32_t count;
    const uint8_t *ids = next_items(expected, sizeof(uint32_t), &count);
    if (tokenizer_encode(comparison->tokenizer, (const char *)text, length, flags, &list,
                         ERROR_BUFFER(reason)))
        fail_msg("%s: text %u: %s", comparison->name, index, reason);
    bool same = list.count == count;
    if (same && count)
        same = memcmp(list.ids, ids, count * sizeof(uint32_t)) == 0;
    if (!same && difference_shown(comparison, names[flags & 3], index, text, length)) {
        ids_print("expected", ids, count);
        ids_print("found   ", (uint8_t *)list.ids, (uint32_t)list.count);
    }
    token_list_free(&list);
}

static void texts_compare(struct comparison *comparison, uint32_t index,
                          const uint8_t *expected, uint32_t length,
                          const struct byte_buffer *found)
{
    bool same = found->length == length;
    if (same && length)
        same = memcmp(found->bytes, expected, length) == 0;
    if (!same && difference_shown(comparison, "decoded", index, expected, length))
        difference_shown(comparison, "found  ", index, (uint8_t *)found->bytes,
                         (uint32_t)found->length);
}

/* Decoded at once; and token by token, where every part must be whole characters. */
static void decoded_compare(struct comparison *comparison, uint32_t index, const uint8_t *ids,
                            uint32_t count, uint32_t flags, struct bytes *expected)
{
    uint32_t length;
    const uint8_t *text = next_items(expected, 1, &length);
    struct byte_buffer all = {0}, stream = {0};
    struct detokenizer detokenizer;
    uint32_t *aligned = malloc((count + 1) * sizeof(*aligned));
    assert_non_null(aligned);
    if (count)
        memcpy(aligned, ids, count * sizeof(*aligned));
    assert_int_equal(detokenizer_decode(comparison->tokenizer, aligned, count, flags, &all), 0);
    texts_compare(comparison, index, text, length, &all);

    detokenizer_init(&detokenizer, comparison->tokenizer, flags);
    for (uint32_t i = 0; i < count; i++) {
        size_t before = stream.length;
        assert_int_equal(detokenizer_push(&detokenizer, aligned[i], &stream), 0);
        size_t part = stream.length - before;
        if (part)
            assert_int_equal(utf8_valid_prefix(stream.bytes + before, part), part);
    }
    assert_int_equal(detokenizer_flush(&detokenizer, &stream), 0);
    assert_int_equal(stream.length, all.length);
    if (all.length)
        assert_memory_equal(stream.bytes, all.bytes, all.length);
    byte_buffer_free(&all);
    byte_buffer_free(&stream);
    free(aligned);
}

static void corpus_compare(struct comparison *comparison, const char *folder)
{
    struct bytes corpus = file_read(folder, "corpus"), expected = file_read(folder, "expected");
    comparison->texts = next_number(&corpus);
    assert_true(comparison->texts > 1000);
    for (uint32_t i = 0; i < comparison->texts; i++) {
        uint32_t length, count;
        const uint8_t *text = next_items(&corpus, 1, &length);
        ids_compare(comparison, i, text, length, 0, &expected);
        struct bytes parsed = expected;
        const uint8_t *ids = next_items(&parsed, sizeof(uint32_t), &count);
        ids_compare(comparison, i, text, length, TOKENIZER_PARSE_SPECIAL, &expected);
        ids_compare(comparison, i, text, length,
                    TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL, &expected);
        decoded_compare(comparison, i, ids, count, DETOKENIZER_SHOW_CONTROL, &expected);
        decoded_compare(comparison, i, ids, count, 0, &expected);
    }
    uint32_t lists = next_number(&expected);
    for (uint32_t i = 0; i < lists; i++) {
        uint32_t count;
        const uint8_t *ids = next_items(&expected, sizeof(uint32_t), &count);
        decoded_compare(comparison, i, ids, count, DETOKENIZER_SHOW_CONTROL, &expected);
    }
    assert_int_equal(expected.at, expected.size);
    free(corpus.data);
    free(expected.data);
}

/* ---- all vocabularies -------------------------------------------------------------------- */

static struct vocabulary_files {
    char name[64], folder[2048], gguf[2048];
} files[VOCABULARIES_MAX];
static size_t file_count;

static void gguf_compare(const struct vocabulary_files *vocabulary, uint32_t *differences)
{
    struct comparison comparison = {.name = vocabulary->name, .source = "gguf"};
    struct gguf *gguf;
    char reason[512];
    if (gguf_open(vocabulary->gguf, &gguf, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    if (tokenizer_open_gguf(gguf, &comparison.tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    gguf_close(gguf);
    corpus_compare(&comparison, vocabulary->folder);
    printf("%-28s gguf: %u texts, %u differences\n", vocabulary->name, comparison.texts,
           comparison.differences);
    *differences += comparison.differences;
    tokenizer_close(comparison.tokenizer);
}

static void json_compare(const struct vocabulary_files *vocabulary, uint32_t *differences)
{
    struct comparison comparison = {.name = vocabulary->name, .source = "json"};
    char reason[512];
    if (tokenizer_open_folder(vocabulary->folder, &comparison.tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    corpus_compare(&comparison, vocabulary->folder);
    printf("%-28s json: %u texts, %u differences\n", vocabulary->name, comparison.texts,
           comparison.differences);
    *differences += comparison.differences;
    tokenizer_close(comparison.tokenizer);
}

static void test_ids_equal_hugging_face(void **state)
{
    (void)state;
    uint32_t differences = 0;
    for (size_t i = 0; i < file_count; i++) {
        if (files[i].gguf[0] != '-')
            gguf_compare(&files[i], &differences);
        json_compare(&files[i], &differences);
    }
    assert_int_equal(differences, 0);
}

/* The script prints a line for each vocabulary: name, folder, GGUF file or "-". */
static int files_find(const char *script)
{
    char command[4200];
    snprintf(command, sizeof(command), "'%s' expected", script);
    FILE *list = popen(command, "r");
    if (!list)
        return -1;
    while (file_count < VOCABULARIES_MAX) {
        struct vocabulary_files *next = &files[file_count];
        if (fscanf(list, "%63s %2047s %2047s", next->name, next->folder, next->gguf) != 3)
            break;
        file_count++;
    }
    return pclose(list);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids_equal_hugging_face)};
    if (argc != 2)
        return 2;
    int status = files_find(argv[1]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_DOWNLOADED) {
        printf("skipped: the vocabularies could not be downloaded (see above)\n");
        return SKIPPED;
    }
    if (status || !file_count) {
        printf("%s failed (see above)\n", argv[1]);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
