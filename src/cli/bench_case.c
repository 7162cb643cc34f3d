/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one case. What is timed and what is not:
 *
 *   bandwidth   from the first send() call to SUCCESS on the last prefill rank. Before it:
 *               pools, links, grants. After it: verification and poisoning by decode, while
 *               prefill waits; then one memcpy of the same pages by prefill, while decode
 *               waits. So neither figure is taken while the other process is busy, and both
 *               see the same minute.
 *   latency     rooms of one page, one after the other. The whole room is what a request pays
 *               for the control plane: both processes open at a time agreed before, and it
 *               ends when the later of the two knows of its success. */
#include "bench_case.h"

#include "base/clock.h"
#include "role.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_TIMEOUT_MS 120000
#define START_AHEAD_NS 400000
#define ITERATIONS_MAX 1000

static int sample_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_quantile(double *samples, uint32_t count, double fraction)
{
    if (!count)
        return 0;
    qsort(samples, count, sizeof(*samples), sample_order);
    return samples[(uint32_t)(fraction * (count - 1) + 0.5)];
}

uint64_t bench_room_next(void)
{
    static uint64_t last;
    if (!last)
        last = (uint64_t)getpid() << 24;
    return ++last;
}

/* What both sides say about one room, put together. */
static int room_judge(const struct role_answer *sent, const struct role_answer *received,
                      struct bench_result *result, struct error err)
{
    if (sent->room_code || received->room_code)
        return error_set(err, sent->room_code ? sent->room_code : received->room_code,
                         "the hand-over failed: prefill says \"%s\", decode says \"%s\"",
                         sent->room_text, received->room_text);
    if (received->wrong_bytes && !result->wrong_bytes)
        memcpy(result->wrong_where, received->wrong_where, sizeof(result->wrong_where));
    result->wrong_bytes += received->wrong_bytes;
    return BATON_OK;
}

static int backend_check(const struct bench_case *work, const struct role_answer *sent,
                         const struct role_answer *received, struct bench_result *result,
                         struct error err)
{
    const baton_timeline *timeline = &sent->timeline;
    snprintf(result->backend, sizeof(result->backend), "%s", timeline->backend);
    snprintf(result->reason, sizeof(result->reason), "%s", timeline->reason);
    result->packed = timeline->packed;
    /* The side that copies counts: with cma that is decode. */
    result->operations = sent->operations ? sent->operations : received->operations;
    result->requests = sent->requests ? sent->requests : received->requests;
    result->doorbells = sent->doorbells ? sent->doorbells : received->doorbells;
    result->bytes = sent->bytes;
    if (work->backends[0] && strcmp(work->backends, result->backend) != 0)
        return error_set(err, BATON_EUNREACHABLE, "asked for %s, but %s carried it: %s",
                         work->backends, result->backend, result->reason);
    if (result->bytes != bench_case_bytes(work))
        return error_set(err, BATON_ECORRUPT, "%" PRIu64 " bytes were sent instead of %" PRIu64,
                         result->bytes, bench_case_bytes(work));
    return BATON_OK;
}

struct pair {
    struct role prefill, decode;
};

static int limit_take(struct pair *pair, double *seconds, struct error err)
{
    struct role_request request = {.kind = ROLE_LIMIT};
    struct role_answer answer;
    int rc = role_ask(&pair->prefill, &request, err);
    if (!rc)
        rc = role_answer(&pair->prefill, &answer, ANSWER_TIMEOUT_MS, err);
    if (!rc)
        *seconds = answer.seconds;
    return rc;
}

static double control_share(const struct role_answer *sent, const struct role_answer *received)
{
    uint64_t total = sent->end_ns - sent->send_ns;
    uint64_t copy = sent->copy_ns > received->copy_ns ? sent->copy_ns : received->copy_ns;
    return copy < total ? 1.0 - (double)copy / (double)total : 0;
}

