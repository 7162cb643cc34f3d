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

static struct room **room_bucket(struct manager *manager, uint64_t id, enum room_role role)
{
    uint64_t hash = (id ^ (uint64_t)role << 62) * 0x9e3779b97f4a7c15ull;
    return &manager->room_index[(hash >> 32) & manager->room_mask];
}

static struct room *room_named(struct manager *manager, uint64_t id, enum room_role role)
{
    struct room *room = *room_bucket(manager, id, role);
    while (room && (room->id != id || room->role != role))
        room = room->index_next;
    return room;
}

struct room *manager_room_find(struct manager *manager, uint64_t id, enum room_role role)
{
    pthread_mutex_lock(&manager->lock);
    struct room *room = room_named(manager, id, role);
    pthread_mutex_unlock(&manager->lock);
    return room;
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
    atomic_store_explicit(&room->committed, false, memory_order_relaxed);
    atomic_store_explicit(&room->word, (uint64_t)generation << 32 | BATON_BOOTSTRAPPING,
                          memory_order_release);
}

int manager_room_acquire(struct manager *manager, uint64_t id, enum room_role role, bool named,
                         struct room **out, struct error err)
{
    int code = BATON_OK;
    pthread_mutex_lock(&manager->lock);
    if (named && room_named(manager, id, role)) {
        code = error_set(err, BATON_EEXIST,
                         "room %llu is already open here: a room number is used once",
                         (unsigned long long)id);
    } else if (manager->free_count == 0) {
        code = error_set(err, BATON_ELIMIT, "all %u rooms are in use (max_rooms)",
                         manager->config.max_rooms);
    } else {
        struct room *room = &manager->rooms[manager->free_slots[--manager->free_count]];
        room_reset(room, id, role);
        struct room **bucket = room_bucket(manager, id, role);
        room->named = named;
        if (named) {
            room->index_next = *bucket;
            *bucket = room;
        }
        *out = room;
        atomic_fetch_add(&manager->rooms_open, 1);
    }
    pthread_mutex_unlock(&manager->lock);
    if (code != BATON_OK)
        atomic_fetch_add(&manager->rooms_refused, 1);
    return code;
}

static void room_unname_locked(struct manager *manager, struct room *room)
{
    if (!room->named)
        return;
    struct room **slot = room_bucket(manager, room->id, room->role);
    while (*slot != room)
        slot = &(*slot)->index_next;
    *slot = room->index_next;
    room->named = false;
}

void manager_room_unname(struct manager *manager, struct room *room)
{
    pthread_mutex_lock(&manager->lock);
    room_unname_locked(manager, room);
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
    manager_room_unname(manager, room);
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
        if (atomic_load_explicit(&room->job.queued, memory_order_acquire)) {
            room->live_next = waiting;
            waiting = room;
            continue;
        }
        atomic_fetch_sub(&manager->rooms_open, 1);
        pthread_mutex_lock(&manager->lock);
        manager->free_slots[manager->free_count++] = room->slot;
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

void manager_tombstone_add(struct manager *manager, uint64_t room, bool from_peer, int code,
                           const char *text)
{
    struct tombstone *stone =
        &manager->tombstones[manager->tombstone_next++ % MANAGER_TOMBSTONES];
    stone->room = room;
    stone->from_peer = from_peer;
    stone->code = code;
    stone->expires_ns = clock_now_ns() + manager->config.match_timeout_ms * NS_PER_MS;
    snprintf(stone->text, sizeof(stone->text), "%s", text);
}

struct tombstone *manager_tombstone_find(struct manager *manager, uint64_t room, bool from_peer)
{
    uint64_t now = clock_now_ns();
    for (uint32_t i = 0; i < MANAGER_TOMBSTONES; i++) {
        struct tombstone *stone = &manager->tombstones[i];
        if (stone->room == room && stone->from_peer == from_peer && stone->expires_ns > now)
            return stone;
    }
    return NULL;
}

void manager_outcome_add(struct manager *manager, uint64_t room, uint32_t ticket)
{
    manager->outcomes[manager->outcome_next++ % MANAGER_OUTCOMES] =
        (struct outcome){room, ticket};
}

bool manager_outcome_find(const struct manager *manager, uint64_t room, uint32_t ticket)
{
    for (uint32_t i = 0; i < MANAGER_OUTCOMES; i++)
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
