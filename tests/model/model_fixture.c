/* SPDX-License-Identifier: Apache-2.0 */
/* Small random models for the tests. */
#include "model_fixture.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture fixture_small(enum model_family family)
{
    return (struct fixture){.family = family,
                            .layers = 2,
                            .hidden = 64,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .ffn = 96,
                            .vocab = 40,
                            .type = TENSOR_F32};
}

/* ---- tensors ----------------------------------------------------------------------------- */

struct list {
    struct fixture_tensor *tensors;
    uint32_t count;
};

static void list_add(struct list *list, enum tensor_type type, uint32_t rows, uint32_t columns,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

static void list_add(struct list *list, enum tensor_type type, uint32_t rows, uint32_t columns,
                     const char *format, ...)
{
    assert_true(list->count < FIXTURE_TENSORS_MAX);
    struct fixture_tensor *tensor = &list->tensors[list->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(tensor->name, sizeof(tensor->name), format, args);
    va_end(args);
    tensor->type = type;
    tensor->rows = rows;
    tensor->columns = columns;
}

static void layer_add_gguf(struct list *list, const struct fixture *f, uint32_t layer)
{
    uint32_t queries = f->heads * f->head_dim, keys = f->kv_heads * f->head_dim;
    list_add(list, TENSOR_F32, 0, f->hidden, "blk.%u.attn_norm.weight", layer);
    list_add(list, f->type, queries, f->hidden, "blk.%u.attn_q.weight", layer);
    list_add(list, f->type, keys, f->hidden, "blk.%u.attn_k.weight", layer);
    list_add(list, f->type, keys, f->hidden, "blk.%u.attn_v.weight", layer);
    list_add(list, f->type, f->hidden, queries, "blk.%u.attn_output.weight", layer);
    list_add(list, TENSOR_F32, 0, f->hidden, "blk.%u.ffn_norm.weight", layer);
    list_add(list, f->type, f->ffn, f->hidden, "blk.%u.ffn_gate.weight", layer);
    list_add(list, f->type, f->ffn, f->hidden, "blk.%u.ffn_up.weight", layer);
    list_add(list, f->type, f->hidden, f->ffn, "blk.%u.ffn_down.weight", layer);
    if (f->family == MODEL_QWEN2) {
        list_add(list, TENSOR_F32, 0, queries, "blk.%u.attn_q.bias", layer);
        list_add(list, TENSOR_F32, 0, keys, "blk.%u.attn_k.bias", layer);
        list_add(list, TENSOR_F32, 0, keys, "blk.%u.attn_v.bias", layer);
    }
    if (f->family == MODEL_QWEN3) {
        list_add(list, TENSOR_F32, 0, f->head_dim, "blk.%u.attn_q_norm.weight", layer);
        list_add(list, TENSOR_F32, 0, f->head_dim, "blk.%u.attn_k_norm.weight", layer);
    }
}

static void layer_add_folder(struct list *list, const struct fixture *f, uint32_t layer)
{
    uint32_t queries = f->heads * f->head_dim, keys = f->kv_heads * f->head_dim;
    char at[32];
    snprintf(at, sizeof(at), "model.layers.%u", layer);
    list_add(list, f->type, 0, f->hidden, "%s.input_layernorm.weight", at);
    list_add(list, f->type, queries, f->hidden, "%s.self_attn.q_proj.weight", at);
    list_add(list, f->type, keys, f->hidden, "%s.self_attn.k_proj.weight", at);
    list_add(list, f->type, keys, f->hidden, "%s.self_attn.v_proj.weight", at);
    list_add(list, f->type, f->hidden, queries, "%s.self_attn.o_proj.weight", at);
    list_add(list, f->type, 0, f->hidden, "%s.post_attention_layernorm.weight", at);
    list_add(list, f->type, f->ffn, f->hidden, "%s.mlp.gate_proj.weight", at);
    list_add(list, f->type, f->ffn, f->hidden, "%s.mlp.up_proj.weight", at);
    list_add(list, f->type, f->hidden, f->ffn, "%s.mlp.down_proj.weight", at);
    if (f->family == MODEL_QWEN2) {
        list_add(list, f->type, 0, queries, "%s.self_attn.q_proj.bias", at);
        list_add(list, f->type, 0, keys, "%s.self_attn.k_proj.bias", at);
        list_add(list, f->type, 0, keys, "%s.self_attn.v_proj.bias", at);
    }
    if (f->family == MODEL_QWEN3) {
        list_add(list, f->type, 0, f->head_dim, "%s.self_attn.q_norm.weight", at);
        list_add(list, f->type, 0, f->head_dim, "%s.self_attn.k_norm.weight", at);
    }
}

uint32_t fixture_tensors(const struct fixture *fixture, bool hugging_face,
                         struct fixture_tensor tensors[FIXTURE_TENSORS_MAX])
{
    struct list list = {.tensors = tensors};
    enum tensor_type vector = hugging_face ? fixture->type : TENSOR_F32;
    list_add(&list, fixture->type, fixture->vocab, fixture->hidden, "%s",
             hugging_face ? "model.embed_tokens.weight" : "token_embd.weight");
    for (uint32_t i = 0; i < fixture->layers; i++)
        (hugging_face ? layer_add_folder : layer_add_gguf)(&list, fixture, i);
    list_add(&list, vector, 0, fixture->hidden, "%s",
             hugging_face ? "model.norm.weight" : "output_norm.weight");
    if (!fixture->tied)
        list_add(&list, fixture->type, fixture->vocab, fixture->hidden, "%s",
                 hugging_face ? "lm_head.weight" : "output.weight");
    return list.count;
}

/* Bytes that are sound numbers in any type: no exponent of all ones. */
static uint8_t *random_data(uint64_t size, uint32_t seed)
{
    uint8_t *data = malloc(size ? size : 1);
    assert_non_null(data);
    for (uint64_t i = 0; i < size; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (uint8_t)(seed >> 24) & 0xbb;
    }
    return data;
}

static uint64_t tensor_bytes(const struct fixture_tensor *tensor)
{
    uint64_t row_bytes;
    assert_int_equal(tensor_row_bytes(tensor->type, tensor->columns, &row_bytes), BATON_OK);
    return row_bytes * (tensor->rows ? tensor->rows : 1);
}

/* ---- GGUF -------------------------------------------------------------------------------- */

static void architecture_u32(struct gguf_writer *writer, const struct fixture *fixture,
                             const char *name, uint32_t value)
{
    char key[96];
    snprintf(key, sizeof(key), "%s.%s", model_family_name(fixture->family), name);
    gguf_writer_u32(writer, key, value);
}

void fixture_write_gguf(const struct fixture *fixture, struct gguf_writer *writer)
{
    struct fixture_tensor tensors[FIXTURE_TENSORS_MAX];
    uint32_t count = fixture_tensors(fixture, false, tensors);
    gguf_writer_string(writer, "general.architecture", model_family_name(fixture->family));
    architecture_u32(writer, fixture, "block_count", fixture->layers);
    architecture_u32(writer, fixture, "context_length", 512);
    architecture_u32(writer, fixture, "embedding_length", fixture->hidden);
    architecture_u32(writer, fixture, "feed_forward_length", fixture->ffn);
    architecture_u32(writer, fixture, "attention.head_count", fixture->heads);
    architecture_u32(writer, fixture, "attention.head_count_kv", fixture->kv_heads);
    architecture_u32(writer, fixture, "attention.key_length", fixture->head_dim);
    architecture_u32(writer, fixture, "attention.value_length", fixture->head_dim);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *data = random_data(tensor_bytes(&tensors[i]), i);
        gguf_writer_tensor(writer, tensors[i].name, tensors[i].type, tensors[i].rows,
                           tensors[i].columns, data);
        free(data);
    }
}

/* ---- folders ----------------------------------------------------------------------------- */

json_t *fixture_config(const struct fixture *fixture)
{
    json_t *config = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:s}", "model_type",
        model_family_name(fixture->family), "num_hidden_layers", fixture->layers, "hidden_size",
        fixture->hidden, "num_attention_heads", fixture->heads, "num_key_value_heads",
        fixture->kv_heads, "head_dim", fixture->head_dim, "intermediate_size", fixture->ffn,
        "vocab_size", fixture->vocab, "max_position_embeddings", 512, "tie_word_embeddings",
        fixture->tied, "hidden_act", "silu");
    assert_non_null(config);
    return config;
}

