/* SPDX-License-Identifier: Apache-2.0 */
/* A room: one hand-over as this rank sees it, as a sender or as a receiver, with one leg per rank
 * on the other side.
 *
 *   the word   generation << 32 | state: what poll reads. Only the link thread moves it, forward
 *              only; a handle of an older generation reads nothing of the new room.
 *   requests   what the caller asked for, as bits; the link thread takes them.
 *   watermark  what the caller has released for sending, one atomic word (below).
 *
 * A room's slot is free again when the caller has closed its handle, every leg has ended, and no
 * worker and no peer can touch its pages. */
#ifndef BATON_TRANSFER_ROOM_H
#define BATON_TRANSFER_ROOM_H

#include "copy.h"
#include "runtime.h"
#include "wire.h"

struct manager;
struct link;
struct route;
struct peer;
struct room;

enum room_role { ROOM_FREE = 0, ROOM_SENDER = 1, ROOM_RECEIVER = 2 };

enum room_class {
    ROOM_UNNAMED = 0,
    ROOM_LIVE_SENDER = 1,
    ROOM_LIVE_RECEIVER = 2,
    ROOM_PHANTOM = 3,      /* OPEN came before the caller's sender */
    ROOM_ENDED_SENDER = 4, /* the number is free, but frames may still mean it */
    ROOM_ENDED_RECEIVER = 5,
};

enum room_request {
    REQUEST_OPEN = 1u << 0,
    REQUEST_INIT = 1u << 1,
    REQUEST_SEND = 1u << 2,
    REQUEST_ABORT = 1u << 3,
    REQUEST_CLOSE = 1u << 4,
};

/* Pages of one region beside the KV pages. */
struct state_list {
    uint32_t region;
    uint32_t first_token;
    uint32_t count;
    int32_t *pages; /* owned */
};

/* The other end of one rank pair. */
struct leg {
    struct room *room;
    struct leg *next;                     /* in room->legs */
    struct link *link;                    /* NULL: not yet, or lost */
    struct leg *link_next, **link_slot;   /* in link->legs */
    struct route *route;                  /* receiver: how to get a link */
    struct leg *route_next, **route_slot; /* in route->waiting */
    struct peer *peer;                    /* counted; outlives the link: who must be fenced */
    uint32_t rank;                        /* the other side's tp rank */
    uint32_t ticket;                      /* the receiver's */
    uint64_t session; /* of the link it was granted on: what workers know a leg by */
    uint32_t required_dst;
    bool dummy;                /* nothing to copy on this leg */
    bool opened;               /* OPEN sent / received */
    bool granted;              /* GRANT sent / received */
    bool abort_owed;           /* to be told when a link comes up */
    bool landed;               /* sender: LANDED received */
    bool doubt;                /* sender: link lost after the last COMMIT */
    bool remote_writer;        /* the receiver's pages are stored into by the peer itself */
    bool fence_remote;         /* waits for FENCED or the peer's exit */
    bool fence_told;           /* FENCED was sent on this link */
    bool started;              /* the copy runs (executing side) */
    bool ended;                /* leg_end was called */
    struct endpoint *endpoint; /* counted: keeps data connections while the leg may use them */

    /* sender: the grant */
    uint32_t prefix;
    int32_t aux_slot;
    int32_t *pages; /* owned; sender: granted destination pages. receiver: source pages (cma) */
    uint32_t page_count;
    struct state_list states[WIRE_REGIONS_MAX];
    uint32_t state_count;
    uint64_t committed; /* watermark of the last COMMIT: sender: sent, receiver: read */
    bool committed_last;

    /* receiver: what COMMIT said and what came */
    bool last_seen;
    uint32_t expected_aux, received_aux;
    uint64_t expected_sum;
    uint32_t source_first_token, source_tokens, source_total;
    struct wire_lane expected[WIRE_STREAMS_MAX];
    uint32_t expected_lanes;
    _Atomic uint64_t arrived[WIRE_STREAMS_MAX]; /* by the workers that own the rails */
    _Atomic uint64_t source_watermark;          /* what may be read, from COMMIT */
    struct leg_arrival {                        /* of the last COMMIT of which all is here */
        uint64_t watermark, bytes, sum;
    } arrival;

    struct copy copy; /* on the side that executes */
    struct copy_fence fence;
};

