/* SPDX-License-Identifier: Apache-2.0 */
/* The radix tree of the prefix cache.
 *
 * A node is a run of whole pages that belong together: every sequence that has one of them has all
 * before it. Sequences part at page borders only, so two children of a node may begin with the same
 * tokens, as long as they differ within their first page.
 *
 *     root                         tokens_per_page 2
 *      |
 *      +-- [a b][c d][e f]         one node, three pages
 *                      |
 *                      +-- [g h][i j]
 *                      +-- [g k]
 *
 * A page of the pool is in the tree at most once, so everything about it can live in an array with
 * one entry per page: its tokens, its links, and, in a node's first and last page, the node. There
 * is nothing to allocate, and so nothing that can fail, after open.
 *
 *                       +---- last ----+
 *                       |              v
 *     parent <-previous-[P] -next-> [Q] -next-> [R] -next-> NONE
 *                        ^ <-previous-  <-previous- |
 *                        +--------- first ----------+
 *
 * A node's name is its last page. That makes the name survive a split: the lower half keeps the end,
 * so whoever has locked the path to that end has still locked the same path, and the upper half is
 * the new node. Children are found in one table for the whole tree, by parent and tokens of the
 * first page (a shared system prompt has thousands of children); tokens are always compared.
 *
 * A lock on a node locks the path to it. It is counted in the node alone; a node that becomes locked
 * counts as one locked child of its parent, so that locking a path below one that is locked already
 * costs the new nodes only.
 *
 * Unlocked nodes are in one list in the order of their last use. A use touches the node first and
 * then its ancestors, so a parent is always newer than its children, and the oldest node of all is a
 * leaf: the next to go. No search, no heap. A locked node has only locked ancestors, so the argument
 * holds for the unlocked ones among themselves.
 *
 * Nothing here recurses: a chain of a million one-page nodes is as good as any. */
#include "prefix_tree.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int prefix_tree_open(struct prefix_tree *tree, uint32_t pages, uint32_t tokens_per_page,
                     uint64_t secret)
{
    uint32_t buckets = 1;
    while (buckets < pages)
        buckets *= 2;
    *tree = (struct prefix_tree){
        .tokens_per_page = tokens_per_page,
        .bucket_mask = buckets - 1,
        .secret = secret,
        .pages = calloc(pages, sizeof(*tree->pages)),
        .tokens = calloc((size_t)pages * tokens_per_page, sizeof(*tree->tokens)),
        .buckets = malloc(buckets * sizeof(*tree->buckets)),
        .oldest = PREFIX_NONE,
        .newest = PREFIX_NONE,
    };
    if (!tree->pages || !tree->tokens || !tree->buckets) {
        prefix_tree_close(tree);
        return BATON_ENOMEM;
    }
    for (uint32_t i = 0; i < buckets; i++)
        tree->buckets[i] = PREFIX_NONE;
    return BATON_OK;
}

void prefix_tree_close(struct prefix_tree *tree)
{
    free(tree->buckets);
    free(tree->tokens);
    free(tree->pages);
    *tree = (struct prefix_tree){.oldest = PREFIX_NONE, .newest = PREFIX_NONE};
}

/* ---- children ---------------------------------------------------------------------------- */

static size_t page_token_bytes(const struct prefix_tree *tree)
{
    return tree->tokens_per_page * sizeof(*tree->tokens);
}

static bool page_has_tokens(const struct prefix_tree *tree, int32_t page, const int32_t *tokens)
{
    return memcmp(prefix_tree_tokens(tree, page), tokens, page_token_bytes(tree)) == 0;
}

static int32_t *bucket_of(const struct prefix_tree *tree, int32_t parent, const int32_t *tokens)
{
    uint64_t seed = tree->secret + (uint32_t)parent * 0x9e3779b97f4a7c15u;
    uint64_t hash = XXH3_64bits_withSeed(tokens, page_token_bytes(tree), seed);
    return &tree->buckets[hash & tree->bucket_mask];
}

