/* SPDX-License-Identifier: Apache-2.0 */
/* The products with weight matrices. A thread takes panels (16 outputs each), a range of them or one
 * after another, and all rows: weights are the larger part, and each is unpacked by one thread only.
 * A panel is made ready once and then meets the rows, MATMUL_ROWS at a time; few rows go straight from
 * the packed form. Which way is taken changes no bit of the result. */
#include "cpu_device.h"

#include <string.h>

/* A panel of a matrix that meets rows. The rows are inputs [input_begin, + in->columns) of the
 * matrix; their sum is made of units, bounds[0] .. bounds[1], bounds[1] .. bounds[2], ... of the
 * rows' columns. */
struct panel_work {
    const struct packed_weight *weight;
    uint32_t panel;
    uint32_t input_begin;
    const struct device_activations *in;
    uint32_t rows;
    const uint32_t *bounds;
    uint32_t units;
    struct ready_block *ready;
};

static const uint8_t *panel_at(const struct panel_work *work, uint32_t column)
{
    const struct packed_weight *weight = work->weight;
    uint64_t input = work->input_begin + column;
    if (packed_is_quantised(weight->format))
        input /= PACKED_BLOCK;
    return packed_weight_panel(weight, work->panel) + input * weight->block_bytes;
}

static void panel_prepare(struct cpu_device *cpu, const struct panel_work *work)
{
    if (!cpu_rows_are_few(cpu, work->rows) && packed_is_quantised(work->weight->format))
        cpu->kernels->prepare(work->weight->format, panel_at(work, 0),
                              work->in->columns / PACKED_BLOCK, work->ready);
}

/* Columns [begin, end) of rows [row, row + count). */
static void multiply_quantised(struct cpu_device *cpu, const struct panel_work *work,
                               uint32_t begin, uint32_t end, uint32_t row, uint32_t count,
                               panel_sums *sums, bool add)
{
    enum packed_format format = work->weight->format;
    uint32_t stride = work->in->columns / PACKED_BLOCK, first = begin / PACKED_BLOCK;
    uint32_t blocks = (end - begin) / PACKED_BLOCK;
    const struct quant_group *groups = cpu_group_of(work->in, row, begin);
    if (!cpu_rows_are_few(cpu, work->rows))
        cpu->kernels->multiply(format, work->ready + first, blocks, groups, stride, count, sums,
                               add);
    else
        cpu->kernels->multiply_direct(format, panel_at(work, begin), blocks, groups, stride,
                                      count, sums, add);
}

static void panel_multiply(struct cpu_device *cpu, const struct panel_work *work, uint32_t row,
                           uint32_t count, panel_sums *sums)
{
    const struct device_activations *in = work->in;
    for (uint32_t u = 0; u < work->units; u++) {
        uint32_t begin = work->bounds[u], end = work->bounds[u + 1];
        if (packed_is_quantised(work->weight->format))
            multiply_quantised(cpu, work, begin, end, row, count, sums, u > 0);
        else
            cpu->kernels->multiply_float(work->weight->format, panel_at(work, begin),
                                         end - begin,
                                         in->values + (uint64_t)row * in->columns + begin,
                                         in->columns, count, sums, u > 0);
    }
}

/* How many of the panel's outputs lie below `end`. */
static uint32_t panel_width(uint32_t panel, uint32_t end)
{
    uint32_t left = end - panel * PANEL_OUTPUTS;
    return left < PANEL_OUTPUTS ? left : PANEL_OUTPUTS;
}

static uint32_t rows_left(uint32_t row, uint32_t rows)
{
    return rows - row < MATMUL_ROWS ? rows - row : MATMUL_ROWS;
}

