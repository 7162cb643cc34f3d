/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP/1.1 server for workers and routers: a few event loops on one port, requests as
 * `exchanges` whose answers may come much later and in pieces, and clients that may leave at any
 * time. On libevent's buffered sockets; http_connection.c says why not on its evhttp.
 *
 * Threads. Every exchange belongs to one loop; its functions are called on that loop's thread only.
 * From elsewhere, post a task to the loop.
 *
 *   handler(exchange)                   on the loop, when a request is whole
 *     reply(...)                        at once or later: the end of it
 *     stream_begin, stream_write ..., stream_end      or in pieces
 *   left(exchange)                      once, if the client goes before that: the exchange is over
 *                                       and must not be used after the callback
 */
#ifndef BATON_NET_HTTP_SERVER_H
#define BATON_NET_HTTP_SERVER_H

#include "base/error.h"
#include "base/mpsc.h"

#include <stdbool.h>

struct event_base;
struct http_server;
struct http_loop;
struct http_exchange;

typedef void http_handler(struct http_exchange *exchange, void *context);

struct http_server_options {
    const char *host; /* numeric or a name; NULL: all addresses */
    uint16_t port;    /* 0: any */
    uint32_t loops;   /* threads; at least 1 */
    /* 0 means the usual, in brackets. */
    size_t body_max, header_max; /* 413 [64 MiB] and 431 [32 KiB] beyond */
    uint32_t idle_seconds;    /* [120] between requests, for a whole head, and, at 4 KiB/s more,
                                    for a body; not for answers */
    uint32_t stall_seconds;   /* [60] an answer of which the client takes nothing is cut */
    uint32_t connections_max; /* [16384] per loop; further ones wait in the accept queue */
    const char *tls_certificate, *tls_key; /* PEM files; NULL: plain HTTP */
    const char *api_key;                   /* "Authorization: Bearer KEY" or 401; NULL: open */
    bool (*open_path)(const char *path);   /* paths that need no key (/health); NULL: none */
    http_handler *handler;
    void *context;
};

int http_server_open(const struct http_server_options *options, struct http_server **out,
                     struct error err);
uint16_t http_server_port(const struct http_server *server);
/* No new connections; those that are idle are closed, the others when their answer is out
 * (Connection: close). */
void http_server_drain(struct http_server *server);
uint32_t http_server_connections(const struct http_server *server); /* any thread */
uint32_t http_server_loop_count(const struct http_server *server);
struct http_loop *http_server_loop(struct http_server *server, uint32_t index);
/* Cuts what is left (`left` is called for every open exchange), runs the tasks that are posted, and
 * joins the loops. Not from a loop. */
void http_server_close(struct http_server *server);

/* ---- a request ---------------------------------------------------------------------------- */
/* "GET", "HEAD" (answered as GET is; the body is left out), ... OPTIONS is answered by the server
 * itself, for browsers. */
const char *http_exchange_method(const struct http_exchange *exchange);
const char *
http_exchange_path(const struct http_exchange *exchange); /* slashes collapsed, no query,
                                                                         percent-decoded */
/* The value of ?name=, decoded; NULL when it is not there. Good as long as the exchange. */
const char *http_exchange_query(struct http_exchange *exchange, const char *name);
const char *http_exchange_header(const struct http_exchange *exchange, const char *name);
const char *http_exchange_body(struct http_exchange *exchange,
                               size_t *length);                       /* contiguous, a NUL
                                                                                   after it */
const char *http_exchange_peer(const struct http_exchange *exchange); /* "1.2.3.4:56" */

/* Told if the client leaves before the answer is out, and (drained may be NULL) when a stream's
 * buffer has fallen to HTTP_STREAM_LOW again after it was above. Whoever answers after the handler
 * has returned must watch. Both come from the loop itself, never from within a call of the
 * functions below. */
typedef void http_notice(struct http_exchange *exchange, void *context);
void http_exchange_watch(struct http_exchange *exchange, http_notice *left,
                         http_notice *drained, void *context);

/* ---- the answer --------------------------------------------------------------------------- */
/* A header beyond the usual; before reply or stream_begin. Both are copied. One with control
 * characters is left out. */
void http_exchange_add_header(struct http_exchange *exchange, const char *name,
                              const char *value);
/* The whole answer. The exchange is over: not to be used any more. */
void http_exchange_reply(struct http_exchange *exchange, int status, const char *type,
                         const void *body, size_t length);
/* {"error":{"message","type","param","code"}}, as OpenAI's clients expect it; code may be NULL. Over,
 * as after reply. */
void http_exchange_reply_error(struct http_exchange *exchange, int status, const char *type,
                               const char *code, const char *message);
/* Chunked. Every write is one chunk, sent at once. */
void http_exchange_stream_begin(struct http_exchange *exchange, int status, const char *type);
void http_exchange_stream_write(struct http_exchange *exchange, const void *bytes,
                                size_t length);
void http_exchange_stream_end(struct http_exchange *exchange); /* over, as after reply */
/* The end without the end: the connection is cut, so that the client sees an incomplete body. */
void http_exchange_cut(struct http_exchange *exchange);
/* Written and not yet taken by the kernel. A producer stops above STREAM_HIGH and waits for
 * `drained`. */
size_t http_exchange_backlog(const struct http_exchange *exchange);
#define HTTP_STREAM_HIGH (256u << 10)
#define HTTP_STREAM_LOW (64u << 10)
#define HTTP_STREAM_MAX \
    (16u << 20) /* a producer that goes on regardless loses the connection here */

/* ---- loops -------------------------------------------------------------------------------- */
struct http_loop *http_exchange_loop(const struct http_exchange *exchange);
struct event_base *
http_loop_base(struct http_loop *loop); /* for clients that run on the loop */

struct http_task {
    struct mpsc_node node;
    void (*run)(
        struct http_task *task); /* on the loop; the task may be freed or posted again */
};
/* Any thread. Tasks run in the order of each poster; a loop that ends runs what it has first. */
void http_loop_post(struct http_loop *loop, struct http_task *task);

/* Runs `fire` on the loop after so many milliseconds, once; returns a timer to cancel, NULL: no
 * memory. Loop's thread only. A loop that ends drops its timers. */
struct http_timer;
struct http_timer *http_loop_after(struct http_loop *loop, uint32_t milliseconds,
                                   void (*fire)(void *context), void *context);
void http_timer_cancel(struct http_timer *timer); /* before it has fired; NULL is fine */

#endif
