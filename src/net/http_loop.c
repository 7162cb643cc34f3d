/* SPDX-License-Identifier: Apache-2.0 */
/* A loop of the HTTP server: one thread, one event base, and what is posted to it.
 *
 * A connection that ends stays on its list and is left to the `reaper`, an event that runs when the
 * callbacks on the stack have returned: libevent and OpenSSL still look at a stream after the
 * callback in which we decided to end it, and so do our own walks over the list. */
#include "http_server_parts.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TICK_MS 200
#define TASKS_AT_ONCE 1024 /* then sockets have their turn */

static _Thread_local const struct http_loop *loop_of_thread;

void http_loop_check_thread(const struct http_loop *loop)
{
    BATON_ASSERT(loop_of_thread == loop);
}

/* ---- tasks -------------------------------------------------------------------------------- */

void http_loop_post(struct http_loop *loop, struct http_task *task)
{
    mpsc_push(&loop->tasks, &task->node);
    bell_ring(&loop->bell);
}

/* Returns whether some may be left. */
static bool tasks_run(struct http_loop *loop, uint32_t limit)
{
    for (uint32_t i = 0; i < limit; i++) {
        struct mpsc_node *node = mpsc_pop(&loop->tasks);
        if (!node)
            return false;
        struct http_task *task =
            (struct http_task *)((char *)node - offsetof(struct http_task, node));
        task->run(task);
    }
    return true;
}

static void bell_rung(evutil_socket_t fd, short what, void *context)
{
    struct http_loop *loop = context;
    (void)fd, (void)what;
    bell_answer(&loop->bell);
    if (tasks_run(loop, TASKS_AT_ONCE))
        bell_ring(&loop->bell);
}

/* ---- timers ------------------------------------------------------------------------------- */

static void timer_free(struct http_timer *timer)
{
    TAILQ_REMOVE(&timer->loop->timers, timer, link);
    event_free(timer->event);
    free(timer);
}

static void timer_fired(evutil_socket_t fd, short what, void *context)
{
    struct http_timer *timer = context;
    void (*fire)(void *) = timer->fire;
    void *argument = timer->context;
    (void)fd, (void)what;
    timer_free(timer);
    fire(argument);
}

struct http_timer *http_loop_after(struct http_loop *loop, uint32_t milliseconds,
                                   void (*fire)(void *context), void *context)
{
    http_loop_check_thread(loop);
    struct timeval delay = {milliseconds / 1000, milliseconds % 1000 * 1000};
    struct http_timer *timer = calloc(1, sizeof(*timer));
    if (!timer)
        return NULL;
    *timer = (struct http_timer){.loop = loop, .fire = fire, .context = context};
    timer->event = evtimer_new(loop->base, timer_fired, timer);
    if (!timer->event || event_add(timer->event, &delay) != 0) {
        if (timer->event)
            event_free(timer->event);
        free(timer);
        return NULL;
    }
    TAILQ_INSERT_TAIL(&loop->timers, timer, link);
    return timer;
}

void http_timer_cancel(struct http_timer *timer)
{
    if (!timer)
        return;
    http_loop_check_thread(timer->loop);
    timer_free(timer);
}

/* ---- the tick and the reaper -------------------------------------------------------------- */

static void loop_tick(evutil_socket_t fd, short what, void *context)
{
    struct http_loop *loop = context;
    struct http_connection *connection;
    uint64_t now = clock_now_ns();
    (void)fd, (void)what;
    TAILQ_FOREACH(connection, &loop->connections, link)
    http_connection_tick(connection, now);
    if (loop == &loop->server->loops[0])
        http_server_accept_tick(loop->server);
}

static void loop_reap(evutil_socket_t fd, short what, void *context)
{
    struct http_loop *loop = context;
    struct http_connection *connection;
    (void)fd, (void)what;
    while ((connection = SLIST_FIRST(&loop->dead))) {
        SLIST_REMOVE_HEAD(&loop->dead, dead_link);
        TAILQ_REMOVE(&loop->connections, connection, link);
        http_connection_free(connection);
    }
}

