/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that every configuration must keep, and the rotary frequencies that follow from it.
 * The limits are far above any model, and low enough that the product of any two of them fits in
 * 64 bits with room to spare: whoever multiplies later need not check again. */
#include "model_config_parts.h"
#include "tensor.h"

#include <math.h>
#include <string.h>

#define LAYERS_MAX 4096
#define WIDTH_MAX (1u << 20)
#define VOCAB_MAX (1u << 26)
#define HEADS_MAX 4096
#define CONTEXT_MAX (1u << 30)

const char *model_family_name(enum model_family family)
{
    static const char *const names[MODEL_FAMILY_COUNT] = {"llama", "qwen2", "qwen3"};
    BATON_ASSERT(family < MODEL_FAMILY_COUNT);
    return names[family];
}

const char *rope_scaling_name(enum rope_scaling scaling)
{
    switch (scaling) {
    case ROPE_SCALING_NONE: return "none";
    case ROPE_SCALING_LINEAR: return "linear";
    case ROPE_SCALING_LLAMA3: return "llama3";
    case ROPE_SCALING_FACTORS: return "factors of the file";
    }
    return "?";
}

int model_family_refuse(const char *path, const char *name, size_t length, struct error err)
{
    bool shown = length <= 64 && text_is_printable(name, length);
    return error_set(err, BATON_EUNSUPPORTED,
                     "%s is a model of the architecture \"%.*s\"; supported are llama (with "
                     "SmolLM2 and Mistral), qwen2 and qwen3, dense",
                     path, shown ? (int)length : 1, shown ? name : "?");
}

/* ---- filling in -------------------------------------------------------------------------- */

void model_config_init(struct model_config *config)
{
    *config = (struct model_config){.rms_epsilon = 1e-6f,
                                    .rope_theta = 10000,
                                    .rope_factor = 1,
                                    .bos_token = MODEL_TOKEN_NONE};
}

int model_config_add_eos(struct model_config *config, int64_t token, const char *path,
                         struct error err)
{
    for (uint32_t i = 0; i < config->eos_count; i++)
        if (config->eos_tokens[i] == token)
            return BATON_OK;
    if (token < 0 || token > INT32_MAX)
        return error_set(err, BATON_EINVAL, "%s: %lld is no end-of-sequence token", path,
                         (long long)token);
    if (config->eos_count == MODEL_EOS_MAX)
        return error_set(err, BATON_ELIMIT, "%s: there are more than %d end-of-sequence tokens",
                         path, MODEL_EOS_MAX);
    config->eos_tokens[config->eos_count++] = (int32_t)token;
    return BATON_OK;
}

void model_config_set_name(struct model_config *config, const char *bytes, size_t length,
                           const char *path)
{
    if (length == 0) {
        size_t end = strlen(path);
        while (end > 1 && path[end - 1] == '/')
            end--;
        size_t begin = end;
        while (begin > 0 && path[begin - 1] != '/')
            begin--;
        bytes = end > begin ? path + begin : "model";
        length = end > begin ? end - begin : strlen("model");
    }
    if (length >= MODEL_NAME_BYTES)
        length = MODEL_NAME_BYTES - 1;
    for (size_t i = 0; i < length; i++)
        config->name[i] = text_is_printable(&bytes[i], 1) ? bytes[i] : '?';
    config->name[length] = '\0';
}

/* ---- rotary frequencies ------------------------------------------------------------------ */

static double rope_frequency(const struct model_config *config, uint32_t i)
{
    return pow(config->rope_theta, -2.0 * i / config->head_dim);
}

/* Llama 3: long waves are stretched by `factor`, short ones stay, and between the two it moves
 * linearly in the number of turns per original context. */
static double llama3_divisor(const struct model_config *config, double frequency)
{
    double low = config->rope_low_frequency_factor, high = config->rope_high_frequency_factor;
    double turns = config->rope_original_context * frequency / (2 * M_PI);
    if (turns > high)
        return 1;
    if (turns < low)
        return config->rope_factor;
    double unscaled = (turns - low) / (high - low);
    return 1 / ((1 - unscaled) / config->rope_factor + unscaled);
}

static void divisors_fill(struct model_config *config)
{
    for (uint32_t i = 0; i < config->head_dim / 2; i++) {
        double divisor = 1;
        if (config->rope_scaling == ROPE_SCALING_LINEAR)
            divisor = config->rope_factor;
        else if (config->rope_scaling == ROPE_SCALING_LLAMA3)
            divisor = llama3_divisor(config, rope_frequency(config, i));
        config->rope_divisors[i] = (float)divisor;
    }
}

void model_config_rope_frequencies(const struct model_config *config, float *out)
{
    for (uint32_t i = 0; i < config->head_dim / 2; i++)
        out[i] = (float)(rope_frequency(config, i) / config->rope_divisors[i]);
}

/* ---- judging ----------------------------------------------------------------------------- */

static int range_check(const char *path, const char *name, uint32_t value, uint32_t least,
                       uint32_t most, struct error err)
{
    if (value >= least && value <= most)
        return BATON_OK;
    return error_set(err, BATON_EINVAL, "%s: %s is %u, must be %u to %u", path, name, value,
                     least, most);
}

