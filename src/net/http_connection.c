/* SPDX-License-Identifier: Apache-2.0 */
/* A client's connection: bytes in, requests out, and an end to everything a client may do to us.
 *
 * Why not evhttp. libevent 2.1's HTTP server answers what it refuses with pages of HTML, has one
 * status for too much of anything, sees a client leave only when the answer is written, resets its
 * timeout with every byte (so a head may take for ever), keeps no bound on what goes in or out, and
 * ends the process when a byte comes in the wrong state. What was left to use of it was the parser,
 * and that could not serve the client side, where chunks must be passed on before they are whole. So
 * the bytes are read here, with the parser of http_message.h, over libevent's bufferevents.
 *
 *            +---------------------------- keep-alive --------------------------+
 *            v                                                                  |
 *   accept  HEAD --whole head--> BODY --whole body--> ANSWER --reply, stream_end +
 *            |                    |      (handler)      |                        | no keep-alive
 *            +---- refused -------+                     | client left            v
 *            v                                          v                      FLUSH
 *          FLUSH --written--> LINGER --EOF, 2 s--> DEAD (reaped)  <-- LINGER <---+
 *
 * Reading never stops as long as less than a watermark waits: that is how a client that leaves is
 * noticed at once, in any state. If one leaves who has pipelined more than that, the tick finds out, or
 * (when its FIN is stuck behind what we do not read) the next write.
 * An end of input during an exchange counts as leaving: routers cancel by closing, and a FIN looks the
 * same either way.
 *
 * Deadlines are looked at by the loop's tick:
 *   HEAD     idle time before its first byte (then: silence), and as much again for the whole (408)
 *   BODY     idle time, and a second for every HTTP_BODY_RATE_MIN bytes (408)
 *   output   stall time without a byte taken, in every state
 *   LINGER   HTTP_LINGER_SECONDS */
#include "http_server_parts.h"

#include "net/socket.h"
#include "net/tls.h"

#include "base/clock.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define NS_PER_SECOND 1000000000ull
#define INPUT_MARK (64u << 10)
#define BODY_PIECE (64u << 10)
#define BODY_AT_ONCE (1u << 20)
#define REQUESTS_AT_ONCE 16 /* of one connection; then others have their turn */

static const char HTTP2_PREFACE[] = "PRI * HTTP/2.0\r\n";

/* ---- states ------------------------------------------------------------------------------- */

static void state_set(struct http_connection *connection, enum http_connection_state state)
{
    connection->state = state;
    connection->since_ns = clock_now_ns();
}

