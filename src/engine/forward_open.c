/* SPDX-License-Identifier: Apache-2.0 */
/* See forward_open.h. */
#include "forward_open.h"
#include "thread_group.h"

#include "model/dequant.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 32 /* inputs that a quantised matrix keeps together */
#define PANEL 16 /* outputs likewise */

/* So many ranks shall be possible where there are fewer KV heads, and no more: each unit is another
 * row of sums for the ranks to exchange. */
#define UNITS_WANTED 8

/* ---- shares --------------------------------------------------------------------------------- */

static bool parts_are_whole(const struct model_config *config, uint32_t parts)
{
    return config->head_dim % PANEL == 0 && config->head_count % parts == 0 &&
           config->head_count / parts * config->head_dim % BLOCK == 0;
}

uint32_t forward_units(const struct model_config *config)
{
    uint32_t kv_heads = config->kv_head_count;
    for (uint32_t parts = UNITS_WANTED; parts > kv_heads; parts /= 2)
        if (parts % kv_heads == 0 && parts_are_whole(config, parts))
            return parts;
    return parts_are_whole(config, kv_heads) && kv_heads <= DEVICE_UNITS_MAX ? kv_heads : 1;
}

struct range forward_kv_heads(const struct model_config *config, uint32_t rank_count,
                              uint32_t rank)
{
    uint32_t total = config->kv_head_count;
    uint32_t count = total > rank_count ? total / rank_count : 1;
    uint32_t first = rank * total / rank_count;
    return (struct range){first, first + count};
}

static int open_units(struct forward_model *model, struct error err)
{
    const struct model_config *config = &model->config;
    model->units = forward_units(config);
    model->head_inputs = calloc(model->units + 1, sizeof(*model->head_inputs));
    model->ffn_inputs = calloc(model->units + 1, sizeof(*model->ffn_inputs));
    if (!model->head_inputs || !model->ffn_inputs)
        return error_set(err, BATON_ENOMEM, "out of memory for the units of a model");
    uint32_t blocks = (config->ffn_size + BLOCK - 1) / BLOCK;
    for (uint32_t u = 0; u <= model->units; u++) {
        model->head_inputs[u] = config->head_count * config->head_dim / model->units * u;
        model->ffn_inputs[u] = span_of(blocks, u, model->units).begin * BLOCK;
    }
    model->ffn_inputs[model->units] = config->ffn_size;
    return BATON_OK;
}

static void share_units(const struct forward_model *model, uint32_t index,
                        struct forward_rank *rank)
{
    const struct model_config *config = &model->config;
    struct span units = span_of(model->units, index, model->rank_count);
    struct range kv_heads = forward_kv_heads(config, model->rank_count, index);
    uint32_t panels = (config->vocab_size + PANEL - 1) / PANEL;
    struct span logits = span_of(panels, index, model->rank_count);
    rank->units = (struct range){units.begin, units.end};
    rank->q_outputs =
        (struct range){model->head_inputs[units.begin], model->head_inputs[units.end]};
    rank->kv_outputs =
        (struct range){kv_heads.begin * config->head_dim, kv_heads.end * config->head_dim};
    rank->ffn_outputs =
        (struct range){model->ffn_inputs[units.begin], model->ffn_inputs[units.end]};
    rank->logits_outputs = (struct range){logits.begin * PANEL, logits.end * PANEL};
    if (rank->logits_outputs.end > config->vocab_size)
        rank->logits_outputs.end = config->vocab_size;
}

/* ---- weights -------------------------------------------------------------------------------- */

struct loading {
    struct forward_model *model;
    weights_progress *progress;
    void *context;
    uint64_t done, total;
    struct error err;
};

static int load_matrix(struct loading *loading, const struct weight *source,
                       struct device_weight **out)
{
    struct device *device = loading->model->device;
    int rc = device->ops->weight_load(device, source, out, loading->err);
    if (rc)
        return rc;
    loading->done += source->row_bytes * source->rows;
    if (loading->progress &&
        !loading->progress(loading->context, loading->done, loading->total))
        return error_set(loading->err, BATON_EABORTED, "loading was stopped at weight %s",
                         source->name);
    return BATON_OK;
}

