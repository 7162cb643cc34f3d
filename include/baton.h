/* SPDX-License-Identifier: Apache-2.0 */
/* libbaton: hand a KV cache from one process to another, safely, at memory speed.
 *
 * The boundary. An engine registers the memory in which its KV pages live (regions) with one
 * manager per rank. A prefill rank opens a sender, a decode rank opens a receiver; both name
 * the same room. The receiver grants pages, the sender sends its own pages into them, and both
 * end in BATON_SUCCESS or in BATON_FAILED with the same reason. The library owns the sockets,
 * the copies, the deadlines and the fences; the engine owns the pages, and asks one thing
 * before it uses the pages of a failed room again: baton_receiver_fenced().
 *
 * Nothing here blocks, except *_wait (bounded by its timeout) and the open/close of a manager.
 * No callback ever runs on a library thread: poll, wait on the eventfd, or wait with a bound.
 * A handle may be used by one thread at a time; different handles by different threads.
 * Options start with struct_size: initialise them with the BATON_*_INIT macros.
 *
 *   prefill                                        decode
 *   baton_manager_open(&options, &m, ...)          baton_manager_open(&options, &m, ...)
 *   baton_sender_open(m, &so, &s, ...)             baton_receiver_open(m, &ro, &r, ...)
 *   baton_sender_init(s, &si)                      baton_receiver_init(r, &ri)   pages to fill
 *   baton_sender_send(s, pages, n, true)
 *   while (baton_sender_poll(s) == ..) ..          while (baton_receiver_poll(r) == ..) ..
 *   baton_sender_close(s)                          baton_receiver_close(r)
 */
#ifndef BATON_H
#define BATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BATON_API __attribute__((visibility("default")))
#else
#define BATON_API
#endif

#define BATON_VERSION_MAJOR 0
#define BATON_VERSION_MINOR 1
#define BATON_VERSION_PATCH 0

/* "0.1.0" of the library that is loaded. */
BATON_API const char *baton_version(void);

/* ---- errors ------------------------------------------------------------------------------
 * 0 is success, negatives are errors, BATON_AGAIN (positive) asks to call again later.
 * The same codes travel between peers in ABORT, so numbers never change meaning. */
#define BATON_ERROR_LIST(X)                                           \
    X(BATON_EINVAL, -1, "invalid argument")                           \
    X(BATON_ENOMEM, -2, "out of memory")                              \
    X(BATON_ESYSTEM, -3, "system call failed")                        \
    X(BATON_EBUSY, -4, "busy")                                        \
    X(BATON_EEXIST, -5, "already exists")                             \
    X(BATON_ENOTFOUND, -6, "not found")                               \
    X(BATON_ELIMIT, -7, "limit reached")                              \
    X(BATON_ESTATE, -8, "not possible in this state")                 \
    X(BATON_ETIMEOUT, -9, "deadline passed")                          \
    X(BATON_EPEER, -10, "peer lost")                                  \
    X(BATON_EPROTOCOL, -11, "protocol violation")                     \
    X(BATON_ELAYOUT, -12, "layouts cannot be mapped")                 \
    X(BATON_EAUTH, -13, "authentication failed")                      \
    X(BATON_EABORTED, -14, "aborted")                                 \
    X(BATON_EUNMATCHED, -15, "the other side does not know the room") \
    X(BATON_EUNREACHABLE, -16, "no backend reaches the peer")         \
    X(BATON_ECORRUPT, -17, "bytes did not arrive intact")             \
    X(BATON_EUNSUPPORTED, -18, "not supported")                       \
    X(BATON_EDECLINED, -19, "the other side does without it")

enum baton_error {
    BATON_OK = 0,
    BATON_AGAIN = 1,
#define BATON_ERROR_ENUM(name, value, text) name = value,
    BATON_ERROR_LIST(BATON_ERROR_ENUM)
#undef BATON_ERROR_ENUM
};

BATON_API const char *baton_error_name(int error); /* "BATON_EPEER" */
BATON_API const char *baton_error_text(int error); /* "peer lost" */