void http_connection_bury(struct http_connection *connection, bool reset)
{
    struct http_loop *loop = connection->loop;
    if (connection->state == HTTP_CONNECTION_DEAD)
        return;
    connection->state = HTTP_CONNECTION_DEAD;
    if (reset) {
        struct linger at_once = {1, 0};
        setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    bufferevent_setcb(connection->stream, NULL, NULL, NULL, NULL);
    bufferevent_disable(connection->stream, EV_READ | EV_WRITE);
    SLIST_INSERT_HEAD(&loop->dead, connection, dead_link);
    event_active(loop->reaper, 0, 0);
    atomic_fetch_sub_explicit(&loop->connection_count, 1, memory_order_seq_cst);
    http_server_place_freed(loop->server);
}

void http_connection_lose(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    bool with_handler = connection->state == HTTP_CONNECTION_ANSWER;
    if (connection->state == HTTP_CONNECTION_DEAD)
        return;
    /* With an answer underway it must not look like the answer's end. */
    http_connection_bury(connection, with_handler || http_connection_backlog(connection));
    connection->exchange = NULL;
    if (!exchange)
        return;
    if (with_handler && exchange->left)
        exchange->left(exchange, exchange->notice_context);
    http_exchange_free(exchange);
}

void http_connection_free(struct http_connection *connection)
{
    bufferevent_free(connection->stream);
    SSL_free(connection->tls);
    socket_close(connection->fd);
    free(connection);
}

static size_t input_mark(const struct http_server *server)
{
    return server->header_max >= INPUT_MARK ? server->header_max + 1 : INPUT_MARK;
}

static void linger_begin(struct http_connection *connection)
{
    if (connection->input_ended) {
        http_connection_bury(connection, false);
        return;
    }
    if (connection->tls) {
        SSL_shutdown(connection->tls);
        ERR_clear_error(); /* or the next connection's read takes it for its own */
    }
    shutdown(connection->fd, SHUT_WR);
    state_set(connection, HTTP_CONNECTION_LINGER);
}

static struct evbuffer *input_of(const struct http_connection *connection)
{
    return bufferevent_get_input(connection->stream);
}

void http_connection_answered(struct http_connection *connection, bool keep_alive)
{
    connection->exchange = NULL;
    connection->above_low = false;
    connection->head_scanned = 0;
    bool idle = !evbuffer_get_length(input_of(connection));
    if (connection->loop->draining && idle)
        keep_alive = false;
    if (keep_alive && !connection->input_ended) {
        state_set(connection, HTTP_CONNECTION_HEAD);
        /* What was pipelined is read from the loop, not from within the handler's call. */
        if (!idle && !connection->advancing)
            bufferevent_trigger(connection->stream, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
        return;
    }
    state_set(connection, HTTP_CONNECTION_FLUSH);
    if (!http_connection_backlog(connection))
        linger_begin(connection);
}

void http_connection_drain(struct http_connection *connection)
{
    if (connection->state == HTTP_CONNECTION_HEAD && !evbuffer_get_length(input_of(connection)))
        http_connection_answered(connection, false);
}

/* ---- output ------------------------------------------------------------------------------- */

size_t http_connection_backlog(const struct http_connection *connection)
{
    return evbuffer_get_length(bufferevent_get_output(connection->stream));
}

/* What the kernel takes at once needs no trip through the loop. */
static size_t send_now(struct http_connection *connection, const struct iovec *pieces,
                       int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)pieces,
                             .msg_iovlen = (size_t)count};
    if (connection->tls || http_connection_backlog(connection))
        return 0;
    ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent > 0 ? (size_t)sent : 0; /* an error comes again when the stream writes */
}

void http_connection_send(struct http_connection *connection, const struct iovec *pieces,
                          int count)
{
    if (connection->doomed)
        return;
    if (!http_connection_backlog(connection))
        connection->progress_ns = clock_now_ns();
    size_t sent = send_now(connection, pieces, count);
    for (int i = 0; i < count; i++) {
        connection->written += pieces[i].iov_len;
        size_t skip = sent < pieces[i].iov_len ? sent : pieces[i].iov_len;
        sent -= skip;
        if (skip < pieces[i].iov_len &&
            bufferevent_write(connection->stream, (char *)pieces[i].iov_base + skip,
                              pieces[i].iov_len - skip) != 0)
            connection->doomed = true; /* no memory: there would be a hole */
    }
    size_t backlog = http_connection_backlog(connection);
    if (backlog > HTTP_STREAM_LOW)
        connection->above_low = true;
    if (connection->exchange && connection->exchange->streaming && backlog > HTTP_STREAM_MAX)
        connection->doomed = true;
}

/* ---- input -------------------------------------------------------------------------------- */

static void exchange_ready(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    struct http_server *server = connection->loop->server;
    state_set(connection, HTTP_CONNECTION_ANSWER);
    if (!strcmp(exchange->head.method, "OPTIONS"))
        http_answer_options(exchange);
    else
        server->handler(exchange, server->context);
}

static void blank_lines_skip(struct evbuffer *input)
{
    const char *bytes;
    while (evbuffer_get_length(input) && (bytes = (const char *)evbuffer_pullup(input, 1)) &&
           (*bytes == '\r' || *bytes == '\n'))
        evbuffer_drain(input, 1);
}

