/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of pages: what a generation will need, what must be left for others, how much of a
 * prompt goes into a step, and who has to give way. Nothing but numbers in and out; planner.c
 * applies it. */
#ifndef BATON_SCHED_ADMISSION_H
#define BATON_SCHED_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#define ADMISSION_NEW_TOKENS_MAX 4096u /* more than that nobody is expected to generate */

/* What the arithmetic knows of a generation. */
struct sequence_load {
    uint32_t tokens;    /* prompt and answer so far */
    uint32_t pages;     /* it has, its own and locked ones */
    uint32_t remaining; /* new tokens that may still come */
    uint32_t prompt;
    uint32_t generated;
};

static inline uint32_t pages_for(uint64_t tokens, uint32_t tokens_per_page)
{
    return (uint32_t)((tokens + tokens_per_page - 1) / tokens_per_page);
}

/* Pages that it takes beyond those it has, if `ratio` of its remaining tokens come. 1: a new one, which
 * must be able to go to its end. */
uint32_t admission_need(const struct sequence_load *load, double ratio,
                        uint32_t tokens_per_page);

/* The same if exactly `more` tokens come (fewer, when fewer remain). */
uint32_t admission_need_soon(const struct sequence_load *load, uint32_t more,
                             uint32_t tokens_per_page);

/* How many of the tokens from `position` to `end` go into a step that has room for `room`. A piece
 * that is not the last ends where a page ends, so that the prefix cache has all of it; `anywhere`
 * takes what there is room for when that is less than a page. 0: not in this step. */
uint32_t admission_piece(uint32_t position, uint32_t end, uint32_t room, bool anywhere,
                         uint32_t tokens_per_page);

/* Who gives way when pages run out: fewest generated tokens, then the longest prompt, then the last in
 * the array. Returns its index; count is at least 1. */
uint32_t admission_victim(const struct sequence_load *loads, uint32_t count);

#endif
