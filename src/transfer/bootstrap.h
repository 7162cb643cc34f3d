/* SPDX-License-Identifier: Apache-2.0 */
/* Finding each other over HTTP, as SGLang's workers do: prefill ranks PUT themselves into a
 * table at the bootstrap address, decode ranks GET the topology and then each rank's address.
 * Everything here runs on the link thread's event base and never blocks it. */
#ifndef BATON_TRANSFER_BOOTSTRAP_H
#define BATON_TRANSFER_BOOTSTRAP_H

#include "base/error.h"

struct event_base;
struct evdns_base;

/* ---- server: the table behind an evhttp listener -----------------------------------------
 * All calls on the event base's thread. host: numeric address or name; NULL or "": every
 * address, IPv6 and IPv4. port 0: any free one. Errors: EBUSY (the port is taken), EINVAL (no
 * such host), ESYSTEM, ENOMEM. Close leaves nothing behind: clients that wait for an answer
 * see their connection closed. */
struct bootstrap_server;
int bootstrap_server_open(struct event_base *base, const char *host, uint16_t port,
                          struct bootstrap_server **out, struct error err);
uint16_t bootstrap_server_port(const struct bootstrap_server *server);
void bootstrap_server_close(struct bootstrap_server *server);

/* ---- client ------------------------------------------------------------------------------
 * dns may be NULL; then only numeric hosts and "localhost" (127.0.0.1) can be called. Lookups
 * outlive a cancelled call until they time out (libevent cannot recall them): free dns with
 * fail_requests = 1 and turn the loop once more. After close no pending call calls back. */
struct bootstrap_client;
int bootstrap_client_open(struct event_base *base, struct evdns_base *dns,
                          struct bootstrap_client **out);
void bootstrap_client_close(struct bootstrap_client *client);

struct bootstrap_route { /* what a prefill rank registers */
    uint32_t tp_size, tp_rank, pp_size, pp_rank, dp_size, dp_rank;
    char rank_ip[64];
    uint16_t rank_port;
    uint32_t page_size;
    char kv_cache_dtype[32];
    uint64_t epoch; /* our extra key: tells a restarted rank from a second one */
};

struct bootstrap_topology { /* the reply to the -1 query */
    uint32_t tp_size, pp_size, dp_size;
    uint32_t page_size;      /* 0: the server did not say */
    char kv_cache_dtype[32]; /* "": the server did not say */
    int follow_bootstrap_room;
};

struct bootstrap_rank { /* the reply for one rank */
    char rank_ip[64];
    uint16_t rank_port;
    uint64_t epoch; /* 0: the server did not say (SGLang's own) */
};

/* Each call is asynchronous and calls back exactly once on the event base's thread (never
 * from inside the call itself), unless the client is closed or the call cancelled first. The
 * handle is good until then; NULL means out of memory, and no callback comes. code is 0;
 * BATON_AGAIN: not there yet (refused, unreachable, no answer in 5 s, 503, 404; the room is
 * not known yet), worth asking again; BATON_EEXIST: 409, another live process has this rank;
 * BATON_EPROTOCOL: not the answer of a bootstrap server; other negatives: give up too. text
 * is a sentence for a person. addr is "host:port", "[v6]:port". What a callback gets by
 * pointer is good during the callback; topology and rank are NULL unless code is 0. */
struct bootstrap_call;
typedef void (*bootstrap_done)(void *arg, int code, const char *text);
typedef void (*bootstrap_topology_done)(void *arg, int code, const char *text,
                                        const struct bootstrap_topology *topology);
typedef void (*bootstrap_rank_done)(void *arg, int code, const char *text,
                                    const struct bootstrap_rank *rank);

struct bootstrap_call *bootstrap_put_route(struct bootstrap_client *, const char *addr,
                                           const struct bootstrap_route *, bootstrap_done,
                                           void *arg);
struct bootstrap_call *bootstrap_get_topology(struct bootstrap_client *, const char *addr,
                                              bootstrap_topology_done, void *arg);
struct bootstrap_call *bootstrap_get_rank(struct bootstrap_client *, const char *addr,
                                          uint32_t dp_rank, uint32_t tp_rank, uint32_t pp_rank,
                                          bootstrap_rank_done, void *arg);
struct bootstrap_call *bootstrap_register_dp_rank(struct bootstrap_client *, const char *addr,
                                                  uint64_t room, uint32_t dp_rank,
                                                  bootstrap_done, void *arg);
typedef void (*bootstrap_dp_done)(void *arg, int code, const char *text, uint32_t dp_rank);
struct bootstrap_call *bootstrap_query_dp_rank(struct bootstrap_client *, const char *addr,
                                               uint64_t room, bootstrap_dp_done, void *arg);
void bootstrap_cancel(struct bootstrap_call *call);

/* "host:port" -> parts; EINVAL with a sentence. host_size >= 64. host has no brackets. */
int bootstrap_address_parse(const char *addr, char *host, size_t host_size, uint16_t *port,
                            struct error err);
/* allow: comma list of host, host:port, CIDR; NULL or "" allows all. Names are compared,
 * never resolved. EAUTH: addr is not in the list; EINVAL: addr or an entry of the list is
 * malformed (a typing error in the list closes it, it never opens it). */
int bootstrap_address_allowed(const char *addr, const char *allow, struct error err);

#endif
