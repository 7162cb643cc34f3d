/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the HTTP server share. Who calls whom:
 *
 *   http_server.c       open, close, drain; the acceptor on loop 0
 *     http_loop.c       a thread, its tasks, timers, tick and dead connections
 *       http_connection.c   bytes in: heads, bodies, deadlines; the states of a connection
 *         http_refuse.c       limits, keys, CORS: what is answered without the handler
 *         http_exchange.c     the request as the handler sees it
 *           http_answer.c     bytes out */
#ifndef BATON_NET_HTTP_SERVER_PARTS_H
#define BATON_NET_HTTP_SERVER_PARTS_H

#include "http_server.h"

#include "http_message.h"

#include <event2/event.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/uio.h>

struct bufferevent;
struct ssl_st;
struct tls;

#define HTTP_LINGER_SECONDS 2
#define HTTP_BODY_RATE_MIN 4096 /* bytes a second that a body must bring on average */

enum http_connection_state {
    HTTP_CONNECTION_HEAD,   /* between requests, or a head is half here */
    HTTP_CONNECTION_BODY,   /* a body is coming in */
    HTTP_CONNECTION_ANSWER, /* the exchange is the handler's; input waits, up to a watermark */
    HTTP_CONNECTION_FLUSH,  /* the last answer goes out */
    HTTP_CONNECTION_LINGER, /* it is out; what the client still sends is thrown away for a while,
                               or the kernel would reset the connection under the answer */
    HTTP_CONNECTION_DEAD    /* waits for the reaper; nobody may touch it but him */
};

struct http_connection {
    TAILQ_ENTRY(http_connection) link;
    SLIST_ENTRY(http_connection) dead_link;
    struct http_loop *loop;
    struct bufferevent *stream;
    struct ssl_st *tls; /* NULL: plain */
    int fd;
    enum http_connection_state state;
    struct http_exchange *exchange; /* in BODY and ANSWER */
    size_t head_scanned;
    uint64_t since_ns; /* when the state, or the head's first byte, came */
    /* The client takes what we write, or it does not. */
    uint64_t written, taken; /* bytes given to the stream; of them gone, at the last tick */
    uint64_t progress_ns;
    bool advancing; /* connection_advance is on the stack */
    bool input_ended;
    bool above_low; /* the stream's buffer was above HTTP_STREAM_LOW */
    bool doomed;    /* wrote more than it may keep: the next tick cuts it */
    char peer[64];
};

struct http_exchange {
    struct http_connection *connection;
    struct http_head head;
    char *path;        /* decoded */
    const char *query; /* raw, in head.text; NULL: none */
    struct http_parameter {
        struct http_parameter *next;
        char *name, *value;
    } * parameters;
    bool parameters_parsed;
    struct http_body framing;
    char *body;
    size_t body_length, body_room;
    bool keep_alive;
    bool head_only; /* no body goes out */
    bool streaming, chunked;
    char *more_headers; /* "Name: value\r\n" ... */
    size_t more_length;
    http_notice *left, *drained;
    void *notice_context;
};

struct http_timer {
    TAILQ_ENTRY(http_timer) link;
    struct http_loop *loop;
    struct event *event;
    void (*fire)(void *context);
    void *context;
};

struct http_loop {
    struct http_server *server;
    struct event_base *base;
    struct bell bell;
    struct mpsc tasks;
    struct event *bell_event, *tick, *reaper;
    pthread_t thread;
    TAILQ_HEAD(, http_connection) connections; /* the dead too, until they are reaped */
    SLIST_HEAD(, http_connection) dead;
    TAILQ_HEAD(, http_timer) timers;
    atomic_uint connection_count; /* raised by the acceptor, lowered here */
    bool draining, closing;
    char date[40];
    uint64_t date_second;
    struct http_loop_order { /* the server's own tasks */
        struct http_task task;
        struct http_loop *loop;
    } drain, cut, end;
};

struct http_server {
    http_handler *handler;
    void *context;
    bool (*open_path)(const char *path);
    size_t body_max, header_max;
    uint64_t idle_ns, stall_ns;
    uint32_t connections_max;
    bool keyed;
    uint8_t key_digest[32];
    struct tls *tls;
    uint16_t port;
    atomic_bool draining;
    sem_t loop_is_cut;
    /* owner: loop 0 */
    int listener;
    struct event *accept_event;
    struct http_task resume; /* posted when a place is free again */
    atomic_bool full; /* every loop is; whoever frees a place clears it and posts resume */
    uint32_t loop_count;
    struct http_loop loops[];
};

/* ---- http_server.c: the acceptor, on loop 0 ---- */
void http_server_accept_tick(struct http_server *server);
void http_server_accept_stop(struct http_server *server);
void http_server_place_freed(struct http_server *server); /* any loop */

/* ---- http_loop.c ---- */
int http_loop_open(struct http_loop *loop, struct http_server *server, struct error err);
int http_loop_start(struct http_loop *loop, struct error err);
void http_loop_close(struct http_loop *loop); /* its thread has ended, or was never started */
void http_loop_drain_now(struct http_task *task);
void http_loop_cut_now(struct http_task *task);
void http_loop_end_now(struct http_task *task);
const char *http_loop_date(struct http_loop *loop);
void http_loop_check_thread(const struct http_loop *loop);

/* ---- http_connection.c ---- */
void http_connection_open(struct http_loop *loop, int fd); /* takes fd */
void http_connection_tick(struct http_connection *connection, uint64_t now);
void http_connection_drain(struct http_connection *connection);
/* The client is gone, or we are through with it: tells the exchange's owner, then buries. */
void http_connection_lose(struct http_connection *connection);
void http_connection_bury(struct http_connection *connection, bool reset);
void http_connection_free(struct http_connection *connection); /* by the reaper */
/* The answer is written: on to the next request, or to the end. */
void http_connection_answered(struct http_connection *connection, bool keep_alive);
size_t http_connection_backlog(const struct http_connection *connection);
void http_connection_send(struct http_connection *connection, const struct iovec *pieces,
                          int count);

/* ---- http_refuse.c ---- */
/* An answer without the handler, and the end of the connection. */
void http_refuse(struct http_connection *connection, int status, const char *message);
/* May this request go on? false: it has been answered. In state HEAD. */
bool http_admit(struct http_exchange *exchange);
void http_answer_options(struct http_exchange *exchange);
/* The JSON body of an error, from malloc; NULL: no memory. */
char *http_error_body(const char *type, const char *code, const char *message);

/* ---- http_exchange.c ---- */
/* From a whole head. 0, or a status to refuse with. */
int http_exchange_new(struct http_connection *connection, const char *head, size_t length,
                      struct http_exchange **out, struct error err);
void http_exchange_free(struct http_exchange *exchange);
char *http_exchange_body_room(struct http_exchange *exchange,
                              size_t length); /* NULL: no memory */
void http_exchange_body_grown(struct http_exchange *exchange,
                              size_t length); /* it was filled */
/* 0, or a status to refuse with. */
int http_exchange_body_add(struct http_exchange *exchange, const char *bytes, size_t length);

/* ---- http_answer.c ---- */
const char *http_status_phrase(int status);

#endif
