/* SPDX-License-Identifier: Apache-2.0 */
/* The link thread.
 *
 * Problem: schedulers must never wait for a socket, and rooms, links and routes are full of
 * state that two threads at once would ruin. So one thread per process owns all of it and runs an
 * event loop: control frames, the bootstrap server and client, heartbeats, deadlines. Everybody
 * else leaves a job in its queue and rings its bell. It never copies pages and never blocks.
 *
 * A timer every RUNTIME_TICK_MS looks at deadlines with clock_now_ns(), so tests can push the
 * clock. In one turn of the loop libevent runs ready sockets before timers, so input is read before the
 * tick judges peers. */
#include "runtime.h"

#include "base/log.h"
#include "bootstrap.h"
#include "manager.h"
#include "net/socket.h"
#include "worker.h"

#include <event2/dns.h>
#include <errno.h>
#include <event2/event.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t runtime_lock = PTHREAD_MUTEX_INITIALIZER;
static struct runtime *runtime_shared;
static unsigned runtime_users;

/* Jobs per turn of the loop: a flood of them must not keep sockets and deadlines waiting. */
#define RUNTIME_JOBS_PER_TURN 256

void runtime_job_init(struct runtime_job *job, void (*run)(struct runtime_job *))
{
    atomic_init(&job->queued, false);
    job->run = run;
}

void runtime_post(struct runtime *runtime, struct runtime_job *job)
{
    /* acq_rel: what the poster wrote before is visible to the run that clears the flag. */
    if (atomic_exchange_explicit(&job->queued, true, memory_order_acq_rel))
        return;
    mpsc_push(&runtime->jobs, &job->node);
    bell_ring(&runtime->bell);
}

void runtime_assert_link_thread(const struct runtime *runtime)
{
    BATON_ASSERT(pthread_equal(pthread_self(), runtime->thread));
}

void runtime_changed(struct runtime *runtime)
{
    atomic_fetch_add_explicit(&runtime->changes, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&runtime->waiters, memory_order_seq_cst))
        syscall(SYS_futex, &runtime->changes, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

static void runtime_on_bell(evutil_socket_t fd, short what, void *arg)
{
    struct runtime *runtime = arg;
    struct mpsc_node *node;
    (void)fd;
    (void)what;
    bell_answer(&runtime->bell);
    for (int turn = 0; turn < RUNTIME_JOBS_PER_TURN; turn++) {
        if (!(node = mpsc_pop(&runtime->jobs)))
            break;
        if (turn == RUNTIME_JOBS_PER_TURN - 1)
            bell_ring(&runtime->bell); /* come back for the rest */
        struct runtime_job *job = (struct runtime_job *)node;
        /* Cleared before the run: whatever is posted from here on runs again. */
        atomic_exchange_explicit(&job->queued, false, memory_order_acq_rel);
        job->run(job);
    }
    for (struct manager *manager = runtime->managers; manager; manager = manager->next)
        manager_reap(manager);
    if (atomic_load_explicit(&runtime->stopping, memory_order_acquire))
        event_base_loopbreak(runtime->base);
}

static void runtime_on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct runtime *runtime = arg;
    (void)fd;
    (void)what;
    for (struct manager *manager = runtime->managers, *next; manager; manager = next) {
        next = manager->next;
        manager_tick(manager);
    }
}

static void runtime_raise_priority(void)
{
    /* Link and copy threads above computing ones; without the right to, the default serves. */
    struct sched_param priority = {.sched_priority = 1};
    pthread_setschedparam(pthread_self(), SCHED_RR, &priority);
}

static void *runtime_thread(void *arg)
{
    struct runtime *runtime = arg;
    pthread_setname_np(pthread_self(), "baton-link");
    runtime_raise_priority();
    struct event *bell = event_new(runtime->base, runtime->bell.fd, EV_READ | EV_PERSIST,
                                   runtime_on_bell, runtime);
    struct event *tick = event_new(runtime->base, -1, EV_PERSIST, runtime_on_tick, runtime);
    BATON_ASSERT(bell && tick);
    event_add(bell, NULL);
    event_add(tick, &(struct timeval){0, RUNTIME_TICK_MS * 1000});
    event_base_dispatch(runtime->base);
    event_free(tick);
    event_free(bell);
    return NULL;
}

/* libevent ends the process when it cannot have its own descriptors: see first whether it can. */
static bool runtime_descriptors_left(void)
{
    int fds[16], count = 0;
    while (count < 16 && (fds[count] = eventfd(0, EFD_CLOEXEC)) >= 0)
        count++;
    bool enough = count == 16;
    while (count > 0)
        close(fds[--count]);
    return enough;
}

