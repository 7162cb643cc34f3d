/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to tokens: what clients may send, and what they are told when it is not right. The
 * template shows everything that it gets; the tokens are decoded again to see what it said. */
#include "server/conversation.h"

#include "model/detokenizer.h"
#include "model/test_tokenizer_files.h"

#include <stdlib.h>
#include <string.h>

static const char template_text[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }}:"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}]{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if tools %}tools:{% for t in tools %}{{ t.function.name }},{% endfor %}{% endif %}"
    "{% if colour %}colour:{{ colour }}{% endif %}"
    "{% if refuse %}{{ raise_exception('no ' ~ refuse) }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if think %}<think>\n{% endif %}{% endif %}";

static struct served_model model = {.name = (char *)"tiny"};

struct fixture {
    struct request_error error;
    struct conversation conversation;
    struct byte_buffer text;
};

static void converse(struct fixture *fixture, const char *body)
{
    memset(fixture, 0, sizeof(*fixture));
    json_t *object = request_parse(body, strlen(body), &fixture->error);
    if (!object)
        fail_msg("%s: %s", body, fixture->error.text);
    struct request_reader reader = {object, &fixture->error};
    conversation_read(&model, &reader, &fixture->conversation);
    json_decref(object);
    assert_int_equal(detokenizer_decode(model.tokenizer, fixture->conversation.tokens.ids,
                                        fixture->conversation.tokens.count,
                                        DETOKENIZER_SHOW_CONTROL, &fixture->text),
                     0);
    assert_int_equal(byte_buffer_append(&fixture->text, "", 1), 0);
}

static void drop(struct fixture *fixture)
{
    token_list_free(&fixture->conversation.tokens);
    byte_buffer_free(&fixture->text);
}

static void shows(const char *body, const char *expected)
{
    struct fixture fixture;
    converse(&fixture, body);
    if (fixture.error.status)
        fail_msg("%s: %s", body, fixture.error.text);
    assert_string_equal(fixture.text.bytes, expected);
    drop(&fixture);
}

