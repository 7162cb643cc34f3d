/* SPDX-License-Identifier: Apache-2.0 */
/* Turns rows of every tensor type into floats, one block at a time, as tensor_blocks.h draws
 * them. A scale has 11 significant bits, a sub-scale at most 7, a quant at most 7 and no block has
 * the most of both, so every product here is exact in a float's 24. What is left is one rounding,
 * where a minimum is added: the result does not depend on the order of operations, on the
 * compiler fusing them, or on the machine. */
#include "dequant.h"
#include "tensor_blocks.h"

#include <string.h>

/* ---- single numbers ---------------------------------------------------------------------- */

float bfloat_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

float half_to_float(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    uint32_t wide = sign | (exponent + 112) << 23 | fraction << 13;
    float value;
    if (exponent == 31)
        wide = sign | 0x7f800000 | fraction << 13; /* infinity, NaN */
    if (exponent == 0) {                           /* zero, and fractions of 2^-24 */
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* ---- blocks of 32 ------------------------------------------------------------------------ */

static void dequant_q4_0(const uint8_t *data, float *out)
{
    struct block_q4_0 block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale);
    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)((block.quants[i] & 15) - 8);
        out[i + 16] = scale * (float)((block.quants[i] >> 4) - 8);
    }
}

static void dequant_q4_1(const uint8_t *data, float *out)
{
    struct block_q4_1 block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale), minimum = half_to_float(block.minimum);
    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)(block.quants[i] & 15) + minimum;
        out[i + 16] = scale * (float)(block.quants[i] >> 4) + minimum;
    }
}

/* Value i of a block of 32 with a fifth bit. */
static int quant5(const uint8_t *quants, const uint8_t *high, int i)
{
    int low = i < 16 ? quants[i] & 15 : quants[i - 16] >> 4;
    return low | (high[i / 8] >> i % 8 & 1) << 4;
}

static void dequant_q5_0(const uint8_t *data, float *out)
{
    struct block_q5_0 block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale);
    for (int i = 0; i < BLOCK_VALUES; i++)
        out[i] = scale * (float)(quant5(block.quants, block.high, i) - 16);
}

static void dequant_q5_1(const uint8_t *data, float *out)
{
    struct block_q5_1 block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale), minimum = half_to_float(block.minimum);
    for (int i = 0; i < BLOCK_VALUES; i++)
        out[i] = scale * (float)quant5(block.quants, block.high, i) + minimum;
}

static void dequant_q8_0(const uint8_t *data, float *out)
{
    struct block_q8_0 block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale);
    for (int i = 0; i < BLOCK_VALUES; i++)
        out[i] = scale * (float)block.quants[i];
}

/* ---- blocks of 256 ----------------------------------------------------------------------- */

/* The 6-bit scale and minimum of sub-block j. */
static void sub_scales(const uint8_t scales[BLOCK_K_SCALE_BYTES], int j, int *scale,
                       int *minimum)
{
    if (j < 4) {
        *scale = scales[j] & 63;
        *minimum = scales[j + 4] & 63;
    } else {
        *scale = (scales[j + 4] & 15) | scales[j - 4] >> 6 << 4;
        *minimum = scales[j + 4] >> 4 | scales[j] >> 6 << 4;
    }
}

/* Value i of sub-block j, without a fifth bit. */
static int quant4(const uint8_t quants[128], int j, int i)
{
    return quants[32 * (j / 2) + i] >> 4 * (j % 2) & 15;
}

static void dequant_q4_k(const uint8_t *data, float *out)
{
    struct block_q4_k block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale), minimum = half_to_float(block.minimum);
    for (int j = 0; j < 8; j++) {
        int s, m;
        sub_scales(block.scales, j, &s, &m);
        float sub_scale = scale * (float)s, sub_minimum = minimum * (float)m;
        for (int i = 0; i < 32; i++)
            out[32 * j + i] = sub_scale * (float)quant4(block.quants, j, i) - sub_minimum;
    }
}

static void dequant_q5_k(const uint8_t *data, float *out)
{
    struct block_q5_k block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale), minimum = half_to_float(block.minimum);
    for (int j = 0; j < 8; j++) {
        int s, m;
        sub_scales(block.scales, j, &s, &m);
        float sub_scale = scale * (float)s, sub_minimum = minimum * (float)m;
        for (int i = 0; i < 32; i++) {
            int quant = quant4(block.quants, j, i) | (block.high[i] >> j & 1) << 4;
            out[32 * j + i] = sub_scale * (float)quant - sub_minimum;
        }
    }
}

static void dequant_q6_k(const uint8_t *data, float *out)
{
    struct block_q6_k block;
    memcpy(&block, data, sizeof(block));
    float scale = half_to_float(block.scale);
    for (int value = 0; value < BLOCK_K_VALUES; value++) {
        int side = value / 128, j = value / 32 % 4, i = value % 32;
        int low = block.low[64 * side + 32 * (j % 2) + i] >> 4 * (j / 2) & 15;
        int high = block.high[32 * side + i] >> 2 * j & 3;
        float sub_scale = scale * (float)block.scales[value / 16];
        out[value] = sub_scale * (float)((low | high << 4) - 32);
    }
}

/* ---- rows -------------------------------------------------------------------------------- */

static void dequant_f32(const uint8_t *data, float *out)
{
    memcpy(out, data, sizeof(*out));
}

static void dequant_f16(const uint8_t *data, float *out)
{
    uint16_t bits;
    memcpy(&bits, data, sizeof(bits));
    *out = half_to_float(bits);
}

static void dequant_bf16(const uint8_t *data, float *out)
{
    uint16_t bits;
    memcpy(&bits, data, sizeof(bits));
    *out = bfloat_to_float(bits);
}

static void (*const block_functions[TENSOR_TYPE_COUNT])(const uint8_t *data, float *out) = {
    [TENSOR_F32] = dequant_f32,   [TENSOR_F16] = dequant_f16,   [TENSOR_BF16] = dequant_bf16,
    [TENSOR_Q4_0] = dequant_q4_0, [TENSOR_Q4_1] = dequant_q4_1, [TENSOR_Q5_0] = dequant_q5_0,
    [TENSOR_Q5_1] = dequant_q5_1, [TENSOR_Q8_0] = dequant_q8_0, [TENSOR_Q4_K] = dequant_q4_k,
    [TENSOR_Q5_K] = dequant_q5_k, [TENSOR_Q6_K] = dequant_q6_k,
};

void dequant_row(enum tensor_type type, const uint8_t *data, uint64_t columns, float *out)
{
    uint32_t values = tensor_type_block_values(type), bytes = tensor_type_block_bytes(type);
    BATON_ASSERT(columns % values == 0);
    for (uint64_t i = 0; i < columns / values; i++)
        block_functions[type](data + i * bytes, out + i * values);
}

void dequant_weight_row(const struct weight *weight, uint32_t row, float *out)
{
    BATON_ASSERT(row < weight->rows);
    dequant_row(weight->type, weight->data + row * weight->row_bytes, weight->columns, out);
}
