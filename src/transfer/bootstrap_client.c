/* SPDX-License-Identifier: Apache-2.0 */
/* The calls to a bootstrap server, ours or SGLang's. One connection per call: a peer is asked
 * a handful of times in its life, and a connection that nobody keeps cannot go stale.
 *
 * Life of a call: call_new -> evhttp request -> call_finish (outcome stored) -> call_fired
 * (callback, everything freed). evhttp may report an outcome from inside evhttp_make_request
 * (a refused connect, a name that does not resolve) and from deep inside its own connection
 * code; call_finish therefore only stores it and activates the call's event, and the
 * connection is freed and the callback called from the event loop. The same event is the
 * call's timer: if it fires before an outcome was stored, the time was over. */
#include "bootstrap_table.h"
#include "net/socket.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

#define CALL_SECONDS 5
#define HEADERS_MAX (16 * 1024)
#define TEXT_SIZE 640

enum call_kind { CALL_PLAIN, CALL_TOPOLOGY, CALL_RANK, CALL_DP_RANK };

struct bootstrap_call {
    LIST_ENTRY(bootstrap_call) link;
    struct evhttp_connection *connection; /* owns the request */
    struct event *event;
    const char *what; /* "PUT /route" */
    char addr[80];

    enum call_kind kind;
    union {
        bootstrap_done plain;
        bootstrap_topology_done topology;
        bootstrap_rank_done rank;
        bootstrap_dp_done dp_rank;
    } done;
    void *arg;
    uint64_t room; /* CALL_DP_RANK */

    bool finished; /* code, text and result are valid */
    bool has_error;
    enum evhttp_request_error error;
    int code;
    char text[TEXT_SIZE];
    union {
        struct bootstrap_topology topology;
        struct bootstrap_rank rank;
        uint32_t dp_rank;
    } result;
};

struct bootstrap_client {
    struct event_base *base;
    struct evdns_base *dns;
    LIST_HEAD(, bootstrap_call) calls;
};

int bootstrap_client_open(struct event_base *base, struct evdns_base *dns,
                          struct bootstrap_client **out)
{
    struct bootstrap_client *client = calloc(1, sizeof(*client));
    if (!client)
        return BATON_ENOMEM;
    client->base = base;
    client->dns = dns;
    LIST_INIT(&client->calls);
    *out = client;
    return BATON_OK;
}

void bootstrap_client_close(struct bootstrap_client *client)
{
    if (!client)
        return;
    while (!LIST_EMPTY(&client->calls))
        bootstrap_cancel(LIST_FIRST(&client->calls));
    free(client);
}

/* ---- outcome --------------------------------------------------------------------------- */

static void call_free(struct bootstrap_call *call)
{
    if (call->connection)
        evhttp_connection_free(call->connection);
    event_free(call->event);
    free(call);
}

void bootstrap_cancel(struct bootstrap_call *call)
{
    LIST_REMOVE(call, link);
    call_free(call);
}

__attribute__((format(printf, 3, 4))) static void call_finish(struct bootstrap_call *call,
                                                              int code, const char *format, ...)
{
    va_list args;
    if (call->finished)
        return;
    call->finished = true;
    call->code = code;
    va_start(args, format);
    vsnprintf(call->text, sizeof(call->text), format, args);
    va_end(args);
    event_active(call->event, EV_TIMEOUT, 0);
}

static void call_fired(evutil_socket_t fd, short what, void *arg)
{
    struct bootstrap_call *call = arg;
    (void)fd, (void)what;
    if (!call->finished) {
        call->code = BATON_AGAIN;
        snprintf(call->text, sizeof(call->text), "%s gave no answer to %s within %d s",
                 call->addr, call->what, CALL_SECONDS);
    }
    LIST_REMOVE(call, link);
    bool ok = call->code == BATON_OK;
    switch (call->kind) {
    case CALL_PLAIN: call->done.plain(call->arg, call->code, call->text); break;
    case CALL_TOPOLOGY:
        call->done.topology(call->arg, call->code, call->text,
                            ok ? &call->result.topology : NULL);
        break;
    case CALL_RANK:
        call->done.rank(call->arg, call->code, call->text, ok ? &call->result.rank : NULL);
        break;
    case CALL_DP_RANK:
        call->done.dp_rank(call->arg, call->code, call->text, ok ? call->result.dp_rank : 0);
        break;
    }
    call_free(call);
}

