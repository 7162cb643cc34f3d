/* SPDX-License-Identifier: Apache-2.0 */
/* Peers and endpoints: who is at the other end of a link, and by which backend it is reached. Both are
 * counted, because rooms outlive links: a peer stays while its exit may be the only fence, an endpoint
 * while a lane may still use its data connections. Link thread only. */
#include "base/log.h"
#include "link.h"
#include "manager.h"
#include "net/socket.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
        room->held = true;
        for (struct leg *leg = room->legs; leg; leg = leg->next)
            if (leg->peer == peer)
                leg_peer_gone(leg);
        room->held = false;
        room_settle(room);
    }
    peer_release(peer);
}

struct peer *peer_new(struct manager *manager, const struct connection *connection)
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
void peer_watch(struct peer *peer, int pid)
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
