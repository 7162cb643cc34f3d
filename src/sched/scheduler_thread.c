/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's thread: it reads the inbox, looks after aborts and deadlines, has the planner plan a
 * step and the stepper compute it, and hands out what came of it. With nothing to do it sleeps on the bell
 * and uses no processor time.
 *
 *   loop:  inbox -> aborts, deadlines -> flushes -> plan -> compute -> tokens -> publish
 */
#include "handing_over.h"

#include "base/clock.h"
#include "base/log.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 1000

/* ---- the end of a generation ---------------------------------------------------------------- */

/* Gives back what it holds; what somebody may still touch goes to limbo. */
static void leave(struct scheduler *scheduler, struct generation_state *state, bool keep,
                  const char *reason)
{
    struct kv_books *books = &scheduler->memory.books;
    bool stays = handover_end(scheduler, state, reason);
    switch (state->phase) {
    case PHASE_WAITING:
    case PHASE_PREFILL:
    case PHASE_RUNNING: planner_remove(&scheduler->planner, state, keep && stays); break;
    default:
        decode_landed_remove(scheduler, state);
        if (keep && stays)
            kv_hold_share(books, &state->hold, state->generation->key, state->tokens,
                          state->computed);
        kv_hold_release(books, &state->hold);
    }
}

/* Whatever it holds goes back first, because with the delivery it is its maker's again. */
void scheduler_finish(struct scheduler *scheduler, struct generation_state *state,
                      const struct token_choice *choice, const struct answer_finish *how)
{
    leave(scheduler, state, how->finish != GENERATION_FAILED,
          how->reason ? how->reason : "the request has ended");
    if (!state->admitted)
        atomic_fetch_sub_explicit(&scheduler->queued, 1, memory_order_relaxed);
    if (choice && state->generated == 1)
        request_log_mark(&scheduler->log, state->log_number, MOMENT_FIRST_TOKEN);
    request_log_finish(&scheduler->log, state->log_number, how->finish, how->reason,
                       state->cached_tokens, state->generated);
    scheduler->counts.aborted += how->finish == GENERATION_ABORTED;
    scheduler->counts.failed += how->finish == GENERATION_FAILED;
    state->generation->state = NULL;
    answer_deliver(state, choice, &scheduler->text, how);
    generation_state_close(state);
}

void scheduler_finish_without_token(struct scheduler *scheduler, struct generation_state *state,
                                    enum generation_finish kind, int error, const char *reason)
{
    struct answer_finish how = ANSWER_GOES_ON;
    how.finish = kind;
    how.error = error;
    how.reason = reason;
    scheduler->text.length = 0;
    /* Without memory the rest of the text is lost, but not the end. */
    if (answer_flush(state, &scheduler->text))
        scheduler->text.length = 0;
    scheduler_finish(scheduler, state, NULL, &how);
}

void scheduler_fail(struct scheduler *scheduler, struct generation_state *state, int error,
                    const char *reason)
{
    LOG_WARNING(sched, "rid %s failed: %s", state->generation->rid, reason);
    scheduler_finish_without_token(scheduler, state, GENERATION_FAILED, error, reason);
}

/* ---- everybody inside ----------------------------------------------------------------------- */

typedef bool state_test(struct scheduler *scheduler, struct generation_state *state,
                        const void *context);

/* Ends, with the reason, those of a list for which the test says so. */
static void abort_waiting(struct scheduler *scheduler, struct wait_list *list, state_test *test,
                          const void *context, int error, const char *reason)
{
    struct generation_state *next;
    for (struct generation_state *state = list->first; state; state = next) {
        next = state->next;
        if (test(scheduler, state, context))
            scheduler_finish_without_token(scheduler, state, GENERATION_ABORTED, error, reason);
    }
}

static void abort_handing(struct scheduler *scheduler, state_test *test, const void *context,
                          int error, const char *reason)
{
    struct generation_state *next;
    for (struct generation_state *state = scheduler->handing_first; state; state = next) {
        next = state->handing_next;
        if (test(scheduler, state, context))
            scheduler_finish_without_token(scheduler, state, GENERATION_ABORTED, error, reason);
    }
    for (struct generation_state *state = scheduler->landed_first; state; state = next) {
        next = state->next;
        if (test(scheduler, state, context))
            scheduler_finish_without_token(scheduler, state, GENERATION_ABORTED, error, reason);
    }
}

