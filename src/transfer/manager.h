/* SPDX-License-Identifier: Apache-2.0 */
/* A manager: one rank's memory, its table of rooms, and its links. */
#ifndef BATON_TRANSFER_MANAGER_H
#define BATON_TRANSFER_MANAGER_H

#include "backend.h"
#include "bootstrap.h"
#include "room.h"
#include "runtime.h"
#include "wire.h"

#include <pthread.h>

struct evconnlistener;
struct event;
struct tls;

#define MANAGER_TOMBSTONES 4096

struct region {
    char name[WIRE_NAME_MAX];
    uint32_t kind;
    struct layout layout;
    /* Which ticket each page is granted to, 0 if none: what a copy worker asks before it stores
     * bytes from a stream, and what makes a second grant of a page impossible. */
    _Atomic uint32_t *page_ticket;
};

/* Rooms that were refused or aborted here before the other side was heard of. */
struct tombstone {
    uint64_t room;
    uint64_t expires_ns; /* 0: empty */
    int code;
    bool from_peer; /* the peer gave up: a sender opened later fails at once */
    char text[WIRE_TEXT_MAX];
};

/* Receivers' rooms that landed, for QUERY after a lost link. */
struct outcome {
    uint64_t room;
    uint32_t ticket;
};

/* Tickets that were fenced here before their OPEN was read: it must find them refused. */
struct refused_ticket {
    uint64_t epoch;
    uint32_t ticket;
};
#define MANAGER_REFUSED 4096

struct manager_config {
    char host[64]; /* "": not given */
    char bootstrap[128];
    char bootstrap_allow[512];
    char fingerprint[WIRE_NAME_MAX];
    char kv_cache_dtype[32];
    char key[256];
    uint32_t rank, tp_size, pp_rank, pp_size, dp_rank, dp_size;
    char ib_device[1024];
    uint32_t max_inflight, max_sge; /* 0: the backend's */
    uint32_t max_rooms, copy_threads, tcp_streams;
    uint32_t heartbeat_ms, silent_ms, match_timeout_ms, reach_timeout_ms, deadline_ms;
    bool register_rank, verify, verbose;
};

struct manager {
    struct runtime *runtime;
    struct manager *next; /* owner: link thread */
    struct manager_config config;
    uint64_t epoch;
    uint16_t port;
    char unix_name[64];
    int event_fd;
    struct tls *tls; /* NULL: plain */

    /* Read-only after open. */
    struct region regions[WIRE_REGIONS_MAX];
    uint32_t region_count;
    struct wire_aux_field aux_fields[WIRE_AUX_FIELDS_MAX];
    uint32_t aux_field_count;
    uint8_t *aux_address;
    uint32_t aux_slots;
    uint64_t aux_slot_bytes;
    struct backend_entry backends[WIRE_BACKENDS_MAX]; /* in order of preference */
    uint32_t backend_count;

    /* Room table: entries and their words are shared, the rest of a room is the link thread's. */
    struct room *rooms;
    uint32_t room_mask;   /* slots - 1 */
    pthread_mutex_t lock; /* the three below: rooms are opened from any thread */
    /* Two stacks of slots: [0, max_rooms) for callers, as many behind them for phantoms, so that OPENs
     * that come early cannot take the places of the rooms they are for. */
    uint32_t *free_slots[2];
    uint32_t free_count[2];
    struct room **room_index; /* by room number and role: chains by room->index_next */

