/* SPDX-License-Identifier: Apache-2.0 */
/* The whole scheduler on a tiny model, and what happens to it: senseless and too many requests, aborts,
 * deadlines, priorities, failures, closing, two hundred threads. */
#include "worker_rig.h"

#include "base/clock.h"
#include "sched/scheduler_parts.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *golden;

/* ---- what is refused ------------------------------------------------------------------------ */

static void expect_refusal(struct rig *rig, struct ticket *ticket, int code, const char *words)
{
    char text[512] = "";
    int rc = scheduler_submit(rig->scheduler, &ticket->generation, ERROR_BUFFER(text));
    assert_int_equal(rc, code);
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
    assert_int_equal(ticket->deliveries, 0);
    ticket_drop(ticket);
}

static void test_senseless_generations_are_refused(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    options.pages = 4;
    rig_open(&rig, golden, &options);
    struct ticket *ticket = ticket_random(&rig, 1, 0);
    expect_refusal(&rig, ticket, BATON_EINVAL, "empty");
    ticket = ticket_random(&rig, 1, 65);
    expect_refusal(&rig, ticket, BATON_EINVAL,
                   "has 65 tokens; the KV cache of this worker holds 64");
    ticket = ticket_random(&rig, 1, RIG_CONTEXT);
    ticket->generation.prompt_count++;
    expect_refusal(&rig, ticket, BATON_EINVAL,
                   "has 513 tokens; the context of this model holds 512");
    ticket = ticket_random(&rig, 1, 10);
    ticket->prompt[3] = 708;
    expect_refusal(&rig, ticket, BATON_EINVAL, "prompt token 3 is token 708");
    ticket = ticket_random(&rig, 1, 10);
    ticket->generation.sampling.top_p = 2;
    expect_refusal(&rig, ticket, BATON_EINVAL, "top_p");
    ticket = ticket_random(&rig, 1, 10);
    ticket->generation.prompt_logprobs = true;
    ticket->generation.prompt_logprobs_start = 11;
    expect_refusal(&rig, ticket, BATON_EINVAL, "from prompt token 11 on; the prompt has 10");
    rig_close(&rig);
}

static void test_full_queue_refuses(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    struct ticket *tickets[3];
    options.max_running = 1;
    options.max_queued = 2;
    rig_open(&rig, golden, &options);
    for (uint32_t i = 0; i < 3; i++) {
        tickets[i] = ticket_random(&rig, i, 10);
        tickets[i]->generation.max_new_tokens = i ? 1 : 500;
        tickets[i]->generation.ignore_eos = true;
        ticket_submit(tickets[i]);
        ticket_wait_tokens(tickets[i], i == 0);
    }
    expect_refusal(&rig, ticket_random(&rig, 9, 10), BATON_ELIMIT, "2 requests are waiting");
    for (uint32_t i = 0; i < 3; i++) {
        ticket_wait(tickets[i]);
        ticket_drop(tickets[i]);
    }
    struct ticket *late = ticket_random(&rig, 9, 10);
    ticket_run(late);
    ticket_drop(late);
    rig_close(&rig);
}

static void test_drain_finishes_and_refuses(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    struct ticket *ticket = ticket_long(&rig, 1);
    ticket_submit(ticket);
    scheduler_drain(rig.scheduler);
    expect_refusal(&rig, ticket_random(&rig, 2, 10), BATON_ESTATE, "no more requests");
    ticket_wait(ticket);
    ticket_expect_alone(&rig, ticket);
    ticket_drop(ticket);
    rig_close(&rig);
}

/* ---- ends from outside ---------------------------------------------------------------------- */

static void test_abort_reaches_every_phase(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    options.max_running = 2;
    options.chunk_tokens = 7;
    rig_open(&rig, golden, &options);
    struct ticket *running = ticket_random(&rig, 1, 10);
    struct ticket *chunked = ticket_random(&rig, 2, 500);
    struct ticket *waiting = ticket_random(&rig, 3, 10);
    running->generation.max_new_tokens = 400;
    running->generation.ignore_eos = true;
    snprintf(waiting->generation.rid, sizeof(waiting->generation.rid), "batch-7-0");
    ticket_submit(running);
    ticket_wait_tokens(running, 1);
    ticket_submit(chunked); /* 72 steps for the prompt */
    ticket_submit(waiting);
    ticket_wait_tokens(running, 10);
    scheduler_abort_rid(rig.scheduler, "batch-8");
    scheduler_abort_rid(rig.scheduler, "batch-7");
    ticket_wait(waiting);
    scheduler_abort(rig.scheduler, &chunked->generation);
    ticket_wait(chunked);
    scheduler_abort(rig.scheduler, &running->generation);
    ticket_wait(running);
    struct ticket *all[] = {running, chunked, waiting};
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i]->answer.finish, GENERATION_ABORTED);
        assert_int_equal(all[i]->error, BATON_EABORTED);
        ticket_drop(all[i]);
    }
    struct scheduler_stats stats;
    rig_wait_idle(&rig, &stats);
    assert_int_equal(stats.aborted, 3);
    rig_close(&rig);
}

