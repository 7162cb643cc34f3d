/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of `baton bench serve` against slow, obvious ones. */
#include "cli/serve_stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull

/* The value with `rank` smaller ones before it, by counting. */
static double ranked(const double *values, size_t count, size_t rank)
{
    for (size_t i = 0; i < count; i++) {
        size_t smaller = 0, equal = 0;
        for (size_t j = 0; j < count; j++) {
            smaller += values[j] < values[i];
            equal += values[j] == values[i];
        }
        if (smaller <= rank && rank < smaller + equal)
            return values[i];
    }
    fail();
    return 0;
}

static double slow_percentile(const double *values, size_t count, int percent)
{
    size_t hundredths = (count - 1) * (size_t)percent;
    double low = ranked(values, count, hundredths / 100);
    double high = hundredths % 100 ? ranked(values, count, hundredths / 100 + 1) : low;
    return low + (high - low) * (double)(hundredths % 100) / 100;
}

static void test_percentiles(void **state)
{
    static const size_t counts[] = {1, 2, 3, 10, 99, 100, 101, 250};
    (void)state;
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (int round = 0; round < 4; round++) {
            struct serve_series series = {0};
            double copy[250], sum = 0, max = 0;
            for (size_t i = 0; i < counts[c]; i++) {
                copy[i] = (double)((i * 7919 + (size_t)round * 104729) % (round ? 37 : 10007));
                sum += copy[i];
                max = copy[i] > max ? copy[i] : max;
                assert_true(serve_series_add(&series, copy[i]));
            }
            struct serve_figures figures = serve_series_figures(&series);
            assert_true(fabs(figures.p50 - slow_percentile(copy, counts[c], 50)) < 1e-9);
            assert_true(fabs(figures.p90 - slow_percentile(copy, counts[c], 90)) < 1e-9);
            assert_true(fabs(figures.p99 - slow_percentile(copy, counts[c], 99)) < 1e-9);
            assert_true(fabs(figures.mean - sum / (double)counts[c]) < 1e-9);
            assert_true(figures.max == max);
            free(series.values);
        }
    }
    struct serve_series none = {0};
    assert_true(serve_series_figures(&none).p99 == 0);
}

/* numpy.percentile([1, 2, 3, 4], [50, 90, 99]) */
static void test_percentiles_are_numpys(void **state)
{
    static const double four[] = {1, 2, 3, 4};
    (void)state;
    assert_true(fabs(serve_percentile(four, 4, 50) - 2.5) < 1e-12);
    assert_true(fabs(serve_percentile(four, 4, 90) - 3.7) < 1e-12);
    assert_true(fabs(serve_percentile(four, 4, 99) - 3.97) < 1e-12);
    assert_true(serve_percentile(four, 4, 0) == 1 && serve_percentile(four, 4, 100) == 4);
}

static void test_samples(void **state)
{
    struct serve_stats stats = {.slo_ttft_ms = 500, .slo_tpot_ms = 100};
    static const struct serve_sample samples[] = {
        {SECOND, SECOND + SECOND / 2, 2 * SECOND, 3 * SECOND, 100,
         6},                                               /* 500 ms, 100 ms: good */
        {0, SECOND / 4, SECOND / 4, SECOND / 2, 10, 1},    /* one token: good */
        {0, SECOND, 2 * SECOND, 2 * SECOND, 10, 101},      /* too late */
        {0, SECOND / 10, 10 * SECOND / 10, SECOND, 10, 2}, /* too slow: 900 ms */
    };
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_true(serve_stats_add(&stats, &samples[i]));
    assert_int_equal(stats.completed, 4);
    assert_int_equal(stats.good, 2);
    assert_int_equal(stats.tokens, 110);
    assert_int_equal(stats.prompt_tokens, 130);
    assert_int_equal(stats.tpot.count, 3);
    assert_true(fabs(stats.tpot.values[0] - 100) < 1e-9); /* half a second over five gaps */
    serve_stats_free(&stats);
}

static void test_errors_by_reason(void **state)
{
    struct serve_stats stats = {0};
    char name[16];
    (void)state;
    serve_stats_error(&stats, "timeout", "first\nline");
    serve_stats_error(&stats, "HTTP 503", "busy");
    serve_stats_error(&stats, "timeout", "second");
    assert_int_equal(stats.errors, 3);
    assert_int_equal(stats.reason_count, 2);
    assert_int_equal(stats.reasons[0].count, 2);
    assert_string_equal(stats.reasons[0].first, "first line");
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "reason %d", i);
        serve_stats_error(&stats, name, "x");
    }
    uint32_t sum = 0;
    for (uint32_t i = 0; i < stats.reason_count; i++)
        sum += stats.reasons[i].count;
    assert_int_equal(stats.reason_count, SERVE_REASONS_MAX);
    assert_int_equal(sum, stats.errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_percentiles_are_numpys),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_errors_by_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
