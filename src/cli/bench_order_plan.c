/* SPDX-License-Identifier: Apache-2.0 */
/* What the real plan makes of each pairing of page orders: how many copies, and how many RDMA writes
 * (or reads) they become when neighbours in the remote memory share one with a list of local
 * pieces. No memory is touched, only addresses are compared. */
#include "bench_order.h"

#include "bench_requests.h"
#include "transfer/plan.h"

#include <stdlib.h>

#define SEQUENCE_PAGES 192u
#define POOL_PAGES (4 * SEQUENCE_PAGES) /* so that scattered pages are seldom neighbours */

uint64_t order_page_bytes(const struct order_shape *shape)
{
    return 2ull * shape->layers * shape->heads * ORDER_TOKENS * shape->dim * 2;
}

/* One rank's pool. Its address is made up, and far from that of any other. */
static int rank_layout(const struct order_shape *shape, enum order order, uint32_t rank,
                       uint32_t tp, uint64_t address, struct layout *out, struct error err)
{
    baton_layout layout = BATON_LAYOUT_INIT;
    uint64_t item_bytes = 0;
    layout.dtype = BATON_DTYPE_F16;
    layout.pages = POOL_PAGES;
    layout.tokens_per_page = ORDER_TOKENS;
    layout.layers = shape->layers;
    layout.kv = 2;
    layout.total_heads = shape->heads;
    layout.heads = shape->heads / tp;
    layout.first_head = rank * layout.heads;
    layout.head_bytes = shape->dim * 2;
    layout.base_count = order == ORDER_PER_LAYER ? shape->layers * 2 : 1;
    int rc = order_fill(&layout, order, &item_bytes);
    if (rc)
        return error_set(err, rc, "%s with %u ranks: %s", shape->name, tp,
                         baton_error_text(rc));
    baton_base *bases = calloc(layout.base_count, sizeof(*bases));
    if (!bases)
        return error_set(err, BATON_ENOMEM, "no memory for %u bases", layout.base_count);
    uint64_t base_bytes = item_bytes * layout.pages;
    for (uint32_t i = 0; i < layout.base_count; i++)
        bases[i] = (baton_base){(void *)(uintptr_t)(address + i * (base_bytes + 4096)),
                                base_bytes, item_bytes};
    layout.bases = bases;
    rc = layout_from_public(&layout, out, err);
    free(bases);
    return rc;
}

/* A sequence's pages: the first ones of the pool, or some in random order. */
static int pages_make(bool in_order, uint64_t seed, int32_t **out, struct error err)
{
    int32_t *pages = malloc(POOL_PAGES * sizeof(*pages));
    if (!pages)
        return error_set(err, BATON_ENOMEM, "no memory for a list of pages");
    if (!in_order)
        pages_shuffle(pages, POOL_PAGES, seed);
    for (uint32_t i = 0; in_order && i < POOL_PAGES; i++)
        pages[i] = (int32_t)i;
    *out = pages;
    return BATON_OK;
}

struct totals {
    uint64_t runs, requests, bytes;
};

static int pair_walk(const struct order_question *question, const struct layout *src,
                     const struct layout *dst, const int32_t *src_pages,
                     const int32_t *dst_pages, struct totals *totals, struct error err)
{
    struct request_counter counter = {.max_sge = question->max_sge};
    struct plan_input input = {.src = src,
                               .dst = dst,
                               .src_pages = src_pages,
                               .dst_pages = dst_pages,
                               .src_page_count = SEQUENCE_PAGES,
                               .dst_page_count = SEQUENCE_PAGES,
                               .page_end = SEQUENCE_PAGES,
                               .layer_end = src->layers};
    struct plan plan;
    struct plan_run runs[64];
    int rc = plan_open(&plan, &input, err);
    if (rc)
        return rc;
    for (uint32_t count; (count = plan_next(&plan, runs, 64));) {
        for (uint32_t i = 0; i < count; i++) {
            uint64_t source = src->bases[runs[i].src_base].address + runs[i].src_offset;
            uint64_t target = dst->bases[runs[i].dst_base].address + runs[i].dst_offset;
            request_count(&counter, question->reads ? source : target,
                          question->reads ? target : source, runs[i].length);
            totals->bytes += runs[i].length;
        }
        totals->runs += count;
    }
    totals->requests += counter.requests;
    return BATON_OK;
}

static int ranks_walk(const struct order_question *question, uint32_t src_rank,
                      uint32_t dst_rank, const int32_t *src_pages, const int32_t *dst_pages,
                      struct totals *totals, struct error err)
{
    struct layout src, dst;
    int rc = rank_layout(question->shape, question->src_order, src_rank, question->src_tp,
                         1ull << 44, &src, err);
    if (rc)
        return rc;
    rc = rank_layout(question->shape, question->dst_order, dst_rank, question->dst_tp,
                     1ull << 45, &dst, err);
    if (!rc) {
        rc = pair_walk(question, &src, &dst, src_pages, dst_pages, totals, err);
        layout_free(&dst);
    }
    layout_free(&src);
    return rc;
}

int order_count(const struct order_question *question, struct order_count *out,
                struct error err)
{
    int32_t *src_pages = NULL, *dst_pages = NULL;
    struct totals totals = {0};
    int rc = pages_make(question->pages == PAGES_IN_ORDER, 11, &src_pages, err);
    if (!rc)
        rc = pages_make(question->pages != PAGES_SCATTERED, 12, &dst_pages, err);
    for (uint32_t src = 0; src < question->src_tp && !rc; src++)
        for (uint32_t dst = 0; dst < question->dst_tp && !rc; dst++)
            rc = ranks_walk(question, src, dst, src_pages, dst_pages, &totals, err);
    free(dst_pages);
    free(src_pages);
    if (rc)
        return rc;
    if (totals.bytes != SEQUENCE_PAGES * order_page_bytes(question->shape))
        return error_set(err, BATON_ECORRUPT, "the plan has %llu bytes instead of %llu",
                         (unsigned long long)totals.bytes,
                         (unsigned long long)SEQUENCE_PAGES *
                             order_page_bytes(question->shape));
    *out = (struct order_count){(double)totals.runs / SEQUENCE_PAGES,
                                (double)totals.requests / SEQUENCE_PAGES,
                                (double)totals.bytes / (double)totals.requests};
    return BATON_OK;
}
