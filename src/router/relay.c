/* SPDX-License-Identifier: Apache-2.0 */
/* See relay.h. Which workers get a request, and what happens when one of them fails. */
#include "relay.h"

#include "room_splice.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/socket.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINGER_MS 5000u
#define LOSSES_MAX 3u

static void relay_try(struct relay *relay);

/* ---- ends ----------------------------------------------------------------------------------- */

/* The leg has no request any more. */
static void leg_release(struct leg *leg)
{
    leg->request = NULL;
    if (leg->upstream)
        atomic_fetch_sub_explicit(&leg->upstream->in_flight, 1, memory_order_relaxed);
    upstream_release(leg->upstream);
    leg->upstream = NULL;
}

void leg_cancel(struct leg *leg)
{
    http_request_cancel(leg->request);
    leg_release(leg);
}

static void relay_free(struct relay *relay)
{
    leg_cancel(&relay->prefill);
    leg_cancel(&relay->decode);
    leg_forget_answer(&relay->prefill);
    leg_forget_answer(&relay->decode);
    upstream_release(relay->avoid[0]);
    upstream_release(relay->avoid[1]);
    LIST_REMOVE(relay, entry);
    free(relay);
}

void relay_over(struct relay *relay)
{
    relay->exchange = NULL;
    relay->over_ns = clock_now_ns();
    atomic_fetch_sub_explicit(&relay->loop->router->in_flight, 1, memory_order_relaxed);
    leg_cancel(&relay->decode);
    if (!relay->prefill.request)
        relay_free(relay);
}

static void client_left(struct http_exchange *exchange, void *context)
{
    struct relay *relay = context;
    (void)exchange;
    router_count(&relay->loop->numbers.left);
    leg_cancel(&relay->prefill);
    relay_over(relay);
}

static void client_drained(struct http_exchange *exchange, void *context)
{
    struct relay *relay = context;
    (void)exchange;
    if (!relay->held)
        return;
    relay->held = false;
    relay->heard_ns = clock_now_ns();
    if (relay->decode.request)
        http_request_resume(relay->decode.request);
}

/* ---- failures ------------------------------------------------------------------------------- */

static const char *leg_name(const struct leg *leg)
{
    if (leg == &leg->relay->prefill)
        return "prefill";
    return leg->upstream && leg->upstream->role != UPSTREAM_DECODE ? "worker" : "decode";
}

/* Would the request fare better elsewhere? What the client has done wrong is wrong everywhere. */
static bool status_is_ours(int status)
{
    return status >= 500 || status == 408 || status == 429;
}

static void failure_count(struct router_numbers *numbers, const struct http_result *result)
{
    switch (result->outcome) {
    case HTTP_OUTCOME_DONE: router_count(&numbers->errors); break;
    case HTTP_OUTCOME_UNREACHABLE: router_count(&numbers->unreachable); break;
    case HTTP_OUTCOME_TIMEOUT: router_count(&numbers->timeouts); break;
    case HTTP_OUTCOME_GARBLED: router_count(&numbers->garbled); break;
    case HTTP_OUTCOME_BROKEN:
    case HTTP_OUTCOME_MEMORY: router_count(&numbers->breaks); break;
    }
}

/* What the upstream's record gets. A worker that says "not now" (429, 503) is not broken. */
static void failure_blame(struct leg *leg, const struct http_result *result)
{
    struct upstream *upstream = leg->upstream;
    failure_count(&leg->relay->loop->numbers, result);
    if (result->outcome == HTTP_OUTCOME_MEMORY || socket_none_left())
        return;
    if (result->outcome == HTTP_OUTCOME_DONE &&
        (result->status < 500 || result->status == 503)) {
        upstream_answered(upstream);
        if (result->status == 503)
            upstream_rests(upstream);
        return;
    }
    if (result->outcome == HTTP_OUTCOME_UNREACHABLE) {
        if (upstream_unreachable(upstream))
            LOG_WARNING(router, "worker %s is out: %s", upstream->url, result->error);
    } else if (upstream_failed(upstream))
        LOG_WARNING(router, "worker %s is shut out for %u s after %u failures, the last: %s",
                    upstream->url, UPSTREAM_SHUT_MS / 1000, UPSTREAM_FAILURES_MAX,
                    result->outcome == HTTP_OUTCOME_DONE ? "its status" : result->error);
}

