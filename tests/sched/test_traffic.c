/* SPDX-License-Identifier: Apache-2.0 */
/* Random traffic on the whole scheduler: whatever else is in the batch, however prompts are cut, whether
 * a prefix is cached, how often a generation is retracted, on one rank or two, every answer is bit for
 * bit the one that the model gives alone, and all pages come back. BATON_TEST_SEED repeats a run's
 * requests (not the times at which they meet).
 * usage: test_traffic GOLDEN plenty|few|uncached|ranks: of pages; without prefix cache; two ranks */
#include "worker_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#if RIG_SANITIZED
#define TICKETS 16u
#else
#define TICKETS 60u
#endif
#define PREFIXES 3u
#define PREFIX_TOKENS 70u

static const char *golden;
static uint64_t run_seed;

struct world {
    struct rig rig;
    struct random_source random;
    int32_t prefixes[PREFIXES][PREFIX_TOKENS];
    struct ticket *tickets[TICKETS];
};

static void make_prompt(struct world *world, struct ticket *ticket)
{
    struct random_source *random = &world->random;
    uint32_t shared = random_below(random, 2) ? random_between(random, 1, PREFIX_TOKENS) : 0;
    uint32_t own = random_between(random, shared ? 0 : 1, random_below(random, 4) ? 30 : 150);
    memcpy(ticket->prompt, world->prefixes[random_below(random, PREFIXES)],
           shared * sizeof(int32_t));
    rig_random_tokens(random, ticket->prompt + shared, own);
    ticket->generation.prompt_count = shared + own;
}

static void make_sampling(struct world *world, struct ticket *ticket)
{
    struct random_source *random = &world->random;
    struct sampling *sampling = &ticket->generation.sampling;
    sampling->seed = random_next(random);
    if (random_below(random, 2)) {
        sampling->temperature = 0.8f;
        sampling->top_k = random_below(random, 3) * 20;
        sampling->top_p = random_below(random, 2) ? 0.9f : 1;
    }
    if (random_below(random, 4) == 0) {
        sampling->repetition_penalty = 1.3f;
        sampling->frequency_penalty = 0.5f;
    }
    if (random_below(random, 3) == 0) {
        sampling->logprobs = true;
        sampling->top_logprobs = random_below(random, 4);
    }
}

static struct ticket *make_ticket(struct world *world)
{
    struct random_source *random = &world->random;
    struct ticket *ticket = malloc(sizeof(*ticket));
    assert_non_null(ticket);
    ticket_init(ticket, &world->rig);
    make_prompt(world, ticket);
    make_sampling(world, ticket);
    struct generation *generation = &ticket->generation;
    generation->max_new_tokens = random_below(random, 120);
    generation->ignore_eos = random_below(random, 4) > 0;
    generation->min_new_tokens = random_below(random, 3) ? 0 : random_below(random, 10);
    generation->priority = (int32_t)random_below(random, 3);
    generation->keep_stop = random_below(random, 2);
    if (random_below(random, 4) == 0) {
        rig_random_tokens(random, ticket->stop_tokens, 2);
        generation->stop_tokens = ticket->stop_tokens;
        generation->stop_token_count = 2;
    }
    if (random_below(random, 8) == 0)
        ticket->abort_after = random_between(random, 1, 20);
    return ticket;
}

/* An answer that was cut off is the beginning of the whole one. */
static void check_ticket(struct world *world, struct ticket *ticket)
{
    struct answer *expected = malloc(sizeof(*expected));
    const struct answer *answer = &ticket->answer;
    assert_non_null(expected);
    rig_alone(&world->rig, ticket, expected);
    if (answer->finish == GENERATION_ABORTED) {
        assert_int_equal(ticket->error, BATON_EABORTED);
        assert_true(answer->count <= expected->count);
        assert_memory_equal(answer->tokens, expected->tokens, answer->count * sizeof(int32_t));
    } else {
        answer_expect(ticket, expected);
    }
    free(expected);
}

static void *submit_half(void *context)
{
    struct world *world = context;
    for (uint32_t i = 1; i < TICKETS; i += 2)
        ticket_submit(world->tickets[i]);
    return NULL;
}

static uint64_t run_world(struct rig_options options, uint64_t seed)
{
    struct world *world = malloc(sizeof(*world));
    struct scheduler_stats stats;
    pthread_t other;
    assert_non_null(world);
    world->random = (struct random_source){seed};
    rig_open(&world->rig, golden, &options);
    for (uint32_t i = 0; i < PREFIXES; i++)
        rig_random_tokens(&world->random, world->prefixes[i], PREFIX_TOKENS);
    for (uint32_t i = 0; i < TICKETS; i++)
        world->tickets[i] = make_ticket(world);
    pthread_create(&other, NULL, submit_half, world);
    for (uint32_t i = 0; i < TICKETS; i += 2)
        ticket_submit(world->tickets[i]);
    pthread_join(other, NULL);
    for (uint32_t i = 0; i < TICKETS; i++)
        if (random_below(&world->random, 10) == 0 && !world->tickets[i]->abort_after) {
            ticket_wait_tokens(world->tickets[i], random_below(&world->random, 10));
            pthread_mutex_lock(&world->tickets[i]->lock);
            if (!world->tickets[i]->done)
                scheduler_abort(world->rig.scheduler, &world->tickets[i]->generation);
            pthread_mutex_unlock(&world->tickets[i]->lock);
        }
    for (uint32_t i = 0; i < TICKETS; i++)
        ticket_wait(world->tickets[i]);
    scheduler_stats(world->rig.scheduler, &stats);
    rig_close_scheduler(&world->rig);
    for (uint32_t i = 0; i < TICKETS; i++) {
        check_ticket(world, world->tickets[i]);
        ticket_free(world->tickets[i]);
        free(world->tickets[i]);
    }
    rig_close(&world->rig);
    free(world);
    return stats.retractions;
}

static void run_chunks(bool cache, uint32_t ranks, uint32_t pages)
{
    static const uint32_t chunks[] = {7, 32, 512};
    uint64_t retractions = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct rig_options options = rig_defaults;
        options.chunk_tokens = chunks[i];
        options.prefix_cache = cache;
        options.ranks = ranks;
        options.pages = pages;
        options.conservativeness = pages > 100 ? 1 : 0.05f; /* for many retractions */
        uint64_t seen = run_world(options, run_seed + i);
        print_message("chunks of %u: %llu retractions\n", chunks[i], (unsigned long long)seen);
        retractions += seen;
    }
    /* With sixty requests some are certain. */
    assert_true(pages > 100 || RIG_SANITIZED || retractions > 0);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void test_plenty(void **state)
{
    (void)state;
    run_chunks(true, 1, 300);
}

static void test_few(void **state)
{
    (void)state;
    run_chunks(true, 1, 24);
}

static void test_uncached(void **state)
{
    (void)state;
    run_chunks(false, 1, 24);
}

static void test_ranks(void **state)
{
    (void)state;
    run_chunks(true, 2, 24);
}

static const struct CMUnitTest cases[] = {
    {.name = "plenty", .test_func = test_plenty},
    {.name = "few", .test_func = test_few},
    {.name = "uncached", .test_func = test_uncached},
    {.name = "ranks", .test_func = test_ranks},
};

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    golden = argv[1];
    run_seed = random_seed();
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)run_seed);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        if (strcmp(cases[i].name, argv[2]) == 0) {
            const struct CMUnitTest tests[] = {cases[i]};
            return cmocka_run_group_tests(tests, NULL, NULL);
        }
    return 2;
}
