/* SPDX-License-Identifier: Apache-2.0 */
/* What operators see of the workers and change about them:
 *
 *   GET    /workers                                   all, with what is known of each
 *   POST   /workers {"url", "worker_type", "bootstrap_port"}     202: it is used when it answers
 *   DELETE /workers/NUMBER, /workers?url=URL          202: no new requests; those that are there end
 *   GET    /readiness                                 200 as soon as a request can be served */
#include "router_parts.h"

#include "base/clock.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void json_reply(struct http_exchange *exchange, int status, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    if (text)
        http_exchange_reply(exchange, status, "application/json", text, strlen(text));
    else
        http_exchange_reply_error(exchange, 500, "server_error", "out_of_memory",
                                  "out of memory");
    free(text);
    json_decref(object);
}

static const char *state_name(const struct upstream *upstream, uint64_t now)
{
    switch (atomic_load(&upstream->state)) {
    case UPSTREAM_NEW: return "new";
    case UPSTREAM_DOWN: return "down";
    default: return upstream_usable(upstream, now) ? "up" : "shut_out";
    }
}

static json_t *upstream_json(const struct upstream *upstream, uint64_t now)
{
    char id[24];
    int port = atomic_load(&upstream->bootstrap_port);
    snprintf(id, sizeof(id), "%" PRIu64, upstream->number);
    uint32_t ours = atomic_load(&upstream->in_flight);
    uint32_t others = atomic_load(&upstream->other_requests);
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:f, s:I, s:I, s:o}", "id", id,
                     "url", upstream->url, "worker_type", upstream_role_name(upstream->role),
                     "state", state_name(upstream, now), "is_healthy",
                     upstream_usable(upstream, now), "in_flight", (json_int_t)ours,
                     "other_requests", (json_int_t)others, "load", (json_int_t)ours + others,
                     "token_usage", atomic_load(&upstream->token_permille) / 1e3,
                     "requests_total", (json_int_t)atomic_load(&upstream->requests_total),
                     "failures_total", (json_int_t)atomic_load(&upstream->failures_total),
                     "bootstrap_port", port < 0 ? json_null() : json_integer(port));
}

void workers_list(struct router_loop *loop, struct http_exchange *exchange)
{
    const struct upstream_set *set = loop->set;
    uint64_t now = clock_now_ns();
    json_t *workers = json_array();
    for (uint32_t i = 0; i < set->count; i++)
        json_array_append_new(workers, upstream_json(set->items[i], now));
    json_int_t counts[UPSTREAM_ROLES];
    for (uint32_t role = 0; role < UPSTREAM_ROLES; role++)
        counts[role] = set->first[role + 1] - set->first[role];
    json_reply(exchange, 200,
               json_pack("{s:o, s:i, s:{s:I, s:I, s:I}}", "workers", workers, "total",
                         (int)set->count, "stats", "prefill_count", counts[UPSTREAM_PREFILL],
                         "decode_count", counts[UPSTREAM_DECODE], "regular_count",
                         counts[UPSTREAM_MIXED]));
}

static void bad_request(struct http_exchange *exchange, int status, const char *message)
{
    http_exchange_reply_error(exchange, status, "invalid_request_error", NULL, message);
}

static int add_status(int rc)
{
    switch (rc) {
    case BATON_EEXIST: return 409;
    case BATON_EINVAL: return 400;
    default: return 503;
    }
}

static void worker_add(struct router_loop *loop, struct http_exchange *exchange)
{
    size_t length;
    char text[512];
    const char *bytes = http_exchange_body(exchange, &length);
    json_t *body = json_loadb(bytes, length, 0, NULL);
    const char *url = json_string_value(json_object_get(body, "url"));
    const char *type = json_string_value(json_object_get(body, "worker_type"));
    const json_t *port = json_object_get(body, "bootstrap_port");
    json_int_t number =
        json_is_integer(port) ? json_integer_value(port) : UPSTREAM_PORT_UNKNOWN;
    enum upstream_role role = UPSTREAM_MIXED;
    if (!json_is_object(body) || !url)
        bad_request(exchange, 400, "the body must be a JSON object with a \"url\"");
    else if (type && !upstream_role_parse(type, &role))
        bad_request(exchange, 400, "\"worker_type\" must be prefill, decode or regular");
    else if (port && !json_is_null(port) && (number < 0 || number > 65535))
        bad_request(exchange, 400, "\"bootstrap_port\" must be an integer from 0 to 65535");
    else {
        int rc = router_add(loop->router, role, url, (int)number, ERROR_BUFFER(text));
        if (rc)
            bad_request(exchange, add_status(rc), text);
        else
            json_reply(exchange, 202,
                       json_pack("{s:s, s:s, s:s}", "status", "accepted", "url", url, "message",
                                 "it is used as soon as it answers /health"));
    }
    json_decref(body);
}

static void worker_remove(struct router_loop *loop, struct http_exchange *exchange)
{
    const char *path = http_exchange_path(exchange);
    const char *name =
        strncmp(path, "/workers/", 9) == 0 ? path + 9 : http_exchange_query(exchange, "url");
    char text[320];
    if (!name || !*name)
        bad_request(exchange, 400, "which one? DELETE /workers/NUMBER or /workers?url=URL");
    else if (router_remove(loop->router, name, ERROR_BUFFER(text)))
        bad_request(exchange, 404, text);
    else
        json_reply(exchange, 202, json_pack("{s:s}", "status", "accepted"));
}

void workers_change(struct router_loop *loop, struct http_exchange *exchange)
{
    if (strcmp(http_exchange_method(exchange), "DELETE") == 0)
        worker_remove(loop, exchange);
    else
        worker_add(loop, exchange);
}

void workers_readiness(struct router_loop *loop, struct http_exchange *exchange)
{
    uint32_t there, usable, healthy = 0;
    bool ready = router_ready(loop->router);
    for (uint32_t role = 0; role < UPSTREAM_ROLES; role++) {
        upstream_set_count(loop->set, (enum upstream_role)role, &there, &usable);
        healthy += usable;
    }
    json_reply(exchange, ready ? 200 : 503,
               json_pack("{s:s, s:i, s:i}", "status", ready ? "ready" : "not ready",
                         "healthy_workers", (int)healthy, "total_workers",
                         (int)loop->set->count));
}
