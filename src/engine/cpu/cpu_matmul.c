/* SPDX-License-Identifier: Apache-2.0 */
/* The products with weight matrices. A thread takes a range of panels (16 outputs each) and all
 * rows: weights are the larger part, and each is read and unpacked by one thread only. A panel is
 * made ready once and then meets the rows, MATMUL_ROWS at a time; few rows go straight from the
 * packed form. Which way is taken changes no bit of the result. */
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
    if (work->rows > cpu->kernels->direct_rows && packed_is_quantised(work->weight->format))
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
    if (work->rows > cpu->kernels->direct_rows)
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

/* ---- plain ---------------------------------------------------------------------------------- */

static void project_panel(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                          const struct device_activations *in, uint32_t rows,
                          const struct device_projection *to, uint32_t panel)
{
    const uint32_t bounds[2] = {0, in->columns};
    struct panel_work work = {&to->weight->packed, panel, 0, in, rows, bounds, 1,
                              scratch->ready};
    uint32_t first = panel * PANEL_OUTPUTS, width = panel_width(panel, to->outputs.end);
    panel_prepare(cpu, &work);
    for (uint32_t row = 0; row < rows; row += MATMUL_ROWS) {
        uint32_t count = rows_left(row, rows);
        float *out = to->out + (uint64_t)row * to->stride + first - to->outputs.begin;
        rows_prefetch(out, to->stride, count);
        panel_multiply(cpu, &work, row, count, scratch->sums);
        for (uint32_t r = 0; r < count; r++) {
            float *sums = scratch->sums[r];
            for (uint32_t n = 0; to->bias && n < width; n++)
                sums[n] += to->bias[first + n];
            panel_store(out + (uint64_t)r * to->stride, sums, width);
        }
    }
}

void cpu_project(struct device *device, struct seat seat, const struct device_activations *in,
                 uint32_t rows, const struct device_projection *projections, uint32_t count)
{
    struct cpu_device *cpu = cpu_device_of(device);
    uint32_t total = 0, passed = 0;
    for (uint32_t i = 0; i < count; i++)
        total += panels_in(projections[i].outputs);
    struct span share = span_of(total, seat.index, seat.members);
    for (uint32_t i = 0; i < count; i++) {
        const struct device_projection *to = &projections[i];
        uint32_t first = to->outputs.begin / PANEL_OUTPUTS, panels = panels_in(to->outputs);
        for (uint32_t p = 0; p < panels; p++, passed++)
            if (passed >= share.begin && passed < share.end)
                project_panel(cpu, cpu_scratch_of(cpu, seat), in, rows, to, first + p);
    }
}

/* ---- gated ----------------------------------------------------------------------------------
 * Two panels of each matrix at a time: 32 outputs, which are a block of the next activations. */

#define GATED_OUTPUTS (2 * PANEL_OUTPUTS)

/* `count` rows of the sums of gate and up, [2 + 2 panels][MATMUL_ROWS]. */
static void gated_rows(struct cpu_device *cpu, panel_sums *sums, uint32_t panels,
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
        cpu_activations_set(cpu, out, row + r, column, column + width, both);
    }
}

/* Outputs [first, first + width) of the matrices. */
static void gated_block(struct cpu_device *cpu, const struct cpu_scratch *scratch,
                        const struct device_activations *in, uint32_t rows,
                        const struct device_weight *gate, const struct device_weight *up,
                        uint32_t first, uint32_t width, uint32_t column,
                        struct device_activations *out)
{
    const uint32_t bounds[2] = {0, in->columns};
    uint32_t blocks = in->columns / PACKED_BLOCK, panels = width > PANEL_OUTPUTS ? 2 : 1;
    struct panel_work work[4];
    for (uint32_t i = 0; i < 4; i++) {
        const struct packed_weight *weight = i < 2 ? &gate->packed : &up->packed;
        work[i] = (struct panel_work){
            weight, first / PANEL_OUTPUTS + i % 2,        0, in, rows, bounds,
            1,      scratch->ready + (uint64_t)i * blocks};
        if (i % 2 < panels)
            panel_prepare(cpu, &work[i]);
    }
    for (uint32_t row = 0; row < rows; row += MATMUL_ROWS) {
        uint32_t count = rows_left(row, rows);
        for (uint32_t i = 0; i < 4; i++)
            if (i % 2 < panels)
                panel_multiply(cpu, &work[i], row, count, scratch->sums + i * MATMUL_ROWS);
        gated_rows(cpu, scratch->sums, panels, count, width, row, column, out);
    }
}

