/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's handle: what a decode scheduler calls. init takes the pages for the room at once, by
 * one compare-and-swap per page, so that a page of another live or quarantined room is refused here and
 * not later. The other halves, on the link thread, are receiver_room.c and landing.c. */
#include "base/clock.h"
#include "manager.h"
#include "room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct baton_receiver {
    struct room *room;
    uint32_t generation;
};

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
    room->opened_ns = clock_now_ns();
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
    return room_current_state(receiver->room, receiver->generation);
}

int baton_receiver_abort(baton_receiver *receiver, const char *reason)
{
    return receiver ? room_abort(receiver->room, BATON_EABORTED, reason,
                                 "aborted by the decode side")
                    : BATON_EINVAL;
}

int baton_receiver_refuse(baton_receiver *receiver, const char *reason)
{
    return receiver ? room_abort(receiver->room, BATON_EINVAL, reason,
                                 "the decode side refused the request")
                    : BATON_EINVAL;
}

int baton_receiver_decline(baton_receiver *receiver, const char *reason)
{
    return receiver ? room_abort(receiver->room, BATON_EDECLINED, reason,
                                 "the decode side does without it")
                    : BATON_EINVAL;
}

int baton_receiver_failure(const baton_receiver *receiver, char *text, size_t size)
{
    return receiver ? room_failure(receiver->room, text, size) : BATON_EINVAL;
}

int baton_receiver_landed(const baton_receiver *receiver, uint32_t *tokens)
{
    if (!receiver || !tokens)
        return BATON_EINVAL;
    if (baton_receiver_poll(receiver) != BATON_FAILED)
        return BATON_ESTATE;
    *tokens = receiver->room->landed_tokens;
    return BATON_OK;
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
