/* SPDX-License-Identifier: Apache-2.0 */
/* What all managers of a process share: the link thread with its event loop, and the copy workers.
 * The link thread owns every room, link and route; other threads only post jobs to it. */
#ifndef BATON_TRANSFER_RUNTIME_H
#define BATON_TRANSFER_RUNTIME_H

#include "base/error.h"
#include "base/mpsc.h"

#include <pthread.h>

struct event_base;
struct evdns_base;
struct bootstrap_client;
struct manager;
struct worker;

#define RUNTIME_WORKERS_MAX 16
#define RUNTIME_TICK_MS 50

/* Something that the link thread should look at. Posting it twice before it ran is posting it
 * once: the job reads what is to be done from the object it is in. */
struct runtime_job {
    struct mpsc_node node;
    atomic_bool queued;
    void (*run)(struct runtime_job *job);
};

struct runtime {
    pthread_t thread;
    struct event_base *base;
    struct evdns_base *dns; /* NULL where the system has no resolver configuration */
    struct bootstrap_client *bootstrap;
    struct mpsc jobs;
    struct bell bell;
    atomic_bool stopping;
    uint64_t process; /* random: this process */
    char host_id[96];
    /* Waiters of pollset_wait sleep on this number (futex); any change of any room adds one. */
    _Atomic uint32_t changes;
    _Atomic uint32_t waiters;
    /* owner: link thread */
    struct manager *managers; /* list by manager->next */
    /* Set up under the registry lock, then read-only entry by entry. */
    struct worker *workers[RUNTIME_WORKERS_MAX];
    _Atomic uint32_t worker_count;
};

/* The process's one runtime; the first acquire starts it, the last release stops it. */
int runtime_acquire(struct runtime **out, uint32_t workers, struct error err);
void runtime_release(struct runtime *runtime);

void runtime_job_init(struct runtime_job *job, void (*run)(struct runtime_job *));
void runtime_post(struct runtime *runtime,
                  struct runtime_job *job); /* any thread, never blocks */

/* Runs fn(arg) on the link thread and waits for it: for open and close only. */
void runtime_call(struct runtime *runtime, void (*fn)(void *arg), void *arg);

void runtime_assert_link_thread(const struct runtime *runtime);

/* Tells the waiters that some room changed. */
void runtime_changed(struct runtime *runtime);

#endif
