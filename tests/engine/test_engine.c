/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine refuses, with reasons a person can use, and that a refused step changes nothing. */
#include "tiny_model.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 8

static struct tiny_model model;
static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};

static int setup(void **state)
{
    struct model_config config = tiny_config(MODEL_LLAMA, 4, 64, 96);
    (void)state;
    config.context_length = 100;
    tiny_model_random(&model, &config, TENSOR_Q8_0, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_model_free(&model);
    return 0;
}

static void check_refused(struct session *session, struct engine_sequence sequence, int code,
                          const char *reason)
{
    char text[256] = "";
    float *logits = malloc(sizeof(tokens) / 4 * session->vocab_size * sizeof(float));
    assert_non_null(logits);
    int rc = engine_step(session->engine, &sequence, 1, logits, ERROR_BUFFER(text));
    if (rc != code || !strstr(text, reason))
        fail_msg("%d \"%s\", expected %d \"%s\"", rc, text, code, reason);
    free(logits);
}

static void test_bad_steps_are_refused(void **state)
{
    (void)state;
    struct session session;
    struct session_options options = session_defaults;
    const struct engine_sequence good = {tokens, 8, 0, pages, PAGES, 1};
    const int32_t bad_tokens[] = {1, 128}, negative_tokens[] = {-1}, bad_pages[] = {64},
                  negative_pages[] = {-1};
    struct engine_sequence bad;
    options.tokens_max = 8;
    session_open(&session, &model, &options);
    bad = good, bad.token_count = 0;
    check_refused(&session, bad, BATON_EINVAL, "0 new tokens");
    bad = good, bad.logits_count = 9;
    check_refused(&session, bad, BATON_EINVAL, "logits of 9");
    bad = good, bad.tokens = bad_tokens, bad.token_count = 2;
    check_refused(&session, bad, BATON_EINVAL, "token 128 of sequence 0; the model knows 128");
    bad = good, bad.tokens = negative_tokens, bad.token_count = 1;
    check_refused(&session, bad, BATON_EINVAL, "token -1");
    bad = good, bad.pages = bad_pages;
    check_refused(&session, bad, BATON_EINVAL, "page 64 of sequence 0; there are 64");
    bad = good, bad.pages = negative_pages;
    check_refused(&session, bad, BATON_EINVAL, "page -1");
    bad = good, bad.page_count = 0;
    check_refused(&session, bad, BATON_EINVAL, "has 0 pages for 8 positions, needs 1");
    bad = good, bad.position = 60, bad.page_count = 4;
    check_refused(&session, bad, BATON_EINVAL, "has 4 pages for 68 positions, needs 5");
    bad = good, bad.position = 93;
    check_refused(&session, bad, BATON_EINVAL, "100");
    bad = good, bad.position = UINT32_MAX;
    check_refused(&session, bad, BATON_EINVAL, "would have");
    session_close(&session);
}

static void test_too_many_tokens_are_refused(void **state)
{
    (void)state;
    struct session session;
    struct session_options options = session_defaults;
    char text[256] = "";
    const struct engine_sequence two[2] = {{tokens, 5, 0, pages, 1, 0},
                                           {tokens, 4, 0, pages + 1, 1, 0}};
    options.tokens_max = 8;
    session_open(&session, &model, &options);
    assert_int_equal(engine_step(session.engine, two, 2, NULL, ERROR_BUFFER(text)),
                     BATON_EINVAL);
    assert_non_null(strstr(text, "a step of 9 tokens"));
    assert_int_equal(engine_step(session.engine, two, 0, NULL, ERROR_BUFFER(text)),
                     BATON_EINVAL);
    assert_int_equal(engine_step(session.engine, two, 1, NULL, ERROR_BUFFER(text)), BATON_OK);
    session_close(&session);
}

static void test_a_refused_step_stores_nothing(void **state)
{
    (void)state;
    struct session session;
    const int32_t bad_tokens[] = {1, 2, 500};
    session_open(&session, &model, &session_defaults);
    size_t bytes = 4096;
    char *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, session.pools[0], bytes);
    check_refused(&session, (struct engine_sequence){bad_tokens, 3, 0, pages, PAGES, 1},
                  BATON_EINVAL, "token 500");
    assert_memory_equal(before, session.pools[0], bytes);
    session_run(&session, tokens, 0, 8, pages, PAGES, NULL);
    assert_memory_not_equal(before, session.pools[0], bytes);
    free(before);
    session_close(&session);
}

