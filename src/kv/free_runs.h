/* SPDX-License-Identifier: Apache-2.0 */
/* Which pages are free, kept as runs of neighbours, so that pages can be handed out in runs: a
 * transfer merges neighbouring pages into one copy. Constant time for any size of pool. */
#ifndef BATON_KV_FREE_RUNS_H
#define BATON_KV_FREE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

#define FREE_RUNS_PAGES_MAX (1u << 28)
#define FREE_RUNS_BINS 448

struct free_run;

struct free_runs {
    uint32_t pages; /* in all */
    uint32_t free;
    struct free_run *runs;                  /* one entry per page */
    int32_t bins[FREE_RUNS_BINS];           /* runs of similar length, newest first; -1: none */
    uint64_t occupied[FREE_RUNS_BINS / 64]; /* a bit for each bin that has a run */
};

/* All pages free, in one run. 0 or ENOMEM. */
int free_runs_open(struct free_runs *runs, uint32_t pages);
void free_runs_close(struct free_runs *runs);

/* Takes neighbouring pages, at most `want` (> 0): those that follow page `after` if they are free
 * (-1: no wish), else from a run that fits well, else the longest run there is. Returns how many,
 * 0 when no page is free; the first one in *first. */
uint32_t free_runs_take(struct free_runs *runs, int32_t after, uint32_t want, int32_t *first);

/* Gives neighbouring pages back; all of them must be taken. */
void free_runs_put(struct free_runs *runs, int32_t first, uint32_t count);

#endif
