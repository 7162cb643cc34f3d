/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 20000
#define MOMENT_MS 2
#define PIECE 32768

/* ---- answers that take time --------------------------------------------------------------- */

/* One for every exchange that is not answered at once. */
struct pending {
    struct http_task task; /* for /thread */
    struct fixture *fixture;
    struct http_exchange *exchange; /* NULL: the client has left */
    struct http_timer *timer;
    uint32_t index, count;
    size_t size;
};

static void pending_left(struct http_exchange *exchange, void *context)
{
    struct pending *pending = context;
    struct fixture *fixture = pending->fixture;
    assert_ptr_equal(pending->exchange, exchange);
    http_exchange_reply(exchange, 200, NULL, "x", 1); /* must be ignored */
    http_timer_cancel(pending->timer);
    pending->exchange = NULL;
    if (!pending->task.run) /* or the other thread's task frees it */
        free(pending);
    atomic_fetch_add(&fixture->left, 1);
}

static void pending_over(struct pending *pending)
{
    atomic_fetch_add(&pending->fixture->ended, 1);
    free(pending);
}

static void later_fire(void *context)
{
    struct pending *pending = context;
    http_exchange_reply(pending->exchange, 200, "text/plain", "later", 5);
    pending_over(pending);
}

static void stream_fire(void *context)
{
    struct pending *pending = context;
    if (pending->index < pending->count) {
        char *bytes = malloc(pending->size + 1);
        memset(bytes, 'a' + (int)(pending->index++ % 26), pending->size);
        http_exchange_stream_write(pending->exchange, bytes, pending->size);
        free(bytes);
        pending->timer = http_loop_after(http_exchange_loop(pending->exchange), MOMENT_MS,
                                         stream_fire, pending);
        return;
    }
    http_exchange_stream_end(pending->exchange);
    pending_over(pending);
}

static void endless_fill(struct http_exchange *exchange, void *context)
{
    static char bytes[PIECE];
    struct pending *pending = context;
    while (http_exchange_backlog(exchange) < HTTP_STREAM_HIGH)
        http_exchange_stream_write(exchange, bytes, sizeof(bytes));
    if (http_exchange_backlog(exchange) > atomic_load(&pending->fixture->backlog_max))
        atomic_store(&pending->fixture->backlog_max, http_exchange_backlog(exchange));
}

static void endless_drained(struct http_exchange *exchange, void *context)
{
    struct pending *pending = context;
    assert_true(http_exchange_backlog(exchange) <= HTTP_STREAM_LOW);
    atomic_fetch_add(&pending->fixture->drained, 1);
    endless_fill(exchange, context);
}

static void flood(struct http_exchange *exchange)
{
    static char bytes[1 << 20];
    for (int i = 0; i < 40; i++)
        http_exchange_stream_write(exchange, bytes, sizeof(bytes));
}

static void thread_answers(struct http_task *task)
{
    struct pending *pending = (struct pending *)task;
    if (pending->exchange)
        http_exchange_reply(pending->exchange, 200, "text/plain", "thread", 6);
    pending_over(pending);
}

struct thread_work {
    struct http_loop *loop;
    struct pending *pending;
};

static void *thread_main(void *context)
{
    struct thread_work work = *(struct thread_work *)context;
    free(context);
    http_loop_post(work.loop, &work.pending->task);
    return NULL;
}

static void thread_begin(struct pending *pending)
{
    struct thread_work *work = malloc(sizeof(*work));
    pthread_t thread;
    *work = (struct thread_work){http_exchange_loop(pending->exchange), pending};
    pending->task.run = thread_answers;
    assert_int_equal(pthread_create(&thread, NULL, thread_main, work), 0);
    pthread_detach(thread);
}

/* ---- the handler -------------------------------------------------------------------------- */

