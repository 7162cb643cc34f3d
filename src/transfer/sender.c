/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's handle: what a prefill scheduler calls. Each call checks, writes what it has to say into
 * the room, sets a request bit and posts the room to the link thread; nothing here waits. The other
 * half, on the link thread, is sender_room.c. */
#include "base/clock.h"
#include "manager.h"
#include "room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct baton_sender {
    struct room *room;
    uint32_t generation;
};

int baton_sender_open(baton_manager *handle, const baton_sender_options *options,
                      baton_sender **out, char *err_text, size_t err_size)
{
    struct error err = {err_text, err_size};
    if (!handle || !options || !out || options->struct_size < sizeof(*options))
        return error_set(err, BATON_EINVAL,
                         "manager, options (with struct_size) and out are needed");
    struct manager *manager = &handle->m;
    const char *bootstrap = options->bootstrap ? options->bootstrap : manager->config.bootstrap;
    if (options->room > INT64_MAX)
        return error_set(err, BATON_EINVAL, "room %llu is over 2^63-1",
                         (unsigned long long)options->room);
    if (options->dest_rank_count > 64)
        return error_set(err, BATON_EINVAL, "%u destination ranks, at most 64",
                         options->dest_rank_count);
    char host[64];
    uint16_t port;
    if (*bootstrap) {
        int code = bootstrap_address_parse(bootstrap, host, sizeof(host), &port, err);
        if (code != BATON_OK)
            return code;
    }
    baton_sender *sender = calloc(1, sizeof(*sender));
    if (!sender)
        return error_set(err, BATON_ENOMEM, "out of memory for a sender");
    struct room *room;
    int code = manager_room_acquire(manager, options->room, ROOM_LIVE_SENDER, &room, err);
    if (code != BATON_OK) {
        free(sender);
        return code;
    }
    snprintf(room->bootstrap, sizeof(room->bootstrap), "%s", bootstrap);
    if (options->dest_rank_count)
        memcpy(room->dest_ranks, options->dest_ranks,
               options->dest_rank_count * sizeof(uint32_t));
    room->dest_rank_count = options->dest_rank_count;
    room->layerwise = options->layerwise;
    room->deadline_ms =
        options->deadline_ms ? options->deadline_ms : manager->config.deadline_ms;
    room->fake = *bootstrap && strcmp(host, "2.2.2.2") == 0;
    sender->room = room;
    sender->generation = room->generation;
    room->opened_ns = clock_now_ns();
    room_request(room, REQUEST_OPEN);
    *out = sender;
    return BATON_OK;
}

int baton_sender_init(baton_sender *sender, const baton_sender_init_options *options)
{
    if (!sender || !options || options->struct_size < sizeof(*options))
        return BATON_EINVAL;
    struct room *room = sender->room;
    const struct manager *manager = room->manager;
    if (room->initialised)
        return BATON_ESTATE;
    if (options->pages > WATERMARK_PAGES_MAX ||
        (options->aux_slot >= 0 && (uint32_t)options->aux_slot >= manager->aux_slots) ||
        (options->pages && manager->region_count == 0) ||
        (room->layerwise && manager->regions[0].layout.layers > WATERMARK_LAYERS_MAX))
        return BATON_EINVAL;
    room->pages = calloc((size_t)options->pages + 1, sizeof(int32_t));
    if (!room->pages)
        return BATON_ENOMEM;
    room->page_capacity = options->pages;
    room->page_count = 0;
    room->first_token = options->first_token;
    room->tokens = options->tokens;
    room->aux_slot = options->aux_slot;
    room->initialised = true;
    room_request(room, REQUEST_INIT);
    return BATON_OK;
}

int baton_sender_state(baton_sender *sender, uint32_t region, const int32_t *pages,
                       uint32_t count, uint32_t first_token)
{
    if (!sender || (count && !pages))
        return BATON_EINVAL;
    struct room *room = sender->room;
    struct manager *manager = room->manager;
    if (region == 0 || region >= manager->region_count || room->state_count == WIRE_REGIONS_MAX)
        return BATON_EINVAL;
    if (watermark_unpack(atomic_load(&room->watermark)).last)
        return BATON_ESTATE;
    for (uint32_t i = 0; i < room->state_count; i++)
        if (room->states[i].region == region)
            return BATON_EEXIST;
    for (uint32_t i = 0; i < count; i++)
        if (pages[i] < 0 || (uint32_t)pages[i] >= manager->regions[region].layout.pages)
            return BATON_EINVAL;
    int32_t *copy = malloc(((size_t)count + 1) * sizeof(int32_t));
    if (!copy)
        return BATON_ENOMEM;
    if (count)
        memcpy(copy, pages, count * sizeof(int32_t));
    room->states[room->state_count++] = (struct state_list){
        .region = region, .first_token = first_token, .count = count, .pages = copy};
    return BATON_OK;
}

