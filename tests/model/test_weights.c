/* SPDX-License-Identifier: Apache-2.0 */
/* From a file to its weights by role: small random models of every family in both forms, each
 * tensor once missing, once of another shape; then the default model as it is downloaded.
 *
 * usage: test_model_weights                      the small models
 *        test_model_weights SCRIPT CACHE         the default model, brought by the script */
#include "model_fixture.h"

#include "model/dequant.h"
#include "model/model_file.h"
#include "model/safetensors.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- helpers ----------------------------------------------------------------------------- */

static struct model_file *opened(const char *path)
{
    struct model_file *file = NULL;
    char text[600] = "";
    if (model_file_open(path, &file, ERROR_BUFFER(text)))
        fail_msg("refused: %s", text);
    return file;
}

static void check_open_refused(const char *path, int code, const char *word)
{
    struct model_file *file = (struct model_file *)&file;
    char text[600] = "";
    int rc = model_file_open(path, &file, ERROR_BUFFER(text));
    if (rc != code || !strstr(text, word) || !strstr(text, path))
        fail_msg("%s \"%s\", expected %s \"%s\"", baton_error_name(rc), text,
                 baton_error_name(code), word);
    assert_ptr_equal(file, &file);
}

/* The model as model.gguf in the folder; its path into `path`. */
static void gguf_save(const struct fixture *fixture, const char *folder,
                      char path[2 * FIXTURE_PATH_BYTES])
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>"};
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    fixture_write_gguf(fixture, &writer);
    gguf_writer_strings(&writer, "tokenizer.ggml.tokens", tokens, 3);
    gguf_writer_u32(&writer, "tokenizer.ggml.bos_token_id", 1);
    gguf_writer_u32(&writer, "tokenizer.ggml.eos_token_id", 2);
    gguf_writer_string(&writer, "tokenizer.chat_template", "{{ messages }}");
    struct bytes file = gguf_writer_finish(&writer);
    fixture_file_write(folder, "model.gguf", file.data, file.size);
    snprintf(path, 2 * FIXTURE_PATH_BYTES, "%s/model.gguf", folder);
    bytes_free(&file);
    gguf_writer_free(&writer);
}

/* ---- roles ------------------------------------------------------------------------------- */

static void check_weight(const struct weight *weight, const char *name, uint32_t rows,
                         uint32_t columns)
{
    assert_non_null(weight->name);
    assert_string_equal(weight->name, name);
    assert_non_null(weight->data);
    assert_int_equal(weight->rows, rows);
    assert_int_equal(weight->columns, columns);
    uint64_t row_bytes;
    assert_int_equal(tensor_row_bytes(weight->type, columns, &row_bytes), 0);
    assert_int_equal(weight->row_bytes, row_bytes);
    assert_int_equal((uintptr_t)weight->data % tensor_type_alignment(weight->type), 0);
}

