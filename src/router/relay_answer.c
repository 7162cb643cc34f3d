/* SPDX-License-Identifier: Apache-2.0 */
/* The way back: what a worker sends, to the client. Streams go on as they come, at the speed of the
 * client: when too much waits for it, the worker is not read any more. */
#include "relay.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- gathering ------------------------------------------------------------------------------ */

/* What belongs to one connection, or is the router's own to say. */
static bool header_passes(const char *name)
{
    static const char *const kept_back[] = {
        "connection",     "keep-alive", "proxy-connection", "transfer-encoding",
        "content-length", "te",         "trailer",          "upgrade",
        "content-type",   "date",       "server",           "x-request-id"};
    for (size_t i = 0; i < sizeof(kept_back) / sizeof(kept_back[0]); i++)
        if (strcasecmp(kept_back[i], name) == 0)
            return false;
    return strncasecmp(name, "access-control-", 15) != 0;
}

static void headers_keep(struct leg *leg, const struct http_head *head)
{
    size_t room = 0;
    for (uint32_t i = 0; i < head->header_count; i++)
        if (header_passes(head->headers[i].name))
            room += strlen(head->headers[i].name) + strlen(head->headers[i].value) + 2;
    leg->headers = room ? malloc(room) : NULL;
    for (uint32_t i = 0; leg->headers && i < head->header_count; i++) {
        if (!header_passes(head->headers[i].name))
            continue;
        const char *const pair[2] = {head->headers[i].name, head->headers[i].value};
        for (uint32_t j = 0; j < 2; j++) {
            size_t length = strlen(pair[j]) + 1;
            memcpy(leg->headers + leg->headers_length, pair[j], length);
            leg->headers_length += length;
        }
    }
}

static void headers_pass(struct relay *relay, const struct leg *leg)
{
    for (size_t at = 0; at < leg->headers_length;) {
        const char *name = leg->headers + at;
        const char *value = name + strlen(name) + 1;
        http_exchange_add_header(relay->exchange, name, value);
        at += strlen(name) + strlen(value) + 2;
    }
    http_exchange_add_header(relay->exchange, "X-Request-Id", relay->request_id);
}

void leg_forget_answer(struct leg *leg)
{
    free(leg->headers);
    free(leg->bytes);
    leg->headers = leg->bytes = NULL;
    leg->headers_length = leg->length = leg->room = 0;
    leg->status = 0;
}

static bool leg_gather(struct leg *leg, const char *bytes, size_t length, size_t most)
{
    if (length > most - leg->length)
        length = most - leg->length;
    if (leg->length + length > leg->room) {
        size_t room = leg->room ? leg->room : 1024;
        while (room < leg->length + length)
            room *= 2;
        char *larger = realloc(leg->bytes, room);
        if (!larger)
            return false;
        leg->bytes = larger;
        leg->room = room;
    }
    if (length)
        memcpy(leg->bytes + leg->length, bytes, length);
    leg->length += length;
    return true;
}

/* ---- the answer ----------------------------------------------------------------------------- */

/* 0: none, or more than is gathered. */
static bool has_small_length(const struct http_head *head)
{
    const char *length = http_head_header(head, "Content-Length");
    return length && strtoull(length, NULL, 10) <= RELAY_GATHER_MAX;
}

void answer_head(struct leg *leg, const struct http_head *head)
{
    const char *type = http_head_header(head, "Content-Type");
    leg->status = head->status;
    snprintf(leg->type, sizeof(leg->type), "%s", type ? type : "application/json");
    headers_keep(leg, head);
    if (leg == &leg->relay->decode) {
        leg->relay->stream = head->status < 300 && !has_small_length(head);
        leg->relay->heard_ns = clock_now_ns();
    }
}

/* The client is told as late as possible: until the first byte of the body another worker may still
 * take over. */
static void answer_begin(struct relay *relay)
{
    struct router_numbers *numbers = &relay->loop->numbers;
    if (relay->answering)
        return;
    headers_pass(relay, &relay->decode);
    http_exchange_stream_begin(relay->exchange, relay->decode.status, relay->decode.type);
    relay->answering = true;
    router_observe(&numbers->first_byte, clock_now_ns() - relay->began_ns);
}

