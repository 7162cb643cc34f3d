/* SPDX-License-Identifier: Apache-2.0 */
/* Landing: what COMMIT and AUX say, what came, and whether that is all.
 *
 * The receiver decides. What COMMIT claims is compared with what the plan for its own pages demands,
 * with what its workers counted (tcp) or read (cma), and, where asked for, with a sum over the
 * bytes: a sender that stops short, whatever the reason, cannot make a room succeed. Then LANDED is
 * told to all legs at once. Link thread only. */
#include "link.h"
#include "manager.h"
#include "room.h"
#include "topology.h"

#include <stdlib.h>
#include <string.h>

static struct leg *receiver_leg(struct link *link, uint64_t id, uint32_t ticket)
{
    struct room *room = manager_room_find(link->manager, id, ROOM_LIVE_RECEIVER);
    bool live = room && room->grant_ticket == ticket && room->granted && !room_ended(room);
    struct leg *leg = live ? room_leg_on(room, link) : NULL;
    if (!leg)
        atomic_fetch_add(&link->manager->frames_stale, 1); /* the room has ended here */
    return leg;
}

/* Which leg a ticket means, as long as the room lives. Legs of a granted room stay until every
 * worker has answered the fence, and the caller is one of them. */
struct leg *leg_of_ticket(struct manager *manager, uint64_t session, uint32_t ticket)
{
    struct room *room = manager_room_by_ticket(manager, ticket);
    struct leg *leg = room ? room->legs : NULL;
    while (leg && leg->session != session)
        leg = leg->next;
    return leg;
}

void leg_count_landed(struct leg *leg, uint32_t rail, uint64_t amount)
{
    /* Release: who reads the count (and then tells the caller) sees the bytes. */
    atomic_fetch_add_explicit(&leg->arrived[rail], amount, memory_order_release);
    runtime_post(leg->room->manager->runtime, &leg->room->job);
}

/* cma: the lanes run here, from what COMMIT said is ready. */
static int leg_start_reading(struct leg *leg, struct error err)
{
    struct room *room = leg->room;
    struct manager *manager = room->manager;
    const struct wire_register *theirs = &leg->peer->memory;
    struct copy *copy = &leg->copy;
    leg->pages = calloc((size_t)leg->source_total + 1, sizeof(int32_t));
    if (!leg->pages)
        return error_set(err, BATON_ENOMEM, "out of memory for the source's page list");
    copy->manager = manager;
    copy->room = room;
    copy->endpoint = leg->endpoint;
    copy->ops = leg->endpoint->ops;
    copy->ticket = leg->ticket;
    copy->watermark = &leg->source_watermark;
    copy->tokens = leg->source_tokens ? leg->source_first_token + leg->source_tokens : 0;
    copy->notify = &room->job;
    copy->regions[0] = (struct copy_region){
        .src = &theirs->regions[0].layout,
        .dst = &manager->regions[0].layout,
        .src_pages = leg->pages,
        .dst_pages = room->pages,
        .src_count = leg->source_total,
        .dst_count = room->page_capacity,
        .src_first_token = leg->source_first_token,
        .dst_first_token = room->prefix_len,
    };
    copy->region_count = 1;
    leg->page_count = leg->source_total;
    leg->started = true;
    return copy_start(copy);
}

/* Which state pages the sender means, one list per state that we granted, in our order. */
static int leg_take_source_states(struct leg *leg, const struct wire_commit *commit,
                                  struct error err)
{
    struct room *room = leg->room;
    struct manager *manager = room->manager;
    const struct wire_register *theirs = &leg->peer->memory;
    for (uint32_t i = 0; i < room->state_count; i++) {
        const struct region *mine = &manager->regions[room->states[i].region];
        const struct wire_state_pages *from = NULL;
        for (uint32_t k = 0; k < commit->state_count; k++)
            if (commit->states[k].region < theirs->region_count &&
                strcmp(theirs->regions[commit->states[k].region].name, mine->name) == 0)
                from = &commit->states[k];
        if (!from)
            return error_set(err, BATON_EINVAL,
                             "decode granted pages of '%s', and none were sent", mine->name);
        struct state_list *list = &leg->states[leg->state_count];
        list->pages = malloc(((size_t)from->pages.count + 1) * sizeof(int32_t));
        if (!list->pages)
            return error_set(err, BATON_ENOMEM, "out of memory for a page list");
        leg->state_count++;
        list->region = from->region;
        list->first_token = from->first_token;
        list->count = from->pages.count;
        wire_pages_copy(from->pages, list->pages);
    }
    return BATON_OK;
}

