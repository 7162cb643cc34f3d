/* SPDX-License-Identifier: Apache-2.0 */
/* The decode side of hand-overs: gives pages to prompts that are computed elsewhere, and runs them when
 * they have landed. What fails on the way, or is hardly worth the way, is computed here. */
#include "handing_over.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A peer that has died is fenced within milliseconds: as long as this, pages with something in them
 * are waited for. */
#define FENCE_PATIENCE_MS 100u

/* Of a fenced room: what landed is put aside, to be copied back when its turn to be computed comes. A
 * prompt that waits holds no pages. */
static void keep_landed(struct scheduler *scheduler, struct generation_state *state,
                        uint32_t landed)
{
    uint32_t cacheable = generation_state_cacheable(state);
    uint32_t tokens = landed < cacheable ? landed : cacheable;
    if (tokens <= state->hold.cached * scheduler->memory.books.tokens_per_page)
        return;
    state->backup = kv_backup_save(&scheduler->planner.backups, state->hold.pages, tokens);
    if (state->backup)
        scheduler->counts.kept_tokens += tokens;
}

/* The prompt is computed here, like that of any other request, but for what landed of it. */
static void compute_here(struct scheduler *scheduler, struct generation_state *state,
                         uint32_t landed, const char *reason)
{
    if (landed && group_room_fenced(state->room))
        keep_landed(scheduler, state, landed);
    if (handover_end(scheduler, state, reason))
        kv_hold_release(&scheduler->memory.books, &state->hold);
    planner_add(&scheduler->planner, state);
}

void decode_begin(struct scheduler *scheduler, struct generation_state *state)
{
    uint32_t cached = 0;
    struct kv_books *books = &scheduler->memory.books;
    if (scheduler->transfer.fake ||
        strcmp(state->generation->handover.bootstrap, HANDOVER_FAKE) == 0)
        return; /* who asks for that wants the way, not the pages */
    if (books->cache)
        cached = prefix_cache_peek(books->cache, state->generation->key, state->tokens,
                                   state->generation->prompt_count);
    if (state->generation->prompt_count - cached >= scheduler->transfer.local_tokens)
        return;
    scheduler->counts.handovers_declined++;
    group_room_decline(state->room, "the prompt is short: decode computes it itself");
    compute_here(scheduler, state, 0, "declined");
}

/* ---- those that wait for a place ------------------------------------------------------------ */

static void landed_add(struct scheduler *scheduler, struct generation_state *state)
{
    state->next = NULL;
    state->previous = scheduler->landed_last;
    *(state->previous ? &state->previous->next : &scheduler->landed_first) = state;
    scheduler->landed_last = state;
    state->landed = true;
}

void decode_landed_remove(struct scheduler *scheduler, struct generation_state *state)
{
    if (!state->landed)
        return;
    state->landed = false;
    *(state->previous ? &state->previous->next : &scheduler->landed_first) = state->next;
    *(state->next ? &state->next->previous : &scheduler->landed_last) = state->previous;
    state->previous = state->next = NULL;
}

/* ---- what has come -------------------------------------------------------------------------- */

/* Something may have landed, and nothing says yet that its pages are ours again: a moment is worth it. */
static bool fence_is_awaited(struct scheduler *scheduler, struct generation_state *state)
{
    uint64_t now = clock_now_ns();
    uint32_t landed;
    if (state->phase != PHASE_TRANSFER || group_room_fenced(state->room) ||
        (group_room_landed(state->room, &landed) &&
         landed <= state->hold.cached * scheduler->memory.books.tokens_per_page))
        return false;
    if (!state->failed_ns)
        state->failed_ns = now;
    uint64_t until = state->failed_ns + FENCE_PATIENCE_MS * NS_PER_MS;
    if (until < scheduler->deadline_ns)
        scheduler->deadline_ns = until; /* to be awake then */
    return now < until;
}

/* Is there room for it without those that run being retracted? */
static bool may_compute(const struct scheduler *scheduler, const struct generation_state *state)
{
    const struct kv_books *books = &scheduler->memory.books;
    uint64_t need = pages_for(state->generation->prompt_count + 1, books->tokens_per_page);
    uint64_t own = group_room_fenced(state->room) ? state->hold.count - state->hold.cached : 0;
    return scheduler->transfer.fallback &&
           planner_reserved(&scheduler->planner) + need <= kv_books_available(books) + own;
}

