/* SPDX-License-Identifier: Apache-2.0 */
/* The plan against a slow obvious version: random layouts of every kind with real memory behind
 * them, the runs executed by memcpy, and the destination compared byte for byte with what copying
 * element by element gives, including what must not have changed. Where the destination's pages
 * ascend, the number of runs must also be the smallest possible.
 *
 * BATON_TEST_SEED repeats a run, BATON_BENCH=1 prints what a run costs. */
#include "transfer/plan.h"
#include "transfer/topology.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CASES 60000
#define BASES_MAX 8
#define PAGES_MAX 12

/* ---- random numbers ---------------------------------------------------------------------- */

static uint64_t random_state, run_seed;
static uint32_t case_number;

static uint64_t random_next(void) /* splitmix64 */
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t random_below(uint32_t bound)
{
    return (uint32_t)(random_next() % bound);
}

static uint32_t random_between(uint32_t least, uint32_t most)
{
    return least + random_below(most - least + 1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void seed_init(void)
{
    const char *text = getenv("BATON_TEST_SEED");
    run_seed = text ? strtoull(text, NULL, 0) : now_ns();
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)run_seed);
}

/* Each case has a start of its own, so that one can be looked at without those before it. */
static void case_begin(uint32_t number)
{
    case_number = number;
    random_state = run_seed + number * 0x2545f4914f6cdd1du;
}

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition))                                                             \
            fail_msg("seed %llu case %u: not true: %s", (unsigned long long)run_seed, \
                     case_number, #condition);                                        \
    } while (0)

/* ---- one side: a random layout with memory ----------------------------------------------- */

struct model {
    uint32_t layers, kv, total_heads, head_bytes;
    uint32_t shared_layer; /* one that both sides have */
    bool opaque;
    uint64_t item_bytes[BASES_MAX]; /* opaque */
};

struct side {
    struct layout layout;
    uint8_t *memory[BASES_MAX];
    int32_t pages[PAGES_MAX];
    uint32_t page_count;
    uint32_t first_token;
    bool ascending;
};

static void bytes_randomise(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (i + 8 <= size) {
            uint64_t eight = random_next();
            memcpy(bytes + i, &eight, 8);
            i += 7;
        } else {
            bytes[i] = (uint8_t)random_next();
        }
    }
}

/* Inner dimensions in any order, with or without gaps. Returns what a page spans. */
static uint64_t strides_random(baton_layout *layout)
{
    uint64_t *strides[4] = {&layout->token_stride, &layout->head_stride, &layout->kv_stride,
                            &layout->layer_stride};
    bool split = layout->base_count > 1;
    bool split_kv = split && layout->base_count != layout->layers;
    uint32_t counts[4] = {layout->tokens_per_page, layout->heads, split_kv ? 1 : layout->kv,
                          split ? 1 : layout->layers};
    uint64_t extent = layout->head_bytes;
    bool gaps = random_below(2);
    for (uint32_t left = 4; left > 0; left--) {
        uint32_t pick = random_below(left);
        *strides[pick] = extent + (gaps ? random_below(4) : 0);
        extent += (counts[pick] - 1) * *strides[pick];
        strides[pick] = strides[left - 1];
        counts[pick] = counts[left - 1];
    }
    layout->page_stride = extent + (gaps ? random_below(4) : 0);
    return extent;
}

static uint64_t layout_shape_random(baton_layout *layout)
{
    uint64_t item_bytes;
    uint32_t order = random_below(6);
    if (order < 4) {
        layout->base_count = order < 2 ? 1 : layout->layers * layout->kv;
        CHECK(baton_layout_fill(layout, (int)order, &item_bytes) == BATON_OK);
        return item_bytes;
    }
    uint32_t counts[3] = {1, layout->layers, layout->layers * layout->kv};
    layout->base_count = counts[random_below(3)];
    return strides_random(layout);
}

/* Bases with exactly the bytes they need, so that the sanitizer sees the first one too many. */
static void side_allocate(struct side *side, baton_layout *public, const uint64_t *item_bytes)
{
    baton_base bases[BASES_MAX];
    for (uint32_t i = 0; i < public->base_count; i++) {
        uint64_t stride = public->page_stride ? public->page_stride : item_bytes[i];
        uint64_t bytes = (public->pages - 1) * stride + item_bytes[i];
        side->memory[i] = malloc(bytes);
        assert_non_null(side->memory[i]);
        bytes_randomise(side->memory[i], bytes);
        bases[i] = (baton_base){side->memory[i], bytes, item_bytes[i]};
    }
    public->bases = bases;
    char text[200] = "";
    if (layout_from_public(public, &side->layout, ERROR_BUFFER(text)))
        fail_msg("seed %llu case %u: %s", (unsigned long long)run_seed, case_number, text);
}

/* A list of distinct pages: in order, or shuffled, or something of both. */
static void side_list_pages(struct side *side)
{
    int32_t all[PAGES_MAX];
    uint32_t pages = side->layout.pages, swaps = random_below(3) ? random_below(pages + 1) : 0;
    for (uint32_t i = 0; i < pages; i++)
        all[i] = (int32_t)i;
    for (uint32_t i = 0; i < swaps; i++) {
        uint32_t a = random_below(pages), b = random_below(pages);
        int32_t page = all[a];
        all[a] = all[b];
        all[b] = page;
    }
    side->page_count = random_below(10) ? random_between(1, pages) : random_below(pages + 1);
    uint32_t start = random_below(pages - side->page_count + 1);
    side->ascending = true;
    for (uint32_t i = 0; i < side->page_count; i++) {
        side->pages[i] = all[start + i];
        side->ascending &= !i || side->pages[i] > side->pages[i - 1];
    }
}

