/* SPDX-License-Identifier: Apache-2.0 */
/* K and V into their pages, and attention out of them. A tile of keys and values (64 positions
 * from a multiple of 64 on) is read from the pages once for up to ATTENTION_ROWS rows of a sequence
 * and all query heads of the KV head, or used where it is if they are few; then each query folds
 * it into its softmax. With the instructions for it, and pages of halves, all of it is bfloats.
 *
 * What a row gets is the same whoever else is there: tiles begin at absolute positions, a row takes
 * exactly its own positions of its last tile, and keys and values always come from the page, rounded
 * to its type, also those that this very step has written. */
#include "cpu_device.h"
#include "number.h"

#include <math.h>
#include <string.h>

#define CACHE_LINE 64

/* ---- pages ---------------------------------------------------------------------------------- */

static void store_head(const struct cpu_device *cpu, enum page_element element,
                       const float *values, uint32_t count, void *to)
{
    if (element == PAGE_ELEMENT_F16) {
        cpu->kernels->store_half(values, count, to);
    } else if (element == PAGE_ELEMENT_F32) {
        memcpy(to, values, count * sizeof(float));
    } else {
        uint16_t *out = to;
        for (uint32_t i = 0; i < count; i++)
            out[i] = bfloat_from_float(values[i]);
    }
}

static void load_elements(const struct cpu_device *cpu, enum page_element element,
                          const void *from, uint32_t count, float *values)
{
    if (element == PAGE_ELEMENT_F16) {
        cpu->kernels->load_half(from, count, values);
    } else if (element == PAGE_ELEMENT_F32) {
        memcpy(values, from, count * sizeof(float));
    } else {
        const uint16_t *in = from;
        for (uint32_t i = 0; i < count; i++)
            values[i] = float_from_bfloat(in[i]);
    }
}

/* Positions [begin, end) of one head's keys or values as floats. */
static void load_positions(const struct cpu_device *cpu, const struct device_heads *heads,
                           const int32_t *pages, uint32_t layer, uint32_t kv, uint32_t head,
                           uint32_t begin, uint32_t end, float *values)
{
    const struct page_layout *layout = heads->layout;
    uint32_t per_page = layout->shape.tokens_per_page, dim = heads->head_dim;
    while (begin < end) {
        uint32_t token = begin % per_page, count = per_page - token;
        if (count > end - begin)
            count = end - begin;
        const char *from = page_layout_address(layout, heads->pages, pages[begin / per_page],
                                               layer, kv, head, token);
        bool together = layout->token_stride == layout->head_bytes;
        uint32_t pieces = together ? 1 : count, tokens = together ? count : 1;
        for (uint32_t i = 0; i < pieces; i++, values += tokens * dim)
            load_elements(cpu, layout->shape.element, from + i * layout->token_stride,
                          tokens * dim, values);
        begin += count;
    }
}

/* Where each of them is. They are spread over the pages in pieces too small for the processor to
 * foresee, so it is told: a query would wait for nearly every one. */
static void find_positions(const struct device_heads *heads, const int32_t *pages,
                           uint32_t layer, uint32_t kv, uint32_t head, uint32_t begin,
                           uint32_t end, const uint16_t **out)
{
    const struct page_layout *layout = heads->layout;
    uint32_t per_page = layout->shape.tokens_per_page;
    while (begin < end) {
        uint32_t token = begin % per_page;
        const char *from = page_layout_address(layout, heads->pages, pages[begin / per_page],
                                               layer, kv, head, token);
        for (; token < per_page && begin < end; token++, begin++) {
            for (uint32_t at = 0; at < layout->head_bytes; at += CACHE_LINE)
                __builtin_prefetch(from + at);
            *out++ = (const uint16_t *)(const void *)from;
            from += layout->token_stride;
        }
    }
}

/* ---- storing -------------------------------------------------------------------------------- */

static void turn_head(const struct cpu_device *cpu, const struct device_rows *rows,
                      const struct device_heads *heads, const float *head_norm, uint32_t row,
                      float *head)
{
    uint32_t dim = heads->head_dim;
    const float *cosine = rows->cosine + (uint64_t)row * (dim / 2);
    const float *sine = rows->sine + (uint64_t)row * (dim / 2);
    if (head_norm)
        cpu->kernels->norm(head, head_norm, heads->epsilon, dim, head);
    if (heads->rotate_pairs)
        cpu->kernels->rotate_pairs(head, cosine, sine, dim);
    else
        cpu->kernels->rotate_halves(head, cosine, sine, dim);
}

