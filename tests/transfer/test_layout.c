/* SPDX-License-Identifier: Apache-2.0 */
/* What layout_check lets through is sound: every byte that the formula of baton.h can name is
 * inside its base, and no two indices name the same byte. Random layouts, sound and garbled, are
 * held against the formula written out; BATON_TEST_SEED repeats a run. */
#include "transfer/layout.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- helpers ----------------------------------------------------------------------------- */

#define BASE_BYTES 4096 /* of each base in the random cases */

static char memory[16]; /* an address; nothing here reads or writes through it */
static uint64_t random_state;

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BATON_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)now.tv_nsec;
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static uint32_t random_below(uint32_t bound) /* splitmix64 */
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % bound);
}

/* 4 pages of 8 tokens, 3 layers, K and V, 2 heads of 16 bytes; base_count bases. */
static baton_layout layout_small(baton_base *bases, uint32_t base_count, int order)
{
    baton_layout layout = BATON_LAYOUT_INIT;
    layout.dtype = BATON_DTYPE_F16;
    layout.pages = 4;
    layout.tokens_per_page = 8;
    layout.layers = 3;
    layout.kv = 2;
    layout.heads = layout.total_heads = 2;
    layout.head_bytes = 16;
    layout.bases = bases;
    layout.base_count = base_count;
    uint64_t item_bytes;
    assert_int_equal(baton_layout_fill(&layout, order, &item_bytes), BATON_OK);
    for (uint32_t i = 0; i < base_count; i++)
        bases[i] = (baton_base){memory, item_bytes * layout.pages, item_bytes};
    return layout;
}

static void check_refused(const baton_layout *public, const char *word)
{
    struct layout out;
    char text[200] = "";
    memset(&out, 0x5a, sizeof(out));
    struct layout before = out;
    int rc = layout_from_public(public, &out, ERROR_BUFFER(text));
    if (rc != BATON_EINVAL)
        fail_msg("returned %d (%s) where \"%s\" should be refused", rc, text, word);
    if (!strstr(text, word))
        fail_msg("\"%s\" does not say \"%s\"", text, word);
    assert_memory_equal(&out, &before, sizeof(out));
}

static struct layout layout_accepted(const baton_layout *public)
{
    struct layout out;
    char text[200] = "";
    if (layout_from_public(public, &out, ERROR_BUFFER(text)))
        fail_msg("%s", text);
    return out;
}

/* ---- the usual orders -------------------------------------------------------------------- */

static void test_fill_gives_the_four_orders(void **state)
{
    (void)state;
    static const struct {
        int order;
        uint64_t page, layer, kv, head, token;
    } cases[] = {
        {BATON_ORDER_LAYER_MAJOR, 1536, 512, 256, 128, 16},
        {BATON_ORDER_HEAD_MAJOR, 1536, 256, 128, 768, 16},
        {BATON_ORDER_PER_LAYER, 256, 0, 0, 128, 16},
        {BATON_ORDER_TOKEN_MAJOR, 256, 0, 0, 16, 32},
    };
    for (size_t i = 0; i < 4; i++) {
        baton_base bases[6];
        baton_layout layout = layout_small(bases, i < 2 ? 1 : 6, cases[i].order);
        assert_int_equal(layout.page_stride, cases[i].page);
        assert_int_equal(layout.layer_stride, cases[i].layer);
        assert_int_equal(layout.kv_stride, cases[i].kv);
        assert_int_equal(layout.head_stride, cases[i].head);
        assert_int_equal(layout.token_stride, cases[i].token);
        struct layout out = layout_accepted(&layout);
        assert_int_equal(out.bases[0].item_bytes, cases[i].page);
        layout_free(&out);
    }
}

