/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes in: the answer, as it comes. A callback may cancel its request, or pause it; both are looked for
 * after each. */
#include "http_client_parts.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>

static void answer_end(struct http_request *request)
{
    struct http_link *link = request->link;
    bool keep = http_head_keeps_alive(&request->head) &&
                request->body.framing != HTTP_FRAMING_CLOSE &&
                !evbuffer_get_length(bufferevent_get_input(link->stream)) &&
                !evbuffer_get_length(bufferevent_get_output(link->stream));
    request->link = NULL;
    if (keep) {
        if (request->paused)
            bufferevent_enable(link->stream, EV_READ);
        http_link_keep(link);
    } else {
        http_link_bury(link);
    }
    http_request_succeed(request);
}

static void garbled(struct http_request *request, const char *why)
{
    http_request_fail(request, HTTP_OUTCOME_GARBLED, "%s does not answer in HTTP: %s",
                      request->host->authority, why);
}

/* Returns whether to read on. */
static bool head_use(struct http_request *request, const char *bytes, size_t length)
{
    struct http_link *link = request->link;
    char why[128] = "";
    int status = http_head_parse_answer(&request->head, bytes, length, ERROR_BUFFER(why));
    evbuffer_drain(bufferevent_get_input(link->stream), length);
    request->head_scanned = 0;
    if (status) {
        garbled(request, why);
        return false;
    }
    if (request->head.status < 200) { /* 100 Continue: the real one follows */
        http_head_free(&request->head);
        return true;
    }
    request->has_head = true;
    if (http_body_of_answer(&request->body, &request->head, request->head_only,
                            ERROR_BUFFER(why))) {
        garbled(request, why);
        return false;
    }
    if (request->options.head)
        request->options.head(request, &request->head, request->options.context);
    return link->request == request;
}

static bool head_read(struct http_request *request, struct evbuffer *input)
{
    size_t length = evbuffer_get_length(input);
    if (length > HTTP_CLIENT_HEAD_MAX)
        length = HTTP_CLIENT_HEAD_MAX;
    const char *bytes = (const char *)evbuffer_pullup(input, (ev_ssize_t)length);
    if (!request->answer_begun) {
        request->answer_begun = true;
        free(request->message);
        request->message = NULL;
    }
    size_t whole = bytes ? http_head_find(bytes, length, &request->head_scanned) : 0;
    if (whole)
        return head_use(request, bytes, whole);
    if (length == HTTP_CLIENT_HEAD_MAX)
        garbled(request, "its headers have no end");
    return false;
}

static bool body_read(struct http_request *request, struct evbuffer *input)
{
    struct http_link *link = request->link;
    struct evbuffer_iovec span;
    const char *data;
    size_t length;
    evbuffer_peek(input, -1, NULL, &span, 1);
    long taken = http_body_take(&request->body, span.iov_base, span.iov_len, &data, &length);
    if (taken < 0) {
        garbled(request, "the chunks of its body are not well formed");
        return false;
    }
    if (length && request->options.body_came)
        request->options.body_came(request, data, length, request->options.context);
    evbuffer_drain(input, (size_t)taken);
    return link->request == request;
}

/* ---- ends and errors ---------------------------------------------------------------------- */

static void tls_refused(struct http_request *request)
{
    struct http_link *link = request->link;
    long verified = SSL_get_verify_result(link->tls);
    unsigned long code = bufferevent_get_openssl_error(link->stream);
    const char *why = verified != X509_V_OK ? X509_verify_cert_error_string(verified)
                      : code                ? ERR_reason_error_string(code)
                                            : "the connection ended";
    http_request_fail(request, HTTP_OUTCOME_UNREACHABLE, "no TLS with %s: %s",
                      request->host->authority, why ? why : "unknown reason");
}

static void ended_early(struct http_request *request, int error)
{
    const char *when = request->has_head       ? "in the middle of its answer"
                       : request->answer_begun ? "in the middle of its headers"
                                               : "before it answered";
    http_request_fail(request, HTTP_OUTCOME_BROKEN, "%s closed the connection %s%s%s",
                      request->host->authority, when, error ? ": " : "",
                      error ? strerror(error) : "");
}

/* The connection has ended, and all that came before is read. */
static void answer_stopped(struct http_request *request)
{
    struct http_link *link = request->link;
    if (!link->ready) {
        tls_refused(request);
    } else if (request->has_head && request->body.framing == HTTP_FRAMING_CLOSE &&
               !link->end_error) {
        request->body.done = true;
        answer_end(request);
    } else if (!http_request_try_again(request)) {
        ended_early(request, link->end_error);
    }
}

void http_link_came(struct bufferevent *stream, void *context)
{
    struct http_link *link = context;
    struct http_request *request = link->request;
    struct evbuffer *input = bufferevent_get_input(stream);
    if (!request) { /* kept, and the server speaks unasked, or leaves */
        http_link_bury(link);
        return;
    }
    for (;;) {
        if (request->has_head && request->body.done) {
            answer_end(request);
            return;
        }
        if (request->paused)
            return;
        bool more = evbuffer_get_length(input) &&
                    (request->has_head ? body_read(request, input) : head_read(request, input));
        if (!more)
            break;
    }
    if (link->ended && link->request == request)
        answer_stopped(request);
}

void http_link_event(struct bufferevent *stream, short what, void *context)
{
    struct http_link *link = context;
    int error = errno;
    if (what & BEV_EVENT_CONNECTED) {
        link->ready = true;
        http_request_send(link->request);
        return;
    }
    /* Under TLS this may come before the bytes that came before it; and a paused request is to see them
     * first as well. */
    link->ended = true;
    link->end_error = what & BEV_EVENT_ERROR ? error : 0;
    http_link_came(stream, link);
}
