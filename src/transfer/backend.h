/* SPDX-License-Identifier: Apache-2.0 */
/* The seam: "copy these runs there, tell me when". A backend knows nothing of rooms or pages; it is
 * a const table of a dozen non-blocking operations, none of them NULL but the last. Which one serves a link is
 * decided once, by the first name in the list of preference whose can_reach says yes on both
 * sides. Start reading at backends/loopback.c. */
#ifndef BATON_TRANSFER_BACKEND_H
#define BATON_TRANSFER_BACKEND_H

#include "copy.h"
#include "wire.h"

struct connection_rest;
struct link;
struct leg;
struct manager;
struct peer;

enum backend_capability {
    BACKEND_PUT = 1u << 0, /* the sender's workers execute the plan */
    BACKEND_GET = 1u << 1, /* the receiver's do, on COMMIT */
    BACKEND_REMOTE_WRITER =
        1u << 2,                 /* the peer stores into our pages itself: only FENCED or its
                                        exit is a fence */
    BACKEND_STREAMS = 1u << 3,   /* wants data connections beside the link */
    BACKEND_IMMEDIATE = 1u << 4, /* copy() never blocks and is complete when it returns: small
                                        rooms are copied by the link thread itself */
    BACKEND_COUNTED = 1u << 5,   /* the receiver counts what lands on each rail: bytes on
                                        streams, else immediates, of which COMMIT says how many */
    BACKEND_CUTS = 1u << 6,      /* when stop() has returned the peer cannot reach our memory
                                        any more, whatever it still has under way: a fence. Its
                                        exit alone is none */
};

/* One link's use of a backend. */
struct endpoint {
    const struct backend_ops *ops;
    struct manager *manager;
    void *opened;        /* what ops->open made for the manager */
    uint32_t references; /* the link's and one per copy; link thread only */
    struct peer *peer;   /* counted */
    struct link *link;   /* link thread only; NULL when the link is gone */
    bool stopped;        /* link thread only: stop() has returned */
    uint32_t rail_count;
    struct worker *workers[WIRE_STREAMS_MAX]; /* owner of each rail */
    const struct fault *fault;                /* NULL, or what faulty.c does to it */
    void *state;                              /* the backend's */
};

struct backend_ops {
    const char *name;
    const char *about;
    uint32_t capabilities;
    uint64_t run_bytes_min; /* below this, runs are packed through staging; 0: never */
    uint32_t gather_max;    /* neighbours that one request takes; 0: none */

    /* Does it work on this machine at all? 0, or writes why not. */
    int (*available)(char *why, size_t why_size);
    /* The caller of baton_manager_open: pins and registers the manager's memory, which can take
     * seconds. What it keeps is `*state`. */
    int (*open)(struct manager *manager, void **state, struct error err);
    void (*close)(struct manager *manager, void *state);
    /* What the peer needs to reach our memory: bytes for REGISTER (malloc'ed, *bytes may be 0). */
    int (*export_key)(struct manager *manager, void *state, uint8_t **key, uint32_t *key_bytes,
                      struct error err);
    /* Can this link use it, seen from our side? BATON_OK or BATON_EUNREACHABLE and why not. */
    int (*can_reach)(struct manager *manager, void *state, struct peer *peer, struct error why);
    /* Link thread: makes endpoint->state, sets rail_count and the rails' workers. */
    int (*connect)(struct endpoint *endpoint, struct error err);
    /* Link thread: the link is gone. Cut data connections, so that lanes that wait for them come
     * to an end; lanes may still be running. Must not block; see BACKEND_CUTS. */
    void (*stop)(struct endpoint *endpoint);
    /* Link thread: nothing uses the endpoint any more, free its state. Must not block. */
    void (*disconnect)(struct endpoint *endpoint);
    /* Link thread: a data connection has arrived; takes fd and the rest, whatever it returns. */
    int (*stream)(struct endpoint *endpoint, uint32_t index, int fd,
                  struct connection_rest *rest, struct error err);

    /* Link thread: the other half of this link's backend says something (endpoint_signal). */
    int (*signal)(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length,
                  struct error err);
    /* Link thread, every RUNTIME_TICK_MS while the link is up. */
    void (*tick)(struct endpoint *endpoint, uint64_t now_ns);
    /* Link thread: over which rails a copy of so many bytes goes; at least one. */
    uint32_t (*spread)(struct endpoint *endpoint, uint64_t bytes,
                       uint32_t rails[WIRE_STREAMS_MAX]);

    /* Link thread: how many rails have carried something so far. NULL: all, as soon as the link is
     * up. */
    uint32_t (*rails_up)(const struct endpoint *endpoint);

