/* SPDX-License-Identifier: Apache-2.0 */
/* See bench_model.h. The file is closed as soon as the weights are packed, as in a worker. */
#include "bench_model.h"

#include "cli.h"
#include "model/model_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((uint64_t)2 << 20)

bool bench_model_parse(const struct command *command, int argc, char **argv, void *values,
                       const char **path, int *status)
{
    char text[512];
    struct option_operands operands;
    int rc = options_parse(command, argc, argv, values, &operands, ERROR_BUFFER(text));
    if (rc == OPTIONS_HELP) {
        options_help(command, "baton", stdout);
        *status = CLI_OK;
    } else if (rc) {
        fprintf(stderr, "baton %s: %s\n", command->name, text);
        *status = CLI_USAGE;
    } else {
        *path = operands.items[0];
    }
    return rc == BATON_OK;
}

static int open_engine(const struct bench_model_options *options, struct bench_model *out,
                       struct error err)
{
    struct model_file *file;
    const struct engine_options engine_options = {.rank_count = 1,
                                                  .threads = options->threads,
                                                  .tokens_max = options->tokens_max,
                                                  .logits_max = options->logits_max,
                                                  .kernels = options->kernels};
    int rc = model_file_open(options->path, &file, err);
    if (rc)
        return rc;
    out->file_bytes = model_file_weights(file)->bytes;
    rc = engine_open(model_file_config(file), model_file_weights(file), &engine_options, NULL,
                     NULL, &out->engine, err);
    model_file_close(file);
    return rc;
}

static int open_pool(const struct bench_model_options *options, struct bench_model *out,
                     struct error err)
{
    const struct model_config *config = engine_config(out->engine);
    struct page_shape shape;
    struct page_layout layout;
    int rc =
        engine_page_shape(config, 1, PAGE_ELEMENT_F16, BENCH_MODEL_PAGE_TOKENS, &shape, err);
    if (!rc)
        rc = page_layout_make(&shape, PAGE_ORDER_BY_LAYER, &layout, err);
    if (rc)
        return rc;
    out->pages_each = page_layout_pages(&layout, options->positions);
    uint32_t pages = out->pages_each * options->sequences;
    out->pool_bytes = pages * layout.page_stride;
    out->pool =
        aligned_alloc(HUGE_PAGE, (out->pool_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    out->pages = malloc(pages * sizeof(*out->pages));
    out->logits = malloc((uint64_t)options->logits_max * config->vocab_size * sizeof(float));
    if (!out->pool || !out->pages || !out->logits)
        return error_set(err, BATON_ENOMEM, "no memory for a pool of %llu bytes and the logits",
                         (unsigned long long)out->pool_bytes);
    madvise(out->pool, out->pool_bytes, MADV_HUGEPAGE); /* refused: only slower */
    memset(out->pool, 0, out->pool_bytes);
    for (uint32_t i = 0; i < pages; i++)
        out->pages[i] = (int32_t)i;
    return engine_set_pages(out->engine, 0, &layout, out->pool, pages, err);
}

int bench_model_open(const struct bench_model_options *options, struct bench_model *out,
                     struct error err)
{
    struct bench_model model = {0};
    int rc = open_engine(options, &model, err);
    if (!rc)
        rc = sampler_open(engine_config(model.engine)->vocab_size, &model.sampler, err);
    if (!rc)
        rc = open_pool(options, &model, err);
    if (rc) {
        bench_model_close(&model);
        return rc;
    }
    *out = model;
    return BATON_OK;
}

void bench_model_close(struct bench_model *model)
{
    engine_close(model->engine);
    sampler_close(model->sampler);
    free(model->pool);
    free(model->pages);
    free(model->logits);
    *model = (struct bench_model){0};
}

struct engine_sequence bench_model_sequence(const struct bench_model *model, uint32_t number,
                                            const int32_t *tokens, uint32_t count,
                                            uint32_t position, uint32_t logits_count)
{
    return (struct engine_sequence){.tokens = tokens,
                                    .token_count = count,
                                    .position = position,
                                    .pages = model->pages + number * model->pages_each,
                                    .page_count = model->pages_each,
                                    .logits_count = logits_count};
}

int32_t bench_model_best(const struct bench_model *model, uint32_t row)
{
    const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    uint64_t count = engine_config(model->engine)->vocab_size;
    const struct sampler_row of = {.logits = model->logits + row * count, .sampling = &greedy};
    struct token_choice choice = {0};
    sampler_pick(model->sampler, &of, &choice, ERROR_NONE); /* not a number: token 0 */
    return choice.token;
}
