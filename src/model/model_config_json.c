/* SPDX-License-Identifier: Apache-2.0 */
/* A model's configuration out of Hugging Face's config.json, with the ends of generation out of
 * generation_config.json. Defaults are those of the `transformers` classes. What would change
 * the result and is not computed here (other activations, partial rotation, other scalings,
 * quantised checkpoints, biases elsewhere) is refused by name. */
#include "model_config_parts.h"
#include "tensor.h"

#include <jansson.h>
#include <string.h>

/* The first problem is kept and everything after it skipped. */
struct reader {
    const json_t *config;
    const char *path;
    int rc;
    struct error err;
};

static const struct {
    const char *model_type, *architecture;
    enum model_family family;
} families[] = {
    {"llama", "LlamaForCausalLM", MODEL_LLAMA},
    {"mistral", "MistralForCausalLM", MODEL_LLAMA},
    {"qwen2", "Qwen2ForCausalLM", MODEL_QWEN2},
    {"qwen3", "Qwen3ForCausalLM", MODEL_QWEN3},
};

/* ---- single fields ----------------------------------------------------------------------- */

/* NULL when it is missing or null. */
static const json_t *field_find(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static void field_refuse(struct reader *reader, const char *name, const char *wanted)
{
    reader->rc =
        error_set(reader->err, BATON_EINVAL, "%s: %s must be %s", reader->path, name, wanted);
}

/* A missing field leaves *out as it was; that is an error where `required`. */
static void read_u32(struct reader *reader, const json_t *object, const char *name,
                     bool required, uint32_t *out)
{
    const json_t *value = field_find(object, name);
    if (reader->rc)
        return;
    if (!value && required)
        reader->rc =
            error_set(reader->err, BATON_ENOTFOUND, "%s: %s is missing", reader->path, name);
    else if (value && (!json_is_integer(value) || json_integer_value(value) < 0 ||
                       json_integer_value(value) > UINT32_MAX))
        field_refuse(reader, name, "a count");
    else if (value)
        *out = (uint32_t)json_integer_value(value);
}

static void read_float(struct reader *reader, const json_t *object, const char *name,
                       bool required, float *out)
{
    const json_t *value = field_find(object, name);
    if (reader->rc)
        return;
    if (!value && required)
        reader->rc =
            error_set(reader->err, BATON_ENOTFOUND, "%s: %s is missing", reader->path, name);
    else if (value && !json_is_number(value))
        field_refuse(reader, name, "a number");
    else if (value)
        *out = (float)json_number_value(value);
}

static void read_bool(struct reader *reader, const char *name, bool *out)
{
    const json_t *value = field_find(reader->config, name);
    if (reader->rc || !value)
        return;
    if (!json_is_boolean(value))
        field_refuse(reader, name, "true or false");
    else
        *out = json_is_true(value);
}

/* "?" when it holds what should not be printed. */
static const char *text_shown(const char *text)
{
    return strlen(text) <= 64 && text_is_printable(text, strlen(text)) ? text : "?";
}

static void unsupported(struct reader *reader, const char *what)
{
    if (!reader->rc)
        reader->rc = error_set(reader->err, BATON_EUNSUPPORTED, "%s: %s is not supported",
                               reader->path, what);
}

/* ---- parts ------------------------------------------------------------------------------- */

static void family_read(struct reader *reader, struct model_config *config)
{
    const char *type = json_string_value(field_find(reader->config, "model_type"));
    const char *architecture =
        json_string_value(json_array_get(field_find(reader->config, "architectures"), 0));
    if (!type) {
        reader->rc =
            error_set(reader->err, BATON_ENOTFOUND, "%s: model_type is missing", reader->path);
        return;
    }
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (!strcmp(type, families[i].model_type) &&
            (!architecture || !strcmp(architecture, families[i].architecture))) {
            config->family = families[i].family;
            return;
        }
    const char *name = architecture ? architecture : type;
    reader->rc = model_family_refuse(reader->path, name, strlen(name), reader->err);
}

static void sizes_read(struct reader *reader, struct model_config *config)
{
    const json_t *json = reader->config;
    read_u32(reader, json, "num_hidden_layers", true, &config->layer_count);
    read_u32(reader, json, "hidden_size", true, &config->hidden_size);
    read_u32(reader, json, "intermediate_size", true, &config->ffn_size);
    read_u32(reader, json, "vocab_size", true, &config->vocab_size);
    read_u32(reader, json, "max_position_embeddings", true, &config->context_length);
    read_u32(reader, json, "num_attention_heads", true, &config->head_count);
    config->kv_head_count = config->head_count;
    read_u32(reader, json, "num_key_value_heads", false, &config->kv_head_count);
    config->head_dim = config->head_count ? config->hidden_size / config->head_count : 0;
    if (config->family == MODEL_QWEN3)
        config->head_dim = 128;
    read_u32(reader, json, "head_dim", false, &config->head_dim);
    read_float(reader, json, "rms_norm_eps", false, &config->rms_epsilon);
    read_bool(reader, "tie_word_embeddings", &config->tied_embeddings);
    config->qkv_bias = config->family == MODEL_QWEN2;
    config->qk_norm = config->family == MODEL_QWEN3;
}

static void extras_refuse(struct reader *reader)
{
    const char *activation = json_string_value(field_find(reader->config, "hidden_act"));
    const json_t *quantization = field_find(reader->config, "quantization_config");
    bool attention_bias = false, mlp_bias = false;
    float rotated = 1;
    if (activation && strcmp(activation, "silu"))
        unsupported(reader, "an activation (hidden_act) other than silu");
    if (quantization)
        unsupported(reader, "a quantised checkpoint (quantization_config)");
    read_bool(reader, "attention_bias", &attention_bias);
    read_bool(reader, "mlp_bias", &mlp_bias);
    read_float(reader, reader->config, "partial_rotary_factor", false, &rotated);
    if (attention_bias)
        unsupported(reader, "attention_bias (a bias of the attention's output)");
    if (mlp_bias)
        unsupported(reader, "mlp_bias");
    if (rotated != 1)
        unsupported(reader, "a partial_rotary_factor other than 1");
}

static void window_read(struct reader *reader, struct model_config *config)
{
    const json_t *layers = field_find(reader->config, "layer_types");
    bool used = config->family == MODEL_LLAMA; /* Qwen has the number always, and a switch */
    read_bool(reader, "use_sliding_window", &used);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const char *type = json_string_value(json_array_get(layers, i));
        if (type && !strcmp(type, "sliding_attention"))
            used = true;
        else if (!type || strcmp(type, "full_attention"))
            unsupported(reader, "a layer type other than full_attention (layer_types)");
    }
    if (used)
        read_u32(reader, reader->config, "sliding_window", false, &config->sliding_window);
}

