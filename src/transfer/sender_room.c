/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's half of a room, on the link thread.
 *
 *   BOOTSTRAPPING      OPENs and GRANTs are coming in, one leg per decode rank
 *   WAITING_FOR_INPUT  every rank that is to grant has granted
 *   TRANSFERRING       something was sent: lanes run (put), or COMMIT invites the peer to read (get)
 *   SUCCESS            every leg said LANDED
 *
 * OPEN may come before the caller has opened its sender: a phantom room keeps the legs until it
 * does, or until match_timeout. The last COMMITs go out together, when all legs are done; from then on
 * the receivers decide, and an abort comes too late. */
#include "base/clock.h"
#include "base/log.h"
#include "link.h"
#include "manager.h"
#include "room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening, and meeting a phantom ---- */

static void sender_open_room(struct room *room, uint64_t now_ns)
{
    struct manager *manager = room->manager;
    room->opened = room->owned = true;
    manager_room_live(manager, room);
    room->own_deadline_ns = room->deadline_ns = now_ns + room->deadline_ms * NS_PER_MS;
    room->match_ns = now_ns + manager->config.match_timeout_ms * NS_PER_MS;
    room->dp_rank = -1;
    if (room->fake) {
        snprintf(room->timeline.backend, sizeof(room->timeline.backend), "fake");
        room_advance(room, room->generation, BATON_WAITING_FOR_INPUT);
        return;
    }
    manager_register_rank(manager, room->bootstrap);
    const char *refused = manager_registration_refused(manager);
    struct tombstone *stone = manager_tombstone_find(manager, room->id, true);
    struct tombstone *own = manager_tombstone_find(manager, room->id, false);
    if (own)
        own->expires_ns = 0; /* a new life of this room number */
    if (refused) {
        room_fail(room, BATON_EEXIST, "%s", refused);
    } else if (stone) {
        stone->expires_ns = 0;
        room_fail(room, stone->code, "%s", stone->text);
    }
}

/* OPEN and GRANT came first: their legs move over to the caller's room. */
static void sender_adopt_phantom(struct room *room)
{
    struct room *phantom = NULL;
    for (struct room *other = room->manager->live; other; other = other->live_next)
        if (other->phantom && other->role == ROOM_SENDER && other->id == room->id &&
            !room_ended(other))
            phantom = other;
    if (!phantom)
        return;
    room->legs = phantom->legs;
    room->leg_count = phantom->leg_count;
    room->required_dst = phantom->required_dst;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        leg->room = room;
    if (room->legs)
        room_time(room, &room->timeline.bootstrapped_ns);
    if (phantom->deadline_ns < room->deadline_ns)
        room->deadline_ns = phantom->deadline_ns;
    phantom->legs = NULL;
    phantom->leg_count = 0;
    manager_room_release(phantom->manager, phantom);
}

void sender_requests(struct room *room, uint32_t requests)
{
    if (requests & REQUEST_OPEN) {
        sender_open_room(room, clock_now_ns());
        if (!room_ended(room) && !room->fake)
            sender_adopt_phantom(room);
    }
    if (requests & REQUEST_INIT)
        room->init_seen = true;
    if (requests & REQUEST_SEND && !room->ending)
        room_time(room, &room->timeline.first_send_ns);
}

static struct room *sender_phantom(struct manager *manager, uint64_t id, uint32_t time_left_ms)
{
    struct room *room;
    if (manager_room_acquire(manager, id, ROOM_PHANTOM, &room, ERROR_NONE) != BATON_OK)
        return NULL;
    uint64_t now = clock_now_ns();
    room->phantom = true;
    room->opened_ns = now;
    room->dp_rank = -1;
    room->deadline_ms = time_left_ms;
    room->own_deadline_ns = UINT64_MAX;
    room->deadline_ns = now + time_left_ms * NS_PER_MS;
    room->match_ns = now + manager->config.match_timeout_ms * NS_PER_MS;
    manager_room_live(manager, room);
    return room;
}

