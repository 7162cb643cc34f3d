/* SPDX-License-Identifier: Apache-2.0 */
/* One room on all ranks of a group (rank_group.h). */
#include "rank_group.h"

#include <stdlib.h>

static struct group_room *room_make(struct rank_group *group, uint64_t id, bool sends,
                                    bool layerwise)
{
    struct group_room *room = calloc(1, sizeof(*room));
    if (room) {
        room->group = group;
        room->id = id;
        room->sends = sends;
        room->layerwise = layerwise;
        room->note = -1;
    }
    return room;
}

int group_room_open_sender(struct rank_group *group, uint64_t id, const char *bootstrap,
                           uint32_t deadline_ms, bool layerwise, struct group_room **out,
                           struct error err)
{
    struct group_room *room = room_make(group, id, true, layerwise);
    if (!room)
        return error_set(err, BATON_ENOMEM, "no memory for a room");
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        baton_sender_options options = BATON_SENDER_OPTIONS_INIT;
        options.room = id;
        options.bootstrap = bootstrap;
        options.deadline_ms = deadline_ms;
        options.layerwise = layerwise;
        int rc = baton_sender_open(group->managers[rank], &options, &room->senders[rank],
                                   err.text, err.size);
        if (rc) {
            group_room_close(room);
            return rc;
        }
    }
    *out = room;
    return BATON_OK;
}

int group_room_open_receiver(struct rank_group *group, uint64_t id, const char *bootstrap,
                             uint32_t deadline_ms, uint32_t queue_position,
                             struct group_room **out, struct error err)
{
    struct group_room *room = room_make(group, id, false, false);
    if (!room)
        return error_set(err, BATON_ENOMEM, "no memory for a room");
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        baton_receiver_options options = BATON_RECEIVER_OPTIONS_INIT;
        options.room = id;
        options.bootstrap = bootstrap;
        options.deadline_ms = deadline_ms;
        options.queue_position = queue_position;
        int rc = baton_receiver_open(group->managers[rank], &options, &room->receivers[rank],
                                     err.text, err.size);
        if (rc) {
            group_room_close(room);
            return rc;
        }
    }
    *out = room;
    return BATON_OK;
}

void group_room_close(struct group_room *room)
{
    if (!room)
        return;
    for (uint32_t rank = 0; rank < room->group->ranks; rank++) {
        if (room->senders[rank])
            baton_sender_close(room->senders[rank]);
        if (room->receivers[rank])
            baton_receiver_close(room->receivers[rank]);
    }
    rank_group_give_note(room->group, room->note);
    free(room);
}

static int rank_state(const struct group_room *room, uint32_t rank)
{
    return room->sends ? baton_sender_poll(room->senders[rank])
                       : baton_receiver_poll(room->receivers[rank]);
}

int group_room_state(const struct group_room *room)
{
    int least = BATON_SUCCESS;
    for (uint32_t rank = 0; rank < room->group->ranks; rank++) {
        int state = rank_state(room, rank);
        if (state < least)
            least = state;
    }
    return least;
}

int group_room_failure(const struct group_room *room, char *text, size_t size)
{
    for (uint32_t rank = 0; rank < room->group->ranks; rank++)
        if (rank_state(room, rank) == BATON_FAILED)
            return room->sends ? baton_sender_failure(room->senders[rank], text, size)
                               : baton_receiver_failure(room->receivers[rank], text, size);
    return BATON_OK;
}

bool group_room_fenced(const struct group_room *room)
{
    for (uint32_t rank = 0; rank < room->group->ranks; rank++)
        if (rank_state(room, rank) != BATON_SUCCESS &&
            !(room->sends ? baton_sender_fenced(room->senders[rank])
                          : baton_receiver_fenced(room->receivers[rank])))
            return false;
    return true;
}

bool group_room_landed(const struct group_room *room, uint32_t *tokens)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t rank = 0; rank < room->group->ranks; rank++) {
        uint32_t landed = UINT32_MAX; /* a rank that succeeded has all of it */
        if (rank_state(room, rank) != BATON_SUCCESS &&
            baton_receiver_landed(room->receivers[rank], &landed))
            return false;
        if (landed < least)
            least = landed;
    }
    *tokens = least;
    return true;
}

static void rank_timeline(const struct group_room *room, uint32_t rank, baton_timeline *out)
{
    *out = (baton_timeline){.struct_size = sizeof(*out)};
    if (room->sends)
        baton_sender_timeline(room->senders[rank], out);
    else
        baton_receiver_timeline(room->receivers[rank], out);
}

void group_room_timeline(const struct group_room *room, baton_timeline *out)
{
    baton_timeline other;
    rank_timeline(room, 0, out);
    for (uint32_t rank = 1; rank < room->group->ranks; rank++) {
        rank_timeline(room, rank, &other);
        out->bytes += other.bytes;
        out->operations += other.operations;
    }
}

uint64_t group_room_written(const struct group_room *room)
{
    uint64_t bytes = 0;
    for (uint32_t rank = 0; room->sends && rank < room->group->ranks; rank++)
        bytes += baton_sender_written(room->senders[rank]);
    return bytes;
}

int group_room_announce(struct group_room *room, uint32_t pages, uint32_t tokens, int32_t note)
{
    baton_sender_init_options options = BATON_SENDER_INIT_OPTIONS_INIT;
    options.pages = pages;
    options.tokens = tokens;
    options.aux_slot = note;
    room->note = note;
    for (uint32_t rank = 0; rank < room->group->ranks; rank++) {
        int rc = baton_sender_init(room->senders[rank], &options);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

int group_room_send(struct group_room *room, const int32_t *pages, uint32_t count)
{
    for (uint32_t rank = 0; rank < room->group->ranks; rank++) {
        int rc = baton_sender_send(room->senders[rank], pages, count, false);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

int group_room_layers(struct group_room *room, uint32_t rank, uint32_t layers)
{
    return layers ? baton_sender_layer_ready(room->senders[rank], layers - 1) : BATON_OK;
}

int group_room_grant(struct group_room *room, const int32_t *pages, uint32_t count,
                     uint32_t prefix_tokens, int32_t note)
{
    baton_receiver_init_options options = BATON_RECEIVER_INIT_OPTIONS_INIT;
    options.pages = pages;
    options.page_count = count;
    options.prefix = prefix_tokens;
    options.aux_slot = note;
    room->note = note;
    for (uint32_t rank = 0; rank < room->group->ranks; rank++) {
        int rc = baton_receiver_init(room->receivers[rank], &options);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

void group_room_decline(struct group_room *room, const char *reason)
{
    for (uint32_t rank = 0; rank < room->group->ranks; rank++)
        baton_receiver_decline(room->receivers[rank], reason);
}

void group_room_abort(struct group_room *room, const char *reason)
{
    for (uint32_t rank = 0; rank < room->group->ranks; rank++)
        if (room->sends)
            baton_sender_abort(room->senders[rank], reason);
        else
            baton_receiver_abort(room->receivers[rank], reason);
}

void group_room_refuse(struct group_room *room, const char *reason)
{
    for (uint32_t rank = 0; rank < room->group->ranks; rank++)
        if (room->sends)
            baton_sender_refuse(room->senders[rank], reason);
        else
            baton_receiver_refuse(room->receivers[rank], reason);
}
