/* SPDX-License-Identifier: Apache-2.0 */
/* The seam: "copy these runs there, tell me when". A backend knows nothing of rooms or pages; it is
 * a const table of a dozen non-blocking operations, none of them NULL. Which one serves a link is
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
    BACKEND_STREAMS = 1u << 3,   /* wants data connections beside the link, and the receiver
                                        counts bytes per stream */
    BACKEND_IMMEDIATE = 1u << 4, /* copy() never blocks and is complete when it returns: small
                                        rooms are copied by the link thread itself */
};

/* One link's use of a backend. */
struct endpoint {
    const struct backend_ops *ops;
    struct manager *manager;
    uint32_t references; /* the link's and one per copy; link thread only */
    struct peer *peer;   /* counted */
    struct link *link;   /* link thread only, until stop */
    uint32_t lane_count;
    struct worker *workers[WIRE_STREAMS_MAX]; /* owner of each lane */
    const struct fault *fault;                /* NULL, or what faulty.c does to it */
    void *state;                              /* the backend's */
};

struct backend_ops {
    const char *name;
    const char *about;
    uint32_t capabilities;
    uint64_t run_bytes_min; /* below this, runs are packed through staging; 0: never */

    /* Does it work on this machine at all? 0, or writes why not. */
    int (*available)(char *why, size_t why_size);
    /* What the peer needs to reach our memory: bytes for REGISTER (malloc'ed, *bytes may be 0). */
    int (*export_key)(struct manager *manager, uint8_t **key, uint32_t *key_bytes,
                      struct error err);
    /* Can this link use it, seen from our side? BATON_OK or BATON_EUNREACHABLE and why not. */
    int (*can_reach)(struct manager *manager, struct peer *peer, struct error why);
    /* Link thread: makes endpoint->state and sets lane_count. */
    int (*connect)(struct endpoint *endpoint, struct error err);
    /* Link thread: the link is gone. Cut data connections, so that lanes that wait for them come
     * to an end; lanes may still be running. Must not block. */
    void (*stop)(struct endpoint *endpoint);
    /* Link thread: nothing uses the endpoint any more, free its state. Must not block. */
    void (*disconnect)(struct endpoint *endpoint);
    /* Link thread: a data connection has arrived; takes fd and the rest, whatever it returns. */
    int (*stream)(struct endpoint *endpoint, uint32_t index, int fd,
                  struct connection_rest *rest, struct error err);

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
};

/* A name in the list of preference, possibly wrapped: "faulty:tcp:delay_us=100". */
struct backend_entry {
    const struct backend_ops *ops;
    struct fault *fault; /* owned, NULL usually */
};

struct endpoint *endpoint_hold(struct endpoint *endpoint);
void endpoint_release(struct endpoint *endpoint);

const struct backend_ops *backend_find(const char *name);
int backend_list_parse(const char *list, struct backend_entry *out, uint32_t *count,
                       struct error err);
void backend_list_free(struct backend_entry *entries, uint32_t count);

/* For operations that a backend does not need. */
int backend_always_available(char *why, size_t why_size);
int backend_no_key(struct manager *manager, uint8_t **key, uint32_t *key_bytes,
                   struct error err);
int backend_no_stream(struct endpoint *endpoint, uint32_t index, int fd,
                      struct connection_rest *rest, struct error err);
void stream_refuse(int fd, struct connection_rest *rest); /* closes and frees it */
int backend_nothing_in_flight(struct lane *lane);
int backend_nothing_to_revoke(struct endpoint *endpoint, uint32_t ticket,
                              struct copy_fence *fence);
void backend_keep_nothing(struct endpoint *endpoint);

/* Lanes for backends that copy on our own workers without streams. */
void backend_lanes_from_threads(struct endpoint *endpoint);

/* Runs fence parts on the given workers. */
int copy_fence_start(struct copy_fence *fence, uint32_t count, struct worker **workers,
                     void (*revoke)(void *arg, uint32_t ticket), void **args);

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
