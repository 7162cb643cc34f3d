/* SPDX-License-Identifier: Apache-2.0 */
/* What senders' and receivers' rooms have in common: the state word, failing, fences and quarantine,
 * and the way out.
 *
 * The end of a room has two parts. The state becomes final at once: the caller, the other side and
 * the log hear the reason. The pages come back later, when every leg is at rest:
 *
 *   our own lanes have stopped                 (copy_stopped)
 *   our workers have let go of the ticket      (leg->fence)
 *   a peer that stores into our memory itself  (leg->fence_remote) has said FENCED, or has exited,
 *                                              or we have cut it off (BACKEND_CUTS)
 *
 * Link loss, EOF, silence and time by themselves never end a fence_remote. Until then the room is in quarantine:
 * counted, its pages refused to others. A slot is released when the caller has closed its handle and
 * every leg is at rest. */
#include "room.h"

#include "base/clock.h"
#include "base/log.h"
#include "link.h"
#include "manager.h"
#include "route.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool room_advance(struct room *room, uint32_t generation, enum baton_state to)
{
    uint64_t word = atomic_load_explicit(&room->word, memory_order_relaxed);
    for (;;) {
        enum baton_state now = (enum baton_state)(uint32_t)word;
        bool ended = now == BATON_FAILED || now == BATON_SUCCESS;
        if (word >> 32 != generation || ended || (to != BATON_FAILED && to <= now))
            return false;
        /* Release: whoever polls the new state sees what was written before it (the reason, the
         * pages that a worker stored and told us of). */
        if (atomic_compare_exchange_weak_explicit(&room->word, &word,
                                                  (uint64_t)generation << 32 | to,
                                                  memory_order_acq_rel, memory_order_relaxed))
            break;
    }
    manager_notify(room->manager);
    return true;
}

void room_request(struct room *room, uint32_t request)
{
    /* The link thread may take the request, end the room and want to give its slot away before the
     * post below. */
    atomic_fetch_add_explicit(&room->posters, 1, memory_order_relaxed);
    atomic_fetch_or_explicit(&room->requests, request, memory_order_acq_rel);
    runtime_post(room->manager->runtime, &room->job);
    atomic_fetch_sub_explicit(&room->posters, 1, memory_order_release);
}

int room_current_state(const struct room *room, uint32_t generation)
{
    uint64_t word = atomic_load_explicit(&room->word, memory_order_acquire);
    baton_manager_tick((baton_manager *)room->manager);
    return word >> 32 == generation ? (int)(uint32_t)word : BATON_FAILED;
}

int room_abort(struct room *room, int code, const char *reason, const char *otherwise)
{
    if (atomic_load_explicit(&room->committed, memory_order_acquire) || room_ended(room))
        return BATON_ESTATE;
    if (!room->abort_text[0]) {
        snprintf(room->abort_text, sizeof(room->abort_text), "%s",
                 reason && *reason ? reason : otherwise);
        room->abort_code = code;
    }
    room_request(room, REQUEST_ABORT);
    return BATON_OK;
}

int room_failure(const struct room *room, char *text, size_t size)
{
    if (text && size)
        text[0] = 0;
    if (room_state(room) != BATON_FAILED)
        return BATON_OK;
    if (text && size)
        snprintf(text, size, "%s", room->failure_text);
    return room->failure_code;
}

int room_timeline(const struct room *room, baton_timeline *out)
{
    if (!out || out->struct_size < sizeof(*out))
        return BATON_EINVAL;
    if (!room_ended(room))
        return BATON_AGAIN; /* the link thread is still writing it */
    uint32_t size = out->struct_size;
    *out = room->timeline;
    out->fenced_ns = atomic_load_explicit(&room->fenced_ns, memory_order_relaxed);
    out->struct_size = size;
    return BATON_OK;
}

void room_time(struct room *room, uint64_t *field)
{
    if (!*field && !room_ended(room)) /* after the end others read it */
        *field = clock_now_ns() - room->opened_ns + 1;
}

/* ---- legs ---- */

