/* SPDX-License-Identifier: Apache-2.0 */
/* One suite for every backend: whatever carries the bytes, a hand-over means the same. The backend
 * and its options are arguments (see medium_parse); the kit and the model are in handover.h. Each
 * case opens a prefill and a decode group, hands rooms over, and ends with a comparison of every
 * byte of both groups' memory and of the counters. */
#include "handover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- groups ------------------------------------------------------------------------------ */

static struct shape shape_kv(enum shape_order order, uint32_t tokens_per_page, uint32_t pages)
{
    return (struct shape){.name = "kv",
                          .kind = BATON_REGION_KV,
                          .order = order,
                          .pages = pages,
                          .tokens_per_page = tokens_per_page,
                          .layers = 4,
                          .kv = 2,
                          .heads = 4,
                          .head_bytes = 48};
}

static struct group group_of(struct shape kv)
{
    return (struct group){
        .tp_size = 1,
        .pp_size = 1,
        .region_count = 1,
        .regions = {kv},
        .aux_slots = 4,
        .aux_slot_bytes = 64,
        .field_count = 2,
        .fields = {{"first_token", BATON_DTYPE_I32, 1, 0}, {"logprobs", BATON_DTYPE_F32, 8, 8}},
    };
}

static struct group group_plain(void)
{
    return group_of(shape_kv(ORDER_LAYER_MAJOR, 16, 64));
}

static void open_alike(struct handover *handover, struct group group)
{
    handover_open(handover, &group, &group);
}

/* The same sequence under every order of events that trip_new may draw. */
static void run_some(struct handover *handover, struct trip_options options, int rooms)
{
    for (int i = 0; i < rooms; i++)
        trip_run(handover, trip_new(handover, options));
}

/* ---- pages ------------------------------------------------------------------------------- */

static void one_page(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_plain());
    struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 16});
    trip_start(handover, trip);
    trip_send_rest(handover, trip);
    trip_succeed(handover, trip);
    /* A page of this order is one run. */
    const baton_timeline *timeline = &trip_report(handover, trip, DECODE)->timelines[0];
    assert_int_equal(timeline->operations, 1);
    assert_int_equal(timeline->bytes, 16 * 4 * 2 * 4 * 48);
    timeline = &trip_report(handover, trip, PREFILL)->timelines[0];
    assert_int_equal(timeline->packed, 0);
    assert_true(timeline->first_send_ns > 0);
    trip_close(handover, trip);
    run_some(handover, (struct trip_options){.tokens = 16, .no_aux = true}, 3);
    handover_close(handover);
}

static void many_pages(void **state)
{
    struct handover *handover = *state;
    for (enum shape_order order = ORDER_LAYER_MAJOR; order <= ORDER_LAYER_BASES; order++) {
        open_alike(handover, group_of(shape_kv(order, 16, 128)));
        run_some(handover, (struct trip_options){.tokens = 16 * 60}, 4);
        run_some(handover, (struct trip_options){.tokens = 16 * 128, .whole_pages = true}, 1);
        handover_close(handover);
    }
}

static void pages_with_gaps(void **state)
{
    struct handover *handover = *state;
    struct group prefill = group_plain(), decode = group_plain();
    prefill.regions[0].page_gap = 80;
    decode.regions[0].page_gap = 1024;
    handover_open(handover, &prefill, &decode);
    run_some(handover, (struct trip_options){.tokens = 16 * 30}, 2);
    handover_close(handover);
}

static void chunks(void **state)
{
    static const uint32_t sizes[] = {1, 3, 7, 2, 5, 1, 1, 11, 4};
    struct handover *handover = *state;
    open_alike(handover, group_of(shape_kv(ORDER_TOKEN_MAJOR, 16, 64)));
    for (int room = 0; room < 4; room++) {
        struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 16 * 35 - 5});
        trip_start(handover, trip);
        for (uint32_t i = 0; trip->sent < trip->kv.source_count; i++) {
            trip_send(handover, trip, sizes[i], false);
            if (room & 1 && trip->granted && trip->sent < trip->kv.source_count)
                assert_int_equal(trip_wait(handover, trip, DECODE, BATON_TRANSFERRING),
                                 BATON_TRANSFERRING);
        }
        trip_succeed(handover, trip);
        trip_close(handover, trip);
    }
    handover_close(handover);
}

/* is_last before the announced number: the grant stays unfilled, and that is no success. */
static void last_comes_early(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_plain());
    for (int room = 0; room < 4; room++) {
        struct trip *trip =
            trip_new(handover, (struct trip_options){.tokens = 16 * 12, .whole_pages = true});
        trip_start(handover, trip);
        trip_send(handover, trip, 5, false);
        trip_send(handover, trip, 4, true);
        if (!trip->granted)
            trip_init(handover, trip, DECODE);
        trip_fail(handover, trip, BATON_EINVAL, "9 pages end at token 144");
        trip_close(handover, trip);
    }
    handover_close(handover);
}

static void layers_one_by_one(void **state)
{
    struct handover *handover = *state;
    for (enum shape_order order = ORDER_LAYER_MAJOR; order <= ORDER_TOKEN_MAJOR; order++) {
        struct group group = group_of(shape_kv(order, 16, 64));
        group.regions[0].layers = 10;
        open_alike(handover, group);
        for (int room = 0; room < 2; room++) {
            struct trip *trip = trip_new(
                handover, (struct trip_options){.tokens = 16 * 20 - 3, .layerwise = true});
            trip_start(handover, trip);
            trip_send(handover, trip, trip->kv.source_count, true);
            for (uint32_t layer = 0; layer < 10; layer++) {
                trip_release(handover, trip, 0, layer);
                if (room && trip->granted && layer == 0)
                    trip_wait(handover, trip, DECODE, BATON_TRANSFERRING);
                if (room)
                    usleep(2000); /* each layer is seen by itself */
            }
            trip_succeed(handover, trip);
            trip_close(handover, trip);
        }
        handover_close(handover);
    }
}

