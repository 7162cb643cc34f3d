/* SPDX-License-Identifier: Apache-2.0 */
/* Who is there, and who is busy: GET /health of every worker now and then, GET /v1/loads, and GET
 * /server_info of a prefill worker that has come up and whose bootstrap port nobody has told. Only the first loop does it;
 * the others see what it finds out in the upstreams' atomic words.
 *
 *   NEW --a good answer--> UP --refused, or some checks in a row missed--> DOWN --a good answer--> UP
 *
 * One that is not up, or has missed a check, is asked more often, so that it is used as soon as it can be
 * and no longer than that; one whose answer to a request was bad is asked at once. */
#include "router_parts.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/socket.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOWN_INTERVAL_MS 300u
#define ANSWER_MAX (256u << 10)

enum probe_kind { PROBE_HEALTH, PROBE_LOAD, PROBE_INFO };
static const char *const probe_paths[] = {"/health", "/v1/loads?include=core", "/server_info"};

struct probe {
    LIST_ENTRY(probe) entry;
    struct router_loop *loop;
    struct upstream *upstream; /* held */
    enum probe_kind kind;
    struct http_request *request;
    uint32_t in_flight; /* of ours when it was asked */
    char *bytes;
    size_t length;
};

static bool *probe_flag(struct upstream *upstream, enum probe_kind kind)
{
    bool *const flags[] = {&upstream->health_asked, &upstream->load_asked,
                           &upstream->info_asked};
    return flags[kind];
}

static void probe_free(struct probe *probe)
{
    *probe_flag(probe->upstream, probe->kind) = false;
    LIST_REMOVE(probe, entry);
    upstream_release(probe->upstream);
    free(probe->bytes);
    free(probe);
}

static void probe_start(struct router_loop *loop, struct upstream *upstream,
                        enum probe_kind kind);

/* ---- answers -------------------------------------------------------------------------------- */

static void upstream_comes_up(struct upstream *upstream)
{
    upstream_answered(upstream); /* whatever it did before, it is another now */
    if (upstream_set_state(upstream, UPSTREAM_UP))
        LOG_INFO(router, "%s worker %s is up", upstream_role_name(upstream->role),
                 upstream->url);
}

static void health_good(struct probe *probe)
{
    struct upstream *upstream = probe->upstream;
    upstream->health_failures = 0;
    if (upstream_is_up(upstream))
        return;
    if (upstream->role != UPSTREAM_PREFILL || upstream->port_given)
        upstream_comes_up(upstream);
    else if (!upstream->info_asked)
        probe_start(probe->loop, upstream, PROBE_INFO);
}

static void health_bad(struct probe *probe, const struct http_result *result)
{
    struct upstream *upstream = probe->upstream;
    char status[32];
    if (socket_none_left())
        return;
    snprintf(status, sizeof(status), "/health is %d", result->status);
    upstream->health_failures++;
    if (!upstream_is_up(upstream))
        return;
    if (result->outcome != HTTP_OUTCOME_UNREACHABLE &&
        upstream->health_failures < probe->loop->router->options.health_failures)
        return;
    if (upstream_set_state(upstream, UPSTREAM_DOWN))
        LOG_WARNING(router, "%s worker %s is out: %s", upstream_role_name(upstream->role),
                    upstream->url,
                    result->outcome == HTTP_OUTCOME_DONE ? status : result->error);
}

/* Ours are known better than by a report; what it has beyond them is others'. */
static void load_read(struct probe *probe, const json_t *report)
{
    const json_t *loads = json_object_get(report, "loads"), *load;
    json_int_t requests = 0;
    double usage = 0;
    size_t i;
    json_array_foreach(loads, i, load)
    {
        requests += json_integer_value(json_object_get(load, "num_running_reqs")) +
                    json_integer_value(json_object_get(load, "num_waiting_reqs"));
        double rank = json_number_value(json_object_get(load, "token_usage"));
        usage = rank > usage ? rank : usage;
    }
    if (requests < 0 || requests > UINT16_MAX)
        requests = requests < 0 ? 0 : UINT16_MAX;
    usage = usage > 1 ? 1 : usage;
    atomic_store(&probe->upstream->other_requests,
                 requests > probe->in_flight ? (uint32_t)requests - probe->in_flight : 0);
    atomic_store(&probe->upstream->token_permille, (uint32_t)(usage * 1000));
}

static void info_read(struct probe *probe, const json_t *info)
{
    const json_t *port = json_object_get(info, "disaggregation_bootstrap_port");
    json_int_t number = json_integer_value(port);
    if (json_is_integer(port) && number > 0 && number <= 65535)
        atomic_store(&probe->upstream->bootstrap_port, (int)number);
}

