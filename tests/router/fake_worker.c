/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_worker.h"

#include "net/http_fixture.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define PIECE_BYTES 16384
#define ENDLESS_MAX (64u << 20)

void fake_moment(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* ---- what it answers ------------------------------------------------------------------------ */

static void waiting_left(struct http_exchange *exchange, void *context)
{
    struct fake *fake = context;
    pthread_mutex_lock(&fake->mutex);
    if (fake->waiting == exchange)
        fake->waiting = NULL;
    pthread_mutex_unlock(&fake->mutex);
    atomic_fetch_add(&fake->left, 1);
}

static void endless_fill(struct http_exchange *exchange, void *context)
{
    static const char bytes[PIECE_BYTES];
    struct fake *fake = context;
    while (http_exchange_backlog(exchange) < HTTP_STREAM_HIGH &&
           atomic_load(&fake->written) < ENDLESS_MAX) {
        http_exchange_stream_write(exchange, bytes, sizeof(bytes));
        atomic_fetch_add(&fake->written, sizeof(bytes));
    }
    if (atomic_load(&fake->written) >= ENDLESS_MAX)
        http_exchange_stream_end(exchange);
}

static void event_write(struct http_exchange *exchange, const char *data)
{
    char text[128];
    int length = snprintf(text, sizeof(text), "data: %s\n\n", data);
    http_exchange_stream_write(exchange, text, (size_t)length);
}

static void request_remember(struct fake *fake, struct http_exchange *exchange)
{
    size_t length;
    const char *body = http_exchange_body(exchange, &length);
    const char *id = http_exchange_header(exchange, "X-Request-Id");
    const char *key = http_exchange_header(exchange, "Authorization");
    pthread_mutex_lock(&fake->mutex);
    snprintf(fake->body, sizeof(fake->body), "%s", body);
    snprintf(fake->request_id, sizeof(fake->request_id), "%s", id ? id : "");
    snprintf(fake->authorization, sizeof(fake->authorization), "%s", key ? key : "");
    pthread_mutex_unlock(&fake->mutex);
}

static void tokens_answer(struct fake *fake, struct http_exchange *exchange)
{
    char text[128];
    unsigned manner = atomic_load(&fake->manner);
    request_remember(fake, exchange);
    atomic_fetch_add(&fake->requests, 1);
    switch (manner) {
    case MANNER_ANSWER:
        snprintf(text, sizeof(text), "{\"by\":\"%s\"}", fake->name);
        http_exchange_add_header(exchange, "X-By", fake->name);
        http_exchange_reply(exchange, 200, "application/json", text, strlen(text));
        return;
    case MANNER_STATUS:
        snprintf(text, sizeof(text), "refused by %s", fake->name);
        http_exchange_reply_error(exchange, (int)atomic_load(&fake->status), "test_error", NULL,
                                  text);
        return;
    case MANNER_RATED:
        snprintf(text, sizeof(text),
                 "[{\"text\":\"%s\",\"meta_info\":{\"input_token_logprobs\":[%s]}}]",
                 fake->name, fake->name[0] == 'p' ? "[-0.5,7,null]" : "");
        http_exchange_reply(exchange, 200, "application/json", text, strlen(text));
        return;
    case MANNER_CUT: http_exchange_cut(exchange); return;
    case MANNER_HALF:
        http_exchange_stream_begin(exchange, 200, "text/event-stream");
        event_write(exchange, "0");
        http_exchange_cut(exchange);
        return;
    default: break;
    }
    pthread_mutex_lock(&fake->mutex);
    fake->waiting = exchange;
    fake->loop = http_exchange_loop(exchange);
    pthread_mutex_unlock(&fake->mutex);
    http_exchange_watch(exchange, waiting_left, manner == MANNER_ENDLESS ? endless_fill : NULL,
                        fake);
    if (manner == MANNER_NEVER)
        return;
    http_exchange_stream_begin(exchange, 200, "text/event-stream");
    if (manner == MANNER_STREAM)
        event_write(exchange, "0");
    else if (manner == MANNER_ENDLESS)
        endless_fill(exchange, fake);
}

static void handle(struct http_exchange *exchange, void *context)
{
    struct fake *fake = context;
    const char *path = http_exchange_path(exchange);
    char text[256];
    int length = 0;
    if (strcmp(path, "/health") == 0)
        http_exchange_reply(exchange, atomic_load(&fake->sick) ? 503 : 200, "text/plain", "",
                            0);
    else if (strcmp(path, "/v1/loads") == 0) {
        length = snprintf(text, sizeof(text),
                          "{\"loads\":[{\"num_running_reqs\":%u,\"num_waiting_reqs\":0,"
                          "\"token_usage\":0.25}]}",
                          atomic_load(&fake->load));
        http_exchange_reply(exchange, 200, "application/json", text, (size_t)length);
    } else if (strcmp(path, "/server_info") == 0) {
        length = snprintf(text, sizeof(text), "{\"disaggregation_bootstrap_port\":4321}");
        http_exchange_reply(exchange, 200, "application/json", text, (size_t)length);
    } else if (strcmp(path, "/flush_cache") == 0 || strcmp(path, "/abort_request") == 0) {
        request_remember(fake, exchange);
        atomic_fetch_add(&fake->flushed, 1);
        http_exchange_reply(exchange, 200, "text/plain", "done", 4);
    } else
        tokens_answer(fake, exchange);
}

/* ---- the stream goes on --------------------------------------------------------------------- */

struct go_task {
    struct http_task task;
    struct fake *fake;
};

static void go_run(struct http_task *task)
{
    struct go_task *go = (struct go_task *)(void *)task;
    struct fake *fake = go->fake;
    pthread_mutex_lock(&fake->mutex);
    struct http_exchange *exchange = fake->waiting;
    fake->waiting = NULL;
    pthread_mutex_unlock(&fake->mutex);
    if (exchange) {
        event_write(exchange, "1");
        event_write(exchange, "[DONE]");
        http_exchange_stream_end(exchange);
    }
    free(go);
}

void fake_go(struct fake *fake)
{
    struct go_task *go = calloc(1, sizeof(*go));
    go->task.run = go_run;
    go->fake = fake;
    pthread_mutex_lock(&fake->mutex);
    struct http_loop *loop = fake->loop;
    pthread_mutex_unlock(&fake->mutex);
    http_loop_post(loop, &go->task);
}

void fake_body(struct fake *fake, char out[4096])
{
    pthread_mutex_lock(&fake->mutex);
    memcpy(out, fake->body, sizeof(fake->body));
    pthread_mutex_unlock(&fake->mutex);
}

/* ---- open and close ------------------------------------------------------------------------- */

void fake_reopen(struct fake *fake)
{
    char text[256];
    const struct http_server_options options = {
        .host = "127.0.0.1",
        .port = fake->port,
        .loops = 1,
        .handler = handle,
        .context = fake,
    };
    int rc = http_server_open(&options, &fake->server, ERROR_BUFFER(text));
    if (rc)
        fail_msg("%s", text);
    fake->port = http_server_port(fake->server);
    snprintf(fake->url, sizeof(fake->url), "http://127.0.0.1:%u", fake->port);
}

void fake_open(struct fake *fake, const char *name, enum manner manner)
{
    memset(fake, 0, sizeof(*fake));
    fake->name = name;
    atomic_init(&fake->manner, manner);
    pthread_mutex_init(&fake->mutex, NULL);
    fake_reopen(fake);
}

void fake_close(struct fake *fake)
{
    http_server_close(fake->server);
    fake->server = NULL;
}

/* One connection at a time, which is enough for a worker that nobody wants. */
static void *raw_run(void *context)
{
    static const char good[] =
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    static const char garbage[] = "\x16\x03\x01 this is no HTTP\r\n\r\n";
    static const char too_short[] =
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{\"by\":";
    struct fake *fake = context;
    int fd;
    while ((fd = accept(fake->listener, NULL, NULL)) >= 0) {
        char request[4096];
        ssize_t length = recv(fd, request, sizeof(request) - 1, 0);
        request[length > 0 ? length : 0] = '\0';
        const char *answer = good;
        if (strncmp(request, "POST", 4) == 0) {
            atomic_fetch_add(&fake->requests, 1);
            answer = atomic_load(&fake->manner) == MANNER_SHORT ? too_short : garbage;
        }
        send(fd, answer, strlen(answer), MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        while (recv(fd, request, sizeof(request), 0) > 0)
            continue;
        close(fd);
    }
    return NULL;
}

void raw_open(struct fake *fake, const char *name, enum manner manner)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    memset(fake, 0, sizeof(*fake));
    fake->name = name;
    atomic_init(&fake->manner, manner);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fake->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fake->listener, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fake->listener, 64), 0);
    getsockname(fake->listener, (struct sockaddr *)&address, &length);
    fake->port = ntohs(address.sin_port);
    snprintf(fake->url, sizeof(fake->url), "http://127.0.0.1:%u", fake->port);
    assert_int_equal(pthread_create(&fake->thread, NULL, raw_run, fake), 0);
}

