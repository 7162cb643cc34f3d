/* SPDX-License-Identifier: Apache-2.0 */
/* Has a long step given up when somebody waits for bad news. The scheduler's thread is inside the engine
 * while it computes, and when a hand-over fails meanwhile (the other side died, the client of one leg left)
 * that is told by that thread only: a step of a thousand tokens can take seconds. A thread of its own looks at the
 * rooms during such a step and, unless the step is nearly over, gives it up. It is computed again, without
 * those who are gone.
 *
 *   step_guard_begin, engine_step, step_guard_end: in between the list of rooms does not change */
#ifndef BATON_SCHED_STEP_GUARD_H
#define BATON_SCHED_STEP_GUARD_H

#include "base/error.h"

#include <pthread.h>

struct scheduler;

struct step_guard {
    struct scheduler *scheduler;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool running, closing;
    uint64_t began_ns; /* the step */
};

int step_guard_open(struct step_guard *guard, struct scheduler *scheduler, struct error err);
void step_guard_close(struct step_guard *guard); /* all zero is fine */

void step_guard_begin(struct step_guard *guard);
void step_guard_end(struct step_guard *guard);

#endif
