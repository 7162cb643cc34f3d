/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for weights: large pieces of huge pages, given out front to back and returned all at once.
 * Every token reads all weights, from beginning to end; with pages of 4 KiB the processor's
 * prefetcher stops at each page's end and the table of pages does not fit into its cache. */
#ifndef BATON_ENGINE_WEIGHT_ARENA_H
#define BATON_ENGINE_WEIGHT_ARENA_H

#include <stddef.h>

struct arena_piece;

struct weight_arena { /* zeros are an empty one */
    struct arena_piece *pieces;
};

/* Aligned to 64 bytes; NULL when there is no more memory. One caller at a time. */
void *weight_arena_alloc(struct weight_arena *arena, size_t bytes);
void weight_arena_close(struct weight_arena *arena);

#endif
