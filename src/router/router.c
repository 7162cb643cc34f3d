/* SPDX-License-Identifier: Apache-2.0 */
#include "router_parts.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define SWEEP_MS 1000u
#define PROBE_TICK_MS 100u

/* ---- paths ---------------------------------------------------------------------------------- */

enum { GET = 1, POST = 2, DELETE = 4 };

static void on_generate(struct router_loop *loop, struct http_exchange *exchange)
{
    relay_start(loop, exchange, RELAY_GENERATE, clock_now_ns());
}

static void on_any(struct router_loop *loop, struct http_exchange *exchange)
{
    relay_start(loop, exchange, RELAY_ANY, clock_now_ns());
}

static void on_health(struct router_loop *loop, struct http_exchange *exchange)
{
    (void)loop;
    http_exchange_reply(exchange, 200, "text/plain", "", 0);
}

static void on_metrics(struct router_loop *loop, struct http_exchange *exchange)
{
    router_metrics_reply(loop->router, exchange);
}

static const struct path {
    const char *path;
    uint32_t methods;
    void (*handle)(struct router_loop *loop, struct http_exchange *exchange);
} paths[] = {
    {"/v1/chat/completions", POST, on_generate},
    {"/v1/completions", POST, on_generate},
    {"/generate", POST, on_generate},
    {"/health", GET, on_health},
    {"/readiness", GET, workers_readiness},
    {"/metrics", GET, on_metrics},
    {"/workers", GET, workers_list},
    {"/workers", POST | DELETE, workers_change},
    {"/v1/models", GET, on_any},
    {"/model_info", GET, on_any},
    {"/get_model_info", GET, on_any},
    {"/tokenize", POST, on_any},
    {"/v1/tokenize", POST, on_any},
    {"/detokenize", POST, on_any},
    {"/v1/detokenize", POST, on_any},
    {"/server_info", GET, fan_out_start},
    {"/get_server_info", GET, fan_out_start},
    {"/get_loads", GET, fan_out_start},
    {"/health_generate", GET, fan_out_start},
    {"/flush_cache", GET | POST, fan_out_start},
    {"/abort_request", POST, fan_out_start},
};

static uint32_t method_number(const char *method)
{
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
        return GET;
    if (strcmp(method, "DELETE") == 0)
        return DELETE;
    return strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 ? POST : 0;
}

static void path_handle(struct router_loop *loop, struct http_exchange *exchange)
{
    const char *path = http_exchange_path(exchange), *method = http_exchange_method(exchange);
    char message[320];
    bool known = false;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (strcmp(paths[i].path, path) != 0)
            continue;
        known = true;
        if (paths[i].methods & method_number(method)) {
            paths[i].handle(loop, exchange);
            return;
        }
    }
    if (strncmp(path, "/requests/", 10) == 0 && method_number(method) == GET) {
        fan_out_start(loop, exchange);
        return;
    }
    if (strncmp(path, "/workers/", 9) == 0 && method_number(method) == DELETE) {
        workers_change(loop, exchange);
        return;
    }
    snprintf(message, sizeof(message),
             known ? "%.200s does not take %.16s" : "there is no %.200s here", path, method);
    http_exchange_reply_error(exchange, known ? 405 : 404, "invalid_request_error",
                              known ? "method_not_allowed" : "not_found", message);
}

static void request_handle(struct http_exchange *exchange, void *context)
{
    struct router *router = context;
    /* Acquire: what the loops' set-up has written is seen. */
    struct router_loop *loop = atomic_load_explicit(&router->ready, memory_order_acquire)
                                   ? router_loop_of(router, exchange)
                                   : NULL;
    if (!loop || loop->closing)
        http_exchange_reply_error(exchange, 503, "service_unavailable_error", "not_ready",
                                  loop ? "the router is shutting down"
                                       : "the router is starting");
    else
        path_handle(loop, exchange);
}

/* Whoever watches over the router need not know its key. */
static bool open_path(const char *path)
{
    return strcmp(path, "/health") == 0 || strcmp(path, "/readiness") == 0 ||
           strcmp(path, "/metrics") == 0;
}