/* rope_scaling, or since transformers 5 rope_parameters, which also holds the base. */
static void rope_read(struct reader *reader, struct model_config *config)
{
    const json_t *scaling = field_find(reader->config, "rope_parameters");
    if (!scaling)
        scaling = field_find(reader->config, "rope_scaling");
    if (scaling && !json_is_object(scaling))
        field_refuse(reader, "rope_scaling", "an object");
    read_float(reader, reader->config, "rope_theta", false, &config->rope_theta);
    read_float(reader, scaling, "rope_theta", false, &config->rope_theta);
    const char *type = json_string_value(field_find(scaling, "rope_type"));
    if (!type)
        type = json_string_value(field_find(scaling, "type"));
    if (!type || !strcmp(type, "default") || reader->rc)
        return;
    if (!strcmp(type, "linear")) {
        config->rope_scaling = ROPE_SCALING_LINEAR;
        read_float(reader, scaling, "factor", true, &config->rope_factor);
    } else if (!strcmp(type, "llama3")) {
        config->rope_scaling = ROPE_SCALING_LLAMA3;
        read_float(reader, scaling, "factor", true, &config->rope_factor);
        read_float(reader, scaling, "low_freq_factor", true,
                   &config->rope_low_frequency_factor);
        read_float(reader, scaling, "high_freq_factor", true,
                   &config->rope_high_frequency_factor);
        read_u32(reader, scaling, "original_max_position_embeddings", true,
                 &config->rope_original_context);
    } else {
        reader->rc = error_set(reader->err, BATON_EUNSUPPORTED,
                               "%s: rope scaling of the type \"%s\" is not supported; default, "
                               "linear and llama3 are",
                               reader->path, text_shown(type));
    }
}

/* A number, or a list of them. */
static void ends_read(struct reader *reader, const json_t *object, struct model_config *config)
{
    const json_t *ends = field_find(object, "eos_token_id");
    size_t count = json_is_array(ends) ? json_array_size(ends) : ends != NULL;
    for (size_t i = 0; i < count && !reader->rc; i++) {
        const json_t *end = json_is_array(ends) ? json_array_get(ends, i) : ends;
        if (!json_is_integer(end))
            field_refuse(reader, "eos_token_id", "a token or a list of tokens");
        else
            reader->rc = model_config_add_eos(config, json_integer_value(end), reader->path,
                                              reader->err);
    }
}

static void tokens_read(struct reader *reader, const json_t *generation,
                        struct model_config *config)
{
    uint32_t bos = UINT32_MAX;
    read_u32(reader, reader->config, "bos_token_id", false, &bos);
    if (bos <= INT32_MAX)
        config->bos_token = (int32_t)bos;
    ends_read(reader, reader->config, config);
    ends_read(reader, generation, config);
}

/* ---- the whole --------------------------------------------------------------------------- */

int model_config_from_json(const json_t *json, const json_t *generation, const char *path,
                           struct model_config *out, struct error err)
{
    struct reader reader = {.config = json, .path = path, .err = err};
    struct model_config config;
    model_config_init(&config);
    config.rope_order = ROPE_HALVES;
    family_read(&reader, &config);
    sizes_read(&reader, &config);
    extras_refuse(&reader);
    window_read(&reader, &config);
    rope_read(&reader, &config);
    tokens_read(&reader, generation, &config);
    if (reader.rc || (reader.rc = model_config_finish(&config, path, err)))
        return reader.rc;
    model_config_set_name(&config, "", 0, path);
    *out = config;
    return BATON_OK;
}