/* A norm or a bias; one that the model does not have stays NULL. */
static int load_vector(struct loading *loading, const struct weight *source, float **out)
{
    if (!source->name)
        return BATON_OK;
    struct device *device = loading->model->device;
    float *vector = device->ops->memory_open(device, (size_t)source->columns * sizeof(float));
    if (!vector)
        return error_set(loading->err, BATON_ENOMEM, "out of memory for weight %s",
                         source->name);
    dequant_weight_row(source, 0, vector);
    *out = vector;
    return BATON_OK;
}

static int load_layer(struct loading *loading, const struct layer_weights *from,
                      struct forward_layer *to)
{
    const struct {
        const struct weight *source;
        struct device_weight **out;
    } matrices[] = {{&from->q, &to->q},      {&from->k, &to->k},       {&from->v, &to->v},
                    {&from->o, &to->o},      {&from->gate, &to->gate}, {&from->up, &to->up},
                    {&from->down, &to->down}};
    const struct {
        const struct weight *source;
        float **out;
    } vectors[] = {{&from->attention_norm, &to->attention_norm},
                   {&from->ffn_norm, &to->ffn_norm},
                   {&from->q_bias, &to->q_bias},
                   {&from->k_bias, &to->k_bias},
                   {&from->v_bias, &to->v_bias},
                   {&from->q_norm, &to->q_norm},
                   {&from->k_norm, &to->k_norm}};
    int rc = BATON_OK;
    for (size_t i = 0; !rc && i < sizeof(matrices) / sizeof(*matrices); i++)
        rc = load_matrix(loading, matrices[i].source, matrices[i].out);
    for (size_t i = 0; !rc && i < sizeof(vectors) / sizeof(*vectors); i++)
        rc = load_vector(loading, vectors[i].source, vectors[i].out);
    return rc;
}

static int load_weights(struct loading *loading, const struct weights *weights)
{
    struct forward_model *model = loading->model;
    const struct model_config *config = &model->config;
    model->layers = calloc(config->layer_count, sizeof(*model->layers));
    model->frequencies = calloc(config->head_dim / 2, sizeof(float));
    if (!model->layers || !model->frequencies)
        return error_set(loading->err, BATON_ENOMEM, "out of memory for %u layers",
                         config->layer_count);
    model_config_rope_frequencies(config, model->frequencies);
    int rc = load_matrix(loading, &weights->embedding, &model->embedding);
    if (!rc && weights->output.data == weights->embedding.data)
        model->output = model->embedding;
    else if (!rc)
        rc = load_matrix(loading, &weights->output, &model->output);
    if (!rc)
        rc = load_vector(loading, &weights->final_norm, &model->final_norm);
    for (uint32_t i = 0; !rc && i < config->layer_count; i++)
        rc = load_layer(loading, &weights->layers[i], &model->layers[i]);
    return rc;
}

/* ---- buffers -------------------------------------------------------------------------------- */

/* The matrices that rows of one kind go into, in all layers. */
enum input_of { INPUT_OF_HIDDEN, INPUT_OF_O, INPUT_OF_DOWN };

static int open_activations(struct forward_model *model, enum input_of kind, uint32_t rows,
                            uint32_t columns, struct device_activations **out, struct error err)
{
    uint32_t layers = model->config.layer_count, count = 0;
    const struct device_weight **list = calloc(5 * (size_t)layers + 1, sizeof(*list));
    if (!list)
        return error_set(err, BATON_ENOMEM, "out of memory for activations");
    for (uint32_t i = 0; i < layers; i++) {
        const struct forward_layer *layer = &model->layers[i];
        if (kind == INPUT_OF_HIDDEN) {
            list[count++] = layer->q;
            list[count++] = layer->k;
            list[count++] = layer->v;
            list[count++] = layer->gate;
            list[count++] = layer->up;
        } else {
            list[count++] = kind == INPUT_OF_O ? layer->o : layer->down;
        }
    }
    if (kind == INPUT_OF_HIDDEN)
        list[count++] = model->output;
    struct device *device = model->device;
    int rc = device->ops->activations_open(device, rows, columns, list, count, out, err);
    free(list);
    return rc;
}

static float *open_rows(struct forward_model *model, uint32_t rows, uint32_t columns)
{
    return model->device->ops->memory_open(model->device,
                                           (size_t)rows * columns * sizeof(float));
}

