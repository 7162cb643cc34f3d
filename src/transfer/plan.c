/* SPDX-License-Identifier: Apache-2.0 */
/* From two layouts and two page lists to few large copies.
 *
 * What is copied is the intersection: tokens by their position in the sequence, layers and heads
 * by their number in the whole model. Its dimensions are
 *
 *     unit (a layer, or a layer's k|v, where either side keeps it in a base of its own)
 *       piece (a page; where page sizes differ, the smaller page)
 *         layer, k|v, head, token (as far as they are strides on both sides)
 *           head_bytes
 *
 * Whatever of the innermost four is contiguous with the bytes inside it, on both sides and in
 * the extent taken, is absorbed into the run. The rest stay loops, ordered by the destination's
 * strides. Only a run that is a whole page on the smaller side can go on in the next page, and
 * then there are no loops: so loops go inside pieces, which keeps the walk inside one page for
 * as long as possible, and runs still merge across adjacent pages, by extending a pending run.
 *
 * A `tokens` that ends inside a page makes the last piece shorter than the others; it has a shape
 * (run and loops) of its own. Pages always start on a piece, so no other piece is partial.
 *
 * The walk can stop after any run: its place is (unit, piece, index of each loop, pending run). */
#include "plan.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- opening: intersect ------------------------------------------------------------------ */

static uint32_t piece_tokens(const struct plan_input *in)
{
    return (uint32_t)smaller(in->src->tokens_per_page, in->dst->tokens_per_page);
}

/* The end of each list as a position in the sequence. */
static uint64_t src_end(const struct plan_input *in)
{
    return in->src_first_token + (uint64_t)in->src_page_count * in->src->tokens_per_page;
}

static uint64_t dst_end(const struct plan_input *in)
{
    return in->dst_first_token + (uint64_t)in->dst_page_count * in->dst->tokens_per_page;
}

/* Whole pages stand between the two first tokens, or a page's slots would hold other tokens. */
static int lists_line_up(const struct plan_input *in, struct error err)
{
    if (!in->src_page_count || !in->dst_page_count)
        return BATON_OK;
    uint32_t src = in->src_first_token, dst = in->dst_first_token;
    uint32_t apart = src > dst ? src - dst : dst - src;
    if (apart % piece_tokens(in) == 0)
        return BATON_OK;
    return error_set(
        err, BATON_ELAYOUT,
        "page lists do not line up: the sender's starts at token %u, the receiver's "
        "at %u, which is not a multiple of %u tokens apart",
        src, dst, piece_tokens(in));
}

static int check_ranges(const struct plan_input *in, struct error err)
{
    if (in->page_begin > in->page_end || in->page_end > in->src_page_count)
        return error_set(err, BATON_EINVAL,
                         "pages %u to %u are not in the sender's list of %u pages",
                         in->page_begin, in->page_end, in->src_page_count);
    if (in->layer_begin > in->layer_end || in->layer_end > in->src->layers)
        return error_set(err, BATON_EINVAL, "layers %u to %u are not among the sender's %u",
                         in->layer_begin, in->layer_end, in->src->layers);
    if (in->dst_page_count > in->dst->pages)
        return error_set(err, BATON_EINVAL,
                         "the receiver's list has %u pages, its region only %u",
                         in->dst_page_count, in->dst->pages);
    return BATON_OK;
}

static void intersect_layers(struct plan *plan)
{
    const struct plan_input *in = &plan->in;
    uint32_t src_first = in->src->first_layer, dst_first = in->dst->first_layer;
    uint64_t begin = larger(src_first + in->layer_begin, dst_first);
    uint64_t end = smaller(src_first + in->layer_end, dst_first + in->dst->layers);
    plan->layer_begin = (uint32_t)begin - src_first;
    plan->layer_count = end > begin ? (uint32_t)(end - begin) : 0;
}

static void intersect_heads(struct plan *plan)
{
    const struct layout *src = plan->in.src, *dst = plan->in.dst;
    uint64_t begin = larger(src->first_head, dst->first_head);
    uint64_t end = smaller(src->first_head + src->heads, dst->first_head + dst->heads);
    plan->head_src = (uint32_t)begin - src->first_head;
    plan->head_dst = (uint32_t)begin - dst->first_head;
    plan->head_count = end > begin ? (uint32_t)(end - begin) : 0;
}

