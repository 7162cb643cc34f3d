/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that can be had again: the tests of kv print their seed, and BATON_TEST_SEED repeats
 * a run. */
#ifndef BATON_TESTS_KV_RANDOM_SOURCE_H
#define BATON_TESTS_KV_RANDOM_SOURCE_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

struct random_source {
    uint64_t state;
};

static inline uint64_t random_next(struct random_source *random) /* splitmix64 */
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint32_t random_below(struct random_source *random, uint32_t bound)
{
    return (uint32_t)(random_next(random) % bound);
}

static inline uint32_t random_between(struct random_source *random, uint32_t least,
                                      uint32_t most)
{
    return least + random_below(random, most - least + 1);
}

static inline double random_unit(struct random_source *random) /* in (0, 1) */
{
    return ((double)(random_next(random) >> 12) + 0.5) / (double)(1ull << 52);
}

static inline uint64_t random_seed(void)
{
    const char *text = getenv("BATON_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return text ? strtoull(text, NULL, 0)
                : (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
