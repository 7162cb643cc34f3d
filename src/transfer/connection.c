/* SPDX-License-Identifier: Apache-2.0 */
/* See connection.h.
 *
 *   initiator                                   acceptor
 *   CONNECTING  -- TCP, TLS -->                 HELLO
 *   HELLO       -- HELLO -->
 *               <-- HELLO --                    PROOF (with a key) or OPEN
 *   PROOF       -- PROOF -->                    checks it
 *               <-- PROOF --                    OPEN
 *   OPEN
 *
 * A proof is HMAC(key, role, both nonces, both epochs, session), so it can be neither replayed nor
 * reflected. Before HELLO nothing larger than WIRE_HELLO_MAX is read, and a connection that has not
 * become something after CONNECTION_HANDSHAKE_MS is dropped: garbage on the port costs little.
 *
 * Callbacks may close the connection they are called for. `busy` marks that one is running; the
 * memory is then freed by the outermost caller. */
#include "connection.h"

#include "base/clock.h"
#include "base/log.h"
#include "manager.h"
#include "net/socket.h"
#include "net/tls.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static void connection_free(struct connection *connection)
{
    if (connection->slot) {
        *connection->slot = connection->next;
        if (connection->next)
            connection->next->slot = connection->slot;
    }
    if (connection->stream) {
        int fd = bufferevent_getfd(connection->stream);
        SSL *ssl = bufferevent_openssl_get_ssl(connection->stream);
        bufferevent_free(connection->stream);
        if (ssl)
            SSL_free(ssl);
        socket_close(fd);
    }
    free(connection);
}

static void connection_enter(struct connection *connection)
{
    connection->busy = true;
}

/* Frees what died meanwhile; returns whether the connection is still there. */
static bool connection_leave(struct connection *connection)
{
    connection->busy = false;
    if (!connection->dead)
        return true;
    connection_free(connection);
    return false;
}

static void connection_die(struct connection *connection)
{
    connection->dead = true;
    if (connection->stream)
        bufferevent_disable(connection->stream, EV_READ | EV_WRITE);
    if (!connection->busy)
        connection_free(connection);
}

static void connection_lost(struct connection *connection, int code, const char *text)
{
    if (connection->dead)
        return;
    if (connection->state != CONNECTION_CLOSING) {
        bool nested = connection->busy;
        connection->busy = true;
        connection->state = CONNECTION_CLOSING;
        connection->handler->on_close(connection, code, text);
        connection->busy = nested;
    }
    connection_die(connection);
}

void connection_close(struct connection *connection, int code, const char *format, ...)
{
    char text[WIRE_TEXT_MAX];
    va_list args;
    if (connection->dead || connection->state == CONNECTION_CLOSING)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    bool connected = connection->state != CONNECTION_CONNECTING;
    if (connected) {
        struct wire_bye bye = {.code = code, .text = {text, (uint32_t)strlen(text)}};
        CONNECTION_SEND(connection, bye, WIRE_BYE, &bye);
        if (connection->dead)
            return;
    }
    bool nested = connection->busy;
    connection->busy = true;
    connection->state = CONNECTION_CLOSING;
    connection->handler->on_close(connection, code, text);
    connection->busy = nested;
    /* The BYE leaves through the write callback; tick ends it if the peer does not read. */
    connection->since_ns = clock_now_ns();
    if (!connected || evbuffer_get_length(bufferevent_get_output(connection->stream)) == 0)
        connection_die(connection);
}

struct wire_header connection_header(struct connection *connection, uint16_t type)
{
    return (struct wire_header){.version = WIRE_VERSION,
                                .type = type,
                                .sequence = connection->send_sequence++,
                                .epoch = connection->manager->epoch};
}

void connection_send(struct connection *connection, struct wire_buffer *buffer)
{
    if (!connection->dead && !buffer->failed) {
        struct evbuffer *output = bufferevent_get_output(connection->stream);
        evbuffer_add(output, buffer->bytes, buffer->size);
        if (evbuffer_get_length(output) > CONNECTION_OUTPUT_MAX)
            connection_lost(connection, BATON_EPEER,
                            "peer stopped reading its control connection");
    } else if (buffer->failed) {
        wire_buffer_free(buffer);
        connection_lost(connection, BATON_ENOMEM, "out of memory for a frame");
        return;
    }
    wire_buffer_free(buffer);
}

