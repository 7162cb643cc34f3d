/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face model as a stranger might send it. The input is config.json, a zero byte, and a
 * safetensors file; without a zero byte it is all configuration. Each is refused with a sentence
 * or can be used to the last byte. */
#include "model/dequant.h"
#include "model/model_file_json.h"
#include "model/safetensors.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* keeps what is read from being optimised away */

static void tensors_read(const struct tensor_table *tensors)
{
    for (uint32_t i = 0; i < tensors->count; i++)
        for (uint64_t j = 0; j < tensors->items[i].bytes; j++)
            sink += tensors->items[i].data[j];
}

static void weights_read(const struct weights *weights)
{
    for (uint32_t i = 0; i < weights_count(weights); i++) {
        const struct weight *weight = weights_at(weights, i);
        if (!weight)
            continue;
        BATON_ASSERT((uintptr_t)weight->data % tensor_type_alignment(weight->type) == 0);
        float *row = malloc(weight->columns * sizeof(*row));
        for (uint32_t j = 0; row && j < weight->rows; j++)
            dequant_weight_row(weight, j, row);
        free(row);
    }
}

/* One configuration serves as generation_config.json, too. */
static bool config_read(const char *text, size_t size, struct model_config *config)
{
    char problem[300] = "";
    json_t *json;
    if (model_json_parse(text, size, "input", &json, ERROR_BUFFER(problem))) {
        BATON_ASSERT(problem[0]);
        return false;
    }
    int rc = model_config_from_json(json, json, "input", config, ERROR_BUFFER(problem));
    json_decref(json);
    BATON_ASSERT(!rc || problem[0]);
    return !rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config config;
    struct tensor_table tensors;
    struct weights weights;
    char text[300] = "";
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t config_size = end ? (size_t)(end - data) : size;
    bool whole = config_read((const char *)data, config_size, &config);
    if (!end)
        return 0;
    if (safetensors_parse(end + 1, size - config_size - 1, "input", &tensors,
                          ERROR_BUFFER(text))) {
        BATON_ASSERT(text[0]);
        return 0;
    }
    tensors_read(&tensors);
    if (whole && !weights_resolve(&config, &tensors, WEIGHTS_NAMED_HUGGING_FACE, "input",
                                  &weights, ERROR_BUFFER(text))) {
        weights_read(&weights);
        weights_release(&weights);
    }
    free(tensors.items);
    return 0;
}
