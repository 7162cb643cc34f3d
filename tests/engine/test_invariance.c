/* SPDX-License-Identifier: Apache-2.0 */
/* The same tokens, always: the logits of a sequence have the same bits whatever else is in the step,
 * however the prompt is cut, whether its beginning was computed in another sequence, whatever the
 * pages, the threads, the ranks and the kernels are. Each test computes the logits the plain way
 * (alone, at once, one thread, portable kernels) and then in another. Kernels with fine quants have
 * portable ones of their own. */
#include "engine/cpu/cpu_kernels.h"
#include "random_weights.h"
#include "tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH 80 /* more than a tile of attention */
#define PAGES 8   /* of a sequence */

struct plain {
    struct tiny_model model;
    int32_t tokens[LENGTH];
    int32_t pages[PAGES];
    float *logits;
    size_t row; /* floats in a row */
};

/* ---- the plain way -------------------------------------------------------------------------- */

static void plain_make(struct plain *plain, const struct model_config *config,
                       enum tensor_type type, bool fine)
{
    struct random_stream random = {type + 77};
    tiny_model_random(&plain->model, config, type, 5);
    plain->row = config->vocab_size;
    plain->logits = malloc(LENGTH * plain->row * sizeof(float));
    assert_non_null(plain->logits);
    for (int i = 0; i < LENGTH; i++)
        plain->tokens[i] = (int32_t)random_stream_below(&random, config->vocab_size);
    for (int i = 0; i < PAGES; i++)
        plain->pages[i] = (i * 3 + 5) % PAGES; /* in no particular order */
    struct session_options options = session_defaults;
    struct session session;
    options.kernels = fine ? "portable12" : "portable";
    session_open(&session, &plain->model, &options);
    session_run(&session, plain->tokens, 0, LENGTH, plain->pages, PAGES, plain->logits);
    session_close(&session);
}

static void plain_free(struct plain *plain)
{
    free(plain->logits);
    tiny_model_free(&plain->model);
}

static void check_rows(const struct plain *plain, const char *how, uint32_t position,
                       uint32_t count, const float *logits)
{
    const float *expected = plain->logits + position * plain->row;
    for (uint32_t i = 0; i < count * plain->row; i++)
        if (memcmp(&logits[i], &expected[i], sizeof(float)))
            fail_msg("%s: position %zu, logit %zu is %.9g instead of %.9g", how,
                     position + i / plain->row, i % plain->row, (double)logits[i],
                     (double)expected[i]);
}

/* The whole sequence in pieces of `piece` tokens, with these options. */
static void check_options(const struct plain *plain, const char *how,
                          const struct session_options *options, uint32_t piece)
{
    struct session session;
    float *logits = malloc(LENGTH * plain->row * sizeof(float));
    assert_non_null(logits);
    session_open(&session, &plain->model, options);
    for (uint32_t at = 0; at < LENGTH; at += piece) {
        uint32_t count = LENGTH - at < piece ? LENGTH - at : piece;
        session_run(&session, plain->tokens, at, count, plain->pages, PAGES, logits);
        check_rows(plain, how, at, count, logits);
    }
    session_close(&session);
    free(logits);
}

/* ---- other ways ----------------------------------------------------------------------------- */

static void check_kernels(const struct plain *plain, bool fine)
{
    const struct cpu_kernels *tables[CPU_KERNELS_MAX];
    uint32_t count = cpu_kernels_available(tables);
    for (uint32_t t = 0; t < count; t++) {
        if (tables[t]->fine != fine)
            continue;
        struct session_options options = session_defaults;
        options.kernels = tables[t]->name;
        check_options(plain, tables[t]->name, &options, LENGTH);
    }
}

static void check_pieces(const struct plain *plain)
{
    const uint32_t pieces[] = {1, 3, 64};
    for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++)
        check_options(plain, "in pieces", &session_defaults, pieces[i]);
}

static void check_threads_and_ranks(const struct plain *plain)
{
    static const struct {
        uint32_t ranks, threads, piece; /* threads of each rank */
    } cases[] = {{1, 2, LENGTH}, {1, 5, 30}, {2, 1, 30}, {2, 2, LENGTH},
                 {4, 1, LENGTH}, {4, 2, 30}, {8, 1, 30}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (engine_units(&plain->model.config) % cases[i].ranks)
            continue;
        struct session_options options = session_defaults;
        char how[64];
        options.ranks = cases[i].ranks;
        options.threads = cases[i].ranks * cases[i].threads;
        snprintf(how, sizeof(how), "%u ranks of %u threads", cases[i].ranks, cases[i].threads);
        check_options(plain, how, &options, cases[i].piece);
    }
}

