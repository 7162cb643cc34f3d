/* SPDX-License-Identifier: Apache-2.0 */
/* A chat's text taken apart. Tokens end anywhere, so every text is pushed whole, byte by byte, in
 * every two pieces and in random ones, and must always come out the same. */
#include "server/chat_text.h"

#include "kv/random_source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct expected {
    const char *text;
    enum chat_tools tools;
    bool plain;        /* reasoning is not parsed */
    bool in_reasoning; /* the prompt ended with <think> */
    const char *reasoning, *content;
    const char *calls; /* "name(arguments) name(arguments)" */
};

static const struct expected cases[] = {
    {"Hello.", CHAT_TOOLS_NONE, .reasoning = "", .content = "Hello.", .calls = ""},
    {"", CHAT_TOOLS_TAGS, .reasoning = "", .content = "", .calls = ""},
    {" \n", CHAT_TOOLS_JSON, .reasoning = "", .content = " \n", .calls = ""},
    {"\n  two lines\n", CHAT_TOOLS_NONE, .reasoning = "", .content = "\n  two lines\n",
     .calls = ""},
    /* reasoning */
    {"<think>It rains.</think>\n\nTake this.", CHAT_TOOLS_NONE, .reasoning = "It rains.",
     .content = "Take this.", .calls = ""},
    {"\n <think>\nIt rains.\n\n Much. \n</think>\n\nTake\n this. ", CHAT_TOOLS_TAGS,
     .reasoning = "It rains.\n\n Much.", .content = "Take\n this. ", .calls = ""},
    {"<think>\n\n</think>\n\nHi", CHAT_TOOLS_NONE, .reasoning = "", .content = "Hi",
     .calls = ""},
    {"<think></think>  Hi", CHAT_TOOLS_NONE, .reasoning = "", .content = "Hi", .calls = ""},
    {"<think>never ends </thin", CHAT_TOOLS_NONE, .reasoning = "never ends </thin",
     .content = "", .calls = ""},
    {"<think>a < b </ think> </think>c", CHAT_TOOLS_NONE, .reasoning = "a < b </ think>",
     .content = "c", .calls = ""},
    {"It rains.</think>Hi", CHAT_TOOLS_NONE, .in_reasoning = true, .reasoning = "It rains.",
     .content = "Hi", .calls = ""},
    {"It rains. ", CHAT_TOOLS_NONE, .in_reasoning = true, .reasoning = "It rains.",
     .content = "", .calls = ""},
    {"It rains.</think>Hi", CHAT_TOOLS_NONE, .plain = true, .in_reasoning = true,
     .reasoning = "", .content = "It rains.</think>Hi", .calls = ""},
    {"<think>a</think>b", CHAT_TOOLS_NONE, .plain = true, .reasoning = "",
     .content = "<think>a</think>b", .calls = ""},
    {"Say <think>no</think>", CHAT_TOOLS_NONE, .reasoning = "",
     .content = "Say <think>no</think>", .calls = ""},
    {"<thin", CHAT_TOOLS_NONE, .reasoning = "", .content = "<thin", .calls = ""},
    {" <thinking>", CHAT_TOOLS_NONE, .reasoning = "", .content = " <thinking>", .calls = ""},
    /* calls in tags */
    {"<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n</tool_call>", CHAT_TOOLS_TAGS,
     .reasoning = "", .content = "", .calls = "a({\"x\": 1})"},
    {"Now: <tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n"
     "<tool_call>{\"name\":\"b\"}</tool_call> done",
     CHAT_TOOLS_TAGS, .reasoning = "", .content = "Now: \n done", .calls = "a({}) b({})"},
    {"<think>call</think>\n<tool_call>{\"name\":\"a\",\"parameters\":{\"y\":[]}}</tool_call>\n",
     CHAT_TOOLS_TAGS, .reasoning = "call", .content = "", .calls = "a({\"y\": []})"},
    {"<tool_call>{\"name\":\"a\",\"arguments\":{\"t\":\"<think> {\\\"\"}}</tool_call>",
     CHAT_TOOLS_TAGS, .reasoning = "", .content = "", .calls = "a({\"t\": \"<think> {\\\"\"})"},
    {"<tool_call>{\"name\":\"a\"</tool_call> rest", CHAT_TOOLS_TAGS, .reasoning = "",
     .content = "<tool_call>{\"name\":\"a\"</tool_call> rest", .calls = ""},
    {"<tool_call>{\"name\":5}</tool_call>", CHAT_TOOLS_TAGS, .reasoning = "",
     .content = "<tool_call>{\"name\":5}</tool_call>", .calls = ""},
    {"<tool_call>{\"name\":\"a\",\"arguments\":\"x\"}</tool_call>", CHAT_TOOLS_TAGS,
     .reasoning = "", .content = "<tool_call>{\"name\":\"a\",\"arguments\":\"x\"}</tool_call>",
     .calls = ""},
    /* cut off by the length */
    {"x <tool_call>{\"name\":\"a\",\"arguments\":{}}", CHAT_TOOLS_TAGS, .reasoning = "",
     .content = "x ", .calls = "a({})"},
    {"x <tool_call>{\"name\":\"a\",\"argu", CHAT_TOOLS_TAGS, .reasoning = "",
     .content = "x <tool_call>{\"name\":\"a\",\"argu", .calls = ""},
    {"x <tool_call>", CHAT_TOOLS_TAGS, .reasoning = "", .content = "x <tool_call>",
     .calls = ""},
    {"x <tool_ca", CHAT_TOOLS_TAGS, .reasoning = "", .content = "x <tool_ca", .calls = ""},
    {"<<tool_call>{\"name\":\"a\"}</tool_call>", CHAT_TOOLS_TAGS, .reasoning = "",
     .content = "<", .calls = "a({})"},
    /* no tools were given */
    {"<tool_call>{\"name\":\"a\"}</tool_call>", CHAT_TOOLS_NONE, .reasoning = "",
     .content = "<tool_call>{\"name\":\"a\"}</tool_call>", .calls = ""},
    {"{\"name\": \"a\"}", CHAT_TOOLS_NONE, .reasoning = "", .content = "{\"name\": \"a\"}",
     .calls = ""},
    /* calls by JSON alone */
    {"{\"name\": \"a\", \"parameters\": {\"x\": \"y\"}}", CHAT_TOOLS_JSON, .reasoning = "",
     .content = "", .calls = "a({\"x\": \"y\"})"},
    {" \n<|python_tag|>{\"name\":\"a\"}", CHAT_TOOLS_JSON, .reasoning = "", .content = "",
     .calls = "a({})"},
    {"<think>so</think>\n\n{\"name\":\"a\"}", CHAT_TOOLS_JSON, .reasoning = "so", .content = "",
     .calls = "a({})"},
    {"{\"answer\": 5}", CHAT_TOOLS_JSON, .reasoning = "", .content = "{\"answer\": 5}",
     .calls = ""},
    {"{\"name\": \"a\"} and more", CHAT_TOOLS_JSON, .reasoning = "",
     .content = "{\"name\": \"a\"} and more", .calls = ""},
    {"{\"name\": \"a\"", CHAT_TOOLS_JSON, .reasoning = "", .content = "{\"name\": \"a\"",
     .calls = ""},
    {"<|python_ta", CHAT_TOOLS_JSON, .reasoning = "", .content = "<|python_ta", .calls = ""},
    {"Use {\"name\": \"a\"}", CHAT_TOOLS_JSON, .reasoning = "",
     .content = "Use {\"name\": \"a\"}", .calls = ""},
    {"<tool_call>{\"name\":\"a\"}</tool_call>", CHAT_TOOLS_JSON, .reasoning = "",
     .content = "<tool_call>{\"name\":\"a\"}</tool_call>", .calls = ""},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static void open_case(struct chat_text *text, const struct expected *expected)
{
    chat_text_open(text, !expected->plain, expected->in_reasoning, expected->tools);
}

static void push(struct chat_text *text, const char *bytes, size_t length)
{
    chat_text_push(text, (struct text_view){bytes, length});
}

static void buffer_expect(const struct byte_buffer *buffer, const char *wanted,
                          const char *what, const char *of)
{
    if (buffer->length != strlen(wanted) ||
        (buffer->length && memcmp(buffer->bytes, wanted, buffer->length) != 0))
        fail_msg("%s of \"%s\" is \"%.*s\", not \"%s\"", what, of, (int)buffer->length,
                 buffer->bytes ? buffer->bytes : "", wanted);
}

/* Flushes, compares and closes. */
static void finish_case(struct chat_text *text, const struct expected *expected)
{
    char calls[512] = "";
    size_t used = 0;
    chat_text_flush(text);
    assert_false(text->failed);
    for (uint32_t i = 0; i < text->call_count; i++) {
        used += (size_t)snprintf(calls + used, sizeof(calls) - used, "%s%s(%s)", i ? " " : "",
                                 text->calls[i].name, text->calls[i].arguments);
        assert_int_equal(strncmp(text->calls[i].id, "call_", 5), 0);
    }
    buffer_expect(&text->reasoning, expected->reasoning, "reasoning", expected->text);
    buffer_expect(&text->content, expected->content, "content", expected->text);
    if (strcmp(calls, expected->calls) != 0)
        fail_msg("calls of \"%s\" are \"%s\", not \"%s\"", expected->text, calls,
                 expected->calls);
    chat_text_close(text);
}

static void test_whole(void **state)
{
    struct chat_text text;
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        open_case(&text, &cases[i]);
        push(&text, cases[i].text, strlen(cases[i].text));
        finish_case(&text, &cases[i]);
    }
}

