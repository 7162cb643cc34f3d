/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: RDMA over reliable queue pairs. What the files of this plugin share.
 *
 *   verbs_port.c   a manager's devices: ports, GIDs, registered memory, the key in REGISTER
 *   verbs_describe.c  the same devices in words, for `baton info`
 *   verbs_rail.c   a rail: one queue pair of a link, made, probed, cut and made again
 *   verbs_queue.c  what is posted to it: gather lists, doorbells, completions, immediates
 *   verbs.c        the two backends (verbs writes, verbs-read reads), signals between the halves
 *
 * Threads: a rail belongs to one copy worker, which alone posts, polls, makes and destroys. The
 * link thread talks to it by order bits, hears from it by news bits, and touches the device for one
 * purpose only: to cut a queue pair (reset it), because that is the fence and must not wait. */
#ifndef BATON_VERBS_H
#define BATON_VERBS_H

#include "transfer/manager.h"
#include "transfer/plugin.h"

#include <infiniband/verbs.h>

#define VERBS_RAILS_MAX WIRE_STREAMS_MAX
#define VERBS_RECEIVES 512 /* immediates that may come before the worker looks */
#define VERBS_CHAIN 32     /* work requests per doorbell */
#define VERBS_SGE_MAX 32
#define VERBS_INFLIGHT_DEFAULT 256
#define VERBS_MESSAGE_MAX COPY_RUN_MAX
#define VERBS_FLIGHT_BYTES (16u << 20) /* bounds how long an abort waits for completions */
#define VERBS_INLINE_BYTES 128
#define VERBS_WHY_MAX 240
#define VERBS_GIDS_MAX 256

extern const struct plugin_host *verbs_host;

/* ---- verbs_port.c ---- */

struct verbs_range {
    uint64_t address, length;
};

/* One port of one device: what a rail goes through on our side. */
struct verbs_port {
    char name[64];
    int number;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_device_attr device;
    struct ibv_port_attr attributes;
    int gid_index;
    union ibv_gid gid;
    struct ibv_mr **regions; /* one per range */
};

/* A manager's half: what `open` made. */
struct verbs_manager {
    struct verbs_port ports[VERBS_RAILS_MAX];
    uint32_t port_count;
    bool named;                 /* the ports were, in ib_device */
    uint64_t fastest;           /* else: the speed of all of them */
    struct verbs_range *ranges; /* the manager's memory, ascending, neighbours joined */
    uint32_t range_count;
};

/* The peer's half, out of its key. */
struct verbs_peer_port {
    union ibv_gid gid;
    uint16_t lid;
    uint8_t link_layer, mtu;
    char name[24];
};
struct verbs_peer {
    struct verbs_peer_port ports[VERBS_RAILS_MAX];
    uint32_t port_count;
    struct verbs_range *ranges;
    uint32_t range_count;
    uint32_t *keys; /* [port][range] */
};

/* The better the higher; a port has either those of InfiniBand or those of RoCE. */
enum verbs_gid_kind {
    VERBS_GID_ROCE_V1 = 1, /* does not leave its Ethernet segment */
    VERBS_GID_IPV6_LOCAL,
    VERBS_GID_IPV6,
    VERBS_GID_IPV4,
    VERBS_GID_IB_LOCAL,
    VERBS_GID_IB,
};

/* The ports that become rails: those named, or the fastest; no memory is registered. Close them whatever
 * it returns. */
int verbs_ports_open(struct verbs_manager *self, const char *ib_device, uint32_t rank,
                     struct error err);
void verbs_ports_close(struct verbs_manager *self);
const char *verbs_port_trouble(enum ibv_port_state state); /* for one that is not active */
uint64_t verbs_port_speed(const struct ibv_port_attr *attributes); /* Mb/s */
enum verbs_gid_kind verbs_gid_kind(const struct ibv_gid_entry *entry);
int verbs_open(struct manager *manager, void **state, struct error err);
void verbs_close(struct manager *manager, void *state);
int verbs_export_key(struct manager *manager, void *state, uint8_t **key, uint32_t *key_bytes,
                     struct error err);
int verbs_peer_read(const struct wire_backend_key *key, struct verbs_peer *out,
                    struct error err);
void verbs_peer_free(struct verbs_peer *peer);
/* Index of the range that holds all of it, or UINT32_MAX. *hint makes neighbours quick. */
uint32_t verbs_range_find(const struct verbs_range *ranges, uint32_t count, uint64_t address,
                          uint64_t length, uint32_t *hint);
void verbs_gid_text(const union ibv_gid *gid, char *out, size_t size);
/* Ports that can talk: the same link layer, and addresses of one kind. */
bool verbs_ports_match(const struct verbs_port *mine, const struct verbs_peer_port *theirs);
const char *verbs_address_kind(const union ibv_gid *gid);

/* ---- verbs_describe.c ---- */

int verbs_available(char *why, size_t why_size);
int verbs_describe(const char *ib_device, uint32_t rank, struct baton_device_list *out,
                   struct error err);

/* ---- verbs_rail.c ---- */

enum verbs_rail_state {
    VERBS_RAIL_DOWN,    /* to be made when it is time */
    VERBS_RAIL_MAKING,  /* the worker makes the queue pair */
    VERBS_RAIL_OFFERED, /* the peer's half is awaited */
    VERBS_RAIL_JOINING, /* the worker connects it */
    VERBS_RAIL_PROBING, /* a first message is on its way (or awaited from the other side) */
    VERBS_RAIL_UP,
    VERBS_RAIL_LOST, /* cut; the worker is taking it down */
};

