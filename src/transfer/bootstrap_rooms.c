/* SPDX-License-Identifier: Apache-2.0 */
/* POST /register_dp_rank and /query_dp_ranks: which dp rank has which room. Rooms are kept in a
 * hash table and, by age, in a list: each is forgotten after BOOTSTRAP_ROOM_TTL_NS, and the
 * list's head is always the next to go. */
#include "bootstrap_parts.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/random.h>

#define ROOM_BUCKETS 65536u /* fixed: sixteen rooms a bucket at the limit, and never a rehash */

struct room {
    TAILQ_ENTRY(room) by_age;
    LIST_ENTRY(room) in_bucket;
    uint64_t number;
    uint64_t registered_ns;
    uint32_t dp_rank;
};
TAILQ_HEAD(room_age_list, room);
LIST_HEAD(room_bucket, room);

struct bootstrap_rooms {
    struct room_age_list by_age; /* oldest first */
    struct room_bucket *buckets;
    uint32_t count, most;
    uint64_t hash_key;
};

/* Keyed, so that nobody can choose rooms that all fall into one bucket. */
static struct room_bucket *room_bucket(const struct bootstrap_rooms *rooms, uint64_t number)
{
    uint64_t mixed = number ^ rooms->hash_key;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    mixed ^= rooms->hash_key >> 7;
    return &rooms->buckets[(mixed ^ (mixed >> 31)) % ROOM_BUCKETS];
}

static struct room *room_find(const struct bootstrap_rooms *rooms, uint64_t number)
{
    struct room *room;
    LIST_FOREACH(room, room_bucket(rooms, number), in_bucket)
    {
        if (room->number == number)
            return room;
    }
    return NULL;
}

static bool room_expired(const struct room *room, uint64_t now)
{
    return now - room->registered_ns > BOOTSTRAP_ROOM_TTL_NS;
}

static void room_remove(struct bootstrap_rooms *rooms, struct room *room)
{
    TAILQ_REMOVE(&rooms->by_age, room, by_age);
    LIST_REMOVE(room, in_bucket);
    rooms->count--;
    free(room);
}

static void rooms_sweep(struct bootstrap_rooms *rooms)
{
    uint64_t now = clock_now_ns();
    struct room *oldest;
    while ((oldest = TAILQ_FIRST(&rooms->by_age)) && room_expired(oldest, now))
        room_remove(rooms, oldest);
}

void bootstrap_table_sweep(struct bootstrap_table *table)
{
    rooms_sweep(table->rooms);
}

uint32_t bootstrap_table_rooms(const struct bootstrap_table *table)
{
    return table->rooms->count;
}

static bool room_store(struct bootstrap_rooms *rooms, uint64_t number, uint32_t dp_rank)
{
    rooms_sweep(rooms);
    struct room *room = room_find(rooms, number);
    if (room) {
        TAILQ_REMOVE(&rooms->by_age, room, by_age);
    } else {
        if (rooms->count >= rooms->most || !(room = malloc(sizeof(*room))))
            return false;
        room->number = number;
        LIST_INSERT_HEAD(room_bucket(rooms, number), room, in_bucket);
        rooms->count++;
    }
    room->dp_rank = dp_rank;
    room->registered_ns = clock_now_ns();
    TAILQ_INSERT_TAIL(&rooms->by_age, room, by_age);
    return true;
}

void bootstrap_rooms_register(struct bootstrap_rooms *rooms,
                              const struct bootstrap_request *request,
                              struct bootstrap_reply *reply)
{
    uint64_t room;
    int64_t dp_rank;
    json_t *json = bootstrap_body_parse(request, reply);
    if (!json)
        return;
    if (!bootstrap_room_read(json_object_get(json, "bootstrap_room"), &room))
        bootstrap_reply_text(
            reply, 400,
            "POST /register_dp_rank: \"bootstrap_room\" must be an integer from 0 to 2^63-1");
    else if (!bootstrap_number_read(json_object_get(json, "dp_rank"), &dp_rank) ||
             dp_rank < 0 || dp_rank >= BOOTSTRAP_RANKS_MAX)
        bootstrap_reply_text(
            reply, 400, "POST /register_dp_rank: \"dp_rank\" must be an integer from 0 to %u",
            BOOTSTRAP_RANKS_MAX - 1);
    else if (!room_store(rooms, room, (uint32_t)dp_rank))
        bootstrap_reply_text(
            reply, 503,
            "%u rooms are registered, no more fit; each is forgotten after 120 s, ask again",
            rooms->count);
    else
        bootstrap_reply_text(reply, 200, "OK");
    json_decref(json);
}

static bool dp_rank_collect(const struct bootstrap_rooms *rooms, const json_t *numbers,
                            json_t *out, struct bootstrap_reply *reply)
{
    uint64_t now = clock_now_ns();
    for (size_t i = 0; i < json_array_size(numbers); i++) {
        const json_t *value = json_array_get(numbers, i);
        uint64_t number;
        char key[24];
        if (json_is_null(value))
            continue;
        if (!bootstrap_room_read(value, &number)) {
            bootstrap_reply_text(
                reply, 400,
                "POST /query_dp_ranks: entry %zu of \"bootstrap_rooms\" must be an integer "
                "from 0 to 2^63-1",
                i);
            return false;
        }
        const struct room *room = room_find(rooms, number);
        if (!room || room_expired(room, now))
            continue;
        snprintf(key, sizeof(key), "%" PRIu64, number);
        if (json_object_set_new(out, key, json_integer(room->dp_rank)) < 0) {
            bootstrap_reply_text(reply, 500, "out of memory");
            return false;
        }
    }
    return true;
}

void bootstrap_rooms_query(const struct bootstrap_rooms *rooms,
                           const struct bootstrap_request *request,
                           struct bootstrap_reply *reply)
{
    json_t *json = bootstrap_body_parse(request, reply);
    if (!json)
        return;
    const json_t *numbers = json_object_get(json, "bootstrap_rooms");
    json_t *found = json_object();
    if (!numbers || !(json_is_array(numbers) || json_is_null(numbers)))
        bootstrap_reply_text(
            reply, 400, "POST /query_dp_ranks: \"bootstrap_rooms\" must be a list of integers");
    else if (!found)
        bootstrap_reply_text(reply, 500, "out of memory");
    else if (dp_rank_collect(rooms, numbers, found, reply))
        bootstrap_reply_json(reply, json_incref(found));
    json_decref(found);
    json_decref(json);
}

struct bootstrap_rooms *bootstrap_rooms_new(uint32_t rooms_max)
{
    struct bootstrap_rooms *rooms = calloc(1, sizeof(*rooms));
    if (!rooms)
        return NULL;
    rooms->buckets = calloc(ROOM_BUCKETS, sizeof(*rooms->buckets));
    if (!rooms->buckets) {
        free(rooms);
        return NULL;
    }
    rooms->most = rooms_max;
    TAILQ_INIT(&rooms->by_age);
    if (getrandom(&rooms->hash_key, sizeof(rooms->hash_key), GRND_NONBLOCK) < 0)
        rooms->hash_key = clock_now_ns();
    return rooms;
}

void bootstrap_rooms_free(struct bootstrap_rooms *rooms)
{
    while (!TAILQ_EMPTY(&rooms->by_age))
        room_remove(rooms, TAILQ_FIRST(&rooms->by_age));
    free(rooms->buckets);
    free(rooms);
}
