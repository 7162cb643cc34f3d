/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations: those of real models as their makers wrote them, each default, each thing that
 * is refused and what the refusal says, and the rotary frequencies against those of
 * `transformers` (make_rope_golden.py). */
#include "model_fixture.h"

#include "rope_golden.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- helpers ----------------------------------------------------------------------------- */

static json_t *json_from(const char *text)
{
    json_error_t problem;
    json_t *json = json_loads(text, 0, &problem);
    if (!json)
        fail_msg("the test's own JSON is wrong: %s", problem.text);
    return json;
}

static struct model_config accepted(const char *text, const char *generation)
{
    json_t *json = json_from(text), *ends = generation ? json_from(generation) : NULL;
    struct model_config config;
    char error[300] = "";
    if (model_config_from_json(json, ends, "models/Some-Model/", &config, ERROR_BUFFER(error)))
        fail_msg("refused: %s", error);
    json_decref(ends);
    json_decref(json);
    return config;
}

/* The small llama, with one field set to what `value` says (NULL: without the field). */
static void check_field(const char *field, const char *value, int code, const char *word)
{
    struct fixture fixture = fixture_small(MODEL_LLAMA);
    json_t *json = fixture_config(&fixture);
    struct model_config config = {.layer_count = 77};
    char text[300] = "";
    json_object_del(json, field);
    if (value) {
        json_t *wrapped = json_from(value);
        json_object_set(json, field, json_array_get(wrapped, 0));
        json_decref(wrapped);
    }
    int rc = model_config_from_json(json, NULL, "folder", &config, ERROR_BUFFER(text));
    if (rc != code || (rc && !(strstr(text, word) && strstr(text, "folder"))))
        fail_msg("%s = %s: %s \"%s\", expected %s \"%s\"", field, value, baton_error_name(rc),
                 text, baton_error_name(code), word);
    if (rc)
        assert_int_equal(config.layer_count, 77);
    json_decref(json);
}

/* ---- config.json of real models ---------------------------------------------------------- */

static void test_smollm2(void **state)
{
    (void)state;
    struct model_config config = accepted(
        "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":1,"
        "\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":576,"
        "\"intermediate_size\":1536,\"is_llama_config\":true,\"max_position_embeddings\":8192,"
        "\"mlp_bias\":false,\"model_type\":\"llama\",\"num_attention_heads\":9,"
        "\"num_hidden_layers\":30,\"num_key_value_heads\":3,\"pad_token_id\":2,"
        "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_interleaved\":false,"
        "\"rope_scaling\":null,\"rope_theta\":100000,\"tie_word_embeddings\":true,"
        "\"torch_dtype\":\"bfloat16\",\"vocab_size\":49152}",
        NULL);
    assert_int_equal(config.family, MODEL_LLAMA);
    assert_string_equal(config.name, "Some-Model");
    assert_int_equal(config.layer_count, 30);
    assert_int_equal(config.hidden_size, 576);
    assert_int_equal(config.head_count, 9);
    assert_int_equal(config.kv_head_count, 3);
    assert_int_equal(config.head_dim, 64);
    assert_int_equal(config.ffn_size, 1536);
    assert_int_equal(config.vocab_size, 49152);
    assert_int_equal(config.context_length, 8192);
    assert_true(config.rms_epsilon == 1e-5f && config.rope_theta == 100000);
    assert_true(config.tied_embeddings && !config.qkv_bias && !config.qk_norm);
    assert_int_equal(config.rope_order, ROPE_HALVES);
    assert_int_equal(config.rope_scaling, ROPE_SCALING_NONE);
    assert_int_equal(config.sliding_window, 0);
    assert_int_equal(config.bos_token, 1);
    assert_int_equal(config.eos_count, 1);
    assert_int_equal(config.eos_tokens[0], 2);
}

static void test_llama3(void **state)
{
    (void)state;
    struct model_config config = accepted(
        "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":128000,"
        "\"eos_token_id\":[128001,128008,128009],\"head_dim\":64,\"hidden_act\":\"silu\","
        "\"hidden_size\":2048,\"intermediate_size\":8192,\"max_position_embeddings\":131072,"
        "\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":16,"
        "\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,"
        "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
        "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
        "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"vocab_size\":128256}",
        NULL);
    assert_int_equal(config.rope_scaling, ROPE_SCALING_LLAMA3);
    assert_true(config.rope_factor == 32 && config.rope_low_frequency_factor == 1 &&
                config.rope_high_frequency_factor == 4);
    assert_int_equal(config.rope_original_context, 8192);
    assert_int_equal(config.eos_count, 3);
    assert_int_equal(config.eos_tokens[2], 128009);
    assert_int_equal(config.bos_token, 128000);
}

