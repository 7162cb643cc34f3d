/* SPDX-License-Identifier: Apache-2.0 */
/* See prefix_cache.h. The tree (prefix_tree.c) knows sequences, the pool (page_pool.c) knows pages;
 * here they are kept in step, and what happens is counted and announced. */
#include "prefix_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define EVICT_BATCH 256u

int prefix_cache_open(struct page_pool *pool, uint32_t tokens_per_page, uint32_t event_capacity,
                      struct prefix_cache **out, struct error err)
{
    if (!tokens_per_page)
        return error_set(err, BATON_EINVAL, "prefix cache: a page needs at least one token");
    uint64_t secret;
    if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
        return error_set(err, BATON_ESYSTEM, "prefix cache: no random number: %s",
                         strerror(errno));
    struct prefix_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        goto no_memory;
    cache->pool = pool;
    if (prefix_tree_open(&cache->tree, pool->counts.pages, tokens_per_page, secret))
        goto free_cache;
    if (prefix_keys_open(&cache->keys, secret))
        goto close_tree;
    if (prefix_events_open(&cache->events, event_capacity, tokens_per_page))
        goto close_keys;
    *out = cache;
    return BATON_OK;

close_keys:
    prefix_keys_close(&cache->keys);
close_tree:
    prefix_tree_close(&cache->tree);
free_cache:
    free(cache);
no_memory:
    return error_set(err, BATON_ENOMEM, "no memory for a prefix cache of %u pages",
                     pool->counts.pages);
}

void prefix_cache_close(struct prefix_cache *cache)
{
    if (!cache)
        return;
    owner_thread_forget(&cache->owner);
    owner_thread_forget(&cache->pool->owner);
    prefix_cache_reset(cache);
    BATON_ASSERT(cache->tree.nodes == 0);
    prefix_events_close(&cache->events);
    prefix_keys_close(&cache->keys);
    prefix_tree_close(&cache->tree);
    free(cache);
}

static int32_t node_or_none(int32_t node)
{
    return node < 0 ? PREFIX_NONE : node;
}

/* ---- looking up -------------------------------------------------------------------------- */

struct prefix_match prefix_cache_match(struct prefix_cache *cache, struct prefix_key key,
                                       const int32_t *tokens, uint32_t count, int32_t *pages)
{
    owner_thread_assert(&cache->owner);
    struct prefix_tree *tree = &cache->tree;
    struct prefix_match match = {.node = PREFIX_NONE};
    int32_t number = prefix_keys_find(&cache->keys, key);
    if (number >= 0) {
        struct prefix_walk walk = prefix_tree_walk(tree, prefix_tree_root(number), tokens,
                                                   count / tree->tokens_per_page, pages);
        int32_t node = prefix_tree_split(tree, &walk);
        prefix_tree_touch(tree, node);
        match = (struct prefix_match){walk.pages, walk.pages * tree->tokens_per_page,
                                      node_or_none(node)};
    }
    cache->stats.lookups++;
    cache->stats.lookup_tokens += count;
    cache->stats.hit_tokens += match.tokens;
    return match;
}

uint32_t prefix_cache_peek(struct prefix_cache *cache, struct prefix_key key,
                           const int32_t *tokens, uint32_t count)
{
    owner_thread_assert(&cache->owner);
    const struct prefix_tree *tree = &cache->tree;
    int32_t number = prefix_keys_find(&cache->keys, key);
    if (number < 0)
        return 0;
    struct prefix_walk walk = prefix_tree_walk(tree, prefix_tree_root(number), tokens,
                                               count / tree->tokens_per_page, NULL);
    return walk.pages * tree->tokens_per_page;
}

/* ---- storing ----------------------------------------------------------------------------- */

static uint64_t hash_before(const struct prefix_cache *cache, int32_t page)
{
    int32_t previous = cache->tree.pages[page].previous;
    return previous < 0 ? prefix_keys_hash(&cache->keys, -1 - previous)
                        : cache->tree.pages[previous].hash;
}

bool prefix_cache_block(const struct prefix_cache *cache, int32_t page,
                        struct prefix_event *out)
{
    if (page_pool_state(cache->pool, page) != PAGE_CACHED)
        return false;
    *out = (struct prefix_event){
        .kind = PREFIX_STORED,
        .hash = cache->tree.pages[page].hash,
        .parent = hash_before(cache, page),
        .tokens = prefix_tree_tokens(&cache->tree, page),
    };
    return true;
}

/* A new leaf with pages that the caller gives away. */
static int32_t leaf_store(struct prefix_cache *cache, int32_t parent, int32_t number,
                          const int32_t *tokens, const int32_t *pages, uint32_t count)
{
    page_pool_cache(cache->pool, pages, count);
    if (parent < 0)
        prefix_keys_hold(&cache->keys, number);
    uint64_t hash =
        parent < 0 ? prefix_keys_hash(&cache->keys, number) : cache->tree.pages[parent].hash;
    int32_t leaf = prefix_tree_append(&cache->tree, parent, hash, tokens, pages, count);
    for (uint32_t i = 0; i < count && cache->events.capacity; i++) {
        struct prefix_event event;
        prefix_cache_block(cache, pages[i], &event);
        prefix_events_add(&cache->events, &event);
    }
    cache->stats.stored_pages += count;
    return leaf;
}

