/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the workers that could take a request gets it. A policy is one function and one file; what
 * it remembers between requests is small and belongs to one loop. */
#ifndef BATON_ROUTER_POLICY_H
#define BATON_ROUTER_POLICY_H

#include "upstream.h"

struct policy_memory {
    uint64_t random;               /* the state of policy_random_below, not 0 */
    uint32_t turn[UPSTREAM_ROLES]; /* of round_robin */
};

struct policy {
    const char *name;
    bool by_load; /* load reports matter to it: they are asked for often */
    /* The index of one of `count` (at least 1) candidates, all of one role. */
    uint32_t (*choose)(struct policy_memory *memory, enum upstream_role role,
                       struct upstream *const *candidates, uint32_t count);
};

extern const struct policy policy_random, policy_round_robin, policy_least_loaded;
#define POLICY_NAMES "random|round_robin|least_loaded"

const struct policy *policy_find(const char *name); /* NULL: there is none */

/* Of a role's usable upstreams the one to take; `avoid` (may be NULL) only where there is no other.
 * NULL: none is usable. Not held for the caller. */
struct upstream *policy_choose(const struct policy *policy, struct policy_memory *memory,
                               const struct upstream_set *set, enum upstream_role role,
                               const struct upstream *avoid);

uint32_t policy_random_below(struct policy_memory *memory, uint32_t count);

#endif
