/* SPDX-License-Identifier: Apache-2.0 */
/* What a programmer may not do to a prefix cache stops the process, before it can hand one request's
 * pages to another. */
#include "kv/prefix_cache.h"

#include "misuse.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#define PAGES 16u
#define PER_PAGE 4u

struct misuse {
    struct page_pool *pool;
    struct prefix_cache *cache;
    int32_t upper, lower, inside,
        unlocked; /* pages: three nodes' ends, and one inside of lower */
};

/* A sequence of `count` pages, all of whose tokens are the same; lists its new pages. */
static int32_t store(struct misuse *at, int32_t token, uint32_t count, int32_t *pages)
{
    int32_t tokens[PAGES * PER_PAGE];
    struct prefix_insert stored;
    for (uint32_t i = 0; i < count * PER_PAGE; i++)
        tokens[i] = token;
    assert_true(page_pool_alloc(at->pool, -1, count, pages));
    assert_int_equal(prefix_cache_insert(at->cache, PREFIX_KEY_NONE, tokens, count * PER_PAGE,
                                         pages, &stored),
                     0);
    page_pool_release(at->pool, pages, stored.present);
    return stored.node;
}

static void unlock_twice(void *argument)
{
    struct misuse *at = argument;
    prefix_cache_unlock(at->cache, at->lower);
    prefix_cache_unlock(at->cache, at->lower);
}

static void unlock_parent(void *argument) /* locked, but not by a lock of its own */
{
    struct misuse *at = argument;
    prefix_cache_unlock(at->cache, at->upper);
}

static void lock_inside_a_node(void *argument)
{
    struct misuse *at = argument;
    prefix_cache_lock(at->cache, at->inside);
}

static void lock_evicted(void *argument)
{
    struct misuse *at = argument;
    prefix_cache_evict(at->cache, 100);
    prefix_cache_lock(at->cache, at->unlocked);
}

static void insert_free_page(void *argument)
{
    struct misuse *at = argument;
    int32_t tokens[PER_PAGE] = {9, 9, 9, 9}, page = PAGES - 1;
    struct prefix_insert stored;
    prefix_cache_insert(at->cache, PREFIX_KEY_NONE, tokens, PER_PAGE, &page, &stored);
}

static void insert_cached_page(void *argument)
{
    struct misuse *at = argument;
    int32_t tokens[PER_PAGE] = {9, 9, 9, 9};
    struct prefix_insert stored;
    prefix_cache_insert(at->cache, PREFIX_KEY_NONE, tokens, PER_PAGE, &at->lower, &stored);
}

static void close_while_locked(void *argument)
{
    struct misuse *at = argument;
    prefix_cache_close(at->cache);
}

static void *reset_elsewhere(void *argument)
{
    struct misuse *at = argument;
    prefix_cache_reset(at->cache);
    return NULL;
}

static void other_thread(void *argument)
{
    pthread_t thread;
    pthread_create(&thread, NULL, reset_elsewhere, argument);
    pthread_join(thread, NULL);
}

static void test_misuse_aborts(void **state)
{
    (void)state;
    static char memory[PAGES];
    struct misuse at = {.pool = NULL};
    int32_t pages[PAGES];
    assert_int_equal(page_pool_open(memory, PAGES, 1, &at.pool, ERROR_NONE), 0);
    assert_int_equal(prefix_cache_open(at.pool, PER_PAGE, 0, &at.cache, ERROR_NONE), 0);
    at.upper = store(&at, 1, 2, pages);
    at.lower = store(&at, 1, 5, pages);
    at.inside = pages[3];
    at.unlocked = store(&at, 2, 1, pages);
    prefix_cache_lock(at.cache, at.lower);
    void (*const misuses[])(void *) = {
        unlock_twice,     unlock_parent,      lock_inside_a_node, lock_evicted,
        insert_free_page, insert_cached_page, close_while_locked, other_thread,
    };
    for (size_t i = 0; i < sizeof(misuses) / sizeof(*misuses); i++)
        if (!misuse_aborts(misuses[i], &at))
            fail_msg("misuse %zu was accepted", i);
    prefix_cache_unlock(at.cache, at.lower);
    prefix_cache_close(at.cache);
    page_pool_close(at.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misuse_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