static void chunks_and_layers(void **state)
{
    static const uint32_t sizes[] = {3, 1, 8, 2, 6, 5};
    static const uint32_t tokens[][2] = {{16, 16}, {16, 64}, {64, 16}};
    struct handover *handover = *state;
    for (size_t pair = 0; pair < 3; pair++) {
        struct group prefill = group_of(shape_kv(ORDER_PER_LAYER, tokens[pair][0], 64));
        struct group decode = group_of(shape_kv(ORDER_HEAD_MAJOR, tokens[pair][1], 128));
        handover_open(handover, &prefill, &decode);
        for (int room = 0; room < 3; room++) {
            struct trip *trip =
                trip_new(handover, (struct trip_options){.tokens = tokens[pair][0] * 25 - 7,
                                                         .layerwise = true});
            trip_start(handover, trip);
            for (uint32_t i = 0; trip->sent < trip->kv.source_count; i++) {
                uint32_t from = trip->sent;
                trip_send(handover, trip, sizes[i], false);
                /* Layers may also be released several at a time: the last stands for those
                 * before it, whose bytes must be there by then. */
                for (uint32_t layer = 0; layer < 4; layer++)
                    trip_release(handover, trip, from, layer);
                if (room == 1)
                    usleep(1000);
            }
            trip_succeed(handover, trip);
            trip_close(handover, trip);
        }
        handover_close(handover);
    }
}

/* ---- prefixes and ends ------------------------------------------------------------------- */

static void full_hit(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_plain());
    for (int room = 0; room < 6; room++) {
        /* Prefill says 0 pages, or all of them although decode wants none. */
        struct trip *trip = trip_new(
            handover, (struct trip_options){
                          .tokens = 160, .prefix = 160, .first_token = room & 1 ? 160 : 0});
        assert_int_equal(trip->kv.dest_count, 0);
        trip_start(handover, trip);
        trip_send_rest(handover, trip);
        trip_succeed(handover, trip);
        trip_close(handover, trip);
    }
    handover_close(handover);
}

static void prefix(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_of(shape_kv(ORDER_HEAD_MAJOR, 16, 64)));
    run_some(handover, (struct trip_options){.tokens = 16 * 20 - 2, .prefix = 16 * 7}, 3);
    run_some(
        handover,
        (struct trip_options){.tokens = 16 * 20 - 2, .prefix = 16 * 7, .first_token = 16 * 7},
        2);
    run_some(
        handover,
        (struct trip_options){
            .tokens = 16 * 20, .prefix = 16 * 7, .first_token = 16 * 3, .whole_pages = true},
        2);
    for (int room = 0; room < 2; room++) {
        /* The first chunk lies wholly in the prefix. */
        struct trip *trip =
            trip_new(handover, (struct trip_options){.tokens = 16 * 20, .prefix = 16 * 7});
        trip_start(handover, trip);
        trip_send(handover, trip, 5, false);
        trip_send(handover, trip, 4, false);
        trip_send_rest(handover, trip);
        trip_succeed(handover, trip);
        trip_close(handover, trip);
    }
    handover_close(handover);
}

static void partial_last_page(void **state)
{
    static const uint32_t ends[] = {1, 15, 16, 17, 31, 16 * 9 + 5};
    struct handover *handover = *state;
    for (enum shape_order order = ORDER_LAYER_MAJOR; order <= ORDER_LAYER_BASES; order++) {
        open_alike(handover, group_of(shape_kv(order, 16, 64)));
        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
            run_some(handover, (struct trip_options){.tokens = ends[i]}, 1);
        handover_close(handover);
    }
}

static void page_sizes_differ(void **state)
{
    static const uint32_t tokens[][2] = {{16, 64}, {64, 16}, {1, 32}, {32, 1}};
    struct handover *handover = *state;
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        uint32_t larger = tokens[i][0] > tokens[i][1] ? tokens[i][0] : tokens[i][1];
        uint32_t decode_page = tokens[i][1];
        struct group prefill = group_of(shape_kv(ORDER_LAYER_MAJOR, tokens[i][0], 600));
        struct group decode = group_of(shape_kv(ORDER_TOKEN_MAJOR, tokens[i][1], 600));
        handover_open(handover, &prefill, &decode);
        run_some(handover, (struct trip_options){.tokens = larger * 6}, 1);
        run_some(handover, (struct trip_options){.tokens = larger * 6, .whole_pages = true}, 1);
        run_some(handover, (struct trip_options){.tokens = larger * 5 + 3}, 2);
        run_some(handover,
                 (struct trip_options){.tokens = larger * 5 + 3, .prefix = decode_page * 3}, 2);
        struct trip *trip = trip_new(
            handover, (struct trip_options){.tokens = larger * 5 + 3, .prefix = decode_page});
        trip_start(handover, trip);
        while (trip->sent < trip->kv.source_count)
            trip_send(handover, trip, trip->kv.source_count - trip->sent > 3 ? 3 : 1, false);
        trip_succeed(handover, trip);
        trip_close(handover, trip);
        handover_close(handover);
    }
}

