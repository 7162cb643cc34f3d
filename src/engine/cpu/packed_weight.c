/* SPDX-License-Identifier: Apache-2.0 */
/* See packed_weight.h. Filling goes block by block: one block of each of 16 rows is first brought
 * into a common form (a quant per input, scale and minimum), then written in the panel's order. */
#include "packed_weight.h"
#include "number.h"

#include "model/tensor_blocks.h"

#include <string.h>

enum packed_format packed_format_of(enum tensor_type type)
{
    switch (type) {
    case TENSOR_F16: return PACKED_F16;
    case TENSOR_BF16: return PACKED_BF16;
    case TENSOR_Q4_0: return PACKED_Q4_CENTRED;
    case TENSOR_Q4_1: return PACKED_Q4_HALF;
    case TENSOR_Q4_K: return PACKED_Q4_FLOAT;
    case TENSOR_Q8_0:
    case TENSOR_Q5_0: return PACKED_Q8_HALF;
    case TENSOR_Q5_1:
    case TENSOR_Q5_K: return PACKED_Q8_FLOAT;
    case TENSOR_Q6_K: return PACKED_Q6_HALF_BLOCKS;
    default: return PACKED_F32;
    }
}

bool packed_is_quantised(enum packed_format format)
{
    return format > PACKED_BF16;
}

int packed_weight_open(struct weight_arena *arena, const struct weight *source,
                       struct packed_weight *out, struct error err)
{
    struct packed_weight weight = {.format = packed_format_of(source->type),
                                   .outputs = source->rows,
                                   .inputs = source->columns};
    weight.panels = (source->rows - 1) / PANEL_OUTPUTS + 1;
    weight.panel_blocks =
        packed_is_quantised(weight.format) ? source->columns / PACKED_BLOCK : source->columns;
    weight.block_bytes = packed_block_bytes(weight.format);
    weight.panel_bytes = (uint64_t)weight.panel_blocks * weight.block_bytes;
    uint64_t bytes;
    if (__builtin_mul_overflow(weight.panel_bytes, weight.panels, &bytes) ||
        bytes > SIZE_MAX / 2)
        return error_set(err, BATON_ELIMIT, "weight %s of %ux%u is too large", source->name,
                         source->rows, source->columns);
    weight.panels_data = weight_arena_alloc(arena, bytes);
    if (!weight.panels_data)
        return error_set(err, BATON_ENOMEM, "out of memory: %llu bytes for weight %s",
                         (unsigned long long)bytes, source->name);
    *out = weight;
    return BATON_OK;
}

/* ---- from the file's blocks to a common form ------------------------------------------------ */

struct common_block { /* of 32 inputs of one output */
    int8_t quants[PACKED_BLOCK];
    float scale, minimum;
    uint16_t half_scale, half_minimum;
    int8_t factor[2]; /* of the scale, where each 16 inputs have their own */
};

static void read_nibbles(const uint8_t *bytes, int8_t offset, int8_t quants[PACKED_BLOCK])
{
    for (int i = 0; i < 16; i++) {
        quants[i] = (int8_t)((bytes[i] & 15) - offset);
        quants[i + 16] = (int8_t)((bytes[i] >> 4) - offset);
    }
}

static void add_fifth_bits(const uint8_t high[4], int8_t quants[PACKED_BLOCK])
{
    for (int i = 0; i < PACKED_BLOCK; i++)
        quants[i] = (int8_t)(quants[i] + ((high[i / 8] >> i % 8 & 1) << 4));
}

static void read_q4_0(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q4_0 block;
    memcpy(&block, row + index * sizeof(block), sizeof(block));
    read_nibbles(block.quants, 0, out->quants); /* the packed form keeps the nibble */
    out->half_scale = block.scale;
}

static void read_q4_1(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q4_1 block;
    memcpy(&block, row + index * sizeof(block), sizeof(block));
    read_nibbles(block.quants, 0, out->quants);
    out->half_scale = block.scale;
    out->half_minimum = block.minimum;
}

static void read_q5_0(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q5_0 block;
    memcpy(&block, row + index * sizeof(block), sizeof(block));
    read_nibbles(block.quants, 16, out->quants);
    add_fifth_bits(block.high, out->quants);
    out->half_scale = block.scale;
}

static void read_q5_1(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q5_1 block;
    memcpy(&block, row + index * sizeof(block), sizeof(block));
    read_nibbles(block.quants, 0, out->quants);
    add_fifth_bits(block.high, out->quants);
    out->scale = float_from_half(block.scale);
    out->minimum = float_from_half(block.minimum);
}

static void read_q8_0(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q8_0 block;
    memcpy(&block, row + index * sizeof(block), sizeof(block));
    memcpy(out->quants, block.quants, sizeof(block.quants));
    out->half_scale = block.scale;
}