static void test_byte_by_byte(void **state)
{
    struct chat_text text;
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        open_case(&text, &cases[i]);
        for (const char *at = cases[i].text; *at; at++)
            push(&text, at, 1);
        finish_case(&text, &cases[i]);
    }
}

static void test_every_two_and_three_pieces(void **state)
{
    struct chat_text text;
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        size_t length = strlen(cases[i].text);
        for (size_t a = 0; a <= length; a++)
            for (size_t b = a; b <= length; b++) {
                open_case(&text, &cases[i]);
                push(&text, cases[i].text, a);
                push(&text, cases[i].text + a, b - a);
                push(&text, cases[i].text + b, length - b);
                finish_case(&text, &cases[i]);
            }
    }
}

/* What has been said is never taken back: a stream may have sent it. */
static void test_nothing_is_taken_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct chat_text text;
        size_t reasoning = 0, content = 0;
        uint32_t calls = 0;
        open_case(&text, &cases[i]);
        for (const char *at = cases[i].text; *at; at++) {
            push(&text, at, 1);
            assert_true(text.reasoning.length >= reasoning && text.content.length >= content &&
                        text.call_count >= calls);
            reasoning = text.reasoning.length;
            content = text.content.length;
            calls = text.call_count;
            assert_memory_equal(reasoning ? text.reasoning.bytes : "", cases[i].reasoning,
                                reasoning);
            assert_memory_equal(content ? text.content.bytes : "", cases[i].content, content);
        }
        finish_case(&text, &cases[i]);
    }
}