/* The flag is set, but there is nobody yet whom the scheduler could find. */
static void test_abort_may_come_before_the_generation(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    struct ticket *ticket = ticket_long(&rig, 1);
    scheduler_abort(rig.scheduler, &ticket->generation);
    assert_true(scheduler_flush_cache(rig.scheduler, 0)); /* it has looked */
    ticket_run(ticket);
    assert_int_equal(ticket->answer.finish, GENERATION_ABORTED);
    assert_int_equal(ticket->answer.count, 0);
    ticket_drop(ticket);
    rig_close(&rig);
}

static void test_abort_of_all(void **state)
{
    (void)state;
    struct rig rig;
    struct ticket *tickets[20];
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t i = 0; i < 20; i++) {
        tickets[i] = ticket_random(&rig, i, 30);
        tickets[i]->generation.max_new_tokens = 450;
        tickets[i]->generation.ignore_eos = true;
        ticket_submit(tickets[i]);
    }
    scheduler_abort_rid(rig.scheduler, "");
    for (uint32_t i = 0; i < 20; i++) {
        ticket_wait(tickets[i]);
        assert_int_equal(tickets[i]->answer.finish, GENERATION_ABORTED);
        ticket_drop(tickets[i]);
    }
    rig_close(&rig);
}

static void test_deadline_ends_waiting_and_running(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    options.max_running = 1;
    rig_open(&rig, golden, &options);
    struct ticket *tickets[3];
    for (uint32_t i = 0; i < 3; i++) {
        tickets[i] = ticket_random(&rig, i, 10);
        tickets[i]->generation.max_new_tokens = i == 2 ? 3 : 500;
        tickets[i]->generation.ignore_eos = true;
        if (i < 2)
            tickets[i]->generation.deadline_ns = clock_now_ns() + 3600 * 1000 * NS_PER_MS;
        ticket_submit(tickets[i]);
    }
    ticket_wait_tokens(tickets[0], 2);
    clock_advance_ns(3600 * 1000 * NS_PER_MS);
    for (uint32_t i = 0; i < 3; i++)
        ticket_wait(tickets[i]);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(tickets[i]->answer.finish, GENERATION_ABORTED);
        assert_int_equal(tickets[i]->error, BATON_ETIMEOUT);
    }
    assert_true(tickets[0]->answer.count < 500);
    assert_int_equal(tickets[1]->answer.count, 0);
    ticket_expect_alone(&rig, tickets[2]);
    for (uint32_t i = 0; i < 3; i++)
        ticket_drop(tickets[i]);
    rig_close(&rig);
}

static void test_close_fails_those_inside(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    options.max_running = 2;
    options.chunk_tokens = 16;
    rig_open(&rig, golden, &options);
    struct ticket *tickets[4];
    for (uint32_t i = 0; i < 4; i++) {
        tickets[i] = ticket_random(&rig, i, 100);
        tickets[i]->generation.max_new_tokens = 400;
        tickets[i]->generation.ignore_eos = true;
        ticket_submit(tickets[i]);
    }
    ticket_wait_tokens(tickets[0], 1);
    scheduler_close(rig.scheduler);
    rig.scheduler = NULL;
    for (uint32_t i = 0; i < 4; i++) {
        ticket_wait(tickets[i]);
        assert_int_equal(tickets[i]->answer.finish, GENERATION_FAILED);
        assert_int_equal(tickets[i]->error, BATON_ESTATE);
        assert_non_null(strstr(tickets[i]->reason, "shutting down"));
        ticket_drop(tickets[i]);
    }
    rig_close(&rig);
}

/* ---- order ---------------------------------------------------------------------------------- */

