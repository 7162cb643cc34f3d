/* SPDX-License-Identifier: Apache-2.0 */
/* SGLang's bootstrap contract without any I/O: a request's bytes in, a reply's bytes out. The
 * server puts HTTP around the table and the client puts HTTP around the encoders and decoders
 * below, so that both halves of the contract can be tested and fuzzed as plain functions. */
#ifndef BATON_TRANSFER_BOOTSTRAP_TABLE_H
#define BATON_TRANSFER_BOOTSTRAP_TABLE_H

#include "bootstrap.h"

#define BOOTSTRAP_BODY_MAX (1u << 20)
#define BOOTSTRAP_RANKS_MAX 16384u /* dp x cp x tp x pp */
#define BOOTSTRAP_ROOMS_MAX 1000000u
#define BOOTSTRAP_ROOM_TTL_NS (120ull * 1000000000ull)

struct bootstrap_request {
    const char *method; /* "GET" */
    const char *uri;    /* as the client sent it, query included */
    const char *body;
    size_t body_size;
};

struct bootstrap_reply {
    int status;
    const char *content_type;
    const char *allow; /* value of the Allow header (405), or NULL */
    char *body;        /* text; NULL when out of memory (then status is 500) */
};
void bootstrap_reply_free(struct bootstrap_reply *reply);

struct bootstrap_table;
struct bootstrap_table *bootstrap_table_new(uint32_t rooms_max); /* NULL: out of memory */
void bootstrap_table_free(struct bootstrap_table *table);
void bootstrap_table_sweep(struct bootstrap_table *table); /* forgets rooms past their time */
uint32_t bootstrap_table_rooms(const struct bootstrap_table *table);

/* A PUT that collides with ranks registered by other processes can be answered only when it
 * is known whether those still live. The table cannot know: it hands out whom to ask. */
struct bootstrap_endpoint {
    char ip[64]; /* numeric, without brackets */
    uint16_t port;
    uint32_t slot;   /* whose it is, and which registration of it: */
    uint64_t serial; /* the table may have changed before the answer is in */
};
struct bootstrap_pending;
uint32_t bootstrap_pending_count(const struct bootstrap_pending *pending);
const struct bootstrap_endpoint *
bootstrap_pending_endpoint(const struct bootstrap_pending *pending, uint32_t index);
void bootstrap_pending_free(struct bootstrap_pending *pending);

/* Returns NULL with the reply filled in; or the question that must be answered first, with
 * the reply untouched. The request is borrowed for the call. */
struct bootstrap_pending *bootstrap_table_handle(struct bootstrap_table *table,
                                                 const struct bootstrap_request *request,
                                                 struct bootstrap_reply *reply);

/* The answer to the question; fills in the reply, frees the question. */
#define BOOTSTRAP_ALL_GONE (-1) /* nobody listens at any of the endpoints */
#define BOOTSTRAP_UNKNOWN (-2)  /* we could not find out (no file descriptors left, ...) */
void bootstrap_pending_finish(struct bootstrap_table *table, struct bootstrap_pending *pending,
                              int64_t alive, /* index of an endpoint that lives, or the above */
                              struct bootstrap_reply *reply);

/* ---- the client's half of the same JSON ------------------------------------------------ */
/* Bodies to send, to be freed with free(); NULL: out of memory. */
char *bootstrap_route_encode(const struct bootstrap_route *route);
char *bootstrap_dp_rank_encode(uint64_t room, uint32_t dp_rank);
char *bootstrap_rooms_encode(uint64_t room);

/* Bodies of 200 replies. EPROTOCOL with a sentence; the last gives BATON_AGAIN when the
 * server does not know the room (yet). */
int bootstrap_topology_decode(const char *body, size_t size, struct bootstrap_topology *out,
                              struct error err);
int bootstrap_rank_decode(const char *body, size_t size, struct bootstrap_rank *out,
                          struct error err);
int bootstrap_dp_rank_decode(const char *body, size_t size, uint64_t room, uint32_t *dp_rank,
                             struct error err);

#endif
