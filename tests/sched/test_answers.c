/* SPDX-License-Identifier: Apache-2.0 */
/* What a generation gets of the whole scheduler on a tiny model: the tokens and the text that the model
 * gives alone, the right end, what the prefix cache knew, logprobs of its prompt. test_traffic.c has
 * everything at once. */
#include "worker_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *golden;

static void test_answers_are_those_of_the_model_alone(void **state)
{
    (void)state;
    struct rig rig;
    struct ticket *tickets[8];
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t i = 0; i < 8; i++) {
        tickets[i] = ticket_random(&rig, i, 1 + 37 * i);
        tickets[i]->generation.max_new_tokens = 3 * i;
        tickets[i]->generation.ignore_eos = true;
        if (i % 2)
            tickets[i]->generation.sampling.temperature = 1.2f;
        tickets[i]->generation.sampling.seed = i;
    }
    for (uint32_t i = 0; i < 8; i++)
        ticket_submit(tickets[i]);
    for (uint32_t i = 0; i < 8; i++) {
        ticket_wait(tickets[i]);
        ticket_expect_alone(&rig, tickets[i]);
        ticket_drop(tickets[i]);
    }
    rig_close(&rig);
}

/* ---- how an answer ends --------------------------------------------------------------------- */

/* The index of the first token of its kind in the answer that is not among those before it. */
static uint32_t find_new_token(const struct answer *answer, uint32_t from)
{
    for (uint32_t i = from; i < answer->count; i++) {
        uint32_t j = 0;
        while (answer->tokens[j] != answer->tokens[i])
            j++;
        if (j == i)
            return i;
    }
    fail_msg("every token of the answer repeats one before it");
    return 0;
}

static void test_stop_token_ends_the_answer(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t keep = 0; keep < 2; keep++) {
        struct ticket *ticket = ticket_long(&rig, 3);
        struct answer *whole = answer_alone(&rig, ticket);
        uint32_t at = find_new_token(whole, 5);
        ticket->stop_tokens[0] = whole->tokens[at];
        ticket->generation.stop_tokens = ticket->stop_tokens;
        ticket->generation.stop_token_count = 1;
        ticket->generation.keep_stop = keep;
        ticket_run(ticket);
        assert_int_equal(ticket->answer.finish, GENERATION_STOP);
        assert_int_equal(ticket->answer.matched_token, whole->tokens[at]);
        assert_int_equal(ticket->answer.count, at + 1);
        ticket_expect_alone(&rig, ticket);
        free(whole);
        ticket_drop(ticket);
    }
    rig_close(&rig);
}

static void test_end_token_of_the_model_ends_the_answer(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t ignore = 0; ignore < 2; ignore++) {
        struct ticket *ticket = ticket_long(&rig, 4);
        const struct logit_bias bias = {.token = 1, .bias = 100}; /* </s> at once */
        ticket->generation.sampling.biases = &bias;
        ticket->generation.sampling.bias_count = 1;
        ticket->generation.min_new_tokens = 6;
        ticket->generation.ignore_eos = ignore;
        ticket_run(ticket);
        ticket_expect_alone(&rig, ticket);
        if (!ignore) {
            assert_int_equal(ticket->answer.finish, GENERATION_STOP);
            assert_int_equal(ticket->answer.matched_token, 1);
            assert_int_equal(ticket->answer.count, 7); /* six that are none, then it */
        } else {
            assert_int_equal(ticket->answer.finish, GENERATION_LENGTH);
            assert_int_equal(ticket->answer.tokens[0], 1);
        }
        ticket_drop(ticket);
    }
    rig_close(&rig);
}

static void test_stop_string_ends_the_answer(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t keep = 0; keep < 2; keep++) {
        char text[256];
        struct stop_strings *strings;
        struct ticket *ticket = ticket_long(&rig, 5);
        struct answer *whole = answer_alone(&rig, ticket);
        /* A character of ASCII in the middle is a whole string, and where it first comes is known. */
        size_t at = whole->text_length / 3;
        while (at < whole->text_length && (whole->text[at] < 33 || whole->text[at] > 126))
            at++;
        assert_true(at < whole->text_length);
        const struct text_view view = {whole->text + at, 1};
        at = (size_t)((const char *)memchr(whole->text, whole->text[at], whole->text_length) -
                      whole->text);
        assert_int_equal(stop_strings_open(&view, 1, &strings, ERROR_BUFFER(text)), BATON_OK);
        ticket->generation.stop_strings = strings;
        ticket->generation.keep_stop = keep;
        ticket_run(ticket);
        assert_int_equal(ticket->answer.finish, GENERATION_STOP);
        assert_int_equal(ticket->answer.matched_string, 0);
        assert_int_equal(ticket->answer.matched_token, -1);
        assert_int_equal(ticket->answer.text_length, at + keep);
        assert_memory_equal(ticket->answer.text, whole->text, at + keep);
        stop_strings_close(strings);
        free(whole);
        ticket_drop(ticket);
    }
    rig_close(&rig);
}