struct leg *leg_new(struct room *room)
{
    struct leg *leg = calloc(1, sizeof(*leg));
    if (!leg)
        return NULL;
    leg->room = room;
    leg->aux_slot = -1;
    struct leg **tail = &room->legs;
    while (*tail)
        tail = &(*tail)->next;
    *tail = leg;
    room->leg_count++;
    return leg;
}

void leg_attach(struct leg *leg, struct link *link)
{
    leg->link = link;
    leg->link_next = link->legs;
    leg->link_slot = &link->legs;
    if (leg->link_next)
        leg->link_next->link_slot = &leg->link_next;
    link->legs = leg;
    leg->fence_told = false;
    if (leg->peer != link->peer) {
        peer_release(leg->peer);
        leg->peer = peer_hold(link->peer);
    }
    if (!leg->endpoint && !leg->ended) {
        leg->endpoint = endpoint_hold(link->endpoint);
        leg->session = link->session;
    }
}

void leg_detach(struct leg *leg)
{
    if (leg->link) {
        *leg->link_slot = leg->link_next;
        if (leg->link_next)
            leg->link_next->link_slot = leg->link_slot;
        leg->link = NULL;
        leg->link_next = NULL;
    }
    if (leg->route_slot) {
        *leg->route_slot = leg->route_next;
        if (leg->route_next)
            leg->route_next->route_slot = leg->route_slot;
        leg->route_slot = NULL;
        leg->route_next = NULL;
    }
}

static void leg_free(struct leg *leg)
{
    leg_detach(leg);
    copy_free(&leg->copy);
    if (leg->endpoint)
        endpoint_release(leg->endpoint);
    peer_release(leg->peer);
    free(leg->pages);
    for (uint32_t i = 0; i < leg->state_count; i++)
        free(leg->states[i].pages);
    free(leg);
}

struct leg *room_leg_on(struct room *room, const struct link *link)
{
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        if (leg->link == link)
            return leg;
    return NULL;
}

void leg_send_abort(struct leg *leg)
{
    struct room *room = leg->room;
    struct wire_abort abort = {
        .room = room->id,
        .ticket = leg->ticket,
        .code = room->failure_code,
        .text = {room->failure_text, (uint32_t)strlen(room->failure_text)}};
    leg->abort_owed = false;
    LINK_SEND(leg->link, abort, WIRE_ABORT, &abort);
}

/* May the peer still read our pages and make something of it? Without a link a reader has failed its
 * room, unless the last COMMIT was out: then it may still succeed, and must not read other pages. */
static bool leg_may_be_read(const struct leg *leg)
{
    return leg->endpoint && leg->endpoint->ops->capabilities & BACKEND_GET &&
           (leg->link ? leg->committed != 0 : leg->committed_last);
}

/* Is it we who end the peer's reach into our memory? */
static bool leg_cuts(const struct leg *leg)
{
    return leg->endpoint && leg->endpoint->ops->capabilities & BACKEND_CUTS;
}

/* Our side stops touching the leg's pages; the peer is told, unless it told us. */
static void leg_end(struct leg *leg, bool tell)
{
    struct room *room = leg->room;
    bool failed = room_state(room) == BATON_FAILED;
    if (leg->ended)
        return;
    leg->ended = true;
    if (leg->endpoint && room->role == ROOM_RECEIVER && leg->granted) {
        leg->fence.ticket = leg->ticket;
        leg->fence.manager = room->manager;
        leg->fence.notify = &room->job;
        leg->fence.posters = &room->posters;
        leg->endpoint->ops->revoke(leg->endpoint, leg->ticket, &leg->fence);
    }
    copy_cancel(&leg->copy);
    if (!failed)
        return;
    /* The other side may be in the middle of a store into our pages (or a read of them). */
    bool may_touch = room->role == ROOM_RECEIVER ? leg->remote_writer : leg_may_be_read(leg);
    leg->fence_remote = leg->granted && !leg->dummy && leg->peer && may_touch &&
                        !(leg_cuts(leg) ? leg->endpoint->stopped : leg->peer->gone);
    if (tell && leg->link)
        leg_send_abort(leg);
    else if (tell && room->role == ROOM_RECEIVER && !leg->link && !leg->peer)
        leg->abort_owed =
            true; /* the link is still to come: route.c keeps trying for a while */
}

