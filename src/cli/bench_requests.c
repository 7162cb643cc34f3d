/* SPDX-License-Identifier: Apache-2.0 */
/* See bench_requests.h. Deliberately nothing of the library's plan is used: the pages are walked
 * segment by segment, by the same formula that fills and checks them. */
#include "bench_requests.h"

#include <stdlib.h>

void request_count(struct request_counter *counter, uint64_t remote, uint64_t local,
                   uint64_t length)
{
    while (length) {
        bool joins = counter->bytes && counter->bytes < REQUEST_BYTES_MAX &&
                     counter->remote_end == remote;
        bool same_piece = joins && counter->local_end == local;
        if (joins && !same_piece && counter->pieces == counter->max_sge)
            joins = false;
        if (!joins) {
            counter->requests++;
            counter->pieces = 0;
            counter->bytes = 0;
            same_piece = false;
        }
        uint64_t left = REQUEST_BYTES_MAX - counter->bytes;
        uint64_t take = length < left ? length : left;
        counter->pieces += !same_piece;
        counter->bytes += take;
        remote += take;
        local += take;
        length -= take;
        counter->remote_end = remote;
        counter->local_end = local;
    }
}

struct pair_walk {
    const struct bench_pool *prefill, *decode;
    const int32_t *prefill_pages, *decode_pages;
    bool reads;
    struct piece {
        uint64_t remote, local;
    } * pieces; /* of one page */
    struct request_counter counter;
};

static int piece_order(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    return (a->remote > b->remote) - (a->remote < b->remote);
}

/* What goes over of one page in layers [begin, end) and the given halves, in the order of the remote
 * memory. */
static void page_walk(struct pair_walk *walk, uint32_t position, uint32_t layer_begin,
                      uint32_t layer_end, uint32_t half_begin, uint32_t half_end)
{
    const struct bench_pool *prefill = walk->prefill, *decode = walk->decode;
    uint32_t first = prefill->layout.first_head, heads = bench_pool_heads(prefill);
    uint32_t count = 0;
    for (uint32_t layer = layer_begin; layer < layer_end; layer++) {
        for (uint32_t half = half_begin; half < half_end; half++) {
            for (uint32_t head = 0; head < bench_pool_heads(decode); head++) {
                uint32_t global = decode->layout.first_head + head;
                if (global < first || global - first >= heads)
                    continue;
                struct page_segment from = {layer, half, global - first,
                                            walk->prefill_pages[position]};
                struct page_segment to = {layer, half, head, walk->decode_pages[position]};
                uint64_t source = (uintptr_t)bench_pool_segment(prefill, &from);
                uint64_t target = (uintptr_t)bench_pool_segment(decode, &to);
                walk->pieces[count++] = walk->reads ? (struct piece){source, target}
                                                    : (struct piece){target, source};
            }
        }
    }
    qsort(walk->pieces, count, sizeof(*walk->pieces), piece_order);
    for (uint32_t i = 0; i < count; i++)
        request_count(&walk->counter, walk->pieces[i].remote, walk->pieces[i].local,
                      bench_pool_segment_bytes(decode));
}

/* Base by base, and in each the pages of the sequence. */
static void pair_count(struct pair_walk *walk)
{
    const struct bench_case *work = &walk->prefill->work;
    uint32_t halves = bench_pool_halves(walk->prefill);
    if (work->order != ORDER_PER_LAYER) {
        for (uint32_t i = 0; i < work->pages; i++)
            page_walk(walk, i, 0, work->layers, 0, halves);
        return;
    }
    for (uint32_t half = 0; half < halves; half++)
        for (uint32_t layer = 0; layer < work->layers; layer++)
            for (uint32_t i = 0; i < work->pages; i++)
                page_walk(walk, i, layer, layer + 1, half, half + 1);
}

/* The pools are never touched, so they take address space and no memory. */
static int pair_open_and_count(struct pair_walk *walk, const struct bench_case *work,
                               uint32_t src, uint32_t dst, uint64_t *requests, struct error err)
{
    struct bench_pool prefill, decode;
    int rc = bench_pool_open(work, src, work->src_tp, false, &prefill, err);
    if (rc)
        return rc;
    rc = bench_pool_open(work, dst, work->dst_tp, false, &decode, err);
    if (!rc) {
        walk->prefill = &prefill;
        walk->decode = &decode;
        walk->counter.requests = walk->counter.bytes = 0; /* another queue pair */
        pair_count(walk);
        *requests += walk->counter.requests;
        bench_pool_close(&decode);
    }
    bench_pool_close(&prefill);
    return rc;
}

int requests_minimum(const struct bench_case *work, bool reads, uint32_t max_sge, uint64_t *out,
                     struct error err)
{
    uint64_t requests = 0;
    int32_t *prefill_pages = malloc(work->pages * sizeof(*prefill_pages));
    int32_t *decode_pages = malloc(work->pages * sizeof(*decode_pages));
    struct pair_walk walk = {.prefill_pages = prefill_pages,
                             .decode_pages = decode_pages,
                             .reads = reads,
                             .counter = {.max_sge = max_sge ? max_sge : 1}};
    walk.pieces = calloc((size_t)work->layers * 2 * BENCH_HEADS, sizeof(*walk.pieces));
    int rc = BATON_OK;
    if (!prefill_pages || !decode_pages || !walk.pieces)
        rc = error_set(err, BATON_ENOMEM, "no memory to count the requests of %u pages",
                       work->pages);
    if (!rc) {
        pages_list(work, true, prefill_pages);
        pages_list(work, false, decode_pages);
    }
    for (uint32_t src = 0; src < work->src_tp && !rc; src++)
        for (uint32_t dst = 0; dst < work->dst_tp && !rc; dst++)
            rc = pair_open_and_count(&walk, work, src, dst, &requests, err);
    free(walk.pieces);
    free(decode_pages);
    free(prefill_pages);
    if (!rc)
        *out = requests;
    return rc;
}