/* The products of an 11-bit and a 6-bit number are exact in a float. */
static void read_k_scales(uint16_t scale, uint16_t minimum, const uint8_t *scales, uint32_t j,
                          struct common_block *out)
{
    uint32_t s, m;
    if (j < 4) {
        s = scales[j] & 63;
        m = scales[j + 4] & 63;
    } else {
        s = (scales[j + 4] & 15) | scales[j - 4] >> 6 << 4;
        m = scales[j + 4] >> 4 | scales[j] >> 6 << 4;
    }
    out->scale = float_from_half(scale) * (float)s;
    out->minimum = -(float_from_half(minimum) * (float)m);
}

static void read_q4_k(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q4_k block;
    uint32_t j = index % 8;
    memcpy(&block, row + index / 8 * sizeof(block), sizeof(block));
    read_k_scales(block.scale, block.minimum, block.scales, j, out);
    for (int i = 0; i < PACKED_BLOCK; i++)
        out->quants[i] = block.quants[j / 2 * 32 + i] >> j % 2 * 4 & 15;
}

static void read_q5_k(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q5_k block;
    uint32_t j = index % 8;
    memcpy(&block, row + index / 8 * sizeof(block), sizeof(block));
    read_k_scales(block.scale, block.minimum, block.scales, j, out);
    for (int i = 0; i < PACKED_BLOCK; i++)
        out->quants[i] = (int8_t)((block.quants[j / 2 * 32 + i] >> j % 2 * 4 & 15) |
                                  (block.high[i] >> j & 1) << 4);
}

static void read_q6_k(const uint8_t *row, uint32_t index, struct common_block *out)
{
    struct block_q6_k block;
    memcpy(&block, row + index / 8 * sizeof(block), sizeof(block));
    uint32_t part = index % 8 / 4, j = index % 4;
    const uint8_t *low = block.low + 64 * part + 32 * (j & 1), *high = block.high + 32 * part;
    for (int i = 0; i < PACKED_BLOCK; i++)
        out->quants[i] =
            (int8_t)((low[i] >> (j < 2 ? 0 : 4) & 15) | (high[i] >> 2 * j & 3) << 4);
    out->half_scale = block.scale;
    memcpy(out->factor, block.scales + 2 * (index % 8), sizeof(out->factor));
}

static void read_block(enum tensor_type type, const uint8_t *row, uint32_t index,
                       struct common_block *out)
{
    switch (type) {
    case TENSOR_Q4_0: read_q4_0(row, index, out); return;
    case TENSOR_Q4_1: read_q4_1(row, index, out); return;
    case TENSOR_Q5_0: read_q5_0(row, index, out); return;
    case TENSOR_Q5_1: read_q5_1(row, index, out); return;
    case TENSOR_Q8_0: read_q8_0(row, index, out); return;
    case TENSOR_Q4_K: read_q4_k(row, index, out); return;
    case TENSOR_Q5_K: read_q5_k(row, index, out); return;
    default: read_q6_k(row, index, out); return;
    }
}

/* ---- from the common form to a panel -------------------------------------------------------- */

static void write_nibbles(uint8_t quants[4][PANEL_OUTPUTS][4], uint32_t column,
                          const int8_t from[PACKED_BLOCK])
{
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 4; i++)
            quants[g][column][i] =
                (uint8_t)((from[4 * g + i] & 15) | from[16 + 4 * g + i] << 4);
}

static void write_high_bits(uint8_t high[2][PANEL_OUTPUTS][4], uint32_t column,
                            const int8_t from[PACKED_BLOCK])
{
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 4; i++) {
            const int8_t *at = from + 16 * half + i;
            high[half][column][i] =
                (uint8_t)(at[0] >> 4 | at[4] >> 4 << 2 | at[8] >> 4 << 4 | at[12] >> 4 << 6);
        }
    }
}

static void write_bytes(int8_t quants[8][PANEL_OUTPUTS][4], uint32_t column,
                        const int8_t from[PACKED_BLOCK])
{
    for (int g = 0; g < 8; g++)
        memcpy(quants[g][column], from + 4 * g, 4);
}

static void write_block(enum packed_format format, void *block, uint32_t column,
                        const struct common_block *from)
{
    switch (format) {
    case PACKED_Q4_CENTRED: {
        struct packed_q4_centred *to = block;
        to->scale[column] = from->half_scale;
        write_nibbles(to->quants, column, from->quants);
        return;
    }
    case PACKED_Q4_HALF: {
        struct packed_q4_half *to = block;
        to->scale[column] = from->half_scale;
        to->minimum[column] = from->half_minimum;
        write_nibbles(to->quants, column, from->quants);
        return;
    }
    case PACKED_Q4_FLOAT: {
        struct packed_q4_float *to = block;
        to->scale[column] = from->scale;
        to->minimum[column] = from->minimum;
        write_nibbles(to->quants, column, from->quants);
        return;
    }
    case PACKED_Q8_HALF: {
        struct packed_q8_half *to = block;
        to->scale[column] = from->half_scale;
        write_bytes(to->quants, column, from->quants);
        return;
    }
    case PACKED_Q8_FLOAT: {
        struct packed_q8_float *to = block;
        to->scale[column] = from->scale;
        to->minimum[column] = from->minimum;
        write_bytes(to->quants, column, from->quants);
        return;
    }
    default: {
        struct packed_q6_half_blocks *to = block;
        to->scale[column] = from->half_scale;
        to->factor[0][column] = from->factor[0];
        to->factor[1][column] = from->factor[1];
        write_high_bits(to->high, column, from->quants);
        write_nibbles(to->quants, column, from->quants);
        return;
    }
    }
}

