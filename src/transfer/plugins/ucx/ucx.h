/* SPDX-License-Identifier: Apache-2.0 */
/* ucx: puts through UCP, for networks that verbs does not reach. What the files of this plugin share.
 *
 *   ucx_library.c  UCX as a guest in our process: its messages, its signal handlers
 *   ucx_context.c  a manager's half: transports, registered memory
 *   ucx_key.c      what the sides tell each other of it, in REGISTER
 *   ucx_rail.c     a rail: a UCP worker on each side, joined, probed, cut and made again
 *   ucx_queue.c    what goes over it: puts, flushes, progress
 *   ucx.c          the backend, signals between the two halves of a link
 *
 * Threads: a rail belongs to one copy worker, which alone makes, posts and progresses. The link
 * thread talks to it by order bits, hears from it by news bits, and touches UCX for one purpose
 * only: to cut a rail on the receiving side, because that is the fence and must not wait. `gate`
 * keeps the two apart there.
 *
 * Landing: a lane's flush is done when UCP says that everything before it is complete at the target,
 * and only then COMMIT goes out. So when COMMIT comes, the bytes are there, and nothing that happens
 * to the rail afterwards can take them away.
 *
 * Fences. FENCED is said after such a flush, or after the rail broke: BROKEN goes ahead of it on the
 * link, and the receiver cuts its side when it reads that. To cut is to destroy our own UCP worker of
 * this link and rail. What that proves depends on who stores the bytes:
 *
 *   rc, dc, srd         our adapter does, through queue pairs that exist no more
 *   tcp                 our own progress does (UCP makes messages of the puts): it has stopped
 *   cma, xpmem, knem,   the peer does, whatever we destroy
 *   cuda_ipc, rocm_ipc
 *
 * For the last row no cut exists, and over a network the peer's exit cannot be seen. So the context of
 * a manager is made without these, whatever UCX_TLS says: what our worker's address does not name
 * and our keys do not hold, no peer can use. stop() is then a fence towards every peer, on this host
 * and elsewhere (BACKEND_CUTS). Between processes of one host the backends shm and cma do better.
 *
 * tcp is there to try the backend where there is no RDMA, and only if UCX_TLS names it, because UCX does
 * not survive the death of a peer there:
 *   - a put that comes after the way back has broken ends the process ("unexpected error"; 1.13 to
 *     2026, 1 of 20 receivers whose sender was killed in the middle of a room);
 *   - before 1.14, with assertions compiled in as in Debian 12, so does a connection that breaks
 *     while it is being made ("got REP message"). We do not break one then: a rail that was not
 *     joined settles before it is dropped, at both ends.
 *
 * Trust: UCX believes its peers. It reads their addresses and keys without knowing how long these are,
 * stores where a message says, and its tcp listens without asking who calls. The link's key and TLS do
 * not cover what goes this way: a network of one owner is assumed, and nobody gets ucx unasked. */
#ifndef BATON_UCX_H
#define BATON_UCX_H

#include "transfer/manager.h"
#include "transfer/plugin.h"

#include <ucp/api/ucp.h>

#define UCX_RAILS_MAX WIRE_STREAMS_MAX
#define UCX_INFLIGHT_DEFAULT 256
#define UCX_FLIGHT_BYTES (16u << 20) /* bounds how long an abort waits for the flush */
#define UCX_WHY_MAX 240
#define UCX_TRANSPORTS_MAX 200
/* The most that UCX reads of a packed key: a map, and for each of 64 memory domains a length of one
 * byte with what it counts. Behind bytes of a peer so much is ours. */
#define UCX_KEY_SLACK (16u + 64 * 256)

extern const struct plugin_host *ucx_host;

/* ---- ucx_library.c ---- */

