/* SPDX-License-Identifier: Apache-2.0 */
/* How a measured case is shown: a row of a table for people, or one JSON object per line. */
#ifndef BATON_CLI_BENCH_REPORT_H
#define BATON_CLI_BENCH_REPORT_H

#include "bench_case.h"
#include "bench_peers.h"

/* A result and what stands beside it. Zero means "was not measured". */
struct bench_row {
    struct bench_result result;
    double iperf3_gbps;
    double reference_seconds;         /* the same bytes from one rank to one rank */
    uint64_t requests_minimum;        /* RDMA: what the page lists make necessary */
    const struct peer_figures *peers; /* on the same pages; NULL: not asked for */
};

struct bench_report {
    bool json;
    bool tp;    /* a column for the time against 1 -> 1 */
    bool peers; /* columns for NIXL and Mooncake */
    bool rdma;  /* columns for work requests and doorbells */
};

const char *bench_layout_name(const struct bench_case *work);

void bench_report_begin(const struct bench_report *report);
void bench_report_row(const struct bench_report *report, const struct bench_row *row);
void bench_report_peers(const struct bench_report *report, const struct bench_case *work,
                        const struct peer_figures *figures);
void bench_report_end(const struct bench_report *report, uint32_t iterations);

#endif
