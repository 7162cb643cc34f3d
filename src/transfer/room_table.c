/* SPDX-License-Identifier: Apache-2.0 */
/* The manager's table of rooms: slots, names, tickets, and the memory of rooms that are over.
 *
 * Slots are taken by whichever thread opens a room, under the manager's lock, and given back by the
 * link thread, when no room code is on its stack and no job of the room is queued (manager_reap):
 * from then on another thread may be writing into it. A slot's generation grows with each use. The ticket that names a grant where only 32
 * bits fit is slot | generation << bits, so it is unique among live and quarantined rooms and found
 * without a search. */
#include "base/clock.h"
#include "manager.h"

#include <stdio.h>
#include <string.h>

/* The index knows live rooms by role, and beside them rooms that frames may still mean: phantoms,
 * and senders' rooms that have ended but whose fence is still being asked for. */
static struct room **room_bucket(struct manager *manager, uint64_t id, enum room_class class)
{
    uint64_t hash = (id ^ (uint64_t) class << 60) * 0x9e3779b97f4a7c15ull;
    return &manager->room_index[(hash >> 32) & manager->room_mask];
}

static struct room *room_skip(struct room *room, uint64_t id, enum room_class class)
{
    while (room && (room->id != id || room->class != class))
        room = room->index_next;
    return room;
}

struct room *manager_room_find(struct manager *manager, uint64_t id, enum room_class class)
{
    pthread_mutex_lock(&manager->lock);
    struct room *room = room_skip(*room_bucket(manager, id, class), id, class);
    pthread_mutex_unlock(&manager->lock);
    return room;
}

struct room *manager_room_next(struct manager *manager, const struct room *room)
{
    pthread_mutex_lock(&manager->lock);
    struct room *next = room_skip(room->index_next, room->id, room->class);
    pthread_mutex_unlock(&manager->lock);
    return next;
}

static void room_index_remove(struct manager *manager, struct room *room)
{
    if (room->class == ROOM_UNNAMED)
        return;
    struct room **slot = room_bucket(manager, room->id, room->class);
    while (*slot != room)
        slot = &(*slot)->index_next;
    *slot = room->index_next;
    room->class = ROOM_UNNAMED;
}

static void room_index_add(struct manager *manager, struct room *room, enum room_class class)
{
    struct room **bucket = room_bucket(manager, room->id, class);
    room->class = class;
    room->index_next = *bucket;
    *bucket = room;
}

static void room_reset(struct room *room, uint64_t id, enum room_role role)
{
    struct manager *manager = room->manager;
    uint32_t slot = room->slot, generation = room->generation, ticket;
    uint32_t bits = (uint32_t)__builtin_ctz(manager->room_mask + 1);
    do {
        generation++;
        ticket = slot | generation << bits;
    } while (generation == 0 || ticket == 0);
    /* Everything but the job, which may still be in the queue, and the atomics that other threads
     * may be reading through an old handle. */
    memset((char *)room + offsetof(struct room, id), 0,
           sizeof(*room) - offsetof(struct room, id));
    room->id = id;
    room->role = role;
    room->generation = generation;
    room->grant_ticket = ticket;
    room->aux_slot = -1;
    room->dp_rank = -1;
    atomic_store_explicit(&room->requests, 0, memory_order_relaxed);
    atomic_store_explicit(&room->watermark, 0, memory_order_relaxed);
    atomic_store_explicit(&room->ticket, 0, memory_order_relaxed);
    atomic_store_explicit(&room->prefix, 0, memory_order_relaxed);
    atomic_store_explicit(&room->written, 0, memory_order_relaxed);
    atomic_store_explicit(&room->committed, false, memory_order_relaxed);
    atomic_store_explicit(&room->word, (uint64_t)generation << 32 | BATON_BOOTSTRAPPING,
                          memory_order_release);
}

int manager_room_acquire(struct manager *manager, uint64_t id, enum room_class class,
                         struct room **out, struct error err)
{
    int code = BATON_OK;
    pthread_mutex_lock(&manager->lock);
    if (class != ROOM_PHANTOM && room_skip(*room_bucket(manager, id, class), id, class)) {
        code = error_set(err, BATON_EEXIST,
                         "room %llu is already open here: a room number is used once",
                         (unsigned long long)id);
    } else if (manager->free_count[class == ROOM_PHANTOM] == 0) {
        code = error_set(err, BATON_ELIMIT, "all %u rooms are in use (max_rooms)",
                         manager->config.max_rooms);
    } else {
        uint32_t stack = class == ROOM_PHANTOM;
        struct room *room =
            &manager->rooms[manager->free_slots[stack][--manager->free_count[stack]]];
        room_reset(room, id, class == ROOM_LIVE_RECEIVER ? ROOM_RECEIVER : ROOM_SENDER);
        room_index_add(manager, room, class);
        *out = room;
        atomic_fetch_add(&manager->rooms_open, 1);
    }
    pthread_mutex_unlock(&manager->lock);
    if (code != BATON_OK)
        atomic_fetch_add(&manager->rooms_refused, 1);
    return code;
}