/* A worker that answers badly costs one of the request's retries, and so does one that lets it wait. One
 * that is not there any more, has just died, or is starting again (503) has its own bound: when a machine
 * is lost a request may well meet two of them. */
static bool failure_is_retryable(struct relay *relay, const struct http_result *result)
{
    const struct router_options *options = &relay->loop->router->options;
    uint64_t waited_ms = (clock_now_ns() - relay->began_ns) / NS_PER_MS;
    if (!options->retries || relay->kind != RELAY_GENERATE)
        return false;
    switch (result->outcome) {
    case HTTP_OUTCOME_MEMORY: return false;
    case HTTP_OUTCOME_DONE:
        if (result->status == 503)
            return relay->losses++ < LOSSES_MAX;
        return status_is_ours(result->status) && relay->refusals++ < options->retries;
    /* A connection that did not come about in time is worth another try; a whole wait is not. */
    case HTTP_OUTCOME_TIMEOUT:
        return (!options->first_byte_ms || waited_ms < options->first_byte_ms) &&
               relay->refusals++ < options->retries;
    default: return relay->losses++ < LOSSES_MAX;
    }
}

static void reason_set(struct relay *relay, const struct leg *leg,
                       const struct http_result *result)
{
    if (result->outcome == HTTP_OUTCOME_DONE)
        snprintf(relay->reason, sizeof(relay->reason), "%s worker %s answered %d: %.*s",
                 leg_name(leg), leg->upstream->url, result->status,
                 leg->length < 200 ? (int)leg->length : 200, leg->bytes ? leg->bytes : "");
    else
        snprintf(relay->reason, sizeof(relay->reason), "%s worker: %s", leg_name(leg),
                 result->error);
}

static void failure_tell(struct relay *relay, struct leg *leg, const char *name,
                         const struct http_result *result)
{
    char code[32];
    if (result->outcome == HTTP_OUTCOME_DONE) {
        answer_pass_error(relay, leg);
        return;
    }
    bool late = result->outcome == HTTP_OUTCOME_TIMEOUT;
    snprintf(code, sizeof(code), "%s_%s", name, late ? "timeout" : "failed");
    answer_refuse(relay, late ? 504 : 502, late ? "timeout_error" : "upstream_error", code,
                  relay->reason);
}

/* A leg failed before the client has seen anything: the other one is of no use now. */
static void relay_failed(struct relay *relay, struct leg *leg, const struct http_result *result)
{
    bool is_prefill = leg == &relay->prefill;
    struct leg *other = is_prefill ? &relay->decode : &relay->prefill;
    const char *name = leg_name(leg);
    reason_set(relay, leg, result);
    LOG_INFO(router, "request %s: %s", relay->request_id, relay->reason);
    upstream_release(relay->avoid[!is_prefill]);
    relay->avoid[!is_prefill] = upstream_hold(leg->upstream);
    leg_release(leg);
    leg_cancel(other);
    leg_forget_answer(other);
    if (!failure_is_retryable(relay, result)) {
        failure_tell(relay, leg, name, result);
        return;
    }
    leg_forget_answer(leg);
    router_count(&relay->loop->numbers.retries);
    relay_try(relay);
}

/* ---- what the legs say ---------------------------------------------------------------------- */

static void leg_head(struct http_request *request, const struct http_head *head, void *context)
{
    (void)request;
    answer_head(context, head);
}

static void leg_body(struct http_request *request, const char *bytes, size_t length,
                     void *context)
{
    (void)request;
    answer_body(context, bytes, length);
}

static bool result_is_good(const struct http_result *result)
{
    return result->outcome == HTTP_OUTCOME_DONE && result->status < 300;
}

