/* SPDX-License-Identifier: Apache-2.0 */
/* Pools, page lists and the pattern.
 *
 * The pattern is a function of the place: seed, layer, k|v, head (of the whole model), position
 * in the sequence, offset. It does not name the page, because the two sides keep the same
 * position in different pages; and it does not name the rank, because with unequal tensor
 * parallelism the same head lives in different ranks. A byte that comes from any other place
 * than the right one is therefore seen, and so is one that never came: pages are poisoned
 * before each hand-over. */
#include "bench_pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_ALIGNMENT 4096ull
#define POISON 0xa5

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

/* ---- the case ---------------------------------------------------------------------------- */

uint64_t bench_case_bytes(const struct bench_case *work)
{
    return work->item_bytes * work->pages * work->layers;
}

static int tp_check(const char *side, uint32_t tp, struct error err)
{
    if (tp && tp <= BENCH_RANKS_MAX && BENCH_HEADS % tp == 0)
        return BATON_OK;
    return error_set(err, BATON_EINVAL,
                     "--%s-tp %u: the pages have %u KV heads; use 1, 2, 4 or 8", side, tp,
                     BENCH_HEADS);
}

int bench_case_check(const struct bench_case *work, struct error err)
{
    const uint64_t unit = 2ull * BENCH_TOKENS * BENCH_HEADS;
    int rc = tp_check("src", work->src_tp, err);
    if (!rc)
        rc = tp_check("dst", work->dst_tp, err);
    if (rc)
        return rc;
    if (work->order >= ORDERS)
        return error_set(err, BATON_EINVAL, "there is no order %u", work->order);
    if (!work->item_bytes || !work->pages || !work->layers || work->layers > BENCH_LAYERS_MAX)
        return error_set(err, BATON_EINVAL,
                         "a case needs bytes, pages and 1 to %u layers, not %" PRIu64
                         " x %u x %u",
                         BENCH_LAYERS_MAX, work->item_bytes, work->pages, work->layers);
    if (work->structured && (work->item_bytes % (2 * unit)))
        return error_set(err, BATON_EINVAL,
                         "--item-bytes %" PRIu64
                         ": pages split by heads hold K and V of %u tokens "
                         "and %u heads in bf16, so it must be a multiple of %" PRIu64,
                         work->item_bytes, BENCH_TOKENS, BENCH_HEADS, 2 * unit);
    if (work->item_bytes > (1ull << 40) / work->pages / work->layers)
        return error_set(err, BATON_EINVAL, "a case of more than 1 TB: fewer pages, please");
    return BATON_OK;
}

void bench_case_items(const struct bench_case *work, uint32_t *bases, uint64_t *item_bytes)
{
    uint32_t halves = work->structured ? 2 : 1;
    *bases = work->order == ORDER_PER_LAYER ? work->layers * halves : 1;
    *item_bytes = work->item_bytes * work->layers / *bases;
}

void pages_shuffle(int32_t *pages, uint32_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        pages[i] = (int32_t)i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)(mix(seed + i * 0x9e3779b97f4a7c15ull) % i);
        int32_t page = pages[i - 1];
        pages[i - 1] = pages[j];
        pages[j] = page;
    }
}

void pages_list(const struct bench_case *work, bool prefill, int32_t *pages)
{
    bool in_order = prefill ? work->prefill_in_order : work->decode_in_order;
    if (!in_order)
        pages_shuffle(pages, work->pages, work->seed + (prefill ? 101 : 202));
    for (uint32_t i = 0; in_order && i < work->pages; i++)
        pages[i] = (int32_t)i;
}

/* ---- pools ------------------------------------------------------------------------------- */

const char *order_name(enum order order)
{
    static const char *const names[ORDERS] = {[ORDER_PER_LAYER] = "per-layer",
                                              [ORDER_HEAD] = "head",
                                              [ORDER_LAYER] = "layer",
                                              [ORDER_PAIRED] = "paired"};
    return names[order];
}

int order_fill(baton_layout *layout, enum order order, uint64_t *item_bytes)
{
    static const int nearest[ORDERS] = {[ORDER_PER_LAYER] = BATON_ORDER_PER_LAYER,
                                        [ORDER_HEAD] = BATON_ORDER_HEAD_MAJOR,
                                        [ORDER_LAYER] = BATON_ORDER_LAYER_MAJOR,
                                        [ORDER_PAIRED] = BATON_ORDER_LAYER_MAJOR};
    int rc = baton_layout_fill(layout, nearest[order], item_bytes);
    if (rc || order != ORDER_PAIRED)
        return rc;
    layout->kv_stride = (uint64_t)layout->tokens_per_page * layout->token_stride;
    layout->head_stride = layout->kv * layout->kv_stride;
    return BATON_OK;
}