static void check_layer(const struct layer_weights *layer, const struct fixture *f,
                        bool hugging_face, uint32_t number)
{
    const struct {
        const struct weight *weight;
        const char *names[2];
        uint32_t rows, columns;
        bool present;
    } all[] = {
        {&layer->attention_norm, {"attn_norm.weight", "input_layernorm.weight"}, 1, 64, true},
        {&layer->q, {"attn_q.weight", "self_attn.q_proj.weight"}, 96, 64, true},
        {&layer->k, {"attn_k.weight", "self_attn.k_proj.weight"}, 48, 64, true},
        {&layer->v, {"attn_v.weight", "self_attn.v_proj.weight"}, 48, 64, true},
        {&layer->o, {"attn_output.weight", "self_attn.o_proj.weight"}, 64, 96, true},
        {&layer->ffn_norm, {"ffn_norm.weight", "post_attention_layernorm.weight"}, 1, 64, true},
        {&layer->gate, {"ffn_gate.weight", "mlp.gate_proj.weight"}, 32, 64, true},
        {&layer->up, {"ffn_up.weight", "mlp.up_proj.weight"}, 32, 64, true},
        {&layer->down, {"ffn_down.weight", "mlp.down_proj.weight"}, 64, 32, true},
        {&layer->q_bias,
         {"attn_q.bias", "self_attn.q_proj.bias"},
         1,
         96,
         f->family == MODEL_QWEN2},
        {&layer->k_bias,
         {"attn_k.bias", "self_attn.k_proj.bias"},
         1,
         48,
         f->family == MODEL_QWEN2},
        {&layer->v_bias,
         {"attn_v.bias", "self_attn.v_proj.bias"},
         1,
         48,
         f->family == MODEL_QWEN2},
        {&layer->q_norm,
         {"attn_q_norm.weight", "self_attn.q_norm.weight"},
         1,
         24,
         f->family == MODEL_QWEN3},
        {&layer->k_norm,
         {"attn_k_norm.weight", "self_attn.k_norm.weight"},
         1,
         24,
         f->family == MODEL_QWEN3},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char name[TENSOR_NAME_BYTES];
        snprintf(name, sizeof(name), hugging_face ? "model.layers.%u.%s" : "blk.%u.%s", number,
                 all[i].names[hugging_face]);
        if (all[i].present)
            check_weight(all[i].weight, name, all[i].rows, all[i].columns);
        else
            assert_null(all[i].weight->name);
    }
}

static void check_model(const char *path, const struct fixture *f, bool hugging_face)
{
    struct model_file *file = opened(path);
    const struct weights *weights = model_file_weights(file);
    check_weight(&weights->embedding,
                 hugging_face ? "model.embed_tokens.weight" : "token_embd.weight", 40, 64);
    check_weight(&weights->final_norm,
                 hugging_face ? "model.norm.weight" : "output_norm.weight", 1, 64);
    assert_int_equal(weights->layer_count, 2);
    for (uint32_t i = 0; i < 2; i++)
        check_layer(&weights->layers[i], f, hugging_face, i);
    if (f->tied)
        assert_ptr_equal(weights->output.data, weights->embedding.data);
    else
        check_weight(&weights->output, hugging_face ? "lm_head.weight" : "output.weight", 40,
                     64);
    model_file_close(file);
}

static void test_families(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES], path[2 * FIXTURE_PATH_BYTES];
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    fixture_folder_make(folder);
    for (int family = 0; family < MODEL_FAMILY_COUNT; family++)
        for (int tied = 0; tied < 2; tied++) {
            struct fixture fixture = fixture_small(family);
            fixture.head_dim = 24; /* 4 * 24 is not the hidden size: nothing may mix them up */
            fixture.ffn = 32;
            fixture.tied = tied;
            fixture.type = types[family];
            fixture_folder_write(&fixture, folder);
            check_model(folder, &fixture, true);
            fixture.type = TENSOR_Q8_0;
            gguf_save(&fixture, folder, path);
            check_model(path, &fixture, false);
        }
    fixture_folder_remove(folder);
}

/* ---- tables with a defect ---------------------------------------------------------------- */

struct small_model {
    struct bytes bytes;
    struct tensor_table table;
    struct model_config config;
};

static void small_model_make(struct small_model *model, const struct fixture *fixture,
                             uint32_t padding)
{
    struct fixture_tensor tensors[FIXTURE_TENSORS_MAX];
    uint32_t count = fixture_tensors(fixture, true, tensors);
    json_t *json = fixture_config(fixture);
    model->bytes = fixture_safetensors(tensors, count, padding, 1);
    assert_int_equal(
        safetensors_parse(model->bytes.data, model->bytes.size, "t", &model->table, ERROR_NONE),
        0);
    assert_int_equal(model_config_from_json(json, NULL, "t", &model->config, ERROR_NONE), 0);
    json_decref(json);
}

static void small_model_free(struct small_model *model)
{
    free(model->table.items);
    bytes_free(&model->bytes);
}