static void connection_proof(const struct connection *connection, bool of_initiator,
                             uint8_t out[32])
{
    const struct manager *manager = connection->manager;
    bool mine_first = connection->initiator;
    uint8_t body[2 * WIRE_NONCE_BYTES];
    uint64_t numbers[4] = {of_initiator, connection->mine.session,
                           mine_first ? manager->epoch : connection->peer_epoch,
                           mine_first ? connection->peer_epoch : manager->epoch};
    memcpy(body, mine_first ? connection->mine.nonce : connection->theirs.nonce,
           WIRE_NONCE_BYTES);
    memcpy(body + WIRE_NONCE_BYTES,
           mine_first ? connection->theirs.nonce : connection->mine.nonce, WIRE_NONCE_BYTES);
    tls_proof(manager->config.key, body, sizeof(body), numbers, sizeof(numbers), out);
}

static void connection_send_proof(struct connection *connection)
{
    struct wire_proof proof;
    connection_proof(connection, connection->initiator, proof.proof);
    CONNECTION_SEND(connection, proof, WIRE_PROOF, &proof);
}

static void connection_send_hello(struct connection *connection)
{
    struct manager *manager = connection->manager;
    struct wire_hello *hello = &connection->mine;
    hello->rank = manager->config.rank;
    hello->tp_size = manager->config.tp_size;
    hello->pp_rank = manager->config.pp_rank;
    hello->pp_size = manager->config.pp_size;
    hello->dp_rank = manager->config.dp_rank;
    hello->pid = (uint32_t)getpid();
    hello->authenticate = manager->config.key[0] != 0;
    hello->process = manager->runtime->process;
    hello->host_id = (struct wire_string){manager->runtime->host_id,
                                          (uint32_t)strlen(manager->runtime->host_id)};
    hello->unix_name =
        (struct wire_string){manager->unix_name, (uint32_t)strlen(manager->unix_name)};
    if (getrandom(hello->nonce, sizeof(hello->nonce), 0) != sizeof(hello->nonce))
        memset(hello->nonce, 0, sizeof(hello->nonce));
    CONNECTION_SEND(connection, hello, WIRE_HELLO, hello);
}

static void connection_opened(struct connection *connection)
{
    connection->state = CONNECTION_OPEN;
    connection->handler->on_open(connection);
}

static void connection_on_hello(struct connection *connection, const struct wire_header *header,
                                const uint8_t *payload)
{
    char why[160];
    struct wire_hello hello;
    if (wire_hello_get(payload, header->length, &hello, ERROR_BUFFER(why)) != BATON_OK) {
        atomic_fetch_add(&connection->manager->frames_bad, 1);
        connection_close(connection, BATON_EPROTOCOL, "bad HELLO from %s: %s", connection->name,
                         why);
        return;
    }
    wire_string_copy(hello.host_id, connection->peer_host_id, sizeof(connection->peer_host_id));
    wire_string_copy(hello.unix_name, connection->peer_unix_name,
                     sizeof(connection->peer_unix_name));
    connection->theirs = hello;
    connection->theirs.host_id = connection->theirs.unix_name = (struct wire_string){NULL, 0};
    connection->peer_epoch = header->epoch;
    if (!connection->initiator) {
        connection->mine.kind = hello.kind;
        connection->mine.stream = hello.stream;
        connection->mine.session = hello.session;
        connection_send_hello(connection);
    }
    const struct wire_hello *caller = connection->initiator ? &connection->mine : &hello;
    uint64_t callee = connection->initiator ? header->epoch : connection->manager->epoch;
    if (caller->expected_epoch && caller->expected_epoch != callee) {
        connection_close(connection, BATON_EPEER,
                         "%s has been restarted since its route was read",
                         connection->initiator ? connection->name : "this rank");
        return;
    }
    bool key = connection->manager->config.key[0] != 0;
    if (key != (hello.authenticate != 0)) {
        atomic_fetch_add(&connection->manager->links_refused, 1);
        connection_close(connection, BATON_EAUTH,
                         key ? "%s has no shared key, but this rank demands one"
                             : "%s demands a shared key, and this rank has none",
                         connection->name);
        return;
    }
    if (!key) {
        connection_opened(connection);
        return;
    }
    connection->state = CONNECTION_PROOF;
    if (connection->initiator)
        connection_send_proof(connection);
}

