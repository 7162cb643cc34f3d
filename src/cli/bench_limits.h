/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine itself can do with the same pages: the figures that ours are divided by. */
#ifndef BATON_CLI_BENCH_LIMITS_H
#define BATON_CLI_BENCH_LIMITS_H

#include "bench_pages.h"

/* One core copying the same pages, from random order into random order. */
struct copy_limit {
    uint8_t *src, *dst;
    int32_t *src_pages, *dst_pages;
    uint32_t bases, pages;
    uint64_t item_bytes;
};

int copy_limit_open(const struct bench_case *work, struct copy_limit *out, struct error err);
double copy_limit_seconds(struct copy_limit *limit); /* of copying all of it once */
void copy_limit_close(struct copy_limit *limit);

/* One TCP stream over loopback by iperf3, in GB/s. ENOTFOUND where iperf3 is not installed. */
int iperf3_gbps(double *out, struct error err);

#endif
