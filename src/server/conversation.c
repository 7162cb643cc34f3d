/* SPDX-License-Identifier: Apache-2.0 */
#include "conversation.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages ------------------------------------------------------------------------------- */

/* [{"type": "text", "text": "a"}, ...] is one text, the parts separated by a space. */
static json_t *parts_join(const json_t *parts, size_t number, struct request_error *error)
{
    size_t i;
    json_t *part;
    struct byte_buffer text = {0};
    bool whole = true;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *piece = json_object_get(part, "text");
        if (json_is_string(part))
            piece = part;
        else if (type && strcmp(type, "text") != 0)
            request_refuse(
                error, 400, "messages",
                "message %zu has a part of type \"%.40s\"; this model reads text only", number,
                type);
        if (!json_is_string(piece)) {
            request_refuse(error, 400, "messages", "part %zu of message %zu has no \"text\"", i,
                           number);
            break;
        }
        if ((i && byte_buffer_append(&text, " ", 1)) ||
            byte_buffer_append(&text, json_string_value(piece), json_string_length(piece)))
            whole = false;
    }
    json_t *joined = whole ? json_stringn(text.bytes ? text.bytes : "", text.length) : NULL;
    byte_buffer_free(&text);
    if (!joined)
        request_refuse(error, 500, NULL, "out of memory");
    return joined;
}

/* Templates want a call's arguments as an object, clients send them as JSON text. */
static void calls_open(json_t *message)
{
    size_t i;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        json_t *function = json_object_get(call, "function");
        const char *text = json_string_value(json_object_get(function, "arguments"));
        json_t *arguments = text ? json_loads(text, 0, NULL) : NULL;
        if (json_is_object(arguments))
            json_object_set(function, "arguments", arguments);
        json_decref(arguments);
    }
}

static void message_prepare(json_t *message, size_t number, struct request_error *error)
{
    if (!json_is_object(message)) {
        request_refuse(error, 400, "messages", "message %zu is %s; an object is expected",
                       number, request_type_name(message));
        return;
    }
    if (!json_is_string(json_object_get(message, "role"))) {
        request_refuse(error, 400, "messages", "message %zu has no \"role\"", number);
        return;
    }
    json_t *content = json_object_get(message, "content");
    if (!content || json_is_null(content))
        json_object_set_new(message, "content", json_string(""));
    else if (json_is_array(content))
        json_object_set_new(message, "content", parts_join(content, number, error));
    else if (!json_is_string(content))
        request_refuse(error, 400, "messages",
                       "\"content\" of message %zu is %s; a string or an array is expected",
                       number, request_type_name(content));
    calls_open(message);
}

static json_t *messages_prepare(const struct request_reader *reader)
{
    size_t i;
    json_t *message;
    const json_t *given = request_array(reader, "messages");
    if (!json_array_size(given)) {
        request_refuse(reader->error, 400, "messages", "\"messages\" is missing or empty");
        return NULL;
    }
    json_t *messages = json_deep_copy(given);
    if (!messages)
        request_refuse(reader->error, 500, NULL, "out of memory");
    json_array_foreach(messages, i, message) message_prepare(message, i, reader->error);
    return messages;
}

/* ---- the text ------------------------------------------------------------------------------- */

static void context_text(json_t *context, const char *name, const char *text)
{
    if (text)
        json_object_set_new(context, name, json_string(text));
}

/* "auto" and "none" can be done; "required" and a named tool would need output that is constrained. */
static bool tools_wanted(const struct request_reader *reader, const json_t *tools)
{
    const json_t *choice = request_any(reader, "tool_choice");
    const char *name = json_string_value(choice);
    if (!json_array_size(tools))
        return false;
    if (!choice || (name && strcmp(name, "auto") == 0))
        return true;
    if (name && strcmp(name, "none") == 0)
        return false;
    request_refuse(
        reader->error, 400, "tool_choice",
        "\"tool_choice\" must be \"auto\" or \"none\": a call cannot be enforced here");
    return false;
}