static void test_fill_refuses_what_has_no_shape(void **state)
{
    (void)state;
    baton_base bases[6];
    baton_layout good = layout_small(bases, 6, BATON_ORDER_PER_LAYER), bad;
    uint64_t item_bytes = 7;
    assert_int_equal(baton_layout_fill(NULL, 0, &item_bytes), BATON_EINVAL);
    bad = good;
    assert_int_equal(baton_layout_fill(&bad, 4, &item_bytes), BATON_EINVAL);
    assert_int_equal(baton_layout_fill(&bad, -1, &item_bytes), BATON_EINVAL);
    bad.struct_size = 4;
    assert_int_equal(baton_layout_fill(&bad, 0, &item_bytes), BATON_EINVAL);
    bad = good;
    bad.heads = 0;
    assert_int_equal(baton_layout_fill(&bad, 0, &item_bytes), BATON_EINVAL);
    bad = good;
    bad.pages = bad.tokens_per_page = bad.heads = bad.head_bytes = UINT32_MAX;
    assert_int_equal(baton_layout_fill(&bad, 0, &item_bytes), BATON_EINVAL);
    assert_int_equal(bad.page_stride, good.page_stride); /* untouched */
    assert_int_equal(item_bytes, 7);
    assert_int_equal(baton_layout_fill(&good, 0, NULL), BATON_OK);
}

/* ---- from the public struct -------------------------------------------------------------- */

static void test_from_public_fills_in_what_may_be_left_out(void **state)
{
    (void)state;
    baton_base bases[6];
    baton_layout public = layout_small(bases, 6, BATON_ORDER_TOKEN_MAJOR);
    for (uint32_t i = 0; i < 6; i++)
        bases[i].item_bytes = 0;
    struct layout out = layout_accepted(&public);
    assert_int_equal(out.bases[5].item_bytes, 256);
    assert_ptr_not_equal(out.bases, bases);
    layout_free(&out);

    public.pages = 1; /* a single page needs no stride, a single layer neither */
    public.page_stride = 0;
    out = layout_accepted(&public);
    assert_int_equal(layout_page_stride(&out, 0), 256);
    layout_free(&out);
}

static void test_from_public_normalises_opaque_pages(void **state)
{
    (void)state;
    baton_base bases[3] = {{memory, 400, 100}, {memory, 900, 200}, {memory, 4, 1}};
    baton_layout public = BATON_LAYOUT_INIT;
    public.pages = 4;
    public.bases = bases;
    public.base_count = 3;
    struct layout out = layout_accepted(&public);
    assert_true(layout_is_opaque(&out));
    assert_int_equal(out.layers, 3);
    assert_int_equal(out.tokens_per_page, 1);
    assert_int_equal(out.total_heads, 1);
    assert_int_equal(layout_page_stride(&out, 1), 200);
    assert_int_equal(layout_page_of(&out, 1, 599), 2);
    assert_int_equal(layout_base_of(&out, 2, 0), 2);
    layout_free(&out);

    public.layers = 2;
    check_refused(&public, "layers is 2 and base_count 3");
    public.layers = 3;
    public.page_stride = 100;
    check_refused(&public, "200 in base 1");
    public.page_stride = 0;
    bases[1].bytes = 799;
    check_refused(&public, "end at byte 800 of base 1, which has 799");
    bases[1] = (baton_base){memory, 900, 0};
    check_refused(&public, "item_bytes of base 1 is 0");
    bases[1].item_bytes = 1ull << 62;
    check_refused(&public, "overflow");
    public.heads = 1;
    check_refused(&public, "either all are 0");
}

static void test_from_public_refuses_bad_counts(void **state)
{
    (void)state;
    baton_base bases[6];
    const baton_layout good = layout_small(bases, 6, BATON_ORDER_PER_LAYER);
#define REFUSED(word, ...)         \
    do {                           \
        baton_layout bad = good;   \
        __VA_ARGS__;               \
        check_refused(&bad, word); \
    } while (0)
    REFUSED("struct_size is 8", bad.struct_size = 8);
    REFUSED("memory is 2", bad.memory = 2);
    REFUSED("dtype is 13", bad.dtype = 13);
    REFUSED("pages is 0", bad.pages = 0);
    REFUSED("pages is 268435457", bad.pages = LAYOUT_PAGES_MAX + 1);
    REFUSED("tokens_per_page is 1048577", bad.tokens_per_page = LAYOUT_TOKENS_MAX + 1);
    REFUSED("either all are 0", bad.tokens_per_page = 0);
    REFUSED("either all are 0", bad.head_bytes = 0);
    REFUSED("layers is 0", bad.layers = 0);
    REFUSED("layers is 4097", bad.layers = LAYOUT_LAYERS_MAX + 1);
    REFUSED("first_layer is 4294967295", bad.first_layer = UINT32_MAX);
    REFUSED("kv is 0", bad.kv = 0);
    REFUSED("kv is 3", bad.kv = 3);
    REFUSED("total_heads 1", bad.total_heads = 1);
    REFUSED("2 heads from head 1 on", bad.first_head = 1);
    REFUSED("from head 4294967295", bad.first_head = UINT32_MAX);
    REFUSED("base_count is 0", bad.base_count = 0);
    REFUSED("base_count is 4097", bad.base_count = LAYOUT_BASES_MAX + 1);
    REFUSED("base_count is 5, must be 1, 3 (layers) or 6", bad.base_count = 5);
    REFUSED("bases is NULL", bad.bases = NULL);
    bases[4].address = NULL;
    REFUSED("address of base 4 is NULL", (void)0);
    assert_int_equal(layout_from_public(NULL, NULL, ERROR_NONE), BATON_EINVAL);
}