static void check_pages(const struct plain *plain)
{
    struct session_options options = session_defaults;
    options.order = PAGE_ORDER_BY_LAYER;
    check_options(plain, "pages by layer", &options, LENGTH);
    options.order = PAGE_ORDER_BY_HEAD;
    check_options(plain, "pages by head", &options, LENGTH);
    const uint32_t sizes[] = {11, 64};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        options.tokens_per_page = sizes[i];
        check_options(plain, "pages of another size", &options, 33);
    }
}

/* Three sequences in every step: the one that is looked at, cut in pieces, another that is always
 * at its end, and one that begins anew. */
static void check_company(const struct plain *plain)
{
    struct session session;
    struct session_options options = session_defaults;
    char text[256] = "";
    int32_t others[2][PAGES], other[LENGTH];
    float *logits = malloc((LENGTH + 2) * plain->row * sizeof(float));
    assert_non_null(logits);
    options.threads = 2;
    session_open(&session, &plain->model, &options);
    for (int i = 0; i < PAGES; i++) {
        others[0][i] = 2 * PAGES + i;
        others[1][i] = 3 * PAGES + i;
    }
    for (int i = 0; i < LENGTH; i++)
        other[i] = (plain->tokens[i] + 1 + i) % (int32_t)plain->row;
    uint32_t at = 0;
    for (uint32_t step = 0; at < LENGTH; step++) {
        uint32_t piece = step % 3 == 0 ? 1 : 11 + step;
        if (piece > LENGTH - at)
            piece = LENGTH - at;
        const struct engine_sequence sequences[3] = {
            {other + step, 1, step, others[0], PAGES, 1},
            {plain->tokens + at, piece, at, plain->pages, PAGES, piece},
            {other, 1 + step % 20, 0, others[1], PAGES, 1},
        };
        if (engine_step(session.engine, sequences, 3, logits, ERROR_BUFFER(text)))
            fail_msg("%s", text);
        check_rows(plain, "in company", at, piece, logits + plain->row);
        at += piece;
    }
    session_close(&session);
    free(logits);
}

/* The first pages are those of another sequence that began alike. */
static void check_shared_prefix(const struct plain *plain)
{
    struct session session;
    const uint32_t shared = 48; /* three pages */
    int32_t first[PAGES], second[PAGES], other[LENGTH];
    float *logits = malloc(LENGTH * plain->row * sizeof(float));
    assert_non_null(logits);
    memcpy(other, plain->tokens, sizeof(other));
    for (int i = 0; i < PAGES; i++) {
        first[i] = PAGES + i;
        second[i] = i < 3 ? first[i] : 2 * PAGES + i;
    }
    for (uint32_t i = shared; i < LENGTH; i++)
        other[i] = (other[i] + 1) % (int32_t)plain->row;
    session_open(&session, &plain->model, &session_defaults);
    session_run(&session, other, 0, LENGTH, first, PAGES, NULL);
    session_run(&session, plain->tokens, shared, LENGTH - shared, second, PAGES, logits);
    check_rows(plain, "after a shared prefix", shared, LENGTH - shared, logits);
    session_close(&session);
    free(logits);
}

/* Everything with the best kernels, and the others as they are. */
static void check_all(const struct model_config *config, enum tensor_type type)
{
    const struct cpu_kernels *best;
    assert_int_equal(cpu_kernels_find(NULL, &best, ERROR_NONE), BATON_OK);
    struct plain plain;
    plain_make(&plain, config, type, best->fine);
    check_kernels(&plain, best->fine);
    check_pieces(&plain);
    check_threads_and_ranks(&plain);
    check_pages(&plain);
    check_company(&plain);
    check_shared_prefix(&plain);
    plain_free(&plain);
    if (GROUP_PARTS == 1)
        return; /* there are no fine ones */
    plain_make(&plain, config, type, !best->fine);
    check_kernels(&plain, !best->fine);
    plain_free(&plain);
}

/* ---- models --------------------------------------------------------------------------------- */

static void test_llama_q4_1(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_LLAMA, 4, 96, 224);
    check_all(&config, TENSOR_Q4_1);
}

static void test_qwen2_q8_0(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_QWEN2, 2, 64, 96);
    config.tied_embeddings = false;
    check_all(&config, TENSOR_Q8_0);
}

static void test_qwen3_bf16(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_QWEN3, 4, 80, 100); /* not whole blocks */
    check_all(&config, TENSOR_BF16);
}

static void test_llama_q4_k(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_LLAMA, 4, 256, 256);
    check_all(&config, TENSOR_Q4_K);
}

static void test_llama_q6_k(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_LLAMA, 4, 256, 512);
    check_all(&config, TENSOR_Q6_K);
}