static void abort_those(struct scheduler *scheduler, state_test *test, const void *context,
                        int error, const char *reason)
{
    struct planner *planner = &scheduler->planner;
    abort_handing(scheduler, test, context, error, reason);
    abort_waiting(scheduler, &planner->waiting.retracted, test, context, error, reason);
    abort_waiting(scheduler, &planner->waiting.fresh, test, context, error, reason);
    for (uint32_t i = planner->active_count; i-- > 0;)
        if (test(scheduler, planner->active[i], context))
            scheduler_finish_without_token(scheduler, planner->active[i], GENERATION_ABORTED,
                                           error, reason);
}

static bool is_flagged(struct scheduler *scheduler, struct generation_state *state,
                       const void *context)
{
    (void)scheduler;
    (void)context;
    return atomic_load_explicit(&state->generation->abort, memory_order_relaxed);
}

static bool is_called(struct scheduler *scheduler, struct generation_state *state,
                      const void *context)
{
    (void)scheduler;
    const char *rid = context;
    return strncmp(state->generation->rid, rid, strlen(rid)) == 0;
}

static void expect_deadline(struct scheduler *scheduler, const struct generation_state *state)
{
    uint64_t deadline = state->generation->deadline_ns;
    if (deadline && deadline < scheduler->deadline_ns)
        scheduler->deadline_ns = deadline;
}

/* Of those that are not late the earliest deadline is noted. */
static bool is_late(struct scheduler *scheduler, struct generation_state *state,
                    const void *context)
{
    uint64_t now = *(const uint64_t *)context;
    if (state->generation->deadline_ns && state->generation->deadline_ns <= now)
        return true;
    expect_deadline(scheduler, state);
    return false;
}

static void end_aborted(struct scheduler *scheduler)
{
    if (atomic_exchange_explicit(&scheduler->aborts, false, memory_order_acquire))
        abort_those(scheduler, is_flagged, NULL, BATON_EABORTED, "the request was aborted");
}

static void end_late(struct scheduler *scheduler)
{
    uint64_t now = clock_now_ns();
    if (now < scheduler->deadline_ns)
        return;
    scheduler->deadline_ns = UINT64_MAX;
    abort_those(scheduler, is_late, &now, BATON_ETIMEOUT, "the deadline of the request passed");
}

/* ---- the inbox ------------------------------------------------------------------------------ */

static void take_message(struct scheduler *scheduler, struct message *message)
{
    switch (message->kind) {
    case MESSAGE_SUBMIT: {
        struct generation_state *state = (struct generation_state *)message;
        scheduler->counts.requests++;
        state->log_number = request_log_add(&scheduler->log, state->generation);
        expect_deadline(scheduler, state);
        if (is_flagged(scheduler, state, NULL)) /* its abort may have been looked for already */
            atomic_store_explicit(&scheduler->aborts, true, memory_order_relaxed);
        if (state->generation->handover.kind != HANDOVER_NONE)
            handover_begin(scheduler, state);
        else
            planner_add(&scheduler->planner, state);
        break;
    }
    case MESSAGE_ABORT_RID: {
        struct abort_message *abort = (struct abort_message *)message;
        abort_those(scheduler, is_called, abort->rid, BATON_EABORTED,
                    "the request was aborted");
        free(abort);
        break;
    }
    case MESSAGE_REFUSE_ROOM: {
        struct refusal_message *refusal = (struct refusal_message *)message;
        handover_refuse(scheduler, &refusal->handover, refusal->code, refusal->reason);
        free(refusal);
        break;
    }
    case MESSAGE_FLUSH_CACHE: {
        struct flush_message *flush = (struct flush_message *)message;
        flush->next = scheduler->flushes;
        scheduler->flushes = flush;
        break;
    }
    }
}

static void read_inbox(struct scheduler *scheduler)
{
    struct mpsc_node *node;
    bell_answer(&scheduler->bell);
    while ((node = mpsc_pop(&scheduler->inbox)))
        take_message(scheduler, (struct message *)node);
}

/* ---- flushes -------------------------------------------------------------------------------- */

/* The message lies on the stack of whoever waits for the answer: it is gone with it. */
static void answer_flush_message(struct scheduler *scheduler, struct flush_message *flush,
                                 bool flushed)
{
    pthread_mutex_lock(&scheduler->lock);
    flush->flushed = flushed;
    flush->done = true;
    pthread_cond_broadcast(&scheduler->answered);
    pthread_mutex_unlock(&scheduler->lock);
}

