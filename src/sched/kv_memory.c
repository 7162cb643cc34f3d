/* SPDX-License-Identifier: Apache-2.0 */
/* See kv_memory.h. */
#include "kv_memory.h"

#include <string.h>

static int count_pages(const struct scheduler_options *options,
                       const struct page_layout *layout, uint32_t *out, struct error err)
{
    uint64_t pages = options->pages;
    if (!pages)
        pages = options->memory_bytes / options->rank_count / layout->page_stride;
    if (pages == 0)
        return error_set(
            err, BATON_EINVAL,
            "%llu bytes for the KV cache hold no page; a page of %u tokens has %llu "
            "bytes, on %u ranks",
            (unsigned long long)options->memory_bytes, options->tokens_per_page,
            (unsigned long long)layout->page_stride, options->rank_count);
    *out = pages < FREE_RUNS_PAGES_MAX ? (uint32_t)pages : FREE_RUNS_PAGES_MAX;
    return BATON_OK;
}

static int open_layout(struct kv_memory *memory, const struct engine *engine,
                       const struct scheduler_options *options, struct error err)
{
    struct page_shape shape;
    if (options->rank_count == 0 || options->rank_count > KV_RANKS_MAX)
        return error_set(err, BATON_EINVAL, "%u tensor-parallel ranks; must be 1 to %d",
                         options->rank_count, KV_RANKS_MAX);
    int rc = engine_page_shape(engine_config(engine), options->rank_count, options->element,
                               options->tokens_per_page, &shape, err);
    return rc ? rc : page_layout_make(&shape, options->order, &memory->layout, err);
}

static int open_ranks(struct kv_memory *memory, struct engine *engine, uint32_t ranks,
                      uint32_t pages, struct error err)
{
    uint64_t bytes = pages * memory->layout.page_stride;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        int rc = baton_pool_alloc(bytes, &memory->pools[rank], err.text, err.size);
        if (rc)
            return rc;
        memory->rank_count++;
        rc = engine_set_pages(engine, rank, &memory->layout,
                              baton_pool_address(memory->pools[rank]), pages, err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

int kv_memory_open(struct kv_memory *memory, struct engine *engine,
                   const struct scheduler_options *options, struct error err)
{
    uint32_t pages = 0;
    memset(memory, 0, sizeof(*memory));
    int rc = open_layout(memory, engine, options, err);
    if (!rc)
        rc = count_pages(options, &memory->layout, &pages, err);
    if (!rc)
        rc = open_ranks(memory, engine, options->rank_count, pages, err);
    if (!rc)
        rc = page_pool_open(baton_pool_address(memory->pools[0]),
                            pages * memory->layout.page_stride, memory->layout.page_stride,
                            &memory->books.pool, err);
    if (!rc && options->prefix_cache)
        rc = prefix_cache_open(memory->books.pool, options->tokens_per_page,
                               options->cache_events, &memory->books.cache, err);
    memory->books.tokens_per_page = options->tokens_per_page;
    if (rc)
        kv_memory_close(memory);
    return rc;
}

void kv_memory_close(struct kv_memory *memory)
{
    prefix_cache_close(memory->books.cache);
    page_pool_close(memory->books.pool);
    for (uint32_t rank = 0; rank < memory->rank_count; rank++)
        baton_pool_free(memory->pools[rank]);
    memset(memory, 0, sizeof(*memory));
}
