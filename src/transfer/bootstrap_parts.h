/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind bootstrap_table.h share, and nobody else includes: the table itself, a
 * checked registration, and how JSON values are read and replies are made. */
#ifndef BATON_TRANSFER_BOOTSTRAP_PARTS_H
#define BATON_TRANSFER_BOOTSTRAP_PARTS_H

#include "bootstrap_table.h"

#include <jansson.h>
#include <stdbool.h>

#define BOOTSTRAP_IP_SIZE 64
#define BOOTSTRAP_DTYPE_SIZE \
    32 /* as in bootstrap_topology: what we tell, our client can read */

struct bootstrap_shape {
    uint32_t dp, cp, tp, pp;
};

struct
    bootstrap_group { /* what the topology reply says beside the sizes; -1: nobody said yet */
    int64_t page_size;
    int64_t http_port;
    char kv_cache_dtype[BOOTSTRAP_DTYPE_SIZE]; /* "": nobody has said yet */
    bool follow_bootstrap_room;
    bool dsa_cache_layer_split;
};

struct bootstrap_rank_entry {
    uint64_t serial; /* 0: empty; else counts registrations of the whole table */
    uint64_t epoch;  /* 0: did not say */
    char ip[BOOTSTRAP_IP_SIZE];
    uint16_t port;
};

struct bootstrap_rooms;

struct bootstrap_table {
    struct bootstrap_shape shape; /* all 0: nobody has registered */
    struct bootstrap_group group;
    struct bootstrap_rank_entry *ranks; /* indexed by bootstrap_rank_slot() */
    uint32_t rank_count, ranks_present, founder;
    uint64_t serial;
    struct bootstrap_rooms *rooms;
};

/* ---- bootstrap_json.c ------------------------------------------------------------------ */
void bootstrap_reply_text(struct bootstrap_reply *reply, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes the reference; NULL (no memory) is answered as such. */
void bootstrap_reply_json(struct bootstrap_reply *reply, json_t *json);

/* One value; false when it is not what the name says. */
bool bootstrap_number_read(const json_t *value, int64_t *out);
bool bootstrap_epoch_read(const json_t *value, uint64_t *out); /* null and absent give 0 */
bool bootstrap_room_read(const json_t *value, uint64_t *room);
bool bootstrap_ip_read(const json_t *value, char ip[BOOTSTRAP_IP_SIZE]);

/* A body that must be an object: EPROTOCOL with a sentence, or a 400. */
json_t *bootstrap_object_parse(const char *body, size_t size, struct error err);
json_t *bootstrap_body_parse(const struct bootstrap_request *request,
                             struct bootstrap_reply *reply);

/* ---- bootstrap_registration.c: PUT /route, read and checked ------------------------------ */
struct bootstrap_registration {
    struct bootstrap_shape shape, rank; /* rank.dp is the dp group */
    struct bootstrap_group group;
    char ip[BOOTSTRAP_IP_SIZE];
    uint16_t port;
    uint64_t epoch;
};
bool bootstrap_registration_read(const json_t *json, struct bootstrap_registration *out,
                                 struct bootstrap_reply *reply);

/* ---- bootstrap_ranks.c: PUT /route, decided and kept ------------------------------------- */
uint32_t bootstrap_rank_slot(const struct bootstrap_shape *shape,
                             const struct bootstrap_shape *rank);
struct bootstrap_pending *bootstrap_route_put(struct bootstrap_table *table,
                                              const struct bootstrap_request *request,
                                              struct bootstrap_reply *reply);

/* ---- bootstrap_query.c: GET /route ------------------------------------------------------- */
void bootstrap_route_get(const struct bootstrap_table *table, const char *query_text,
                         struct bootstrap_reply *reply);

/* ---- bootstrap_rooms.c: room -> dp rank -------------------------------------------------- */
struct bootstrap_rooms *bootstrap_rooms_new(uint32_t rooms_max); /* NULL: out of memory */
void bootstrap_rooms_free(struct bootstrap_rooms *rooms);
void bootstrap_rooms_register(struct bootstrap_rooms *rooms,
                              const struct bootstrap_request *request,
                              struct bootstrap_reply *reply);
void bootstrap_rooms_query(const struct bootstrap_rooms *rooms,
                           const struct bootstrap_request *request,
                           struct bootstrap_reply *reply);

#endif
