/* SPDX-License-Identifier: Apache-2.0 */
/* See limbo.h. */
#include "limbo.h"

#include <stdlib.h>
#include <string.h>

struct limbo *limbo_open(uint32_t pages)
{
    return calloc(1, sizeof(struct limbo) + pages * sizeof(int32_t));
}

void limbo_enter(struct limbo **list, struct kv_books *books, struct generation_state *state)
{
    struct limbo *limbo = state->limbo;
    limbo->room = state->room;
    limbo->hold = state->hold;
    limbo->hold.pages = limbo->pages;
    if (state->hold.count)
        memcpy(limbo->pages, state->hold.pages, state->hold.count * sizeof(int32_t));
    limbo->quarantined = !limbo->room->sends && limbo->hold.count > limbo->hold.cached;
    if (limbo->quarantined)
        page_pool_quarantine(books->pool, limbo->pages + limbo->hold.cached,
                             limbo->hold.count - limbo->hold.cached);
    limbo->next = *list;
    *list = limbo;
    state->room = NULL;
    state->limbo = NULL;
    state->pinned = false;
    state->hold.count = state->hold.cached = 0;
    state->hold.node = PREFIX_NONE;
    state->computed = 0;
}

void limbo_enter_room(struct limbo **list, struct limbo *limbo, struct group_room *room)
{
    limbo->room = room;
    limbo->hold.pages = limbo->pages;
    limbo->hold.node = PREFIX_NONE;
    limbo->next = *list;
    *list = limbo;
}

static void pages_return(struct limbo *limbo, struct kv_books *books)
{
    if (limbo->quarantined)
        page_pool_readmit(books->pool, limbo->pages + limbo->hold.cached,
                          limbo->hold.count - limbo->hold.cached);
    kv_hold_release(books, &limbo->hold);
    group_room_close(limbo->room);
    free(limbo);
}

void limbo_leave(struct limbo **list, struct kv_books *books)
{
    while (*list) {
        struct limbo *limbo = *list;
        if (group_room_fenced(limbo->room)) {
            *list = limbo->next;
            pages_return(limbo, books);
        } else {
            list = &limbo->next;
        }
    }
}

void limbo_abandon(struct limbo **list, struct kv_books *books)
{
    while (*list) {
        struct limbo *limbo = *list;
        *list = limbo->next;
        pages_return(limbo, books);
    }
}
