/* SPDX-License-Identifier: Apache-2.0 */
/* See wait_queue.h. Two lists; a new one is put in from the end, where it nearly always belongs. */
#include "wait_queue.h"

static struct wait_list *list_of(struct wait_queue *queue, const struct generation_state *state)
{
    return state->retracted ? &queue->retracted : &queue->fresh;
}

static bool goes_before(const struct generation_state *one,
                        const struct generation_state *other)
{
    if (one->generation->priority != other->generation->priority)
        return one->generation->priority > other->generation->priority;
    return one->arrival < other->arrival;
}

void wait_queue_add(struct wait_queue *queue, struct generation_state *state)
{
    struct wait_list *list = list_of(queue, state);
    struct generation_state *before = list->last;
    while (before && goes_before(state, before))
        before = before->previous;
    state->previous = before;
    state->next = before ? before->next : list->first;
    *(state->previous ? &state->previous->next : &list->first) = state;
    *(state->next ? &state->next->previous : &list->last) = state;
    list->count++;
    queue->uncached += state->uncached;
}

void wait_queue_remove(struct wait_queue *queue, struct generation_state *state)
{
    struct wait_list *list = list_of(queue, state);
    *(state->previous ? &state->previous->next : &list->first) = state->next;
    *(state->next ? &state->next->previous : &list->last) = state->previous;
    state->previous = state->next = NULL;
    list->count--;
    queue->uncached -= state->uncached;
}

void wait_queue_set_uncached(struct wait_queue *queue, struct generation_state *state,
                             uint32_t uncached)
{
    queue->uncached += uncached;
    queue->uncached -= state->uncached;
    state->uncached = uncached;
}

void wait_queue_overtake(struct generation_state *state)
{
    for (struct generation_state *one = state->previous; one; one = one->previous)
        one->overtaken++;
}
