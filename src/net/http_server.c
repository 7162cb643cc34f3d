/* SPDX-License-Identifier: Apache-2.0 */
/* See http_server.h. Opening and closing, and the acceptor.
 *
 * One socket listens, on loop 0, and each connection is handed to the loop that has fewest. Several
 * sockets on one port (SO_REUSEPORT) would spare the hand-over, but then a second server on the same
 * port starts without an error and takes half of the first one's clients, and the kernel deals
 * connections out by a hash: with ten long-lived connections from routers some loops would have none.
 * A hand-over is one wake-up per connection, not per request.
 *
 * When descriptors run out, accepting rests until the next tick; the connections there are go on. When
 * every loop is full it rests until one of them frees a place. */
#include "http_server_parts.h"

#include "net/socket.h"
#include "net/tls.h"

#include "base/log.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX (64u << 20)
#define HEADER_MAX (32u << 10)
#define IDLE_SECONDS 120 /* longer than the 90 s that routers keep idle connections */
#define STALL_SECONDS 60
#define CONNECTIONS_MAX 16384
#define ACCEPTS_AT_ONCE 256
#define NS_PER_SECOND 1000000000ull

/* ---- the acceptor ------------------------------------------------------------------------- */

struct handover {
    struct http_task task;
    struct http_loop *loop;
    int fd;
};

static void handover_run(struct http_task *task)
{
    struct handover *handover = (struct handover *)task;
    http_connection_open(handover->loop, handover->fd);
    free(handover);
}

/* The loop with fewest connections; NULL: all are full. */
static struct http_loop *loop_choose(struct http_server *server)
{
    struct http_loop *best = NULL;
    uint32_t fewest = server->connections_max;
    for (uint32_t i = 0; i < server->loop_count; i++) {
        uint32_t count =
            atomic_load_explicit(&server->loops[i].connection_count, memory_order_seq_cst);
        if (count < fewest) {
            fewest = count;
            best = &server->loops[i];
        }
    }
    return best;
}

static void connection_place(struct http_server *server, struct http_loop *loop, int fd)
{
    socket_adopt(fd);
    atomic_fetch_add_explicit(&loop->connection_count, 1, memory_order_seq_cst);
    if (loop == &server->loops[0]) {
        http_connection_open(loop, fd);
        return;
    }
    struct handover *handover = malloc(sizeof(*handover));
    if (!handover) {
        atomic_fetch_sub_explicit(&loop->connection_count, 1, memory_order_seq_cst);
        socket_close(fd);
        return;
    }
    *handover = (struct handover){.task.run = handover_run, .loop = loop, .fd = fd};
    http_loop_post(loop, &handover->task);
}

/* Rests until a place is free. seq_cst throughout: either we see the count that a closing connection
 * lowered, or it sees `full` and wakes us. */
static bool rest_while_full(struct http_server *server)
{
    event_del(server->accept_event);
    atomic_store_explicit(&server->full, true, memory_order_seq_cst);
    if (!loop_choose(server) ||
        !atomic_exchange_explicit(&server->full, false, memory_order_seq_cst))
        return true;
    event_add(server->accept_event, NULL);
    return false;
}

static void accept_some(evutil_socket_t listener, short what, void *context)
{
    struct http_server *server = context;
    (void)what;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct http_loop *loop = loop_choose(server);
        if (!loop && rest_while_full(server))
            return;
        if (!loop)
            continue;
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            connection_place(server, loop, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            LOG_WARNING(http, "cannot accept connections on port %u: %m; pausing for a moment",
                        server->port);
            event_del(server->accept_event);
            return;
        }
        if (errno == EAGAIN)
            return;
    }
}

void http_server_accept_tick(struct http_server *server)
{
    if (server->accept_event && !atomic_load_explicit(&server->full, memory_order_seq_cst))
        event_add(server->accept_event, NULL);
}

/* Who is in the kernel's queue has connected already, and is still served. */
void http_server_accept_stop(struct http_server *server)
{
    if (!server->accept_event)
        return;
    if (!server->loops[0].closing)
        accept_some(server->listener, EV_READ, server);
    event_free(server->accept_event);
    server->accept_event = NULL;
    socket_close(server->listener);
    server->listener = -1;
}

static void resume_run(struct http_task *task)
{
    struct http_server *server =
        (struct http_server *)((char *)task - offsetof(struct http_server, resume));
    if (server->accept_event)
        event_add(server->accept_event, NULL);
}

void http_server_place_freed(struct http_server *server)
{
    if (atomic_load_explicit(&server->full, memory_order_seq_cst) &&
        atomic_exchange_explicit(&server->full, false, memory_order_seq_cst))
        http_loop_post(&server->loops[0], &server->resume);
}

/* ---- open --------------------------------------------------------------------------------- */

static int listener_open(struct http_server *server, const char *host, struct error err)
{
    int code;
    if (host && *host)
        return socket_listen(host, &server->port, &server->listener, err);
    /* "::" takes IPv4 too; where IPv6 is switched off only the second works. */
    code = socket_listen("::", &server->port, &server->listener, err);
    if (code == BATON_OK || code == BATON_EBUSY)
        return code;
    return socket_listen(NULL, &server->port, &server->listener, err);
}