/* Around calls in which UCX stores into pages, or opens and closes descriptors. ThreadSanitizer sees
 * the memcpy and the close in its code, and nothing of what orders them: UCX's own locks, the
 * kernel's descriptor table, and for pages the flush, with COMMIT sent by another process after it. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UCX_TSAN 1
#endif
#endif
#if defined(UCX_TSAN) || defined(__SANITIZE_THREAD__)
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define ucx_call_begin()                           \
    (AnnotateIgnoreReadsBegin(__FILE__, __LINE__), \
     AnnotateIgnoreWritesBegin(__FILE__, __LINE__))
#define ucx_call_end() \
    (AnnotateIgnoreReadsEnd(__FILE__, __LINE__), AnnotateIgnoreWritesEnd(__FILE__, __LINE__))
#else
#define ucx_call_begin() ((void)0)
#define ucx_call_end() ((void)0)
#endif

/* Once, when the plugin is loaded. */
void ucx_library_enter(void);
/* What UCX said about the call that has just failed on this thread, else the status in words. */
const char *ucx_reason(ucs_status_t status);
/* Must connections that are being made not be broken off? */
bool ucx_must_settle(void);

/* ---- ucx_context.c ---- */

struct ucx_range {
    uint64_t address, length;
};

/* What `open` made. */
struct ucx_manager {
    ucp_context_h context;
    char transports[UCX_TRANSPORTS_MAX]; /* "tcp/eth0 rc_verbs/mlx5_0:1" */
    struct ucx_range *ranges; /* the manager's memory, ascending, neighbours joined */
    ucp_mem_h *handles;
    uint32_t range_count;
    uint64_t *cell;    /* one more piece of memory, for peers to try a put on */
    _Atomic bool kept; /* a UCP worker that could not settle: the context stays with it */
};

/* The peer's half, out of its key. */
struct ucx_peer {
    uint32_t rails; /* it has copy workers for so many */
    struct ucx_range *ranges;
    uint32_t *key_offsets; /* of each range, in keys */
    uint8_t *keys;         /* packed, with UCX_KEY_SLACK behind them */
    uint32_t range_count;
    uint64_t cell;
};

int ucx_available(char *why, size_t why_size);
int ucx_open(struct manager *manager, void **state, struct error err);
void ucx_close(struct manager *manager, void *state);
void ucx_keep(struct ucx_manager *self, ucp_worker_h ucp); /* for good */

/* ---- ucx_key.c ---- */

int ucx_export_key(struct manager *manager, void *state, uint8_t **key, uint32_t *key_bytes,
                   struct error err);
int ucx_peer_read(const struct wire_backend_key *key, struct ucx_peer *out, struct error err);
void ucx_peer_free(struct ucx_peer *peer);
/* Index of the range that holds all of it, or UINT32_MAX. *hint makes neighbours quick. */
uint32_t ucx_range_find(const struct ucx_range *ranges, uint32_t count, uint64_t address,
                        uint64_t length, uint32_t *hint);

/* ---- ucx_rail.c ---- */

enum ucx_rail_state {
    UCX_RAIL_DOWN,   /* receiver: to be made when it is time. sender: an offer is awaited */
    UCX_RAIL_MAKING, /* the worker makes its side; the sender's probe is on its way */
    UCX_RAIL_TOLD,   /* receiver: JOINED is awaited. sender: READY is */
    UCX_RAIL_UP,     /* lanes may use it, or be using it */
    UCX_RAIL_LOST,   /* cut; the worker is taking it down */
};

enum ucx_order {
    UCX_ORDER_DROP = 1u << 0, /* lanes that have used the rail fail with it */
    UCX_ORDER_DENY = 1u << 1, /* those that wait for a first one fail too */
    UCX_ORDER_MAKE = 1u << 2,
    UCX_ORDER_USE = 1u << 3,  /* sender: lanes may come */
    UCX_ORDER_POLL = 1u << 4, /* the worker's own: progress, then sleep */
};

enum ucx_news {
    UCX_NEWS_DROPPED = 1u << 0,
    UCX_NEWS_MADE = 1u << 1,
    UCX_NEWS_BROKEN = 1u << 2, /* why is in rail->text */
};