static void intersect_tokens(struct plan *plan)
{
    const struct plan_input *in = &plan->in;
    uint64_t src_tokens = in->src->tokens_per_page;
    uint64_t begin =
        larger(in->src_first_token + in->page_begin * src_tokens, in->dst_first_token);
    uint64_t end = smaller(in->src_first_token + in->page_end * src_tokens, dst_end(in));
    if (in->tokens && !layout_is_opaque(in->src))
        end = smaller(end, in->tokens);

    plan->piece_tokens = piece_tokens(in);
    uint64_t tokens = end > begin ? end - begin : 0;
    plan->full_count = tokens / plan->piece_tokens;
    plan->tail_tokens = (uint32_t)(tokens % plan->piece_tokens);
    plan->piece_count = plan->full_count + (plan->tail_tokens != 0);
    plan->src = (struct plan_side){
        .pages = in->src_pages,
        .first_piece = (begin - in->src_first_token) / plan->piece_tokens,
        .pieces_per_page = in->src->tokens_per_page / plan->piece_tokens,
        .piece_stride = plan->piece_tokens * in->src->token_stride,
    };
    plan->dst = (struct plan_side){
        .pages = in->dst_pages,
        .first_piece = (begin - in->dst_first_token) / plan->piece_tokens,
        .pieces_per_page = in->dst->tokens_per_page / plan->piece_tokens,
        .piece_stride = plan->piece_tokens * in->dst->token_stride,
    };
}

/* The pages of a list that hold the plan's pieces. */
static int check_side(const struct plan *plan, const struct plan_side *side,
                      const struct layout *layout, const char *whose, struct error err)
{
    if (!plan->piece_count)
        return BATON_OK;
    uint64_t begin = side->first_piece / side->pieces_per_page;
    uint64_t last = (side->first_piece + plan->piece_count - 1) / side->pieces_per_page;
    return layout_check_pages(layout, side->pages, (uint32_t)begin, (uint32_t)last + 1, whose,
                              err);
}

/* ---- opening: collapse ------------------------------------------------------------------- */

static void loops_sort(struct plan_shape *shape)
{
    struct plan_loop *loops = shape->loops;
    for (uint32_t i = 1; i < shape->loop_count; i++)
        for (uint32_t j = i; j > 0 && loops[j].dst_stride > loops[j - 1].dst_stride; j--) {
            struct plan_loop swap = loops[j];
            loops[j] = loops[j - 1];
            loops[j - 1] = swap;
        }
}

/* Absorbs, as often as there is one, the dimension that starts where the run ends on both sides.
 * Strides of a checked layout differ, so there is never a choice. */
static struct plan_shape shape_collapse(uint64_t run_bytes, const struct plan_loop *dimensions,
                                        uint32_t count)
{
    struct plan_shape shape = {.run_bytes = run_bytes};
    for (uint32_t i = 0; i < count; i++)
        if (dimensions[i].count > 1)
            shape.loops[shape.loop_count++] = dimensions[i];
    for (uint32_t i = 0; i < shape.loop_count;) {
        struct plan_loop *loop = &shape.loops[i];
        if (loop->src_stride == shape.run_bytes && loop->dst_stride == shape.run_bytes) {
            shape.run_bytes *= loop->count;
            *loop = shape.loops[--shape.loop_count];
            i = 0;
        } else {
            i++;
        }
    }
    loops_sort(&shape);
    return shape;
}

/* What a piece of so many tokens breaks up into, within one unit. */
static struct plan_shape shape_of(const struct plan *plan, uint32_t tokens)
{
    const struct layout *src = plan->in.src, *dst = plan->in.dst;
    bool layer_strides = !layout_splits_layers(src) && !layout_splits_layers(dst);
    bool kv_strides = !layout_splits_kv(src) && !layout_splits_kv(dst);
    const struct plan_loop dimensions[PLAN_LOOPS_MAX] = {
        {layer_strides ? plan->layer_count : 1, src->layer_stride, dst->layer_stride},
        {kv_strides ? src->kv : 1, src->kv_stride, dst->kv_stride},
        {plan->head_count, src->head_stride, dst->head_stride},
        {tokens, src->token_stride, dst->token_stride},
    };
    return shape_collapse(src->head_bytes, dimensions, PLAN_LOOPS_MAX);
}

