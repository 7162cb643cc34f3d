/* SPDX-License-Identifier: Apache-2.0 */
/* A model, its engine and a pool of pages, opened as a worker opens them, for the commands that
 * measure the engine. */
#ifndef BATON_CLI_BENCH_MODEL_H
#define BATON_CLI_BENCH_MODEL_H

#include "base/options.h"
#include "engine/engine.h"
#include "engine/sampler.h"

#define BENCH_MODEL_PAGE_TOKENS 16

struct bench_model_options {
    const char *path;
    const char *kernels; /* NULL: the best for this processor */
    uint32_t threads;    /* 0: one for each core */
    uint32_t sequences;  /* at once */
    uint32_t positions;  /* of each */
    uint32_t tokens_max; /* in a step */
    uint32_t logits_max;
};

struct bench_model {
    struct engine *engine;
    struct sampler *sampler;
    uint64_t file_bytes; /* of the weights, as they are in the file */
    uint64_t pool_bytes;
    void *pool;
    uint32_t pages_each; /* sequence s has pages s * pages_each and on */
    int32_t *pages;
    float *logits; /* logits_max rows */
};

/* Reads the command line of a command with one operand, MODEL. False: *status is what to return. */
bool bench_model_parse(const struct command *command, int argc, char **argv, void *values,
                       const char **path, int *status);

int bench_model_open(const struct bench_model_options *options, struct bench_model *out,
                     struct error err);
void bench_model_close(struct bench_model *model);

/* `count` tokens of sequence `number` from `position` on. */
struct engine_sequence bench_model_sequence(const struct bench_model *model, uint32_t number,
                                            const int32_t *tokens, uint32_t count,
                                            uint32_t position, uint32_t logits_count);

/* The likeliest token of a row of logits, as a worker finds it. */
int32_t bench_model_best(const struct bench_model *model, uint32_t row);

#endif