/* One KV head of one row, and the query heads that use it. */
static void store_row_head(const struct cpu_device *cpu, const struct device_rows *rows,
                           const struct device_heads *heads, uint32_t layer,
                           const struct device_sequence *sequence, uint32_t row, uint32_t head,
                           float *q, float *k, const float *v)
{
    const struct page_layout *layout = heads->layout;
    uint32_t dim = heads->head_dim, group = heads->q_heads / heads->kv_heads;
    uint32_t position = sequence->position + row - sequence->first_row;
    uint32_t per_page = layout->shape.tokens_per_page;
    int32_t page = sequence->pages[position / per_page];
    float *row_q = q + ((uint64_t)row * heads->q_heads + head * group) * dim;
    float *row_k = k + ((uint64_t)row * heads->kv_heads + head) * dim;
    const float *row_v = v + ((uint64_t)row * heads->kv_heads + head) * dim;
    for (uint32_t i = 0; i < group; i++)
        turn_head(cpu, rows, heads, heads->q_norm, row, row_q + i * dim);
    turn_head(cpu, rows, heads, heads->k_norm, row, row_k);
    store_head(
        cpu, layout->shape.element, row_k, dim,
        page_layout_address(layout, heads->pages, page, layer, 0, head, position % per_page));
    store_head(
        cpu, layout->shape.element, row_v, dim,
        page_layout_address(layout, heads->pages, page, layer, 1, head, position % per_page));
}

void cpu_store_kv(struct device *device, struct seat seat, const struct device_rows *rows,
                  const struct device_heads *heads, uint32_t layer, float *q, float *k,
                  const float *v)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct device_sequence *sequence = rows->sequences;
    for (uint32_t i; cpu_take(cpu, seat, cpu_groups_in(rows->count) * heads->kv_heads, &i);) {
        struct span of_group = cpu_group_rows(i / heads->kv_heads, rows->count);
        for (uint32_t row = of_group.begin; row < of_group.end; row++) {
            while (row < sequence->first_row) /* the next head of the same rows */
                sequence--;
            while (row >= sequence->first_row + sequence->row_count)
                sequence++;
            store_row_head(cpu, rows, heads, layer, sequence, row, i % heads->kv_heads, q, k,
                           v);
        }
    }
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Rows [row, row + count) of a sequence and one KV head. */
struct attention_task {
    const struct device_sequence *sequence;
    uint32_t row, count; /* of the step */
    uint32_t position;   /* of the first row */
    uint32_t head;
};

/* So few queries meet the halves of the page: making floats of them would not pay. */
#define HALF_QUERIES 4

static bool takes_halves(const struct device_heads *heads, const struct attention_task *task)
{
    return heads->layout->shape.element == PAGE_ELEMENT_F16 && heads->head_dim % 8 == 0 &&
           task->count * (heads->q_heads / heads->kv_heads) <= HALF_QUERIES;
}

/* NULL: attention with floats. */
static const struct bfloat_attention *bfloats_for(const struct cpu_device *cpu,
                                                  const struct device_heads *heads)
{
    bool fit = heads->layout->shape.element == PAGE_ELEMENT_F16 &&
               heads->head_dim % BFLOAT_INPUTS == 0;
    return fit ? cpu->kernels->bfloats : NULL;
}

/* The tile that begins at `begin`, as far as the task's last row sees it; returns where it ends. */
static uint32_t load_tile(const struct cpu_device *cpu, const struct cpu_scratch *scratch,
                          const struct device_heads *heads, const struct attention_task *task,
                          uint32_t layer, uint32_t begin)
{
    const int32_t *pages = task->sequence->pages;
    uint32_t last = task->position + task->count;
    uint32_t end = begin + ATTENTION_TILE < last ? begin + ATTENTION_TILE : last;
    const struct bfloat_attention *bfloats = bfloats_for(cpu, heads);
    if (bfloats || takes_halves(heads, task)) {
        find_positions(heads, pages, layer, 0, task->head, begin, end, scratch->places);
        find_positions(heads, pages, layer, 1, task->head, begin, end,
                       scratch->places + ATTENTION_TILE);
        if (bfloats && task->count > 1)
            bfloats->set_tile(scratch->places, scratch->places + ATTENTION_TILE, end - begin,
                              heads->head_dim, scratch->bfloat_tile);
    } else {
        load_positions(cpu, heads, pages, layer, 0, task->head, begin, end, scratch->tile);
        if (cpu->kernels->turn_keys)
            cpu->kernels->turn_keys(scratch->tile, end - begin, heads->head_dim,
                                    scratch->turned);
        load_positions(cpu, heads, pages, layer, 1, task->head, begin, end,
                       scratch->tile + (uint64_t)ATTENTION_TILE * heads->head_dim);
    }
    return end;
}

