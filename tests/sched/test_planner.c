/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of the scheduler, without engine and threads. On random traffic every plan is the one that
 * the slow obvious planner makes (plan_model.c); with a prefix cache, where that one does not follow, the
 * rules are checked: what a step may hold, whose pages are whose, that everybody gets on.
 * BATON_TEST_SEED repeats a run. */
#include "kv/random_source.h"
#include "model/test_tokenizer_files.h"
#include "plan_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define WORLDS 4u /* several times slower */
#else
#define WORLDS 60u
#endif
#define STEPS 600u
#define PROMPT_MAX 400u

static const char *golden;
static uint64_t run_seed;

/* ---- a planner with pages, and requests that pretend ---------------------------------------- */

struct request {
    struct generation generation;
    int32_t prompt[PROMPT_MAX];
    struct generation_state *state; /* NULL: over */
};

struct world {
    struct random_source random;
    struct tokenizer *tokenizer;
    char memory[8]; /* never touched */
    struct kv_books books;
    struct planner planner;
    struct request *requests[PLAN_MODEL_MAX];
    uint32_t request_count;
};

static void world_open(struct world *world, uint64_t seed, const struct planner_limits *limits,
                       uint32_t pages, uint32_t tokens_per_page, bool cache)
{
    char text[256];
    memset(world, 0, sizeof(*world));
    world->random.state = seed;
    world->tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    assert_int_equal(
        page_pool_open(world->memory, pages, 1, &world->books.pool, ERROR_BUFFER(text)), 0);
    world->books.tokens_per_page = tokens_per_page;
    if (cache)
        assert_int_equal(prefix_cache_open(world->books.pool, tokens_per_page, 0,
                                           &world->books.cache, ERROR_BUFFER(text)),
                         0);
    assert_int_equal(planner_open(&world->planner, limits, &world->books, ERROR_BUFFER(text)),
                     0);
}

static void request_end(struct world *world, struct request *request)
{
    planner_remove(&world->planner, request->state, true);
    generation_state_close(request->state);
    request->state = NULL;
}

static void world_close(struct world *world)
{
    for (uint32_t i = 0; i < world->request_count; i++) {
        if (world->requests[i]->state)
            request_end(world, world->requests[i]);
        free(world->requests[i]);
    }
    const struct page_counts *counts = &world->books.pool->counts;
    assert_int_equal(counts->used, 0);
    assert_int_equal(counts->locked, 0);
    assert_int_equal(counts->free + counts->cached, counts->pages);
    planner_close(&world->planner);
    prefix_cache_close(world->books.cache);
    page_pool_close(world->books.pool);
    tokenizer_close(world->tokenizer);
}

static struct request *request_make(struct world *world, const int32_t *prompt, uint32_t count,
                                    uint32_t limit, int32_t priority)
{
    char text[256];
    struct request *request = calloc(1, sizeof(*request));
    assert_non_null(request);
    generation_init(&request->generation);
    memcpy(request->prompt, prompt, count * sizeof(*prompt));
    request->generation.prompt = request->prompt;
    request->generation.prompt_count = count;
    request->generation.priority = priority;
    assert_int_equal(generation_state_open(&request->generation, world->tokenizer, limit,
                                           world->books.tokens_per_page, &request->state,
                                           ERROR_BUFFER(text)),
                     0);
    assert_true(world->request_count < PLAN_MODEL_MAX);
    world->requests[world->request_count++] = request;
    planner_add(&world->planner, request->state);
    return request;
}

static uint32_t request_index(const struct world *world, const struct generation_state *state)
{
    uint32_t i = 0;
    while (world->requests[i]->state != state)
        i++;
    return i;
}

/* ---- the arithmetic ------------------------------------------------------------------------- */

static void test_ratio_falls_and_rises(void **state)
{
    (void)state;
    struct token_ratio ratio;
    token_ratio_init(&ratio, 1);
    assert_true(fabs(ratio.now - 0.7) < 1e-12);
    for (uint32_t step = 1; step <= 1000; step++) {
        token_ratio_decay(&ratio);
        double line = 0.7 - (0.7 - 0.098) / 600 * step;
        assert_true(fabs(ratio.now - (step < 600 ? line : 0.098)) < 1e-9);
    }
    token_ratio_retracted(&ratio, 3, 40, 1000); /* (40 + 20 * 3) / 1000 */
    assert_true(fabs(ratio.now - 0.1) < 1e-12);
    token_ratio_retracted(&ratio, 3, 4000, 1000);
    assert_true(ratio.now == 1);
    token_ratio_reset(&ratio);
    assert_true(fabs(ratio.now - 0.7) < 1e-12);
    token_ratio_init(&ratio, 3);
    assert_true(ratio.now == 1 && fabs(ratio.floor - 0.14) < 1e-12);
}

