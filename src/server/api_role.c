/* SPDX-License-Identifier: Apache-2.0 */
/* POST /role {"role": "prefill" | "decode" | "mixed"}: what the worker does from now on. New requests are
 * refused (503, which routers retry elsewhere) until those that are here, and with them every room, have
 * ended; then the role changes and the answer comes. "timeout" is in seconds. */
#include "api_state.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROLE_SECONDS_DEFAULT 300u
#define LOOK_MS 10u

struct role_change {
    struct work work;
    struct http_task task;
    struct api_server *server;
    struct http_exchange *exchange;
    struct http_loop *loop;
    enum worker_role role;
    uint32_t seconds;
    struct request_error error;
};

/* This request is one of those inside; when it is the only one, the others have ended. */
static bool others_ended(struct role_change *change)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * NS_PER_MS};
    uint64_t until = clock_now_ns() + change->seconds * 1000ull * NS_PER_MS;
    struct scheduler_stats stats;
    for (;;) {
        scheduler_stats(change->server->scheduler, &stats);
        if (atomic_load(&change->server->busy) <= 1 && stats.limbo == 0)
            return true;
        if (atomic_load(&change->server->draining) || clock_now_ns() > until)
            return false;
        nanosleep(&pause, NULL);
    }
}

static void change_run(struct work *work)
{
    struct role_change *change = (struct role_change *)(void *)work;
    struct api_server *server = change->server;
    const struct api_server_options *options = &server->options;
    char text[256];
    struct role_facts facts = {.bootstrap_port = atomic_load(&server->bootstrap_port)};
    if (!others_ended(change))
        request_refuse(&change->error, 503, NULL,
                       "requests are still running after %u s; the role stays",
                       change->seconds);
    else if (options->role_change) {
        int rc = options->role_change(options->role_context, change->role, &facts,
                                      ERROR_BUFFER(text));
        if (rc)
            request_refuse(&change->error, request_status(rc), "role", "%s", text);
    }
    if (!change->error.status) {
        memcpy(server->own_bootstrap, facts.bootstrap, sizeof(server->own_bootstrap));
        atomic_store(&server->bootstrap_port, facts.bootstrap_port);
        atomic_store(&server->role, change->role);
    }
    atomic_store(&server->switching, false);
    http_loop_post(change->loop, &change->task);
}

static void change_done(struct http_task *task)
{
    struct role_change *change =
        (struct role_change *)(void *)((char *)task - offsetof(struct role_change, task));
    struct json_writer out = {0};
    if (change->exchange && change->error.status)
        api_reply_error(change->server, change->exchange, false, &change->error);
    else if (change->exchange) {
        json_put_open(&out, '{');
        json_put_key_text(&out, "role", worker_role_name(change->role));
        json_put_close(&out, '}');
        api_reply_json(change->server, change->exchange, &out);
    }
    api_leave(change->server);
    free(change);
}

static void change_left(struct http_exchange *exchange, void *context)
{
    struct role_change *change = context;
    (void)exchange;
    change->exchange = NULL;
}

static void role_read(struct role_change *change, struct http_exchange *exchange)
{
    static const char *const names[] = {"mixed", "prefill", "decode"};
    size_t length;
    const char *bytes = http_exchange_body(exchange, &length);
    json_t *body = request_parse(bytes, length, &change->error);
    struct request_reader reader = {body, &change->error};
    const char *name = request_string(&reader, "role");
    uint32_t found = 0;
    change->seconds = ROLE_SECONDS_DEFAULT;
    request_u32(&reader, "timeout", 0, 86400, &change->seconds);
    while (found < 3 && (!name || strcmp(name, names[found]) != 0))
        found++;
    if (found == 3)
        request_refuse(&change->error, 400, "role",
                       "\"role\" must be \"prefill\", \"decode\" or \"mixed\"");
    else if (!change->server->options.transfers && found != ROLE_MIXED)
        request_refuse(&change->error, 400, "role",
                       "this worker was started without hand-overs: start it with baton "
                       "prefill or baton decode");
    else
        change->role = (enum worker_role)found;
    json_decref(body);
}

void api_role(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    bool no = false;
    if (!api_enter(server, exchange))
        return;
    struct role_change *change = calloc(1, sizeof(*change));
    struct request_error memory = {.status = 503, .text = "out of memory"};
    if (change) {
        change->server = server;
        role_read(change, exchange);
        if (!change->error.status &&
            !atomic_compare_exchange_strong(&server->switching, &no, true))
            request_refuse(&change->error, 503, NULL, "the role is being changed already");
    }
    if (!change || change->error.status) {
        api_reply_error(server, exchange, false, change ? &change->error : &memory);
        free(change);
        api_leave(server);
        return;
    }
    change->work.run = change_run;
    change->task.run = change_done;
    change->exchange = exchange;
    change->loop = http_exchange_loop(exchange);
    LOG_INFO(server, "the role changes to %s", worker_role_name(change->role));
    http_exchange_watch(exchange, change_left, NULL, change);
    work_pool_add(server->tokenizers, &change->work);
}
