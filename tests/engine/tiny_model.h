/* SPDX-License-Identifier: Apache-2.0 */
/* Small models in memory, and an engine with pages to run them: what the tests of the forward pass
 * have in common. */
#ifndef BATON_TESTS_ENGINE_TINY_MODEL_H
#define BATON_TESTS_ENGINE_TINY_MODEL_H

#include "engine/engine.h"

struct tiny_model {
    struct model_config config;
    struct weights weights;
};

/* Weights of float32 by the formula of golden/make_golden.py. */
void tiny_model_by_formula(struct tiny_model *model, const struct model_config *config);

/* Random weights of a type. */
void tiny_model_random(struct tiny_model *model, const struct model_config *config,
                       enum tensor_type type, uint64_t seed);
void tiny_model_free(struct tiny_model *model);

/* A config for random models: 2 layers, kv_heads groups of 2 heads of 32, 128 tokens. */
struct model_config tiny_config(enum model_family family, uint32_t kv_heads, uint32_t hidden,
                                uint32_t ffn);

/* An engine with pages for every rank. Pages are of 16 tokens unless said otherwise. */
#define SESSION_RANKS_MAX 8
struct session {
    struct engine *engine;
    uint32_t vocab_size;
    void *pools[SESSION_RANKS_MAX];
    uint32_t pool_count;
};

struct session_options {
    uint32_t ranks, threads, tokens_max;
    const char *kernels;
    enum page_element element;
    enum page_order order;
    uint32_t tokens_per_page, pages;
};
extern const struct session_options session_defaults; /* 1 rank, 1 thread, 256 tokens, f16 */

void session_open(struct session *session, const struct tiny_model *model,
                  const struct session_options *options);
void session_close(struct session *session);

/* One sequence: tokens [position, position + count) of `tokens`; the logits of all of them to
 * `logits`, where it is not NULL. */
void session_run(struct session *session, const int32_t *tokens, uint32_t position,
                 uint32_t count, const int32_t *pages, uint32_t page_count, float *logits);

#endif