static bool leg_local_rest(const struct leg *leg)
{
    return leg->ended && copy_stopped(&leg->copy) &&
           atomic_load_explicit(&leg->fence.pending, memory_order_acquire) == 0;
}

bool room_local_rest(const struct room *room)
{
    for (const struct leg *leg = room->legs; leg; leg = leg->next)
        if (!leg_local_rest(leg))
            return false;
    return true;
}

void leg_link_lost(struct leg *leg, int code, const char *text)
{
    struct room *room = leg->room;
    bool held = room->held;
    room->held = true; /* failing a room that nobody owns would free the leg under us */
    if (!room_ended(room)) {
        if (room->role == ROOM_SENDER && leg->committed_last && !leg->landed) {
            /* The receiver has decided or will; ask it when the link is back. */
            leg->doubt = true;
            room->doubt_ns =
                clock_now_ns() + room->manager->config.match_timeout_ms * NS_PER_MS;
        } else {
            room_fail(room, code, "link with %s lost: %s", leg->peer ? leg->peer->name : "peer",
                      text);
        }
    }
    if (leg_cuts(leg))
        leg->fence_remote = false; /* the rails were cut before we were told */
    else if (room->role == ROOM_SENDER)
        leg->fence_remote = leg->fence_remote && leg_may_be_read(leg);
    else if (leg->fence_remote && leg->route)
        route_want(leg->route, leg); /* no fence yet: come back and ask for it */
    room->held = held;
    room_settle(room);
}

void leg_peer_gone(struct leg *leg)
{
    struct room *room = leg->room;
    if (!leg_cuts(leg))
        leg->fence_remote = false; /* a process that has exited stores nothing */
    leg->abort_owed = false;
    if (leg->doubt && !room_ended(room))
        room_fail(room, BATON_EPEER,
                  "process %d (%s) has exited before it confirmed the last pages",
                  leg->peer->pid, leg->peer->name);
}

void leg_fenced_remote(struct leg *leg)
{
    leg->fence_remote = false;
    room_settle(leg->room);
}

/* ---- pages ---- */

static void room_pages_release(struct room *room)
{
    struct region *regions = room->manager->regions;
    for (uint32_t i = 0; i < room->page_capacity; i++)
        atomic_store_explicit(&regions[0].page_ticket[room->pages[i]], 0, memory_order_release);
    for (uint32_t s = 0; s < room->state_count; s++)
        for (uint32_t i = 0; i < room->states[s].count; i++)
            atomic_store_explicit(
                &regions[room->states[s].region].page_ticket[room->states[s].pages[i]], 0,
                memory_order_release);
    room->pages_held = false;
}

static void room_fence_passed(struct room *room)
{
    if (room->pages_held)
        room_pages_release(room);
    if (room->quarantined) {
        struct manager *manager = room->manager;
        room->quarantined = false;
        atomic_fetch_sub(&manager->rooms_quarantined, 1);
        atomic_fetch_sub(&manager->pages_quarantined, room->page_capacity);
        atomic_fetch_add(&manager->fences, 1);
    }
    atomic_store_explicit(&room->fenced_ns, clock_now_ns() - room->opened_ns + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&room->fenced, room->generation, memory_order_release);
    manager_notify(room->manager);
}

static void room_quarantine(struct room *room)
{
    struct manager *manager = room->manager;
    if (room->quarantined || !room->pages_held)
        return;
    room->quarantined = true;
    atomic_fetch_add(&manager->rooms_quarantined, 1);
    atomic_fetch_add(&manager->pages_quarantined, room->page_capacity);
}

/* ---- the end ---- */

