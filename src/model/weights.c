/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a model's weights among the tensors of its file. Two tables say everything: what each
 * role is called in each kind of file, and what shape it must have. A tensor that no role claims
 * is refused rather than left out: a bias or a norm that nobody applies would make a model that
 * answers fluently and wrongly.
 *
 * Weights stay where the file is mapped. The exception are safetensors whose data begins at an
 * odd address: those are copied once, so that kernels may load whole numbers. */
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the roles --------------------------------------------------------------------------- */

enum size { ONE, HIDDEN, QUERIES, KEYS, FFN, VOCAB, HEAD, SIZE_COUNT };
enum presence { ALWAYS, WITH_BIAS, WITH_NORM, UNLESS_TIED };

struct role {
    size_t offset;        /* of its struct weight in struct weights or struct layer_weights */
    const char *names[2]; /* by enum weights_naming; of a layer's, what follows the prefix */
    enum size rows, columns;
    enum presence presence;
};

#define MODEL(field) offsetof(struct weights, field)
#define LAYER(field) offsetof(struct layer_weights, field)

static const char *const layer_prefixes[2] = {"blk.%u.%s", "model.layers.%u.%s"};

/* clang-format off: one role, one line */
static const struct role model_roles[] = {
    {MODEL(embedding),
     {"token_embd.weight", "model.embed_tokens.weight"},
     VOCAB,
     HIDDEN,
     ALWAYS},
    {MODEL(final_norm), {"output_norm.weight", "model.norm.weight"}, ONE, HIDDEN, ALWAYS},
    {MODEL(output), {"output.weight", "lm_head.weight"}, VOCAB, HIDDEN, UNLESS_TIED},
};

static const struct role layer_roles[] = {
    {LAYER(attention_norm),
     {"attn_norm.weight", "input_layernorm.weight"},
     ONE,
     HIDDEN,
     ALWAYS},
    {LAYER(q), {"attn_q.weight", "self_attn.q_proj.weight"}, QUERIES, HIDDEN, ALWAYS},
    {LAYER(k), {"attn_k.weight", "self_attn.k_proj.weight"}, KEYS, HIDDEN, ALWAYS},
    {LAYER(v), {"attn_v.weight", "self_attn.v_proj.weight"}, KEYS, HIDDEN, ALWAYS},
    {LAYER(o), {"attn_output.weight", "self_attn.o_proj.weight"}, HIDDEN, QUERIES, ALWAYS},
    {LAYER(q_bias), {"attn_q.bias", "self_attn.q_proj.bias"}, ONE, QUERIES, WITH_BIAS},
    {LAYER(k_bias), {"attn_k.bias", "self_attn.k_proj.bias"}, ONE, KEYS, WITH_BIAS},
    {LAYER(v_bias), {"attn_v.bias", "self_attn.v_proj.bias"}, ONE, KEYS, WITH_BIAS},
    {LAYER(q_norm), {"attn_q_norm.weight", "self_attn.q_norm.weight"}, ONE, HEAD, WITH_NORM},
    {LAYER(k_norm), {"attn_k_norm.weight", "self_attn.k_norm.weight"}, ONE, HEAD, WITH_NORM},
    {LAYER(ffn_norm),
     {"ffn_norm.weight", "post_attention_layernorm.weight"},
     ONE,
     HIDDEN,
     ALWAYS},
    {LAYER(gate), {"ffn_gate.weight", "mlp.gate_proj.weight"}, FFN, HIDDEN, ALWAYS},
    {LAYER(up), {"ffn_up.weight", "mlp.up_proj.weight"}, FFN, HIDDEN, ALWAYS},
    {LAYER(down), {"ffn_down.weight", "mlp.down_proj.weight"}, HIDDEN, FFN, ALWAYS},
};
/* clang-format on */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool role_is_present(const struct role *role, const struct model_config *config)
{
    switch (role->presence) {
    case ALWAYS: return true;
    case WITH_BIAS: return config->qkv_bias;
    case WITH_NORM: return config->qk_norm;
    case UNLESS_TIED: return !config->tied_embeddings;
    }
    return true;
}

/* ---- finding ----------------------------------------------------------------------------- */

struct search {
    const struct model_config *config;
    const struct tensor_table *tensors;
    enum weights_naming naming;
    const char *path;
    uint32_t sizes[SIZE_COUNT];
    bool *claimed; /* per tensor */
    struct error err;
};

