/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler: decides, step after step, what the engine computes next. One thread owns every
 * request, the pages, the prefix cache and the engine; others reach it by a queue and by one flag
 * in each generation, and it answers by the generation's deliver.
 *
 *   submit ---> waiting ---> running ---> finished
 *                 ^             |
 *                 +-- retract --+   (the pages ran out)
 *
 * Continuous batching: every step takes one token of each running generation, and fills up with
 * pieces of waiting prompts. */
#ifndef BATON_SCHED_SCHEDULER_H
#define BATON_SCHED_SCHEDULER_H

#include "generation.h"

#include "engine/engine.h"
#include "kv/page_pool.h"

struct scheduler;

/* How this worker takes part in hand-overs. Strings are borrowed for the call of open. */
struct transfer_options {
    const char *host;      /* to listen on for other workers; NULL: see baton_manager_options */
    const char *bootstrap; /* "host:port": a prefill worker's bootstrap server; NULL: none */
    const char *bootstrap_allow; /* whom receivers may call; NULL: anybody */
    const char *backends;        /* in order of preference; NULL: the library's */
    const char *ib_device, *key, *tls_certificate, *tls_key, *tls_ca;
    const char *fingerprint; /* of the model */
    uint32_t deadline_ms;    /* of a room; 0: the library's */
    bool verify;             /* every page is proven by a sum */
    bool fake;       /* nothing is sent: every room succeeds at once, with pages of nothing */
    bool layerwise;  /* send layers while later ones are computed */
    bool optimistic; /* compute before decode has granted, if there is nothing else to do */
    bool fallback;   /* compute here what could not be handed over */
    uint32_t local_tokens;    /* decode computes prompts with fewer uncached tokens itself */
    uint32_t reserved_tokens; /* kept free for each prompt on its way; 0: 512 */
};

struct scheduler_options {
    uint32_t pages;            /* in the pool; 0: as many as memory_bytes has room for */
    uint64_t memory_bytes;     /* for the pool of all ranks together */
    uint32_t tokens_per_page;  /* 16 */
    enum page_element element; /* of K and V */
    enum page_order order;
    uint32_t rank_count;    /* as the engine's */
    uint32_t max_running;   /* generations in a step */
    uint32_t max_queued;    /* submitted and not yet running; more are refused (ELIMIT) */
    uint32_t chunk_tokens;  /* prompt tokens in a step: chunked prefill */
    uint32_t context_max;   /* 0: what the model says */
    float conservativeness; /* of the new-token ratio: 1 */
    bool prefix_cache;      /* false: nothing is shared or kept */
    uint32_t cache_events;  /* see prefix_cache_open */
    const struct transfer_options *transfer; /* NULL: no hand-overs */
};
/* What the step loop of a worker needs beyond the options: both are borrowed until close. The
 * engine must have been opened with tokens_max >= chunk_tokens + max_running, logits_max >=
 * max_running + as many prompt logprobs as a step may want (SCHEDULER_LOGITS). (An engine wants
 * tokens_max >= logits_max; with chunks below SCHEDULER_LOGITS give it more tokens.) */
#define SCHEDULER_LOGITS 64u

int scheduler_open(struct engine *engine, const struct tokenizer *tokenizer,
                   const struct scheduler_options *options, struct scheduler **out,
                   struct error err);
/* Ends its thread; generations still in it are delivered FAILED ("shutting down"). NULL is fine. */
void scheduler_close(struct scheduler *scheduler);

/* The most tokens, prompt and answer together, that a generation can have here: what the model says,
 * context_max and the pool allow. Constant. */
uint32_t scheduler_context(const struct scheduler *scheduler);
uint32_t
scheduler_capacity(const struct scheduler *scheduler); /* tokens in the pool. Constant. */

/* Any thread. What is wrong with the generation is told at once: EINVAL, with numbers (a prompt
 * longer than the context or the pool, a token that does not exist, sampling that means nothing);
 * ELIMIT: the queue is full; ESTATE: draining or closing. Nothing is delivered then. */
int scheduler_submit(struct scheduler *scheduler, struct generation *generation,
                     struct error err);

/* Any thread, at any time until the finish has been delivered, before the submit too; takes effect before
 * the next step, and the generation is delivered ABORTED (or whatever finish it had reached). */
void scheduler_abort(struct scheduler *scheduler, struct generation *generation);

/* A request with a room was refused before it was submitted: whoever is in the room is told, rather than
 * left to wait. A room that is open here already is another request's and is left alone. code: EINVAL:
 * the request is wrong, and is so at the other side, too; anything else: it is not wanted here. */
void scheduler_refuse_room(struct scheduler *scheduler, const struct handover *handover,
                           int code, const char *reason);

/* By name, "" for all: for /abort_request. Whatever begins with the name. */
void scheduler_abort_rid(struct scheduler *scheduler, const char *rid);

/* No more submits; what is there goes on to its end. */
void scheduler_drain(struct scheduler *scheduler);

/* Forgets the cached prefixes, if nothing is running or waiting now: true. Waits for the answer of
 * the scheduler's thread, a step at most; timeout_ns is for how long to wait for an idle moment. */
bool scheduler_flush_cache(struct scheduler *scheduler, uint64_t timeout_ns);

/* What happened to the request of that name. False: it is not known, or was long ago. Any thread. */
struct request_record; /* request_log.h */
bool scheduler_request(struct scheduler *scheduler, const char *rid,
                       struct request_record *out);

/* Where the scheduler stands: a copy that it publishes after each step. Any thread. */
struct scheduler_stats {
    uint32_t running, waiting, retracted_waiting;
    uint32_t waiting_uncached_tokens;
    struct page_counts pages;
    uint32_t tokens_per_page;
    uint32_t used_tokens;   /* held by generations, cached prefixes not counted */
    double generation_rate; /* tokens a second, of the last steps that had any */
    double cache_hit_rate;  /* of the prompts admitted lately: cached / all tokens */
    double new_token_ratio;
    uint64_t steps, prompt_tokens, cached_tokens, generated_tokens, requests, retractions,
        aborted, failed;
    uint64_t step_started_ns; /* 0: idle. A step that hangs is seen by it. */

    /* ---- hand-overs ---- */
    uint32_t bootstrapping, inflight;             /* prefill's queues */
    uint32_t preallocating, transferring, landed; /* decode's */
    uint32_t limbo; /* failed, and their pages not yet safe to use */
    uint64_t handovers, handovers_failed, handovers_declined, recomputed, kept_tokens;
    uint64_t given_up; /* steps that were begun again without those who were gone */
    double transfer_ms, transfer_mb, bootstrap_ms, alloc_ms; /* of a hand-over, lately */
    baton_counters transfers;                                /* of all ranks together */
};
void scheduler_stats(struct scheduler *scheduler, struct scheduler_stats *out);

#endif
