/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's half of a room.
 *
 *   BOOTSTRAPPING      topology, routes and links to every prefill rank are being made
 *   WAITING_FOR_INPUT  OPEN is out on all of them; GRANT follows when the caller has pages
 *   TRANSFERRING       a COMMIT or a byte came
 *   SUCCESS            every leg's bytes are counted and here; LANDED is told to all of them at once
 *
 * The receiver decides. What COMMIT claims is compared with what the plan for its own pages demands,
 * with what its workers counted (tcp) or read (cma), and, where asked for, with a sum over the
 * bytes: a sender that stops short, whatever the reason, cannot make a room succeed. */
#include "base/clock.h"
#include "base/log.h"
#include "link.h"
#include "manager.h"
#include "room.h"
#include "route.h"
#include "topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct baton_receiver {
    struct room *room;
    uint32_t generation;
};

/* ---- the caller's side ---- */

static void room_request(struct room *room, uint32_t request)
{
    atomic_fetch_or_explicit(&room->requests, request, memory_order_acq_rel);
    runtime_post(room->manager->runtime, &room->job);
}

int baton_receiver_open(baton_manager *handle, const baton_receiver_options *options,
                        baton_receiver **out, char *err_text, size_t err_size)
{
    struct error err = {err_text, err_size};
    if (!handle || !options || !out || options->struct_size < sizeof(*options))
        return error_set(err, BATON_EINVAL,
                         "manager, options (with struct_size) and out are needed");
    struct manager *manager = &handle->m;
    const char *bootstrap = options->bootstrap ? options->bootstrap : manager->config.bootstrap;
    char host[64];
    uint16_t port;
    if (options->room > INT64_MAX)
        return error_set(err, BATON_EINVAL, "room %llu is over 2^63-1",
                         (unsigned long long)options->room);
    int code = bootstrap_address_parse(bootstrap, host, sizeof(host), &port, err);
    bool fake = code == BATON_OK && strcmp(host, "2.2.2.2") == 0;
    if (code == BATON_OK && !fake)
        code = bootstrap_address_allowed(bootstrap, manager->config.bootstrap_allow, err);
    if (code != BATON_OK)
        return code;
    baton_receiver *receiver = calloc(1, sizeof(*receiver));
    if (!receiver)
        return error_set(err, BATON_ENOMEM, "out of memory for a receiver");
    struct room *room;
    code = manager_room_acquire(manager, options->room, ROOM_LIVE_RECEIVER, &room, err);
    if (code != BATON_OK) {
        free(receiver);
        return code;
    }
    snprintf(room->bootstrap, sizeof(room->bootstrap), "%s", bootstrap);
    room->prefill_dp_rank = options->prefill_dp_rank;
    room->queue_position = options->queue_position;
    room->deadline_ms =
        options->deadline_ms ? options->deadline_ms : manager->config.deadline_ms;
    room->fake = fake;
    receiver->room = room;
    receiver->generation = room->generation;
    room_request(room, REQUEST_OPEN);
    *out = receiver;
    return BATON_OK;
}

static int region_take_pages(struct region *region, const int32_t *pages, uint32_t count,
                             uint32_t ticket)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t none = 0;
        int code = pages[i] < 0 || (uint32_t)pages[i] >= region->layout.pages ? BATON_EINVAL
                                                                              : BATON_OK;
        if (code == BATON_OK && !atomic_compare_exchange_strong_explicit(
                                    &region->page_ticket[pages[i]], &none, ticket,
                                    memory_order_acq_rel, memory_order_relaxed))
            code = BATON_EBUSY;
        if (code != BATON_OK) {
            while (i-- > 0)
                atomic_store_explicit(&region->page_ticket[pages[i]], 0, memory_order_release);
            return code;
        }
    }
    return BATON_OK;
}

static void region_give_pages(struct region *region, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(&region->page_ticket[pages[i]], 0, memory_order_release);
}

static int receiver_copy_states(struct room *room, const baton_receiver_init_options *options)
{
    struct manager *manager = room->manager;
    for (uint32_t i = 0; i < options->state_count; i++) {
        const baton_state_pages *from = &options->states[i];
        struct state_list *list = &room->states[room->state_count];
        if (from->region == 0 || from->region >= manager->region_count ||
            (from->count && !from->pages))
            return BATON_EINVAL;
        for (uint32_t k = 0; k < room->state_count; k++)
            if (room->states[k].region == from->region)
                return BATON_EINVAL;
        list->pages = malloc(((size_t)from->count + 1) * sizeof(int32_t));
        if (!list->pages)
            return BATON_ENOMEM;
        if (from->count)
            memcpy(list->pages, from->pages, from->count * sizeof(int32_t));
        list->region = from->region;
        list->first_token = from->first_token;
        list->count = from->count;
        int code = region_take_pages(&manager->regions[from->region], list->pages, list->count,
                                     room->grant_ticket);
        if (code != BATON_OK) {
            free(list->pages);
            return code;
        }
        room->state_count++;
    }
    return BATON_OK;
}