static void test_from_public_refuses_bad_strides(void **state)
{
    (void)state;
    baton_base bases[1];
    const baton_layout good = layout_small(bases, 1, BATON_ORDER_LAYER_MAJOR);
    REFUSED("token_stride is 15, but what lies inside it spans 16", bad.token_stride = 15);
    REFUSED("head_stride is 127", bad.head_stride = 127);
    REFUSED("kv_stride is 255", bad.kv_stride = 255);
    REFUSED("layer_stride is 511", bad.layer_stride = 511);
    REFUSED("_stride is 0", bad.head_stride = 0);
    REFUSED("page_stride is 1535, but a page spans 1536", bad.page_stride = 1535);
    REFUSED("page_stride is 0, but a page spans 1536", bad.page_stride = 0);
    REFUSED("end at byte 6147 of base 0, which has 6144", bad.page_stride = 1537);
    REFUSED("a page spans 1536", bases[0].item_bytes = 1535);
    REFUSED("page_stride is 1536, but item_bytes of base 0 is 1537", bases[0].item_bytes = 1537,
            bases[0].bytes = 9999);
    bases[0].item_bytes = 1536;
    REFUSED("which has 6143", bases[0].bytes = 6143);
    bases[0].bytes = UINT64_MAX;
    REFUSED("overflow", (void)0); /* address + bytes */
    bases[0].bytes = 6144;
    REFUSED("layer_stride 9223372036854775808 times 3 overflows",
            bad.layer_stride = 1ull << 63);
    REFUSED("overflow", bad.page_stride = 1ull << 63);
#undef REFUSED
}

/* ---- random layouts against the formula -------------------------------------------------- */

/* The formula of baton.h, as it stands there. */
static uint64_t formula(const struct layout *layout, uint32_t page, uint32_t layer, uint32_t kv,
                        uint32_t head, uint32_t token, uint32_t *base)
{
    uint64_t offset =
        page * layout->page_stride + head * layout->head_stride + token * layout->token_stride;
    if (layout->base_count == 1) {
        *base = 0;
        return offset + layer * layout->layer_stride + kv * layout->kv_stride;
    }
    if (layout->base_count == layout->layers) {
        *base = layer;
        return offset + kv * layout->kv_stride;
    }
    *base = kv * layout->layers + layer;
    return offset;
}

/* Does any index reach outside a base, or two of them the same byte? */
static const char *formula_fault(const struct layout *layout)
{
    static uint8_t taken[6][BASE_BYTES];
    memset(taken, 0, sizeof(taken));
    for (uint32_t page = 0; page < layout->pages; page++)
        for (uint32_t layer = 0; layer < layout->layers; layer++)
            for (uint32_t kv = 0; kv < layout->kv; kv++)
                for (uint32_t head = 0; head < layout->heads; head++)
                    for (uint32_t token = 0; token < layout->tokens_per_page; token++) {
                        uint32_t base;
                        uint64_t at = formula(layout, page, layer, kv, head, token, &base);
                        if (at + layout->head_bytes > layout->bases[base].bytes)
                            return "a byte outside its base";
                        for (uint32_t i = 0; i < layout->head_bytes; i++)
                            if (taken[base][at + i]++)
                                return "a byte named twice";
                        if (layout_page_of(layout, base, at) != page)
                            return "a byte in another page";
                        if (layout_base_of(layout, layer, kv) != base)
                            return "another base";
                    }
    return NULL;
}

