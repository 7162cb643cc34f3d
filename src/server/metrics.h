/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker counts about its requests, for /metrics. Any thread adds; the page reads without a
 * lock, so that numbers of one page may be an instant apart. Names are SGLang's where it has them,
 * so that its dashboards work. */
#ifndef BATON_SERVER_METRICS_H
#define BATON_SERVER_METRICS_H

#include "model/unicode.h"
#include "sched/scheduler.h"

#define HISTOGRAM_BUCKETS 32u

struct histogram {
    _Atomic uint64_t buckets[HISTOGRAM_BUCKETS]; /* the last one: everything above */
    _Atomic uint64_t sum_us, count;
};

void histogram_add(struct histogram *histogram, double seconds);

struct metrics {
    struct histogram first_token, between_tokens, end_to_end;
    _Atomic uint64_t requests, replies_ok, replies_refused, replies_failed, clients_left;
    _Atomic uint64_t streams_held; /* times a slow reader made a stream wait */
};

struct metrics_facts {
    const char *model_name;
    uint32_t capacity_tokens, max_running;
    uint32_t connections;
    bool transfers; /* the worker takes part in hand-overs */
};

/* The page in Prometheus' text format. ENOMEM. */
int metrics_page(const struct metrics *metrics, const struct scheduler_stats *stats,
                 const struct metrics_facts *facts, struct byte_buffer *out);

#endif