static void test_layers_are_counted(void **state)
{
    (void)state;
    struct session session;
    struct session_options options = session_defaults;
    options.ranks = 2;
    session_open(&session, &model, &options);
    assert_int_equal(engine_layers_stored(session.engine, 0), 0);
    session_run(&session, tokens, 0, 8, pages, PAGES, NULL);
    assert_int_equal(engine_layers_stored(session.engine, 0), model.config.layer_count);
    assert_int_equal(engine_layers_stored(session.engine, 1), model.config.layer_count);
    session_close(&session);
}

static int open_with(struct engine_options options, char *text, size_t size)
{
    struct engine *engine;
    int rc = engine_open(&model.config, &model.weights, &options, NULL, NULL, &engine,
                         (struct error){text, size});
    if (rc == BATON_OK)
        engine_close(engine);
    return rc;
}

static void test_bad_options_are_refused(void **state)
{
    (void)state;
    char text[256];
    const struct engine_options good = {
        .rank_count = 1, .threads = 1, .tokens_max = 8, .logits_max = 8};
    struct engine_options bad;
    assert_int_equal(open_with(good, text, sizeof(text)), BATON_OK);
    bad = good, bad.rank_count = 3;
    assert_int_equal(open_with(bad, text, sizeof(text)), BATON_EINVAL);
    assert_non_null(strstr(text, "3 tensor-parallel ranks"));
    bad = good, bad.rank_count = 0;
    assert_int_equal(open_with(bad, text, sizeof(text)), BATON_EINVAL);
    bad = good, bad.tokens_max = 0;
    assert_int_equal(open_with(bad, text, sizeof(text)), BATON_EINVAL);
    bad = good, bad.logits_max = 9;
    assert_int_equal(open_with(bad, text, sizeof(text)), BATON_EINVAL);
    bad = good, bad.kernels = "abacus";
    assert_int_equal(open_with(bad, text, sizeof(text)), BATON_ENOTFOUND);
    bad = good, bad.threads = 100000;
    assert_int_equal(open_with(bad, text, sizeof(text)), BATON_EINVAL);
}

static bool stop_at_once(void *context, uint64_t done, uint64_t total)
{
    uint32_t *calls = context;
    ++*calls;
    assert_true(done <= total || total == 0);
    return false;
}

static void test_loading_can_be_stopped(void **state)
{
    (void)state;
    char text[256];
    struct engine *engine;
    uint32_t calls = 0;
    const struct engine_options options = {
        .rank_count = 1, .threads = 2, .tokens_max = 8, .logits_max = 8};
    assert_int_equal(engine_open(&model.config, &model.weights, &options, stop_at_once, &calls,
                                 &engine, ERROR_BUFFER(text)),
                     BATON_EABORTED);
    assert_int_equal(calls, 1);
    assert_non_null(strstr(text, "stopped"));
}

static void test_pages_of_another_shape_are_refused(void **state)
{
    (void)state;
    struct session session;
    struct page_shape shape;
    struct page_layout layout;
    char text[256];
    session_open(&session, &model, &session_defaults);
    assert_int_equal(
        engine_page_shape(&model.config, 2, PAGE_ELEMENT_F16, 16, &shape, ERROR_BUFFER(text)),
        BATON_OK);
    assert_int_equal(shape.heads, 2);
    assert_int_equal(page_layout_make(&shape, PAGE_ORDER_DEFAULT, &layout, ERROR_BUFFER(text)),
                     BATON_OK);
    assert_int_equal(
        engine_set_pages(session.engine, 0, &layout, session.pools[0], 4, ERROR_BUFFER(text)),
        BATON_ELAYOUT);
    assert_int_equal(
        engine_set_pages(session.engine, 1, &layout, session.pools[0], 4, ERROR_BUFFER(text)),
        BATON_EINVAL);
    session_close(&session);
}