static void side_make(struct side *side, const struct model *model, uint32_t tokens_per_page)
{
    baton_layout public = BATON_LAYOUT_INIT;
    uint64_t item_bytes[BASES_MAX];
    public.dtype = BATON_DTYPE_U8;
    public.pages = random_between(1, PAGES_MAX);
    if (model->opaque) {
        public.base_count = model->layers;
        memcpy(item_bytes, model->item_bytes, sizeof(item_bytes));
    } else {
        uint32_t tp_size = 1u << random_below(3);
        public.tokens_per_page = tokens_per_page;
        public.kv = model->kv;
        public.first_layer = random_below(model->shared_layer + 1);
        public.layers =
            random_between(model->shared_layer + 1, model->layers) - public.first_layer;
        public.total_heads = model->total_heads;
        public.head_bytes = model->head_bytes;
        topology_heads(model->total_heads, tp_size, random_below(tp_size), &public.first_head,
                       &public.heads);
        uint64_t bytes = layout_shape_random(&public);
        for (uint32_t i = 0; i < BASES_MAX; i++)
            item_bytes[i] = bytes;
    }
    side_allocate(side, &public, item_bytes);
    side_list_pages(side);
}

static void side_free(struct side *side)
{
    for (uint32_t i = 0; i < side->layout.base_count; i++)
        free(side->memory[i]);
    layout_free(&side->layout);
}

/* ---- one case ---------------------------------------------------------------------------- */

struct example {
    struct model model;
    struct side src, dst;
    struct plan_input input;
    uint8_t *before[BASES_MAX];   /* the destination as it was */
    uint8_t *expected[BASES_MAX]; /* and as it must become */
    uint64_t *origin[BASES_MAX];  /* per byte: where from (base << 32 | offset) + 1, or 0 */
    uint64_t expected_bytes, expected_runs;
};

static void model_make(struct model *model)
{
    *model = (struct model){
        .layers = random_between(1, 4),
        .kv = random_between(1, 2),
        .total_heads = 1u << random_below(3),
        .head_bytes = random_between(1, 6),
        .opaque = random_below(8) == 0,
    };
    model->shared_layer = random_below(model->layers);
    for (uint32_t i = 0; i < BASES_MAX; i++)
        model->item_bytes[i] = random_between(1, 20);
}

/* Page sizes of which one divides the other. */
static void sides_make(struct example *example)
{
    uint32_t tokens = random_between(1, 4);
    uint32_t larger = tokens * (random_below(2) ? 1 : random_between(1, 4));
    bool src_larger = random_below(2);
    side_make(&example->src, &example->model, src_larger ? larger : tokens);
    side_make(&example->dst, &example->model, src_larger ? tokens : larger);

    uint32_t piece = example->model.opaque ? 1 : tokens;
    uint32_t start = random_below(2) ? 0 : random_below(20), apart = random_below(6) * piece;
    if (random_below(3) == 0)
        apart = 0;
    bool prefix =
        random_below(5); /* the receiver has some already; rarely the other way round */
    example->src.first_token = prefix ? start : start + apart;
    example->dst.first_token = prefix ? start + apart : start;
}

static void input_make(struct example *example)
{
    struct side *src = &example->src, *dst = &example->dst;
    uint32_t limit = dst->first_token + PAGES_MAX * dst->layout.tokens_per_page;
    example->input = (struct plan_input){
        .src = &src->layout,
        .dst = &dst->layout,
        .src_pages = src->pages,
        .dst_pages = dst->pages,
        .src_page_count = src->page_count,
        .dst_page_count = dst->page_count,
        .src_first_token = src->first_token,
        .dst_first_token = dst->first_token,
        .tokens = random_below(2) ? 0 : random_between(1, limit),
        .page_end = src->page_count,
        .layer_end = src->layout.layers,
    };
}

/* Where a side keeps one element, straight from the formula of baton.h; false: it does not. */
static bool element_find(const struct side *side, uint32_t layer, uint32_t kv, uint32_t head,
                         uint32_t token, uint32_t *base, uint64_t *offset)
{
    const struct layout *layout = &side->layout;
    if (layer < layout->first_layer || layer >= layout->first_layer + layout->layers ||
        head < layout->first_head || head >= layout->first_head + layout->heads ||
        token < side->first_token)
        return false;
    uint32_t position = (token - side->first_token) / layout->tokens_per_page;
    if (position >= side->page_count)
        return false;
    uint64_t page = (uint32_t)side->pages[position];
    layer -= layout->first_layer;
    if (layout_is_opaque(layout)) {
        *base = layer;
        *offset = page * layout->bases[layer].item_bytes;
        return true;
    }
    *offset = page * layout->page_stride + (head - layout->first_head) * layout->head_stride +
              (token - side->first_token) % layout->tokens_per_page * layout->token_stride;
    if (layout->base_count == 1) {
        *base = 0;
        *offset += layer * layout->layer_stride + kv * layout->kv_stride;
    } else if (layout->base_count == layout->layers) {
        *base = layer;
        *offset += kv * layout->kv_stride;
    } else {
        *base = kv * layout->layers + layer;
    }
    return true;
}

static void element_copy(struct example *example, uint32_t layer, uint32_t kv, uint32_t head,
                         uint32_t token)
{
    uint32_t src_base, dst_base;
    uint64_t src_at, dst_at;
    if (!element_find(&example->src, layer, kv, head, token, &src_base, &src_at) ||
        !element_find(&example->dst, layer, kv, head, token, &dst_base, &dst_at))
        return;
    uint64_t bytes = example->model.opaque ? example->src.layout.bases[src_base].item_bytes
                                           : example->model.head_bytes;
    memcpy(example->expected[dst_base] + dst_at, example->src.memory[src_base] + src_at, bytes);
    for (uint64_t i = 0; i < bytes; i++) {
        CHECK(!example->origin[dst_base][dst_at + i]);
        example->origin[dst_base][dst_at + i] = ((uint64_t)src_base << 32 | (src_at + i)) + 1;
    }
    example->expected_bytes += bytes;
}

