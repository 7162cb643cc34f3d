/* SPDX-License-Identifier: Apache-2.0 */
/* The definition: plain C that any compiler and processor computes alike. It is meant to be read;
 * cpu_kernels.h says the order that the others must keep to. */
#include "cpu_kernels.h"
#include "lanes_portable.h"

#include "element_kernels.inc"
#include "float_kernels.inc"

/* ---- weights ready for use -------------------------------------------------------------------
 * The quants are [8 groups][16 outputs][4 inputs], as in the 8-bit packed formats. */

static void spread_nibbles(const uint8_t quants[4][PANEL_OUTPUTS][4], int8_t offset,
                           int8_t *out)
{
    const uint8_t *from = &quants[0][0][0];
    for (int i = 0; i < 4 * PANEL_OUTPUTS * 4; i++) {
        out[i] = (int8_t)((from[i] & 15) - offset);
        out[i + 4 * PANEL_OUTPUTS * 4] = (int8_t)((from[i] >> 4) - offset);
    }
}

static void add_high_bits(const uint8_t high[2][PANEL_OUTPUTS][4], int8_t *quants)
{
    for (int g = 0; g < 8; g++) {
        const uint8_t *from = &high[g / 4][0][0];
        for (int i = 0; i < PANEL_OUTPUTS * 4; i++, quants++)
            *quants = (int8_t)(*quants + ((from[i] >> g % 4 * 2 & 3) << 4));
    }
}

static void spread_halves(const uint16_t halves[PANEL_OUTPUTS], float out[PANEL_OUTPUTS])
{
    for (int i = 0; i < PANEL_OUTPUTS; i++)
        out[i] = float_from_half(halves[i]);
}

static void prepare_block(enum packed_format format, const void *block, struct ready_block *out)
{
    switch (format) {
    case PACKED_Q4_CENTRED: {
        const struct packed_q4_centred *from = block;
        spread_halves(from->scale, out->scale);
        spread_nibbles(from->quants, 8, out->quants);
        return;
    }
    case PACKED_Q4_HALF: {
        const struct packed_q4_half *from = block;
        spread_halves(from->scale, out->scale);
        spread_halves(from->minimum, out->other);
        spread_nibbles(from->quants, 0, out->quants);
        return;
    }
    case PACKED_Q4_FLOAT: {
        const struct packed_q4_float *from = block;
        memcpy(out->scale, from->scale, sizeof(from->scale));
        memcpy(out->other, from->minimum, sizeof(from->minimum));
        spread_nibbles(from->quants, 0, out->quants);
        return;
    }
    case PACKED_Q8_HALF: {
        const struct packed_q8_half *from = block;
        spread_halves(from->scale, out->scale);
        memcpy(out->quants, from->quants, sizeof(from->quants));
        return;
    }
    case PACKED_Q8_FLOAT: {
        const struct packed_q8_float *from = block;
        memcpy(out->scale, from->scale, sizeof(from->scale));
        memcpy(out->other, from->minimum, sizeof(from->minimum));
        memcpy(out->quants, from->quants, sizeof(from->quants));
        return;
    }
    default: {
        const struct packed_q6_half_blocks *from = block;
        for (int i = 0; i < PANEL_OUTPUTS; i++) {
            float scale = float_from_half(from->scale[i]);
            out->scale[i] = scale * (float)from->factor[0][i];
            out->other[i] = scale * (float)from->factor[1][i];
        }
        spread_nibbles(from->quants, 32, out->quants);
        add_high_bits(from->high, out->quants);
        return;
    }
    }
}

static void prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                    struct ready_block *out)
{
    for (uint32_t b = 0; b < count; b++)
        prepare_block(format, blocks + (uint64_t)b * packed_block_bytes(format), &out[b]);
}

/* ---- products ------------------------------------------------------------------------------- */

enum form {
    FORM_BYTES,
    FORM_FINE_FEW, /* fine quants as bytes */
    FORM_FINE_MANY /* and as bfloats */
};

static int32_t quant_of(enum form form, const struct quant_group *group, uint32_t row,
                        uint32_t input)
{
    if (form == FORM_BYTES)
        return group->quants[quant_index(row, input)];
#if GROUP_PARTS > 1
    if (form == FORM_FINE_MANY && group->scale[row] == 0.0f)
        return 0;
    if (form == FORM_FINE_MANY)
        return (int32_t)(float_from_bfloat(group->bfloats[bfloat_index(row, input)]) /
                         group->scale[row]);
#endif
    const int8_t *at = group->quants + fine_quant_index(row, input);
    return at[0] * FINE_LOWER + at[PACKED_BLOCK];
}

/* Of inputs [begin, end) of a block. */
static int32_t whole_product(enum form form, const struct ready_block *weight, uint32_t output,
                             const struct quant_group *activations, uint32_t row,
                             uint32_t begin, uint32_t end)
{
    int32_t sum = 0;
    for (uint32_t i = begin; i < end; i++)
        sum += weight->quants[(i / 4 * PANEL_OUTPUTS + output) * 4 + i % 4] *
               quant_of(form, activations, row, i);
    return sum;
}