static void prefill_done(struct http_request *request, const struct http_result *result,
                         void *context)
{
    struct leg *leg = context;
    struct relay *relay = leg->relay;
    (void)request;
    leg->request = NULL;
    if (result_is_good(result))
        upstream_answered(leg->upstream);
    else
        failure_blame(leg, result);
    /* One that breaks after a good beginning may have handed everything over: decode knows. */
    bool matters = relay->exchange && !relay->decode.status && !result_is_good(result) &&
                   !(leg->status && leg->status < 300);
    if (matters) {
        relay_failed(relay, leg, result);
        return;
    }
    leg_release(leg);
    if (relay->waits_to_join)
        answer_end(relay);
    else if (!relay->exchange)
        relay_free(relay);
}

static void decode_done(struct http_request *request, const struct http_result *result,
                        void *context)
{
    struct leg *leg = context;
    struct relay *relay = leg->relay;
    (void)request;
    leg->request = NULL;
    if (result_is_good(result)) {
        upstream_answered(leg->upstream);
        relay->waits_to_join = relay->joins && !relay->stream && relay->prefill.request;
        if (relay->waits_to_join)
            leg_release(leg);
        else
            answer_end(relay);
        return;
    }
    failure_blame(leg, result);
    if (!relay->answering) {
        relay_failed(relay, leg, result);
        return;
    }
    reason_set(relay, leg, result);
    leg_cancel(&relay->prefill);
    answer_break(relay);
}

/* ---- sending -------------------------------------------------------------------------------- */

static int leg_start(struct leg *leg, struct upstream *upstream, const struct iovec *body,
                     uint32_t pieces, http_on_done *done, struct error err)
{
    static const char *const passed[] = {"Content-Type",     "Accept",      "Authorization",
                                         "X-Correlation-Id", "Traceparent", "Tracestate"};
    struct relay *relay = leg->relay;
    const struct router_options *options = &relay->loop->router->options;
    struct http_header headers[8] = {{"X-Request-Id", relay->request_id}};
    uint32_t header_count = 1;
    char url[400];
    for (uint32_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
        const char *value = http_exchange_header(relay->exchange, passed[i]);
        if (value)
            headers[header_count++] = (struct http_header){passed[i], value};
    }
    snprintf(url, sizeof(url), "%s%s", upstream->url, http_exchange_path(relay->exchange));
    const char *method = http_exchange_method(relay->exchange);
    const struct http_request_options request = {
        .method = strcmp(method, "HEAD") == 0 ? "GET" : method,
        .url = url,
        .headers = headers,
        .header_count = header_count,
        .body = body,
        .body_pieces = pieces,
        .connect_ms = options->connect_ms,
        .first_byte_ms = options->first_byte_ms,
        .total_ms = options->total_ms,
        .head = leg_head,
        .body_came = leg_body,
        .done = done,
        .context = leg,
    };
    int rc = http_request_start(relay->loop->client, &request, &leg->request, err);
    if (rc)
        return rc;
    leg->upstream = upstream_hold(upstream);
    atomic_fetch_add_explicit(&upstream->in_flight, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&upstream->requests_total, 1, memory_order_relaxed);
    return BATON_OK;
}

static struct upstream *choose(struct relay *relay, enum upstream_role role,
                               const struct upstream *avoid)
{
    struct router_loop *loop = relay->loop;
    return policy_choose(loop->router->options.policy, &loop->memory, loop->set, role, avoid);
}

/* Decode comes first: without it there is nothing to prefill for. Where no prefill worker is usable,
 * or the only one has just failed, decode does all of it. */
static void workers_choose(struct relay *relay, struct upstream **prefill,
                           struct upstream **decode)
{
    struct upstream *mixed = NULL;
    *prefill = NULL;
    *decode = choose(relay, UPSTREAM_DECODE, relay->avoid[1]);
    if (!*decode || *decode == relay->avoid[1])
        mixed = choose(relay, UPSTREAM_MIXED, relay->avoid[1]);
    if (mixed) {
        *decode = mixed;
        return;
    }
    if (relay->kind == RELAY_ANY) {
        if (!*decode)
            *decode = choose(relay, UPSTREAM_PREFILL, relay->avoid[1]);
        return;
    }
    if (!*decode || relay->loop->router->options.flow != ROUTER_PAIR)
        return;
    *prefill = choose(relay, UPSTREAM_PREFILL, relay->avoid[0]);
    if (*prefill == relay->avoid[0])
        *prefill = NULL;
    if (!*prefill)
        router_count(&relay->loop->numbers.alone);
}

