/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that say how a model is computed, the same struct whether they come from GGUF
 * metadata or from a Hugging Face config.json. A config that was filled in has been checked:
 * every count is at least 1 and small enough to multiply, heads divide evenly, and whatever the
 * model would need beyond this struct has been refused. */
#ifndef BATON_MODEL_MODEL_CONFIG_H
#define BATON_MODEL_MODEL_CONFIG_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct gguf;
struct json_t;

enum model_family {
    MODEL_LLAMA, /* Llama 1 to 3, SmolLM2, Mistral */
    MODEL_QWEN2, /* biases on q, k and v */
    MODEL_QWEN3, /* RMS norm of each head's q and k before the rotation */
    MODEL_FAMILY_COUNT
};

/* Which two numbers of a head the rotary embedding turns together. It is a property of the rows
 * of the Q and K matrices (and of their biases and norms): Hugging Face keeps halves; GGUF files
 * of the llama family were permuted to pairs when they were made, those of Qwen were not. */
enum rope_order {
    ROPE_HALVES, /* i and i + head_dim / 2 */
    ROPE_PAIRS   /* 2i and 2i + 1 */
};

enum rope_scaling {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR,
    ROPE_SCALING_LLAMA3, /* by wave length, from the four numbers of config.json */
    ROPE_SCALING_FACTORS /* the same, already worked out: GGUF's tensor rope_freqs.weight */
};

#define MODEL_HEAD_DIM_MAX 512
#define MODEL_EOS_MAX 16
#define MODEL_NAME_BYTES 128
#define MODEL_TOKEN_NONE (-1)

struct model_config {
    enum model_family family;
    char name[MODEL_NAME_BYTES]; /* for people; never empty */

    uint32_t layer_count;
    uint32_t hidden_size;
    uint32_t head_count; /* a multiple of kv_head_count */
    uint32_t kv_head_count;
    uint32_t head_dim; /* even; heads * head_dim need not be hidden_size */
    uint32_t ffn_size;
    uint32_t vocab_size; /* rows of the embedding; a tokenizer may know fewer tokens */
    uint32_t context_length;

    float rms_epsilon;
    bool tied_embeddings; /* the output matrix is the embedding */
    bool qkv_bias;
    bool qk_norm;

    enum rope_order rope_order;
    float rope_theta;
    enum rope_scaling rope_scaling;
    /* What the model's maker wrote, for reports; 0 where it does not apply. */
    float rope_factor, rope_low_frequency_factor, rope_high_frequency_factor;
    uint32_t rope_original_context;
    /* What to compute with: head_dim / 2 divisors of the frequencies, 1 where nothing is scaled.
     * model_config_rope_frequencies applies them. */
    float rope_divisors[MODEL_HEAD_DIM_MAX / 2];

    uint32_t sliding_window; /* 0: none. See model_config_check_context. */

    int32_t bos_token; /* MODEL_TOKEN_NONE: none */
    int32_t eos_tokens[MODEL_EOS_MAX];
    uint32_t eos_count;
};

int model_config_from_gguf(const struct gguf *file, struct model_config *out, struct error err);

/* Of config.json, and generation_config.json or NULL where there is none (jansson objects).
 * `path` is the folder, for error texts. */
int model_config_from_json(const struct json_t *config, const struct json_t *generation,
                           const char *path, struct model_config *out, struct error err);

/* May `positions` tokens be computed at once? EINVAL beyond context_length; EUNSUPPORTED beyond
 * the sliding window: up to its length full attention gives the same result, and past it would
 * silently give another. */
int model_config_check_context(const struct model_config *config, uint32_t positions,
                               struct error err);

/* head_dim / 2 angles per position, scaling included: theta^(-2i / head_dim) / divisor[i]. */
void model_config_rope_frequencies(const struct model_config *config, float *out);

const char *model_family_name(enum model_family family); /* "qwen3" */
const char *rope_scaling_name(enum rope_scaling scaling);

#endif