static void limits_set(struct http_server *server, const struct http_server_options *options)
{
    server->body_max = options->body_max ? options->body_max : BODY_MAX;
    server->header_max = options->header_max ? options->header_max : HEADER_MAX;
    server->idle_ns =
        (options->idle_seconds ? options->idle_seconds : IDLE_SECONDS) * NS_PER_SECOND;
    server->stall_ns =
        (options->stall_seconds ? options->stall_seconds : STALL_SECONDS) * NS_PER_SECOND;
    server->connections_max =
        options->connections_max ? options->connections_max : CONNECTIONS_MAX;
}

static void server_free(struct http_server *server)
{
    for (uint32_t i = server->loop_count; i-- > 0;)
        http_loop_close(&server->loops[i]);
    if (server->listener >= 0)
        socket_close(server->listener);
    tls_close(server->tls);
    sem_destroy(&server->loop_is_cut);
    free(server);
}

static int loops_open(struct http_server *server, struct error err)
{
    for (uint32_t i = 0; i < server->loop_count; i++)
        server->loops[i].bell.fd = -1;
    for (uint32_t i = 0; i < server->loop_count; i++) {
        int code = http_loop_open(&server->loops[i], server, err);
        if (code != BATON_OK)
            return code;
    }
    server->accept_event = event_new(server->loops[0].base, server->listener,
                                     EV_READ | EV_PERSIST, accept_some, server);
    if (!server->accept_event || event_add(server->accept_event, NULL) != 0)
        return error_set(err, BATON_ENOMEM, "cannot make an event loop for HTTP");
    return BATON_OK;
}

static void loops_end(struct http_server *server, uint32_t started)
{
    /* All are cut before the first one ends: until then they may post to each other. */
    for (uint32_t i = 0; i < started; i++)
        http_loop_post(&server->loops[i], &server->loops[i].cut.task);
    for (uint32_t i = 0; i < started; i++) {
        while (sem_wait(&server->loop_is_cut) != 0)
            ;
    }
    for (uint32_t i = 0; i < started; i++)
        http_loop_post(&server->loops[i], &server->loops[i].end.task);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(server->loops[i].thread, NULL);
}

int http_server_open(const struct http_server_options *options, struct http_server **out,
                     struct error err)
{
    uint32_t started = 0;
    BATON_ASSERT(options->handler && options->loops >= 1);
    struct http_server *server =
        calloc(1, sizeof(*server) + options->loops * sizeof(server->loops[0]));
    if (!server)
        return error_set(err, BATON_ENOMEM, "out of memory for the HTTP server");
    sem_init(&server->loop_is_cut, 0, 0);
    server->listener = -1;
    server->handler = options->handler;
    server->context = options->context;
    server->open_path = options->open_path;
    server->port = options->port;
    server->resume.run = resume_run;
    limits_set(server, options);
    if (options->api_key) {
        server->keyed = true;
        SHA256((const unsigned char *)options->api_key, strlen(options->api_key),
               server->key_digest);
    }
    int code = BATON_OK;
    if (options->tls_certificate || options->tls_key)
        code = tls_open_server(options->tls_certificate, options->tls_key, &server->tls, err);
    if (code == BATON_OK)
        code = listener_open(server, options->host, err);
    if (code != BATON_OK)
        goto free_server;
    server->loop_count = options->loops;
    code = loops_open(server, err);
    if (code != BATON_OK)
        goto free_accept_event;
    while (started < server->loop_count) {
        code = http_loop_start(&server->loops[started], err);
        if (code != BATON_OK)
            goto end_loops;
        started++;
    }
    *out = server;
    return BATON_OK;

end_loops:
    loops_end(server, started);
free_accept_event:
    if (server->accept_event)
        event_free(server->accept_event);
free_server:
    server_free(server);
    return code;
}

/* ---- the rest ----------------------------------------------------------------------------- */

uint16_t http_server_port(const struct http_server *server)
{
    return server->port;
}

uint32_t http_server_loop_count(const struct http_server *server)
{
    return server->loop_count;
}

struct http_loop *http_server_loop(struct http_server *server, uint32_t index)
{
    BATON_ASSERT(index < server->loop_count);
    return &server->loops[index];
}

uint32_t http_server_connections(const struct http_server *server)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < server->loop_count; i++)
        sum += atomic_load_explicit(&server->loops[i].connection_count, memory_order_relaxed);
    return sum;
}

void http_server_drain(struct http_server *server)
{
    if (atomic_exchange(&server->draining, true))
        return;
    for (uint32_t i = 0; i < server->loop_count; i++)
        http_loop_post(&server->loops[i], &server->loops[i].drain.task);
}

void http_server_close(struct http_server *server)
{
    if (!server)
        return;
    loops_end(server, server->loop_count);
    server_free(server);
}
