/* SPDX-License-Identifier: Apache-2.0 */
/* A plan becomes a step of the engine, and rows of logits become tokens. */
#ifndef BATON_SCHED_STEPPER_H
#define BATON_SCHED_STEPPER_H

#include "answer.h"
#include "layer_watch.h"
#include "planner.h"

#include "engine/engine.h"

#define STEPPER_REASON_BYTES 256

struct stepper_failure {
    int error; /* BATON_OK: none */
    char reason[STEPPER_REASON_BYTES];
};

struct stepper {
    struct engine *engine;
    struct layer_watch *watch; /* NULL: none */
    struct sampler *sampler;
    uint32_t vocab_size;
    struct engine_sequence *sequences; /* [pieces_max] */
    float *logits;                     /* [rows_max][vocab_size] */
    struct stepper_failure *failures;  /* [pieces_max]: of each piece of the last step */
    char reason[STEPPER_REASON_BYTES]; /* why the last rate or pick failed */
    int32_t *forbidden;                /* ends and stop tokens of one generation */
    size_t forbidden_capacity;
};

int stepper_open(struct stepper *stepper, struct engine *engine, uint32_t pieces_max,
                 uint32_t rows_max, struct error err);
void stepper_close(struct stepper *stepper); /* all zero is fine */

/* Computes the plan. What one piece is guilty of does not touch the others: failures[i] says whose K,
 * V and logits are not there. */
void stepper_compute(struct stepper *stepper, const struct step_plan *plan);

/* Rates prompt tokens by the piece's rows, before the piece counts as computed. Of stepper->reason the
 * reason of a failure. */
int stepper_rate(struct stepper *stepper, const struct step_piece *piece, const float *rows);

/* Draws the next token from the last row of the piece. */
int stepper_pick(struct stepper *stepper, const struct answer_ends *ends,
                 const struct generation_state *state, float *row, struct token_choice *out);

#endif