/* Those of docs/scheduler.md. */
static void test_worked_example(void **state)
{
    (void)state;
    const struct sequence_load running[] = {{.tokens = 100, .pages = 7, .remaining = 200},
                                            {.tokens = 40, .pages = 3, .remaining = 10}};
    const struct sequence_load fresh = {.tokens = 150, .pages = 4, .remaining = 100};
    assert_int_equal(admission_need(&running[0], 0.7, 16), 8);
    assert_int_equal(admission_need(&running[1], 0.7, 16), 0);
    assert_int_equal(admission_need(&fresh, 1, 16), 12);
    const struct sequence_load endless = {.tokens = 16, .pages = 1, .remaining = 1000000};
    assert_int_equal(admission_need(&endless, 1, 16), 256);
    assert_int_equal(admission_need_soon(&running[1], 20, 16), 1); /* only 10 remain */
}

static void test_pieces_end_with_pages(void **state)
{
    (void)state;
    assert_int_equal(admission_piece(0, 100, 512, false, 16), 100);
    assert_int_equal(admission_piece(0, 100, 50, false, 16), 48);
    assert_int_equal(admission_piece(5, 100, 50, false, 16), 43);
    assert_int_equal(admission_piece(5, 100, 11, false, 16), 11);
    assert_int_equal(admission_piece(5, 100, 10, false, 16), 0);
    assert_int_equal(admission_piece(5, 100, 10, true, 16), 10);
}

static void test_logprobs_limit_the_piece(void **state)
{
    (void)state;
    struct world world;
    const struct planner_limits limits = {4, 512, 64, 1};
    int32_t prompt[PROMPT_MAX] = {0};
    world_open(&world, 1, &limits, 100, 16, true);
    struct request *request = request_make(&world, prompt, 300, 5, 0);
    request_end(&world, request);
    request->generation.prompt_logprobs = true;
    request->generation.prompt_logprobs_start = 100;
    char text[256];
    assert_int_equal(generation_state_open(&request->generation, world.tokenizer, 5, 16,
                                           &request->state, ERROR_BUFFER(text)),
                     0);
    planner_add(&world.planner, request->state);
    uint32_t rated = 0;
    for (uint32_t step = 0; request->state->computed < 300; step++) {
        const struct step_plan *plan = planner_plan(&world.planner);
        assert_int_equal(plan->count, 1);
        assert_true(plan->pieces[0].rows <= 64);
        if (step == 0) /* 99 tokens without rows, 64 with, down to the end of a page */
            assert_int_equal(plan->pieces[0].tokens, 160);
        rated += plan->pieces[0].rows;
        request->state->rate_next = 100 + rated;
        planner_computed(&world.planner, &plan->pieces[0]);
    }
    assert_int_equal(rated, 201); /* of tokens 100 to 299, and the one to draw from */
    world_close(&world);
}

/* ---- against the slow one ------------------------------------------------------------------- */

static void model_add(struct plan_model *model, const struct request *request)
{
    model->requests[model->request_count] = (struct model_request){
        .phase = MODEL_WAITING,
        .prompt = request->generation.prompt_count,
        .tokens = request->generation.prompt_count,
        .limit = request->state->limit,
        .priority = request->generation.priority,
        .arrival = model->request_count,
    };
    model->request_count++;
}

static void model_remove(struct plan_model *model, uint32_t index)
{
    model->requests[index] = (struct model_request){.phase = MODEL_ABSENT};
}

static void add_random(struct world *world, struct plan_model *model)
{
    struct random_source *random = &world->random;
    int32_t prompt[PROMPT_MAX] = {0};
    uint32_t capacity = world->books.pool->counts.pages * world->books.tokens_per_page;
    uint32_t most = capacity < PROMPT_MAX ? capacity : PROMPT_MAX;
    uint32_t count = random_between(random, 1, random_below(random, 4) ? most / 4 + 1 : most);
    uint32_t limit = random_between(random, 1, 1 + random_below(random, 300));
    if (limit > capacity - count)
        limit = capacity - count;
    if (limit == 0)
        return;
    model_add(model,
              request_make(world, prompt, count, limit, (int32_t)random_below(random, 2)));
}

