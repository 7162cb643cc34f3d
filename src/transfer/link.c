/* SPDX-License-Identifier: Apache-2.0 */
/* See link.h. After the handshake of connection.c:
 *
 *   initiator (decode)                          acceptor (prefill)
 *               <-- REGISTER --                 its memory and its keys per backend
 *   ATTACH over AF_UNIX, with memfds, when the peer is on this host
 *               -- REGISTER -->                 ours, with the backends that work from our side
 *               <-- CHOICE --                   first that works from both sides, or a refusal
 *   READY       (tcp: data connections follow)  READY
 *
 * From then on frames of rooms pass in both directions, and a HEARTBEAT each second with the
 * owner's tick. The link ends by EOF, by silence, by a bad frame, by BYE, or when pidfd says that
 * the process is gone, whatever comes first; every room on it hears of it. */
#include "link.h"

#include "base/clock.h"
#include "base/log.h"
#include "manager.h"
#include "net/socket.h"
#include "route.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- life of a link ---- */

int manager_region_named(const struct manager *manager, const char *name)
{
    for (uint32_t i = 0; i < manager->region_count; i++)
        if (strcmp(manager->regions[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* A link can die in the middle of a function that still looks at it, so the memory goes to a list
 * that the next tick empties. */
static void link_bury(struct link *link)
{
    *link->slot = link->next;
    if (link->next)
        link->next->slot = link->slot;
    link->next = link->manager->dead_links;
    link->manager->dead_links = link;
}

void link_sweep(struct manager *manager)
{
    while (manager->dead_links) {
        struct link *link = manager->dead_links;
        manager->dead_links = link->next;
        socket_close(link->unix_fd);
        peer_release(link->peer);
        free(link->aux_map);
        free(link);
    }
}

static void link_down(struct link *link, int code, const char *text)
{
    bool was_up = link->state == LINK_READY;
    bool refused = code == BATON_EAUTH || code == BATON_ELAYOUT || code == BATON_EUNREACHABLE ||
                   code == BATON_EINVAL;
    struct manager *manager = link->manager;
    link->state = LINK_DEAD;
    if (was_up) {
        atomic_fetch_sub(&manager->links_up, 1);
        if (!manager->closing)
            atomic_fetch_add(&manager->links_lost, 1);
        if (link->degraded)
            atomic_fetch_sub(&manager->links_degraded, 1);
        LOG_INFO(link, "link with %s is down: %s", link->peer->name, text);
    }
    /* First the rails, then the rooms: where stop() is a fence it is passed now. */
    struct endpoint *endpoint = link->endpoint;
    link->endpoint = NULL;
    if (endpoint) {
        endpoint->ops->stop(endpoint);
        endpoint->stopped = true;
    }
    while (link->legs) {
        struct leg *leg = link->legs;
        leg_detach(leg);
        leg_link_lost(leg, code, text);
    }
    if (endpoint) {
        endpoint->link = NULL;
        endpoint_release(endpoint);
    }
    struct route *route = link->route;
    link_bury(link);
    if (route)
        route_link_down(route, code, text, refused, was_up);
}

void link_close(struct link *link, int code, const char *format, ...)
{
    char text[WIRE_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    connection_close(link->connection, code, "%s", text);
}

void link_drop(struct link *link)
{
    struct connection *connection = link->connection;
    link_down(link, BATON_EPEER, "the manager was closed");
    connection_drop(connection);
}

static struct link *link_new(struct manager *manager, bool initiator)
{
    struct link *link = calloc(1, sizeof(*link));
    if (!link)
        return NULL;
    link->manager = manager;
    link->initiator = initiator;
    link->unix_fd = -1;
    link->since_ns = link->heard_ns = link->sent_ns = link->peer_tick_ns = clock_now_ns();
    link->next = manager->links;
    link->slot = &manager->links;
    if (link->next)
        link->next->slot = &link->next;
    manager->links = link;
    return link;
}

/* ---- data streams ---- */

static void stream_setup_open(struct connection *connection);
static void stream_setup_close(struct connection *connection, int code, const char *text);
static void stream_setup_frame(struct connection *connection, const struct wire_header *header,
                               const uint8_t *payload)
{
    (void)payload;
    connection_close(connection, BATON_EPROTOCOL, "frame of type %u on a data connection",
                     header->type);
}

static const struct connection_handler stream_setup = {
    .on_open = stream_setup_open,
    .on_frame = stream_setup_frame,
    .on_close = stream_setup_close,
};

static struct link *link_by_session(struct manager *manager, uint64_t session)
{
    for (struct link *link = manager->links; link; link = link->next)
        if (link->session == session && link->state == LINK_READY)
            return link;
    return NULL;
}

/* Both sides: a data connection has shaken hands; it goes to the backend of its link. */
static void stream_setup_open(struct connection *connection)
{
    struct manager *manager = connection->manager;
    struct link *link = link_by_session(manager, connection->mine.session);
    uint32_t index = connection->mine.stream;
    char why[160];
    if (!link || link->peer->epoch != connection->peer_epoch ||
        !(link->endpoint->ops->capabilities & BACKEND_STREAMS)) {
        connection_close(connection, BATON_ENOTFOUND, "no link wants this data connection");
        return;
    }
    struct connection_rest rest;
    int fd = connection_detach(connection, &rest);
    int code = link->endpoint->ops->stream(link->endpoint, index, fd, &rest, ERROR_BUFFER(why));
    if (code != BATON_OK)
        link_close(link, code, "data connection %u: %s", index, why);
}

static void stream_setup_close(struct connection *connection, int code, const char *text)
{
    struct link *link = link_by_session(connection->manager, connection->mine.session);
    if (link && connection->initiator)
        link_close(link, code, "data connection %u: %s", connection->mine.stream, text);
}

void link_open_streams(struct link *link, const char *host, uint16_t port)
{
    for (uint32_t i = 0; i < link->endpoint->rail_count; i++) {
        struct wire_hello hello = {.kind = WIRE_KIND_STREAM,
                                   .stream = (uint16_t)i,
                                   .session = link->session,
                                   .expected_epoch = link->peer->epoch};
        if (!connection_connect(link->manager, host, port, &hello, &stream_setup, NULL)) {
            link_close(link, BATON_EPEER, "cannot open data connection %u to %s", i,
                       link->peer->name);
            return;
        }
    }
}

/* ---- frames ---- */

static void link_on_heartbeat(struct link *link, const struct wire_heartbeat *heartbeat)
{
    if (heartbeat->tick != link->peer_tick) {
        link->peer_tick = heartbeat->tick;
        link->peer_tick_ns = link->heard_ns;
    }
}

#define LINK_DECODE(name, variable)                                                           \
    struct wire_##name variable;                                                              \
    if (wire_##name##_get(payload, header->length, &variable, ERROR_BUFFER(why)) != BATON_OK) \
    goto bad

static void link_on_frame(struct connection *connection, const struct wire_header *header,
                          const uint8_t *payload)
{
    struct link *link = connection->owner;
    char why[160] = "not expected here";
    link->heard_ns = clock_now_ns();
    if (header->type == WIRE_REGISTER) {
        link_on_register(link, header, payload);
        return;
    }
    if (header->type == WIRE_CHOICE) {
        link_on_choice(link, header, payload);
        return;
    }
    if (header->type == WIRE_HEARTBEAT) {
        LINK_DECODE(heartbeat, heartbeat);
        link_on_heartbeat(link, &heartbeat);
        return;
    }
    bool farewell = link->state == LINK_REFUSED && header->type == WIRE_ABORT;
    if (link->state != LINK_READY && !farewell)
        goto bad;
    /* The initiator receives, the acceptor sends: each frame has one direction but ABORT and
     * FENCED. */
    switch (header->type) {
    case WIRE_OPEN: {
        LINK_DECODE(open, open);
        if (link->initiator)
            goto bad;
        sender_on_open(link, &open);
        return;
    }
    case WIRE_GRANT: {
        LINK_DECODE(grant, grant);
        if (link->initiator)
            goto bad;
        sender_on_grant(link, &grant);
        return;
    }
    case WIRE_LANDED: {
        LINK_DECODE(room, landed);
        if (link->initiator)
            goto bad;
        sender_on_landed(link, &landed);
        return;
    }
    case WIRE_COMMIT: {
        LINK_DECODE(commit, commit);
        if (!link->initiator)
            goto bad;
        receiver_on_commit(link, &commit);
        return;
    }
    case WIRE_AUX: {
        LINK_DECODE(aux, aux);
        if (!link->initiator)
            goto bad;
        receiver_on_aux(link, &aux);
        return;
    }
    case WIRE_QUERY: {
        LINK_DECODE(room, query);
        if (!link->initiator)
            goto bad;
        room_on_query(link, &query);
        return;
    }
    case WIRE_SIGNAL: {
        LINK_DECODE(signal, signal);
        if (link->endpoint->ops->signal(link->endpoint, signal.bytes, signal.length,
                                        ERROR_BUFFER(why)) != BATON_OK)
            goto bad;
        return;
    }
    case WIRE_ABORT: {
        LINK_DECODE(abort, abort);
        room_on_abort(link, &abort);
        return;
    }
    case WIRE_FENCED: {
        LINK_DECODE(room, fenced);
        room_on_fenced(link, &fenced);
        return;
    }
    default: break;
    }
bad:
    atomic_fetch_add(&link->manager->frames_bad, 1);
    link_close(link, BATON_EPROTOCOL, "bad frame of type %u from %s: %s", header->type,
               link->peer->name, why);
}

static void link_on_open(struct connection *connection)
{
    struct link *link = connection->owner;
    struct manager *manager = link->manager;
    link->peer = peer_new(manager, connection);
    if (!link->peer) {
        connection_close(connection, BATON_ENOMEM, "out of memory for a peer");
        return;
    }
    link->heard_ns = clock_now_ns();
    if (!link->initiator)
        link_greet(link);
}

static void link_on_close(struct connection *connection, int code, const char *text)
{
    link_down(connection->owner, code, text);
}

static const struct connection_handler link_handler = {
    .on_open = link_on_open,
    .on_frame = link_on_frame,
    .on_close = link_on_close,
};

struct link *link_initiate(struct manager *manager, const char *host, uint16_t port,
                           uint64_t expected_epoch, struct route *route)
{
    struct link *link = link_new(manager, true);
    if (!link)
        return NULL;
    if (getrandom(&link->session, sizeof(link->session), 0) != sizeof(link->session))
        link->session = clock_now_ns();
    struct wire_hello hello = {
        .kind = WIRE_KIND_LINK, .session = link->session, .expected_epoch = expected_epoch};
    link->connection = connection_connect(manager, host, port, &hello, &link_handler, link);
    if (!link->connection) {
        link_bury(link);
        return NULL;
    }
    link->route = route;
    return link;
}

/* ---- accepted connections: HELLO says what they want to be ---- */

static void accepted_open(struct connection *connection)
{
    if (connection->theirs.kind == WIRE_KIND_STREAM) {
        connection->handler = &stream_setup;
        stream_setup_open(connection);
        return;
    }
    struct link *link = link_new(connection->manager, false);
    if (!link) {
        connection_close(connection, BATON_ENOMEM, "out of memory for a link");
        return;
    }
    link->connection = connection;
    link->session = connection->theirs.session;
    connection->owner = link;
    connection->handler = &link_handler;
    link_on_open(connection);
}

static void accepted_frame(struct connection *connection, const struct wire_header *header,
                           const uint8_t *payload)
{
    (void)payload;
    connection_close(connection, BATON_EPROTOCOL, "unexpected frame of type %u", header->type);
}

static void accepted_close(struct connection *connection, int code, const char *text)
{
    LOG_DEBUG(link, "connection from %s ended early: %s (%s)", connection->name, text,
              baton_error_name(code));
}

const struct connection_handler connection_accepted = {
    .on_open = accepted_open,
    .on_frame = accepted_frame,
    .on_close = accepted_close,
};

/* ---- time ---- */

void link_tick(struct link *link, uint64_t now_ns, bool judge)
{
    struct manager *manager = link->manager;
    if (!link->peer)
        return; /* connection_tick watches the handshake */
    uint64_t silent_ms = (now_ns - link->heard_ns) / NS_PER_MS;
    if (now_ns - link->sent_ns >= manager->config.heartbeat_ms * NS_PER_MS) {
        struct wire_heartbeat heartbeat = {.tick = atomic_load(&manager->tick),
                                           .rooms = atomic_load(&manager->rooms_open)};
        link->sent_ns = now_ns;
        LINK_SEND(link, heartbeat, WIRE_HEARTBEAT, &heartbeat);
        if (link->state == LINK_DEAD)
            return;
    }
    if (judge && now_ns > link->heard_ns && silent_ms > manager->config.silent_ms) {
        link_close(link, BATON_EPEER, "%s has been silent for %u ms", link->peer->name,
                   (unsigned)silent_ms);
        return;
    }
    if (link->state != LINK_READY &&
        now_ns - link->since_ns > CONNECTION_HANDSHAKE_MS * NS_PER_MS) {
        link_close(link, BATON_ETIMEOUT, "%s did not finish the handshake", link->peer->name);
        return;
    }
    if (link->state != LINK_READY) {
        /* An AF_UNIX connection that was promised and never came: go on without it. */
        if (link->state == LINK_ATTACH && now_ns - link->since_ns > 1000 * NS_PER_MS)
            link_choose(link);
        return;
    }
    link->endpoint->ops->tick(link->endpoint, now_ns);
    if (link->state == LINK_DEAD)
        return;
    bool still = (now_ns - link->peer_tick_ns) / NS_PER_MS > manager->config.silent_ms;
    if (still != link->degraded) {
        link->degraded = still;
        if (still)
            atomic_fetch_add(&manager->links_degraded, 1);
        else
            atomic_fetch_sub(&manager->links_degraded, 1);
        if (still)
            LOG_INFO(link, "%s is alive but its owner's tick stands still: degraded",
                     link->peer->name);
    }
}
