/* SPDX-License-Identifier: Apache-2.0 */
/* What `baton bench serve` plans to send: instants, lengths, shared beginnings, traces, and the bodies. */
#include "cli/serve_prompt.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct serve_plan make(struct serve_plan_options options)
{
    struct serve_plan plan;
    char text[256] = "";
    if (!options.trace_scale)
        options.trace_scale = 1;
    if (serve_plan_make(&options, &plan, ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
    return plan;
}

static uint32_t common_tokens(const struct serve_plan *plan, uint32_t a, uint32_t b)
{
    uint32_t count = 0;
    while (count < plan->items[a].input_tokens && count < plan->items[b].input_tokens &&
           serve_plan_token(plan, a, count) == serve_plan_token(plan, b, count))
        count++;
    return count;
}

static void test_lengths_and_prefix(void **state)
{
    (void)state;
    struct serve_plan plan = make((struct serve_plan_options){.requests = 500,
                                                              .input_tokens = 1000,
                                                              .output_tokens = 100,
                                                              .length_percent = 50,
                                                              .shared_prefix = 300,
                                                              .seed = 5});
    uint64_t sum = 0;
    assert_int_equal(plan.count, 500);
    for (uint32_t i = 0; i < plan.count; i++) {
        assert_in_range(plan.items[i].input_tokens, 500, 1000);
        assert_in_range(plan.items[i].output_tokens, 50, 100);
        assert_int_equal(plan.items[i].due_ns, 0);
        sum += plan.items[i].input_tokens;
    }
    assert_in_range(sum / plan.count, 700, 800);
    assert_int_equal(common_tokens(&plan, 0, 1), 300);
    assert_int_equal(common_tokens(&plan, 7, 400), 300);
    serve_plan_free(&plan);
}

static void test_the_seed_decides(void **state)
{
    struct serve_plan_options options = {.requests = 10,
                                         .input_tokens = 50,
                                         .output_tokens = 50,
                                         .length_percent = 0,
                                         .rate = 3,
                                         .seed = 1};
    (void)state;
    struct serve_plan one = make(options), same = make(options);
    options.seed = 2;
    struct serve_plan other = make(options);
    assert_memory_equal(one.items, same.items, one.count * sizeof(*one.items));
    assert_int_equal(serve_plan_token(&one, 3, 0), serve_plan_token(&same, 3, 0));
    assert_int_not_equal(serve_plan_token(&one, 3, 0), serve_plan_token(&other, 3, 0));
    assert_memory_not_equal(one.items, other.items, one.count * sizeof(*one.items));
    serve_plan_free(&one);
    serve_plan_free(&same);
    serve_plan_free(&other);
}

/* Gaps of a Poisson process: their mean is 1/rate, and so is their standard deviation. */
static void test_poisson(void **state)
{
    (void)state;
    struct serve_plan plan = make((struct serve_plan_options){.requests = 20001,
                                                              .input_tokens = 1,
                                                              .output_tokens = 1,
                                                              .length_percent = 100,
                                                              .rate = 50,
                                                              .seed = 3});
    double sum = 0, squares = 0;
    assert_int_equal(plan.items[0].due_ns, 0);
    for (uint32_t i = 1; i < plan.count; i++) {
        double gap = (double)(plan.items[i].due_ns - plan.items[i - 1].due_ns) / 1e9;
        sum += gap;
        squares += gap * gap;
    }
    double mean = sum / 20000, deviation = sqrt(squares / 20000 - mean * mean);
    assert_true(fabs(mean * 50 - 1) < 0.03);
    assert_true(fabs(deviation * 50 - 1) < 0.05);
    serve_plan_free(&plan);
}

static char *file_write(const char *text)
{
    static char path[64];
    strcpy(path, "/tmp/baton-test-trace-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    return path;
}

static void test_traces(void **state)
{
    char *path = file_write("{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, "
                            "\"hash_ids\": [0, 1, 2]}\n"
                            "\n"
                            "{\"timestamp\": 300, \"input_length\": 1100, \"output_length\": "
                            "7, \"hash_ids\": [0, 1, 9]}\n"
                            "{\"timestamp\": 100, \"input_length\": 5000, \"output_length\": "
                            "900, \"hash_ids\": [4]}\n");
    (void)state;
    struct serve_plan plan = make((struct serve_plan_options){
        .trace = path, .trace_scale = 2, .input_max = 2000, .output_max = 50, .seed = 1});
    assert_int_equal(plan.count, 3);
    assert_int_equal(plan.items[0].due_ns, 0);
    assert_int_equal(plan.items[1].due_ns, 50000000); /* by time, and twice as fast */
    assert_int_equal(plan.items[2].due_ns, 150000000);
    assert_int_equal(plan.items[1].input_tokens, 2000);
    assert_int_equal(plan.items[1].output_tokens, 50);
    assert_int_equal(plan.items[2].output_tokens, 7);
    assert_int_equal(common_tokens(&plan, 0, 2), 1024);
    assert_int_equal(common_tokens(&plan, 0, 1), 0);
    serve_plan_free(&plan);
    plan = make((struct serve_plan_options){.trace = path, .requests = 2});
    assert_int_equal(plan.count, 2);
    serve_plan_free(&plan);
    unlink(path);
}

static void test_bad_traces(void **state)
{
    static const char *const texts[] = {
        "",
        "\n\n",
        "hello\n",
        "{}\n",
        "[1]\n",
        "{\"timestamp\": \"0\", \"input_length\": 1, \"output_length\": 1}\n",
        "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}\n",
        "{\"timestamp\": 0, \"input_length\": 99999999999, \"output_length\": 1}\n"};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char text[512] = "", *path = file_write(texts[i]);
        struct serve_plan plan;
        struct serve_plan_options options = {.trace = path, .trace_scale = 1};
        assert_int_equal(serve_plan_make(&options, &plan, ERROR_BUFFER(text)), BATON_EINVAL);
        assert_non_null(strstr(text, path));
        unlink(path);
    }
}

static json_t *body_of(const struct serve_prompt_options *options,
                       const struct serve_plan *plan)
{
    size_t length;
    char *body = serve_body(options, plan, 0, &length);
    json_t *root = json_loadb(body, length, 0, NULL);
    assert_non_null(root);
    free(body);
    return root;
}

static void test_bodies(void **state)
{
    struct serve_plan plan = make((struct serve_plan_options){
        .requests = 1, .input_tokens = 5000, .output_tokens = 33, .length_percent = 100});
    struct serve_prompt_options options = {
        .endpoint = SERVE_GENERATE, .ids = true, .id_count = 1u << 30, .ignore_eos = true};
    json_t *id;
    size_t i;
    (void)state;
    json_t *root = body_of(&options, &plan);
    assert_int_equal(json_array_size(json_object_get(root, "input_ids")), 5000);
    json_array_foreach(json_object_get(root, "input_ids"), i, id)
        assert_in_range(json_integer_value(id), 100, (1 << 30) - 1);
    json_t *sampling = json_object_get(root, "sampling_params");
    assert_int_equal(json_integer_value(json_object_get(sampling, "max_new_tokens")), 33);
    assert_true(json_is_true(json_object_get(sampling, "ignore_eos")));
    json_decref(root);
    options =
        (struct serve_prompt_options){.endpoint = SERVE_CHAT, .model = "a\"\\\x01\xc3\xa9"};
    root = body_of(&options, &plan);
    assert_string_equal(json_string_value(json_object_get(root, "model")), options.model);
    json_t *message = json_array_get(json_object_get(root, "messages"), 0);
    const char *text = json_string_value(json_object_get(message, "content"));
    uint32_t words = 1;
    for (; *text; text++)
        words += *text == ' ';
    assert_int_equal(words, 5000);
    assert_true(json_is_false(json_object_get(root, "ignore_eos")));
    json_decref(root);
    options.endpoint = SERVE_COMPLETIONS;
    options.ids = true;
    options.id_count = 3;
    root = body_of(&options, &plan);
    assert_int_equal(json_array_size(json_object_get(root, "prompt")), 5000);
    json_decref(root);
    serve_plan_free(&plan);
}

static struct serve_event event_of(enum serve_endpoint endpoint, const char *data)
{
    struct serve_event event;
    serve_event_read(endpoint, data, strlen(data), &event);
    return event;
}

static void test_events(void **state)
{
    (void)state;
    struct serve_event event =
        event_of(SERVE_GENERATE, "{\"text\":\"ab\",\"meta_info\":{\"completion_tokens\":2,"
                                 "\"prompt_tokens\":9,\"finish_reason\":null}}");
    assert_true(event.token && event.tokens_so_far == 2 && event.prompt_tokens == 9);
    assert_string_equal(event.error, "");
    assert_true(event_of(SERVE_CHAT, "[DONE]").end);
    assert_true(event_of(SERVE_CHAT, "{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}").token);
    assert_false(event_of(SERVE_CHAT, "{\"choices\":[{\"delta\":{\"role\":\"assistant\","
                                      "\"content\":\"\"}}]}")
                     .token);
    assert_true(event_of(SERVE_COMPLETIONS, "{\"choices\":[{\"text\":\"x\"}]}").token);
    event =
        event_of(SERVE_COMPLETIONS,
                 "{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}");
    assert_true(!event.token && event.tokens_so_far == 4 && event.prompt_tokens == 3);
    assert_string_equal(event_of(SERVE_CHAT, "{\"error\":{\"message\":\"no\"}}").error, "no");
    assert_string_equal(event_of(SERVE_CHAT, "{\"error\":\"no\"}").error, "no");
    assert_string_equal(event_of(SERVE_GENERATE,
                                 "{\"meta_info\":{\"finish_reason\":{\"type\":\"abort\","
                                 "\"message\":\"gone\"}}}")
                            .error,
                        "gone");
    assert_true(*event_of(SERVE_CHAT, "hello").error);
    assert_true(*event_of(SERVE_CHAT, "[1]").error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths_and_prefix),
        cmocka_unit_test(test_the_seed_decides),
        cmocka_unit_test(test_poisson),
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_bad_traces),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