const char *http_loop_date(struct http_loop *loop)
{
    time_t now = time(NULL);
    if ((uint64_t)now != loop->date_second) {
        struct tm parts;
        loop->date_second = (uint64_t)now;
        gmtime_r(&now, &parts);
        strftime(loop->date, sizeof(loop->date), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    }
    return loop->date;
}

/* ---- the server's orders ------------------------------------------------------------------ */

void http_loop_drain_now(struct http_task *task)
{
    struct http_loop *loop = ((struct http_loop_order *)task)->loop;
    struct http_connection *connection;
    if (loop == &loop->server->loops[0])
        http_server_accept_stop(loop->server);
    loop->draining = true;
    TAILQ_FOREACH(connection, &loop->connections, link)
    http_connection_drain(connection);
}

void http_loop_cut_now(struct http_task *task)
{
    struct http_loop *loop = ((struct http_loop_order *)task)->loop;
    struct http_connection *connection;
    if (loop == &loop->server->loops[0])
        http_server_accept_stop(loop->server);
    loop->draining = loop->closing = true;
    TAILQ_FOREACH(connection, &loop->connections, link)
    http_connection_lose(connection);
    sem_post(&loop->server->loop_is_cut);
}

void http_loop_end_now(struct http_task *task)
{
    event_base_loopbreak(((struct http_loop_order *)task)->loop->base);
}

/* ---- the thread --------------------------------------------------------------------------- */

static void *loop_main(void *context)
{
    struct http_loop *loop = context;
    sigset_t pipe;
    /* A write to a client that has left is an error, not a signal; this thread's writes only. */
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    loop_of_thread = loop;
    event_base_dispatch(loop->base);
    while (tasks_run(loop, TASKS_AT_ONCE))
        ;
    loop_reap(-1, 0, loop);
    return NULL;
}

static struct event_base *loop_base_new(void)
{
    struct event_config *config = event_config_new();
    if (!config)
        return NULL;
    event_config_set_flag(config,
                          EVENT_BASE_FLAG_NOLOCK); /* one thread; others ring the bell */
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

int http_loop_open(struct http_loop *loop, struct http_server *server, struct error err)
{
    static const struct timeval tick = {0, TICK_MS * 1000};
    loop->server = server;
    loop->bell.fd = -1;
    TAILQ_INIT(&loop->connections);
    SLIST_INIT(&loop->dead);
    TAILQ_INIT(&loop->timers);
    mpsc_init(&loop->tasks);
    loop->drain = (struct http_loop_order){.task.run = http_loop_drain_now, .loop = loop};
    loop->cut = (struct http_loop_order){.task.run = http_loop_cut_now, .loop = loop};
    loop->end = (struct http_loop_order){.task.run = http_loop_end_now, .loop = loop};
    if (bell_open(&loop->bell) != 0)
        return error_set(err, BATON_ESYSTEM, "cannot make an eventfd for an HTTP loop: %s",
                         strerror(errno));
    loop->base = loop_base_new();
    if (!loop->base)
        goto no_memory;
    loop->bell_event =
        event_new(loop->base, loop->bell.fd, EV_READ | EV_PERSIST, bell_rung, loop);
    loop->tick = event_new(loop->base, -1, EV_PERSIST, loop_tick, loop);
    loop->reaper = event_new(loop->base, -1, 0, loop_reap, loop);
    if (loop->bell_event && loop->tick && loop->reaper &&
        event_add(loop->bell_event, NULL) == 0 && event_add(loop->tick, &tick) == 0)
        return BATON_OK;
no_memory:
    http_loop_close(loop);
    return error_set(err, BATON_ENOMEM, "cannot make an event loop for HTTP");
}

int http_loop_start(struct http_loop *loop, struct error err)
{
    int failed = pthread_create(&loop->thread, NULL, loop_main, loop);
    if (failed)
        return error_set(err, BATON_ESYSTEM, "cannot start an HTTP thread: %s",
                         strerror(failed));
    pthread_setname_np(loop->thread, "baton-http");
    return BATON_OK;
}

void http_loop_close(struct http_loop *loop)
{
    struct http_timer *timer;
    if (loop->bell.fd < 0)
        return;
    while ((timer = TAILQ_FIRST(&loop->timers)))
        timer_free(timer);
    if (loop->bell_event)
        event_free(loop->bell_event);
    if (loop->tick)
        event_free(loop->tick);
    if (loop->reaper)
        event_free(loop->reaper);
    if (loop->base)
        event_base_free(loop->base);
    bell_close(&loop->bell);
}

struct event_base *http_loop_base(struct http_loop *loop)
{
    return loop->base;
}
