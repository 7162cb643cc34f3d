/* SPDX-License-Identifier: Apache-2.0 */
/* A peer made by hand: it speaks the wire protocol over a plain blocking socket and says exactly
 * what a test tells it to, in any order, true or not. What the library may meet on its ports and
 * what its own peers would never do can only be tested with one.
 *
 *   as decode   puppet_join: connects to a manager, which then is the prefill side
 *   as prefill  puppet_serve: is called by a manager that found it at the bootstrap server
 *
 * Frames are read strictly: a reply that does not come within FLEET_BOUND_MS fails the test. */
#ifndef BATON_TESTS_PUPPET_H
#define BATON_TESTS_PUPPET_H

#include "fleet.h"

#include "transfer/wire.h"

/* What the puppet registers: one opaque region, and the backends that it claims to have. */
struct puppet_memory {
    uint8_t *address;
    uint32_t pages, page_bytes;
    const char *backend;           /* "tcp", "cma" or "shm" */
    uint32_t streams;              /* tcp */
    uint32_t aux_slots, aux_bytes; /* one field "token" of i32 fills a slot */
    bool no_regions;
    const char *fingerprint; /* NULL: none */
};

struct puppet {
    int fd;
    int listen_fd, unix_fd; /* as prefill */
    uint16_t port;
    uint64_t epoch, session, peer_epoch;
    uint32_t sent, heard; /* next sequence numbers */
    struct wire_register theirs;
    struct wire_header header; /* of the last frame heard */
    uint8_t *payload;
    char choice[64]; /* as decode: the backend that the manager chose */
};

/* ---- sockets ---- */
int puppet_dial(uint16_t port);     /* a connected TCP socket with a receive timeout */
int puppet_try_dial(uint16_t port); /* -1 when nobody is there */
int puppet_dial_unix(const char *abstract_name);
int puppet_listen(uint16_t *port);
void puppet_write(int fd, const void *bytes, size_t size);
/* Whether the other side closes within the bound; what it still says is thrown away. */
bool puppet_is_closed(int fd);
/* An HTTP call by hand: the status; the reply's text (headers too) in `reply`. */
int puppet_http(uint16_t port, const char *request, char *reply, size_t size);
/* PUT /route: "rank 0 of a group of one is at 127.0.0.1:port and has this epoch" */
void puppet_route(uint16_t bootstrap_port, uint16_t rank_port, uint64_t epoch);

/* ---- links ---- */
void puppet_init(struct puppet *puppet);
void puppet_hello(struct puppet *puppet, uint16_t kind, uint16_t stream, uint64_t expected);
void puppet_register(struct puppet *puppet, const struct puppet_memory *memory);

/* As decode: HELLO, REGISTER, CHOICE; fails the test when the manager refuses. */
void puppet_join(struct puppet *puppet, uint16_t port, const struct puppet_memory *memory);
/* As prefill: listens; the test puts the port into the bootstrap server. */
void puppet_listens(struct puppet *puppet);
/* Takes the next connection and shakes hands up to CHOICE. May be called again after the manager
 * reconnected: the puppet keeps its epoch. */
void puppet_serve(struct puppet *puppet, const struct puppet_memory *memory);
void puppet_hang_up(struct puppet *puppet); /* this connection */
void puppet_close(struct puppet *puppet);   /* all */

/* A data stream of the link: connected (decode) or accepted (prefill). A puppet of its own, whose
 * sequence numbers go on behind HELLO. */
void puppet_stream_join(struct puppet *stream, const struct puppet *link, uint16_t port,
                        uint16_t index);
void puppet_stream_serve(struct puppet *stream, const struct puppet *link);
/* DATA: the table says `length`, `given` of the bytes follow. */
void puppet_data(struct puppet *stream, uint32_t ticket, uint64_t offset, const uint8_t *bytes,
                 uint32_t length, uint32_t given);

/* ---- frames ---- */
struct wire_header puppet_header(struct puppet *puppet, uint16_t type);
void puppet_say(struct puppet *puppet, struct wire_buffer *frame);
#define PUPPET_SAY(puppet, name, TYPE, ...)                                             \
    do {                                                                                \
        struct wire_buffer puppet_frame = {0};                                          \
        wire_##name##_put(&puppet_frame, puppet_header((puppet), (TYPE)), __VA_ARGS__); \
        puppet_say((puppet), &puppet_frame);                                            \
    } while (0)
/* LANDED, FENCED, QUERY */
void puppet_say_room(struct puppet *puppet, uint16_t type, uint64_t room, uint32_t ticket);
void puppet_say_abort(struct puppet *puppet, uint64_t room, uint32_t ticket, int code,
                      const char *text);
void puppet_say_open(struct puppet *puppet, uint64_t room, uint32_t ticket,
                     uint32_t time_left_ms);
void puppet_say_grant(struct puppet *puppet, uint64_t room, uint32_t ticket,
                      const int32_t *pages, uint32_t count, uint32_t time_left_ms);
/* COMMIT of `pages` whole pages, with this many bytes on lane 0. */
void puppet_say_commit(struct puppet *puppet, uint64_t room, uint32_t ticket, uint32_t pages,
                       uint64_t bytes, bool last);

/* The next frame that is no HEARTBEAT: its type, or 0 at the end of the connection. */
uint16_t puppet_hear(struct puppet *puppet);
void puppet_expect(struct puppet *puppet, uint16_t type);
/* The next must be BYE, with this code and this in its text; then the connection ends. */
void puppet_expect_bye(struct puppet *puppet, int code, const char *part);
struct wire_abort puppet_expect_abort(struct puppet *puppet, uint64_t room, int code,
                                      const char *part);
struct wire_room puppet_expect_room(struct puppet *puppet, uint16_t type, uint64_t room);
struct wire_open puppet_expect_open(struct puppet *puppet, uint64_t room);
struct wire_grant puppet_expect_grant(struct puppet *puppet, uint64_t room);
struct wire_commit puppet_expect_commit(struct puppet *puppet, uint64_t room);

#endif
