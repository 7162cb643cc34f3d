/* SPDX-License-Identifier: Apache-2.0 */
/* Allocators to hold free_runs.c against: the simplest one, and one that searches the whole pool for
 * the best place. */
#ifndef BATON_TESTS_KV_OTHER_ALLOCATORS_H
#define BATON_TESTS_KV_OTHER_ALLOCATORS_H

#include <stdint.h>

struct other_allocator {
    const char *name;
    void *(*open)(uint32_t pages);
    void (*close)(void *self);
    /* count pages, which are known to be free; `after` as in free_runs_take. */
    void (*take)(void *self, int32_t after, uint32_t count, int32_t *pages);
    void (*put)(void *self, const int32_t *pages, uint32_t count);
};

extern const struct other_allocator other_stack;           /* last in, first out */
extern const struct other_allocator other_best_fit;        /* shortest run that fits */
extern const struct other_allocator other_best_after;      /* best fit, but continues `after` */
extern const struct other_allocator other_free_runs;       /* ours, without the wish `after` */
extern const struct other_allocator other_free_runs_after; /* ours */

#endif