static float score_scale(const struct device_heads *heads)
{
    return 1.0f / sqrtf((float)heads->head_dim);
}

/* The tile into all queries of a task; each row sees its part of it. */
static void attend_bfloats(const struct bfloat_attention *bfloats,
                           const struct cpu_scratch *scratch, const struct device_heads *heads,
                           const struct attention_task *task, uint32_t begin, uint32_t end,
                           struct attention_state state, bool first)
{
    uint32_t group = heads->q_heads / heads->kv_heads, count = task->count * group;
    if (task->count == 1) {
        bfloats->attend_row(scratch->queries, count, score_scale(heads), scratch->places,
                            scratch->places + ATTENTION_TILE, end - begin, heads->head_dim,
                            state, first);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t limit = task->position + i / group + 1;
        limit = limit < end ? limit : end;
        scratch->seen[i] = limit > begin ? limit - begin : 0;
    }
    bfloats->attend(scratch->bfloat_queries, count, scratch->seen, scratch->bfloat_tile,
                    heads->head_dim, state, first);
}

/* `tokens` positions of the tile into `count` queries. */
static void attend_queries(const struct cpu_device *cpu, const struct cpu_scratch *scratch,
                           const struct device_heads *heads, bool halves,
                           const float *const *queries, uint32_t count, uint32_t tokens,
                           struct attention_state state, bool first)
{
    uint32_t dim = heads->head_dim;
    const float *keys = scratch->tile, *values = keys + (uint64_t)ATTENTION_TILE * dim;
    float scale = score_scale(heads);
    if (halves)
        cpu->kernels->attend_half(queries, count, scale, scratch->places,
                                  scratch->places + ATTENTION_TILE, tokens, dim, state, first);
    else
        cpu->kernels->attend(queries, count, scale,
                             cpu->kernels->turn_keys ? scratch->turned : keys, values, tokens,
                             dim, state, first);
}

/* One tile into every query that sees some of it: all at once where all see the whole of it. */
static void attend_tile(const struct cpu_device *cpu, const struct cpu_scratch *scratch,
                        const struct device_heads *heads, const struct attention_task *task,
                        uint32_t begin, uint32_t end)
{
    const struct bfloat_attention *bfloats = bfloats_for(cpu, heads);
    if (bfloats) {
        attend_bfloats(bfloats, scratch, heads, task, begin, end, scratch->state, begin == 0);
        return;
    }
    uint32_t group = heads->q_heads / heads->kv_heads;
    bool whole = task->position + 1 >= end, halves = takes_halves(heads, task);
    uint32_t together = whole ? task->count : 1;
    for (uint32_t r = 0; r < task->count; r += together) {
        uint32_t limit = task->position + r + 1;
        if (limit > begin)
            attend_queries(cpu, scratch, heads, halves, scratch->queries + r * group,
                           together * group, (limit < end ? limit : end) - begin,
                           attention_state_at(scratch->state, r * group, heads->head_dim),
                           begin == 0);
    }
}

/* The softmax's division for row `r` of the task. */
static void divide_row(const struct cpu_scratch *scratch, const struct device_heads *heads,
                       uint32_t r, float *to)
{
    uint32_t dim = heads->head_dim, group = heads->q_heads / heads->kv_heads;
    for (uint32_t i = 0; i < group; i++) {
        struct attention_state state = attention_state_at(scratch->state, r * group + i, dim);
        float inverse = 1.0f / *state.sum;
        for (uint32_t d = 0; d < dim; d++)
            to[i * dim + d] = state.weighted[d] * inverse;
    }
}