/* ---- replies --------------------------------------------------------------------------- */

static int body_decode(struct bootstrap_call *call, const char *body, size_t size,
                       struct error err)
{
    switch (call->kind) {
    case CALL_TOPOLOGY:
        return bootstrap_topology_decode(body, size, &call->result.topology, err);
    case CALL_RANK: return bootstrap_rank_decode(body, size, &call->result.rank, err);
    case CALL_DP_RANK:
        return bootstrap_dp_rank_decode(body, size, call->room, &call->result.dp_rank, err);
    case CALL_PLAIN: break;
    }
    return BATON_OK;
}

static void call_decode(struct bootstrap_call *call, const char *body, size_t size)
{
    char why[256] = "";
    int rc = body_decode(call, body, size, ERROR_BUFFER(why));
    if (rc == BATON_OK)
        call_finish(call, rc, "OK");
    else if (rc == BATON_AGAIN)
        call_finish(call, rc, "%s: %s", call->addr, why);
    else
        call_finish(call, rc, "%s gave an answer to %s that no bootstrap server gives: %s",
                    call->addr, call->what, why);
}

/* The first words of an error reply. They go to logs and terminals: printable ASCII only. */
static void body_excerpt(const char *body, size_t size, char *out, size_t out_size)
{
    size_t length = size < out_size - 1 ? size : out_size - 1;
    for (size_t i = 0; i < length; i++)
        out[i] = body[i] >= ' ' && body[i] <= '~' ? body[i] : '?';
    while (length && (out[length - 1] == ' ' || out[length - 1] == '?'))
        length--;
    out[length] = '\0';
}

static void call_answered(struct bootstrap_call *call, int status, const char *body,
                          size_t size)
{
    char excerpt[400];
    if (status == 200) {
        call_decode(call, body, size);
        return;
    }
    body_excerpt(body, size, excerpt, sizeof(excerpt));
    if (status == 409 && *excerpt)
        call_finish(call, BATON_EEXIST, "%s", excerpt);
    else
        call_finish(call,
                    status == 409                    ? BATON_EEXIST
                    : status == 503 || status == 404 ? BATON_AGAIN
                                                     : BATON_EPROTOCOL,
                    "%s answered %d to %s: %s", call->addr, status, call->what, excerpt);
}

static void call_unanswered(struct bootstrap_call *call)
{
    if (socket_none_left())
        call_finish(
            call, BATON_AGAIN,
            "no descriptor is left here to call %s: raise the limit of open files (ulimit -n)",
            call->addr);
    else if (!call->has_error)
        call_finish(
            call, BATON_AGAIN,
            "cannot connect to %s; is the bootstrap server (the prefill worker) running?",
            call->addr);
    else if (call->error == EVREQ_HTTP_INVALID_HEADER ||
             call->error == EVREQ_HTTP_DATA_TOO_LONG)
        call_finish(call, BATON_EPROTOCOL, "%s gave an answer to %s that %s", call->addr,
                    call->what,
                    call->error == EVREQ_HTTP_INVALID_HEADER ? "is no HTTP" : "is too long");
    else
        call_finish(call, BATON_AGAIN, "%s closed the connection without an answer to %s",
                    call->addr, call->what);
}

static void request_failed(enum evhttp_request_error error, void *arg)
{
    struct bootstrap_call *call = arg;
    call->has_error = true;
    call->error = error;
}