/* The fewest runs there can be: a byte starts one unless it goes on from the byte before it. */
static uint64_t runs_fewest(const struct example *example)
{
    uint64_t runs = 0;
    for (uint32_t base = 0; base < example->dst.layout.base_count; base++) {
        uint64_t before = 0;
        for (uint64_t i = 0; i < example->dst.layout.bases[base].bytes; i++) {
            uint64_t origin = example->origin[base][i];
            runs += origin && (!before || origin != before + 1);
            before = origin;
        }
    }
    return runs;
}

static void example_expect(struct example *example)
{
    const struct model *model = &example->model;
    const struct layout *dst = &example->dst.layout;
    for (uint32_t i = 0; i < dst->base_count; i++) {
        size_t bytes = dst->bases[i].bytes;
        example->before[i] = malloc(bytes);
        example->expected[i] = malloc(bytes);
        example->origin[i] = calloc(bytes, sizeof(uint64_t));
        assert_true(example->before[i] && example->expected[i] && example->origin[i]);
        memcpy(example->before[i], example->dst.memory[i], bytes);
        memcpy(example->expected[i], example->dst.memory[i], bytes);
    }
    uint32_t end = example->dst.first_token + PAGES_MAX * dst->tokens_per_page;
    if (example->input.tokens && !model->opaque && example->input.tokens < end)
        end = example->input.tokens;
    uint32_t kvs = model->opaque ? 1 : model->kv,
             heads = model->opaque ? 1 : model->total_heads;
    for (uint32_t layer = 0; layer < model->layers; layer++)
        for (uint32_t kv = 0; kv < kvs; kv++)
            for (uint32_t head = 0; head < heads; head++)
                for (uint32_t token = example->dst.first_token; token < end; token++)
                    element_copy(example, layer, kv, head, token);
    example->expected_runs = runs_fewest(example);
}

static void example_make(struct example *example)
{
    memset(example, 0, sizeof(*example));
    model_make(&example->model);
    sides_make(example);
    input_make(example);
    example_expect(example);
}

static void example_free(struct example *example)
{
    for (uint32_t i = 0; i < example->dst.layout.base_count; i++) {
        free(example->before[i]);
        free(example->expected[i]);
        free(example->origin[i]);
    }
    side_free(&example->src);
    side_free(&example->dst);
}

static bool same_bases(const struct plan_run *first, const struct plan_run *second)
{
    return first->src_base == second->src_base && first->dst_base == second->dst_base;
}

static bool runs_touch(const struct plan_run *first, const struct plan_run *second)
{
    return same_bases(first, second) &&
           first->src_offset + first->length == second->src_offset &&
           first->dst_offset + first->length == second->dst_offset;
}

/* Copies a run after checking that it stays inside both bases and writes no byte twice: a byte
 * that was written is taken out of `origin`. */
static void run_execute(struct example *example, const struct plan_run *run)
{
    const struct layout *src = &example->src.layout, *dst = &example->dst.layout;
    CHECK(run->length > 0 && run->length <= PLAN_RUN_MAX);
    CHECK(run->src_base < src->base_count && run->dst_base < dst->base_count);
    CHECK(run->src_offset + run->length <= src->bases[run->src_base].bytes);
    CHECK(run->dst_offset + run->length <= dst->bases[run->dst_base].bytes);
    for (uint64_t i = 0; i < run->length; i++) {
        uint64_t *origin = &example->origin[run->dst_base][run->dst_offset + i];
        CHECK(*origin); /* 0: nobody asked for this byte, or it has been written already */
        *origin = 0;
    }
    memcpy(example->dst.memory[run->dst_base] + run->dst_offset,
           example->src.memory[run->src_base] + run->src_offset, run->length);
}

/* Executes one plan in batches of random size. */
static uint64_t plan_execute(struct example *example, const struct plan_input *input,
                             uint64_t *bytes)
{
    struct plan plan;
    struct plan_run runs[16], last = {.length = 0};
    char text[200] = "";
    if (plan_open(&plan, input, ERROR_BUFFER(text)))
        fail_msg("seed %llu case %u: %s", (unsigned long long)run_seed, case_number, text);
    uint64_t count = 0, copied = 0, unmerged = plan_run_bytes(&plan);
    bool uniform = !example->model.opaque && !input->tokens;
    /* Several pieces in one of the destination's pages each start at its front again. */
    bool ascends =
        example->dst.ascending && input->dst->tokens_per_page <= input->src->tokens_per_page;
    for (;;) {
        uint32_t got = plan_next(&plan, runs, random_between(1, 16));
        if (!got)
            break;
        for (uint32_t i = 0; i < got; i++) {
            CHECK(!last.length || !runs_touch(&last, &runs[i]));
            CHECK(!ascends || !same_bases(&last, &runs[i]) ||
                  runs[i].dst_offset >= last.dst_offset + last.length);
            CHECK(!uniform || runs[i].length % unmerged == 0);
            run_execute(example, &runs[i]);
            copied += runs[i].length;
            last = runs[i];
        }
        count += got;
    }
    CHECK(plan_next(&plan, runs, 1) == 0); /* the end stays the end */
    CHECK(copied == plan_bytes(&plan));
    CHECK((unmerged == 0) == (copied == 0));
    *bytes += copied;
    return count;
}

static void destination_check(struct example *example)
{
    for (uint32_t i = 0; i < example->dst.layout.base_count; i++)
        CHECK(memcmp(example->dst.memory[i], example->expected[i],
                     example->dst.layout.bases[i].bytes) == 0);
}

