/* SPDX-License-Identifier: Apache-2.0 */
/* See layer_watch.h. It looks every half millisecond, which is a small part of a layer's time in the steps
 * that are worth it, and cheaper than having the compute threads wake somebody. */
#include "layer_watch.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_NS 500000

/* Under the lock. */
static void tell_layers(struct layer_watch *watch)
{
    for (uint32_t rank = 0; rank < watch->ranks; rank++) {
        uint32_t stored = engine_layers_stored(watch->engine, rank);
        if (stored >= watch->layers)
            stored = watch->layers - 1;
        if (stored <= watch->told[rank])
            continue;
        watch->told[rank] = stored;
        for (uint32_t i = 0; i < watch->room_count; i++)
            group_room_layers(watch->rooms[i], rank, stored);
    }
}

static void *watch_main(void *context)
{
    struct layer_watch *watch = context;
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    pthread_setname_np(pthread_self(), "baton-layers");
    pthread_mutex_lock(&watch->lock);
    while (!watch->closing) {
        if (!watch->running) {
            pthread_cond_wait(&watch->change, &watch->lock);
            continue;
        }
        tell_layers(watch);
        pthread_mutex_unlock(&watch->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&watch->lock);
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

int layer_watch_open(struct layer_watch *watch, const struct engine *engine, uint32_t ranks,
                     uint32_t layers, uint32_t room_max, struct error err)
{
    *watch = (struct layer_watch){
        .engine = engine, .ranks = ranks, .layers = layers, .room_max = room_max};
    watch->rooms = calloc(room_max, sizeof(struct group_room *));
    if (!watch->rooms)
        return error_set(err, BATON_ENOMEM, "no memory for a step of %u hand-overs", room_max);
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->change, NULL);
    int problem = pthread_create(&watch->thread, NULL, watch_main, watch);
    watch->started = problem == 0;
    if (problem) {
        layer_watch_close(watch);
        return error_set(err, BATON_ESYSTEM, "no thread for hand-overs: %s", strerror(problem));
    }
    return BATON_OK;
}

void layer_watch_close(struct layer_watch *watch)
{
    if (!watch->rooms)
        return;
    if (watch->started) {
        pthread_mutex_lock(&watch->lock);
        watch->closing = true;
        pthread_cond_signal(&watch->change);
        pthread_mutex_unlock(&watch->lock);
        pthread_join(watch->thread, NULL);
    }
    pthread_cond_destroy(&watch->change);
    pthread_mutex_destroy(&watch->lock);
    free(watch->rooms);
    *watch = (struct layer_watch){0};
}

void layer_watch_add(struct layer_watch *watch, struct group_room *room)
{
    BATON_ASSERT(!watch->running && watch->room_count < watch->room_max);
    watch->rooms[watch->room_count++] = room;
}

void layer_watch_begin(struct layer_watch *watch)
{
    if (!watch->room_count)
        return;
    pthread_mutex_lock(&watch->lock);
    memset(watch->told, 0, sizeof(watch->told));
    watch->running = true;
    pthread_cond_signal(&watch->change);
    pthread_mutex_unlock(&watch->lock);
}

void layer_watch_end(struct layer_watch *watch)
{
    if (!watch->room_count)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->running = false;
    watch->room_count = 0;
    pthread_mutex_unlock(&watch->lock);
}