static struct room *sender_find(struct link *link, uint64_t id)
{
    struct room *room = manager_room_find(link->manager, id, ROOM_LIVE_SENDER);
    if (room && room->opened && !room_ended(room))
        return room;
    return manager_room_find(link->manager, id, ROOM_PHANTOM);
}

static void sender_refuse(struct link *link, uint64_t id, uint32_t ticket, int code,
                          const char *text)
{
    struct wire_abort abort = {
        .room = id, .ticket = ticket, .code = code, .text = {text, (uint32_t)strlen(text)}};
    struct wire_room fenced = {.room = id, .ticket = ticket};
    atomic_fetch_add(&link->manager->rooms_refused, 1);
    LINK_SEND(link, abort, WIRE_ABORT, &abort);
    if (link->state != LINK_DEAD)
        LINK_SEND(link, room, WIRE_FENCED, &fenced); /* we hold nothing of it */
}

static bool sender_wants_rank(const struct room *room, uint32_t rank)
{
    for (uint32_t i = 0; i < room->dest_rank_count; i++)
        if (room->dest_ranks[i] == rank)
            return true;
    return room->dest_rank_count == 0;
}

void sender_on_open(struct link *link, const struct wire_open *open)
{
    struct manager *manager = link->manager;
    struct room *room = sender_find(link, open->room);
    char text[WIRE_TEXT_MAX];
    if (manager->closing) {
        sender_refuse(link, open->room, open->ticket, BATON_EPEER,
                      "the prefill rank is closing");
        return;
    }
    if (manager_ticket_refused(manager, link->peer->epoch, open->ticket)) {
        sender_refuse(link, open->room, open->ticket, BATON_EABORTED,
                      "the room was aborted before");
        return;
    }
    if (!room) {
        struct tombstone *stone = manager_tombstone_find(manager, open->room, false);
        if (stone) {
            sender_refuse(link, open->room, open->ticket, stone->code, stone->text);
            return;
        }
        room = sender_phantom(manager, open->room, open->time_left_ms);
        if (!room) {
            sender_refuse(link, open->room, open->ticket, BATON_ELIMIT,
                          "no free room on the prefill side");
            return;
        }
    }
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (leg->link && (leg->rank == open->rank || leg->peer->epoch == link->peer->epoch)) {
            snprintf(
                text, sizeof(text),
                "room %llu is open already with decode rank %u: a room number is used once",
                (unsigned long long)open->room, open->rank);
            sender_refuse(link, open->room, open->ticket, BATON_EEXIST, text);
            return;
        }
    }
    struct leg *leg = leg_new(room);
    if (!leg) {
        sender_refuse(link, open->room, open->ticket, BATON_ENOMEM,
                      "out of memory on the prefill side");
        return;
    }
    leg->rank = open->rank;
    leg->ticket = open->ticket;
    leg->required_dst = room->required_dst = open->required_dst;
    leg->opened = true;
    leg_attach(leg, link);
    uint64_t deadline = clock_now_ns() + open->time_left_ms * NS_PER_MS;
    if (deadline < room->deadline_ns)
        room->deadline_ns = deadline;
    room_time(room, &room->timeline.bootstrapped_ns);
}

/* ---- grants ---- */

static int32_t *pages_copy(struct wire_pages pages, uint32_t limit, bool *outside)
{
    int32_t *copy = malloc(((size_t)pages.count + 1) * sizeof(int32_t));
    if (!copy)
        return NULL;
    wire_pages_copy(pages, copy);
    for (uint32_t i = 0; i < pages.count; i++)
        *outside |= copy[i] < 0 || (uint32_t)copy[i] >= limit;
    return copy;
}