/* ---- states ------------------------------------------------------------------------------
 * A room only moves up this list, or to FAILED; FAILED and SUCCESS are final. A room over
 * several ranks has the smallest of its ranks' states. */
enum baton_state {
    BATON_FAILED = 0,
    BATON_BOOTSTRAPPING = 1,     /* looking for the peer, or for the peer's grants */
    BATON_WAITING_FOR_INPUT = 2, /* sender: all grants are in.
                                    receiver: all peers shook hands */
    BATON_TRANSFERRING = 3,      /* pages are on their way */
    BATON_SUCCESS = 4,           /* every byte is in its place, and both sides know */
};

BATON_API const char *baton_state_name(int state);

/* ---- memory and its layout --------------------------------------------------------------- */
enum baton_memory { BATON_MEMORY_HOST = 0, BATON_MEMORY_CUDA = 1 };

enum baton_dtype {
    BATON_DTYPE_OPAQUE = 0, /* bytes whose type is nobody's business but the engine's */
    BATON_DTYPE_U8 = 1,
    BATON_DTYPE_I8 = 2,
    BATON_DTYPE_F8_E4M3 = 3,
    BATON_DTYPE_F8_E5M2 = 4,
    BATON_DTYPE_F16 = 5,
    BATON_DTYPE_BF16 = 6,
    BATON_DTYPE_F32 = 7,
    BATON_DTYPE_F64 = 8,
    BATON_DTYPE_I32 = 9,
    BATON_DTYPE_U32 = 10,
    BATON_DTYPE_I64 = 11,
    BATON_DTYPE_U64 = 12,
};

/* One contiguous piece of memory that holds `pages` items of item_bytes each (bytes may be
 * more: padding at the end). */
typedef struct baton_base {
    void *address;
    uint64_t bytes;
    uint64_t item_bytes;
} baton_base;

/* Where the bytes of (page, layer, k|v, head, token) are:
 *
 *   base(layer, k|v) + page*page_stride + layer'*layer_stride + k|v'*kv_stride
 *                    + head*head_stride + token*token_stride,   head_bytes of them
 *
 * base_count is 1 (layer' = layer, k|v' = k|v: the whole page in one base),
 *               layers (one base per layer: layer' = 0, k|v' = k|v), or
 *               layers*kv (all K bases, then all V bases: layer' = 0, k|v' = 0).
 * Within a base the page is always the outermost dimension: page_stride >= item_bytes.
 *
 * Opaque pages: tokens_per_page, heads and head_bytes are 0. Every base is a layer of its own
 * with its own item_bytes, page_stride is the item_bytes of each base, and both sides must have
 * the same list of item_bytes. */
typedef struct baton_layout {
    uint32_t struct_size;
    uint32_t memory; /* enum baton_memory */
    uint32_t dtype;  /* enum baton_dtype */
    uint32_t pages;
    uint32_t tokens_per_page; /* 0: opaque */
    uint32_t layers;          /* held here (opaque: base_count) */
    uint32_t first_layer;     /* index in the whole model of the first layer held here */
    uint32_t kv;              /* 2: K and V, 1: one latent or one state */
    uint32_t heads;           /* KV heads held here */
    uint32_t first_head;      /* index in the whole model of the first head held here */
    uint32_t total_heads;     /* in the whole model */
    uint32_t head_bytes;      /* of one head of one token */
    uint64_t page_stride;
    uint64_t layer_stride;
    uint64_t kv_stride;
    uint64_t head_stride;
    uint64_t token_stride;
    const baton_base *bases;
    uint32_t base_count;
    uint32_t reserved;
} baton_layout;
#define BATON_LAYOUT_INIT                                                                \
    {                                                                                    \
        sizeof(baton_layout), 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0 \
    }

/* The usual orders. */
enum baton_order {
    BATON_ORDER_LAYER_MAJOR = 0, /* 1 base:  [page][layer][k|v][head][token][dim] */
    BATON_ORDER_HEAD_MAJOR = 1,  /* 1 base:  [page][head][layer][k|v][token][dim] */
    BATON_ORDER_PER_LAYER = 2,   /* layers*kv bases: [page][head][token][dim] */
    BATON_ORDER_TOKEN_MAJOR = 3, /* layers*kv bases: [page][token][head][dim]
                                    (SGLang's pools) */
};