static void test_plan_copies_what_the_obvious_one_does(void **state)
{
    (void)state;
    seed_init();
    uint32_t empty = 0, ascending = 0, opaque = 0;
    for (uint32_t i = 0; i < CASES; i++) {
        struct example example;
        case_begin(i);
        example_make(&example);
        uint64_t bytes = 0, runs = plan_execute(&example, &example.input, &bytes);
        CHECK(bytes == example.expected_bytes);
        CHECK(runs >= example.expected_runs);
        if (example.dst.ascending)
            CHECK(runs == example.expected_runs);
        destination_check(&example);
        empty += bytes == 0;
        ascending += example.dst.ascending && bytes;
        opaque += example.model.opaque && bytes;
        example_free(&example);
    }
    /* The generator reaches what it is for. */
    assert_true(empty > CASES / 50 && empty < CASES / 2);
    assert_true(ascending > CASES / 10 && opaque > CASES / 50);
}

/* Cuts [0, end) in up to three parts; returns how many. */
static uint32_t range_cut(uint32_t end, uint32_t cuts[4])
{
    uint32_t a = random_below(end + 1), b = random_below(end + 1);
    cuts[0] = 0;
    cuts[1] = a < b ? a : b;
    cuts[2] = a < b ? b : a;
    cuts[3] = end;
    return 3;
}

static void test_plan_in_parts_is_the_same_plan(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < CASES / 4; i++) {
        struct example example;
        case_begin(CASES + i);
        example_make(&example);
        uint32_t pages[4], layers[4];
        uint32_t page_parts = range_cut(example.input.page_end, pages);
        uint32_t layer_parts = range_cut(example.input.layer_end, layers);
        uint32_t parts = page_parts * layer_parts, first = random_below(parts);
        uint64_t bytes = 0;
        for (uint32_t part = 0; part < parts; part++) {
            uint32_t pick = (first + part * 2) % parts; /* 9 parts: all of them, out of order */
            struct plan_input input = example.input;
            input.page_begin = pages[pick % page_parts];
            input.page_end = pages[pick % page_parts + 1];
            input.layer_begin = layers[pick / page_parts];
            input.layer_end = layers[pick / page_parts + 1];
            plan_execute(&example, &input, &bytes);
        }
        CHECK(bytes == example.expected_bytes);
        destination_check(&example);
        example_free(&example);
    }
}

/* ---- how many runs: the cases that matter ------------------------------------------------ */

/* Layouts whose memory is never touched: only the arithmetic is of interest. */
#define FIXED_BASES 8

struct fixed {
    struct layout layout;
    struct layout_base bases[FIXED_BASES];
};

/* 64 pages of 16 tokens, 4 layers, K and V, 8 heads of 128 bytes in the whole model. */
static void fixed_make(struct fixed *fixed, int order, uint32_t tokens_per_page, uint32_t heads,
                       uint32_t first_head)
{
    baton_layout public = BATON_LAYOUT_INIT;
    uint64_t item_bytes;
    public.pages = 64;
    public.tokens_per_page = tokens_per_page;
    public.layers = 4;
    public.kv = 2;
    public.heads = heads;
    public.head_bytes = 128;
    assert_int_equal(baton_layout_fill(&public, order, &item_bytes), BATON_OK);
    fixed->layout = (struct layout){
        .pages = 64,
        .tokens_per_page = tokens_per_page,
        .layers = 4,
        .kv = 2,
        .heads = heads,
        .first_head = first_head,
        .total_heads = 8,
        .head_bytes = 128,
        .page_stride = public.page_stride,
        .layer_stride = public.layer_stride,
        .kv_stride = public.kv_stride,
        .head_stride = public.head_stride,
        .token_stride = public.token_stride,
        .base_count = order < 2 ? 1 : FIXED_BASES,
        .bases = fixed->bases,
    };
    for (uint32_t i = 0; i < FIXED_BASES; i++)
        fixed->bases[i] = (struct layout_base){4096, item_bytes * 64, item_bytes};
    assert_int_equal(layout_check(&fixed->layout, ERROR_NONE), BATON_OK);
}

static struct plan_input fixed_input(const struct fixed *src, const struct fixed *dst,
                                     const int32_t *src_pages, uint32_t src_count,
                                     const int32_t *dst_pages, uint32_t dst_count)
{
    return (struct plan_input){
        .src = &src->layout,
        .dst = &dst->layout,
        .src_pages = src_pages,
        .dst_pages = dst_pages,
        .src_page_count = src_count,
        .dst_page_count = dst_count,
        .page_end = src_count,
        .layer_end = src->layout.layers,
    };
}

static struct plan plan_opened(const struct plan_input *input)
{
    struct plan plan;
    char text[200] = "";
    if (plan_open(&plan, input, ERROR_BUFFER(text)))
        fail_msg("%s", text);
    return plan;
}

static uint64_t runs_count(const struct plan_input *input)
{
    struct plan plan = plan_opened(input);
    struct plan_run runs[32];
    uint64_t count = 0, bytes = 0;
    for (uint32_t got; (got = plan_next(&plan, runs, 32)); count += got)
        for (uint32_t i = 0; i < got; i++)
            bytes += runs[i].length;
    assert_int_equal(bytes, plan_bytes(&plan));
    return count;
}

static const int32_t adjacent[8] = {10, 11, 12, 13, 14, 15, 16, 17};
static const int32_t scattered[8] = {3, 9, 1, 60, 40, 22, 7, 30};