    /* The lane's worker: takes runs in order, returns how many (0: blocked, lane_post follows when
     * it is worth trying again; negative: error, text in lane->error_text). */
    int (*copy)(struct lane *lane, const struct plan_run *runs, uint32_t count);
    /* The lane's worker: 1 when everything taken is complete in the sense of this backend (stored,
     * or given to the kernel), 0 when not yet (lane_post follows). Also called after cancel:
     * then 1 means nothing of this lane is in flight and nothing reads its source. */
    int (*flush)(struct lane *lane);
    /* Link thread, receiver: stop storing bytes of this ticket; fence->notify is posted when all
     * workers have let go. Returns 0 when there is nothing to wait for. */
    int (*revoke)(struct endpoint *endpoint, uint32_t ticket, struct copy_fence *fence);

    /* Any thread: the devices, and which of them a manager with these options would use. May take a
     * while. NULL: it has none. */
    int (*describe)(const char *ib_device, uint32_t rank, struct baton_device_list *out,
                    struct error err);
};

/* A name in the list of preference, possibly wrapped: "faulty:tcp:delay_us=100". */
struct backend_entry {
    const struct backend_ops *ops;
    struct fault *fault; /* owned, NULL usually */
    bool opened;
    void *state;   /* what ops->open made for this manager */
    char why[160]; /* not opened, and why */
};

/* Link thread: SIGNAL to the other half. */
void endpoint_signal(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length);
/* Link thread: lanes that were sent away may try again. */
void endpoint_wake(struct endpoint *endpoint);
/* Link thread: the rail is cut and every landing on it was counted: committed rooms that still miss
 * one never get it. */
void endpoint_rail_lost(struct endpoint *endpoint, uint32_t rail, const char *why);
/* Link thread, initiator: the backend does not work after all. The link ends, and for a while this
 * backend is not offered to that rank: the next link gets another one. */
void endpoint_give_up(struct endpoint *endpoint, const char *why);
struct endpoint *endpoint_hold(struct endpoint *endpoint);
void endpoint_release(struct endpoint *endpoint);

int backend_list_parse(const char *list, struct backend_entry *out, uint32_t *count,
                       struct error err);
void backend_list_free(struct backend_entry *entries, uint32_t count);

/* NULL and why, for a name that is not known or whose plugin cannot be loaded. */
const struct backend_ops *backend_get(const char *name, struct error why);

/* For operations that a backend does not need. */
int backend_always_available(char *why, size_t why_size);
int backend_open_nothing(struct manager *manager, void **state, struct error err);
void backend_close_nothing(struct manager *manager, void *state);
int backend_no_signal(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length,
                      struct error err);
void backend_no_tick(struct endpoint *endpoint, uint64_t now_ns);
uint32_t backend_all_rails(struct endpoint *endpoint, uint64_t bytes,
                           uint32_t rails[WIRE_STREAMS_MAX]);
int backend_no_key(struct manager *manager, void *state, uint8_t **key, uint32_t *key_bytes,
                   struct error err);
int backend_no_stream(struct endpoint *endpoint, uint32_t index, int fd,
                      struct connection_rest *rest, struct error err);
void stream_refuse(int fd, struct connection_rest *rest); /* closes and frees it */
int backend_nothing_in_flight(struct lane *lane);
int backend_nothing_to_revoke(struct endpoint *endpoint, uint32_t ticket,
                              struct copy_fence *fence);
void backend_keep_nothing(struct endpoint *endpoint);

/* Rails for backends that copy on our own workers without streams. */
void backend_rails_from_threads(struct endpoint *endpoint);
/* Every worker passes a barrier: none of them holds a leg of this ticket after that. */
int backend_revoke_by_barrier(struct endpoint *endpoint, uint32_t ticket,
                              struct copy_fence *fence);

/* Runs fence parts on the given workers. */
int copy_fence_start(struct copy_fence *fence, uint32_t count, struct worker **workers,
                     void (*revoke)(void *arg, uint32_t ticket), void **args);

const struct wire_backend_key *peer_backend_key(const struct peer *peer, const char *name);

extern const struct backend_ops backend_loopback, backend_shm, backend_cma, backend_tcp;

/* Not in the list: a sender's lanes that only make the sum a reading peer will compare with. */
extern const struct backend_ops backend_sums;

/* faulty.c */
struct fault;
int fault_parse(const char *spec, const struct backend_ops **inner, struct fault **out,
                struct error err);
void fault_free(struct fault *fault);
int fault_copy(struct lane *lane, const struct plan_run *runs, uint32_t count);

#endif