int baton_receiver_init(baton_receiver *receiver, const baton_receiver_init_options *options)
{
    if (!receiver || !options || options->struct_size < sizeof(*options) ||
        (options->page_count && !options->pages) || options->state_count > WIRE_REGIONS_MAX)
        return BATON_EINVAL;
    struct room *room = receiver->room;
    struct manager *manager = room->manager;
    if (room->initialised || room_ended(room))
        return BATON_ESTATE;
    if ((options->page_count && manager->region_count == 0) ||
        options->page_count > WATERMARK_PAGES_MAX ||
        (options->aux_slot >= 0 && (uint32_t)options->aux_slot >= manager->aux_slots))
        return BATON_EINVAL;
    int32_t *pages = malloc(((size_t)options->page_count + 1) * sizeof(int32_t));
    if (!pages)
        return BATON_ENOMEM;
    if (options->page_count)
        memcpy(pages, options->pages, options->page_count * sizeof(int32_t));
    int code =
        region_take_pages(&manager->regions[0], pages, options->page_count, room->grant_ticket);
    if (code == BATON_OK) {
        code = receiver_copy_states(room, options);
        if (code != BATON_OK) {
            for (uint32_t i = 0; i < room->state_count; i++) {
                region_give_pages(&manager->regions[room->states[i].region],
                                  room->states[i].pages, room->states[i].count);
                free(room->states[i].pages);
            }
            room->state_count = 0;
            region_give_pages(&manager->regions[0], pages, options->page_count);
        }
    }
    if (code != BATON_OK) {
        free(pages);
        return code;
    }
    room->pages = pages;
    room->page_capacity = options->page_count;
    room->prefix_len = options->prefix;
    room->aux_slot = options->aux_slot;
    room->init_deadline_ms = options->deadline_ms;
    room->initialised = true;
    room_request(room, REQUEST_INIT);
    return BATON_OK;
}

int baton_receiver_poll(const baton_receiver *receiver)
{
    uint64_t word = atomic_load_explicit(&receiver->room->word, memory_order_acquire);
    baton_manager_tick((baton_manager *)receiver->room->manager);
    return word >> 32 == receiver->generation ? (int)(uint32_t)word : BATON_FAILED;
}

int baton_receiver_abort(baton_receiver *receiver, const char *reason)
{
    if (!receiver)
        return BATON_EINVAL;
    struct room *room = receiver->room;
    if (room_ended(room))
        return BATON_ESTATE;
    if (!room->abort_text[0])
        snprintf(room->abort_text, sizeof(room->abort_text), "%s",
                 reason && *reason ? reason : "aborted by the decode side");
    room_request(room, REQUEST_ABORT);
    return BATON_OK;
}

int baton_receiver_failure(const baton_receiver *receiver, char *text, size_t size)
{
    return receiver ? room_failure(receiver->room, text, size) : BATON_EINVAL;
}

int baton_receiver_fenced(const baton_receiver *receiver)
{
    return atomic_load_explicit(&receiver->room->fenced, memory_order_acquire) ==
           receiver->generation;
}

int baton_receiver_timeline(const baton_receiver *receiver, baton_timeline *out)
{
    return receiver ? room_timeline(receiver->room, out) : BATON_EINVAL;
}

void baton_receiver_close(baton_receiver *receiver)
{
    if (!receiver)
        return;
    room_request(receiver->room, REQUEST_CLOSE);
    free(receiver);
}

struct room *receiver_room(const baton_receiver *receiver)
{
    return receiver->room;
}

/* ---- link thread: finding the prefill ranks ---- */

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
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        route_want(leg->route, leg);
}

