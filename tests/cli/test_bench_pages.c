/* SPDX-License-Identifier: Apache-2.0 */
/* The bench's own eyes: a check that passes whatever is in the pages would make every figure
 * worthless. So each way in which bytes can be wrong is done here on purpose, and must be seen. */
#include "cli/bench_pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char sentence[256];

static struct bench_case case_of(uint64_t item_bytes, enum order order, bool structured)
{
    return (struct bench_case){.item_bytes = item_bytes,
                               .pages = 24,
                               .layers = 3,
                               .src_tp = 1,
                               .dst_tp = 1,
                               .order = order,
                               .structured = structured,
                               .seed = 5};
}

static const struct {
    uint64_t item_bytes;
    enum order order;
    bool structured;
} shapes[] = {
    {1536, ORDER_PER_LAYER, false}, {1536, ORDER_HEAD, false},
    {13, ORDER_PER_LAYER, false}, /* not whole words */
    {13, ORDER_HEAD, false},        {1536, ORDER_PER_LAYER, true},
    {1536, ORDER_HEAD, true},       {1536, ORDER_LAYER, true},
    {1536, ORDER_PAIRED, true},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct fixture {
    struct bench_case work;
    struct bench_pool pool;
    int32_t pages[24];
};

static void fixture_open(struct fixture *fixture, size_t shape, uint32_t rank, uint32_t tp)
{
    fixture->work =
        case_of(shapes[shape].item_bytes, shapes[shape].order, shapes[shape].structured);
    assert_int_equal(bench_case_check(&fixture->work, ERROR_BUFFER(sentence)), 0);
    assert_int_equal(bench_pool_open(&fixture->work, rank, tp, false, &fixture->pool,
                                     ERROR_BUFFER(sentence)),
                     0);
    pages_shuffle(fixture->pages, 24, 11);
}

static uint64_t wrong(const struct fixture *fixture)
{
    return bench_pool_check(&fixture->pool, fixture->pages, 0, 24, sentence, sizeof(sentence));
}

static void test_shuffle_is_a_permutation_of_the_seed(void **state)
{
    int32_t a[1000], b[1000], seen[1000] = {0};
    (void)state;
    pages_shuffle(a, 1000, 1);
    pages_shuffle(b, 1000, 1);
    assert_memory_equal(a, b, sizeof(a));
    pages_shuffle(b, 1000, 2);
    assert_memory_not_equal(a, b, sizeof(a));
    uint32_t in_place = 0;
    for (int i = 0; i < 1000; i++) {
        assert_in_range(a[i], 0, 999);
        seen[a[i]]++;
        in_place += a[i] == i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(seen[i], 1);
    assert_true(in_place < 20);
}

static void test_filled_pages_are_right_in_every_shape(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct fixture fixture;
        fixture_open(&fixture, i, 0, 1);
        bench_pool_fill(&fixture.pool, fixture.pages, 0, 24);
        assert_int_equal(wrong(&fixture), 0);
        bench_pool_close(&fixture.pool);
    }
}

static void test_poisoned_pages_are_wrong_where_poisoned(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct fixture fixture;
        fixture_open(&fixture, i, 0, 1);
        uint64_t page_bytes = fixture.work.item_bytes * fixture.work.layers;
        bench_pool_fill(&fixture.pool, fixture.pages, 0, 24);
        bench_pool_poison(&fixture.pool, fixture.pages, 7, 2);
        uint64_t found = wrong(&fixture); /* a pattern byte may be the poison by chance */
        assert_in_range(found, 2 * page_bytes * 9 / 10, 2 * page_bytes);
        assert_non_null(strstr(sentence, "position 7 "));
        assert_int_equal(bench_pool_check(&fixture.pool, fixture.pages, 0, 7, sentence, 256),
                         0);
        assert_int_equal(bench_pool_check(&fixture.pool, fixture.pages, 9, 15, sentence, 256),
                         0);
        bench_pool_close(&fixture.pool);
    }
}

/* Every byte of the pool that belongs to a page is looked at: flip one after the other. */
static void test_each_flipped_byte_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct fixture fixture;
        fixture_open(&fixture, i, 0, 1);
        bench_pool_fill(&fixture.pool, fixture.pages, 0, 24);
        for (uint32_t b = 0; b < fixture.pool.layout.base_count; b++) {
            baton_base *base = &fixture.pool.bases[b];
            for (uint64_t offset = 0; offset < base->item_bytes * 24; offset += 97) {
                ((uint8_t *)base->address)[offset] ^= 0x10;
                assert_int_equal(wrong(&fixture), 1);
                ((uint8_t *)base->address)[offset] ^= 0x10;
            }
        }
        assert_int_equal(wrong(&fixture), 0);
        bench_pool_close(&fixture.pool);
    }
}

