/* SPDX-License-Identifier: Apache-2.0 */
/* A request of the HTTP client: written into one block, sent when a connection is ready, watched by one
 * timer, and ended in one place. */
#include "http_client_parts.h"

#include "net/socket.h"

#include "base/clock.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <event2/util.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- ends --------------------------------------------------------------------------------- */

static void request_free(struct http_request *request)
{
    TAILQ_REMOVE(&request->client->requests, request, entry);
    if (request->resolving)
        evdns_getaddrinfo_cancel(request->resolving);
    if (request->addresses)
        evutil_freeaddrinfo(request->addresses);
    if (request->has_head)
        http_head_free(&request->head);
    event_free(request->timer);
    free(request->message);
    free(request);
}

void http_request_cancel(struct http_request *request)
{
    if (!request)
        return;
    if (request->link)
        http_link_bury(request->link);
    request_free(request);
}

/* The connection is settled before `done` runs, so that a request made there may use it. */
static void request_end(struct http_request *request, const struct http_result *result)
{
    struct http_request_options *options = &request->options;
    options->done(request, result, options->context);
    request_free(request);
}

void http_request_succeed(struct http_request *request)
{
    struct http_result result = {HTTP_OUTCOME_DONE, request->head.status, ""};
    request_end(request, &result);
}

void http_request_fail(struct http_request *request, enum http_outcome outcome,
                       const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(request->error, sizeof(request->error), format, arguments);
    va_end(arguments);
    if (request->link)
        http_link_bury(request->link);
    request->link = NULL;
    struct http_result result = {outcome, request->has_head ? request->head.status : 0,
                                 request->error};
    request_end(request, &result);
}

/* ---- time --------------------------------------------------------------------------------- */

struct limit {
    uint64_t deadline_ns; /* UINT64_MAX: none */
    uint32_t ms;
    const char *what; /* "host ... within 5 ms" */
};

static void limit_consider(struct limit *limit, uint64_t from_ns, uint32_t ms, const char *what)
{
    uint64_t deadline_ns = from_ns + ms * NS_PER_MS;
    if (ms && deadline_ns < limit->deadline_ns)
        *limit = (struct limit){deadline_ns, ms, what};
}

/* The one that passes first, of those that count now. */
static struct limit limit_now(const struct http_request *request)
{
    const struct http_request_options *options = &request->options;
    struct limit limit = {.deadline_ns = UINT64_MAX};
    limit_consider(&limit, request->start_ns, options->total_ms, "did not finish its answer");
    if (!request->has_head)
        limit_consider(&limit, request->start_ns, options->first_byte_ms, "did not answer");
    if (!request->link || !request->link->ready)
        limit_consider(&limit, request->connect_ns, options->connect_ms,
                       "could not be connected to");
    return limit;
}

static void timer_arm(struct http_request *request)
{
    struct limit limit = limit_now(request);
    uint64_t now = clock_now_ns();
    if (limit.deadline_ns == UINT64_MAX)
        return;
    uint64_t left = limit.deadline_ns > now ? (limit.deadline_ns - now) / 1000 + 1 : 0;
    struct timeval delay = {(time_t)(left / 1000000), (suseconds_t)(left % 1000000)};
    event_add(request->timer, &delay);
}

/* It may fire early, when a limit that was nearer no longer counts: then it is set again. */
static void timer_fired(evutil_socket_t fd, short what, void *context)
{
    struct http_request *request = context;
    (void)fd, (void)what;
    if (request->failed) {
        request_end(request, &request->failure);
        return;
    }
    struct limit limit = limit_now(request);
    if (clock_now_ns() < limit.deadline_ns)
        timer_arm(request);
    else
        http_request_fail(request, HTTP_OUTCOME_TIMEOUT, "%s %s within %u ms",
                          request->host->authority, limit.what, limit.ms);
}

bool http_request_try_again(struct http_request *request)
{
    if (!request->link->used || request->answer_begun || request->tried_again)
        return false;
    request->tried_again = true;
    http_link_bury(request->link);
    request->link = NULL;
    http_request_connect(request);
    if (!request->failed)
        timer_arm(request);
    return true;
}

/* ---- sending ------------------------------------------------------------------------------ */