enum verbs_order {
    VERBS_ORDER_DROP = 1u << 0, /* lanes that have used the queue pair fail with it */
    VERBS_ORDER_MAKE = 1u << 1,
    VERBS_ORDER_JOIN = 1u << 2,
    VERBS_ORDER_PROBE = 1u << 3,
    VERBS_ORDER_DENY = 1u << 4, /* those that wait for a first one fail too */
    VERBS_ORDER_FINISH = 1u << 5,
};

enum verbs_news {
    VERBS_NEWS_DROPPED = 1u << 0,
    VERBS_NEWS_MADE = 1u << 1,
    VERBS_NEWS_JOINED = 1u << 2,
    VERBS_NEWS_PROBED = 1u << 3,
    VERBS_NEWS_BROKEN = 1u << 4, /* why is in rail->text */
};

/* What the two halves tell each other about one queue pair. */
struct verbs_half {
    uint32_t number, sequence;
    union ibv_gid gid;
    uint16_t lid;
    uint8_t mtu;
};

/* A doorbell's worth of work requests, all of one lane; the last one is signalled. */
struct verbs_batch {
    struct lane *lane; /* NULL: the probe */
    uint32_t requests;
    uint64_t bytes;
};

struct verbs_request {
    struct ibv_send_wr wr;
    struct ibv_sge pieces[VERBS_SGE_MAX];
    uint64_t bytes, remote_end;
};

struct verbs_endpoint;

struct verbs_rail {
    struct worker_watch watch; /* first: the completion channel */
    struct verbs_endpoint *owner;
    uint32_t index;
    struct verbs_port *port;
    uint32_t peer_port;
    struct worker *worker;

    struct worker_job work;
    struct runtime_job told, finished;
    _Atomic uint32_t orders, news;
    _Atomic uint32_t made;      /* queue pairs ordered so far: the link thread's count */
    _Atomic uint32_t told_made; /* of which one the news are: the worker's */
    _Atomic bool usable;        /* copies may choose it */
    _Atomic uint64_t load;      /* bytes in flight */
    _Atomic uint64_t quiet_ns;  /* when a completion was last seen; 0: none is awaited */

    pthread_mutex_t lock; /* what the link thread and the worker hand each other */
    struct ibv_qp *pair;  /* the worker makes and destroys it, the link thread may cut it */
    bool cut;
    struct verbs_half ours, theirs;
    char text[VERBS_WHY_MAX]; /* why it broke */

    /* owner: link thread */
    enum verbs_rail_state state;
    uint32_t life; /* counts queue pairs; signals of another life are stale */
    uint32_t failures;
    uint64_t since_ns, retry_ns;
    bool ever_failed, ever_up;
    char why[VERBS_WHY_MAX]; /* it is not up, or was not the last time */

    /* owner: worker */
    uint32_t own_life; /* of the pair that exists: which `made` it is */
    bool up, failed;
    bool watched;
    struct ibv_comp_channel *channel;
    struct ibv_cq *completions;
    uint32_t requests_max, pieces_max, inline_max;
    uint32_t requests_in_flight;
    uint64_t bytes_in_flight;
    struct verbs_batch *batches; /* ring of requests_max */
    uint32_t batch_head, batch_count;
    struct verbs_request *chain; /* VERBS_CHAIN */
    uint32_t chain_count;
    uint64_t chain_bytes;
    struct lane *chain_lane;
    struct lane *waiting;
    uint32_t local_hint, remote_hint;
};

/* One link's use of it. */
struct verbs_endpoint {
    struct endpoint *endpoint; /* NULL after disconnect; link thread only */
    struct manager *manager;
    struct verbs_manager *mine;
    struct verbs_peer theirs;
    uint64_t session;
    bool reads;    /* verbs-read */
    bool executes; /* this side posts */
    bool offers;   /* this side is the receiver: it makes the rails */
    bool stopped;
    uint32_t rail_count, rails_left;
    struct verbs_rail rails[VERBS_RAILS_MAX];
};

int verbs_rail_start(struct verbs_rail *rail, struct error err);
void verbs_rail_free(struct verbs_rail *rail);
/* Link thread. */
void verbs_rail_order(struct verbs_rail *rail, uint32_t orders);
void verbs_rail_cut(struct verbs_rail *rail);
/* Worker: nothing will come of what is under way; the link thread takes the rail down. */
void verbs_rail_broken(struct verbs_rail *rail, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void verbs_rail_tell(struct verbs_rail *rail, uint32_t news);

/* ---- verbs_queue.c: worker ---- */
void verbs_poll(struct verbs_rail *rail);
void verbs_ready(struct worker_watch *watch, uint32_t events);
int verbs_post_receives(struct verbs_rail *rail, uint32_t count);
int verbs_post_probe(struct verbs_rail *rail);
void verbs_queue_fail(struct verbs_rail *rail); /* every lane that has used this queue pair */
void verbs_waiting_fail(struct verbs_rail *rail);
void verbs_wake(struct verbs_rail *rail);
int verbs_copy(struct lane *lane, const struct plan_run *runs, uint32_t count);
int verbs_flush(struct lane *lane);

#endif
