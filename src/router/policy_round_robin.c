/* SPDX-License-Identifier: Apache-2.0 */
/* One after the other. A worker that comes or goes shifts the turn; nobody is left out by it. */
#include "policy.h"

static uint32_t choose(struct policy_memory *memory, enum upstream_role role,
                       struct upstream *const *candidates, uint32_t count)
{
    (void)candidates;
    return memory->turn[role]++ % count;
}

const struct policy policy_round_robin = {.name = "round_robin", .choose = choose};