static void expect_same_plan(const struct world *world, const struct plan_model *model,
                             const struct step_plan *plan)
{
    assert_int_equal(plan->retracted, model->retracted);
    assert_int_equal(plan->count, model->piece_count);
    for (uint32_t i = 0; i < plan->count; i++) {
        assert_int_equal(request_index(world, plan->pieces[i].state), model->pieces[i].request);
        assert_int_equal(plan->pieces[i].tokens, model->pieces[i].tokens);
    }
}

/* The piece is computed, and its sequence goes on or ends. */
static void advance(struct world *world, struct plan_model *model, struct step_piece piece,
                    uint32_t index)
{
    struct request *request = world->requests[index];
    struct model_request *copy = &model->requests[index];
    planner_computed(&world->planner, &piece);
    copy->computed += piece.tokens;
    if (copy->computed < copy->tokens)
        return;
    planner_token(request->state, 0);
    copy->phase = MODEL_RUNNING;
    copy->tokens++;
    copy->generated++;
    if (copy->generated == copy->limit || random_below(&world->random, 100) == 0) {
        request_end(world, request);
        model_remove(model, index);
    }
}

static void step_both(struct world *world, struct plan_model *model)
{
    struct planner *planner = &world->planner;
    plan_model_decode(model);
    double before = planner->ratio.now;
    const struct step_plan *plan = planner_plan(planner);
    if (model->retracted_ratio) /* then it decays with the step, if the step decodes */
        assert_true(fabs(planner->ratio.now - model->ratio_after) <=
                        planner->ratio.decay + 1e-9 ||
                    planner->ratio.now == planner->ratio.floor);
    else if (plan->decoding)
        assert_true(planner->ratio.now <= before);
    plan_model_prompts(model, planner->ratio.now);
    expect_same_plan(world, model, plan);
    for (uint32_t i = 0; i < model->piece_count; i++)
        advance(world, model, plan->pieces[i], model->pieces[i].request);
}

static uint64_t run_against_model(uint64_t seed)
{
    struct random_source random = {seed};
    static const uint32_t page_sizes[] = {1, 4, 16};
    const struct planner_limits limits = {
        .max_running = random_between(&random, 1, 12),
        .chunk_tokens = random_between(&random, 1, 200),
        .rows = 64,
        .conservativeness = random_below(&random, 2) ? 1 : 0.02,
    };
    struct world *world = malloc(sizeof(*world));
    struct plan_model *model = calloc(1, sizeof(*model));
    assert_true(world && model);
    model->limits = limits;
    model->tokens_per_page = page_sizes[random_below(&random, 3)];
    model->pages = random_between(&random, 4, 2000 / model->tokens_per_page);
    world_open(world, random_next(&random), &limits, model->pages, model->tokens_per_page,
               false);
    for (uint32_t step = 0; step < STEPS; step++) {
        if (random_below(&world->random, 2) == 0)
            add_random(world, model);
        if (random_below(&world->random, 40) == 0 && world->request_count) {
            uint32_t index = random_below(&world->random, world->request_count);
            if (world->requests[index]->state) {
                request_end(world, world->requests[index]);
                model_remove(model, index);
            }
        }
        step_both(world, model);
    }
    uint64_t retractions = world->planner.retractions;
    world_close(world);
    free(model);
    free(world);
    return retractions;
}

static void test_plans_are_the_obvious_ones(void **state)
{
    (void)state;
    uint64_t retractions = 0;
    /* Few worlds of a small run may have none. */
    for (uint32_t i = 0; i < WORLDS || (!retractions && i < 50 * WORLDS); i++)
        retractions += run_against_model(run_seed + i);
    print_message("%llu retractions\n", (unsigned long long)retractions);
    assert_true(retractions > 0);
}

/* ---- with a prefix cache: rules ------------------------------------------------------------- */

