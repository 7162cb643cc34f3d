/* SPDX-License-Identifier: Apache-2.0 */
/* A request on its way: the client's exchange and up to two legs.
 *
 *          both legs sent        decode's first byte         decode's last byte
 *   WAITING --------------------> ANSWERING ------------------> the exchange is over
 *      |  ^                          |
 *      |  | other workers, once      | the worker breaks off: the client is told within the stream,
 *      +--+                          | and cut
 *      | a leg failed: the other one is cancelled
 *      v
 *   an error for the client
 *
 * The client sees only what decode sends. Prefill's answer says no more than that it is done; when it
 * fails while decode waits, it is the reason that the client gets. The client leaving cancels both. */
#ifndef BATON_ROUTER_RELAY_H
#define BATON_ROUTER_RELAY_H

#include "router_parts.h"

/* Of answers with a length: they are gathered, and sent on whole. A worker that dies in the middle of
 * one has not been seen by the client yet. */
#define RELAY_GATHER_MAX (1u << 20)
#define RELAY_ERROR_MAX (64u << 10)
#define RELAY_LOGPROBS_MAX (16u << 20) /* of prefill's answer, where it is wanted */

struct leg {
    struct relay *relay;
    struct upstream *upstream; /* held as long as there is a request */
    struct http_request *request;
    /* the answer */
    int status; /* 0: it has not begun */
    char type[128];
    char *headers; /* name NUL value NUL ... of those to pass on */
    size_t headers_length;
    char *bytes; /* what was gathered */
    size_t length, room;
};

struct relay {
    LIST_ENTRY(relay) entry;
    struct router_loop *loop;
    struct http_exchange *exchange; /* NULL: the client has its answer */
    enum relay_kind kind;
    struct leg prefill, decode; /* one that does both is in `decode` */
    struct upstream *avoid[2];  /* held: what failed before, prefill and decode */
    uint32_t tries;
    uint32_t refusals, losses; /* workers that answered badly or late; that were not there */
    bool stream;               /* the answer is passed on as it comes */
    bool answering;            /* the client has seen some of it */
    bool held;                 /* for a slow client */
    bool out_of_memory;
    bool joins;         /* prefill's answer has something for the client: relay_logprobs.c */
    bool waits_to_join; /* decode is done, prefill is not */
    uint64_t began_ns, spent_ns, heard_ns, over_ns;
    char request_id[80];
    char reason[480]; /* of the last failure */
};

/* ---- relay.c ---- */
void leg_cancel(struct leg *leg);
/* The client has its answer. Prefill may still be on its way to its end, so that its connection can be
 * used again; the sweep does not let it take long. */
void relay_over(struct relay *relay);

/* ---- relay_answer.c ---- */
void answer_head(struct leg *leg, const struct http_head *head);
void answer_body(struct leg *leg, const char *bytes, size_t length);
void answer_end(struct relay *relay);   /* decode is done, and well */
void answer_break(struct relay *relay); /* it broke off after the client has seen some of it */
/* ---- relay_logprobs.c ---- */
void answer_join_logprobs(struct relay *relay);

/* ---- relay_answer.c ---- */
/* What a leg answered instead of 2xx. */
void answer_pass_error(struct relay *relay, struct leg *leg);
void answer_refuse(struct relay *relay, int status, const char *type, const char *code,
                   const char *message);
void leg_forget_answer(struct leg *leg);

#endif