static void flush_or_refuse(struct scheduler *scheduler, bool closing)
{
    bool idle = planner_is_idle(&scheduler->planner) && !scheduler->handing_first &&
                !scheduler->landed_first;
    struct flush_message **at = &scheduler->flushes;
    uint64_t now = *at ? clock_now_ns() : 0;
    if (*at && idle && scheduler->memory.books.cache)
        prefix_cache_reset(scheduler->memory.books.cache);
    while (*at) {
        struct flush_message *flush = *at;
        if (idle || closing || flush->deadline_ns <= now) {
            *at = flush->next;
            answer_flush_message(scheduler, flush, idle);
        } else {
            at = &flush->next;
        }
    }
}

/* ---- a step --------------------------------------------------------------------------------- */

bool scheduler_accept(struct scheduler *scheduler, struct generation_state *state,
                      const struct token_choice *choice)
{
    struct answer_finish how;
    enum generation_phase phase = state->phase;
    scheduler->text.length = 0;
    if (answer_token(&scheduler->ends, state, choice->token, &scheduler->text, &how)) {
        scheduler_fail(scheduler, state, BATON_ENOMEM, "no memory for the text of the answer");
        return false;
    }
    planner_token(state, choice->token);
    if (phase == PHASE_LANDED)
        state->phase = phase; /* it has no place to run yet */
    if (how.finish != GENERATION_RUNNING) {
        scheduler_finish(scheduler, state, choice, &how);
        return false;
    }
    if (state->generated == 1)
        request_log_mark(&scheduler->log, state->log_number, MOMENT_FIRST_TOKEN);
    answer_deliver(state, choice, &scheduler->text, &how);
    return true;
}

/* Its next token is drawn. */
static void take_token(struct scheduler *scheduler, struct generation_state *state,
                       const struct token_choice *choice)
{
    if (state->room)
        prefill_token(scheduler, state, choice);
    else
        scheduler_accept(scheduler, state, choice);
}

static void take_result(struct scheduler *scheduler, const struct step_piece *piece,
                        const struct stepper_result *result)
{
    struct generation_state *state = piece->state;
    if (result->error) {
        scheduler_fail(scheduler, state, result->error, result->reason);
        return;
    }
    bool prompt = state->phase == PHASE_PREFILL;
    planner_computed(&scheduler->planner, piece);
    if (prompt && state->computed == state->token_count)
        request_log_computed(&scheduler->log, state->log_number,
                             state->room ? group_room_written(state->room) : 0);
    if (result->picked)
        take_token(scheduler, state, &result->choice);
    else if (state->computed == state->token_count) /* of whom no token was wanted */
        scheduler_finish_without_token(scheduler, state, GENERATION_LENGTH, BATON_OK, NULL);
    else
        prefill_computed(scheduler, state);
}

/* Until somebody rings, a room changes, or the earliest deadline passes. */
static void sleep_until_change(struct scheduler *scheduler)
{
    struct pollfd watched[1 + KV_RANKS_MAX] = {{.fd = scheduler->bell.fd, .events = POLLIN}};
    uint32_t count = 1 + rank_group_watch(&scheduler->group, watched + 1, KV_RANKS_MAX);
    uint64_t now = clock_now_ns();
    int timeout = scheduler->group.ranks ? TICK_MS : -1; /* peers want a sign of life */
    if (scheduler->deadline_ns != UINT64_MAX) {
        uint64_t left = scheduler->deadline_ns > now ? scheduler->deadline_ns - now : 0;
        if (timeout < 0 || left / NS_PER_MS < (uint64_t)timeout)
            timeout = (int)(left / NS_PER_MS) + 1;
    }
    scheduler_publish(scheduler);
    atomic_store_explicit(&scheduler->step_started_ns, 0, memory_order_release);
    poll(watched, count, timeout);
}

/* Nobody runs and nobody can be let in, which only pages that are lost to the pool can cause. */
static void fail_stuck(struct scheduler *scheduler)
{
    struct wait_queue *waiting = &scheduler->planner.waiting;
    struct generation_state *state =
        waiting->retracted.first ? waiting->retracted.first : waiting->fresh.first;
    struct sequence_load load = generation_state_load(state);
    char reason[160];
    snprintf(
        reason, sizeof(reason),
        "it needs %u pages of the KV cache; nothing runs, and still only %u of %u can be had",
        admission_need(&load, 1, scheduler->options.tokens_per_page),
        kv_books_available(&scheduler->memory.books),
        scheduler->memory.books.pool->counts.pages);
    scheduler_fail(scheduler, state, BATON_ELIMIT, reason);
}

