/* SPDX-License-Identifier: Apache-2.0 */
/* Sends layers while later ones are computed. The scheduler's thread is inside the engine then, so a
 * thread of its own looks at how many layers the engine has stored and tells the rooms of this step.
 *
 *   before the step   name the pages, layer_watch_add for each room, layer_watch_begin
 *   after it          layer_watch_end: from then on the rooms are the scheduler's alone
 *
 * The last layer is never told here: whoever computed it may have something to add first. */
#ifndef BATON_SCHED_LAYER_WATCH_H
#define BATON_SCHED_LAYER_WATCH_H

#include "rank_group.h"

#include <pthread.h>

struct layer_watch {
    const struct engine *engine;
    uint32_t ranks, layers;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t change;
    bool running, closing;
    struct group_room **rooms; /* [room_max] */
    uint32_t room_count, room_max;
    uint32_t told[KV_RANKS_MAX]; /* layers of this step */
};

int layer_watch_open(struct layer_watch *watch, const struct engine *engine, uint32_t ranks,
                     uint32_t layers, uint32_t room_max, struct error err);
void layer_watch_close(struct layer_watch *watch); /* all zero is fine */

void layer_watch_add(struct layer_watch *watch, struct group_room *room);
void layer_watch_begin(struct layer_watch *watch); /* nothing is done where no room was added */
void layer_watch_end(struct layer_watch *watch);

#endif
