/* SPDX-License-Identifier: Apache-2.0 */
/* See kv_books.h. */
#include "kv_books.h"

uint32_t kv_books_available(const struct kv_books *books)
{
    const struct page_counts *counts = &books->pool->counts;
    return counts->free + counts->cached - counts->shared;
}

void kv_hold_match(struct kv_books *books, struct kv_hold *hold, struct prefix_key key,
                   const int32_t *tokens, uint32_t count)
{
    BATON_ASSERT(hold->count == 0);
    hold->node = PREFIX_NONE;
    if (!books->cache)
        return;
    struct prefix_match match =
        prefix_cache_match(books->cache, key, tokens, count, hold->pages);
    prefix_cache_lock(books->cache, match.node);
    hold->count = hold->cached = match.pages;
    hold->node = match.node;
}

bool kv_hold_grow(struct kv_books *books, struct kv_hold *hold, uint32_t pages)
{
    if (pages <= hold->count)
        return true;
    uint32_t more = pages - hold->count;
    if (books->cache && !prefix_cache_make_room(books->cache, more))
        return false;
    int32_t after = hold->count ? hold->pages[hold->count - 1] : -1;
    if (!page_pool_alloc(books->pool, after, more, hold->pages + hold->count))
        return false;
    hold->count = pages;
    return true;
}

/* Somebody else stored the same tokens meanwhile. Their bits are the same, so we go on with the
 * cache's pages and give our own back. Nothing reads these but us. */
static void adopt(struct kv_books *books, struct kv_hold *hold, struct prefix_key key,
                  const int32_t *tokens, uint32_t present)
{
    page_pool_release(books->pool, hold->pages + hold->cached, present - hold->cached);
    struct prefix_match match = prefix_cache_match(
        books->cache, key, tokens, present * books->tokens_per_page, hold->pages);
    BATON_ASSERT(match.pages == present);
}

void kv_hold_share(struct kv_books *books, struct kv_hold *hold, struct prefix_key key,
                   const int32_t *tokens, uint32_t count)
{
    struct prefix_insert stored;
    if (!books->cache || count / books->tokens_per_page <= hold->cached)
        return;
    if (prefix_cache_insert(books->cache, key, tokens, count, hold->pages, &stored))
        return; /* no memory for a new key: the pages stay our own */
    prefix_cache_lock(books->cache, stored.node);
    prefix_cache_unlock(books->cache, hold->node);
    if (stored.present > hold->cached)
        adopt(books, hold, key, tokens, stored.present);
    hold->node = stored.node;
    hold->cached = stored.pages;
}

bool kv_hold_is_first(const struct kv_books *books, const struct kv_hold *hold,
                      struct prefix_key key, const int32_t *tokens, uint32_t count)
{
    return !books->cache || prefix_cache_peek(books->cache, key, tokens, count) <=
                                hold->cached * books->tokens_per_page;
}

void kv_hold_release(struct kv_books *books, struct kv_hold *hold)
{
    page_pool_release(books->pool, hold->pages + hold->cached, hold->count - hold->cached);
    if (books->cache)
        prefix_cache_unlock(books->cache, hold->node);
    hold->count = hold->cached = 0;
    hold->node = PREFIX_NONE;
}
