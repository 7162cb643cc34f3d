/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

#include "base/clock.h"

#include <string.h>

static const struct policy *const policies[] = {&policy_random, &policy_round_robin,
                                                &policy_least_loaded};

const struct policy *policy_find(const char *name)
{
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    return NULL;
}

/* xorshift64*: enough to spread requests. */
uint32_t policy_random_below(struct policy_memory *memory, uint32_t count)
{
    uint64_t x = memory->random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    memory->random = x;
    return (uint32_t)(((x * 0x2545f4914f6cdd1dull >> 32) * count) >> 32);
}

struct upstream *policy_choose(const struct policy *policy, struct policy_memory *memory,
                               const struct upstream_set *set, enum upstream_role role,
                               const struct upstream *avoid)
{
    struct upstream *candidates[UPSTREAMS_MAX], *last_resort = NULL;
    uint32_t count = 0;
    uint64_t now = clock_now_ns();
    for (uint32_t i = set->first[role]; i < set->first[role + 1]; i++) {
        if (!upstream_usable(set->items[i], now))
            continue;
        if (set->items[i] == avoid)
            last_resort = set->items[i];
        else
            candidates[count++] = set->items[i];
    }
    if (!count)
        return last_resort;
    return candidates[policy->choose(memory, role, candidates, count)];
}