static void units_count(struct plan *plan)
{
    const struct layout *src = plan->in.src, *dst = plan->in.dst;
    bool layer_units = layout_splits_layers(src) || layout_splits_layers(dst);
    bool kv_units = layout_splits_kv(src) || layout_splits_kv(dst);
    plan->units_per_layer = kv_units ? src->kv : 1;
    plan->unit_count = (layer_units ? plan->layer_count : 1) * plan->units_per_layer;
    if (!plan->layer_count || !plan->head_count || !plan->piece_count)
        plan->unit_count = 0;
}

/* ---- the walk ---------------------------------------------------------------------------- */

/* Where a piece starts in its base, in the present unit. */
static inline uint64_t side_offset(const struct plan_side *side, uint64_t piece)
{
    uint64_t at = side->first_piece + piece;
    if (side->pieces_per_page == 1)
        return side->offset + (uint32_t)side->pages[at] * side->page_stride;
    uint64_t page = at / side->pieces_per_page, inside = at % side->pieces_per_page;
    return side->offset + (uint32_t)side->pages[page] * side->page_stride +
           inside * side->piece_stride;
}

/* Sets bases and offsets for plan->unit. The pending run becomes an empty one at the start of the
 * first piece, so that the first run extends it like any other. */
static void unit_begin(struct plan *plan)
{
    if (plan->unit >= plan->unit_count)
        return;
    const struct layout *src = plan->in.src, *dst = plan->in.dst;
    uint32_t kv = plan->unit % plan->units_per_layer;
    uint32_t src_layer = plan->layer_begin + plan->unit / plan->units_per_layer;
    uint32_t dst_layer = src->first_layer + src_layer - dst->first_layer;
    uint32_t src_base = layout_base_of(src, src_layer, kv);
    uint32_t dst_base = layout_base_of(dst, dst_layer, kv);

    plan->src.page_stride = layout_page_stride(src, src_base);
    plan->dst.page_stride = layout_page_stride(dst, dst_base);
    plan->src.offset =
        layout_base_offset(src, src_layer, kv) + plan->head_src * src->head_stride;
    plan->dst.offset =
        layout_base_offset(dst, dst_layer, kv) + plan->head_dst * dst->head_stride;
    if (layout_is_opaque(src))
        plan->full.run_bytes = src->bases[src_base].item_bytes;
    plan->piece = 0;
    plan->pending = (struct plan_run){
        .src_base = src_base,
        .dst_base = dst_base,
        .src_offset = side_offset(&plan->src, 0),
        .dst_offset = side_offset(&plan->dst, 0),
    };
}

/* Where finished runs go. */
struct sink {
    struct plan_run *runs;
    uint32_t max;
    uint32_t count;
};

/* Hands the run over, in parts if it is too long; false: no more room, call again later. */
static inline bool sink_take(struct sink *sink, struct plan_run *run)
{
    while (run->length) {
        if (sink->count == sink->max)
            return false;
        struct plan_run *out = &sink->runs[sink->count++];
        *out = *run;
        if (__builtin_expect(run->length <= PLAN_RUN_MAX, 1)) {
            run->length = 0;
            return true;
        }
        out->length = PLAN_RUN_MAX;
        run->src_offset += PLAN_RUN_MAX;
        run->dst_offset += PLAN_RUN_MAX;
        run->length -= PLAN_RUN_MAX;
    }
    return true;
}

/* Extends the pending run or, where that is not possible, starts another; false: no more room, and
 * nothing has changed but that part of the pending run may be gone. */
static inline bool sink_add(struct sink *sink, struct plan_run *pending, uint64_t src,
                            uint64_t dst, uint64_t length)
{
    if (src != pending->src_offset + pending->length ||
        dst != pending->dst_offset + pending->length) {
        if (!sink_take(sink, pending))
            return false;
        pending->src_offset = src;
        pending->dst_offset = dst;
    }
    pending->length += length;
    return true;
}

/* The common case: equal page sizes, a page is one run. All in registers; a few ns a page. */
static bool pages_walk(struct plan *plan, struct sink *sink)
{
    const struct plan_side src = plan->src, dst = plan->dst;
    const int32_t *src_pages = src.pages + src.first_piece;
    const int32_t *dst_pages = dst.pages + dst.first_piece;
    const uint64_t count = plan->full_count, run_bytes = plan->full.run_bytes;
    struct plan_run pending = plan->pending;
    uint64_t piece = plan->piece;
    bool room = true;
    for (; piece < count; piece++) {
        uint64_t src_at = src.offset + (uint32_t)src_pages[piece] * src.page_stride;
        uint64_t dst_at = dst.offset + (uint32_t)dst_pages[piece] * dst.page_stride;
        room = sink_add(sink, &pending, src_at, dst_at, run_bytes);
        if (!room)
            break;
    }
    plan->pending = pending;
    plan->piece = piece;
    return room;
}

