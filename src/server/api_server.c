/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define HEADER_MAX (64u << 10)
#define IDLE_SECONDS 120u
#define CONNECTIONS_MAX 16384u

/* ---- routes --------------------------------------------------------------------------------- */

enum { GET = 1, POST = 2 };

static const struct route {
    const char *path;
    uint32_t methods;
    http_handler *handler;
} routes[] = {
    {"/generate", POST, reply_generate},
    {"/prefill", POST, reply_prefill},
    {"/v1/chat/completions", POST, reply_chat},
    {"/v1/completions", POST, reply_completion},
    {"/v1/models", GET, api_models},
    {"/health", GET, api_health},
    {"/health_generate", GET, api_health_generate},
    {"/server_info", GET, api_server_info},
    {"/get_server_info", GET, api_server_info},
    {"/model_info", GET, api_model_info},
    {"/get_model_info", GET, api_model_info},
    {"/get_load", GET, api_get_load},
    {"/v1/loads", GET, api_loads},
    {"/metrics", GET, api_metrics},
    {"/flush_cache", GET | POST, api_flush_cache},
    {"/abort_request", POST, api_abort_request},
    {"/tokenize", POST, api_tokenize},
    {"/v1/tokenize", POST, api_tokenize},
    {"/detokenize", POST, api_detokenize},
    {"/v1/detokenize", POST, api_detokenize},
    {"/role", POST, api_role},
    {"/requests/", GET, api_request}, /* what ends with a slash stands for all below it */
};

static bool route_matches(const struct route *route, const char *path)
{
    size_t length = strlen(route->path);
    return strcmp(route->path, path) == 0 ||
           (route->path[length - 1] == '/' && strncmp(route->path, path, length) == 0);
}

static uint32_t method_number(const char *method)
{
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
        return GET;
    return strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 ? POST : 0;
}

static void request_handle(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct request_error error = {0};
    const char *path = http_exchange_path(exchange), *method = http_exchange_method(exchange);
    atomic_fetch_add(&server->metrics.requests, 1);
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (!route_matches(&routes[i], path))
            continue;
        if (routes[i].methods & method_number(method)) {
            routes[i].handler(exchange, server);
            return;
        }
        http_exchange_add_header(exchange, "Allow", routes[i].methods & GET ? "GET" : "POST");
        request_refuse(&error, 405, NULL, "%s does not take %s", path, method);
    }
    request_refuse(&error, 404, NULL, "there is no %.200s here", path);
    api_reply_error(server, exchange, false, &error);
}

/* Whoever watches over the worker need not know its key. */
static bool open_path(const char *path)
{
    return strcmp(path, "/health") == 0 || strcmp(path, "/metrics") == 0;
}

/* ---- who is inside -------------------------------------------------------------------------- */

/* Counted before it is looked whether the worker goes, so that whoever waits for the count after
 * saying so misses nobody. */
void api_come_in(struct api_server *server, struct request_error *error)
{
    atomic_fetch_add(&server->busy, 1);
    if (atomic_load(&server->draining))
        request_refuse(error, 503, NULL, "the worker is shutting down");
    else if (atomic_load(&server->switching))
        request_refuse(error, 503, NULL, "the worker is changing its role");
    else if (!api_ready(server))
        request_refuse(error, 503, NULL, "the model is being loaded");
}

bool api_enter(struct api_server *server, struct http_exchange *exchange)
{
    struct request_error error = {0};
    api_come_in(server, &error);
    if (!error.status)
        return true;
    api_leave(server);
    api_reply_error(server, exchange, false, &error);
    return false;
}

void api_leave(struct api_server *server)
{
    atomic_fetch_sub(&server->busy, 1);
}

bool api_ready_or_refuse(struct api_server *server, struct http_exchange *exchange)
{
    struct request_error error = {0};
    if (api_ready(server))
        return true;
    request_refuse(&error, 503, NULL, "the model is being loaded");
    api_reply_error(server, exchange, false, &error);
    return false;
}

/* ---- replies -------------------------------------------------------------------------------- */

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 503: return "service_unavailable_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "internal_server_error";
    }
}

/* What a client sends must not make lines of its own in the log. */
static void error_log(struct http_exchange *exchange, const struct request_error *error)
{
    char line[1024];
    snprintf(line, sizeof(line), "%s %s: %d %s", http_exchange_method(exchange),
             http_exchange_path(exchange), error->status, error->text);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    LOG_INFO(server, "%s", line);
}

void api_error_write(struct json_writer *writer, const struct request_error *error)
{
    json_put_open(writer, '{');
    json_put_key(writer, "error");
    json_put_open(writer, '{');
    json_put_key_text(writer, "message", error->text);
    json_put_key_text(writer, "type", error_type(error->status));
    json_put_key_text(writer, "param", error->parameter[0] ? error->parameter : NULL);
    json_put_key_int(writer, "code", error->status);
    json_put_close(writer, '}');
    json_put_close(writer, '}');
}

void api_reply_error(struct api_server *server, struct http_exchange *exchange, bool stream,
                     const struct request_error *error)
{
    static const char fallback[] = "{\"error\":{\"message\":\"out of memory\"}}";
    struct json_writer out = {0};
    struct metrics *metrics = &server->metrics;
    atomic_fetch_add(error->status < 500 ? &metrics->replies_refused : &metrics->replies_failed,
                     1);
    /* Whoever waits for a worker to get ready asks many times. */
    bool waits = strcmp(http_exchange_path(exchange), "/health") == 0;
    if (log_enabled(waits ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO))
        error_log(exchange, error);
    api_error_write(&out, error);
    const char *bytes = out.failed ? fallback : out.out.bytes;
    size_t length = out.failed ? sizeof(fallback) - 1 : out.out.length;
    if (stream) {
        http_exchange_stream_begin(exchange, error->status, "application/json");
        http_exchange_stream_write(exchange, bytes, length);
        http_exchange_stream_end(exchange);
    } else
        http_exchange_reply(exchange, error->status, "application/json", bytes, length);
    json_writer_free(&out);
}