/* Strides nested in a random order with random gaps: sound by construction, if it fits. */
static uint64_t strides_nest(struct layout *layout)
{
    uint64_t *strides[4] = {&layout->token_stride, &layout->head_stride, &layout->kv_stride,
                            &layout->layer_stride};
    bool split = layout->base_count > 1,
         split_kv = split && layout->base_count != layout->layers;
    uint32_t counts[4] = {layout->tokens_per_page, layout->heads, split_kv ? 1 : layout->kv,
                          split ? 1 : layout->layers};
    uint64_t extent = layout->head_bytes;
    for (uint32_t left = 4; left > 0; left--) {
        uint32_t pick = random_below(left);
        uint64_t stride = extent + (random_below(3) ? 0 : random_below(5));
        *strides[pick] = stride;
        extent += (counts[pick] - 1) * stride;
        strides[pick] = strides[left - 1];
        counts[pick] = counts[left - 1];
    }
    return extent;
}

static struct layout layout_random(struct layout_base *bases)
{
    struct layout layout = {
        .pages = 1 + random_below(4),
        .tokens_per_page = 1 + random_below(3),
        .layers = 1 + random_below(3),
        .kv = 1 + random_below(2),
        .heads = 1 + random_below(3),
        .total_heads = 3,
        .head_bytes = 1 + random_below(4),
        .bases = bases,
    };
    uint32_t counts[3] = {1, layout.layers, layout.layers * layout.kv};
    layout.base_count = counts[random_below(3)];
    uint64_t extent = strides_nest(&layout);
    layout.page_stride = extent + random_below(4);
    for (uint32_t i = 0; i < layout.base_count; i++)
        bases[i] = (struct layout_base){4096, (layout.pages - 1) * layout.page_stride + extent,
                                        extent};
    return layout;
}

/* Change one thing. */
static void layout_garble(struct layout *layout)
{
    uint64_t *strides[5] = {&layout->page_stride, &layout->layer_stride, &layout->kv_stride,
                            &layout->head_stride, &layout->token_stride};
    uint32_t *counts[5] = {&layout->pages, &layout->layers, &layout->kv, &layout->heads,
                           &layout->tokens_per_page};
    switch (random_below(4)) {
    case 0: *strides[random_below(5)] = random_below(40); break;
    case 1: *counts[random_below(5)] = random_below(5); break;
    case 2: layout->bases[random_below(layout->base_count)].bytes -= 1 + random_below(3); break;
    default: layout->head_bytes += 1 + random_below(3); break;
    }
}

static void test_check_lets_only_sound_layouts_through(void **state)
{
    (void)state;
    random_state = seed_of_run();
    uint32_t accepted = 0, refused = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        struct layout_base bases[6];
        struct layout layout = layout_random(bases);
        char text[200] = "";
        if (layout_check(&layout, ERROR_BUFFER(text)))
            fail_msg("case %u: a sound layout was refused: %s", i, text);
        const char *fault = formula_fault(&layout);
        if (fault)
            fail_msg("case %u: %s in a layout that should be sound", i, fault);

        layout_garble(&layout);
        if (layout_check(&layout, ERROR_NONE)) {
            refused++;
            continue;
        }
        accepted++;
        if ((fault = formula_fault(&layout)))
            fail_msg("case %u: %s in a layout that was let through", i, fault);
    }
    assert_true(accepted > 1000 && refused > 1000); /* both ways were tried */
}

/* ---- pages and pairs --------------------------------------------------------------------- */

static void test_check_pages_names_the_one_outside(void **state)
{
    (void)state;
    const struct layout layout = {.pages = 8};
    int32_t pages[3] = {8, 0, 7};
    char text[200] = "";
    struct error err = ERROR_BUFFER(text);
    assert_int_equal(layout_check_pages(&layout, pages, 1, 3, "the grant's", err), BATON_OK);
    assert_int_equal(layout_check_pages(&layout, NULL, 0, 0, "the grant's", err), BATON_OK);
    assert_int_equal(layout_check_pages(&layout, pages, 0, 3, "the grant's", err),
                     BATON_EINVAL);
    assert_non_null(strstr(text, "page 8 at position 0 of the grant's list"));
    pages[2] = -1;
    assert_int_equal(layout_check_pages(&layout, pages, 1, 3, "the grant's", err),
                     BATON_EINVAL);
    assert_non_null(strstr(text, "page -1 at position 2"));
    assert_int_equal(layout_check_pages(&layout, NULL, 0, 3, "the grant's", err), BATON_EINVAL);
    assert_non_null(strstr(text, "the grant's list of pages is NULL"));
}

