/* SPDX-License-Identifier: Apache-2.0 */
/* One measured case: two processes, warm-up, iterations with the memcpy limit in between, then
 * many rooms of one page. Numbers only; printing is bench_report.c's. */
#ifndef BATON_CLI_BENCH_CASE_H
#define BATON_CLI_BENCH_CASE_H

#include "bench_pages.h"

struct bench_result {
    struct bench_case work;
    char backend[16]; /* that carried it */
    char reason[112];
    uint64_t bytes, operations;
    uint64_t requests, doorbells; /* RDMA: posted to the devices; 0: not told */
    uint32_t packed;
    double seconds, best_seconds; /* send() to SUCCESS on all prefill ranks: median, best */
    double memcpy_seconds;        /* median of those taken in between */
    double control_share;         /* of that time, during which no byte moved: median */
    uint64_t wrong_bytes;
    char wrong_where[160];
    bool verified;
    /* One page, link up. Whole room: both sides open at once, to SUCCESS on both. */
    uint32_t rooms;
    double p50_us, p99_us;
    double send_p50_us, send_p99_us; /* both sides ready: send() to the sender's SUCCESS */
};

int bench_case_run(const struct bench_case *work, uint32_t iterations, uint32_t rooms,
                   struct bench_result *out, struct error err);

/* Sorts; fraction 0.5 is the median. */
double samples_quantile(double *samples, uint32_t count, double fraction);

/* A room number that no other process on this host uses at the same time. */
uint64_t bench_room_next(void);

#endif