/* cma: the lanes take them with the last chunk. */
static void leg_read_states(struct leg *leg)
{
    struct room *room = leg->room;
    struct copy *copy = &leg->copy;
    for (uint32_t i = 0; i < leg->state_count; i++) {
        const struct state_list *from = &leg->states[i], *to = &room->states[i];
        copy->regions[copy->region_count++] = (struct copy_region){
            .region = to->region,
            .src = &leg->peer->memory.regions[from->region].layout,
            .dst = &room->manager->regions[to->region].layout,
            .src_pages = from->pages,
            .dst_pages = to->pages,
            .src_count = from->count,
            .dst_count = to->count,
            .src_first_token = from->first_token,
            .dst_first_token = to->first_token,
        };
    }
}

/* A reading receiver takes the new source pages and lets its lanes go on. */
static int leg_read_on(struct leg *leg, const struct wire_commit *commit, struct error err)
{
    struct watermark released = watermark_unpack(commit->watermark);
    if (!leg->started) {
        int code = leg_start_reading(leg, err);
        if (code != BATON_OK)
            return code;
    }
    if (commit->pages.count > leg->page_count ||
        commit->page_offset > leg->page_count - commit->pages.count ||
        released.partial > commit->page_offset + commit->pages.count ||
        released.complete > released.partial)
        return error_set(err, BATON_EPROTOCOL, "COMMIT releases pages that it does not name");
    wire_pages_copy(commit->pages, leg->pages + commit->page_offset);
    if (commit->flags & WIRE_COMMIT_LAST)
        leg_read_states(leg);
    atomic_store_explicit(&leg->source_watermark, commit->watermark, memory_order_release);
    copy_wake(&leg->copy);
    return BATON_OK;
}

/* ---- how far a leg has come, should the room fail ---- */

/* Has come what the last COMMIT counted? A rail that proves only the last one (immediates) does not
 * say. */
static bool leg_has_come(const struct leg *leg)
{
    uint32_t capabilities = leg->endpoint->ops->capabilities;
    for (uint32_t i = 0; capabilities & BACKEND_COUNTED && i < leg->expected_lanes; i++) {
        uint64_t due =
            capabilities & BACKEND_STREAMS ? leg->expected[i].bytes : leg->expected[i].landings;
        if ((!due && leg->expected[i].bytes) ||
            atomic_load_explicit(&leg->arrived[i], memory_order_acquire) < due)
            return false;
    }
    return !(capabilities & BACKEND_GET) || copy_done(&leg->copy, leg->committed);
}

static void leg_note_arrival(struct leg *leg)
{
    if (leg->dummy || leg->arrival.watermark == leg->committed || !leg_has_come(leg))
        return;
    leg->arrival = (struct leg_arrival){.watermark = leg->committed, .sum = leg->expected_sum};
    for (uint32_t i = 0; i < leg->expected_lanes; i++)
        leg->arrival.bytes += leg->expected[i].bytes;
    for (uint32_t i = 0; i < leg->copy.lane_count; i++)
        leg->arrival.bytes += atomic_load(&leg->copy.lanes[i].bytes);
}