static void test_higher_priority_goes_first(void **state)
{
    (void)state;
    static const int32_t priorities[] = {0, 0, 5, -1, 5};
    static const uint32_t order[] = {0, 2, 4, 1, 3};
    struct rig rig;
    struct rig_options options = rig_defaults;
    struct ticket *tickets[5];
    options.max_running = 1;
    rig_open(&rig, golden, &options);
    for (uint32_t i = 0; i < 5; i++) {
        tickets[i] = ticket_random(&rig, i, 10);
        tickets[i]->generation.max_new_tokens = i ? 1 : 500; /* the others come meanwhile */
        tickets[i]->generation.ignore_eos = true;
        tickets[i]->generation.priority = priorities[i];
        ticket_submit(tickets[i]);
        ticket_wait_tokens(tickets[i], i == 0);
    }
    for (uint32_t i = 0; i < 5; i++)
        ticket_wait(tickets[i]);
    for (uint32_t i = 1; i < 5; i++)
        assert_true(tickets[order[i - 1]]->order < tickets[order[i]]->order);
    for (uint32_t i = 0; i < 5; i++)
        ticket_drop(tickets[i]);
    rig_close(&rig);
}

/* ---- failures ------------------------------------------------------------------------------- */

static void test_bad_logits_fail_the_guilty_only(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    struct ticket *tickets[6];
    options.poisoned_token = 5;
    rig_open(&rig, golden, &options);
    for (uint32_t i = 0; i < 6; i++) {
        tickets[i] = ticket_random(&rig, i, 20);
        if (i == 3)
            tickets[i]->prompt[19] = 5;
        ticket_submit(tickets[i]);
    }
    for (uint32_t i = 0; i < 6; i++) {
        ticket_wait(tickets[i]);
        if (i == 3) {
            assert_int_equal(tickets[i]->answer.finish, GENERATION_FAILED);
            assert_int_equal(tickets[i]->error, BATON_EINVAL);
            assert_true(strlen(tickets[i]->reason) > 0);
        } else {
            ticket_expect_alone(&rig, tickets[i]);
        }
        ticket_drop(tickets[i]);
    }
    rig_close(&rig);
}

/* The engine has room for fewer tokens than the scheduler believes: it refuses such steps as a whole,
 * and any single piece that is too large. */
static void test_refused_steps_fail_the_guilty_only(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    struct ticket *tickets[6];
    options.engine_tokens = 40;
    rig_open(&rig, golden, &options);
    for (uint32_t i = 0; i < 6; i++) {
        tickets[i] = ticket_random(&rig, i, i == 2 ? 64 : 20);
        ticket_submit(tickets[i]);
    }
    for (uint32_t i = 0; i < 6; i++) {
        ticket_wait(tickets[i]);
        if (i == 2 && tickets[i]->answer.finish == GENERATION_FAILED)
            assert_non_null(strstr(tickets[i]->reason, "opened for 40"));
        else
            ticket_expect_alone(&rig, tickets[i]);
        ticket_drop(tickets[i]);
    }
    struct ticket *large = ticket_random(&rig, 9, 64); /* nothing else is in its step */
    ticket_run(large);
    assert_int_equal(large->answer.finish, GENERATION_FAILED);
    ticket_drop(large);
    rig_close(&rig);
}

/* Pages that a failed transfer keeps: nothing runs, and yet there is no room. */
static void test_lost_pages_fail_what_cannot_fit(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_options options = rig_defaults;
    struct scheduler_stats stats;
    int32_t lost[8];
    options.pages = 12;
    options.prefix_cache = false;
    rig_open(&rig, golden, &options);
    struct page_pool *pool = rig.scheduler->memory.books.pool;
    struct ticket *small = ticket_random(&rig, 1, 20), *large = ticket_random(&rig, 2, 100);
    ticket_run(small);
    ticket_drop(small);
    rig_wait_idle(&rig, &stats); /* and asleep: its pool can be borrowed */
    owner_thread_forget(&pool->owner);
    assert_true(page_pool_alloc(pool, -1, 8, lost));
    owner_thread_forget(&pool->owner);
    ticket_run(large);
    assert_int_equal(large->answer.finish, GENERATION_FAILED);
    assert_int_equal(large->error, BATON_ELIMIT);
    assert_non_null(strstr(large->reason, "needs 7 pages"));
    assert_non_null(strstr(large->reason, "only 4 of 12"));
    small = ticket_random(&rig, 1, 20);
    ticket_run(small);
    ticket_expect_alone(&rig, small);
    rig_wait_idle(&rig, &stats);
    owner_thread_forget(&pool->owner);
    page_pool_release(pool, lost, 8);
    owner_thread_forget(&pool->owner);
    ticket_drop(small);
    ticket_drop(large);
    scheduler_close(rig.scheduler); /* what it has published counts the lost ones */
    rig.scheduler = NULL;
    rig_close(&rig);
}

