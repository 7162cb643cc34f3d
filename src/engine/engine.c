/* SPDX-License-Identifier: Apache-2.0 */
/* See engine.h. Here a step is checked and laid out in rows; forward.c computes it. Everything that
 * a step needs is allocated when the engine opens. */
#include "engine.h"
#include "cpu/cpu_device.h"
#include "forward_open.h"
#include "thread_group.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct engine {
    struct engine_options options;
    const struct cpu_kernels *kernels;
    uint32_t members; /* threads of each rank */
    struct thread_pool *pool;
    struct forward_model model;
    /* Of the running step. */
    struct device_sequence *sequences; /* tokens_max: each has a token at least */
    int32_t *tokens;
    float *cosine, *sine;
    uint32_t *selected;
    struct forward_step step;
    atomic_bool unwanted; /* the running step */
};

/* ---- shapes --------------------------------------------------------------------------------- */

uint32_t engine_units(const struct model_config *config)
{
    return forward_units(config);
}

static int check_ranks(const struct model_config *config, uint32_t rank_count, struct error err)
{
    uint32_t units = forward_units(config);
    if (rank_count == 0 || units % rank_count)
        return error_set(err, BATON_EINVAL,
                         "%u tensor-parallel ranks: this model of %u heads and %u KV heads can "
                         "be divided in %u; use a number that divides %u",
                         rank_count, config->head_count, config->kv_head_count, units, units);
    return BATON_OK;
}

uint32_t engine_first_kv_head(const struct model_config *config, uint32_t rank_count,
                              uint32_t rank)
{
    return forward_kv_heads(config, rank_count, rank).begin;
}

int engine_page_shape(const struct model_config *config, uint32_t rank_count,
                      enum page_element element, uint32_t tokens_per_page,
                      struct page_shape *out, struct error err)
{
    int rc = check_ranks(config, rank_count, err);
    if (rc)
        return rc;
    struct range kv_heads = forward_kv_heads(config, rank_count, 0);
    *out = (struct page_shape){.element = element,
                               .layers = config->layer_count,
                               .kv = 2,
                               .heads = kv_heads.end - kv_heads.begin,
                               .head_dim = config->head_dim,
                               .tokens_per_page = tokens_per_page};
    return BATON_OK;
}

/* ---- opening -------------------------------------------------------------------------------- */