static void orders_in_pairs(void **state)
{
    struct handover *handover = *state;
    for (enum shape_order from = ORDER_LAYER_MAJOR; from <= ORDER_LAYER_BASES; from++)
        for (enum shape_order to = ORDER_LAYER_MAJOR; to <= ORDER_LAYER_BASES; to++) {
            struct group prefill = group_of(shape_kv(from, 16, 48));
            struct group decode = group_of(shape_kv(to, 16, 40));
            handover_open(handover, &prefill, &decode);
            run_some(handover, (struct trip_options){.tokens = 16 * 14 - 6, .prefix = 32}, 2);
            handover_close(handover);
        }
}

/* ---- several ranks ----------------------------------------------------------------------- */

struct split {
    uint32_t prefill_tp, prefill_pp, decode_tp, decode_pp, heads, kv;
};

static void run_split(struct handover *handover, struct split split, enum shape_order from,
                      enum shape_order to)
{
    struct group prefill = group_of(shape_kv(from, 16, 40));
    struct group decode = group_of(shape_kv(to, 32, 40));
    prefill.tp_size = split.prefill_tp;
    prefill.pp_size = split.prefill_pp;
    decode.tp_size = split.decode_tp;
    decode.pp_size = split.decode_pp;
    prefill.regions[0].heads = decode.regions[0].heads = split.heads;
    prefill.regions[0].kv = decode.regions[0].kv = split.kv;
    handover_open(handover, &prefill, &decode);
    run_some(handover, (struct trip_options){.tokens = 16 * 11 - 3, .prefix = 32}, 2);
    struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 16 * 12});
    trip_start(handover, trip);
    trip_send(handover, trip, 5, false);
    trip_send(handover, trip, 1, false);
    trip_send_rest(handover, trip);
    trip_succeed(handover, trip);
    trip_close(handover, trip);
    handover_close(handover);
}

static void tensor_parallel(void **state)
{
    static const struct split splits[] = {
        {4, 1, 1, 1, 4, 2}, {1, 1, 4, 1, 4, 2}, {4, 1, 2, 1, 8, 2}, {2, 1, 4, 1, 8, 2}};
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        run_split(*state, splits[i], ORDER_HEAD_MAJOR, ORDER_HEAD_MAJOR);
        run_split(*state, splits[i], ORDER_LAYER_MAJOR, ORDER_TOKEN_MAJOR);
        run_split(*state, splits[i], ORDER_TOKEN_MAJOR, ORDER_PER_LAYER);
    }
}

/* More ranks than heads: neighbours have the same, and only one of them sends. */
static void replicated_heads(void **state)
{
    run_split(*state, (struct split){8, 1, 2, 1, 4, 2}, ORDER_LAYER_MAJOR, ORDER_HEAD_MAJOR);
    run_split(*state, (struct split){2, 1, 8, 1, 4, 2}, ORDER_TOKEN_MAJOR, ORDER_LAYER_MAJOR);
    run_split(*state, (struct split){8, 1, 8, 1, 2, 2}, ORDER_PER_LAYER, ORDER_PER_LAYER);
}

/* One latent for all heads, as in MLA. */
static void latent(void **state)
{
    run_split(*state, (struct split){4, 1, 2, 1, 1, 1}, ORDER_LAYER_MAJOR, ORDER_PER_LAYER);
    run_split(*state, (struct split){2, 1, 4, 1, 1, 1}, ORDER_PER_LAYER, ORDER_LAYER_MAJOR);
    run_split(*state, (struct split){4, 1, 1, 1, 1, 1}, ORDER_LAYER_MAJOR, ORDER_LAYER_MAJOR);
}

static void pipeline_parallel(void **state)
{
    run_split(*state, (struct split){1, 2, 1, 1, 4, 2}, ORDER_LAYER_MAJOR, ORDER_PER_LAYER);
    run_split(*state, (struct split){1, 1, 1, 2, 4, 2}, ORDER_PER_LAYER, ORDER_HEAD_MAJOR);
    run_split(*state, (struct split){2, 2, 2, 2, 4, 2}, ORDER_HEAD_MAJOR, ORDER_LAYER_MAJOR);
    run_split(*state, (struct split){4, 2, 2, 1, 4, 2}, ORDER_TOKEN_MAJOR, ORDER_LAYER_MAJOR);
    run_split(*state, (struct split){4, 1, 2, 2, 1, 1}, ORDER_LAYER_MAJOR, ORDER_PER_LAYER);
}

/* A rank with nothing to send may hear that everything landed before its sender is opened. */
static void late_dummy(void **state)
{
    struct handover *handover = *state;
    struct group prefill = group_plain(), decode = group_plain();
    prefill.tp_size = 2;
    prefill.regions[0].heads = decode.regions[0].heads = 1;
    prefill.regions[0].kv = decode.regions[0].kv = 1;
    handover_open(handover, &prefill, &decode);
    for (int room = 0; room < 4; room++) {
        struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 16 * 5});
        trip_open(handover, trip, DECODE, ALL_RANKS);
        trip_init(handover, trip, DECODE);
        trip_open(handover, trip, PREFILL, 1u << 0);
        assert_int_equal(trip_try_init(handover, trip, PREFILL, 1u << 0), 0);
        trip_send_from(handover, trip, 1u << 0, 0, trip->kv.source_count, true);
        assert_int_equal(trip_wait_ended(handover, trip, DECODE), BATON_SUCCESS);
        usleep(room & 1 ? 20000 : 0); /* LANDED is there, or on its way */
        trip_open(handover, trip, PREFILL, 1u << 1);
        assert_int_equal(trip_try_init(handover, trip, PREFILL, 1u << 1), 0);
        trip_send_from(handover, trip, 1u << 1, 0, trip->kv.source_count, true);
        trip_succeed(handover, trip);
        trip_close(handover, trip);
    }
    handover_close(handover);
}