static void room_failed(struct scheduler *scheduler, struct generation_state *state)
{
    char text[256], reason[320];
    uint32_t landed = 0;
    int code = group_room_failure(state->room, text, sizeof(text));
    group_room_abort(state->room, text); /* on those ranks that have not heard of it */
    if (scheduler->transfer.fallback && fence_is_awaited(scheduler, state))
        return;
    group_room_landed(state->room, &landed);
    scheduler->counts.handovers_failed++;
    if (may_compute(scheduler, state)) {
        LOG_WARNING(sched,
                    "rid %s room %llu: %s; the prompt is computed here, %u tokens landed",
                    state->generation->rid, (unsigned long long)state->room->id, text, landed);
        scheduler->counts.recomputed++;
        compute_here(scheduler, state, landed, text);
        return;
    }
    snprintf(reason, sizeof(reason), "the hand-over of room %llu failed: %s",
             (unsigned long long)state->room->id, text);
    scheduler_fail(scheduler, state, code, reason);
}

/* Everything is in its place. The first token goes to the client at once. */
static void room_landed(struct scheduler *scheduler, struct generation_state *state)
{
    char text[256];
    struct token_choice choice = {0};
    const struct handover_note *note = &scheduler->group.notes[state->room->note];
    baton_timeline timeline;
    int rc =
        handover_note_read(note, scheduler->limits.vocab_size, &choice, ERROR_BUFFER(text));
    if (rc && may_compute(scheduler, state)) {
        LOG_WARNING(sched, "rid %s room %llu: %s; it is drawn here", state->generation->rid,
                    (unsigned long long)state->room->id, text);
        scheduler->counts.recomputed++;
        compute_here(scheduler, state, state->token_count, text);
        return;
    }
    if (rc) {
        scheduler_fail(scheduler, state, rc, text);
        return;
    }
    uint32_t here = state->hold.cached * scheduler->memory.books.tokens_per_page;
    state->cached_tokens = note->cached_tokens > here ? note->cached_tokens : here;
    group_room_timeline(state->room, &timeline);
    request_log_transfer(&scheduler->log, state->log_number, state->began_ns, &timeline, "");
    scheduler_count_transfer(scheduler, &timeline, state->granted_ns - state->began_ns);
    handover_end(scheduler, state, NULL);
    scheduler->planner.prompt_tokens += state->token_count;
    scheduler->planner.cached_tokens += state->cached_tokens;
    state->phase = PHASE_LANDED;
    state->computed = state->token_count;
    state->admitted = true;
    kv_hold_share(&scheduler->memory.books, &state->hold, state->generation->key, state->tokens,
                  state->token_count);
    atomic_fetch_sub_explicit(&scheduler->queued, 1, memory_order_relaxed);
    if (state->limit == 0)
        scheduler_finish_without_token(scheduler, state, GENERATION_LENGTH, BATON_OK, NULL);
    else if (scheduler_accept(scheduler, state, &choice))
        landed_add(scheduler, state);
}

void decode_advance(struct scheduler *scheduler, struct generation_state *state, int room)
{
    if (room == BATON_FAILED)
        room_failed(scheduler, state);
    else if (room == BATON_SUCCESS && state->phase == PHASE_TRANSFER)
        room_landed(scheduler, state);
}

/* ---- places and pages ----------------------------------------------------------------------- */

void decode_run(struct scheduler *scheduler)
{
    struct planner *planner = &scheduler->planner;
    while (scheduler->landed_first && planner->active_count < planner->limits.max_running) {
        struct generation_state *state = scheduler->landed_first;
        decode_landed_remove(scheduler, state);
        planner_adopt(planner, state);
    }
}

/* Pages that must be left: for those that run what they are expected to need, for those on their way a
 * first stretch. */