/* ---- loops ---------------------------------------------------------------------------------- */

struct router_loop *router_loop_of(struct router *router, struct http_exchange *exchange)
{
    struct http_loop *loop = http_exchange_loop(exchange);
    uint32_t i = 0;
    while (router->loops[i].loop != loop)
        BATON_ASSERT(++i < router->options.threads);
    return &router->loops[i];
}

uint64_t router_random(struct router_loop *loop)
{
    if (!loop->random_left) {
        while (getrandom(loop->random, sizeof(loop->random), 0) !=
               (ssize_t)sizeof(loop->random))
            continue;
        loop->random_left = ROUTER_RANDOM_WORDS;
    }
    return loop->random[--loop->random_left];
}

static void sweep_again(void *context)
{
    struct router_loop *loop = context;
    relay_sweep(loop);
    loop->sweep = http_loop_after(loop->loop, SWEEP_MS, sweep_again, loop);
}

static void probe_again(void *context)
{
    struct router_loop *loop = context;
    probe_tick(loop);
    loop->probing = http_loop_after(loop->loop, PROBE_TICK_MS, probe_again, loop);
}

/* A function that every loop runs on its own thread. */
struct loop_step {
    struct http_task task;
    struct router_loop *loop;
    void (*run)(struct router_loop *loop);
    bool counted; /* somebody waits for it */
};

static void step_run(struct http_task *task)
{
    struct loop_step *step = (struct loop_step *)(void *)task;
    struct router *router = step->loop->router;
    bool counted = step->counted;
    step->run(step->loop);
    free(step);
    if (counted)
        atomic_fetch_sub_explicit(&router->loops_left, 1, memory_order_release);
}

static int loops_run(struct router *router, void (*run)(struct router_loop *loop), bool wait)
{
    const struct timespec tick = {.tv_nsec = 100000};
    struct loop_step *steps[ROUTER_THREADS_MAX];
    for (uint32_t i = 0; i < router->options.threads; i++) {
        steps[i] = calloc(1, sizeof(*steps[i]));
        if (!steps[i]) {
            while (i-- > 0)
                free(steps[i]);
            return BATON_ENOMEM;
        }
    }
    if (wait)
        atomic_store(&router->loops_left, router->options.threads);
    for (uint32_t i = 0; i < router->options.threads; i++) {
        *steps[i] = (struct loop_step){
            .task.run = step_run, .loop = &router->loops[i], .run = run, .counted = wait};
        http_loop_post(router->loops[i].loop, &steps[i]->task);
    }
    while (wait && atomic_load_explicit(&router->loops_left, memory_order_acquire))
        nanosleep(&tick, NULL);
    return BATON_OK;
}

static void loop_open(struct router_loop *loop)
{
    const struct router_options *options = &loop->router->options;
    const struct http_client_options client = {
        .base = http_loop_base(loop->loop),
        .idle_max = 1024,
        .tls_authority = options->worker_authority,
        .tls_unchecked = options->worker_unchecked,
    };
    char text[256];
    loop->set = upstream_table_get(loop->router->table);
    loop->memory.random = router_random(loop) | 1;
    loop->memory.turn[UPSTREAM_DECODE] = loop->memory.turn[UPSTREAM_PREFILL] =
        (uint32_t)(loop - loop->router->loops);
    if (http_client_open(&client, &loop->client, ERROR_BUFFER(text)))
        LOG_ERROR(router, "%s", text);
    loop->sweep = http_loop_after(loop->loop, SWEEP_MS, sweep_again, loop);
    if (loop == loop->router->loops)
        loop->probing = http_loop_after(loop->loop, 0, probe_again, loop);
}

static void loop_refresh(struct router_loop *loop)
{
    if (loop->closing)
        return;
    struct upstream_set *old = loop->set;
    loop->set = upstream_table_get(loop->router->table);
    upstream_set_release(old);
    if (loop->probing)
        probe_tick(loop);
}

static void loop_close(struct router_loop *loop)
{
    loop->closing = true;
    relay_cut_all(loop);
    fan_out_cut_all(loop);
    probe_cut_all(loop);
    http_timer_cancel(loop->sweep);
    http_timer_cancel(loop->probing);
    loop->sweep = loop->probing = NULL;
    http_client_close(loop->client);
    upstream_set_release(loop->set);
}