static void sizes_fill(struct search *search)
{
    const struct model_config *config = search->config;
    search->sizes[ONE] = 1;
    search->sizes[HIDDEN] = config->hidden_size;
    search->sizes[QUERIES] = config->head_count * config->head_dim;
    search->sizes[KEYS] = config->kv_head_count * config->head_dim;
    search->sizes[FFN] = config->ffn_size;
    search->sizes[VOCAB] = config->vocab_size;
    search->sizes[HEAD] = config->head_dim;
}

static int shape_check(const struct search *search, const struct role *role,
                       const struct tensor *tensor)
{
    char text[TENSOR_SHAPE_TEXT_BYTES];
    uint32_t rows = search->sizes[role->rows], columns = search->sizes[role->columns];
    bool vector = role->rows == ONE;
    if (tensor->dimension_count == (vector ? 1u : 2u) &&
        tensor->shape[tensor->dimension_count - 1] == columns &&
        (vector || tensor->shape[0] == rows))
        return BATON_OK;
    tensor_shape_text(tensor, text);
    if (vector)
        return error_set(search->err, BATON_EINVAL,
                         "%s: tensor %s is %s, but after the configuration it must be %u",
                         search->path, tensor->name, text, columns);
    return error_set(search->err, BATON_EINVAL,
                     "%s: tensor %s is %s, but after the configuration it must be %ux%u",
                     search->path, tensor->name, text, rows, columns);
}

static int weight_find(const struct search *search, const struct role *role, const char *name,
                       struct weight *out)
{
    const struct tensor *tensor = tensor_table_find(search->tensors, name);
    uint64_t row_bytes = 0;
    if (!tensor)
        return error_set(search->err, BATON_ENOTFOUND, "%s has no tensor %s, which %s needs",
                         search->path, name, model_family_name(search->config->family));
    if (tensor->type == TENSOR_OPAQUE)
        return error_set(search->err, BATON_EUNSUPPORTED,
                         "%s: tensor %s is %s, which is not supported; supported are %s",
                         search->path, name, tensor->type_name, tensor_type_list());
    int rc = shape_check(search, role, tensor);
    if (rc)
        return rc;
    rc = tensor_row_bytes(tensor->type, search->sizes[role->columns], &row_bytes);
    BATON_ASSERT(!rc); /* the reader refuses broken rows */
    *out = (struct weight){.name = tensor->name,
                           .data = tensor->data,
                           .type = tensor->type,
                           .rows = search->sizes[role->rows],
                           .columns = search->sizes[role->columns],
                           .row_bytes = row_bytes};
    search->claimed[tensor - search->tensors->items] = true;
    return BATON_OK;
}

static struct weight *role_weight(const struct role *role, void *base)
{
    return (struct weight *)((char *)base + role->offset);
}

static int model_find(const struct search *search, struct weights *weights)
{
    for (size_t i = 0; i < COUNT(model_roles); i++) {
        const struct role *role = &model_roles[i];
        if (!role_is_present(role, search->config))
            continue;
        int rc =
            weight_find(search, role, role->names[search->naming], role_weight(role, weights));
        if (rc)
            return rc;
    }
    weights->tied = search->config->tied_embeddings;
    if (weights->tied)
        weights->output = weights->embedding;
    return BATON_OK;
}

static int layer_find(const struct search *search, uint32_t layer, struct layer_weights *out)
{
    char name[TENSOR_NAME_BYTES];
    for (size_t i = 0; i < COUNT(layer_roles); i++) {
        const struct role *role = &layer_roles[i];
        if (!role_is_present(role, search->config))
            continue;
        snprintf(name, sizeof(name), layer_prefixes[search->naming], layer,
                 role->names[search->naming]);
        int rc = weight_find(search, role, name, role_weight(role, out));
        if (rc)
            return rc;
    }
    return BATON_OK;
}

/* ---- what is left over ------------------------------------------------------------------- */

/* What the config has already taken in, and tables that are computed here. */
static bool tensor_is_harmless(const struct search *search, const char *name)
{
    static const char computed[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name), suffix = sizeof(computed) - 1;
    if (search->naming == WEIGHTS_NAMED_GGUF)
        return !strcmp(name, "rope_freqs.weight");
    if (search->config->tied_embeddings && !strcmp(name, "lm_head.weight"))
        return true; /* a copy of the embedding */
    return length > suffix && !strcmp(name + length - suffix, computed);
}