/* Steps the loops outside the innermost one; false when they are through, and back at 0. */
static bool outer_step(const struct plan_shape *shape, uint32_t *index)
{
    for (uint32_t i = shape->loop_count - 1; i-- > 0;) {
        if (++index[i] < shape->loops[i].count)
            return true;
        index[i] = 0;
    }
    return false;
}

/* All runs of one piece that starts at src and dst, from plan->index on. */
static bool piece_walk(struct plan *plan, struct sink *sink, const struct plan_shape *shape,
                       uint64_t src, uint64_t dst)
{
    if (!shape->loop_count)
        return sink_add(sink, &plan->pending, src, dst, shape->run_bytes);

    const uint32_t last = shape->loop_count - 1;
    const struct plan_loop inner = shape->loops[last];
    const uint64_t run_bytes = shape->run_bytes;
    struct plan_run pending = plan->pending;
    uint32_t *index = plan->index;
    bool room = true;
    do {
        uint64_t src_at = src + index[last] * inner.src_stride;
        uint64_t dst_at = dst + index[last] * inner.dst_stride;
        for (uint32_t i = 0; i < last; i++) {
            src_at += index[i] * shape->loops[i].src_stride;
            dst_at += index[i] * shape->loops[i].dst_stride;
        }
        uint32_t i = index[last];
        for (; i < inner.count; i++) {
            room = sink_add(sink, &pending, src_at, dst_at, run_bytes);
            if (!room)
                break;
            src_at += inner.src_stride;
            dst_at += inner.dst_stride;
        }
        index[last] = room ? 0 : i;
    } while (room && outer_step(shape, index));
    plan->pending = pending;
    return room;
}

/* What is left of the present unit, its pending run included. */
static bool unit_walk(struct plan *plan, struct sink *sink)
{
    if (plan->src.pieces_per_page == 1 && plan->dst.pieces_per_page == 1 &&
        !plan->full.loop_count && !pages_walk(plan, sink))
        return false;
    for (; plan->piece < plan->piece_count; plan->piece++)
        if (!piece_walk(plan, sink, plan->piece < plan->full_count ? &plan->full : &plan->tail,
                        side_offset(&plan->src, plan->piece),
                        side_offset(&plan->dst, plan->piece)))
            return false;
    return sink_take(sink, &plan->pending);
}

static void plan_rewind(struct plan *plan)
{
    plan->unit = 0;
    memset(plan->index, 0, sizeof(plan->index));
    unit_begin(plan);
}

/* ---- interface --------------------------------------------------------------------------- */

int plan_open(struct plan *plan, const struct plan_input *input, struct error err)
{
    struct plan opened = {.in = *input};
    int rc;
    if ((rc = layout_match(input->src, input->dst, err)) || (rc = check_ranges(input, err)) ||
        (rc = lists_line_up(input, err)))
        return rc;
    intersect_layers(&opened);
    intersect_heads(&opened);
    intersect_tokens(&opened);
    if ((rc = check_side(&opened, &opened.src, input->src, "the sender's", err)) ||
        (rc = check_side(&opened, &opened.dst, input->dst, "the receiver's", err)))
        return rc;
    opened.full = shape_of(&opened, opened.piece_tokens);
    opened.tail = shape_of(&opened, opened.tail_tokens);
    units_count(&opened);
    plan_rewind(&opened);
    *plan = opened;
    return BATON_OK;
}

uint32_t plan_next(struct plan *plan, struct plan_run *runs, uint32_t max)
{
    BATON_ASSERT(max > 0);
    struct sink sink = {runs, max, 0};
    while (plan->unit < plan->unit_count && unit_walk(plan, &sink)) {
        plan->unit++;
        unit_begin(plan);
    }
    return sink.count;
}

