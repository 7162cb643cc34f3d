/* SPDX-License-Identifier: Apache-2.0 */
/* The runs of free pages against a plain map of the pool: whatever is taken and put back, no page is
 * handed out twice, neighbours become one run, wishes are fulfilled where they can be, and a run is
 * found where there is one that is long enough. */
#include "kv/free_runs.h"

#include "misuse.h"
#include "random_source.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define PAGES_MAX 3000u
#define ROUNDS 40u
#define STEPS 5000u

struct map {
    struct free_runs runs;
    bool taken[PAGES_MAX];
};

static uint32_t longest_free(const struct map *map)
{
    uint32_t longest = 0, length = 0;
    for (uint32_t page = 0; page < map->runs.pages; page++) {
        length = map->taken[page] ? 0 : length + 1;
        longest = length > longest ? length : longest;
    }
    return longest;
}

static void step_take(struct map *map, struct random_source *random)
{
    uint32_t pages = map->runs.pages, longest = longest_free(map);
    uint32_t want = random_below(random, 4) ? random_between(random, 1, 8)
                                            : random_between(random, 1, pages);
    int32_t after = (int32_t)random_below(random, pages), first = -7;
    if (!map->taken[after] || !random_below(random, 3))
        after = -1;
    bool wish = after >= 0 && after + 1 < (int32_t)pages && !map->taken[after + 1];
    uint32_t taken = free_runs_take(&map->runs, after, want, &first);
    if (!longest) {
        assert_int_equal(taken, 0);
        assert_int_equal(first, -7);
        return;
    }
    assert_true(taken > 0 && taken <= want);
    assert_true(first >= 0 && first + taken <= pages);
    if (wish)
        assert_int_equal(first, after + 1);
    else if (want + want / 16 < longest || want < 32)
        assert_int_equal(taken, want < longest ? want : longest);
    else /* the longest, or nearly: bins are a sixteenth wide */
        assert_true(taken + taken / 8 >= (want < longest ? want : longest));
    for (uint32_t i = 0; i < taken; i++) {
        assert_false(map->taken[first + (int32_t)i]);
        map->taken[first + (int32_t)i] = true;
    }
}

static void step_put(struct map *map, struct random_source *random)
{
    uint32_t pages = map->runs.pages, first = random_below(random, pages), count = 0;
    uint32_t most = random_below(random, 3) ? random_between(random, 1, 10) : pages;
    while (first + count < pages && count < most && map->taken[first + count])
        count++;
    if (!count)
        return;
    free_runs_put(&map->runs, (int32_t)first, count);
    memset(map->taken + first, 0, count);
}

static uint32_t count_free(const struct map *map)
{
    uint32_t free = 0;
    for (uint32_t page = 0; page < map->runs.pages; page++)
        free += !map->taken[page];
    return free;
}

/* With everything put back there is one run again: nothing was lost, all neighbours have met. */
static void check_whole(struct map *map)
{
    int32_t first;
    for (uint32_t page = 0; page < map->runs.pages; page++)
        if (map->taken[page])
            free_runs_put(&map->runs, (int32_t)page, 1);
    assert_int_equal(map->runs.free, map->runs.pages);
    assert_int_equal(free_runs_take(&map->runs, -1, map->runs.pages, &first), map->runs.pages);
    assert_int_equal(first, 0);
    assert_int_equal(free_runs_take(&map->runs, -1, 1, &first), 0);
}

static void test_free_runs_against_a_map(void **state)
{
    (void)state;
    static struct map map;
    struct random_source random = {random_seed()};
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)random.state);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        memset(map.taken, 0, sizeof(map.taken));
        uint32_t pages = random_between(&random, 1, round % 2 ? PAGES_MAX : 40);
        assert_int_equal(free_runs_open(&map.runs, pages), 0);
        uint32_t eager = random_between(&random, 2, 5); /* full pools and empty ones */
        for (uint32_t step = 0; step < STEPS; step++) {
            if (random_below(&random, 7) < eager)
                step_take(&map, &random);
            else
                step_put(&map, &random);
            assert_int_equal(map.runs.free, count_free(&map));
        }
        check_whole(&map);
        free_runs_close(&map.runs);
    }
}

static void test_free_runs_prefers_the_shortest_that_fits(void **state)
{
    (void)state;
    struct free_runs runs;
    int32_t first;
    assert_int_equal(free_runs_open(&runs, 100), 0);
    assert_int_equal(free_runs_take(&runs, -1, 100, &first), 100);
    free_runs_put(&runs, 10, 9);
    free_runs_put(&runs, 30, 4);
    free_runs_put(&runs, 60, 20);
    assert_int_equal(free_runs_take(&runs, -1, 3, &first), 3);
    assert_int_equal(first, 30);
    assert_int_equal(free_runs_take(&runs, -1, 9, &first), 9);
    assert_int_equal(first, 10);
    assert_int_equal(free_runs_take(&runs, -1, 21, &first), 20); /* the longest there is */
    assert_int_equal(first, 60);
    assert_int_equal(free_runs_take(&runs, -1, 2, &first), 1);
    assert_int_equal(first, 33);
    free_runs_close(&runs);
}

static void test_free_runs_continues_a_sequence(void **state)
{
    (void)state;
    struct free_runs runs;
    int32_t first;
    assert_int_equal(free_runs_open(&runs, 64), 0);
    assert_int_equal(free_runs_take(&runs, -1, 10, &first), 10);
    assert_int_equal(free_runs_take(&runs, 9, 5, &first), 5);
    assert_int_equal(first, 10);
    assert_int_equal(free_runs_take(&runs, 9, 5, &first), 5); /* 10 is taken: no wish left */
    assert_int_equal(first, 15);
    assert_int_equal(free_runs_take(&runs, 19, 44, &first), 44);
    free_runs_put(&runs, 0, 2);
    assert_int_equal(free_runs_take(&runs, 63, 1, &first),
                     1); /* nothing follows the last page */
    assert_int_equal(first, 0);
    free_runs_close(&runs);
}

static void put_outside(void *argument)
{
    free_runs_put(argument, 60, 5);
}

static void put_free(void *argument)
{
    free_runs_put(argument, 0, 1);
}

static void take_after_free(void *argument)
{
    int32_t first;
    free_runs_take(argument, 0, 1, &first);
}

static void test_free_runs_misuse_aborts(void **state)
{
    (void)state;
    struct free_runs runs;
    assert_int_equal(free_runs_open(&runs, 64), 0);
    assert_true(misuse_aborts(put_outside, &runs));
    assert_true(misuse_aborts(put_free, &runs));
    assert_true(misuse_aborts(take_after_free, &runs));
    free_runs_close(&runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_free_runs_against_a_map),
        cmocka_unit_test(test_free_runs_prefers_the_shortest_that_fits),
        cmocka_unit_test(test_free_runs_continues_a_sequence),
        cmocka_unit_test(test_free_runs_misuse_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