/* The result into the activations; as floats only, where the part of one KV head is not whole blocks.
 * Where nobody wants floats they need not be written to them. */
static void finish_task(const struct cpu_device *cpu, const struct cpu_scratch *scratch,
                        const struct device_heads *heads, uint32_t rows,
                        const struct attention_task *task, struct device_activations *out)
{
    uint32_t width = heads->q_heads / heads->kv_heads * heads->head_dim;
    uint32_t column = task->head * width;
    bool whole = width % PACKED_BLOCK == 0, aside = whole && !out->values_wanted;
    uint32_t stride = aside ? width : out->columns;
    for (uint32_t r = 0, count; r < task->count; r += count) {
        count = task->count - r < GROUP_ROWS ? task->count - r : GROUP_ROWS;
        uint32_t row = task->row + r;
        float *to = aside ? scratch->rows : out->values + (uint64_t)row * out->columns + column;
        for (uint32_t i = 0; i < count; i++)
            divide_row(scratch, heads, r + i, to + (uint64_t)i * stride);
        if (whole)
            cpu_activations_set_rows(cpu, out, rows, row, count, column, column + width, to,
                                     stride);
    }
}

static void set_queries(const struct cpu_device *cpu, const struct cpu_scratch *scratch,
                        const struct device_heads *heads, const float *q,
                        const struct attention_task *task)
{
    const struct bfloat_attention *bfloats = bfloats_for(cpu, heads);
    uint32_t dim = heads->head_dim, group = heads->q_heads / heads->kv_heads;
    for (uint32_t i = 0; i < task->count * group; i++) {
        uint64_t row = task->row + i / group, head = task->head * group + i % group;
        scratch->queries[i] = q + (row * heads->q_heads + head) * dim;
    }
    if (bfloats && task->count > 1)
        bfloats->set_queries(scratch->queries, task->count * group, score_scale(heads), dim,
                             scratch->bfloat_queries);
}

static void attend_task(const struct cpu_device *cpu, const struct cpu_scratch *scratch,
                        const struct device_heads *heads, uint32_t layer, const float *q,
                        uint32_t rows, const struct attention_task *task,
                        struct device_activations *out)
{
    uint32_t last = task->position + task->count;
    set_queries(cpu, scratch, heads, q, task);
    for (uint32_t begin = 0; begin < last; begin += ATTENTION_TILE) {
        uint32_t end = load_tile(cpu, scratch, heads, task, layer, begin);
        attend_tile(cpu, scratch, heads, task, begin, end);
    }
    finish_task(cpu, scratch, heads, rows, task, out);
}

/* Walks through the tasks from the last to the first: the last rows of a prompt take longest, and
 * nobody should begin with them when the others are done. One that is not there ends it. */