static int open_rank(struct forward_model *model, uint32_t index, uint32_t rows,
                     struct error err)
{
    struct forward_rank *rank = &model->ranks[index];
    uint32_t hidden = model->config.hidden_size;
    share_units(model, index, rank);
    uint32_t q_width = rank->q_outputs.end - rank->q_outputs.begin;
    uint32_t kv_width = rank->kv_outputs.end - rank->kv_outputs.begin;
    uint32_t ffn_width = rank->ffn_outputs.end - rank->ffn_outputs.begin;
    rank->x = open_rows(model, rows, hidden);
    rank->q = open_rows(model, rows, q_width);
    rank->k = open_rows(model, rows, kv_width);
    rank->v = open_rows(model, rows, kv_width);
    if (!rank->x || !rank->q || !rank->k || !rank->v)
        return error_set(err, BATON_ENOMEM, "out of memory for the buffers of rank %u", index);
    int rc = open_activations(model, INPUT_OF_HIDDEN, rows, hidden, &rank->hidden, err);
    if (!rc)
        rc = open_activations(model, INPUT_OF_O, rows, q_width, &rank->attention, err);
    if (!rc)
        rc = open_activations(model, INPUT_OF_DOWN, rows, ffn_width, &rank->ffn, err);
    return rc;
}

static int open_partials(struct forward_model *model, uint32_t rows, struct error err)
{
    if (model->rank_count == 1)
        return BATON_OK;
    uint32_t all = rows * model->units;
    model->attention_partials = open_rows(model, all, model->config.hidden_size);
    model->ffn_partials = open_rows(model, all, model->config.hidden_size);
    if (!model->attention_partials || !model->ffn_partials)
        return error_set(err, BATON_ENOMEM, "out of memory for the sums of %u ranks",
                         model->rank_count);
    return BATON_OK;
}

int forward_open(struct forward_model *model, const struct weights *weights, uint32_t rows,
                 weights_progress *progress, void *context, struct error err)
{
    struct loading loading = {model, progress, context, 0, weights->bytes, err};
    int rc = open_units(model, err);
    if (!rc)
        rc = load_weights(&loading, weights);
    if (!rc) {
        model->ranks = calloc(model->rank_count, sizeof(*model->ranks));
        if (!model->ranks)
            rc = error_set(err, BATON_ENOMEM, "out of memory for %u ranks", model->rank_count);
    }
    for (uint32_t i = 0; !rc && i < model->rank_count; i++)
        rc = open_rank(model, i, rows, err);
    if (!rc)
        rc = open_partials(model, rows, err);
    return rc;
}

/* ---- closing -------------------------------------------------------------------------------- */

static void close_layer(struct device *device, struct forward_layer *layer)
{
    struct device_weight *const matrices[] = {layer->q,    layer->k,  layer->v,   layer->o,
                                              layer->gate, layer->up, layer->down};
    float *const vectors[] = {layer->attention_norm, layer->ffn_norm, layer->q_bias,
                              layer->k_bias,         layer->v_bias,   layer->q_norm,
                              layer->k_norm};
    for (size_t i = 0; i < sizeof(matrices) / sizeof(*matrices); i++)
        device->ops->weight_free(device, matrices[i]);
    for (size_t i = 0; i < sizeof(vectors) / sizeof(*vectors); i++)
        device->ops->memory_close(device, vectors[i]);
}

static void close_rank(struct device *device, struct forward_rank *rank)
{
    float *const memory[] = {rank->x, rank->q, rank->k, rank->v};
    for (size_t i = 0; i < sizeof(memory) / sizeof(*memory); i++)
        device->ops->memory_close(device, memory[i]);
    device->ops->activations_close(device, rank->hidden);
    device->ops->activations_close(device, rank->attention);
    device->ops->activations_close(device, rank->ffn);
}

void forward_close(struct forward_model *model)
{
    struct device *device = model->device;
    for (uint32_t i = 0; model->ranks && i < model->rank_count; i++)
        close_rank(device, &model->ranks[i]);
    for (uint32_t i = 0; model->layers && i < model->config.layer_count; i++)
        close_layer(device, &model->layers[i]);
    if (model->output != model->embedding)
        device->ops->weight_free(device, model->output);
    device->ops->weight_free(device, model->embedding);
    device->ops->memory_close(device, model->final_norm);
    device->ops->memory_close(device, model->attention_partials);
    device->ops->memory_close(device, model->ffn_partials);
    free(model->ranks);
    free(model->layers);
    free(model->frequencies);
    free(model->head_inputs);
    free(model->ffn_inputs);
}
