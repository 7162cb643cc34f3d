/* SPDX-License-Identifier: Apache-2.0 */
/* See tiny_folder.h. A safetensors file is the length of a JSON object in 8 bytes, the object (name,
 * type, shape, from and to), and the numbers. */
#include "tiny_folder.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENSORS_MAX 64

struct named {
    char name[96];
    const struct weight *weight;
    bool is_vector;
};

struct names {
    struct named list[TENSORS_MAX];
    uint32_t count;
};

static void add(struct names *names, const struct weight *weight, const char *name)
{
    if (!weight->data)
        return; /* the model has none */
    assert_true(names->count < TENSORS_MAX);
    assert_int_equal(weight->type, TENSOR_F32);
    struct named *to = &names->list[names->count++];
    snprintf(to->name, sizeof(to->name), "%s", name);
    to->weight = weight;
    to->is_vector = weight->rows == 1;
}

static void add_layer(struct names *names, const struct layer_weights *layer, uint32_t index)
{
    const struct {
        const struct weight *weight;
        const char *name;
    } all[] = {
        {&layer->attention_norm, "input_layernorm.weight"},
        {&layer->q, "self_attn.q_proj.weight"},
        {&layer->k, "self_attn.k_proj.weight"},
        {&layer->v, "self_attn.v_proj.weight"},
        {&layer->o, "self_attn.o_proj.weight"},
        {&layer->q_bias, "self_attn.q_proj.bias"},
        {&layer->k_bias, "self_attn.k_proj.bias"},
        {&layer->v_bias, "self_attn.v_proj.bias"},
        {&layer->q_norm, "self_attn.q_norm.weight"},
        {&layer->k_norm, "self_attn.k_norm.weight"},
        {&layer->ffn_norm, "post_attention_layernorm.weight"},
        {&layer->gate, "mlp.gate_proj.weight"},
        {&layer->up, "mlp.up_proj.weight"},
        {&layer->down, "mlp.down_proj.weight"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        char name[96];
        snprintf(name, sizeof(name), "model.layers.%u.%s", index, all[i].name);
        add(names, all[i].weight, name);
    }
}

static FILE *create(const char *path, const char *name)
{
    char file[512];
    snprintf(file, sizeof(file), "%s/%s", path, name);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    return out;
}

static void write_tensors(const char *path, const struct names *names)
{
    static char header[16384];
    size_t length = 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < names->count; i++) {
        const struct weight *w = names->list[i].weight;
        uint64_t end = at + w->rows * w->row_bytes;
        char shape[48];
        if (names->list[i].is_vector)
            snprintf(shape, sizeof(shape), "%u", w->columns);
        else
            snprintf(shape, sizeof(shape), "%u,%u", w->rows, w->columns);
        length += (size_t)snprintf(header + length, sizeof(header) - length,
                                   "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],"
                                   "\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                                   i ? "," : "{", names->list[i].name, shape, at, end);
        assert_true(length < sizeof(header) - 16);
        at = end;
    }
    header[length++] = '}';
    while (length % 8)
        header[length++] = ' ';
    uint64_t size = length; /* little-endian, as this machine is */
    FILE *out = create(path, "model.safetensors");
    assert_int_equal(fwrite(&size, sizeof(size), 1, out), 1);
    assert_int_equal(fwrite(header, length, 1, out), 1);
    for (uint32_t i = 0; i < names->count; i++) {
        const struct weight *w = names->list[i].weight;
        assert_int_equal(fwrite(w->data, w->row_bytes, w->rows, out), w->rows);
    }
    assert_int_equal(fclose(out), 0);
}

void tiny_folder_make(char *path, const char *config_json, const struct tiny_model *model)
{
    static struct names names;
    const struct weights *weights = &model->weights;
    names.count = 0;
    add(&names, &weights->embedding, "model.embed_tokens.weight");
    add(&names, &weights->final_norm, "model.norm.weight");
    if (!model->config.tied_embeddings)
        add(&names, &weights->output, "lm_head.weight");
    for (uint32_t i = 0; i < model->config.layer_count; i++)
        add_layer(&names, &weights->layers[i], i);
    assert_non_null(mkdtemp(path));
    FILE *config = create(path, "config.json");
    assert_true(fputs(config_json, config) >= 0);
    assert_int_equal(fclose(config), 0);
    write_tensors(path, &names);
}

void tiny_folder_remove(const char *path)
{
    char file[512];
    snprintf(file, sizeof(file), "%s/model.safetensors", path);
    unlink(file);
    snprintf(file, sizeof(file), "%s/config.json", path);
    unlink(file);
    rmdir(path);
}
