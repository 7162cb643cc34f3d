/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler inside. scheduler.c: what other threads call. scheduler_thread.c: its own thread.
 * scheduler_stats.c: what it tells. */
#ifndef BATON_SCHED_SCHEDULER_PARTS_H
#define BATON_SCHED_SCHEDULER_PARTS_H

#include "generation_check.h"
#include "kv_memory.h"
#include "layer_watch.h"
#include "rank_group.h"
#include "request_log.h"
#include "scheduler.h"
#include "step_guard.h"
#include "stepper.h"

#include <pthread.h>

/* Sums that fade: what was added lately counts most. */
struct fading {
    double part, whole;
};

/* Of the scheduler's thread. */
struct scheduler_counts {
    uint64_t steps, given_up, generated_tokens, requests, aborted, failed;
    struct fading generation; /* tokens, seconds */
    struct fading hits;       /* cached tokens, prompt tokens */
    struct fading transfers, megabytes, bootstraps,
        allocations; /* ms, MB, ms, ms; and how many */
    uint64_t handovers, handovers_failed, handovers_declined, recomputed, kept_tokens;
    uint64_t prompts_seen, cached_seen;
};

/* A flush that waits for its answer; on the stack of whoever asks. */
struct flush_message {
    struct message message;
    uint64_t deadline_ns;
    struct flush_message *next;
    bool done, flushed; /* under scheduler->lock */
};

struct abort_message {
    struct message message;
    char rid[GENERATION_RID_BYTES];
};

struct refusal_message {
    struct message message;
    struct handover handover;
    int code;
    char reason[256];
};

struct scheduler {
    /* Constant after open. */
    struct engine *engine;
    const struct tokenizer *tokenizer;
    struct scheduler_options options;
    struct generation_limits limits;
    struct answer_ends ends;
    pthread_t thread;

    /* Any thread. */
    struct mpsc inbox; /* struct message */
    struct bell bell;
    atomic_bool aborts; /* some generation's abort is set */
    atomic_bool draining, closing;
    atomic_uint queued; /* submitted and not yet running */
    atomic_uint arriving,
        preallocating; /* rooms: of those in the inbox, and handing[PREALLOC] */
    _Atomic uint64_t step_started_ns;
    pthread_mutex_t lock; /* of what follows; never held for longer than a copy */
    pthread_cond_t answered;
    struct scheduler_stats published;
    struct request_log log; /* has a lock of its own */

    /* Owner: the scheduler's thread. */
    struct kv_memory memory;
    struct planner planner;
    struct stepper stepper;
    struct byte_buffer text; /* of the output that is being made */
    uint64_t deadline_ns;    /* none of those inside has an earlier one; UINT64_MAX: none */
    struct flush_message *flushes; /* not answered yet */
    struct scheduler_counts counts;

    /* Hand-overs; all zero without them. Owner: the scheduler's thread, but what group_room_open_sender and
     * _receiver need is constant. */
    struct transfer_options transfer; /* constant; its strings are not kept */
    struct rank_group group;
    struct layer_watch layer_watch;
    struct step_guard guard;
    struct generation_state *handing_first, *handing_last; /* those with a room */
    struct generation_state *landed_first, *landed_last;   /* PHASE_LANDED, in order */
    struct limbo *limbo;
    uint32_t handing[PHASE_COUNT]; /* of those with a room, how many are in which phase */
};

void *scheduler_thread(void *scheduler);

/* The thread's: after each step, and when it goes to sleep. */
void scheduler_publish(struct scheduler *scheduler);
void scheduler_count_step(struct scheduler *scheduler, uint32_t tokens, uint64_t ns);
void scheduler_count_transfer(struct scheduler *scheduler, const baton_timeline *timeline,
                              uint64_t waited_ns);

#endif
