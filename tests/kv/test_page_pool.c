/* SPDX-License-Identifier: Apache-2.0 */
/* A page is in one state, counted in one place, handed out to one holder at a time; and every misuse
 * that could let two requests share a page by accident stops the process. */
#include "kv/page_pool.h"

#include "misuse.h"
#include "random_source.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#define PAGES 97u
#define PAGE_BYTES 24u
#define STEPS 2000000u

static uint8_t memory[PAGES * PAGE_BYTES + PAGE_BYTES / 2];

static struct page_pool *pool_open(void)
{
    struct page_pool *pool;
    assert_int_equal(page_pool_open(memory, sizeof(memory), PAGE_BYTES, &pool, ERROR_NONE), 0);
    return pool;
}

static int setup(void **state)
{
    *state = pool_open();
    return 0;
}

static int teardown(void **state)
{
    page_pool_close(*state);
    return 0;
}

/* ---- the plain things -------------------------------------------------------------------- */

static void test_pool_uses_all_whole_pages_of_its_memory(void **state)
{
    struct page_pool *pool = *state;
    int32_t pages[PAGES];
    assert_int_equal(pool->counts.pages, PAGES);
    assert_true(page_pool_alloc(pool, -1, PAGES, pages));
    for (uint32_t i = 0; i < PAGES; i++) {
        assert_int_equal(pages[i], i); /* page 0 too, all in one run */
        assert_ptr_equal(page_pool_address(pool, pages[i]), memory + i * PAGE_BYTES);
    }
    assert_int_equal(pool->counts.free, 0);
    assert_false(page_pool_alloc(pool, -1, 1, pages));
    assert_true(page_pool_alloc(pool, -1, 0, pages));
    page_pool_release(pool, pages, PAGES);
    assert_int_equal(pool->counts.free, PAGES);
}

static void test_pool_gives_all_or_nothing(void **state)
{
    struct page_pool *pool = *state;
    int32_t pages[PAGES + 1];
    assert_false(page_pool_alloc(pool, -1, PAGES + 1, pages));
    assert_int_equal(pool->counts.free, PAGES);
    assert_true(page_pool_alloc(pool, -1, 60, pages));
    assert_false(page_pool_alloc(pool, -1, PAGES - 59, pages + 60));
    assert_int_equal(pool->counts.free, PAGES - 60);
}

