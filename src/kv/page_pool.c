/* SPDX-License-Identifier: Apache-2.0 */
/* See page_pool.h. Free pages live in free_runs.c; here are the states, the holders and the counts.
 * Each function checks a page before it changes anything of it: these assertions are what stands
 * between a bookkeeping mistake and one request reading another one's cache. */
#include "page_pool.h"

#include <stdlib.h>

int page_pool_open(void *base, uint64_t bytes, uint64_t page_bytes, struct page_pool **out,
                   struct error err)
{
    uint64_t pages = page_bytes ? bytes / page_bytes : 0;
    if (pages == 0 || pages > FREE_RUNS_PAGES_MAX)
        return error_set(err, BATON_EINVAL,
                         "a KV pool of %llu bytes holds %llu pages of %llu bytes; it must hold "
                         "between 1 and %u",
                         (unsigned long long)bytes, (unsigned long long)pages,
                         (unsigned long long)page_bytes, FREE_RUNS_PAGES_MAX);
    struct page_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        goto no_memory;
    pool->base = base;
    pool->page_bytes = page_bytes;
    pool->counts = (struct page_counts){.pages = (uint32_t)pages, .free = (uint32_t)pages};
    pool->holders = calloc(pages, sizeof(*pool->holders));
    if (!pool->holders)
        goto free_pool;
    pool->states = calloc(pages, sizeof(*pool->states));
    if (!pool->states)
        goto free_holders;
    if (free_runs_open(&pool->free_runs, (uint32_t)pages))
        goto free_states;
    *out = pool;
    return BATON_OK;

free_states:
    free(pool->states);
free_holders:
    free(pool->holders);
free_pool:
    free(pool);
no_memory:
    return error_set(err, BATON_ENOMEM, "no memory for the books of %llu KV pages",
                     (unsigned long long)pages);
}

void page_pool_close(struct page_pool *pool)
{
    if (!pool)
        return;
    free_runs_close(&pool->free_runs);
    free(pool->states);
    free(pool->holders);
    free(pool);
}

static bool page_is(const struct page_pool *pool, int32_t page, enum page_state state)
{
    return (uint32_t)page < pool->counts.pages && pool->states[page] == state;
}

bool page_pool_alloc(struct page_pool *pool, int32_t after, uint32_t count, int32_t *pages)
{
    owner_thread_assert(&pool->owner);
    BATON_ASSERT(after == -1 ||
                 ((uint32_t)after < pool->counts.pages && pool->states[after] != PAGE_FREE));
    if (count > pool->counts.free)
        return false;
    for (uint32_t got = 0; got < count;) {
        int32_t first;
        uint32_t taken = free_runs_take(&pool->free_runs, after, count - got, &first);
        BATON_ASSERT(taken > 0);
        for (uint32_t i = 0; i < taken; i++) {
            int32_t page = first + (int32_t)i;
            BATON_ASSERT(page_is(pool, page, PAGE_FREE) && !pool->holders[page]);
            pool->states[page] = PAGE_USED;
            pool->holders[page] = 1;
            pages[got++] = page;
        }
    }
    pool->counts.free -= count;
    pool->counts.used += count;
    return true;
}

void page_pool_retain(struct page_pool *pool, const int32_t *pages, uint32_t count)
{
    owner_thread_assert(&pool->owner);
    for (uint32_t i = 0; i < count; i++) {
        bool cached = page_is(pool, pages[i], PAGE_CACHED);
        BATON_ASSERT(cached || page_is(pool, pages[i], PAGE_USED));
        BATON_ASSERT(pool->holders[pages[i]] < UINT32_MAX);
        if (cached && pool->holders[pages[i]] == 1)
            pool->counts.shared++;
        pool->holders[pages[i]]++;
    }
}

/* Takes one holder away from a page, and moves the page to PAGE_FREE if it was the last one. */
static bool page_let_go(struct page_pool *pool, int32_t page)
{
    if (--pool->holders[page])
        return false;
    pool->states[page] = PAGE_FREE;
    return true;
}

