/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that compute. A step of the engine is one function run by all threads of a pool at
 * once; they divide every operation among themselves, by their index or as they become free, and
 * meet at barriers, so that a step costs one wake-up per thread and not one per operation.
 *
 * Waiting spins for some microseconds (the others are nearly done) and then parks in a futex (an
 * idle pool, or fewer cores than threads, burns nothing). Where there are more threads than cores
 * nobody spins: the one that is waited for needs the core. */
#ifndef BATON_ENGINE_THREAD_GROUP_H
#define BATON_ENGINE_THREAD_GROUP_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdint.h>

#define THREAD_POOL_MAX 1024

/* All of `members` arrive before any leaves; what they stored before is visible to all after. */
struct barrier {
    uint32_t members;
    uint32_t spins; /* looks at the word before parking; 0: park at once */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t generation; /* the futex word */
    _Atomic uint32_t parked;
    _Alignas(64) _Atomic uint32_t taken; /* see barrier_take; 0 after every meeting */
};

void barrier_init(struct barrier *barrier, uint32_t members, uint32_t spins);
void barrier_wait(struct barrier *barrier);

/* Numbers 0, 1, 2 ... for whoever asks, from 0 again when all have met: work that is dealt out as
 * members become free. */
static inline uint32_t barrier_take(struct barrier *barrier)
{
    return atomic_fetch_add_explicit(&barrier->taken, 1, memory_order_relaxed);
}

struct thread_pool;

/* `threads` of them, the caller of thread_pool_run included: it is thread 0. */
int thread_pool_open(uint32_t threads, struct thread_pool **out, struct error err);
void thread_pool_close(struct thread_pool *pool); /* NULL is fine */

/* Runs work(context, index) for every index at once; returns when all have returned. One caller
 * at a time. */
void thread_pool_run(struct thread_pool *pool, void (*work)(void *context, uint32_t index),
                     void *context);

/* How long barriers among the pool's threads should spin. */
uint32_t thread_pool_spins(const struct thread_pool *pool);

/* The part of `count` things that member `index` of `members` takes: parts differ by one at most,
 * and are the same every time. */
struct span {
    uint32_t begin, end;
};
struct span span_of(uint32_t count, uint32_t index, uint32_t members);

#endif