static json_t *context_make(const struct served_model *model,
                            const struct request_reader *reader, json_t *messages,
                            bool continues, struct conversation *out)
{
    json_t *context = json_object();
    const json_t *tools = request_array(reader, "tools");
    const json_t *extra = request_object(reader, "chat_template_kwargs");
    bool prompt = !continues;
    if (!context) {
        json_decref(messages);
        request_refuse(reader->error, 500, NULL, "out of memory");
        return NULL;
    }
    request_bool(reader, "add_generation_prompt", &prompt);
    out->has_tools = tools_wanted(reader, tools);
    json_object_set_new(context, "messages", messages);
    json_object_set_new(context, "add_generation_prompt", json_boolean(prompt));
    if (out->has_tools)
        json_object_set(context, "tools", (json_t *)tools);
    context_text(context, "bos_token", model->bos_text);
    context_text(context, "eos_token", model->eos_text);
    json_object_update_missing(context, (json_t *)extra); /* what is set above stays */
    return context;
}

/* The text ends where the last message does: the model goes on with it. */
static void continuation_cut(const json_t *messages, struct template_output *text,
                             struct request_error *error)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *value = json_object_get(last, "content");
    const char *content = json_string_value(value);
    size_t length = json_string_length(value);
    const char *found = NULL, *at = text->text;
    while (length && (content[length - 1] == ' ' || content[length - 1] == '\n'))
        length--; /* templates strip */
    while (length &&
           (at = memmem(at, text->length - (size_t)(at - text->text), content, length)) != NULL)
        found = at++;
    if (!found) {
        request_refuse(error, 400, "continue_final_message",
                       "the chat template does not show the final message as it is, so that it "
                       "cannot be continued");
        return;
    }
    text->length = (size_t)(found - text->text) + length;
    text->text[text->length] = '\0';
}

static bool ends_in_reasoning(const struct template_output *text)
{
    static const char mark[] = "<think>";
    size_t end = text->length;
    while (end && strchr(" \n\r\t", text->text[end - 1]))
        end--;
    return end >= sizeof(mark) - 1 &&
           memcmp(text->text + end - (sizeof(mark) - 1), mark, sizeof(mark) - 1) == 0;
}

static void text_encode(const struct served_model *model, const struct template_output *text,
                        struct conversation *out, struct request_error *error)
{
    char reason[512];
    out->in_reasoning = ends_in_reasoning(text);
    int rc = tokenizer_encode(model->tokenizer, text->text, text->length,
                              TOKENIZER_PARSE_SPECIAL, &out->tokens, ERROR_BUFFER(reason));
    if (rc)
        request_refuse(error, request_status(rc), "messages", "%s", reason);
    else if (!out->tokens.count)
        request_refuse(error, 400, "messages",
                       "the chat template made nothing of the messages");
}

static void context_render(const struct served_model *model, const json_t *context,
                           bool continues, struct conversation *out,
                           struct request_error *error)
{
    char reason[512];
    struct template_output text;
    int rc = template_render(model->chat_template, context, NULL, &text, ERROR_BUFFER(reason));
    if (rc) {
        request_refuse(error, rc == BATON_ENOMEM ? 500 : 400, "messages",
                       "the model's chat template: %s", reason);
        return;
    }
    if (continues)
        continuation_cut(json_object_get(context, "messages"), &text, error);
    if (!error->status)
        text_encode(model, &text, out, error);
    free(text.text);
}

void conversation_read(const struct served_model *model, const struct request_reader *reader,
                       struct conversation *out)
{
    bool continues = false;
    *out = (struct conversation){0};
    if (!model->chat_template)
        request_refuse(reader->error, 400, NULL,
                       "%s has no chat template that can be used; start the worker with "
                       "--chat-template, or use /v1/completions",
                       model->name);
    request_bool(reader, "continue_final_message", &continues);
    json_t *messages = messages_prepare(reader);
    json_t *context = NULL;
    if (!reader->error->status)
        context = context_make(model, reader, messages, continues, out);
    else
        json_decref(messages);
    if (!reader->error->status)
        context_render(model, context, continues, out, reader->error);
    json_decref(context);
}

int conversation_single(const struct served_model *model, const char *system, const char *user,
                        struct conversation *out, struct error err)
{
    struct request_error error = {0};
    json_t *body = system
                       ? json_pack("{s[{ssss}{ssss}]}", "messages", "role", "system", "content",
                                   system, "role", "user", "content", user)
                       : json_pack("{s[{ssss}]}", "messages", "role", "user", "content", user);
    *out = (struct conversation){0};
    if (!body)
        return error_set(err, BATON_EINVAL, "the prompt is not UTF-8 text");
    struct request_reader reader = {body, &error};
    conversation_read(model, &reader, out);
    json_decref(body);
    return error.status ? error_set(err, BATON_EINVAL, "%s", error.text) : BATON_OK;
}