static void room_free(struct room *room)
{
    if (room->dp_call)
        bootstrap_cancel(room->dp_call);
    room->dp_call = NULL;
    while (room->legs) {
        struct leg *leg = room->legs;
        room->legs = leg->next;
        leg_free(leg);
    }
    room->leg_count = 0;
    free(room->pages);
    room->pages = NULL;
    for (uint32_t i = 0; i < room->state_count; i++)
        free(room->states[i].pages);
    room->state_count = 0;
    manager_room_release(room->manager, room);
}

void room_settle(struct room *room)
{
    /* Sending can end a link, and a link's end settles its rooms: the outermost call does it. */
    if (!room->ending || room->held || room->role == ROOM_FREE)
        return;
    room->held = true;
    bool fenced = true, rest = !room->abort_unresolved;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        bool local = leg_local_rest(leg);
        if (local && leg->link && !leg->fence_told && room_state(room) == BATON_FAILED) {
            struct wire_room frame = {.room = room->id, .ticket = leg->ticket};
            leg->fence_told = true;
            LINK_SEND(leg->link, room, WIRE_FENCED, &frame);
        }
        fenced &= local && !leg->fence_remote;
        rest &= local && !leg->fence_remote && !leg->abort_owed;
    }
    if (fenced && atomic_load_explicit(&room->fenced, memory_order_relaxed) != room->generation)
        room_fence_passed(room);
    else if (!fenced && room_state(room) == BATON_FAILED)
        room_quarantine(room);
    room->held = false;
    if (rest && !room->owned)
        room_free(room);
}

/* SUCCESS and FAILED meet here. */
static void room_end(struct room *room, struct leg *from)
{
    struct manager *manager = room->manager;
    bool success = room_state(room) == BATON_SUCCESS;
    room->ending = true;
    atomic_store_explicit(&room->ticket, 0, memory_order_release);
    manager_room_unname(manager, room);
    if (room->dp_call) {
        bootstrap_cancel(room->dp_call);
        room->dp_call = NULL;
    }
    bool held = room->held;
    room->held = true;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        leg_end(leg, leg != from);
    room->held = held;
    if (!success && room->role == ROOM_RECEIVER && room->opened && !room->resolved &&
        !room->fake)
        room->abort_unresolved = true; /* prefill has the request too: it must hear of this */
    if (!room->phantom)                /* nobody has asked for it here; who does counts */
        atomic_fetch_add(success ? &manager->rooms_succeeded : &manager->rooms_failed, 1);
}

static void room_log_end(const struct room *room)
{
    const struct manager *manager = room->manager;
    int level = manager->config.verbose ? LOG_LEVEL_ERROR : LOG_LEVEL_DEBUG;
    const char *role = room->role == ROOM_SENDER ? "sender" : "receiver";
    if (room_state(room) == BATON_FAILED)
        LOG_AT(manager->config.verbose ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO, room,
               "room %llu %s failed: %s (%s)", (unsigned long long)room->id, role,
               room->failure_text, baton_error_name(room->failure_code));
    else
        LOG_AT(level, room, "room %llu %s done: %llu bytes in %llu operations over %s, %.3f ms",
               (unsigned long long)room->id, role, (unsigned long long)room->timeline.bytes,
               (unsigned long long)room->timeline.operations, room->timeline.backend,
               (double)room->timeline.ended_ns / 1e6);
}

void room_succeed(struct room *room)
{
    if (room_ended(room))
        return;
    /* Whoever sees SUCCESS may grant the pages again at once: every byte is here, so they are given
     * back before. And may read the timeline: it is complete before. */
    atomic_store_explicit(&room->ticket, 0, memory_order_release);
    if (room->pages_held)
        room_fence_passed(room);
    room_time(room, &room->timeline.ended_ns);
    room->timeline.state = BATON_SUCCESS;
    if (!room_advance(room, room->generation, BATON_SUCCESS))
        return;
    room_end(room, NULL);
    room_log_end(room);
    room_settle(room);
}

