/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI's POST /v1/chat/completions. */
#include "reply.h"
#include "conversation.h"

#include <string.h>

/* ---- reading -------------------------------------------------------------------------------- */

static void response_format_check(const struct request_reader *reader)
{
    const json_t *format = request_object(reader, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text") != 0))
        request_refuse(reader->error, 400, "response_format",
                       "\"response_format\" must be {\"type\": \"text\"}: output cannot be "
                       "constrained to a grammar here");
}

static void logprobs_read(struct reply *reply, const struct request_reader *reader)
{
    reply->logprob_start = -1;
    request_bool(reader, "logprobs", &reply->logprobs);
    request_u32(reader, "top_logprobs", 0, SAMPLER_TOP_MAX, &reply->top_logprobs);
    if (reply->top_logprobs && !reply->logprobs)
        request_refuse(reader->error, 400, "top_logprobs",
                       "\"top_logprobs\" needs \"logprobs\": true");
}

static void chat_read(struct reply *reply, const struct request_reader *reader)
{
    struct conversation conversation = {0};
    reply->reasoning = true;
    reply_common_read(reply, reader);
    request_bool(reader, "separate_reasoning", &reply->reasoning);
    reply->reasoning = reply->reasoning && reply->server->options.reasoning;
    response_format_check(reader);
    logprobs_read(reply, reader);
    if (!reply_prompts_open(reply, 1))
        return;
    conversation_read(reply->server->model, reader, &conversation);
    reply->prompts[0].tokens = conversation.tokens;
    reply->prompts[0].in_reasoning = conversation.in_reasoning;
    reply->tools = conversation.has_tools && reply->server->options.tools;
    if (!reader->error->status) /* a reply may be as long as the context has room */
        generation_settings_read(reader, UINT32_MAX, reply->server->model->config.vocab_size,
                                 &reply->prompts[0].settings);
}

/* ---- writing -------------------------------------------------------------------------------- */

static void token_write(struct reply *reply, int32_t token, float logprob)
{
    struct json_writer *out = &reply->out;
    struct text_view text = reply_token_text(reply, token);
    json_put_key_view(out, "token", text);
    json_put_key_real(out, "logprob", logprob);
    json_put_key(out, "bytes");
    json_put_open(out, '[');
    for (size_t i = 0; i < text.length; i++)
        json_put_int(out, (unsigned char)text.bytes[i]);
    json_put_close(out, ']');
}

static void logprobs_write(struct reply *reply, const struct reply_choice *choice, size_t first)
{
    struct json_writer *out = &reply->out;
    json_put_key(out, "logprobs");
    if (!reply->logprobs) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '{');
    json_put_key(out, "content");
    json_put_open(out, '[');
    for (size_t i = first; i < choice->tokens.count; i++) {
        const struct token_record *item = &choice->tokens.items[i];
        json_put_open(out, '{');
        token_write(reply, item->token, item->logprob);
        json_put_key(out, "top_logprobs");
        json_put_open(out, '[');
        for (uint32_t k = 0; k < item->top_count; k++) {
            const struct token_logprob *top = &choice->tokens.tops[item->top_first + k];
            json_put_open(out, '{');
            token_write(reply, top->token, top->logprob);
            json_put_close(out, '}');
        }
        json_put_close(out, ']');
        json_put_close(out, '}');
    }
    json_put_close(out, ']');
    json_put_close(out, '}');
}

static const char *finish_name(const struct reply_choice *choice)
{
    if (choice->finish == GENERATION_STOP && choice->chat.call_count)
        return "tool_calls";
    return reply_finish_name(choice);
}

static void calls_write(struct reply *reply, const struct reply_choice *choice, uint32_t first,
                        bool indexed)
{
    struct json_writer *out = &reply->out;
    json_put_key(out, "tool_calls");
    json_put_open(out, '[');
    for (uint32_t i = first; i < choice->chat.call_count; i++) {
        const struct chat_call *call = &choice->chat.calls[i];
        json_put_open(out, '{');
        if (indexed)
            json_put_key_int(out, "index", i);
        json_put_key_text(out, "id", call->id);
        json_put_key_text(out, "type", "function");
        json_put_key(out, "function");
        json_put_open(out, '{');
        json_put_key_text(out, "name", call->name);
        json_put_key_text(out, "arguments", call->arguments);
        json_put_close(out, '}');
        json_put_close(out, '}');
    }
    json_put_close(out, ']');
}

/* ---- streams -------------------------------------------------------------------------------- */

struct chunk {
    const char *role;
    struct text_view content, reasoning; /* bytes NULL: none */
    bool calls;
    bool finish;
};

