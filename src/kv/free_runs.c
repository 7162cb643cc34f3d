/* SPDX-License-Identifier: Apache-2.0 */
/* See free_runs.h.
 *
 * A run of free pages has its length written at its first and at its last page (boundary tags), so
 * that pages that come back find the runs on both sides of them without a search and become one
 * run with them. Taken pages have length 0.
 *
 *    page     0 1 2 3 4 5 6 7 8 9
 *    free     - x x x x - - x x -
 *    length   0 4 . . 4 0 0 2 2 0        "." is never read
 *
 * Runs hang in bins by length: one bin for each length up to 31, then 16 bins for every power of
 * two. A bit map of the bins that are not empty finds the smallest run that is long enough, or the
 * longest of all, in a few instructions. This is the two-level segregated fit known from real-time
 * allocators. tests/kv/test_churn.c --bench compares it with others on the traffic of a worker. */
#include "free_runs.h"

#include "base/error.h"

#include <stdlib.h>

#define SUB_BITS 4  /* 2^4 bins for every power of two */
#define FIT_TRIES 8 /* runs of the wanted length's own bin that are looked at */

struct free_run {
    uint32_t length; /* at the first and last page of a free run; 0: the page is taken */
    int32_t next;    /* at the first page: in its bin; -1: none */
    int32_t previous;
};

static uint32_t bin_of(uint32_t length)
{
    if (length < (1u << SUB_BITS))
        return length;
    uint32_t exponent = 31 - (uint32_t)__builtin_clz(length);
    uint32_t fraction = (length >> (exponent - SUB_BITS)) & ((1u << SUB_BITS) - 1);
    return ((exponent - SUB_BITS + 1) << SUB_BITS) + fraction;
}

int free_runs_open(struct free_runs *runs, uint32_t pages)
{
    BATON_ASSERT(pages > 0 && pages <= FREE_RUNS_PAGES_MAX);
    BATON_ASSERT(bin_of(FREE_RUNS_PAGES_MAX) < FREE_RUNS_BINS);
    *runs = (struct free_runs){.pages = pages};
    runs->runs = calloc(pages, sizeof(*runs->runs));
    if (!runs->runs)
        return BATON_ENOMEM;
    for (uint32_t bin = 0; bin < FREE_RUNS_BINS; bin++)
        runs->bins[bin] = -1;
    free_runs_put(runs, 0, pages);
    return BATON_OK;
}

void free_runs_close(struct free_runs *runs)
{
    free(runs->runs);
    runs->runs = NULL;
}

/* ---- runs in their bins ------------------------------------------------------------------ */

static void run_insert(struct free_runs *runs, uint32_t first, uint32_t length)
{
    uint32_t bin = bin_of(length);
    struct free_run *run = &runs->runs[first];
    runs->runs[first + length - 1].length = length;
    *run = (struct free_run){.length = length, .next = runs->bins[bin], .previous = -1};
    if (run->next >= 0)
        runs->runs[run->next].previous = (int32_t)first;
    runs->bins[bin] = (int32_t)first;
    runs->occupied[bin / 64] |= 1ull << bin % 64;
}

static void run_remove(struct free_runs *runs, uint32_t first)
{
    const struct free_run *run = &runs->runs[first];
    uint32_t bin = bin_of(run->length);
    if (run->next >= 0)
        runs->runs[run->next].previous = run->previous;
    if (run->previous >= 0)
        runs->runs[run->previous].next = run->next;
    else
        runs->bins[bin] = run->next;
    if (runs->bins[bin] < 0)
        runs->occupied[bin / 64] &= ~(1ull << bin % 64);
}

static int32_t bin_at_or_above(const struct free_runs *runs, uint32_t bin)
{
    uint64_t word = runs->occupied[bin / 64] & (~0ull << bin % 64);
    for (uint32_t i = bin / 64;; word = runs->occupied[i]) {
        if (word)
            return (int32_t)(i * 64 + (uint32_t)__builtin_ctzll(word));
        if (++i == FREE_RUNS_BINS / 64)
            return -1;
    }
}

static int32_t bin_highest(const struct free_runs *runs)
{
    for (uint32_t i = FREE_RUNS_BINS / 64; i-- > 0;)
        if (runs->occupied[i])
            return (int32_t)(i * 64 + 63 - (uint32_t)__builtin_clzll(runs->occupied[i]));
    return -1;
}

/* ---- take and put ------------------------------------------------------------------------ */

/* A run of at least `want` pages, or the longest there is; -1 when nothing is free. */
static int32_t run_choose(const struct free_runs *runs, uint32_t want)
{
    uint32_t own = bin_of(want);
    int32_t run = runs->bins[own];
    for (uint32_t tries = 0; run >= 0 && tries < FIT_TRIES; tries++) {
        if (runs->runs[run].length >= want)
            return run;
        run = runs->runs[run].next;
    }
    int32_t bin = bin_at_or_above(runs, own + 1);
    if (bin < 0)
        bin = bin_highest(runs);
    return bin < 0 ? -1 : runs->bins[bin];
}

uint32_t free_runs_take(struct free_runs *runs, int32_t after, uint32_t want, int32_t *first)
{
    BATON_ASSERT(want > 0 && after >= -1 && after < (int64_t)runs->pages);
    BATON_ASSERT(after < 0 || !runs->runs[after].length);
    if (want > runs->pages)
        want = runs->pages;
    int32_t run = after + 1;
    /* The page before it is taken, so if this one is free, then it is the first of its run. */
    if (after < 0 || run == (int32_t)runs->pages || !runs->runs[run].length)
        run = run_choose(runs, want);
    if (run < 0)
        return 0;
    uint32_t length = runs->runs[run].length;
    uint32_t taken = length < want ? length : want;
    run_remove(runs, (uint32_t)run);
    for (uint32_t i = 0; i < taken; i++)
        runs->runs[(uint32_t)run + i].length = 0;
    if (taken < length)
        run_insert(runs, (uint32_t)run + taken, length - taken);
    runs->free -= taken;
    *first = run;
    return taken;
}

void free_runs_put(struct free_runs *runs, int32_t first, uint32_t count)
{
    uint32_t begin = (uint32_t)first, end = begin + count;
    BATON_ASSERT(count > 0 && first >= 0 && end <= runs->pages);
    BATON_ASSERT(!runs->runs[begin].length && !runs->runs[end - 1].length);
    runs->free += count;
    if (end < runs->pages && runs->runs[end].length) {
        uint32_t length = runs->runs[end].length;
        run_remove(runs, end);
        end += length;
    }
    if (begin > 0 && runs->runs[begin - 1].length) {
        begin -= runs->runs[begin - 1].length;
        run_remove(runs, begin);
    }
    run_insert(runs, begin, end - begin);
}