/* request is NULL after an error, and has status 0 when there was no connection. */
static void request_done(struct evhttp_request *request, void *arg)
{
    struct bootstrap_call *call = arg;
    int status = request ? evhttp_request_get_response_code(request) : 0;
    if (status == 0) {
        call_unanswered(call);
        return;
    }
    struct evbuffer *body = evhttp_request_get_input_buffer(request);
    size_t size = evbuffer_get_length(body);
    call_answered(call, status, size ? (const char *)evbuffer_pullup(body, -1) : "", size);
}

/* ---- requests -------------------------------------------------------------------------- */

static bool host_is_numeric(const char *host)
{
    struct in6_addr ignored;
    return inet_pton(AF_INET, host, &ignored) == 1 ||
           inet_pton(AF_INET6, host, &ignored) == 1 || strchr(host, '%');
}

static struct bootstrap_call *call_new(struct bootstrap_client *client, const char *what,
                                       const char *addr, enum call_kind kind, void *arg)
{
    static const struct timeval timeout = {CALL_SECONDS, 0};
    struct bootstrap_call *call = calloc(1, sizeof(*call));
    if (!call)
        return NULL;
    call->kind = kind;
    call->what = what;
    call->arg = arg;
    snprintf(call->addr, sizeof(call->addr), "%s", addr ? addr : "");
    call->event = evtimer_new(client->base, call_fired, call);
    if (!call->event || evtimer_add(call->event, &timeout) < 0) {
        if (call->event)
            event_free(call->event);
        free(call);
        return NULL;
    }
    LIST_INSERT_HEAD(&client->calls, call, link);
    return call;
}

/* Opens the connection object; what is wrong with the address becomes the call's outcome. */
static bool call_connect(struct bootstrap_client *client, struct bootstrap_call *call,
                         const char *addr)
{
    char host[64], why[256];
    uint16_t port;
    int rc = bootstrap_address_parse(addr, host, sizeof(host), &port, ERROR_BUFFER(why));
    if (rc < 0) {
        call_finish(call, rc, "%s", why);
        return false;
    }
    if (strcasecmp(host, "localhost") == 0)
        strcpy(host, "127.0.0.1");
    if (!client->dns && !host_is_numeric(host)) {
        call_finish(
            call, BATON_EINVAL,
            "the bootstrap address %s has a name, and there is no resolver here; give a "
            "numeric address",
            call->addr);
        return false;
    }
    call->connection = evhttp_connection_base_new(client->base, client->dns, host, port);
    if (!call->connection) {
        call_finish(call, BATON_ENOMEM, "out of memory for a call to %s", call->addr);
        return false;
    }
    evhttp_connection_set_max_body_size(call->connection, BOOTSTRAP_BODY_MAX);
    evhttp_connection_set_max_headers_size(call->connection, HEADERS_MAX);
    return true;
}

static bool request_fill(struct evhttp_request *request, const char *addr, const char *body)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    bool ok = evhttp_add_header(headers, "Host", addr) == 0 &&
              evhttp_add_header(headers, "Connection", "close") == 0;
    if (ok && body)
        ok = evhttp_add_header(headers, "Content-Type", "application/json") == 0 &&
             evbuffer_add(evhttp_request_get_output_buffer(request), body, strlen(body)) == 0;
    evhttp_request_set_error_cb(request, request_failed);
    return ok;
}

static void connection_close_on_exec(struct evhttp_connection *connection)
{
    int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(connection));
    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* body: NULL for none; freed here. */
static void call_send(struct bootstrap_client *client, struct bootstrap_call *call,
                      const char *addr, enum evhttp_cmd_type method, const char *uri,
                      char *body)
{
    if (call->finished || !call_connect(client, call, addr))
        goto free_body;
    struct evhttp_request *request = evhttp_request_new(request_done, call);
    if (request && !request_fill(request, call->addr, body)) {
        evhttp_request_free(request);
        request = NULL;
    }
    if (!request) {
        call_finish(call, BATON_ENOMEM, "out of memory for a call to %s", call->addr);
        goto free_body;
    }
    if (evhttp_make_request(call->connection, request, method, uri) < 0)
        call_unanswered(call);
    else
        connection_close_on_exec(call->connection);
free_body:
    free(body);
}

