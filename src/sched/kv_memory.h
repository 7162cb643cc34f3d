/* SPDX-License-Identifier: Apache-2.0 */
/* The memory behind the pages: a pool that transfers can reach for every rank, all with the same
 * number of pages, and the books over them. */
#ifndef BATON_SCHED_KV_MEMORY_H
#define BATON_SCHED_KV_MEMORY_H

#include "kv_books.h"
#include "scheduler.h"

#define KV_RANKS_MAX 64

struct kv_memory {
    struct page_layout layout; /* of each rank */
    uint32_t rank_count;
    baton_pool *pools[KV_RANKS_MAX];
    struct kv_books books;
};

/* Allocates, and gives the engine its pages. EINVAL: not even one page fits, or the ranks do not suit
 * the model. */
int kv_memory_open(struct kv_memory *memory, struct engine *engine,
                   const struct scheduler_options *options, struct error err);
/* Everything must have been given back. All zero is fine. */
void kv_memory_close(struct kv_memory *memory);

#endif
