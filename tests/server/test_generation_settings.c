/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling parameters under all of their names, and what is refused. */
#include "server/generation_settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define VOCABULARY 100u

struct fixture {
    struct request_error error;
    struct generation_settings settings;
    struct generation generation; /* of the first of the n */
};

static void read_settings(struct fixture *fixture, const char *text)
{
    memset(fixture, 0, sizeof(*fixture));
    json_t *body = request_parse(text, strlen(text), &fixture->error);
    assert_non_null(body);
    struct request_reader reader = {body, &fixture->error};
    generation_settings_read(&reader, 16, VOCABULARY, &fixture->settings);
    json_decref(body); /* whatever is kept must be a copy */
    generation_init(&fixture->generation);
    generation_settings_apply(&fixture->settings, 0, &fixture->generation);
}

static void accepts(struct fixture *fixture, const char *text)
{
    read_settings(fixture, text);
    if (fixture->error.status)
        fail_msg("%s: %s", text, fixture->error.text);
}

static void refuses(const char *text, const char *parameter, const char *part)
{
    struct fixture fixture;
    read_settings(&fixture, text);
    assert_int_equal(fixture.error.status, 400);
    assert_string_equal(fixture.error.parameter, parameter);
    if (!strstr(fixture.error.text, part))
        fail_msg("%s: \"%s\" is not in: %s", text, part, fixture.error.text);
    generation_settings_release(&fixture.settings);
}

static void test_defaults(void **state)
{
    struct fixture fixture;
    (void)state;
    accepts(&fixture, "{\"temperature\":null,\"max_tokens\":null,\"stop\":null,\"seed\":null,"
                      "\"logit_bias\":null,\"json_schema\":null,\"top_k\":null,\"n\":null}");
    assert_int_equal(fixture.settings.n, 1);
    assert_int_equal(fixture.generation.max_new_tokens, 16);
    assert_int_equal(fixture.generation.min_new_tokens, 0);
    assert_true(fixture.generation.sampling.temperature == 1);
    assert_true(fixture.generation.sampling.top_p == 1);
    assert_int_equal(fixture.generation.sampling.top_k, 0);
    assert_null(fixture.generation.stop_strings);
    assert_false(fixture.generation.ignore_eos);
    assert_int_equal(fixture.generation.text_flags, DETOKENIZER_CONTINUES);
    generation_settings_release(&fixture.settings);
}

static void test_all_names(void **state)
{
    struct fixture fixture;
    (void)state;
    accepts(&fixture,
            "{\"temperature\":0.25,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.125,"
            "\"repetition_penalty\":1.5,\"frequency_penalty\":-1,\"presence_penalty\":2,"
            "\"max_tokens\":3,\"min_tokens\":2,\"n\":4,\"seed\":7,\"ignore_eos\":true,"
            "\"no_stop_trim\":true,\"skip_special_tokens\":false,\"stop\":[\"a\",\"bc\"],"
            "\"stop_token_ids\":[5,99],\"logit_bias\":{\"7\":-100,\"0\":1.5}}");
    const struct sampling *sampling = &fixture.generation.sampling;
    assert_true(sampling->temperature == 0.25f && sampling->top_p == 0.5f);
    assert_true(sampling->top_k == 40 && sampling->min_p == 0.125f);
    assert_true(sampling->repetition_penalty == 1.5f && sampling->frequency_penalty == -1);
    assert_true(sampling->presence_penalty == 2 && sampling->seed == 7);
    assert_int_equal(sampling->bias_count, 2);
    assert_int_equal(fixture.settings.n, 4);
    assert_int_equal(fixture.generation.max_new_tokens, 3);
    assert_int_equal(fixture.generation.min_new_tokens, 2);
    assert_true(fixture.generation.ignore_eos && fixture.generation.keep_stop);
    assert_int_equal(fixture.generation.text_flags,
                     DETOKENIZER_CONTINUES | DETOKENIZER_SHOW_CONTROL);
    assert_int_equal(fixture.generation.stop_token_count, 2);
    assert_int_equal(fixture.generation.stop_tokens[1], 99);
    assert_non_null(fixture.generation.stop_strings);
    assert_string_equal(fixture.settings.stop_texts[1], "bc");
    generation_settings_release(&fixture.settings);
}

