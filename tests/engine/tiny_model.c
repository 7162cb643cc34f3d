/* SPDX-License-Identifier: Apache-2.0 */
/* See tiny_model.h. */
#include "tiny_model.h"
#include "random_weights.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights by role -------------------------------------------------------------------------
 * The numbers are those of make_golden.py: a stream for each tensor. */

enum role {
    ROLE_ATTENTION_NORM,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_O,
    ROLE_Q_BIAS,
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_FFN_NORM,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    ROLE_COUNT
};

#define TENSOR_EMBEDDING 0
#define TENSOR_FINAL_NORM 1
#define TENSOR_OUTPUT 2
#define TENSOR_LAYERS 3
#define TENSORS_OF_LAYER 16

struct maker {
    const struct model_config *config;
    bool formula;
    enum tensor_type type;
    struct random_stream random;
};

static float formula_value(uint32_t tensor, uint32_t index)
{
    struct random_stream stream = {((uint64_t)tensor << 32) + index};
    return random_stream_float(&stream, 1.0f);
}

static struct weight make_floats(uint32_t tensor, uint32_t rows, uint32_t columns, float factor,
                                 float offset)
{
    struct weight weight = {.name = "formula",
                            .type = TENSOR_F32,
                            .rows = rows,
                            .columns = columns,
                            .row_bytes = columns * sizeof(float)};
    float *data = malloc(rows * weight.row_bytes);
    assert_non_null(data);
    for (uint32_t i = 0; i < rows * columns; i++)
        data[i] = offset + factor * formula_value(tensor, i);
    weight.data = (uint8_t *)data;
    return weight;
}

static struct weight make_matrix(struct maker *maker, uint32_t tensor, uint32_t rows,
                                 uint32_t columns)
{
    float scale = (float)(2.0 / sqrt(columns));
    if (maker->formula)
        return make_floats(tensor, rows, columns, tensor == TENSOR_EMBEDDING ? 1.0f : scale,
                           0.0f);
    return random_weight(&maker->random, "random", maker->type, rows, columns, scale);
}

static void make_layer(struct maker *maker, uint32_t layer, struct layer_weights *to)
{
    const struct model_config *c = maker->config;
    uint32_t q_width = c->head_count * c->head_dim, kv_width = c->kv_head_count * c->head_dim;
    uint32_t first = TENSOR_LAYERS + TENSORS_OF_LAYER * layer;
    to->attention_norm = make_floats(first + ROLE_ATTENTION_NORM, 1, c->hidden_size, 0.2f, 1);
    to->ffn_norm = make_floats(first + ROLE_FFN_NORM, 1, c->hidden_size, 0.2f, 1);
    to->q = make_matrix(maker, first + ROLE_Q, q_width, c->hidden_size);
    to->k = make_matrix(maker, first + ROLE_K, kv_width, c->hidden_size);
    to->v = make_matrix(maker, first + ROLE_V, kv_width, c->hidden_size);
    to->o = make_matrix(maker, first + ROLE_O, c->hidden_size, q_width);
    to->gate = make_matrix(maker, first + ROLE_GATE, c->ffn_size, c->hidden_size);
    to->up = make_matrix(maker, first + ROLE_UP, c->ffn_size, c->hidden_size);
    to->down = make_matrix(maker, first + ROLE_DOWN, c->hidden_size, c->ffn_size);
    if (c->qkv_bias) {
        to->q_bias = make_floats(first + ROLE_Q_BIAS, 1, q_width, 0.3f, 0);
        to->k_bias = make_floats(first + ROLE_K_BIAS, 1, kv_width, 0.3f, 0);
        to->v_bias = make_floats(first + ROLE_V_BIAS, 1, kv_width, 0.3f, 0);
    }
    if (c->qk_norm) {
        to->q_norm = make_floats(first + ROLE_Q_NORM, 1, c->head_dim, 0.2f, 1);
        to->k_norm = make_floats(first + ROLE_K_NORM, 1, c->head_dim, 0.2f, 1);
    }
}

static void make_model(struct maker *maker, struct tiny_model *model)
{
    const struct model_config *c = maker->config;
    struct weights *weights = &model->weights;
    memset(model, 0, sizeof(*model));
    model->config = *c;
    weights->layers = calloc(c->layer_count, sizeof(*weights->layers));
    assert_non_null(weights->layers);
    weights->embedding = make_matrix(maker, TENSOR_EMBEDDING, c->vocab_size, c->hidden_size);
    weights->output = c->tied_embeddings
                          ? weights->embedding
                          : make_matrix(maker, TENSOR_OUTPUT, c->vocab_size, c->hidden_size);
    weights->final_norm = make_floats(TENSOR_FINAL_NORM, 1, c->hidden_size, 0.2f, 1);
    for (uint32_t i = 0; i < c->layer_count; i++)
        make_layer(maker, i, &weights->layers[i]);
}