static uint64_t reserved_pages(const struct scheduler *scheduler)
{
    uint64_t reserved = planner_reserved(&scheduler->planner);
    uint32_t tokens = scheduler->transfer.reserved_tokens;
    uint32_t per_page = scheduler->memory.books.tokens_per_page;
    for (const struct generation_state *state = scheduler->handing_first; state;
         state = state->handing_next) {
        struct sequence_load load = generation_state_load(state);
        if (state->phase == PHASE_TRANSFER)
            reserved += admission_need_soon(&load, tokens, per_page);
    }
    for (const struct generation_state *state = scheduler->landed_first; state;
         state = state->next) {
        struct sequence_load load = generation_state_load(state);
        reserved += admission_need_soon(&load, tokens, per_page);
    }
    return reserved;
}

/* Pages of those that run, which could be had by retracting them all but one. */
static uint64_t retractable_pages(const struct planner *planner)
{
    uint64_t pages = 0;
    for (uint32_t i = 1; i < planner->active_count; i++)
        pages += planner->active[i]->hold.count - planner->active[i]->hold.cached;
    return pages;
}

/* Two questions: is there room for what comes now, and is there for all that it may become, with those
 * that run out of the way if need be? Alone it always fits: submit saw to that. */
static bool fits(const struct scheduler *scheduler, const struct generation_state *state)
{
    const struct kv_books *books = &scheduler->memory.books;
    struct sequence_load load = generation_state_load(state);
    uint64_t available = kv_books_available(books), reserved = reserved_pages(scheduler);
    uint64_t now = admission_need_soon(&load, 1, books->tokens_per_page);
    uint64_t whole = admission_need(&load, 1, books->tokens_per_page);
    uint64_t retractable = retractable_pages(&scheduler->planner);
    uint64_t need =
        whole > retractable && whole - retractable > now ? whole - retractable : now;
    if (scheduler->planner.active_count == 0 && !scheduler->landed_first &&
        scheduler->handing[PHASE_TRANSFER] == 0)
        return now <= available;
    return reserved + need <= available;
}

/* Hands out the pages. False: not now. */
static bool grant(struct scheduler *scheduler, struct generation_state *state)
{
    struct kv_books *books = &scheduler->memory.books;
    uint32_t prompt = state->generation->prompt_count;
    kv_hold_match(books, &state->hold, state->generation->key, state->tokens, prompt);
    if (!fits(scheduler, state) ||
        !kv_hold_grow(books, &state->hold, pages_for(prompt, books->tokens_per_page))) {
        kv_hold_release(books, &state->hold);
        return false;
    }
    int32_t note = rank_group_take_note(&scheduler->group);
    uint32_t cached = state->hold.cached;
    state->granted_ns = clock_now_ns();
    state->phase = PHASE_TRANSFER;
    scheduler->handing[PHASE_PREALLOC]--;
    scheduler->handing[PHASE_TRANSFER]++;
    int rc =
        group_room_grant(state->room, state->hold.pages + cached, state->hold.count - cached,
                         cached * books->tokens_per_page, note);
    if (rc) /* it has failed already, or does now: that is seen when it is looked at */
        group_room_abort(state->room, "its pages could not be granted");
    return true;
}

/* In the order of the list; who does not fit may be passed, but not forever. */
void decode_grant(struct scheduler *scheduler)
{
    struct generation_state *next;
    uint32_t refused = 0, passes = OVERTAKES_MAX;
    if (!scheduler->handing[PHASE_PREALLOC] || scheduler->planner.waiting.retracted.count)
        return;
    for (struct generation_state *state = scheduler->handing_first;
         state && refused < SCAN_MAX && passes > 0; state = next) {
        next = state->handing_next;
        if (state->phase != PHASE_PREALLOC)
            continue;
        if (!scheduler->group.notes_free)
            return;
        if (grant(scheduler, state)) {
            passes -= refused > 0;
            for (struct generation_state *passed = state->handing_previous; passed && refused;
                 passed = passed->handing_previous)
                passed->overtaken += passed->phase == PHASE_PREALLOC;
            continue;
        }
        refused++;
        if (OVERTAKES_MAX - state->overtaken < passes)
            passes = OVERTAKES_MAX - state->overtaken;
    }
}