void receiver_requests(struct room *room, uint32_t requests)
{
    struct manager *manager = room->manager;
    uint64_t now = clock_now_ns();
    if (requests & REQUEST_OPEN) {
        room->opened = room->owned = true;
        manager_room_live(manager, room);
        room->opened_ns = now;
        room->dp_rank = -1;
        room->deadline_ns = now + room->deadline_ms * NS_PER_MS;
        room->match_ns = now + manager->config.match_timeout_ms * NS_PER_MS;
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
                             .rank = manager_tp_rank(room->manager),
                             .required_dst = room->required_dst};
    if (!room->manager->config.tp_size)
        open.rank = room->manager->config.rank;
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
    grant->rank = room->manager->config.rank;
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
    bool streams = false;
    room->granted = true;
    for (struct leg *leg = room->legs; leg; leg = leg->next)
        streams |= leg->endpoint->ops->capabilities & BACKEND_STREAMS;
    if (streams) /* only then may workers look the room up */
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

/* ---- COMMIT, AUX and counting ---- */

static struct leg *receiver_leg(struct link *link, uint64_t id, uint32_t ticket)
{
    struct room *room = manager_room_find(link->manager, id, ROOM_LIVE_RECEIVER);
    bool live = room && room->grant_ticket == ticket && room->granted && !room_ended(room);
    struct leg *leg = live ? room_leg_on(room, link) : NULL;
    if (!leg)
        atomic_fetch_add(&link->manager->frames_stale, 1); /* the room has ended here */
    return leg;
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
    return copy_start(copy, leg->endpoint->lane_count, leg->endpoint->workers);
}

static int leg_add_source_states(struct leg *leg, const struct wire_commit *commit,
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
        leg->copy.regions[leg->copy.region_count++] = (struct copy_region){
            .region = room->states[i].region,
            .src = &theirs->regions[from->region].layout,
            .dst = &mine->layout,
            .src_pages = list->pages,
            .dst_pages = room->states[i].pages,
            .src_count = list->count,
            .dst_count = room->states[i].count,
            .src_first_token = list->first_token,
            .dst_first_token = room->states[i].first_token,
        };
    }
    return BATON_OK;
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
    if (commit->flags & WIRE_COMMIT_LAST) {
        int code = leg_add_source_states(leg, commit, err);
        if (code != BATON_OK)
            return code;
    }
    atomic_store_explicit(&leg->source_watermark, commit->watermark, memory_order_release);
    copy_wake(&leg->copy);
    return BATON_OK;
}

