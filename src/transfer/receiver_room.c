/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's half of a room, on the link thread.
 *
 *   BOOTSTRAPPING      topology, routes and links to every prefill rank are being made
 *   WAITING_FOR_INPUT  OPEN is out on all of them; GRANT follows when the caller has pages
 *   TRANSFERRING       a COMMIT or a byte came
 *   SUCCESS            every leg's bytes are counted and here (landing.c) */
#include "base/clock.h"
#include "link.h"
#include "manager.h"
#include "room.h"
#include "route.h"
#include "topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding the prefill ranks ---- */

static void receiver_on_dp_rank(void *arg, int code, const char *text, uint32_t dp_rank)
{
    struct room *room = arg;
    room->dp_call = NULL;
    if (code == BATON_OK)
        room->dp_rank = dp_rank;
    else if (code != BATON_AGAIN)
        room_fail(room, code, "%s", text);
    if (!room_ended(room))
        receiver_progress(room);
}

/* Which data-parallel group has the room; false while it is being asked. */
static bool receiver_choose_dp(struct room *room, const struct bootstrap_topology *topology)
{
    if (room->dp_rank >= 0)
        return true;
    if (room->prefill_dp_rank >= 0)
        room->dp_rank = room->prefill_dp_rank;
    else if (topology->dp_size <= 1)
        room->dp_rank = 0;
    else if (topology->follow_bootstrap_room)
        room->dp_rank = (int64_t)(room->id % topology->dp_size);
    else if (!room->dp_call && clock_now_ns() > room->dp_retry_ns) {
        room->dp_retry_ns = clock_now_ns() + 100 * NS_PER_MS;
        room->dp_call =
            bootstrap_query_dp_rank(room->manager->runtime->bootstrap, room->bootstrap,
                                    room->id, receiver_on_dp_rank, room);
    }
    return room->dp_rank >= 0;
}

static void receiver_resolve(struct room *room)
{
    struct manager *manager = room->manager;
    struct site *site = site_find(manager, room->bootstrap);
    const struct bootstrap_topology *topology = site ? site_topology(site) : NULL;
    char why[256];
    if (!site)
        room_fail(room, BATON_ENOMEM, "out of memory for a bootstrap address");
    if (!topology || !receiver_choose_dp(room, topology))
        return;
    struct topology_rank mine = {manager_tp_size(manager), manager_tp_rank(manager),
                                 manager_pp_size(manager), manager->config.pp_rank};
    struct topology_map map;
    uint32_t heads = 0;
    if (manager->region_count && !layout_is_opaque(&manager->regions[0].layout))
        heads = manager->regions[0].layout.total_heads;
    int code = topology_map_legs(topology->tp_size, topology->pp_size, mine, heads, &map,
                                 ERROR_BUFFER(why));
    if (code != BATON_OK) {
        room->abort_unresolved = false;
        room->resolved = true;
        room_fail(room, code, "%s", why);
        room_settle(room);
        return;
    }
    room->resolved = true;
    room->required_dst = map.required_dst;
    if (!room_ended(room))
        room->timeline.peers = map.leg_count;
    for (uint32_t i = 0; i < map.leg_count; i++) {
        struct leg *leg = leg_new(room);
        if (leg)
            leg->route = route_find(manager, room->bootstrap, (uint32_t)room->dp_rank,
                                    map.legs[i].tp_rank, map.legs[i].pp_rank);
        if (!leg || !leg->route) {
            room_fail(room, BATON_ENOMEM, "out of memory for a leg");
            return;
        }
        leg->rank = map.legs[i].tp_rank;
        leg->dummy = map.legs[i].dummy;
        leg->ticket = room->grant_ticket;
        if (room->ending) { /* failed meanwhile: they only need to be told */
            leg->ended = true;
            leg->abort_owed = true;
        }
    }
    room->abort_unresolved = false;
    bool held = room->held;
    room->held = true; /* a link that is up answers at once, and may end the room */
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        route_want(leg->route, leg);
    room->held = held;
}

void receiver_requests(struct room *room, uint32_t requests)
{
    struct manager *manager = room->manager;
    uint64_t now = clock_now_ns();
    if (requests & REQUEST_OPEN) {
        room->opened = room->owned = true;
        manager_room_live(manager, room);
        room->dp_rank = -1;
        room->deadline_ns = now + room->deadline_ms * NS_PER_MS;
        room->match_ns = now + manager->config.match_timeout_ms * NS_PER_MS;
        room->reach_ns = now + manager->config.reach_timeout_ms * NS_PER_MS;
        struct site *site = room->fake ? NULL : site_find(manager, room->bootstrap);
        if (site)
            site_want(site);
        if (room->fake) {
            snprintf(room->timeline.backend, sizeof(room->timeline.backend), "fake");
            room_advance(room, room->generation, BATON_WAITING_FOR_INPUT);
        }
    }
    if (requests & REQUEST_INIT) {
        room->init_seen = true;
        room->pages_held = true;
        if (room->init_deadline_ms)
            room->deadline_ns = now + room->init_deadline_ms * NS_PER_MS;
        if (room->ending) /* it failed before the pages came: nobody was told of them */
            atomic_store_explicit(&room->fenced, 0, memory_order_relaxed);
    }
}

/* ---- OPEN and GRANT ---- */

static uint32_t room_time_left(const struct room *room)
{
    uint64_t now = clock_now_ns();
    uint64_t left = room->deadline_ns > now ? (room->deadline_ns - now) / NS_PER_MS : 0;
    return left > UINT32_MAX ? UINT32_MAX : (uint32_t)left + 1;
}

