/* SPDX-License-Identifier: Apache-2.0 */
/* Which worker a policy takes, and which it must not. */
#include "router/policy.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORKERS 5

struct rig {
    struct upstream_table *table;
    struct upstream_set *set;
    struct upstream *decode[WORKERS]; /* not held: the set does */
    struct policy_memory memory;
};

static void rig_open(struct rig *rig)
{
    char url[64];
    memset(rig, 0, sizeof(*rig));
    rig->memory.random = 12345;
    assert_int_equal(upstream_table_open(&rig->table, ERROR_NONE), BATON_OK);
    for (int i = 0; i < WORKERS; i++) {
        struct upstream *prefill;
        snprintf(url, sizeof(url), "http://127.0.0.1:%d", 30000 + i);
        assert_int_equal(upstream_open(UPSTREAM_DECODE, url, -1, &rig->decode[i], ERROR_NONE),
                         BATON_OK);
        upstream_set_state(rig->decode[i], UPSTREAM_UP);
        assert_int_equal(upstream_table_add(rig->table, rig->decode[i], ERROR_NONE), BATON_OK);
        snprintf(url, sizeof(url), "http://127.0.0.1:%d", 31000 + i);
        assert_int_equal(upstream_open(UPSTREAM_PREFILL, url, 8998, &prefill, ERROR_NONE),
                         BATON_OK);
        assert_int_equal(upstream_table_add(rig->table, prefill, ERROR_NONE), BATON_OK);
    }
    rig->set = upstream_table_get(rig->table);
}

static void rig_close(struct rig *rig)
{
    upstream_set_release(rig->set);
    upstream_table_close(rig->table);
}

static struct upstream *pick(struct rig *rig, const struct policy *policy,
                             const struct upstream *avoid)
{
    return policy_choose(policy, &rig->memory, rig->set, UPSTREAM_DECODE, avoid);
}

static uint32_t index_of(const struct rig *rig, const struct upstream *upstream)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        if (rig->decode[i] == upstream)
            return i;
    fail_msg("a worker of another role");
    return 0;
}

static const struct policy *const policies[] = {&policy_random, &policy_round_robin,
                                                &policy_least_loaded};

static void test_names_find_policies(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(policy_find(policies[i]->name), policies[i]);
    assert_null(policy_find("best"));
}

static void test_only_usable_ones_of_the_role_are_taken(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig);
    for (int p = 0; p < 3; p++) {
        uint32_t taken[WORKERS] = {0};
        upstream_set_state(rig.decode[1], UPSTREAM_DOWN);
        upstream_set_state(rig.decode[3], UPSTREAM_NEW);
        for (int i = 0; i < 300; i++)
            taken[index_of(&rig, pick(&rig, policies[p], NULL))]++;
        assert_int_equal(taken[1] + taken[3], 0);
        assert_true(taken[0] > 50 && taken[2] > 50 && taken[4] > 50);
        upstream_set_state(rig.decode[1], UPSTREAM_UP);
        upstream_set_state(rig.decode[3], UPSTREAM_UP);
    }
    /* Nobody has asked the prefill workers yet. */
    assert_null(policy_choose(&policy_random, &rig.memory, rig.set, UPSTREAM_PREFILL, NULL));
    assert_null(policy_choose(&policy_random, &rig.memory, rig.set, UPSTREAM_MIXED, NULL));
    rig_close(&rig);
}

static void test_the_one_that_failed_is_the_last_resort(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig);
    for (int p = 0; p < 3; p++) {
        for (int i = 0; i < 100; i++)
            assert_ptr_not_equal(pick(&rig, policies[p], rig.decode[2]), rig.decode[2]);
        for (int i = 0; i < WORKERS; i++)
            upstream_set_state(rig.decode[i], i == 2 ? UPSTREAM_UP : UPSTREAM_DOWN);
        assert_ptr_equal(pick(&rig, policies[p], rig.decode[2]), rig.decode[2]);
        for (int i = 0; i < WORKERS; i++)
            upstream_set_state(rig.decode[i], UPSTREAM_UP);
    }
    rig_close(&rig);
}