/* ---- beside the pages -------------------------------------------------------------------- */

static struct shape shape_slot(enum shape_order order)
{
    return (struct shape){.name = "slot",
                          .kind = BATON_REGION_SLOT,
                          .order = order,
                          .pages = 12,
                          .tokens_per_page = 1,
                          .layers = 4,
                          .kv = 2,
                          .heads = 4,
                          .head_bytes = 320};
}

static struct shape shape_window(enum shape_order order, uint32_t tokens_per_page)
{
    return (struct shape){.name = "window",
                          .kind = BATON_REGION_WINDOW,
                          .order = order,
                          .pages = 40,
                          .tokens_per_page = tokens_per_page,
                          .layers = 2,
                          .kv = 2,
                          .heads = 4,
                          .head_bytes = 32};
}

static struct shape shape_sequence(enum shape_order order)
{
    return (struct shape){.name = "sequence",
                          .kind = BATON_REGION_SEQUENCE,
                          .order = order,
                          .pages = 64,
                          .tokens_per_page = 16,
                          .layers = 4,
                          .kv = 1,
                          .heads = 4,
                          .head_bytes = 20};
}

/* The two sides list their regions in different orders: names match them. */
static void states_open(struct handover *handover, uint32_t prefill_tp, uint32_t decode_tp,
                        uint32_t window_from, uint32_t window_to)
{
    struct group prefill = group_plain(), decode = group_of(shape_kv(ORDER_PER_LAYER, 16, 64));
    prefill.region_count = decode.region_count = 4;
    prefill.regions[1] = shape_slot(ORDER_LAYER_MAJOR);
    prefill.regions[2] = shape_window(ORDER_TOKEN_MAJOR, window_from);
    prefill.regions[3] = shape_sequence(ORDER_PER_LAYER);
    decode.regions[1] = shape_sequence(ORDER_LAYER_MAJOR);
    decode.regions[2] = shape_slot(ORDER_PER_LAYER);
    decode.regions[3] = shape_window(ORDER_HEAD_MAJOR, window_to);
    prefill.tp_size = prefill_tp;
    decode.tp_size = decode_tp;
    handover_open(handover, &prefill, &decode);
}

static void states(void **state)
{
    static const uint32_t tp[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};
    struct handover *handover = *state;
    for (size_t i = 0; i < sizeof(tp) / sizeof(tp[0]); i++) {
        states_open(handover, tp[i][0], tp[i][1], 16, 16);
        for (int room = 0; room < 3; room++) {
            struct trip *trip =
                trip_new(handover, (struct trip_options){.tokens = 16 * 10 - 3});
            trip_add_state(handover, trip, "slot", 0, 1, 0, 1);
            trip_add_state(handover, trip, "window", 16 * 6, 4, 16 * 6, 4);
            trip_add_state(handover, trip, "sequence", 0, 10, 0, 10);
            trip_run(handover, trip);
        }
        /* Only some of them; and with a full hit, state and aux are all there is. */
        struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 16 * 10});
        trip_add_state(handover, trip, "window", 16 * 6, 4, 16 * 6, 4);
        trip_run(handover, trip);
        trip = trip_new(handover, (struct trip_options){.tokens = 160, .prefix = 160});
        trip_add_state(handover, trip, "slot", 0, 2, 0, 2);
        trip_run(handover, trip);
        handover_close(handover);
    }
}

static void windows_differ(void **state)
{
    static const uint32_t tokens[][2] = {{16, 64}, {64, 16}};
    struct handover *handover = *state;
    for (size_t i = 0; i < 2; i++) {
        states_open(handover, 1, 1, tokens[i][0], tokens[i][1]);
        uint32_t from_pages = 256 / tokens[i][0], to_pages = 256 / tokens[i][1];
        struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 16 * 30});
        trip_add_state(handover, trip, "window", 128, from_pages, 128, to_pages);
        trip_run(handover, trip);
        /* Decode keeps a shorter window than prefill. */
        trip = trip_new(handover, (struct trip_options){.tokens = 16 * 30});
        trip_add_state(handover, trip, "window", 128, from_pages, 256, to_pages / 2);
        trip_run(handover, trip);
        handover_close(handover);
    }
}

static void aux_schemas(void **state)
{
    struct handover *handover = *state;
    struct group prefill = group_plain(), decode = group_plain();
    prefill.aux_slot_bytes = 256;
    prefill.field_count = 5;
    memcpy(prefill.fields,
           (struct field[]){{"first_token", BATON_DTYPE_I32, 1, 0},
                            {"cached", BATON_DTYPE_I64, 2, 8},
                            {"only_prefill", BATON_DTYPE_U8, 5, 25},
                            {"logprobs", BATON_DTYPE_F32, 16, 32},
                            {"top", BATON_DTYPE_F16, 7, 100}},
           5 * sizeof(struct field));
    decode.aux_slot_bytes = 200;
    decode.field_count = 5;
    memcpy(decode.fields,
           (struct field[]){{"logprobs", BATON_DTYPE_F32, 16, 3},
                            {"top", BATON_DTYPE_F16, 7, 67},
                            {"only_decode", BATON_DTYPE_U8, 9, 85},
                            {"first_token", BATON_DTYPE_I32, 1, 100},
                            {"cached", BATON_DTYPE_I64, 2, 108}},
           5 * sizeof(struct field));
    handover_open(handover, &prefill, &decode);
    run_some(handover, (struct trip_options){.tokens = 40}, 4);
    run_some(handover, (struct trip_options){.tokens = 48, .prefix = 48}, 2);
    handover_close(handover);
    /* Nothing but bytes; and more of them than one frame takes. */
    prefill.aux_slot_bytes = decode.aux_slot_bytes = 2500001;
    prefill.field_count = decode.field_count = 1;
    prefill.fields[0] = decode.fields[0] =
        (struct field){"aux", BATON_DTYPE_OPAQUE, 2500001, 0};
    handover_open(handover, &prefill, &decode);
    run_some(handover, (struct trip_options){.tokens = 40}, 2);
    handover_close(handover);
    decode.aux_slots = 0;
    handover_open(handover, &prefill, &decode);
    run_some(handover, (struct trip_options){.tokens = 40}, 1);
    handover_close(handover);
}