/* One warm-up and then the iterations, each followed by its memcpy. */
static int bandwidth_measure(struct pair *pair, uint32_t iterations,
                             struct bench_result *result, struct error err)
{
    double seconds[ITERATIONS_MAX], limits[ITERATIONS_MAX], shares[ITERATIONS_MAX];
    struct role_answer sent = {0}, received = {0};
    int rc = BATON_OK;
    for (uint32_t i = 0; i < iterations + 1 && !rc; i++) {
        struct role_request request = {.kind = ROLE_ROOM,
                                       .room = bench_room_next(),
                                       .count = result->work.pages,
                                       .wait_grants = 1};
        uint32_t slot = i ? i - 1 : 0; /* the warm-up's figures are overwritten */
        rc = role_pair_room(&pair->prefill, &pair->decode, &request, &sent, &received, err);
        if (!rc)
            rc = room_judge(&sent, &received, result, err);
        if (!rc)
            rc = backend_check(&result->work, &sent, &received, result, err);
        if (!rc)
            rc = limit_take(pair, &limits[slot], err);
        seconds[slot] = (double)(sent.end_ns - sent.send_ns) * 1e-9;
        shares[slot] = control_share(&sent, &received);
    }
    if (rc)
        return rc;
    result->seconds = samples_quantile(seconds, iterations, 0.5);
    result->best_seconds = seconds[0];
    result->memcpy_seconds = samples_quantile(limits, iterations, 0.5);
    result->control_share = samples_quantile(shares, iterations, 0.5);
    return BATON_OK;
}

static double microseconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-3 : 0;
}

/* The first rooms are not counted: caches and branch predictors learn too. */
static int latency_measure(struct pair *pair, bool ready, struct bench_result *result,
                           double *samples, struct error err)
{
    const uint32_t warm_up = 20;
    int rc = BATON_OK;
    for (uint32_t i = 0; i < result->rooms + warm_up && !rc; i++) {
        struct role_answer sent, received;
        struct role_request request = {.kind = ROLE_ROOM,
                                       .room = bench_room_next(),
                                       .first = i % result->work.pages,
                                       .count = 1,
                                       .wait_grants = ready,
                                       .start_ns = clock_now_ns() + START_AHEAD_NS};
        rc = role_pair_room(&pair->prefill, &pair->decode, &request, &sent, &received, err);
        if (!rc)
            rc = room_judge(&sent, &received, result, err);
        if (rc || i < warm_up)
            continue;
        uint64_t begin = sent.open_ns < received.open_ns ? sent.open_ns : received.open_ns;
        uint64_t end = sent.end_ns > received.end_ns ? sent.end_ns : received.end_ns;
        samples[i - warm_up] =
            ready ? microseconds(sent.send_ns, sent.end_ns) : microseconds(begin, end);
    }
    return rc;
}

static int latencies_measure(struct pair *pair, struct bench_result *result, struct error err)
{
    double *samples = calloc(result->rooms, sizeof(*samples));
    if (!samples)
        return error_set(err, BATON_ENOMEM, "no memory for %u samples", result->rooms);
    int rc = latency_measure(pair, false, result, samples, err);
    if (!rc) {
        result->p50_us = samples_quantile(samples, result->rooms, 0.5);
        result->p99_us = samples_quantile(samples, result->rooms, 0.99);
        rc = latency_measure(pair, true, result, samples, err);
    }
    if (!rc) {
        result->send_p50_us = samples_quantile(samples, result->rooms, 0.5);
        result->send_p99_us = samples_quantile(samples, result->rooms, 0.99);
    }
    free(samples);
    return rc;
}

int bench_case_run(const struct bench_case *work, uint32_t iterations, uint32_t rooms,
                   struct bench_result *out, struct error err)
{
    struct bench_result result = {.work = *work, .rooms = rooms};
    struct pair pair;
    int rc = bench_case_check(work, err);
    if (!rc && (!iterations || iterations > ITERATIONS_MAX))
        rc = error_set(err, BATON_EINVAL, "between 1 and %d iterations, not %u", ITERATIONS_MAX,
                       iterations);
    if (rc)
        return rc;
    rc = role_pair_open(work, &pair.prefill, &pair.decode, err);
    if (!rc)
        rc = bandwidth_measure(&pair, iterations, &result, err);
    if (!rc && rooms)
        rc = latencies_measure(&pair, &result, err);
    role_stop(&pair.decode, &rc, err);
    role_stop(&pair.prefill, &rc, err);
    if (rc)
        return rc;
    result.verified = result.wrong_bytes == 0;
    *out = result;
    return BATON_OK;
}
