/* SPDX-License-Identifier: Apache-2.0 */
/* A link: the control connection between two ranks after the handshake, and the peer behind it. The
 * initiator is always the receiving (decode) rank. Link thread only, except where said. */
#ifndef BATON_TRANSFER_LINK_H
#define BATON_TRANSFER_LINK_H

#include "backend.h"
#include "connection.h"
#include "room.h"

struct event;

#define PEER_FDS_MAX 64

/* A process at the other end of a link; lives as long as something may have to be fenced. */
struct peer {
    struct manager *manager;
    struct peer *next, **slot; /* manager->peers */
    uint32_t references;
    uint64_t epoch;
    uint32_t rank, tp_size;
    int pid;    /* as we see it; 0: on another host, or in another pid namespace */
    int pid_fd; /* -1: death cannot be proven */
    struct event *exit_event;
    bool same_host, same_process;
    bool gone;                   /* the process has exited */
    char name[96];               /* "rank 3 at 10.0.0.1:4000" */
    struct wire_register memory; /* its regions, aux schema and keys */
    int fds[PEER_FDS_MAX];       /* memfds it passed, in the order of its pools */
    uint32_t fd_count;
};

enum link_state {
    LINK_REGISTER,
    LINK_ATTACH,
    LINK_READY,
    LINK_REFUSED, /* acceptor: CHOICE said no; the peer may still say which rooms fail over it */
    LINK_DEAD
};

struct link {
    struct manager *manager;
    struct link *next, **slot; /* manager->links */
    struct connection *connection;
    enum link_state state;
    bool initiator;
    bool registered; /* the peer's REGISTER is in */
    uint64_t session;
    struct peer *peer;
    struct route *route;       /* initiator */
    struct endpoint *endpoint; /* NULL until READY */
    char choice[256];          /* why this backend */
    struct leg *legs;
    uint64_t since_ns, heard_ns, sent_ns;
    uint64_t peer_tick, peer_tick_ns;
    bool degraded;
    int unix_fd;                 /* initiator: side connection, kept open for the link's life */
    struct aux_segment *aux_map; /* sender: how slots translate */
    uint32_t aux_map_count;
};

struct aux_segment {
    uint64_t src, dst, length;
};

struct link *link_initiate(struct manager *manager, const char *host, uint16_t port,
                           uint64_t expected_epoch, struct route *route);
void link_close(struct link *link, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void link_drop(struct link *link);        /* at manager close */
void link_sweep(struct manager *manager); /* frees links that died since the last tick */
void link_tick(struct link *link, uint64_t now_ns, bool judge);

#define LINK_SEND(link, name, TYPE, frame) \
    CONNECTION_SEND((link)->connection, name, TYPE, frame)

/* link_register.c */
void link_greet(struct link *link);  /* acceptor: REGISTER */
void link_choose(struct link *link); /* acceptor: everything is known */
void link_on_register(struct link *link, const struct wire_header *header,
                      const uint8_t *payload);
void link_on_choice(struct link *link, const struct wire_header *header,
                    const uint8_t *payload);
void link_open_streams(struct link *link, const char *host, uint16_t port);

/* peer.c */
struct peer *peer_new(struct manager *manager, const struct connection *connection);
void peer_watch(struct peer *peer,
                int pid); /* its death is seen at once and counts as a fence */
struct peer *peer_hold(struct peer *peer);
void peer_release(struct peer *peer);

/* attach.c: AF_UNIX side connections. */
struct attachment;
void link_attach(struct link *link);           /* initiator: opens one and passes our pools */
bool link_claim_attachment(struct link *link); /* acceptor: it may be here already */
void link_attach_accept(struct manager *manager, int fd);
void link_attach_tick(struct manager *manager, uint64_t now_ns);
void link_attach_drop_all(struct manager *manager);

/* Our index of the region with this name, or -1. */
int manager_region_named(const struct manager *manager, const char *name);

/* aux_map.c: fields of the same name, as few segments as possible; ELAYOUT when types differ. */
uint64_t aux_field_bytes(const struct wire_aux_field *field);
int aux_map_make(const struct manager *manager, const struct wire_register *theirs,
                 struct aux_segment **out, uint32_t *count, struct error err);

#endif