static void opaque_pages(void **state)
{
    struct handover *handover = *state;
    struct shape shape = {.name = "kv",
                          .kind = BATON_REGION_KV,
                          .order = ORDER_OPAQUE,
                          .pages = 64,
                          .layers = 5,
                          .item_bytes = {4096, 64, 1000, 7, 20000}};
    struct group prefill = group_of(shape), decode = group_of(shape);
    decode.regions[0].pages = 50;
    for (uint32_t tp = 1; tp <= 2; tp++) {
        prefill.tp_size = tp; /* two ranks hold the same: one sends */
        handover_open(handover, &prefill, &decode);
        run_some(handover, (struct trip_options){.tokens = 1, .whole_pages = true}, 1);
        run_some(handover, (struct trip_options){.tokens = 40, .whole_pages = true}, 2);
        run_some(handover,
                 (struct trip_options){.tokens = 40, .prefix = 13, .whole_pages = true}, 2);
        struct trip *trip = trip_new(
            handover,
            (struct trip_options){.tokens = 23, .whole_pages = true, .layerwise = true});
        trip_start(handover, trip);
        for (uint32_t from = 0; from < 23; from = trip->sent) {
            trip_send(handover, trip, from ? 16 : 7, false);
            for (uint32_t layer = 0; layer < 5; layer++)
                trip_release(handover, trip, from, layer);
        }
        trip_succeed(handover, trip);
        trip_close(handover, trip);
        handover_close(handover);
    }
}

/* ---- many, small, large ------------------------------------------------------------------ */

#define ROOMS_AT_ONCE HANDOVER_SCALED(300u)

static void rooms_at_once(void **state)
{
    struct handover *handover = *state;
    struct group group = group_plain();
    struct trip *trips[SIDE_TRIPS_MAX];
    group.regions[0].layers = 2;
    group.regions[0].head_bytes = 16;
    group.regions[0].pages = 1000;
    group.aux_slots = 400;
    open_alike(handover, group);
    for (uint32_t i = 0; i < ROOMS_AT_ONCE; i++) {
        trips[i] = trip_new(handover, (struct trip_options){.tokens = 16 * 3 - i % 16});
        trips[i]->patient = false;
        trip_start(handover, trips[i]);
    }
    for (uint32_t i = 0; i < ROOMS_AT_ONCE; i++)
        trip_send(handover, trips[i], 1, false);
    for (uint32_t i = 0; i < ROOMS_AT_ONCE; i++) {
        if (!trips[i]->granted)
            trip_init(handover, trips[i], DECODE);
        trip_send_rest(handover, trips[i]);
    }
    trips_watch(handover, DECODE, trips, ROOMS_AT_ONCE, 3);
    trips_watch(handover, PREFILL, trips, ROOMS_AT_ONCE, 1);
    for (uint32_t i = 0; i < ROOMS_AT_ONCE; i++) {
        trip_succeeded(handover, trips[i]);
        trip_close(handover, trips[i]);
    }
    handover_close(handover);
}

/* Slices of heads out of token-major pages: short runs, which tcp packs. */
static void small_runs(void **state)
{
    struct handover *handover = *state;
    bool tcp = strcmp(handover->medium.carrier, "tcp") == 0;
    struct group prefill = group_of(shape_kv(ORDER_TOKEN_MAJOR, 16, 64));
    struct group decode = prefill;
    prefill.tp_size = 2;
    prefill.regions[0].head_bytes = decode.regions[0].head_bytes = 32;
    for (int direction = 0; direction < 2; direction++) {
        if (direction == 0)
            handover_open(handover, &prefill, &decode);
        else
            handover_open(handover, &decode, &prefill);
        for (int room = 0; room < 2; room++) {
            struct trip *trip =
                trip_new(handover, (struct trip_options){.tokens = 16 * 50 - 1});
            trip_start(handover, trip);
            trip_send_rest(handover, trip);
            trip_succeed(handover, trip);
            assert_int_equal(trip_report(handover, trip, PREFILL)->timelines[0].packed, tcp);
            trip_close(handover, trip);
        }
        handover_close(handover);
    }
}

static void large_room(void **state)
{
    struct handover *handover = *state;
    struct group group = group_plain();
    uint32_t pages = HANDOVER_SCALED(528u);
    group.regions[0].heads = 8;
    group.regions[0].head_bytes = 128; /* 128 KiB a page, 66 MiB in all */
    group.regions[0].pages = pages + 5;
    open_alike(handover, group);
    run_some(handover, (struct trip_options){.tokens = 16 * pages}, 1);
    handover_close(handover);
}

/* ---- aborts ------------------------------------------------------------------------------ */

static struct group group_heavy(void)
{
    struct group group = group_plain();
    group.regions[0].head_bytes = 128; /* 64 KiB a page */
    group.regions[0].pages = 240;
    group.aux_slots = 8;
    return group;
}