static void answer_observe(struct relay *relay, uint64_t since_ns)
{
    struct router_numbers *numbers = &relay->loop->numbers;
    uint64_t now = clock_now_ns();
    relay->spent_ns += now - since_ns;
    router_observe(&numbers->added, relay->spent_ns);
}

void answer_body(struct leg *leg, const char *bytes, size_t length)
{
    struct relay *relay = leg->relay;
    bool first = !relay->answering;
    if (leg->status >= 300) {
        leg_gather(leg, bytes, length, RELAY_ERROR_MAX); /* no memory: a shorter text */
        return;
    }
    if (leg != &relay->decode) {
        /* Mostly it says no more than that it is done. */
        if (relay->joins)
            leg_gather(leg, bytes, length, RELAY_LOGPROBS_MAX);
        return;
    }
    if (!relay->stream) {
        if (!leg_gather(leg, bytes, length, RELAY_GATHER_MAX))
            relay->out_of_memory = true;
        return;
    }
    relay->heard_ns = clock_now_ns();
    uint64_t heard = relay->heard_ns;
    answer_begin(relay);
    http_exchange_stream_write(relay->exchange, bytes, length);
    if (http_exchange_backlog(relay->exchange) > HTTP_STREAM_HIGH) {
        relay->held = true;
        router_count(&relay->loop->numbers.holds);
        http_request_pause(leg->request);
    }
    if (first)
        answer_observe(relay, heard);
}

void answer_end(struct relay *relay)
{
    struct leg *leg = &relay->decode;
    uint64_t now = clock_now_ns();
    if (relay->out_of_memory) {
        answer_refuse(relay, 503, "server_error", "out_of_memory", "out of memory");
        return;
    }
    if (relay->joins && !relay->stream)
        answer_join_logprobs(relay);
    router_count(&relay->loop->numbers.answered);
    if (relay->stream) {
        answer_begin(relay);
        http_exchange_stream_end(relay->exchange);
    } else {
        headers_pass(relay, leg);
        http_exchange_reply(relay->exchange, leg->status, leg->type, leg->bytes, leg->length);
        router_observe(&relay->loop->numbers.first_byte, now - relay->began_ns);
        answer_observe(relay, now);
    }
    router_observe(&relay->loop->numbers.whole, now - relay->began_ns);
    relay_over(relay);
}

/* {"error":{...}} of a sentence: the quotes and backslashes in it made harmless. */
static void error_write(const char *sentence, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "data: {\"error\":{\"message\":\"");
    static const char tail[] =
        "\",\"type\":\"upstream_error\",\"param\":null,\"code\":\"worker_lost\"}}\n\n";
    for (; *sentence && used + sizeof(tail) + 2 < size; sentence++) {
        if (*sentence == '"' || *sentence == '\\')
            out[used++] = '\\';
        out[used++] = (unsigned char)*sentence < 0x20 ? ' ' : *sentence;
    }
    snprintf(out + used, size - used, "%s", tail);
}

void answer_break(struct relay *relay)
{
    char event[1024];
    router_count(&relay->loop->numbers.broken);
    LOG_WARNING(router, "request %s broke off in the middle: %s", relay->request_id,
                relay->reason);
    if (strncmp(relay->decode.type, "text/event-stream", 17) == 0) {
        error_write(relay->reason, event, sizeof(event));
        http_exchange_stream_write(relay->exchange, event, strlen(event));
    }
    http_exchange_cut(relay->exchange);
    relay_over(relay);
}

/* ---- errors --------------------------------------------------------------------------------- */

void answer_pass_error(struct relay *relay, struct leg *leg)
{
    router_count(leg->status < 500 ? &relay->loop->numbers.refused
                                   : &relay->loop->numbers.failed);
    headers_pass(relay, leg);
    http_exchange_reply(relay->exchange, leg->status, leg->type, leg->bytes, leg->length);
    relay_over(relay);
}

void answer_refuse(struct relay *relay, int status, const char *type, const char *code,
                   const char *message)
{
    router_count(status < 500 ? &relay->loop->numbers.refused : &relay->loop->numbers.failed);
    http_exchange_add_header(relay->exchange, "X-Request-Id", relay->request_id);
    http_exchange_reply_error(relay->exchange, status, type, code, message);
    relay_over(relay);
}