/* Fills the five strides from the shape (pages, tokens_per_page, layers, kv, heads, head_bytes)
 * already in `layout`, and returns through item_bytes what one page takes in one base. */
BATON_API int baton_layout_fill(baton_layout *layout, int order, uint64_t *item_bytes);

/* What a region holds. The KV cache is region 0; others are state that goes with the last
 * chunk: a recurrent state's slot, the pages of a sliding window, an index over the
 * sequence. */
enum baton_region_kind {
    BATON_REGION_KV = 0,
    BATON_REGION_SLOT = 1,
    BATON_REGION_WINDOW = 2,
    BATON_REGION_SEQUENCE = 3,
};

typedef struct baton_region {
    uint32_t struct_size;
    uint32_t kind;    /* enum baton_region_kind */
    const char *name; /* regions are matched by name between the peers */
    baton_layout layout;
} baton_region;

/* The aux block: what a decode worker needs beside the pages (first token, logprobs, cached
 * counts ...). One slot per request; fields are matched by name, and their type and count must
 * agree; a field that one side lacks is left alone. */
typedef struct baton_aux_field {
    const char *name;
    uint32_t dtype;
    uint32_t count;
    uint64_t offset; /* from the start of the slot */
} baton_aux_field;

typedef struct baton_aux {
    uint32_t struct_size;
    uint32_t slots;
    void *address;
    uint64_t slot_bytes;
    const baton_aux_field *fields; /* none: the slot is one opaque field "aux" */
    uint32_t field_count;
    uint32_t reserved;
} baton_aux;

/* Memory that a peer process on this host can map and write into directly (the shm backend).
 * Zeroed, page-aligned, populated. Free it after the managers that registered it are closed. */
typedef struct baton_pool baton_pool;
BATON_API int baton_pool_alloc(uint64_t bytes, baton_pool **out, char *err, size_t err_size);
BATON_API void *baton_pool_address(const baton_pool *pool);
BATON_API void baton_pool_free(baton_pool *pool);

/* ---- manager: one per rank --------------------------------------------------------------- */
typedef struct baton_manager baton_manager;

typedef struct baton_manager_options {
    uint32_t struct_size;
    uint32_t rank;    /* tensor-parallel rank (the seed's engine_rank) */
    uint32_t tp_size; /* 0: rank is only a label; this manager is a group of one */
    uint32_t pp_rank, pp_size, dp_rank, dp_size; /* sizes 0 mean 1 */
    const char *host;       /* address to listen on and to tell peers; NULL: 127.0.0.1 or, once
                                the bootstrap address is known, the address that reaches it */
    uint32_t port;          /* 0: any */
    uint32_t register_rank; /* 1: prefill; PUT /route at open instead of at the first sender */
    const char *bootstrap;  /* "host:port"; NULL: learnt from the first sender or receiver */
    const char *bootstrap_allow; /* comma list of host, host:port or CIDR that receivers
                                    may call; NULL: any */
    const char *fingerprint;     /* of the model; peers with another one are refused;
                                    NULL: unchecked */
    const char *kv_cache_dtype;  /* told in /route; NULL: "auto" */
    const baton_region *regions;
    uint32_t region_count;
    uint32_t max_rooms;        /* open at once, quarantined ones included; 0: 16384 */
    const baton_aux *aux;      /* NULL: none */
    const char *backends;      /* in order of preference;
                                  NULL: BATON_BACKENDS or the built-in order */
    uint32_t copy_threads;     /* 0: 2 */
    uint32_t tcp_streams;      /* per peer; 0: 2 */
    uint32_t heartbeat_ms;     /* 0: 1000 */
    uint32_t silent_ms;        /* a peer silent for so long is given up; 0: 5000 */
    uint32_t match_timeout_ms; /* a room that only one side knows; 0: 10000 */
    uint32_t deadline_ms;      /* default for rooms; 0: 300000 */
    const char *key;           /* shared secret: peers must prove it; NULL: none */
    const char *tls_certificate, *tls_key, *tls_ca; /* PEM files; all or none */
    const char *ib_device; /* verbs: one, several or per-rank devices, see docs/rdma.md;
                              NULL: the fastest that are up */
    uint32_t max_inflight; /* verbs: work requests in flight; 0: 256 */
    uint32_t max_sge;      /* verbs: gather entries per work request; 0: the device's */
    uint32_t verify;  /* 1: sums of all bytes are compared before SUCCESS (tests, doubts) */
    uint32_t verbose; /* 1: one line per room to stderr */
    /* receivers: a prefill group that cannot be reached is given up after; 0: match_timeout_ms */
    uint32_t reach_timeout_ms;
    uint32_t reserved;
} baton_manager_options;
#define BATON_MANAGER_OPTIONS_INIT                   \
    {                                                \
        .struct_size = sizeof(baton_manager_options) \
    }

