/* SPDX-License-Identifier: Apache-2.0 */
/* See route.h. Every question that is answered "not yet" is asked again, from 20 ms doubling to
 * ROUTE_BACKOFF_MAX_MS, for as long as a room waits: a receiver that comes before the sender has
 * registered just waits, and says nothing. After a link broke, the route reconnects by itself for a
 * while, because the other side may be in doubt about rooms whose LANDED was lost; and without end
 * while pages are in quarantine. A new room does not wait for an interval that grew before it came:
 * whoever was not there then may be back. */
#include "route.h"

#include "base/clock.h"
#include "base/log.h"
#include "link.h"
#include "manager.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUTE_BACKOFF_MIN_MS 20
#define ROUTE_BACKOFF_MAX_MS 1000

static uint64_t backoff_next(uint32_t *backoff_ms)
{
    *backoff_ms = *backoff_ms ? *backoff_ms * 2 : ROUTE_BACKOFF_MIN_MS;
    if (*backoff_ms > ROUTE_BACKOFF_MAX_MS)
        *backoff_ms = ROUTE_BACKOFF_MAX_MS;
    return clock_now_ns() + *backoff_ms * NS_PER_MS;
}

/* The next question is asked soon, however long the interval has become. */
static void backoff_shorten(uint32_t *backoff_ms, uint64_t *retry_ns)
{
    uint64_t soon = clock_now_ns() + ROUTE_BACKOFF_MIN_MS * NS_PER_MS;
    *backoff_ms = 0;
    if (*retry_ns > soon)
        *retry_ns = soon;
}

/* ---- sites ---- */

struct site *site_find(struct manager *manager, const char *address)
{
    for (struct site *site = manager->sites; site; site = site->next)
        if (strcmp(site->address, address) == 0)
            return site;
    struct site *site = calloc(1, sizeof(*site));
    if (!site)
        return NULL;
    site->manager = manager;
    snprintf(site->address, sizeof(site->address), "%s", address);
    site->next = manager->sites;
    manager->sites = site;
    return site;
}

static void site_on_topology(void *arg, int code, const char *text,
                             const struct bootstrap_topology *topology)
{
    struct site *site = arg;
    struct manager *manager = site->manager;
    site->call = NULL;
    if (code == BATON_OK) {
        site->known = true;
        site->topology = *topology;
        site->backoff_ms = 0;
        site->trouble[0] = 0;
        for (struct room *room = manager->live, *next; room; room = next) {
            next = room->live_next;
            if (room->role == ROOM_RECEIVER && !room->resolved &&
                strcmp(room->bootstrap, site->address) == 0)
                receiver_progress(room);
        }
        return;
    }
    snprintf(site->trouble, sizeof(site->trouble), "%s", text);
    site->retry_ns = backoff_next(&site->backoff_ms);
    if (code == BATON_AGAIN)
        return;
    LOG_INFO(route, "bootstrap %s: %s", site->address, text);
}

void site_want(struct site *site)
{
    backoff_shorten(&site->backoff_ms, &site->retry_ns);
}

const struct bootstrap_topology *site_topology(struct site *site)
{
    if (site->known)
        return &site->topology;
    if (!site->call && clock_now_ns() >= site->retry_ns)
        site->call = bootstrap_get_topology(site->manager->runtime->bootstrap, site->address,
                                            site_on_topology, site);
    return NULL;
}

/* ---- routes ---- */

struct route *route_find(struct manager *manager, const char *address, uint32_t dp_rank,
                         uint32_t tp_rank, uint32_t pp_rank)
{
    for (struct route *route = manager->routes; route; route = route->next)
        if (route->dp_rank == dp_rank && route->tp_rank == tp_rank &&
            route->pp_rank == pp_rank && strcmp(route->address, address) == 0)
            return route;
    struct route *route = calloc(1, sizeof(*route));
    if (!route)
        return NULL;
    route->manager = manager;
    snprintf(route->address, sizeof(route->address), "%s", address);
    route->dp_rank = dp_rank;
    route->tp_rank = tp_rank;
    route->pp_rank = pp_rank;
    route->next = manager->routes;
    manager->routes = route;
    return route;
}

static void route_on_rank(void *arg, int code, const char *text,
                          const struct bootstrap_rank *rank)
{
    struct route *route = arg;
    route->call = NULL;
    if (code == BATON_OK) {
        route->link =
            link_initiate(route->manager, rank->rank_ip, rank->rank_port, rank->epoch, route);
        if (route->link)
            return;
        text = "cannot start a connection";
    }
    snprintf(route->trouble, sizeof(route->trouble), "%s", text);
    route->retry_ns = backoff_next(&route->backoff_ms);
}