static void check_pages(const struct world *world, const struct step_plan *plan)
{
    const struct planner *planner = &world->planner;
    const struct page_counts *counts = &world->books.pool->counts;
    uint32_t own = 0, owners[1024] = {0};
    for (uint32_t i = 0; i < planner->active_count; i++) {
        const struct kv_hold *hold = &planner->active[i]->hold;
        for (uint32_t p = 0; p < hold->count; p++) {
            bool cached = page_pool_state(world->books.pool, hold->pages[p]) == PAGE_CACHED;
            assert_int_equal(cached, p < hold->cached);
            if (!cached)
                assert_int_equal(++owners[hold->pages[p]], 1);
        }
        own += hold->count - hold->cached;
    }
    assert_int_equal(counts->used, own);
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct step_piece *piece = &plan->pieces[i];
        uint32_t end = piece->state->computed + piece->tokens;
        assert_true(piece->tokens > 0 && end <= piece->state->token_count);
        assert_int_equal(piece->state->hold.count,
                         pages_for(end, world->books.tokens_per_page));
        /* Nothing is stored into what others read. */
        assert_true(piece->state->hold.cached * world->books.tokens_per_page <=
                    piece->state->computed);
    }
}

static void check_step(const struct world *world, const struct step_plan *plan)
{
    const struct planner *planner = &world->planner;
    uint32_t partly = 0;
    assert_true(plan->prefill_tokens <= planner->limits.chunk_tokens);
    assert_true(planner->active_count <= planner->limits.max_running);
    for (uint32_t i = 0; i < plan->count; i++)
        partly += plan->pieces[i].state->computed + plan->pieces[i].tokens <
                  plan->pieces[i].state->token_count;
    assert_true(partly <= 1);
    for (uint32_t i = 0; i < world->request_count; i++)
        if (world->requests[i]->state)
            assert_true(world->requests[i]->state->overtaken <= OVERTAKES_MAX);
    check_pages(world, plan);
}

/* Sequences over two tokens share many beginnings. */
static void add_random_shared(struct world *world)
{
    struct random_source *random = &world->random;
    int32_t prompt[PROMPT_MAX];
    uint32_t count = random_between(random, 1, 200), same = random_below(random, count);
    for (uint32_t i = 0; i < count; i++)
        prompt[i] = i < same ? 7 : (int32_t)random_below(random, 2);
    request_make(world, prompt, count, random_between(random, 1, 60),
                 (int32_t)random_below(random, 2));
}

static void run_with_cache(uint64_t seed)
{
    struct world *world = malloc(sizeof(*world));
    assert_non_null(world);
    const struct planner_limits limits = {.max_running = 8,
                                          .chunk_tokens = 40,
                                          .rows = 64,
                                          .conservativeness = seed % 2 ? 1 : 0.1};
    world_open(world, seed, &limits, 70, 4, true);
    for (uint32_t step = 0; step < STEPS || !planner_is_idle(&world->planner); step++) {
        if (step < STEPS && random_below(&world->random, 4) == 0)
            add_random_shared(world);
        if (random_below(&world->random, 20) == 0 && world->request_count) {
            uint32_t index = random_below(&world->random, world->request_count);
            if (world->requests[index]->state)
                request_end(world, world->requests[index]);
        }
        const struct step_plan *plan = planner_plan(&world->planner);
        assert_true(plan->count > 0 || planner_is_idle(&world->planner));
        check_step(world, plan);
        for (uint32_t i = 0; i < plan->count; i++) {
            struct step_piece piece = plan->pieces[i];
            struct request *request = world->requests[request_index(world, piece.state)];
            planner_computed(&world->planner, &piece);
            if (piece.state->computed < piece.state->token_count)
                continue;
            planner_token(piece.state, (int32_t)random_below(&world->random, 2));
            if (piece.state->generated == piece.state->limit)
                request_end(world, request);
        }
    }
    world_close(world);
    free(world);
}

static void test_rules_hold_with_a_cache(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WORLDS; i++)
        run_with_cache(run_seed + i);
}

/* ---- fairness ------------------------------------------------------------------------------- */