static void test_qwen(void **state)
{
    (void)state;
    struct model_config two = accepted(
        "{\"architectures\":[\"Qwen2ForCausalLM\"],\"bos_token_id\":151643,"
        "\"eos_token_id\":151645,\"hidden_act\":\"silu\",\"hidden_size\":896,"
        "\"intermediate_size\":4864,\"max_position_embeddings\":32768,"
        "\"max_window_layers\":21,\"model_type\":\"qwen2\",\"num_attention_heads\":14,"
        "\"num_hidden_layers\":24,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,"
        "\"rope_theta\":1000000.0,\"sliding_window\":32768,\"tie_word_embeddings\":true,"
        "\"use_sliding_window\":false,\"vocab_size\":151936}",
        "{\"bos_token_id\":151643,\"eos_token_id\":[151645,151643],\"temperature\":0.7}");
    assert_int_equal(two.family, MODEL_QWEN2);
    assert_true(two.qkv_bias && !two.qk_norm && two.tied_embeddings);
    assert_int_equal(two.head_dim, 64);
    assert_int_equal(two.sliding_window, 0); /* there is a number, but it is switched off */
    assert_int_equal(two.eos_count, 2);
    assert_int_equal(two.eos_tokens[1], 151643);

    struct model_config three = accepted(
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,"
        "\"bos_token_id\":151643,\"eos_token_id\":151645,\"head_dim\":128,"
        "\"hidden_act\":\"silu\",\"hidden_size\":1024,\"intermediate_size\":3072,"
        "\"max_position_embeddings\":40960,\"max_window_layers\":28,\"model_type\":\"qwen3\","
        "\"num_attention_heads\":16,\"num_hidden_layers\":28,\"num_key_value_heads\":8,"
        "\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":1000000,"
        "\"sliding_window\":null,\"tie_word_embeddings\":true,\"use_sliding_window\":false,"
        "\"vocab_size\":151936}",
        NULL);
    assert_int_equal(three.family, MODEL_QWEN3);
    assert_true(!three.qkv_bias && three.qk_norm);
    assert_int_equal(three.head_dim * three.head_count, 2048); /* twice the hidden size */
}

/* Qwen's number counts only with its switch, or where the layers name it. */
static void test_qwen_window(void **state)
{
    (void)state;
    static const char model[] =
        "{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"hidden_size\":8,"
        "\"num_attention_heads\":2,\"intermediate_size\":8,\"vocab_size\":4,"
        "\"max_position_embeddings\":64,\"sliding_window\":16%s}";
    static const struct {
        const char *more;
        uint32_t window;
    } cases[] = {{"", 0},
                 {",\"use_sliding_window\":false", 0},
                 {",\"use_sliding_window\":true", 16},
                 {",\"layer_types\":[\"full_attention\"]", 0},
                 {",\"layer_types\":[\"sliding_attention\"]", 16}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[400];
        snprintf(text, sizeof(text), model, cases[i].more);
        assert_int_equal(accepted(text, NULL).sliding_window, cases[i].window);
    }
}

static void test_mistral_window(void **state)
{
    (void)state;
    struct model_config config = accepted(
        "{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,"
        "\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":14336,"
        "\"max_position_embeddings\":32768,\"model_type\":\"mistral\","
        "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
        "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"sliding_window\":4096,"
        "\"tie_word_embeddings\":false,\"vocab_size\":32000}",
        NULL);
    char text[300];
    assert_int_equal(config.family, MODEL_LLAMA);
    assert_int_equal(config.sliding_window, 4096);
    assert_int_equal(model_config_check_context(&config, 4096, ERROR_NONE), BATON_OK);
    assert_int_equal(model_config_check_context(&config, 4097, ERROR_BUFFER(text)),
                     BATON_EUNSUPPORTED);
    assert_non_null(strstr(text, "sliding window"));
    assert_non_null(strstr(text, "4096"));
    assert_int_equal(model_config_check_context(&config, 32769, ERROR_BUFFER(text)),
                     BATON_EINVAL);
    assert_non_null(strstr(text, "32768"));
    assert_non_null(strstr(text, "32769"));
}

