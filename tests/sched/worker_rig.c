/* SPDX-License-Identifier: Apache-2.0 */
/* See worker_rig.h. */
#include "worker_rig.h"

#include "model/test_tokenizer_files.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_TOKENS 16u
#define VOCABULARY 708u /* of tokenizer_bytes.json */
#define FIRST_TEXT 10u  /* control tokens come before it */
#define LAST_TEXT 699u

const struct rig_options rig_defaults = {
    .pages = 256,
    .max_running = 16,
    .max_queued = 100000,
    .chunk_tokens = 64,
    .ranks = 1,
    .prefix_cache = true,
    .conservativeness = 1,
};

/* ---- the rig -------------------------------------------------------------------------------- */

static void open_model(struct rig *rig, const struct rig_options *options)
{
    struct model_config config = tiny_config(MODEL_LLAMA, 2, 64, 64);
    config.vocab_size = VOCABULARY;
    config.context_length = RIG_CONTEXT;
    config.tied_embeddings = false;
    config.eos_tokens[0] = 1;
    config.eos_count = 1;
    tiny_model_random(&rig->model, &config, TENSOR_F32, 7);
    if (options->poisoned_token) {
        struct weight *embedding = &rig->model.weights.embedding;
        float *row = (float *)(uintptr_t)(embedding->data + (size_t)options->poisoned_token *
                                                                embedding->row_bytes);
        for (uint32_t i = 0; i < config.hidden_size; i++)
            row[i] = NAN;
    }
}

static void open_engine(struct rig *rig, const struct rig_options *options)
{
    char text[512] = "";
    uint32_t tokens = options->chunk_tokens + options->max_running + SCHEDULER_LOGITS;
    const struct engine_options engine_options = {
        .rank_count = options->ranks,
        .threads = options->ranks,
        .tokens_max = options->engine_tokens ? options->engine_tokens : tokens,
        .logits_max = options->engine_tokens ? options->engine_tokens
                                             : options->max_running + SCHEDULER_LOGITS,
    };
    if (engine_open(&rig->model.config, &rig->model.weights, &engine_options, NULL, NULL,
                    &rig->engine, ERROR_BUFFER(text)))
        fail_msg("%s", text);
}

void rig_open(struct rig *rig, const char *golden, const struct rig_options *options)
{
    char text[512] = "";
    struct session_options alone = session_defaults;
    const struct scheduler_options scheduler_options = {
        .pages = options->pages,
        .tokens_per_page = PAGE_TOKENS,
        .element = PAGE_ELEMENT_F16,
        .order = PAGE_ORDER_DEFAULT,
        .rank_count = options->ranks,
        .max_running = options->max_running,
        .max_queued = options->max_queued,
        .chunk_tokens = options->chunk_tokens,
        .conservativeness = options->conservativeness,
        .prefix_cache = options->prefix_cache,
        .transfer = options->transfer,
    };
    memset(rig, 0, sizeof(*rig));
    rig->tokenizer = test_tokenizer_open(golden, "tokenizer_bytes.json");
    open_model(rig, options);
    open_engine(rig, options);
    alone.tokens_max = RIG_CONTEXT;
    session_open(&rig->alone, &rig->model, &alone);
    if (scheduler_open(rig->engine, rig->tokenizer, &scheduler_options, &rig->scheduler,
                       ERROR_BUFFER(text)))
        fail_msg("%s", text);
}

void rig_wait_idle(struct rig *rig, struct scheduler_stats *stats)
{
    for (;;) {
        scheduler_stats(rig->scheduler, stats);
        if (!stats->step_started_ns && !stats->running && !stats->waiting)
            return;
        sched_yield();
    }
}

/* When everybody is gone, no page is used or locked: all are free, or cached and evictable. */
void rig_close_scheduler(struct rig *rig)
{
    struct scheduler_stats stats;
    rig_wait_idle(rig, &stats);
    assert_int_equal(stats.pages.used, 0);
    assert_int_equal(stats.pages.locked, 0);
    assert_int_equal(stats.pages.free + stats.pages.cached, stats.pages.pages);
    scheduler_close(rig->scheduler);
    rig->scheduler = NULL;
}

void rig_close(struct rig *rig)
{
    if (rig->scheduler)
        rig_close_scheduler(rig);
    session_close(&rig->alone);
    engine_close(rig->engine);
    tiny_model_free(&rig->model);
    tokenizer_close(rig->tokenizer);
}

void rig_random_tokens(struct random_source *random, int32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)random_between(random, FIRST_TEXT, LAST_TEXT);
}

/* ---- tickets -------------------------------------------------------------------------------- */

static atomic_ullong first_tokens;

static void note_first(struct ticket *ticket, const struct generation_output *output)
{
    assert_false(ticket->had_first);
    ticket->had_first = true;
    ticket->order = atomic_fetch_add(&first_tokens, 1);
    ticket->cached_tokens = output->cached_tokens;
    ticket->prompt_choice_count = output->prompt_choice_count;
    for (uint32_t i = 0; i < output->prompt_choice_count; i++)
        ticket->prompt_logprobs[i] = output->prompt_choices[i].logprob;
}