/* The first page of the child that begins with these tokens. */
static int32_t child_find(const struct prefix_tree *tree, int32_t parent, const int32_t *tokens)
{
    int32_t page = *bucket_of(tree, parent, tokens);
    while (page >= 0 &&
           !(tree->pages[page].previous == parent && page_has_tokens(tree, page, tokens)))
        page = tree->pages[page].bucket_next;
    return page;
}

static void child_link(struct prefix_tree *tree, int32_t first)
{
    int32_t *bucket =
        bucket_of(tree, tree->pages[first].previous, prefix_tree_tokens(tree, first));
    tree->pages[first].bucket_next = *bucket;
    *bucket = first;
}

static void child_unlink(struct prefix_tree *tree, int32_t first)
{
    int32_t *link =
        bucket_of(tree, tree->pages[first].previous, prefix_tree_tokens(tree, first));
    while (*link != first)
        link = &tree->pages[*link].bucket_next;
    *link = tree->pages[first].bucket_next;
}

/* ---- the order of use -------------------------------------------------------------------- */

static void order_remove(struct prefix_tree *tree, int32_t node)
{
    struct prefix_page *self = &tree->pages[node];
    *(self->older >= 0 ? &tree->pages[self->older].newer : &tree->oldest) = self->newer;
    *(self->newer >= 0 ? &tree->pages[self->newer].older : &tree->newest) = self->older;
}

/* Puts the node right after `older`; PREFIX_NONE: makes it the oldest. */
static void order_insert(struct prefix_tree *tree, int32_t node, int32_t older)
{
    struct prefix_page *self = &tree->pages[node];
    int32_t *after = older >= 0 ? &tree->pages[older].newer : &tree->oldest;
    self->older = older;
    self->newer = *after;
    *after = node;
    *(self->newer >= 0 ? &tree->pages[self->newer].older : &tree->newest) = node;
}

void prefix_tree_touch(struct prefix_tree *tree, int32_t node)
{
    for (; node >= 0 && !prefix_tree_is_locked(tree, node);
         node = prefix_tree_parent(tree, node)) {
        order_remove(tree, node);
        order_insert(tree, node, tree->newest);
    }
}

/* ---- walk, split, append ----------------------------------------------------------------- */

struct prefix_walk prefix_tree_walk(const struct prefix_tree *tree, int32_t root,
                                    const int32_t *tokens, uint32_t count, int32_t *pages)
{
    struct prefix_walk walk = {.node = root, .page = root};
    while (walk.pages < count) {
        int32_t page = child_find(tree, walk.page, tokens);
        if (page < 0)
            break;
        walk.node = tree->pages[page].last;
        walk.inside = 0;
        do {
            if (pages)
                pages[walk.pages] = page;
            walk.pages++;
            walk.inside++;
            walk.page = page;
            tokens += tree->tokens_per_page;
            page = tree->pages[page].next;
        } while (page >= 0 && walk.pages < count && page_has_tokens(tree, page, tokens));
        if (walk.page != walk.node)
            break;
    }
    return walk;
}

int32_t prefix_tree_split(struct prefix_tree *tree, const struct prefix_walk *walk)
{
    if (walk->page == walk->node)
        return walk->node;
    int32_t lower = walk->node, upper = walk->page;
    struct prefix_page *pages = tree->pages;
    int32_t top = pages[lower].first, middle = pages[upper].next;

    pages[upper].next = PREFIX_NONE;
    pages[upper].first = top;
    pages[upper].pages = walk->inside;
    pages[upper].children = 1;
    pages[upper].holders = 0;
    pages[upper].locked_children = prefix_tree_is_locked(tree, lower);
    pages[top].last = upper;

    pages[lower].first = middle;
    pages[lower].pages -= walk->inside;
    pages[middle].last = lower;
    child_link(tree, middle);

    if (!prefix_tree_is_locked(tree, lower))
        order_insert(tree, upper, lower);
    tree->nodes++;
    return upper;
}

