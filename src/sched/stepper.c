/* SPDX-License-Identifier: Apache-2.0 */
/* See stepper.h. */
#include "stepper.h"

#include "model/tokenizer_buffer.h"

#include <stdlib.h>
#include <string.h>

int stepper_open(struct stepper *stepper, struct engine *engine, uint32_t pieces_max,
                 uint32_t rows_max, struct error err)
{
    memset(stepper, 0, sizeof(*stepper));
    stepper->engine = engine;
    stepper->vocab_size = engine_config(engine)->vocab_size;
    int rc = sampler_open(stepper->vocab_size, &stepper->sampler, err);
    if (rc)
        return rc;
    stepper->sequences = calloc(pieces_max, sizeof(*stepper->sequences));
    stepper->failures = calloc(pieces_max, sizeof(*stepper->failures));
    stepper->logits = malloc((size_t)rows_max * stepper->vocab_size * sizeof(float));
    if (stepper->sequences && stepper->failures && stepper->logits)
        return BATON_OK;
    stepper_close(stepper);
    return error_set(err, BATON_ENOMEM, "no memory for %u rows of %u logits", rows_max,
                     engine_config(engine)->vocab_size);
}

void stepper_close(struct stepper *stepper)
{
    free(stepper->forbidden);
    free(stepper->logits);
    free(stepper->failures);
    free(stepper->sequences);
    sampler_close(stepper->sampler);
    memset(stepper, 0, sizeof(*stepper));
}

static struct engine_sequence sequence_of(const struct step_piece *piece)
{
    const struct generation_state *state = piece->state;
    return (struct engine_sequence){.tokens = state->tokens + state->computed,
                                    .token_count = piece->tokens,
                                    .position = state->computed,
                                    .pages = state->hold.pages,
                                    .page_count = state->hold.count,
                                    .logits_count = piece->rows};
}

/* The engine refuses a step as a whole; one by one they show who it was. */
static void compute_one_by_one(struct stepper *stepper, const struct step_plan *plan)
{
    float *row = stepper->logits;
    for (uint32_t i = 0; i < plan->count; i++) {
        struct stepper_failure *failure = &stepper->failures[i];
        failure->error = engine_step(stepper->engine, &stepper->sequences[i], 1, row,
                                     ERROR_BUFFER(failure->reason));
        row += (size_t)plan->pieces[i].rows * stepper->vocab_size;
    }
}

void stepper_compute(struct stepper *stepper, const struct step_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        stepper->sequences[i] = sequence_of(&plan->pieces[i]);
        stepper->failures[i].error = BATON_OK;
    }
    engine_layers_forget(stepper->engine);
    if (stepper->watch)
        layer_watch_begin(stepper->watch);
    int rc = engine_step(stepper->engine, stepper->sequences, plan->count, stepper->logits,
                         ERROR_BUFFER(stepper->reason));
    if (stepper->watch)
        layer_watch_end(stepper->watch);
    if (rc)
        compute_one_by_one(stepper, plan);
}

int stepper_rate(struct stepper *stepper, const struct step_piece *piece, const float *rows)
{
    struct generation_state *state = piece->state;
    const struct generation *generation = state->generation;
    uint32_t end = state->computed + piece->tokens, position = end - piece->rows;
    for (; position < end && generation_state_rates(state); position++) {
        BATON_ASSERT(position + 1 == state->rate_next);
        int rc = sampler_rate(
            stepper->sampler, rows, generation->prompt[state->rate_next],
            generation->prompt_top_logprobs,
            &state->prompt_choices[state->rate_next - generation->prompt_logprobs_start],
            ERROR_BUFFER(stepper->reason));
        if (rc)
            return rc;
        state->rate_next++;
        rows += stepper->vocab_size;
    }
    return BATON_OK;
}

int stepper_pick(struct stepper *stepper, const struct answer_ends *ends,
                 const struct generation_state *state, float *row, struct token_choice *out)
{
    struct error err = ERROR_BUFFER(stepper->reason);
    const struct generation *generation = state->generation;
    if (array_reserve((void **)&stepper->forbidden, &stepper->forbidden_capacity,
                      (size_t)ANSWER_ENDS_MAX + generation->stop_token_count,
                      sizeof(*stepper->forbidden)))
        return error_set(err, BATON_ENOMEM, "no memory for %u stop tokens",
                         generation->stop_token_count);
    const struct sampler_row sampled = {
        .logits = row,
        .sampling = &generation->sampling,
        .history = sampling_has_penalties(&generation->sampling) ? &state->history : NULL,
        .forbidden = stepper->forbidden,
        .forbidden_count = answer_forbidden(ends, state, stepper->forbidden),
        .position = state->token_count,
    };
    return sampler_pick(stepper->sampler, &sampled, out, err);
}
