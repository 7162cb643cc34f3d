/* SPDX-License-Identifier: Apache-2.0 */
/* A copy: the execution of the plan between one pair of ranks, by one or more lanes. A lane belongs
 * to one rail of the endpoint (a tcp stream, a queue pair, or just a thread) and to the worker that
 * owns it; stripes of pages go to the lanes in turn. The copy runs where the backend says: at the
 * sender (put) or at the receiver (get). */
#ifndef BATON_TRANSFER_COPY_H
#define BATON_TRANSFER_COPY_H

#include "plan.h"
#include "wire.h"
#include "worker.h"

struct copy;
struct endpoint;
struct backend_ops;
struct manager;
struct room;
struct runtime_job;

#define COPY_BATCH_RUNS 64
#define COPY_RUN_MAX (4u << 20) /* longer runs are cut: an abort is seen between pieces */
#define COPY_SLICE_BYTES (1u << 20)
#define COPY_STRIPE_BYTES (256u << 10)
#define COPY_INLINE_BYTES (64u << 10) /* less than two thread switches take */

/* Both ends of one region. */
struct copy_region {
    uint32_t region; /* the destination's index */
    const struct layout *src, *dst;
    const int32_t *src_pages, *dst_pages;
    uint32_t src_count, dst_count;
    uint32_t src_first_token, dst_first_token;
};

struct lane {
    struct worker_job job;
    struct worker_job cancel_job; /* the link thread's last word to this lane */
    struct copy *copy;
    struct worker *worker; /* NULL: a small copy, run by the link thread where it is posted */
    uint32_t index;
    uint32_t rail; /* of the endpoint */

    /* owner: the lane's worker */
    uint32_t pages_done;  /* KV: all layers of pages before this are handed to the backend */
    uint32_t partial_end; /* layer-wise: the chunk that is half done */
    uint32_t partial_layers;
    uint32_t piece_page, piece_end, piece_layer, piece_layer_end; /* what is being walked */
    bool piece_open;
    uint32_t region_index; /* which of copy->regions */
    struct plan plan;
    bool plan_active;
    struct plan_run runs[COPY_BATCH_RUNS];
    uint32_t run_next, run_count;
    uint64_t accepted; /* watermark up to which the backend has taken everything */
    uint64_t bytes_taken, operations_taken, sum_taken;
    uint64_t landings_taken; /* the backend's: immediates sent */
    struct lane *wait_next;  /* in the rail's list of blocked lanes */
    bool waiting;
    uint32_t in_flight; /* the backend's: requests that are not complete */
    uint32_t rail_life; /* the backend's: which life of the rail it has used, 0: none */
    uint64_t requests_taken, doorbells_taken; /* the backend's: posted to the device */
    uint64_t fault_bytes;                     /* faulty backend: how far this lane has come */
    bool cancelled;

    /* worker -> link thread */
    _Atomic uint64_t done; /* watermark that is complete in the backend's sense */
    _Atomic uint64_t bytes, operations, sum, landings, requests, doorbells;
    _Atomic bool stopped; /* nothing in flight, the worker will not touch the lane again */
    _Atomic int error;
    char error_text[160]; /* before error */
};

struct copy {
    struct manager *manager;
    struct room *room;
    struct endpoint *endpoint;
    const struct backend_ops *ops;
    uint32_t ticket;
    bool verify;
    const _Atomic uint64_t *watermark; /* what may be copied */
    struct copy_region
        regions[WIRE_REGIONS_MAX]; /* [0] is KV, the rest go with the last chunk */
    uint32_t region_count;
    uint32_t tokens;  /* end of the sequence, 0: of the lists */
    bool with_states; /* more regions come with the last chunk */
    uint32_t stripe_pages;
    struct runtime_job *notify; /* posted when a lane has news */
    struct lane *lanes;         /* NULL: nothing was started */
    uint32_t lane_count;
    bool cancelled; /* link thread: no more posts */
    bool packed;
    char reason[112]; /* direct or packed, and why */
};

/* ---- link thread ---- */
/* Where the backend is immediate and all of it is small, the link thread is the only lane. */
int copy_start(struct copy *copy);
void copy_wake(struct copy *copy);          /* the watermark moved */
void copy_cancel(struct copy *copy);        /* every lane will say stopped */
bool copy_stopped(const struct copy *copy); /* cancelled or finished, nothing in flight */
bool copy_done(const struct copy *copy, uint64_t watermark); /* all lanes have reached it */
int copy_error(const struct copy *copy, char *text, size_t size); /* first lane's error, or 0 */
void copy_free(struct copy *copy);                                /* only when copy_stopped */

/* ---- worker ---- */
void lane_post(struct lane *lane); /* something changed for this lane */
/* What the lane has handed over will never arrive; text in lane->error_text. */
void lane_fail(struct lane *lane, int code);

/* Order-free sum of bytes at their place in the destination; sums of parts add up. */
uint64_t copy_sum(uint32_t region, uint32_t base, uint64_t offset, const uint8_t *bytes,
                  uint64_t length);

#define COPY_FENCE_PARTS 32 /* streams of a link and all workers */

/* A local fence: asks workers to let go of a ticket, posts `notify` when all have. */
struct copy_fence {
    struct copy_fence_part {
        struct worker_job job;
        struct copy_fence *fence;
        void (*revoke)(void *arg, uint32_t ticket);
        void *arg;
    } parts[COPY_FENCE_PARTS];
    _Atomic uint32_t pending;
    uint32_t ticket;
    struct manager *manager;
    struct runtime_job *notify;
    _Atomic uint32_t *posters; /* of the room */
};

#endif
