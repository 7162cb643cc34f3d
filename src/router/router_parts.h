/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the router share:
 *
 *   router.c          open, close, the loops, paths
 *   relay.c           a request and its legs: from the client to the workers, and what to do when one fails
 *   relay_answer.c    the answer's way back
 *   relay_logprobs.c  what of the answer prefill has
 *   fan_out.c         requests that go to all workers, and one answer out of theirs
 *   upstream_probe.c  health and load
 *   workers_api.c     what operators see and change
 *   router_metrics.c  numbers
 *
 * Threads. Everything of a request belongs to the loop that took it. Loops share the upstreams
 * (upstream.h) and the table behind them. Numbers are counted per loop, and added up when asked for. */
#ifndef BATON_ROUTER_ROUTER_PARTS_H
#define BATON_ROUTER_ROUTER_PARTS_H

#include "router.h"
#include "router_metrics.h"

#include "net/http_client.h"
#include "net/http_server.h"

#include <sys/queue.h>

#define ROUTER_THREADS_MAX 64
#define ROUTER_RANDOM_WORDS 64

struct relay;
struct fan_out;
struct probe;

struct router_loop {
    struct router *router;
    struct http_loop *loop;
    struct http_client *client;
    struct upstream_set *set; /* held */
    struct policy_memory memory;
    LIST_HEAD(, relay) relays;
    LIST_HEAD(, fan_out) fan_outs;
    LIST_HEAD(, probe) probes; /* only the first loop has any */
    struct http_timer *sweep, *probing;
    bool closing;
    uint64_t random[ROUTER_RANDOM_WORDS];
    uint32_t random_left;
    struct router_numbers numbers;
};

struct router {
    struct router_options options;
    char *authorization; /* "Bearer KEY" for our own requests; NULL: none */
    struct http_server *server;
    struct upstream_table *table;
    atomic_bool ready;      /* the loops are set up */
    atomic_uint loops_left; /* of a step that all loops take */
    atomic_uint in_flight;
    uint64_t began_ns;
    struct router_loop loops[ROUTER_THREADS_MAX];
};

/* ---- router.c ---- */
struct router_loop *router_loop_of(struct router *router, struct http_exchange *exchange);
uint64_t router_random(struct router_loop *loop); /* of the system's quality */
/* Makes every loop take the current list. */
void router_refresh(struct router *router);

/* ---- relay.c ---- */
enum relay_kind {
    RELAY_GENERATE, /* to prefill and decode, or to one that does both */
    RELAY_ANY       /* to any one worker, as it is */
};
void relay_start(struct router_loop *loop, struct http_exchange *exchange, enum relay_kind kind,
                 uint64_t began_ns);
/* Once a second: answers that stall, workers that went down, prefill legs that nobody waits for. */
void relay_sweep(struct router_loop *loop);
void relay_cut_all(struct router_loop *loop);

/* ---- fan_out.c ---- */
void fan_out_start(struct router_loop *loop, struct http_exchange *exchange);
void fan_out_cut_all(struct router_loop *loop);

/* ---- upstream_probe.c ---- */
void probe_tick(struct router_loop *loop); /* starts what is due */
void probe_cut_all(struct router_loop *loop);

/* ---- workers_api.c ---- */
void workers_list(struct router_loop *loop, struct http_exchange *exchange);
void workers_change(struct router_loop *loop, struct http_exchange *exchange);
void workers_readiness(struct router_loop *loop, struct http_exchange *exchange);

/* ---- router_metrics.c ---- */
void router_metrics_reply(struct router *router, struct http_exchange *exchange);

#endif
