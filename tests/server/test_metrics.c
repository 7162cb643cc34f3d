/* SPDX-License-Identifier: Apache-2.0 */
/* The page of /metrics, read line by line as Prometheus reads it. */
#include "server/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct metrics metrics;
static struct scheduler_stats stats = {
    .running = 3,
    .waiting = 2,
    .used_tokens = 512,
    .generation_rate = 12.5,
    .cache_hit_rate = 0.25,
    .prompt_tokens = 9000000000000000000u,
    .pages = {.free = 7},
};
static struct metrics_facts facts = {.model_name = "tiny", .capacity_tokens = 1024};

static char *page_make(void)
{
    struct byte_buffer page = {0};
    assert_int_equal(metrics_page(&metrics, &stats, &facts, &page), 0);
    assert_int_equal(page.bytes[page.length - 1], '\n');
    assert_int_equal(utf8_valid_prefix(page.bytes, page.length), page.length);
    assert_int_equal(byte_buffer_append(&page, "", 1), 0);
    return page.bytes;
}

/* The number of the sample that begins with these characters. */
static double sample(const char *page, const char *begin)
{
    const char *at = strstr(page, begin);
    if (!at)
        fail_msg("there is no %s", begin);
    at += strlen(begin);
    assert_int_equal(*at, ' ');
    return strtod(at + 1, NULL);
}

/* name{label="value",...} number */
static void sample_check(const char *line, const char *metric)
{
    size_t name =
        strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789");
    char *end;
    assert_true(name >= strlen(metric) && strncmp(line, metric, strlen(metric)) == 0);
    assert_int_equal(line[name], '{');
    const char *at = line + name + 1;
    while (*at != '}') {
        at += strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        assert_int_equal(strncmp(at, "=\"", 2), 0);
        for (at += 2; *at != '"'; at++) {
            assert_true(*at && *at != '\n');
            if (*at == '\\')
                at++;
        }
        at++;
        if (*at == ',')
            at++;
    }
    assert_int_equal(at[1], ' ');
    strtod(at + 2, &end);
    assert_true(end > at + 2 && *end == '\0');
}

static void test_every_line_is_well_formed(void **state)
{
    char *page = page_make(), metric[128] = "", help[128] = "";
    uint32_t samples = 0;
    (void)state;
    for (char *line = strtok(page, "\n"); line; line = strtok(NULL, "\n")) {
        char type[32];
        if (sscanf(line, "# HELP %127s", help) == 1) {
            assert_true(strlen(line) > strlen("# HELP  ") + strlen(help));
        } else if (sscanf(line, "# TYPE %127s %31s", metric, type) == 2) {
            assert_string_equal(metric, help);
            assert_true(!strcmp(type, "gauge") || !strcmp(type, "counter") ||
                        !strcmp(type, "histogram"));
            size_t length = strlen(metric); /* counters are called so */
            if (!strcmp(type, "counter"))
                assert_string_equal(metric + length - 6, "_total");
        } else {
            sample_check(line, metric);
            samples++;
        }
    }
    assert_true(samples > 100);
    free(page);
}

static void test_numbers_are_those_given(void **state)
{
    (void)state;
    char *page = page_make();
    assert_true(sample(page, "\nsglang:num_running_reqs{model_name=\"tiny\"}") == 3);
    assert_true(sample(page, "\nsglang:num_queue_reqs{model_name=\"tiny\"}") == 2);
    assert_true(sample(page, "\nsglang:token_usage{model_name=\"tiny\"}") == 0.5);
    assert_true(sample(page, "\nsglang:gen_throughput{model_name=\"tiny\"}") == 12.5);
    assert_true(sample(page, "\nsglang:cache_hit_rate{model_name=\"tiny\"}") == 0.25);
    assert_true(sample(page, "\nsglang:prompt_tokens_total{model_name=\"tiny\"}") == 9e18);
    assert_true(sample(page, "\nbaton:pages{state=\"free\"}") == 7);
    free(page);
}

/* Every bucket holds all below it, and the last one everything. */
static void test_histograms(void **state)
{
    static const double times[] = {0, 0.001, 0.0011, 0.5, 3, 1000};
    double sum = 0;
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        histogram_add(&metrics.first_token, times[i]);
        sum += times[i];
    }
    char *page = page_make();
#define TTFT "\nsglang:time_to_first_token_seconds"
    assert_true(sample(page, TTFT "_bucket{model_name=\"tiny\",le=\"0.001\"}") == 2);
    assert_true(sample(page, TTFT "_bucket{model_name=\"tiny\",le=\"0.002\"}") == 3);
    assert_true(sample(page, TTFT "_bucket{model_name=\"tiny\",le=\"0.6\"}") == 4);
    assert_true(sample(page, TTFT "_bucket{model_name=\"tiny\",le=\"4\"}") == 5);
    assert_true(sample(page, TTFT "_bucket{model_name=\"tiny\",le=\"800\"}") == 5);
    assert_true(sample(page, TTFT "_bucket{model_name=\"tiny\",le=\"+Inf\"}") == 6);
    assert_true(sample(page, TTFT "_count{model_name=\"tiny\"}") == 6);
    assert_true(fabs(sample(page, TTFT "_sum{model_name=\"tiny\"}") - sum) < 1e-4);
    free(page);
}

static void test_names_cannot_break_the_page(void **state)
{
    char name[400];
    (void)state;
    facts.model_name = "a\"b\\c\nd";
    char *page = page_make();
    assert_non_null(strstr(page, "{model_name=\"a\\\"b\\\\c d\"}"));
    free(page);
    for (size_t shift = 0; shift < 3; shift++) { /* cut inside of a character */
        memset(name, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof(name); i += 3)
            memcpy(name + i, "\xe4\xbd\xa0", 4);
        facts.model_name = name;
        free(page_make());
    }
    facts.model_name = "tiny";
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_line_is_well_formed),
        cmocka_unit_test(test_numbers_are_those_given),
        cmocka_unit_test(test_histograms),
        cmocka_unit_test(test_names_cannot_break_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
