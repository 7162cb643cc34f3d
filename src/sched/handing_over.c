/* SPDX-License-Identifier: Apache-2.0 */
/* See handing_over.h. Here is what both sides have in common. */
#include "handing_over.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void list_add(struct scheduler *scheduler, struct generation_state *state)
{
    struct generation_state *after = scheduler->handing_last;
    while (after && after->generation->priority < state->generation->priority)
        after = after->handing_previous;
    state->handing_previous = after;
    state->handing_next = after ? after->handing_next : scheduler->handing_first;
    *(after ? &after->handing_next : &scheduler->handing_first) = state;
    *(state->handing_next ? &state->handing_next->handing_previous : &scheduler->handing_last) =
        state;
}

static void list_remove(struct scheduler *scheduler, struct generation_state *state)
{
    *(state->handing_previous ? &state->handing_previous->handing_next
                              : &scheduler->handing_first) = state->handing_next;
    *(state->handing_next ? &state->handing_next->handing_previous : &scheduler->handing_last) =
        state->handing_previous;
    state->handing_previous = state->handing_next = NULL;
}

static uint32_t deadline_ms(const struct generation *generation)
{
    uint64_t now = clock_now_ns();
    if (!generation->deadline_ns)
        return 0;
    return generation->deadline_ns > now
               ? (uint32_t)((generation->deadline_ns - now) / NS_PER_MS) + 1
               : 1;
}

/* How many are before a request that arrives at decode now. */
static uint32_t queue_position(struct scheduler *scheduler)
{
    return atomic_load_explicit(&scheduler->preallocating, memory_order_relaxed) +
           atomic_load_explicit(&scheduler->arriving, memory_order_relaxed);
}

static int room_open(struct scheduler *scheduler, const struct handover *handover,
                     uint32_t deadline, struct group_room **out, struct error err)
{
    const char *bootstrap = handover->bootstrap[0] ? handover->bootstrap : NULL;
    if (scheduler->transfer.fake)
        bootstrap = HANDOVER_FAKE;
    if (handover->kind == HANDOVER_SEND)
        return group_room_open_sender(&scheduler->group, handover->room, bootstrap, deadline,
                                      scheduler->transfer.layerwise, out, err);
    int rc = group_room_open_receiver(&scheduler->group, handover->room, bootstrap, deadline,
                                      queue_position(scheduler), out, err);
    /* The address is the request's: one that we may not call is the request's mistake. */
    return rc == BATON_EAUTH ? BATON_EINVAL : rc;
}

void handover_open(struct scheduler *scheduler, struct generation_state *state)
{
    const struct generation *generation = state->generation;
    snprintf(state->opening_text, sizeof(state->opening_text), "no memory for a hand-over");
    state->began_ns = clock_now_ns();
    state->limbo =
        limbo_open(pages_for(generation->prompt_count, scheduler->options.tokens_per_page));
    state->opening = state->limbo
                         ? room_open(scheduler, &generation->handover, deadline_ms(generation),
                                     &state->room, ERROR_BUFFER(state->opening_text))
                         : BATON_ENOMEM;
    atomic_fetch_add_explicit(&scheduler->arriving, 1, memory_order_relaxed);
}

void handover_begin(struct scheduler *scheduler, struct generation_state *state)
{
    bool sends = state->generation->handover.kind == HANDOVER_SEND;
    atomic_fetch_sub_explicit(&scheduler->arriving, 1, memory_order_relaxed);
    state->phase = sends ? PHASE_BOOTSTRAP : PHASE_PREALLOC;
    if (state->opening) {
        free(state->limbo);
        state->limbo = NULL;
        scheduler_fail(scheduler, state, state->opening, state->opening_text);
        return;
    }
    scheduler->counts.handovers++;
    scheduler->handing[state->phase]++;
    list_add(scheduler, state);
    if (sends)
        prefill_begin(scheduler, state);
    else
        decode_begin(scheduler, state);
}

void handover_refuse(struct scheduler *scheduler, const struct handover *handover, int code,
                     const char *reason)
{
    struct group_room *room;
    struct limbo *limbo = limbo_open(0);
    if (!limbo || room_open(scheduler, handover, 0, &room, ERROR_NONE)) {
        free(limbo);
        return;
    }
    if (code == BATON_EINVAL)
        group_room_refuse(room, reason);
    else
        group_room_abort(room, reason);
    limbo_enter_room(&scheduler->limbo, limbo, room);
}

bool handover_end(struct scheduler *scheduler, struct generation_state *state,
                  const char *reason)
{
    bool stays = true;
    if (!state->room)
        return true;
    list_remove(scheduler, state);
    if (group_room_state(state->room) != BATON_SUCCESS)
        group_room_abort(state->room, reason); /* where it has not ended */
    if (group_room_fenced(state->room)) {
        group_room_close(state->room);
        free(state->limbo);
        state->room = NULL;
        state->limbo = NULL;
        state->pinned = false;
    } else {
        limbo_enter(&scheduler->limbo, &scheduler->memory.books, state);
        stays = false;
    }
    return stays;
}

static void phases_count(struct scheduler *scheduler)
{
    memset(scheduler->handing, 0, sizeof(scheduler->handing));
    for (struct generation_state *state = scheduler->handing_first; state;
         state = state->handing_next)
        scheduler->handing[state->phase]++;
}

void handover_advance(struct scheduler *scheduler)
{
    struct generation_state *next;
    if (!scheduler->group.ranks)
        return;
    rank_group_answer(&scheduler->group);
    for (struct generation_state *state = scheduler->handing_first; state; state = next) {
        next = state->handing_next;
        int room = group_room_state(state->room);
        if (state->room->sends)
            prefill_advance(scheduler, state, room);
        else
            decode_advance(scheduler, state, room);
    }
    limbo_leave(&scheduler->limbo, &scheduler->memory.books);
    phases_count(scheduler);
    decode_run(scheduler);
    decode_grant(scheduler);
    atomic_store_explicit(&scheduler->preallocating, scheduler->handing[PHASE_PREALLOC],
                          memory_order_relaxed);
}