void receiver_on_commit(struct link *link, const struct wire_commit *commit)
{
    struct leg *leg = receiver_leg(link, commit->room, commit->ticket);
    char why[WIRE_TEXT_MAX];
    if (!leg)
        return;
    struct room *room = leg->room;
    /* A sequence cannot have more pages than the sender's region: checked before anything is sized by
     * it. */
    bool absurd = commit->total_pages > leg->peer->memory.regions[0].layout.pages;
    if (leg->last_seen || leg->dummy || absurd || !(commit->flags & WIRE_COMMIT_SOURCE)) {
        atomic_fetch_add(&link->manager->frames_bad, 1);
        link_close(link, BATON_EPROTOCOL, "COMMIT out of place for room %llu",
                   (unsigned long long)commit->room);
        return;
    }
    room_time(room, &room->timeline.first_send_ns);
    leg_note_arrival(leg); /* of the one before it */
    leg->source_total = commit->total_pages;
    leg->source_first_token = commit->first_token;
    leg->source_tokens = commit->tokens;
    memcpy(leg->expected, commit->lanes, sizeof(leg->expected));
    leg->expected_lanes = commit->lane_count;
    leg->expected_aux = commit->aux_bytes;
    leg->expected_sum = commit->sum;
    leg->last_seen = commit->flags & WIRE_COMMIT_LAST;
    leg->committed = commit->watermark;
    int code =
        leg->last_seen ? leg_take_source_states(leg, commit, ERROR_BUFFER(why)) : BATON_OK;
    if (code == BATON_OK && leg->endpoint->ops->capabilities & BACKEND_GET)
        code = leg_read_on(leg, commit, ERROR_BUFFER(why));
    if (code != BATON_OK) {
        room_fail(room, code, "%s", why);
        return;
    }
    room_advance(room, room->generation, BATON_TRANSFERRING);
    receiver_progress(room);
}

void receiver_on_aux(struct link *link, const struct wire_aux *aux)
{
    struct manager *manager = link->manager;
    struct leg *leg = receiver_leg(link, aux->room, aux->ticket);
    if (!leg)
        return;
    if (leg->aux_slot < 0 || aux->offset > manager->aux_slot_bytes ||
        aux->length > manager->aux_slot_bytes - aux->offset) {
        atomic_fetch_add(&manager->frames_bad, 1);
        link_close(link, BATON_EPROTOCOL, "AUX outside the granted slot of room %llu",
                   (unsigned long long)aux->room);
        return;
    }
    memcpy(manager->aux_address + (uint64_t)leg->aux_slot * manager->aux_slot_bytes +
               aux->offset,
           aux->bytes, aux->length);
    leg->received_aux += aux->length;
}

/* One region of a leg as a plan: 0 is the KV cache, the others the states in the order of the room.
 * The destination of a plan does not depend on which pages the source used, so any will do. */
static struct plan_input leg_region_plan(const struct leg *leg, uint32_t index,
                                         const int32_t *any)
{
    const struct room *room = leg->room;
    const struct manager *manager = room->manager;
    const struct wire_register *theirs = &leg->peer->memory;
    struct plan_input input = {.page_begin = 0};
    if (index == 0) {
        input.src = &theirs->regions[0].layout;
        input.dst = &manager->regions[0].layout;
        input.src_pages = any;
        input.dst_pages = room->pages;
        input.src_page_count = leg->source_total;
        input.dst_page_count = room->page_capacity;
        input.src_first_token = leg->source_first_token;
        input.dst_first_token = room->prefix_len;
        input.tokens = leg->source_tokens ? leg->source_first_token + leg->source_tokens : 0;
    } else {
        const struct state_list *from = &leg->states[index - 1], *to = &room->states[index - 1];
        input.src = &theirs->regions[from->region].layout;
        input.dst = &manager->regions[to->region].layout;
        input.src_pages = from->pages;
        input.dst_pages = to->pages;
        input.src_page_count = from->count;
        input.dst_page_count = to->count;
        input.src_first_token = from->first_token;
        input.dst_first_token = to->first_token;
    }
    input.page_end = input.src_page_count;
    input.layer_end = input.src->layers;
    return input;
}