int baton_sender_send(baton_sender *sender, const int32_t *pages, uint32_t count, bool is_last)
{
    if (!sender || (count && !pages))
        return BATON_EINVAL;
    struct room *room = sender->room;
    struct watermark released =
        watermark_unpack(atomic_load_explicit(&room->watermark, memory_order_relaxed));
    if (!room->initialised || released.last ||
        (room->layerwise && room->page_count > released.complete))
        return BATON_ESTATE;
    if (count > room->page_capacity - room->page_count)
        return BATON_EINVAL;
    for (uint32_t i = 0; i < count; i++)
        if (pages[i] < 0 || (uint32_t)pages[i] >= room->manager->regions[0].layout.pages)
            return BATON_EINVAL;
    if (count)
        memcpy(room->pages + room->page_count, pages, count * sizeof(int32_t));
    room->page_count += count;
    is_last |= room->page_count == room->page_capacity;
    if (room->layerwise && count) {
        /* Named, not yet computed: layer_ready releases them. */
        room->layer_chunk_last = is_last;
        return BATON_OK;
    }
    released = (struct watermark){
        .complete = room->page_count, .partial = room->page_count, .last = is_last};
    /* Release: the lanes that see the watermark see the page list. */
    atomic_store_explicit(&room->watermark, watermark_pack(released), memory_order_release);
    room_request(room, REQUEST_SEND);
    return BATON_OK;
}

int baton_sender_layer_ready(baton_sender *sender, uint32_t layer)
{
    if (!sender)
        return BATON_EINVAL;
    struct room *room = sender->room;
    struct watermark released =
        watermark_unpack(atomic_load_explicit(&room->watermark, memory_order_relaxed));
    uint32_t layers = room->manager->regions[0].layout.layers;
    if (!room->layerwise || room->page_count == released.complete)
        return BATON_ESTATE;
    if (layer >= layers || layer + 1 < released.layers)
        return BATON_EINVAL;
    released.partial = room->page_count;
    released.layers = layer + 1;
    if (released.layers == layers)
        released = (struct watermark){.complete = room->page_count,
                                      .partial = room->page_count,
                                      .last = room->layer_chunk_last};
    atomic_store_explicit(&room->watermark, watermark_pack(released), memory_order_release);
    room_request(room, REQUEST_SEND);
    return BATON_OK;
}

int baton_sender_poll(const baton_sender *sender)
{
    return room_current_state(sender->room, sender->generation);
}

uint32_t baton_sender_prefix(const baton_sender *sender)
{
    return atomic_load_explicit(&sender->room->prefix, memory_order_acquire);
}

uint64_t baton_sender_written(const baton_sender *sender)
{
    return atomic_load_explicit(&sender->room->written, memory_order_relaxed);
}

int baton_sender_abort(baton_sender *sender, const char *reason)
{
    return sender
               ? room_abort(sender->room, BATON_EABORTED, reason, "aborted by the prefill side")
               : BATON_EINVAL;
}

int baton_sender_refuse(baton_sender *sender, const char *reason)
{
    return sender ? room_abort(sender->room, BATON_EINVAL, reason,
                               "the prefill side refused the request")
                  : BATON_EINVAL;
}

int baton_sender_failure(const baton_sender *sender, char *text, size_t size)
{
    return sender ? room_failure(sender->room, text, size) : BATON_EINVAL;
}

int baton_sender_fenced(const baton_sender *sender)
{
    return atomic_load_explicit(&sender->room->fenced, memory_order_acquire) ==
           sender->generation;
}

int baton_sender_timeline(const baton_sender *sender, baton_timeline *out)
{
    return sender ? room_timeline(sender->room, out) : BATON_EINVAL;
}

void baton_sender_close(baton_sender *sender)
{
    if (!sender)
        return;
    room_request(sender->room, REQUEST_CLOSE);
    free(sender);
}

struct room *sender_room(const baton_sender *sender)
{
    return sender->room;
}
