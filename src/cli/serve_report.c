/* SPDX-License-Identifier: Apache-2.0 */
#include "serve_report.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

static void row_print(FILE *out, const char *name, struct serve_series *series)
{
    struct serve_figures figures = serve_series_figures(series);
    fprintf(out, "  %-22s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, figures.mean,
            figures.p50, figures.p90, figures.p99, figures.max);
}

static void figures_print(struct serve_result *result, FILE *out)
{
    struct serve_stats *stats = &result->stats;
    double seconds = result->seconds > 0 ? result->seconds : 1e-9;
    bool limited = stats->slo_ttft_ms || stats->slo_tpot_ms;
    fprintf(out, "  %-22s %10.2f requests/s\n", "throughput", stats->completed / seconds);
    fprintf(out, "  %-22s %10.2f tokens/s (%llu)\n", "prompts",
            (double)stats->prompt_tokens / seconds, (unsigned long long)stats->prompt_tokens);
    fprintf(out, "  %-22s %10.2f tokens/s (%llu)\n", "generated",
            (double)stats->tokens / seconds, (unsigned long long)stats->tokens);
    if (limited)
        fprintf(out, "  %-22s %10.2f requests/s (%u of %u within the limits)\n", "goodput",
                stats->good / seconds, stats->good, result->sent);
    fprintf(out, "  %-22s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p90",
            "p99", "max");
    row_print(out, "first token (TTFT)", &stats->ttft);
    row_print(out, "per token (TPOT)", &stats->tpot);
    row_print(out, "between tokens (ITL)", &stats->itl);
    row_print(out, "whole answer (E2E)", &stats->e2e);
}

void serve_report_print(struct serve_result *result, FILE *out)
{
    struct serve_stats *stats = &result->stats;
    fprintf(out, "%u requests in %.2f s: %u answered, %u errors%s\n", result->sent,
            result->seconds, stats->completed, stats->errors,
            result->interrupted ? ", interrupted" : "");
    if (stats->completed)
        figures_print(result, out);
    if (stats->shorter)
        fprintf(out, "%u answers had fewer tokens than asked for\n", stats->shorter);
    for (uint32_t i = 0; i < stats->reason_count; i++)
        fprintf(out, "%u x %s; the first: %s\n", stats->reasons[i].count,
                stats->reasons[i].name, stats->reasons[i].first);
}

static json_t *figures_json(struct serve_series *series)
{
    struct serve_figures figures = serve_series_figures(series);
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:I}", "mean", figures.mean, "p50", figures.p50,
                     "p90", figures.p90, "p99", figures.p99, "max", figures.max, "count",
                     (json_int_t)series->count);
}

/* What a server says may be no UTF-8, which jansson refuses. */
static json_t *text_json(const char *text)
{
    json_t *string = json_string(text);
    return string ? string : json_string("(not UTF-8)");
}

static json_t *errors_json(const struct serve_stats *stats)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < stats->reason_count; i++)
        json_array_append_new(list, json_pack("{s:o, s:I, s:o}", "reason",
                                              text_json(stats->reasons[i].name), "count",
                                              (json_int_t)stats->reasons[i].count, "first",
                                              text_json(stats->reasons[i].first)));
    return list;
}

static json_t *result_json(struct serve_result *result, const char *settings)
{
    struct serve_stats *stats = &result->stats;
    double seconds = result->seconds > 0 ? result->seconds : 1e-9;
    json_t *asked = json_loads(settings, 0, NULL);
    return json_pack(
        "{s:o*, s:I, s:I, s:I, s:I, s:b, s:f, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:o, s:o, "
        "s:o, "
        "s:o, s:o}",
        "settings", asked, "requests", (json_int_t)result->sent, "completed",
        (json_int_t)stats->completed, "errors", (json_int_t)stats->errors, "shorter",
        (json_int_t)stats->shorter, "interrupted", result->interrupted, "seconds",
        result->seconds, "prompt_tokens", (json_int_t)stats->prompt_tokens, "generated_tokens",
        (json_int_t)stats->tokens, "requests_per_second", stats->completed / seconds,
        "prompt_tokens_per_second", (double)stats->prompt_tokens / seconds,
        "generated_tokens_per_second", (double)stats->tokens / seconds, "good",
        (json_int_t)stats->good, "goodput_per_second", stats->good / seconds, "ttft_ms",
        figures_json(&stats->ttft), "tpot_ms", figures_json(&stats->tpot), "itl_ms",
        figures_json(&stats->itl), "e2e_ms", figures_json(&stats->e2e), "error_reasons",
        errors_json(stats));
}

int serve_report_json(struct serve_result *result, const char *settings, const char *path,
                      struct error err)
{
    bool standard = !strcmp(path, "-");
    FILE *file = standard ? stdout : fopen(path, "we");
    if (!file)
        return error_set(err, BATON_ESYSTEM, "cannot write %s: %s", path, strerror(errno));
    json_t *root = result_json(result, settings);
    int failed = !root || json_dumpf(root, file, JSON_REAL_PRECISION(9)) != 0;
    failed |= fputc('\n', file) == EOF;
    failed |= standard ? fflush(file) : fclose(file);
    json_decref(root);
    return failed ? error_set(err, BATON_ESYSTEM, "cannot write %s", path) : BATON_OK;
}
