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
#include "pool.h"
#include "route.h"

#include <errno.h>
#include <event2/event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* An AF_UNIX connection whose link has not asked for it yet. */
struct attachment {
    struct manager *manager;
    struct attachment *next;
    struct event *event;
    int fd;
    int pid;
    uint64_t session; /* 0: ATTACH not read yet */
    uint64_t since_ns;
    int fds[PEER_FDS_MAX];
    uint32_t fd_count;
};

/* ---- peers ---- */

static void peer_on_exit(evutil_socket_t fd, short what, void *arg)
{
    struct peer *peer = arg;
    struct manager *manager = peer->manager;
    (void)fd;
    (void)what;
    LOG_INFO(link, "peer %s has exited", peer->name);
    peer->gone = true;
    peer_hold(peer);
    for (struct link *link = manager->links, *next; link; link = next) {
        next = link->next;
        if (link->peer == peer)
            link_close(link, BATON_EPEER, "process %d (%s) has exited", peer->pid, peer->name);
    }
    for (struct room *room = manager->live, *next; room; room = next) {
        next = room->live_next;
        for (struct leg *leg = room->legs, *following; leg; leg = following) {
            following = leg->next;
            if (leg->peer == peer)
                leg_peer_gone(leg);
        }
        room_settle(room);
    }
    peer_release(peer);
}

static struct peer *peer_new(struct manager *manager, const struct connection *connection)
{
    struct peer *peer = calloc(1, sizeof(*peer));
    if (!peer)
        return NULL;
    peer->manager = manager;
    peer->references = 1;
    peer->epoch = connection->peer_epoch;
    peer->rank = connection->theirs.rank;
    peer->tp_size = connection->theirs.tp_size;
    peer->pid_fd = -1;
    peer->same_host = strcmp(connection->peer_host_id, manager->runtime->host_id) == 0;
    peer->same_process =
        peer->same_host && connection->theirs.process == manager->runtime->process;
    snprintf(peer->name, sizeof(peer->name), "rank %u at %s", peer->rank, connection->name);
    peer->next = manager->peers;
    peer->slot = &manager->peers;
    if (peer->next)
        peer->next->slot = &peer->next;
    manager->peers = peer;
    return peer;
}

/* Watches the process, so that its death is seen at once and counts as a fence. */
static void peer_watch(struct peer *peer, int pid)
{
    if (pid <= 0 || peer->pid_fd >= 0)
        return;
    peer->pid = pid;
    peer->pid_fd = socket_adopt(process_watch(pid));
    if (peer->pid_fd < 0)
        return;
    peer->exit_event =
        event_new(peer->manager->runtime->base, peer->pid_fd, EV_READ, peer_on_exit, peer);
    if (peer->exit_event)
        event_add(peer->exit_event, NULL);
}

struct peer *peer_hold(struct peer *peer)
{
    peer->references++;
    return peer;
}