static void probe_body(struct http_request *request, const char *bytes, size_t length,
                       void *context)
{
    struct probe *probe = context;
    (void)request;
    if (probe->length + length > ANSWER_MAX || probe->kind == PROBE_HEALTH)
        return;
    char *larger = realloc(probe->bytes, probe->length + length);
    if (!larger)
        return;
    memcpy(larger + probe->length, bytes, length);
    probe->bytes = larger;
    probe->length += length;
}

static void report_read(struct probe *probe)
{
    json_t *report = json_loadb(probe->bytes ? probe->bytes : "", probe->length, 0, NULL);
    if (probe->kind == PROBE_LOAD)
        load_read(probe, report);
    else
        info_read(probe, report);
    json_decref(report);
}

static void probe_done(struct http_request *request, const struct http_result *result,
                       void *context)
{
    struct probe *probe = context;
    bool good = result->outcome == HTTP_OUTCOME_DONE && result->status / 100 == 2;
    (void)request;
    if (probe->kind == PROBE_HEALTH && good)
        health_good(probe);
    else if (probe->kind == PROBE_HEALTH)
        health_bad(probe, result);
    else if (good)
        report_read(probe);
    /* Where it does not tell its port, requests say null: decode takes the usual one. */
    if (probe->kind == PROBE_INFO && result->outcome == HTTP_OUTCOME_DONE)
        upstream_comes_up(probe->upstream);
    probe_free(probe);
}

/* ---- questions ------------------------------------------------------------------------------ */

static void probe_start(struct router_loop *loop, struct upstream *upstream,
                        enum probe_kind kind)
{
    const struct router_options *options = &loop->router->options;
    const struct http_header key = {"Authorization", loop->router->authorization};
    char url[400], text[256];
    struct probe *probe = calloc(1, sizeof(*probe));
    if (!probe)
        return;
    probe->loop = loop;
    probe->upstream = upstream_hold(upstream);
    probe->kind = kind;
    probe->in_flight = atomic_load(&upstream->in_flight);
    LIST_INSERT_HEAD(&loop->probes, probe, entry);
    *probe_flag(upstream, kind) = true;
    snprintf(url, sizeof(url), "%s%s", upstream->url, probe_paths[kind]);
    const struct http_request_options request = {
        .url = url,
        .headers = &key,
        .header_count = key.value ? 1 : 0,
        .connect_ms = options->connect_ms,
        .total_ms = options->health_timeout_ms,
        .body_came = probe_body,
        .done = probe_done,
        .context = probe,
    };
    if (http_request_start(loop->client, &request, &probe->request, ERROR_BUFFER(text))) {
        LOG_WARNING(router, "worker %s cannot be asked: %s", upstream->url, text);
        probe_free(probe);
    }
}

static void upstream_look_after(struct router_loop *loop, struct upstream *upstream,
                                uint64_t now)
{
    const struct router_options *options = &loop->router->options;
    bool up = upstream_is_up(upstream);
    uint32_t interval = options->health_ms;
    if ((!up || upstream->health_failures) && interval > DOWN_INTERVAL_MS)
        interval = DOWN_INTERVAL_MS;
    if (!upstream->health_asked && atomic_exchange(&upstream->doubted, false))
        upstream->health_due_ns = now;
    /* A due time that was set while it was up is too far away when it has gone. */
    if (!upstream->health_asked && (now >= upstream->health_due_ns ||
                                    upstream->health_due_ns > now + interval * NS_PER_MS)) {
        upstream->health_due_ns = now + interval * NS_PER_MS;
        probe_start(loop, upstream, PROBE_HEALTH);
    }
    if (!up)
        return;
    if (!upstream->load_asked && now >= upstream->load_due_ns) {
        uint32_t load_ms = options->policy->by_load ? options->load_ms : options->health_ms;
        upstream->load_due_ns = now + load_ms * NS_PER_MS;
        probe_start(loop, upstream, PROBE_LOAD);
    }
}

void probe_tick(struct router_loop *loop)
{
    uint64_t now = clock_now_ns();
    for (uint32_t i = 0; i < loop->set->count; i++)
        upstream_look_after(loop, loop->set->items[i], now);
}

void probe_cut_all(struct router_loop *loop)
{
    struct probe *probe;
    while ((probe = LIST_FIRST(&loop->probes))) {
        http_request_cancel(probe->request);
        probe_free(probe);
    }
}
