/* SPDX-License-Identifier: Apache-2.0 */
/* See admission.h. */
#include "admission.h"

#include <math.h>

static uint32_t at_most(uint32_t value, uint32_t most)
{
    return value < most ? value : most;
}

static uint32_t beyond(uint64_t tokens, uint32_t pages, uint32_t tokens_per_page)
{
    uint32_t needed = pages_for(tokens, tokens_per_page);
    return needed > pages ? needed - pages : 0;
}

uint32_t admission_need(const struct sequence_load *load, double ratio,
                        uint32_t tokens_per_page)
{
    double expected = ratio * at_most(load->remaining, ADMISSION_NEW_TOKENS_MAX);
    return beyond(load->tokens + (uint64_t)ceil(expected), load->pages, tokens_per_page);
}

uint32_t admission_need_soon(const struct sequence_load *load, uint32_t more,
                             uint32_t tokens_per_page)
{
    return beyond((uint64_t)load->tokens + at_most(more, load->remaining), load->pages,
                  tokens_per_page);
}

uint32_t admission_piece(uint32_t position, uint32_t end, uint32_t room, bool anywhere,
                         uint32_t tokens_per_page)
{
    uint32_t rest = end - position;
    if (rest <= room)
        return rest;
    uint32_t over = (position + room) % tokens_per_page;
    if (over < room)
        return room - over;
    return anywhere ? room : 0;
}

static bool gives_way_before(const struct sequence_load *one, const struct sequence_load *other)
{
    if (one->generated != other->generated)
        return one->generated < other->generated;
    return one->prompt >= other->prompt;
}

uint32_t admission_victim(const struct sequence_load *loads, uint32_t count)
{
    uint32_t victim = 0;
    for (uint32_t i = 1; i < count; i++)
        if (gives_way_before(&loads[i], &loads[victim]))
            victim = i;
    return victim;
}