/* A put or a flush that UCX has not completed yet. */
struct ucx_request {
    struct ucx_rail *rail;
    struct lane *lane; /* NULL: the probe */
    uint64_t bytes;
    bool used, flush;
    struct ucx_request *next; /* free ones */
};

struct ucx_endpoint;

struct ucx_rail {
    struct worker_watch watch; /* first: the UCP worker's event descriptor, our own copy */
    struct ucx_endpoint *owner;
    uint32_t index;
    struct worker *worker;

    struct worker_job work;   /* orders */
    struct worker_job finish; /* the link thread's last word */
    struct runtime_job told;  /* news */
    struct runtime_job gone;  /* the worker's last word */
    _Atomic uint32_t orders, news;
    _Atomic uint32_t made;      /* how often it was ordered: the link thread's count */
    _Atomic uint32_t told_made; /* of which one the news are: the worker's */
    _Atomic bool usable;        /* copies may choose it */
    _Atomic uint64_t load;      /* bytes in flight */

    pthread_mutex_t lock; /* what the link thread and the worker hand each other */
    uint8_t *address;     /* receiver: ours, to be told. sender: the peer's */
    uint32_t address_bytes;
    char text[UCX_WHY_MAX]; /* why it broke */

    pthread_mutex_t gate; /* held by whoever is inside `ucp` on the receiving side */
    ucp_worker_h ucp;     /* the worker makes it; receiver: the link thread may destroy it */

    /* owner: link thread */
    enum ucx_rail_state state;
    uint32_t life; /* counts offers; signals of another life are stale */
    uint32_t failures;
    uint64_t since_ns, retry_ns;
    bool ever_failed, ever_up;
    _Atomic bool joined;   /* receiver: the peer may be using it; written by the link thread */
    char why[UCX_WHY_MAX]; /* it is not up */

    /* owner: worker */
    uint32_t todo;     /* orders that wait for the drop */
    uint32_t own_life; /* which `made` exists, 0: none */
    bool up, failed;
    bool watched;
    ucp_ep_h ep; /* sender */
    bool probed;
    void *closing;
    bool closed;
    uint64_t drop_ns; /* since when it is being dropped */
    ucp_rkey_h *keys; /* sender: one per range of the peer */
    struct ucx_request *requests, *free_request;
    uint32_t requests_max, requests_in_flight;
    uint64_t bytes_in_flight;
    struct lane *waiting;
    uint32_t local_hint, remote_hint;
};

/* One link's use of it. */
struct ucx_endpoint {
    struct endpoint *endpoint; /* NULL after disconnect; link thread only */
    struct manager *manager;
    struct ucx_manager *mine;
    struct ucx_peer theirs;
    bool receives; /* this side offers rails, and is stored into */
    bool stopped;
    uint32_t rail_count, rails_left;
    struct ucx_rail rails[UCX_RAILS_MAX];
};

int ucx_rail_start(struct ucx_rail *rail, struct error err);
void ucx_rail_free(struct ucx_rail *rail);
/* Link thread. */
void ucx_rail_order(struct ucx_rail *rail, uint32_t orders);
void ucx_rail_cut(struct ucx_rail *rail);
/* Worker: nothing will come of what is under way; the link thread takes the rail down. */
void ucx_rail_broken(struct ucx_rail *rail, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void ucx_rail_tell(struct ucx_rail *rail, uint32_t news);

/* ---- ucx_queue.c: worker ---- */
bool ucx_progress(struct ucx_rail *rail, int rounds); /* did anything move? */
void ucx_poll(struct ucx_rail *rail);                 /* until there is nothing to do */
void ucx_ready(struct worker_watch *watch, uint32_t events);
void ucx_probe(struct ucx_rail *rail);
void ucx_queue_fail(struct ucx_rail *rail); /* every lane that has used this rail */
void ucx_waiting_fail(struct ucx_rail *rail);
int ucx_copy(struct lane *lane, const struct plan_run *runs, uint32_t count);
int ucx_flush(struct lane *lane);

#endif