/* Both ends open and granted; nothing sent. */
static struct trip *trip_ready(struct handover *handover, uint32_t pages)
{
    struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 16 * pages});
    trip->grant_late = false;
    trip_start(handover, trip);
    assert_int_equal(trip_wait(handover, trip, PREFILL, BATON_WAITING_FOR_INPUT),
                     BATON_WAITING_FOR_INPUT);
    return trip;
}

/* The pages of a room that ended are good for another one. */
static void run_again(struct handover *handover, struct trip *trip)
{
    struct trip old = *trip;
    trip_close(handover, trip);
    trip_run(handover, trip_again(handover, &old));
}

static void abort_before_send(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_plain());
    for (int role = PREFILL; role <= DECODE; role++) {
        struct trip *trip = trip_ready(handover, 10);
        assert_int_equal(trip_abort(handover, trip, (enum role)role, ALL_RANKS, "changed mind"),
                         0);
        trip_fail(handover, trip, BATON_EABORTED, "changed mind");
        assert_int_equal(trip_abort(handover, trip, (enum role)role, ALL_RANKS, "again"),
                         BATON_ESTATE);
        run_again(handover, trip);
    }
    handover_close(handover);
}

static void abort_before_grant(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_plain());
    for (int room = 0; room < 6; room++) {
        enum role role = room & 1 ? DECODE : PREFILL;
        struct trip *trip = trip_new(handover, (struct trip_options){.tokens = 160});
        trip->grant_late = true;
        trip->patient = room < 2;
        trip_start(handover, trip);
        if (room >= 4)
            trip_send_rest(handover, trip);
        assert_int_equal(trip_abort(handover, trip, role, ALL_RANKS, "no pages for it"), 0);
        trip_fail(handover, trip, BATON_EABORTED, "no pages for it");
        /* Nothing can be granted to a room that is over. */
        assert_int_equal(trip_try_init(handover, trip, DECODE, ALL_RANKS), BATON_ESTATE);
        run_again(handover, trip);
    }
    handover_close(handover);
}

/* The first half was sent and has landed or is landing; the rest never comes. */
static void abort_in_the_middle(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_heavy());
    for (int room = 0; room < 8; room++) {
        enum role role = room & 1 ? DECODE : PREFILL;
        struct trip *trip = trip_ready(handover, 60);
        trip_send(handover, trip, 45, false);
        if (room & 2)
            assert_int_equal(trip_wait(handover, trip, DECODE, BATON_TRANSFERRING),
                             BATON_TRANSFERRING);
        assert_int_equal(trip_abort(handover, trip, role, ALL_RANKS, "client went away"), 0);
        trip_fail(handover, trip, BATON_EABORTED, "client went away");
        handover_check_memory(handover);
        run_again(handover, trip);
    }
    handover_close(handover);
}

/* Part of a room is sent, then it is aborted: what landed. */
static uint32_t landed_of_part(struct handover *handover, struct trip_options options,
                               uint32_t pages, uint32_t layers, uint32_t pause_us)
{
    struct trip *trip = trip_new(handover, options);
    trip_start(handover, trip);
    if (!trip->granted)
        trip_init(handover, trip, DECODE);
    trip_send(handover, trip, pages, false);
    for (uint32_t layer = 0; options.layerwise && layer < layers; layer++)
        trip_release(handover, trip, 0, layer);
    trip_wait(handover, trip, DECODE, BATON_TRANSFERRING);
    usleep(pause_us);
    assert_int_equal(trip_abort(handover, trip, PREFILL, 1, "half is enough"), 0);
    assert_int_equal(trip_wait_ended(handover, trip, DECODE), BATON_FAILED);
    trip_wait_fenced(handover, trip, DECODE);
    uint32_t landed = trip_landed(handover, trip);
    trip_fail(handover, trip, BATON_EABORTED, "half is enough");
    trip_close(handover, trip);
    return landed;
}

/* A room that fails says how much of it is here: as soon as it has come, and never more. */
static void failed_room_tells_what_landed(void **state)
{
    static const struct {
        uint32_t prefill_tp, decode_tp, prefill_tokens, decode_tokens;
    } pairs[] = {
        {1, 1, 16, 16}, {2, 1, 16, 16}, {1, 2, 16, 16}, {1, 1, 16, 32}, {1, 1, 32, 16}};
    struct handover *handover = *state;
    bool proves = strcmp(handover->medium.carrier, "verbs") != 0; /* it proves the whole room */
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct group prefill =
            group_of(shape_kv(ORDER_LAYER_MAJOR, pairs[i].prefill_tokens, 64));
        struct group decode = group_of(shape_kv(ORDER_LAYER_MAJOR, pairs[i].decode_tokens, 64));
        prefill.tp_size = pairs[i].prefill_tp;
        decode.tp_size = pairs[i].decode_tp;
        handover_open(handover, &prefill, &decode);
        for (uint32_t prefix = 0; prefix <= 64; prefix += 64) {
            const struct trip_options options = {.tokens = 32 * 10 - 3, .prefix = prefix};
            const uint32_t part = 4 * pairs[i].prefill_tokens;
            const uint32_t whole = part > prefix && proves ? part : prefix;
            uint32_t landed = UINT32_MAX;
            /* At once: of two ranks only one may have said anything. */
            for (uint32_t pause_us = 0; landed != whole && pause_us < 4000000;
                 pause_us = pause_us ? pause_us * 2 : 500) {
                landed = landed_of_part(handover, options, 4, 0, pause_us);
                assert_true(landed == whole || landed == prefix);
            }
            assert_int_equal(landed, whole);
        }
        /* Pages without their last layers are nothing. */
        const struct trip_options options = {.tokens = 32 * 10 - 3, .layerwise = true};
        assert_int_equal(landed_of_part(handover, options, 4, 2, 20000), 0);
        handover_close(handover);
    }
}

