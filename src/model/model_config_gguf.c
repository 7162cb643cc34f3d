/* SPDX-License-Identifier: Apache-2.0 */
/* A model's configuration out of GGUF metadata. Keys begin with the architecture
 * ("llama.block_count"); some facts are not in keys at all, but in which tensors there are. */
#include "model_config_parts.h"
#include "gguf.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *architecture;
    enum model_family family;
    enum rope_order rope_order;
} architectures[] = {
    {"llama", MODEL_LLAMA, ROPE_PAIRS},
    {"qwen2", MODEL_QWEN2, ROPE_HALVES},
    {"qwen3", MODEL_QWEN3, ROPE_HALVES},
};

/* Keys of one architecture. The first problem is kept and everything after it skipped, so that
 * the list of what is read stays a list. */
struct reader {
    const struct gguf *file;
    const char *architecture;
    int rc;
    struct error err;
};

#define KEY_BYTES 96
static const char *reader_key(const struct reader *reader, const char *name,
                              char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s.%s", reader->architecture, name);
    return key;
}

/* A missing key leaves *out as it was; that is an error where `required`. */
static void read_u32(struct reader *reader, const char *name, bool required, uint32_t *out)
{
    char key[KEY_BYTES];
    if (reader->rc)
        return;
    int rc = gguf_get_u32(reader->file, reader_key(reader, name, key), out, reader->err);
    if (rc != BATON_ENOTFOUND || required)
        reader->rc = rc;
}

static void read_float(struct reader *reader, const char *name, float *out)
{
    char key[KEY_BYTES];
    if (reader->rc)
        return;
    int rc = gguf_get_float(reader->file, reader_key(reader, name, key), out, reader->err);
    if (rc != BATON_ENOTFOUND)
        reader->rc = rc;
}

/* ---- parts ------------------------------------------------------------------------------- */

static int architecture_read(const struct gguf *file, struct model_config *config,
                             const char **architecture, struct error err)
{
    struct gguf_string name;
    int rc = gguf_get_string(file, "general.architecture", &name, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++) {
        if (!gguf_string_equal(name, architectures[i].architecture))
            continue;
        config->family = architectures[i].family;
        config->rope_order = architectures[i].rope_order;
        *architecture = architectures[i].architecture;
        return BATON_OK;
    }
    return model_family_refuse(gguf_path(file), name.bytes, name.length, err);
}

static int kind_check(struct reader *reader)
{
    uint32_t parts = 1, experts = 0;
    const char *path = gguf_path(reader->file);
    int rc = gguf_get_u32(reader->file, "split.count", &parts, reader->err);
    if (rc && rc != BATON_ENOTFOUND)
        return rc;
    if (parts > 1)
        return error_set(reader->err, BATON_EUNSUPPORTED,
                         "%s is one of %u parts of a model; join them into one file first "
                         "(llama-gguf-split --merge)",
                         path, parts);
    read_u32(reader, "expert_count", false, &experts);
    if (!reader->rc && experts)
        return error_set(reader->err, BATON_EUNSUPPORTED,
                         "%s is a mixture of %u experts, which is not supported", path,
                         experts);
    return reader->rc;
}

static int sizes_read(struct reader *reader, struct model_config *config)
{
    uint32_t value_dim, rope_dim;
    read_u32(reader, "block_count", true, &config->layer_count);
    read_u32(reader, "context_length", true, &config->context_length);
    read_u32(reader, "embedding_length", true, &config->hidden_size);
    read_u32(reader, "feed_forward_length", true, &config->ffn_size);
    read_u32(reader, "attention.head_count", true, &config->head_count);
    config->kv_head_count = config->head_count;
    read_u32(reader, "attention.head_count_kv", false, &config->kv_head_count);
    config->head_dim = config->head_count ? config->hidden_size / config->head_count : 0;
    read_u32(reader, "attention.key_length", false, &config->head_dim);
    value_dim = rope_dim = config->head_dim;
    read_u32(reader, "attention.value_length", false, &value_dim);
    read_u32(reader, "rope.dimension_count", false, &rope_dim);
    read_u32(reader, "attention.sliding_window", false, &config->sliding_window);
    if (!reader->rc && (value_dim != config->head_dim || rope_dim != config->head_dim))
        return error_set(
            reader->err, BATON_EUNSUPPORTED,
            "%s: keys have %u dimensions, values %u, and %u are rotated; they must "
            "be the same",
            gguf_path(reader->file), config->head_dim, value_dim, rope_dim);
    return reader->rc;
}

static int scaling_type_check(struct reader *reader, bool *linear)
{
    char key[KEY_BYTES];
    struct gguf_string type;
    int rc = gguf_get_string(reader->file, reader_key(reader, "rope.scaling.type", key), &type,
                             reader->err);
    if (rc == BATON_ENOTFOUND)
        return BATON_OK;
    if (rc)
        return rc;
    *linear = gguf_string_equal(type, "linear");
    if (*linear || gguf_string_equal(type, "none"))
        return BATON_OK;
    bool shown = type.length <= 32 && text_is_printable(type.bytes, type.length);
    return error_set(reader->err, BATON_EUNSUPPORTED,
                     "%s: rope scaling of the type \"%.*s\" is not supported; none, linear and "
                     "Llama 3's are",
                     gguf_path(reader->file), shown ? (int)type.length : 1,
                     shown ? type.bytes : "?");
}

