/* SPDX-License-Identifier: Apache-2.0 */
/* AF_UNIX side connections between ranks of one host: they carry the memfds of pools, and tell the
 * peer's pid, so that its death can be seen and proven (pidfd). The initiator of a link opens one
 * before its REGISTER; the acceptor keeps it until the link with that session asks for it. Not having
 * one is no error: shm and cma are then out of reach, and say so. Link thread only. */
#include "base/clock.h"
#include "base/log.h"
#include "link.h"
#include "manager.h"
#include "net/socket.h"
#include "pool.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
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
void link_attach(struct link *link)
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

bool link_claim_attachment(struct link *link)
{
    for (struct attachment *attachment = link->manager->attachments; attachment;
         attachment = attachment->next) {
        if (attachment->session == link->session) {
            link_take_attachment(link, attachment);
            return true;
        }
    }
    return false;
}
