/* SPDX-License-Identifier: Apache-2.0 */
/* See prefix_events.h. The tokens are copied, because by the time an event is read its page may long
 * hold something else. */
#include "prefix_events.h"

#include <stdlib.h>
#include <string.h>

int prefix_events_open(struct prefix_events *events, uint32_t capacity,
                       uint32_t tokens_per_page)
{
    *events = (struct prefix_events){.capacity = capacity, .tokens_per_page = tokens_per_page};
    if (!capacity)
        return BATON_OK;
    events->ring = calloc(capacity, sizeof(*events->ring));
    events->tokens = calloc((size_t)capacity * tokens_per_page, sizeof(*events->tokens));
    if (events->ring && events->tokens)
        return BATON_OK;
    prefix_events_close(events);
    return BATON_ENOMEM;
}

void prefix_events_close(struct prefix_events *events)
{
    free(events->tokens);
    free(events->ring);
    *events = (struct prefix_events){0};
}

void prefix_events_add(struct prefix_events *events, const struct prefix_event *event)
{
    if (!events->capacity || events->lost)
        return;
    if (events->count == events->capacity) {
        events->lost = true;
        events->count = 0;
        return;
    }
    uint32_t slot = (uint32_t)(((uint64_t)events->first + events->count++) % events->capacity);
    events->ring[slot] = *event;
    if (event->kind == PREFIX_STORED) {
        int32_t *tokens = events->tokens + (uint64_t)slot * events->tokens_per_page;
        memcpy(tokens, event->tokens, events->tokens_per_page * sizeof(*tokens));
        events->ring[slot].tokens = tokens;
    }
}

bool prefix_events_next(struct prefix_events *events, struct prefix_event *out)
{
    if (events->lost) {
        events->lost = false;
        *out = (struct prefix_event){.kind = PREFIX_LOST};
        return true;
    }
    if (!events->count)
        return false;
    *out = events->ring[events->first];
    events->first = (events->first + 1) % events->capacity;
    events->count--;
    return true;
}