static void log_retraction(const struct scheduler *scheduler, const struct step_plan *plan)
{
    const struct planner *planner = &scheduler->planner;
    if (plan->retracted)
        LOG_INFO(sched, "the kv cache is full: retracted %u, running %u, new token ratio %.3f",
                 plan->retracted, planner->active_count, planner->ratio.now);
}

/* So often a step may be begun again; then bad news wait for its end. */
#define GIVE_UPS_MAX 2u
/* Prompt tokens of a step that may take long. */
#define LONG_STEP_TOKENS 128u

/* Computes the plan, or what is left of it when those have left whose end came in the middle of it. The
 * pieces stay what they are: their pages may be named to the other side already. */
static void compute_plan(struct scheduler *scheduler, const struct step_plan *plan)
{
    uint32_t given_up = 0;
    while (plan->count) {
        bool guarded = scheduler->group.ranks && plan->prefill_tokens >= LONG_STEP_TOKENS &&
                       given_up < GIVE_UPS_MAX;
        if (guarded)
            step_guard_begin(&scheduler->guard);
        bool computed = stepper_run(&scheduler->stepper, plan);
        if (guarded)
            step_guard_end(&scheduler->guard);
        if (computed)
            return;
        given_up++;
        scheduler->counts.given_up++;
        end_aborted(scheduler);
        handover_advance(scheduler);
        planner_plan_rest(&scheduler->planner);
    }
}

static void run_step(struct scheduler *scheduler)
{
    uint64_t started = clock_now_ns();
    uint32_t tokens = 0;
    const struct step_plan *plan = planner_plan(&scheduler->planner);
    atomic_fetch_sub_explicit(&scheduler->queued, plan->admitted, memory_order_relaxed);
    if (plan->count == 0 && handover_pending(scheduler)) {
        sleep_until_change(scheduler);
        return;
    }
    if (plan->count == 0) {
        fail_stuck(scheduler);
        return;
    }
    log_retraction(scheduler, plan);
    for (uint32_t i = plan->decoding; i < plan->count; i++)
        request_log_mark(&scheduler->log, plan->pieces[i].state->log_number, MOMENT_ADMITTED);
    prefill_before_step(scheduler, plan);
    compute_plan(scheduler, plan);
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct stepper_result *result = &scheduler->stepper.results[i];
        tokens += result->picked;
        take_result(scheduler, &plan->pieces[i], result);
    }
    scheduler_count_step(scheduler, tokens, clock_now_ns() - started);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void fail_everybody(struct scheduler *scheduler)
{
    struct planner *planner = &scheduler->planner;
    const char *reason = "this worker is shutting down";
    while (scheduler->handing_first)
        scheduler_finish_without_token(scheduler, scheduler->handing_first, GENERATION_FAILED,
                                       BATON_ESTATE, reason);
    while (scheduler->landed_first)
        scheduler_finish_without_token(scheduler, scheduler->landed_first, GENERATION_FAILED,
                                       BATON_ESTATE, reason);
    while (planner->active_count)
        scheduler_finish_without_token(scheduler, planner->active[planner->active_count - 1],
                                       GENERATION_FAILED, BATON_ESTATE, reason);
    while (planner->waiting.retracted.first)
        scheduler_finish_without_token(scheduler, planner->waiting.retracted.first,
                                       GENERATION_FAILED, BATON_ESTATE, reason);
    while (planner->waiting.fresh.first)
        scheduler_finish_without_token(scheduler, planner->waiting.fresh.first,
                                       GENERATION_FAILED, BATON_ESTATE, reason);
}

void *scheduler_thread(void *context)
{
    struct scheduler *scheduler = context;
    pthread_setname_np(pthread_self(), "baton-sched");
    /* The bell is answered before anything is looked at, so that whoever rings later wakes us. */
    for (;;) {
        atomic_store_explicit(&scheduler->step_started_ns, clock_now_ns(),
                              memory_order_relaxed);
        read_inbox(scheduler);
        if (atomic_load_explicit(&scheduler->closing, memory_order_acquire))
            break;
        end_aborted(scheduler);
        end_late(scheduler);
        flush_or_refuse(scheduler, false);
        handover_advance(scheduler);
        if (planner_is_idle(&scheduler->planner)) {
            token_ratio_reset(&scheduler->planner.ratio);
            sleep_until_change(scheduler);
        } else {
            run_step(scheduler);
            scheduler_publish(scheduler);
        }
    }
    fail_everybody(scheduler);
    flush_or_refuse(scheduler, true);
    scheduler_publish(scheduler);
    return NULL;
}