void raw_close(struct fake *fake)
{
    shutdown(fake->listener, SHUT_RDWR);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
}

/* ---- the router ----------------------------------------------------------------------------- */

struct router_options bench_options(void)
{
    struct router_options options = ROUTER_OPTIONS_INIT;
    options.host = "127.0.0.1";
    options.policy = &policy_round_robin;
    options.health_ms = 50;
    options.load_ms = 50;
    return options;
}

static enum upstream_role role_of(const struct fake *fake)
{
    return fake->name[0] == 'p'   ? UPSTREAM_PREFILL
           : fake->name[0] == 'd' ? UPSTREAM_DECODE
                                  : UPSTREAM_MIXED;
}

void bench_open(struct bench *bench, const struct router_options *options,
                struct fake *const *fakes, uint32_t count)
{
    struct router_options usual = bench_options();
    char text[256], out[4096], wanted[32];
    int rc = router_open(options ? options : &usual, &bench->router, ERROR_BUFFER(text));
    if (rc)
        fail_msg("%s", text);
    bench->port = router_port(bench->router);
    for (uint32_t i = 0; i < count; i++)
        if (router_add(bench->router, role_of(fakes[i]), fakes[i]->url, 8000 + (int)i,
                       ERROR_BUFFER(text)))
            fail_msg("%s", text);
    if (options && options->api_key)
        return;
    snprintf(wanted, sizeof(wanted), "\"healthy_workers\":%u,", count);
    AWAIT((bench_get(bench, "GET", "/readiness", out), strstr(out, wanted)));
}