static uint32_t query_number(struct http_exchange *exchange, const char *name)
{
    const char *text = http_exchange_query(exchange, name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

static void handle_later(struct fixture *fixture, struct http_exchange *exchange,
                         const char *path)
{
    struct http_loop *loop = http_exchange_loop(exchange);
    struct pending *pending = calloc(1, sizeof(*pending));
    *pending = (struct pending){.fixture = fixture, .exchange = exchange};
    http_exchange_watch(exchange, pending_left,
                        !strcmp(path, "/endless") ? endless_drained : NULL, pending);
    if (!strcmp(path, "/later")) {
        pending->timer = http_loop_after(loop, MOMENT_MS, later_fire, pending);
    } else if (!strcmp(path, "/thread")) {
        thread_begin(pending);
    } else if (!strcmp(path, "/stream")) {
        pending->count = query_number(exchange, "count");
        pending->size = query_number(exchange, "size");
        http_exchange_stream_begin(exchange, 200, "text/event-stream");
        pending->timer = http_loop_after(loop, 0, stream_fire, pending);
    } else if (!strcmp(path, "/endless")) {
        http_exchange_stream_begin(exchange, 200, "application/octet-stream");
        endless_fill(exchange, pending);
    } else if (!strcmp(path, "/flood")) {
        http_exchange_stream_begin(exchange, 200, "application/octet-stream");
        flood(exchange);
    }
}

static void handle_cut(struct http_exchange *exchange)
{
    http_exchange_stream_begin(exchange, 200, "text/plain");
    http_exchange_stream_write(exchange, "one", 3);
    http_exchange_stream_write(exchange, "two", 3);
    http_exchange_cut(exchange);
}

static void handle_large(struct http_exchange *exchange)
{
    size_t size = query_number(exchange, "size");
    char *bytes = malloc(size);
    memset(bytes, 'x', size);
    http_exchange_reply(exchange, 200, "text/plain", bytes, size);
    free(bytes);
}

static void handle_echo(struct http_exchange *exchange)
{
    size_t length;
    const char *body = http_exchange_body(exchange, &length);
    const char *x = http_exchange_query(exchange, "x");
    assert_int_equal(body[length], 0);
    if (x)
        http_exchange_add_header(exchange, "X-Echo", x);
    http_exchange_add_header(exchange, "X-Path", http_exchange_path(exchange));
    http_exchange_add_header(exchange, "X-Method", http_exchange_method(exchange));
    http_exchange_reply(exchange, 200, "application/octet-stream", body, length);
}

static void handle(struct http_exchange *exchange, void *context)
{
    static const char *const later[] = {"/later",   "/thread", "/never",
                                        "/endless", "/flood",  "/stream"};
    struct fixture *fixture = context;
    const char *path = http_exchange_path(exchange);
    atomic_fetch_add(&fixture->handled, 1);
    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        if (!strcmp(path, later[i])) {
            handle_later(fixture, exchange, path);
            return;
        }
    }
    if (!strcmp(path, "/cut"))
        handle_cut(exchange);
    else if (!strcmp(path, "/large"))
        handle_large(exchange);
    else if (!strcmp(path, "/hello"))
        http_exchange_reply(exchange, 200, "text/plain", "hello", 5);
    else if (!strncmp(path, "/echo", 5))
        handle_echo(exchange);
    else
        http_exchange_reply_error(exchange, 404, "not_found_error", NULL, "no \"such\" path");
}

void fixture_open(struct fixture *fixture, struct http_server_options *options)
{
    char text[256] = "";
    memset(fixture, 0, sizeof(*fixture));
    if (!options->host)
        options->host = "127.0.0.1";
    if (!options->loops)
        options->loops = 2;
    options->handler = handle;
    options->context = fixture;
    if (http_server_open(options, &fixture->server, ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
    fixture->port = http_server_port(fixture->server);
}

void fixture_close(struct fixture *fixture)
{
    http_server_close(fixture->server);
    fixture->server = NULL;
}

static void moment(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

void fixture_await(atomic_uint *counter, uint32_t wanted)
{
    for (int i = 0; i < PATIENCE_MS && atomic_load(counter) < wanted; i++)
        moment();
    assert_int_equal(atomic_load(counter), wanted);
}

void fixture_await_connections(struct fixture *fixture, uint32_t wanted)
{
    for (int i = 0; i < PATIENCE_MS && http_server_connections(fixture->server) != wanted; i++)
        moment();
    assert_int_equal(http_server_connections(fixture->server), wanted);
}

/* ---- raw clients -------------------------------------------------------------------------- */

int client_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval patience = {PATIENCE_MS / 1000, 0};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

bool client_send_bytes(int fd, const void *bytes, size_t length)
{
    while (length) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return false; /* refused in the middle: the answer may say why */
        bytes = (const char *)bytes + sent;
        length -= (size_t)sent;
    }
    return true;
}

void client_send(int fd, const char *text)
{
    client_send_bytes(fd, text, strlen(text));
}

static bool read_exactly(int fd, char *out, size_t length)
{
    while (length) {
        ssize_t got = recv(fd, out, length, 0);
        if (got <= 0)
            return false;
        out += got;
        length -= (size_t)got;
    }
    return true;
}

/* Byte by byte: nothing of the next answer may be taken. */
static bool read_line(int fd, char *line, size_t size)
{
    size_t length = 0;
    while (length + 1 < size && read_exactly(fd, line + length, 1)) {
        if (line[length++] == '\n') {
            line[length] = 0;
            return true;
        }
    }
    return false;
}

static void body_grow(struct answer *answer, size_t more)
{
    answer->body = realloc(answer->body, answer->length + more + 1);
    assert_non_null(answer->body);
}

static void read_chunks(int fd, struct answer *answer)
{
    char line[64];
    while (read_line(fd, line, sizeof(line))) {
        size_t size = strtoul(line, NULL, 16);
        body_grow(answer, size);
        if (!size) {
            answer->whole = read_line(fd, line, sizeof(line));
            return;
        }
        if (!read_exactly(fd, answer->body + answer->length, size) ||
            !read_line(fd, line, sizeof(line)))
            return;
        answer->length += size;
        answer->chunks++;
    }
}

static void read_to_end(int fd, struct answer *answer)
{
    ssize_t got;
    do {
        body_grow(answer, PIECE);
        got = recv(fd, answer->body + answer->length, PIECE, 0);
        if (got > 0)
            answer->length += (size_t)got;
    } while (got > 0);
    answer->whole = got == 0;
}

bool client_receive(int fd, struct answer *answer)
{
    size_t length = 0;
    memset(answer, 0, sizeof(*answer));
    do {
        if (!read_line(fd, answer->head + length, sizeof(answer->head) - length))
            return false;
        length += strlen(answer->head + length);
    } while (length < 4 || memcmp(answer->head + length - 4, "\r\n\r\n", 4));
    answer->status = atoi(answer->head + 9);
    const char *given = strstr(answer->head, "Content-Length: ");
    body_grow(answer, given ? strtoul(given + 16, NULL, 10) : 0);
    if (answer->status == 204 || answer->status == 100) {
        answer->whole = true;
    } else if (strstr(answer->head, "Transfer-Encoding: chunked")) {
        read_chunks(fd, answer);
    } else if (given) {
        size_t wanted = strtoul(given + 16, NULL, 10);
        answer->whole = read_exactly(fd, answer->body, wanted);
        answer->length = wanted;
    } else {
        read_to_end(fd, answer);
    }
    answer->body[answer->whole ? answer->length : 0] = 0;
    return true;
}

void answer_free(struct answer *answer)
{
    free(answer->body);
    answer->body = NULL;
}

bool client_at_end(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

int client_get(uint16_t port, const char *path)
{
    struct answer answer;
    char request[256];
    int fd = client_connect(port);
    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nConnection: close\r\n\r\n", path);
    client_send(fd, request);
    int status = client_receive(fd, &answer) ? answer.status : 0;
    answer_free(&answer);
    close(fd);
    return status;
}

void expect_answer(int fd, int status, const char *body)
{
    struct answer answer;
    assert_true(client_receive(fd, &answer));
    assert_int_equal(answer.status, status);
    assert_true(answer.whole);
    if (body)
        assert_string_equal(answer.body, body);
    answer_free(&answer);
}