static uint32_t panels_in(struct range outputs)
{
    return (outputs.end - outputs.begin + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
}

/* Most panels are whole; a copy of known length is one instruction or two. */
static void panel_store(float *to, const float *sums, uint32_t width)
{
    if (width == PANEL_OUTPUTS)
        memcpy(to, sums, PANEL_OUTPUTS * sizeof(float));
    else
        memcpy(to, sums, width * sizeof(float));
}

static void panel_add(float *restrict to, const float *restrict sums, uint32_t width)
{
    if (width == PANEL_OUTPUTS)
        for (uint32_t n = 0; n < PANEL_OUTPUTS; n++)
            to[n] += sums[n];
    else
        for (uint32_t n = 0; n < width; n++)
            to[n] += sums[n];
}

/* What is about to be written: a line of each of many rows, which no processor sees coming. */
static void rows_prefetch(const float *to, uint64_t stride, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        __builtin_prefetch(to + r * stride, 1);
}

/* ---- several panels at once ------------------------------------------------------------------
 * Few rows are computed as fast as the weights can be read, and a processor that reads in four places
 * fetches ahead in all of them: so a thread takes panels from four parts of its share in turn. */

/* Of a member's own things: `apart` is the distance between those that are taken together, and what
 * remains begins at `rest`. */
struct parts {
    uint32_t apart, rest;
};

static struct parts parts_of(const struct cpu_device *cpu, uint32_t rows, struct span own,
                             uint32_t parts)
{
    uint32_t count = own.end - own.begin;
    if (!cpu->kernels->multiply_panels || rows > cpu->kernels->panels_rows)
        return (struct parts){0, 0};
    return (struct parts){count / parts, count / parts * parts};
}

/* All rows of the panels; those of panel i from sums[i] on. */
static void panels_multiply(struct cpu_device *cpu,
                            const struct panel_work work[PANELS_TOGETHER],
                            panel_sums *const sums[PANELS_TOGETHER])
{
    enum packed_format format = work[0].weight->format;
    bool alike = packed_is_quantised(format);
    for (uint32_t i = 1; i < PANELS_TOGETHER; i++)
        alike &= work[i].weight->format == format;
    for (uint32_t i = 0; !alike && i < PANELS_TOGETHER; i++)
        panel_multiply(cpu, &work[i], 0, work[i].rows, sums[i]);
    for (uint32_t u = 0; alike && u < work[0].units; u++) {
        uint32_t begin = work[0].bounds[u], end = work[0].bounds[u + 1];
        const uint8_t *weights[PANELS_TOGETHER];
        for (uint32_t i = 0; i < PANELS_TOGETHER; i++)
            weights[i] = panel_at(&work[i], begin);
        cpu->kernels->multiply_panels(format, weights, (end - begin) / PACKED_BLOCK,
                                      cpu_group_of(work[0].in, 0, begin), work[0].rows, sums,
                                      u > 0);
    }
}

/* A panel of several matrices whose panels are one list. */
struct place {
    const struct device_projection *of;
    uint32_t panel;
};

static struct place place_of(const struct device_projection *projections, uint32_t index)
{
    while (index >= panels_in(projections->outputs)) {
        index -= panels_in(projections->outputs);
        projections++;
    }
    return (struct place){projections, projections->outputs.begin / PANEL_OUTPUTS + index};
}

static uint32_t places_in(const struct device_projection *projections, uint32_t count)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += panels_in(projections[i].outputs);
    return total;
}

/* ---- plain ---------------------------------------------------------------------------------- */

static struct panel_work projection_work(const struct cpu_scratch *scratch,
                                         const struct device_activations *in, uint32_t rows,
                                         const uint32_t bounds[2], struct place place)
{
    return (struct panel_work){
        &place.of->weight->packed, place.panel, 0, in, rows, bounds, 1, scratch->ready};
}

/* Rows [row, row + count) of a panel to where they belong. */
static void projection_store(struct place place, uint32_t row, uint32_t count, panel_sums *sums)
{
    const struct device_projection *to = place.of;
    uint32_t first = place.panel * PANEL_OUTPUTS;
    uint32_t width = panel_width(place.panel, to->outputs.end);
    float *out = to->out + (uint64_t)row * to->stride + first - to->outputs.begin;
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t n = 0; to->bias && n < width; n++)
            sums[r][n] += to->bias[first + n];
        panel_store(out + (uint64_t)r * to->stride, sums[r], width);
    }
}

static void project_panel(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                          const struct device_activations *in, uint32_t rows,
                          struct place place)
{
    const uint32_t bounds[2] = {0, in->columns};
    const struct panel_work work = projection_work(scratch, in, rows, bounds, place);
    const struct device_projection *to = place.of;
    panel_prepare(cpu, &work);
    for (uint32_t row = 0; row < rows; row += MATMUL_ROWS) {
        uint32_t count = rows_left(row, rows);
        rows_prefetch(to->out + (uint64_t)row * to->stride + place.panel * PANEL_OUTPUTS -
                          to->outputs.begin,
                      to->stride, count);
        panel_multiply(cpu, &work, row, count, scratch->sums);
        projection_store(place, row, count, scratch->sums);
    }
}

