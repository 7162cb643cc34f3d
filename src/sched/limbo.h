/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of rooms that have failed before anybody could prove that nobody touches them any more. The
 * generation is over, or goes on with other pages; these wait here for the room's fence. Pages that a
 * peer may still store into are in the pool's quarantine meanwhile. */
#ifndef BATON_SCHED_LIMBO_H
#define BATON_SCHED_LIMBO_H

#include "generation_state.h"
#include "rank_group.h"

struct limbo {
    struct limbo *next;
    struct group_room *room;
    struct kv_hold hold;
    bool quarantined;
    int32_t pages[];
};

/* Made when a room is opened, so that there is one when it is needed; NULL: no memory. */
struct limbo *limbo_open(uint32_t pages);

/* The state's room and pages go into its limbo, which is added to the list. */
void limbo_enter(struct limbo **list, struct kv_books *books, struct generation_state *state);

/* A room without pages. */
void limbo_enter_room(struct limbo **list, struct limbo *limbo, struct group_room *room);

/* The worker ends: the rooms are closed as they are, and nobody will use the pages again. */
void limbo_abandon(struct limbo **list, struct kv_books *books);

/* Gives back what is fenced now. */
void limbo_leave(struct limbo **list, struct kv_books *books);

#endif
