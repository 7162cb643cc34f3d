/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill side of hand-overs: computes prompts and sends them. Pages go out as soon as they are
 * whole; the last ones with the first token, which is drawn here. Pages stay held until decode has said
 * that all of it arrived. */
#include "handing_over.h"

#include "base/clock.h"

#include <stdio.h>

/* So many tokens take long enough to send some of their layers before the last one is computed. */
#define LAYERWISE_TOKENS 256u

/* It is to be computed: from now on it is the planner's, too. */
static bool enter_queue(struct scheduler *scheduler, struct generation_state *state)
{
    uint32_t prompt = state->generation->prompt_count;
    int32_t note = rank_group_take_note(&scheduler->group);
    if (note < 0)
        return false; /* as many as can be on their way are; one will come back */
    int rc = group_room_announce(
        state->room, pages_for(prompt, scheduler->memory.books.tokens_per_page), prompt, note);
    if (rc) {
        scheduler_fail(scheduler, state, rc, "the hand-over could not be announced");
        return true;
    }
    planner_add(&scheduler->planner, state);
    return true;
}

void prefill_begin(struct scheduler *scheduler, struct generation_state *state)
{
    /* Nothing else to do: decode may grant while it is computed. */
    if (scheduler->transfer.optimistic && planner_is_idle(&scheduler->planner))
        enter_queue(scheduler, state);
}

static void room_failed(struct scheduler *scheduler, struct generation_state *state)
{
    char text[256], reason[320];
    int code = group_room_failure(state->room, text, sizeof(text));
    if (code == BATON_EDECLINED) {
        scheduler->counts.handovers_declined++;
        scheduler_finish_without_token(scheduler, state, GENERATION_LENGTH, BATON_OK, NULL);
        return;
    }
    scheduler->counts.handovers_failed++;
    snprintf(reason, sizeof(reason), "the hand-over of room %llu failed: %s",
             (unsigned long long)state->room->id, text);
    scheduler_fail(scheduler, state, code, reason);
}

/* Which way its chunks went, and why. */
static void chunks_describe(const struct generation_state *state, char *out, size_t size)
{
    if (!state->room->layerwise)
        snprintf(out, size, "whole chunks: layer-wise is off");
    else if (state->room->pages_by_layer)
        snprintf(out, size, "layer by layer, %u of %u pages", state->room->pages_by_layer,
                 state->hold.count);
    else
        snprintf(out, size, "whole chunks: none of %u tokens to compute", LAYERWISE_TOKENS);
}

static void arrived(struct scheduler *scheduler, struct generation_state *state)
{
    baton_timeline timeline;
    char chunks[64];
    group_room_timeline(state->room, &timeline);
    chunks_describe(state, chunks, sizeof(chunks));
    request_log_transfer(&scheduler->log, state->log_number, state->began_ns, &timeline,
                         chunks);
    scheduler_count_transfer(scheduler, &timeline, state->sent_ns - state->began_ns);
    scheduler_finish_without_token(scheduler, state, GENERATION_LENGTH, BATON_OK, NULL);
}

void prefill_advance(struct scheduler *scheduler, struct generation_state *state, int room)
{
    if (room == BATON_FAILED)
        room_failed(scheduler, state);
    else if (state->phase == PHASE_BOOTSTRAP && room >= BATON_WAITING_FOR_INPUT) {
        request_log_mark(&scheduler->log, state->log_number, MOMENT_GRANTED);
        enter_queue(scheduler, state);
    } else if (state->phase == PHASE_INFLIGHT && room == BATON_SUCCESS)
        arrived(scheduler, state);
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Pages up to `whole` have all layers. What the library refuses (a room that has failed meanwhile) is
 * seen when the room is looked at. */
static void send_whole(struct scheduler *scheduler, struct generation_state *state,
                       uint32_t whole)
{
    if (whole > state->pages_sent) {
        group_room_send(state->room, state->hold.pages + state->pages_sent,
                        whole - state->pages_sent);
        state->pages_sent = whole;
    }
    if (state->room->layerwise)
        for (uint32_t rank = 0; rank < scheduler->group.ranks; rank++)
            group_room_layers(state->room, rank, scheduler->group.layers);
}

static bool sends(const struct generation_state *state)
{
    return state->room && state->room->sends;
}

/* The pages that the piece completes are told to the library now, and layer by layer what is in them.
 * They must stay the same pages from now on. */
static void name_pages(struct scheduler *scheduler, const struct step_piece *piece)
{
    struct generation_state *state = piece->state;
    uint32_t end = state->computed + piece->tokens;
    uint32_t pages = end == state->token_count ? state->hold.count
                                               : end / scheduler->memory.books.tokens_per_page;
    if (pages == state->pages_sent ||
        group_room_send(state->room, state->hold.pages + state->pages_sent,
                        pages - state->pages_sent))
        return; /* it has failed: that is seen when it is looked at */
    state->room->pages_by_layer += pages - state->pages_sent;
    state->pages_sent = pages;
    state->pinned = true;
    layer_watch_add(&scheduler->layer_watch, state->room);
}

void prefill_before_step(struct scheduler *scheduler, const struct step_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        struct generation_state *state = plan->pieces[i].state;
        uint32_t whole = state->computed / scheduler->memory.books.tokens_per_page;
        if (sends(state) && whole > state->pages_sent)
            send_whole(scheduler, state, whole);
        if (sends(state) && state->room->layerwise &&
            plan->pieces[i].tokens >= LAYERWISE_TOKENS)
            name_pages(scheduler, &plan->pieces[i]);
    }
}

/* The last piece waits for the first token, which goes with it. */
void prefill_computed(struct scheduler *scheduler, struct generation_state *state)
{
    if (sends(state) && state->computed < state->token_count)
        send_whole(scheduler, state, state->computed / scheduler->memory.books.tokens_per_page);
}

void prefill_token(struct scheduler *scheduler, struct generation_state *state,
                   const struct token_choice *choice)
{
    handover_note_write(&scheduler->group.notes[state->room->note], choice,
                        state->cached_tokens);
    state->sent_ns = clock_now_ns();
    send_whole(scheduler, state, state->hold.count);
    planner_detach(&scheduler->planner, state);
    state->phase = PHASE_INFLIGHT;
}