static int leg_take_grant(struct leg *leg, const struct wire_grant *grant, struct error err)
{
    const struct wire_register *theirs = &leg->link->peer->memory;
    bool outside = false;
    leg->prefix = grant->prefix;
    leg->aux_slot = grant->aux_slot;
    leg->dummy = grant->flags & WIRE_GRANT_DUMMY;
    if (grant->pages.count && theirs->region_count == 0)
        return error_set(err, BATON_EPROTOCOL, "a grant of pages without a region");
    leg->page_count = grant->pages.count;
    leg->pages = pages_copy(
        grant->pages, theirs->region_count ? theirs->regions[0].layout.pages : 0, &outside);
    if (!leg->pages)
        return error_set(err, BATON_ENOMEM, "out of memory for a grant");
    for (uint32_t i = 0; i < grant->state_count; i++) {
        const struct wire_state_pages *from = &grant->states[i];
        if (from->region == 0 || from->region >= theirs->region_count)
            return error_set(err, BATON_EPROTOCOL, "a grant names region %u of %u",
                             from->region, theirs->region_count);
        struct state_list *list = &leg->states[leg->state_count];
        list->region = from->region;
        list->first_token = from->first_token;
        list->count = from->pages.count;
        list->pages =
            pages_copy(from->pages, theirs->regions[from->region].layout.pages, &outside);
        if (!list->pages)
            return error_set(err, BATON_ENOMEM, "out of memory for a grant");
        leg->state_count++;
    }
    if (outside)
        return error_set(err, BATON_EPROTOCOL, "a grant names a page outside its region");
    if (grant->aux_slot >= 0 && (uint32_t)grant->aux_slot >= theirs->aux_slots)
        return error_set(err, BATON_EPROTOCOL, "a grant names aux slot %d of %u",
                         grant->aux_slot, theirs->aux_slots);
    return BATON_OK;
}

void sender_on_grant(struct link *link, const struct wire_grant *grant)
{
    char why[160];
    struct room *room = sender_find(link, grant->room);
    struct leg *leg = room ? room_leg_on(room, link) : NULL;
    if (!leg || leg->ticket != grant->ticket) {
        /* The room has ended here: its ABORT is on its way, or a tombstone has the reason. */
        struct tombstone *stone = manager_tombstone_find(link->manager, grant->room, false);
        atomic_fetch_add(&link->manager->frames_stale, 1);
        sender_refuse(link, grant->room, grant->ticket, stone ? stone->code : BATON_ENOTFOUND,
                      stone ? stone->text : "the room is not open on the prefill side");
        return;
    }
    if (leg->granted) {
        atomic_fetch_add(&link->manager->frames_bad, 1);
        link_close(link, BATON_EPROTOCOL, "room %llu was granted twice",
                   (unsigned long long)grant->room);
        return;
    }
    int code = leg_take_grant(leg, grant, ERROR_BUFFER(why));
    if (code == BATON_EPROTOCOL) {
        atomic_fetch_add(&link->manager->frames_bad, 1);
        link_close(link, code, "room %llu: %s", (unsigned long long)grant->room, why);
        return;
    }
    if (code != BATON_OK) {
        room_fail(room, code, "%s", why);
        return;
    }
    leg->granted = true;
    leg->required_dst = room->required_dst = grant->required_dst;
    /* The receiver may have given itself more time (or less) when it got its pages. */
    uint64_t deadline = clock_now_ns() + grant->time_left_ms * NS_PER_MS;
    room->deadline_ns = deadline < room->own_deadline_ns ? deadline : room->own_deadline_ns;
    if (!room->phantom)
        sender_progress(room);
}

/* ---- sending ---- */

static void sender_check_grants(struct room *room)
{
    uint32_t granted = 0, prefix = UINT32_MAX;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (!sender_wants_rank(room, leg->rank)) {
            room_fail(room, BATON_EINVAL, "decode rank %u granted, but is not among dest_ranks",
                      leg->rank);
            return;
        }
        if (!leg->granted)
            continue;
        granted++;
        if (leg->prefix < prefix && !leg->dummy)
            prefix = leg->prefix;
    }
    uint32_t required =
        room->required_dst > room->dest_rank_count ? room->required_dst : room->dest_rank_count;
    if (!required || granted < required)
        return;
    room->granted = true;
    room->timeline.peers = granted;
    room_time(room, &room->timeline.granted_ns);
    atomic_store_explicit(&room->prefix, prefix == UINT32_MAX ? 0 : prefix,
                          memory_order_release);
    room_advance(room, room->generation, BATON_WAITING_FOR_INPUT);
}