static void abort_one_rank(void **state)
{
    struct handover *handover = *state;
    for (int direction = 0; direction < 2; direction++) {
        struct group one = group_plain(), four = group_plain();
        four.tp_size = 4;
        if (direction == 0)
            handover_open(handover, &one, &four);
        else
            handover_open(handover, &four, &one);
        for (int room = 0; room < 2; room++) {
            struct trip *trip = trip_ready(handover, 20);
            if (room)
                trip_send(handover, trip, 11, false);
            assert_int_equal(trip_abort(handover, trip, direction ? PREFILL : DECODE, 1u << 2,
                                        "rank 2 has had enough"),
                             0);
            trip_fail(handover, trip, BATON_EABORTED, "rank 2 has had enough");
            run_again(handover, trip);
        }
        handover_close(handover);
    }
}

/* One room, aborted by one side or the other while its bytes fly; or not, when they were faster.
 * Whatever happened, it happened on both sides. */
static bool abort_in_flight(struct handover *handover, struct trip *trip, int round)
{
    uint32_t delay_us = (uint32_t)handover_draw(handover, 1500);
    bool failed, whole = round % 4 == 0;
    trip_send(handover, trip, trip->kv.source_count - !whole, whole);
    if (round & 1) {
        failed = trip_reclaim(handover, trip, delay_us, "enough");
    } else {
        usleep(delay_us);
        int code = trip_abort(handover, trip, PREFILL, ALL_RANKS, "enough");
        failed = trip_reclaim(handover, trip, 0, NULL);
        if (code == BATON_ESTATE)
            assert_false(failed); /* too late, and the receiver had no reason of its own */
    }
    if (failed)
        trip_fail(handover, trip, BATON_EABORTED, "enough");
    else
        trip_succeed(handover, trip);
    return failed;
}

static void reuse_under_load(void **state)
{
    struct handover *handover = *state;
    struct trip *load[3];
    /* A round moves 13 MB, and the rooms of the load live through all of them within 300 s. */
    bool slow = handover_wait_ms() > 30000;
    int rounds = HANDOVER_SCALED(54) / (slow ? 3 : 1), failed = 0;
    open_alike(handover, group_heavy());
    for (int i = 0; i < 3; i++)
        load[i] = trip_ready(handover, 40);
    for (int round = 0; round < rounds; round++) {
        struct trip *trip = trip_ready(handover, 100);
        for (int i = 0; i < 3; i++)
            if (load[i]->sent < 39)
                trip_send(handover, load[i], 1, false);
        failed += abort_in_flight(handover, trip, round);
        /* At once, the same pages on both sides. */
        run_again(handover, trip);
    }
    assert_true(failed >= rounds / 2);
    for (int i = 0; i < 3; i++) {
        trip_send_rest(handover, load[i]);
        trip_succeed(handover, load[i]);
        trip_close(handover, load[i]);
    }
    handover_close(handover);
}

static void page_is_busy(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_plain());
    struct trip *first = trip_ready(handover, 6);
    struct trip *second = trip_new(handover, (struct trip_options){.tokens = 16 * 6});
    int32_t own = second->kv.dest[3];
    const struct {
        int32_t page;
        int code;
    } wrong[] = {{first->kv.dest[2], BATON_EBUSY},
                 {second->kv.dest[1], BATON_EBUSY}, /* twice in one list */
                 {64, BATON_EINVAL},
                 {-1, BATON_EINVAL}};
    /* Each attempt is a room of its own, because the side keeps the list it was opened with. */
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        second->kv.dest[3] = wrong[i].page;
        second->grant_late = true;
        trip_start(handover, second);
        assert_int_equal(trip_try_init(handover, second, DECODE, ALL_RANKS), wrong[i].code);
        second->kv.dest[3] = own;
        assert_int_equal(
            trip_abort(handover, second, PREFILL, ALL_RANKS, "it was refused its pages"), 0);
        second->granted = false;
        for (int role = PREFILL; role <= DECODE; role++)
            assert_int_equal(trip_wait_ended(handover, second, (enum role)role), BATON_FAILED);
        handover->failed++;
        struct trip old = *second;
        trip_close(handover, second);
        second = trip_again(handover, &old);
    }
    /* The refused lists left nothing behind. */
    trip_run(handover, second);
    trip_send_rest(handover, first);
    trip_succeed(handover, first);
    /* SUCCESS gives the pages back, before the room is closed. */
    struct trip old = *first;
    struct trip *third = trip_again(handover, &old);
    trip_run(handover, third);
    trip_close(handover, first);
    handover_close(handover);
}

/* ---- one side is gone -------------------------------------------------------------------- */