static void connection_on_proof(struct connection *connection, const struct wire_header *header,
                                const uint8_t *payload)
{
    struct wire_proof proof;
    uint8_t expected[32];
    connection_proof(connection, !connection->initiator, expected);
    if (wire_proof_get(payload, header->length, &proof, ERROR_NONE) != BATON_OK ||
        !tls_proof_equal(proof.proof, expected)) {
        atomic_fetch_add(&connection->manager->links_refused, 1);
        connection_close(connection, BATON_EAUTH, "%s could not prove the shared key",
                         connection->name);
        return;
    }
    if (!connection->initiator)
        connection_send_proof(connection);
    if (!connection->dead)
        connection_opened(connection);
}

static void connection_on_bye(struct connection *connection, const struct wire_header *header,
                              const uint8_t *payload)
{
    struct wire_bye bye;
    char text[WIRE_TEXT_MAX];
    if (wire_bye_get(payload, header->length, &bye, ERROR_NONE) != BATON_OK) {
        connection_lost(connection, BATON_EPEER, "peer closed the connection");
        return;
    }
    wire_string_copy(bye.text, text, sizeof(text));
    connection_lost(connection, bye.code < 0 ? bye.code : BATON_EPEER, text);
}

static void connection_dispatch(struct connection *connection, const struct wire_header *header,
                                const uint8_t *payload)
{
    if (header->type == WIRE_BYE) {
        connection_on_bye(connection, header, payload);
    } else if (connection->state == CONNECTION_HELLO && header->type == WIRE_HELLO) {
        connection_on_hello(connection, header, payload);
    } else if (connection->state == CONNECTION_PROOF && header->type == WIRE_PROOF) {
        connection_on_proof(connection, header, payload);
    } else if (connection->state == CONNECTION_OPEN) {
        connection->handler->on_frame(connection, header, payload);
    } else if (connection->state != CONNECTION_CLOSING) {
        atomic_fetch_add(&connection->manager->frames_bad, 1);
        connection_close(connection, BATON_EPROTOCOL,
                         "frame of type %u before the handshake was over", header->type);
    }
}

/* A TLS record where our own HELLO was due: 0x15 (alert) or 0x16 (handshake), version 3.x. */
static bool connection_sees_tls(const struct connection *connection)
{
    uint8_t start[2];
    struct evbuffer *input = bufferevent_get_input(connection->stream);
    return connection->state == CONNECTION_HELLO && evbuffer_copyout(input, start, 2) == 2 &&
           (start[0] == 0x15 || start[0] == 0x16) && start[1] == 3;
}

/* One frame if it is whole; false when more input is needed or the connection is done for. */
static bool connection_read_frame(struct connection *connection, struct evbuffer *input)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header;
    char why[160];
    if (evbuffer_copyout(input, bytes, sizeof(bytes)) < (ev_ssize_t)sizeof(bytes))
        return false;
    int code = wire_header_get(bytes, &header, ERROR_BUFFER(why));
    bool early = connection->state < CONNECTION_OPEN;
    if (code == BATON_OK && early && header.length > WIRE_HELLO_MAX)
        code = error_set(ERROR_BUFFER(why), BATON_EPROTOCOL, "a frame of %u bytes before HELLO",
                         header.length);
    if (code == BATON_OK && header.sequence != connection->receive_sequence)
        code = error_set(ERROR_BUFFER(why), BATON_EPROTOCOL, "frame %u came where %u was due",
                         header.sequence, connection->receive_sequence);
    if (code == BATON_OK && connection->state > CONNECTION_HELLO &&
        header.epoch != connection->peer_epoch)
        code = error_set(ERROR_BUFFER(why), BATON_EPROTOCOL,
                         "the peer's epoch changed on its link");
    if (code == BATON_OK && header.type == WIRE_DATA)
        code =
            error_set(ERROR_BUFFER(why), BATON_EPROTOCOL, "page data on a control connection");
    if (connection_sees_tls(connection))
        code =
            error_set(ERROR_BUFFER(why), BATON_EAUTH, "it speaks TLS, and this rank does not");
    if (code != BATON_OK) {
        atomic_fetch_add(&connection->manager->frames_bad, 1);
        connection_close(connection, code, "%s: %s", connection->name, why);
        return false;
    }
    size_t whole = WIRE_HEADER_BYTES + header.length;
    if (evbuffer_get_length(input) < whole)
        return false;
    connection->receive_sequence++;
    const uint8_t *frame = evbuffer_pullup(input, (ev_ssize_t)whole);
    if (!frame) {
        connection_lost(connection, BATON_ENOMEM, "out of memory for a frame");
        return false;
    }
    connection->frame_bytes = whole;
    connection_dispatch(connection, &header, frame + WIRE_HEADER_BYTES);
    if (connection->dead)
        return false;
    evbuffer_drain(input, whole);
    return true;
}

