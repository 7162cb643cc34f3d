/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of one KV cache: who may store into which. The memory is borrowed (baton_pool_alloc,
 * huge pages, a device); the pool only keeps the books. Under tensor parallelism every rank has
 * memory of its own with the same number of pages, and one pool keeps the books for all of them.
 *
 *                    alloc                      cache
 *          FREE ------------> USED ---------------------------> CACHED   (locked or evictable)
 *           ^                 |  ^ ^                               |
 *           +---- release ----+  | +-- uncache, others hold it ----+
 *           |   (last holder)    |                                 |
 *           |       quarantine / readmit                           |
 *           |                    v                                 |
 *           |               QUARANTINED                            |
 *           +------------------ uncache, nobody else holds it -----+
 *
 * A page is counted by its holders: alloc makes one, retain adds one, release takes one away. The
 * prefix cache is a holder too. QUARANTINED: a transfer into the page has failed and the peer may
 * still store into it; it has its one holder, but nobody reads, shares or frees it until the
 * transfer layer has proof that nobody can store any more, and readmit makes it USED again.
 *
 * One thread, the scheduler's, uses a pool. Misuse (a page freed twice, a page that is not there)
 * is a programmer's error and stops the process. */
#ifndef BATON_KV_PAGE_POOL_H
#define BATON_KV_PAGE_POOL_H

#include "free_runs.h"
#include "owner_thread.h"

enum page_state {
    PAGE_FREE = 0,
    PAGE_USED = 1,
    PAGE_CACHED = 2,
    PAGE_QUARANTINED = 3,
};

/* pages = free + used + cached + locked + quarantined. */
struct page_counts {
    uint32_t pages;
    uint32_t free;
    uint32_t used;   /* held by requests and transfers only */
    uint32_t cached; /* in the prefix cache, evictable */
    uint32_t locked; /* in the prefix cache, in use by a request or a transfer */
    uint32_t quarantined;
    /* Of those in the prefix cache, locked or not: held by others too. Evicting such a page does
     * not free it, so that free + cached - shared pages are certain to be had. */
    uint32_t shared;
};

struct page_pool {
    struct owner_thread owner;
    char *base;
    uint64_t page_bytes;
    struct page_counts counts; /* read only, for everybody but the pool */
    struct free_runs free_runs;
    uint32_t *holders; /* per page */
    uint8_t *states;   /* per page, enum page_state */
};

/* As many pages as fit into `bytes`. The memory stays the caller's and is not touched. EINVAL when
 * not even one page fits, or more than FREE_RUNS_PAGES_MAX would; ENOMEM. */
int page_pool_open(void *base, uint64_t bytes, uint64_t page_bytes, struct page_pool **out,
                   struct error err);
void page_pool_close(struct page_pool *pool);

static inline void *page_pool_address(const struct page_pool *pool, int32_t page)
{
    BATON_ASSERT((uint32_t)page < pool->counts.pages);
    return pool->base + (uint64_t)page * pool->page_bytes;
}

static inline enum page_state page_pool_state(const struct page_pool *pool, int32_t page)
{
    BATON_ASSERT((uint32_t)page < pool->counts.pages);
    return (enum page_state)pool->states[page];
}

/* All of `count` pages or none (false: not so many are free). They come in as few runs of ascending
 * neighbours as the pool can find; name the page they will follow in the sequence in `after`
 * (-1: none), and they continue its run where that is possible. */
bool page_pool_alloc(struct page_pool *pool, int32_t after, uint32_t count, int32_t *pages);

/* One more holder for each page, which must be USED or CACHED. */
void page_pool_retain(struct page_pool *pool, const int32_t *pages, uint32_t count);

/* One holder less; what nobody holds any more is free. The prefix cache's own hold is not to be
 * released here. */
void page_pool_release(struct page_pool *pool, const int32_t *pages, uint32_t count);

/* Into quarantine and back. The pages are USED and have one holder, who stays it. */
void page_pool_quarantine(struct page_pool *pool, const int32_t *pages, uint32_t count);
void page_pool_readmit(struct page_pool *pool, const int32_t *pages, uint32_t count);

/* ---- for the prefix cache ---------------------------------------------------------------- */

/* A holder's hold becomes the prefix cache's. */
void page_pool_cache(struct page_pool *pool, const int32_t *pages, uint32_t count);

/* The prefix cache lets go. Returns how many pages became free. The pages are not locked. */
uint32_t page_pool_uncache(struct page_pool *pool, const int32_t *pages, uint32_t count);

/* So many cached pages were locked (unlocked). */
void page_pool_count_locked(struct page_pool *pool, uint32_t count);
void page_pool_count_unlocked(struct page_pool *pool, uint32_t count);

#endif