/* What cannot become a request: false, and the connection is refused. */
static bool head_plausible(struct http_connection *connection, const char *bytes, size_t length)
{
    size_t compared = length < sizeof(HTTP2_PREFACE) - 1 ? length : sizeof(HTTP2_PREFACE) - 1;
    if (compared > 4 && !memcmp(bytes, HTTP2_PREFACE, compared)) {
        if (compared == sizeof(HTTP2_PREFACE) - 1)
            http_connection_bury(connection, false); /* probes for HTTP/2 wait for just this */
        return compared < sizeof(HTTP2_PREFACE) - 1;
    }
    if (*bytes >= 'A' && *bytes <= 'Z')
        return true;
    http_refuse(connection, 400,
                *bytes == 0x16 ? "this port speaks plain HTTP, not TLS: use http://"
                               : "this is not an HTTP request");
    return false;
}

/* Too large a body is refused before it is sent; a client that asks first is told to go on. */
static bool body_welcome(struct http_connection *connection, struct http_exchange *exchange)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct iovec piece = {(void *)(uintptr_t)go_on, sizeof(go_on) - 1};
    if (exchange->framing.framing == HTTP_FRAMING_LENGTH &&
        exchange->framing.left > connection->loop->server->body_max) {
        http_refuse(connection, 413, NULL);
        return false;
    }
    if (exchange->head.minor >= 1 &&
        http_head_lists(&exchange->head, "Expect", "100-continue") &&
        !evbuffer_get_length(input_of(connection)))
        http_connection_send(connection, &piece, 1);
    return true;
}

static bool head_use(struct http_connection *connection, const char *bytes, size_t length)
{
    char why[128] = "";
    int status =
        http_exchange_new(connection, bytes, length, &connection->exchange, ERROR_BUFFER(why));
    evbuffer_drain(input_of(connection), length);
    if (status) {
        http_refuse(connection, status, why);
        return false;
    }
    struct http_exchange *exchange = connection->exchange;
    if (!http_admit(exchange))
        return true;
    if (exchange->framing.done) {
        exchange_ready(connection);
        return true;
    }
    if (!body_welcome(connection, exchange))
        return false;
    state_set(connection, HTTP_CONNECTION_BODY);
    return true;
}

/* Returns whether there may be more to do with what has come. */
static bool head_read(struct http_connection *connection)
{
    struct evbuffer *input = input_of(connection);
    size_t header_max = connection->loop->server->header_max;
    if (http_connection_backlog(connection) > HTTP_STREAM_HIGH)
        return false; /* it pipelines and does not read; written_some comes back here */
    if (!connection->head_scanned)
        blank_lines_skip(input);
    size_t length = evbuffer_get_length(input);
    if (!length)
        return false;
    if (length > header_max + 1)
        length = header_max + 1;
    const char *bytes = (const char *)evbuffer_pullup(input, (ev_ssize_t)length);
    if (!bytes) {
        http_connection_lose(connection);
        return false;
    }
    if (!connection->head_scanned)
        connection->since_ns = clock_now_ns();
    if (!head_plausible(connection, bytes, length))
        return false;
    size_t whole = http_head_find(bytes, length, &connection->head_scanned);
    if (whole && whole <= header_max) {
        connection->head_scanned = 0;
        return head_use(connection, bytes, whole);
    }
    if (length > header_max)
        http_refuse(connection, 431, NULL);
    return false;
}

/* bufferevents read 4 KiB at a time. The rest of a long body is taken from the socket straight into its
 * place; what an end or an error looks like the stream will tell. */
static void body_read_socket(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    struct http_body *framing = &exchange->framing;
    size_t limit = BODY_AT_ONCE;
    if (connection->tls || framing->framing != HTTP_FRAMING_LENGTH)
        return;
    while (!framing->done && limit) {
        size_t wanted = framing->left < BODY_PIECE ? (size_t)framing->left : BODY_PIECE;
        char *room = http_exchange_body_room(exchange, wanted);
        ssize_t got = room ? recv(connection->fd, room, wanted, MSG_DONTWAIT) : 0;
        if (got <= 0)
            return;
        http_exchange_body_grown(exchange, (size_t)got);
        framing->left -= (size_t)got;
        framing->done = !framing->left;
        limit -= (size_t)got < limit ? (size_t)got : limit;
    }
}

