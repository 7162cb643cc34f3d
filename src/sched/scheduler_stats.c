/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler tells about itself: collected and copied out by its thread after each step, under a
 * lock that is held for the copy only. */
#include "limbo.h"
#include "scheduler_parts.h"

#define FADE 0.95 /* half of it is forgotten after 14 times */

static void fading_add(struct fading *sum, double part, double whole)
{
    sum->part = sum->part * FADE + part;
    sum->whole = sum->whole * FADE + whole;
}

static double fading_ratio(const struct fading *sum)
{
    return sum->whole > 0 ? sum->part / sum->whole : 0;
}

void scheduler_count_step(struct scheduler *scheduler, uint32_t tokens, uint64_t ns)
{
    struct scheduler_counts *counts = &scheduler->counts;
    const struct planner *planner = &scheduler->planner;
    counts->steps++;
    counts->generated_tokens += tokens;
    if (tokens)
        fading_add(&counts->generation, tokens, (double)ns / 1e9);
    if (planner->prompt_tokens > counts->prompts_seen)
        fading_add(&counts->hits, (double)(planner->cached_tokens - counts->cached_seen),
                   (double)(planner->prompt_tokens - counts->prompts_seen));
    counts->prompts_seen = planner->prompt_tokens;
    counts->cached_seen = planner->cached_tokens;
}

void scheduler_count_transfer(struct scheduler *scheduler, const baton_timeline *timeline,
                              uint64_t waited_ns)
{
    struct scheduler_counts *counts = &scheduler->counts;
    uint64_t began = timeline->first_send_ns;
    fading_add(&counts->transfers,
               began && timeline->ended_ns > began ? (double)(timeline->ended_ns - began) / 1e6
                                                   : 0,
               1);
    fading_add(&counts->megabytes, (double)timeline->bytes / 1e6, 1);
    fading_add(&counts->bootstraps, (double)timeline->bootstrapped_ns / 1e6, 1);
    fading_add(&counts->allocations, (double)waited_ns / 1e6, 1);
}

void scheduler_publish(struct scheduler *scheduler)
{
    const struct planner *planner = &scheduler->planner;
    const struct scheduler_counts *counts = &scheduler->counts;
    const struct page_counts *pages = &scheduler->memory.books.pool->counts;
    struct scheduler_stats stats = {
        .running = planner->active_count,
        .waiting = wait_queue_count(&planner->waiting),
        .retracted_waiting = planner->waiting.retracted.count,
        .waiting_uncached_tokens = (uint32_t)planner->waiting.uncached,
        .pages = *pages,
        .tokens_per_page = scheduler->options.tokens_per_page,
        .used_tokens = (pages->used + pages->locked) * scheduler->options.tokens_per_page,
        .generation_rate = fading_ratio(&counts->generation),
        .cache_hit_rate = fading_ratio(&counts->hits),
        .new_token_ratio = planner->ratio.now,
        .steps = counts->steps,
        .prompt_tokens = planner->prompt_tokens,
        .cached_tokens = planner->cached_tokens,
        .generated_tokens = counts->generated_tokens,
        .requests = counts->requests,
        .retractions = planner->retractions,
        .aborted = counts->aborted,
        .failed = counts->failed,
        .bootstrapping = scheduler->handing[PHASE_BOOTSTRAP],
        .inflight = scheduler->handing[PHASE_INFLIGHT],
        .preallocating = scheduler->handing[PHASE_PREALLOC],
        .transferring = scheduler->handing[PHASE_TRANSFER],
        .handovers = counts->handovers,
        .handovers_failed = counts->handovers_failed,
        .handovers_declined = counts->handovers_declined,
        .recomputed = counts->recomputed,
        .kept_tokens = counts->kept_tokens,
        .given_up = counts->given_up,
        .transfer_ms = fading_ratio(&counts->transfers),
        .transfer_mb = fading_ratio(&counts->megabytes),
        .bootstrap_ms = fading_ratio(&counts->bootstraps),
        .alloc_ms = fading_ratio(&counts->allocations),
    };
    for (struct generation_state *state = scheduler->landed_first; state; state = state->next)
        stats.landed++;
    for (struct limbo *limbo = scheduler->limbo; limbo; limbo = limbo->next)
        stats.limbo++;
    if (scheduler->group.ranks)
        rank_group_counters(&scheduler->group, &stats.transfers);
    pthread_mutex_lock(&scheduler->lock);
    scheduler->published = stats;
    pthread_mutex_unlock(&scheduler->lock);
}

void scheduler_stats(struct scheduler *scheduler, struct scheduler_stats *out)
{
    /* First, so that idle means that the rest is as of the last step. */
    uint64_t started = atomic_load_explicit(&scheduler->step_started_ns, memory_order_acquire);
    pthread_mutex_lock(&scheduler->lock);
    *out = scheduler->published;
    pthread_mutex_unlock(&scheduler->lock);
    out->step_started_ns = started;
}
