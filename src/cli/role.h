/* SPDX-License-Identifier: Apache-2.0 */
/* Two real processes for measurements and for the demo. The command that a person typed is the
 * parent: it decides what happens and prints. It starts this program again, once as prefill and
 * once as decode (`baton role`, hidden), and talks to each over a socket pair, one request and
 * one answer at a time. Requests and answers are plain structs: both ends are the same binary.
 *
 *   parent ---- OPEN ROOM LIMIT HOLD WATCH ----> prefill   bootstrap server, senders
 *          ---- OPEN ROOM HOLD WATCH ----------> decode    receivers, verification
 *
 * Times are CLOCK_MONOTONIC, which is the same clock in every process of a machine. */
#ifndef BATON_CLI_ROLE_H
#define BATON_CLI_ROLE_H

#include "bench_pages.h"

#include <sys/types.h>

#define ROLE_ROOMS_MAX 256

enum role_kind {
    ROLE_OPEN = 1,  /* pools and managers; prefill answers with the bootstrap port */
    ROLE_ROOM = 2,  /* one hand-over from open to its end */
    ROLE_LIMIT = 3, /* one memcpy of the same pages */
    ROLE_HOLD = 4,  /* `rooms` rooms, half of each sent, left like that */
    ROLE_WATCH = 5, /* until every held room has failed and is fenced */
};

struct role_request {
    uint32_t kind;
    uint32_t bootstrap_port; /* OPEN, decode */
    struct bench_case work;  /* OPEN */
    uint64_t room;           /* ROOM; HOLD: the first */
    uint32_t rooms;          /* HOLD */
    uint32_t first, count;   /* ROOM: positions of the sequence */
    uint32_t chunks;         /* ROOM, prefill: send in so many pieces; 0: 1 */
    uint32_t pace_us;        /* ROOM, prefill: between pieces, as if they were being computed */
    uint32_t wait_grants;    /* ROOM, prefill: send when the receivers are ready, not at once */
    uint32_t progress;       /* ROOM, prefill: a PROGRESS answer after each piece */
    uint64_t start_ns;       /* ROOM: do not open before this time; 0: now */
};

enum role_answer_kind { ROLE_DONE = 1, ROLE_PROGRESS = 2 };

struct role_answer {
    uint32_t kind;
    int32_t code; /* of the role itself; a room that failed has room_code */
    char text[512];
    uint32_t bootstrap_port;

    int32_t room_code; /* 0: SUCCESS on every rank */
    char room_text[512];
    uint64_t open_ns, ready_ns, send_ns, end_ns,
        fenced_ns; /* ready: grants in; send: last chunk */
    uint64_t first_send_ns;
    uint64_t bytes, operations;   /* over all ranks */
    uint64_t requests, doorbells; /* the same; RDMA */
    uint64_t copy_ns;             /* longest time between first and last byte of a rank */
    uint64_t wrong_bytes;
    char wrong_where[160];
    baton_timeline timeline;    /* of rank 0 */
    uint32_t pages_quarantined; /* when the room had failed, before it was fenced */
    double seconds;             /* LIMIT */
};

/* ---- parent ------------------------------------------------------------------------------ */
struct role {
    const char *name; /* "prefill" or "decode" */
    pid_t pid;
    int fd;
    bool killed; /* by us, so that its end is no surprise */
};

int role_start(const char *name, struct role *out, struct error err);
int role_ask(struct role *role, const struct role_request *request, struct error err);

/* The next answer, PROGRESS ones included. An answer with a code, a dead process and silence
 * are all errors, with a sentence that says which process and why. */
int role_answer(struct role *role, struct role_answer *answer, uint32_t timeout_ms,
                struct error err);
void role_kill(struct role *role); /* kill -9; role_stop is still to be called */

/* Lets it close what is open, but not for ever. A process that crashes on its way out is an
 * error, unless *rc holds an earlier one, which is then the one to tell. */
void role_stop(struct role *role, int *rc, struct error err);

/* Both, ready for rooms. Stop both afterwards, whatever this returns. */
int role_pair_open(const struct bench_case *work, struct role *prefill, struct role *decode,
                   struct error err);

/* One room on both. The answers say how it ended; an error only that it could not be asked. */
int role_pair_room(struct role *prefill, struct role *decode,
                   const struct role_request *request, struct role_answer *sent,
                   struct role_answer *received, struct error err);

/* ---- child ------------------------------------------------------------------------------- */
int role_main(int argc, char **argv);

#endif