static void project_together(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                             const struct device_activations *in, uint32_t rows,
                             const struct place places[PANELS_TOGETHER])
{
    const uint32_t bounds[2] = {0, in->columns};
    struct panel_work work[PANELS_TOGETHER];
    panel_sums *sums[PANELS_TOGETHER];
    for (uint32_t i = 0; i < PANELS_TOGETHER; i++) {
        work[i] = projection_work(scratch, in, rows, bounds, places[i]);
        sums[i] = scratch->sums + i * MATMUL_ROWS;
    }
    panels_multiply(cpu, work, sums);
    for (uint32_t i = 0; i < PANELS_TOGETHER; i++)
        projection_store(places[i], 0, rows, sums[i]);
}

void cpu_project(struct device *device, struct seat seat, const struct device_activations *in,
                 uint32_t rows, const struct device_projection *projections, uint32_t count)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct cpu_scratch *scratch = cpu_scratch_of(cpu, seat);
    struct cpu_share share = cpu_share_of(cpu, seat, rows, places_in(projections, count));
    const struct parts parts = parts_of(cpu, rows, share.own, PANELS_TOGETHER);
    for (uint32_t i = 0; i < parts.apart; i++) {
        struct place places[PANELS_TOGETHER];
        for (uint32_t k = 0; k < PANELS_TOGETHER; k++)
            places[k] = place_of(projections, share.own.begin + i + k * parts.apart);
        project_together(cpu, scratch, in, rows, places);
    }
    share.own.begin += parts.rest;
    for (uint32_t i; cpu_share_next(cpu, seat, &share, &i);)
        project_panel(cpu, scratch, in, rows, place_of(projections, i));
}

/* ---- gated ----------------------------------------------------------------------------------
 * Two panels of each matrix at a time: 32 outputs, which are a block of the next activations. */

#define GATED_OUTPUTS (2 * PANEL_OUTPUTS)
#define GATED_PARTS (PANELS_TOGETHER / 2)

/* `count` of `rows` rows of the sums of gate and up, [2 + 2 panels][MATMUL_ROWS]. */
static void gated_rows(struct cpu_device *cpu, panel_sums *sums, uint32_t panels, uint32_t rows,
                       uint32_t count, uint32_t width, uint32_t row, uint32_t column,
                       struct device_activations *out)
{
    for (uint32_t i = 0; i < panels; i++)
        cpu->kernels->silu_multiply(sums[i * MATMUL_ROWS], sums[(2 + i) * MATMUL_ROWS],
                                    count * PANEL_OUTPUTS);
    uint32_t r = 0;
    for (; panels == 2 && r + GROUP_ROWS <= count && cpu_sets_groups(cpu, out); r += GROUP_ROWS)
        cpu->kernels->quantise_rows(sums[r], sums[MATMUL_ROWS + r], PANEL_OUTPUTS, 1,
                                    cpu_group_of(out, row + r, column));
    for (; r < count; r++) {
        float both[GATED_OUTPUTS] = {0};
        for (uint32_t i = 0; i < panels; i++)
            memcpy(both + i * PANEL_OUTPUTS, sums[i * MATMUL_ROWS + r], sizeof(*sums));
        cpu_activations_set(cpu, out, rows, row + r, column, column + width, both);
    }
}

/* The outputs of a range of both matrices, and the panels that a block of them has. */
struct gated {
    const struct device_weight *gate, *up;
    struct range outputs;
};

static struct panel_work gated_work(const struct gated *of, uint32_t block, uint32_t index,
                                    const struct cpu_scratch *scratch,
                                    const struct device_activations *in, uint32_t rows,
                                    const uint32_t bounds[2])
{
    uint32_t panel = (of->outputs.begin + block * GATED_OUTPUTS) / PANEL_OUTPUTS + index % 2;
    const struct device_weight *weight = index < 2 ? of->gate : of->up;
    uint64_t blocks = in->columns / PACKED_BLOCK;
    return (struct panel_work){
        &weight->packed, panel, 0, in, rows, bounds, 1, scratch->ready + index * blocks};
}

