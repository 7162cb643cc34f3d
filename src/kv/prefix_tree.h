/* SPDX-License-Identifier: Apache-2.0 */
/* The radix tree of the prefix cache: prefix_tree.c draws it. Internal to kv; everybody else uses
 * prefix_cache.h. */
#ifndef BATON_KV_PREFIX_TREE_H
#define BATON_KV_PREFIX_TREE_H

#include "base/error.h"

#define PREFIX_NONE (-1) /* no page, no node */

/* One per page of the pool. Which fields mean something depends on where in a node the page is. */
struct prefix_page {
    /* every page */
    uint64_t hash;    /* of everything up to and with this page, chained */
    int32_t previous; /* page before it on the path from the root; negative: a root */
    int32_t next;     /* page after it in its node; PREFIX_NONE in a node's last page */
    /* a node's first page */
    int32_t last;        /* the node: its last page */
    int32_t bucket_next; /* in the table of first pages */
    /* a node's last page, which is the node's name */
    int32_t first;
    uint32_t pages;
    uint32_t children;
    uint32_t holders;         /* locks on exactly this node */
    uint32_t locked_children; /* nodes below that are locked */
    int32_t older, newer;     /* order of use, unlocked nodes only */
};

struct prefix_tree {
    uint32_t tokens_per_page;
    uint32_t bucket_mask;
    uint64_t secret; /* moves first pages to buckets that nobody outside can foresee */
    struct prefix_page *pages; /* per page of the pool */
    int32_t *tokens;           /* per page of the pool: tokens_per_page of them */
    int32_t *buckets;
    int32_t oldest, newest; /* unlocked nodes; a parent is always newer than its children */
    uint32_t nodes;
};

int prefix_tree_open(struct prefix_tree *tree, uint32_t pages, uint32_t tokens_per_page,
                     uint64_t secret); /* 0 or ENOMEM */
void prefix_tree_close(struct prefix_tree *tree);

/* Roots are numbered from 0 and are written as negative pages. */
static inline int32_t prefix_tree_root(int32_t number)
{
    return -1 - number;
}

static inline const int32_t *prefix_tree_tokens(const struct prefix_tree *tree, int32_t page)
{
    return tree->tokens + (uint64_t)(uint32_t)page * tree->tokens_per_page;
}

static inline int32_t prefix_tree_parent(const struct prefix_tree *tree, int32_t node)
{
    return tree->pages[tree->pages[node].first].previous;
}

static inline bool prefix_tree_is_locked(const struct prefix_tree *tree, int32_t node)
{
    return tree->pages[node].holders || tree->pages[node].locked_children;
}

/* How far the tree knows a sequence. */
struct prefix_walk {
    uint32_t pages;  /* known, from the start */
    uint32_t inside; /* of those, in `node` */
    int32_t node;    /* the last one entered; the root when pages is 0 */
    int32_t page;    /* the last known page; the root when pages is 0 */
};

/* Compares up to `count` pages of tokens, and lists the tree's pages of them (NULL: does not). */
struct prefix_walk prefix_tree_walk(const struct prefix_tree *tree, int32_t root,
                                    const int32_t *tokens, uint32_t count, int32_t *pages);

/* Where a walk ended inside of a node, splits it there. Returns the node that the walk's last page
 * ends (the root for an empty walk). A node that somebody has locked keeps its name and its end. */
int32_t prefix_tree_split(struct prefix_tree *tree, const struct prefix_walk *walk);

/* A new leaf below `parent` (a node or a root) with count > 0 pages, which the tree does not have,
 * not locked, used just now. parent_hash is the parent's, or the root's. Returns its name. */
int32_t prefix_tree_append(struct prefix_tree *tree, int32_t parent, uint64_t parent_hash,
                           const int32_t *tokens, const int32_t *pages, uint32_t count);

/* Takes up to `max` (> 0) pages off the end of an unlocked leaf, and the leaf itself when none is
 * left. Lists them in the order of the sequence; returns how many. */
uint32_t prefix_tree_trim(struct prefix_tree *tree, int32_t leaf, uint32_t max, int32_t *pages);

/* The node and everything above it were used just now. */
void prefix_tree_touch(struct prefix_tree *tree, int32_t node);

/* Locks and unlocks the path from the root to the node; returns how many pages are locked now that
 * were not (are no longer locked that were). */
uint32_t prefix_tree_lock(struct prefix_tree *tree, int32_t node);
uint32_t prefix_tree_unlock(struct prefix_tree *tree, int32_t node);

#endif