static void test_round_robin_takes_turns(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig);
    uint32_t first = index_of(&rig, pick(&rig, &policy_round_robin, NULL));
    for (uint32_t i = 1; i < 20; i++)
        assert_int_equal(index_of(&rig, pick(&rig, &policy_round_robin, NULL)),
                         (first + i) % WORKERS);
    rig_close(&rig);
}

/* Against the obvious: nobody else may have less. */
static void test_least_loaded_takes_one_with_the_least(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig);
    for (int round = 0; round < 2000; round++) {
        uint64_t burden[WORKERS], least = UINT64_MAX;
        for (int i = 0; i < WORKERS; i++) {
            uint32_t ours = policy_random_below(&rig.memory, 4);
            uint32_t others = policy_random_below(&rig.memory, 3);
            uint32_t usage = policy_random_below(&rig.memory, 2) * 500;
            atomic_store(&rig.decode[i]->in_flight, ours);
            atomic_store(&rig.decode[i]->other_requests, others);
            atomic_store(&rig.decode[i]->token_permille, usage);
            burden[i] = (ours + others) * 10000 + usage;
            least = burden[i] < least ? burden[i] : least;
        }
        assert_int_equal(burden[index_of(&rig, pick(&rig, &policy_least_loaded, NULL))], least);
    }
    rig_close(&rig);
}

static void test_failures_in_a_row_shut_out_for_a_while(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig);
    struct upstream *bad = rig.decode[0];
    for (int i = 0; i < UPSTREAM_FAILURES_MAX - 1; i++)
        assert_false(upstream_failed(bad));
    upstream_answered(bad); /* a good one in between: it counts from the beginning */
    for (int i = 0; i < UPSTREAM_FAILURES_MAX - 1; i++)
        upstream_failed(bad);
    assert_true(upstream_usable(bad, clock_now_ns()));
    assert_true(upstream_failed(bad));
    assert_false(upstream_usable(bad, clock_now_ns()));
    clock_advance_ns((UPSTREAM_SHUT_MS - 1000) * NS_PER_MS);
    assert_false(upstream_usable(bad, clock_now_ns()));
    clock_advance_ns(1001 * NS_PER_MS);
    /* One at a time may try. */
    assert_true(upstream_usable(bad, clock_now_ns()));
    atomic_fetch_add(&bad->in_flight, 1);
    assert_false(upstream_usable(bad, clock_now_ns()));
    atomic_fetch_sub(&bad->in_flight, 1);
    upstream_failed(bad);
    assert_false(upstream_usable(bad, clock_now_ns()));
    assert_true(upstream_answered(bad));
    assert_true(upstream_usable(bad, clock_now_ns()));
    rig_close(&rig);
}

static void test_not_now_is_heeded_for_a_moment(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig);
    upstream_rests(rig.decode[3]);
    assert_true(atomic_load(&rig.decode[3]->doubted));
    for (int i = 0; i < 50; i++)
        assert_ptr_not_equal(pick(&rig, &policy_round_robin, NULL), rig.decode[3]);
    clock_advance_ns((UPSTREAM_REST_MS + 1) * NS_PER_MS);
    assert_true(upstream_usable(rig.decode[3], clock_now_ns()));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_find_policies),
        cmocka_unit_test(test_only_usable_ones_of_the_role_are_taken),
        cmocka_unit_test(test_the_one_that_failed_is_the_last_resort),
        cmocka_unit_test(test_round_robin_takes_turns),
        cmocka_unit_test(test_least_loaded_takes_one_with_the_least),
        cmocka_unit_test(test_not_now_is_heeded_for_a_moment),
        cmocka_unit_test(test_failures_in_a_row_shut_out_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
