/* SPDX-License-Identifier: Apache-2.0 */
/* See other_allocators.h. */
#include "other_allocators.h"

#include "kv/free_runs.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- stack ------------------------------------------------------------------------------- */

struct stack {
    uint32_t count;
    int32_t pages[];
};

/* From the last to the first, so that they come out again in the order of the sequence. */
static void stack_put(void *self, const int32_t *pages, uint32_t count)
{
    struct stack *stack = self;
    while (count-- > 0)
        stack->pages[stack->count++] = pages[count];
}

static void *stack_open(uint32_t pages)
{
    struct stack *stack = malloc(sizeof(*stack) + pages * sizeof(*stack->pages));
    stack->count = 0;
    for (int32_t page = (int32_t)pages - 1; page >= 0; page--)
        stack_put(stack, &page, 1);
    return stack;
}

static void stack_take(void *self, int32_t after, uint32_t count, int32_t *pages)
{
    struct stack *stack = self;
    (void)after;
    for (uint32_t i = 0; i < count; i++)
        pages[i] = stack->pages[--stack->count];
}

/* ---- a map of the pool that is searched -------------------------------------------------- */

struct map {
    uint32_t pages;
    bool taken[];
};

static void *map_open(uint32_t pages)
{
    struct map *map = calloc(1, sizeof(*map) + pages);
    map->pages = pages;
    return map;
}

static uint32_t map_take_at(struct map *map, uint32_t first, uint32_t count, int32_t *pages)
{
    uint32_t got = 0;
    for (; got < count && first + got < map->pages && !map->taken[first + got]; got++) {
        map->taken[first + got] = true;
        pages[got] = (int32_t)(first + got);
    }
    return got;
}

/* The start of the shortest run of at least `count` pages; else of the longest run. */
static uint32_t map_search(const struct map *map, uint32_t count)
{
    uint32_t found = 0, found_length = 0;
    for (uint32_t page = 0; page < map->pages;) {
        const bool *start = memchr(&map->taken[page], false, map->pages - page);
        if (!start)
            break;
        page = (uint32_t)(start - map->taken);
        const bool *end = memchr(start, true, map->pages - page);
        uint32_t length = end ? (uint32_t)(end - start) : map->pages - page;
        bool better = found_length < count ? length > found_length
                                           : length >= count && length < found_length;
        if (better) {
            found = page;
            found_length = length;
        }
        page += length;
    }
    return found;
}

static void map_take(struct map *map, uint32_t count, int32_t *pages)
{
    for (uint32_t got = 0; got < count;)
        got += map_take_at(map, map_search(map, count - got), count - got, pages + got);
}

static void best_fit_take(void *self, int32_t after, uint32_t count, int32_t *pages)
{
    (void)after;
    map_take(self, count, pages);
}

static void best_after_take(void *self, int32_t after, uint32_t count, int32_t *pages)
{
    uint32_t got = after < 0 ? 0 : map_take_at(self, (uint32_t)after + 1, count, pages);
    map_take(self, count - got, pages + got);
}

static void map_put(void *self, const int32_t *pages, uint32_t count)
{
    struct map *map = self;
    for (uint32_t i = 0; i < count; i++)
        map->taken[pages[i]] = false;
}

/* ---- ours -------------------------------------------------------------------------------- */

static void *runs_open(uint32_t pages)
{
    struct free_runs *runs = malloc(sizeof(*runs));
    if (free_runs_open(runs, pages))
        abort();
    return runs;
}

static void runs_close(void *self)
{
    free_runs_close(self);
    free(self);
}

static void runs_after_take(void *self, int32_t after, uint32_t count, int32_t *pages)
{
    for (uint32_t got = 0; got < count;) {
        int32_t first;
        uint32_t taken = free_runs_take(self, after, count - got, &first);
        for (uint32_t i = 0; i < taken; i++)
            pages[got++] = first + (int32_t)i;
        after = pages[got - 1];
    }
}

static void runs_take(void *self, int32_t after, uint32_t count, int32_t *pages)
{
    (void)after;
    runs_after_take(self, -1, count, pages);
}

static void runs_put(void *self, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free_runs_put(self, pages[i], 1);
}

const struct other_allocator other_stack = {"stack", stack_open, free, stack_take, stack_put};
const struct other_allocator other_best_fit = {"best fit", map_open, free, best_fit_take,
                                               map_put};
const struct other_allocator other_best_after = {"best fit, after", map_open, free,
                                                 best_after_take, map_put};
const struct other_allocator other_free_runs = {"free_runs", runs_open, runs_close, runs_take,
                                                runs_put};
const struct other_allocator other_free_runs_after = {"free_runs, after", runs_open, runs_close,
                                                      runs_after_take, runs_put};