static int layout_describe(const struct bench_case *work, uint32_t rank, uint32_t tp,
                           baton_layout *layout, uint64_t *item_bytes)
{
    *layout = (baton_layout)BATON_LAYOUT_INIT;
    layout->pages = work->pages;
    if (!work->structured) {
        bench_case_items(work, &layout->base_count, item_bytes);
        layout->layers = layout->base_count;
        layout->page_stride = *item_bytes;
        return BATON_OK;
    }
    layout->dtype = BATON_DTYPE_BF16;
    layout->tokens_per_page = BENCH_TOKENS;
    layout->layers = work->layers;
    layout->kv = 2;
    layout->total_heads = BENCH_HEADS;
    layout->heads = BENCH_HEADS / tp;
    layout->first_head = rank * layout->heads;
    layout->head_bytes = (uint32_t)(work->item_bytes / (2 * BENCH_TOKENS * BENCH_HEADS));
    layout->base_count = work->order == ORDER_PER_LAYER ? work->layers * 2 : 1;
    return order_fill(layout, (enum order)work->order, item_bytes);
}

static int pool_allocate(struct bench_pool *pool, bool shared, struct error err)
{
    if (shared) {
        int rc = baton_pool_alloc(pool->bytes, &pool->shared, err.text, err.size);
        if (rc)
            return rc;
        pool->address = baton_pool_address(pool->shared);
        return BATON_OK;
    }
    pool->address = aligned_alloc(POOL_ALIGNMENT, pool->bytes);
    if (!pool->address)
        return error_set(err, BATON_ENOMEM, "no memory for a pool of %" PRIu64 " bytes",
                         pool->bytes);
    memset(pool->address, POISON, pool->bytes); /* populated, as a serving engine's is */
    return BATON_OK;
}

int bench_pool_open(const struct bench_case *work, uint32_t rank, uint32_t tp, bool shared,
                    struct bench_pool *out, struct error err)
{
    struct bench_pool pool = {.work = *work};
    uint64_t item_bytes = 0;
    int rc = layout_describe(work, rank, tp, &pool.layout, &item_bytes);
    if (rc)
        return error_set(err, rc, "the layout of rank %u of %u: %s", rank, tp,
                         baton_error_text(rc));
    uint64_t base_bytes = item_bytes * work->pages;
    base_bytes = (base_bytes + POOL_ALIGNMENT - 1) / POOL_ALIGNMENT * POOL_ALIGNMENT;
    pool.bytes = base_bytes * pool.layout.base_count;
    pool.bases = calloc(pool.layout.base_count, sizeof(*pool.bases));
    if (!pool.bases)
        return error_set(err, BATON_ENOMEM, "no memory for %u bases", pool.layout.base_count);
    rc = pool_allocate(&pool, shared, err);
    if (rc) {
        free(pool.bases);
        return rc;
    }
    for (uint32_t i = 0; i < pool.layout.base_count; i++)
        pool.bases[i] = (baton_base){pool.address + i * base_bytes, base_bytes, item_bytes};
    pool.layout.bases = pool.bases;
    *out = pool;
    return BATON_OK;
}

void bench_pool_close(struct bench_pool *pool)
{
    if (pool->shared)
        baton_pool_free(pool->shared);
    else
        free(pool->address);
    free(pool->bases);
    *pool = (struct bench_pool){0};
}

/* ---- the pattern ------------------------------------------------------------------------- */

uint32_t bench_pool_halves(const struct bench_pool *pool)
{
    return pool->work.structured ? 2 : 1;
}

uint32_t bench_pool_heads(const struct bench_pool *pool)
{
    return pool->work.structured ? pool->layout.heads : 1;
}

uint64_t bench_pool_segment_bytes(const struct bench_pool *pool)
{
    if (!pool->work.structured)
        return pool->work.item_bytes;
    return (uint64_t)BENCH_TOKENS * pool->layout.head_bytes;
}