/* Starts listening, and the library's threads with the first manager. Regions, aux and strings
 * are copied; the memory they describe is borrowed until close returns. */
BATON_API int baton_manager_open(const baton_manager_options *options, baton_manager **out,
                                 char *err, size_t err_size);

/* Fails what is still open, tells the peers, waits until nothing here is read or written by the
 * library any more. Close senders, receivers and poll sets before. */
BATON_API void baton_manager_close(baton_manager *manager);

BATON_API uint32_t baton_manager_port(const baton_manager *manager);

/* Readable when a room of this manager changed state or got fenced; read it to clear it. */
BATON_API int baton_manager_eventfd(const baton_manager *manager);

/* The owner's sign of life, sent in heartbeats: call it once per scheduler step. Polls do it
 * too. A peer whose tick stands still is marked degraded, nothing more. */
BATON_API void baton_manager_tick(baton_manager *manager);

typedef struct baton_counters {
    uint32_t struct_size;
    uint32_t rooms_open;        /* slots in use, quarantined ones included */
    uint32_t rooms_quarantined; /* failed, not yet fenced */
    uint32_t pages_quarantined;
    uint32_t links_up;
    uint32_t links_degraded;
    uint64_t rooms_succeeded, rooms_failed, rooms_refused;
    uint64_t bytes_sent, operations_sent;
    uint64_t bytes_received;
    uint64_t frames_bad;   /* links dropped because of them */
    uint64_t frames_stale; /* for rooms that had ended; ignored */
    uint64_t links_lost, links_refused;
    uint64_t fallbacks; /* links that did not get the first backend of the list */
    uint64_t fences;    /* rooms whose pages came back after a failure */
} baton_counters;

/* Any thread. Set struct_size first. */
BATON_API int baton_manager_counters(const baton_manager *manager, baton_counters *out);

/* What happened to one room, in nanoseconds since it was opened here (0: has not happened). */
typedef struct baton_timeline {
    uint32_t struct_size;
    uint32_t state;
    uint64_t bootstrapped_ns; /* handshakes done / first grant in */
    uint64_t granted_ns;      /* grants sent / all in */
    uint64_t first_send_ns;   /* sender: first send(). receiver: first commit or byte */
    uint64_t last_byte_ns;    /* all bytes written / counted */
    uint64_t ended_ns;
    uint64_t fenced_ns;
    uint64_t bytes;
    uint64_t operations; /* copies handed to the backend, after merging */
    uint32_t peers;
    uint32_t packed;    /* 1: went through staging */
    char backend[16];   /* which carried it (of the first peer) */
    char reason[112];   /* why this backend and why direct or packed */
    uint64_t requests;  /* RDMA, on the side that copies: work requests posted */
    uint64_t doorbells; /* and in how many calls */
} baton_timeline;

/* ---- sender: one per room and prefill rank ----------------------------------------------- */
typedef struct baton_sender baton_sender;

