/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabularies that llama.cpp tests with, and the ids that it expects of 46 texts each, made by
 * the models' own tokenizers. Vocabularies of kinds that are not read here must be refused with a
 * reason. Skipped where they cannot be downloaded.
 *
 * usage: test_tokenizer_vocabularies SCRIPT     BATON_CACHE names the folder of downloads */
#include "test_tokenizer_files.h"

#include "model/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define SKIPPED 77
#define NOT_DOWNLOADED 69 /* the script's exit status */
#define SEPARATOR "\n__ggml_vocab_test__\n"

static char folder[2048];

/* Not qwen35: its ids were made without bringing text to NFC, which the model's tokenizer does; and
 * not those without texts. */
static const char *const names[] = {
    "gpt-2",  "mpt",       "llama-bpe",      "llama-spm",    "phi-3",   "qwen2",
    "refact", "starcoder", "deepseek-coder", "deepseek-llm", "gemma-4", "command-r",
};

static struct tokenizer *vocabulary_open(const char *name, int *code, char reason[512])
{
    char path[2200];
    struct gguf *gguf;
    struct tokenizer *tokenizer = NULL;
    snprintf(path, sizeof(path), "%s/ggml-vocab-%s.gguf", folder, name);
    if (gguf_open(path, &gguf, (struct error){reason, 512}))
        fail_msg("%s", reason);
    *code = tokenizer_open_gguf(gguf, &tokenizer, (struct error){reason, 512});
    gguf_close(gguf);
    return tokenizer;
}

/* One line: ids in decimal, separated by spaces. */
static uint32_t *line_read(char **at, size_t *count)
{
    char *line = *at, *end = line + strcspn(line, "\n");
    uint32_t *ids = malloc(((size_t)(end - line) + 1) * sizeof(*ids));
    assert_non_null(ids);
    *count = 0;
    while (line < end) {
        char *next;
        unsigned long id = strtoul(line, &next, 10);
        if (next == line || next > end)
            break;
        ids[(*count)++] = (uint32_t)id;
        line = next;
    }
    *at = *end ? end + 1 : end;
    return ids;
}

static void vocabulary_expect(const char *name)
{
    char file[128], reason[512];
    size_t size, count, texts = 0;
    int code;
    struct tokenizer *tokenizer = vocabulary_open(name, &code, reason);
    if (code)
        fail_msg("%s", reason);
    snprintf(file, sizeof(file), "ggml-vocab-%s.gguf.inp", name);
    char *in = test_file_read(folder, file, &size), *text = in;
    snprintf(file, sizeof(file), "ggml-vocab-%s.gguf.out", name);
    char *out = test_file_read(folder, file, &size), *line = out;
    while (*line) {
        char *end = strstr(text, SEPARATOR);
        size_t length = end ? (size_t)(end - text) : strlen(text);
        uint32_t *ids = line_read(&line, &count);
        test_encode_expect(tokenizer, text, length, 0, ids, count, name);
        free(ids);
        texts++;
        text = end ? end + strlen(SEPARATOR) : text + length;
    }
    assert_int_equal(strlen(text), 0);
    assert_true(texts >= 46);
    free(in);
    free(out);
    tokenizer_close(tokenizer);
}

static void test_ids_are_those_expected(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        vocabulary_expect(names[i]);
}

static void test_other_kinds_are_refused(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        {"bert-bge", "\"bert\""}, {"nomic-bert-moe", "\"t5\""}, {"falcon", "\"falcon\""}};
    for (size_t i = 0; i < 3; i++) {
        char reason[512] = "";
        int code;
        struct tokenizer *tokenizer = vocabulary_open(refused[i][0], &code, reason);
        assert_int_equal(code, BATON_EUNSUPPORTED);
        assert_null(tokenizer);
        assert_non_null(strstr(reason, refused[i][1]));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_are_those_expected),
        cmocka_unit_test(test_other_kinds_are_refused),
    };
    char command[4200];
    if (argc != 2)
        return 2;
    snprintf(command, sizeof(command), "'%s' files", argv[1]);
    FILE *script = popen(command, "r");
    bool told = script && fscanf(script, "%2047s", folder) == 1;
    int status = script ? pclose(script) : -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_DOWNLOADED) {
        printf("skipped: the vocabularies could not be downloaded (see above)\n");
        return SKIPPED;
    }
    if (status || !told) {
        printf("%s failed (see above)\n", argv[1]);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