static void route_try(struct route *route)
{
    if (route->link || route->call || clock_now_ns() < route->retry_ns ||
        route->manager->closing)
        return;
    route->call =
        bootstrap_get_rank(route->manager->runtime->bootstrap, route->address, route->dp_rank,
                           route->tp_rank, route->pp_rank, route_on_rank, route);
}

static void route_wait(struct route *route, struct leg *leg)
{
    if (leg->route_slot)
        return;
    leg->route_next = route->waiting;
    leg->route_slot = &route->waiting;
    if (leg->route_next)
        leg->route_next->route_slot = &leg->route_next;
    route->waiting = leg;
}

void route_want(struct route *route, struct leg *leg)
{
    leg->route = route;
    if (route->link && route->link->state == LINK_READY) {
        receiver_leg_ready(leg);
        return;
    }
    if (!route->waiting && !route->link)
        route->trouble[0] = 0; /* of the past; this leg's own is still to come */
    backoff_shorten(&route->backoff_ms, &route->retry_ns);
    route_wait(route, leg);
    route_try(route);
}

void route_link_up(struct route *route)
{
    struct link *link = route->link;
    route->backoff_ms = 0;
    route->trouble[0] = 0;
    /* A leg that is ready leaves the list; its room may send others with it. */
    while (route->waiting && link->state == LINK_READY) {
        struct leg *leg = route->waiting;
        leg_detach(leg);
        receiver_leg_ready(leg);
    }
}

void route_link_down(struct route *route, int code, const char *text, bool refused, bool was_up)
{
    struct site *site = site_find(route->manager, route->address);
    uint64_t now = clock_now_ns();
    route->link = NULL;
    if (site)
        site->known = false; /* the group may have come back with another shape */
    snprintf(route->trouble, sizeof(route->trouble), "%s", text);
    if (was_up) {
        route->backoff_ms = 0;
        route->retry_ns = now;
        route->keep_until_ns = now + route->manager->config.match_timeout_ms * NS_PER_MS;
    } else {
        route->retry_ns = backoff_next(&route->backoff_ms);
    }
    if (!refused)
        return;
    /* Asking again would get the same answer: the rooms that wait hear it now. */
    for (struct leg *leg = route->waiting, *next; leg; leg = next) {
        next = leg->route_next;
        if (leg->fence_remote)
            continue;
        struct room *room = leg->room;
        room->held = true;
        leg_detach(leg);
        room_fail(room, code, "%s", text);
        leg->abort_owed = false; /* link_part has told them, or they are not to be talked to */
        room->held = false;
        room_settle(room);
        next = route->waiting; /* that may have ended other legs */
    }
}

void route_avoid(struct route *route, const char *backend, const char *why, uint64_t until_ns)
{
    struct route_avoided *slot = &route->avoided[0];
    for (uint32_t i = 0; i < ROUTE_AVOIDED_MAX; i++) {
        struct route_avoided *at = &route->avoided[i];
        if (strcmp(at->backend, backend) == 0) {
            slot = at;
            break;
        }
        if (at->until_ns < slot->until_ns) /* free, or the oldest */
            slot = at;
    }
    snprintf(slot->backend, sizeof(slot->backend), "%s", backend);
    snprintf(slot->why, sizeof(slot->why), "%s", why);
    slot->until_ns = until_ns;
}

const char *route_avoids(const struct route *route, const char *backend)
{
    for (uint32_t i = 0; i < ROUTE_AVOIDED_MAX; i++)
        if (strcmp(route->avoided[i].backend, backend) == 0 &&
            clock_now_ns() < route->avoided[i].until_ns)
            return route->avoided[i].why;
    return NULL;
}

static bool route_wanted(const struct route *route, uint64_t now_ns)
{
    return route->waiting || now_ns < route->keep_until_ns;
}

void route_tick(struct manager *manager, uint64_t now_ns)
{
    for (struct route *route = manager->routes; route; route = route->next)
        if (route_wanted(route, now_ns))
            route_try(route);
}

void route_drop_all(struct manager *manager)
{
    while (manager->routes) {
        struct route *route = manager->routes;
        manager->routes = route->next;
        if (route->call)
            bootstrap_cancel(route->call);
        free(route);
    }
    while (manager->sites) {
        struct site *site = manager->sites;
        manager->sites = site->next;
        if (site->call)
            bootstrap_cancel(site->call);
        free(site);
    }
}
