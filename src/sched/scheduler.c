/* SPDX-License-Identifier: Apache-2.0 */
/* See scheduler.h. Here is what other threads call: opening and closing, and the messages that they leave
 * in the inbox. A message is pushed and the bell is rung; nothing here waits for the scheduler's
 * thread but flush_cache and close, and nothing here touches what that thread owns. */
#include "handing_over.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ------------------------------------------------------------------------- */

static int check_options(const struct scheduler_options *options, struct error err)
{
    if (!options->tokens_per_page || !options->max_running || !options->chunk_tokens)
        return error_set(
            err, BATON_EINVAL,
            "scheduler: %u tokens in a page, %u running, chunks of %u tokens; each "
            "must be 1 at least",
            options->tokens_per_page, options->max_running, options->chunk_tokens);
    if (!(options->conservativeness > 0))
        return error_set(err, BATON_EINVAL,
                         "scheduler: a conservativeness of %g; it must be more than 0",
                         (double)options->conservativeness);
    return BATON_OK;
}

static uint32_t context_of(const struct model_config *config,
                           const struct scheduler_options *options)
{
    uint32_t context = config->context_length;
    if (config->sliding_window && config->sliding_window < context)
        context = config->sliding_window;
    if (options->context_max && options->context_max < context)
        context = options->context_max;
    return context;
}

/* As many may be on their way as can run, and as many again. */
static int open_transfers(struct scheduler *scheduler, const struct transfer_options *options,
                          struct error err)
{
    scheduler->transfer = *options;
    /* Who decodes prompts of others had better not compute them again. */
    scheduler->planner.backups = (struct kv_backups){
        .memory = &scheduler->memory,
        .bytes_max = (uint64_t)scheduler->memory.books.pool->counts.pages *
                     scheduler->memory.layout.page_stride * scheduler->memory.rank_count};
    if (!scheduler->transfer.reserved_tokens)
        scheduler->transfer.reserved_tokens = 512;
    int rc = rank_group_open(&scheduler->memory, engine_config(scheduler->engine), options,
                             2 * scheduler->options.max_running, &scheduler->group, err);
    if (!rc)
        rc = step_guard_open(&scheduler->guard, scheduler, err);
    if (!rc && options->layerwise) {
        scheduler->stepper.watch = &scheduler->layer_watch;
        rc =
            layer_watch_open(&scheduler->layer_watch, scheduler->engine, scheduler->group.ranks,
                             scheduler->group.layers, scheduler->options.max_running, err);
    }
    return rc;
}

static int open_parts(struct scheduler *scheduler, struct error err)
{
    const struct scheduler_options *options = &scheduler->options;
    const struct planner_limits limits = {.max_running = options->max_running,
                                          .chunk_tokens = options->chunk_tokens,
                                          .rows = SCHEDULER_LOGITS,
                                          .conservativeness =
                                              (double)options->conservativeness};
    int rc = kv_memory_open(&scheduler->memory, scheduler->engine, options, err);
    if (!rc)
        rc = planner_open(&scheduler->planner, &limits, &scheduler->memory.books, err);
    if (!rc)
        rc = stepper_open(&scheduler->stepper, scheduler->engine, &scheduler->ends,
                          options->max_running, options->max_running + SCHEDULER_LOGITS, err);
    if (!rc && options->transfer)
        rc = open_transfers(scheduler, options->transfer, err);
    return rc;
}

static void set_limits(struct scheduler *scheduler)
{
    const struct model_config *config = engine_config(scheduler->engine);
    const struct kv_books *books = &scheduler->memory.books;
    uint64_t capacity = (uint64_t)books->pool->counts.pages * books->tokens_per_page;
    scheduler->limits = (struct generation_limits){
        .context = context_of(config, &scheduler->options),
        .capacity = capacity < UINT32_MAX ? (uint32_t)capacity : UINT32_MAX,
        .vocab_size = config->vocab_size,
    };
    answer_ends_init(&scheduler->ends, scheduler->tokenizer, config);
}