static bool body_read(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    struct evbuffer *input = input_of(connection);
    while (!exchange->framing.done) {
        if (!evbuffer_get_length(input))
            body_read_socket(connection);
        if (exchange->framing.done)
            break;
        struct evbuffer_iovec span;
        const char *data;
        size_t length;
        if (evbuffer_peek(input, -1, NULL, &span, 1) < 1 || !span.iov_len)
            return false;
        long taken =
            http_body_take(&exchange->framing, span.iov_base, span.iov_len, &data, &length);
        if (taken < 0) {
            http_refuse(connection, 400, "the chunks of the body are not well formed");
            return false;
        }
        int status = http_exchange_body_add(exchange, data, length);
        if (status) {
            http_refuse(connection, status, NULL);
            return false;
        }
        evbuffer_drain(input, (size_t)taken);
    }
    exchange_ready(connection);
    return true;
}

/* One step with what has come; false: nothing more can be done with it now. */
static bool step(struct http_connection *connection)
{
    switch (connection->state) {
    case HTTP_CONNECTION_HEAD: return head_read(connection);
    case HTTP_CONNECTION_BODY: return body_read(connection);
    case HTTP_CONNECTION_FLUSH:
    case HTTP_CONNECTION_LINGER:
        evbuffer_drain(input_of(connection), evbuffer_get_length(input_of(connection)));
        return false;
    case HTTP_CONNECTION_ANSWER:
    case HTTP_CONNECTION_DEAD: return false;
    }
    return false;
}