/* Over our own bytes where the plan puts them. */
static uint64_t plan_sum(struct plan *plan, uint32_t region, const struct layout *layout)
{
    struct plan_run runs[COPY_BATCH_RUNS];
    uint64_t sum = 0;
    uint32_t count;
    while ((count = plan_next(plan, runs, COPY_BATCH_RUNS)))
        for (uint32_t i = 0; i < count; i++)
            sum +=
                copy_sum(region, runs[i].dst_base, runs[i].dst_offset,
                         (const uint8_t *)(uintptr_t)layout->bases[runs[i].dst_base].address +
                             runs[i].dst_offset,
                         runs[i].length);
    return sum;
}

static bool leg_verifies(const struct leg *leg)
{
    return leg->room->manager->config.verify || leg->peer->memory.verify;
}

/* What the plans for our pages demand of this leg, and the sum over what is there now: of the first
 * `regions` regions, and of the KV cache as far as the first `pages` source pages go. */
static int leg_expected_bytes(const struct leg *leg, uint32_t regions, uint32_t pages,
                              uint64_t *bytes, uint64_t *sum, struct error err)
{
    const struct room *room = leg->room;
    int code = BATON_OK;
    *bytes = *sum = 0;
    int32_t *any = calloc((size_t)leg->source_total + 1, sizeof(int32_t));
    if (!any)
        return error_set(err, BATON_ENOMEM, "out of memory for checking a COMMIT");
    for (uint32_t i = 0; code == BATON_OK && i < regions; i++) {
        struct plan_input input = leg_region_plan(leg, i, any);
        struct plan plan;
        if (i == 0)
            input.page_end = pages;
        if (input.dst_page_count == 0)
            continue;
        if (i == 0)
            code = plan_covers(&input, err);
        if (code == BATON_OK)
            code = plan_open(&plan, &input, err);
        if (code != BATON_OK)
            break;
        *bytes += plan_bytes(&plan);
        if (leg_verifies(leg))
            *sum += plan_sum(&plan, i ? room->states[i - 1].region : 0, input.dst);
    }
    free(any);
    return code;
}

/* Are this leg's bytes all here? Fails the room when they never will be. */
bool leg_landed(struct leg *leg)
{
    struct room *room = leg->room;
    if (leg->dummy)
        return true;
    leg_note_arrival(leg);
    if (!leg->last_seen)
        return false;
    if (leg->received_aux != leg->expected_aux) {
        room_fail(room, BATON_EPROTOCOL, "%u aux bytes came where COMMIT said %u",
                  leg->received_aux, leg->expected_aux);
        return false;
    }
    uint32_t capabilities = leg->endpoint->ops->capabilities;
    for (uint32_t i = 0; capabilities & BACKEND_COUNTED && i < leg->expected_lanes; i++) {
        uint64_t landed = atomic_load_explicit(&leg->arrived[i], memory_order_acquire);
        bool streams = capabilities & BACKEND_STREAMS;
        uint64_t due = streams ? leg->expected[i].bytes : leg->expected[i].landings;
        if (landed > due || (!due && leg->expected[i].bytes)) {
            room_fail(room, BATON_EPROTOCOL, "%s %u carried %llu %s where COMMIT said %llu",
                      streams ? "stream" : "rail", i, (unsigned long long)landed,
                      streams ? "bytes" : "immediates", (unsigned long long)due);
            return false;
        }
        if (landed < due)
            return false;
    }
    if (capabilities & BACKEND_GET &&
        !copy_done(&leg->copy, atomic_load(&leg->source_watermark)))
        return false;
    return true;
}

