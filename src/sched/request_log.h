/* SPDX-License-Identifier: Apache-2.0 */
/* What happened to each request, and when: a ring of the latest ones, those that still run included.
 * The scheduler's thread writes, a few times per request; any thread reads a copy. */
#ifndef BATON_SCHED_REQUEST_LOG_H
#define BATON_SCHED_REQUEST_LOG_H

#include "generation.h"

#include <pthread.h>

#define REQUEST_LOG_ENTRIES 4096u

/* Moments, in the order in which they usually come. Not every request has all of them. */
#define REQUEST_MOMENTS(X)                                                            \
    X(QUEUED, "queued")             /* it was submitted */                            \
    X(BOOTSTRAPPED, "bootstrapped") /* both sides know of its room */                 \
    X(GRANTED, "granted")           /* decode has given pages; prefill has seen it */ \
    X(ADMITTED, "admitted")         /* its first piece is in a step */                \
    X(FIRST_SENT, "first_sent")     /* the first pages went out */                    \
    X(COMPUTED, "computed")         /* all of the prompt */                           \
    X(LAST_BYTE, "last_byte")       /* all pages were written, or counted */          \
    X(LANDED, "landed")             /* and both sides know it */                      \
    X(FIRST_TOKEN, "first_token")   /* it was delivered */                            \
    X(FINISHED, "finished")
enum request_moment {
#define REQUEST_MOMENT_ENUM(name, text) MOMENT_##name,
    REQUEST_MOMENTS(REQUEST_MOMENT_ENUM)
#undef REQUEST_MOMENT_ENUM
        MOMENT_COUNT
};
const char *request_moment_name(enum request_moment moment);

struct request_record {
    uint64_t number; /* counts up; 0: there is none */
    char rid[GENERATION_RID_BYTES];
    enum handover_kind kind;
    uint64_t room;
    uint32_t prompt_tokens, cached_tokens, generated_tokens;
    enum generation_finish finish;
    char reason[160];
    uint64_t moments_ns[MOMENT_COUNT]; /* clock_now_ns; 0: has not happened */
    /* Of a hand-over: */
    uint64_t bytes, operations;
    uint64_t early_bytes; /* prefill: written when the prompt was computed */
    char backend[16], plan[176];
};

struct request_log {
    pthread_mutex_t lock;
    struct request_record *records; /* [REQUEST_LOG_ENTRIES] */
    uint64_t next;
};

int request_log_open(struct request_log *log); /* 0 or ENOMEM */
void request_log_close(struct request_log *log);

/* Returns its number. */
uint64_t request_log_add(struct request_log *log, const struct generation *generation);
void request_log_mark(struct request_log *log, uint64_t number, enum request_moment moment);
/* All of the prompt; so many bytes of it were written by then. */
void request_log_computed(struct request_log *log, uint64_t number, uint64_t early_bytes);
/* The room's own times, which count from its opening, and how its chunks went ("": unknown here). */
void request_log_transfer(struct request_log *log, uint64_t number, uint64_t opened_ns,
                          const baton_timeline *timeline, const char *chunks);
void request_log_finish(struct request_log *log, uint64_t number, enum generation_finish finish,
                        const char *reason, uint32_t cached, uint32_t generated);

/* The latest with that name. False: none, or it was long ago. */
bool request_log_find(struct request_log *log, const char *rid, struct request_record *out);

#endif
