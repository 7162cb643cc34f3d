/* SPDX-License-Identifier: Apache-2.0 */
/* A plan becomes a step of the engine, and rows of logits become tokens. */
#ifndef BATON_SCHED_STEPPER_H
#define BATON_SCHED_STEPPER_H

#include "answer.h"
#include "layer_watch.h"
#include "planner.h"

#include "engine/engine.h"

#define STEPPER_REASON_BYTES 256

/* What came of a piece. */
struct stepper_result {
    int error; /* BATON_OK, or there are neither K, V nor a choice, and why */
    char reason[STEPPER_REASON_BYTES];
    float *rows; /* its rows of logits; changed where a token was drawn from the last one */
    bool picked;
    struct token_choice choice;
};

/* The working memory of one thread that draws. */
struct stepper_thread {
    struct sampler *sampler;
    int32_t *forbidden; /* ends and stop tokens of one generation */
    size_t forbidden_capacity;
};

struct stepper {
    struct engine *engine;
    struct layer_watch *watch; /* NULL: none */
    const struct answer_ends *ends;
    uint32_t vocab_size, thread_count;
    struct stepper_thread *threads;    /* [engine_threads] */
    struct engine_sequence *sequences; /* [pieces_max] */
    float *logits;                     /* [rows_max][vocab_size] */
    struct stepper_result *results;    /* [pieces_max]: of the last step */
    const struct step_plan *plan;      /* of the step in work */
    _Atomic uint32_t next;             /* piece to be drawn from */
};

int stepper_open(struct stepper *stepper, struct engine *engine, const struct answer_ends *ends,
                 uint32_t pieces_max, uint32_t rows_max, struct error err);
void stepper_close(struct stepper *stepper); /* all zero is fine */

/* Computes the plan, rates the prompt tokens that want it, and draws a token for each piece that ends
 * its sequence. results[i] says what came of piece i; what one is guilty of does not touch the
 * others. False: the step was given up, and nothing came of it. */
bool stepper_run(struct stepper *stepper, const struct step_plan *plan);

#endif