void receiver_on_commit(struct link *link, const struct wire_commit *commit)
{
    struct leg *leg = receiver_leg(link, commit->room, commit->ticket);
    char why[WIRE_TEXT_MAX];
    if (!leg)
        return;
    struct room *room = leg->room;
    if (leg->last_seen || leg->dummy || !(commit->flags & WIRE_COMMIT_SOURCE)) {
        atomic_fetch_add(&link->manager->frames_bad, 1);
        link_close(link, BATON_EPROTOCOL, "COMMIT out of place for room %llu",
                   (unsigned long long)commit->room);
        return;
    }
    room_time(room, &room->timeline.first_send_ns);
    leg->source_total = commit->total_pages;
    leg->source_first_token = commit->first_token;
    leg->source_tokens = commit->tokens;
    memcpy(leg->expected, commit->lanes, sizeof(leg->expected));
    leg->expected_lanes = commit->lane_count;
    leg->expected_aux = commit->aux_bytes;
    leg->expected_sum = commit->sum;
    leg->last_seen = commit->flags & WIRE_COMMIT_LAST;
    if (leg->endpoint->ops->capabilities & BACKEND_GET) {
        int code = leg_read_on(leg, commit, ERROR_BUFFER(why));
        if (code != BATON_OK) {
            room_fail(room, code, "%s", why);
            return;
        }
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

/* What the plan for our pages demands of this leg, walked as the sender does but over our own side
 * only: the destination of a plan does not depend on which pages the source used. */
static int leg_expected_bytes(struct leg *leg, uint64_t *bytes, uint64_t *sum, struct error err)
{
    struct room *room = leg->room;
    struct manager *manager = room->manager;
    const struct wire_register *theirs = &leg->peer->memory;
    int code = BATON_OK;
    *bytes = *sum = 0;
    int32_t *any = NULL;
    uint32_t any_count = leg->source_total;
    for (uint32_t i = 0; i < room->state_count; i++)
        if (room->states[i].count > any_count)
            any_count = room->states[i].count;
    if (any_count > WATERMARK_PAGES_MAX)
        return error_set(err, BATON_EPROTOCOL, "COMMIT claims %u pages", any_count);
    any = calloc((size_t)any_count + 1, sizeof(int32_t));
    if (!any)
        return error_set(err, BATON_ENOMEM, "out of memory for checking a COMMIT");
    for (uint32_t i = 0; code == BATON_OK && i < room->state_count + 1; i++) {
        const struct state_list *state = i ? &room->states[i - 1] : NULL;
        const struct region *mine = &manager->regions[state ? state->region : 0];
        const struct layout *src = &theirs->regions[0].layout;
        for (uint32_t k = 1; state && k < theirs->region_count; k++)
            if (strcmp(theirs->regions[k].name, mine->name) == 0)
                src = &theirs->regions[k].layout;
        struct plan_input input = {
            .src = src,
            .dst = &mine->layout,
            .src_pages = any,
            .dst_pages = state ? state->pages : room->pages,
            .src_page_count = state ? state->count : leg->source_total,
            .dst_page_count = state ? state->count : room->page_capacity,
            .src_first_token = state ? state->first_token : leg->source_first_token,
            .dst_first_token = state ? state->first_token : room->prefix_len,
            .layer_end = src->layers};
        if (!state && leg->source_tokens)
            input.tokens = leg->source_first_token + leg->source_tokens;
        if (state && src->tokens_per_page < mine->layout.tokens_per_page)
            continue; /* window of another page size: its length is the sender's to know */
        input.page_end = input.src_page_count;
        struct plan plan;
        if (input.dst_page_count == 0)
            continue;
        if (!state)
            code = plan_covers(&input, err);
        if (code == BATON_OK)
            code = plan_open(&plan, &input, err);
        if (code != BATON_OK)
            break;
        *bytes += plan_bytes(&plan);
        struct plan_run runs[COPY_BATCH_RUNS];
        uint32_t count;
        bool verify = manager->config.verify || theirs->verify;
        while (verify && (count = plan_next(&plan, runs, COPY_BATCH_RUNS)))
            for (uint32_t r = 0; r < count; r++)
                *sum += copy_sum(
                    state ? state->region : 0, runs[r].dst_base, runs[r].dst_offset,
                    (const uint8_t *)(uintptr_t)mine->layout.bases[runs[r].dst_base].address +
                        runs[r].dst_offset,
                    runs[r].length);
    }
    free(any);
    return code;
}

/* Are this leg's bytes all here? Fails the room when they never will be. */
static bool leg_landed(struct leg *leg)
{
    struct room *room = leg->room;
    if (leg->dummy)
        return true;
    if (!leg->last_seen)
        return false;
    if (leg->received_aux != leg->expected_aux) {
        room_fail(room, BATON_EPROTOCOL, "%u aux bytes came where COMMIT said %u",
                  leg->received_aux, leg->expected_aux);
        return false;
    }
    uint32_t capabilities = leg->endpoint->ops->capabilities;
    for (uint32_t i = 0; capabilities & BACKEND_STREAMS && i < leg->expected_lanes; i++) {
        uint64_t landed = atomic_load_explicit(&leg->landed_bytes[i], memory_order_acquire);
        if (landed < leg->expected[i].bytes)
            return false;
        if (landed > leg->expected[i].bytes) {
            room_fail(room, BATON_EPROTOCOL,
                      "stream %u carried %llu bytes where COMMIT said %llu", i,
                      (unsigned long long)landed, (unsigned long long)leg->expected[i].bytes);
            return false;
        }
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
    }
    room->timeline.bytes += bytes;
    room->timeline.operations += operations;
    int code = leg_expected_bytes(leg, &needed, &sum, ERROR_BUFFER(why));
    if (code != BATON_OK) {
        room_fail(room, code, "%s", why);
        return false;
    }
    if (bytes < needed) {
        room_fail(room, BATON_ECORRUPT, "%s committed %llu bytes, the grant needs %llu",
                  leg->peer->name, (unsigned long long)bytes, (unsigned long long)needed);
        return false;
    }
    bool verify = room->manager->config.verify || leg->peer->memory.verify;
    if (verify && leg->endpoint->ops->capabilities & BACKEND_PUT && sum != leg->expected_sum) {
        room_fail(room, BATON_ECORRUPT,
                  "the sum over the received pages is not the one %s sent", leg->peer->name);
        return false;
    }
    return true;
}

static void receiver_land(struct room *room)
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
    if (room->ending || !room->resolved)
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
        if (!room_ended(room) && !room->resolved && now_ns > room->match_ns) {
            struct site *site = site_find(room->manager, room->bootstrap);
            room_fail(room, BATON_EUNMATCHED,
                      "no prefill group was found at %s within %u ms: %s", room->bootstrap,
                      room->manager->config.match_timeout_ms,
                      site && site->trouble[0] ? site->trouble : "no answer");
        }
        return;
    }
    if (now_ns <= room->match_ns || room_state(room) != BATON_BOOTSTRAPPING)
        return;
    for (struct leg *leg = room->legs; leg; leg = leg->next) {
        if (!leg->opened) {
            room_fail(room, BATON_EUNMATCHED,
                      "no link with prefill rank tp %u of %s within %u ms: %s", leg->rank,
                      room->bootstrap, room->manager->config.match_timeout_ms,
                      leg->route->trouble[0] ? leg->route->trouble : "no answer");
            return;
        }
    }
}
