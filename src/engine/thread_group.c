/* SPDX-License-Identifier: Apache-2.0 */
/* See thread_group.h. A pool is two barriers: all threads, the caller among them, meet at `start`
 * with the work set, and at `finish` with it done. Stopping is work too: `work` NULL.
 *
 * The barrier's one subtle place is parking: a member that parks adds itself to `parked` and then
 * looks at `generation` again (in the kernel); the last to arrive moves `generation` and then looks
 * at `parked`. Both pairs are sequentially consistent, so that one of the two sees the other. */
#include "thread_group.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 2000 /* some tens of microseconds: more than the imbalance of an operation */

struct thread_pool {
    uint32_t threads;
    uint32_t started; /* threads beside the caller */
    struct barrier start, finish;
    /* Written by the caller before `start`, read by the others after it. */
    void (*work)(void *context, uint32_t index);
    void *context;
    struct member {
        struct thread_pool *pool;
        pthread_t thread;
        uint32_t index;
    } members[];
};

/* ---- barrier ----------------------------------------------------------------------------- */

static inline void pause_briefly(void)
{
#if defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void barrier_init(struct barrier *barrier, uint32_t members, uint32_t spins)
{
    barrier->members = members;
    barrier->spins = spins;
    atomic_init(&barrier->arrived, 0);
    atomic_init(&barrier->generation, 0);
    atomic_init(&barrier->parked, 0);
    atomic_init(&barrier->taken, 0);
}

static void barrier_park(struct barrier *barrier, uint32_t generation)
{
    atomic_fetch_add(&barrier->parked, 1);
    while (atomic_load(&barrier->generation) == generation)
        syscall(SYS_futex, &barrier->generation, FUTEX_WAIT_PRIVATE, generation, NULL, NULL, 0);
    atomic_fetch_sub(&barrier->parked, 1);
}

/* One thread may arrive for `places` members. */
static void barrier_arrive(struct barrier *barrier, uint32_t places)
{
    uint32_t generation = atomic_load_explicit(&barrier->generation, memory_order_relaxed);
    /* Release what this member stored, acquire what the earlier ones did. */
    uint32_t before =
        atomic_fetch_add_explicit(&barrier->arrived, places, memory_order_acq_rel);
    if (before + places == barrier->members) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->taken, 0, memory_order_relaxed);
        atomic_fetch_add(&barrier->generation, 1);
        if (atomic_load(&barrier->parked))
            syscall(SYS_futex, &barrier->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL,
                    0);
        return;
    }
    for (uint32_t i = 0; i < barrier->spins; i++) {
        if (atomic_load_explicit(&barrier->generation, memory_order_acquire) != generation)
            return;
        pause_briefly();
    }
    barrier_park(barrier, generation);
}

void barrier_wait(struct barrier *barrier)
{
    if (barrier->members > 1)
        barrier_arrive(barrier, 1);
    else
        atomic_store_explicit(&barrier->taken, 0, memory_order_relaxed);
}

/* ---- pool -------------------------------------------------------------------------------- */

static void *pool_thread(void *argument)
{
    struct member *self = argument;
    struct thread_pool *pool = self->pool;
    char name[16];
    snprintf(name, sizeof(name), "baton-cpu-%u", self->index);
    pthread_setname_np(pthread_self(), name);
    for (;;) {
        barrier_wait(&pool->start);
        if (!pool->work)
            return NULL;
        pool->work(pool->context, self->index);
        barrier_wait(&pool->finish);
    }
}

static int start_thread(struct member *member)
{
    sigset_t all, before;
    sigfillset(&all); /* signals are for the threads that expect them */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&member->thread, NULL, pool_thread, member);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static uint32_t cores_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

int thread_pool_open(uint32_t threads, struct thread_pool **out, struct error err)
{
    if (threads == 0 || threads > THREAD_POOL_MAX)
        return error_set(err, BATON_EINVAL, "%u compute threads asked for, must be 1 to %d",
                         threads, THREAD_POOL_MAX);
    size_t size = sizeof(struct thread_pool) + threads * sizeof(struct member);
    struct thread_pool *pool = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!pool)
        return error_set(err, BATON_ENOMEM, "out of memory for %u compute threads", threads);
    memset(pool, 0, size);
    uint32_t spins = threads <= cores_allowed() ? SPINS : 0;
    pool->threads = threads;
    barrier_init(&pool->start, threads, spins);
    barrier_init(&pool->finish, threads, spins);
    for (uint32_t i = 1; i < threads; i++) {
        pool->members[i] = (struct member){.pool = pool, .index = i};
        int rc = start_thread(&pool->members[i]);
        if (rc != 0) {
            thread_pool_close(pool);
            return error_set(err, BATON_ESYSTEM, "cannot start compute thread %u of %u: %s", i,
                             threads, strerror(rc));
        }
        pool->started++;
    }
    *out = pool;
    return BATON_OK;
}

void thread_pool_close(struct thread_pool *pool)
{
    if (!pool)
        return;
    pool->work = NULL;
    /* For those too that could not be started: the others wait for a full house. */
    barrier_arrive(&pool->start, pool->threads - pool->started);
    for (uint32_t i = 1; i <= pool->started; i++)
        pthread_join(pool->members[i].thread, NULL);
    free(pool);
}

void thread_pool_run(struct thread_pool *pool, void (*work)(void *context, uint32_t index),
                     void *context)
{
    pool->work = work;
    pool->context = context;
    barrier_wait(&pool->start);
    work(context, 0);
    barrier_wait(&pool->finish);
}

uint32_t thread_pool_spins(const struct thread_pool *pool)
{
    return pool->start.spins;
}

struct span span_of(uint32_t count, uint32_t index, uint32_t members)
{
    return (struct span){.begin = (uint32_t)((uint64_t)count * index / members),
                         .end = (uint32_t)((uint64_t)count * (index + 1) / members)};
}