static const struct state_list *sender_state_named(const struct room *room, const char *name)
{
    for (uint32_t i = 0; i < room->state_count; i++)
        if (strcmp(room->manager->regions[room->states[i].region].name, name) == 0)
            return &room->states[i];
    return NULL;
}

/* State regions of the grant, matched by name with what the caller named. */
static int leg_add_states(struct leg *leg, struct error err)
{
    struct room *room = leg->room;
    const struct wire_register *theirs = &leg->peer->memory;
    struct copy *copy = &leg->copy;
    for (uint32_t i = 0; i < leg->state_count; i++) {
        const struct wire_region *region = &theirs->regions[leg->states[i].region];
        const struct state_list *mine = sender_state_named(room, region->name);
        if (!mine)
            return error_set(err, BATON_EINVAL,
                             "decode granted pages of '%s', and none were sent", region->name);
        copy->regions[copy->region_count++] = (struct copy_region){
            .region = leg->states[i].region,
            .src = &room->manager->regions[mine->region].layout,
            .dst = &region->layout,
            .src_pages = mine->pages,
            .dst_pages = leg->states[i].pages,
            .src_count = mine->count,
            .dst_count = leg->states[i].count,
            .src_first_token = mine->first_token,
            .dst_first_token = leg->states[i].first_token,
        };
    }
    return BATON_OK;
}

/* Do the pages announced (or, after an early last, sent) fill the grant? */
static int leg_check_cover(const struct leg *leg, uint64_t released, struct plan_input *input,
                           struct error err)
{
    const struct room *room = leg->room;
    *input = (struct plan_input){.src = leg->copy.regions[0].src,
                                 .dst = leg->copy.regions[0].dst,
                                 .src_pages = room->pages,
                                 .dst_pages = leg->pages,
                                 .src_page_count = room->page_capacity,
                                 .dst_page_count = leg->page_count,
                                 .src_first_token = room->first_token,
                                 .dst_first_token = leg->prefix,
                                 .tokens = leg->copy.tokens,
                                 .page_end = watermark_unpack(released).partial,
                                 .layer_end = leg->copy.regions[0].src->layers};
    return leg->page_count ? plan_covers(input, err) : BATON_OK;
}

static int leg_start(struct leg *leg, uint64_t released, struct error err)
{
    struct room *room = leg->room;
    struct manager *manager = room->manager;
    struct copy *copy = &leg->copy;
    copy->manager = manager;
    copy->room = room;
    copy->endpoint = leg->endpoint;
    copy->ops = leg->endpoint->ops;
    copy->ticket = leg->ticket;
    copy->verify = manager->config.verify || leg->peer->memory.verify;
    copy->watermark = &leg->source_watermark;
    copy->tokens = room->tokens ? room->first_token + room->tokens : 0;
    copy->notify = &room->job;
    copy->with_states = leg->state_count > 0;
    copy->regions[0] = (struct copy_region){
        .src = &manager->regions[0].layout,
        .dst = &leg->peer->memory.regions[0].layout,
        .src_pages = room->pages,
        .dst_pages = leg->pages,
        .src_count = room->page_capacity,
        .dst_count = leg->page_count,
        .src_first_token = room->first_token,
        .dst_first_token = leg->prefix,
    };
    copy->region_count = 1;
    struct plan_input input;
    int code = leg_check_cover(leg, released, &input, err);
    if (code != BATON_OK)
        return code;
    leg->started = true;
    struct plan plan;
    if (plan_open(&plan, &input, ERROR_NONE) == BATON_OK)
        copy->packed =
            plan_packs(&plan, copy->ops->run_bytes_min, copy->reason, sizeof(copy->reason));
    if (!(copy->ops->capabilities & BACKEND_PUT)) {
        if (!copy->verify)
            return BATON_OK;
        copy->ops = &backend_sums;
    }
    return copy_start(copy);
}

