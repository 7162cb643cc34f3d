/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are for every worker: what they are, what they have to do, an abort, a flush. All that
 * are up are asked at once; the answer is out when the last one has answered or its time is over. */
#include "router_parts.h"

#include "base/clock.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (256u << 10)
#define FAN_OUT_MS 30000u
#define FLUSH_SECONDS_MAX 600.0

static const struct question {
    const char *path, *method, *target;
} questions[] = {
    {"/server_info", "GET", "/server_info"},  {"/get_server_info", "GET", "/server_info"},
    {"/get_loads", "GET", "/v1/loads"},       {"/health_generate", "GET", "/health_generate"},
    {"/flush_cache", "POST", "/flush_cache"}, {"/abort_request", "POST", "/abort_request"},
};

/* A request's name goes on as it came; who does not know it is left out of the answer. */
static const struct question about_request = {"/requests/", "GET", NULL};

struct fan_out;
struct branch {
    struct fan_out *fan_out;
    struct upstream *upstream; /* held */
    struct http_request *request;
    int status; /* 0: no answer */
    char *bytes;
    size_t length;
    char error[200];
};

struct fan_out {
    LIST_ENTRY(fan_out) entry;
    struct router_loop *loop;
    struct http_exchange *exchange;
    const struct question *question;
    uint32_t count, pending;
    struct branch branches[];
};

static void fan_out_free(struct fan_out *fan_out)
{
    for (uint32_t i = 0; i < fan_out->count; i++) {
        http_request_cancel(fan_out->branches[i].request);
        upstream_release(fan_out->branches[i].upstream);
        free(fan_out->branches[i].bytes);
    }
    LIST_REMOVE(fan_out, entry);
    free(fan_out);
}

/* ---- the answer ----------------------------------------------------------------------------- */

static json_t *branch_json(const struct branch *branch)
{
    json_t *answer = branch->status ? json_loadb(branch->bytes ? branch->bytes : "",
                                                 branch->length, JSON_DECODE_ANY, NULL)
                                    : NULL;
    if (!answer && branch->status)
        answer = json_stringn(branch->bytes ? branch->bytes : "", branch->length);
    json_t *object =
        json_pack("{s:s, s:s, s:i}", "url", branch->upstream->url, "worker_type",
                  upstream_role_name(branch->upstream->role), "status", branch->status);
    if (branch->status)
        json_object_set_new(object, "answer", answer ? answer : json_null());
    else
        json_object_set_new(object, "error", json_string(branch->error));
    return object;
}

static void fan_out_reply(struct fan_out *fan_out)
{
    const struct router_options *options = &fan_out->loop->router->options;
    json_t *workers = json_array();
    int status = fan_out->count ? 200 : 503;
    for (uint32_t i = 0; i < fan_out->count; i++) {
        const struct branch *branch = &fan_out->branches[i];
        if (fan_out->question == &about_request && branch->status == 404)
            continue;
        json_array_append_new(workers, branch_json(branch));
        if (branch->status / 100 != 2 && status == 200)
            status = branch->status ? branch->status : 502;
    }
    if (fan_out->count && !json_array_size(workers))
        status = 404;
    json_t *answer = json_pack("{s:s, s:s, s:s, s:s, s:b, s:o}", "engine", "baton-router",
                               "version", baton_version(), "policy", options->policy->name,
                               "flow", options->flow == ROUTER_PAIR ? "pair" : "decode-first",
                               "success", status == 200, "workers", workers);
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (text)
        http_exchange_reply(fan_out->exchange, status, "application/json", text, strlen(text));
    else
        http_exchange_reply_error(fan_out->exchange, 500, "server_error", "out_of_memory",
                                  "out of memory");
    free(text);
    json_decref(answer);
    fan_out_free(fan_out);
}

static void client_left(struct http_exchange *exchange, void *context)
{
    (void)exchange;
    fan_out_free(context);
}

/* ---- the workers' answers ------------------------------------------------------------------- */

static void branch_body(struct http_request *request, const char *bytes, size_t length,
                        void *context)
{
    struct branch *branch = context;
    (void)request;
    if (branch->length + length > BYTES_MAX)
        return;
    char *larger = realloc(branch->bytes, branch->length + length);
    if (!larger)
        return;
    memcpy(larger + branch->length, bytes, length);
    branch->bytes = larger;
    branch->length += length;
}