/* ---- many threads --------------------------------------------------------------------------- */

#define THREADS 200u

struct caller {
    pthread_t thread;
    struct rig *rig;
    uint32_t number;
};

static void *call(void *context)
{
    struct caller *caller = context;
    struct ticket *ticket = ticket_random(caller->rig, caller->number, 1 + caller->number % 40);
    struct scheduler_stats stats;
    ticket->generation.max_new_tokens = 1 + caller->number % 7;
    ticket->generation.ignore_eos = true;
    ticket_submit(ticket);
    scheduler_stats(caller->rig->scheduler, &stats);
    if (caller->number % 5 == 0) {
        pthread_mutex_lock(&ticket->lock);
        if (!ticket->done)
            scheduler_abort(caller->rig->scheduler, &ticket->generation);
        pthread_mutex_unlock(&ticket->lock);
    }
    ticket_wait(ticket);
    assert_true(ticket->answer.finish == GENERATION_LENGTH ||
                (caller->number % 5 == 0 && ticket->answer.finish == GENERATION_ABORTED));
    ticket_drop(ticket);
    return NULL;
}

static void test_many_threads_submit(void **state)
{
    (void)state;
    struct rig rig;
    struct caller *callers = calloc(THREADS, sizeof(*callers));
    assert_non_null(callers);
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t i = 0; i < THREADS; i++) {
        callers[i].rig = &rig;
        callers[i].number = i;
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(callers[i].thread, NULL);
    struct scheduler_stats stats;
    rig_wait_idle(&rig, &stats);
    assert_int_equal(stats.requests, THREADS);
    assert_int_equal(stats.failed, 0);
    free(callers);
    rig_close(&rig);
}

static void test_options_are_checked(void **state)
{
    (void)state;
    struct rig rig;
    struct scheduler *scheduler = NULL;
    char text[512] = "";
    struct scheduler_options options = {.tokens_per_page = 16,
                                        .max_running = 1,
                                        .max_queued = 1,
                                        .chunk_tokens = 16,
                                        .rank_count = 1,
                                        .memory_bytes = 100,
                                        .conservativeness = 1};
    rig_open(&rig, golden, &rig_defaults);
    assert_int_equal(
        scheduler_open(rig.engine, rig.tokenizer, &options, &scheduler, ERROR_BUFFER(text)),
        BATON_EINVAL);
    assert_non_null(strstr(text, "100 bytes"));
    options.rank_count = 3;
    assert_int_equal(
        scheduler_open(rig.engine, rig.tokenizer, &options, &scheduler, ERROR_BUFFER(text)),
        BATON_EINVAL);
    options.rank_count = 1;
    options.max_running = 0;
    assert_int_equal(
        scheduler_open(rig.engine, rig.tokenizer, &options, &scheduler, ERROR_BUFFER(text)),
        BATON_EINVAL);
    options.max_running = 1;
    options.conservativeness = 0;
    assert_int_equal(
        scheduler_open(rig.engine, rig.tokenizer, &options, &scheduler, ERROR_BUFFER(text)),
        BATON_EINVAL);
    assert_null(scheduler);
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_senseless_generations_are_refused),
        cmocka_unit_test(test_full_queue_refuses),
        cmocka_unit_test(test_drain_finishes_and_refuses),
        cmocka_unit_test(test_abort_reaches_every_phase),
        cmocka_unit_test(test_abort_may_come_before_the_generation),
        cmocka_unit_test(test_abort_of_all),
        cmocka_unit_test(test_deadline_ends_waiting_and_running),
        cmocka_unit_test(test_close_fails_those_inside),
        cmocka_unit_test(test_higher_priority_goes_first),
        cmocka_unit_test(test_bad_logits_fail_the_guilty_only),
        cmocka_unit_test(test_refused_steps_fail_the_guilty_only),
        cmocka_unit_test(test_lost_pages_fail_what_cannot_fit),
        cmocka_unit_test(test_many_threads_submit),
        cmocka_unit_test(test_options_are_checked),
    };
    if (argc != 2)
        return 2;
    golden = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