void bench_close(struct bench *bench)
{
    router_close(bench->router);
}

int bench_post(const struct bench *bench, const char *path, const char *body)
{
    char request[8192];
    int fd = client_connect(bench->port);
    snprintf(request, sizeof(request),
             "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(body),
             body);
    client_send(fd, request);
    return fd;
}

static int answer_take(int fd, char out[4096])
{
    struct answer answer;
    bool came = client_receive(fd, &answer);
    int status = came ? answer.status : 0;
    if (out)
        snprintf(out, 4096, "%s", came && answer.whole ? answer.body : "");
    answer_free(&answer);
    close(fd);
    return status;
}

int bench_ask(const struct bench *bench, const char *path, const char *body, char out[4096])
{
    return answer_take(bench_post(bench, path, body), out);
}

int bench_get(const struct bench *bench, const char *method, const char *path, char out[4096])
{
    char request[512];
    int fd = client_connect(bench->port);
    snprintf(request, sizeof(request), "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, path);
    client_send(fd, request);
    return answer_take(fd, out);
}

double bench_metric(const struct bench *bench, const char *name)
{
    struct answer answer;
    double value = -1;
    int fd = client_connect(bench->port);
    client_send(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(client_receive(fd, &answer));
    const char *at = strstr(answer.body, name);
    while (at && at != answer.body && at[-1] != '\n')
        at = strstr(at + 1, name);
    if (at)
        value = strtod(at + strlen(name), NULL);
    answer_free(&answer);
    close(fd);
    return value;
}