void http_request_send(struct http_request *request)
{
    struct http_link *link = request->link;
    size_t sent = 0;
    if (!link->tls) {
        ssize_t now = send(link->fd, request->message, request->message_length,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
        sent = now > 0 ? (size_t)now : 0; /* an error comes again when the stream writes */
    }
    if (sent < request->message_length)
        bufferevent_write(link->stream, request->message + sent,
                          request->message_length - sent);
}

static bool text_is_clean(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 && *text != '\t')
            return false;
    }
    return true;
}

static size_t body_size(const struct http_request_options *options)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < options->body_pieces; i++)
        sum += options->body[i].iov_len;
    return sum;
}

static int message_write(struct http_request *request,
                         const struct http_request_options *options, const struct http_url *url,
                         struct error err)
{
    const char *method = options->method ? options->method : "GET";
    size_t body = body_size(options);
    size_t room = strlen(method) + strlen(url->target) + strlen(url->authority) + 96 + body;
    for (uint32_t i = 0; i < options->header_count; i++) {
        if (!text_is_clean(options->headers[i].name) ||
            !text_is_clean(options->headers[i].value))
            return error_set(err, BATON_EINVAL, "the header '%.64s' has control characters",
                             options->headers[i].name);
        room += strlen(options->headers[i].name) + strlen(options->headers[i].value) + 4;
    }
    char *out = request->message = malloc(room);
    if (!out)
        return error_set(err, BATON_ENOMEM, "out of memory for a request");
    out += sprintf(out, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", method,
                   *url->target == '/' ? "" : "/", url->target, url->authority);
    for (uint32_t i = 0; i < options->header_count; i++)
        out += sprintf(out, "%s: %s\r\n", options->headers[i].name, options->headers[i].value);
    if (body || (strcmp(method, "GET") && strcmp(method, "HEAD")))
        out += sprintf(out, "Content-Length: %zu\r\n", body);
    out += sprintf(out, "\r\n");
    for (uint32_t i = 0; i < options->body_pieces; i++) {
        memcpy(out, options->body[i].iov_base, options->body[i].iov_len);
        out += options->body[i].iov_len;
    }
    request->message_length = (size_t)(out - request->message);
    return BATON_OK;
}

/* ---- start -------------------------------------------------------------------------------- */

int http_request_start(struct http_client *client, const struct http_request_options *options,
                       struct http_request **out, struct error err)
{
    struct http_url url;
    int code = http_url_parse(options->url, &url, err);
    if (code != BATON_OK)
        return code;
    BATON_ASSERT(options->done);
    struct http_request *request = calloc(1, sizeof(*request));
    if (!request)
        return error_set(err, BATON_ENOMEM, "out of memory for a request");
    request->client = client;
    request->options = *options;
    request->start_ns = clock_now_ns();
    request->head_only = options->method && !strcmp(options->method, "HEAD");
    code = message_write(request, options, &url, err);
    if (code != BATON_OK)
        goto free_request;
    code = error_set(err, BATON_ENOMEM, "out of memory for a request");
    request->host = http_host_get(client, &url);
    request->timer = evtimer_new(client->base, timer_fired, request);
    if (!request->host || !request->timer)
        goto free_timer;
    TAILQ_INSERT_TAIL(&client->requests, request, entry);
    request->link = http_host_take_idle(request->host);
    if (request->link) {
        request->link->request = request;
        http_request_send(request);
    } else {
        http_request_connect(request);
    }
    if (!request->failed)
        timer_arm(request);
    if (out)
        *out = request;
    return BATON_OK;

free_timer:
    if (request->timer)
        event_free(request->timer);
free_request:
    free(request->message);
    free(request);
    return code;
}

void http_request_pause(struct http_request *request)
{
    request->paused = true;
    if (request->link && request->link->stream)
        bufferevent_disable(request->link->stream, EV_READ);
}

void http_request_resume(struct http_request *request)
{
    if (!request->paused)
        return;
    request->paused = false;
    if (!request->link || !request->link->stream)
        return;
    bufferevent_enable(request->link->stream, EV_READ);
    /* What has come already is given on from the loop. */
    bufferevent_trigger(request->link->stream, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
}
