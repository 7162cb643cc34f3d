/* SPDX-License-Identifier: Apache-2.0 */
/* What the prefix cache gained and lost, page by page, for whoever keeps an index of it elsewhere (a
 * router that sends a prompt to the worker that has its prefix).
 *
 * The hash of a page stands for all tokens from the start of the sequence to its end:
 *
 *     hash(page) = XXH3_64bits_withSeed(its tokens as little-endian int32, seed = hash(previous page))
 *
 * and before the first page it is 0, or XXH3_64bits(key) under an extra key. It has no secret in it,
 * so that every worker and the router come to the same number by themselves. */
#ifndef BATON_KV_PREFIX_EVENTS_H
#define BATON_KV_PREFIX_EVENTS_H

#include "base/error.h"

enum prefix_event_kind {
    PREFIX_STORED = 0,
    PREFIX_REMOVED = 1,
    /* Nobody fetched the events and some are gone. Forget everything known of this cache and read
     * it anew with prefix_cache_block(); the events that follow are complete again. */
    PREFIX_LOST = 2,
};

struct prefix_event {
    enum prefix_event_kind kind;
    uint64_t hash;         /* stored, removed */
    uint64_t parent;       /* stored: hash of the page before it */
    const int32_t *tokens; /* stored: of this page; valid until the next call on the cache */
};

/* The most recent events, a ring. One that is full forgets what it has and says so later. */
struct prefix_events {
    uint32_t capacity; /* 0: nobody wants events */
    uint32_t tokens_per_page;
    uint32_t first; /* the oldest one */
    uint32_t count;
    bool lost;
    struct prefix_event *ring;
    int32_t *tokens; /* tokens_per_page for each slot of the ring */
};

int prefix_events_open(struct prefix_events *events, uint32_t capacity,
                       uint32_t tokens_per_page); /* 0 or ENOMEM */
void prefix_events_close(struct prefix_events *events);
void prefix_events_add(struct prefix_events *events, const struct prefix_event *event);
bool prefix_events_next(struct prefix_events *events, struct prefix_event *out);

#endif