/* ---- fields ------------------------------------------------------------------------------ */

static void test_defaults(void **state)
{
    (void)state;
    struct model_config config =
        accepted("{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":8,"
                 "\"num_attention_heads\":2,\"intermediate_size\":8,\"vocab_size\":4,"
                 "\"max_position_embeddings\":16,\"sliding_window\":null}",
                 NULL);
    assert_int_equal(config.kv_head_count, 2);
    assert_int_equal(config.head_dim, 4);
    assert_true(config.rms_epsilon == 1e-6f && config.rope_theta == 10000);
    assert_true(!config.tied_embeddings && !config.qkv_bias);
    assert_int_equal(config.bos_token, MODEL_TOKEN_NONE);
    assert_int_equal(config.eos_count, 0);
    assert_true(config.rope_divisors[0] == 1 && config.rope_divisors[1] == 1);
}

static void test_fields_refused(void **state)
{
    (void)state;
    static const char *const needed[] = {"num_hidden_layers",   "hidden_size",
                                         "num_attention_heads", "intermediate_size",
                                         "vocab_size",          "max_position_embeddings"};
    char word[64];
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        snprintf(word, sizeof(word), "%s is missing", needed[i]);
        check_field(needed[i], NULL, BATON_ENOTFOUND, word);
        check_field(needed[i], "[null]", BATON_ENOTFOUND, word);
        snprintf(word, sizeof(word), "%s must be a count", needed[i]);
        check_field(needed[i], "[\"7\"]", BATON_EINVAL, word);
        check_field(needed[i], "[-1]", BATON_EINVAL, word);
        check_field(needed[i], "[4294967296]", BATON_EINVAL, word);
        check_field(needed[i], "[0]", BATON_EINVAL, "is 0, must be");
        check_field(needed[i], "[4294967295]", BATON_EINVAL, "is 4294967295, must be");
    }
    check_field("model_type", NULL, BATON_ENOTFOUND, "model_type is missing");
    check_field("model_type", "[\"gemma3\"]", BATON_EUNSUPPORTED,
                "the architecture \"gemma3\"; supported are llama (with SmolLM2 and Mistral), "
                "qwen2 and qwen3");
    check_field("model_type", "[\"\\u001b[31mred\"]", BATON_EUNSUPPORTED, "\"?\"");
    check_field("architectures", "[[\"LlamaForSequenceClassification\"]]", BATON_EUNSUPPORTED,
                "LlamaForSequenceClassification");
    check_field("num_key_value_heads", "[3]", BATON_EINVAL, "4 heads cannot be shared out");
    check_field("num_key_value_heads", "[0]", BATON_EINVAL, "key/value heads is 0");
    check_field("head_dim", "[15]", BATON_EINVAL, "must be even");
    check_field("head_dim", "[1024]", BATON_EINVAL, "the size of a head is 1024");
    check_field("rms_norm_eps", "[0]", BATON_EINVAL, "epsilon");
    check_field("rms_norm_eps", "[\"x\"]", BATON_EINVAL, "rms_norm_eps must be a number");
    check_field("rope_theta", "[-5.0]", BATON_EINVAL, "rotary frequencies is -5");
    check_field("tie_word_embeddings", "[1]", BATON_EINVAL, "must be true or false");
    check_field("hidden_act", "[\"gelu\"]", BATON_EUNSUPPORTED, "hidden_act");
    check_field("attention_bias", "[true]", BATON_EUNSUPPORTED, "attention_bias");
    check_field("mlp_bias", "[true]", BATON_EUNSUPPORTED, "mlp_bias");
    check_field("partial_rotary_factor", "[0.5]", BATON_EUNSUPPORTED, "partial_rotary_factor");
    check_field("quantization_config", "[{\"quant_method\":\"gptq\"}]", BATON_EUNSUPPORTED,
                "quantization_config");
    check_field("layer_types", "[[\"full_attention\",\"full_attention\"]]", BATON_OK, "");
    check_field("layer_types", "[[\"linear_attention\"]]", BATON_EUNSUPPORTED, "layer_types");
}