static void sender_start(struct room *room, uint64_t released)
{
    char why[WIRE_TEXT_MAX];
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (leg->dummy || leg->started || !leg->link)
            continue;
        int code = leg_start(leg, released, ERROR_BUFFER(why));
        if (code != BATON_OK) {
            room_fail(room, code, "%s", code == BATON_ENOMEM ? "out of memory for lanes" : why);
            return;
        }
        if (!room->timeline.backend[0]) {
            snprintf(room->timeline.backend, sizeof(room->timeline.backend), "%s",
                     leg->copy.ops->name);
            snprintf(room->timeline.reason, sizeof(room->timeline.reason), "%.60s; %.48s",
                     leg->link->choice, leg->copy.reason);
            room->timeline.packed = leg->copy.packed;
        }
    }
}

static void leg_send_aux(struct leg *leg, uint32_t *total)
{
    struct room *room = leg->room;
    struct manager *manager = room->manager;
    *total = 0;
    if (room->aux_slot < 0 || leg->aux_slot < 0)
        return;
    const uint8_t *slot =
        manager->aux_address + (uint64_t)room->aux_slot * manager->aux_slot_bytes;
    for (uint32_t i = 0; leg->link && i < leg->link->aux_map_count; i++) {
        const struct aux_segment *segment = &leg->link->aux_map[i];
        for (uint64_t at = 0; leg->link && at < segment->length;) {
            uint64_t piece = segment->length - at;
            if (piece > 1u << 20)
                piece = 1u << 20;
            struct wire_aux aux = {.room = room->id,
                                   .ticket = leg->ticket,
                                   .offset = (uint32_t)(segment->dst + at),
                                   .bytes = slot + segment->src + at,
                                   .length = (uint32_t)piece};
            LINK_SEND(leg->link, aux, WIRE_AUX, &aux);
            at += piece;
            *total += (uint32_t)piece;
        }
    }
}

/* COMMIT up to `word`. A reading receiver gets the source pages that are new to it. */
static void leg_commit(struct leg *leg, uint64_t word)
{
    struct room *room = leg->room;
    struct watermark now = watermark_unpack(word), before = watermark_unpack(leg->committed);
    bool get = !(leg->endpoint->ops->capabilities & BACKEND_PUT);
    struct wire_commit *commit = calloc(1, sizeof(*commit));
    if (!commit) {
        room_fail(room, BATON_ENOMEM, "out of memory for a COMMIT");
        return;
    }
    commit->room = room->id;
    commit->ticket = leg->ticket;
    commit->watermark = word;
    commit->flags = WIRE_COMMIT_SOURCE | (now.last ? WIRE_COMMIT_LAST : 0);
    commit->total_pages = room->page_capacity;
    commit->first_token = room->first_token;
    commit->tokens = room->tokens;
    if (now.last)
        leg_send_aux(leg, &commit->aux_bytes);
    if (get) {
        uint32_t from = before.partial, to = now.partial;
        commit->page_offset = from;
        commit->pages = (struct wire_pages){(const uint8_t *)(room->pages + from), to - from};
    }
    for (uint32_t i = 0; now.last && i < room->state_count; i++) {
        const struct state_list *list = &room->states[i];
        commit->states[commit->state_count++] = (struct wire_state_pages){
            list->region, list->first_token, {(const uint8_t *)list->pages, list->count}};
    }
    for (uint32_t i = 0; i < leg->copy.lane_count; i++) {
        struct lane *lane = &leg->copy.lanes[i];
        commit->sum += atomic_load_explicit(&lane->sum, memory_order_relaxed);
        if (get)
            continue; /* they only added up: the peer's lanes do the copying and the counting */
        struct wire_lane *told = &commit->lanes[lane->rail];
        told->bytes = atomic_load_explicit(&lane->bytes, memory_order_relaxed);
        told->operations = atomic_load_explicit(&lane->operations, memory_order_relaxed);
        told->landings = atomic_load_explicit(&lane->landings, memory_order_relaxed);
        if (commit->lane_count <= lane->rail)
            commit->lane_count = lane->rail + 1;
    }
    leg->committed = word;
    leg->committed_last = now.last;
    if (now.last)
        atomic_store_explicit(&room->committed, true, memory_order_release);
    if (leg->link)
        LINK_SEND(leg->link, commit, WIRE_COMMIT, commit);
    free(commit);
}