static void test_plan_of_equal_page_major_pools(void **state)
{
    (void)state;
    for (int order = BATON_ORDER_LAYER_MAJOR; order <= BATON_ORDER_HEAD_MAJOR; order++) {
        struct fixed pool;
        fixed_make(&pool, order, 16, 8, 0);
        struct plan_input input = fixed_input(&pool, &pool, adjacent, 8, adjacent, 8);
        assert_int_equal(runs_count(&input), 1);
        input.src_pages = scattered;
        assert_int_equal(runs_count(&input), 8);
        struct plan plan = plan_opened(&input);
        assert_int_equal(plan_run_bytes(&plan), 4 * 2 * 8 * 16 * 128);
    }
}

static void test_plan_of_per_layer_pools(void **state)
{
    (void)state;
    for (int order = BATON_ORDER_PER_LAYER; order <= BATON_ORDER_TOKEN_MAJOR; order++) {
        struct fixed pool;
        fixed_make(&pool, order, 16, 8, 0);
        struct plan_input input = fixed_input(&pool, &pool, adjacent, 8, adjacent, 8);
        assert_int_equal(runs_count(&input), FIXED_BASES);
        input.dst_pages = scattered;
        assert_int_equal(runs_count(&input), FIXED_BASES * 8);
    }
}

/* Between page-major and per-layer pools a page is one run per base. */
static void test_plan_between_page_major_and_per_layer_pools(void **state)
{
    (void)state;
    struct fixed page_major, per_layer;
    fixed_make(&page_major, BATON_ORDER_LAYER_MAJOR, 16, 8, 0);
    fixed_make(&per_layer, BATON_ORDER_PER_LAYER, 16, 8, 0);
    struct plan_input there = fixed_input(&page_major, &per_layer, adjacent, 8, adjacent, 8);
    struct plan_input back = fixed_input(&per_layer, &page_major, adjacent, 8, adjacent, 8);
    assert_int_equal(runs_count(&there), 8 * FIXED_BASES);
    assert_int_equal(runs_count(&back), 8 * FIXED_BASES);
}

static void test_plan_of_unequal_tp(void **state)
{
    (void)state;
    struct fixed whole, slice;
    fixed_make(&whole, BATON_ORDER_HEAD_MAJOR, 16, 8, 0);
    fixed_make(&slice, BATON_ORDER_HEAD_MAJOR, 16, 2, 4);
    struct plan_input scatter = fixed_input(&whole, &slice, adjacent, 8, adjacent, 8);
    struct plan_input gather = fixed_input(&slice, &whole, adjacent, 8, adjacent, 8);
    assert_int_equal(runs_count(&scatter), 8); /* one a page */
    assert_int_equal(runs_count(&gather), 8);

    struct plan plan = plan_opened(&gather);
    struct plan_run run;
    assert_int_equal(plan_next(&plan, &run, 1), 1);
    uint64_t head = 4 * 2 * 16 * 128; /* all layers of one head of a page */
    assert_int_equal(run.src_offset, 10 * 2 * head);
    assert_int_equal(run.dst_offset, 10 * 8 * head + 4 * head);
    assert_int_equal(run.length, 2 * head);

    fixed_make(&whole, BATON_ORDER_LAYER_MAJOR, 16, 8, 0);
    fixed_make(&slice, BATON_ORDER_LAYER_MAJOR, 16, 2, 4);
    assert_int_equal(runs_count(&gather), 8 * 4 * 2); /* layers x k|v a page */
    fixed_make(&whole, BATON_ORDER_TOKEN_MAJOR, 16, 8, 0);
    fixed_make(&slice, BATON_ORDER_TOKEN_MAJOR, 16, 2, 4);
    assert_int_equal(runs_count(&gather), 8 * 16 * FIXED_BASES); /* every token */
    fixed_make(&slice, BATON_ORDER_TOKEN_MAJOR, 16, 8, 0);
    slice.layout.heads = 2;
    slice.layout.total_heads = 10; /* heads that nobody asked for: nothing to send */
    slice.layout.first_head = 8;
    whole.layout.total_heads = 10;
    assert_int_equal(runs_count(&gather), 0);
}

/* SGLang's pools with one token a page, into pages of 16 and back. */
static void test_plan_of_unequal_pages(void **state)
{
    (void)state;
    struct fixed small, large;
    int32_t tokens[48];
    for (int32_t i = 0; i < 48; i++)
        tokens[i] = 5 + i;
    fixed_make(&small, BATON_ORDER_TOKEN_MAJOR, 1, 8, 0);
    fixed_make(&large, BATON_ORDER_TOKEN_MAJOR, 16, 8, 0);
    struct plan_input input = fixed_input(&small, &large, tokens, 48, scattered, 3);
    assert_int_equal(runs_count(&input), 3 * FIXED_BASES);
    input.dst_pages = adjacent;
    assert_int_equal(runs_count(&input), FIXED_BASES);
    struct plan_input back = fixed_input(&large, &small, scattered, 3, tokens, 48);
    assert_int_equal(runs_count(&back), 3 * FIXED_BASES);
    tokens[20] = 60;
    assert_int_equal(runs_count(&input), 3 * FIXED_BASES);
}

/* A partial last page is sent up to its last token; where tokens are outermost in the page it
 * does not even cost a run. */
static void test_plan_of_a_partial_last_page(void **state)
{
    (void)state;
    struct fixed pool;
    fixed_make(&pool, BATON_ORDER_TOKEN_MAJOR, 16, 8, 0);
    struct plan_input input = fixed_input(&pool, &pool, adjacent, 4, adjacent, 4);
    input.tokens = 3 * 16 + 5;
    assert_int_equal(runs_count(&input), FIXED_BASES);
    struct plan plan = plan_opened(&input);
    assert_int_equal(plan_bytes(&plan), 53 * 8 * 128 * FIXED_BASES);

    fixed_make(&pool, BATON_ORDER_PER_LAYER, 16, 8, 0);
    assert_int_equal(runs_count(&input),
                     8 * FIXED_BASES); /* 3 pages and head 0, 7 heads more */
    input.tokens = 48;
    assert_int_equal(runs_count(&input), FIXED_BASES);
}