void manager_room_unname(struct manager *manager, struct room *room)
{
    pthread_mutex_lock(&manager->lock);
    room_index_remove(manager, room);
    room_index_add(manager, room,
                   room->role == ROOM_SENDER ? ROOM_ENDED_SENDER : ROOM_ENDED_RECEIVER);
    pthread_mutex_unlock(&manager->lock);
}

void manager_room_live(struct manager *manager, struct room *room)
{
    if (room->live_slot)
        return;
    room->live_next = manager->live;
    room->live_slot = &manager->live;
    if (room->live_next)
        room->live_next->live_slot = &room->live_next;
    manager->live = room;
}

void manager_room_release(struct manager *manager, struct room *room)
{
    if (room->live_slot) {
        *room->live_slot = room->live_next;
        if (room->live_next)
            room->live_next->live_slot = room->live_slot;
        room->live_slot = NULL;
    }
    pthread_mutex_lock(&manager->lock);
    room_index_remove(manager, room);
    pthread_mutex_unlock(&manager->lock);
    room->role = ROOM_FREE;
    room->live_next = manager->released;
    manager->released = room;
}

void manager_reap(struct manager *manager)
{
    struct room *waiting = NULL;
    while (manager->released) {
        struct room *room = manager->released;
        manager->released = room->live_next;
        /* In this order: a poster counts itself out after its post. */
        bool posted = atomic_load_explicit(&room->posters, memory_order_acquire) > 0 ||
                      atomic_load_explicit(&room->job.queued, memory_order_acquire);
        if (posted) {
            room->live_next = waiting;
            waiting = room;
            continue;
        }
        atomic_fetch_sub(&manager->rooms_open, 1);
        pthread_mutex_lock(&manager->lock);
        uint32_t stack = room->slot >= manager->config.max_rooms;
        manager->free_slots[stack][manager->free_count[stack]++] = room->slot;
        pthread_mutex_unlock(&manager->lock);
    }
    manager->released = waiting;
}

struct room *manager_room_by_ticket(struct manager *manager, uint32_t ticket)
{
    struct room *room = &manager->rooms[ticket & manager->room_mask];
    if (!ticket || (ticket & manager->room_mask) >= manager->config.max_rooms)
        return NULL;
    return atomic_load_explicit(&room->ticket, memory_order_acquire) == ticket ? room : NULL;
}

/* ---- what is over ---- */

/* One place per hash: a collision forgets the older, and its room ends by match_timeout instead. */
static struct tombstone *tombstone_place(struct manager *manager, uint64_t room, bool from_peer)
{
    uint64_t hash = (room * 2 + from_peer) * 0x9e3779b97f4a7c15ull;
    return &manager->tombstones[(hash >> 32) % MANAGER_TOMBSTONES];
}

void manager_tombstone_add(struct manager *manager, uint64_t room, bool from_peer, int code,
                           const char *text)
{
    struct tombstone *stone = tombstone_place(manager, room, from_peer);
    stone->room = room;
    stone->from_peer = from_peer;
    stone->code = code;
    stone->expires_ns = clock_now_ns() + manager->config.match_timeout_ms * NS_PER_MS;
    snprintf(stone->text, sizeof(stone->text), "%s", text);
}

struct tombstone *manager_tombstone_find(struct manager *manager, uint64_t room, bool from_peer)
{
    struct tombstone *stone = tombstone_place(manager, room, from_peer);
    return stone->room == room && stone->from_peer == from_peer &&
                   stone->expires_ns > clock_now_ns()
               ? stone
               : NULL;
}

void manager_outcome_add(struct manager *manager, uint64_t room, uint32_t ticket)
{
    manager->outcomes[manager->outcome_next++ & manager->room_mask] =
        (struct outcome){room, ticket};
}

bool manager_outcome_find(const struct manager *manager, uint64_t room, uint32_t ticket)
{
    for (uint32_t i = 0; i <= manager->room_mask; i++)
        if (manager->outcomes[i].ticket == ticket && manager->outcomes[i].room == room)
            return true;
    return false;
}

void manager_ticket_refuse(struct manager *manager, uint64_t epoch, uint32_t ticket)
{
    manager->refused[ticket % MANAGER_REFUSED] = (struct refused_ticket){epoch, ticket};
}

bool manager_ticket_refused(const struct manager *manager, uint64_t epoch, uint32_t ticket)
{
    const struct refused_ticket *refused = &manager->refused[ticket % MANAGER_REFUSED];
    return ticket && refused->ticket == ticket && refused->epoch == epoch;
}
