/* SPDX-License-Identifier: Apache-2.0 */
/* The strides give every number of the cache a place of its own, without gaps, in the order that the
 * name says; and they are the numbers that the transfer library computes for the same order. */
#include "kv/page_layout.h"

#include "random_source.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

static const struct page_shape small_shape = {
    .element = PAGE_ELEMENT_F16,
    .layers = 3,
    .kv = 2,
    .heads = 2,
    .head_dim = 8,
    .tokens_per_page = 4,
};

static struct page_layout layout_of(const struct page_shape *shape, enum page_order order)
{
    struct page_layout layout;
    char text[200] = "";
    if (page_layout_make(shape, order, &layout, ERROR_BUFFER(text)))
        fail_msg("%s", text);
    return layout;
}

static void test_layout_by_layer_has_layers_outside(void **state)
{
    (void)state;
    struct page_layout layout = layout_of(&small_shape, PAGE_ORDER_BY_LAYER);
    assert_int_equal(layout.head_bytes, 16);
    assert_int_equal(layout.token_stride, 16);
    assert_int_equal(layout.head_stride, 4 * 16);
    assert_int_equal(layout.kv_stride, 2 * 4 * 16);
    assert_int_equal(layout.layer_stride, 2 * 2 * 4 * 16);
    assert_int_equal(layout.page_stride, 3 * 2 * 2 * 4 * 16);
}

static void test_layout_by_head_has_heads_outside(void **state)
{
    (void)state;
    struct page_layout layout = layout_of(&small_shape, PAGE_ORDER_BY_HEAD);
    assert_int_equal(layout.token_stride, 16);
    assert_int_equal(layout.kv_stride, 4 * 16);
    assert_int_equal(layout.layer_stride, 2 * 4 * 16);
    assert_int_equal(layout.head_stride, 3 * 2 * 4 * 16);
    assert_int_equal(layout.page_stride, 2 * 3 * 2 * 4 * 16);
}

static void test_layout_by_pair_has_k_and_v_together(void **state)
{
    (void)state;
    struct page_layout layout = layout_of(&small_shape, PAGE_ORDER_BY_PAIR);
    assert_int_equal(layout.token_stride, 16);
    assert_int_equal(layout.kv_stride, 4 * 16);
    assert_int_equal(layout.head_stride, 2 * 4 * 16);
    assert_int_equal(layout.layer_stride, 2 * 2 * 4 * 16);
    assert_int_equal(layout.page_stride, 3 * 2 * 2 * 4 * 16);
}

/* Every (page, layer, kv, head, token) claims its bytes; at the end each byte is claimed once. */
static void claim_all(const struct page_layout *layout, int32_t pages)
{
    uint64_t bytes = (uint64_t)pages * layout->page_stride;
    uint8_t *memory = calloc(1, bytes);
    const struct page_shape *shape = &layout->shape;
    for (int32_t page = 0; page < pages; page++)
        for (uint32_t layer = 0; layer < shape->layers; layer++)
            for (uint32_t kv = 0; kv < shape->kv; kv++)
                for (uint32_t head = 0; head < shape->heads; head++)
                    for (uint32_t token = 0; token < shape->tokens_per_page; token++) {
                        uint8_t *at =
                            page_layout_address(layout, memory, page, layer, kv, head, token);
                        assert_true(at >= memory && at + layout->head_bytes <= memory + bytes);
                        for (uint32_t i = 0; i < layout->head_bytes; i++)
                            at[i]++;
                    }
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(memory[i], 1);
    free(memory);
}

static void test_layout_addresses_fill_the_pages_once(void **state)
{
    (void)state;
    struct random_source random = {random_seed()};
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)random.state);
    for (int round = 0; round < 300; round++) {
        struct page_shape shape = {
            .element = (enum page_element)random_below(&random, 3),
            .layers = random_between(&random, 1, 4),
            .kv = random_between(&random, 1, 2),
            .heads = random_between(&random, 1, 4),
            .head_dim = random_between(&random, 1, 16),
            .tokens_per_page = random_between(&random, 1, 9),
        };
        struct page_layout layout =
            layout_of(&shape, (enum page_order)random_below(&random, 3));
        claim_all(&layout, (int32_t)random_between(&random, 1, 4));
    }
}

static void test_layout_equals_that_of_the_transfer_library(void **state)
{
    (void)state;
    static const int orders[] = {[PAGE_ORDER_BY_LAYER] = BATON_ORDER_LAYER_MAJOR,
                                 [PAGE_ORDER_BY_HEAD] = BATON_ORDER_HEAD_MAJOR};
    for (int order = 0; order < 2; order++) {
        struct page_layout ours = layout_of(&small_shape, (enum page_order)order);
        baton_layout theirs = BATON_LAYOUT_INIT;
        uint64_t item_bytes;
        theirs.pages = 7;
        theirs.tokens_per_page = ours.shape.tokens_per_page;
        theirs.layers = ours.shape.layers;
        theirs.kv = ours.shape.kv;
        theirs.heads = theirs.total_heads = ours.shape.heads;
        theirs.head_bytes = ours.head_bytes;
        assert_int_equal(baton_layout_fill(&theirs, orders[order], &item_bytes), BATON_OK);
        assert_int_equal(ours.page_stride, item_bytes);
        assert_int_equal(ours.page_stride, theirs.page_stride);
        assert_int_equal(ours.layer_stride, theirs.layer_stride);
        assert_int_equal(ours.kv_stride, theirs.kv_stride);
        assert_int_equal(ours.head_stride, theirs.head_stride);
        assert_int_equal(ours.token_stride, theirs.token_stride);
    }
}