static void nobody_tell(struct relay *relay)
{
    uint32_t there[UPSTREAM_ROLES], usable[UPSTREAM_ROLES];
    char message[900];
    int used = snprintf(message, sizeof(message), "no worker can take the request now:");
    for (uint32_t role = 0; role < UPSTREAM_ROLES; role++) {
        upstream_set_count(relay->loop->set, (enum upstream_role)role, &there[role],
                           &usable[role]);
        if (there[role])
            used += snprintf(message + used, sizeof(message) - (size_t)used, " %u of %u %s",
                             usable[role], there[role],
                             upstream_role_name((enum upstream_role)role));
    }
    if (!relay->loop->set->count)
        used += snprintf(message + used, sizeof(message) - (size_t)used, " there is none");
    snprintf(message + used, sizeof(message) - (size_t)used, " workers are usable%s%s",
             relay->reason[0] ? "; " : "", relay->reason);
    http_exchange_add_header(relay->exchange, "Retry-After", "1");
    answer_refuse(relay, 503, "service_unavailable_error", "no_worker", message);
}

/* Sends the legs. The body is not read: a room is put in before its last brace. */
static void relay_try(struct relay *relay)
{
    struct upstream *prefill, *decode;
    char fields[ROOM_SPLICE_BYTES], text[512];
    struct iovec pieces[2];
    uint32_t piece_count = 1;
    size_t length;
    int rc = BATON_OK;
    pieces[0].iov_base = (void *)(uintptr_t)http_exchange_body(relay->exchange, &length);
    pieces[0].iov_len = length;
    workers_choose(relay, &prefill, &decode);
    relay->tries++;
    relay->stream = false;
    relay->joins = prefill && strcmp(http_exchange_path(relay->exchange), "/generate") == 0 &&
                   memmem(pieces[0].iov_base, length, "\"return_logprob\"", 16);
    if (!decode) {
        nobody_tell(relay);
        return;
    }
    if (prefill) {
        uint64_t room = router_random(relay->loop) >> 1;
        piece_count = 2;
        rc = room_splice(pieces[0].iov_base, length, prefill->host,
                         atomic_load(&prefill->bootstrap_port), room ? room : 1, fields, pieces,
                         ERROR_BUFFER(text));
        if (rc) {
            answer_refuse(relay, 400, "invalid_request_error", "not_json", text);
            return;
        }
        rc = leg_start(&relay->prefill, prefill, pieces, piece_count, prefill_done,
                       ERROR_BUFFER(text));
    }
    if (!rc)
        rc = leg_start(&relay->decode, decode, pieces, piece_count, decode_done,
                       ERROR_BUFFER(text));
    if (rc) {
        leg_cancel(&relay->prefill);
        answer_refuse(relay, 500, "server_error", "router_failed", text);
        return;
    }
    if (relay->tries == 1)
        relay->spent_ns = clock_now_ns() - relay->began_ns;
}

/* The client's, if it can be a header's value; otherwise a new one. */
static void request_id_set(struct relay *relay)
{
    const char *given = http_exchange_header(relay->exchange, "X-Request-Id");
    size_t length = given ? strlen(given) : 0;
    bool plain = length > 0 && length < sizeof(relay->request_id);
    for (size_t i = 0; i < length && plain; i++)
        plain = given[i] > 0x20 && given[i] < 0x7f;
    if (plain)
        memcpy(relay->request_id, given, length + 1);
    else
        snprintf(relay->request_id, sizeof(relay->request_id), "req-%016" PRIx64,
                 router_random(relay->loop));
}