static void append(struct answer *answer, const struct generation_output *output)
{
    for (uint32_t i = 0; i < output->token_count; i++) {
        assert_true(answer->count < TICKET_TOKENS_MAX);
        answer->tokens[answer->count] = output->tokens[i].token;
        answer->logprobs[answer->count++] = output->tokens[i].logprob;
    }
    assert_true(answer->text_length + output->text.length <= TICKET_TEXT_MAX);
    if (output->text.length)
        memcpy(answer->text + answer->text_length, output->text.bytes, output->text.length);
    answer->text_length += output->text.length;
}

static void deliver(struct generation *generation, const struct generation_output *output)
{
    struct ticket *ticket = generation->context;
    pthread_mutex_lock(&ticket->lock);
    assert_false(ticket->done);
    ticket->deliveries++;
    if (output->first)
        note_first(ticket, output);
    append(&ticket->answer, output);
    if (ticket->abort_after && ticket->answer.count >= ticket->abort_after)
        scheduler_abort(ticket->rig->scheduler, generation);
    if (output->finish != GENERATION_RUNNING) {
        ticket->answer.finish = output->finish;
        ticket->answer.matched_token = output->matched_token;
        ticket->answer.matched_string = output->matched_string;
        ticket->error = output->error;
        snprintf(ticket->reason, sizeof(ticket->reason), "%s",
                 output->reason ? output->reason : "");
        ticket->done = true;
    }
    pthread_cond_broadcast(&ticket->changed);
    pthread_mutex_unlock(&ticket->lock);
}

void ticket_init(struct ticket *ticket, struct rig *rig)
{
    memset(ticket, 0, sizeof(*ticket));
    generation_init(&ticket->generation);
    ticket->rig = rig;
    ticket->generation.sampling.temperature = 0;
    ticket->generation.prompt = ticket->prompt;
    ticket->generation.max_new_tokens = 8;
    ticket->generation.deliver = deliver;
    ticket->generation.context = ticket;
    pthread_mutex_init(&ticket->lock, NULL);
    pthread_cond_init(&ticket->changed, NULL);
}

void ticket_prompt(struct ticket *ticket, const int32_t *tokens, uint32_t count)
{
    assert_true(count <= RIG_CONTEXT);
    memcpy(ticket->prompt, tokens, count * sizeof(*tokens));
    ticket->generation.prompt_count = count;
}

void ticket_free(struct ticket *ticket)
{
    pthread_cond_destroy(&ticket->changed);
    pthread_mutex_destroy(&ticket->lock);
}

void ticket_submit(struct ticket *ticket)
{
    char text[512] = "";
    if (scheduler_submit(ticket->rig->scheduler, &ticket->generation, ERROR_BUFFER(text)))
        fail_msg("%s", text);
}

void ticket_wait_tokens(struct ticket *ticket, uint32_t count)
{
    pthread_mutex_lock(&ticket->lock);
    while (!ticket->done && ticket->answer.count < count)
        pthread_cond_wait(&ticket->changed, &ticket->lock);
    pthread_mutex_unlock(&ticket->lock);
}

void ticket_wait(struct ticket *ticket)
{
    ticket_wait_tokens(ticket, UINT32_MAX);
}

/* ---- alone ---------------------------------------------------------------------------------- */

static bool is_listed(int32_t token, const int32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token)
            return true;
    return false;
}

static bool is_end(const struct rig *rig, const struct generation *generation, int32_t token)
{
    if (is_listed(token, generation->stop_tokens, generation->stop_token_count))
        return true;
    return !generation->ignore_eos &&
           (token == 1 || tokenizer_is_end(rig->tokenizer, (uint32_t)token));
}

/* Draws a token; those that would end it too early are found by looking at all of them. */
static struct token_choice alone_pick(struct rig *rig, const struct ticket *ticket,
                                      struct sampler *sampler, float *row,
                                      const struct token_history *history, uint32_t position)
{
    const struct generation *generation = &ticket->generation;
    int32_t forbidden[VOCABULARY];
    uint32_t forbidden_count = 0;
    char text[256] = "";
    struct token_choice choice;
    if (position - generation->prompt_count < generation->min_new_tokens)
        for (int32_t token = 0; token < (int32_t)VOCABULARY; token++)
            if (is_end(rig, generation, token))
                forbidden[forbidden_count++] = token;
    const struct sampler_row sampled = {.logits = row,
                                        .sampling = &generation->sampling,
                                        .history = history,
                                        .forbidden = forbidden,
                                        .forbidden_count = forbidden_count,
                                        .position = position};
    if (sampler_pick(sampler, &sampled, &choice, ERROR_BUFFER(text)))
        fail_msg("%s", text);
    return choice;
}