int32_t prefix_tree_append(struct prefix_tree *tree, int32_t parent, uint64_t parent_hash,
                           const int32_t *tokens, const int32_t *pages, uint32_t count)
{
    size_t bytes = page_token_bytes(tree);
    int32_t previous = parent, node = pages[count - 1];
    for (uint32_t i = 0; i < count; i++) {
        struct prefix_page *page = &tree->pages[pages[i]];
        memcpy(tree->tokens + (uint64_t)(uint32_t)pages[i] * tree->tokens_per_page, tokens,
               bytes);
        page->hash = parent_hash = XXH3_64bits_withSeed(tokens, bytes, parent_hash);
        page->previous = previous;
        page->next = i + 1 < count ? pages[i + 1] : PREFIX_NONE;
        previous = pages[i];
        tokens += tree->tokens_per_page;
    }
    tree->pages[pages[0]].last = node;
    child_link(tree, pages[0]);
    if (parent >= 0)
        tree->pages[parent].children++;

    tree->pages[node].first = pages[0];
    tree->pages[node].pages = count;
    tree->pages[node].children = 0;
    tree->pages[node].holders = 0;
    tree->pages[node].locked_children = 0;
    order_insert(tree, node, tree->newest);
    tree->nodes++;
    return node;
}

/* ---- trim -------------------------------------------------------------------------------- */

static void leaf_remove(struct prefix_tree *tree, int32_t leaf)
{
    int32_t parent = prefix_tree_parent(tree, leaf);
    order_remove(tree, leaf);
    child_unlink(tree, tree->pages[leaf].first);
    if (parent >= 0)
        tree->pages[parent].children--;
    tree->nodes--;
}

/* The leaf ends earlier now. Nobody knows its name: it is not locked and has no children. */
static void leaf_shorten(struct prefix_tree *tree, int32_t leaf, int32_t end, uint32_t count)
{
    struct prefix_page *longer = &tree->pages[leaf], *shorter = &tree->pages[end];
    shorter->next = PREFIX_NONE;
    shorter->first = longer->first;
    shorter->pages = longer->pages - count;
    shorter->children = shorter->holders = shorter->locked_children = 0;
    tree->pages[shorter->first].last = end;
    order_insert(tree, end, leaf);
    order_remove(tree, leaf);
}

uint32_t prefix_tree_trim(struct prefix_tree *tree, int32_t leaf, uint32_t max, int32_t *pages)
{
    BATON_ASSERT(max > 0 && !tree->pages[leaf].children && !prefix_tree_is_locked(tree, leaf));
    uint32_t length = tree->pages[leaf].pages;
    uint32_t count = length < max ? length : max;
    int32_t page = leaf;
    for (uint32_t i = count; i-- > 0; page = tree->pages[page].previous)
        pages[i] = page;
    if (count == length)
        leaf_remove(tree, leaf);
    else
        leaf_shorten(tree, leaf, page, count);
    return count;
}

/* ---- locks ------------------------------------------------------------------------------- */

static bool node_exists(const struct prefix_tree *tree, int32_t node)
{
    const struct prefix_page *self = &tree->pages[node];
    return self->next == PREFIX_NONE && tree->pages[self->first].last == node;
}

uint32_t prefix_tree_lock(struct prefix_tree *tree, int32_t node)
{
    BATON_ASSERT(node_exists(tree, node));
    uint32_t pages = 0;
    bool was_locked = prefix_tree_is_locked(tree, node);
    tree->pages[node].holders++;
    while (!was_locked) {
        order_remove(tree, node);
        pages += tree->pages[node].pages;
        node = prefix_tree_parent(tree, node);
        if (node < 0)
            break;
        was_locked = prefix_tree_is_locked(tree, node);
        tree->pages[node].locked_children++;
    }
    return pages;
}

uint32_t prefix_tree_unlock(struct prefix_tree *tree, int32_t node)
{
    BATON_ASSERT(node_exists(tree, node) && tree->pages[node].holders > 0);
    uint32_t pages = 0;
    tree->pages[node].holders--;
    while (!prefix_tree_is_locked(tree, node)) {
        order_insert(tree, node, tree->newest);
        pages += tree->pages[node].pages;
        node = prefix_tree_parent(tree, node);
        if (node < 0)
            break;
        tree->pages[node].locked_children--;
    }
    return pages;
}
