/* SPDX-License-Identifier: Apache-2.0 */
/* Small models of every family against the logits that `transformers` computed for them in float32
 * (golden/make_golden.py), to within 1e-4; with every table of kernels. The models are read from
 * Hugging Face folders, as a user's are.
 * usage: test_golden FOLDER */
#include "engine/cpu/cpu_kernels.h"
#include "model/model_file.h"
#include "tiny_folder.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX 256
#define TOLERANCE 1e-4

static const char *folder;

static char *read_text(const char *name, const char *suffix)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s.%s", folder, name, suffix);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s cannot be opened", path);
    char *text = calloc(1, 1 << 18);
    assert_non_null(text);
    size_t size = fread(text, 1, (1 << 18) - 1, file);
    assert_true(size > 0);
    fclose(file);
    return text;
}

/* The next number of a text in which lines that begin with # mean nothing. */
static double next_number(const char **at)
{
    char *end;
    while (**at == '#')
        *at = strchr(*at, '\n') + 1;
    double number = strtod(*at, &end);
    assert_ptr_not_equal(end, *at);
    *at = end + strspn(end, " \n");
    return number;
}

static uint32_t read_tokens(const char **at, int32_t *tokens)
{
    uint32_t count = (uint32_t)next_number(at);
    assert_in_range(count, 1, TOKENS_MAX);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)next_number(at);
    return count;
}

static void compare(const char *name, const char *kernels, const char *at, const float *logits,
                    uint32_t vocab_size)
{
    uint32_t positions = (uint32_t)next_number(&at);
    assert_int_equal((uint32_t)next_number(&at), vocab_size);
    assert_true(positions > 0);
    double worst = 0;
    for (uint32_t p = 0; p < positions; p++) {
        uint32_t position = (uint32_t)next_number(&at);
        for (uint32_t i = 0; i < vocab_size; i++) {
            double expected = next_number(&at);
            double found = logits[(size_t)position * vocab_size + i];
            worst = fmax(worst, fabs(found - expected));
            if (!(fabs(found - expected) <= TOLERANCE * fmax(1.0, fabs(expected) / 10)))
                fail_msg("%s with %s: position %u, logit %u is %.8g, transformers has %.8g",
                         name, kernels, position, i, found, expected);
        }
    }
    printf("%s with %s: largest difference %.2g\n", name, kernels, worst);
}

static void check_model(const char *name)
{
    char error[512];
    char *text = read_text(name, "json"), *golden = read_text(name, "txt");
    json_t *json = json_loads(text, 0, NULL);
    struct model_config config;
    assert_non_null(json);
    if (model_config_from_json(json, NULL, folder, &config, ERROR_BUFFER(error)))
        fail_msg("%s.json: %s", name, error);
    struct tiny_model model;
    tiny_model_by_formula(&model, &config);
    char path[] = "/tmp/baton-golden-XXXXXX";
    struct model_file *file;
    tiny_folder_make(path, text, &model);
    if (model_file_open(path, &file, ERROR_BUFFER(error)))
        fail_msg("%s: %s", path, error);
    const struct tiny_model of_folder = {*model_file_config(file), *model_file_weights(file)};
    const struct cpu_kernels *tables[CPU_KERNELS_MAX];
    uint32_t count = cpu_kernels_available(tables);
    int32_t tokens[TOKENS_MAX], pages[TOKENS_MAX];
    for (int32_t i = 0; i < TOKENS_MAX; i++)
        pages[i] = i;
    float *logits = malloc(sizeof(float) * TOKENS_MAX * config.vocab_size);
    assert_non_null(logits);
    for (uint32_t t = 0; t < count; t++) {
        struct session_options options = session_defaults;
        struct session session;
        const char *at = golden;
        uint32_t length = read_tokens(&at, tokens);
        options.kernels = tables[t]->name;
        options.element = PAGE_ELEMENT_F32;
        session_open(&session, &of_folder, &options);
        session_run(&session, tokens, 0, length, pages, options.pages, logits);
        compare(name, tables[t]->name, at, logits, config.vocab_size);
        session_close(&session);
    }
    free(logits);
    model_file_close(file);
    tiny_folder_remove(path);
    tiny_model_free(&model);
    json_decref(json);
    free(golden);
    free(text);
}

static void test_llama(void **state)
{
    (void)state;
    check_model("llama");
}

static void test_llama_with_scaled_rotation(void **state)
{
    (void)state;
    check_model("llama3");
}

static void test_qwen2(void **state)
{
    (void)state;
    check_model("qwen2");
}

static void test_qwen3(void **state)
{
    (void)state;
    check_model("qwen3");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_with_scaled_rotation),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests_name("engine.golden", tests, NULL, NULL);
}