static void gated_block(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                        const struct device_activations *in, uint32_t rows,
                        const struct gated *of, uint32_t block, struct device_activations *out)
{
    const uint32_t bounds[2] = {0, in->columns};
    uint32_t column = block * GATED_OUTPUTS,
             left = of->outputs.end - of->outputs.begin - column;
    uint32_t width = left < GATED_OUTPUTS ? left : GATED_OUTPUTS;
    uint32_t panels = width > PANEL_OUTPUTS ? 2 : 1;
    struct panel_work work[4];
    for (uint32_t i = 0; i < 4; i++) {
        work[i] = gated_work(of, block, i, scratch, in, rows, bounds);
        if (i % 2 < panels)
            panel_prepare(cpu, &work[i]);
    }
    for (uint32_t row = 0; row < rows; row += MATMUL_ROWS) {
        uint32_t count = rows_left(row, rows);
        for (uint32_t i = 0; i < 4; i++)
            if (i % 2 < panels)
                panel_multiply(cpu, &work[i], row, count, scratch->sums + i * MATMUL_ROWS);
        gated_rows(cpu, scratch->sums, panels, rows, count, width, row, column, out);
    }
}

/* Two whole blocks: first the first panel of both in both matrices, then the second. */
static void gated_together(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                           const struct device_activations *in, uint32_t rows,
                           const struct gated *of, const uint32_t blocks[GATED_PARTS],
                           struct device_activations *out)
{
    const uint32_t bounds[2] = {0, in->columns};
    for (uint32_t panel = 0; panel < 2; panel++) {
        struct panel_work work[PANELS_TOGETHER];
        panel_sums *sums[PANELS_TOGETHER];
        for (uint32_t i = 0; i < PANELS_TOGETHER; i++) {
            uint32_t block = i / 2, index = panel + i % 2 * 2; /* as gated_rows wants them */
            work[i] = gated_work(of, blocks[block], index, scratch, in, rows, bounds);
            sums[i] = scratch->sums + (4 * block + index) * MATMUL_ROWS;
        }
        panels_multiply(cpu, work, sums);
    }
    for (uint32_t b = 0; b < GATED_PARTS; b++)
        gated_rows(cpu, scratch->sums + 4 * b * MATMUL_ROWS, 2, rows, rows, GATED_OUTPUTS, 0,
                   blocks[b] * GATED_OUTPUTS, out);
}

void cpu_project_gated(struct device *device, struct seat seat,
                       const struct device_activations *in, uint32_t rows,
                       const struct device_weight *gate, const struct device_weight *up,
                       struct range outputs, struct device_activations *out)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct cpu_scratch *scratch = cpu_scratch_of(cpu, seat);
    const struct gated of = {gate, up, outputs};
    uint32_t total = outputs.end - outputs.begin;
    struct cpu_share share =
        cpu_share_of(cpu, seat, rows, (total + GATED_OUTPUTS - 1) / GATED_OUTPUTS);
    struct span whole = share.own; /* blocks */
    if (whole.end > total / GATED_OUTPUTS && whole.end > whole.begin)
        whole.end--;
    const struct parts parts = parts_of(cpu, rows, whole, GATED_PARTS);
    for (uint32_t i = 0; i < parts.apart; i++) {
        const uint32_t blocks[GATED_PARTS] = {whole.begin + i, whole.begin + i + parts.apart};
        gated_together(cpu, scratch, in, rows, &of, blocks, out);
    }
    share.own.begin += parts.rest;
    for (uint32_t b; cpu_share_next(cpu, seat, &share, &b);)
        gated_block(cpu, scratch, in, rows, &of, b, out);
}

/* ---- over units ----------------------------------------------------------------------------- */

/* The bounds of the product's units as columns of the activations. */
static void unit_bounds(const struct device_unit_product *product, uint32_t *bounds)
{
    for (uint32_t u = product->units.begin; u <= product->units.end; u++)
        bounds[u - product->units.begin] =
            product->unit_inputs[u] - product->unit_inputs[product->units.begin];
}