/* One KV head, which all ranks keep. */
static void test_one_kv_head_q4_1(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_QWEN3, 1, 96, 224);
    config.head_count = 8;
    assert_int_equal(engine_units(&config), 8);
    check_all(&config, TENSOR_Q4_1);
}

/* Six query heads for each of two KV heads: four ranks with three, but not eight. */
static void test_three_heads_a_rank_q8_0(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_LLAMA, 2, 96, 224);
    config.head_count = 12;
    assert_int_equal(engine_units(&config), 4);
    check_all(&config, TENSOR_Q8_0);
}

static void test_units_follow_from_the_heads(void **state)
{
    (void)state;
    static const struct {
        uint32_t heads, kv_heads, head_dim, units;
    } models[] = {
        {9, 3, 64, 3},   /* three query heads of each KV head cannot be halved */
        {14, 2, 64, 2},  /* nor seven */
        {32, 8, 128, 8}, /* enough KV heads */
        {64, 16, 128, 16}, {32, 4, 64, 8}, /* KV heads on two ranks each */
        {8, 2, 32, 8},                     /* a query head for each of eight ranks */
        {8, 4, 16, 4},                     /* which would be half a block here */
        {8, 8, 16, 1},                     /* as it is here for each KV head */
        {8, 2, 24, 1},                     /* not whole panels */
    };
    for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++) {
        struct model_config config = tiny_config(MODEL_LLAMA, models[i].kv_heads, 64, 96);
        config.head_count = models[i].heads;
        config.head_dim = models[i].head_dim;
        assert_int_equal(engine_units(&config), models[i].units);
    }
}

/* Heads that are not whole blocks: the model cannot be split, but runs. */
static void test_odd_heads_q4_0(void **state)
{
    (void)state;
    struct model_config config = tiny_config(MODEL_LLAMA, 4, 64, 96);
    config.head_dim = 20;
    assert_int_equal(engine_units(&config), 1);
    check_all(&config, TENSOR_Q4_0);
}

/* A single stream with a context so long that the threads divide its tiles. */
#define LONG 300

static void run_long(const struct tiny_model *model, const struct session_options *options,
                     const int32_t *tokens, float *logits)
{
    struct session session;
    int32_t pages[LONG / 16 + 1];
    uint32_t count = sizeof(pages) / sizeof(*pages);
    for (uint32_t i = 0; i < count; i++)
        pages[i] = (int32_t)(2 * i);
    session_open(&session, model, options);
    session_run(&session, tokens, 0, 250, pages, count, NULL);
    for (uint32_t at = 250; at < LONG; at++) /* before and after the division begins */
        session_run(&session, tokens, at, 1, pages, count,
                    logits + (size_t)(at - 250) * session.vocab_size);
    session_close(&session);
}

static void test_long_context_on_many_threads(void **state)
{
    (void)state;
    const uint32_t crews[][2] = {{1, 2}, {1, 5}, {2, 3}, {8, 2}}; /* ranks, threads of each */
    for (int odd = 0; odd < 2; odd++) {
        struct model_config config = tiny_config(MODEL_LLAMA, 4, 96, 96);
        struct tiny_model model;
        int32_t tokens[LONG];
        size_t floats = (LONG - 250) * (size_t)config.vocab_size;
        float *expected = malloc(floats * sizeof(float)),
              *found = malloc(floats * sizeof(float));
        assert_true(expected && found);
        config.head_dim = odd ? 20 : 32;
        for (int i = 0; i < LONG; i++)
            tokens[i] = i * 37 % (int32_t)config.vocab_size;
        tiny_model_random(&model, &config, TENSOR_Q4_1, 9);
        run_long(&model, &session_defaults, tokens, expected);
        for (size_t i = 0; i < sizeof(crews) / sizeof(*crews); i++) {
            struct session_options options = session_defaults;
            if (engine_units(&config) % crews[i][0])
                continue;
            options.ranks = crews[i][0];
            options.threads = crews[i][0] * crews[i][1];
            run_long(&model, &options, tokens, found);
            assert_memory_equal(found, expected, floats * sizeof(float));
        }
        tiny_model_free(&model);
        free(found);
        free(expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_q4_1),
        cmocka_unit_test(test_qwen2_q8_0),
        cmocka_unit_test(test_qwen3_bf16),
        cmocka_unit_test(test_llama_q4_k),
        cmocka_unit_test(test_llama_q6_k),
        cmocka_unit_test(test_one_kv_head_q4_1),
        cmocka_unit_test(test_three_heads_a_rank_q8_0),
        cmocka_unit_test(test_units_follow_from_the_heads),
        cmocka_unit_test(test_odd_heads_q4_0),
        cmocka_unit_test(test_long_context_on_many_threads),
    };
    return cmocka_run_group_tests_name("engine.invariance", tests, NULL, NULL);
}
