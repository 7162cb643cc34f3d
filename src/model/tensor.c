/* SPDX-License-Identifier: Apache-2.0 */
/* The table of tensor types, and finding tensors by name. Both readers, gguf.c and
 * safetensors.c, check names and sizes with what is here, so that the rest of the program may
 * trust them. */
#include "tensor.h"
#include "tensor_blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t block_values, block_bytes, alignment;
} types[TENSOR_TYPE_COUNT] = {
    [TENSOR_F32] = {"F32", 1, 4, 4},
    [TENSOR_F16] = {"F16", 1, 2, 2},
    [TENSOR_BF16] = {"BF16", 1, 2, 2},
    [TENSOR_Q4_0] = {"Q4_0", BLOCK_VALUES, sizeof(struct block_q4_0), 2},
    [TENSOR_Q4_1] = {"Q4_1", BLOCK_VALUES, sizeof(struct block_q4_1), 2},
    [TENSOR_Q5_0] = {"Q5_0", BLOCK_VALUES, sizeof(struct block_q5_0), 2},
    [TENSOR_Q5_1] = {"Q5_1", BLOCK_VALUES, sizeof(struct block_q5_1), 2},
    [TENSOR_Q8_0] = {"Q8_0", BLOCK_VALUES, sizeof(struct block_q8_0), 2},
    [TENSOR_Q4_K] = {"Q4_K", BLOCK_K_VALUES, sizeof(struct block_q4_k), 2},
    [TENSOR_Q5_K] = {"Q5_K", BLOCK_K_VALUES, sizeof(struct block_q5_k), 2},
    [TENSOR_Q6_K] = {"Q6_K", BLOCK_K_VALUES, sizeof(struct block_q6_k), 2},
};

/* ---- types ------------------------------------------------------------------------------- */

const char *tensor_type_name(enum tensor_type type)
{
    return type < TENSOR_TYPE_COUNT ? types[type].name : "an unknown type";
}

const char *tensor_type_list(void)
{
    return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K";
}

uint32_t tensor_type_block_values(enum tensor_type type)
{
    BATON_ASSERT(type < TENSOR_TYPE_COUNT);
    return types[type].block_values;
}

uint32_t tensor_type_block_bytes(enum tensor_type type)
{
    BATON_ASSERT(type < TENSOR_TYPE_COUNT);
    return types[type].block_bytes;
}

uint32_t tensor_type_alignment(enum tensor_type type)
{
    BATON_ASSERT(type < TENSOR_TYPE_COUNT);
    return types[type].alignment;
}

int tensor_row_bytes(enum tensor_type type, uint64_t columns, uint64_t *out)
{
    uint64_t bytes, values = tensor_type_block_values(type);
    if (columns % values ||
        __builtin_mul_overflow(columns / values, tensor_type_block_bytes(type), &bytes))
        return BATON_EINVAL;
    *out = bytes;
    return BATON_OK;
}

/* ---- one tensor -------------------------------------------------------------------------- */

const char *tensor_shape_text(const struct tensor *tensor, char text[TENSOR_SHAPE_TEXT_BYTES])
{
    size_t length = 0;
    snprintf(text, TENSOR_SHAPE_TEXT_BYTES, "a single value");
    for (uint32_t i = 0; i < tensor->dimension_count; i++)
        length += (size_t)snprintf(text + length, TENSOR_SHAPE_TEXT_BYTES - length, "%s%llu",
                                   i ? "x" : "", (unsigned long long)tensor->shape[i]);
    return text;
}

bool text_is_printable(const char *bytes, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        if (bytes[i] < 0x20 || bytes[i] > 0x7e)
            return false;
    return true;
}

int tensor_name_set(struct tensor *tensor, const char *bytes, uint64_t length, struct error err)
{
    if (length == 0 || length >= TENSOR_NAME_BYTES)
        return error_set(err, BATON_ELIMIT, "a tensor's name has %llu bytes, must be 1 to %d",
                         (unsigned long long)length, TENSOR_NAME_BYTES - 1);
    if (!text_is_printable(bytes, length))
        return error_set(err, BATON_EINVAL,
                         "a tensor's name of %llu bytes is not printable ASCII",
                         (unsigned long long)length);
    memcpy(tensor->name, bytes, length);
    tensor->name[length] = '\0';
    return BATON_OK;
}

/* ---- the table --------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int compare_to_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct tensor *)tensor)->name);
}

int tensor_table_sort(struct tensor_table *table, struct error err)
{
    if (table->count)
        qsort(table->items, table->count, sizeof(*table->items), compare_names);
    for (uint32_t i = 1; i < table->count; i++)
        if (!strcmp(table->items[i - 1].name, table->items[i].name))
            return error_set(err, BATON_EINVAL, "tensor %s is there twice",
                             table->items[i].name);
    return BATON_OK;
}

const struct tensor *tensor_table_find(const struct tensor_table *table, const char *name)
{
    if (!table->count)
        return NULL;
    return bsearch(name, table->items, table->count, sizeof(*table->items), compare_to_name);
}