static uint32_t duplicates_count(const int32_t *given, const struct prefix_tree *tree,
                                 const struct prefix_walk *walk)
{
    uint32_t duplicates = 0;
    int32_t page = walk->page;
    for (uint32_t i = walk->pages; i-- > 0; page = tree->pages[page].previous)
        duplicates += given[i] != page;
    return duplicates;
}

int prefix_cache_insert(struct prefix_cache *cache, struct prefix_key key,
                        const int32_t *tokens, uint32_t count, const int32_t *pages,
                        struct prefix_insert *out)
{
    owner_thread_assert(&cache->owner);
    struct prefix_tree *tree = &cache->tree;
    uint32_t whole = count / tree->tokens_per_page;
    if (!whole) {
        *out = (struct prefix_insert){.node = PREFIX_NONE};
        return BATON_OK;
    }
    int32_t number = prefix_keys_intern(&cache->keys, key);
    if (number < 0)
        return BATON_ENOMEM;
    struct prefix_walk walk =
        prefix_tree_walk(tree, prefix_tree_root(number), tokens, whole, NULL);
    int32_t node = prefix_tree_split(tree, &walk);
    cache->stats.duplicate_pages += duplicates_count(pages, tree, &walk);
    if (walk.pages < whole)
        node = leaf_store(cache, node, number,
                          tokens + (uint64_t)walk.pages * tree->tokens_per_page,
                          pages + walk.pages, whole - walk.pages);
    prefix_tree_touch(tree, node);
    *out = (struct prefix_insert){whole, walk.pages, node};
    return BATON_OK;
}

void prefix_cache_lock(struct prefix_cache *cache, int32_t node)
{
    owner_thread_assert(&cache->owner);
    if (node == PREFIX_NONE)
        return;
    BATON_ASSERT(page_pool_state(cache->pool, node) == PAGE_CACHED);
    page_pool_count_locked(cache->pool, prefix_tree_lock(&cache->tree, node));
}

void prefix_cache_unlock(struct prefix_cache *cache, int32_t node)
{
    owner_thread_assert(&cache->owner);
    if (node == PREFIX_NONE)
        return;
    BATON_ASSERT(page_pool_state(cache->pool, node) == PAGE_CACHED);
    page_pool_count_unlocked(cache->pool, prefix_tree_unlock(&cache->tree, node));
}

/* ---- forgetting -------------------------------------------------------------------------- */

/* Takes up to `max` pages off the leaf that was not used for longest; returns how many of them are
 * free now. */
static uint32_t oldest_trim(struct prefix_cache *cache, uint32_t max)
{
    int32_t pages[EVICT_BATCH];
    struct prefix_tree *tree = &cache->tree;
    int32_t leaf = tree->oldest, parent = prefix_tree_parent(tree, leaf);
    uint32_t length = tree->pages[leaf].pages;
    uint32_t count = prefix_tree_trim(tree, leaf, max < EVICT_BATCH ? max : EVICT_BATCH, pages);
    if (count == length && parent < 0)
        prefix_keys_drop(&cache->keys, -1 - parent);
    for (uint32_t i = count; i-- > 0;)
        prefix_events_add(
            &cache->events,
            &(struct prefix_event){.kind = PREFIX_REMOVED, .hash = tree->pages[pages[i]].hash});
    cache->stats.evicted_pages += count;
    return page_pool_uncache(cache->pool, pages, count);
}

uint32_t prefix_cache_evict(struct prefix_cache *cache, uint32_t count)
{
    owner_thread_assert(&cache->owner);
    uint32_t freed = 0;
    while (freed < count && cache->tree.oldest >= 0)
        freed += oldest_trim(cache, count - freed);
    return freed;
}

bool prefix_cache_make_room(struct prefix_cache *cache, uint32_t count)
{
    const struct page_counts *counts = &cache->pool->counts;
    if (count <= counts->free)
        return true;
    if (count > counts->free + counts->cached)
        return false;
    uint32_t ahead = counts->pages / PREFIX_EVICT_AHEAD;
    if (ahead > PREFIX_EVICT_AHEAD_MAX)
        ahead = PREFIX_EVICT_AHEAD_MAX;
    prefix_cache_evict(cache, count - counts->free + ahead);
    return count <= counts->free;
}

uint32_t prefix_cache_reset(struct prefix_cache *cache)
{
    return prefix_cache_evict(cache, UINT32_MAX);
}

bool prefix_cache_next_event(struct prefix_cache *cache, struct prefix_event *out)
{
    owner_thread_assert(&cache->owner);
    return prefix_events_next(&cache->events, out);
}