struct bytes fixture_safetensors(const struct fixture_tensor *tensors, uint32_t count,
                                 uint32_t padding, uint32_t seed)
{
    struct bytes file = {0};
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t offset = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size = tensor_bytes(&tensors[i]);
        json_t *shape = tensors[i].rows
                            ? json_pack("[i,i]", tensors[i].rows, tensors[i].columns)
                            : json_pack("[i]", tensors[i].columns);
        json_object_set_new(header, tensors[i].name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype",
                                      tensor_type_name(tensors[i].type), "shape", shape,
                                      "data_offsets", (json_int_t)offset,
                                      (json_int_t)(offset + size)));
        offset += size;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    assert_non_null(text);
    uint64_t length = strlen(text) + padding;
    bytes_add(&file, &length, sizeof(length));
    bytes_add(&file, text, strlen(text));
    for (uint32_t i = 0; i < padding; i++)
        bytes_add(&file, " ", 1);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *data = random_data(tensor_bytes(&tensors[i]), seed + i);
        bytes_add(&file, data, tensor_bytes(&tensors[i]));
        free(data);
    }
    free(text);
    json_decref(header);
    return file;
}

void fixture_folder_make(char path[FIXTURE_PATH_BYTES])
{
    snprintf(path, FIXTURE_PATH_BYTES, "/tmp/baton-model-XXXXXX");
    assert_non_null(mkdtemp(path));
}

void fixture_folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    assert_non_null(folder);
    while ((entry = readdir(folder)))
        if (entry->d_name[0] != '.')
            assert_int_equal(unlinkat(dirfd(folder), entry->d_name, 0), 0);
    closedir(folder);
    assert_int_equal(rmdir(path), 0);
}

void fixture_file_write(const char *folder, const char *name, const void *data, size_t size)
{
    char path[2 * FIXTURE_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void fixture_json_write(const char *folder, const char *name, json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2));
    assert_non_null(text);
    fixture_file_write(folder, name, text, strlen(text));
    free(text);
    json_decref(json);
}

void fixture_folder_write(const struct fixture *fixture, const char *folder)
{
    struct fixture_tensor tensors[FIXTURE_TENSORS_MAX];
    uint32_t count = fixture_tensors(fixture, true, tensors);
    struct bytes file = fixture_safetensors(tensors, count, 0, 0);
    fixture_json_write(folder, "config.json", fixture_config(fixture));
    fixture_file_write(folder, "model.safetensors", file.data, file.size);
    bytes_free(&file);
}