static void end_is_closed(void **state)
{
    struct handover *handover = *state;
    open_alike(handover, group_heavy());
    for (int room = 0; room < 4; room++) {
        struct trip *trip = trip_ready(handover, 20);
        if (room & 1)
            trip_send(handover, trip, 13, false);
        trip_close_end(handover, trip, PREFILL);
        trip_fail(handover, trip, BATON_EABORTED, "closed by its owner");
        /* Whoever closes a sender before its fence never learns when its pages are free. */
        trip_leave_source(handover, trip);
        run_again(handover, trip);
    }
    for (int room = 0; room < 4; room++) {
        struct trip *trip = trip_ready(handover, 20);
        if (room & 1)
            trip_send(handover, trip, 13, false);
        trip_close_end(handover, trip, DECODE);
        trip_fail(handover, trip, BATON_EABORTED, "closed by its owner");
        struct trip old = *trip;
        trip_close(handover, trip);
        /* Nobody can be asked about the fence any more: until it is there, init refuses. */
        struct trip *probe = trip_again(handover, &old);
        trip_open(handover, probe, PREFILL, ALL_RANKS);
        trip_open(handover, probe, DECODE, ALL_RANKS);
        int code;
        while ((code = trip_try_init(handover, probe, DECODE, ALL_RANKS)) == BATON_EBUSY)
            usleep(200);
        assert_int_equal(code, 0);
        assert_int_equal(trip_abort(handover, probe, DECODE, ALL_RANKS, "only to see"), 0);
        trip_fail(handover, probe, BATON_EABORTED, "only to see");
        run_again(handover, probe);
    }
    handover_close(handover);
}

static void manager_is_closed(void **state)
{
    struct handover *handover = *state;
    for (int role = PREFILL; role <= DECODE; role++) {
        open_alike(handover, group_heavy());
        struct trip *trips[3];
        for (int i = 0; i < 3; i++)
            trips[i] = trip_ready(handover, i == 1 ? 120 : 20);
        trip_send_rest(handover, trips[2]);
        trip_succeed(handover, trips[2]);
        trip_send(handover, trips[1], 115, false); /* still flying when the manager goes */
        handover_lose(handover, (enum role)role);
        for (int i = 0; i < 3; i++) {
            *(role == PREFILL ? &trips[i]->sender_open : &trips[i]->receiver_open) = false;
            if (i < 2)
                trip_fail(handover, trips[i], BATON_EABORTED, "closed by its owner");
            if (i < 2 && role == DECODE)
                trip_renew(handover, trips[i]); /* close returned: nobody stores any more */
            trip_close(handover, trips[i]);
        }
        usleep(20000);
        handover_close(handover);
    }
}

/* ---- main -------------------------------------------------------------------------------- */

static int test_teardown(void **state)
{
    handover_drop(*state);
    return 0;
}

/* Why the backend cannot be tried here, if so. */
static const char *medium_missing(const struct handover *handover)
{
    static baton_backend_info info;
    static char probe, seen;
    info.struct_size = sizeof(info);
    for (uint32_t i = 0; baton_backend_info_get(i, &info) == 0; i++)
        if (strcmp(info.name, handover->medium.carrier) == 0 && !info.available)
            return info.why;
    /* The other process is a fork: it has the same variable at the same address. */
    struct iovec local = {&seen, 1}, remote = {&probe, 1};
    if (strcmp(handover->medium.carrier, "cma") == 0 && handover->far_pid &&
        process_vm_readv(handover->far_pid, &local, 1, &remote, 1, 0) != 1)
        return "the kernel does not let one process read the other";
    return NULL;
}

static const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, test_teardown)
    CASE(one_page),
    CASE(many_pages),
    CASE(pages_with_gaps),
    CASE(chunks),
    CASE(last_comes_early),
    CASE(layers_one_by_one),
    CASE(chunks_and_layers),
    CASE(full_hit),
    CASE(prefix),
    CASE(partial_last_page),
    CASE(page_sizes_differ),
    CASE(orders_in_pairs),
    CASE(tensor_parallel),
    CASE(replicated_heads),
    CASE(latent),
    CASE(pipeline_parallel),
    CASE(late_dummy),
    CASE(states),
    CASE(windows_differ),
    CASE(aux_schemas),
    CASE(opaque_pages),
    CASE(rooms_at_once),
    CASE(small_runs),
    CASE(large_room),
    CASE(abort_before_send),
    CASE(abort_before_grant),
    CASE(abort_in_the_middle),
    CASE(failed_room_tells_what_landed),
    CASE(abort_one_rank),
    CASE(reuse_under_load),
    CASE(page_is_busy),
    CASE(end_is_closed),
    CASE(manager_is_closed),
#undef CASE
};

static void certificates_remove(const char *folder)
{
    static const char *const files[] = {"ca.pem", "certificate.pem", "key.pem"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

int main(int argc, char **argv)
{
    static struct handover handover;
    struct medium medium;
    if (medium_parse(argc, argv, &medium) != 0) {
        fprintf(stderr,
                "usage: %s BACKEND [here] [key] [tls] [verify] [streams=N] "
                "[prefill=DEVICES] [decode=DEVICES] [only=PATTERN]\n",
                argv[0]);
        return 2;
    }
    if (medium.tls) {
        snprintf(medium.tls_folder, sizeof(medium.tls_folder), "/tmp/conformance-XXXXXX");
        if (!mkdtemp(medium.tls_folder) || certificates_make(medium.tls_folder) != 0) {
            fprintf(stderr, "cannot make certificates\n");
            return 1;
        }
    }
    handover_start(&handover, &medium);
    const char *missing = medium_missing(&handover);
    struct CMUnitTest with_state[sizeof(tests) / sizeof(tests[0])];
    memcpy(with_state, tests, sizeof(tests));
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        with_state[i].initial_state = &handover;
    int failed = missing ? 0 : cmocka_run_group_tests(with_state, NULL, NULL);
    failed |= handover_stop(&handover) != 0;
    if (medium.tls)
        certificates_remove(medium.tls_folder);
    if (missing)
        fprintf(stderr, "skipped: %s: %s\n", medium.carrier, missing);
    return missing ? 77 : failed != 0;
}