static uint32_t threads_by_default(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static int check_options(const struct model_config *config,
                         const struct engine_options *options, struct error err)
{
    int rc = check_ranks(config, options->rank_count, err);
    if (rc)
        return rc;
    if (options->tokens_max == 0 || options->tokens_max > 1u << 20)
        return error_set(err, BATON_EINVAL, "%u tokens in a step, must be 1 to %u",
                         options->tokens_max, 1u << 20);
    if (options->logits_max > options->tokens_max)
        return error_set(err, BATON_EINVAL, "%u rows of logits in a step of %u tokens",
                         options->logits_max, options->tokens_max);
    return BATON_OK;
}

static int open_step_buffers(struct engine *engine, struct error err)
{
    uint32_t rows = engine->options.tokens_max, half = engine->model.config.head_dim / 2;
    engine->sequences = calloc(rows, sizeof(*engine->sequences));
    engine->tokens = calloc(rows, sizeof(*engine->tokens));
    engine->cosine = calloc((size_t)rows * half, sizeof(float));
    engine->sine = calloc((size_t)rows * half, sizeof(float));
    engine->selected = calloc((size_t)engine->options.logits_max + 1, sizeof(uint32_t));
    if (!engine->sequences || !engine->tokens || !engine->cosine || !engine->sine ||
        !engine->selected)
        return error_set(err, BATON_ENOMEM, "out of memory for steps of %u tokens", rows);
    return BATON_OK;
}

static int open_device(struct engine *engine, struct error err)
{
    const struct engine_options *options = &engine->options;
    uint32_t threads = options->threads ? options->threads : threads_by_default();
    engine->members = threads / options->rank_count;
    if (engine->members == 0)
        engine->members = 1;
    int rc = cpu_kernels_find(options->kernels, &engine->kernels, err);
    if (!rc)
        rc = thread_pool_open(options->rank_count * engine->members, &engine->pool, err);
    if (!rc)
        rc = cpu_device_open(&engine->model.config, engine->kernels, engine->pool,
                             options->rank_count, engine->members, &engine->model.device, err);
    return rc;
}

int engine_open(const struct model_config *config, const struct weights *weights,
                const struct engine_options *options, weights_progress *progress, void *context,
                struct engine **out, struct error err)
{
    int rc = check_options(config, options, err);
    if (rc)
        return rc;
    struct engine *engine = calloc(1, sizeof(*engine));
    if (!engine)
        return error_set(err, BATON_ENOMEM, "out of memory for an engine");
    engine->options = *options;
    engine->model.config = *config;
    engine->model.rank_count = options->rank_count;
    rc = open_device(engine, err);
    if (!rc)
        rc = forward_open(&engine->model, weights, options->tokens_max, progress, context, err);
    if (!rc)
        rc = open_step_buffers(engine, err);
    if (rc) {
        engine_close(engine);
        return rc;
    }
    *out = engine;
    return BATON_OK;
}

void engine_close(struct engine *engine)
{
    if (!engine)
        return;
    free(engine->selected);
    free(engine->sine);
    free(engine->cosine);
    free(engine->tokens);
    free(engine->sequences);
    if (engine->model.device) {
        forward_close(&engine->model);
        engine->model.device->ops->close(engine->model.device);
    }
    thread_pool_close(engine->pool);
    free(engine);
}

const struct model_config *engine_config(const struct engine *engine)
{
    return &engine->model.config;
}

const char *engine_kernels_name(const struct engine *engine)
{
    return engine->kernels->name;
}

uint32_t engine_threads(const struct engine *engine)
{
    return engine->members * engine->options.rank_count;
}

/* ---- pages ---------------------------------------------------------------------------------- */

int engine_set_pages(struct engine *engine, uint32_t rank, const struct page_layout *layout,
                     void *base, uint32_t page_count, struct error err)
{
    struct page_shape wanted;
    const struct page_shape *shape = &layout->shape;
    if (rank >= engine->model.rank_count)
        return error_set(err, BATON_EINVAL, "pages for rank %u of %u", rank,
                         engine->model.rank_count);
    int rc = engine_page_shape(&engine->model.config, engine->model.rank_count, shape->element,
                               shape->tokens_per_page, &wanted, err);
    if (rc)
        return rc;
    if (memcmp(shape, &wanted, sizeof(wanted)))
        return error_set(err, BATON_ELAYOUT,
                         "pages of %u layers, %u heads and %u elements; rank %u of this model "
                         "has %u layers, %u heads and %u elements",
                         shape->layers, shape->heads, shape->head_dim, rank, wanted.layers,
                         wanted.heads, wanted.head_dim);
    engine->model.ranks[rank].layout = *layout;
    engine->model.ranks[rank].pages = base;
    engine->model.ranks[rank].page_count = page_count;
    return BATON_OK;
}

uint32_t engine_layers_stored(const struct engine *engine, uint32_t rank)
{
    return atomic_load_explicit(&engine->model.ranks[rank].layers_stored, memory_order_acquire);
}

void engine_layers_forget(struct engine *engine)
{
    for (uint32_t rank = 0; rank < engine->model.rank_count; rank++)
        atomic_store_explicit(&engine->model.ranks[rank].layers_stored, 0,
                              memory_order_relaxed);
}

/* ---- a step --------------------------------------------------------------------------------- */

static int check_pages(const struct engine *engine, const struct engine_sequence *sequence,
                       uint32_t index, struct error err)
{
    uint64_t end = (uint64_t)sequence->position + sequence->token_count;
    for (uint32_t r = 0; r < engine->model.rank_count; r++) {
        const struct forward_rank *rank = &engine->model.ranks[r];
        if (!rank->pages)
            return error_set(err, BATON_ESTATE, "rank %u has no pages yet", r);
        uint32_t needed = page_layout_pages(&rank->layout, end);
        if (needed > sequence->page_count)
            return error_set(err, BATON_EINVAL,
                             "sequence %u has %u pages for %llu positions, needs %u", index,
                             sequence->page_count, (unsigned long long)end, needed);
        for (uint32_t i = 0; i < needed; i++)
            if (sequence->pages[i] < 0 || (uint32_t)sequence->pages[i] >= rank->page_count)
                return error_set(err, BATON_EINVAL, "page %d of sequence %u; there are %u",
                                 sequence->pages[i], index, rank->page_count);
    }
    return BATON_OK;
}

static int check_sequence(const struct engine *engine, const struct engine_sequence *sequence,
                          uint32_t index, struct error err)
{
    const struct model_config *config = &engine->model.config;
    uint64_t end = (uint64_t)sequence->position + sequence->token_count;
    if (sequence->token_count == 0 || sequence->logits_count > sequence->token_count)
        return error_set(err, BATON_EINVAL, "sequence %u: %u new tokens, logits of %u", index,
                         sequence->token_count, sequence->logits_count);
    if (end > UINT32_MAX)
        return error_set(err, BATON_EINVAL, "sequence %u would have %llu tokens", index,
                         (unsigned long long)end);
    int rc = model_config_check_context(config, (uint32_t)end, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < sequence->token_count; i++)
        if (sequence->tokens[i] < 0 || (uint32_t)sequence->tokens[i] >= config->vocab_size)
            return error_set(err, BATON_EINVAL, "token %d of sequence %u; the model knows %u",
                             sequence->tokens[i], index, config->vocab_size);
    return check_pages(engine, sequence, index, err);
}

static int check_step(const struct engine *engine, const struct engine_sequence *sequences,
                      uint32_t count, struct error err)
{
    uint64_t tokens = 0, logits = 0;
    for (uint32_t i = 0; i < count; i++) {
        int rc = check_sequence(engine, &sequences[i], i, err);
        if (rc)
            return rc;
        tokens += sequences[i].token_count;
        logits += sequences[i].logits_count;
    }
    if (tokens == 0 || tokens > engine->options.tokens_max ||
        logits > engine->options.logits_max)
        return error_set(
            err, BATON_EINVAL,
            "a step of %llu tokens and %llu rows of logits; this engine was opened "
            "for %u and %u",
            (unsigned long long)tokens, (unsigned long long)logits, engine->options.tokens_max,
            engine->options.logits_max);
    return BATON_OK;
}

static void lay_out_step(struct engine *engine, const struct engine_sequence *sequences,
                         uint32_t count, float *logits)
{
    uint32_t row = 0, selected = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_sequence *from = &sequences[i];
        engine->sequences[i] = (struct device_sequence){.first_row = row,
                                                        .row_count = from->token_count,
                                                        .position = from->position,
                                                        .pages = from->pages};
        memcpy(engine->tokens + row, from->tokens, from->token_count * sizeof(*from->tokens));
        row += from->token_count;
        for (uint32_t j = from->logits_count; j > 0; j--)
            engine->selected[selected++] = row - j;
    }
    engine->step = (struct forward_step){
        .model = &engine->model,
        .rows = {row, count, engine->sequences, engine->cosine, engine->sine},
        .tokens = engine->tokens,
        .cosine = engine->cosine,
        .sine = engine->sine,
        .selected = engine->selected,
        .selected_count = selected,
        .logits = logits,
        .unwanted = &engine->unwanted,
    };
    for (uint32_t r = 0; r < engine->model.rank_count; r++)
        atomic_store_explicit(&engine->model.ranks[r].layers_stored, 0, memory_order_relaxed);
}

static void run_member(void *context, uint32_t index)
{
    struct engine *engine = context;
    const struct seat seat = {index / engine->members, index % engine->members,
                              engine->members};
    forward_run(&engine->step, seat);
}

int engine_step(struct engine *engine, const struct engine_sequence *sequences, uint32_t count,
                float *logits, struct error err)
{
    int rc = check_step(engine, sequences, count, err);
    if (rc)
        return rc;
    lay_out_step(engine, sequences, count, logits);
    atomic_store_explicit(&engine->unwanted, false, memory_order_relaxed);
    thread_pool_run(engine->pool, run_member, engine);
    return engine->step.given_up ? error_set(err, BATON_EABORTED, "the step was given up")
                                 : BATON_OK;
}

void engine_give_up(struct engine *engine)
{
    atomic_store_explicit(&engine->unwanted, true, memory_order_relaxed);
}

void engine_run(struct engine *engine, void (*work)(void *context, uint32_t index),
                void *context)
{
    thread_pool_run(engine->pool, work, context);
}