static int leftovers_refuse(const struct search *search)
{
    for (uint32_t i = 0; i < search->tensors->count; i++) {
        const char *name = search->tensors->items[i].name;
        if (!search->claimed[i] && !tensor_is_harmless(search, name))
            return error_set(search->err, BATON_EUNSUPPORTED,
                             "%s: tensor %s has no place in a %s model of %u layers as it is "
                             "computed here; without it the result would be wrong",
                             search->path, name, model_family_name(search->config->family),
                             search->config->layer_count);
    }
    return BATON_OK;
}

/* ---- alignment --------------------------------------------------------------------------- */

#define COPY_ALIGNMENT 64u

static uint64_t weight_bytes(const struct weight *weight)
{
    return weight->rows * weight->row_bytes;
}

static bool weight_is_aligned(const struct weight *weight)
{
    return (uintptr_t)weight->data % tensor_type_alignment(weight->type) == 0;
}

static void weight_copy(struct weight *weight, uint8_t **place)
{
    memcpy(*place, weight->data, weight_bytes(weight));
    weight->data = *place;
    *place += (weight_bytes(weight) + COPY_ALIGNMENT - 1) & ~(uint64_t)(COPY_ALIGNMENT - 1);
}

uint32_t weights_count(const struct weights *weights)
{
    return (uint32_t)(COUNT(model_roles) + weights->layer_count * COUNT(layer_roles));
}

static struct weight *weight_at(struct weights *weights, uint32_t i)
{
    BATON_ASSERT(i < weights_count(weights));
    struct weight *weight;
    if (i < COUNT(model_roles)) {
        weight = role_weight(&model_roles[i], weights);
    } else {
        i -= COUNT(model_roles);
        weight = role_weight(&layer_roles[i % COUNT(layer_roles)],
                             &weights->layers[i / COUNT(layer_roles)]);
    }
    if (weight == &weights->output && weights->tied)
        return NULL;
    return weight->name ? weight : NULL;
}

const struct weight *weights_at(const struct weights *weights, uint32_t i)
{
    return weight_at((struct weights *)weights, i);
}

static int weights_realign(struct weights *weights, const char *path, struct error err)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < weights_count(weights); i++) {
        const struct weight *weight = weights_at(weights, i);
        if (weight && !weight_is_aligned(weight))
            bytes += weight_bytes(weight) + COPY_ALIGNMENT;
    }
    if (bytes == 0)
        return BATON_OK;
    uint8_t *place = aligned_alloc(COPY_ALIGNMENT, bytes + -bytes % COPY_ALIGNMENT);
    if (!place)
        return error_set(err, BATON_ENOMEM,
                         "%s: no memory for %llu bytes that the file keeps "
                         "at odd addresses",
                         path, (unsigned long long)bytes);
    weights->realigned = place;
    for (uint32_t i = 0; i < weights_count(weights); i++) {
        struct weight *weight = weight_at(weights, i);
        if (weight && !weight_is_aligned(weight))
            weight_copy(weight, &place);
    }
    if (weights->tied)
        weights->output = weights->embedding;
    return BATON_OK;
}

/* ---- the whole --------------------------------------------------------------------------- */

static int weights_find(const struct search *search, struct weights *weights)
{
    int rc = model_find(search, weights);
    for (uint32_t i = 0; i < weights->layer_count && !rc; i++)
        rc = layer_find(search, i, &weights->layers[i]);
    return rc ? rc : leftovers_refuse(search);
}

int weights_resolve(const struct model_config *config, const struct tensor_table *tensors,
                    enum weights_naming naming, const char *path, struct weights *out,
                    struct error err)
{
    struct search search = {
        .config = config, .tensors = tensors, .naming = naming, .path = path, .err = err};
    struct weights weights = {.layer_count = config->layer_count};
    int rc;
    sizes_fill(&search);
    search.claimed = calloc(tensors->count + 1, sizeof(*search.claimed));
    weights.layers = calloc(config->layer_count, sizeof(*weights.layers));
    if (!search.claimed || !weights.layers) {
        rc = error_set(err, BATON_ENOMEM, "%s: no memory for %u layers", path,
                       config->layer_count);
        goto release;
    }
    if ((rc = weights_find(&search, &weights)) || (rc = weights_realign(&weights, path, err)))
        goto release;
    for (uint32_t i = 0; i < weights_count(&weights); i++) {
        const struct weight *weight = weights_at(&weights, i);
        weights.bytes += weight ? weight_bytes(weight) : 0;
    }
    *out = weights;
    weights = (struct weights){0};
release:
    weights_release(&weights);
    free(search.claimed);
    return rc;
}

void weights_release(struct weights *weights)
{
    free(weights->realigned);
    free(weights->layers);
    *weights = (struct weights){0};
}