void cpu_project_gated(struct device *device, struct seat seat,
                       const struct device_activations *in, uint32_t rows,
                       const struct device_weight *gate, const struct device_weight *up,
                       struct range outputs, struct device_activations *out)
{
    struct cpu_device *cpu = cpu_device_of(device);
    uint32_t total = outputs.end - outputs.begin;
    uint32_t blocks = (total + GATED_OUTPUTS - 1) / GATED_OUTPUTS;
    struct span share = span_of(blocks, seat.index, seat.members);
    for (uint32_t b = share.begin; b < share.end; b++) {
        uint32_t column = b * GATED_OUTPUTS;
        uint32_t width = total - column < GATED_OUTPUTS ? total - column : GATED_OUTPUTS;
        gated_block(cpu, cpu_scratch_of(cpu, seat), in, rows, gate, up, outputs.begin + column,
                    width, column, out);
    }
}

/* ---- over units ----------------------------------------------------------------------------- */

/* The bounds of the product's units as columns of the activations. */
static void unit_bounds(const struct device_unit_product *product, uint32_t *bounds)
{
    for (uint32_t u = product->units.begin; u <= product->units.end; u++)
        bounds[u - product->units.begin] =
            product->unit_inputs[u] - product->unit_inputs[product->units.begin];
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
    struct span share = span_of(weight->panels, seat.index, seat.members);
    for (uint32_t panel = share.begin; panel < share.end; panel++) {
        struct panel_work work = {
            weight, panel,  product->unit_inputs[product->units.begin], in,
            rows,   bounds, product->units.end - product->units.begin,  scratch->ready};
        uint32_t width = panel_width(panel, weight->outputs);
        panel_prepare(cpu, &work);
        for (uint32_t row = 0; row < rows; row += MATMUL_ROWS) {
            uint32_t count = rows_left(row, rows);
            float *out = x + (uint64_t)row * weight->outputs + panel * PANEL_OUTPUTS;
            rows_prefetch(out, weight->outputs, count);
            panel_multiply(cpu, &work, row, count, scratch->sums);
            for (uint32_t r = 0; r < count; r++)
                panel_add(out + (uint64_t)r * weight->outputs, scratch->sums[r], width);
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
    uint32_t bounds[DEVICE_UNITS_MAX + 1], units = product->units.end - product->units.begin;
    unit_bounds(product, bounds);
    struct span share = span_of(weight->panels, seat.index, seat.members);
    for (uint32_t panel = share.begin; panel < share.end; panel++) {
        struct panel_work work = {
            weight, panel,         product->unit_inputs[product->units.begin], in, rows, bounds,
            1,      scratch->ready};
        uint32_t width = panel_width(panel, weight->outputs);
        panel_prepare(cpu, &work);
        for (uint32_t u = 0; u < units; u++) {
            work.bounds = bounds + u;
            float *unit =
                partials + (uint64_t)(product->units.begin + u) * rows * weight->outputs;
            for (uint32_t row = 0; row < rows; row += MATMUL_ROWS) {
                uint32_t count = rows_left(row, rows);
                panel_multiply(cpu, &work, row, count, scratch->sums);
                for (uint32_t r = 0; r < count; r++)
                    panel_store(unit + (uint64_t)(row + r) * weight->outputs +
                                    panel * PANEL_OUTPUTS,
                                scratch->sums[r], width);
            }
        }
    }
}