static bool leg_ready_to_commit(const struct leg *leg, uint64_t word)
{
    return leg->started && copy_done(&leg->copy, word); /* a reading peer has no lanes here */
}

static void sender_commit(struct room *room, uint64_t word)
{
    bool last = watermark_unpack(word).last, all = true;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        all &= leg->dummy || leg_ready_to_commit(leg, word);
    if (all && last)
        room_time(room, &room->timeline.last_byte_ns);
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (room_ended(room))
            return;
        if (!leg->dummy && leg->link && leg->committed != word &&
            leg_ready_to_commit(leg, word) && (!last || all))
            leg_commit(leg, word);
    }
}

/* Bytes of all regions of a copy; kv is the input for region 0. */
static uint64_t copy_bytes(const struct copy *copy, const struct plan_input *kv)
{
    struct plan plan;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < copy->region_count; i++) {
        const struct copy_region *region = &copy->regions[i];
        struct plan_input state = {.src = region->src,
                                   .dst = region->dst,
                                   .src_pages = region->src_pages,
                                   .dst_pages = region->dst_pages,
                                   .src_page_count = region->src_count,
                                   .dst_page_count = region->dst_count,
                                   .src_first_token = region->src_first_token,
                                   .dst_first_token = region->dst_first_token,
                                   .page_end = region->src_count,
                                   .layer_end = region->src->layers};
        if (plan_open(&plan, i == 0 ? kv : &state, ERROR_NONE) == BATON_OK)
            bytes += plan_bytes(&plan);
    }
    return bytes;
}

/* Everything has been sent: what goes with the last chunk is added before a lane can see `last`. */
static bool sender_complete(struct room *room, uint64_t released)
{
    char why[WIRE_TEXT_MAX];
    struct plan_input input;
    if (room->states_added)
        return true;
    room->states_added = true;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (leg->dummy || !leg->started)
            continue;
        int code = leg_check_cover(leg, released, &input, ERROR_BUFFER(why));
        if (code == BATON_OK)
            code = leg_add_states(leg, ERROR_BUFFER(why));
        /* A reading peer has the lanes that count; here it is arithmetic. */
        if (code == BATON_OK && leg->endpoint->ops->capabilities & BACKEND_GET)
            room->timeline.bytes += copy_bytes(&leg->copy, &input);
        if (code != BATON_OK) {
            room_fail(room, code, "%s", why);
            return false;
        }
    }
    return true;
}

static void sender_check_landed(struct room *room);

void sender_progress(struct room *room)
{
    char why[160];
    if (room->phantom || !room->opened || room->ending)
        return;
    uint64_t word = atomic_load_explicit(&room->watermark, memory_order_acquire);
    struct watermark released = watermark_unpack(word);
    if (room->fake) {
        if (released.last)
            room_succeed(room);
        return;
    }
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        int code = copy_error(&leg->copy, why, sizeof(why));
        /* After the last COMMIT the receiver decides whether all of it came. */
        if (code && !leg->committed_last) {
            room_fail(room, code, "copy to %s: %s", leg->peer->name, why);
            return;
        }
    }
    if (!room->granted) {
        sender_check_grants(room);
        sender_check_landed(room);
    }
    if (!room->granted || !room->init_seen || room_ended(room))
        return;
    if (released.last)
        room->page_capacity =
            released.complete; /* is_last may come early: that is all there is */
    if (word == 0)
        return;
    room_advance(room, room->generation, BATON_TRANSFERRING);
    sender_start(room, word);
    if (room_ended(room))
        return;
    if (released.last && !sender_complete(room, word))
        return;
    if (word != room->woken) {
        room->woken = word;
        for (struct leg *leg = room->legs; leg; leg = leg->next)
            if (leg->started) {
                atomic_store_explicit(&leg->source_watermark, word, memory_order_release);
                copy_wake(&leg->copy);
            }
    }
    sender_commit(room, word);
}

