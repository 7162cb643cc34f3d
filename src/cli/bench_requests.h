/* SPDX-License-Identifier: Apache-2.0 */
/* How many RDMA work requests a hand-over cannot do without, found from the page lists alone. It is
 * what `baton bench transfer` puts beside the number that were posted. */
#ifndef BATON_CLI_BENCH_REQUESTS_H
#define BATON_CLI_BENCH_REQUESTS_H

#include "bench_pages.h"

#define REQUEST_BYTES_MAX \
    (4u << 20) /* a request is not longer, so that an abort is soon seen */

/* A request names one run of the remote memory and a list of at most max_sge local pieces. Runs are
 * fed in the order in which they are sent; neighbours join. */
struct request_counter {
    uint32_t max_sge;
    uint64_t requests;
    uint32_t pieces;
    uint64_t bytes, remote_end, local_end; /* of the open request */
};
void request_count(struct request_counter *counter, uint64_t remote, uint64_t local,
                   uint64_t length);

/* Over all pairs of ranks, pages in the order of the sequence. `reads`: decode reads, and so prefill's
 * memory is the remote one. */
int requests_minimum(const struct bench_case *work, bool reads, uint32_t max_sge, uint64_t *out,
                     struct error err);

#endif
