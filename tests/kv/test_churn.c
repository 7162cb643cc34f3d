/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's pool and prefix cache under the traffic of conversations: nothing leaks, and pages are
 * handed out in long runs, longer by far than those of a simple allocator.
 *
 *     test_kv_churn                               the test: small pools, a fixed seed
 *     test_kv_churn --bench [FILE]                prints times and run lengths; with FILE, for a trace
 *                                                 of requests as traffic.h describes it */
#include "churn.h"
#include "other_allocators.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const struct other_allocator *const allocators[] = {
    &other_stack, &other_best_fit, &other_best_after, &other_free_runs, &other_free_runs_after,
};
#define ALLOCATORS (sizeof(allocators) / sizeof(*allocators))

/* ---- the log, put through an allocator --------------------------------------------------- */

struct runs {
    uint64_t pages; /* of prompts */
    uint64_t count; /* runs in which they came */
};

static void runs_count(struct runs *runs, int32_t after, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        int32_t before = i ? pages[i - 1] : after;
        runs->count += before < 0 || pages[i] != before + 1;
    }
    runs->pages += count;
}

/* Pages per run of what is sent or received, after a quarter of the log has made the pool worn. */
static double replay(const struct other_allocator *allocator, const struct churn_log *log,
                     uint32_t pages)
{
    void *self = allocator->open(pages);
    int32_t *page_of = malloc(log->births * sizeof(*page_of)); /* by birth */
    int32_t *freed = malloc(pages * sizeof(*freed));
    struct runs runs = {0, 0};
    for (uint64_t o = 0; o < log->operation_count; o++) {
        const struct churn_operation *operation = &log->operations[o];
        if (operation->is_alloc) {
            int32_t after = operation->after < 0 ? -1 : page_of[operation->after];
            allocator->take(self, after, operation->count, page_of + operation->birth);
            if (operation->is_prompt && o > log->operation_count / 4)
                runs_count(&runs, after, page_of + operation->birth, operation->count);
            continue;
        }
        for (uint32_t i = 0; i < operation->count; i++)
            freed[i] = page_of[log->freed[operation->birth + i]];
        allocator->put(self, freed, operation->count);
    }
    free(freed);
    free(page_of);
    allocator->close(self);
    return runs.count ? (double)runs.pages / (double)runs.count : 0;
}

/* ---- test -------------------------------------------------------------------------------- */

static void check_role(enum churn_role role, double least_gain)
{
    struct churn_log log = {0};
    struct churn_options options = {.role = role, .pages = 16384, .growth = 8, .log = &log};
    struct traffic *traffic = traffic_make(1, 250);
    struct churn_result result = churn_run(&options, traffic);
    traffic_free(traffic);
    assert_true(result.served > 200);
    assert_true(result.stats.evicted_pages > options.pages); /* the pool was turned over */
    double stack = replay(&other_stack, &log, options.pages);
    double best = replay(&other_best_after, &log, options.pages);
    double ours = replay(&other_free_runs_after, &log, options.pages);
    print_message("pages per run: stack %.1f, best fit %.1f, free_runs %.1f\n", stack, best,
                  ours);
    assert_true(ours > least_gain * stack);
    assert_true(ours > 0.8 * best);
    churn_log_free(&log);
}

static void test_churn_prefill_pages_come_in_runs(void **state)
{
    (void)state;
    check_role(CHURN_PREFILL, 1.3);
}

static void test_churn_decode_pages_come_in_runs(void **state)
{
    (void)state;
    check_role(CHURN_DECODE, 4);
}

/* ---- bench ------------------------------------------------------------------------------- */

#define BENCH_PAGES 262144u /* 4 Mi tokens */
#define BENCH_REQUESTS 1500u

static struct traffic *bench_traffic(const char *path)
{
    struct traffic *traffic =
        path ? traffic_read(path, BENCH_REQUESTS) : traffic_make(1, BENCH_REQUESTS);
    if (!traffic) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    return traffic;
}

static void bench_times(enum churn_role role, const char *path)
{
    static const char *const names[CHURN_TIMED] = {
        [CHURN_MATCH] = "match", [CHURN_PEEK] = "peek",      [CHURN_INSERT] = "insert",
        [CHURN_LOCK] = "lock",   [CHURN_UNLOCK] = "unlock",  [CHURN_EVICT] = "evict",
        [CHURN_ALLOC] = "alloc", [CHURN_RELEASE] = "release"};
    struct churn_options options = {.role = role, .pages = BENCH_PAGES, .growth = 8};
    struct traffic *traffic = bench_traffic(path);
    struct churn_result result = churn_run(&options, traffic);
    traffic_free(traffic);
    printf("%s: %u requests, %.1f %% of the tokens asked for were there, at most %llu nodes\n",
           role == CHURN_PREFILL ? "prefill" : "decode", result.served,
           100.0 * (double)result.stats.hit_tokens / (double)result.stats.lookup_tokens,
           (unsigned long long)result.peak_nodes);
    for (int i = 0; i < CHURN_TIMED; i++) {
        const struct churn_time *time = &result.times[i];
        printf("  %-8s %8llu calls %8.0f ns a call %8.1f pages a call %6.1f ns a page\n",
               names[i], (unsigned long long)time->calls,
               (double)time->ns / (double)(time->calls ? time->calls : 1),
               (double)time->pages / (double)(time->calls ? time->calls : 1),
               (double)time->ns / (double)(time->pages ? time->pages : 1));
    }
}

static void bench_runs(enum churn_role role, const char *path, bool evicts_exactly,
                       uint32_t growth)
{
    struct churn_log log = {0};
    struct churn_options options = {.role = role,
                                    .pages = BENCH_PAGES / 4,
                                    .growth = growth,
                                    .evicts_exactly = evicts_exactly,
                                    .log = &log};
    struct traffic *traffic = bench_traffic(path);
    struct churn_result result = churn_run(&options, traffic);
    traffic_free(traffic);
    printf("%-8s %-8s %6u", role == CHURN_PREFILL ? "prefill" : "decode",
           evicts_exactly ? "exactly" : "ahead", growth);
    for (size_t i = 0; i < ALLOCATORS; i++)
        printf(" %16.1f", replay(allocators[i], &log, options.pages));
    printf(" %9.1f %%\n",
           100.0 * (double)result.stats.hit_tokens / (double)result.stats.lookup_tokens);
    fflush(stdout);
    churn_log_free(&log);
}

static int bench(const char *path)
{
    printf("%u pages of %u tokens\n", BENCH_PAGES, CHURN_TOKENS_PER_PAGE);
    bench_times(CHURN_PREFILL, path);
    bench_times(CHURN_DECODE, path);
    printf("\npages per run of what is sent or received; %u pages\n%-8s %-8s %6s",
           BENCH_PAGES / 4, "role", "evicts", "growth");
    for (size_t i = 0; i < ALLOCATORS; i++)
        printf(" %16s", allocators[i]->name);
    printf(" %11s\n", "hits");
    bench_runs(CHURN_PREFILL, path, true, 1);
    bench_runs(CHURN_PREFILL, path, false, 1);
    bench_runs(CHURN_DECODE, path, true, 1);
    bench_runs(CHURN_DECODE, path, false, 1);
    bench_runs(CHURN_DECODE, path, false, 8);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_churn_prefill_pages_come_in_runs),
        cmocka_unit_test(test_churn_decode_pages_come_in_runs),
    };
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench(argc > 2 ? argv[2] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