static int start_thread(struct scheduler *scheduler, struct error err)
{
    if (bell_open(&scheduler->bell))
        return error_set(err, BATON_ESYSTEM, "scheduler: no eventfd: %s", strerror(errno));
    sigset_t all, before;
    sigfillset(&all); /* signals are for the threads that expect them */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int problem = pthread_create(&scheduler->thread, NULL, scheduler_thread, scheduler);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (problem) {
        bell_close(&scheduler->bell);
        return error_set(err, BATON_ESYSTEM, "scheduler: no thread: %s", strerror(problem));
    }
    return BATON_OK;
}

/* The library stops touching the pages when its managers are closed: then limbo is empty. */
static void close_transfers(struct scheduler *scheduler)
{
    layer_watch_close(&scheduler->layer_watch);
    step_guard_close(&scheduler->guard);
    limbo_abandon(&scheduler->limbo, &scheduler->memory.books);
    rank_group_close(&scheduler->group);
}

static void close_parts(struct scheduler *scheduler)
{
    close_transfers(scheduler);
    byte_buffer_free(&scheduler->text);
    stepper_close(&scheduler->stepper);
    planner_close(&scheduler->planner);
    kv_memory_close(&scheduler->memory);
    request_log_close(&scheduler->log);
    pthread_cond_destroy(&scheduler->answered);
    pthread_mutex_destroy(&scheduler->lock);
    free(scheduler);
}

int scheduler_open(struct engine *engine, const struct tokenizer *tokenizer,
                   const struct scheduler_options *options, struct scheduler **out,
                   struct error err)
{
    int rc = check_options(options, err);
    if (rc)
        return rc;
    struct scheduler *scheduler = calloc(1, sizeof(*scheduler));
    if (!scheduler)
        return error_set(err, BATON_ENOMEM, "no memory for a scheduler");
    scheduler->engine = engine;
    scheduler->tokenizer = tokenizer;
    scheduler->options = *options;
    scheduler->deadline_ns = UINT64_MAX;
    mpsc_init(&scheduler->inbox);
    pthread_mutex_init(&scheduler->lock, NULL);
    pthread_cond_init(&scheduler->answered, NULL);
    rc = request_log_open(&scheduler->log)
             ? error_set(err, BATON_ENOMEM, "no memory for a log of requests")
             : open_parts(scheduler, err);
    if (!rc) {
        set_limits(scheduler);
        scheduler_publish(scheduler);
        rc = start_thread(scheduler, err);
    }
    if (rc) {
        close_parts(scheduler);
        return rc;
    }
    *out = scheduler;
    return BATON_OK;
}

void scheduler_close(struct scheduler *scheduler)
{
    if (!scheduler)
        return;
    atomic_store_explicit(&scheduler->closing, true, memory_order_release);
    bell_ring(&scheduler->bell);
    pthread_join(scheduler->thread, NULL);
    bell_close(&scheduler->bell);
    close_parts(scheduler);
}

uint32_t scheduler_context(const struct scheduler *scheduler)
{
    const struct generation_limits *limits = &scheduler->limits;
    return limits->context < limits->capacity ? limits->context : limits->capacity;
}

uint32_t scheduler_capacity(const struct scheduler *scheduler)
{
    return scheduler->limits.capacity;
}

/* ---- messages ------------------------------------------------------------------------------- */

static void leave_message(struct scheduler *scheduler, struct message *message)
{
    mpsc_push(&scheduler->inbox, &message->node);
    bell_ring(&scheduler->bell);
}

static bool is_open(const struct scheduler *scheduler)
{
    return !atomic_load_explicit(&scheduler->draining, memory_order_acquire) &&
           !atomic_load_explicit(&scheduler->closing, memory_order_acquire);
}

