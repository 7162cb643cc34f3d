/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that do what a test wants, good or bad, on the real HTTP server; and a router in front of
 * them. */
#ifndef BATON_TESTS_FAKE_WORKER_H
#define BATON_TESTS_FAKE_WORKER_H

#include "router/router.h"

#include "net/http_server.h"

#include <pthread.h>

enum manner {
    MANNER_ANSWER,  /* {"by":"NAME"} */
    MANNER_STREAM,  /* events: "0", and after fake_go "1" and [DONE] */
    MANNER_STATUS,  /* `status`, with an error that has the name in it */
    MANNER_NEVER,   /* no answer */
    MANNER_CUT,     /* the connection ends without an answer */
    MANNER_HEAD,    /* a stream's head, and nothing more */
    MANNER_HALF,    /* an event, then the connection ends */
    MANNER_SHORT,   /* less than Content-Length says: the raw server does it */
    MANNER_GARBAGE, /* no HTTP: the raw server does it */
    MANNER_ENDLESS, /* as much as is taken */
    MANNER_RATED, /* log-probabilities of a prompt: prefill's list has its name, decode's is empty */
};

struct fake {
    const char *name;
    struct http_server *server;
    uint16_t port;
    char url[64];
    atomic_uint manner, status;
    atomic_bool sick;     /* /health is 503 */
    atomic_uint requests; /* for tokens */
    atomic_uint left;     /* clients that left before their answer */
    atomic_uint flushed, load;
    atomic_size_t written; /* by MANNER_ENDLESS */
    pthread_mutex_t mutex;
    /* mutex: */
    char body[4096]; /* the last one */
    char request_id[128], authorization[128];
    struct http_exchange *waiting;
    struct http_loop *loop;
    /* the raw server */
    int listener;
    pthread_t thread;
};

void fake_open(struct fake *fake, const char *name, enum manner manner);
/* On the same port again after fake_close. */
void fake_reopen(struct fake *fake);
void fake_close(struct fake *fake);
/* A worker that speaks no HTTP after its /health: MANNER_SHORT or MANNER_GARBAGE. */
void raw_open(struct fake *fake, const char *name, enum manner manner);
void raw_close(struct fake *fake);
void fake_go(struct fake *fake); /* the stream goes on to its end */
void fake_body(struct fake *fake, char out[4096]);

/* Waits until it is so; fails the test after a long while. */
#define AWAIT(condition)                                               \
    do {                                                               \
        for (int tries_ = 0; !(condition) && tries_ < 20000; tries_++) \
            fake_moment();                                             \
        assert_true(condition);                                        \
    } while (0)
void fake_moment(void);

/* ---- the router ----------------------------------------------------------------------------- */

struct bench {
    struct router *router;
    uint16_t port;
};
/* Times are short; options may be NULL. The roles of the fakes are their names' first letters: p, d or
 * m. Waits until all of them are up. */
void bench_open(struct bench *bench, const struct router_options *options,
                struct fake *const *fakes, uint32_t count);
void bench_close(struct bench *bench);
struct router_options bench_options(void);
/* Sends a request; the connection. */
int bench_post(const struct bench *bench, const char *path, const char *body);
/* The same, and the answer's status; the body's beginning in `out` (may be NULL). */
int bench_ask(const struct bench *bench, const char *path, const char *body, char out[4096]);
int bench_get(const struct bench *bench, const char *method, const char *path, char out[4096]);
double bench_metric(const struct bench *bench, const char *name);

#endif