static void test_tokens_refused(void **state)
{
    (void)state;
    check_field("bos_token_id", "[40]", BATON_EINVAL, "begin-of-sequence token is 40");
    check_field("bos_token_id", "[39]", BATON_OK, "");
    check_field("eos_token_id", "[[1,40]]", BATON_EINVAL, "end-of-sequence token is 40");
    check_field("eos_token_id", "[[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]]", BATON_OK, "");
    check_field("eos_token_id", "[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]]", BATON_ELIMIT,
                "more than 16");
    check_field("eos_token_id", "[\"</s>\"]", BATON_EINVAL, "eos_token_id must be");
    check_field("eos_token_id", "[-2]", BATON_EINVAL, "-2 is no end-of-sequence token");
}

/* ---- rope -------------------------------------------------------------------------------- */

static void test_rope_refused(void **state)
{
    (void)state;
    check_field("rope_scaling", "[7]", BATON_EINVAL, "rope_scaling must be an object");
    check_field("rope_scaling", "[{\"type\":\"default\"}]", BATON_OK, "");
    check_field("rope_scaling", "[{\"rope_type\":\"yarn\",\"factor\":4}]", BATON_EUNSUPPORTED,
                "\"yarn\" is not supported; default, linear and llama3 are");
    check_field("rope_scaling", "[{\"type\":\"linear\"}]", BATON_ENOTFOUND,
                "factor is missing");
    check_field("rope_scaling", "[{\"type\":\"linear\",\"factor\":0}]", BATON_EINVAL, "is 0,");
    check_field("rope_scaling",
                "[{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                "\"high_freq_factor\":4}]",
                BATON_ENOTFOUND, "original_max_position_embeddings is missing");
    check_field("rope_scaling",
                "[{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
                "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}]",
                BATON_EINVAL, "high_freq_factor is 4, must be more than low_freq_factor");
}

static void check_frequencies(const char *rope, const float expected[32],
                              enum rope_scaling scaling)
{
    char text[600];
    float frequencies[32];
    snprintf(text, sizeof(text),
             "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":128,"
             "\"num_attention_heads\":2,\"intermediate_size\":8,\"vocab_size\":4,"
             "\"max_position_embeddings\":131072,%s}",
             rope);
    struct model_config config = accepted(text, NULL);
    assert_int_equal(config.rope_scaling, scaling);
    model_config_rope_frequencies(&config, frequencies);
    for (int i = 0; i < 32; i++)
        if (fabsf(frequencies[i] / expected[i] - 1) > 4e-7f) /* theirs is computed in float */
            fail_msg("%s: frequency %d is %.9g, should be %.9g", rope_scaling_name(scaling), i,
                     (double)frequencies[i], (double)expected[i]);
}

static void test_rope_frequencies(void **state)
{
    (void)state;
    check_frequencies("\"rope_theta\":10000.0", rope_default, ROPE_SCALING_NONE);
    check_frequencies("\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}", rope_linear,
                      ROPE_SCALING_LINEAR);
    check_frequencies("\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
                      "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                      "\"original_max_position_embeddings\":8192}",
                      rope_llama3, ROPE_SCALING_LLAMA3);
    /* As transformers 5 writes it. */
    check_frequencies("\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,"
                      "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                      "\"original_max_position_embeddings\":8192}",
                      rope_llama3, ROPE_SCALING_LLAMA3);
}

/* ---- GGUF -------------------------------------------------------------------------------- */

static int gguf_config(struct gguf_writer *writer, struct model_config *config,
                       struct error err)
{
    struct bytes bytes = gguf_writer_finish(writer);
    struct gguf *file;
    char text[300] = "";
    if (gguf_parse(bytes.data, bytes.size, "dir/test.gguf", &file, ERROR_BUFFER(text)))
        fail_msg("refused: %s", text);
    int rc = model_config_from_gguf(file, config, err);
    gguf_close(file);
    bytes_free(&bytes);
    gguf_writer_free(writer);
    return rc;
}

static struct model_config gguf_accepted(struct gguf_writer *writer)
{
    struct model_config config;
    char text[300] = "";
    if (gguf_config(writer, &config, ERROR_BUFFER(text)))
        fail_msg("refused: %s", text);
    return config;
}