static void advance(struct http_connection *connection)
{
    int steps = 0;
    if (connection->advancing)
        return;
    connection->advancing = true;
    while (steps < REQUESTS_AT_ONCE && step(connection))
        steps++;
    connection->advancing = false;
    if (steps == REQUESTS_AT_ONCE && connection->state != HTTP_CONNECTION_DEAD)
        bufferevent_trigger(connection->stream, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
}

/* ---- what the stream tells ---------------------------------------------------------------- */

static void some_came(struct bufferevent *stream, void *context)
{
    (void)stream;
    advance(context);
}

static void some_written(struct bufferevent *stream, void *context)
{
    struct http_connection *connection = context;
    struct http_exchange *exchange = connection->exchange;
    (void)stream;
    if (connection->state == HTTP_CONNECTION_FLUSH && !http_connection_backlog(connection)) {
        linger_begin(connection);
    } else if (connection->state == HTTP_CONNECTION_ANSWER && connection->above_low) {
        connection->above_low = false;
        if (exchange->streaming && exchange->drained)
            exchange->drained(exchange, exchange->notice_context);
    } else if (connection->state == HTTP_CONNECTION_HEAD) {
        advance(connection);
    }
}

static void something_happened(struct bufferevent *stream, short what, void *context)
{
    struct http_connection *connection = context;
    (void)stream;
    if (what & BEV_EVENT_CONNECTED)
        return;
    connection->input_ended = true;
    bool answer_underway = (connection->state == HTTP_CONNECTION_HEAD ||
                            connection->state == HTTP_CONNECTION_FLUSH) &&
                           http_connection_backlog(connection);
    if ((what & BEV_EVENT_EOF) && (what & BEV_EVENT_READING) && answer_underway)
        http_connection_answered(connection, false); /* it may still read its answer */
    else
        http_connection_lose(connection);
}

/* ---- deadlines ---------------------------------------------------------------------------- */

/* A client that waits for its answer and pipelines beyond the watermark is not read from any more,
 * so its end is not seen either. */
static bool left_unseen(const struct http_connection *connection)
{
    struct pollfd socket = {.fd = connection->fd, .events = POLLRDHUP};
    return evbuffer_get_length(input_of(connection)) >= input_mark(connection->loop->server) &&
           poll(&socket, 1, 0) > 0;
}

static bool output_stalled(struct http_connection *connection, uint64_t now)
{
    size_t backlog = http_connection_backlog(connection);
    uint64_t taken = connection->written - backlog;
    if (!backlog || taken != connection->taken) {
        connection->taken = taken;
        connection->progress_ns = now;
    }
    return now - connection->progress_ns > connection->loop->server->stall_ns;
}

static void head_overdue(struct http_connection *connection)
{
    if (evbuffer_get_length(input_of(connection)))
        http_refuse(connection, 408, "the request did not come in time");
    else if (!http_connection_backlog(connection))
        http_connection_bury(connection, false);
}

void http_connection_tick(struct http_connection *connection, uint64_t now)
{
    uint64_t idle = connection->loop->server->idle_ns;
    uint64_t passed = now > connection->since_ns ? now - connection->since_ns : 0;
    if (connection->state == HTTP_CONNECTION_DEAD)
        return;
    if (connection->doomed || output_stalled(connection, now)) {
        http_connection_lose(connection);
        return;
    }
    switch (connection->state) {
    case HTTP_CONNECTION_HEAD:
        if (passed > idle || (connection->loop->draining && passed > NS_PER_SECOND &&
                              !evbuffer_get_length(input_of(connection))))
            head_overdue(connection);
        break;
    case HTTP_CONNECTION_BODY:
        if (passed >
            idle + connection->exchange->body_length * NS_PER_SECOND / HTTP_BODY_RATE_MIN)
            http_refuse(connection, 408, "the body did not come in time");
        break;
    case HTTP_CONNECTION_ANSWER:
        if (left_unseen(connection))
            http_connection_lose(connection);
        break;
    case HTTP_CONNECTION_LINGER:
        if (passed > HTTP_LINGER_SECONDS * NS_PER_SECOND)
            http_connection_bury(connection, false);
        break;
    case HTTP_CONNECTION_FLUSH:
    case HTTP_CONNECTION_DEAD: break;
    }
}

/* ---- a new one ---------------------------------------------------------------------------- */

static struct bufferevent *stream_new(struct http_loop *loop, int fd, struct ssl_st **session)
{
    *session = NULL;
    if (!loop->server->tls)
        return bufferevent_socket_new(loop->base, fd, 0);
    *session = tls_session(loop->server->tls, true);
    if (!*session)
        return NULL;
    struct bufferevent *stream =
        bufferevent_openssl_socket_new(loop->base, fd, *session, BUFFEREVENT_SSL_ACCEPTING, 0);
    if (stream)
        bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
    return stream;
}

void http_connection_open(struct http_loop *loop, int fd)
{
    struct http_connection *connection = calloc(1, sizeof(*connection));
    if (!connection)
        goto close_fd;
    connection->loop = loop;
    connection->fd = fd;
    connection->stream = stream_new(loop, fd, &connection->tls);
    if (!connection->stream)
        goto free_connection;
    socket_tune(fd);
    socket_peer_name(fd, connection->peer, sizeof(connection->peer));
    state_set(connection, HTTP_CONNECTION_HEAD);
    connection->progress_ns = connection->since_ns;
    bufferevent_setcb(connection->stream, some_came, some_written, something_happened,
                      connection);
    bufferevent_setwatermark(connection->stream, EV_READ, 0, input_mark(loop->server));
    bufferevent_setwatermark(connection->stream, EV_WRITE, HTTP_STREAM_LOW, 0);
    bufferevent_set_max_single_read(connection->stream, INPUT_MARK);
    TAILQ_INSERT_TAIL(&loop->connections, connection, link);
    if (loop->closing || bufferevent_enable(connection->stream, EV_READ | EV_WRITE) != 0)
        http_connection_bury(connection, false);
    return;

free_connection:
    SSL_free(connection->tls);
    free(connection);
close_fd:
    socket_close(fd);
    atomic_fetch_sub_explicit(&loop->connection_count, 1, memory_order_seq_cst);
    http_server_place_freed(loop->server);
}
