/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever is in a GGUF file, it is refused with a sentence or can be used to the last byte: the
 * input is a file, and it goes all the way that a model goes, short of computing with it. */
#include "model/dequant.h"
#include "model/gguf.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* keeps what is read from being optimised away */

static void bytes_read(const void *bytes, uint64_t size)
{
    for (uint64_t i = 0; i < size; i++)
        sink += ((const uint8_t *)bytes)[i];
}

static void key_read(const struct gguf *file, const char *key)
{
    struct gguf_string string, *strings;
    struct gguf_array array;
    int64_t number;
    uint64_t positive;
    float real;
    bool flag;
    gguf_get_i64(file, key, &number, ERROR_NONE);
    gguf_get_u64(file, key, &positive, ERROR_NONE);
    gguf_get_float(file, key, &real, ERROR_NONE);
    gguf_get_bool(file, key, &flag, ERROR_NONE);
    if (!gguf_get_string(file, key, &string, ERROR_NONE))
        bytes_read(string.bytes, string.length);
    for (int type = 0; type < GGUF_TYPE_COUNT; type++) {
        if (gguf_get_array(file, key, type, &array, ERROR_NONE))
            continue;
        if (type == GGUF_STRING && !gguf_array_strings(&array, &strings, ERROR_NONE)) {
            for (uint64_t i = 0; i < array.count; i++)
                bytes_read(strings[i].bytes, strings[i].length);
            free(strings);
        }
        for (uint64_t i = 0; i < array.count && type != GGUF_STRING; i++)
            sink += type == GGUF_FLOAT32 || type == GGUF_FLOAT64
                        ? gguf_array_float(&array, i) > 0
                        : (uint64_t)gguf_array_integer(&array, i);
    }
}

static void file_read(const struct gguf *file)
{
    for (uint32_t i = 0; i < gguf_key_count(file); i++) {
        char key[300];
        struct gguf_string name = gguf_key_name(file, i);
        snprintf(key, sizeof(key), "%.*s", (int)name.length, name.bytes);
        BATON_ASSERT(gguf_has(file, key));
        key_read(file, key);
    }
    for (uint32_t i = 0; i < gguf_tensors(file)->count; i++) {
        const struct tensor *tensor = &gguf_tensors(file)->items[i];
        BATON_ASSERT(tensor_table_find(gguf_tensors(file), tensor->name) == tensor);
        bytes_read(tensor->data, tensor->bytes);
    }
}

static void weights_read(const struct weights *weights)
{
    for (uint32_t i = 0; i < weights_count(weights); i++) {
        const struct weight *weight = weights_at(weights, i);
        if (!weight)
            continue;
        float *row = malloc(weight->columns * sizeof(*row));
        for (uint32_t j = 0; row && j < weight->rows; j++)
            dequant_weight_row(weight, j, row);
        free(row);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *file;
    struct model_config config;
    struct weights weights;
    char text[300] = "";
    if (gguf_parse(data, size, "input", &file, ERROR_BUFFER(text))) {
        BATON_ASSERT(text[0]);
        return 0;
    }
    file_read(file);
    if (!model_config_from_gguf(file, &config, ERROR_BUFFER(text))) {
        float frequencies[MODEL_HEAD_DIM_MAX / 2];
        model_config_rope_frequencies(&config, frequencies);
        if (!weights_resolve(&config, gguf_tensors(file), WEIGHTS_NAMED_GGUF, "input", &weights,
                             ERROR_BUFFER(text))) {
            weights_read(&weights);
            weights_release(&weights);
        }
    }
    gguf_close(file);
    return 0;
}
