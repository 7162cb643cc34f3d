/* SPDX-License-Identifier: Apache-2.0 */
/* See stepper.h. Tokens are drawn by the engine's threads, which have nothing to do between steps: drawing
 * from a row of 49,152 logits takes 40 us (the likeliest) to 330 us (top_p), and one thread would make
 * the others wait for all rows of a step. */
#include "stepper.h"

#include "model/tokenizer_buffer.h"

#include <stdlib.h>
#include <string.h>

static int open_threads(struct stepper *stepper, struct error err)
{
    stepper->thread_count = engine_threads(stepper->engine);
    stepper->threads = calloc(stepper->thread_count, sizeof(*stepper->threads));
    if (!stepper->threads)
        return error_set(err, BATON_ENOMEM, "no memory to sample with %u threads",
                         stepper->thread_count);
    for (uint32_t i = 0; i < stepper->thread_count; i++) {
        int rc = sampler_open(stepper->vocab_size, &stepper->threads[i].sampler, err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

static int open_step(struct stepper *stepper, uint32_t pieces_max, uint32_t rows_max,
                     struct error err)
{
    stepper->sequences = calloc(pieces_max, sizeof(*stepper->sequences));
    stepper->results = calloc(pieces_max, sizeof(*stepper->results));
    stepper->logits = malloc((size_t)rows_max * stepper->vocab_size * sizeof(float));
    if (stepper->sequences && stepper->results && stepper->logits)
        return BATON_OK;
    return error_set(err, BATON_ENOMEM, "no memory for %u rows of %u logits", rows_max,
                     stepper->vocab_size);
}

int stepper_open(struct stepper *stepper, struct engine *engine, const struct answer_ends *ends,
                 uint32_t pieces_max, uint32_t rows_max, struct error err)
{
    memset(stepper, 0, sizeof(*stepper));
    stepper->engine = engine;
    stepper->ends = ends;
    stepper->vocab_size = engine_config(engine)->vocab_size;
    int rc = open_threads(stepper, err);
    if (!rc)
        rc = open_step(stepper, pieces_max, rows_max, err);
    if (rc)
        stepper_close(stepper);
    return rc;
}

void stepper_close(struct stepper *stepper)
{
    for (uint32_t i = 0; stepper->threads && i < stepper->thread_count; i++) {
        sampler_close(stepper->threads[i].sampler);
        free(stepper->threads[i].forbidden);
    }
    free(stepper->threads);
    free(stepper->logits);
    free(stepper->results);
    free(stepper->sequences);
    memset(stepper, 0, sizeof(*stepper));
}

/* ---- computing ------------------------------------------------------------------------------ */

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

static void lay_out(struct stepper *stepper)
{
    float *rows = stepper->logits;
    for (uint32_t i = 0; i < stepper->plan->count; i++) {
        const struct step_piece *piece = &stepper->plan->pieces[i];
        struct stepper_result *result = &stepper->results[i];
        stepper->sequences[i] = sequence_of(piece);
        result->error = BATON_OK;
        result->picked = false;
        result->rows = rows;
        rows += (size_t)piece->rows * stepper->vocab_size;
    }
}

/* The engine refuses a step as a whole; one by one they show who it was. */
static bool compute(struct stepper *stepper)
{
    uint32_t count = stepper->plan->count;
    engine_layers_forget(stepper->engine);
    if (stepper->watch)
        layer_watch_begin(stepper->watch);
    int rc =
        engine_step(stepper->engine, stepper->sequences, count, stepper->logits, ERROR_NONE);
    if (stepper->watch)
        layer_watch_end(stepper->watch);
    for (uint32_t i = 0; i < count && rc && rc != BATON_EABORTED; i++) {
        struct stepper_result *result = &stepper->results[i];
        result->error = engine_step(stepper->engine, &stepper->sequences[i], 1, result->rows,
                                    ERROR_BUFFER(result->reason));
    }
    return rc != BATON_EABORTED;
}

/* ---- drawing -------------------------------------------------------------------------------- */

/* Row p says how likely token p + 1 was. */
static int rate(struct stepper *stepper, struct sampler *sampler,
                const struct step_piece *piece, struct stepper_result *result)
{
    struct generation_state *state = piece->state;
    const struct generation *generation = state->generation;
    uint32_t end = state->computed + piece->tokens, position = end - piece->rows;
    const float *row = result->rows;
    for (; position < end && generation_state_rates(state); position++) {
        BATON_ASSERT(position + 1 == state->rate_next);
        uint32_t index = state->rate_next - generation->prompt_logprobs_start;
        int rc = sampler_rate(sampler, row, generation->prompt[state->rate_next],
                              generation->prompt_top_logprobs, &state->prompt_choices[index],
                              ERROR_BUFFER(result->reason));
        if (rc)
            return rc;
        state->rate_next++;
        row += stepper->vocab_size;
    }
    return BATON_OK;
}

static int pick(struct stepper *stepper, struct stepper_thread *thread,
                const struct step_piece *piece, struct stepper_result *result)
{
    const struct generation_state *state = piece->state;
    const struct generation *generation = state->generation;
    struct error err = ERROR_BUFFER(result->reason);
    if (array_reserve((void **)&thread->forbidden, &thread->forbidden_capacity,
                      (size_t)ANSWER_ENDS_MAX + generation->stop_token_count,
                      sizeof(*thread->forbidden)))
        return error_set(err, BATON_ENOMEM, "no memory for %u stop tokens",
                         generation->stop_token_count);
    const struct sampler_row row = {
        .logits = result->rows + (size_t)(piece->rows - 1) * stepper->vocab_size,
        .sampling = &generation->sampling,
        .history = sampling_has_penalties(&generation->sampling) ? &state->history : NULL,
        .forbidden = thread->forbidden,
        .forbidden_count = answer_forbidden(stepper->ends, state, thread->forbidden),
        .position = state->token_count,
    };
    return sampler_pick(thread->sampler, &row, &result->choice, err);
}

static void draw(struct stepper *stepper, struct stepper_thread *thread, uint32_t index)
{
    const struct step_piece *piece = &stepper->plan->pieces[index];
    const struct generation_state *state = piece->state;
    struct stepper_result *result = &stepper->results[index];
    if (result->error || piece->rows == 0)
        return;
    result->error = rate(stepper, thread->sampler, piece, result);
    if (result->error || state->computed + piece->tokens < state->token_count ||
        state->generated == state->limit)
        return;
    result->error = pick(stepper, thread, piece, result);
    result->picked = !result->error;
}

static void draw_some(void *context, uint32_t thread)
{
    struct stepper *stepper = context;
    uint32_t index;
    while ((index = atomic_fetch_add_explicit(&stepper->next, 1, memory_order_relaxed)) <
           stepper->plan->count)
        draw(stepper, &stepper->threads[thread], index);
}

bool stepper_run(struct stepper *stepper, const struct step_plan *plan)
{
    stepper->plan = plan;
    lay_out(stepper);
    if (!compute(stepper))
        return false;
    atomic_store_explicit(&stepper->next, 0, memory_order_relaxed);
    if (plan->count > 1)
        engine_run(stepper->engine, draw_some, stepper);
    else
        draw_some(stepper, 0);
    return true;
}
