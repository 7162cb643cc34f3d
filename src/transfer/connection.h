/* SPDX-License-Identifier: Apache-2.0 */
/* A framed connection until it becomes a link or a data stream: connect or accept, TLS, HELLO both
 * ways, proof of the shared key, then frames with checked epoch and sequence. Link thread only. */
#ifndef BATON_TRANSFER_CONNECTION_H
#define BATON_TRANSFER_CONNECTION_H

#include "wire.h"

#include <stdbool.h>

struct bufferevent;
struct manager;
struct connection;

#define CONNECTION_HANDSHAKE_MS 5000
#define CONNECTION_OUTPUT_MAX (64u << 20)

enum connection_state {
    CONNECTION_CONNECTING, /* waits for TCP and TLS */
    CONNECTION_HELLO,      /* waits for the peer's HELLO; nothing else is accepted */
    CONNECTION_PROOF,      /* waits for the peer's PROOF of the shared key */
    CONNECTION_OPEN,       /* frames go to on_frame */
    CONNECTION_CLOSING,    /* BYE is on its way out; input is thrown away */
};

struct connection_handler {
    void (*on_open)(struct connection *connection);
    void (*on_frame)(struct connection *connection, const struct wire_header *header,
                     const uint8_t *payload);
    /* Once, for whatever reason; the connection is freed after it returns. */
    void (*on_close)(struct connection *connection, int code, const char *text);
};

struct connection {
    struct manager *manager;
    struct connection *next, **slot; /* manager->connections */
    struct bufferevent *stream;
    enum connection_state state;
    bool initiator;
    bool dead; /* freed when the current callback has unwound */
    bool busy;
    const struct connection_handler *handler;
    void *owner; /* the link or stream set-up behind it */
    uint64_t since_ns;
    uint32_t send_sequence, receive_sequence;
    size_t frame_bytes; /* of the frame that is being handled: still in the input */
    char name[64];      /* the other end's address */
    struct wire_hello mine;
    struct wire_hello theirs; /* strings point into the two arrays below */
    uint64_t peer_epoch;
    char peer_host_id[96];
    char peer_unix_name[96];
};

/* Starts connecting; on_close tells a failure. hello says kind, stream, session, expected_epoch. */
struct connection *connection_connect(struct manager *manager, const char *host, uint16_t port,
                                      const struct wire_hello *hello,
                                      const struct connection_handler *handler, void *owner);
void connection_accept(struct manager *manager, int fd); /* handler by kind, see link.c */

struct wire_header connection_header(struct connection *connection, uint16_t type);
/* Sends what was encoded and frees the buffer. A peer that stopped reading costs the link. */
void connection_send(struct connection *connection, struct wire_buffer *buffer);

#define CONNECTION_SEND(connection, name, TYPE, frame)                                 \
    do {                                                                               \
        struct wire_buffer connection_buffer = {0};                                    \
        wire_##name##_put(&connection_buffer, connection_header((connection), (TYPE)), \
                          (frame));                                                    \
        connection_send((connection), &connection_buffer);                             \
    } while (0)

/* Says BYE with the reason, then closes; on_close is called with the same code and text. */
void connection_close(struct connection *connection, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Gives the descriptor, the TLS session and what was already read away (the new owner frees the bytes):
 * the connection is freed, on_close is not called. */
struct connection_rest {
    void *ssl; /* NULL: plain */
    uint8_t *bytes;
    size_t length;
};
int connection_detach(struct connection *connection, struct connection_rest *rest);
void connection_tick(struct connection *connection, uint64_t now_ns);
/* At manager close: no callback, no BYE. */
void connection_drop(struct connection *connection);

/* link.c: what an accepted connection turns into. */
extern const struct connection_handler connection_accepted;

#endif