static void alone_text(struct rig *rig, const struct ticket *ticket, struct answer *out)
{
    const struct generation *generation = &ticket->generation;
    struct byte_buffer text = {0};
    uint32_t count = out->count;
    if (out->finish == GENERATION_STOP && !generation->keep_stop)
        count--;
    assert_int_equal(detokenizer_decode(rig->tokenizer, (const uint32_t *)out->tokens, count,
                                        generation->text_flags, &text),
                     BATON_OK);
    memcpy(out->text, text.bytes ? text.bytes : "", text.length);
    out->text_length = text.length;
    byte_buffer_free(&text);
}

void rig_alone(struct rig *rig, const struct ticket *ticket, struct answer *out)
{
    const struct generation *generation = &ticket->generation;
    int32_t tokens[RIG_CONTEXT], pages[RIG_CONTEXT / PAGE_TOKENS];
    uint32_t count = generation->prompt_count, computed = 0;
    struct token_history history = {0};
    struct sampler *sampler;
    char text[256];
    float *logits = malloc(RIG_CONTEXT * VOCABULARY * sizeof(*logits));
    assert_non_null(logits);
    assert_int_equal(sampler_open(VOCABULARY, &sampler, ERROR_BUFFER(text)), BATON_OK);
    for (uint32_t i = 0; i < RIG_CONTEXT / PAGE_TOKENS; i++)
        pages[i] = (int32_t)i;
    memcpy(tokens, ticket->prompt, count * sizeof(*tokens));
    token_history_add_prompt(&history, tokens, count);
    memset(out, 0, sizeof(*out));
    out->matched_token = out->matched_string = -1;
    while (out->finish == GENERATION_RUNNING) {
        if (out->count == generation->max_new_tokens || count == RIG_CONTEXT) {
            out->finish = GENERATION_LENGTH;
            break;
        }
        session_run(&rig->alone, tokens, computed, count - computed, pages,
                    RIG_CONTEXT / PAGE_TOKENS, logits);
        float *row = logits + (size_t)(count - computed - 1) * VOCABULARY;
        computed = count;
        struct token_choice choice = alone_pick(rig, ticket, sampler, row, &history, count);
        out->tokens[out->count] = tokens[count++] = choice.token;
        out->logprobs[out->count++] = choice.logprob;
        token_history_add_output(&history, choice.token);
        if (is_end(rig, generation, choice.token)) {
            out->finish = GENERATION_STOP;
            out->matched_token = choice.token;
        }
    }
    alone_text(rig, ticket, out);
    token_history_free(&history);
    sampler_close(sampler);
    free(logits);
}

void answer_expect(const struct ticket *ticket, const struct answer *expected)
{
    const struct answer *answer = &ticket->answer;
    if (answer->finish == GENERATION_FAILED)
        fail_msg("failed: %s", ticket->reason);
    assert_int_equal(answer->finish, expected->finish);
    assert_int_equal(answer->count, expected->count);
    assert_memory_equal(answer->tokens, expected->tokens, answer->count * sizeof(int32_t));
    assert_memory_equal(answer->logprobs, expected->logprobs, answer->count * sizeof(float));
    assert_int_equal(answer->text_length, expected->text_length);
    assert_memory_equal(answer->text, expected->text, answer->text_length);
    assert_int_equal(answer->matched_token, expected->matched_token);
    assert_int_equal(answer->matched_string, expected->matched_string);
}

/* ---- usual tickets -------------------------------------------------------------------------- */

struct ticket *ticket_random(struct rig *rig, uint64_t seed, uint32_t prompt_count)
{
    struct random_source random = {seed};
    struct ticket *ticket = malloc(sizeof(*ticket));
    assert_non_null(ticket);
    ticket_init(ticket, rig);
    rig_random_tokens(&random, ticket->prompt, prompt_count);
    ticket->generation.prompt_count = prompt_count;
    return ticket;
}

void ticket_drop(struct ticket *ticket)
{
    ticket_free(ticket);
    free(ticket);
}

void ticket_expect_alone(struct rig *rig, const struct ticket *ticket)
{
    struct answer *expected = malloc(sizeof(*expected));
    assert_non_null(expected);
    rig_alone(rig, ticket, expected);
    answer_expect(ticket, expected);
    free(expected);
}

struct answer *answer_alone(struct rig *rig, const struct ticket *ticket)
{
    struct answer *expected = malloc(sizeof(*expected));
    assert_non_null(expected);
    rig_alone(rig, ticket, expected);
    return expected;
}

void ticket_run(struct ticket *ticket)
{
    ticket_submit(ticket);
    ticket_wait(ticket);
}

struct ticket *ticket_long(struct rig *rig, uint64_t seed)
{
    struct ticket *ticket = ticket_random(rig, seed, 20);
    ticket->generation.max_new_tokens = 40;
    ticket->generation.ignore_eos = true;
    ticket->generation.sampling.temperature = 1;
    ticket->generation.sampling.seed = seed;
    return ticket;
}