static void check_resolve_refused(const struct small_model *model, int code, const char *name,
                                  const char *word)
{
    struct weights weights = {.bytes = 77};
    char text[600] = "";
    int rc = weights_resolve(&model->config, &model->table, WEIGHTS_NAMED_HUGGING_FACE,
                             "folder", &weights, ERROR_BUFFER(text));
    if (rc != code || !strstr(text, name) || !strstr(text, word) || !strstr(text, "folder"))
        fail_msg("%s \"%s\", expected %s \"%s\" \"%s\"", baton_error_name(rc), text,
                 baton_error_name(code), name, word);
    assert_int_equal(weights.bytes, 77);
}

static void check_resolves(const struct small_model *model)
{
    struct weights weights;
    char text[600] = "";
    if (weights_resolve(&model->config, &model->table, WEIGHTS_NAMED_HUGGING_FACE, "folder",
                        &weights, ERROR_BUFFER(text)))
        fail_msg("refused: %s", text);
    weights_release(&weights);
}

static void test_each_missing(void **state)
{
    (void)state;
    for (int family = 0; family < MODEL_FAMILY_COUNT; family++) {
        struct fixture fixture = fixture_small(family);
        struct small_model model;
        small_model_make(&model, &fixture, 0);
        uint32_t count = model.table.count--;
        for (uint32_t i = 0; i < count; i++) {
            struct tensor *items = model.table.items, missing = items[i];
            memmove(items + i, items + i + 1, (count - 1 - i) * sizeof(*items));
            check_resolve_refused(&model, BATON_ENOTFOUND, missing.name, "has no tensor");
            memmove(items + i + 1, items + i, (count - 1 - i) * sizeof(*items));
            items[i] = missing;
        }
        small_model_free(&model);
    }
}

static void test_each_misshapen(void **state)
{
    (void)state;
    for (int family = 0; family < MODEL_FAMILY_COUNT; family++) {
        struct fixture fixture = fixture_small(family);
        struct small_model model;
        small_model_make(&model, &fixture, 0);
        for (uint32_t i = 0; i < model.table.count; i++) {
            struct tensor *tensor = &model.table.items[i];
            for (uint32_t j = 0; j < tensor->dimension_count; j++) {
                tensor->shape[j]++;
                check_resolve_refused(&model, BATON_EINVAL, tensor->name, "it must be");
                tensor->shape[j]--;
            }
            tensor->dimension_count++;
            tensor->shape[tensor->dimension_count - 1] = 1;
            check_resolve_refused(&model, BATON_EINVAL, tensor->name, "it must be");
            tensor->dimension_count--;
        }
        check_resolves(&model);
        small_model_free(&model);
    }
}

static void test_each_opaque(void **state)
{
    (void)state;
    struct fixture fixture = fixture_small(MODEL_LLAMA);
    struct small_model model;
    small_model_make(&model, &fixture, 0);
    for (uint32_t i = 0; i < model.table.count; i++) {
        struct tensor *tensor = &model.table.items[i];
        tensor->type = TENSOR_OPAQUE;
        tensor->type_name = "F8_E4M3";
        check_resolve_refused(&model, BATON_EUNSUPPORTED, tensor->name, "is F8_E4M3, which is");
        tensor->type = TENSOR_F32;
    }
    small_model_free(&model);
}

/* A last tensor of this name, which the family does not know. */
static void check_extra(bool tied, const char *name, bool accepted)
{
    struct fixture fixture = fixture_small(MODEL_LLAMA);
    struct small_model model;
    fixture.tied = tied;
    small_model_make(&model, &fixture, 0);
    model.table.items =
        realloc(model.table.items, (model.table.count + 1) * sizeof(*model.table.items));
    assert_non_null(model.table.items);
    struct tensor *extra = &model.table.items[model.table.count++];
    *extra = model.table.items[0];
    snprintf(extra->name, sizeof(extra->name), "%s", name);
    assert_int_equal(tensor_table_sort(&model.table, ERROR_NONE), 0);
    if (accepted)
        check_resolves(&model);
    else
        check_resolve_refused(&model, BATON_EUNSUPPORTED, name, "would be wrong");
    small_model_free(&model);
}