static int runtime_create(struct runtime **out, struct error err)
{
    struct runtime *runtime = calloc(1, sizeof(*runtime));
    if (!runtime)
        return error_set(err, BATON_ENOMEM, "out of memory for the runtime");
    if (!runtime_descriptors_left()) {
        error_set(err, BATON_ESYSTEM, "too many open files: raise the limit (ulimit -n)");
        goto free_runtime;
    }
    error_set(err, BATON_ESYSTEM, "cannot start the event loop");
    mpsc_init(&runtime->jobs);
    host_identity(runtime->host_id, sizeof(runtime->host_id));
    if (getrandom(&runtime->process, sizeof(runtime->process), 0) != sizeof(runtime->process))
        goto free_runtime;
    if (bell_open(&runtime->bell) != 0) {
        error_set(err, BATON_ESYSTEM, "cannot create an eventfd: %s", strerror(errno));
        goto free_runtime;
    }
    runtime->base = event_base_new();
    if (!runtime->base)
        goto close_bell;
    runtime->dns = evdns_base_new(runtime->base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                                     EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (bootstrap_client_open(runtime->base, runtime->dns, &runtime->bootstrap) != 0)
        goto free_base;
    if (thread_start(&runtime->thread, runtime_thread, runtime) != 0) {
        error_set(err, BATON_ESYSTEM, "cannot start the link thread");
        goto close_client;
    }
    *out = runtime;
    return BATON_OK;

close_client:
    bootstrap_client_close(runtime->bootstrap);
free_base:
    if (runtime->dns)
        evdns_base_free(runtime->dns, 0);
    event_base_free(runtime->base);
close_bell:
    bell_close(&runtime->bell);
free_runtime:
    free(runtime);
    return BATON_ESYSTEM;
}

static void runtime_destroy(struct runtime *runtime)
{
    atomic_store_explicit(&runtime->stopping, true, memory_order_release);
    bell_ring(&runtime->bell);
    pthread_join(runtime->thread, NULL);
    for (uint32_t i = 0; i < runtime->worker_count; i++)
        worker_stop(runtime->workers[i]);
    bootstrap_client_close(runtime->bootstrap);
    if (runtime->dns) {
        /* libevent does not cancel a look-up with its connection: fail them and let them say so. */
        evdns_base_free(runtime->dns, 1);
        event_base_loop(runtime->base, EVLOOP_NONBLOCK);
    }
    event_base_free(runtime->base);
    bell_close(&runtime->bell);
    free(runtime);
}

int runtime_acquire(struct runtime **out, uint32_t workers, struct error err)
{
    int code = BATON_OK;
    pthread_mutex_lock(&runtime_lock);
    if (!runtime_shared)
        code = runtime_create(&runtime_shared, err);
    if (workers > RUNTIME_WORKERS_MAX)
        workers = RUNTIME_WORKERS_MAX;
    while (code == BATON_OK && runtime_shared->worker_count < workers) {
        uint32_t index = runtime_shared->worker_count;
        code = worker_start(index, &runtime_shared->workers[index], err);
        if (code == BATON_OK)
            atomic_store_explicit(&runtime_shared->worker_count, index + 1,
                                  memory_order_release);
    }
    if (code == BATON_OK) {
        runtime_users++;
        *out = runtime_shared;
    } else if (runtime_shared && runtime_users == 0) {
        runtime_destroy(runtime_shared);
        runtime_shared = NULL;
    }
    pthread_mutex_unlock(&runtime_lock);
    return code;
}

void runtime_release(struct runtime *runtime)
{
    pthread_mutex_lock(&runtime_lock);
    BATON_ASSERT(runtime == runtime_shared && runtime_users > 0);
    if (--runtime_users == 0) {
        runtime_destroy(runtime);
        runtime_shared = NULL;
    }
    pthread_mutex_unlock(&runtime_lock);
}

struct runtime_call_job {
    struct runtime_job job;
    void (*fn)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t done_condition;
    bool done;
};

static void runtime_run_call(struct runtime_job *job)
{
    struct runtime_call_job *call = (struct runtime_call_job *)job;
    call->fn(call->arg);
    pthread_mutex_lock(&call->lock);
    call->done = true;
    pthread_cond_signal(&call->done_condition);
    pthread_mutex_unlock(&call->lock);
}

void runtime_call(struct runtime *runtime, void (*fn)(void *arg), void *arg)
{
    BATON_ASSERT(!pthread_equal(pthread_self(), runtime->thread));
    struct runtime_call_job call = {.fn = fn,
                                    .arg = arg,
                                    .lock = PTHREAD_MUTEX_INITIALIZER,
                                    .done_condition = PTHREAD_COND_INITIALIZER};
    runtime_job_init(&call.job, runtime_run_call);
    runtime_post(runtime, &call.job);
    pthread_mutex_lock(&call.lock);
    while (!call.done)
        pthread_cond_wait(&call.done_condition, &call.lock);
    pthread_mutex_unlock(&call.lock);
}