void peer_release(struct peer *peer)
{
    if (!peer || --peer->references)
        return;
    *peer->slot = peer->next;
    if (peer->next)
        peer->next->slot = peer->slot;
    if (peer->exit_event)
        event_free(peer->exit_event);
    socket_close(peer->pid_fd);
    for (uint32_t i = 0; i < peer->fd_count; i++)
        close(peer->fds[i]);
    wire_register_free(&peer->memory);
    free(peer);
}

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
    while (link->legs) {
        struct leg *leg = link->legs;
        leg_detach(leg);
        leg_link_lost(leg, code, text);
    }
    if (link->endpoint) {
        link->endpoint->ops->stop(link->endpoint);
        endpoint_release(link->endpoint);
        link->endpoint = NULL;
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

/* ---- endpoints ---- */

struct endpoint *endpoint_hold(struct endpoint *endpoint)
{
    endpoint->references++;
    return endpoint;
}

void endpoint_release(struct endpoint *endpoint)
{
    if (--endpoint->references)
        return;
    endpoint->ops->disconnect(endpoint);
    peer_release(endpoint->peer);
    free(endpoint);
}

/* ---- REGISTER and CHOICE ---- */

static void link_send_register(struct link *link, const struct wire_backend_key *keys,
                               uint32_t key_count)
{
    struct manager *manager = link->manager;
    struct wire_register *frame = calloc(1, sizeof(*frame));
    if (!frame) {
        link_close(link, BATON_ENOMEM, "out of memory for REGISTER");
        return;
    }
    snprintf(frame->fingerprint, sizeof(frame->fingerprint), "%s", manager->config.fingerprint);
    for (uint32_t i = 0; i < manager->region_count; i++) {
        memcpy(frame->regions[i].name, manager->regions[i].name,
               sizeof(frame->regions[i].name));
        frame->regions[i].kind = manager->regions[i].kind;
        frame->regions[i].layout = manager->regions[i].layout;
    }
    frame->region_count = manager->region_count;
    frame->aux_slots = manager->aux_slots;
    frame->aux_slot_bytes = manager->aux_slot_bytes;
    memcpy(frame->aux_fields, manager->aux_fields, sizeof(frame->aux_fields));
    frame->aux_field_count = manager->aux_field_count;
    memcpy(frame->backends, keys, key_count * sizeof(*keys));
    frame->backend_count = key_count;
    frame->attach = link->unix_fd >= 0;
    frame->verify = manager->config.verify;
    LINK_SEND(link, register, WIRE_REGISTER, frame);
    free(frame);
}

/* Our keys for every backend of our list that this machine has. */
static uint32_t link_export_keys(struct manager *manager, struct wire_backend_key *keys)
{
    uint32_t count = 0;
    char why[160];
    for (uint32_t i = 0; i < manager->backend_count; i++) {
        const struct backend_ops *ops = manager->backends[i].ops;
        struct wire_backend_key *key = &keys[count];
        memset(key, 0, sizeof(*key));
        if (ops->available(why, sizeof(why)) != 0 ||
            ops->export_key(manager, &key->key, &key->key_bytes, ERROR_BUFFER(why)) !=
                BATON_OK) {
            LOG_INFO(link, "backend %s is not offered: %s", ops->name, why);
            continue;
        }
        snprintf(key->name, sizeof(key->name), "%s", ops->name);
        count++;
    }
    return count;
}

static void link_free_keys(struct wire_backend_key *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(keys[i].key);
}

static bool link_offers(const struct wire_register *memory, const char *name)
{
    for (uint32_t i = 0; i < memory->backend_count; i++)
        if (strcmp(memory->backends[i].name, name) == 0)
            return true;
    return false;
}

static bool link_use_backend(struct link *link, const char *name, struct error err)
{
    struct manager *manager = link->manager;
    for (uint32_t i = 0; i < manager->backend_count; i++) {
        if (strcmp(manager->backends[i].ops->name, name) != 0)
            continue;
        struct endpoint *endpoint = calloc(1, sizeof(*endpoint));
        if (!endpoint) {
            error_set(err, BATON_ENOMEM, "out of memory for an endpoint");
            return false;
        }
        *endpoint = (struct endpoint){.ops = manager->backends[i].ops,
                                      .references = 1,
                                      .manager = manager,
                                      .peer = peer_hold(link->peer),
                                      .link = link,
                                      .fault = manager->backends[i].fault};
        if (endpoint->ops->connect(endpoint, err) != BATON_OK) {
            peer_release(endpoint->peer);
            free(endpoint);
            return false;
        }
        link->endpoint = endpoint;
        return true;
    }
    error_set(err, BATON_EUNREACHABLE, "backend %s is not in our list", name);
    return false;
}

static void link_ready(struct link *link)
{
    struct manager *manager = link->manager;
    link->state = LINK_READY;
    atomic_fetch_add(&manager->links_up, 1);
    if (link->endpoint->ops != manager->backends[0].ops &&
        !(manager->backends[0].ops == &backend_loopback && manager->backend_count > 1 &&
          link->endpoint->ops == manager->backends[1].ops)) {
        atomic_fetch_add(&manager->fallbacks, 1);
        LOG_INFO(link, "peer %s gets %s: %s", link->peer->name, link->endpoint->ops->name,
                 link->choice);
    }
    LOG_INFO(link, "link with %s is up over %s, %u lanes", link->peer->name,
             link->endpoint->ops->name, link->endpoint->lane_count);
}

/* Why the two ranks cannot work together, if so. The acceptor is the source. */
static int link_check_memory(struct link *link, struct error err)
{
    struct manager *manager = link->manager;
    const struct wire_register *theirs = &link->peer->memory;
    if (manager->config.fingerprint[0] && theirs->fingerprint[0] &&
        strcmp(manager->config.fingerprint, theirs->fingerprint) != 0)
        return error_set(err, BATON_ELAYOUT,
                         "the model differs: this rank has fingerprint %s, the peer %s",
                         manager->config.fingerprint, theirs->fingerprint);
    for (uint32_t i = 0; i < theirs->region_count; i++) {
        const struct wire_region *dst = &theirs->regions[i];
        int mine = i == 0 ? 0 : manager_region_named(manager, dst->name);
        if (mine < 0 || (uint32_t)mine >= manager->region_count)
            return error_set(err, BATON_ELAYOUT,
                             "the peer has a region '%s' that this rank lacks", dst->name);
        char why[256];
        if (layout_match(&manager->regions[mine].layout, &dst->layout, ERROR_BUFFER(why)) !=
            BATON_OK)
            return error_set(err, BATON_ELAYOUT, "region '%s': %s", dst->name, why);
    }
    return aux_map_make(manager, theirs, &link->aux_map, &link->aux_map_count, err);
}

/* The same from the initiator's side, whose memory is the destination. */
static int link_check_peer_source(struct link *link, struct error err)
{
    const struct manager *manager = link->manager;
    const struct wire_register *theirs = &link->peer->memory;
    for (uint32_t i = 0; i < manager->region_count; i++) {
        const struct region *mine = &manager->regions[i];
        const struct layout *src =
            i == 0 && theirs->region_count ? &theirs->regions[0].layout : NULL;
        for (uint32_t k = 1; i > 0 && k < theirs->region_count; k++)
            if (strcmp(theirs->regions[k].name, mine->name) == 0)
                src = &theirs->regions[k].layout;
        if (!src)
            return error_set(err, BATON_ELAYOUT, "it has no region '%s'", mine->name);
        if (layout_match(src, &mine->layout, err) != BATON_OK)
            return BATON_ELAYOUT;
    }
    return BATON_OK;
}

static void link_refuse(struct link *link, int code, const char *text)
{
    struct wire_choice choice = {.code = code, .text = {text, (uint32_t)strlen(text)}};
    atomic_fetch_add(&link->manager->links_refused, 1);
    LOG_WARNING(link, "peer %s is refused: %s", link->peer->name, text);
    LINK_SEND(link, choice, WIRE_CHOICE, &choice);
    link_close(link, code, "%s", text);
}

/* Acceptor, with everything known: the first backend of the initiator's list that works here. */
static void link_choose(struct link *link)
{
    struct manager *manager = link->manager;
    const struct wire_register *theirs = &link->peer->memory;
    char text[WIRE_TEXT_MAX] = "", why[256];
    int code = link_check_memory(link, ERROR_BUFFER(why));
    if (code != BATON_OK) {
        link_refuse(link, code, why);
        return;
    }
    size_t used = 0;
    for (uint32_t i = 0; i < theirs->backend_count; i++) {
        const char *name = theirs->backends[i].name;
        const struct backend_ops *ops = backend_find(name);
        bool listed = false;
        for (uint32_t k = 0; k < manager->backend_count; k++)
            listed |= manager->backends[k].ops == ops;
        if (!ops || !listed)
            snprintf(why, sizeof(why), "not in the prefill side's list");
        else if (ops->can_reach(manager, link->peer, ERROR_BUFFER(why)) == BATON_OK &&
                 link_use_backend(link, name, ERROR_BUFFER(why))) {
            snprintf(link->choice, sizeof(link->choice), "%s", used ? text : "first choice");
            struct wire_choice choice = {
                .backend = {name, (uint32_t)strlen(name)},
                .text = {link->choice, (uint32_t)strlen(link->choice)}};
            LINK_SEND(link, choice, WIRE_CHOICE, &choice);
            if (link->state == LINK_DEAD)
                return;
            link_ready(link);
            sender_resume_doubts(link);
            return;
        }
        int more =
            snprintf(text + used, sizeof(text) - used, "%s%s: %s", used ? "; " : "", name, why);
        if (more > 0)
            used += (size_t)more < sizeof(text) - used ? (size_t)more : sizeof(text) - used - 1;
    }
    link_refuse(link, BATON_EUNREACHABLE,
                used ? text : "the two ranks have no backend in common");
}

/* ---- AF_UNIX side connections: memfds and the peer's pid ---- */

static void attachment_free(struct attachment *attachment)
{
    for (struct attachment **slot = &attachment->manager->attachments; *slot;
         slot = &(*slot)->next) {
        if (*slot == attachment) {
            *slot = attachment->next;
            break;
        }
    }
    if (attachment->event)
        event_free(attachment->event);
    for (uint32_t i = 0; i < attachment->fd_count; i++)
        close(attachment->fds[i]);
    socket_close(attachment->fd);
    free(attachment);
}

/* Gives the link what came over the side connection and lets it choose. */
static void link_take_attachment(struct link *link, struct attachment *attachment)
{
    struct peer *peer = link->peer;
    memcpy(peer->fds, attachment->fds, sizeof(peer->fds));
    peer->fd_count = attachment->fd_count;
    attachment->fd_count = 0;
    peer_watch(peer, attachment->pid);
    link->unix_fd = attachment->fd;
    attachment->fd = -1;
    attachment_free(attachment);
    link_choose(link);
}

static void attachment_on_read(evutil_socket_t fd, short what, void *arg)
{
    struct attachment *attachment = arg;
    struct manager *manager = attachment->manager;
    uint8_t bytes[128];
    struct wire_header header;
    struct wire_attach attach;
    unsigned count = PEER_FDS_MAX;
    (void)what;
    long got = socket_receive_fds(fd, bytes, sizeof(bytes), attachment->fds, &count);
    attachment->fd_count = count;
    if (got < WIRE_HEADER_BYTES || wire_header_get(bytes, &header, ERROR_NONE) != BATON_OK ||
        header.type != WIRE_ATTACH || (long)(WIRE_HEADER_BYTES + header.length) != got ||
        wire_attach_get(bytes + WIRE_HEADER_BYTES, header.length, &attach, ERROR_NONE) !=
            BATON_OK ||
        attach.fd_count != count) {
        atomic_fetch_add(&manager->frames_bad, 1);
        attachment_free(attachment);
        return;
    }
    event_del(attachment->event);
    attachment->session = attach.session;
    for (struct link *link = manager->links; link; link = link->next) {
        if (link->state == LINK_ATTACH && link->session == attach.session) {
            link_take_attachment(link, attachment);
            return;
        }
    }
}

void link_attach_accept(struct manager *manager, int fd)
{
    struct attachment *attachment = calloc(1, sizeof(*attachment));
    if (!attachment) {
        close(fd);
        return;
    }
    attachment->manager = manager;
    attachment->fd = socket_adopt(fd);
    attachment->pid = socket_peer_pid(fd);
    attachment->since_ns = clock_now_ns();
    attachment->next = manager->attachments;
    manager->attachments = attachment;
    attachment->event = event_new(manager->runtime->base, fd, EV_READ | EV_PERSIST,
                                  attachment_on_read, attachment);
    if (!attachment->event)
        attachment_free(attachment);
    else
        event_add(attachment->event, NULL);
}

/* One that said nothing, or whose link never came. */
void link_attach_tick(struct manager *manager, uint64_t now_ns)
{
    for (struct attachment *attachment = manager->attachments, *next; attachment;
         attachment = next) {
        next = attachment->next;
        if (now_ns - attachment->since_ns > CONNECTION_HANDSHAKE_MS * NS_PER_MS)
            attachment_free(attachment);
    }
}

void link_attach_drop_all(struct manager *manager)
{
    while (manager->attachments)
        attachment_free(manager->attachments);
}

/* Initiator: opens the side connection and passes our pools. Not having one is no error. */
static void link_attach(struct link *link)
{
    struct manager *manager = link->manager;
    struct connection *connection = link->connection;
    char why[160];
    int fds[PEER_FDS_MAX];
    if (!link->peer->same_host || !connection->peer_unix_name[0])
        return;
    if (socket_connect_unix(connection->peer_unix_name, &link->unix_fd, ERROR_BUFFER(why)) !=
        BATON_OK) {
        LOG_INFO(link, "%s", why);
        link->unix_fd = -1;
        return;
    }
    uint32_t count = pool_fds(manager, fds, PEER_FDS_MAX);
    struct wire_buffer buffer = {0};
    struct wire_attach attach = {.session = link->session, .fd_count = count};
    struct wire_header header = {
        .version = WIRE_VERSION, .type = WIRE_ATTACH, .epoch = manager->epoch};
    wire_attach_put(&buffer, header, &attach);
    if (buffer.failed ||
        socket_send_fds(link->unix_fd, buffer.bytes, buffer.size, fds, count) != 0) {
        LOG_INFO(link, "cannot pass descriptors to %s: %s", link->peer->name, strerror(errno));
        socket_close(link->unix_fd);
        link->unix_fd = -1;
    } else {
        peer_watch(link->peer, socket_peer_pid(link->unix_fd));
    }
    wire_buffer_free(&buffer);
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
    void *ssl = NULL;
    int fd = connection_detach(connection, &ssl);
    int code = link->endpoint->ops->stream(link->endpoint, index, fd, ssl, ERROR_BUFFER(why));
    if (code != BATON_OK)
        link_close(link, code, "data connection %u: %s", index, why);
}

static void stream_setup_close(struct connection *connection, int code, const char *text)
{
    struct link *link = link_by_session(connection->manager, connection->mine.session);
    if (link && connection->initiator)
        link_close(link, code, "data connection %u: %s", connection->mine.stream, text);
}

static void link_open_streams(struct link *link, const char *host, uint16_t port)
{
    for (uint32_t i = 0; i < link->endpoint->lane_count; i++) {
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

static void link_on_register(struct link *link, const struct wire_header *header,
                             const uint8_t *payload)
{
    struct manager *manager = link->manager;
    char why[256];
    if (link->state != LINK_REGISTER || link->registered) {
        link_close(link, BATON_EPROTOCOL, "REGISTER came twice");
        return;
    }
    link->registered = true;
    int code =
        wire_register_get(payload, header->length, &link->peer->memory, ERROR_BUFFER(why));
    if (code != BATON_OK) {
        atomic_fetch_add(&manager->frames_bad, 1);
        link_close(link, code, "bad REGISTER from %s: %s", link->peer->name, why);
        return;
    }
    if (link->initiator) {
        link_attach(link);
        struct wire_backend_key keys[WIRE_BACKENDS_MAX], usable[WIRE_BACKENDS_MAX];
        uint32_t count = link_export_keys(manager, keys), usable_count = 0;
        for (uint32_t i = 0; i < count; i++) {
            const struct backend_ops *ops = backend_find(keys[i].name);
            if (!link_offers(&link->peer->memory, keys[i].name))
                LOG_INFO(link, "backend %s: %s does not offer it", keys[i].name,
                         link->peer->name);
            else if (ops->can_reach(manager, link->peer, ERROR_BUFFER(why)) == BATON_OK)
                usable[usable_count++] = keys[i];
            else
                LOG_INFO(link, "backend %s does not reach %s: %s", keys[i].name,
                         link->peer->name, why);
        }
        link_send_register(link, usable, usable_count);
        link_free_keys(keys, count);
        return;
    }
    if (!link->peer->memory.attach) {
        link_choose(link);
        return;
    }
    link->state = LINK_ATTACH;
    for (struct attachment *attachment = manager->attachments; attachment;
         attachment = attachment->next) {
        if (attachment->session == link->session) {
            link_take_attachment(link, attachment);
            return;
        }
    }
}

static void link_on_choice(struct link *link, const struct wire_header *header,
                           const uint8_t *payload)
{
    struct wire_choice choice;
    char name[16], why[256];
    if (!link->initiator || link->state != LINK_REGISTER ||
        wire_choice_get(payload, header->length, &choice, ERROR_NONE) != BATON_OK) {
        atomic_fetch_add(&link->manager->frames_bad, 1);
        link_close(link, BATON_EPROTOCOL, "bad or unexpected CHOICE from %s", link->peer->name);
        return;
    }
    wire_string_copy(choice.backend, name, sizeof(name));
    wire_string_copy(choice.text, link->choice, sizeof(link->choice));
    if (choice.code != 0) {
        atomic_fetch_add(&link->manager->links_refused, 1);
        link_close(link, choice.code, "%s refused the link: %s", link->peer->name,
                   link->choice);
        return;
    }
    /* The acceptor has checked this; its word is not enough to plan copies with. */
    if (link_check_peer_source(link, ERROR_BUFFER(why)) != BATON_OK) {
        link_close(link, BATON_ELAYOUT, "%s: %s", link->peer->name, why);
        return;
    }
    if (!link_use_backend(link, name, ERROR_BUFFER(why))) {
        link_close(link, BATON_EUNREACHABLE, "%s chose backend %s: %s", link->peer->name, name,
                   why);
        return;
    }
    link_ready(link);
    if (link->endpoint->ops->capabilities & BACKEND_STREAMS) {
        char host[64];
        unsigned port = 0;
        const char *colon = strrchr(link->connection->name, ':');
        const char *begin = link->connection->name + (link->connection->name[0] == '[');
        int length = (int)(colon - begin) - (link->connection->name[0] == '[');
        snprintf(host, sizeof(host), "%.*s", length, begin);
        port = (unsigned)strtoul(colon + 1, NULL, 10);
        struct link *self = link;
        link_open_streams(self, host, (uint16_t)port);
        if (link->state == LINK_DEAD)
            return;
    }
    if (link->route)
        route_link_up(link->route);
}

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
    if (link->state != LINK_READY)
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
    if (!link->initiator) {
        struct wire_backend_key keys[WIRE_BACKENDS_MAX];
        uint32_t count = link_export_keys(manager, keys);
        link_send_register(link, keys, count);
        link_free_keys(keys, count);
    }
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
