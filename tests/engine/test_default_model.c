/* SPDX-License-Identifier: Apache-2.0 */
/* The default model continues prompts as `transformers` does in float32 (golden/default_model.txt):
 * after every token of the golden text the best next one is the golden one. Activations are rounded
 * to 8 or 12 bits here, so that two tokens whose logits are closer than GAP may change places; where they
 * do, it is said.
 * usage: test_default_model SCRIPT CACHE GOLDEN */
#include "engine/engine.h"
#include "model/model_file.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define GAP 0.5
#define NUMBERS_MAX 256
#define PAGES 32
#define LOGITS_MAX 64
#define SKIPPED 77

static char model_path[4096];
static char *golden;

/* ---- the file and the golden tokens --------------------------------------------------------- */

static bool bring_model(const char *script, const char *cache)
{
    char command[2048];
    if (setenv("BATON_CACHE", cache, 0))
        return false;
    snprintf(command, sizeof(command), "'%s'", script);
    FILE *output = popen(command, "r");
    if (!output)
        return false;
    bool printed = fgets(model_path, sizeof(model_path), output) != NULL;
    int status = pclose(output);
    model_path[strcspn(model_path, "\n")] = '\0';
    if (printed && status == 0)
        return true;
    printf("skipped: %s exited with %d; its messages are above\n", script, WEXITSTATUS(status));
    return false;
}

static bool read_golden(const char *path)
{
    FILE *file = fopen(path, "r");
    golden = calloc(1, 1 << 16);
    if (!file || !golden)
        return false;
    size_t size = fread(golden, 1, (1 << 16) - 1, file);
    fclose(file);
    return size > 0;
}

/* The next number; lines that begin with # mean nothing. */
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

static uint32_t next_list(const char **at, double *numbers)
{
    uint32_t count = (uint32_t)next_number(at);
    assert_in_range(count, 1, NUMBERS_MAX);
    for (uint32_t i = 0; i < count; i++)
        numbers[i] = next_number(at);
    return count;
}

/* ---- running -------------------------------------------------------------------------------- */

static struct engine *open_engine(void **pool)
{
    char text[512];
    struct error err = ERROR_BUFFER(text);
    struct model_file *file;
    struct engine *engine;
    struct page_shape shape;
    struct page_layout layout;
    const struct engine_options options = {
        .rank_count = 1, .threads = 2, .tokens_max = NUMBERS_MAX, .logits_max = LOGITS_MAX};
    if (model_file_open(model_path, &file, err))
        fail_msg("%s", text);
    if (engine_open(model_file_config(file), model_file_weights(file), &options, NULL, NULL,
                    &engine, err))
        fail_msg("%s", text);
    model_file_close(file); /* not needed any more */
    if (engine_page_shape(engine_config(engine), 1, PAGE_ELEMENT_F16, 16, &shape, err) ||
        page_layout_make(&shape, PAGE_ORDER_DEFAULT, &layout, err))
        fail_msg("%s", text);
    *pool = malloc(PAGES * layout.page_stride);
    assert_non_null(*pool);
    if (engine_set_pages(engine, 0, &layout, *pool, PAGES, err))
        fail_msg("%s", text);
    return engine;
}

static int32_t best_of(const float *logits, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* How many of the golden tokens are not the best ones here. One step computes the whole text: a
 * token's logits are the same as if it came alone (test_invariance.c). */
static uint32_t compare_text(struct engine *engine, const double *prompt, uint32_t length,
                             const double *expected, const double *gaps, uint32_t count,
                             float *logits)
{
    char text[512];
    int32_t tokens[2 * NUMBERS_MAX], pages[PAGES];
    uint32_t turned = 0, vocab_size = engine_config(engine)->vocab_size;
    for (int32_t i = 0; i < PAGES; i++)
        pages[i] = i;
    for (uint32_t i = 0; i < length + count - 1; i++)
        tokens[i] = (int32_t)(i < length ? prompt[i] : expected[i - length]);
    const struct engine_sequence sequence = {tokens, length + count - 1, 0, pages, PAGES,
                                             count};
    if (engine_step(engine, &sequence, 1, logits, ERROR_BUFFER(text)))
        fail_msg("%s", text);
    for (uint32_t i = 0; i < count; i++) {
        int32_t best = best_of(logits + (size_t)i * vocab_size, vocab_size);
        if (best == (int32_t)expected[i])
            continue;
        if (gaps[i] >= GAP)
            fail_msg("token %u is %d instead of %d, which was ahead by %.2f", i, best,
                     (int)expected[i], gaps[i]);
        printf("token %u: %d instead of %d, which was ahead by %.3f\n", i, best,
               (int)expected[i], gaps[i]);
        turned++;
    }
    return turned;
}

static void test_continuations(void **state)
{
    (void)state;
    void *pool;
    struct engine *engine = open_engine(&pool);
    float *logits = malloc(LOGITS_MAX * sizeof(float) * engine_config(engine)->vocab_size);
    const char *at = golden;
    uint32_t turned = 0, all = 0, prompts = (uint32_t)next_number(&at);
    assert_non_null(logits);
    for (uint32_t p = 0; p < prompts; p++) {
        double prompt[NUMBERS_MAX], expected[NUMBERS_MAX], gaps[NUMBERS_MAX];
        uint32_t length = next_list(&at, prompt), count = next_list(&at, expected);
        assert_int_equal(next_list(&at, gaps), count);
        assert_in_range(count, 1, LOGITS_MAX);
        turned += compare_text(engine, prompt, length, expected, gaps, count, logits);
        all += count;
    }
    printf("%u of %u tokens differ (%s)\n", turned, all, engine_kernels_name(engine));
    assert_true(turned <= all / 10);
    free(logits);
    engine_close(engine);
    free(pool);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_continuations),
    };
    if (argc != 4) {
        fprintf(stderr, "usage: %s SCRIPT CACHE GOLDEN\n", argv[0]);
        return 2;
    }
    if (!bring_model(argv[1], argv[2]))
        return SKIPPED;
    if (!read_golden(argv[3])) {
        fprintf(stderr, "%s cannot be read\n", argv[3]);
        return 1;
    }
    int failed = cmocka_run_group_tests_name("engine.default_model", tests, NULL, NULL);
    free(golden);
    return failed;
}
