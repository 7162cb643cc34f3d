/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP around the bootstrap table: a listener, evhttp, and the connects that tell whether the
 * process which had a rank before still lives.
 *
 * Everything runs on the caller's event base, one thread, nothing blocks. A request is
 * answered inside its callback, except a PUT that the table has a question about: its
 * evhttp_request waits in a `struct probe` while we connect to the old addresses
 * (PROBE_WINDOW at once, PROBE_TIMEOUT_MS each). Somebody accepts: the old process lives,
 * 409. Refused or silent: it is gone, the new one takes its place. The answer is carried out
 * even if the client has left meanwhile: evhttp does not read while a request is pending, so
 * nothing tells us, and a client that gave up will send the same PUT again.
 *
 * Why that leaks nothing: a pending request stays on its evhttp connection, and it ends in
 * one of two ways, by evhttp_send_reply (a failed write closes the connection) or by
 * evhttp_free, which frees the connection and the request with it; the probes are freed
 * before that.
 *
 * Limits: bodies of BOOTSTRAP_BODY_MAX, headers of HEADERS_MAX, IDLE_SECONDS without a byte,
 * PROBES_MAX waiting PUTs. When file descriptors run out, accepting pauses until the next
 * tick. */
#include "bootstrap_table.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_BACKLOG \
    4096 /* evhttp's own 128 makes a burst of connects wait for retransmits */
#define HEADERS_MAX (16 * 1024)
#define IDLE_SECONDS 30
#define TICK_SECONDS 1
#define PROBE_TIMEOUT_MS 300
#define PROBE_WINDOW 64
#define PROBES_MAX 256

struct probe;

struct probe_connect {
    struct probe *probe;
    struct event *event; /* NULL: this place is free */
    int fd;
    uint32_t endpoint;
};

/* One PUT that waits for the answer to a question. */
struct probe {
    LIST_ENTRY(probe) link;
    struct bootstrap_server *server;
    struct evhttp_request *request;
    struct bootstrap_pending *pending;
    uint32_t next;     /* first endpoint not yet tried */
    uint32_t underway; /* connects in flight */
    struct probe_connect connects[PROBE_WINDOW];
};

struct bootstrap_server {
    struct event_base *base;
    struct bootstrap_table *table;
    struct evhttp *http;
    struct evconnlistener *listener; /* owned by http */
    struct event *tick;
    LIST_HEAD(, probe) probes;
    uint32_t probe_count;
    uint16_t port;
};

/* ---- replies --------------------------------------------------------------------------- */

static const char *method_name(enum evhttp_cmd_type type)
{
    switch (type) {
    case EVHTTP_REQ_GET: return "GET";
    case EVHTTP_REQ_POST: return "POST";
    case EVHTTP_REQ_HEAD: return "HEAD";
    case EVHTTP_REQ_PUT: return "PUT";
    case EVHTTP_REQ_DELETE: return "DELETE";
    case EVHTTP_REQ_OPTIONS: return "OPTIONS";
    case EVHTTP_REQ_TRACE: return "TRACE";
    case EVHTTP_REQ_CONNECT: return "CONNECT";
    case EVHTTP_REQ_PATCH: return "PATCH";
    }
    return "?";
}

/* Takes the reply's body. */
static void request_answer(struct evhttp_request *request, struct bootstrap_reply *reply)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    struct evbuffer *body = evhttp_request_get_output_buffer(request);
    evhttp_add_header(headers, "Content-Type", reply->content_type);
    if (reply->allow)
        evhttp_add_header(headers, "Allow", reply->allow);
    if (reply->body && evhttp_request_get_command(request) != EVHTTP_REQ_HEAD)
        evbuffer_add(body, reply->body, strlen(reply->body));
    evhttp_send_reply(request, reply->status, NULL, NULL);
    bootstrap_reply_free(reply);
}

/* ---- probes ---------------------------------------------------------------------------- */

enum probe_outcome { PROBE_ALIVE, PROBE_GONE, PROBE_UNKNOWN, PROBE_UNDERWAY };

/* Errors of ours say nothing about the other process. */
static enum probe_outcome connect_outcome(int error)
{
    switch (error) {
    case 0: return PROBE_ALIVE;
    case EINPROGRESS: return PROBE_UNDERWAY;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EADDRNOTAVAIL:
    case EAGAIN: return PROBE_UNKNOWN;
    default: return PROBE_GONE;
    }
}

static void probe_connect_stop(struct probe_connect *attempt)
{
    event_free(attempt->event);
    close(attempt->fd);
    attempt->event = NULL;
    attempt->probe->underway--;
}

static void probe_free(struct probe *probe)
{
    for (uint32_t i = 0; i < PROBE_WINDOW; i++) {
        if (probe->connects[i].event)
            probe_connect_stop(&probe->connects[i]);
    }
    LIST_REMOVE(probe, link);
    probe->server->probe_count--;
    free(probe);
}

static void probe_finish(struct probe *probe, int64_t alive)
{
    struct bootstrap_reply reply;
    struct evhttp_request *request = probe->request;
    bootstrap_pending_finish(probe->server->table, probe->pending, alive, &reply);
    probe_free(probe);
    request_answer(request, &reply);
}

