/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP/1.1 client on an event loop: requests that never block, answers handed on as they come (a
 * chunk before it is whole), connections that are kept and used again.
 *
 *   http_request_start ... head(status, headers)   once, if there is an answer
 *                          body(bytes)             as they come; pause() stops them
 *                          done(result)            once, always; the request is gone after it
 *
 * Threads. A client and its requests belong to the thread that runs its event base. Callbacks come from
 * the loop, never from within a call of these functions; cancel, pause, and new requests are allowed in
 * them. The thread must not be killed by SIGPIPE: the program ignores it, loops of the server block it.
 *
 * Bounds. At most HTTP_CLIENT_INPUT bytes wait in memory for a paused consumer; the rest waits in the
 * kernel, and in the end the server does. */
#ifndef BATON_NET_HTTP_CLIENT_H
#define BATON_NET_HTTP_CLIENT_H

#include "base/error.h"
#include "net/http_message.h"

#include <stdbool.h>
#include <sys/uio.h>

struct event_base;
struct http_client;
struct http_request;

#define HTTP_CLIENT_INPUT (64u << 10)

struct http_client_options {
    struct event_base *base;
    uint32_t idle_max;         /* connections kept per host; 0: 256 */
    uint32_t idle_seconds;     /* how long; 0: 30, well below what servers allow */
    const char *tls_authority; /* PEM file for https; NULL: the system's */
    bool tls_unchecked;        /* take any certificate */
};

int http_client_open(const struct http_client_options *options, struct http_client **out,
                     struct error err);
/* Cancels what is left: no callback comes any more. */
void http_client_close(struct http_client *client);
uint32_t http_client_idle(const struct http_client *client); /* connections that are kept */

enum http_outcome {
    HTTP_OUTCOME_DONE = 0,    /* a whole answer, whatever its status */
    HTTP_OUTCOME_UNREACHABLE, /* no name, no connection, no TLS: the server has seen nothing */
    HTTP_OUTCOME_TIMEOUT,
    HTTP_OUTCOME_BROKEN,  /* the connection ended before the answer did */
    HTTP_OUTCOME_GARBLED, /* what came is no HTTP */
    HTTP_OUTCOME_MEMORY
};

struct http_result {
    enum http_outcome outcome;
    int status;        /* of the answer; 0: none came */
    const char *error; /* a sentence, with the server's address; "" when done */
};

typedef void http_on_head(struct http_request *request, const struct http_head *head,
                          void *context);
typedef void http_on_body(struct http_request *request, const char *bytes, size_t length,
                          void *context);
typedef void http_on_done(struct http_request *request, const struct http_result *result,
                          void *context);

struct http_request_options {
    const char *method;                /* NULL: GET */
    const char *url;                   /* http:// or https://, host, :port, /path?query */
    const struct http_header *headers; /* besides Host, Content-Length */
    uint32_t header_count;
    const struct iovec *body; /* its pieces, copied */
    uint32_t body_pieces;
    uint32_t connect_ms;    /* until the connection stands, TLS included; 0: no limit */
    uint32_t first_byte_ms; /* from the start to the answer's head */
    uint32_t total_ms;      /* from the start to the end */
    http_on_head *head;     /* these two may be NULL */
    http_on_body *body_came;
    http_on_done *done;
    void *context;
};

/* BATON_EINVAL for a URL or header that cannot be sent; everything else is told by `done`. A request that
 * meets a kept connection which the server has just closed is sent once more on a new one. */
int http_request_start(struct http_client *client, const struct http_request_options *options,
                       struct http_request **out, struct error err);
/* No callback comes any more; the connection is closed. NULL is fine. */
void http_request_cancel(struct http_request *request);
/* No body until resume. The time limits go on. */
void http_request_pause(struct http_request *request);
void http_request_resume(struct http_request *request);

#endif