static void check_gguf_refused(struct gguf_writer *writer, int code, const char *word)
{
    struct model_config config = {.layer_count = 77};
    char text[300] = "";
    int rc = gguf_config(writer, &config, ERROR_BUFFER(text));
    if (rc != code || !strstr(text, word) || !strstr(text, "dir/test.gguf"))
        fail_msg("%s \"%s\", expected %s \"%s\"", baton_error_name(rc), text,
                 baton_error_name(code), word);
    assert_int_equal(config.layer_count, 77);
}

#define SAME(field) assert_true(a->field == b->field)

static void check_same(const struct model_config *a, const struct model_config *b)
{
    SAME(family), SAME(layer_count), SAME(hidden_size), SAME(head_count), SAME(kv_head_count);
    SAME(head_dim), SAME(ffn_size), SAME(vocab_size), SAME(context_length), SAME(rms_epsilon);
    SAME(tied_embeddings), SAME(qkv_bias), SAME(qk_norm), SAME(rope_theta), SAME(rope_scaling);
    SAME(rope_factor), SAME(sliding_window), SAME(bos_token), SAME(eos_count);
    assert_string_equal(a->name, b->name);
    assert_memory_equal(a->rope_divisors, b->rope_divisors, sizeof(a->rope_divisors));
}

/* The same model in both forms has the same configuration, but for the order of Q and K. */
static void test_both_forms_agree(void **state)
{
    (void)state;
    for (int family = 0; family < MODEL_FAMILY_COUNT; family++) {
        struct fixture fixture = fixture_small(family);
        struct gguf_writer writer;
        fixture.tied = family != MODEL_LLAMA;
        gguf_writer_init(&writer);
        fixture_write_gguf(&fixture, &writer);
        gguf_writer_string(&writer, "general.name", "Some-Model");
        struct model_config file = gguf_accepted(&writer), folder;
        json_t *json = fixture_config(&fixture);
        assert_int_equal(model_config_from_json(json, NULL, "Some-Model", &folder, ERROR_NONE),
                         BATON_OK);
        json_decref(json);
        assert_int_equal(file.rope_order, family == MODEL_LLAMA ? ROPE_PAIRS : ROPE_HALVES);
        assert_int_equal(folder.rope_order, ROPE_HALVES);
        check_same(&file, &folder);
    }
}

static void small_gguf(struct gguf_writer *writer)
{
    struct fixture fixture = fixture_small(MODEL_LLAMA);
    gguf_writer_init(writer);
    fixture_write_gguf(&fixture, writer);
}

static void test_gguf_fields(void **state)
{
    (void)state;
    struct gguf_writer writer;
    small_gguf(&writer);
    gguf_writer_float(&writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_writer_float(&writer, "llama.rope.freq_base", 5000);
    gguf_writer_u32(&writer, "llama.rope.dimension_count", 16);
    gguf_writer_u32(&writer, "llama.attention.sliding_window", 128);
    gguf_writer_u32(&writer, "tokenizer.ggml.bos_token_id", 3);
    gguf_writer_u32(&writer, "tokenizer.ggml.eos_token_id", 4);
    gguf_writer_u32(&writer, "tokenizer.ggml.eot_token_id", 5);
    struct model_config config = gguf_accepted(&writer);
    assert_string_equal(config.name, "test.gguf");
    assert_true(config.rms_epsilon == 1e-5f && config.rope_theta == 5000);
    assert_int_equal(config.sliding_window, 128);
    assert_int_equal(config.bos_token, 3);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.eos_tokens[0], 4);
    assert_int_equal(config.eos_tokens[1], 5);
    assert_int_equal(config.vocab_size, 40);

    small_gguf(&writer);
    gguf_writer_string(&writer, "general.name", "bell\007 \xc3\xa9");
    config = gguf_accepted(&writer);
    assert_string_equal(config.name, "bell? ??");
}