static void test_plan_of_a_prefix_sends_what_is_missing(void **state)
{
    (void)state;
    struct fixed pool;
    fixed_make(&pool, BATON_ORDER_LAYER_MAJOR, 16, 8, 0);
    struct plan_input input = fixed_input(&pool, &pool, scattered, 8, adjacent, 3);
    input.dst_first_token = 5 * 16;
    struct plan plan = plan_opened(&input);
    struct plan_run runs[8];
    assert_int_equal(plan_next(&plan, runs, 8), 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(runs[i].src_offset, (uint64_t)scattered[5 + i] * runs[i].length);
        assert_int_equal(runs[i].dst_offset, (uint64_t)adjacent[i] * runs[i].length);
    }
    input.dst_page_count = 0; /* a full hit, at any token */
    input.dst_first_token = 8 * 16 - 3;
    assert_int_equal(runs_count(&input), 0);
}

static void test_plan_cuts_runs_at_a_gibibyte(void **state)
{
    (void)state;
    const uint64_t gib = PLAN_RUN_MAX;
    struct layout_base bases[2] = {{4096, 64 * gib, 3 * gib + 7}, {4096, 64 * gib, 5}};
    struct layout opaque = {.pages = 8,
                            .tokens_per_page = 1,
                            .layers = 2,
                            .kv = 1,
                            .heads = 1,
                            .total_heads = 1,
                            .base_count = 2,
                            .bases = bases};
    struct fixed shell = {.layout = opaque};
    assert_int_equal(layout_check(&opaque, ERROR_NONE), BATON_OK);
    struct plan_input input =
        fixed_input(&shell, &shell, (int32_t[]){2, 3, 7}, 3, (int32_t[]){0, 1, 2}, 3);
    struct plan plan = plan_opened(&input);
    assert_int_equal(plan_bytes(&plan), 3 * (3 * gib + 12));
    assert_int_equal(plan_run_bytes(&plan), 5);
    /* 6 GiB and 14 bytes merged, 3 GiB and 7, then 10 bytes and 5. */
    struct plan_run run;
    uint64_t src = 2 * (3 * gib + 7), dst = 0;
    for (uint32_t i = 0; i < 7 + 4; i++) {
        if (i == 7)
            src = 7 * (3 * gib + 7);
        assert_int_equal(plan_next(&plan, &run, 1), 1);
        assert_int_equal(run.src_offset, src);
        assert_int_equal(run.dst_offset, dst);
        assert_int_equal(run.length, i == 6 ? 14 : i == 10 ? 7 : gib);
        src += run.length;
        dst += run.length;
    }
    assert_int_equal(plan_next(&plan, &run, 1), 1);
    assert_int_equal(run.length, 10);
    assert_int_equal(run.src_base, 1);
    assert_int_equal(plan_next(&plan, &run, 1), 1);
    assert_int_equal(run.length, 5);
    assert_int_equal(plan_next(&plan, &run, 1), 0);
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void check_refused(const struct plan_input *input, int code, const char *word)
{
    struct plan plan;
    char text[200] = "";
    assert_int_equal(plan_open(&plan, input, ERROR_BUFFER(text)), code);
    if (!strstr(text, word))
        fail_msg("\"%s\" does not say \"%s\"", text, word);
}

static void test_plan_refuses_pages_outside(void **state)
{
    (void)state;
    struct fixed pool;
    fixed_make(&pool, BATON_ORDER_LAYER_MAJOR, 16, 8, 0);
    int32_t pages[4] = {0, 63, 1, 2};
    struct plan_input input = fixed_input(&pool, &pool, pages, 4, adjacent, 4);
    assert_int_equal(runs_count(&input), 3);
    pages[3] = 64;
    check_refused(&input, BATON_EINVAL, "page 64 at position 3 of the sender's list");
    input.page_end = 3; /* the page is not touched yet */
    assert_int_equal(runs_count(&input), 3);
    input = fixed_input(&pool, &pool, adjacent, 4, pages, 4);
    pages[3] = -1;
    check_refused(&input, BATON_EINVAL, "page -1 at position 3 of the receiver's list");
    pages[3] = INT32_MIN;
    check_refused(&input, BATON_EINVAL, "receiver's list is outside the region, which has 64");
    input.src_first_token = 16; /* position 0 is not touched, but still counted */
    input.page_end = 3;
    pages[0] = -5;
    pages[2] = 99;
    check_refused(&input, BATON_EINVAL, "page 99 at position 2 of the receiver's list");
    input.dst_pages = NULL;
    check_refused(&input, BATON_EINVAL, "the receiver's list of pages is NULL");
    input = fixed_input(&pool, &pool, NULL, 4, adjacent, 4);
    check_refused(&input, BATON_EINVAL, "the sender's list of pages is NULL");
}

static void test_plan_refuses_ranges_outside(void **state)
{
    (void)state;
    struct fixed pool;
    fixed_make(&pool, BATON_ORDER_LAYER_MAJOR, 16, 8, 0);
    const struct plan_input good = fixed_input(&pool, &pool, adjacent, 4, adjacent, 4);
    struct plan_input input = good;
    input.page_end = 5;
    check_refused(&input, BATON_EINVAL, "list of 4 pages");
    input = good;
    input.page_begin = 3;
    input.page_end = 2;
    check_refused(&input, BATON_EINVAL, "pages 3 to 2");
    input = good;
    input.layer_end = 5;
    check_refused(&input, BATON_EINVAL, "layers 0 to 5 are not among the sender's 4");
    input = good;
    input.layer_begin = 4;
    input.layer_end = 3;
    check_refused(&input, BATON_EINVAL, "layers 4 to 3");
    input = good;
    input.dst_page_count = 65;
    check_refused(&input, BATON_EINVAL, "65 pages, its region only 64");
    input = good;
    input.src_first_token = 8;
    check_refused(&input, BATON_ELAYOUT, "starts at token 8, the receiver's at 0");

    struct fixed other = pool;
    other.layout.head_bytes = 64;
    input = good;
    input.dst = &other.layout;
    check_refused(&input, BATON_ELAYOUT, "head_bytes is 128 at the sender and 64");
}

static void test_plan_far_away_does_not_overflow(void **state)
{
    (void)state;
    struct fixed pool;
    fixed_make(&pool, BATON_ORDER_LAYER_MAJOR, 16, 8, 0);
    struct plan_input input = fixed_input(&pool, &pool, adjacent, 4, adjacent, 4);
    input.src_first_token = input.dst_first_token = UINT32_MAX - 15;
    assert_int_equal(runs_count(&input), 1); /* ends past 2^32 */
    input.src_first_token = 0;
    assert_int_equal(runs_count(&input), 0);
    input.src_first_token = input.dst_first_token = UINT32_MAX - 15;
    input.tokens = UINT32_MAX;
    struct plan plan = plan_opened(&input);
    assert_int_equal(plan_bytes(&plan), 15 * 8 * 2 * 4 * 128);
}

/* ---- covers ------------------------------------------------------------------------------ */

struct cover {
    uint32_t src_tokens, src_first, src_pages;
    uint32_t dst_tokens, dst_first, dst_pages;
    uint32_t tokens;
    int code;
    const char *word;
};

static void test_covers_compares_the_two_ends(void **state)
{
    (void)state;
    static const struct cover cases[] = {
        {16, 0, 4, 16, 0, 4, 0, 0, ""},
        {16, 0, 4, 16, 32, 2, 0, 0, ""},
        {16, 0, 4, 16, 32, 2, 50, 0, ""},
        {16, 0, 4, 16, 64, 0, 0, 0, ""},  /* a full hit */
        {16, 0, 4, 16, 61, 0, 61, 0, ""}, /* of a sequence that ends inside a page */
        {16, 32, 2, 16, 0, 4, 0, BATON_EINVAL,
         "start at token 32, the receiver wants them from 0"},
        {16, 0, 4, 16, 0, 3, 0, BATON_EINVAL,
         "4 pages end at token 64, the receiver's 3 at 48"},
        {16, 0, 3, 16, 0, 4, 0, BATON_EINVAL, "end at token 48, the receiver's 4 at 64"},
        {16, 0, 4, 16, 32, 0, 0, BATON_EINVAL, "receiver's 0 at 32"},
        {16, 0, 4, 16, 80, 0, 0, BATON_EINVAL, "receiver's 0 at 80"},
        {16, 0, 4, 16, 8, 3, 0, BATON_ELAYOUT, "do not line up"},
        {16, 0, 4, 16, 0, 4, 65, BATON_EINVAL, "the sequence has 65 tokens"},
        {1, 0, 50, 16, 0, 4, 50, 0, ""}, /* the receiver's last page is partial */
        {1, 0, 48, 16, 0, 4, 0, BATON_EINVAL, "end at token 48, the receiver's 4 at 64"},
        {1, 0, 65, 16, 0, 4, 0, BATON_EINVAL, "end at token 65"},
        {16, 0, 4, 1, 10, 40, 50, 0, ""},
        {16, 0, 4, 1, 10, 39, 50, BATON_EINVAL, "the receiver's at 49"},
        {16, 0, 4, 1, 10, 38, 0, BATON_EINVAL, "the receiver's 38 at 48"},
        {4, 4, 15, 16, 16, 3, 0, 0, ""},
        {16, 24, 2, 16, 24, 2, 0, 0, ""}, /* a window that starts anywhere */
        {16, 24, 2, 4, 40, 2, 0, 0, ""},
        {16, 24, 2, 4, 40, 0, 0, BATON_EINVAL, "end at token 56, the receiver's 0 at 40"},
        {16, UINT32_MAX - 15, UINT32_MAX, 16, UINT32_MAX - 15, UINT32_MAX, 0, 0, ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct cover *c = &cases[i];
        struct layout src = {.tokens_per_page = c->src_tokens, .head_bytes = 1};
        struct layout dst = {.tokens_per_page = c->dst_tokens, .head_bytes = 1};
        struct plan_input input = {.src = &src,
                                   .dst = &dst,
                                   .src_page_count = c->src_pages,
                                   .dst_page_count = c->dst_pages,
                                   .src_first_token = c->src_first,
                                   .dst_first_token = c->dst_first,
                                   .tokens = c->tokens};
        char text[200] = "";
        int rc = plan_covers(&input, ERROR_BUFFER(text));
        if (rc != c->code || !strstr(text, c->word))
            fail_msg("case %zu: %d \"%s\", not %d \"%s\"", i, rc, text, c->code, c->word);
    }
}

/* ---- direct or packed -------------------------------------------------------------------- */

static void check_packs(const struct plan_input *input, uint64_t least, int packs,
                        const char *word)
{
    struct plan plan = plan_opened(input), before = plan;
    char reason[112] = "";
    assert_int_equal(plan_packs(&plan, least, reason, sizeof(reason)), packs);
    if (!strstr(reason, word))
        fail_msg("\"%s\" does not say \"%s\"", reason, word);
    assert_memory_equal(&plan, &before, sizeof(plan)); /* asking does not move the walk */
    struct plan_run run; /* and where the walk is does not matter */
    while (plan_next(&plan, &run, 1)) {
    }
    assert_int_equal(plan_packs(&plan, least, reason, sizeof(reason)), packs);
    assert_non_null(strstr(reason, word));
}

static void test_packs_small_runs_and_says_why(void **state)
{
    (void)state;
    struct fixed whole, slice;
    fixed_make(&whole, BATON_ORDER_TOKEN_MAJOR, 16, 8, 0);
    fixed_make(&slice, BATON_ORDER_TOKEN_MAJOR, 16, 2, 2);
    struct plan_input input = fixed_input(&whole, &slice, scattered, 8, adjacent, 8);
    check_packs(&input, 0, 0, "direct: runs of 256 bytes");
    check_packs(&input, 256, 0, "direct: runs of 256 bytes");
    check_packs(&input, 257, 1, "packed: about 1024 runs of 256 bytes, direct from 257 on");
    input.dst_page_count = 0;
    check_packs(&input, 4096, 0, "nothing to copy");

    input = fixed_input(&whole, &whole, adjacent, 8, adjacent, 8);
    check_packs(&input, 8 * 16384, 0, "adjacent pages merged");
    check_packs(&input, 8 * 16384 + 1, 0, "direct: only 1048576 bytes in runs of 131072");
    input.dst_pages = scattered;
    check_packs(&input, 16385, 1, "packed: about 64 runs of 16384 bytes");
    input.page_end = 1;
    check_packs(&input, 16385, 0, "direct: only 131072 bytes in runs of 16384");
}

/* ---- speed ------------------------------------------------------------------------------- */

static void pages_shuffle(int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pages[i] = (int32_t)i;
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t other = random_below(i + 1);
        int32_t page = pages[i];
        pages[i] = pages[other];
        pages[other] = page;
    }
}

static double bench_ns_per_run(const struct plan_input *input, uint64_t *runs_out)
{
    double best = 1e9;
    for (uint32_t round = 0; round < 20; round++) {
        struct plan_run runs[256];
        uint64_t start = now_ns(), count = 0, sum = 0;
        struct plan plan = plan_opened(input);
        for (uint32_t got; (got = plan_next(&plan, runs, 256)); count += got)
            sum += runs[got - 1].length;
        double each = (double)(now_ns() - start) / (double)count;
        assert_true(sum > 0);
        best = each < best ? each : best;
        *runs_out = count;
    }
    return best;
}

static void bench_print(const char *name, const struct plan_input *input)
{
    uint64_t runs;
    double each = bench_ns_per_run(input, &runs);
    print_message("%-44s %8llu runs %6.2f ns each\n", name, (unsigned long long)runs, each);
}

static void test_bench_prints_ns_per_run(void **state)
{
    (void)state;
    if (!getenv("BATON_BENCH"))
        skip();
    enum { PAGES = 16384 };
    static int32_t src_pages[PAGES], dst_pages[PAGES];
    pages_shuffle(src_pages, PAGES);
    pages_shuffle(dst_pages, PAGES);
    struct layout_base bases[4];
    for (uint32_t i = 0; i < 4; i++)
        bases[i] = (struct layout_base){4096, PAGES * 1536ull, 1536};
    struct fixed pool = {.layout = {.pages = PAGES,
                                    .tokens_per_page = 1,
                                    .layers = 4,
                                    .kv = 1,
                                    .heads = 1,
                                    .total_heads = 1,
                                    .base_count = 4,
                                    .bases = bases}};
    assert_int_equal(layout_check(&pool.layout, ERROR_NONE), BATON_OK);
    struct plan_input input = fixed_input(&pool, &pool, src_pages, PAGES, dst_pages, PAGES);
    bench_print("4 per-layer pools, opaque pages, random", &input);

    struct fixed whole, slice;
    fixed_make(&whole, BATON_ORDER_LAYER_MAJOR, 16, 8, 0);
    fixed_make(&slice, BATON_ORDER_LAYER_MAJOR, 16, 2, 4);
    whole.layout.pages = slice.layout.pages = PAGES; /* the memory is not touched */
    input = fixed_input(&whole, &slice, src_pages, PAGES, dst_pages, PAGES);
    bench_print("layer-major, a quarter of the heads, random", &input);
    fixed_make(&whole, BATON_ORDER_TOKEN_MAJOR, 1, 8, 0);
    fixed_make(&slice, BATON_ORDER_TOKEN_MAJOR, 16, 8, 0);
    whole.layout.pages = slice.layout.pages = PAGES;
    input = fixed_input(&whole, &slice, src_pages, PAGES, dst_pages, PAGES / 16);
    bench_print("token-major, pages of 1 into pages of 16", &input);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_copies_what_the_obvious_one_does),
        cmocka_unit_test(test_plan_in_parts_is_the_same_plan),
        cmocka_unit_test(test_plan_of_equal_page_major_pools),
        cmocka_unit_test(test_plan_of_per_layer_pools),
        cmocka_unit_test(test_plan_between_page_major_and_per_layer_pools),
        cmocka_unit_test(test_plan_of_unequal_tp),
        cmocka_unit_test(test_plan_of_unequal_pages),
        cmocka_unit_test(test_plan_of_a_partial_last_page),
        cmocka_unit_test(test_plan_of_a_prefix_sends_what_is_missing),
        cmocka_unit_test(test_plan_cuts_runs_at_a_gibibyte),
        cmocka_unit_test(test_plan_refuses_pages_outside),
        cmocka_unit_test(test_plan_refuses_ranges_outside),
        cmocka_unit_test(test_plan_far_away_does_not_overflow),
        cmocka_unit_test(test_covers_compares_the_two_ends),
        cmocka_unit_test(test_packs_small_runs_and_says_why),
        cmocka_unit_test(test_bench_prints_ns_per_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