static void check_match(const struct layout *src, const struct layout *dst, const char *word)
{
    char text[200] = "";
    int rc = layout_match(src, dst, ERROR_BUFFER(text));
    assert_int_equal(rc, word ? BATON_ELAYOUT : BATON_OK);
    if (word && !strstr(text, word))
        fail_msg("\"%s\" does not say \"%s\"", text, word);
}

static void test_match_names_both_values(void **state)
{
    (void)state;
    const struct layout good = {.dtype = 6,
                                .pages = 4,
                                .tokens_per_page = 8,
                                .layers = 4,
                                .first_layer = 4,
                                .kv = 2,
                                .heads = 2,
                                .total_heads = 8,
                                .head_bytes = 64};
#define DIFFERS(word, ...)              \
    do {                                \
        struct layout dst = good;       \
        __VA_ARGS__;                    \
        check_match(&good, &dst, word); \
    } while (0)
    DIFFERS(NULL, (void)0);
    DIFFERS(NULL, dst.pages = 9, dst.heads = 1, dst.first_head = 7, dst.memory = 1);
    DIFFERS(NULL, dst.tokens_per_page = 24);
    DIFFERS(NULL, dst.tokens_per_page = 2);
    DIFFERS(NULL, dst.first_layer = 7);
    DIFFERS(NULL, dst.first_layer = 0, dst.layers = 5);
    DIFFERS("unknown kind of memory: 0 at the sender, 2", dst.memory = 2);
    DIFFERS("dtype is 6 at the sender and 5 at the receiver", dst.dtype = 5);
    DIFFERS("head_bytes is 64 at the sender and 32", dst.head_bytes = 32);
    DIFFERS("kv is 2 at the sender and 1", dst.kv = 1);
    DIFFERS("total_heads is 8 at the sender and 4", dst.total_heads = 4);
    DIFFERS("tokens_per_page is 8 at the sender and 12", dst.tokens_per_page = 12);
    DIFFERS("4 to 7 at the sender, 8 to 11 at the receiver", dst.first_layer = 8);
    DIFFERS("4 to 7 at the sender, 0 to 3", dst.first_layer = 0);
    DIFFERS("opaque only at the receiver", dst.head_bytes = 0);
#undef DIFFERS
}

static void test_match_opaque_pages_item_by_item(void **state)
{
    (void)state;
    struct layout_base src_bases[2] = {{0, 100, 10}, {0, 100, 20}};
    struct layout_base dst_bases[2] = {{0, 900, 10}, {0, 900, 20}};
    struct layout src = {.pages = 4, .layers = 2, .base_count = 2, .bases = src_bases};
    struct layout dst = {.pages = 9, .layers = 2, .base_count = 2, .bases = dst_bases};
    check_match(&src, &dst, NULL);
    dst_bases[1].item_bytes = 21;
    check_match(&src, &dst, "item_bytes of base 1 is 20 at the sender and 21");
    dst.base_count = 1;
    check_match(&src, &dst, "is 2 at the sender and 1");
    dst.base_count = 2;
    dst.first_layer = 2;
    check_match(&src, &dst, "is 0 at the sender and 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill_gives_the_four_orders),
        cmocka_unit_test(test_fill_refuses_what_has_no_shape),
        cmocka_unit_test(test_from_public_fills_in_what_may_be_left_out),
        cmocka_unit_test(test_from_public_normalises_opaque_pages),
        cmocka_unit_test(test_from_public_refuses_bad_counts),
        cmocka_unit_test(test_from_public_refuses_bad_strides),
        cmocka_unit_test(test_check_lets_only_sound_layouts_through),
        cmocka_unit_test(test_check_pages_names_the_one_outside),
        cmocka_unit_test(test_match_names_both_values),
        cmocka_unit_test(test_match_opaque_pages_item_by_item),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