static void test_pool_refuses_memory_that_holds_no_page(void **state)
{
    (void)state;
    struct page_pool *pool = NULL;
    char text[200] = "";
    assert_int_equal(page_pool_open(memory, 23, 24, &pool, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_non_null(strstr(text, "23 bytes holds 0 pages of 24"));
    assert_int_equal(page_pool_open(memory, 23, 0, &pool, ERROR_NONE), BATON_EINVAL);
    assert_int_equal(page_pool_open(memory, UINT64_MAX, 1, &pool, ERROR_NONE), BATON_EINVAL);
    assert_null(pool);
}

static void test_pool_frees_when_the_last_holder_goes(void **state)
{
    struct page_pool *pool = *state;
    int32_t pages[3];
    assert_true(page_pool_alloc(pool, -1, 3, pages));
    page_pool_retain(pool, pages, 3);
    page_pool_retain(pool, pages + 1, 1);
    page_pool_release(pool, pages, 3);
    assert_int_equal(pool->counts.used, 3);
    page_pool_release(pool, pages, 3);
    assert_int_equal(pool->counts.used, 1);
    assert_int_equal(page_pool_state(pool, pages[1]), PAGE_USED);
    page_pool_release(pool, pages + 1, 1);
    assert_int_equal(pool->counts.free, PAGES);
}

static void test_pool_quarantine_keeps_pages_away_and_gives_them_back(void **state)
{
    struct page_pool *pool = *state;
    int32_t pages[PAGES], others[PAGES];
    assert_true(page_pool_alloc(pool, -1, 10, pages));
    page_pool_quarantine(pool, pages, 10);
    assert_int_equal(pool->counts.quarantined, 10);
    assert_int_equal(pool->counts.used, 0);
    assert_false(page_pool_alloc(pool, -1, PAGES - 9, others));
    assert_true(page_pool_alloc(pool, -1, PAGES - 10, others));
    for (uint32_t i = 0; i < PAGES - 10; i++)
        assert_true(others[i] < pages[0] || others[i] > pages[9]);
    page_pool_readmit(pool, pages, 4); /* these landed: they are used after all */
    assert_int_equal(pool->counts.used, PAGES - 6);
    page_pool_readmit(pool, pages + 4, 6);
    page_pool_release(pool, pages, 10);
    page_pool_release(pool, others, PAGES - 10);
    assert_int_equal(pool->counts.free, PAGES);
    assert_int_equal(pool->counts.quarantined, 0);
}

static void test_pool_counts_shared_pages_of_the_cache(void **state)
{
    struct page_pool *pool = *state;
    int32_t pages[4];
    assert_true(page_pool_alloc(pool, -1, 4, pages));
    page_pool_retain(pool, pages, 1);
    page_pool_cache(pool, pages, 4);
    assert_int_equal(pool->counts.shared, 1);
    page_pool_retain(pool, pages + 1, 1);
    page_pool_retain(pool, pages + 1, 1);
    assert_int_equal(pool->counts.shared, 2);
    page_pool_release(pool, pages + 1, 1);
    assert_int_equal(pool->counts.shared, 2);
    page_pool_release(pool, pages + 1, 1);
    assert_int_equal(pool->counts.shared, 1);
    assert_int_equal(page_pool_uncache(pool, pages, 4), 3);
    assert_int_equal(pool->counts.shared, 0);
    assert_int_equal(pool->counts.cached, 0);
    assert_int_equal(pool->counts.used, 1);
    page_pool_release(pool, pages, 1);
    assert_int_equal(pool->counts.free, PAGES);
}

/* ---- misuse ------------------------------------------------------------------------------ */

struct misuse {
    struct page_pool *pool;
    int32_t used, freed, cached, quarantined, shared;
};

static void release_twice(void *argument)
{
    struct misuse *at = argument;
    page_pool_release(at->pool, &at->used, 1);
    page_pool_release(at->pool, &at->used, 1);
}

static void release_free(void *argument)
{
    struct misuse *at = argument;
    page_pool_release(at->pool, &at->freed, 1);
}

static void release_for_the_cache(void *argument)
{
    struct misuse *at = argument;
    page_pool_release(at->pool, &at->cached, 1);
}

static void release_quarantined(void *argument)
{
    struct misuse *at = argument;
    page_pool_release(at->pool, &at->quarantined, 1);
}

static void release_outside(void *argument)
{
    struct misuse *at = argument;
    page_pool_release(at->pool, &(int32_t){PAGES}, 1);
}

static void release_negative(void *argument)
{
    struct misuse *at = argument;
    page_pool_release(at->pool, &(int32_t){-1}, 1);
}

static void retain_free(void *argument)
{
    struct misuse *at = argument;
    page_pool_retain(at->pool, &at->freed, 1);
}

static void retain_quarantined(void *argument)
{
    struct misuse *at = argument;
    page_pool_retain(at->pool, &at->quarantined, 1);
}

static void quarantine_shared(void *argument)
{
    struct misuse *at = argument;
    page_pool_quarantine(at->pool, &at->shared, 1);
}

static void quarantine_cached(void *argument)
{
    struct misuse *at = argument;
    page_pool_quarantine(at->pool, &at->cached, 1);
}

static void readmit_used(void *argument)
{
    struct misuse *at = argument;
    page_pool_readmit(at->pool, &at->used, 1);
}

static void cache_twice(void *argument)
{
    struct misuse *at = argument;
    page_pool_cache(at->pool, &at->cached, 1);
}

static void cache_quarantined(void *argument)
{
    struct misuse *at = argument;
    page_pool_cache(at->pool, &at->quarantined, 1);
}

static void uncache_used(void *argument)
{
    struct misuse *at = argument;
    page_pool_uncache(at->pool, &at->used, 1);
}

static void alloc_after_free(void *argument)
{
    struct misuse *at = argument;
    int32_t page;
    page_pool_alloc(at->pool, at->freed, 1, &page);
}

static void *release_elsewhere(void *argument)
{
    struct misuse *at = argument;
    page_pool_release(at->pool, &at->used, 1);
    return NULL;
}

static void other_thread(void *argument)
{
    pthread_t thread;
    pthread_create(&thread, NULL, release_elsewhere, argument);
    pthread_join(thread, NULL);
}

static void test_pool_misuse_aborts(void **state)
{
    struct page_pool *pool = *state;
    int32_t pages[5];
    assert_true(page_pool_alloc(pool, -1, 5, pages));
    struct misuse at = {pool, pages[0], pages[1], pages[2], pages[3], pages[4]};
    page_pool_release(pool, &at.freed, 1);
    page_pool_cache(pool, &at.cached, 1);
    page_pool_quarantine(pool, &at.quarantined, 1);
    page_pool_retain(pool, &at.shared, 1);
    void (*const misuses[])(void *) = {
        release_twice,     release_free,      release_for_the_cache, release_quarantined,
        release_outside,   release_negative,  retain_free,           retain_quarantined,
        quarantine_shared, quarantine_cached, readmit_used,          cache_twice,
        cache_quarantined, uncache_used,      alloc_after_free,      other_thread,
    };
    for (size_t i = 0; i < sizeof(misuses) / sizeof(*misuses); i++)
        if (!misuse_aborts(misuses[i], &at))
            fail_msg("misuse %zu was accepted", i);
}

/* ---- random traffic against plain arrays ------------------------------------------------- */

struct books {
    uint32_t holders[PAGES]; /* 0: free */
    bool quarantined[PAGES], cached[PAGES];
};

static void books_check(const struct books *books, const struct page_pool *pool)
{
    struct page_counts counts = {.pages = PAGES};
    for (int32_t page = 0; page < (int32_t)PAGES; page++) {
        assert_int_equal(pool->holders[page], books->holders[page]);
        enum page_state expected = !books->holders[page]      ? PAGE_FREE
                                   : books->quarantined[page] ? PAGE_QUARANTINED
                                   : books->cached[page]      ? PAGE_CACHED
                                                              : PAGE_USED;
        assert_int_equal(page_pool_state(pool, page), expected);
        counts.free += expected == PAGE_FREE;
        counts.used += expected == PAGE_USED;
        counts.cached += expected == PAGE_CACHED;
        counts.quarantined += expected == PAGE_QUARANTINED;
        counts.shared += expected == PAGE_CACHED && books->holders[page] > 1;
    }
    assert_memory_equal(&counts, &pool->counts, sizeof(counts));
}

static void step_alloc(struct books *books, struct page_pool *pool,
                       struct random_source *random)
{
    int32_t pages[PAGES], after = (int32_t)random_below(random, PAGES);
    uint32_t count = random_between(random, 0, 12);
    if (!books->holders[after])
        after = -1;
    uint32_t free = pool->counts.free;
    bool got = page_pool_alloc(pool, after, count, pages);
    assert_int_equal(got, count <= free);
    for (uint32_t i = 0; got && i < count; i++) {
        assert_int_equal(books->holders[pages[i]], 0);
        books->holders[pages[i]] = 1;
        books->cached[pages[i]] = false;
    }
}

static void step_one_page(struct books *books, struct page_pool *pool,
                          struct random_source *random)
{
    int32_t page = (int32_t)random_below(random, PAGES);
    uint32_t *holders = &books->holders[page];
    bool *cached = &books->cached[page], *quarantined = &books->quarantined[page];
    if (!*holders)
        return;
    if (*quarantined) {
        if (random_below(random, 4) == 0) {
            page_pool_readmit(pool, &page, 1);
            *quarantined = false;
        }
        return;
    }
    switch (random_below(random, 6)) {
    case 0:
        page_pool_retain(pool, &page, 1);
        ++*holders;
        break;
    case 1:
    case 2:
        if (!*cached || *holders > 1) {
            page_pool_release(pool, &page, 1);
            --*holders;
        }
        break;
    case 3:
        if (!*cached && *holders == 1) {
            page_pool_quarantine(pool, &page, 1);
            *quarantined = true;
        }
        break;
    case 4:
        if (!*cached) {
            page_pool_cache(pool, &page, 1);
            *cached = true;
        }
        break;
    default:
        if (*cached) {
            assert_int_equal(page_pool_uncache(pool, &page, 1), --*holders == 0);
            *cached = false;
        }
        break;
    }
}

static void test_pool_against_plain_arrays(void **state)
{
    struct page_pool *pool = *state;
    struct books books = {.holders = {0}};
    struct random_source random = {random_seed()};
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)random.state);
    for (uint32_t step = 0; step < STEPS; step++) {
        if (random_below(&random, 10) == 0)
            step_alloc(&books, pool, &random);
        else
            step_one_page(&books, pool, &random);
        if (step % 16 == 0)
            books_check(&books, pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pool_uses_all_whole_pages_of_its_memory, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_pool_gives_all_or_nothing, setup, teardown),
        cmocka_unit_test(test_pool_refuses_memory_that_holds_no_page),
        cmocka_unit_test_setup_teardown(test_pool_frees_when_the_last_holder_goes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_pool_quarantine_keeps_pages_away_and_gives_them_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pool_counts_shared_pages_of_the_cache, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_pool_misuse_aborts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pool_against_plain_arrays, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