static void test_extra_tensors(void **state)
{
    (void)state;
    check_extra(false, "model.layers.0.self_attn.o_proj.bias", false);
    check_extra(false, "model.layers.0.self_attn.q_norm.weight", false);
    check_extra(false, "model.layers.0.self_attn.q_proj.bias", false);
    check_extra(false, "model.layers.2.input_layernorm.weight", false);
    check_extra(false, "model.layers.0.self_attn.rotary_emb.inv_freq", true);
    check_extra(true, "lm_head.weight", true);
}

/* ---- alignment --------------------------------------------------------------------------- */

static void check_alignment(uint32_t padding, bool tied)
{
    struct fixture fixture = fixture_small(MODEL_QWEN2);
    struct small_model model;
    struct weights weights;
    fixture.type = padding % 2 ? TENSOR_BF16 : TENSOR_F32;
    fixture.tied = tied;
    small_model_make(&model, &fixture, padding);
    assert_int_equal(weights_resolve(&model.config, &model.table, WEIGHTS_NAMED_HUGGING_FACE,
                                     "folder", &weights, ERROR_NONE),
                     BATON_OK);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < weights_count(&weights); i++) {
        const struct weight *weight = weights_at(&weights, i);
        if (!weight)
            continue;
        const struct tensor *tensor = tensor_table_find(&model.table, weight->name);
        assert_int_equal((uintptr_t)weight->data % tensor_type_alignment(weight->type), 0);
        assert_int_equal(weight->rows * weight->row_bytes, tensor->bytes);
        assert_memory_equal(weight->data, tensor->data, tensor->bytes);
        bytes += tensor->bytes;
    }
    assert_int_equal(weights.bytes, bytes);
    assert_int_equal(weights.output.data == weights.embedding.data, tied);
    weights_release(&weights);
    small_model_free(&model);
}

static void test_odd_addresses(void **state)
{
    (void)state;
    for (uint32_t padding = 0; padding < 8; padding++) {
        check_alignment(padding, false);
        check_alignment(padding, true);
    }
}

/* ---- loading ----------------------------------------------------------------------------- */

struct watch {
    uint64_t last, total;
    uint32_t calls, allowed;
};

static bool watch_progress(void *context, uint64_t done, uint64_t total)
{
    struct watch *watch = context;
    assert_true(done >= watch->last && done <= total);
    watch->last = done;
    watch->total = total;
    return ++watch->calls < watch->allowed;
}

static void test_prefault(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES], text[300];
    struct fixture fixture = fixture_small(MODEL_LLAMA);
    fixture_folder_make(folder);
    fixture_folder_write(&fixture, folder);
    struct model_file *file = opened(folder);
    struct watch watch = {.allowed = UINT32_MAX}, stopper = {.allowed = 1};
    assert_int_equal(model_file_prefault(file, watch_progress, &watch, ERROR_NONE), 0);
    assert_int_equal(watch.last, model_file_weights(file)->bytes);
    assert_int_equal(watch.total, model_file_weights(file)->bytes);
    assert_int_equal(model_file_prefault(file, NULL, NULL, ERROR_NONE), 0);
    assert_int_equal(model_file_prefault(file, watch_progress, &stopper, ERROR_BUFFER(text)),
                     BATON_EABORTED);
    assert_int_equal(stopper.calls, 1);
    assert_non_null(strstr(text, folder));
    model_file_close(file);
    fixture_folder_remove(folder);
}

