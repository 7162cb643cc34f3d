/* SPDX-License-Identifier: Apache-2.0 */
/* NIXL and Mooncake on the same pages in the same run, by the scripts under bench/. */
#ifndef BATON_CLI_BENCH_PEERS_H
#define BATON_CLI_BENCH_PEERS_H

#include "bench_pages.h"

#define PEER_FIGURES_MAX 8

struct peer_figure {
    char peer[32];                      /* "nixl" */
    char transport[32];                 /* "posix,cma,tcp" */
    double seconds, best_seconds, gbps; /* 0: it failed */
    uint64_t operations;
    bool verified;
    char problem[208];
};

struct peer_figures {
    uint32_t count;
    struct peer_figure items[PEER_FIGURES_MAX];
};

/* directory: where run_peers.sh is; NULL: bench/ here or beside the program. The first call may
 * take minutes, because it installs them. */
int peers_run(const char *directory, const struct bench_case *work, uint32_t iterations,
              struct peer_figures *out, struct error err);

/* The best figure of `peer` whose transport is plain tcp (or, same host, is not); 0: none. */
double peers_best(const struct peer_figures *figures, const char *peer, bool tcp);

#endif