static void probe_advance(struct probe *probe);

/* Returns whether the probe goes on. */
static bool probe_note(struct probe *probe, uint32_t endpoint, enum probe_outcome outcome)
{
    if (outcome != PROBE_ALIVE && outcome != PROBE_UNKNOWN)
        return true;
    probe_finish(probe, outcome == PROBE_ALIVE ? (int64_t)endpoint : BOOTSTRAP_UNKNOWN);
    return false;
}

static void probe_connect_done(evutil_socket_t fd, short what, void *arg)
{
    struct probe_connect *attempt = arg;
    struct probe *probe = attempt->probe;
    int error = ETIMEDOUT;
    socklen_t size = sizeof(error);
    if ((what & EV_WRITE) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        error = errno;
    probe_connect_stop(attempt);
    if (probe_note(probe, attempt->endpoint, connect_outcome(error)))
        probe_advance(probe);
}

static socklen_t endpoint_sockaddr(const struct bootstrap_endpoint *endpoint,
                                   struct sockaddr_storage *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, endpoint->ip, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(endpoint->port);
        return sizeof(*v4);
    }
    inet_pton(AF_INET6, endpoint->ip, &v6->sin6_addr);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(endpoint->port);
    return sizeof(*v6);
}

static enum probe_outcome probe_connect_start(struct probe *probe,
                                              struct probe_connect *attempt, uint32_t endpoint)
{
    static const struct timeval timeout = {0, PROBE_TIMEOUT_MS * 1000};
    struct sockaddr_storage address;
    socklen_t size =
        endpoint_sockaddr(bootstrap_pending_endpoint(probe->pending, endpoint), &address);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno == EAFNOSUPPORT ? PROBE_GONE : PROBE_UNKNOWN;
    int error = connect(fd, (struct sockaddr *)&address, size) < 0 ? errno : 0;
    enum probe_outcome outcome = connect_outcome(error);
    if (outcome != PROBE_UNDERWAY)
        goto close_fd;
    outcome = PROBE_UNKNOWN;
    *attempt = (struct probe_connect){.probe = probe, .fd = fd, .endpoint = endpoint};
    attempt->event = event_new(probe->server->base, fd, EV_WRITE, probe_connect_done, attempt);
    if (!attempt->event)
        goto close_fd;
    if (event_add(attempt->event, &timeout) < 0)
        goto free_event;
    probe->underway++;
    return PROBE_UNDERWAY;

free_event:
    event_free(attempt->event);
    attempt->event = NULL;
close_fd:
    close(fd);
    return outcome;
}

/* Keeps the window full; ends the probe when nothing is left to try. */
static void probe_advance(struct probe *probe)
{
    uint32_t count = bootstrap_pending_count(probe->pending);
    for (uint32_t i = 0; i < PROBE_WINDOW && probe->next < count;) {
        struct probe_connect *attempt = &probe->connects[i];
        if (attempt->event) {
            i++;
            continue;
        }
        uint32_t endpoint = probe->next++;
        if (!probe_note(probe, endpoint, probe_connect_start(probe, attempt, endpoint)))
            return;
    }
    if (!probe->underway && probe->next == count)
        probe_finish(probe, BOOTSTRAP_ALL_GONE);
}

static void probe_start(struct bootstrap_server *server, struct evhttp_request *request,
                        struct bootstrap_pending *pending)
{
    struct bootstrap_reply reply;
    struct probe *probe = server->probe_count < PROBES_MAX ? calloc(1, sizeof(*probe)) : NULL;
    if (!probe) {
        bootstrap_pending_finish(server->table, pending, BOOTSTRAP_UNKNOWN, &reply);
        request_answer(request, &reply);
        return;
    }
    probe->server = server;
    probe->request = request;
    probe->pending = pending;
    LIST_INSERT_HEAD(&server->probes, probe, link);
    server->probe_count++;
    probe_advance(probe);
}

/* ---- requests -------------------------------------------------------------------------- */

static void request_handle(struct evhttp_request *http_request, void *arg)
{
    struct bootstrap_server *server = arg;
    struct evbuffer *body = evhttp_request_get_input_buffer(http_request);
    size_t size = evbuffer_get_length(body);
    struct bootstrap_request request = {
        .method = method_name(evhttp_request_get_command(http_request)),
        .uri = evhttp_request_get_uri(http_request),
        .body = size ? (const char *)evbuffer_pullup(body, -1) : NULL,
        .body_size = size,
    };
    struct bootstrap_reply reply;
    struct bootstrap_pending *pending = bootstrap_table_handle(server->table, &request, &reply);
    if (pending)
        probe_start(server, http_request, pending);
    else
        request_answer(http_request, &reply);
}

static void server_tick(evutil_socket_t fd, short what, void *arg)
{
    struct bootstrap_server *server = arg;
    (void)fd, (void)what;
    bootstrap_table_sweep(server->table);
    evconnlistener_enable(server->listener);
}

/* No file descriptors left: without a pause the loop would spin on the connection it cannot
 * accept. */