/* A file that shrinks after it was opened is an error of loading, not a signal. */
static void test_prefault_of_a_cut_file(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES], path[2 * FIXTURE_PATH_BYTES], text[300] = "";
    struct fixture fixture = fixture_small(MODEL_LLAMA);
    fixture_folder_make(folder);
    gguf_save(&fixture, folder, path);
    struct model_file *file = opened(path);
    void *page = mmap(NULL, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool known = madvise(page, 1, 22 /* MADV_POPULATE_READ */) == 0;
    munmap(page, 1);
    assert_int_equal(truncate(path, 8192), 0);
    if (known) {
        assert_int_equal(model_file_prefault(file, NULL, NULL, ERROR_BUFFER(text)),
                         BATON_ESYSTEM);
        assert_non_null(strstr(text, path));
        assert_non_null(strstr(text, "cannot be read"));
    } else {
        print_message("not tried: this kernel has no MADV_POPULATE_READ\n");
    }
    model_file_close(file);
    fixture_folder_remove(folder);
}

/* ---- the rest of a model ----------------------------------------------------------------- */

static void test_gguf_strings(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES], path[2 * FIXTURE_PATH_BYTES];
    struct fixture fixture = fixture_small(MODEL_LLAMA);
    fixture_folder_make(folder);
    gguf_save(&fixture, folder, path);
    struct model_file *file = opened(path);
    assert_string_equal(model_file_path(file), path);
    assert_non_null(model_file_gguf(file));
    assert_null(model_file_tokenizer_json(file));
    assert_string_equal(model_file_chat_template(file), "{{ messages }}");
    assert_string_equal(model_file_bos_text(file), "<s>");
    assert_string_equal(model_file_eos_text(file), "</s>");
    assert_int_equal(model_file_config(file)->rope_order, ROPE_PAIRS);
    model_file_close(file);
    fixture_folder_remove(folder);
}

static void test_folder_strings(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES], tokenizer[2 * FIXTURE_PATH_BYTES];
    struct fixture fixture = fixture_small(MODEL_QWEN3);
    fixture_folder_make(folder);
    fixture_folder_write(&fixture, folder);
    struct model_file *file = opened(folder);
    snprintf(tokenizer, sizeof(tokenizer), "%s/tokenizer.json", folder);
    assert_null(model_file_gguf(file));
    assert_string_equal(model_file_tokenizer_json(file), tokenizer);
    assert_null(model_file_chat_template(file));
    assert_null(model_file_bos_text(file));
    model_file_close(file);

    /* With an integer that has more digits than jansson takes, as such files have. */
    static const char config[] =
        "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": null,"
        " \"eos_token\": {\"content\": \"<end>\", \"lstrip\": false},"
        " \"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"},"
        " {\"name\": \"default\", \"template\": \"plain\"}]}";
    fixture_file_write(folder, "tokenizer_config.json", config, strlen(config));
    file = opened(folder);
    assert_string_equal(model_file_chat_template(file), "plain");
    assert_string_equal(model_file_eos_text(file), "<end>");
    assert_null(model_file_bos_text(file));
    model_file_close(file);

    fixture_file_write(folder, "chat_template.jinja", "from the file", 13);
    file = opened(folder);
    assert_string_equal(model_file_chat_template(file), "from the file");
    model_file_close(file);

    fixture_file_write(folder, "generation_config.json", "{\"eos_token_id\": [3, 5]}", 24);
    file = opened(folder);
    assert_int_equal(model_file_config(file)->eos_count, 2);
    model_file_close(file);
    fixture_file_write(folder, "generation_config.json", "{", 1);
    check_open_refused(folder, BATON_EINVAL, "generation_config.json: bad JSON");
    fixture_folder_remove(folder);
}

static void test_open_refused(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES], path[2 * FIXTURE_PATH_BYTES];
    fixture_folder_make(folder);
    check_open_refused(folder, BATON_ENOTFOUND, "config.json cannot be opened");
    snprintf(path, sizeof(path), "%s/model.bin", folder);
    check_open_refused(path, BATON_ENOTFOUND,
                       "a model is a .gguf file or a Hugging Face folder");
    fixture_file_write(folder, "model.bin", "PK\3\4", 4);
    check_open_refused(path, BATON_EINVAL, "is not a GGUF file");
    fixture_folder_remove(folder);
}