static void branch_done(struct http_request *request, const struct http_result *result,
                        void *context)
{
    struct branch *branch = context;
    (void)request;
    branch->request = NULL;
    branch->status = result->outcome == HTTP_OUTCOME_DONE ? result->status : 0;
    snprintf(branch->error, sizeof(branch->error), "%s", result->error);
    if (--branch->fan_out->pending == 0)
        fan_out_reply(branch->fan_out);
}

static uint32_t time_limit(struct http_exchange *exchange, char *target, size_t size)
{
    const char *timeout = http_exchange_query(exchange, "timeout");
    double seconds = timeout ? strtod(timeout, NULL) : 0;
    if (!(seconds > 0 && seconds <= FLUSH_SECONDS_MAX))
        return FAN_OUT_MS;
    size_t used = strlen(target);
    snprintf(target + used, size - used, "?timeout=%.3f", seconds);
    return FAN_OUT_MS + (uint32_t)(seconds * 1000);
}

/* As it may stand in a request line: what came in was decoded. What does not fit is left out. */
static void path_encode(const char *path, char *out, size_t size)
{
    size_t used = 0;
    for (; *path && used + 4 <= size; path++) {
        unsigned char byte = (unsigned char)*path;
        if (isalnum(byte) || strchr("/-._~:", byte))
            out[used++] = (char)byte;
        else
            used += (size_t)snprintf(out + used, size - used, "%%%02X", byte);
    }
    out[used] = '\0';
}

static int branch_start(struct branch *branch, struct http_exchange *exchange)
{
    struct fan_out *fan_out = branch->fan_out;
    const char *given = http_exchange_header(exchange, "Authorization");
    const char *own = fan_out->loop->router->authorization;
    const struct http_header headers[2] = {{"Content-Type", "application/json"},
                                           {"Authorization", given ? given : own}};
    char url[1024], target[640];
    struct iovec body;
    const char *asked = fan_out->question->target;
    path_encode(asked ? asked : http_exchange_path(exchange), target, sizeof(target));
    uint32_t limit_ms = time_limit(exchange, target, sizeof(target));
    snprintf(url, sizeof(url), "%s%s", branch->upstream->url, target);
    body.iov_base = (void *)(uintptr_t)http_exchange_body(exchange, &body.iov_len);
    const struct http_request_options request = {
        .method = fan_out->question->method,
        .url = url,
        .headers = headers,
        .header_count = headers[1].value ? 2 : 1,
        .body = &body,
        .body_pieces = strcmp(fan_out->question->method, "POST") == 0 ? 1 : 0,
        .connect_ms = fan_out->loop->router->options.connect_ms,
        .total_ms = limit_ms,
        .body_came = branch_body,
        .done = branch_done,
        .context = branch,
    };
    return http_request_start(fan_out->loop->client, &request, &branch->request,
                              ERROR_BUFFER(branch->error));
}

void fan_out_start(struct router_loop *loop, struct http_exchange *exchange)
{
    const struct upstream_set *set = loop->set;
    struct fan_out *fan_out =
        calloc(1, sizeof(*fan_out) + set->count * sizeof(fan_out->branches[0]));
    if (!fan_out) {
        http_exchange_reply_error(exchange, 503, "server_error", "out_of_memory",
                                  "out of memory");
        return;
    }
    fan_out->loop = loop;
    fan_out->exchange = exchange;
    if (strncmp(http_exchange_path(exchange), about_request.path, strlen(about_request.path)) ==
        0)
        fan_out->question = &about_request;
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++)
        if (strcmp(questions[i].path, http_exchange_path(exchange)) == 0)
            fan_out->question = &questions[i];
    BATON_ASSERT(fan_out->question);
    LIST_INSERT_HEAD(&loop->fan_outs, fan_out, entry);
    for (uint32_t i = 0; i < set->count; i++) {
        if (!upstream_is_up(set->items[i]))
            continue;
        struct branch *branch = &fan_out->branches[fan_out->count++];
        branch->fan_out = fan_out;
        branch->upstream = upstream_hold(set->items[i]);
        if (branch_start(branch, exchange) == BATON_OK)
            fan_out->pending++;
    }
    http_exchange_watch(exchange, client_left, NULL, fan_out);
    if (!fan_out->pending)
        fan_out_reply(fan_out);
}

void fan_out_cut_all(struct router_loop *loop)
{
    struct fan_out *fan_out;
    while ((fan_out = LIST_FIRST(&loop->fan_outs))) {
        http_exchange_cut(fan_out->exchange);
        fan_out_free(fan_out);
    }
}