void relay_start(struct router_loop *loop, struct http_exchange *exchange, enum relay_kind kind,
                 uint64_t began_ns)
{
    struct router *router = loop->router;
    router_count(&loop->numbers.requests);
    uint32_t before = atomic_fetch_add_explicit(&router->in_flight, 1, memory_order_relaxed);
    bool full = before >= router->options.max_in_flight;
    struct relay *relay = full ? NULL : calloc(1, sizeof(*relay));
    if (!relay) {
        atomic_fetch_sub_explicit(&router->in_flight, 1, memory_order_relaxed);
        router_count(full ? &loop->numbers.refused : &loop->numbers.failed);
        http_exchange_add_header(exchange, "Retry-After", "1");
        http_exchange_reply_error(exchange, full ? 429 : 503,
                                  full ? "rate_limit_error" : "server_error",
                                  full ? "router_full" : "out_of_memory",
                                  full ? "the router has as many requests as it may have "
                                         "(--max-in-flight)"
                                       : "out of memory");
        return;
    }
    relay->loop = loop;
    relay->exchange = exchange;
    relay->kind = kind;
    relay->began_ns = began_ns;
    relay->prefill.relay = relay->decode.relay = relay;
    LIST_INSERT_HEAD(&loop->relays, relay, entry);
    request_id_set(relay);
    http_exchange_watch(exchange, client_left, client_drained, relay);
    relay_try(relay); /* the relay may be gone after it */
}

/* ---- the sweep ------------------------------------------------------------------------------ */

static void leg_give_up(struct leg *leg, const char *why)
{
    char text[400];
    struct relay *relay = leg->relay;
    snprintf(text, sizeof(text), "%s %s", leg->upstream->url, why);
    const struct http_result result = {HTTP_OUTCOME_BROKEN, 0, text};
    http_request_cancel(leg->request);
    leg->request = NULL;
    if (!relay->answering) {
        failure_count(&relay->loop->numbers, &result);
        relay_failed(relay, leg, &result);
        return;
    }
    reason_set(relay, leg, &result);
    leg_cancel(&relay->prefill);
    answer_break(relay);
}

/* Whoever waits for a worker that does not answer its health checks either, waits in vain. */
static bool leg_is_lost(const struct leg *leg)
{
    return leg->request && !leg->status &&
           atomic_load_explicit(&leg->upstream->state, memory_order_relaxed) == UPSTREAM_DOWN;
}

static void relay_look_after(struct relay *relay, uint64_t now)
{
    uint32_t stall_ms = relay->loop->router->options.stall_ms;
    if (!relay->exchange) {
        if (now - relay->over_ns > LINGER_MS * NS_PER_MS)
            relay_free(relay);
    } else if (relay->waits_to_join) {
        if (now - relay->heard_ns > LINGER_MS * NS_PER_MS) {
            relay->waits_to_join = false;
            answer_end(relay);
        }
    } else if (leg_is_lost(&relay->decode))
        leg_give_up(&relay->decode, "has stopped to answer");
    else if (leg_is_lost(&relay->prefill) && !relay->decode.status)
        leg_give_up(&relay->prefill, "has stopped to answer");
    else if (relay->decode.status && !relay->held && stall_ms &&
             now - relay->heard_ns > stall_ms * NS_PER_MS) {
        router_count(&relay->loop->numbers.stalls);
        upstream_failed(relay->decode.upstream);
        leg_give_up(&relay->decode, "has stopped in the middle of its answer");
    }
}

void relay_sweep(struct router_loop *loop)
{
    uint64_t now = clock_now_ns();
    struct relay *next;
    for (struct relay *relay = LIST_FIRST(&loop->relays); relay; relay = next) {
        next = LIST_NEXT(relay, entry);
        relay_look_after(relay, now);
    }
}

void relay_cut_all(struct router_loop *loop)
{
    struct relay *relay;
    while ((relay = LIST_FIRST(&loop->relays))) {
        if (relay->exchange) {
            http_exchange_cut(relay->exchange);
            atomic_fetch_sub(&loop->router->in_flight, 1);
        }
        relay->exchange = NULL;
        relay_free(relay);
    }
}
