/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a measured hand-over: pools of pages in the layouts that engines use, page
 * lists in random order, and bytes that say where they belong, so that a page that went astray
 * is found. */
#ifndef BATON_CLI_BENCH_PAGES_H
#define BATON_CLI_BENCH_PAGES_H

#include "base/error.h"

#define BENCH_TOKENS 16u
#define BENCH_HEADS 8u
#define BENCH_RANKS_MAX BENCH_HEADS
#define BENCH_LAYERS_MAX 1024u

/* How the dimensions of a page follow each other: the orders of baton.h that engines would use, and one
 * that only strides can say. */
enum order {
    ORDER_PER_LAYER = 0, /* a pool for each layer's K and V: [page][head][token][dim] */
    ORDER_HEAD = 1,      /* [page][head][layer][k|v][token][dim] */
    ORDER_LAYER = 2,     /* [page][layer][k|v][head][token][dim] */
    ORDER_PAIRED = 3, /* [page][layer][head][k|v][token][dim]: K and V of a head side by side */
    ORDERS = 4
};

const char *order_name(enum order order); /* "per-layer", "head", "layer", "paired" */

/* As baton_layout_fill. */
int order_fill(baton_layout *layout, enum order order, uint64_t *item_bytes);

/* One piece of work. Plain data: it goes to the role processes as it is. */
struct bench_case {
    char backends[64];   /* the manager's list; "": the library's own order */
    uint64_t item_bytes; /* of one page of one layer, over all ranks, K and V together */
    uint32_t pages;
    uint32_t layers;
    uint32_t src_tp;
    uint32_t dst_tp;
    uint32_t order;      /* enum order; of opaque pages only whether it is ORDER_PER_LAYER */
    uint32_t structured; /* 1: K and V, 16 tokens, 8 heads; 0: opaque pages */
    uint32_t
        shared_pool; /* 1: pages from baton_pool_alloc; 0: memory that Baton did not allocate */
    uint32_t threads; /* copy threads of each manager */
    uint32_t streams;
    uint64_t seed;
    uint32_t prefill_in_order, decode_in_order;   /* 1: pages 0, 1, 2 ...; 0: in random order */
    char prefill_device[256], decode_device[256]; /* ib_device; "": the library chooses */
    uint32_t max_sge, max_inflight;               /* 0: the library's */
};

uint64_t bench_case_bytes(const struct bench_case *work);

/* Whether such a case can be laid out at all, with a sentence if not. */
int bench_case_check(const struct bench_case *work, struct error err);

/* What the medium sees: so many bases, each with `pages` items of so many bytes (one rank). */
void bench_case_items(const struct bench_case *work, uint32_t *bases, uint64_t *item_bytes);

struct bench_pool {
    struct bench_case work;
    baton_pool *shared;
    uint8_t *address; /* of all bases, one after the other */
    uint64_t bytes;
    baton_base *bases;
    baton_layout layout; /* its bases are ours */
};

/* The share of rank `rank` of `tp`: all bytes of opaque pages, its heads of structured ones. */
int bench_pool_open(const struct bench_case *work, uint32_t rank, uint32_t tp, bool shared,
                    struct bench_pool *out, struct error err);
void bench_pool_close(struct bench_pool *pool);

/* Positions [first, first+count) of the sequence, which lie in pages[first..]. fill writes the
 * bytes that belong there, poison writes bytes that belong nowhere, check counts wrong bytes
 * and says in `where` which was the first. */
void bench_pool_fill(struct bench_pool *pool, const int32_t *pages, uint32_t first,
                     uint32_t count);
void bench_pool_poison(struct bench_pool *pool, const int32_t *pages, uint32_t first,
                       uint32_t count);
uint64_t bench_pool_check(const struct bench_pool *pool, const int32_t *pages, uint32_t first,
                          uint32_t count, char *where, size_t where_size);

/* 0..count-1 in an order that only the seed decides. */
void pages_shuffle(int32_t *pages, uint32_t count, uint64_t seed);

/* The page list of one side: work->pages of them. */
void pages_list(const struct bench_case *work, bool prefill, int32_t *pages);

/* One run of bytes that is in one piece in every layout: one head of one layer, K or V, of a page; or
 * one layer of an opaque page. `head` counts within the pool; `half` is 0 for K, 1 for V. */
struct page_segment {
    uint32_t layer, half, head;
    int32_t page;
};
uint32_t bench_pool_halves(const struct bench_pool *pool);
uint32_t bench_pool_heads(const struct bench_pool *pool);
uint64_t bench_pool_segment_bytes(const struct bench_pool *pool);
uint8_t *bench_pool_segment(const struct bench_pool *pool, const struct page_segment *at);

#endif