uint64_t plan_bytes(const struct plan *plan)
{
    const struct layout *src = plan->in.src;
    if (!plan->unit_count)
        return 0;
    if (layout_is_opaque(src)) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < plan->layer_count; i++)
            bytes += src->bases[plan->layer_begin + i].item_bytes;
        return bytes * plan->piece_count;
    }
    uint64_t tokens = plan->full_count * plan->piece_tokens + plan->tail_tokens;
    return tokens * src->head_bytes * plan->head_count * src->kv * plan->layer_count;
}

uint64_t plan_run_bytes(const struct plan *plan)
{
    const struct layout *src = plan->in.src;
    if (!plan->unit_count)
        return 0;
    uint64_t bytes = PLAN_RUN_MAX;
    if (!layout_is_opaque(src))
        return smaller(bytes, plan->full_count ? plan->full.run_bytes : plan->tail.run_bytes);
    for (uint32_t i = 0; i < plan->layer_count; i++)
        bytes = smaller(bytes, src->bases[plan->layer_begin + i].item_bytes);
    return bytes;
}

/* The number of pages of the larger size that the sequence up to `end` has begun. */
static uint64_t pages_begun(const struct plan_input *in, uint64_t end)
{
    bool src_larger = in->src->tokens_per_page >= in->dst->tokens_per_page;
    uint64_t tokens = src_larger ? in->src->tokens_per_page : in->dst->tokens_per_page;
    uint64_t first = src_larger ? in->src_first_token : in->dst_first_token;
    uint64_t phase = first % tokens; /* pages of a window may start anywhere */
    if (!(src_larger ? in->src_page_count : in->dst_page_count))
        phase = 0;
    return (end + tokens - phase + tokens - 1) / tokens;
}

int plan_covers(const struct plan_input *input, struct error err)
{
    int rc = lists_line_up(input, err);
    if (rc)
        return rc;
    uint64_t src = src_end(input), dst = dst_end(input);
    if (input->src_first_token > input->dst_first_token)
        return error_set(
            err, BATON_EINVAL,
            "the sender's pages start at token %u, the receiver wants them from %u",
            input->src_first_token, input->dst_first_token);
    if (pages_begun(input, src) != pages_begun(input, dst))
        return error_set(err, BATON_EINVAL,
                         "the sender's %u pages end at token %llu, the receiver's %u at %llu",
                         input->src_page_count, (unsigned long long)src, input->dst_page_count,
                         (unsigned long long)dst);
    if (!layout_is_opaque(input->src) && smaller(src, dst) < input->tokens)
        return error_set(
            err, BATON_EINVAL,
            "the sequence has %u tokens, but the sender's pages end at %llu and the "
            "receiver's at %llu",
            input->tokens, (unsigned long long)src, (unsigned long long)dst);
    return BATON_OK;
}

/* ---- direct or packed -------------------------------------------------------------------- */

/* So few copies cost less than gathering them first. */
#define RUNS_FEW 8
#define SAMPLE 64

/* The average length of runs, adjacent pages merged, over the first few of the first pieces: a
 * sample, because the answer must not cost as much as the walk. */
static uint64_t merged_bytes(const struct plan *plan)
{
    struct plan sample = *plan;
    struct plan_run runs[SAMPLE];
    sample.piece_count = smaller(sample.piece_count, SAMPLE);
    sample.full_count = smaller(sample.full_count, SAMPLE);
    plan_rewind(&sample);
    uint32_t count = plan_next(&sample, runs, SAMPLE);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += runs[i].length;
    return bytes / count;
}

int plan_packs(const struct plan *plan, uint64_t run_bytes_min, char *reason,
               size_t reason_size)
{
    unsigned long long least = run_bytes_min, total = plan_bytes(plan);
    unsigned long long run = plan_run_bytes(plan);
    if (!total) {
        snprintf(reason, reason_size, "direct: nothing to copy");
        return 0;
    }
    if (run >= least) {
        snprintf(reason, reason_size, "direct: runs of %llu bytes", run);
        return 0;
    }
    unsigned long long merged = merged_bytes(plan);
    if (merged >= least) {
        snprintf(reason, reason_size, "direct: runs of about %llu bytes, adjacent pages merged",
                 merged);
        return 0;
    }
    if (total <= merged * RUNS_FEW) {
        snprintf(reason, reason_size, "direct: only %llu bytes in runs of %llu", total, merged);
        return 0;
    }
    snprintf(reason, reason_size, "packed: about %llu runs of %llu bytes, direct from %llu on",
             total / merged, merged, least);
    return 1;
}
