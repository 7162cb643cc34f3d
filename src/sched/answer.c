/* SPDX-License-Identifier: Apache-2.0 */
/* See answer.h. */
#include "answer.h"

#include "model/model_config.h"

#include <stdlib.h>

static bool contains(const int32_t *tokens, uint32_t count, int32_t token)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token)
            return true;
    return false;
}

static void add_end(struct answer_ends *ends, int64_t token, uint32_t vocab_size)
{
    if (token >= 0 && token < vocab_size && ends->count < ANSWER_ENDS_MAX &&
        !contains(ends->tokens, ends->count, (int32_t)token))
        ends->tokens[ends->count++] = (int32_t)token;
}

void answer_ends_init(struct answer_ends *ends, const struct tokenizer *tokenizer,
                      const struct model_config *config)
{
    size_t count;
    const uint32_t *tokens = tokenizer_ends(tokenizer, &count);
    ends->count = 0;
    for (uint32_t i = 0; i < config->eos_count; i++)
        add_end(ends, config->eos_tokens[i], config->vocab_size);
    for (size_t i = 0; i < count; i++)
        add_end(ends, tokens[i], config->vocab_size);
}

uint32_t answer_forbidden(const struct answer_ends *ends, const struct generation_state *state,
                          int32_t *out)
{
    const struct generation *generation = state->generation;
    uint32_t count = 0;
    if (state->generated >= generation->min_new_tokens)
        return 0;
    for (uint32_t i = 0; i < ends->count && !generation->ignore_eos; i++)
        out[count++] = ends->tokens[i];
    for (uint32_t i = 0; i < generation->stop_token_count; i++)
        out[count++] = generation->stop_tokens[i];
    return count;
}

static bool ends_answer(const struct answer_ends *ends, const struct generation *generation,
                        int32_t token)
{
    return contains(generation->stop_tokens, generation->stop_token_count, token) ||
           (!generation->ignore_eos && contains(ends->tokens, ends->count, token));
}

int answer_flush(struct generation_state *state, struct byte_buffer *text)
{
    struct text_view out;
    if (stop_text_flush(&state->text, &out))
        return BATON_ENOMEM;
    return byte_buffer_append(text, out.bytes, out.length);
}

/* A stop token is looked at before its text: its text is let out only if it is to be kept. */
int answer_token(const struct answer_ends *ends, struct generation_state *state, int32_t token,
                 struct byte_buffer *text, struct answer_finish *finish)
{
    const struct generation *generation = state->generation;
    bool may_stop = state->generated >= generation->min_new_tokens;
    bool is_end = ends_answer(ends, generation, token);
    struct text_view out = {NULL, 0};
    *finish = ANSWER_GOES_ON;
    if (!is_end || generation->keep_stop)
        if (stop_text_push(&state->text, (uint32_t)token, may_stop && !is_end, &out) ||
            byte_buffer_append(text, out.bytes, out.length))
            return BATON_ENOMEM;
    if (is_end) {
        finish->finish = GENERATION_STOP;
        finish->matched_token = token;
    } else if (state->text.matched >= 0) {
        finish->finish = GENERATION_STOP;
        finish->matched_string = state->text.matched;
    } else if (state->generated + 1 == state->limit) {
        finish->finish = GENERATION_LENGTH;
    }
    if (finish->finish != GENERATION_RUNNING && answer_flush(state, text))
        return BATON_ENOMEM;
    if (sampling_has_penalties(&generation->sampling))
        return token_history_add_output(&state->history, token);
    return BATON_OK;
}

void answer_deliver(struct generation_state *state, const struct token_choice *choice,
                    const struct byte_buffer *text, const struct answer_finish *finish)
{
    struct generation *generation = state->generation;
    struct generation_output output = {
        .tokens = choice,
        .token_count = choice ? 1 : 0,
        .text = {text->bytes, text->length},
        .first = !state->delivered,
        .finish = finish->finish,
        .matched_token = finish->matched_token,
        .matched_string = finish->matched_string,
        .error = finish->error,
        .reason = finish->reason,
    };
    if (output.first) {
        output.cached_tokens = state->cached_tokens;
        if (state->prompt_choices && !generation_state_rates(state)) {
            output.prompt_choices = state->prompt_choices;
            output.prompt_choice_count =
                generation->prompt_count - generation->prompt_logprobs_start;
        }
    }
    struct token_choice *prompt_choices = output.first ? state->prompt_choices : NULL;
    if (output.first)
        state->prompt_choices = NULL;
    state->delivered = true;
    generation->deliver(generation, &output);
    free(prompt_choices);
}