/* A body that could not be made is an outcome too. */
static void call_send_body(struct bootstrap_client *client, struct bootstrap_call *call,
                           const char *addr, enum evhttp_cmd_type method, const char *uri,
                           char *body)
{
    if (!body)
        call_finish(call, BATON_ENOMEM, "cannot write the body of %s", call->what);
    call_send(client, call, addr, method, uri, body);
}

struct bootstrap_call *bootstrap_put_route(struct bootstrap_client *client, const char *addr,
                                           const struct bootstrap_route *route,
                                           bootstrap_done done, void *arg)
{
    struct bootstrap_call *call = call_new(client, "PUT /route", addr, CALL_PLAIN, arg);
    if (!call)
        return NULL;
    call->done.plain = done;
    call_send_body(client, call, addr, EVHTTP_REQ_PUT, "/route", bootstrap_route_encode(route));
    return call;
}

struct bootstrap_call *bootstrap_get_topology(struct bootstrap_client *client, const char *addr,
                                              bootstrap_topology_done done, void *arg)
{
    struct bootstrap_call *call =
        call_new(client, "GET /route (topology)", addr, CALL_TOPOLOGY, arg);
    if (!call)
        return NULL;
    call->done.topology = done;
    call_send(
        client, call, addr, EVHTTP_REQ_GET,
        "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1",
        NULL);
    return call;
}

struct bootstrap_call *bootstrap_get_rank(struct bootstrap_client *client, const char *addr,
                                          uint32_t dp_rank, uint32_t tp_rank, uint32_t pp_rank,
                                          bootstrap_rank_done done, void *arg)
{
    char uri[160];
    struct bootstrap_call *call = call_new(client, "GET /route", addr, CALL_RANK, arg);
    if (!call)
        return NULL;
    call->done.rank = done;
    snprintf(uri, sizeof(uri),
             "/route?prefill_dp_rank=%u&prefill_cp_rank=0&target_tp_rank=%u&target_pp_rank=%u",
             dp_rank, tp_rank, pp_rank);
    call_send(client, call, addr, EVHTTP_REQ_GET, uri, NULL);
    return call;
}

/* JSON integers end at 2^63-1, and so do rooms. */
static void call_check_room(struct bootstrap_call *call, uint64_t room)
{
    if (room > INT64_MAX)
        call_finish(call, BATON_EINVAL, "room %" PRIu64 " is more than 2^63-1", room);
}

struct bootstrap_call *bootstrap_register_dp_rank(struct bootstrap_client *client,
                                                  const char *addr, uint64_t room,
                                                  uint32_t dp_rank, bootstrap_done done,
                                                  void *arg)
{
    struct bootstrap_call *call =
        call_new(client, "POST /register_dp_rank", addr, CALL_PLAIN, arg);
    if (!call)
        return NULL;
    call->done.plain = done;
    call_check_room(call, room);
    call_send_body(client, call, addr, EVHTTP_REQ_POST, "/register_dp_rank",
                   bootstrap_dp_rank_encode(room, dp_rank));
    return call;
}

struct bootstrap_call *bootstrap_query_dp_rank(struct bootstrap_client *client,
                                               const char *addr, uint64_t room,
                                               bootstrap_dp_done done, void *arg)
{
    struct bootstrap_call *call =
        call_new(client, "POST /query_dp_ranks", addr, CALL_DP_RANK, arg);
    if (!call)
        return NULL;
    call->done.dp_rank = done;
    call->room = room;
    call_check_room(call, room);
    call_send_body(client, call, addr, EVHTTP_REQ_POST, "/query_dp_ranks",
                   bootstrap_rooms_encode(room));
    return call;
}
