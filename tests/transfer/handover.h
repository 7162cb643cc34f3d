/* SPDX-License-Identifier: Apache-2.0 */
/* A kit for tests that hand pages over: a prefill group and a decode group of managers, each with
 * its own memory, in one process or in two, and an obvious model of what every byte of that memory
 * must be.
 *
 * The test drives. What is to happen on a side is a task: a function that runs where the side
 * lives. The other process is a fork from before the first call of the library, so the address of
 * a task means the same function there, and a task with its argument is all that travels.
 *
 * The model: each side keeps, beside its memory, the memory it expects. It starts as noise in both.
 * Source pages are written into both when they are sent; a room that succeeded is written into the
 * decode side's expectation only. Comparing all of it shows every byte that is missing, wrong, or
 * outside the granted pages. The value of a byte is a function of the room and of what the byte is
 * (layer, k|v, head, token), so that the model needs to know nothing about the other side. */
#ifndef BATON_TESTS_HANDOVER_H
#define BATON_TESTS_HANDOVER_H

#include "baton.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HANDOVER_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HANDOVER_SANITIZED 1
#endif
#ifndef HANDOVER_SANITIZED
#define HANDOVER_SANITIZED 0
#endif

/* So many of something that takes long: fewer with a sanitizer. */
#define HANDOVER_SCALED(count) ((count) / (HANDOVER_SANITIZED ? 6 : 1))
#define HANDOVER_WAIT_MS handover_wait_ms() /* nothing here takes a tenth of it */
uint32_t handover_wait_ms(void); /* 30 seconds; more where FLEET_PATIENCE (a factor) says so */

enum role { PREFILL = 0, DECODE = 1 };

#define SIDE_RANKS_MAX 8u
#define SIDE_REGIONS_MAX 4u
#define SIDE_TRIPS_MAX 512u
#define SIDE_PAGES_MAX 8192u
#define SHAPE_ITEMS_MAX 6u
#define GROUP_FIELDS_MAX 8u
#define TRIP_PAGES_MAX 640u
#define TRIP_STATES_MAX 3u

/* ---- how the bytes go -------------------------------------------------------------------- */
struct medium {
    char backends[128]; /* for baton_manager_options */
    char carrier[16];   /* what a timeline must name */
    bool one_process;
    bool key, verify, tls;
    bool reads; /* the receiver executes the copies */
    uint32_t tcp_streams;
    char devices[2][64]; /* verbs: of prefill and decode */
    char tls_folder[64];
};

/* "shm", "faulty:tcp:reorder=1", then any of: here, key, verify, tls, streams=N, prefill=DEVICES,
 * decode=DEVICES (of RDMA), and only=PATTERN for some of the tests. */
int medium_parse(int argc, char **argv, struct medium *out);

/* ---- what a side has --------------------------------------------------------------------- */
enum shape_order {
    ORDER_LAYER_MAJOR = BATON_ORDER_LAYER_MAJOR,
    ORDER_HEAD_MAJOR = BATON_ORDER_HEAD_MAJOR,
    ORDER_PER_LAYER = BATON_ORDER_PER_LAYER,
    ORDER_TOKEN_MAJOR = BATON_ORDER_TOKEN_MAJOR,
    ORDER_LAYER_BASES, /* one base per layer, with K and V in it */
    ORDER_OPAQUE,
};

struct shape {
    char name[16];
    uint32_t kind;
    enum shape_order order;
    uint32_t pages, tokens_per_page;
    uint32_t layers, kv, heads, head_bytes; /* of the whole model */
    uint32_t page_gap;                      /* bytes between pages that belong to nobody */
    uint32_t item_bytes[SHAPE_ITEMS_MAX];   /* opaque: one per layer */
};

struct field {
    char name[16];
    uint32_t dtype, count;
    uint32_t offset;
};

struct group {
    uint32_t tp_size, pp_size;
    uint32_t region_count;
    struct shape regions[SIDE_REGIONS_MAX];
    uint32_t aux_slots, aux_slot_bytes, field_count;
    struct field fields[GROUP_FIELDS_MAX];
};

/* ---- one room ---------------------------------------------------------------------------- */

/* Pages of one region on both sides. Rank r of a side uses other pages than rank 0, see
 * rank_page in handover.c. */
struct trip_pages {
    uint32_t source_region, dest_region;
    uint32_t source_first, dest_first; /* token positions */
    uint32_t source_count, dest_count;
    int32_t source[TRIP_PAGES_MAX], dest[TRIP_PAGES_MAX];
};

struct trip {
    uint32_t slot;
    uint64_t room, seed;
    uint32_t end; /* position after the last token; 0: the end of the lists */
    bool layerwise;
    bool receiver_first, grant_late, patient; /* the order of things, drawn by trip_new */
    bool sender_open, receiver_open, announced, granted;
    int32_t source_aux, dest_aux;
    uint32_t sent; /* pages named so far */
    struct trip_pages kv;
    uint32_t state_count;
    struct trip_pages states[TRIP_STATES_MAX];
};

struct trip_options {
    uint32_t tokens;      /* the sequence ends there */
    uint32_t prefix;      /* decode has these already */
    uint32_t first_token; /* prefill's list starts there */
    bool whole_pages;     /* init says 0 tokens; `tokens` only sizes the lists */
    bool layerwise;
    bool no_aux;
};

struct answer {
    int code; /* 0, or what went wrong, in words in text */
    char text[512];
    uint64_t number;
    int states[SIDE_RANKS_MAX];
    int codes[SIDE_RANKS_MAX];
    char failures[SIDE_RANKS_MAX][256];
    uint32_t landed[SIDE_RANKS_MAX]; /* tokens that failed receivers still have */
    uint64_t written;                /* as the senders say */
    baton_timeline timelines[SIDE_RANKS_MAX];
    baton_counters counters[SIDE_RANKS_MAX];
};