void api_reply_json(struct api_server *server, struct http_exchange *exchange,
                    struct json_writer *writer)
{
    if (writer->failed) {
        struct request_error error = {.status = 500, .text = "out of memory"};
        api_reply_error(server, exchange, false, &error);
    } else {
        atomic_fetch_add(&server->metrics.replies_ok, 1);
        http_exchange_reply(exchange, 200, "application/json", writer->out.bytes,
                            writer->out.length);
    }
    json_writer_free(writer);
}

const char *worker_role_name(enum worker_role role)
{
    static const char *const names[] = {"null", "prefill", "decode"};
    return names[role];
}

/* ---- the server ----------------------------------------------------------------------------- */

int api_server_open(const struct api_server_options *options, struct api_server **out,
                    struct error err)
{
    struct api_server *server = calloc(1, sizeof(*server));
    if (!server)
        return error_set(err, BATON_ENOMEM, "out of memory");
    server->options = *options;
    server->started_unix = (uint64_t)time(NULL);
    atomic_init(&server->role, options->role);
    atomic_init(&server->bootstrap_port, options->bootstrap_port);
    pthread_mutex_init(&server->clients_lock, NULL);
    if (getrandom(&server->id_base, sizeof(server->id_base), 0) != sizeof(server->id_base))
        server->id_base = server->started_unix;
    const struct http_server_options http = {
        .host = options->host,
        .port = options->port,
        .loops = options->loops,
        .body_max = options->body_max,
        .header_max = HEADER_MAX,
        .idle_seconds = IDLE_SECONDS,
        .connections_max = CONNECTIONS_MAX,
        .tls_certificate = options->tls_certificate,
        .tls_key = options->tls_key,
        .api_key = options->api_key,
        .open_path = open_path,
        .handler = request_handle,
        .context = server,
    };
    int rc = api_trace_open(server, options->trace_file, err);
    if (!rc)
        rc = work_pool_open(options->tokenizer_threads, &server->tokenizers, err);
    if (!rc)
        rc = work_pool_open(1, &server->control, err);
    if (!rc)
        rc = http_server_open(&http, &server->http, err);
    if (rc) {
        work_pool_close(server->control);
        work_pool_close(server->tokenizers);
        api_trace_close(server);
        pthread_mutex_destroy(&server->clients_lock);
        free(server);
        return rc;
    }
    *out = server;
    return BATON_OK;
}

void api_server_serve(struct api_server *server, const struct served_model *model,
                      struct scheduler *scheduler, uint32_t bootstrap_port)
{
    if (bootstrap_port)
        atomic_store(&server->bootstrap_port, bootstrap_port);
    server->model = model;
    server->scheduler = scheduler;
    atomic_store_explicit(&server->ready, true, memory_order_release);
}

void api_server_drain(struct api_server *server)
{
    atomic_store(&server->draining, true);
}

uint32_t api_server_busy(struct api_server *server)
{
    return atomic_load(&server->busy);
}

void api_server_hang_up(struct api_server *server)
{
    http_server_drain(server->http);
}

uint32_t api_server_connections(const struct api_server *server)
{
    return http_server_connections(server->http);
}

uint16_t api_server_port(const struct api_server *server)
{
    return http_server_port(server->http);
}

struct http_client *api_client(struct api_server *server, struct http_loop *loop)
{
    char reason[256];
    struct http_client *client = NULL;
    const struct http_client_options options = {.base = http_loop_base(loop)};
    pthread_mutex_lock(&server->clients_lock);
    for (uint32_t i = 0; i < server->client_count; i++)
        if (server->clients[i].loop == loop)
            client = server->clients[i].client;
    if (!client && server->client_count < API_LOOPS_MAX) {
        if (http_client_open(&options, &client, ERROR_BUFFER(reason)))
            LOG_ERROR(server, "no client for other workers: %s", reason);
        else
            server->clients[server->client_count++] = (struct api_client){loop, client};
    }
    pthread_mutex_unlock(&server->clients_lock);
    return client;
}

/* A client is closed on its loop; a loop that ends runs what it was posted first. */
struct client_end {
    struct http_task task;
    struct http_client *client;
};

static void client_end_run(struct http_task *task)
{
    struct client_end *end = (struct client_end *)task;
    http_client_close(end->client);
    free(end);
}

static void clients_close(struct api_server *server)
{
    for (uint32_t i = 0; i < server->client_count; i++) {
        struct client_end *end = calloc(1, sizeof(*end));
        if (!end)
            continue;
        end->task.run = client_end_run;
        end->client = server->clients[i].client;
        http_loop_post(server->clients[i].loop, &end->task);
    }
}

void api_server_close(struct api_server *server)
{
    if (!server)
        return;
    BATON_ASSERT(!api_server_busy(server));
    clients_close(server);
    http_server_close(server->http);
    work_pool_close(server->control);
    work_pool_close(server->tokenizers);
    api_trace_close(server);
    pthread_mutex_destroy(&server->clients_lock);
    free(server);
}
