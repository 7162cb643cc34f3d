/* SPDX-License-Identifier: Apache-2.0 */
/* See worker.h. The loop alternates between the jobs that were queued when it looked and the
 * descriptors that are ready, so that neither a long copy nor a busy stream starves the other. */
#include "worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORKER_EVENTS_MAX 64
#define WORKER_JOBS_PER_TURN 32 /* a job may be a megabyte: descriptors wait that long */

static _Thread_local struct worker *worker_self;

void worker_job_init(struct worker_job *job, void (*run)(struct worker_job *))
{
    atomic_init(&job->queued, false);
    job->run = run;
}

void worker_post(struct worker *worker, struct worker_job *job)
{
    if (atomic_exchange_explicit(&job->queued, true, memory_order_acq_rel))
        return;
    mpsc_push(&worker->jobs, &job->node);
    bell_ring(&worker->bell);
}

void worker_assert_owner(const struct worker *worker)
{
    BATON_ASSERT(worker_self == worker);
}

int worker_watch_add(struct worker *worker, struct worker_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event);
}

void worker_watch_change(struct worker *worker, struct worker_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    epoll_ctl(worker->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event);
}

void worker_watch_remove(struct worker *worker, struct worker_watch *watch)
{
    epoll_ctl(worker->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
}

/* Returns whether more may be waiting. */
static bool worker_run_jobs(struct worker *worker)
{
    struct mpsc_node *node;
    bell_answer(&worker->bell);
    for (int turn = 0; turn < WORKER_JOBS_PER_TURN; turn++) {
        if (!(node = mpsc_pop(&worker->jobs)))
            return false;
        struct worker_job *job = (struct worker_job *)node;
        atomic_exchange_explicit(&job->queued, false, memory_order_acq_rel);
        job->run(job);
    }
    return true;
}

static void *worker_thread(void *arg)
{
    struct worker *worker = arg;
    struct epoll_event events[WORKER_EVENTS_MAX];
    char name[16];
    worker_self = worker;
    snprintf(name, sizeof(name), "baton-copy-%u", worker->index);
    pthread_setname_np(pthread_self(), name);
    /* Above computing threads where the system lets us; refused is fine. */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -10);
    bool more = false;
    while (!atomic_load_explicit(&worker->stopping, memory_order_acquire)) {
        int ready = epoll_wait(worker->epoll_fd, events, WORKER_EVENTS_MAX, more ? 0 : -1);
        for (int i = 0; i < ready; i++) {
            struct worker_watch *watch = events[i].data.ptr;
            if (watch)
                watch->ready(watch, events[i].events);
        }
        more = worker_run_jobs(worker);
    }
    return NULL;
}

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int worker_start(uint32_t index, struct worker **out, struct error err)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    if (!worker)
        return error_set(err, BATON_ENOMEM, "out of memory for a copy worker");
    worker->index = index;
    mpsc_init(&worker->jobs);
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (worker->epoll_fd < 0)
        goto free_worker;
    if (bell_open(&worker->bell) != 0)
        goto close_epoll;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, worker->bell.fd, &event);
    if (thread_start(&worker->thread, worker_thread, worker) != 0)
        goto close_bell;
    *out = worker;
    return BATON_OK;

close_bell:
    bell_close(&worker->bell);
close_epoll:
    close(worker->epoll_fd);
free_worker:
    free(worker);
    return error_set(err, BATON_ESYSTEM, "cannot start copy worker %u: %s", index,
                     strerror(errno));
}

void worker_stop(struct worker *worker)
{
    atomic_store_explicit(&worker->stopping, true, memory_order_release);
    bell_ring(&worker->bell);
    pthread_join(worker->thread, NULL);
    bell_close(&worker->bell);
    close(worker->epoll_fd);
    free(worker);
}
