/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of `baton up`: workers, and a router in front of them. Each is this program again, with
 * another command.
 *
 *   STARTING --"listening on"--> UP --it ends--> RESTING --after a pause--> STARTING
 *      |                                                                        |
 *      +-- the first time it ends: the fleet has failed, with what it said      +-- on the same ports
 *
 * The router is started when all workers have said where they listen, since it has to know; so are, where
 * they ask prefill workers themselves, the decode workers. All of it runs on one event loop. */
#ifndef BATON_CLI_UP_FLEET_H
#define BATON_CLI_UP_FLEET_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

struct event_base;
struct event;

#define FLEET_CHILDREN_MAX 65 /* 32 of each, and the router */
#define FLEET_WORDS_MAX 96

enum child_kind { CHILD_PREFILL, CHILD_DECODE, CHILD_ROUTER };
enum child_state { CHILD_WAITING, CHILD_STARTING, CHILD_UP, CHILD_RESTING, CHILD_ENDED };

struct child {
    struct fleet *fleet;
    enum child_kind kind;
    enum child_state state;
    char name[24];
    uint16_t port, bootstrap_port; /* 0: not known yet */
    pid_t pid;                     /* 0: there is none */
    int output;
    struct event *readable, *pause;
    uint32_t restarts, pause_ms;
    uint64_t up_ns;
    bool was_up;
    char line[512]; /* what it says, until its end */
    size_t line_length;
    char last[512]; /* the last thing it said */
    /* as the router tells */
    bool used;
    uint32_t in_flight;
    uint64_t requests;
};

struct fleet_options {
    struct event_base *base;
    uint32_t prefill_count, decode_count;
    bool decode_first; /* decode workers are told where the prefill workers are */
    const char *model;
    const char *host; /* of the router */
    uint16_t port;
    /* Further words of their command lines, NULL at the end. */
    const char *words[CHILD_ROUTER + 1][FLEET_WORDS_MAX];
    /* A child's state is another now. */
    void (*changed)(struct child *child, void *context);
    /* It said something that is for people. */
    void (*said)(struct child *child, const char *line, void *context);
    /* It cannot be, or all are gone after fleet_stop: the end. */
    void (*ended)(const char *problem, void *context);
    void *context;
};

struct fleet {
    struct fleet_options options;
    uint32_t count; /* the router is the last one */
    bool stopping, failed;
    struct event *signal;
    struct child children[FLEET_CHILDREN_MAX];
};

int fleet_open(const struct fleet_options *options, struct fleet *fleet, struct error err);
struct child *fleet_router(struct fleet *fleet);
/* Ends the router, then the workers; a second call does not wait for their requests. */
void fleet_stop(struct fleet *fleet);
void fleet_close(struct fleet *fleet); /* kills what is left */

#endif