uint8_t *bench_pool_segment(const struct bench_pool *pool, const struct page_segment *at)
{
    const baton_layout *layout = &pool->layout;
    uint64_t page = (uint64_t)at->page * layout->page_stride;
    bool per_layer = pool->work.order == ORDER_PER_LAYER;
    if (!pool->work.structured && !per_layer)
        return pool->address + page + at->layer * pool->work.item_bytes;
    if (!pool->work.structured)
        return (uint8_t *)pool->bases[at->layer].address + page;
    uint64_t head = at->head * layout->head_stride;
    if (!per_layer)
        return pool->address + page + at->layer * layout->layer_stride +
               at->half * layout->kv_stride + head;
    return (uint8_t *)pool->bases[at->half * layout->layers + at->layer].address + page + head;
}

static uint64_t segment_key(const struct bench_pool *pool, const struct page_segment *at,
                            uint32_t position)
{
    uint64_t key = mix(pool->work.seed ^ position);
    key = mix(key ^ ((uint64_t)at->layer << 32 | (pool->layout.first_head + at->head)));
    return mix(key ^ at->half);
}

static uint64_t pattern_word(uint64_t key, uint64_t index)
{
    return (key ^ index * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
}

static void pattern_write(uint8_t *to, uint64_t bytes, uint64_t key)
{
    uint64_t word, whole = bytes / sizeof(word);
    for (uint64_t i = 0; i < whole; i++) {
        word = pattern_word(key, i);
        memcpy(to + i * sizeof(word), &word, sizeof(word));
    }
    word = pattern_word(key, whole);
    memcpy(to + whole * sizeof(word), &word, bytes % sizeof(word));
}

/* Wrong bytes of one segment, and the offset of the first. */
static uint64_t pattern_compare(const uint8_t *from, uint64_t bytes, uint64_t key,
                                uint64_t *first)
{
    uint64_t wrong = 0;
    for (uint64_t offset = 0; offset < bytes; offset += sizeof(uint64_t)) {
        uint64_t found = 0, word = pattern_word(key, offset / sizeof(uint64_t));
        uint64_t length = bytes - offset < sizeof(word) ? bytes - offset : sizeof(word);
        memcpy(&found, from + offset, length);
        if (length == sizeof(word) && found == word)
            continue;
        for (uint64_t i = 0; i < length; i++) {
            if (from[offset + i] == ((const uint8_t *)&word)[i])
                continue;
            if (!wrong++)
                *first = offset + i;
        }
    }
    return wrong;
}

/* Steps through the segments of one page: head fastest, then k|v, then layer. */
static bool segment_next(const struct bench_pool *pool, struct page_segment *at)
{
    if (++at->head < bench_pool_heads(pool))
        return true;
    at->head = 0;
    if (++at->half < bench_pool_halves(pool))
        return true;
    at->half = 0;
    return ++at->layer < pool->work.layers;
}

void bench_pool_fill(struct bench_pool *pool, const int32_t *pages, uint32_t first,
                     uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        struct page_segment at = {.page = pages[i]};
        do
            pattern_write(bench_pool_segment(pool, &at), bench_pool_segment_bytes(pool),
                          segment_key(pool, &at, i));
        while (segment_next(pool, &at));
    }
}

void bench_pool_poison(struct bench_pool *pool, const int32_t *pages, uint32_t first,
                       uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        struct page_segment at = {.page = pages[i]};
        do
            memset(bench_pool_segment(pool, &at), POISON, bench_pool_segment_bytes(pool));
        while (segment_next(pool, &at));
    }
}

uint64_t bench_pool_check(const struct bench_pool *pool, const int32_t *pages, uint32_t first,
                          uint32_t count, char *where, size_t where_size)
{
    uint64_t wrong = 0;
    for (uint32_t i = first; i < first + count; i++) {
        struct page_segment at = {.page = pages[i]};
        do {
            uint64_t offset = 0;
            uint64_t here =
                pattern_compare(bench_pool_segment(pool, &at), bench_pool_segment_bytes(pool),
                                segment_key(pool, &at, i), &offset);
            if (here && !wrong)
                snprintf(where, where_size,
                         "position %u (page %d), layer %u, %s head %u, offset %" PRIu64, i,
                         at.page, at.layer, at.half ? "V" : "K",
                         pool->layout.first_head + at.head, offset);
            wrong += here;
        } while (segment_next(pool, &at));
    }
    return wrong;
}