static int take_place(struct scheduler *scheduler, struct error err)
{
    uint32_t before = atomic_fetch_add_explicit(&scheduler->queued, 1, memory_order_relaxed);
    if (before < scheduler->options.max_queued)
        return BATON_OK;
    atomic_fetch_sub_explicit(&scheduler->queued, 1, memory_order_relaxed);
    return error_set(err, BATON_ELIMIT,
                     "%u requests are waiting already, as many as may; try later",
                     scheduler->options.max_queued);
}

int scheduler_submit(struct scheduler *scheduler, struct generation *generation,
                     struct error err)
{
    if (!is_open(scheduler))
        return error_set(err, BATON_ESTATE,
                         "this worker takes no more requests; it is shutting "
                         "down");
    int rc = generation_check(generation, &scheduler->limits, err);
    if (rc)
        return rc;
    if (generation->handover.kind != HANDOVER_NONE && !scheduler->group.ranks)
        return error_set(err, BATON_EINVAL, "this worker takes no part in hand-overs");
    rc = take_place(scheduler, err);
    if (rc)
        return rc;
    struct generation_state *state;
    /* Whoever sends a prompt draws its first token, and no other. */
    uint32_t limit = generation->handover.kind == HANDOVER_SEND
                         ? 1
                         : generation_limit(generation, &scheduler->limits);
    rc = generation_state_open(generation, scheduler->tokenizer, limit,
                               scheduler->options.tokens_per_page, &state, err);
    if (rc) {
        atomic_fetch_sub_explicit(&scheduler->queued, 1, memory_order_relaxed);
        return rc;
    }
    generation->state = state;
    if (generation->handover.kind != HANDOVER_NONE)
        handover_open(scheduler, state);
    leave_message(scheduler, &state->message);
    return BATON_OK;
}

void scheduler_abort(struct scheduler *scheduler, struct generation *generation)
{
    atomic_store_explicit(&generation->abort, true, memory_order_relaxed);
    atomic_store_explicit(&scheduler->aborts, true, memory_order_release);
    bell_ring(&scheduler->bell);
}

void scheduler_abort_rid(struct scheduler *scheduler, const char *rid)
{
    struct abort_message *message = calloc(1, sizeof(*message));
    if (!message) {
        LOG_ERROR(sched, "no memory to abort rid %s", rid);
        return;
    }
    message->message.kind = MESSAGE_ABORT_RID;
    snprintf(message->rid, sizeof(message->rid), "%s", rid);
    leave_message(scheduler, &message->message);
}

void scheduler_refuse_room(struct scheduler *scheduler, const struct handover *handover,
                           int code, const char *reason)
{
    struct refusal_message *message =
        scheduler->group.ranks ? calloc(1, sizeof(*message)) : NULL;
    if (!message)
        return; /* then the other side waits until it has waited long enough */
    message->message.kind = MESSAGE_REFUSE_ROOM;
    message->handover = *handover;
    message->code = code;
    snprintf(message->reason, sizeof(message->reason),
             "the %s side refused the request: %.200s",
             handover->kind == HANDOVER_SEND ? "prefill" : "decode", reason);
    leave_message(scheduler, &message->message);
}

void scheduler_drain(struct scheduler *scheduler)
{
    atomic_store_explicit(&scheduler->draining, true, memory_order_release);
}

bool scheduler_flush_cache(struct scheduler *scheduler, uint64_t timeout_ns)
{
    uint64_t now = clock_now_ns();
    struct flush_message flush = {
        .message = {.kind = MESSAGE_FLUSH_CACHE},
        .deadline_ns = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX};
    leave_message(scheduler, &flush.message);
    pthread_mutex_lock(&scheduler->lock);
    while (!flush.done)
        pthread_cond_wait(&scheduler->answered, &scheduler->lock);
    pthread_mutex_unlock(&scheduler->lock);
    return flush.flushed;
}

bool scheduler_request(struct scheduler *scheduler, const char *rid, struct request_record *out)
{
    return request_log_find(&scheduler->log, rid, out);
}