void router_refresh(struct router *router)
{
    if (loops_run(router, loop_refresh, false))
        LOG_ERROR(router, "out of memory: the change of workers is not seen yet");
}

/* ---- the router ----------------------------------------------------------------------------- */

static void router_free(struct router *router)
{
    upstream_table_close(router->table);
    free(router->authorization);
    free(router);
}

static int server_open(struct router *router, struct error err)
{
    const struct router_options *options = &router->options;
    const struct http_server_options http = {
        .host = options->host,
        .port = options->port,
        .loops = options->threads,
        .body_max = options->body_max,
        .header_max = 64u << 10,
        .tls_certificate = options->certificate,
        .tls_key = options->certificate_key,
        .api_key = options->api_key,
        .open_path = open_path,
        .handler = request_handle,
        .context = router,
    };
    return http_server_open(&http, &router->server, err);
}

int router_open(const struct router_options *options, struct router **out, struct error err)
{
    BATON_ASSERT(options->threads >= 1 && options->threads <= ROUTER_THREADS_MAX);
    struct router *router = calloc(1, sizeof(*router));
    if (!router)
        return error_set(err, BATON_ENOMEM, "out of memory for the router");
    router->options = *options;
    router->began_ns = clock_now_ns();
    int rc = upstream_table_open(&router->table, err);
    if (!rc && options->api_key &&
        asprintf(&router->authorization, "Bearer %s", options->api_key) < 0) {
        router->authorization = NULL;
        rc = error_set(err, BATON_ENOMEM, "out of memory for the router");
    }
    if (!rc)
        rc = server_open(router, err);
    if (rc) {
        router_free(router);
        return rc;
    }
    for (uint32_t i = 0; i < options->threads; i++) {
        router->loops[i].router = router;
        router->loops[i].loop = http_server_loop(router->server, i);
    }
    rc = loops_run(router, loop_open, true);
    for (uint32_t i = 0; !rc && i < options->threads; i++)
        if (!router->loops[i].client)
            rc = BATON_ENOMEM;
    if (rc) {
        router_close(router);
        return error_set(err, rc, "out of memory for the router");
    }
    atomic_store_explicit(&router->ready, true, memory_order_release);
    *out = router;
    return BATON_OK;
}

int router_add(struct router *router, enum upstream_role role, const char *url,
               int bootstrap_port, struct error err)
{
    struct upstream *upstream = NULL;
    int rc = upstream_open(role, url, bootstrap_port, &upstream, err);
    if (rc)
        return rc;
    rc = upstream_table_add(router->table, upstream, err);
    if (rc)
        upstream_release(upstream);
    else
        router_refresh(router);
    return rc;
}

int router_remove(struct router *router, const char *url, struct error err)
{
    int rc = upstream_table_remove(router->table, url, err);
    if (!rc)
        router_refresh(router);
    return rc;
}

uint16_t router_port(const struct router *router)
{
    return http_server_port(router->server);
}

bool router_ready(struct router *router)
{
    uint32_t there[UPSTREAM_ROLES], usable[UPSTREAM_ROLES];
    struct upstream_set *set = upstream_table_get(router->table);
    for (uint32_t role = 0; role < UPSTREAM_ROLES; role++)
        upstream_set_count(set, (enum upstream_role)role, &there[role], &usable[role]);
    upstream_set_release(set);
    return usable[UPSTREAM_MIXED] ||
           (usable[UPSTREAM_DECODE] && (usable[UPSTREAM_PREFILL] || !there[UPSTREAM_PREFILL]));
}

void router_drain(struct router *router)
{
    http_server_drain(router->server);
}

uint32_t router_busy(const struct router *router)
{
    return atomic_load(&router->in_flight);
}

/* Legs and probes end first, on their loops: after that nothing of ours runs there. */
void router_close(struct router *router)
{
    if (!router)
        return;
    while (loops_run(router, loop_close, true))
        continue;
    http_server_close(router->server);
    router_free(router);
}
