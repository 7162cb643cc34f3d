/* SPDX-License-Identifier: Apache-2.0 */
/* Any of them: needs no knowledge, and many routers do it without getting in step. */
#include "policy.h"

static uint32_t choose(struct policy_memory *memory, enum upstream_role role,
                       struct upstream *const *candidates, uint32_t count)
{
    (void)role, (void)candidates;
    return policy_random_below(memory, count);
}

const struct policy policy_random = {.name = "random", .choose = choose};
