/* SPDX-License-Identifier: Apache-2.0 */
/* A server whose answers the tests of HTTP know, and clients that write what they like.
 *
 *   /hello              "hello"
 *   /echo               the body; ?x= comes back as the header X-Echo, the path as X-Path
 *   /later              "later", after a moment
 *   /thread             "thread", posted by another thread
 *   /never              no answer; counts who leaves
 *   /stream?count&size  so many chunks of so many bytes 'a', 'b', ..., each after a moment
 *   /endless            as much as the client takes
 *   /flood              more than the client takes
 *   /cut                two chunks, then no end
 *   /large?size         one answer of so many bytes */
#ifndef BATON_TESTS_HTTP_FIXTURE_H
#define BATON_TESTS_HTTP_FIXTURE_H

#include "net/http_server.h"

#include <stdatomic.h>
#include <stdio.h>

struct fixture {
    struct http_server *server;
    uint16_t port;
    atomic_uint handled, left, drained, ended;
    atomic_size_t backlog_max;
};

/* options->handler and context are filled in here. */
void fixture_open(struct fixture *fixture, struct http_server_options *options);
void fixture_close(struct fixture *fixture);
/* Waits until the counter has reached `wanted`; fails the test after a long while. */
void fixture_await(atomic_uint *counter, uint32_t wanted);
void fixture_await_connections(struct fixture *fixture, uint32_t wanted);

/* ---- raw clients -------------------------------------------------------------------------- */
int client_connect(uint16_t port);
void client_send(int fd, const char *text);
bool client_send_bytes(int fd, const void *bytes, size_t length); /* false: it was cut off */

struct answer {
    int status;
    char head[4096];
    char *body; /* free with answer_free */
    size_t length;
    bool whole;      /* the body was complete */
    uint32_t chunks; /* 0: it had a length, or ended with the connection */
};
/* The next answer on the connection; false: it ended first. */
bool client_receive(int fd, struct answer *answer);
void answer_free(struct answer *answer);
bool client_at_end(int fd); /* waits for the end of the connection; false: a byte came */
/* One request on a connection of its own; its status, 0 if there was no answer. */
int client_get(uint16_t port, const char *path);
void expect_answer(int fd, int status, const char *body);

#endif
