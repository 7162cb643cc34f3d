/* SPDX-License-Identifier: Apache-2.0 */
/* How a decode rank gets from "host:port" of a bootstrap server to a link with a prefill rank, and
 * gets it back after it was lost. A site is a bootstrap address with its topology, a route is one
 * rank behind it. Cached while the links live, dropped with them. Link thread only. */
#ifndef BATON_TRANSFER_ROUTE_H
#define BATON_TRANSFER_ROUTE_H

#include "bootstrap.h"
#include "room.h"

struct link;
struct manager;

struct site {
    struct manager *manager;
    struct site *next;
    char address[128];
    bool known;
    struct bootstrap_topology topology;
    struct bootstrap_call *call;
    uint64_t retry_ns;
    uint32_t backoff_ms;
    char trouble[WIRE_TEXT_MAX]; /* the last answer, for the room that gives up */
};

#define ROUTE_AVOIDED_MAX 4 /* backends that are made after the link is up */

struct route {
    struct manager *manager;
    struct route *next;
    char address[128];
    uint32_t dp_rank, tp_rank, pp_rank;
    struct bootstrap_call *call;
    struct link *link;   /* connecting or up */
    struct leg *waiting; /* legs that want this link */
    uint64_t retry_ns;
    uint32_t backoff_ms;
    uint64_t keep_until_ns; /* reconnect on our own until then, for the other side's doubts */
    char trouble[WIRE_TEXT_MAX];
    struct route_avoided {
        char backend[16]; /* that did not work with this rank, and why */
        char why[160];
        uint64_t until_ns;
    } avoided[ROUTE_AVOIDED_MAX];
};

struct site *site_find(struct manager *manager, const char *address);
void site_want(struct site *site); /* for a new room: asked soon, if it is not known */
/* Known, or NULL and it is being asked for; receiver_progress runs when it is there. */
const struct bootstrap_topology *site_topology(struct site *site);

struct route *route_find(struct manager *manager, const char *address, uint32_t dp_rank,
                         uint32_t tp_rank, uint32_t pp_rank);
void route_want(struct route *route, struct leg *leg); /* receiver_leg_ready follows */
void route_link_up(struct route *route);
/* refused: the peer will not have us (layout, key); asking again would not help. */
void route_link_down(struct route *route, int code, const char *text, bool refused,
                     bool was_up);
/* The backend is passed over on this route until then. */
void route_avoid(struct route *route, const char *backend, const char *why, uint64_t until_ns);
const char *route_avoids(const struct route *route, const char *backend); /* why, or NULL */
void route_tick(struct manager *manager, uint64_t now_ns);
void route_drop_all(struct manager *manager);

#endif