static void test_gguf_rope(void **state)
{
    (void)state;
    struct gguf_writer writer;
    float factors[8] = {1, 1, 1.5f, 2, 4, 8, 8, 8};
    small_gguf(&writer);
    gguf_writer_string(&writer, "llama.rope.scaling.type", "linear");
    gguf_writer_float(&writer, "llama.rope.scaling.factor", 4);
    struct model_config config = gguf_accepted(&writer);
    assert_int_equal(config.rope_scaling, ROPE_SCALING_LINEAR);
    assert_true(config.rope_divisors[0] == 4 && config.rope_divisors[7] == 4);

    small_gguf(&writer);
    gguf_writer_tensor(&writer, "rope_freqs.weight", TENSOR_F32, 0, 8, factors);
    config = gguf_accepted(&writer);
    assert_int_equal(config.rope_scaling, ROPE_SCALING_FACTORS);
    assert_memory_equal(config.rope_divisors, factors, sizeof(factors));
    float frequencies[8];
    model_config_rope_frequencies(&config, frequencies);
    assert_true(fabs(frequencies[4] / (pow(10000, -8.0 / 16) / 4) - 1) < 1e-6);

    factors[3] = NAN;
    small_gguf(&writer);
    gguf_writer_tensor(&writer, "rope_freqs.weight", TENSOR_F32, 0, 8, factors);
    check_gguf_refused(&writer, BATON_EINVAL, "a factor of the rotary frequencies is nan");
    small_gguf(&writer);
    gguf_writer_tensor(&writer, "rope_freqs.weight", TENSOR_F32, 0, 7, factors);
    check_gguf_refused(&writer, BATON_EINVAL, "rope_freqs.weight must be F32");
    small_gguf(&writer);
    gguf_writer_string(&writer, "llama.rope.scaling.type", "yarn");
    check_gguf_refused(&writer, BATON_EUNSUPPORTED, "\"yarn\" is not supported");
}

static void test_gguf_refused(void **state)
{
    (void)state;
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    check_gguf_refused(&writer, BATON_ENOTFOUND, "general.architecture");
    gguf_writer_init(&writer);
    gguf_writer_string(&writer, "general.architecture", "gpt2");
    check_gguf_refused(&writer, BATON_EUNSUPPORTED, "the architecture \"gpt2\"; supported are");
    gguf_writer_init(&writer);
    gguf_writer_string(&writer, "general.architecture", "llama");
    check_gguf_refused(&writer, BATON_ENOTFOUND, "llama.block_count");
    small_gguf(&writer);
    gguf_writer_u32(&writer, "llama.expert_count", 8);
    check_gguf_refused(&writer, BATON_EUNSUPPORTED, "a mixture of 8 experts");
    small_gguf(&writer);
    gguf_writer_u32(&writer, "split.count", 3);
    check_gguf_refused(&writer, BATON_EUNSUPPORTED, "one of 3 parts");
    small_gguf(&writer);
    gguf_writer_u32(&writer, "llama.rope.dimension_count", 8);
    check_gguf_refused(&writer, BATON_EUNSUPPORTED, "8 are rotated");
    small_gguf(&writer);
    gguf_writer_u32(&writer, "tokenizer.ggml.eos_token_id", 40);
    check_gguf_refused(&writer, BATON_EINVAL, "end-of-sequence token is 40");
    small_gguf(&writer);
    gguf_writer_u32(&writer, "tokenizer.ggml.bos_token_id", 0xffffffff);
    check_gguf_refused(&writer, BATON_EINVAL, "is no begin-of-sequence token");
    small_gguf(&writer);
    gguf_writer_string(&writer, "llama.rope.freq_base", "10000");
    check_gguf_refused(&writer, BATON_EINVAL, "key llama.rope.freq_base is string");
}

static void test_gguf_without_model(void **state)
{
    (void)state;
    struct fixture fixture = fixture_small(MODEL_QWEN3);
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    fixture_write_gguf(&fixture, &writer);
    writer.tensor_count = 0;
    bytes_free(&writer.tensors);
    bytes_free(&writer.data);
    check_gguf_refused(&writer, BATON_ENOTFOUND, "perhaps only a vocabulary");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_qwen_window),
        cmocka_unit_test(test_mistral_window),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_fields_refused),
        cmocka_unit_test(test_tokens_refused),
        cmocka_unit_test(test_rope_refused),
        cmocka_unit_test(test_rope_frequencies),
        cmocka_unit_test(test_both_forms_agree),
        cmocka_unit_test(test_gguf_fields),
        cmocka_unit_test(test_gguf_rope),
        cmocka_unit_test(test_gguf_refused),
        cmocka_unit_test(test_gguf_without_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
