/* SPDX-License-Identifier: Apache-2.0 */
/* What a load was like: one sample per answered request, the gaps between tokens, errors by reason, and
 * the figures made from them.
 *
 *   TTFT  from the instant the request was due to its first token
 *   TPOT  (last token - first token) / (tokens - 1), per request with at least two
 *   ITL   each gap between tokens; one event with k tokens counts as k equal gaps
 *   E2E   to the end of the answer */
#ifndef BATON_CLI_SERVE_STATS_H
#define BATON_CLI_SERVE_STATS_H

#include "base/error.h"

#include <stdbool.h>

struct serve_series { /* milliseconds */
    double *values;
    size_t count, room;
};

struct serve_figures {
    double mean, p50, p90, p99, max;
};

bool serve_series_add(struct serve_series *series, double value);
/* Sorts the series. Between two values percentiles are interpolated, as numpy does. */
struct serve_figures serve_series_figures(struct serve_series *series);
double serve_percentile(const double *sorted, size_t count, double percent);

struct serve_sample {
    uint64_t due_ns, first_ns, last_ns, end_ns;
    uint32_t prompt_tokens, tokens;
};

#define SERVE_REASONS_MAX 32

struct serve_stats {
    uint32_t completed, good;
    uint32_t shorter; /* answers with fewer tokens than asked for */
    uint64_t prompt_tokens, tokens;
    struct serve_series ttft, tpot, itl, e2e;
    double slo_ttft_ms, slo_tpot_ms; /* 0: none */
    uint32_t errors, reason_count;
    struct serve_reason {
        char name[64];
        char first[400]; /* what the first of them said */
        uint32_t count;
    } reasons[SERVE_REASONS_MAX];
};

/* False: no memory. */
bool serve_stats_add(struct serve_stats *stats, const struct serve_sample *sample);
void serve_stats_error(struct serve_stats *stats, const char *reason, const char *text);
void serve_stats_free(struct serve_stats *stats);

#endif
