/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: walking the plan, slice by slice.
 *
 * A lane compares what has been released (the copy's watermark, moved by the caller of send and
 * layer_ready, or by COMMIT on a reading receiver) with what it has handed to the backend, and works
 * on the difference. Nothing is queued per chunk: ten sends while a lane was busy are one
 * difference. The state of a lane is its worker's alone; the link thread reads the atomics at the
 * end of struct lane, posts the lane when the watermark moved, and ends it with cancel_job.
 *
 *   released:  complete ------------------> partial (first `layers` layers only)
 *   lane:      pages_done ----> partial_end (first partial_layers layers handed over)
 *
 * A small copy over an immediate backend has one lane without a worker: the link thread runs it where
 * it would have posted it, and two thread switches are saved.
 *
 * Stripes: with several lanes, blocks of stripe_pages consecutive positions go to the lanes in turn.
 * State regions are short; lane 0 takes them after the last KV page was released. */
#include "copy.h"

#include "backend.h"
#include "manager.h"
#include "room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t copy_sum(uint32_t region, uint32_t base, uint64_t offset, const uint8_t *bytes,
                  uint64_t length)
{
    /* Linear in the bytes (a byte counts as its value in its little-endian 8-byte word, times an
     * odd weight of the word's place), so that it does not matter how the bytes were cut. */
    const uint64_t seed = ((uint64_t)region << 32 | base) * 0xd6e8feb86659fd93ull;
    uint64_t sum = 0;
    for (uint64_t at = 0; at < length;) {
        uint64_t place = offset + at, word = 0;
        uint64_t within = place & 7, take = 8 - within;
        if (take > length - at)
            take = length - at;
        memcpy((uint8_t *)&word + within, bytes + at, take);
        uint64_t mixed = (place >> 3 ^ seed) * 0x9e3779b97f4a7c15ull;
        sum += word * ((mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull | 1);
        at += take;
    }
    return sum;
}

/* ---- worker side ---- */

static void lane_run(struct worker_job *job);

void lane_post(struct lane *lane)
{
    if (lane->worker)
        worker_post(lane->worker, &lane->job);
    else
        lane_run(&lane->job);
}

static void lane_notify(struct lane *lane)
{
    runtime_post(lane->copy->manager->runtime, lane->copy->notify);
}

static void lane_assert_owner(const struct lane *lane)
{
    if (lane->worker)
        worker_assert_owner(lane->worker);
    else
        runtime_assert_link_thread(lane->copy->manager->runtime);
}

void lane_fail(struct lane *lane, int code)
{
    atomic_store_explicit(&lane->error, code, memory_order_release);
    lane_notify(lane);
}

static bool lane_open_plan(struct lane *lane, const struct copy_region *region,
                           uint32_t page_begin, uint32_t page_end, uint32_t layer_begin,
                           uint32_t layer_end)
{
    struct plan_input input = {
        .src = region->src,
        .dst = region->dst,
        .src_pages = region->src_pages,
        .dst_pages = region->dst_pages,
        .src_page_count = region->src_count,
        .dst_page_count = region->dst_count,
        .src_first_token = region->src_first_token,
        .dst_first_token = region->dst_first_token,
        .tokens = lane->region_index == 0 ? lane->copy->tokens : 0,
        .page_begin = page_begin,
        .page_end = page_end,
        .layer_begin = layer_begin,
        .layer_end = layer_end,
    };
    int code = plan_open(&lane->plan, &input, ERROR_BUFFER(lane->error_text));
    if (code != BATON_OK) {
        lane_fail(lane, code);
        return false;
    }
    lane->plan_active = true;
    return true;
}

/* Takes the next piece of released KV pages; false when all that is released was taken. */
static bool lane_take_piece(struct lane *lane, struct watermark released)
{
    uint32_t layers = lane->copy->regions[0].src->layers;
    if (lane->partial_layers) {
        /* A chunk is half done: finish its layers as far as they are released. */
        uint32_t ready = released.complete >= lane->partial_end ? layers : released.layers;
        if (ready > lane->partial_layers) {
            lane->piece_page = lane->pages_done;
            lane->piece_end = lane->partial_end;
            lane->piece_layer = lane->partial_layers;
            lane->piece_layer_end = ready;
            lane->partial_layers = ready;
            if (ready == layers) {
                lane->pages_done = lane->partial_end;
                lane->partial_layers = 0;
            }
            return true;
        }
        return false;
    }
    if (released.complete > lane->pages_done) {
        lane->piece_page = lane->pages_done;
        lane->piece_end = lane->pages_done = released.complete;
        lane->piece_layer = 0;
        lane->piece_layer_end = layers;
        return true;
    }
    if (released.layers && released.partial > lane->pages_done) {
        lane->piece_page = lane->pages_done;
        lane->piece_end = lane->partial_end = released.partial;
        lane->piece_layer = 0;
        lane->piece_layer_end = lane->partial_layers = released.layers;
        return true;
    }
    return false;
}

/* The next of this lane's stripes of the piece. */
static bool lane_take_stripe(struct lane *lane, uint32_t *begin, uint32_t *end)
{
    uint32_t lanes = lane->copy->lane_count, stripe = lane->copy->stripe_pages;
    while (lane->piece_page < lane->piece_end) {
        *begin = lane->piece_page;
        if (lanes == 1) {
            *end = lane->piece_end;
        } else {
            uint64_t next = ((uint64_t)*begin / stripe + 1) * stripe;
            *end = next < lane->piece_end ? (uint32_t)next : lane->piece_end;
        }
        lane->piece_page = *end;
        if (lanes == 1 || *begin / stripe % lanes == lane->index)
            return true;
    }
    return false;
}

/* Sets the plan to the next thing to copy; false when everything released has been taken. */
static bool lane_next_plan(struct lane *lane, uint64_t released_word)
{
    struct copy *copy = lane->copy;
    struct watermark released = watermark_unpack(released_word);
    uint32_t begin, end;
    for (;;) {
        if (lane->piece_open && lane_take_stripe(lane, &begin, &end))
            return lane_open_plan(lane, &copy->regions[0], begin, end, lane->piece_layer,
                                  lane->piece_layer_end);
        lane->piece_open = false;
        if (!lane_take_piece(lane, released))
            break;
        lane->piece_open = true;
    }
    if (released.last && lane->index == 0 && lane->region_index + 1 < copy->region_count) {
        const struct copy_region *region = &copy->regions[++lane->region_index];
        return lane_open_plan(lane, region, 0, region->src_count, 0, region->src->layers);
    }
    return false;
}

static bool lane_refill(struct lane *lane)
{
    uint64_t released = atomic_load_explicit(lane->copy->watermark, memory_order_acquire);
    for (;;) {
        if (lane->plan_active) {
            lane->run_next = 0;
            lane->run_count = plan_next(&lane->plan, lane->runs, COPY_BATCH_RUNS);
            if (lane->run_count)
                return true;
            lane->plan_active = false;
        }
        if (!lane_next_plan(lane, released)) {
            lane->run_next = lane->run_count = 0;
            lane->accepted = released;
            return false;
        }
    }
}

static void lane_account(struct lane *lane, const struct plan_run *run, uint64_t length)
{
    struct copy *copy = lane->copy;
    lane->bytes_taken += length;
    lane->operations_taken++;
    if (copy->verify && copy->ops->capabilities & BACKEND_PUT) {
        const struct copy_region *region = &copy->regions[lane->region_index];
        const uint8_t *source =
            (const uint8_t *)(uintptr_t)region->src->bases[run->src_base].address;
        lane->sum_taken += copy_sum(region->region, run->dst_base, run->dst_offset,
                                    source + run->src_offset, length);
    }
}

/* Hands runs to the backend; returns bytes taken, 0 when blocked, -1 after an error. */
static int64_t lane_copy_some(struct lane *lane)
{
    const struct backend_ops *ops = lane->copy->ops;
    struct plan_run *runs = lane->runs + lane->run_next;
    struct plan_run cut;
    uint32_t count = lane->run_count - lane->run_next;
    const struct plan_run *give = runs;
    if (runs[0].length > COPY_RUN_MAX) {
        cut = runs[0];
        cut.length = COPY_RUN_MAX;
        give = &cut;
        count = 1;
    } else {
        for (uint32_t i = 1; i < count; i++)
            if (runs[i].length > COPY_RUN_MAX)
                count = i;
    }
    bool faulty = lane->copy->endpoint->fault && ops == lane->copy->endpoint->ops;
    int taken = faulty ? fault_copy(lane, give, count) : ops->copy(lane, give, count);
    if (taken < 0) {
        lane_fail(lane, taken);
        return -1;
    }
    int64_t bytes = 0;
    for (int i = 0; i < taken; i++) {
        lane_account(lane, &give[i], give[i].length);
        bytes += (int64_t)give[i].length;
    }
    if (taken && give == &cut) {
        runs[0].src_offset += cut.length;
        runs[0].dst_offset += cut.length;
        runs[0].length -= cut.length;
    } else {
        lane->run_next += (uint32_t)taken;
    }
    return bytes;
}

static void lane_publish(struct lane *lane)
{
    if (lane->run_next != lane->run_count || lane->plan_active ||
        atomic_load_explicit(&lane->done, memory_order_relaxed) == lane->accepted)
        return;
    if (!lane->copy->ops->flush(lane))
        return;
    if (lane->copy->ops != &backend_sums) /* which only add up */
        atomic_fetch_add_explicit(&lane->copy->room->written,
                                  lane->bytes_taken -
                                      atomic_load_explicit(&lane->bytes, memory_order_relaxed),
                                  memory_order_relaxed);
    atomic_store_explicit(&lane->bytes, lane->bytes_taken, memory_order_relaxed);
    atomic_store_explicit(&lane->operations, lane->operations_taken, memory_order_relaxed);
    atomic_store_explicit(&lane->sum, lane->sum_taken, memory_order_relaxed);
    atomic_store_explicit(&lane->landings, lane->landings_taken, memory_order_relaxed);
    atomic_store_explicit(&lane->requests, lane->requests_taken, memory_order_relaxed);
    atomic_store_explicit(&lane->doorbells, lane->doorbells_taken, memory_order_relaxed);
    atomic_store_explicit(&lane->done, lane->accepted, memory_order_release);
    lane_notify(lane);
}

/* The lane may be freed as soon as `stopped` is seen, so that store is the last touch. A post that
 * is still queued comes back here; after cancel_job there are no new ones but the backend's. */
static void lane_try_stop(struct lane *lane)
{
    if (atomic_load_explicit(&lane->job.queued, memory_order_acquire) ||
        !lane->copy->ops->flush(lane))
        return;
    struct runtime *runtime = lane->copy->manager->runtime;
    struct runtime_job *notify = lane->copy->notify;
    _Atomic uint32_t *posters = &lane->copy->room->posters;
    atomic_store_explicit(&lane->stopped, true, memory_order_release);
    runtime_post(runtime, notify);
    atomic_fetch_sub_explicit(posters, 1, memory_order_release);
}

static void lane_run_cancel(struct worker_job *job)
{
    struct lane *lane = (struct lane *)((char *)job - offsetof(struct lane, cancel_job));
    lane_assert_owner(lane);
    lane->cancelled = true;
    lane_try_stop(lane);
}

static void lane_run(struct worker_job *job)
{
    struct lane *lane = (struct lane *)job;
    lane_assert_owner(lane);
    if (lane->cancelled) {
        lane_try_stop(lane);
        return;
    }
    if (atomic_load_explicit(&lane->error, memory_order_relaxed))
        return;
    for (int64_t budget = COPY_SLICE_BYTES;;) {
        if (lane->run_next == lane->run_count && !lane_refill(lane))
            break;
        int64_t bytes = lane_copy_some(lane);
        if (bytes < 0)
            return;
        if (bytes == 0)
            break; /* blocked: the backend posts us */
        budget -= bytes;
        if (budget <= 0) {
            lane_post(lane); /* others' turn, and a look at cancel */
            break;
        }
    }
    lane_publish(lane);
}

/* ---- link thread side ---- */

int copy_start(struct copy *copy)
{
    uint64_t page_bytes = 0;
    uint32_t rails[WIRE_STREAMS_MAX];
    const struct layout *src = copy->regions[0].src;
    for (uint32_t base = 0; base < src->base_count; base++)
        page_bytes += src->bases[base].item_bytes;
    uint32_t lane_count = copy->endpoint->ops->spread(
        copy->endpoint, page_bytes * copy->regions[0].src_count, rails);
    bool small = copy->ops->capabilities & BACKEND_IMMEDIATE && !copy->endpoint->fault &&
                 !copy->with_states &&
                 page_bytes * copy->regions[0].src_count <= COPY_INLINE_BYTES;
    if (small)
        lane_count = 1;
    copy->lanes = calloc(lane_count, sizeof(*copy->lanes));
    if (!copy->lanes)
        return BATON_ENOMEM;
    copy->lane_count = lane_count;
    atomic_fetch_add_explicit(&copy->room->posters, lane_count, memory_order_relaxed);
    copy->stripe_pages = page_bytes && page_bytes < COPY_STRIPE_BYTES
                             ? (uint32_t)(COPY_STRIPE_BYTES / page_bytes)
                             : 1;
    /* A stripe that ends in the middle of a gather list costs a request more. */
    uint32_t gather = copy->ops->gather_max ? copy->ops->gather_max : 1;
    uint32_t whole = (copy->stripe_pages + gather - 1) / gather * gather;
    if (page_bytes * whole <= COPY_RUN_MAX)
        copy->stripe_pages = whole;
    for (uint32_t i = 0; i < lane_count; i++) {
        struct lane *lane = &copy->lanes[i];
        worker_job_init(&lane->job, lane_run);
        worker_job_init(&lane->cancel_job, lane_run_cancel);
        lane->copy = copy;
        lane->worker = small ? NULL : copy->endpoint->workers[rails[i]];
        lane->index = i;
        lane->rail = rails[i];
    }
    return BATON_OK;
}

void copy_wake(struct copy *copy)
{
    for (uint32_t i = 0; !copy->cancelled && i < copy->lane_count; i++)
        lane_post(&copy->lanes[i]);
}

void copy_cancel(struct copy *copy)
{
    if (copy->cancelled)
        return;
    copy->cancelled = true;
    for (uint32_t i = 0; i < copy->lane_count; i++)
        if (copy->lanes[i].worker)
            worker_post(copy->lanes[i].worker, &copy->lanes[i].cancel_job);
        else
            lane_run_cancel(&copy->lanes[i].cancel_job);
}

bool copy_stopped(const struct copy *copy)
{
    for (uint32_t i = 0; copy->lanes && i < copy->lane_count; i++)
        if (!atomic_load_explicit(&copy->lanes[i].stopped, memory_order_acquire))
            return false;
    return true;
}

bool copy_done(const struct copy *copy, uint64_t watermark)
{
    for (uint32_t i = 0; i < copy->lane_count; i++)
        if (atomic_load_explicit(&copy->lanes[i].done, memory_order_acquire) != watermark)
            return false;
    return true;
}

int copy_error(const struct copy *copy, char *text, size_t size)
{
    for (uint32_t i = 0; copy->lanes && i < copy->lane_count; i++) {
        int code = atomic_load_explicit(&copy->lanes[i].error, memory_order_acquire);
        if (code) {
            snprintf(text, size, "%s", copy->lanes[i].error_text);
            return code;
        }
    }
    return 0;
}

void copy_free(struct copy *copy)
{
    BATON_ASSERT(copy_stopped(copy));
    free(copy->lanes);
    copy->lanes = NULL;
    copy->lane_count = 0;
}

/* ---- local fences ---- */

static void copy_fence_run(struct worker_job *job)
{
    struct copy_fence_part *part = (struct copy_fence_part *)job;
    struct copy_fence *fence = part->fence;
    part->revoke(part->arg, fence->ticket);
    /* The last one tells; after that the fence may be freed by the link thread. */
    struct manager *manager = fence->manager;
    struct runtime_job *notify = fence->notify;
    _Atomic uint32_t *posters = fence->posters;
    if (atomic_fetch_sub_explicit(&fence->pending, 1, memory_order_acq_rel) == 1)
        runtime_post(manager->runtime, notify);
    atomic_fetch_sub_explicit(posters, 1, memory_order_release);
}

int copy_fence_start(struct copy_fence *fence, uint32_t count, struct worker **workers,
                     void (*revoke)(void *arg, uint32_t ticket), void **args)
{
    atomic_store_explicit(&fence->pending, count, memory_order_relaxed);
    atomic_fetch_add_explicit(fence->posters, count, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        struct copy_fence_part *part = &fence->parts[i];
        worker_job_init(&part->job, copy_fence_run);
        part->fence = fence;
        part->revoke = revoke;
        part->arg = args[i];
    }
    for (uint32_t i = 0; i < count; i++)
        worker_post(workers[i], &fence->parts[i].job);
    return (int)count;
}