void tiny_model_by_formula(struct tiny_model *model, const struct model_config *config)
{
    struct maker maker = {.config = config, .formula = true};
    make_model(&maker, model);
}

void tiny_model_random(struct tiny_model *model, const struct model_config *config,
                       enum tensor_type type, uint64_t seed)
{
    struct maker maker = {.config = config, .type = type, .random = {seed}};
    make_model(&maker, model);
}

void tiny_model_free(struct tiny_model *model)
{
    struct weights *weights = &model->weights;
    for (uint32_t i = 0; i < model->config.layer_count; i++) {
        struct layer_weights *l = &weights->layers[i];
        struct weight *all[] = {
            &l->attention_norm, &l->q,      &l->k,      &l->v,      &l->o,
            &l->q_bias,         &l->k_bias, &l->v_bias, &l->q_norm, &l->k_norm,
            &l->ffn_norm,       &l->gate,   &l->up,     &l->down};
        for (size_t j = 0; j < sizeof(all) / sizeof(*all); j++)
            random_weight_free(all[j]);
    }
    if (!model->config.tied_embeddings)
        random_weight_free(&weights->output);
    random_weight_free(&weights->embedding);
    random_weight_free(&weights->final_norm);
    free(weights->layers);
}

struct model_config tiny_config(enum model_family family, uint32_t kv_heads, uint32_t hidden,
                                uint32_t ffn)
{
    struct model_config config = {
        .family = family,
        .name = "tiny",
        .layer_count = 2,
        .hidden_size = hidden,
        .head_count = 2 * kv_heads,
        .kv_head_count = kv_heads,
        .head_dim = 32,
        .ffn_size = ffn,
        .vocab_size = 128,
        .context_length = 1024,
        .rms_epsilon = 1e-5f,
        .tied_embeddings = true,
        .qkv_bias = family == MODEL_QWEN2,
        .qk_norm = family == MODEL_QWEN3,
        .rope_order = family == MODEL_LLAMA ? ROPE_PAIRS : ROPE_HALVES,
        .rope_theta = 10000.0f,
        .bos_token = MODEL_TOKEN_NONE,
    };
    for (uint32_t i = 0; i < config.head_dim / 2; i++)
        config.rope_divisors[i] = 1.0f;
    return config;
}

/* ---- running -------------------------------------------------------------------------------- */

const struct session_options session_defaults = {
    .ranks = 1,
    .threads = 1,
    .tokens_max = 256,
    .element = PAGE_ELEMENT_F16,
    .order = PAGE_ORDER_DEFAULT,
    .tokens_per_page = 16,
    .pages = 64,
};

void session_open(struct session *session, const struct tiny_model *model,
                  const struct session_options *options)
{
    char text[512] = "";
    struct error err = ERROR_BUFFER(text);
    const struct engine_options engine_options = {.rank_count = options->ranks,
                                                  .threads = options->threads,
                                                  .tokens_max = options->tokens_max,
                                                  .logits_max = options->tokens_max,
                                                  .kernels = options->kernels};
    struct page_shape shape;
    struct page_layout layout;
    memset(session, 0, sizeof(*session));
    session->vocab_size = model->config.vocab_size;
    if (engine_open(&model->config, &model->weights, &engine_options, NULL, NULL,
                    &session->engine, err))
        fail_msg("%s", text);
    if (engine_page_shape(&model->config, options->ranks, options->element,
                          options->tokens_per_page, &shape, err) ||
        page_layout_make(&shape, options->order, &layout, err))
        fail_msg("%s", text);
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        size_t bytes = options->pages * layout.page_stride;
        session->pools[rank] = malloc(bytes);
        assert_non_null(session->pools[rank]);
        session->pool_count++;
        memset(session->pools[rank], 0xff, bytes); /* not a number, in every type */
        if (engine_set_pages(session->engine, rank, &layout, session->pools[rank],
                             options->pages, err))
            fail_msg("%s", text);
    }
}

void session_close(struct session *session)
{
    engine_close(session->engine);
    for (uint32_t i = 0; i < session->pool_count; i++)
        free(session->pools[i]);
}

void session_run(struct session *session, const int32_t *tokens, uint32_t position,
                 uint32_t count, const int32_t *pages, uint32_t page_count, float *logits)
{
    char text[512] = "";
    const struct engine_sequence sequence = {.tokens = tokens + position,
                                             .token_count = count,
                                             .position = position,
                                             .pages = pages,
                                             .page_count = page_count,
                                             .logits_count = logits ? count : 0};
    if (engine_step(session->engine, &sequence, 1, logits, ERROR_BUFFER(text)))
        fail_msg("%s", text);
}
