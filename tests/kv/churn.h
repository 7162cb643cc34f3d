/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker does to its pool and its prefix cache while it serves: a prefill worker (chunks,
 * pages locked until they are sent) and a decode worker (prompts land, sequences grow by a page at a
 * time, many at once). Nothing is computed. Which pages are free is written down in terms that do not
 * depend on the allocator, so that other allocators can be put through the same. */
#ifndef BATON_TESTS_KV_CHURN_H
#define BATON_TESTS_KV_CHURN_H

#include "kv/prefix_cache.h"
#include "traffic.h"

#define CHURN_TOKENS_PER_PAGE 16u

enum churn_role { CHURN_PREFILL, CHURN_DECODE };

/* Pages are known by their birth: the how-manieth page it is that was ever allocated. */
struct churn_operation {
    bool is_alloc;
    bool is_prompt; /* will be sent or received, so that its runs matter */
    uint32_t count;
    int64_t after;  /* alloc: the birth of the page that these follow; -1: none */
    uint64_t birth; /* alloc: of the first page; free: where the births are in `freed` */
};

struct churn_log {
    struct churn_operation *operations;
    uint64_t *freed;
    uint64_t operation_count, freed_count, births;
    uint64_t operation_capacity, freed_capacity;
};
void churn_log_free(struct churn_log *log);

struct churn_options {
    enum churn_role role;
    uint32_t pages;      /* of the pool */
    uint32_t growth;     /* pages that a decode worker takes at a time for a growing sequence */
    bool evicts_exactly; /* instead of ahead (prefix_cache_make_room) */
    struct churn_log *log; /* NULL: none. With one, times are worth nothing */
};

enum churn_timed {
    CHURN_MATCH,
    CHURN_PEEK,
    CHURN_INSERT,
    CHURN_LOCK,
    CHURN_UNLOCK,
    CHURN_EVICT,
    CHURN_ALLOC,
    CHURN_RELEASE,
    CHURN_TIMED
};

struct churn_time {
    uint64_t calls;
    uint64_t pages; /* that the calls were about */
    uint64_t ns;
};

struct churn_result {
    uint32_t served;
    uint32_t refused;
    uint64_t peak_nodes;
    struct prefix_stats stats;
    struct churn_time times[CHURN_TIMED];
};

/* Serves all of the traffic, and checks that every page comes back. */
struct churn_result churn_run(const struct churn_options *options, struct traffic *traffic);

#endif
