/* SPDX-License-Identifier: Apache-2.0 */
/* The router: one address for clients, and many workers behind it. Requests go to a pair of prefill and
 * decode workers (or to one that does both), answers come back as they are made.
 *
 *   client ---- POST ----> router ---- the body, and a room ----> prefill worker
 *                            |                                       | pages
 *                            +-------- the same ----------------> decode worker
 *   client <--- tokens ------+-------- tokens ----------------------/
 */
#ifndef BATON_ROUTER_ROUTER_H
#define BATON_ROUTER_ROUTER_H

#include "policy.h"

enum router_flow {
    ROUTER_PAIR,        /* prefill and decode get the request at the same time */
    ROUTER_DECODE_FIRST /* only decode does; it finds a prefill worker itself */
};

struct router_options {
    const char *host; /* NULL: all addresses */
    uint16_t port;    /* 0: any */
    uint32_t threads; /* event loops */
    enum router_flow flow;
    const struct policy *policy;
    uint64_t body_max;      /* 0: the server's usual */
    uint32_t max_in_flight; /* more requests are refused with 429 */
    uint32_t retries;       /* on other workers, while the client has seen nothing */
    const char *api_key;    /* of clients, and shown to workers; NULL: none */
    const char *certificate, *certificate_key; /* PEM files; NULL: plain HTTP */
    const char *worker_authority;              /* PEM file for https to workers */
    bool worker_unchecked;                     /* take any certificate of theirs */
    /* 0: no limit */
    uint32_t connect_ms;    /* until a worker has taken the connection */
    uint32_t first_byte_ms; /* until its answer begins */
    uint32_t stall_ms;      /* between two pieces of a stream */
    uint32_t total_ms;      /* for all of an answer */
    /* health */
    uint32_t health_ms, health_timeout_ms, load_ms;
    uint32_t health_failures; /* so many in a row, and it is out */
};
#define ROUTER_OPTIONS_INIT                                                                   \
    {                                                                                         \
        .threads = 1, .policy = &policy_round_robin, .max_in_flight = 4096, .retries = 1,     \
        .connect_ms = 2000, .first_byte_ms = 600000, .stall_ms = 120000, .total_ms = 1800000, \
        .health_ms = 5000, .health_timeout_ms = 5000, .load_ms = 1000, .health_failures = 2,  \
    }

struct router;

int router_open(const struct router_options *options, struct router **out, struct error err);
/* Any thread. bootstrap_port: that of a prefill worker, or UPSTREAM_PORT_UNKNOWN. The worker is used
 * from its first good answer to /health on. */
int router_add(struct router *router, enum upstream_role role, const char *url,
               int bootstrap_port, struct error err);
int router_remove(struct router *router, const char *url, struct error err);
uint16_t router_port(const struct router *router);
/* Can a request be served now? */
bool router_ready(struct router *router);
/* No new connections; what is there goes on. */
void router_drain(struct router *router);
uint32_t router_busy(const struct router *router); /* requests whose answer is not out */
void router_close(struct router *router);          /* cuts what is left; NULL is fine */

#endif