typedef struct baton_sender_options {
    uint32_t struct_size;
    uint32_t deadline_ms;       /* 0: the manager's */
    uint64_t room;              /* 0 .. 2^63-1 */
    const char *bootstrap;      /* "host:port" where this rank is (to be) registered;
                                   NULL: manager's */
    const uint32_t *dest_ranks; /* decode ranks (pp_rank * tp_size + tp rank) to wait
                                   for; none: as many as the grants say */
    uint32_t dest_rank_count;
    uint32_t layerwise; /* 1: send() only names pages, layer_ready() releases them */
} baton_sender_options;
#define BATON_SENDER_OPTIONS_INIT                   \
    {                                               \
        .struct_size = sizeof(baton_sender_options) \
    }

/* Errors: EEXIST (the room is open here already), ELIMIT (max_rooms), EINVAL. */
BATON_API int baton_sender_open(baton_manager *manager, const baton_sender_options *options,
                                baton_sender **out, char *err, size_t err_size);

typedef struct baton_sender_init_options {
    uint32_t struct_size;
    uint32_t pages;       /* how many will be sent in all, the receiver's prefix included */
    uint32_t first_token; /* position of the first page's first token; usually 0 */
    uint32_t tokens;      /* exact number of tokens, 0: whole pages */
    int32_t aux_slot;     /* -1: none */
} baton_sender_init_options;
#define BATON_SENDER_INIT_OPTIONS_INIT                 \
    {                                                  \
        sizeof(baton_sender_init_options), 0, 0, 0, -1 \
    }

/* Once, before the first send; may come before or after the grants. */
BATON_API int baton_sender_init(baton_sender *sender, const baton_sender_init_options *options);

/* Pages of a state region (by its index in the manager's list, not 0), before the last send. */
BATON_API int baton_sender_state(baton_sender *sender, uint32_t region, const int32_t *pages,
                                 uint32_t count, uint32_t first_token);

/* The next `count` pages of the sequence. The aux slot and state pages are read after the call
 * that completes the sequence (is_last, or the count of init reached). Pages must not change
 * until poll says SUCCESS, or baton_sender_fenced() does. */
BATON_API int baton_sender_send(baton_sender *sender, const int32_t *pages, uint32_t count,
                                bool is_last);

/* Layer-wise senders: layers 0..layer of the pages named so far are computed. */
BATON_API int baton_sender_layer_ready(baton_sender *sender, uint32_t layer);

BATON_API int baton_sender_poll(const baton_sender *sender); /* enum baton_state; ~ns */

/* Tokens that every receiver already has (known once WAITING_FOR_INPUT). */
BATON_API uint32_t baton_sender_prefix(const baton_sender *sender);

/* Bytes written so far, at least: in place at the peer, or over tcp in the kernel's hands. Where the
 * peer reads by itself (cma) nobody here counts: 0. Any thread. */
BATON_API uint64_t baton_sender_written(const baton_sender *sender);

/* After the last byte was committed the receiver decides, and abort comes too late: ESTATE. */
BATON_API int baton_sender_abort(baton_sender *sender, const char *reason);

/* An abort for what was asked for: both rooms end FAILED with EINVAL, so that whoever asked the other
 * side hears that, too, and does not try again. */
BATON_API int baton_sender_refuse(baton_sender *sender, const char *reason);

/* Why it failed: returns the code, writes "what, where" into text. 0 when it has not failed. */
BATON_API int baton_sender_failure(const baton_sender *sender, char *text, size_t text_size);

/* 1 when nothing reads the source pages any more. */
BATON_API int baton_sender_fenced(const baton_sender *sender);
BATON_API int baton_sender_timeline(const baton_sender *sender, baton_timeline *out);
BATON_API void baton_sender_close(baton_sender *sender); /* aborts what has not ended */

/* ---- receiver: one per room and decode rank ---------------------------------------------- */
typedef struct baton_receiver baton_receiver;

typedef struct baton_receiver_options {
    uint32_t struct_size;
    uint32_t deadline_ms; /* 0: the manager's */
    uint64_t room;
    const char *bootstrap;   /* "host:port"; host 2.2.2.2 is the fake peer (warm-up) */
    int32_t prefill_dp_rank; /* -1: by the room, as the prefill side says */
    uint32_t queue_position; /* told to prefill in OPEN */
} baton_receiver_options;
#define BATON_RECEIVER_OPTIONS_INIT                                          \
    {                                                                        \
        .struct_size = sizeof(baton_receiver_options), .prefill_dp_rank = -1 \
    }