    /* owner: link thread */
    struct evconnlistener *listener;
    struct evconnlistener *unix_listener;
    struct connection *connections; /* not yet links */
    struct link *links;
    struct link *dead_links;
    uint64_t ticked_ns;
    struct route *routes;
    struct site *sites;
    struct peer *peers;
    struct attachment *attachments; /* AF_UNIX connections that wait for their link */
    struct tombstone *tombstones;   /* MANAGER_TOMBSTONES */
    struct outcome *outcomes;       /* as many as slots, a ring */
    uint32_t outcome_next;
    struct refused_ticket
        refused[MANAGER_REFUSED]; /* by ticket; a collision forgets the older */
    struct room *live;            /* list of rooms in use, by room->live_next */
    struct room *released;        /* to be given back by manager_reap */
    bool closing;
    bool accept_paused;
    /* registration of this rank at a bootstrap server */
    struct registration *registration;
    /* the last peer that was refused: rooms that nobody opened say it */
    char refusal[WIRE_TEXT_MAX];
    uint64_t refusal_ns;

    /* any thread */
    _Atomic uint64_t tick;
    _Atomic uint64_t rooms_succeeded, rooms_failed, rooms_refused, bytes_sent, operations_sent,
        bytes_received, frames_bad, frames_stale, links_lost, links_refused, fallbacks, fences;
    _Atomic uint32_t worker_objects; /* streams and mappings that workers have to free */
    _Atomic uint32_t links_up, links_degraded, rooms_open, rooms_quarantined, pages_quarantined;
};

struct baton_manager {
    struct manager m;
};

/* Every RUNTIME_TICK_MS on the link thread. */
void manager_tick(struct manager *manager);

/* A room reached a new state or got fenced: the eventfd and the waiters hear of it. */
void manager_notify(struct manager *manager);

/* Room slots. acquire: any thread; EEXIST, ELIMIT (a phantom shares its number with the caller's room
 * to come). release: link thread. */
int manager_room_acquire(struct manager *manager, uint64_t id, enum room_class class,
                         struct room **out, struct error err);
void manager_room_live(struct manager *manager,
                       struct room *room); /* link thread: into the list */
void manager_room_unname(struct manager *manager,
                         struct room *room); /* its number is free again */
void manager_room_release(struct manager *manager, struct room *room);
void manager_reap(struct manager *manager);
struct room *manager_room_find(struct manager *manager, uint64_t id, enum room_class class);
struct room *manager_room_next(struct manager *manager,
                               const struct room *room); /* same id and class */
struct room *manager_room_by_ticket(struct manager *manager, uint32_t ticket); /* any thread */

void manager_tombstone_add(struct manager *manager, uint64_t room, bool from_peer, int code,
                           const char *text);
struct tombstone *manager_tombstone_find(struct manager *manager, uint64_t room,
                                         bool from_peer);

void manager_outcome_add(struct manager *manager, uint64_t room, uint32_t ticket);
bool manager_outcome_find(const struct manager *manager, uint64_t room, uint32_t ticket);

void manager_note_refusal(struct manager *manager, const char *text);
void manager_ticket_refuse(struct manager *manager, uint64_t epoch, uint32_t ticket);
bool manager_ticket_refused(const struct manager *manager, uint64_t epoch, uint32_t ticket);

/* Starts PUT /route for this rank (once); failures are retried, a refusal fails later senders. */
void manager_register_rank(struct manager *manager, const char *bootstrap);
void registration_tick(struct manager *manager, uint64_t now_ns);
void registration_drop(struct manager *manager);
const char *manager_registration_refused(const struct manager *manager); /* NULL: fine so far */

/* Effective shape: a manager without tp_size is a group of one. */
static inline uint32_t manager_tp_size(const struct manager *m)
{
    return m->config.tp_size ? m->config.tp_size : 1;
}
static inline uint32_t manager_tp_rank(const struct manager *m)
{
    return m->config.tp_size ? m->config.rank : 0;
}
/* How this rank calls itself in OPEN and GRANT: tp rank within its pipeline stage, stage after stage. */
static inline uint32_t manager_rank_label(const struct manager *m)
{
    return m->config.tp_size ? m->config.pp_rank * m->config.tp_size + m->config.rank
                             : m->config.rank;
}
static inline uint32_t manager_pp_size(const struct manager *m)
{
    return m->config.pp_size ? m->config.pp_size : 1;
}

#endif