static float add_block(enum form form, enum packed_format format,
                       const struct ready_block *weight, uint32_t output,
                       const struct quant_group *activations, uint32_t row, float sum)
{
    const enum block_kind kind = block_kind_of(format);
    float scale = activations->scale[GROUP_COPIES * row];
    if (kind == BLOCK_HALVES) {
        int32_t first = whole_product(form, weight, output, activations, row, 0, 16);
        int32_t second = whole_product(form, weight, output, activations, row, 16, 32);
        sum = fmaf((float)first, weight->scale[output] * scale, sum);
        return fmaf((float)second, weight->other[output] * scale, sum);
    }
    int32_t whole = whole_product(form, weight, output, activations, row, 0, PACKED_BLOCK);
    sum = fmaf((float)whole, weight->scale[output] * scale, sum);
    if (kind == BLOCK_MINIMA)
        sum = fmaf(weight->other[output], activations->scaled_sum[GROUP_COPIES * row], sum);
    return sum;
}

static void multiply_quants(enum form form, enum packed_format format,
                            const struct ready_block *weight, uint32_t blocks,
                            const struct quant_group *activations, uint32_t group_stride,
                            uint32_t rows, panel_sums *sums, bool add)
{
    for (uint32_t r = 0; r < rows; r++) {
        const struct quant_group *group = activations + r / GROUP_ROWS * group_stride;
        for (uint32_t n = 0; n < PANEL_OUTPUTS; n++) {
            float sum = 0.0f;
            for (uint32_t b = 0; b < blocks; b++)
                sum = add_block(form, format, &weight[b], n, &group[b], r % GROUP_ROWS, sum);
            sums[r][n] = add ? sums[r][n] + sum : sum;
        }
    }
}

static void multiply_row(enum form form, enum packed_format format, const uint8_t *weight,
                         uint32_t blocks, const struct quant_group *activations, uint32_t row,
                         float *sums, bool add)
{
    float total[PANEL_OUTPUTS] = {0};
    for (uint32_t b = 0; b < blocks; b++) {
        struct ready_block ready;
        prepare(format, weight + (uint64_t)b * packed_block_bytes(format), 1, &ready);
        for (uint32_t n = 0; n < PANEL_OUTPUTS; n++)
            total[n] = add_block(form, format, &ready, n, &activations[b], row, total[n]);
    }
    for (uint32_t n = 0; n < PANEL_OUTPUTS; n++)
        sums[n] = add ? sums[n] + total[n] : total[n];
}

static void multiply_packed(enum form form, enum packed_format format, const uint8_t *weight,
                            uint32_t blocks, const struct quant_group *activations,
                            uint32_t group_stride, uint32_t rows, panel_sums *sums, bool add)
{
    for (uint32_t r = 0; r < rows; r++)
        multiply_row(form, format, weight, blocks, activations + r / GROUP_ROWS * group_stride,
                     r % GROUP_ROWS, sums[r], add);
}

static void multiply(enum packed_format format, const struct ready_block *weight,
                     uint32_t blocks, const struct quant_group *activations,
                     uint32_t group_stride, uint32_t rows, panel_sums *sums, bool add)
{
    multiply_quants(FORM_BYTES, format, weight, blocks, activations, group_stride, rows, sums,
                    add);
}

static void multiply_direct(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                            const struct quant_group *activations, uint32_t group_stride,
                            uint32_t rows, panel_sums *sums, bool add)
{
    multiply_packed(FORM_BYTES, format, weight, blocks, activations, group_stride, rows, sums,
                    add);
}

const struct cpu_kernels cpu_kernels_portable = {
    .name = "portable",
    .quantise = quantise,
    .prepare = prepare,
    .multiply = multiply,
    .direct_rows = 2,
    .multiply_direct = multiply_direct,
    FLOAT_KERNELS,
};

/* ---- fine quants ---------------------------------------------------------------------------- */

#if GROUP_PARTS > 1
#include "portable_attention.h"

static void multiply_fine(enum packed_format format, const struct ready_block *weight,
                          uint32_t blocks, const struct quant_group *activations,
                          uint32_t group_stride, uint32_t rows, panel_sums *sums, bool add)
{
    multiply_quants(FORM_FINE_MANY, format, weight, blocks, activations, group_stride, rows,
                    sums, add);
}

static void multiply_direct_fine(enum packed_format format, const uint8_t *weight,
                                 uint32_t blocks, const struct quant_group *activations,
                                 uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                 bool add)
{
    multiply_packed(FORM_FINE_FEW, format, weight, blocks, activations, group_stride, rows,
                    sums, add);
}

const struct cpu_kernels cpu_kernels_portable_fine = {
    .name = "portable12",
    .fine = true,
    .quantise = quantise_fine,
    .prepare = prepare,
    .multiply = multiply_fine,
    .direct_rows = 2,
    .multiply_direct = multiply_direct_fine,
    FLOAT_KERNELS,
    .bfloats = &portable_attention,
};
#endif