/* So that they can be compared and printed as strings. */
static void append_end(struct chat_text *text)
{
    assert_int_equal(byte_buffer_append(&text->reasoning, "", 1), 0);
    assert_int_equal(byte_buffer_append(&text->content, "", 1), 0);
}

/* Any soup of marks gives the same in one piece and in many. */
static void test_random_marks_in_random_pieces(void **state)
{
    static const char *const marks[] = {
        "<think>", "</think>",       "<tool_call>", "</tool_call>", "{\"name\":\"a\"}",
        "{",       "<|python_tag|>", " ",           "\n",           "word",
        "<",       "</tool"};
    struct random_source random = {random_seed()};
    (void)state;
    print_message("seed %llu\n", (unsigned long long)random.state);
    for (int round = 0; round < 20000; round++) {
        char soup[256] = "";
        struct chat_text whole, pieces;
        for (uint32_t n = random_below(&random, 9); n > 0; n--)
            strcat(soup, marks[random_below(&random, 12)]);
        bool parsed = random_below(&random, 4) != 0, inside = random_below(&random, 4) == 0;
        enum chat_tools tools = (enum chat_tools)random_below(&random, 3);
        size_t length = strlen(soup);
        chat_text_open(&whole, parsed, inside, tools);
        chat_text_open(&pieces, parsed, inside, tools);
        push(&whole, soup, length);
        for (size_t at = 0; at < length;) {
            size_t size = 1 + random_below(&random, 5);
            size = size < length - at ? size : length - at;
            push(&pieces, soup + at, size);
            at += size;
        }
        chat_text_flush(&whole);
        chat_text_flush(&pieces);
        append_end(&whole);
        append_end(&pieces);
        if (strcmp(whole.reasoning.bytes, pieces.reasoning.bytes) != 0 ||
            strcmp(whole.content.bytes, pieces.content.bytes) != 0 ||
            whole.call_count != pieces.call_count)
            fail_msg("\"%s\" depends on its pieces: \"%s\" | \"%s\" | %u, \"%s\" | \"%s\" | %u",
                     soup, whole.reasoning.bytes, whole.content.bytes, whole.call_count,
                     pieces.reasoning.bytes, pieces.content.bytes, pieces.call_count);
        chat_text_close(&whole);
        chat_text_close(&pieces);
    }
}

static void test_calls_have_a_limit(void **state)
{
    static const char call[] = "<tool_call>{\"name\":\"a\"}</tool_call>";
    struct chat_text text;
    (void)state;
    chat_text_open(&text, true, false, CHAT_TOOLS_TAGS);
    for (uint32_t i = 0; i < CHAT_CALLS_MAX + 1; i++)
        push(&text, call, sizeof(call) - 1);
    chat_text_flush(&text);
    assert_int_equal(text.call_count, CHAT_CALLS_MAX);
    assert_int_equal(text.content.length, sizeof(call) - 1);
    chat_text_close(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_every_two_and_three_pieces),
        cmocka_unit_test(test_nothing_is_taken_back),
        cmocka_unit_test(test_random_marks_in_random_pieces),
        cmocka_unit_test(test_calls_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