static void connection_on_read(struct bufferevent *stream, void *arg)
{
    struct connection *connection = arg;
    struct evbuffer *input = bufferevent_get_input(stream);
    connection_enter(connection);
    while (!connection->dead && connection->state != CONNECTION_CLOSING &&
           connection_read_frame(connection, input))
        ;
    if (!connection->dead && connection->state == CONNECTION_CLOSING)
        evbuffer_drain(input, evbuffer_get_length(input));
    connection_leave(connection);
}

static void connection_on_write(struct bufferevent *stream, void *arg)
{
    struct connection *connection = arg;
    if (connection->state == CONNECTION_CLOSING &&
        evbuffer_get_length(bufferevent_get_output(stream)) == 0)
        connection_die(connection);
}

/* A caller that speaks no TLS cannot read an alert, but it can read a BYE. */
static void connection_tell_plain(struct connection *connection)
{
    static const char text[] = "the rank demands TLS";
    struct wire_bye bye = {.code = BATON_EAUTH, .text = {text, sizeof(text) - 1}};
    struct wire_buffer buffer = {0};
    wire_bye_put(&buffer, connection_header(connection, WIRE_BYE), &bye);
    if (!buffer.failed)
        send(bufferevent_getfd(connection->stream), buffer.bytes, buffer.size,
             MSG_NOSIGNAL | MSG_DONTWAIT);
    wire_buffer_free(&buffer);
}

static void connection_on_event(struct bufferevent *stream, short events, void *arg)
{
    struct connection *connection = arg;
    char text[WIRE_TEXT_MAX], why[128];
    connection_enter(connection);
    if (events & BEV_EVENT_CONNECTED) {
        int fd = bufferevent_getfd(stream);
        socket_adopt(fd);
        socket_tune(fd);
        connection->state = CONNECTION_HELLO;
        if (connection->initiator)
            connection_send_hello(connection);
    } else if (events & BEV_EVENT_EOF) {
        bool tls = connection_sees_tls(connection);
        snprintf(text, sizeof(text),
                 tls ? "%s speaks TLS, and this rank does not" : "%s closed the connection",
                 connection->name);
        connection_lost(connection, tls ? BATON_EAUTH : BATON_EPEER, text);
    } else if (events & BEV_EVENT_ERROR) {
        unsigned long tls = bufferevent_get_openssl_error(stream);
        int failed = EVUTIL_SOCKET_ERROR();
        if (tls)
            snprintf(why, sizeof(why), "TLS: %s", ERR_reason_error_string(tls));
        else
            snprintf(why, sizeof(why), "%s", strerror(failed));
        snprintf(text, sizeof(text), "connection %s %s failed: %s",
                 connection->initiator ? "to" : "from", connection->name, why);
        bool refused = tls && connection->state < CONNECTION_OPEN;
        if (refused && !connection->initiator)
            connection_tell_plain(connection);
        connection_lost(connection, refused ? BATON_EAUTH : BATON_EPEER, text);
    }
    connection_leave(connection);
}