void receiver_leg_ready(struct leg *leg)
{
    struct room *room = leg->room;
    struct link *link = leg->route->link;
    if (leg->peer && leg->peer->epoch != link->peer->epoch) {
        /* A new process at the old address: what the old one may do is for its exit to end. */
        leg_detach(leg);
        return;
    }
    leg_detach(leg);
    leg_attach(leg, link);
    if (room->ending) {
        /* Aborted before the link came, or in quarantine since the last link broke. */
        bool tell = leg->abort_owed || leg->fence_remote;
        if (tell)
            leg_send_abort(leg);
        room_settle(room);
        return;
    }
    struct wire_open open = {.room = room->id,
                             .ticket = leg->ticket,
                             .time_left_ms = room_time_left(room),
                             .queue_position = room->queue_position,
                             .rank = manager_rank_label(room->manager),
                             .required_dst = room->required_dst};
    leg->opened = true;
    LINK_SEND(link, open, WIRE_OPEN, &open);
    if (!room_ended(room))
        receiver_progress(room);
}

static void leg_send_grant(struct leg *leg, bool first)
{
    struct room *room = leg->room;
    struct wire_grant *grant = calloc(1, sizeof(*grant));
    if (!grant) {
        room_fail(room, BATON_ENOMEM, "out of memory for a GRANT");
        return;
    }
    grant->room = room->id;
    grant->ticket = leg->ticket;
    grant->flags = leg->dummy ? WIRE_GRANT_DUMMY : 0;
    grant->time_left_ms = room_time_left(room);
    grant->rank = manager_rank_label(room->manager);
    grant->required_dst = room->required_dst;
    grant->prefix = room->prefix_len;
    grant->aux_slot =
        first ? room->aux_slot : -1; /* every rank has the same aux: one sends it */
    if (!leg->dummy) {
        grant->pages = (struct wire_pages){(const uint8_t *)room->pages, room->page_capacity};
        for (uint32_t i = 0; i < room->state_count; i++)
            grant->states[grant->state_count++] = (struct wire_state_pages){
                room->states[i].region,
                room->states[i].first_token,
                {(const uint8_t *)room->states[i].pages, room->states[i].count}};
    }
    leg->granted = true;
    leg->aux_slot = grant->aux_slot;
    leg->remote_writer = leg->endpoint->ops->capabilities & BACKEND_REMOTE_WRITER;
    LINK_SEND(leg->link, grant, WIRE_GRANT, grant);
    free(grant);
}

static void receiver_grant(struct room *room)
{
    bool first = true;
    bool counted = false;
    room->granted = true;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        counted |= leg->endpoint->ops->capabilities & BACKEND_COUNTED;
    if (counted) /* only then may workers look the room up */
        atomic_store_explicit(&room->ticket, room->grant_ticket, memory_order_release);
    room_time(room, &room->timeline.granted_ns);
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (!room->timeline.backend[0] && !leg->dummy) {
            snprintf(room->timeline.backend, sizeof(room->timeline.backend), "%s",
                     leg->endpoint->ops->name);
            snprintf(room->timeline.reason, sizeof(room->timeline.reason), "%.100s",
                     leg->link->choice);
        }
        leg_send_grant(leg, first && !leg->dummy);
        if (!leg->dummy)
            first = false;
        if (room_ended(room))
            return;
    }
}

/* ---- moving on ---- */

void receiver_progress(struct room *room)
{
    char why[160];
    bool ready = true, landed = true;
    if (!room->opened)
        return;
    if (room->fake) {
        if (room->init_seen && !room->ending)
            room_succeed(room);
        return;
    }
    if (!room->resolved)
        receiver_resolve(room);
    if (room->ending) {
        room_settle(room);
        return;
    }
    if (!room->resolved)
        return;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        ready &= leg->opened && leg->link;
        int code = copy_error(&leg->copy, why, sizeof(why));
        if (code) {
            room_fail(room, code, "reading from %s: %s", leg->peer->name, why);
            return;
        }
    }
    if (!ready)
        return;
    if (room_state(room) == BATON_BOOTSTRAPPING) {
        room_time(room, &room->timeline.bootstrapped_ns);
        room_advance(room, room->generation, BATON_WAITING_FOR_INPUT);
    }
    if (room->init_seen && !room->granted)
        receiver_grant(room);
    if (!room->granted || room_ended(room))
        return;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        landed &= leg_landed(leg);
        if (room_ended(room))
            return;
    }
    if (landed)
        receiver_land(room);
}

void receiver_tick(struct room *room, uint64_t now_ns)
{
    if (!room->opened || room->fake)
        return;
    if (!room->resolved) {
        receiver_progress(room);
        struct site *site = site_find(room->manager, room->bootstrap);
        const char *trouble = site ? site->trouble : "";
        if (!room_ended(room) && !room->resolved &&
            (now_ns > room->match_ns || (now_ns > room->reach_ns && *trouble)))
            room_fail(room, BATON_EUNMATCHED,
                      "no prefill group was found at %s within %llu ms: %s", room->bootstrap,
                      (unsigned long long)((now_ns - room->opened_ns) / NS_PER_MS),
                      *trouble ? trouble : "no answer");
        return;
    }
    if (now_ns <= room->reach_ns || room_state(room) != BATON_BOOTSTRAPPING)
        return;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (!leg->opened && (now_ns > room->match_ns || leg->route->trouble[0])) {
            room_fail(room, BATON_EUNMATCHED,
                      "no link with prefill rank tp %u of %s within %u ms: %s", leg->rank,
                      room->bootstrap, (uint32_t)((now_ns - room->opened_ns) / NS_PER_MS),
                      leg->route->trouble[0] ? leg->route->trouble : "no answer");
            return;
        }
    }
}