static void test_stop_string_waits_for_min_new_tokens(void **state)
{
    (void)state;
    struct rig rig;
    char text[256];
    struct stop_strings *strings;
    rig_open(&rig, golden, &rig_defaults);
    struct ticket *ticket = ticket_long(&rig, 5);
    struct answer *whole = answer_alone(&rig, ticket);
    struct text_view views[64];
    uint32_t count = 0;
    for (uint32_t i = 0; i < 64; i++) /* letters: some of them are in any text */
        views[count++] =
            (struct text_view){&"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789 ."[i],
                               1};
    assert_int_equal(stop_strings_open(views, count, &strings, ERROR_BUFFER(text)), BATON_OK);
    ticket->generation.stop_strings = strings;
    ticket->generation.min_new_tokens = 40;
    ticket_run(ticket);
    answer_expect(ticket, whole);
    assert_int_equal(ticket->answer.finish, GENERATION_LENGTH);
    stop_strings_close(strings);
    free(whole);
    ticket_drop(ticket);
    rig_close(&rig);
}

static void test_context_and_pool_end_the_answer(void **state)
{
    (void)state;
    struct rig_options options = rig_defaults;
    struct rig rig;
    for (uint32_t small = 0; small < 2; small++) {
        options.pages = small ? 4 : 256;
        rig_open(&rig, golden, &options);
        uint32_t most = small ? 64 : RIG_CONTEXT;
        assert_int_equal(scheduler_context(rig.scheduler), most);
        assert_int_equal(scheduler_capacity(rig.scheduler), options.pages * 16);
        struct ticket *ticket = ticket_random(&rig, 6, 30);
        ticket->generation.max_new_tokens = 1000000;
        ticket->generation.ignore_eos = true;
        ticket_run(ticket);
        assert_int_equal(ticket->answer.finish, GENERATION_LENGTH);
        assert_int_equal(ticket->answer.count, most - 30);
        ticket_drop(ticket);
        rig_close(&rig);
    }
}

static void test_no_new_tokens_computes_the_prompt_only(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t i = 0; i < 2; i++) {
        struct ticket *ticket = ticket_random(&rig, 8, 100);
        ticket->generation.max_new_tokens = 0;
        ticket_run(ticket);
        assert_int_equal(ticket->answer.finish, GENERATION_LENGTH);
        assert_int_equal(ticket->answer.count, 0);
        assert_int_equal(ticket->deliveries, 1);
        assert_int_equal(ticket->cached_tokens, i ? 96 : 0);
        ticket_drop(ticket);
    }
    rig_close(&rig);
}

/* ---- the prefix cache ----------------------------------------------------------------------- */

static void test_equal_prompts_are_computed_once(void **state)
{
    (void)state;
    struct rig rig;
    struct ticket *tickets[8];
    struct rig_options options = rig_defaults;
    options.chunk_tokens = 512; /* all of them would fit into a step */
    rig_open(&rig, golden, &options);
    for (uint32_t i = 0; i < 8; i++) {
        tickets[i] = ticket_random(&rig, 1, 100);
        tickets[i]->generation.sampling.temperature = 1;
        tickets[i]->generation.sampling.seed = i;
    }
    for (uint32_t i = 0; i < 8; i++)
        ticket_submit(tickets[i]);
    uint32_t cached = 0;
    for (uint32_t i = 0; i < 8; i++) {
        ticket_wait(tickets[i]);
        ticket_expect_alone(&rig, tickets[i]);
        cached += tickets[i]->cached_tokens;
        ticket_drop(tickets[i]);
    }
    assert_int_equal(cached, 7 * 96);
    rig_close(&rig);
}

static uint32_t cached_of(struct rig *rig, const int32_t *tokens, uint32_t count,
                          const char *key)
{
    struct ticket *ticket = malloc(sizeof(*ticket));
    assert_non_null(ticket);
    ticket_init(ticket, rig);
    ticket_prompt(ticket, tokens, count);
    ticket->generation.max_new_tokens = 1;
    ticket->generation.key = (struct prefix_key){key, (uint32_t)strlen(key)};
    ticket_run(ticket);
    uint32_t cached = ticket->cached_tokens;
    ticket_drop(ticket);
    return cached;
}

