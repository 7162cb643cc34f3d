/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of workers: what can be added and removed, and that a list that somebody holds stays as it
 * is while others change it. */
#include "router/upstream.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char sentence[320];

static int add(struct upstream_table *table, enum upstream_role role, const char *url)
{
    struct upstream *upstream = NULL;
    int rc = upstream_open(role, url, -1, &upstream, ERROR_BUFFER(sentence));
    if (rc)
        return rc;
    rc = upstream_table_add(table, upstream, ERROR_BUFFER(sentence));
    if (rc)
        upstream_release(upstream);
    return rc;
}

static struct upstream_table *table_open(void)
{
    struct upstream_table *table = NULL;
    assert_int_equal(upstream_table_open(&table, ERROR_NONE), BATON_OK);
    return table;
}

static void test_addresses_are_checked(void **state)
{
    static const char *const bad[] = {"",
                                      "h:1",
                                      "ftp://h:1",
                                      "http://",
                                      "http://h:1/path",
                                      "http://h:99999",
                                      "http://h\"x:1",
                                      "http://h:1?x=1"};
    struct upstream *upstream = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        sentence[0] = '\0';
        int rc = upstream_open(UPSTREAM_DECODE, bad[i], -1, &upstream, ERROR_BUFFER(sentence));
        assert_int_equal(rc, BATON_EINVAL);
        assert_true(sentence[0]);
    }
    assert_null(upstream);
    assert_int_equal(upstream_open(UPSTREAM_PREFILL, "http://[::1]:8000//", 8998, &upstream,
                                   ERROR_BUFFER(sentence)),
                     BATON_OK);
    assert_string_equal(upstream->url, "http://[::1]:8000");
    assert_string_equal(upstream->host, "::1");
    assert_int_equal(atomic_load(&upstream->bootstrap_port), 8998);
    upstream_release(upstream);
}

static void test_lists_are_sorted_by_role(void **state)
{
    struct upstream_table *table = table_open();
    uint32_t there, usable;
    (void)state;
    assert_int_equal(add(table, UPSTREAM_DECODE, "http://a:1"), BATON_OK);
    assert_int_equal(add(table, UPSTREAM_PREFILL, "http://b:1"), BATON_OK);
    assert_int_equal(add(table, UPSTREAM_MIXED, "http://c:1"), BATON_OK);
    assert_int_equal(add(table, UPSTREAM_PREFILL, "http://d:1"), BATON_OK);
    struct upstream_set *set = upstream_table_get(table);
    assert_int_equal(set->count, 4);
    for (uint32_t role = 0; role < UPSTREAM_ROLES; role++)
        for (uint32_t i = set->first[role]; i < set->first[role + 1]; i++)
            assert_int_equal(set->items[i]->role, role);
    upstream_set_state(set->items[set->first[UPSTREAM_PREFILL]], UPSTREAM_UP);
    upstream_set_count(set, UPSTREAM_PREFILL, &there, &usable);
    assert_int_equal(there, 2);
    assert_int_equal(usable, 1);
    upstream_set_release(set);
    upstream_table_close(table);
}

static void test_the_same_address_twice_is_refused(void **state)
{
    struct upstream_table *table = table_open();
    (void)state;
    assert_int_equal(add(table, UPSTREAM_DECODE, "http://a:1"), BATON_OK);
    assert_int_equal(add(table, UPSTREAM_PREFILL, "http://a:1/"), BATON_EEXIST);
    assert_string_equal(sentence, "http://a:1 is in the list already");
    assert_int_equal(add(table, UPSTREAM_DECODE, "http://a:11"), BATON_OK);
    assert_int_equal(upstream_table_remove(table, "http://a", ERROR_NONE), BATON_ENOTFOUND);
    assert_int_equal(upstream_table_remove(table, "http://a:1/", ERROR_NONE), BATON_OK);
    assert_int_equal(upstream_table_remove(table, "http://a:1", ERROR_NONE), BATON_ENOTFOUND);
    assert_int_equal(add(table, UPSTREAM_PREFILL, "http://a:1"), BATON_OK);
    upstream_table_close(table);
}

static void test_there_is_a_limit(void **state)
{
    struct upstream_table *table = table_open();
    char url[64];
    (void)state;
    for (int i = 0; i < UPSTREAMS_MAX; i++) {
        snprintf(url, sizeof(url), "http://h:%d", i + 1);
        assert_int_equal(add(table, UPSTREAM_DECODE, url), BATON_OK);
    }
    assert_int_equal(add(table, UPSTREAM_DECODE, "http://other:1"), BATON_ELIMIT);
    upstream_table_close(table);
}

static void test_a_list_that_is_held_stays(void **state)
{
    struct upstream_table *table = table_open();
    char number[24];
    (void)state;
    assert_int_equal(add(table, UPSTREAM_DECODE, "http://a:1"), BATON_OK);
    struct upstream_set *old = upstream_table_get(table);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)old->items[0]->number);
    assert_int_equal(upstream_table_remove(table, number, ERROR_NONE), BATON_OK);
    struct upstream_set *now = upstream_table_get(table);
    assert_int_equal(now->count, 0);
    assert_int_equal(old->count, 1);
    upstream_table_close(table);
    assert_string_equal(old->items[0]->url, "http://a:1");
    upstream_set_release(old);
    upstream_set_release(now);
}

/* Loops that take lists and use them, while a hand adds and removes. For the sanitizers. */
struct contest {
    struct upstream_table *table;
    atomic_bool over;
    atomic_uint looked;
};

static void *reader_run(void *context)
{
    struct contest *contest = context;
    while (!atomic_load(&contest->over)) {
        struct upstream_set *set = upstream_table_get(contest->table);
        for (uint32_t i = 0; i < set->count; i++) {
            struct upstream *one = upstream_hold(set->items[i]);
            atomic_fetch_add(&contest->looked, one->url[0] == 'h');
            upstream_set_release(upstream_set_hold(set));
            upstream_release(one);
        }
        upstream_set_release(set);
    }
    return NULL;
}

static void test_readers_and_a_writer(void **state)
{
    struct contest contest = {.table = table_open()};
    pthread_t readers[3];
    char url[64];
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, reader_run, &contest), 0);
    for (int i = 0; i < 1010; i++) { /* the last ten are added */
        snprintf(url, sizeof(url), "http://h:%d", i % 10 + 1);
        if (add(contest.table, UPSTREAM_DECODE, url) == BATON_EEXIST)
            assert_int_equal(upstream_table_remove(contest.table, url, ERROR_NONE), BATON_OK);
    }
    while (!atomic_load(&contest.looked))
        continue;
    atomic_store(&contest.over, true);
    for (int i = 0; i < 3; i++)
        pthread_join(readers[i], NULL);
    upstream_table_close(contest.table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses_are_checked),
        cmocka_unit_test(test_lists_are_sorted_by_role),
        cmocka_unit_test(test_the_same_address_twice_is_refused),
        cmocka_unit_test(test_there_is_a_limit),
        cmocka_unit_test(test_a_list_that_is_held_stays),
        cmocka_unit_test(test_readers_and_a_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