/* Before LANDED: what came is what the grant needed. */
static bool leg_complete(struct leg *leg)
{
    struct room *room = leg->room;
    uint64_t needed, sum, bytes = 0, operations = 0;
    char why[WIRE_TEXT_MAX];
    if (leg->dummy)
        return true;
    for (uint32_t i = 0; i < leg->expected_lanes; i++) {
        bytes += leg->expected[i].bytes;
        operations += leg->expected[i].operations;
    }
    for (uint32_t i = 0; i < leg->copy.lane_count; i++) {
        bytes += atomic_load(&leg->copy.lanes[i].bytes);
        operations += atomic_load(&leg->copy.lanes[i].operations);
        room->timeline.requests += atomic_load(&leg->copy.lanes[i].requests);
        room->timeline.doorbells += atomic_load(&leg->copy.lanes[i].doorbells);
    }
    room->timeline.bytes += bytes;
    room->timeline.operations += operations;
    int code = leg_expected_bytes(leg, room->state_count + 1, leg->source_total, &needed, &sum,
                                  ERROR_BUFFER(why));
    if (code != BATON_OK) {
        room_fail(room, code, "%s", why);
        return false;
    }
    if (bytes < needed) {
        room_fail(room, BATON_ECORRUPT, "%s committed %llu bytes, the grant needs %llu",
                  leg->peer->name, (unsigned long long)bytes, (unsigned long long)needed);
        return false;
    }
    if (leg_verifies(leg) && sum != leg->expected_sum) {
        room_fail(room, BATON_ECORRUPT,
                  "the sum over the received pages is not the one %s sent", leg->peer->name);
        return false;
    }
    return true;
}

void receiver_land(struct room *room)
{
    struct manager *manager = room->manager;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        if (!leg_complete(leg))
            return;
    room_time(room, &room->timeline.last_byte_ns);
    atomic_fetch_add(&manager->bytes_received, room->timeline.bytes);
    manager_outcome_add(manager, room->id, room->grant_ticket);
    /* The state first: once LANDED is out the sender may say SUCCESS, and then so must we. */
    struct wire_room landed = {.room = room->id, .ticket = room->grant_ticket};
    struct link *links[TOPOLOGY_LEGS_MAX];
    uint32_t count = 0;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        if (leg->link)
            links[count++] = leg->link;
    room->held = true;
    room_succeed(room);
    for (uint32_t i = 0; i < count; i++)
        if (links[i]->state == LINK_READY)
            LINK_SEND(links[i], room, WIRE_LANDED, &landed);
    room->held = false;
    room_settle(room);
}

/* ---- what a room that fails leaves behind ---- */

/* Where the tokens end that this leg has brought with all their layers; 0: not to be relied on. */
static uint64_t leg_landed_end(struct leg *leg)
{
    const struct room *room = leg->room;
    uint64_t needed, sum;
    leg_note_arrival(leg);
    const struct watermark mark = watermark_unpack(leg->arrival.watermark);
    if (!mark.complete) /* it may not even have said what it has; the prefix was here before */
        return room->prefix_len;
    if (mark.complete > leg->source_total ||
        leg_expected_bytes(leg, 1, mark.complete, &needed, &sum, ERROR_NONE) != BATON_OK ||
        leg->arrival.bytes < needed)
        return 0;
    /* The sum is over layers of further pages, too, when COMMIT released some of those. */
    if (leg_verifies(leg) && (mark.partial != mark.complete || sum != leg->arrival.sum))
        return 0;
    uint64_t tokens =
        (uint64_t)mark.complete * leg->peer->memory.regions[0].layout.tokens_per_page;
    if (leg->source_tokens && tokens > leg->source_tokens)
        tokens = leg->source_tokens;
    uint64_t end = leg->source_first_token + tokens;
    return end > room->prefix_len ? end : room->prefix_len;
}

/* A peer that said something wrong is not believed anything. Copies may still be under way when this
 * is asked, but not into what has come. */
uint32_t receiver_landed_tokens(const struct room *room)
{
    uint64_t end = UINT32_MAX;
    if (!room->granted || !room->page_capacity || room->failure_code == BATON_EPROTOCOL ||
        room->failure_code == BATON_ECORRUPT)
        return 0;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        uint64_t brought = leg->dummy ? UINT32_MAX : leg_landed_end(leg);
        if (brought < end)
            end = brought;
    }
    return end == UINT32_MAX ? 0 : (uint32_t)end;
}
