/* SPDX-License-Identifier: Apache-2.0 */
/* See prefix_check.h. Nodes are found by looking at every page; then each link is followed from both
 * ends, and every count is counted again. */
#include "prefix_check.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define REQUIRE(condition)     \
    do {                       \
        if (!(condition))      \
            return #condition; \
    } while (0)

struct recount {
    uint32_t node_pages, nodes, locked_pages;
    uint32_t *children_of, *locked_children_of; /* per page, where it names a node */
    uint64_t *place;                            /* of a node in the order of use; 0: none */
};

static bool is_cached(const struct prefix_cache *cache, int32_t page)
{
    return page >= 0 && (uint32_t)page < cache->pool->counts.pages &&
           page_pool_state(cache->pool, page) == PAGE_CACHED;
}

static bool is_node(const struct prefix_cache *cache, int32_t page)
{
    return is_cached(cache, page) && cache->tree.pages[page].next == PREFIX_NONE;
}

static const char *check_pages_of(const struct prefix_cache *cache, int32_t node)
{
    const struct prefix_tree *tree = &cache->tree;
    const struct prefix_page *self = &tree->pages[node];
    int32_t page = self->first, previous = tree->pages[self->first].previous;
    REQUIRE(tree->pages[self->first].last == node);
    REQUIRE(previous < 0 || is_node(cache, previous));
    uint64_t hash = previous < 0 ? prefix_keys_hash(&cache->keys, -1 - previous)
                                 : tree->pages[previous].hash;
    for (uint32_t i = 0; i < self->pages; i++) {
        REQUIRE(is_cached(cache, page));
        REQUIRE(tree->pages[page].previous == previous);
        hash = XXH3_64bits_withSeed(prefix_tree_tokens(tree, page),
                                    tree->tokens_per_page * sizeof(int32_t), hash);
        REQUIRE(tree->pages[page].hash == hash);
        REQUIRE((tree->pages[page].next == PREFIX_NONE) == (i + 1 == self->pages));
        previous = page;
        page = tree->pages[page].next;
    }
    REQUIRE(previous == node);
    return NULL;
}

/* A child that cannot be found is lost, one that is found twice has a twin. */
static const char *check_table(const struct prefix_tree *tree)
{
    uint32_t found = 0;
    for (uint32_t bucket = 0; bucket <= tree->bucket_mask; bucket++) {
        int32_t page = tree->buckets[bucket];
        for (; page >= 0; page = tree->pages[page].bucket_next) {
            const int32_t *tokens = prefix_tree_tokens(tree, page);
            struct prefix_walk walk =
                prefix_tree_walk(tree, tree->pages[page].previous, tokens, 1, NULL);
            REQUIRE(walk.pages == 1 && walk.page == page);
            REQUIRE(tree->pages[tree->pages[page].last].first == page);
            REQUIRE(++found <= tree->nodes);
        }
    }
    REQUIRE(found == tree->nodes);
    return NULL;
}

static const char *check_order(const struct prefix_cache *cache, struct recount *recount)
{
    const struct prefix_tree *tree = &cache->tree;
    uint64_t place = 0;
    int32_t older = PREFIX_NONE, node = tree->oldest;
    for (; node >= 0; node = tree->pages[node].newer) {
        REQUIRE(is_node(cache, node));
        REQUIRE(tree->pages[node].older == older);
        REQUIRE(!prefix_tree_is_locked(tree, node));
        REQUIRE(recount->place[node] == 0);
        recount->place[node] = ++place;
        older = node;
    }
    REQUIRE(tree->newest == older);
    return NULL;
}

static void count_node(const struct prefix_tree *tree, int32_t node, struct recount *recount)
{
    int32_t parent = prefix_tree_parent(tree, node);
    bool locked = prefix_tree_is_locked(tree, node);
    recount->nodes++;
    recount->node_pages += tree->pages[node].pages;
    recount->locked_pages += locked ? tree->pages[node].pages : 0;
    if (parent >= 0) {
        recount->children_of[parent]++;
        recount->locked_children_of[parent] += locked;
    }
}

static const char *check_node(const struct prefix_tree *tree, int32_t node,
                              const struct recount *recount)
{
    int32_t parent = prefix_tree_parent(tree, node);
    REQUIRE(tree->pages[node].children == recount->children_of[node]);
    REQUIRE(tree->pages[node].locked_children == recount->locked_children_of[node]);
    REQUIRE(prefix_tree_is_locked(tree, node) == (recount->place[node] == 0));
    if (parent >= 0 && recount->place[parent])
        REQUIRE(recount->place[parent] > recount->place[node]);
    return NULL;
}

static const char *check_all(const struct prefix_cache *cache, struct recount *recount)
{
    const struct prefix_tree *tree = &cache->tree;
    const struct page_counts *counts = &cache->pool->counts;
    int32_t pages = (int32_t)counts->pages;
    const char *wrong = check_order(cache, recount);
    for (int32_t page = 0; page < pages && !wrong; page++) {
        if (is_node(cache, page) && !(wrong = check_pages_of(cache, page)))
            count_node(tree, page, recount);
    }
    for (int32_t page = 0; page < pages && !wrong; page++)
        if (is_node(cache, page))
            wrong = check_node(tree, page, recount);
    if (wrong)
        return wrong;
    REQUIRE(recount->nodes == tree->nodes);
    REQUIRE(recount->node_pages == counts->cached + counts->locked);
    REQUIRE(recount->locked_pages == counts->locked);
    REQUIRE(counts->pages == counts->free + counts->used + counts->cached + counts->locked +
                                 counts->quarantined);
    return check_table(tree);
}

const char *prefix_check(const struct prefix_cache *cache)
{
    uint32_t pages = cache->pool->counts.pages;
    struct recount recount = {
        .children_of = calloc(pages, sizeof(uint32_t)),
        .locked_children_of = calloc(pages, sizeof(uint32_t)),
        .place = calloc(pages, sizeof(uint64_t)),
    };
    const char *wrong = check_all(cache, &recount);
    free(recount.children_of);
    free(recount.locked_children_of);
    free(recount.place);
    return wrong;
}