static void refuses(const char *body, const char *parameter, const char *part)
{
    struct fixture fixture;
    converse(&fixture, body);
    assert_int_equal(fixture.error.status, 400);
    assert_string_equal(fixture.error.parameter, parameter);
    if (!strstr(fixture.error.text, part))
        fail_msg("%s: \"%s\" is not in: %s", body, part, fixture.error.text);
    drop(&fixture);
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASKED(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define PROMPT "<|im_start|>assistant\n"

static void test_messages(void **state)
{
    (void)state;
    shows("{\"messages\":[" USER("Hello") "]}", ASKED("Hello") PROMPT);
    shows("{\"messages\":[{\"role\":\"system\",\"content\":\"Be.\"}," USER("a") "]}",
          "<|im_start|>system\nBe.<|im_end|>\n" ASKED("a") PROMPT);
    shows("{\"messages\":[{\"role\":\"user\",\"content\":null}]}", ASKED("") PROMPT);
    shows("{\"messages\":[{\"role\":\"user\"}]}", ASKED("") PROMPT);
    shows("{\"messages\":[" USER("a") "],\"add_generation_prompt\":false}", ASKED("a"));
}

static void test_parts_are_joined(void **state)
{
    (void)state;
    shows("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
          "{\"type\":\"text\",\"text\":\"b\"},\"c\"]}]}",
          ASKED("a b c") PROMPT);
    shows("{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", ASKED("") PROMPT);
    refuses("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
            "messages", "part of type \"image_url\"; this model reads text only");
    refuses("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
            "messages", "part 0 of message 0 has no \"text\"");
    refuses("{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", "messages", "part 0");
}

static void test_tools(void **state)
{
    struct fixture fixture;
    static const char tools[] =
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    char body[512];
    (void)state;
    snprintf(body, sizeof(body), "{\"messages\":[" USER("a") "],%s}", tools);
    converse(&fixture, body);
    assert_true(fixture.conversation.has_tools);
    assert_string_equal(fixture.text.bytes, ASKED("a") "tools:f," PROMPT);
    drop(&fixture);
    snprintf(body, sizeof(body), "{\"messages\":[" USER("a") "],%s,\"tool_choice\":\"none\"}",
             tools);
    converse(&fixture, body);
    assert_false(fixture.conversation.has_tools);
    assert_string_equal(fixture.text.bytes, ASKED("a") PROMPT);
    drop(&fixture);
    snprintf(body, sizeof(body),
             "{\"messages\":[" USER("a") "],%s,\"tool_choice\":\"required\"}", tools);
    refuses(body, "tool_choice", "cannot be enforced");
    refuses("{\"messages\":[" USER("a") "],\"tools\":{}}", "tools", "must be an array");
}

/* Clients send the arguments as JSON text; what is none stays as it is. */
static void test_arguments_of_calls(void **state)
{
    (void)state;
    shows(
        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1,\\\"y\\\":\\\"z\\\"}\"}}]}],"
        "\"add_generation_prompt\":false}",
        "<|im_start|>assistant\n[f:x=1;y=z;]<|im_end|>\n");
    shows("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
          "{\"name\":\"f\",\"arguments\":{\"x\":1}}}]}],\"add_generation_prompt\":false}",
          "<|im_start|>assistant\n[f:x=1;]<|im_end|>\n");
    refuses("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
            "{\"name\":\"f\",\"arguments\":\"not json\"}}]}]}",
            "messages", "the model's chat template");
}

static void test_template_variables(void **state)
{
    (void)state;
    shows("{\"messages\":[" USER("a") "],\"chat_template_kwargs\":{\"colour\":\"red\"}}",
          ASKED("a") "colour:red" PROMPT);
    refuses("{\"messages\":[" USER("a") "],\"chat_template_kwargs\":{\"refuse\":\"you\"}}",
            "messages", "no you");
    refuses("{\"messages\":[" USER("a") "],\"chat_template_kwargs\":[]}",
            "chat_template_kwargs", "must be an object");
    /* They add; they do not replace. */
    shows("{\"messages\":[" USER("a") "],\"chat_template_kwargs\":{\"messages\":5}}",
          ASKED("a") PROMPT);
    shows("{\"messages\":[" USER("a") "],\"chat_template_kwargs\":{\"messages\":5},"
                                      "\"continue_final_message\":true}",
          "<|im_start|>user\na");
}

static void test_final_message_is_continued(void **state)
{
    (void)state;
    shows(
        "{\"messages\":[" USER("Count.") ",{\"role\":\"assistant\",\"content\":\"One, two\"}],"
                                         "\"continue_final_message\":true}",
        ASKED("Count.") PROMPT "One, two");
    /* The last place where it stands, and without the space at its end. */
    shows("{\"messages\":[" USER("x") ",{\"role\":\"assistant\",\"content\":\"x \\n\"}],"
                                      "\"continue_final_message\":true}",
          ASKED("x") PROMPT "x");
    refuses("{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}],"
            "\"continue_final_message\":true}",
            "continue_final_message", "cannot be continued");
    refuses("{\"messages\":[" USER("x") "],\"continue_final_message\":\"yes\"}",
            "continue_final_message", "must be true or false");
}

static void test_prompt_may_end_in_reasoning(void **state)
{
    struct fixture fixture;
    (void)state;
    converse(&fixture,
             "{\"messages\":[" USER("a") "],\"chat_template_kwargs\":{\"think\":true}}");
    assert_int_equal(fixture.error.status, 0);
    assert_true(fixture.conversation.in_reasoning);
    drop(&fixture);
    converse(&fixture, "{\"messages\":[" USER("<think>") "]}");
    assert_false(fixture.conversation.in_reasoning);
    drop(&fixture);
}

static void test_what_is_wrong_is_said(void **state)
{
    (void)state;
    refuses("{}", "messages", "\"messages\" is missing or empty");
    refuses("{\"messages\":[]}", "messages", "\"messages\" is missing or empty");
    refuses("{\"messages\":null}", "messages", "\"messages\" is missing or empty");
    refuses("{\"messages\":\"hello\"}", "messages", "must be an array, not a string");
    refuses("{\"messages\":[" USER("a") ",5]}", "messages", "message 1 is an integer");
    refuses("{\"messages\":[{\"content\":\"a\"}]}", "messages", "message 0 has no \"role\"");
    refuses("{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages",
            "\"content\" of message 0 is an integer");
}

static void test_model_without_a_template(void **state)
{
    struct template *kept = model.chat_template;
    (void)state;
    model.chat_template = NULL;
    refuses("{\"messages\":[" USER("a") "]}", "", "tiny has no chat template");
    model.chat_template = kept;
}

static void test_single_message(void **state)
{
    struct conversation conversation;
    char text[256] = "";
    (void)state;
    assert_int_equal(conversation_single(&model, "S", "U", &conversation, ERROR_BUFFER(text)),
                     0);
    assert_true(conversation.tokens.count > 0);
    token_list_free(&conversation.tokens);
    assert_int_equal(
        conversation_single(&model, "S", "\xff", &conversation, ERROR_BUFFER(text)),
        BATON_EINVAL);
    assert_string_equal(text, "the prompt is not UTF-8 text");
}

int main(int argc, char **argv)
{
    char text[256] = "";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_parts_are_joined),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_arguments_of_calls),
        cmocka_unit_test(test_template_variables),
        cmocka_unit_test(test_final_message_is_continued),
        cmocka_unit_test(test_prompt_may_end_in_reasoning),
        cmocka_unit_test(test_what_is_wrong_is_said),
        cmocka_unit_test(test_model_without_a_template),
        cmocka_unit_test(test_single_message),
    };
    if (argc < 2 || template_compile(template_text, sizeof(template_text) - 1,
                                     &model.chat_template, ERROR_BUFFER(text))) {
        fprintf(stderr, "usage: %s GOLDEN_FOLDER %s\n", argv[0], text);
        return 1;
    }
    model.tokenizer = test_tokenizer_open(argv[1], "tokenizer_bytes.json");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(model.tokenizer);
    template_free(model.chat_template);
    return failed;
}
