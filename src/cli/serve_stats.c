/* SPDX-License-Identifier: Apache-2.0 */
#include "serve_stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS(ns) ((double)(ns) / 1e6)

bool serve_series_add(struct serve_series *series, double value)
{
    if (series->count == series->room) {
        size_t room = series->room ? series->room * 2 : 1024;
        double *grown = realloc(series->values, room * sizeof(*grown));
        if (!grown)
            return false;
        series->values = grown;
        series->room = room;
    }
    series->values[series->count++] = value;
    return true;
}

static int value_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double serve_percentile(const double *sorted, size_t count, double percent)
{
    if (!count)
        return 0;
    double place = (double)(count - 1) * percent / 100;
    size_t below = (size_t)floor(place);
    if (below + 1 >= count)
        return sorted[count - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

struct serve_figures serve_series_figures(struct serve_series *series)
{
    struct serve_figures figures = {0};
    double sum = 0;
    if (!series->count)
        return figures;
    qsort(series->values, series->count, sizeof(double), value_compare);
    for (size_t i = 0; i < series->count; i++)
        sum += series->values[i];
    figures.mean = sum / (double)series->count;
    figures.p50 = serve_percentile(series->values, series->count, 50);
    figures.p90 = serve_percentile(series->values, series->count, 90);
    figures.p99 = serve_percentile(series->values, series->count, 99);
    figures.max = series->values[series->count - 1];
    return figures;
}

bool serve_stats_add(struct serve_stats *stats, const struct serve_sample *sample)
{
    double ttft = MS(sample->first_ns - sample->due_ns);
    double tpot =
        sample->tokens > 1 ? MS(sample->last_ns - sample->first_ns) / (sample->tokens - 1) : 0;
    stats->completed++;
    stats->prompt_tokens += sample->prompt_tokens;
    stats->tokens += sample->tokens;
    if ((!stats->slo_ttft_ms || ttft <= stats->slo_ttft_ms) &&
        (!stats->slo_tpot_ms || tpot <= stats->slo_tpot_ms))
        stats->good++;
    return serve_series_add(&stats->ttft, ttft) &&
           serve_series_add(&stats->e2e, MS(sample->end_ns - sample->due_ns)) &&
           (sample->tokens < 2 || serve_series_add(&stats->tpot, tpot));
}

/* One line, without what would spoil a terminal. */
static void text_copy(char *out, size_t size, const char *text)
{
    size_t length = 0;
    for (; *text && length + 1 < size; text++)
        out[length++] = (unsigned char)*text < 0x20 || *text == 0x7f ? ' ' : *text;
    out[length] = 0;
}

void serve_stats_error(struct serve_stats *stats, const char *reason, const char *text)
{
    uint32_t i = 0;
    stats->errors++;
    while (i < stats->reason_count && strcmp(stats->reasons[i].name, reason))
        i++;
    if (i == SERVE_REASONS_MAX)
        i--; /* the last stands for all further ones */
    struct serve_reason *one = &stats->reasons[i];
    if (i == stats->reason_count) {
        stats->reason_count++;
        text_copy(one->name, sizeof(one->name), reason);
        text_copy(one->first, sizeof(one->first), text);
    }
    one->count++;
}

void serve_stats_free(struct serve_stats *stats)
{
    free(stats->ttft.values);
    free(stats->tpot.values);
    free(stats->itl.values);
    free(stats->e2e.values);
}