static void fill_quantised(const struct packed_weight *weight, const struct weight *source,
                           uint32_t panel, uint8_t *to)
{
    for (uint32_t b = 0; b < weight->panel_blocks; b++, to += weight->block_bytes) {
        for (uint32_t column = 0; column < PANEL_OUTPUTS; column++) {
            uint32_t output = panel * PANEL_OUTPUTS + column;
            struct common_block block = {0};
            if (output < source->rows)
                read_block(source->type, source->data + output * source->row_bytes, b, &block);
            write_block(weight->format, to, column, &block);
        }
    }
}

static void fill_floats(const struct packed_weight *weight, const struct weight *source,
                        uint32_t panel, uint8_t *to)
{
    uint32_t bytes = weight->block_bytes / PANEL_OUTPUTS;
    memset(to, 0, weight->panel_bytes);
    for (uint32_t column = 0; column < PANEL_OUTPUTS; column++) {
        uint32_t output = panel * PANEL_OUTPUTS + column;
        if (output >= source->rows)
            return;
        const uint8_t *from = source->data + output * source->row_bytes;
        for (uint32_t i = 0; i < source->columns; i++)
            memcpy(to + (uint64_t)(i * PANEL_OUTPUTS + column) * bytes, from + i * bytes,
                   bytes);
    }
}

void packed_weight_fill(struct packed_weight *weight, const struct weight *source,
                        uint32_t panel_begin, uint32_t panel_end)
{
    for (uint32_t panel = panel_begin; panel < panel_end; panel++) {
        uint8_t *to = weight->panels_data + panel * weight->panel_bytes;
        if (packed_is_quantised(weight->format))
            fill_quantised(weight, source, panel, to);
        else
            fill_floats(weight, source, panel, to);
    }
}

/* ---- and back ------------------------------------------------------------------------------- */

static int quant_of_nibbles(const uint8_t quants[4][PANEL_OUTPUTS][4], uint32_t column,
                            uint32_t input)
{
    uint8_t byte = quants[input % 16 / 4][column][input % 4];
    return input < 16 ? byte & 15 : byte >> 4;
}

static float value_of(enum packed_format format, const void *block, uint32_t column,
                      uint32_t input)
{
    switch (format) {
    case PACKED_Q4_CENTRED: {
        const struct packed_q4_centred *from = block;
        return float_from_half(from->scale[column]) *
               (float)(quant_of_nibbles(from->quants, column, input) - 8);
    }
    case PACKED_Q4_HALF: {
        const struct packed_q4_half *from = block;
        return float_from_half(from->scale[column]) *
                   (float)quant_of_nibbles(from->quants, column, input) +
               float_from_half(from->minimum[column]);
    }
    case PACKED_Q4_FLOAT: {
        const struct packed_q4_float *from = block;
        return from->scale[column] * (float)quant_of_nibbles(from->quants, column, input) +
               from->minimum[column];
    }
    case PACKED_Q8_HALF: {
        const struct packed_q8_half *from = block;
        return float_from_half(from->scale[column]) *
               (float)from->quants[input / 4][column][input % 4];
    }
    case PACKED_Q8_FLOAT: {
        const struct packed_q8_float *from = block;
        return from->scale[column] * (float)from->quants[input / 4][column][input % 4] +
               from->minimum[column];
    }
    default: {
        const struct packed_q6_half_blocks *from = block;
        int high = from->high[input / 16][column][input % 4] >> input % 16 / 4 * 2 & 3;
        float scale =
            float_from_half(from->scale[column]) * (float)from->factor[input / 16][column];
        return scale *
               (float)((quant_of_nibbles(from->quants, column, input) | high << 4) - 32);
    }
    }
}

static float float_value_of(enum packed_format format, const uint8_t *at)
{
    if (format == PACKED_F32)
        return float_from_bits(*(const uint32_t *)(const void *)at);
    uint16_t bits = *(const uint16_t *)(const void *)at;
    return format == PACKED_F16 ? float_from_half(bits) : float_from_bfloat(bits);
}

void packed_weight_row(const struct packed_weight *weight, uint32_t output, float *out)
{
    const uint8_t *panel = packed_weight_panel(weight, output / PANEL_OUTPUTS);
    uint32_t column = output % PANEL_OUTPUTS;
    if (packed_is_quantised(weight->format)) {
        for (uint32_t i = 0; i < weight->inputs; i++)
            out[i] = value_of(weight->format, panel + i / PACKED_BLOCK * weight->block_bytes,
                              column, i % PACKED_BLOCK);
        return;
    }
    uint32_t bytes = weight->block_bytes / PANEL_OUTPUTS;
    for (uint32_t i = 0; i < weight->inputs; i++)
        out[i] =
            float_value_of(weight->format, panel + i * weight->block_bytes + column * bytes);
}
