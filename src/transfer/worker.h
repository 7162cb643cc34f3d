/* SPDX-License-Identifier: Apache-2.0 */
/* A copy worker: the thread that moves bytes. It owns the lanes and the streams given to it: only
 * it touches their fields, so nothing here needs a lock. Work arrives as jobs; a lane does one
 * slice per job and queues itself again, so rooms take turns and an abort is seen within a slice. */
#ifndef BATON_TRANSFER_WORKER_H
#define BATON_TRANSFER_WORKER_H

#include "base/error.h"
#include "base/mpsc.h"

#include <pthread.h>

struct worker {
    pthread_t thread;
    uint32_t index;
    int epoll_fd;
    struct bell bell;
    struct mpsc jobs;
    atomic_bool stopping;
};

struct worker_job {
    struct mpsc_node node;
    atomic_bool queued;
    void (*run)(struct worker_job *job);
};

/* A descriptor that the worker watches. */
struct worker_watch {
    int fd;
    void (*ready)(struct worker_watch *watch, uint32_t events); /* EPOLLIN | EPOLLOUT | ... */
};

/* pthread_create with every signal blocked: the application's handlers do not run on our threads, and
 * a write to a closed connection is an error, not SIGPIPE. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

int worker_start(uint32_t index, struct worker **out, struct error err);
void worker_stop(struct worker *worker); /* joins and frees */

void worker_job_init(struct worker_job *job, void (*run)(struct worker_job *));
void worker_post(struct worker *worker, struct worker_job *job); /* any thread */

/* On the worker's own thread. events 0 only changes nothing is wanted; fd stays registered. */
int worker_watch_add(struct worker *worker, struct worker_watch *watch, uint32_t events);
void worker_watch_change(struct worker *worker, struct worker_watch *watch, uint32_t events);
void worker_watch_remove(struct worker *worker, struct worker_watch *watch);

void worker_assert_owner(const struct worker *worker);

#endif
