/* SPDX-License-Identifier: Apache-2.0 */
/* Two loops: the widest product of 8-bit numbers that this processor has, out of registers, and a
 * sum over memory that no cache holds. The threads begin together and each measures itself; of a
 * round the slowest counts, and of the rounds the median. */
#include "bench_engine_limits.h"

#include "base/clock.h"
#include "bench_case.h"
#include "bench_products.h"
#include "engine/thread_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ROUNDS 5
#define READ_BYTES ((uint64_t)128 << 20) /* of each thread */

/* ---- memory ----------------------------------------------------------------------------------- */

/* In several places at once, and told ahead: so a processor reads fastest. */
#define READ_PLACES 4
#define READ_LINE 8    /* words */
#define READ_AHEAD 320 /* words */

static uint64_t read_all(const uint64_t *memory)
{
    const uint64_t words = READ_BYTES / sizeof(*memory), apart = words / READ_PLACES;
    uint64_t sum[READ_LINE] = {0};
    for (uint64_t i = 0; i < apart; i += READ_LINE) {
        for (int place = 0; place < READ_PLACES; place++) {
            const uint64_t *line = memory + (uint64_t)place * apart + i;
            __builtin_prefetch(line + READ_AHEAD);
            for (int j = 0; j < READ_LINE; j++)
                sum[j] += line[j];
        }
    }
    for (int j = 1; j < READ_LINE; j++)
        sum[0] += sum[j];
    return sum[0];
}

/* ---- threads ---------------------------------------------------------------------------------- */

struct limit_thread {
    uint64_t *memory;
    double gops, gbps; /* of the last round */
};

static void integer_run(void *context, uint32_t index)
{
    struct limit_thread *self = (struct limit_thread *)context + index;
    uint64_t begin = clock_now_ns();
    double work = bench_products_name() ? bench_products_work() : 0;
    self->gops = work / (double)(clock_now_ns() - begin + 1);
}

static void read_run(void *context, uint32_t index)
{
    struct limit_thread *self = (struct limit_thread *)context + index;
    uint64_t begin = clock_now_ns(), sum = read_all(self->memory);
    __asm__ volatile("" : : "r"(sum));
    self->gbps = (double)READ_BYTES / (double)(clock_now_ns() - begin);
}

static bool memory_open(struct limit_thread *thread)
{
    thread->memory = aligned_alloc((size_t)2 << 20, READ_BYTES);
    if (!thread->memory)
        return false;
    madvise(thread->memory, READ_BYTES, MADV_HUGEPAGE); /* refused: more misses in the TLB */
    memset(thread->memory, 1, READ_BYTES);
    return true;
}

static void limit_rounds(struct thread_pool *pool, struct limit_thread *threads, uint32_t count,
                         double *gops, double *gbps)
{
    double slow_gops[ROUNDS], slow_gbps[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        thread_pool_run(pool, integer_run, threads);
        thread_pool_run(pool, read_run, threads);
        slow_gops[round] = threads[0].gops;
        slow_gbps[round] = threads[0].gbps;
        for (uint32_t i = 1; i < count; i++) {
            slow_gops[round] = fmin(slow_gops[round], threads[i].gops);
            slow_gbps[round] = fmin(slow_gbps[round], threads[i].gbps);
        }
    }
    *gops = samples_quantile(slow_gops, ROUNDS, 0.5);
    *gbps = samples_quantile(slow_gbps, ROUNDS, 0.5);
}

static int limit_measure(uint32_t count, double *gops, double *gbps, struct error err)
{
    struct thread_pool *pool = NULL;
    struct limit_thread *threads = calloc(count, sizeof(*threads));
    int rc = threads ? thread_pool_open(count, &pool, err) : BATON_ENOMEM;
    for (uint32_t i = 0; i < count && !rc; i++)
        if (!memory_open(&threads[i]))
            rc = BATON_ENOMEM;
    if (rc == BATON_ENOMEM)
        error_set(err, rc, "no memory to measure how fast it is read");
    if (!rc)
        limit_rounds(pool, threads, count, gops, gbps);
    thread_pool_close(pool);
    for (uint32_t i = 0; threads && i < count; i++)
        free(threads[i].memory);
    free(threads);
    return rc;
}

int engine_limits_measure(uint32_t threads, struct engine_limits *out, struct error err)
{
    struct engine_limits limits = {.instruction = bench_products_name()};
    double gops_alone = 0, gbps_each = 0;
    int rc = limit_measure(1, &gops_alone, &limits.read_gbps_one, err);
    if (!rc)
        rc = limit_measure(threads, &limits.integer_gops_each, &gbps_each, err);
    if (rc)
        return rc;
    limits.read_gbps_all = gbps_each * threads;
    *out = limits;
    return BATON_OK;
}
