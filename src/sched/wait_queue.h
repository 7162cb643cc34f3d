/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits, in the order in which they are let in: retracted ones first (they hold up everybody else
 * until they run again), then by priority, then by arrival. */
#ifndef BATON_SCHED_WAIT_QUEUE_H
#define BATON_SCHED_WAIT_QUEUE_H

#include "generation_state.h"

struct wait_list {
    struct generation_state *first, *last;
    uint32_t count;
};

struct wait_queue {
    struct wait_list retracted, fresh;
    uint64_t uncached; /* tokens to be computed, of all of them */
};

void wait_queue_add(struct wait_queue *queue, struct generation_state *state);
void wait_queue_remove(struct wait_queue *queue, struct generation_state *state);

/* How many tokens of it would have to be computed, seen anew. */
void wait_queue_set_uncached(struct wait_queue *queue, struct generation_state *state,
                             uint32_t uncached);

/* It is let in before all those that stand in front of it: each of them counts that. */
void wait_queue_overtake(struct generation_state *state);

static inline uint32_t wait_queue_count(const struct wait_queue *queue)
{
    return queue->retracted.count + queue->fresh.count;
}

#endif
