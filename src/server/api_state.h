/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the API server share. */
#ifndef BATON_SERVER_API_STATE_H
#define BATON_SERVER_API_STATE_H

#include "api_server.h"
#include "json_writer.h"
#include "request_reader.h"

#include "net/http_client.h"

#include <pthread.h>
#include <stdio.h>

#define API_LOOPS_MAX 64

struct api_server {
    struct api_server_options options;
    struct http_server *http;
    struct work_pool *tokenizers;
    struct work_pool *control; /* one thread, for what waits: /flush_cache */
    struct metrics metrics;
    uint64_t started_unix;
    FILE *trace;      /* NULL: none */
    uint64_t id_base; /* of the ids given to requests */
    _Atomic uint64_t id_next;
    _Atomic uint32_t busy;         /* requests between api_enter and api_leave */
    _Atomic uint32_t prefill_next; /* whose turn it is */

    pthread_mutex_t clients_lock; /* of which loop has which client, not of the clients */
    struct api_client {
        struct http_loop *loop;
        struct http_client *client;
    } clients[API_LOOPS_MAX];
    uint32_t client_count;
    atomic_bool draining;
    atomic_bool switching; /* the role is being changed */
    _Atomic enum worker_role role;
    _Atomic uint32_t bootstrap_port;
    char own_bootstrap
        [96]; /* changes with the role only, while nothing runs; "": the ranks know */

    /* Set once by api_server_serve; `ready` is what others look at first. */
    const struct served_model *model;
    struct scheduler *scheduler;
    atomic_bool ready;
};

static inline bool api_ready(struct api_server *server)
{
    return atomic_load_explicit(&server->ready, memory_order_acquire);
}

/* A body up to this is read on the event loop: parsing and tokenising it takes some 100
 * microseconds. A longer one goes to a tokenizer thread. */
#define INLINE_BODY_MAX 4096u

/* Every request that uses the scheduler, or a thread of a pool, is inside from the first to the
 * second: shutting down waits for it. False: it was refused with 503, because the model is not there
 * yet or because the worker goes. */
bool api_enter(struct api_server *server, struct http_exchange *exchange);
/* The same for who has something to do even when it is refused: it is inside, whatever error says. */
void api_come_in(struct api_server *server, struct request_error *error);
void api_leave(struct api_server *server);
/* Of requests that only look, or abort: while the worker drains they are as good as ever. */
bool api_ready_or_refuse(struct api_server *server, struct http_exchange *exchange);

/* The loop's own client for calls to other workers; NULL: it cannot be made. Loop's thread. */
struct http_client *api_client(struct api_server *server, struct http_loop *loop);

/* {"error": {"message", "type", "param", "code"}}: openai's shape, which SGLang's clients read
 * too. A client that asked for a stream gets it without a length (routers relay it so). */
void api_reply_error(struct api_server *server, struct http_exchange *exchange, bool stream,
                     const struct request_error *error);
void api_error_write(struct json_writer *writer, const struct request_error *error);

/* 200 with what was written; 500 if that was not whole. Frees the writer. */
void api_reply_json(struct api_server *server, struct http_exchange *exchange,
                    struct json_writer *writer);

/* The endpoints, in api_info.c, api_control.c and api_tokenize.c; generation's are in reply.h. */
http_handler api_health, api_health_generate, api_models, api_server_info, api_model_info;
http_handler api_get_load, api_loads, api_metrics, api_flush_cache, api_abort_request;
http_handler api_tokenize, api_detokenize;
http_handler api_request, api_role;

/* The trace file (api_requests.c): `path` NULL: none. A request that is over is written to it. */
int api_trace_open(struct api_server *server, const char *path, struct error err);
void api_trace_close(struct api_server *server);
void api_trace(struct api_server *server, const char *rid);

#endif
