/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints that make the worker do something other than answer a prompt: a generation to see
 * whether it can, a cache to forget, requests to abort. */
#include "api_state.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define HEALTH_SECONDS 20u
#define FLUSH_SECONDS_MAX 600.0

/* ---- /health_generate ----------------------------------------------------------------------- */

/* One token of a prompt of one token: whatever hangs, this does. */
struct health_probe {
    struct generation generation;
    struct http_task task;
    struct api_server *server;
    struct http_exchange *exchange; /* NULL: answered, or the client has gone */
    struct http_loop *loop;
    struct http_timer *timer;
    int32_t token;
    enum generation_finish finish;
};

static void probe_reply(struct health_probe *probe, const char *problem)
{
    struct http_exchange *exchange = probe->exchange;
    struct request_error error = {0};
    probe->exchange = NULL;
    if (!exchange)
        return;
    if (!problem)
        http_exchange_reply(exchange, 200, "text/plain", "", 0);
    else {
        request_refuse(&error, 503, NULL, "%s", problem);
        api_reply_error(probe->server, exchange, false, &error);
    }
}

static void probe_late(void *context)
{
    struct health_probe *probe = context;
    probe->timer = NULL;
    probe_reply(probe, "no token within 20 s: the engine is stuck or has too much to do");
    scheduler_abort(probe->server->scheduler, &probe->generation);
}

static void probe_done(struct http_task *task)
{
    struct health_probe *probe =
        (struct health_probe *)(void *)((char *)task - offsetof(struct health_probe, task));
    http_timer_cancel(probe->timer);
    probe_reply(probe, probe->finish == GENERATION_LENGTH || probe->finish == GENERATION_STOP
                           ? NULL
                           : "the generation failed");
    api_leave(probe->server);
    free(probe);
}

static void probe_deliver(struct generation *generation, const struct generation_output *output)
{
    struct health_probe *probe = generation->context;
    if (!output->finish)
        return;
    probe->finish = output->finish;
    http_loop_post(probe->loop, &probe->task);
}

static void probe_left(struct http_exchange *exchange, void *context)
{
    struct health_probe *probe = context;
    (void)exchange;
    probe->exchange = NULL;
}

/* A worker that hands over does so for the probe, too, with nobody at the other end. */
static void probe_handover(struct api_server *server, struct handover *out)
{
    enum worker_role role = atomic_load(&server->role);
    if (role == ROLE_MIXED)
        return;
    out->kind = role == ROLE_PREFILL ? HANDOVER_SEND : HANDOVER_RECEIVE;
    out->room = atomic_fetch_add(&server->id_next, 1) | 1ull << 62;
    strcpy(out->bootstrap, HANDOVER_FAKE);
}

void api_health_generate(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    char text[256] = "out of memory";
    if (!api_enter(server, exchange))
        return;
    struct health_probe *probe = calloc(1, sizeof(*probe));
    int rc = BATON_ENOMEM;
    if (probe) {
        uint32_t bos = tokenizer_bos(server->model->tokenizer);
        probe->server = server;
        probe->exchange = exchange;
        probe->loop = http_exchange_loop(exchange);
        probe->task.run = probe_done;
        probe->token = bos == TOKEN_NONE ? 0 : (int32_t)bos;
        generation_init(&probe->generation);
        probe->generation.prompt = &probe->token;
        probe->generation.prompt_count = 1;
        probe->generation.max_new_tokens = 1;
        probe->generation.sampling = SAMPLING_DEFAULT;
        probe->generation.sampling.temperature = 0;
        probe->generation.priority = INT32_MAX;
        probe_handover(server, &probe->generation.handover);
        probe->generation.deliver = probe_deliver;
        probe->generation.context = probe;
        strcpy(probe->generation.rid, "health-probe");
        http_exchange_watch(exchange, probe_left, NULL, probe);
        rc = scheduler_submit(server->scheduler, &probe->generation, ERROR_BUFFER(text));
    }
    if (rc) {
        struct request_error error = {0};
        request_refuse(&error, 503, NULL, "%s", text);
        api_reply_error(server, exchange, false, &error);
        free(probe);
        api_leave(server);
        return;
    }
    probe->timer = http_loop_after(probe->loop, HEALTH_SECONDS * 1000, probe_late, probe);
}

/* ---- /flush_cache --------------------------------------------------------------------------- */

/* It waits for the scheduler, so a thread does it: not one of the tokenizers', or two of these would
 * keep long prompts waiting. */
struct cache_flush {
    struct work work;
    struct http_task task;
    struct api_server *server;
    struct http_exchange *exchange;
    struct http_loop *loop;
    double seconds;
    bool done;
};

static void flush_left(struct http_exchange *exchange, void *context)
{
    struct cache_flush *flush = context;
    (void)exchange;
    flush->exchange = NULL;
}

static void flush_run(struct work *work)
{
    struct cache_flush *flush = (struct cache_flush *)(void *)work;
    flush->done =
        scheduler_flush_cache(flush->server->scheduler, (uint64_t)(flush->seconds * 1e9));
    http_loop_post(flush->loop, &flush->task);
}

static void flush_done(struct http_task *task)
{
    struct cache_flush *flush =
        (struct cache_flush *)(void *)((char *)task - offsetof(struct cache_flush, task));
    static const char flushed[] = "Cache flushed.\n";
    struct request_error error = {0};
    if (flush->exchange && flush->done)
        http_exchange_reply(flush->exchange, 200, "text/plain", flushed, sizeof(flushed) - 1);
    else if (flush->exchange) {
        request_refuse(&error, 400, NULL,
                       "the cache was not flushed: requests are running or waiting (?timeout= "
                       "waits for them)");
        api_reply_error(flush->server, flush->exchange, false, &error);
    }
    api_leave(flush->server);
    free(flush);
}

void api_flush_cache(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    const char *timeout = http_exchange_query(exchange, "timeout");
    if (!api_enter(server, exchange))
        return;
    struct cache_flush *flush = calloc(1, sizeof(*flush));
    if (!flush) {
        struct request_error error = {.status = 503, .text = "out of memory"};
        api_reply_error(server, exchange, false, &error);
        api_leave(server);
        return;
    }
    flush->work.run = flush_run;
    flush->task.run = flush_done;
    flush->server = server;
    flush->exchange = exchange;
    flush->loop = http_exchange_loop(exchange);
    flush->seconds = timeout ? strtod(timeout, NULL) : 0;
    if (!(flush->seconds >= 0 && flush->seconds <= FLUSH_SECONDS_MAX))
        flush->seconds = 0;
    http_exchange_watch(exchange, flush_left, NULL, flush);
    work_pool_add(server->control, &flush->work);
}

/* ---- /abort_request ------------------------------------------------------------------------- */

void api_abort_request(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct request_error error = {0};
    bool all = false;
    size_t length;
    const char *bytes = http_exchange_body(exchange, &length);
    if (!api_ready_or_refuse(server, exchange))
        return;
    json_t *body = request_parse(bytes, length, &error);
    struct request_reader reader = {body, &error};
    const char *rid = request_string(&reader, "rid");
    request_bool(&reader, "abort_all", &all);
    if (!all && (!rid || !*rid))
        request_refuse(&error, 400, "rid", "\"rid\" or \"abort_all\": true is needed");
    if (error.status)
        api_reply_error(server, exchange, false, &error);
    else {
        scheduler_abort_rid(server->scheduler, all ? "" : rid);
        http_exchange_reply(exchange, 200, "text/plain", "", 0);
    }
    json_decref(body);
}
