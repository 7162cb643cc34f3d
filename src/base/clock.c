/* SPDX-License-Identifier: Apache-2.0 */
/* See clock.h. */
#include "clock.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t clock_offset_ns;

uint64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec +
           atomic_load_explicit(&clock_offset_ns, memory_order_relaxed);
}

void clock_advance_ns(uint64_t ns)
{
    atomic_fetch_add_explicit(&clock_offset_ns, ns, memory_order_relaxed);
}