/* Small ones keep coming that always fit; the large one does not as long as they run. */
static void test_large_request_is_not_passed_forever(void **state)
{
    (void)state;
    struct world *world = malloc(sizeof(*world));
    assert_non_null(world);
    const struct planner_limits limits = {8, 512, 64, 1};
    int32_t prompt[PROMPT_MAX] = {0};
    world_open(world, 1, &limits, 24, 16, false);
    request_make(world, prompt, 16, 40, 0);
    struct request *large = NULL;
    uint32_t passed = 0, step = 0;
    for (; step < 2000 && (!large || large->state->phase == PHASE_WAITING); step++) {
        if (step == 1)
            large = request_make(world, prompt, 300, 60, 0);
        request_make(world, prompt, 16, 40, 0);
        const struct step_plan *plan = planner_plan(&world->planner);
        if (large && large->state->phase == PHASE_WAITING)
            passed += plan->admitted;
        for (uint32_t i = 0; i < plan->count; i++) {
            struct step_piece piece = plan->pieces[i];
            planner_computed(&world->planner, &piece);
            if (piece.state->computed < piece.state->token_count)
                continue;
            planner_token(piece.state, 0);
            if (piece.state->generated == piece.state->limit)
                request_end(world, world->requests[request_index(world, piece.state)]);
        }
    }
    assert_true(large->state->phase != PHASE_WAITING);
    assert_true(passed > 0 && passed <= OVERTAKES_MAX);
    world_close(world);
    free(world);
}

/* While one computes the beginning that others have too, they wait, and someone else goes ahead. */
static void test_equal_beginnings_wait_for_the_first(void **state)
{
    (void)state;
    struct world *world = malloc(sizeof(*world));
    assert_non_null(world);
    const struct planner_limits limits = {8, 512, 64, 1};
    int32_t prompt[PROMPT_MAX] = {0}, other[PROMPT_MAX];
    for (uint32_t i = 0; i < PROMPT_MAX; i++)
        other[i] = 5;
    world_open(world, 1, &limits, 100, 16, true);
    struct request *first = request_make(world, prompt, 40, 8, 0);
    struct request *second = request_make(world, prompt, 40, 8, 0);
    struct request *third = request_make(world, other, 8, 8, 0);
    const struct step_plan *plan = planner_plan(&world->planner);
    assert_int_equal(plan->count, 2);
    assert_ptr_equal(plan->pieces[0].state, first->state);
    assert_ptr_equal(plan->pieces[1].state, third->state);
    assert_int_equal(second->state->overtaken, 1);
    for (uint32_t i = 0; i < 2; i++) {
        planner_computed(&world->planner, &plan->pieces[i]);
        planner_token(plan->pieces[i].state, 1);
    }
    plan = planner_plan(&world->planner);
    assert_int_equal(plan->count, 3);
    assert_ptr_equal(plan->pieces[2].state, second->state);
    assert_int_equal(second->state->cached_tokens, 32);
    assert_int_equal(plan->pieces[2].tokens, 8);
    world_close(world);
    free(world);
}

/* Whoever was passed too often computes the beginning once more rather than wait again. */
static void test_waiting_for_a_beginning_is_bounded(void **state)
{
    (void)state;
    struct world *world = malloc(sizeof(*world));
    assert_non_null(world);
    const struct planner_limits limits = {8, 512, 64, 1};
    int32_t prompt[PROMPT_MAX] = {0};
    world_open(world, 1, &limits, 100, 16, true);
    request_make(world, prompt, 40, 8, 0);
    struct request *second = request_make(world, prompt, 40, 8, 0);
    second->state->overtaken = OVERTAKES_MAX;
    const struct step_plan *plan = planner_plan(&world->planner);
    assert_int_equal(plan->count, 2);
    assert_ptr_equal(plan->pieces[1].state, second->state);
    for (uint32_t i = 0; i < 2; i++) {
        planner_computed(&world->planner, &plan->pieces[i]);
        planner_token(plan->pieces[i].state, 1);
    }
    /* The second one's pages were given back for those that the first had stored. */
    assert_int_equal(world->books.pool->counts.locked, 2);
    assert_int_equal(world->books.pool->counts.used, 2);
    world_close(world);
    free(world);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ratio_falls_and_rises),
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_pieces_end_with_pages),
        cmocka_unit_test(test_logprobs_limit_the_piece),
        cmocka_unit_test(test_plans_are_the_obvious_ones),
        cmocka_unit_test(test_rules_hold_with_a_cache),
        cmocka_unit_test(test_large_request_is_not_passed_forever),
        cmocka_unit_test(test_equal_beginnings_wait_for_the_first),
        cmocka_unit_test(test_waiting_for_a_beginning_is_bounded),
    };
    if (argc != 2)
        return 2;
    golden = argv[1];
    run_seed = random_seed();
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)run_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
