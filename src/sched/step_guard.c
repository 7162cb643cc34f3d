/* SPDX-License-Identifier: Apache-2.0 */
/* See step_guard.h. */
#include "step_guard.h"

#include "base/clock.h"
#include "handing_over.h"

#include <string.h>
#include <time.h>

#define LOOK_MS 20u
#define NEARLY_OVER_MS 200u /* a step that takes no longer than this is let be */

/* A room has failed that the scheduler's thread does not know of yet; or this side wants to leave one, and
 * the other must hear of it. */
static bool news(const struct scheduler *scheduler)
{
    for (const struct generation_state *state = scheduler->handing_first; state;
         state = state->handing_next)
        if ((!state->failed_ns && group_room_state(state->room) == BATON_FAILED) ||
            atomic_load_explicit(&state->generation->abort, memory_order_relaxed))
            return true;
    return false;
}

/* By how long its layers have taken so far. */
static bool nearly_over(const struct step_guard *guard)
{
    uint64_t spent = clock_now_ns() - guard->began_ns;
    uint32_t layers = guard->scheduler->group.layers;
    uint32_t stored = engine_layers_stored(guard->scheduler->engine, 0);
    return stored && spent / stored * (layers - stored) < NEARLY_OVER_MS * NS_PER_MS;
}

/* Under the lock, which it gives up meanwhile. */
static void pause_for(struct step_guard *guard, uint32_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms * NS_PER_MS);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&guard->change, &guard->lock, &until);
}

static void *guard_main(void *context)
{
    struct step_guard *guard = context;
    pthread_setname_np(pthread_self(), "baton-guard");
    pthread_mutex_lock(&guard->lock);
    while (!guard->closing) {
        if (!guard->running) {
            pthread_cond_wait(&guard->change, &guard->lock);
            continue;
        }
        if (news(guard->scheduler) && !nearly_over(guard)) {
            engine_give_up(guard->scheduler->engine);
            guard->running = false; /* once is enough for this step */
        } else {
            pause_for(guard, LOOK_MS);
        }
    }
    pthread_mutex_unlock(&guard->lock);
    return NULL;
}

int step_guard_open(struct step_guard *guard, struct scheduler *scheduler, struct error err)
{
    pthread_condattr_t attributes;
    *guard = (struct step_guard){.scheduler = scheduler};
    pthread_mutex_init(&guard->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&guard->change, &attributes);
    pthread_condattr_destroy(&attributes);
    int problem = pthread_create(&guard->thread, NULL, guard_main, guard);
    if (problem) {
        pthread_cond_destroy(&guard->change);
        pthread_mutex_destroy(&guard->lock);
        guard->scheduler = NULL;
        return error_set(err, BATON_ESYSTEM, "no thread for hand-overs: %s", strerror(problem));
    }
    return BATON_OK;
}

static void guard_set(struct step_guard *guard, bool running, bool closing)
{
    pthread_mutex_lock(&guard->lock);
    guard->running = running;
    guard->closing = closing;
    guard->began_ns = clock_now_ns();
    pthread_cond_signal(&guard->change);
    pthread_mutex_unlock(&guard->lock);
}

void step_guard_close(struct step_guard *guard)
{
    if (!guard->scheduler)
        return;
    guard_set(guard, false, true);
    pthread_join(guard->thread, NULL);
    pthread_cond_destroy(&guard->change);
    pthread_mutex_destroy(&guard->lock);
    *guard = (struct step_guard){0};
}

void step_guard_begin(struct step_guard *guard)
{
    guard_set(guard, true, false);
}

void step_guard_end(struct step_guard *guard)
{
    guard_set(guard, false, false);
}