struct side; /* where the managers live */

typedef void (*side_task)(struct side *side, const void *argument, struct answer *answer);

struct handover {
    struct medium medium;
    int far_fd; /* to the process of the prefill side; -1: it is here */
    pid_t far_pid;
    struct group groups[2];
    bool open;
    char bootstrap[64];
    struct answer answer;
    uint64_t random;
    uint64_t rooms_used;
    bool used_pages[2][SIDE_REGIONS_MAX][SIDE_PAGES_MAX];
    bool used_aux[2][SIDE_TRIPS_MAX];
    bool used_slots[SIDE_TRIPS_MAX];
    struct trip *trips[SIDE_TRIPS_MAX];
    /* what the counters must come to */
    uint64_t succeeded, failed, bytes;
    bool links_break; /* the test breaks links itself */
};

/* Forks. Before any call of the library. */
void handover_start(struct handover *handover, const struct medium *medium);
int handover_stop(struct handover *handover); /* 0 when the other process ended well */

void handover_open(struct handover *handover, const struct group *prefill,
                   const struct group *decode);
/* Everything is as it must be: memory, counters, no room left. Then closes the managers. */
void handover_close(struct handover *handover);
void handover_drop(struct handover *handover); /* after a failed test */
void handover_check_memory(struct handover *handover);
/* The managers of one side go away, with whatever is open there. */
void handover_lose(struct handover *handover, enum role role);

uint64_t handover_draw(struct handover *handover, uint64_t below);

/* Runs the task where the side lives. Anything but 0 fails the test, unless tried. */
struct answer *handover_ask(struct handover *handover, enum role role, side_task task,
                            const void *argument, size_t bytes);
struct answer *handover_try(struct handover *handover, enum role role, side_task task,
                            const void *argument, size_t bytes);

#define ALL_RANKS UINT32_MAX

struct trip *trip_new(struct handover *handover, struct trip_options options);
/* The same pages once more: another room with other bytes. The old one must be closed. */
struct trip *trip_again(struct handover *handover, const struct trip *trip);
/* Takes other source pages; nobody uses the old ones again before handover_close. */
void trip_leave_source(struct handover *handover, struct trip *trip);
/* Pages of a state region; both regions are found by name. */
void trip_add_state(struct handover *handover, struct trip *trip, const char *name,
                    uint32_t source_first, uint32_t source_count, uint32_t dest_first,
                    uint32_t dest_count);

void trip_open(struct handover *handover, struct trip *trip, enum role role, uint32_t ranks);
int trip_try_init(struct handover *handover, struct trip *trip, enum role role, uint32_t ranks);
void trip_init(struct handover *handover, struct trip *trip, enum role role);
/* New noise in the granted pages: nobody may be storing into them. */
void trip_renew(struct handover *handover, struct trip *trip);
/* Opens both ends and initialises them, in an order that trip_new drew. */
void trip_start(struct handover *handover, struct trip *trip);

/* Writes the next `count` pages and sends them. With layers: names them. */
void trip_send(struct handover *handover, struct trip *trip, uint32_t count, bool last);
void trip_send_from(struct handover *handover, struct trip *trip, uint32_t ranks, uint32_t from,
                    uint32_t count, bool last);
void trip_send_rest(struct handover *handover, struct trip *trip);
/* Writes layer `layer` of the pages from `from` on and releases it. */
void trip_release(struct handover *handover, struct trip *trip, uint32_t from, uint32_t layer);

/* Waits until all ranks have come so far or failed; returns the smallest state. */
int trip_wait(struct handover *handover, struct trip *trip, enum role role, int state);
int trip_wait_ended(struct handover *handover, struct trip *trip, enum role role);
void trip_wait_fenced(struct handover *handover, struct trip *trip, enum role role);
int trip_abort(struct handover *handover, struct trip *trip, enum role role, uint32_t ranks,
               const char *reason);

/* Waits for SUCCESS on both sides, and writes the room into the model. */
void trip_succeed(struct handover *handover, struct trip *trip);
/* For rooms whose success was waited for otherwise. */
void trip_succeeded(struct handover *handover, struct trip *trip);
/* Waits for FAILED on both sides, with this code and text on every rank, and for the fences. The
 * granted pages are then new noise. */
void trip_fail(struct handover *handover, struct trip *trip, int code, const char *text);
/* The room has failed and is fenced: tokens that all decode ranks have landed, each of whose bytes is
 * compared. */
uint32_t trip_landed(struct handover *handover, const struct trip *trip);
/* The decode side waits for the room's end (after delay_us it aborts it, if there is a reason)
 * and uses its pages again the moment they are fenced: nothing may appear in them then. False when
 * the room was faster and succeeded. */
bool trip_reclaim(struct handover *handover, struct trip *trip, uint32_t delay_us,
                  const char *reason);
void trip_close(struct handover *handover, struct trip *trip);
void trip_close_end(struct handover *handover, struct trip *trip, enum role role);
/* start, send_rest, succeed, close. */
void trip_run(struct handover *handover, struct trip *trip);

/* How an ended room ended: states, reasons, timelines. */
struct answer *trip_report(struct handover *handover, const struct trip *trip, enum role role);

/* Waits with one poll set for many rooms, `members` rooms in a group, until all succeeded. */
void trips_watch(struct handover *handover, enum role role, struct trip **trips, uint32_t count,
                 uint32_t members);

/* Writes ca.pem, certificate.pem and key.pem into the folder; 0 when done. */
int certificates_make(const char *folder);

#endif
