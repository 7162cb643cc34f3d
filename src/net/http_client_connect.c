/* SPDX-License-Identifier: Apache-2.0 */
/* From a host's name to a connection that stands. Numbers need no resolver; names are resolved by evdns,
 * which does not block. All addresses of a name are tried in turn: "localhost" is often ::1 first, where
 * nobody listens.
 *
 * Everything here may be called from within http_request_start, when `done` must not run yet: failures go
 * through request_fail_later. */
#include "http_client_parts.h"

#include "net/socket.h"
#include "net/tls.h"

#include "base/clock.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/dns.h>
#include <openssl/ssl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void request_fail_later(struct http_request *request, enum http_outcome outcome,
                               const char *format, ...) __attribute__((format(printf, 3, 4)));

static void request_fail_later(struct http_request *request, enum http_outcome outcome,
                               const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(request->error, sizeof(request->error), format, arguments);
    va_end(arguments);
    if (request->link)
        http_link_bury(request->link);
    request->link = NULL;
    request->failed = true;
    request->failure = (struct http_result){outcome, 0, request->error};
    event_active(request->timer, EV_TIMEOUT, 0);
}

/* ---- the stream on a socket that is connected ---------------------------------------------- */

static struct ssl_st *session_new(struct http_request *request)
{
    struct http_client *client = request->client;
    char why[256] = "";
    if (!client->tls && tls_open_client(client->tls_authority, client->tls_unchecked,
                                        &client->tls, ERROR_BUFFER(why)) != BATON_OK) {
        request_fail_later(request, HTTP_OUTCOME_UNREACHABLE, "%s", why);
        return NULL;
    }
    struct ssl_st *session = tls_session_to(client->tls, request->host->name);
    if (!session)
        request_fail_later(request, HTTP_OUTCOME_MEMORY, "out of memory for TLS");
    return session;
}

static void stream_open(struct http_request *request)
{
    struct http_link *link = request->link;
    struct event_base *base = request->client->base;
    if (link->host->tls) {
        link->tls = session_new(request);
        if (!link->tls)
            return;
        link->stream = bufferevent_openssl_socket_new(base, link->fd, link->tls,
                                                      BUFFEREVENT_SSL_CONNECTING, 0);
        if (link->stream)
            bufferevent_openssl_set_allow_dirty_shutdown(link->stream, 1);
    } else {
        link->stream = bufferevent_socket_new(base, link->fd, 0);
    }
    if (!link->stream) {
        request_fail_later(request, HTTP_OUTCOME_MEMORY, "out of memory for a connection");
        return;
    }
    bufferevent_setcb(link->stream, http_link_came, NULL, http_link_event, link);
    bufferevent_setwatermark(link->stream, EV_READ, 0, HTTP_CLIENT_INPUT);
    bufferevent_set_max_single_read(link->stream, HTTP_CLIENT_INPUT);
    bufferevent_enable(link->stream, EV_WRITE | (request->paused ? 0 : EV_READ));
    if (link->host->tls)
        return; /* http_link_event goes on */
    link->ready = true;
    http_request_send(request);
}

/* ---- connecting --------------------------------------------------------------------------- */

static void next_address_try(struct http_request *request, int error);

static void connect_done(evutil_socket_t fd, short what, void *context)
{
    struct http_link *link = context;
    int error = 0;
    socklen_t size = sizeof(error);
    (void)what;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        error = errno;
    if (error)
        next_address_try(link->request, error);
    else
        stream_open(link->request);
}

static struct http_link *link_new(struct http_request *request, int fd)
{
    struct http_link *link = calloc(1, sizeof(*link));
    if (!link)
        return NULL;
    *link = (struct http_link){
        .client = request->client, .host = request->host, .request = request, .fd = fd};
    link->connecting = event_new(request->client->base, fd, EV_WRITE, connect_done, link);
    if (link->connecting)
        return link;
    free(link);
    return NULL;
}

/* Begins to connect to one address; 0, or errno. */
static int address_try(struct http_request *request, const struct evutil_addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    socket_adopt(fd);
    socket_tune(fd);
    int error = connect(fd, address->ai_addr, (socklen_t)address->ai_addrlen) < 0 ? errno : 0;
    if (error && error != EINPROGRESS)
        goto close_fd;
    error = ENOMEM;
    request->link = link_new(request, fd);
    if (!request->link)
        goto close_fd;
    if (event_add(request->link->connecting, NULL) == 0)
        return 0;
    http_link_bury(request->link); /* closes fd */
    request->link = NULL;
    return error;

close_fd:
    socket_close(fd);
    return error;
}

/* error: why the one before did not work. */
static void next_address_try(struct http_request *request, int error)
{
    if (request->link)
        http_link_bury(request->link);
    request->link = NULL;
    while (request->next_address) {
        struct evutil_addrinfo *address = request->next_address;
        request->next_address = address->ai_next;
        error = address_try(request, address);
        if (!error)
            return;
    }
    request_fail_later(request, HTTP_OUTCOME_UNREACHABLE, "cannot connect to %s: %s",
                       request->host->authority, strerror(error));
}

/* ---- names -------------------------------------------------------------------------------- */

static void name_resolved(int failed, struct evutil_addrinfo *addresses, void *context)
{
    struct http_request *request = context;
    if (failed == EVUTIL_EAI_CANCEL)
        return; /* the request is gone */
    request->resolving = NULL;
    if (failed) {
        request_fail_later(request, HTTP_OUTCOME_UNREACHABLE, "cannot find the host '%s': %s",
                           request->host->name, evutil_gai_strerror(failed));
        return;
    }
    request->addresses = request->next_address = addresses;
    next_address_try(request, 0);
}

static bool name_resolve(struct http_request *request, const char *port,
                         struct evutil_addrinfo *hints)
{
    struct http_client *client = request->client;
    if (!client->dns)
        client->dns = evdns_base_new(client->base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                                       EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (!client->dns) { /* no /etc/resolv.conf: the hosts file may do */
        client->dns = evdns_base_new(client->base, EVDNS_BASE_DISABLE_WHEN_INACTIVE);
        if (!client->dns)
            return false;
        evdns_base_load_hosts(client->dns, NULL);
    }
    hints->ai_flags = 0;
    /* It calls back at once, before it returns NULL, when it knows the name. */
    request->resolving = evdns_getaddrinfo(client->dns, request->host->name, port, hints,
                                           name_resolved, request);
    return true;
}

void http_request_connect(struct http_request *request)
{
    char port[8];
    struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_protocol = IPPROTO_TCP,
                                    .ai_flags = EVUTIL_AI_NUMERICHOST};
    request->connect_ns = clock_now_ns();
    if (request->addresses) { /* a second time */
        request->next_address = request->addresses;
        next_address_try(request, 0);
        return;
    }
    snprintf(port, sizeof(port), "%u", request->host->port);
    if (evutil_getaddrinfo(request->host->name, port, &hints, &request->addresses) == 0) {
        request->next_address = request->addresses;
        next_address_try(request, 0);
    } else if (!name_resolve(request, port, &hints)) {
        request_fail_later(request, HTTP_OUTCOME_MEMORY, "cannot start the resolver");
    }
}
