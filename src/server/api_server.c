/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include "base/log.h"

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
};

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
        if (strcmp(routes[i].path, path) != 0)
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
    const char *path = http_exchange_path(exchange);
    LOG_AT(strcmp(path, "/health") == 0 ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, server,
           "%s %s: %d %s", http_exchange_method(exchange), path, error->status, error->text);
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
    int rc = work_pool_open(options->tokenizer_threads, &server->tokenizers, err);
    if (!rc)
        rc = http_server_open(&http, &server->http, err);
    if (rc) {
        work_pool_close(server->tokenizers);
        free(server);
        return rc;
    }
    *out = server;
    return BATON_OK;
}

void api_server_serve(struct api_server *server, const struct served_model *model,
                      struct scheduler *scheduler)
{
    server->model = model;
    server->scheduler = scheduler;
    atomic_store_explicit(&server->ready, true, memory_order_release);
}

void api_server_drain(struct api_server *server)
{
    atomic_store(&server->draining, true);
    http_server_drain(server->http);
}

uint32_t api_server_busy(const struct api_server *server)
{
    return atomic_load(&((struct api_server *)server)->busy);
}

uint16_t api_server_port(const struct api_server *server)
{
    return http_server_port(server->http);
}

/* The loops may have messages of the tokenizer threads, so those end first. */
void api_server_close(struct api_server *server)
{
    if (!server)
        return;
    work_pool_close(server->tokenizers);
    http_server_close(server->http);
    free(server);
}