static void test_other_names(void **state)
{
    struct fixture fixture;
    (void)state;
    accepts(&fixture, "{\"max_new_tokens\":5,\"min_new_tokens\":4,\"sampling_seed\":9,"
                      "\"top_k\":-1,\"stop\":\"one\"}");
    assert_int_equal(fixture.generation.max_new_tokens, 5);
    assert_int_equal(fixture.generation.min_new_tokens, 4);
    assert_int_equal(fixture.generation.sampling.seed, 9);
    assert_int_equal(fixture.generation.sampling.top_k, 0);
    assert_int_equal(fixture.settings.stop_string_count, 1);
    generation_settings_release(&fixture.settings);
    accepts(&fixture, "{\"max_completion_tokens\":6,\"max_tokens\":1}");
    assert_int_equal(fixture.generation.max_new_tokens, 6);
    generation_settings_release(&fixture.settings);
}

/* n replies with one seed are n different ones, and the same ones again. */
static void test_seeds(void **state)
{
    struct fixture one, other;
    struct generation second;
    (void)state;
    accepts(&one, "{\"seed\":9223372036854775807,\"n\":2}");
    generation_init(&second);
    generation_settings_apply(&one.settings, 1, &second);
    assert_true(second.sampling.seed == one.generation.sampling.seed + 1);
    generation_settings_release(&one.settings);
    accepts(&one, "{}");
    accepts(&other, "{}");
    assert_true(one.generation.sampling.seed != other.generation.sampling.seed);
    generation_settings_release(&one.settings);
    generation_settings_release(&other.settings);
}

static void test_refusals(void **state)
{
    (void)state;
    refuses("{\"temperature\":-1}", "temperature", "from 0 to 100");
    refuses("{\"temperature\":\"hot\"}", "temperature", "must be a number, not a string");
    refuses("{\"top_p\":1.5}", "top_p", "from 0 to 1");
    refuses("{\"top_k\":-2}", "top_k", "from -1");
    refuses("{\"n\":0}", "n", "from 1 to 128");
    refuses("{\"n\":129}", "n", "from 1 to 128");
    refuses("{\"max_tokens\":-1}", "max_tokens", "from 0");
    refuses("{\"max_tokens\":4294967296}", "max_tokens", "from 0");
    refuses("{\"frequency_penalty\":3}", "frequency_penalty", "from -2 to 2");
    refuses("{\"stop\":[\"a\",5]}", "stop", "\"stop\" has an integer in it");
    refuses("{\"stop\":[\"\"]}", "stop", "stop");
    refuses("{\"stop_token_ids\":[100]}", "stop_token_ids", "[0] is not a token");
    refuses("{\"stop_token_ids\":[\"5\"]}", "stop_token_ids", "(0 to 99)");
    refuses("{\"stop_token_ids\":5}", "stop_token_ids", "must be an array");
    refuses("{\"logit_bias\":{\"x\":1}}", "logit_bias", "\"x\" is not a token");
    refuses("{\"logit_bias\":{\"100\":1}}", "logit_bias", "\"100\" is not a token");
    refuses("{\"logit_bias\":{\"5\":101}}", "logit_bias", "from -100 to 100");
    refuses("{\"logit_bias\":{\"5\":\"1\"}}", "logit_bias", "must be a number");
    refuses("{\"json_schema\":\"{}\"}", "json_schema", "cannot be constrained");
    refuses("{\"regex\":\"a\"}", "regex", "cannot be constrained");
}

static void test_too_many_of_them(void **state)
{
    char text[4096];
    size_t used;
    (void)state;
    used = (size_t)snprintf(text, sizeof(text), "{\"stop\":[\"a\"");
    for (uint32_t i = 0; i < STOP_STRINGS_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, ",\"b%u\"", i);
    snprintf(text + used, sizeof(text) - used, "]}");
    refuses(text, "stop", "has 65 strings; the most is 64");
    used = (size_t)snprintf(text, sizeof(text), "{\"stop_token_ids\":[1");
    for (uint32_t i = 0; i < STOP_TOKENS_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, ",2");
    snprintf(text + used, sizeof(text) - used, "]}");
    refuses(text, "stop_token_ids", "has 65 tokens; the most is 64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_all_names),
        cmocka_unit_test(test_other_names), cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_too_many_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
