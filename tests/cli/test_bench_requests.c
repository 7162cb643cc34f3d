/* SPDX-License-Identifier: Apache-2.0 */
/* The least number of work requests is what the posted ones are judged by, so it is judged here: the
 * counter by trying every way to cut a list, the walk over the pages by lists whose answer is plain. */
#include "cli/bench_requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNIT (1u << 20) /* four of them are a request's limit */
#define UNITS_MAX 40

static char sentence[256];

struct unit {
    uint64_t remote, local;
};

/* Whether units [begin, end) can be one request. */
static bool request_possible(const struct unit *units, uint32_t begin, uint32_t end,
                             uint32_t max_sge)
{
    uint32_t pieces = 1;
    for (uint32_t i = begin + 1; i < end; i++) {
        if (units[i].remote != units[i - 1].remote + UNIT)
            return false;
        pieces += units[i].local != units[i - 1].local + UNIT;
    }
    return pieces <= max_sge && (end - begin) * UNIT <= REQUEST_BYTES_MAX;
}

/* The fewest requests, over all ways to cut the list. */
static uint64_t fewest(const struct unit *units, uint32_t count, uint32_t max_sge)
{
    uint64_t best[UNITS_MAX + 1] = {0};
    for (uint32_t end = 1; end <= count; end++) {
        best[end] = UINT64_MAX;
        for (uint32_t begin = 0; begin < end; begin++)
            if (request_possible(units, begin, end, max_sge) && best[begin] + 1 < best[end])
                best[end] = best[begin] + 1;
    }
    return best[count];
}

static uint32_t random_below(uint32_t *state, uint32_t limit)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 16) % limit;
}

static void test_the_counter_finds_the_fewest(void **state)
{
    (void)state;
    uint32_t random = 7;
    for (uint32_t round = 0; round < 2000; round++) {
        struct unit units[UNITS_MAX];
        uint32_t count = 0, max_sge = 1 + random_below(&random, 4);
        struct request_counter counter = {.max_sge = max_sge};
        uint64_t remote = 64 * UNIT, local = 4096ull * UNIT;
        while (count < UNITS_MAX - 6) {
            uint32_t length = 1 + random_below(&random, 6);
            request_count(&counter, remote, local, (uint64_t)length * UNIT);
            for (uint32_t i = 0; i < length; i++)
                units[count++] = (struct unit){remote + i * UNIT, local + i * UNIT};
            remote += (uint64_t)(length + (random_below(&random, 3) == 0)) * UNIT;
            local += (uint64_t)(length + random_below(&random, 2)) * UNIT;
        }
        assert_int_equal(counter.requests, fewest(units, count, max_sge));
    }
}

static struct bench_case case_of(uint32_t pages, uint32_t layers)
{
    return (struct bench_case){.item_bytes = 8192,
                               .pages = pages,
                               .layers = layers,
                               .src_tp = 1,
                               .dst_tp = 1,
                               .order = ORDER_HEAD,
                               .seed = 3};
}

static uint64_t minimum(const struct bench_case *work, bool reads, uint32_t max_sge)
{
    uint64_t requests = 0;
    assert_int_equal(bench_case_check(work, ERROR_BUFFER(sentence)), 0);
    assert_int_equal(requests_minimum(work, reads, max_sge, &requests, ERROR_BUFFER(sentence)),
                     0);
    return requests;
}

/* Requests for page lists of one base, from the lists themselves. */
static uint64_t plain(const int32_t *remote, const int32_t *local, uint32_t pages,
                      uint32_t max_sge)
{
    uint64_t requests = 1;
    uint32_t pieces = 1;
    for (uint32_t i = 1; i < pages; i++) {
        bool piece = local[i] != local[i - 1] + 1;
        if (remote[i] != remote[i - 1] + 1 || (piece && pieces == max_sge)) {
            requests++;
            pieces = 1;
        } else {
            pieces += piece;
        }
    }
    return requests;
}

static void test_scattered_pages_by_the_lists(void **state)
{
    (void)state;
    int32_t prefill[96], decode[96];
    for (uint32_t orders = 0; orders < 4; orders++) {
        struct bench_case work = case_of(96, 3); /* 24 KiB pages: 4 MiB is never reached */
        work.prefill_in_order = orders & 1;
        work.decode_in_order = orders >> 1;
        pages_list(&work, true, prefill);
        pages_list(&work, false, decode);
        for (uint32_t max_sge = 1; max_sge < 33; max_sge += 10) {
            assert_int_equal(minimum(&work, false, max_sge),
                             plain(decode, prefill, 96, max_sge));
            assert_int_equal(minimum(&work, true, max_sge),
                             plain(prefill, decode, 96, max_sge));
        }
    }
}

static void test_a_pool_per_layer_needs_a_request_per_layer(void **state)
{
    (void)state;
    struct bench_case work = case_of(1, 5);
    assert_int_equal(minimum(&work, false, 30), 1);
    work.order = ORDER_PER_LAYER;
    assert_int_equal(minimum(&work, false, 30), 1); /* one page: the pools are neighbours */
    work.pages = 3;
    work.item_bytes = 4100; /* pools are rounded up: gaps between them */
    work.prefill_in_order = work.decode_in_order = 1;
    assert_int_equal(minimum(&work, false, 30), 5);
}

static void test_long_runs_are_cut_at_four_megabytes(void **state)
{
    (void)state;
    struct bench_case work = case_of(512, 3);
    work.prefill_in_order = work.decode_in_order = 1;
    assert_int_equal(minimum(&work, false, 30), 3); /* 12 MiB */
    work.pages = 513;
    assert_int_equal(minimum(&work, false, 30), 4);
}

/* [page][head][layer][k|v]: a rank's heads of a page are one run on both sides. */
static void test_unequal_ranks_need_one_request_a_page_and_pair(void **state)
{
    (void)state;
    struct bench_case work = case_of(64, 4);
    work.structured = 1;
    work.src_tp = 1;
    work.dst_tp = 4;
    work.decode_in_order = 0;
    int32_t decode[64];
    uint32_t neighbours = 0;
    pages_list(&work, false, decode);
    assert_int_equal(minimum(&work, true, 1),
                     4 * 64); /* prefill's heads are never neighbours */
    for (uint32_t i = 1; i < 64; i++)
        neighbours += decode[i] == decode[i - 1] + 1;
    assert_int_equal(minimum(&work, false, 30), 4 * (64 - neighbours));
    work.order = ORDER_LAYER; /* layers * 2 pieces, gathered by writes, each its own read */
    assert_int_equal(minimum(&work, true, 30), 4 * 64 * 4 * 2);
    work.order = ORDER_PAIRED;
    assert_int_equal(minimum(&work, true, 30), 4 * 64 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_counter_finds_the_fewest),
        cmocka_unit_test(test_scattered_pages_by_the_lists),
        cmocka_unit_test(test_a_pool_per_layer_needs_a_request_per_layer),
        cmocka_unit_test(test_long_runs_are_cut_at_four_megabytes),
        cmocka_unit_test(test_unequal_ranks_need_one_request_a_page_and_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