/* Pages that became free, in the order in which they did; neighbours go back as one run. */
struct returned {
    int32_t first;
    uint32_t count;
};

static void returned_flush(struct page_pool *pool, struct returned *run)
{
    if (run->count)
        free_runs_put(&pool->free_runs, run->first, run->count);
    pool->counts.free += run->count;
    run->count = 0;
}

static void returned_add(struct page_pool *pool, struct returned *run, int32_t page)
{
    if (run->count && page != run->first + (int32_t)run->count)
        returned_flush(pool, run);
    if (!run->count)
        run->first = page;
    run->count++;
}

void page_pool_release(struct page_pool *pool, const int32_t *pages, uint32_t count)
{
    owner_thread_assert(&pool->owner);
    struct returned run = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        int32_t page = pages[i];
        if (page_is(pool, page, PAGE_CACHED)) {
            BATON_ASSERT(pool->holders[page] > 1); /* the last one is the cache */
            if (--pool->holders[page] == 1)
                pool->counts.shared--;
            continue;
        }
        BATON_ASSERT(page_is(pool, page, PAGE_USED));
        if (page_let_go(pool, page)) {
            pool->counts.used--;
            returned_add(pool, &run, page);
        }
    }
    returned_flush(pool, &run);
}

void page_pool_quarantine(struct page_pool *pool, const int32_t *pages, uint32_t count)
{
    owner_thread_assert(&pool->owner);
    for (uint32_t i = 0; i < count; i++) {
        BATON_ASSERT(page_is(pool, pages[i], PAGE_USED) && pool->holders[pages[i]] == 1);
        pool->states[pages[i]] = PAGE_QUARANTINED;
    }
    pool->counts.used -= count;
    pool->counts.quarantined += count;
}

void page_pool_readmit(struct page_pool *pool, const int32_t *pages, uint32_t count)
{
    owner_thread_assert(&pool->owner);
    for (uint32_t i = 0; i < count; i++) {
        BATON_ASSERT(page_is(pool, pages[i], PAGE_QUARANTINED));
        pool->states[pages[i]] = PAGE_USED;
    }
    pool->counts.quarantined -= count;
    pool->counts.used += count;
}

void page_pool_cache(struct page_pool *pool, const int32_t *pages, uint32_t count)
{
    owner_thread_assert(&pool->owner);
    for (uint32_t i = 0; i < count; i++) {
        BATON_ASSERT(page_is(pool, pages[i], PAGE_USED));
        pool->states[pages[i]] = PAGE_CACHED;
        pool->counts.shared += pool->holders[pages[i]] > 1;
    }
    pool->counts.used -= count;
    pool->counts.cached += count;
}

uint32_t page_pool_uncache(struct page_pool *pool, const int32_t *pages, uint32_t count)
{
    owner_thread_assert(&pool->owner);
    BATON_ASSERT(count <= pool->counts.cached);
    struct returned run = {0, 0};
    uint32_t freed = 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t page = pages[i];
        BATON_ASSERT(page_is(pool, page, PAGE_CACHED));
        if (page_let_go(pool, page)) {
            freed++;
            returned_add(pool, &run, page);
        } else {
            pool->states[page] = PAGE_USED;
            pool->counts.used++;
            pool->counts.shared--;
        }
    }
    pool->counts.cached -= count;
    returned_flush(pool, &run);
    return freed;
}

void page_pool_count_locked(struct page_pool *pool, uint32_t count)
{
    BATON_ASSERT(count <= pool->counts.cached);
    pool->counts.cached -= count;
    pool->counts.locked += count;
}

void page_pool_count_unlocked(struct page_pool *pool, uint32_t count)
{
    BATON_ASSERT(count <= pool->counts.locked);
    pool->counts.locked -= count;
    pool->counts.cached += count;
}
