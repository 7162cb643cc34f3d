/* SPDX-License-Identifier: Apache-2.0 */
/* The one with the least to do: our own requests there, which are known at once, and those of others,
 * which its load reports tell. Among equals the one with more of its pool free; among those any, so
 * that several routers do not all run to the same one. */
#include "policy.h"

static uint64_t burden(const struct upstream *upstream)
{
    uint64_t requests = atomic_load_explicit(&upstream->in_flight, memory_order_relaxed) +
                        atomic_load_explicit(&upstream->other_requests, memory_order_relaxed);
    return requests << 16 |
           atomic_load_explicit(&upstream->token_permille, memory_order_relaxed);
}

static uint32_t choose(struct policy_memory *memory, enum upstream_role role,
                       struct upstream *const *candidates, uint32_t count)
{
    uint64_t least = UINT64_MAX;
    uint32_t best = 0, ties = 0;
    (void)role;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t now = burden(candidates[i]);
        if (now > least)
            continue;
        ties = now < least ? 1 : ties + 1;
        least = now;
        if (policy_random_below(memory, ties) == 0)
            best = i;
    }
    return best;
}

const struct policy policy_least_loaded = {
    .name = "least_loaded", .by_load = true, .choose = choose};