static void count_run(void *context, uint32_t index)
{
    _Atomic uint32_t *runs = context;
    atomic_fetch_add(&runs[index], 1);
}

static void test_threads_are_lent_between_steps(void **state)
{
    (void)state;
    struct session session;
    struct session_options options = session_defaults;
    _Atomic uint32_t runs[4] = {0};
    options.ranks = 2;
    options.threads = 4;
    session_open(&session, &model, &options);
    assert_int_equal(engine_threads(session.engine), 4);
    for (uint32_t i = 0; i < 10; i++)
        engine_run(session.engine, count_run, runs);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(runs[i], 10);
    session_close(&session);
}

/* ---- given up ---- */

struct nuisance {
    struct engine *engine;
    atomic_bool over;
};

static void *give_up_again_and_again(void *context)
{
    struct nuisance *nuisance = context;
    while (!atomic_load(&nuisance->over))
        engine_give_up(nuisance->engine);
    return NULL;
}

/* Whenever it comes: all members leave the step at the same layer, or none does, and the same step then
 * gives the same bits. */
static void test_a_step_can_be_given_up(void **state)
{
    (void)state;
    static const uint32_t crews[][2] = {{1, 1}, {1, 3}, {2, 4}, {4, 4}}; /* ranks, threads */
    for (size_t i = 0; i < sizeof(crews) / sizeof(crews[0]); i++) {
        struct session session;
        struct session_options options = session_defaults;
        options.ranks = crews[i][0];
        options.threads = crews[i][1];
        session_open(&session, &model, &options);
        size_t bytes = session.vocab_size * sizeof(float);
        float *expected = malloc(bytes), *logits = malloc(bytes);
        assert_true(expected && logits);
        const struct engine_sequence sequence = {.tokens = tokens,
                                                 .token_count = 8,
                                                 .pages = pages,
                                                 .page_count = PAGES,
                                                 .logits_count = 1};
        assert_int_equal(engine_step(session.engine, &sequence, 1, expected, ERROR_NONE), 0);
        struct nuisance nuisance = {.engine = session.engine};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, give_up_again_and_again, &nuisance), 0);
        for (uint32_t given_up = 0; given_up < 50;) {
            int rc = engine_step(session.engine, &sequence, 1, logits, ERROR_NONE);
            assert_true(rc == BATON_OK || rc == BATON_EABORTED);
            if (rc == BATON_OK)
                assert_memory_equal(logits, expected, bytes);
            given_up += rc == BATON_EABORTED;
        }
        atomic_store(&nuisance.over, true);
        pthread_join(thread, NULL);
        assert_int_equal(engine_step(session.engine, &sequence, 1, logits, ERROR_NONE), 0);
        assert_memory_equal(logits, expected, bytes);
        free(logits);
        free(expected);
        session_close(&session);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_steps_are_refused),
        cmocka_unit_test(test_too_many_tokens_are_refused),
        cmocka_unit_test(test_a_refused_step_stores_nothing),
        cmocka_unit_test(test_layers_are_counted),
        cmocka_unit_test(test_bad_options_are_refused),
        cmocka_unit_test(test_loading_can_be_stopped),
        cmocka_unit_test(test_pages_of_another_shape_are_refused),
        cmocka_unit_test(test_threads_are_lent_between_steps),
        cmocka_unit_test(test_a_step_can_be_given_up),
    };
    return cmocka_run_group_tests_name("engine.engine", tests, setup, teardown);
}