BATON_API int baton_receiver_open(baton_manager *manager, const baton_receiver_options *options,
                                  baton_receiver **out, char *err, size_t err_size);

typedef struct baton_state_pages {
    uint32_t region;
    uint32_t first_token;
    const int32_t *pages;
    uint32_t count;
} baton_state_pages;

typedef struct baton_receiver_init_options {
    uint32_t struct_size;
    uint32_t page_count;  /* 0: full hit, only aux and state come */
    const int32_t *pages; /* to be filled, in the order of the sequence */
    uint32_t prefix;      /* tokens before the first page, already here */
    int32_t aux_slot;     /* -1: none */
    const baton_state_pages *states;
    uint32_t state_count;
    uint32_t deadline_ms; /* 0: unchanged since open */
} baton_receiver_init_options;
#define BATON_RECEIVER_INIT_OPTIONS_INIT                                   \
    {                                                                      \
        .struct_size = sizeof(baton_receiver_init_options), .aux_slot = -1 \
    }

/* Grants the pages: from here on they belong to the room until SUCCESS, or until fenced.
 * Once; may come before WAITING_FOR_INPUT. Errors: EBUSY (a page belongs to another room that
 * is live or in quarantine), EINVAL (outside the region), ESTATE. */
BATON_API int baton_receiver_init(baton_receiver *receiver,
                                  const baton_receiver_init_options *options);

BATON_API int baton_receiver_poll(const baton_receiver *receiver);
BATON_API int baton_receiver_abort(baton_receiver *receiver, const char *reason);
/* See baton_sender_refuse. */
BATON_API int baton_receiver_refuse(baton_receiver *receiver, const char *reason);

/* An abort that is nobody's fault: the receiver makes the pages itself. Both rooms end FAILED with
 * EDECLINED, so that prefill can tell it from trouble. */
BATON_API int baton_receiver_decline(baton_receiver *receiver, const char *reason);
BATON_API int baton_receiver_failure(const baton_receiver *receiver, char *text,
                                     size_t text_size);

/* 1 when no one can store into the granted pages any more. Only this, never FAILED, makes the
 * pages of a failed room reusable. */
BATON_API int baton_receiver_fenced(const baton_receiver *receiver);

/* After FAILED: so many tokens from the beginning of the sequence (the prefix counts) have all their
 * layers in the granted pages, by the protocol's own proof: a COMMIT said so and all that it counted
 * had come. 0: nothing can be relied on. The pages may be used once they are fenced. Errors: ESTATE
 * (not FAILED). */
BATON_API int baton_receiver_landed(const baton_receiver *receiver, uint32_t *tokens);
BATON_API int baton_receiver_timeline(const baton_receiver *receiver, baton_timeline *out);

/* Aborts what has not ended. Pages of a room closed before it was fenced stay in quarantine in
 * the manager (init refuses them with EBUSY) until they are. */
BATON_API void baton_receiver_close(baton_receiver *receiver);

/* ---- poll sets: many rooms at once ----------------------------------------------------------
 * A set holds `capacity` groups; a group is one or more ranks' senders and receivers and has
 * the smallest of their states (an empty group polls as SUCCESS). Remove a member before
 * closing it. */
typedef struct baton_pollset baton_pollset;
BATON_API int baton_pollset_open(uint32_t capacity, baton_pollset **out);
BATON_API void baton_pollset_close(baton_pollset *set);
BATON_API int baton_pollset_add_sender(baton_pollset *set, uint32_t group,
                                       baton_sender *sender);
BATON_API int baton_pollset_add_receiver(baton_pollset *set, uint32_t group,
                                         baton_receiver *receiver);
BATON_API int baton_pollset_clear(baton_pollset *set, uint32_t group); /* removes all members */

/* Writes one state per group, up to `count`; returns how many groups changed since the last
 * call on this set. */
BATON_API int baton_poll_many(baton_pollset *set, uint8_t *states, uint32_t count);