static void test_layout_sizes_of_elements(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t head_bytes;
    } cases[] = {{"f32", 32}, {"f16", 16}, {"bf16", 16}};
    for (size_t i = 0; i < 3; i++) {
        struct page_shape shape = small_shape;
        assert_int_equal(page_element_parse(cases[i].name, &shape.element, ERROR_NONE), 0);
        assert_string_equal(page_element_name(shape.element), cases[i].name);
        assert_int_equal(layout_of(&shape, PAGE_ORDER_BY_LAYER).head_bytes,
                         cases[i].head_bytes);
    }
}

static void test_layout_counts_partial_pages(void **state)
{
    (void)state;
    struct page_layout layout = layout_of(&small_shape, PAGE_ORDER_BY_LAYER);
    assert_int_equal(page_layout_pages(&layout, 0), 0);
    assert_int_equal(page_layout_pages(&layout, 1), 1);
    assert_int_equal(page_layout_pages(&layout, 4), 1);
    assert_int_equal(page_layout_pages(&layout, 5), 2);
    assert_int_equal(page_layout_pages(&layout, 1000000), 250000);
}

static void refused(struct page_shape shape, int order, const char *why)
{
    struct page_layout layout, untouched;
    char text[200] = "";
    memset(&layout, 0x5a, sizeof(layout));
    memcpy(&untouched, &layout, sizeof(layout));
    assert_int_equal(
        page_layout_make(&shape, (enum page_order)order, &layout, ERROR_BUFFER(text)),
        BATON_EINVAL);
    assert_non_null(strstr(text, why));
    assert_memory_equal(&layout, &untouched, sizeof(layout));
}

static void test_layout_refuses_what_cannot_be(void **state)
{
    (void)state;
    struct page_shape shape = small_shape;
    shape.layers = 0;
    refused(shape, 0, "0 layers");
    shape = small_shape;
    shape.heads = 0;
    refused(shape, 0, "0 heads");
    shape = small_shape;
    shape.head_dim = 0;
    refused(shape, 1, "0 elements");
    shape = small_shape;
    shape.tokens_per_page = 0;
    refused(shape, 1, "0 tokens");
    shape = small_shape;
    shape.kv = 3;
    refused(shape, 0, "kv is 3");
    shape = small_shape;
    shape.element = (enum page_element)99;
    refused(shape, 0, "99 is no element type");
    refused(small_shape, 3, "3 is no order");
}

static void test_layout_refuses_sizes_that_overflow(void **state)
{
    (void)state;
    struct page_shape shape = {PAGE_ELEMENT_F32, UINT32_MAX, 2,
                               UINT32_MAX,       UINT32_MAX, UINT32_MAX};
    refused(shape, PAGE_ORDER_BY_LAYER, "larger than");
    refused(shape, PAGE_ORDER_BY_HEAD, "larger than");
    refused(shape, PAGE_ORDER_BY_PAIR, "larger than");
    shape = (struct page_shape){PAGE_ELEMENT_F32, 1, 1, 1, 1u << 30, 1};
    refused(shape, PAGE_ORDER_BY_LAYER, "larger than"); /* head_bytes is 32 bits */
    shape = (struct page_shape){PAGE_ELEMENT_F32, 1u << 16, 2, 1u << 16, 1u << 16, 1u << 16};
    refused(shape, PAGE_ORDER_BY_HEAD, "larger than"); /* 2^67: zero, if it wrapped */
}

static void test_element_refuses_unknown_names(void **state)
{
    (void)state;
    enum page_element element;
    char text[200] = "";
    assert_int_equal(page_element_parse("f64", &element, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_non_null(strstr(text, "\"f64\""));
    assert_null(page_element_name((enum page_element)3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_by_layer_has_layers_outside),
        cmocka_unit_test(test_layout_by_head_has_heads_outside),
        cmocka_unit_test(test_layout_by_pair_has_k_and_v_together),
        cmocka_unit_test(test_layout_addresses_fill_the_pages_once),
        cmocka_unit_test(test_layout_equals_that_of_the_transfer_library),
        cmocka_unit_test(test_layout_sizes_of_elements),
        cmocka_unit_test(test_layout_counts_partial_pages),
        cmocka_unit_test(test_layout_refuses_what_cannot_be),
        cmocka_unit_test(test_layout_refuses_sizes_that_overflow),
        cmocka_unit_test(test_element_refuses_unknown_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