static int counts_check(const struct model_config *config, const char *path, struct error err)
{
    const struct {
        const char *name;
        uint32_t value, least, most;
    } ranges[] = {
        {"the number of layers", config->layer_count, 1, LAYERS_MAX},
        {"the hidden size", config->hidden_size, 1, WIDTH_MAX},
        {"the number of heads", config->head_count, 1, HEADS_MAX},
        {"the number of key/value heads", config->kv_head_count, 1, HEADS_MAX},
        {"the size of a head", config->head_dim, 2, MODEL_HEAD_DIM_MAX},
        {"the feed-forward size", config->ffn_size, 1, WIDTH_MAX},
        {"the size of the vocabulary", config->vocab_size, 1, VOCAB_MAX},
        {"the context length", config->context_length, 1, CONTEXT_MAX},
    };
    int rc = BATON_OK;
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) && !rc; i++)
        rc = range_check(path, ranges[i].name, ranges[i].value, ranges[i].least, ranges[i].most,
                         err);
    return rc;
}

static int heads_check(const struct model_config *config, const char *path, struct error err)
{
    if (config->head_count % config->kv_head_count)
        return error_set(err, BATON_EINVAL,
                         "%s: %u heads cannot be shared out among %u key/value heads", path,
                         config->head_count, config->kv_head_count);
    if (config->head_dim % 2)
        return error_set(err, BATON_EINVAL, "%s: the size of a head is %u, must be even", path,
                         config->head_dim);
    return BATON_OK;
}

static int number_check(const char *path, const char *name, double value, double least,
                        double most, struct error err)
{
    if (value >= least && value <= most) /* not NaN */
        return BATON_OK;
    return error_set(err, BATON_EINVAL, "%s: %s is %g, must be %g to %g", path, name, value,
                     least, most);
}

static int numbers_check(const struct model_config *config, const char *path, struct error err)
{
    int rc;
    if ((rc = number_check(path, "the epsilon of the norms", config->rms_epsilon, 1e-12, 1,
                           err)) ||
        (rc = number_check(path, "the base of the rotary frequencies", config->rope_theta, 1,
                           1e12, err)) ||
        (rc = number_check(path, "the factor of the rope scaling", config->rope_factor, 1e-3,
                           1e6, err)))
        return rc;
    if (config->rope_scaling != ROPE_SCALING_LLAMA3)
        return BATON_OK;
    if ((rc = number_check(path, "low_freq_factor", config->rope_low_frequency_factor, 1e-3,
                           1e6, err)) ||
        (rc = number_check(path, "high_freq_factor", config->rope_high_frequency_factor, 1e-3,
                           1e6, err)) ||
        (rc = range_check(path, "original_max_position_embeddings",
                          config->rope_original_context, 1, CONTEXT_MAX, err)))
        return rc;
    if (config->rope_high_frequency_factor <= config->rope_low_frequency_factor)
        return error_set(err, BATON_EINVAL,
                         "%s: high_freq_factor is %g, must be more than low_freq_factor, %g",
                         path, (double)config->rope_high_frequency_factor,
                         (double)config->rope_low_frequency_factor);
    return BATON_OK;
}

static int divisors_check(const struct model_config *config, const char *path, struct error err)
{
    int rc = BATON_OK;
    for (uint32_t i = 0; i < config->head_dim / 2 && !rc; i++)
        rc = number_check(path, "a factor of the rotary frequencies", config->rope_divisors[i],
                          1e-6, 1e6, err);
    return rc;
}

static int tokens_check(const struct model_config *config, const char *path, struct error err)
{
    int32_t vocab = (int32_t)config->vocab_size;
    if (config->bos_token >= vocab)
        return error_set(err, BATON_EINVAL,
                         "%s: the begin-of-sequence token is %d, but there are only %d tokens",
                         path, config->bos_token, vocab);
    for (uint32_t i = 0; i < config->eos_count; i++)
        if (config->eos_tokens[i] >= vocab)
            return error_set(err, BATON_EINVAL,
                             "%s: an end-of-sequence token is %d, but there are only %d tokens",
                             path, config->eos_tokens[i], vocab);
    return BATON_OK;
}

int model_config_finish(struct model_config *config, const char *path, struct error err)
{
    int rc;
    if ((rc = counts_check(config, path, err)) || (rc = heads_check(config, path, err)) ||
        (rc = numbers_check(config, path, err)) || (rc = tokens_check(config, path, err)))
        return rc;
    if (config->rope_scaling != ROPE_SCALING_FACTORS)
        divisors_fill(config);
    return divisors_check(config, path, err);
}

int model_config_check_context(const struct model_config *config, uint32_t positions,
                               struct error err)
{
    if (positions > config->context_length)
        return error_set(err, BATON_EINVAL, "%s has a context of %u tokens; %u are too many",
                         config->name, config->context_length, positions);
    if (config->sliding_window && positions > config->sliding_window)
        return error_set(
            err, BATON_EUNSUPPORTED,
            "%s attends to the last %u tokens only (sliding window), which is not "
            "supported; a context of up to %u is, as it gives the same result, but "
            "not %u",
            config->name, config->sliding_window, config->sliding_window, positions);
    return BATON_OK;
}