/* The same, but waits until at least one changed or the time is over (then returns 0). */
BATON_API int baton_pollset_wait(baton_pollset *set, uint8_t *states, uint32_t count,
                                 uint32_t timeout_ms);

/* ---- bootstrap server: where ranks find each other (HTTP; SGLang's five calls) ----------- */
typedef struct baton_bootstrap baton_bootstrap;
/* host NULL: all; port 0: any */
BATON_API int baton_bootstrap_open(const char *host, uint32_t port, baton_bootstrap **out,
                                   char *err, size_t err_size);
BATON_API uint32_t baton_bootstrap_port(const baton_bootstrap *server);
BATON_API void baton_bootstrap_close(baton_bootstrap *server);

/* ---- what is built in -------------------------------------------------------------------- */
typedef struct baton_backend_info {
    uint32_t struct_size;
    uint32_t available;
    char name[16];
    char about[112]; /* what it is for */
    char why[112];   /* why it is not available here */
} baton_backend_info;
/* In the order of preference; ENOTFOUND past the last. */
BATON_API int baton_backend_info_get(uint32_t index, baton_backend_info *out);

/* ---- RDMA devices -----------------------------------------------------------------------------
 * What there is, and what a manager with these options would make of it: every port of every
 * device, its GIDs, and which of them become rails. A list is a snapshot; it opens the devices
 * for a moment and registers no memory. */
typedef struct baton_device_list baton_device_list;

enum baton_link_layer {
    BATON_LINK_LAYER_UNKNOWN = 0,
    BATON_LINK_LAYER_INFINIBAND = 1,
    BATON_LINK_LAYER_ETHERNET = 2, /* RoCE */
};

typedef struct baton_port_info {
    uint32_t struct_size;
    uint32_t port; /* from 1; 0: the device cannot be opened, and `why` says why */
    char device[64];
    char state[16];      /* "active", "down", "init", "armed", "unknown" */
    uint32_t link_layer; /* enum baton_link_layer */
    uint32_t lid;        /* InfiniBand */
    uint32_t mtu;        /* bytes of a packet's payload, as configured now */
    uint32_t mtu_max;
    uint64_t speed_mbps; /* of the signal, all lanes together; 0: not told */
    uint32_t max_sge, max_sge_read;
    uint32_t max_requests; /* in flight on one queue pair */
    uint32_t gid_count;
    uint32_t rails; /* bit n: it would be rail n; 0: it would not be used */
    uint32_t reserved;
    char why[160]; /* it would be used, or not */
} baton_port_info;

typedef struct baton_gid_info {
    uint32_t struct_size;
    uint32_t index;
    char gid[48];    /* as an IPv6 address */
    char type[16];   /* "InfiniBand", "RoCE v1", "RoCE v2" */
    char netdev[32]; /* the network interface behind it; "": none, or not in this namespace */
    uint32_t rails;  /* bit n: rail n would use it */
    uint32_t reserved;
    char why[112]; /* what can be reached by it */
} baton_gid_info;

/* ib_device and rank as in baton_manager_options; NULL: BATON_IB_DEVICE, or the fastest that are up.
 * EUNSUPPORTED where there is no device, or nothing here that could use one, and why. */
BATON_API int baton_device_list_open(const char *ib_device, uint32_t rank,
                                     baton_device_list **out, char *err, size_t err_size);
BATON_API void baton_device_list_close(baton_device_list *list);

/* Why a manager with these options would go without RDMA; "": it would not. */
BATON_API const char *baton_device_list_problem(const baton_device_list *list);

/* Set struct_size first. ENOTFOUND past the last. `port` is an index of the first call. */
BATON_API int baton_device_list_port(const baton_device_list *list, uint32_t index,
                                     baton_port_info *out);
BATON_API int baton_device_list_gid(const baton_device_list *list, uint32_t port,
                                    uint32_t index, baton_gid_info *out);

/* Least level that is logged to stderr: 0 error, 1 warning (default), 2 info, 3 debug.
 * The environment's BATON_LOG sets the initial one. */
BATON_API void baton_log_level(int level);

#ifdef __cplusplus
}
#endif

#endif