static bool previous_task(const struct device_rows *rows, uint32_t kv_heads,
                          struct attention_task *task)
{
    if (task->head-- > 0)
        return true;
    if (task->row == task->sequence->first_row) {
        if (task->sequence == rows->sequences)
            return false;
        task->sequence--;
        task->row = task->sequence->first_row + task->sequence->row_count;
    }
    uint32_t before = task->row - task->sequence->first_row;
    uint32_t offset = (before - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
    task->row = task->sequence->first_row + offset;
    task->count = before - offset;
    task->position = task->sequence->position + offset;
    task->head = kv_heads - 1;
    return true;
}

/* As if the rows after the last had just been done. */
static struct attention_task after_last(const struct device_rows *rows)
{
    const struct device_sequence *last = rows->sequences + rows->sequence_count - 1;
    return (struct attention_task){.sequence = last, .row = last->first_row + last->row_count};
}

static void attend_tasks(struct cpu_device *cpu, struct seat seat,
                         const struct device_rows *rows, const struct device_heads *heads,
                         uint32_t layer, const float *q, struct device_activations *out)
{
    struct attention_task task = after_last(rows);
    uint32_t taken, passed = 0;
    cpu_take(cpu, seat, UINT32_MAX, &taken);
    while (previous_task(rows, heads->kv_heads, &task)) {
        if (passed++ != taken)
            continue;
        attend_task(cpu, cpu_scratch_of(cpu, seat), heads, layer, q, rows->count, &task, out);
        cpu_take(cpu, seat, UINT32_MAX, &taken);
    }
}

/* ---- one row, divided by tiles ---------------------------------------------------------------
 * A single stream has a task for each KV head, which may be fewer than the threads, and its context
 * may be long. So its tiles are divided, each keeps its own sums, and then they are folded in the
 * same order and by the same operations as when one thread does it all. */

#define DIVIDED_TILES 4 /* from so many on */

static bool is_divided(const struct device_rows *rows, struct seat seat)
{
    return seat.members > 1 && rows->count == 1 &&
           rows->sequences->position / ATTENTION_TILE >= DIVIDED_TILES;
}

static void attend_divided(struct cpu_device *cpu, struct seat seat,
                           const struct device_rows *rows, const struct device_heads *heads,
                           uint32_t layer, const float *q)
{
    const struct cpu_scratch *scratch = cpu_scratch_of(cpu, seat);
    uint32_t group = heads->q_heads / heads->kv_heads;
    uint32_t tiles = rows->sequences->position / ATTENTION_TILE + 1;
    struct attention_task task = {rows->sequences, 0, 1, rows->sequences->position, 0};
    const struct bfloat_attention *bfloats = bfloats_for(cpu, heads);
    struct span share = span_of(tiles * heads->kv_heads, seat.index, seat.members);
    for (uint32_t i = share.begin; i < share.end; i++) {
        uint32_t tile = i % tiles, begin = tile * ATTENTION_TILE;
        if (i == share.begin || tile == 0) {
            task.head = i / tiles;
            set_queries(cpu, scratch, heads, q, &task);
        }
        uint32_t end = load_tile(cpu, scratch, heads, &task, layer, begin);
        struct attention_state state = attention_state_at(
            cpu->tiles[seat.rank], (uint64_t)tile * heads->q_heads + task.head * group,
            heads->head_dim);
        if (bfloats)
            attend_bfloats(bfloats, scratch, heads, &task, begin, end, state, true);
        else
            attend_queries(cpu, scratch, heads, takes_halves(heads, &task), scratch->queries,
                           group, end - begin, state, true);
    }
}

static void fold_divided(struct cpu_device *cpu, struct seat seat,
                         const struct device_rows *rows, const struct device_heads *heads,
                         struct device_activations *out)
{
    const struct cpu_scratch *scratch = cpu_scratch_of(cpu, seat);
    struct attention_state all = cpu->tiles[seat.rank];
    uint32_t group = heads->q_heads / heads->kv_heads, dim = heads->head_dim;
    uint32_t tiles = rows->sequences->position / ATTENTION_TILE + 1;
    struct attention_task task = {rows->sequences, 0, 1, rows->sequences->position, 0};
    struct span share = span_of(heads->kv_heads, seat.index, seat.members);
    for (task.head = share.begin; task.head < share.end; task.head++) {
        for (uint32_t j = 0; j < group; j++) {
            struct attention_state of_head =
                attention_state_at(all, task.head * group + j, dim);
            struct attention_state state = attention_state_at(scratch->state, j, dim);
            *state.largest = *of_head.largest;
            *state.sum = *of_head.sum;
            memcpy(state.weighted, of_head.weighted, dim * sizeof(float));
            for (uint64_t t = 1; t < tiles; t++)
                cpu->kernels->fold(attention_state_at(of_head, t * heads->q_heads, dim), dim,
                                   state);
        }
        finish_task(cpu, scratch, heads, rows->count, &task, out);
    }
}

void cpu_attend(struct device *device, struct seat seat, const struct device_rows *rows,
                const struct device_heads *heads, uint32_t layer, const float *q,
                struct device_activations *out)
{
    struct cpu_device *cpu = cpu_device_of(device);
    if (is_divided(rows, seat)) {
        attend_divided(cpu, seat, rows, heads, layer, q);
        device->ops->sync(device, seat);
        fold_divided(cpu, seat, rows, heads, out);
    } else {
        attend_tasks(cpu, seat, rows, heads, layer, q, out);
    }
    if (heads->q_heads / heads->kv_heads * heads->head_dim % PACKED_BLOCK == 0)
        return;
    device->ops->sync(device, seat);
    struct span share = span_of(rows->count, seat.index, seat.members);
    cpu_activations_set_rows(cpu, out, rows->count, share.begin, share.end - share.begin, 0,
                             out->columns, out->values + (uint64_t)share.begin * out->columns,
                             out->columns);
}