void room_fail_from(struct room *room, struct leg *from, int code, const char *text)
{
    if (room_ended(room))
        return;
    room->failure_code = code;
    snprintf(room->failure_text, sizeof(room->failure_text), "%s", text);
    if (room->role == ROOM_RECEIVER)
        room->landed_tokens = receiver_landed_tokens(room);
    room_time(room, &room->timeline.ended_ns);
    room->timeline.state = BATON_FAILED;
    if (!room_advance(room, room->generation, BATON_FAILED))
        return;
    if (room->role == ROOM_SENDER && !room->phantom)
        manager_tombstone_add(room->manager, room->id, false, code, text);
    room_end(room, from);
    room_log_end(room);
    room_settle(room);
}

void room_fail(struct room *room, int code, const char *format, ...)
{
    char text[WIRE_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    room_fail_from(room, NULL, code, text);
}

/* ---- frames that both roles get ---- */

static void link_send_fenced(struct link *link, uint64_t room, uint32_t ticket)
{
    struct wire_room frame = {.room = room, .ticket = ticket};
    LINK_SEND(link, room, WIRE_FENCED, &frame);
}

static struct leg *room_leg_meant(struct room *room, const struct link *link, uint32_t ticket)
{
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        if ((leg->link == link || (leg->peer && leg->peer->epoch == link->peer->epoch)) &&
            (!ticket || !leg->ticket || leg->ticket == ticket))
            return leg;
    return NULL;
}

/* The leg of a live, phantom or ended room that this frame means. */
static struct leg *room_find_leg(struct link *link, uint64_t id, uint32_t ticket)
{
    static const enum room_class sending[] = {ROOM_LIVE_SENDER, ROOM_PHANTOM,
                                              ROOM_ENDED_SENDER};
    static const enum room_class receiving[] = {ROOM_LIVE_RECEIVER, ROOM_ENDED_RECEIVER,
                                                ROOM_ENDED_RECEIVER};
    const enum room_class *classes = link->initiator ? receiving : sending;
    struct manager *manager = link->manager;
    struct leg *leg = NULL;
    for (size_t i = 0; !leg && i < 3; i++)
        for (struct room *room = manager_room_find(manager, id, classes[i]); room && !leg;
             room = manager_room_next(manager, room))
            if (room->opened || room->phantom)
                leg = room_leg_meant(room, link, ticket);
    return leg;
}

/* ABORT for something that this side has no leg of: nothing here touches those pages. */
static void room_abort_unopened(struct link *link, const struct wire_abort *abort,
                                const char *text)
{
    struct manager *manager = link->manager;
    if (!link->initiator) {
        /* Its OPEN or GRANT may still be unread on an older link to the same process. */
        manager_ticket_refuse(manager, link->peer->epoch, abort->ticket);
        struct room *room = manager_room_find(manager, abort->room, ROOM_LIVE_SENDER);
        if (room && room->opened && !room_ended(room))
            room_fail(room, abort->code, "%s", text);
        else /* a sender that comes later must hear of it at once */
            manager_tombstone_add(manager, abort->room, true, abort->code, text);
    }
    if (link->state == LINK_READY)
        link_send_fenced(link, abort->room, abort->ticket);
}

void room_on_abort(struct link *link, const struct wire_abort *abort)
{
    char text[WIRE_TEXT_MAX];
    wire_string_copy(abort->text, text, sizeof(text));
    struct leg *leg = room_find_leg(link, abort->room, abort->ticket);
    if (!leg) {
        room_abort_unopened(link, abort, text);
        return;
    }
    struct room *room = leg->room;
    if (leg->link != link) {
        /* The link is a new one to the same process: it asks again for a fence. */
        leg_detach(leg);
        leg_attach(leg, link);
    }
    leg->fence_told = false; /* every ABORT gets its FENCED */
    if (room->role == ROOM_SENDER && room->phantom) {
        manager_tombstone_add(link->manager, abort->room, true, abort->code, text);
        room_fail_from(room, leg, abort->code, text);
        return;
    }
    if (leg->doubt) {
        leg->doubt = false;
        leg->committed_last = false;
    }
    if (room_state(room) == BATON_SUCCESS)
        link_send_fenced(link, abort->room,
                         abort->ticket); /* it crossed LANDED: nothing is touched */
    else if (room_ended(room))
        room_settle(room);
    else
        room_fail_from(room, leg, abort->code, text);
}

void room_on_query(struct link *link, const struct wire_room *query)
{
    static const char text[] = "the link broke before everything had landed";
    struct wire_abort abort = {.room = query->room,
                               .ticket = query->ticket,
                               .code = BATON_EPEER,
                               .text = {text, sizeof(text) - 1}};
    if (manager_outcome_find(link->manager, query->room, query->ticket)) {
        LINK_SEND(link, room, WIRE_LANDED, query);
        return;
    }
    LINK_SEND(link, abort, WIRE_ABORT, &abort);
    if (link->state != LINK_READY)
        return;
    struct leg *leg = room_find_leg(link, query->room, query->ticket);
    if (!leg) {
        link_send_fenced(link, query->room, query->ticket);
        return;
    }
    /* Our workers may still be reading: FENCED follows when they have stopped. */
    leg_detach(leg);
    leg_attach(leg, link);
    room_settle(leg->room);
}

void room_on_fenced(struct link *link, const struct wire_room *fenced)
{
    struct leg *leg = room_find_leg(link, fenced->room, fenced->ticket);
    if (!leg) {
        atomic_fetch_add(&link->manager->frames_stale, 1);
        return;
    }
    leg_fenced_remote(leg);
}

/* ---- jobs and time ---- */

void room_job(struct runtime_job *job)
{
    struct room *room = (struct room *)((char *)job - offsetof(struct room, job));
    if (room->role == ROOM_FREE)
        return;
    uint32_t requests = atomic_exchange_explicit(&room->requests, 0, memory_order_acq_rel);
    uint32_t generation = room->generation;
    if (room->role == ROOM_SENDER)
        sender_requests(room, requests);
    else
        receiver_requests(room, requests);
    if (room->role == ROOM_FREE || room->generation != generation)
        return;
    /* After the last COMMIT the receiver decides; a closed sender waits for that by itself. */
    bool committed = atomic_load_explicit(&room->committed, memory_order_relaxed);
    if (requests & REQUEST_ABORT && !room_ended(room) && !committed)
        room_fail(room, room->abort_code, "%s", room->abort_text);
    if (requests & REQUEST_CLOSE) {
        room->owned = false;
        if (!room_ended(room) && !committed)
            room_fail(room, BATON_EABORTED, "closed by its owner before it ended");
    }
    if (room->role == ROOM_FREE)
        return; /* that was all there was to it */
    if (room->ending && !room->abort_unresolved)
        room_settle(room);
    else if (room->role == ROOM_SENDER)
        sender_progress(room);
    else
        receiver_progress(room);
}

void room_tick(struct room *room, uint64_t now_ns)
{
    if (room_ended(room)) {
        if (now_ns > room->match_ns) {
            room->abort_unresolved = false;
            for (struct leg *leg = room->legs; leg; leg = leg->next)
                leg->abort_owed = false; /* the link never came */
        }
        if (room->abort_unresolved)
            receiver_progress(room);
        else
            room_settle(room);
        return;
    }
    /* A sender past its last COMMIT has given the decision away: the receiver's own deadline makes
     * it answer. Should it never, this side ends on its own. */
    uint64_t grace = atomic_load_explicit(&room->committed, memory_order_relaxed)
                         ? room->manager->config.match_timeout_ms * NS_PER_MS
                         : 0;
    if (now_ns > room->deadline_ns + grace) {
        room_fail(room, BATON_ETIMEOUT,
                  "the deadline passed while %s, %llu ms after the room was opened",
                  baton_state_name(room_state(room)),
                  (unsigned long long)((now_ns - room->opened_ns) / NS_PER_MS));
        return;
    }
    if (room->role == ROOM_SENDER)
        sender_tick(room, now_ns);
    else
        receiver_tick(room, now_ns);
}
