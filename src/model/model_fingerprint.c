/* SPDX-License-Identifier: Apache-2.0 */
#include "model_fingerprint.h"

#include <stdio.h>

#define XXH_STATIC_LINKING_ONLY /* the state on the stack */
#include <xxhash.h>

/* So much of a weight is read at its beginning, in its middle and at its end: reading all of a large
 * model would take seconds at every start. */
#define SAMPLE_BYTES 4096u

static void number_add(XXH3_state_t *state, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> (8 * i));
    XXH3_128bits_update(state, bytes, sizeof(bytes));
}

static void float_add(XXH3_state_t *state, float number)
{
    XXH3_128bits_update(state, &number, sizeof(number));
}

static void config_add(XXH3_state_t *state, const struct model_config *config)
{
    const uint32_t numbers[] = {
        (uint32_t)config->family, config->layer_count, config->hidden_size, config->head_count,
        config->kv_head_count,    config->head_dim,    config->ffn_size,    config->vocab_size};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        number_add(state, numbers[i]);
    float_add(state, config->rms_epsilon);
    float_add(state, config->rope_theta);
    for (uint32_t i = 0; i < config->head_dim / 2; i++)
        float_add(state, config->rope_divisors[i]);
}

static void weight_add(XXH3_state_t *state, const struct weight *weight)
{
    uint64_t bytes = (uint64_t)weight->rows * weight->row_bytes;
    uint64_t length = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
    number_add(state, weight->type);
    number_add(state, weight->rows);
    number_add(state, weight->columns);
    XXH3_128bits_update(state, weight->data, length);
    XXH3_128bits_update(state, weight->data + (bytes - length) / 2, length);
    XXH3_128bits_update(state, weight->data + bytes - length, length);
}

void model_fingerprint(const struct model_config *config, const struct weights *weights,
                       char out[MODEL_FINGERPRINT_BYTES])
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    config_add(&state, config);
    for (uint32_t i = 0; i < weights_count(weights); i++) {
        const struct weight *weight = weights_at(weights, i);
        number_add(&state, weight ? i : UINT64_MAX);
        if (weight)
            weight_add(&state, weight);
    }
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    snprintf(out, MODEL_FINGERPRINT_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}
