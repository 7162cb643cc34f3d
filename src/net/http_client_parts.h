/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the HTTP client share:
 *
 *   http_client.c          open, close; hosts and their kept connections
 *   http_client_request.c  a request from start to done, and its time limits
 *   http_client_connect.c  names, connecting, TLS
 *   http_client_answer.c   bytes in */
#ifndef BATON_NET_HTTP_CLIENT_PARTS_H
#define BATON_NET_HTTP_CLIENT_PARTS_H

#include "http_client.h"

#include "http_url.h"

#include <event2/event.h>
#include <event2/util.h>
#include <netdb.h>
#include <sys/queue.h>

struct bufferevent;
struct evdns_base;
struct evdns_getaddrinfo_request;
struct ssl_st;
struct tls;

#define HTTP_CLIENT_BUCKETS 256
#define HTTP_CLIENT_HEAD_MAX (64u << 10)

/* A connection is made for a request, used by one request at a time, and kept in between. */
struct http_link {
    TAILQ_ENTRY(http_link) idle_entry; /* in host->idle, newest first */
    SLIST_ENTRY(http_link) dead_entry;
    struct http_client *client;
    struct http_host *host;
    struct http_request *request; /* NULL: idle, or dead */
    int fd;
    struct event *connecting; /* until the kernel says yes or no */
    struct bufferevent *stream;
    struct ssl_st *tls;
    bool ready; /* TLS too */
    bool used;  /* an answer has come over it before */
    bool dead;
    bool ended; /* by the server, or by an error */
    int end_error;
    uint64_t idle_since_ns;
};

struct http_host {
    SLIST_ENTRY(http_host) bucket_entry;
    TAILQ_HEAD(http_link_list, http_link) idle;
    uint32_t idle_count;
    bool tls;
    uint16_t port;
    char name[256];
    char authority[272];
};

struct http_request {
    TAILQ_ENTRY(http_request) entry; /* in client->requests */
    struct http_client *client;
    struct http_host *host;
    struct http_link *link;
    struct http_request_options
        options; /* its pointers to text are not ours: unused after start */
    bool head_only;
    char *message; /* head and body, kept until the answer begins */
    size_t message_length;
    /* connecting */
    struct evdns_getaddrinfo_request *resolving;
    struct evutil_addrinfo *addresses, *next_address;
    bool tried_again;
    /* the answer */
    size_t head_scanned;
    bool answer_begun; /* a byte has come */
    bool has_head;
    struct http_head head;
    struct http_body body;
    bool paused;
    /* time */
    struct event *timer;
    uint64_t start_ns, connect_ns; /* when it, and the connection, began */
    struct http_result failure;    /* told by the timer when start itself failed */
    bool failed;
    char error[320];
};

struct http_client {
    struct event_base *base;
    struct evdns_base *dns; /* made when the first name is met */
    struct tls *tls;        /* made when the first https is met */
    char *tls_authority;
    bool tls_unchecked;
    uint32_t idle_max, idle_count;
    uint64_t idle_ns;
    struct event *tick, *reaper;
    TAILQ_HEAD(, http_request) requests;
    SLIST_HEAD(, http_link) dead;
    SLIST_HEAD(, http_host) buckets[HTTP_CLIENT_BUCKETS];
};

/* ---- http_client.c ---- */
struct http_host *http_host_get(struct http_client *client, const struct http_url *url);
struct http_link *http_host_take_idle(struct http_host *host); /* or NULL */
void http_link_keep(struct http_link *link);
void http_link_bury(struct http_link *link);

/* ---- http_client_request.c ---- */
void http_request_send(struct http_request *request); /* the link is ready */
void http_request_succeed(struct http_request *request);
/* The end of it: `done`, and it is freed. */
void http_request_fail(struct http_request *request, enum http_outcome outcome,
                       const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The kept connection had ended before the answer began: once more, on a new one. */
bool http_request_try_again(struct http_request *request);

/* ---- http_client_connect.c ---- */
/* May be called from within start: what fails is told by the timer. */
void http_request_connect(struct http_request *request);

/* ---- http_client_answer.c ---- */
void http_link_came(struct bufferevent *stream, void *link);
void http_link_event(struct bufferevent *stream, short what, void *link);

#endif