static void sender_account(struct room *room)
{
    struct manager *manager = room->manager;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        for (uint32_t i = 0; leg->copy.ops != &backend_sums && i < leg->copy.lane_count; i++) {
            room->timeline.bytes += atomic_load(&leg->copy.lanes[i].bytes);
            room->timeline.operations += atomic_load(&leg->copy.lanes[i].operations);
            room->timeline.requests += atomic_load(&leg->copy.lanes[i].requests);
            room->timeline.doorbells += atomic_load(&leg->copy.lanes[i].doorbells);
        }
    }
    atomic_fetch_add(&manager->bytes_sent, room->timeline.bytes);
    atomic_fetch_add(&manager->operations_sent, room->timeline.operations);
}

/* Every rank that was to grant has granted, and said LANDED. A rank that only had dummy legs may hear
 * that before its caller has opened the sender. */
static void sender_check_landed(struct room *room)
{
    if (!room->granted || !room->legs)
        return;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        if (!leg->landed)
            return;
    sender_account(room);
    room_succeed(room);
}

void sender_on_landed(struct link *link, const struct wire_room *landed)
{
    struct room *room = sender_find(link, landed->room);
    struct leg *leg = NULL;
    for (leg = room ? room->legs : NULL; leg; leg = leg->next)
        if (leg->ticket == landed->ticket && leg->peer && leg->peer->epoch == link->peer->epoch)
            break;
    if (!leg || (!leg->dummy && !leg->committed_last)) {
        atomic_fetch_add(&link->manager->frames_stale, 1);
        return;
    }
    leg->landed = true;
    leg->doubt = false;
    sender_check_landed(room);
}

void sender_ask(struct leg *leg)
{
    struct wire_room query = {.room = leg->room->id, .ticket = leg->ticket};
    for (struct link *link = leg->room->manager->links; link; link = link->next) {
        if (!link->initiator && link->state == LINK_READY &&
            link->peer->epoch == leg->peer->epoch) {
            LINK_SEND(link, room, WIRE_QUERY, &query);
            return;
        }
    }
}

/* The link is back: ask about what was in doubt when it broke. */
void sender_resume_doubts(struct link *link)
{
    for (struct room *room = link->manager->live, *next; room; room = next) {
        next = room->live_next;
        for (struct leg *leg = room->legs; room->role == ROOM_SENDER && leg; leg = leg->next) {
            if (!leg->peer || leg->peer->epoch != link->peer->epoch)
                continue;
            if (leg->doubt) {
                sender_ask(leg);
            } else if (room->ending && leg->fence_remote && !leg->link) {
                leg_attach(leg,
                           link); /* it may still be reading: ABORT is answered by FENCED */
                leg_send_abort(leg);
            }
        }
    }
}

void sender_tick(struct room *room, uint64_t now_ns)
{
    uint32_t timeout = room->manager->config.match_timeout_ms;
    const char *refused = manager_registration_refused(room->manager);
    if (room->phantom) {
        if (now_ns > room->match_ns)
            room_fail(room, BATON_EUNMATCHED, "no sender was opened for the room within %u ms",
                      timeout);
        return;
    }
    if (!room->opened || room->fake)
        return;
    if (refused && !room->legs) {
        room_fail(room, BATON_EEXIST, "%s", refused);
    } else if (!room->legs && now_ns > room->match_ns) {
        bool refused_meanwhile = room->manager->refusal_ns > room->opened_ns;
        room_fail(room, BATON_EUNMATCHED, "no receiver opened the room within %u ms%s%.300s",
                  timeout, refused_meanwhile ? "; a peer was refused meanwhile: " : "",
                  refused_meanwhile ? room->manager->refusal : "");
    } else if (room->doubt_ns && now_ns > room->doubt_ns) {
        for (struct leg *leg = room->legs; leg; leg = leg->next) {
            if (leg->doubt) {
                room_fail(
                    room, BATON_EPEER,
                    "the link broke after the last pages were committed and did not come back "
                    "within %u ms: the outcome is unknown here",
                    timeout);
                return;
            }
        }
        room->doubt_ns = 0;
    }
}