static void residual_panel(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                           const struct panel_work *work, float *x)
{
    uint32_t outputs = work->weight->outputs, width = panel_width(work->panel, outputs);
    panel_prepare(cpu, work);
    for (uint32_t row = 0; row < work->rows; row += MATMUL_ROWS) {
        uint32_t count = rows_left(row, work->rows);
        float *out = x + (uint64_t)row * outputs + work->panel * PANEL_OUTPUTS;
        rows_prefetch(out, outputs, count);
        panel_multiply(cpu, work, row, count, scratch->sums);
        for (uint32_t r = 0; r < count; r++)
            panel_add(out + (uint64_t)r * outputs, scratch->sums[r], width);
    }
}

static void residual_together(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                              const struct panel_work work[PANELS_TOGETHER], float *x)
{
    panel_sums *sums[PANELS_TOGETHER];
    for (uint32_t i = 0; i < PANELS_TOGETHER; i++)
        sums[i] = scratch->sums + i * MATMUL_ROWS;
    panels_multiply(cpu, work, sums);
    for (uint32_t i = 0; i < PANELS_TOGETHER; i++) {
        uint32_t outputs = work[i].weight->outputs;
        float *out = x + work[i].panel * PANEL_OUTPUTS;
        for (uint32_t r = 0; r < work[i].rows; r++)
            panel_add(out + (uint64_t)r * outputs, sums[i][r],
                      panel_width(work[i].panel, outputs));
    }
}

void cpu_project_residual(struct device *device, struct seat seat,
                          const struct device_activations *in, uint32_t rows,
                          const struct device_unit_product *product, float *x)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct cpu_scratch *scratch = cpu_scratch_of(cpu, seat);
    const struct packed_weight *weight = &product->weight->packed;
    uint32_t bounds[DEVICE_UNITS_MAX + 1];
    unit_bounds(product, bounds);
    struct panel_work work = {
        weight, 0,      product->unit_inputs[product->units.begin], in,
        rows,   bounds, product->units.end - product->units.begin,  scratch->ready};
    struct cpu_share share = cpu_share_of(cpu, seat, rows, weight->panels);
    const struct parts parts = parts_of(cpu, rows, share.own, PANELS_TOGETHER);
    for (uint32_t i = 0; i < parts.apart; i++) {
        struct panel_work together[PANELS_TOGETHER];
        for (uint32_t k = 0; k < PANELS_TOGETHER; k++) {
            together[k] = work;
            together[k].panel = share.own.begin + i + k * parts.apart;
        }
        residual_together(cpu, scratch, together, x);
    }
    share.own.begin += parts.rest;
    while (cpu_share_next(cpu, seat, &share, &work.panel))
        residual_panel(cpu, scratch, &work, x);
}

/* The sums of each unit by itself. */
static void partials_panel(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                           const struct panel_work *work, float *partials)
{
    uint32_t outputs = work->weight->outputs, width = panel_width(work->panel, outputs);
    panel_prepare(cpu, work);
    for (uint32_t u = 0; u < work->units; u++) {
        struct panel_work of_unit = *work;
        of_unit.bounds = work->bounds + u;
        of_unit.units = 1;
        float *unit = partials + (uint64_t)u * work->rows * outputs;
        for (uint32_t row = 0; row < work->rows; row += MATMUL_ROWS) {
            uint32_t count = rows_left(row, work->rows);
            panel_multiply(cpu, &of_unit, row, count, scratch->sums);
            for (uint32_t r = 0; r < count; r++)
                panel_store(unit + (uint64_t)(row + r) * outputs + work->panel * PANEL_OUTPUTS,
                            scratch->sums[r], width);
        }
    }
}

void cpu_project_partials(struct device *device, struct seat seat,
                          const struct device_activations *in, uint32_t rows,
                          const struct device_unit_product *product, float *partials)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct cpu_scratch *scratch = cpu_scratch_of(cpu, seat);
    const struct packed_weight *weight = &product->weight->packed;
    uint32_t bounds[DEVICE_UNITS_MAX + 1];
    unit_bounds(product, bounds);
    struct panel_work work = {
        weight, 0,      product->unit_inputs[product->units.begin], in,
        rows,   bounds, product->units.end - product->units.begin,  scratch->ready};
    float *first = partials + (uint64_t)product->units.begin * rows * weight->outputs;
    struct cpu_share share = cpu_share_of(cpu, seat, rows, weight->panels);
    while (cpu_share_next(cpu, seat, &share, &work.panel))
        partials_panel(cpu, scratch, &work, first);
}