/* Llama 3's scaling comes as a tensor of ready-made divisors. */
static int factors_read(const struct gguf *file, struct model_config *config, struct error err)
{
    const struct tensor *tensor = tensor_table_find(gguf_tensors(file), "rope_freqs.weight");
    uint64_t count = config->head_dim / 2;
    float factors[MODEL_HEAD_DIM_MAX / 2];
    if (!tensor || config->head_dim > MODEL_HEAD_DIM_MAX)
        return BATON_OK; /* an impossible head is refused by model_config_finish */
    if (tensor->type != TENSOR_F32 || tensor->bytes != count * sizeof(float))
        return error_set(err, BATON_EINVAL,
                         "%s: rope_freqs.weight must be F32, one for each of the %u pairs of a "
                         "head",
                         gguf_path(file), config->head_dim / 2);
    memcpy(factors, tensor->data, tensor->bytes);
    for (uint64_t i = 0; i < count; i++)
        config->rope_divisors[i] = factors[i] * config->rope_factor;
    config->rope_scaling = ROPE_SCALING_FACTORS;
    return BATON_OK;
}

static int rope_read(struct reader *reader, struct model_config *config)
{
    bool linear = false;
    read_float(reader, "rope.freq_base", &config->rope_theta);
    if (reader->rc || (reader->rc = scaling_type_check(reader, &linear)))
        return reader->rc;
    read_float(reader, "rope.scale_linear", &config->rope_factor); /* files of 2023 */
    if (linear)
        read_float(reader, "rope.scaling.factor", &config->rope_factor);
    if (config->rope_factor != 1)
        config->rope_scaling = ROPE_SCALING_LINEAR;
    if (!reader->rc)
        reader->rc = factors_read(reader->file, config, reader->err);
    return reader->rc;
}

static int tokens_read(const struct gguf *file, struct model_config *config, struct error err)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    uint32_t token = 0;
    int rc = gguf_get_u32(file, "tokenizer.ggml.bos_token_id", &token, err);
    if (rc && rc != BATON_ENOTFOUND)
        return rc;
    if (token > INT32_MAX)
        return error_set(err, BATON_EINVAL, "%s: %u is no begin-of-sequence token",
                         gguf_path(file), token);
    if (!rc)
        config->bos_token = (int32_t)token;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        rc = gguf_get_u32(file, ends[i], &token, err);
        if (!rc)
            rc = model_config_add_eos(config, token, gguf_path(file), err);
        if (rc && rc != BATON_ENOTFOUND)
            return rc;
    }
    return BATON_OK;
}

/* What the presence of tensors tells. The vocabulary is as large as the embedding: the key
 * vocab_size is missing in some files. */
static int tensors_read(const struct gguf *file, struct model_config *config, struct error err)
{
    const struct tensor_table *tensors = gguf_tensors(file);
    const struct tensor *embedding = tensor_table_find(tensors, "token_embd.weight");
    if (!embedding)
        return error_set(err, BATON_ENOTFOUND,
                         "%s has no tensor token_embd.weight: it holds no whole model%s",
                         gguf_path(file), tensors->count ? "" : ", perhaps only a vocabulary");
    if (embedding->dimension_count != 2 || embedding->shape[0] > UINT32_MAX)
        return error_set(err, BATON_EINVAL, "%s: token_embd.weight is not a matrix",
                         gguf_path(file));
    config->vocab_size = (uint32_t)embedding->shape[0];
    config->tied_embeddings = !tensor_table_find(tensors, "output.weight");
    config->qkv_bias = config->family == MODEL_QWEN2 ||
                       tensor_table_find(tensors, "blk.0.attn_q.bias") != NULL;
    config->qk_norm = config->family == MODEL_QWEN3;
    return BATON_OK;
}

/* ---- the whole --------------------------------------------------------------------------- */

int model_config_from_gguf(const struct gguf *file, struct model_config *out, struct error err)
{
    struct model_config config;
    struct gguf_string name = {"", 0};
    struct reader reader = {.file = file, .err = err};
    int rc;
    model_config_init(&config);
    if ((rc = architecture_read(file, &config, &reader.architecture, err)) ||
        (rc = kind_check(&reader)) || (rc = sizes_read(&reader, &config)))
        return rc;
    read_float(&reader, "attention.layer_norm_rms_epsilon", &config.rms_epsilon);
    if ((rc = rope_read(&reader, &config)) || (rc = tokens_read(file, &config, err)) ||
        (rc = tensors_read(file, &config, err)) ||
        (rc = model_config_finish(&config, gguf_path(file), err)))
        return rc;
    rc = gguf_get_string(file, "general.name", &name, err);
    if (rc && rc != BATON_ENOTFOUND)
        return rc;
    model_config_set_name(&config, name.bytes, name.length, gguf_path(file));
    *out = config;
    return BATON_OK;
}
