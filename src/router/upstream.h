/* SPDX-License-Identifier: Apache-2.0 */
/* The workers as the router sees them: what is known of each, and the lists of them.
 *
 * Threads. An upstream is shared by all loops, and nothing on the way of a request waits for another
 * thread: what changes is in atomic words of which none has to agree with another (a count that is one
 * request old only makes a choice a little worse). The list itself never changes: a new one is made and
 * every loop takes it when it gets to it. Both live as long as somebody holds them. */
#ifndef BATON_ROUTER_UPSTREAM_H
#define BATON_ROUTER_UPSTREAM_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>

#define UPSTREAMS_MAX 512

enum upstream_role { UPSTREAM_MIXED, UPSTREAM_PREFILL, UPSTREAM_DECODE, UPSTREAM_ROLES };
const char *upstream_role_name(enum upstream_role role); /* "mixed", "prefill", "decode" */
/* The other way round; SGLang's "regular" is mixed. False: none of them. */
bool upstream_role_parse(const char *name, enum upstream_role *out);

enum upstream_state {
    UPSTREAM_NEW,  /* has not answered yet */
    UPSTREAM_UP,   /* answers */
    UPSTREAM_DOWN, /* has answered before */
};

/* So many failures in a row shut an upstream out for a while; then one request at a time may try. */
#define UPSTREAM_FAILURES_MAX 5
#define UPSTREAM_SHUT_MS 10000u
#define UPSTREAM_REST_MS 300u /* after "not now" */
#define UPSTREAM_PORT_UNKNOWN (-1)

struct http_request;

struct upstream {
    /* never change */
    uint64_t number;
    enum upstream_role role;
    char url[288]; /* without a slash at the end */
    char host[256];
    bool port_given; /* the bootstrap port, so that it need not be asked for */
    /* any thread */
    atomic_uint holders;
    atomic_uint state;          /* enum upstream_state */
    atomic_int bootstrap_port;  /* of prefill, or UPSTREAM_PORT_UNKNOWN */
    atomic_uint in_flight;      /* requests of ours */
    atomic_uint other_requests; /* that others have there, as of its last load report */
    atomic_uint token_permille; /* of its pool that is in use */
    atomic_uint failures;       /* in a row */
    _Atomic uint64_t shut_until_ns, rests_until_ns;
    atomic_bool doubted; /* its health is to be checked now */
    _Atomic uint64_t requests_total, failures_total;
    /* owner: the loop that probes */
    uint32_t health_failures;
    uint64_t health_due_ns, load_due_ns;
    bool health_asked, load_asked, info_asked;
};

/* bootstrap_port: UPSTREAM_PORT_UNKNOWN: it is asked for. BATON_EINVAL for a bad URL. */
int upstream_open(enum upstream_role role, const char *url, int bootstrap_port,
                  struct upstream **out, struct error err);
struct upstream *upstream_hold(struct upstream *upstream);
void upstream_release(struct upstream *upstream); /* NULL is fine */

bool upstream_is_up(const struct upstream *upstream);
/* Up, and not shut out by its failures. */
bool upstream_usable(const struct upstream *upstream, uint64_t now_ns);
/* What requests and probes have to tell about it. True: its state is another now. */
bool upstream_answered(struct upstream *upstream);    /* a request has its answer */
bool upstream_failed(struct upstream *upstream);      /* a request has not: a broken answer */
bool upstream_unreachable(struct upstream *upstream); /* nobody is there: down at once */
/* It has said "not now" (503): it is full, or loads its model, or ends. It is left alone for a moment, and
 * asked for its health. */
void upstream_rests(struct upstream *upstream);
bool upstream_set_state(struct upstream *upstream, enum upstream_state state);

/* ---- lists ---------------------------------------------------------------------------------- */

struct upstream_set {
    atomic_uint holders;
    uint32_t count;
    uint32_t
        first[UPSTREAM_ROLES + 1]; /* where those of a role begin; the next one's: their end */
    struct upstream *items[];
};

struct upstream_set *upstream_set_hold(struct upstream_set *set);
void upstream_set_release(struct upstream_set *set);
/* How many of a role there are, and of them can be used. */
void upstream_set_count(const struct upstream_set *set, enum upstream_role role,
                        uint32_t *there, uint32_t *usable);

/* The current list. Its functions lock, and are for changes, not for requests. */
struct upstream_table;
int upstream_table_open(struct upstream_table **out, struct error err);
void upstream_table_close(struct upstream_table *table);
struct upstream_set *upstream_table_get(struct upstream_table *table); /* held for the caller */
/* Takes the caller's hold. BATON_EEXIST: the URL is there already, BATON_ELIMIT, BATON_ENOMEM: then the
 * hold is still the caller's. */
int upstream_table_add(struct upstream_table *table, struct upstream *upstream,
                       struct error err);
/* By its URL or its number as text. BATON_ENOTFOUND. */
int upstream_table_remove(struct upstream_table *table, const char *name, struct error err);

#endif
