/* SPDX-License-Identifier: Apache-2.0 */
/* Prints how fast a megabyte of mixed text is encoded, one thread, beside Hugging Face's `tokenizers`
 * on the same text in the same run, and what memory a tokenizer holds. Asserts no time, only
 * that both found the same number of tokens.
 *
 * usage: test_tokenizer_speed SCRIPT     BATON_CACHE names the folder of downloads */
#include "test_tokenizer_files.h"

#include "model/detokenizer.h"
#include "model/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define SKIPPED 77
#define NOT_DOWNLOADED 69 /* the script's exit status */
#define ROUNDS 5
#define VOCABULARIES_MAX 16

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static struct theirs {
    char name[64], line[512], gguf[2048];
    size_t tokens;
} theirs[VOCABULARIES_MAX];
static size_t theirs_count;
static char text_path[2048];

static void decode_measure(struct tokenizer *tokenizer, const struct token_list *list)
{
    struct byte_buffer out = {0};
    double start = now_ms();
    assert_int_equal(detokenizer_decode(tokenizer, list->ids, list->count, 0, &out), 0);
    double spent = now_ms() - start;
    printf("%28s decoding: %.2f M tokens/s\n", "", (double)list->count / spent / 1e3);
    byte_buffer_free(&out);
}

static void vocabulary_measure(const struct theirs *other, const char *text, size_t length)
{
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct token_list list = {0};
    char reason[512];
    double start = now_ms(), best = 1e9;
    if (gguf_open(other->gguf, &gguf, ERROR_BUFFER(reason)) ||
        tokenizer_open_gguf(gguf, &tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    double opened = now_ms() - start;
    gguf_close(gguf);
    for (int round = 0; round < ROUNDS; round++) {
        list.count = 0;
        start = now_ms();
        assert_int_equal(tokenizer_encode(tokenizer, text, length, TOKENIZER_PARSE_SPECIAL,
                                          &list, ERROR_NONE),
                         0);
        double spent = now_ms() - start;
        best = spent < best ? spent : best;
    }
    printf("%s", other->line);
    printf("%-28s baton: %zu tokens in %.0f ms, %.2f M tokens/s, memory %.1f MB, opened in "
           "%.0f ms\n",
           other->name, list.count, best, (double)list.count / best / 1e3,
           (double)tokenizer_memory(tokenizer) / 1e6, opened);
    decode_measure(tokenizer, &list);
    assert_int_equal(list.count, other->tokens);
    token_list_free(&list);
    tokenizer_close(tokenizer);
}

static void test_speed_is_printed(void **state)
{
    (void)state;
    size_t length;
    char *text = test_file_read("", text_path, &length);
    assert_true(theirs_count > 0);
    for (size_t i = 0; i < theirs_count; i++)
        vocabulary_measure(&theirs[i], text, length);
    free(text);
}

/* The path of the text, then lines "name ...: N tokens in ...". */
static int speed_run(const char *script)
{
    char command[4200];
    snprintf(command, sizeof(command), "'%s' speed", script);
    FILE *list = popen(command, "r");
    if (!list)
        return -1;
    if (fscanf(list, "%2047s ", text_path) != 1)
        text_path[0] = '\0';
    while (theirs_count < VOCABULARIES_MAX) {
        struct theirs *next = &theirs[theirs_count];
        if (!fgets(next->line, sizeof(next->line), list))
            break;
        const char *tokens = strchr(next->line, ':');
        if (tokens && sscanf(next->line, "%63s", next->name) == 1 &&
            sscanf(tokens, ": %zu tokens", &next->tokens) == 1)
            theirs_count++;
    }
    return pclose(list);
}

/* Where the script keeps the GGUF files of these names. */
static int files_find(const char *script)
{
    char command[4200], name[64], folder[2048], gguf[2048];
    snprintf(command, sizeof(command), "'%s' expected", script);
    FILE *list = popen(command, "r");
    if (!list)
        return -1;
    while (fscanf(list, "%63s %2047s %2047s", name, folder, gguf) == 3) {
        for (size_t i = 0; i < theirs_count; i++) {
            if (strcmp(theirs[i].name, name) == 0)
                memcpy(theirs[i].gguf, gguf, sizeof(gguf));
        }
    }
    return pclose(list);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_speed_is_printed)};
    if (argc != 2)
        return 2;
    int status = speed_run(argv[1]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_DOWNLOADED) {
        printf("skipped: the vocabularies could not be downloaded (see above)\n");
        return SKIPPED;
    }
    if (status || files_find(argv[1])) {
        printf("%s failed (see above)\n", argv[1]);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