static void chunk_send(struct reply *reply, struct reply_choice *choice,
                       const struct chunk *chunk)
{
    struct json_writer *out = &reply->out;
    if (!reply->exchange)
        return;
    json_put_raw(out, "data: ", 6);
    reply_head_write(reply, "chat.completion.chunk");
    json_put_key(out, "choices");
    json_put_open(out, '[');
    json_put_open(out, '{');
    json_put_key_int(out, "index", choice->index);
    json_put_key(out, "delta");
    json_put_open(out, '{');
    if (chunk->role)
        json_put_key_text(out, "role", chunk->role);
    if (chunk->content.bytes)
        json_put_key_view(out, "content", chunk->content);
    if (chunk->reasoning.bytes)
        json_put_key_view(out, "reasoning_content", chunk->reasoning);
    if (chunk->calls) {
        calls_write(reply, choice, choice->calls_sent, true);
        choice->calls_sent = choice->chat.call_count;
    }
    json_put_close(out, '}');
    if (chunk->role)
        json_put_key_null(out, "logprobs");
    else {
        logprobs_write(reply, choice, choice->tokens_sent);
        choice->tokens_sent = choice->tokens.count;
    }
    json_put_key_text(out, "finish_reason", chunk->finish ? finish_name(choice) : NULL);
    if (chunk->finish)
        reply_matched_stop(reply, choice, "matched_stop");
    json_put_close(out, '}');
    json_put_close(out, ']');
    if (reply->usage_always)
        reply_usage_write(reply, choice);
    json_put_close(out, '}');
    reply_event(reply);
}

static struct text_view unsent(const struct byte_buffer *buffer, size_t *sent)
{
    struct text_view view = {NULL, 0};
    if (*sent < buffer->length)
        view = (struct text_view){buffer->bytes + *sent, buffer->length - *sent};
    *sent = buffer->length;
    return view;
}

/* The role comes with the first token, not before: clients take the first event for it. */
static void chat_events(struct reply *reply, struct reply_choice *choice)
{
    struct chat_text *chat = &choice->chat;
    if (!choice->begun) {
        struct chunk first = {.role = "assistant", .content = {"", 0}};
        choice->begun = true;
        chunk_send(reply, choice, &first);
    }
    struct chunk reasoning = {.reasoning = unsent(&chat->reasoning, &choice->reasoning_sent)};
    struct chunk content = {.content = unsent(&chat->content, &choice->content_sent)};
    struct chunk calls = {.calls = choice->calls_sent < chat->call_count};
    if (reasoning.reasoning.bytes)
        chunk_send(reply, choice, &reasoning);
    if (content.content.bytes ||
        (reply->logprobs && choice->tokens_sent < choice->tokens.count && !choice->finish)) {
        if (!content.content.bytes)
            content.content.bytes = "";
        chunk_send(reply, choice, &content);
    }
    if (calls.calls)
        chunk_send(reply, choice, &calls);
    if (choice->finish && !choice->finished) {
        struct chunk last = {.finish = true};
        choice->finished = true;
        chunk_send(reply, choice, &last);
    }
}

static void chat_last_events(struct reply *reply)
{
    reply_usage_event(reply, "chat.completion.chunk");
}

/* ---- whole replies -------------------------------------------------------------------------- */

static void message_write(struct reply *reply, const struct reply_choice *choice)
{
    struct json_writer *out = &reply->out;
    const struct chat_text *chat = &choice->chat;
    json_put_key(out, "message");
    json_put_open(out, '{');
    json_put_key_text(out, "role", "assistant");
    json_put_key(out, "content");
    if (chat->content.length || !chat->call_count)
        json_put_view(out, (struct text_view){chat->content.bytes ? chat->content.bytes : "",
                                              chat->content.length});
    else
        json_put_null(out);
    json_put_key(out, "reasoning_content");
    if (chat->reasoning.length)
        json_put_view(out, (struct text_view){chat->reasoning.bytes, chat->reasoning.length});
    else
        json_put_null(out);
    if (chat->call_count)
        calls_write(reply, choice, 0, false);
    else
        json_put_key_null(out, "tool_calls");
    json_put_close(out, '}');
}

static void chat_whole(struct reply *reply)
{
    struct json_writer *out = &reply->out;
    reply_head_write(reply, "chat.completion");
    json_put_key(out, "choices");
    json_put_open(out, '[');
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        json_put_open(out, '{');
        json_put_key_int(out, "index", reply->choices[i].index);
        message_write(reply, &reply->choices[i]);
        logprobs_write(reply, &reply->choices[i], 0);
        json_put_key_text(out, "finish_reason", finish_name(&reply->choices[i]));
        reply_matched_stop(reply, &reply->choices[i], "matched_stop");
        json_put_close(out, '}');
    }
    json_put_close(out, ']');
    reply_tail_write(reply);
}

const struct reply_format chat_format = {
    .id_prefix = "chatcmpl-",
    .read = chat_read,
    .events = chat_events,
    .last_events = chat_last_events,
    .whole = chat_whole,
};
