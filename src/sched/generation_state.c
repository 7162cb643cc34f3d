/* SPDX-License-Identifier: Apache-2.0 */
/* See generation_state.h. */
#include "generation_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int open_prompt_choices(struct generation_state *state)
{
    const struct generation *generation = state->generation;
    uint32_t start = generation->prompt_logprobs_start;
    if (!generation->prompt_logprobs)
        return BATON_OK;
    size_t count = generation->prompt_count - start;
    state->prompt_choices = malloc((count + 1) * sizeof(*state->prompt_choices));
    if (!state->prompt_choices)
        return BATON_ENOMEM;
    state->rate_next = start;
    if (start == 0) {
        state->prompt_choices[0] =
            (struct token_choice){.token = generation->prompt[0], .logprob = NAN};
        state->rate_next = 1;
    }
    return BATON_OK;
}

int generation_state_open(struct generation *generation, const struct tokenizer *tokenizer,
                          uint32_t limit, uint32_t tokens_per_page,
                          struct generation_state **out, struct error err)
{
    struct generation_state *state = calloc(1, sizeof(*state));
    size_t most = (size_t)generation->prompt_count + limit;
    if (!state)
        goto no_memory;
    state->generation = generation;
    state->message.kind = MESSAGE_SUBMIT;
    state->limit = limit;
    state->hold.node = PREFIX_NONE;
    state->token_count = generation->prompt_count;
    state->uncached = generation->prompt_count;
    state->tokens = malloc(most * sizeof(*state->tokens));
    state->hold.pages = malloc(pages_for(most, tokens_per_page) * sizeof(int32_t));
    if (!state->tokens || !state->hold.pages || open_prompt_choices(state))
        goto close_state;
    memcpy(state->tokens, generation->prompt,
           generation->prompt_count * sizeof(*state->tokens));
    if (sampling_has_penalties(&generation->sampling) &&
        token_history_add_prompt(&state->history, generation->prompt, generation->prompt_count))
        goto close_state;
    if (stop_text_open(&state->text, tokenizer, generation->text_flags,
                       generation->stop_strings, generation->keep_stop))
        goto close_state;
    *out = state;
    return BATON_OK;

close_state:
    generation_state_close(state);
no_memory:
    return error_set(err, BATON_ENOMEM, "no memory for a generation of up to %zu tokens", most);
}

void generation_state_close(struct generation_state *state)
{
    BATON_ASSERT(state->hold.count == 0);
    stop_text_close(&state->text);
    token_history_free(&state->history);
    free(state->prompt_choices);
    free(state->hold.pages);
    free(state->tokens);
    free(state);
}

struct sequence_load generation_state_load(const struct generation_state *state)
{
    return (struct sequence_load){.tokens = state->token_count,
                                  .pages = state->hold.count,
                                  .remaining = state->limit - state->generated,
                                  .prompt = state->generation->prompt_count,
                                  .generated = state->generated};
}

uint32_t generation_state_cacheable(const struct generation_state *state)
{
    uint32_t last = state->token_count - 1;
    if (generation_state_rates(state) && state->rate_next - 1 < last)
        return state->rate_next - 1;
    return last;
}

/* The first position whose logits are wanted. */
static uint32_t rows_from(const struct generation_state *state)
{
    if (generation_state_rates(state))
        return state->rate_next - 1;
    return state->generated < state->limit ? state->token_count - 1 : state->token_count;
}

uint32_t generation_state_rows(const struct generation_state *state, uint32_t tokens)
{
    uint32_t end = state->computed + tokens, from = rows_from(state);
    if (from < state->computed)
        from = state->computed;
    return end > from ? end - from : 0;
}

uint32_t generation_state_piece_max(const struct generation_state *state, uint32_t rows)
{
    uint32_t from = rows_from(state), rest = state->token_count - state->computed;
    uint64_t most = (uint64_t)rows + (from > state->computed ? from - state->computed : 0);
    if (!generation_state_rates(state) || most > rest)
        return rest;
    return (uint32_t)most;
}