struct room {
    _Atomic uint64_t word;
    _Atomic uint32_t requests;
    _Atomic uint64_t watermark;
    _Atomic uint32_t ticket;  /* receiver: 0 unless pages are granted and live */
    _Atomic uint32_t fenced;  /* generation whose pages are free, see room_is_fenced */
    _Atomic uint32_t prefix;  /* sender: smallest prefix of the grants */
    _Atomic uint64_t written; /* by all lanes: complete in the backend's sense */
    _Atomic bool committed;   /* sender: the last COMMIT is out, abort comes too late */
    /* Lanes, fences and callers that may still post `job`: the slot is not given away before. Kept
     * over the room's lives. */
    _Atomic uint32_t posters;
    struct runtime_job job;
    struct manager *manager;
    uint32_t slot;
    enum room_role role;   /* under manager->lock when taken or freed */
    enum room_class class; /* how the index knows it; under manager->lock */
    struct room *index_next;

    /* Written by the caller before the request bit, then read-only. */
    uint64_t id;
    uint64_t opened_ns; /* the timeline counts from it */
    uint32_t generation;
    uint32_t grant_ticket; /* receiver: what `ticket` will be */
    char bootstrap[128];
    uint32_t dest_ranks[64];
    uint32_t dest_rank_count;
    bool layerwise;
    bool layer_chunk_last; /* caller's: the chunk being computed is the last */
    int32_t prefill_dp_rank;
    uint32_t queue_position;
    bool initialised; /* caller's: init was called */
    int32_t *pages;
    uint32_t page_capacity; /* sender: as announced. receiver: granted */
    uint32_t page_count;    /* caller's: named so far */
    uint32_t first_token, tokens, prefix_len;
    int32_t aux_slot;
    struct state_list states[WIRE_REGIONS_MAX];
    uint32_t state_count;
    uint32_t deadline_ms, init_deadline_ms;
    char abort_text[WIRE_TEXT_MAX];
    int abort_code;
    uint64_t reach_ns; /* receiver: a peer in trouble is given up then */

    /* owner: link thread */
    struct room *live_next, **live_slot;
    struct leg *legs;
    uint32_t leg_count;
    uint32_t required_dst;
    bool owned;   /* a handle of the caller exists */
    bool phantom; /* sender: OPEN came before the caller's sender */
    bool opened;  /* REQUEST_OPEN was processed */
    bool init_seen;
    bool states_added;
    uint64_t woken; /* sender: watermark that the lanes were told of */
    bool granted;   /* receiver: GRANTs are out. sender: all in */
    bool fake;
    bool pages_held;       /* receiver: page_ticket entries are ours */
    bool quarantined;      /* counted as such */
    bool ending;           /* terminal: fences are being awaited */
    bool held;             /* being worked on: not to be freed by what that sets off */
    bool abort_unresolved; /* receiver: failed before it knew whom to tell */
    bool resolving;        /* receiver: topology asked for */
    bool resolved;
    struct bootstrap_call *dp_call; /* receiver: asking which dp rank has the room */
    int64_t dp_rank;                /* receiver: -1 until known */
    uint64_t dp_retry_ns;
    _Atomic uint64_t
        fenced_ns; /* for the timeline, which others read once the room has ended */
    uint64_t own_deadline_ns, deadline_ns, match_ns, doubt_ns;
    baton_timeline timeline;
    int failure_code;
    char failure_text[WIRE_TEXT_MAX];
    uint32_t landed_tokens; /* receiver: what a failed room leaves behind; before FAILED */
};

/* Watermark: pages [0, complete) have all layers ready; of pages [complete, partial) the layers
 * [0, layers). last: nothing follows.   complete:27 | partial:27 | layers:9 | last:1 */
#define WATERMARK_PAGES_MAX ((1u << 27) - 1)
#define WATERMARK_LAYERS_MAX 511u

struct watermark {
    uint32_t complete, partial, layers;
    bool last;
};
static inline uint64_t watermark_pack(struct watermark w)
{
    return (uint64_t)w.complete << 37 | (uint64_t)w.partial << 10 | (uint64_t)w.layers << 1 |
           w.last;
}
static inline struct watermark watermark_unpack(uint64_t word)
{
    return (struct watermark){(uint32_t)(word >> 37),
                              (uint32_t)(word >> 10) & WATERMARK_PAGES_MAX,
                              (uint32_t)(word >> 1) & WATERMARK_LAYERS_MAX, word & 1};
}