/* ---- the default model ------------------------------------------------------------------- */

/* Its path, from the script; false, and a reason on stdout, where it cannot be had. */
static bool default_model_bring(const char *script, const char *cache, char *path, size_t size)
{
    char command[2048];
    if (setenv("BATON_CACHE", cache, 0))
        return false;
    snprintf(command, sizeof(command), "'%s'", script);
    FILE *output = popen(command, "r");
    if (!output)
        return false;
    bool printed = fgets(path, (int)size, output) != NULL;
    int status = pclose(output);
    path[strcspn(path, "\n")] = '\0';
    if (printed && status == 0)
        return true;
    printf("skipped: %s exited with %d; its messages are above\n", script, WEXITSTATUS(status));
    return false;
}

static void check_finite(const struct weight *weight, uint32_t row)
{
    float *values = malloc(weight->columns * sizeof(*values));
    double sum = 0;
    assert_non_null(values);
    dequant_weight_row(weight, row, values);
    for (uint32_t i = 0; i < weight->columns; i++) {
        assert_true(isfinite(values[i]) && fabsf(values[i]) < 1000);
        sum += fabs((double)values[i]);
    }
    assert_true(sum > 0);
    free(values);
}

static void test_default_model(void **state)
{
    struct model_file *file = opened(*state);
    const struct model_config *config = model_file_config(file);
    const struct weights *weights = model_file_weights(file);
    struct watch watch = {.allowed = UINT32_MAX};
    assert_int_equal(config->family, MODEL_LLAMA);
    assert_int_equal(config->layer_count, 30);
    assert_int_equal(config->hidden_size, 576);
    assert_int_equal(config->head_count, 9);
    assert_int_equal(config->kv_head_count, 3);
    assert_int_equal(config->head_dim, 64);
    assert_int_equal(config->ffn_size, 1536);
    assert_int_equal(config->vocab_size, 49152);
    assert_int_equal(config->context_length, 8192);
    assert_int_equal(config->rope_order, ROPE_PAIRS);
    assert_true(config->rope_theta == 100000 && config->rms_epsilon == 1e-5f);
    assert_true(config->tied_embeddings);
    assert_int_equal(config->bos_token, 1);
    assert_int_equal(config->eos_tokens[0], 2);
    assert_string_equal(model_file_bos_text(file), "<|im_start|>");
    assert_string_equal(model_file_eos_text(file), "<|im_end|>");
    assert_non_null(strstr(model_file_chat_template(file), "<|im_start|>"));
    assert_int_equal(weights->embedding.type, TENSOR_Q8_0);
    assert_int_equal(weights->layers[29].down.type, TENSOR_Q4_1);
    assert_int_equal(model_file_prefault(file, watch_progress, &watch, ERROR_NONE), 0);
    uint32_t found = 0;
    for (uint32_t i = 0; i < weights_count(weights); i++) {
        const struct weight *weight = weights_at(weights, i);
        if (!weight)
            continue;
        found++;
        check_finite(weight, 0);
        check_finite(weight, weight->rows - 1);
    }
    assert_int_equal(found, 272);
    model_file_close(file);
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        static char path[4096];
        if (!default_model_bring(argv[1], argv[2], path, sizeof(path)))
            return 77;
        const struct CMUnitTest test[] = {cmocka_unit_test_prestate(test_default_model, path)};
        return cmocka_run_group_tests(test, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),       cmocka_unit_test(test_each_missing),
        cmocka_unit_test(test_each_misshapen), cmocka_unit_test(test_each_opaque),
        cmocka_unit_test(test_extra_tensors),  cmocka_unit_test(test_odd_addresses),
        cmocka_unit_test(test_prefault),       cmocka_unit_test(test_prefault_of_a_cut_file),
        cmocka_unit_test(test_gguf_strings),   cmocka_unit_test(test_folder_strings),
        cmocka_unit_test(test_open_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
