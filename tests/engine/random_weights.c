/* SPDX-License-Identifier: Apache-2.0 */
/* See random_weights.h. Quantised blocks are random bytes with scales put in that make sense. */
#include "random_weights.h"

#include "engine/cpu/number.h"
#include "model/tensor_blocks.h"

#include <stdlib.h>
#include <string.h>

uint64_t random_stream_next(struct random_stream *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t random_stream_below(struct random_stream *random, uint32_t bound)
{
    return (uint32_t)(random_stream_next(random) % bound);
}

float random_stream_float(struct random_stream *random, float scale)
{
    return ((float)(random_stream_next(random) >> 40) / 8388608.0f - 1.0f) * scale;
}

static uint16_t random_half(struct random_stream *random, float least, float most)
{
    float unit = (float)(random_stream_next(random) >> 40) / 16777216.0f;
    return half_from_float(least + unit * (most - least));
}

/* Scales such that the block's values reach about `scale`. */
static void set_scales(struct random_stream *random, enum tensor_type type, uint8_t *block,
                       float scale)
{
    uint16_t halves[2] = {0, 0};
    switch (type) {
    case TENSOR_Q4_0: halves[0] = random_half(random, scale / 16, scale / 8); break;
    case TENSOR_Q5_0: halves[0] = random_half(random, scale / 32, scale / 16); break;
    case TENSOR_Q8_0: halves[0] = random_half(random, scale / 254, scale / 127); break;
    case TENSOR_Q4_1:
        halves[0] = random_half(random, scale / 15, scale / 7.5f);
        halves[1] = random_half(random, -scale, -scale / 2);
        break;
    case TENSOR_Q5_1:
        halves[0] = random_half(random, scale / 31, scale / 15.5f);
        halves[1] = random_half(random, -scale, -scale / 2);
        break;
    case TENSOR_Q4_K:
    case TENSOR_Q5_K:
        halves[0] = random_half(random, scale / 1000, scale / 500);
        halves[1] = random_half(random, scale / 128, scale / 64);
        break;
    default: break;
    }
    if (type == TENSOR_Q6_K) {
        uint16_t last = random_half(random, scale / 8192, scale / 4096);
        memcpy(block + offsetof(struct block_q6_k, scale), &last, sizeof(last));
        return;
    }
    bool two = type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q4_K ||
               type == TENSOR_Q5_K;
    memcpy(block, halves, two ? 4 : 2);
}

static void fill_row(struct random_stream *random, enum tensor_type type, uint32_t columns,
                     float scale, uint8_t *row)
{
    uint32_t values = tensor_type_block_values(type), bytes = tensor_type_block_bytes(type);
    for (uint32_t at = 0; at < columns; at += values, row += bytes) {
        float value = random_stream_float(random, scale);
        uint16_t small = type == TENSOR_F16 ? half_from_float(value) : bfloat_from_float(value);
        if (type == TENSOR_F32) {
            memcpy(row, &value, 4);
        } else if (type == TENSOR_F16 || type == TENSOR_BF16) {
            memcpy(row, &small, 2);
        } else {
            for (uint32_t i = 0; i < bytes; i++)
                row[i] = (uint8_t)random_stream_next(random);
            set_scales(random, type, row, scale);
        }
    }
}

struct weight random_weight(struct random_stream *random, const char *name,
                            enum tensor_type type, uint32_t rows, uint32_t columns, float scale)
{
    struct weight weight = {.name = name, .type = type, .rows = rows, .columns = columns};
    if (tensor_row_bytes(type, columns, &weight.row_bytes))
        abort();
    uint8_t *data = malloc(rows * weight.row_bytes);
    if (!data)
        abort();
    for (uint32_t r = 0; r < rows; r++)
        fill_row(random, type, columns, scale, data + r * weight.row_bytes);
    weight.data = data;
    return weight;
}

void random_weight_free(struct weight *weight)
{
    free((void *)(uintptr_t)weight->data);
    weight->data = NULL;
}
