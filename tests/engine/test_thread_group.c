/* SPDX-License-Identifier: Apache-2.0 */
/* All arrive before any leaves, and what was stored before is seen after; with more threads than
 * cores too. */
#include "engine/thread_group.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 8
#define ROUNDS 50

struct meeting {
    uint32_t members;
    struct barrier barrier;
    uint32_t written[THREADS_MAX]; /* not atomic: the barrier is what orders it */
    _Atomic uint32_t wrong;
    _Atomic uint32_t runs;
};

static void meet(void *context, uint32_t index)
{
    struct meeting *meeting = context;
    atomic_fetch_add(&meeting->runs, 1);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        meeting->written[index] = round;
        barrier_wait(&meeting->barrier);
        for (uint32_t i = 0; i < meeting->members; i++)
            if (meeting->written[i] != round)
                atomic_fetch_add(&meeting->wrong, 1);
        barrier_wait(&meeting->barrier);
    }
}

static void test_all_arrive_before_any_leaves(void **state)
{
    (void)state;
    const uint32_t threads[] = {1, 2, 3, THREADS_MAX};
    char text[256];
    for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); i++) {
        for (uint32_t spins = 0; spins <= 100; spins += 100) {
            struct thread_pool *pool;
            struct meeting meeting = {.members = threads[i]};
            barrier_init(&meeting.barrier, threads[i], spins);
            assert_int_equal(thread_pool_open(threads[i], &pool, ERROR_BUFFER(text)), BATON_OK);
            thread_pool_run(pool, meet, &meeting);
            thread_pool_run(pool, meet, &meeting);
            assert_int_equal(meeting.wrong, 0);
            assert_int_equal(meeting.runs, 2 * threads[i]);
            thread_pool_close(pool);
        }
    }
}

#define THINGS 100

/* `seen` is not atomic: each thing has one taker, and the meeting comes before the next round. */
struct dealing {
    struct barrier barrier;
    uint32_t seen[THINGS];
};

static void take_things(void *context, uint32_t index)
{
    struct dealing *dealing = context;
    (void)index;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i; (i = barrier_take(&dealing->barrier)) < THINGS;)
            dealing->seen[i]++;
        barrier_wait(&dealing->barrier);
    }
}

static void test_everything_is_taken_once_between_meetings(void **state)
{
    (void)state;
    const uint32_t threads[] = {1, 2, THREADS_MAX};
    char text[256];
    for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); i++) {
        struct thread_pool *pool;
        struct dealing dealing = {0};
        barrier_init(&dealing.barrier, threads[i], 100);
        assert_int_equal(thread_pool_open(threads[i], &pool, ERROR_BUFFER(text)), BATON_OK);
        thread_pool_run(pool, take_things, &dealing);
        for (uint32_t thing = 0; thing < THINGS; thing++)
            assert_int_equal(dealing.seen[thing], ROUNDS);
        thread_pool_close(pool);
    }
}

static void note_run(void *context, uint32_t index)
{
    _Atomic uint32_t *seen = context;
    atomic_fetch_add(&seen[index], 1);
}

static void test_every_index_runs_once(void **state)
{
    (void)state;
    struct thread_pool *pool;
    char text[256];
    _Atomic uint32_t seen[THREADS_MAX];
    memset(seen, 0, sizeof(seen));
    assert_int_equal(thread_pool_open(THREADS_MAX, &pool, ERROR_BUFFER(text)), BATON_OK);
    for (uint32_t i = 0; i < 50; i++) {
        if (i % 10 == 0)
            usleep(5000); /* long enough that all have parked */
        thread_pool_run(pool, note_run, seen);
    }
    for (int i = 0; i < THREADS_MAX; i++)
        assert_int_equal(seen[i], 50);
    thread_pool_close(pool);
}

static void test_bad_counts_are_refused(void **state)
{
    (void)state;
    struct thread_pool *pool;
    char text[256];
    assert_int_equal(thread_pool_open(0, &pool, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_int_equal(thread_pool_open(THREAD_POOL_MAX + 1, &pool, ERROR_BUFFER(text)),
                     BATON_EINVAL);
    thread_pool_close(NULL);
}

static void test_spans_cover_everything_once(void **state)
{
    (void)state;
    for (uint32_t count = 0; count < 40; count++) {
        for (uint32_t members = 1; members < 9; members++) {
            uint32_t at = 0;
            for (uint32_t i = 0; i < members; i++) {
                struct span span = span_of(count, i, members);
                assert_int_equal(span.begin, at);
                assert_true(span.end - span.begin <= (count + members - 1) / members);
                at = span.end;
            }
            assert_int_equal(at, count);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_arrive_before_any_leaves),
        cmocka_unit_test(test_everything_is_taken_once_between_meetings),
        cmocka_unit_test(test_every_index_runs_once),
        cmocka_unit_test(test_bad_counts_are_refused),
        cmocka_unit_test(test_spans_cover_everything_once),
    };
    return cmocka_run_group_tests_name("engine.thread_group", tests, NULL, NULL);
}