static struct connection *connection_new(struct manager *manager, int fd, bool initiator,
                                         const struct connection_handler *handler, void *owner)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    if (!connection)
        return NULL;
    connection->manager = manager;
    connection->initiator = initiator;
    connection->handler = handler;
    connection->owner = owner;
    connection->since_ns = clock_now_ns();
    struct event_base *base = manager->runtime->base;
    if (manager->tls) {
        SSL *ssl = tls_session(manager->tls, !initiator);
        if (ssl)
            connection->stream = bufferevent_openssl_socket_new(
                base, fd, ssl,
                initiator ? BUFFEREVENT_SSL_CONNECTING : BUFFEREVENT_SSL_ACCEPTING, 0);
        if (ssl && !connection->stream)
            SSL_free(ssl);
    } else {
        connection->stream = bufferevent_socket_new(base, fd, 0);
    }
    if (!connection->stream) {
        free(connection);
        return NULL;
    }
    bufferevent_setcb(connection->stream, connection_on_read, connection_on_write,
                      connection_on_event, connection);
    bufferevent_setwatermark(connection->stream, EV_READ, 0,
                             WIRE_HEADER_BYTES + WIRE_PAYLOAD_MAX);
    connection->next = manager->connections;
    connection->slot = &manager->connections;
    if (connection->next)
        connection->next->slot = &connection->next;
    manager->connections = connection;
    return connection;
}

struct connection *connection_connect(struct manager *manager, const char *host, uint16_t port,
                                      const struct wire_hello *hello,
                                      const struct connection_handler *handler, void *owner)
{
    struct connection *connection = connection_new(manager, -1, true, handler, owner);
    if (!connection)
        return NULL;
    connection->mine = *hello;
    connection->state = CONNECTION_CONNECTING;
    snprintf(connection->name, sizeof(connection->name),
             strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    /* A name that does not resolve would call back from inside; the guard keeps it alive. */
    connection_enter(connection);
    int rc = bufferevent_socket_connect_hostname(connection->stream, manager->runtime->dns,
                                                 AF_UNSPEC, host, port);
    bufferevent_enable(connection->stream, EV_READ | EV_WRITE);
    connection->busy = false;
    if (rc != 0 || connection->dead) {
        connection_free(connection);
        return NULL;
    }
    return connection;
}

void connection_accept(struct manager *manager, int fd)
{
    socket_adopt(fd);
    socket_tune(fd);
    struct connection *connection =
        connection_new(manager, fd, false, &connection_accepted, NULL);
    if (!connection) {
        socket_close(fd);
        return;
    }
    socket_peer_name(fd, connection->name, sizeof(connection->name));
    connection->state = CONNECTION_HELLO;
    bufferevent_enable(connection->stream, EV_READ | EV_WRITE);
}

int connection_detach(struct connection *connection, struct connection_rest *rest)
{
    int fd = bufferevent_getfd(connection->stream);
    SSL *ssl = bufferevent_openssl_get_ssl(connection->stream);
    bufferevent_disable(connection->stream, EV_READ | EV_WRITE);
    /* What is still to be sent (our HELLO or PROOF) must leave first: it is small and the socket
     * buffer is empty, so it goes at once. */
    struct evbuffer *output = bufferevent_get_output(connection->stream);
    evbuffer_unfreeze(output, 1); /* bufferevents keep others from draining it */
    int length = (int)evbuffer_get_length(output);
    if (ssl && length)
        SSL_write(ssl, evbuffer_pullup(output, length), length);
    while (!ssl && evbuffer_get_length(output) > 0 && evbuffer_write(output, fd) > 0)
        ;
    /* What was read behind the frame that is being handled belongs to the new owner. */
    struct evbuffer *input = bufferevent_get_input(connection->stream);
    evbuffer_unfreeze(input, 0);
    evbuffer_drain(input, connection->frame_bytes);
    rest->ssl = ssl;
    rest->length = evbuffer_get_length(input);
    rest->bytes = rest->length ? malloc(rest->length) : NULL;
    if (rest->bytes)
        evbuffer_remove(input, rest->bytes, rest->length);
    bufferevent_setcb(connection->stream, NULL, NULL, NULL, NULL);
    bufferevent_free(connection->stream);
    connection->stream = NULL;
    connection_die(connection);
    return fd;
}

void connection_tick(struct connection *connection, uint64_t now_ns)
{
    uint64_t age_ms = (now_ns - connection->since_ns) / NS_PER_MS;
    if (connection->state == CONNECTION_CLOSING) {
        if (age_ms > 1000)
            connection_die(connection);
    } else if (connection->state != CONNECTION_OPEN && age_ms > CONNECTION_HANDSHAKE_MS) {
        connection_lost(connection, BATON_ETIMEOUT,
                        "the peer did not finish the handshake in time");
    }
}

void connection_drop(struct connection *connection)
{
    connection->dead = true;
    connection_free(connection);
}
