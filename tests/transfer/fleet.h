/* SPDX-License-Identifier: Apache-2.0 */
/* The kit of the tests that need whole ranks: a rank with its memory (in this process), and
 * workers, each a real process with a rank in it that does what it is told over a socket pair, so
 * that it can be stopped, continued and killed at any moment.
 *
 * A process that starts workers must not use the library itself: fork copies locks and no threads.
 * Nothing here asserts a time; FLEET_BOUND_MS only keeps a test that would hang from hanging. */
#ifndef BATON_TESTS_FLEET_H
#define BATON_TESTS_FLEET_H

#include "baton.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#include <cmocka.h>

#define FLEET_BOUND_MS fleet_bound_ms()
#define FLEET_WORKERS_MAX 8

int fleet_bound_ms(void);    /* 20 seconds; more where FLEET_PATIENCE (a factor) says so */
uint64_t fleet_now_ms(void); /* the real clock, also where the library's is pushed */

/* Waits for something that another thread or process is about to do. */
#define EVENTUALLY(condition)                                                 \
    do {                                                                      \
        uint64_t eventually_end = fleet_now_ms() + FLEET_BOUND_MS;            \
        while (!(condition)) {                                                \
            if (fleet_now_ms() > eventually_end)                              \
                fail_msg("not within %d ms: %s", FLEET_BOUND_MS, #condition); \
            usleep(500);                                                      \
        }                                                                     \
    } while (0)

/* `text` contains `part`; says both when not. */
#define ASSERT_SAYS(text, part)                                     \
    do {                                                            \
        if (!strstr((text), (part)))                                \
            fail_msg("\"%s\" does not say \"%s\"", (text), (part)); \
    } while (0)

/* ---- a rank in this process --------------------------------------------------------------- */

/* Plain data, so that it can be sent to a worker. Zeroes are the library's defaults; "" is NULL. */
struct fleet_options {
    char bootstrap[64], backends[128], fingerprint[32], key[32], allow[64], ib_device[64];
    char certificate[160], certificate_key[160], authority[160];
    uint32_t rank, tp_size, port, register_rank;
    uint32_t pages, page_bytes; /* opaque pages of one base; 0: 16 of 32 KiB: a few
                                   are copied by a worker, which a test can hold */
    uint32_t foreign;           /* 1: memory from mmap, not from baton_pool_alloc */
    uint32_t aux_count;         /* 0: no aux; else one field "token" of so many i32 */
    uint32_t heartbeat_ms, silent_ms, match_timeout_ms, deadline_ms;
    uint32_t max_rooms, copy_threads, tcp_streams, verify;
};

struct fleet_rank {
    baton_manager *manager;
    baton_pool *pool;
    uint8_t *memory, *aux;
    uint32_t pages, page_bytes;
};

int fleet_rank_open(struct fleet_rank *rank, const struct fleet_options *options, char *err,
                    size_t err_size);
void fleet_rank_close(struct fleet_rank *rank);
baton_counters fleet_counters(const struct fleet_rank *rank);

/* Page contents: every byte depends on the seed, the page's place in the sequence and its own. */
void fleet_fill(struct fleet_rank *rank, uint32_t first, uint32_t count, uint32_t seed);
uint64_t fleet_wrong_bytes(const struct fleet_rank *rank, uint32_t first, uint32_t count,
                           uint32_t seed);

/* Rooms with consecutive pages; they fail the test when the call itself is refused. */
baton_sender *fleet_sender(struct fleet_rank *rank, uint64_t room, const char *bootstrap);
void fleet_send(baton_sender *sender, uint32_t first, uint32_t count);
baton_receiver *fleet_receiver(struct fleet_rank *rank, uint64_t room, const char *bootstrap);
int fleet_grant(baton_receiver *receiver, uint32_t first, uint32_t count);
void fleet_sender_is(baton_sender *sender, int state); /* waits; says the reason when FAILED */
void fleet_receiver_is(baton_receiver *receiver, int state);

/* ---- workers: real processes -------------------------------------------------------------- */

enum fleet_op {
    FLEET_BOOTSTRAP, /* opens a bootstrap server; value: its port */
    FLEET_OPEN,      /* opens the rank with `options`; value: its port */
    FLEET_SENDER,    /* opens a sender for `room` (deadline_ms) */
    FLEET_INIT,      /* sender: announces `count` pages. receiver: grants first, count */
    FLEET_SEND,      /* sends pages first, count; last where the announced number is reached */
    FLEET_RECEIVER,  /* opens a receiver for `room` (deadline_ms) */
    FLEET_STATE,     /* fills state, failure, text, fenced, timeline of the room */
    FLEET_WAIT,      /* the same, after the room reached `state`, or a final one */
    FLEET_FENCE,     /* the same, after the room was fenced */
    FLEET_ABORT,     /* with `text` */
    FLEET_END,       /* closes the handle */
    FLEET_FILL,      /* pages first, count with `seed` */
    FLEET_CHECK,     /* value: bytes that are not so */
    FLEET_COUNTERS,
    FLEET_FILES,     /* at most `count` more open files in that process */
    FLEET_CPU,       /* value: microseconds of processor time that the process has used */
    FLEET_MEMORY,    /* value: resident kilobytes */
    FLEET_MANY,      /* `count` rooms from `room` on, all opened, with page first + i each:
                        `sender` or not; sends or grants at once */
    FLEET_MANY_WAIT, /* until all of them have the final `state`; value: how many have not */
    FLEET_MANY_ABORT,
    FLEET_MANY_FENCE,
    FLEET_MANY_END,
    FLEET_CLOSE, /* closes the manager */
    FLEET_QUIT,
};

struct fleet_order {
    uint32_t op;
    uint32_t sender; /* 1: the worker's sender of the room, 0: its receiver */
    uint64_t room;
    uint32_t first, count, seed, state, deadline_ms;
    char text[128];
    struct fleet_options options;
};

struct fleet_reply {
    int32_t code; /* of the call */
    uint32_t state, fenced;
    uint32_t committed; /* sender: its last COMMIT is out */
    int32_t failure;
    uint64_t value;
    char text[512]; /* of the call's error, or why the room failed */
    baton_counters counters;
    baton_timeline timeline;
};

struct fleet_worker {
    pid_t pid; /* 0: none */
    int channel;
};

/* A new process that waits for orders. Fails the test when there is none to be had. */
struct fleet_worker *fleet_start(void);
/* One order and its answer; fails the test when the worker has died or does not answer. */
struct fleet_reply fleet_order(struct fleet_worker *worker, struct fleet_order order);
/* Orders it without waiting for the answer (it may stop or die over it) / takes the answer. */
void fleet_tell(struct fleet_worker *worker, struct fleet_order order);
struct fleet_reply fleet_answer(struct fleet_worker *worker);
void fleet_signal(struct fleet_worker *worker, int signal);
void fleet_await_stopped(struct fleet_worker *worker); /* by SIGSTOP, whoever sent it */
void fleet_kill(struct fleet_worker *worker);          /* SIGKILL, and waits for it */
void fleet_await_death(struct fleet_worker *worker);   /* that killed itself */
void fleet_quit(struct fleet_worker *worker);          /* must exit with 0: nothing leaked */
int fleet_teardown(void **state);                      /* cmocka: kills what is left */

/* Shorthands; each asserts that the call was accepted. */
uint32_t fleet_bootstrap(struct fleet_worker *worker);
void fleet_open(struct fleet_worker *worker, struct fleet_options options);
struct fleet_reply fleet_room_state(struct fleet_worker *worker, bool sender, uint64_t room);
struct fleet_reply fleet_room_wait(struct fleet_worker *worker, bool sender, uint64_t room,
                                   int state);

#endif
