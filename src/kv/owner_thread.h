/* SPDX-License-Identifier: Apache-2.0 */
/* The pool and the prefix cache have no locks, because one thread, the scheduler, is the only one
 * that uses them. The first call that changes something makes its thread the owner; a call from any
 * other one is a programmer's error and stops the process. */
#ifndef BATON_KV_OWNER_THREAD_H
#define BATON_KV_OWNER_THREAD_H

#include "base/error.h"

#include <pthread.h>

struct owner_thread {
    pthread_t thread;
    bool known;
};

static inline void owner_thread_assert(struct owner_thread *owner)
{
    if (!owner->known)
        *owner = (struct owner_thread){pthread_self(), true};
    BATON_ASSERT(pthread_equal(owner->thread, pthread_self()));
}

/* The owner has ended, or gives the object away; the next caller is the owner. */
static inline void owner_thread_forget(struct owner_thread *owner)
{
    owner->known = false;
}

#endif
