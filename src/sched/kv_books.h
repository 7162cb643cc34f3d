/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of generations: pool and prefix cache together, as the planner uses them. A generation's
 * pages are a kv_hold:
 *
 *   pages   0 . . . . . . . cached . . . . . . . count
 *           the cache's,           its own
 *           locked by `node`
 */
#ifndef BATON_SCHED_KV_BOOKS_H
#define BATON_SCHED_KV_BOOKS_H

#include "kv/prefix_cache.h"

struct kv_books {
    struct page_pool *pool;
    struct prefix_cache *cache; /* NULL: nothing is shared or kept */
    uint32_t tokens_per_page;
};

struct kv_hold {
    int32_t *pages; /* the owner's array, large enough for all that it will ever have */
    uint32_t count, cached;
    int32_t node; /* PREFIX_NONE: nothing is locked */
};

/* Pages that can be had, by evicting what nobody uses. */
uint32_t kv_books_available(const struct kv_books *books);

/* The longest known prefix of the tokens, locked. The hold is empty before. */
void kv_hold_match(struct kv_books *books, struct kv_hold *hold, struct prefix_key key,
                   const int32_t *tokens, uint32_t count);

/* Has `pages` pages from now on; false: they cannot be had, and nothing has changed. */
bool kv_hold_grow(struct kv_books *books, struct kv_hold *hold, uint32_t pages);

/* Lets others use what has been computed: whole pages of the first `count` tokens. */
void kv_hold_share(struct kv_books *books, struct kv_hold *hold, struct prefix_key key,
                   const int32_t *tokens, uint32_t count);

/* Would share() leave all pages what they are, because nobody else has stored these tokens? */
bool kv_hold_is_first(const struct kv_books *books, const struct kv_hold *hold,
                      struct prefix_key key, const int32_t *tokens, uint32_t count);

/* Gives all of it back; the cache keeps what it has. */
void kv_hold_release(struct kv_books *books, struct kv_hold *hold);

#endif