static void test_exchanged_pages_and_layers_are_found(void **state)
{
    struct fixture fixture;
    (void)state;
    fixture_open(&fixture, 0, 0, 1);
    bench_pool_fill(&fixture.pool, fixture.pages, 0, 24);
    int32_t page = fixture.pages[3];
    fixture.pages[3] = fixture.pages[4];
    fixture.pages[4] = page;
    assert_true(wrong(&fixture) > 2 * 3 * 1536 * 9 / 10);
    fixture.pages[4] = fixture.pages[3];
    fixture.pages[3] = page;
    assert_int_equal(wrong(&fixture), 0);
    void *layer = fixture.pool.bases[0].address;
    fixture.pool.bases[0].address = fixture.pool.bases[1].address;
    fixture.pool.bases[1].address = layer;
    assert_true(wrong(&fixture) > 2 * 24 * 1536 * 9 / 10);
    bench_pool_close(&fixture.pool);
}

/* A head is the same bytes wherever it lives: in the pool of one rank, or of the third of four. */
static void test_a_rank_holds_its_heads_of_the_whole(void **state)
{
    (void)state;
    for (size_t shape = 4; shape < SHAPES; shape++) {
        struct fixture whole, part;
        fixture_open(&whole, shape, 0, 1);
        fixture_open(&part, shape, 2, 4);
        bench_pool_fill(&whole.pool, whole.pages, 0, 24);
        bench_pool_fill(&part.pool, part.pages, 0, 24);
        const baton_layout *big = &whole.pool.layout, *small = &part.pool.layout;
        assert_int_equal(small->heads, 2);
        assert_int_equal(small->first_head, 4);
        for (uint32_t head = 0; head < small->heads; head++) {
            const uint8_t *of_whole = (const uint8_t *)big->bases[0].address +
                                      whole.pages[9] * big->page_stride +
                                      (small->first_head + head) * big->head_stride;
            const uint8_t *of_part = (const uint8_t *)small->bases[0].address +
                                     part.pages[9] * small->page_stride +
                                     head * small->head_stride;
            assert_memory_equal(of_whole, of_part, BENCH_TOKENS * big->head_bytes);
        }
        bench_pool_close(&whole.pool);
        bench_pool_close(&part.pool);
    }
}

static void refuses(struct bench_case work, const char *expected)
{
    sentence[0] = '\0';
    assert_int_equal(bench_case_check(&work, ERROR_BUFFER(sentence)), BATON_EINVAL);
    assert_non_null(strstr(sentence, expected));
}

static void test_impossible_cases_are_refused(void **state)
{
    struct bench_case work = case_of(1536, false, false);
    (void)state;
    work.src_tp = 3;
    refuses(work, "--src-tp 3: the pages have 8 KV heads; use 1, 2, 4 or 8");
    work = case_of(1536, false, false);
    work.dst_tp = 0;
    refuses(work, "--dst-tp 0");
    work = case_of(1536 + 256, false, true);
    refuses(work, "must be a multiple of 512");
    work = case_of(1536, false, false);
    work.pages = 0;
    refuses(work, "a case needs bytes");
    work = case_of(1ull << 39, false, false);
    refuses(work, "more than 1 TB");
}

static void test_items_are_what_the_medium_sees(void **state)
{
    struct bench_case work = case_of(1536, false, false);
    uint32_t bases = 0;
    uint64_t item_bytes = 0;
    (void)state;
    bench_case_items(&work, &bases, &item_bytes);
    assert_int_equal(bases, 3);
    assert_int_equal(item_bytes, 1536);
    work.order = ORDER_HEAD;
    bench_case_items(&work, &bases, &item_bytes);
    assert_int_equal(bases, 1);
    assert_int_equal(item_bytes, 3 * 1536);
    work.order = ORDER_PER_LAYER;
    work.structured = 1;
    bench_case_items(&work, &bases, &item_bytes);
    assert_int_equal(bases, 6);
    assert_int_equal(item_bytes, 768);
    assert_int_equal(bench_case_bytes(&work), 1536 * 24 * 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffle_is_a_permutation_of_the_seed),
        cmocka_unit_test(test_filled_pages_are_right_in_every_shape),
        cmocka_unit_test(test_poisoned_pages_are_wrong_where_poisoned),
        cmocka_unit_test(test_each_flipped_byte_is_found),
        cmocka_unit_test(test_exchanged_pages_and_layers_are_found),
        cmocka_unit_test(test_a_rank_holds_its_heads_of_the_whole),
        cmocka_unit_test(test_impossible_cases_are_refused),
        cmocka_unit_test(test_items_are_what_the_medium_sees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