static inline enum baton_state room_state(const struct room *room)
{
    return (enum baton_state)(uint32_t)atomic_load_explicit(&room->word, memory_order_acquire);
}
static inline bool room_ended(const struct room *room)
{
    enum baton_state state = room_state(room);
    return state == BATON_FAILED || state == BATON_SUCCESS;
}

/* ---- link thread ---- */

/* Nothing of ours touches the room's pages any more. */
bool room_local_rest(const struct room *room);

/* Forward only; terminal states are final; another generation is a no-op. Returns whether it
 * moved. */
bool room_advance(struct room *room, uint32_t generation, enum baton_state to);

/* FAILED with a reason, told to every peer; what may still be written goes to quarantine. */
void room_fail(struct room *room, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same without telling `from`, which told us. */
void room_succeed(struct room *room);
void room_fail_from(struct room *room, struct leg *from, int code, const char *text);

/* After SUCCESS or FAILED: release what can be released; frees the slot when all is over. */
void room_settle(struct room *room);

void room_job(struct runtime_job *job);
void room_tick(struct room *room, uint64_t now_ns); /* deadlines */

struct leg *leg_new(struct room *room);
void leg_attach(struct leg *leg, struct link *link);
void leg_detach(struct leg *leg); /* from its link and route; the leg stays in its room */
struct leg *room_leg_on(struct room *room, const struct link *link);
void leg_send_abort(struct leg *leg);
void leg_link_lost(struct leg *leg, int code, const char *text);
void leg_peer_gone(struct leg *leg);     /* the other process has exited: that is a fence */
void leg_fenced_remote(struct leg *leg); /* FENCED arrived */
void room_time(struct room *room, uint64_t *field); /* stamps a timeline field once */

/* Takes the pages' page_ticket entries for the room / gives them back. */
int room_pages_hold(struct room *room, struct error err);

/* ---- any thread ---- */

/* Sets a request bit and posts the room. */
void room_request(struct room *room, uint32_t request);
int room_current_state(const struct room *room, uint32_t generation);
/* ESTATE when it comes too late. */
int room_abort(struct room *room, int code, const char *reason, const char *otherwise);
int room_failure(const struct room *room, char *text, size_t size);
int room_timeline(const struct room *room, baton_timeline *out);
struct room *sender_room(const baton_sender *sender);
struct room *receiver_room(const baton_receiver *receiver);

/* ---- each role's half ---- */
void sender_requests(struct room *room, uint32_t requests);
void sender_progress(struct room *room); /* lanes moved, grants came, pages were released */
void sender_tick(struct room *room, uint64_t now_ns);
void sender_on_open(struct link *link, const struct wire_open *open);
void sender_on_grant(struct link *link, const struct wire_grant *grant);
void sender_on_landed(struct link *link, const struct wire_room *landed);
void sender_resume_doubts(struct link *link);
void sender_ask(struct leg *leg); /* QUERY over any link to the leg's process that is up */

void receiver_requests(struct room *room, uint32_t requests);
void receiver_progress(struct room *room);
void receiver_tick(struct room *room, uint64_t now_ns);
void receiver_leg_ready(struct leg *leg); /* its link is up */
/* landing.c. leg_landed fails the room when the bytes will never all be here. */
bool leg_landed(struct leg *leg);
void receiver_land(struct room *room);
/* The room fails: how many tokens of the sequence are in its pages all the same (baton.h). */
uint32_t receiver_landed_tokens(const struct room *room);
/* On a worker: the receiver's leg that a peer's ticket means, NULL if it has ended; what came for
 * it. */
struct leg *leg_of_ticket(struct manager *manager, uint64_t session, uint32_t ticket);
void leg_count_landed(struct leg *leg, uint32_t rail, uint64_t amount);
void receiver_on_commit(struct link *link, const struct wire_commit *commit);
void receiver_on_aux(struct link *link, const struct wire_aux *aux);

void room_on_abort(struct link *link, const struct wire_abort *abort);
void room_on_query(struct link *link, const struct wire_room *query);
void room_on_fenced(struct link *link, const struct wire_room *fenced);

#endif
