/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache: which sequences of tokens have their KV in the pool, and in which pages. It works
 * in whole pages: a partly filled last page never enters it and stays its request's own.
 *
 * One request, in order:
 *
 *     match    the longest known prefix and its pages
 *     lock     its node, before anything that can evict: the pages stay while the lock is held
 *     alloc    pages for the rest, after make_room (page_pool.h)
 *     insert   what has been computed or received, as often as wanted, so that others can use it;
 *              then lock the new node and unlock the old one
 *     unlock   when neither the request nor a transfer reads the pages any more
 *
 * Who owns what. The cache holds the pages that are in it. A request holds the pages it allocated,
 * until insert takes them over; for pages that are in the cache it has a lock. A transfer that reads
 * pages needs them to stay: a lock for those in the cache, a hold (page_pool_retain) for others.
 *
 * One thread, the scheduler's, uses a cache. */
#ifndef BATON_KV_PREFIX_CACHE_H
#define BATON_KV_PREFIX_CACHE_H

#include "page_pool.h"
#include "prefix_events.h"
#include "prefix_keys.h"
#include "prefix_tree.h"

struct prefix_stats {
    uint64_t lookups;       /* calls of match */
    uint64_t lookup_tokens; /* that were asked for */
    uint64_t hit_tokens;    /* that were there */
    uint64_t stored_pages;
    uint64_t duplicate_pages; /* given to insert, but already there in another page */
    uint64_t evicted_pages;
};

struct prefix_cache {
    struct owner_thread owner;
    struct page_pool *pool;
    struct prefix_tree tree;
    struct prefix_keys keys;
    struct prefix_events events;
    struct prefix_stats stats; /* read only, for everybody but the cache */
};

/* The pool is borrowed until close. event_capacity: events kept until they are fetched, 0: none.
 * EINVAL (no tokens in a page), ENOMEM, ESYSTEM. */
int prefix_cache_open(struct page_pool *pool, uint32_t tokens_per_page, uint32_t event_capacity,
                      struct prefix_cache **out, struct error err);

/* Gives all pages back to the pool. Everything must be unlocked. The scheduler's thread may have
 * ended already. */
void prefix_cache_close(struct prefix_cache *cache);

/* A known prefix of a sequence: whole pages, and the node where it ends, PREFIX_NONE when it is
 * empty. The node is good for lock() until the next evict, make_room or reset. */
struct prefix_match {
    uint32_t pages;
    uint32_t tokens; /* pages * tokens_per_page */
    int32_t node;
};

/* The longest known prefix; its pages go to `pages`, which has room for count / tokens_per_page.
 * Counts as a use of them. A request that needs the logits of its last token asks for count - 1. */
struct prefix_match prefix_cache_match(struct prefix_cache *cache, struct prefix_key key,
                                       const int32_t *tokens, uint32_t count, int32_t *pages);

/* How many tokens match would find. Changes nothing, and is no use of them. */
uint32_t prefix_cache_peek(struct prefix_cache *cache, struct prefix_key key,
                           const int32_t *tokens, uint32_t count);

struct prefix_insert {
    uint32_t pages;   /* whole pages in the sequence */
    uint32_t present; /* how many of them the cache had before */
    int32_t node;     /* where the sequence now ends; PREFIX_NONE when pages is 0 */
};

/* The pages hold the KV of the tokens, each page USED or, where the caller matched it, the cache's own.
 *
 *     pages   0 . . . . . present . . . . . . . pages . .
 *             the cache's or     from now on         partial last page:
 *             the caller's       the cache's         the caller's
 *
 * A page before `present` that the caller allocated is a duplicate: another request was faster. It
 * stays the caller's, to go on with or to release, whatever a transfer out of it allows.
 * ENOMEM, and nothing has changed: a key that is new and finds no memory. */
int prefix_cache_insert(struct prefix_cache *cache, struct prefix_key key,
                        const int32_t *tokens, uint32_t count, const int32_t *pages,
                        struct prefix_insert *out);

/* The path from the root to the node stays until as many unlocks. PREFIX_NONE: nothing to do. */
void prefix_cache_lock(struct prefix_cache *cache, int32_t node);
void prefix_cache_unlock(struct prefix_cache *cache, int32_t node);

/* Sees to it that `count` pages are free, so that page_pool_alloc can have them. When it must evict,
 * it evicts ahead, more than it must: pages that go one by one leave only single holes, pages that go
 * together leave runs (docs/kv.md has the numbers). False when so many cannot be had; nothing is
 * evicted for that, unless cached pages are shared. */
#define PREFIX_EVICT_AHEAD 16         /* this part of the pool, but at most ... */
#define PREFIX_EVICT_AHEAD_MAX 16384u /* ... so many pages: it takes some 20 ns for each */
bool prefix_cache_make_room(struct prefix_cache *cache, uint32_t count);

/* Frees `count` pages, those first that were not used for longest, from the ends of sequences.
 * Returns how many were freed: fewer when all the rest is locked or held by others too. */
uint32_t prefix_cache_evict(struct prefix_cache *cache, uint32_t count);

/* Forgets everything that is not locked; returns the pages freed. What is locked can still be found:
 * after a change of the model's weights, use another key. */
uint32_t prefix_cache_reset(struct prefix_cache *cache);

/* The oldest event not yet fetched; false: none. */
bool prefix_cache_next_event(struct prefix_cache *cache, struct prefix_event *out);

/* The page as it was announced when it was stored; false when it is not in the cache. All pages from
 * 0 on give the whole cache, in no special order. */
bool prefix_cache_block(const struct prefix_cache *cache, int32_t page,
                        struct prefix_event *out);

#endif