static void accept_failed(struct evconnlistener *listener, void *http)
{
    (void)http;
    LOG_WARNING(bootstrap, "cannot accept connections: %m; pausing for a moment");
    evconnlistener_disable(listener);
}

/* ---- open and close -------------------------------------------------------------------- */

static int listen_at(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1, off = 0, error;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address->ai_family == AF_INET6) /* "::" is to take IPv4 clients too */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int bind_error(const char *host, uint16_t port, int error, struct error err)
{
    if (error == EADDRINUSE)
        return error_set(
            err, BATON_EBUSY,
            "bootstrap port %u on %s is already taken by another process; stop that one "
            "or choose another port (\"ss -ltnp sport = :%u\" shows who has it)",
            port, host, port);
    if (error == EACCES)
        return error_set(
            err, BATON_ESYSTEM,
            "may not listen on bootstrap port %u; ports below 1024 need privileges, "
            "choose a higher one",
            port);
    return error_set(err, BATON_ESYSTEM, "cannot listen on %s, bootstrap port %u: %s", host,
                     port, strerror(error));
}

/* Where IPv6 is switched off, "::" fails in ways that do not matter if "0.0.0.0" then works. */
static int listener_socket(const char *host, uint16_t port, int *out, struct error err)
{
    static const char *const everywhere[] = {"::", "0.0.0.0"};
    bool any = !host || !*host;
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *address;
    int fd = -1, error = 0;
    snprintf(service, sizeof(service), "%u", (unsigned)port);
    for (int i = 0; i < (any ? 2 : 1) && fd < 0 && error != EADDRINUSE; i++) {
        const char *name = any ? everywhere[i] : host;
        int lookup = getaddrinfo(name, service, &hints, &address);
        if (lookup != 0)
            return error_set(err, BATON_EINVAL, "cannot listen on host '%s': %s", name,
                             gai_strerror(lookup));
        fd = listen_at(address);
        error = errno;
        freeaddrinfo(address);
    }
    if (fd < 0)
        return bind_error(any ? "every address" : host, port, error, err);
    *out = fd;
    return BATON_OK;
}

static uint16_t socket_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* Takes the listening socket (hence backlog 0, which means: it listens already). */
static bool server_listen(struct bootstrap_server *server, int fd)
{
    struct evconnlistener *listener = evconnlistener_new(
        server->base, NULL, NULL, LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_CLOSE_ON_FREE, 0, fd);
    if (!listener) {
        close(fd);
        return false;
    }
    if (!evhttp_bind_listener(server->http, listener)) {
        evconnlistener_free(listener);
        return false;
    }
    evconnlistener_set_error_cb(listener, accept_failed);
    server->listener = listener;
    return true;
}

static void server_limit(struct bootstrap_server *server)
{
    evhttp_set_max_body_size(server->http, BOOTSTRAP_BODY_MAX);
    evhttp_set_max_headers_size(server->http, HEADERS_MAX);
    evhttp_set_timeout(server->http, IDLE_SECONDS);
    evhttp_set_allowed_methods(server->http, UINT16_MAX); /* the table says 405 itself */
    evhttp_set_gencb(server->http, request_handle, server);
}

int bootstrap_server_open(struct event_base *base, const char *host, uint16_t port,
                          struct bootstrap_server **out, struct error err)
{
    static const struct timeval tick = {TICK_SECONDS, 0};
    struct bootstrap_server *server = calloc(1, sizeof(*server));
    int fd = -1, rc = BATON_ENOMEM;
    if (!server)
        return error_set(err, rc, "out of memory for the bootstrap server");
    server->base = base;
    LIST_INIT(&server->probes);
    server->table = bootstrap_table_new(BOOTSTRAP_ROOMS_MAX);
    server->http = evhttp_new(base);
    server->tick = event_new(base, -1, EV_PERSIST, server_tick, server);
    if (!server->table || !server->http || !server->tick) {
        error_set(err, rc, "out of memory for the bootstrap server");
        goto close_server;
    }
    server_limit(server);
    rc = listener_socket(host, port, &fd, err);
    if (rc < 0)
        goto close_server;
    server->port = socket_port(fd);
    if (!server_listen(server, fd) || event_add(server->tick, &tick) < 0) {
        rc = error_set(err, BATON_ENOMEM, "out of memory for the bootstrap server");
        goto close_server;
    }
    LOG_INFO(bootstrap, "listening on port %u", server->port);
    *out = server;
    return BATON_OK;

close_server:
    bootstrap_server_close(server);
    return rc;
}

uint16_t bootstrap_server_port(const struct bootstrap_server *server)
{
    return server->port;
}

void bootstrap_server_close(struct bootstrap_server *server)
{
    if (!server)
        return;
    while (!LIST_EMPTY(&server->probes)) {
        struct probe *probe = LIST_FIRST(&server->probes);
        bootstrap_pending_free(probe->pending);
        probe_free(probe);
    }
    if (server->tick)
        event_free(server->tick);
    if (server->http)
        evhttp_free(server->http);
    bootstrap_table_free(server->table);
    free(server);
}