static void test_answers_are_cached_with_their_prompts(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    struct ticket *ticket = ticket_long(&rig, 2); /* 20 + 40 tokens, the last not computed */
    int32_t next_turn[80] = {0};
    ticket_run(ticket);
    memcpy(next_turn, ticket->prompt, 20 * sizeof(int32_t));
    memcpy(next_turn + 20, ticket->answer.tokens, 40 * sizeof(int32_t));
    assert_int_equal(cached_of(&rig, next_turn, 80, ""), 48);
    assert_int_equal(cached_of(&rig, next_turn, 80, ""), 64);
    assert_int_equal(cached_of(&rig, next_turn, 80, "salt"), 0);
    assert_int_equal(cached_of(&rig, next_turn, 80, "salt"), 64);
    assert_true(scheduler_flush_cache(rig.scheduler, UINT64_MAX));
    assert_int_equal(cached_of(&rig, next_turn, 80, ""), 0);
    ticket_drop(ticket);
    rig_close(&rig);
}

static void test_flush_needs_an_idle_moment(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, golden, &rig_defaults);
    struct ticket *ticket = ticket_random(&rig, 1, 10);
    ticket->generation.max_new_tokens = 500;
    ticket->generation.ignore_eos = true;
    ticket_submit(ticket);
    ticket_wait_tokens(ticket, 1);
    assert_false(scheduler_flush_cache(rig.scheduler, 0));
    assert_true(scheduler_flush_cache(rig.scheduler, UINT64_MAX)); /* waits for its end */
    assert_true(ticket->done);
    ticket_drop(ticket);
    rig_close(&rig);
}

/* ---- logprobs of the prompt ----------------------------------------------------------------- */

static void test_prompt_logprobs_are_those_of_the_model(void **state)
{
    (void)state;
    static const uint32_t starts[] = {0, 1, 50, 99, 100};
    struct rig rig;
    struct rig_options options = rig_defaults;
    options.chunk_tokens = 96; /* more than a step may have rows */
    rig_open(&rig, golden, &options);
    float *logits = malloc(100 * 708 * sizeof(*logits));
    int32_t pages[7] = {0, 1, 2, 3, 4, 5, 6};
    struct sampler *sampler;
    char text[256];
    assert_non_null(logits);
    assert_int_equal(sampler_open(708, &sampler, ERROR_BUFFER(text)), BATON_OK);
    struct ticket *warm = ticket_random(&rig, 1, 100); /* all of it is in the cache */
    ticket_run(warm);
    session_run(&rig.alone, warm->prompt, 0, 100, pages, 7, logits);
    for (uint32_t i = 0; i < 10; i++) {
        struct ticket *ticket = ticket_random(&rig, 1, 100);
        uint32_t start = starts[i / 2];
        ticket->generation.prompt_logprobs = true;
        ticket->generation.prompt_logprobs_start = start;
        ticket->generation.max_new_tokens = i % 2 ? 4 : 0;
        ticket_run(ticket);
        ticket_expect_alone(&rig, ticket);
        assert_int_equal(ticket->prompt_choice_count, 100 - start);
        assert_true(ticket->cached_tokens < start || start == 0);
        assert_int_equal(ticket->cached_tokens, start < 2 ? 0 : (start - 1) / 16 * 16);
        for (uint32_t t = start; t < 100; t++) {
            struct token_choice choice = {.logprob = NAN};
            if (t > 0)
                assert_int_equal(sampler_rate(sampler, logits + (size_t)(t - 1) * 708,
                                              ticket->prompt[t], 0, &choice,
                                              ERROR_BUFFER(text)),
                                 BATON_OK);
            float got = ticket->prompt_logprobs[t - start];
            assert_true(t == 0 ? isnan(got) : got == choice.logprob);
        }
        ticket_drop(ticket);
    }
    ticket_drop(warm);
    sampler_close(sampler);
    free(logits);
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_of_the_model_alone),
        cmocka_unit_test(test_stop_token_ends_the_answer),
        cmocka_unit_test(test_end_token_of_the_model_ends_the_answer),
        cmocka_unit_test(test_stop_string_ends_the_answer),
        cmocka_unit_test(test_stop_string_waits_for_min_new_tokens),
        cmocka_unit_test(test_context_and_pool_end_the_answer),
        cmocka_unit_test(test_no_new_tokens_computes_the_prompt_only),
        cmocka_unit_test(test_equal_prompts_are_computed_once),
        cmocka_unit_test(test_answers_are_cached_with_their_prompts),
        cmocka_unit_test(test_flush_needs_an_idle_moment),
        cmocka_unit_test(test_prompt_logprobs_are_those_of_the_model),
    };
    if (argc != 2)
        return 2;
    golden = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
