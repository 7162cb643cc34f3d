/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI's POST /v1/completions: text that goes on. */
#include "reply.h"

#include <string.h>

#define MAX_NEW_TOKENS 16u

/* ---- reading -------------------------------------------------------------------------------- */

/* A string, strings, token ids, or arrays of token ids. */
static void prompts_read(struct reply *reply, const struct request_reader *reader)
{
    const json_t *prompt = request_any(reader, "prompt"), *first = json_array_get(prompt, 0);
    bool batch = json_is_string(first) || json_is_array(first);
    if (!json_is_string(prompt) && !batch && !json_is_integer(first)) {
        request_refuse(reader->error, 400, "prompt",
                       "\"prompt\" must be a string, token ids, or an array of such%s%s",
                       prompt ? ", not " : "", prompt ? request_type_name(prompt) : "");
        return;
    }
    if (!reply_prompts_open(reply, batch ? json_array_size(prompt) : 1))
        return;
    for (uint32_t i = 0; i < reply->prompt_count; i++) {
        const json_t *one = batch ? json_array_get(prompt, i) : prompt;
        if (json_is_string(one))
            reply_prompt_text(reply, &reply->prompts[i], json_string_value(one),
                              json_string_length(one), "prompt");
        else if (json_is_array(one))
            reply_prompt_ids(reply, &reply->prompts[i], one, "prompt");
        else
            request_refuse(reader->error, 400, "prompt", "\"prompt\"[%u] is %s", i,
                           request_type_name(one));
    }
}

static void echo_texts(struct reply *reply)
{
    for (uint32_t i = 0; i < reply->prompt_count; i++) {
        struct reply_prompt *prompt = &reply->prompts[i];
        struct byte_buffer text = {0};
        if (prompt->text || reply->error.status)
            continue;
        if (detokenizer_decode(reply->server->model->tokenizer, prompt->tokens.ids,
                               prompt->tokens.count, 0, &text) ||
            byte_buffer_append(&text, "", 1))
            request_refuse(&reply->error, 503, NULL, "out of memory");
        prompt->text = text.bytes;
    }
}

static void logprobs_read(struct reply *reply, const struct request_reader *reader)
{
    const json_t *field = request_any(reader, "logprobs");
    reply->logprob_start = -1;
    if (!field || json_is_false(field))
        return;
    reply->logprobs = true;
    reply->logprob_start = reply->echo ? 0 : -1;
    if (!json_is_true(field))
        request_u32(reader, "logprobs", 0, SAMPLER_TOP_MAX, &reply->top_logprobs);
}

static void unsupported_refuse(const struct request_reader *reader)
{
    uint32_t best_of = 1, n = 1;
    const char *suffix = request_string(reader, "suffix");
    if (suffix && *suffix)
        request_refuse(reader->error, 400, "suffix",
                       "\"suffix\" is not supported: the model continues text, it does not "
                       "fill gaps");
    request_u32(reader, "best_of", 1, UINT32_MAX, &best_of);
    request_u32(reader, "n", 1, GENERATION_N_MAX, &n);
    if (best_of > n && best_of != 1)
        request_refuse(reader->error, 400, "best_of",
                       "\"best_of\" is not supported; \"n\" gives several replies");
}

static void completion_read(struct reply *reply, const struct request_reader *reader)
{
    reply_common_read(reply, reader);
    request_bool(reader, "echo", &reply->echo);
    unsupported_refuse(reader);
    prompts_read(reply, reader);
    for (uint32_t i = 0; i < reply->prompt_count && !reader->error->status; i++)
        generation_settings_read(reader, MAX_NEW_TOKENS,
                                 reply->server->model->config.vocab_size,
                                 &reply->prompts[i].settings);
    if (reply->echo)
        echo_texts(reply);
    logprobs_read(reply, reader);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Prompt tokens (echo) and then generated ones, as if they were one list. */
static const struct token_record *record_at(const struct reply_choice *choice, size_t i,
                                            const struct token_records **of)
{
    size_t before = choice->prompt_tokens.count;
    *of = i < before ? &choice->prompt_tokens : &choice->tokens;
    return &(*of)->items[i < before ? i : i - before];
}

static void tops_write(struct reply *reply, const struct token_record *item,
                       const struct token_records *records)
{
    struct json_writer *out = &reply->out;
    if (!item->top_count) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '{');
    for (uint32_t k = 0; k < item->top_count; k++) {
        const struct token_logprob *top = &records->tops[item->top_first + k];
        json_put_view(out, reply_token_text(reply, top->token));
        json_put_raw(out, ":", 1);
        out->comma = false;
        json_put_real(out, top->logprob);
    }
    json_put_close(out, '}');
}

/* In characters, as clients count. A character that is several tokens counts with its first. */
static size_t character_count(struct text_view text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.length; i++)
        count += ((unsigned char)text.bytes[i] & 0xc0) != 0x80;
    return count;
}

static void logprobs_write(struct reply *reply, const struct reply_choice *choice, size_t first)
{
    struct json_writer *out = &reply->out;
    const struct token_records *of;
    size_t count = choice->prompt_tokens.count + choice->tokens.count, offset = 0;
    json_put_key(out, "logprobs");
    json_put_open(out, '{');
    json_put_key(out, "tokens");
    json_put_open(out, '[');
    for (size_t i = first; i < count; i++)
        json_put_view(out, reply_token_text(reply, record_at(choice, i, &of)->token));
    json_put_close(out, ']');
    json_put_key(out, "token_logprobs");
    json_put_open(out, '[');
    for (size_t i = first; i < count; i++)
        json_put_real(out, record_at(choice, i, &of)->logprob);
    json_put_close(out, ']');
    json_put_key(out, "top_logprobs");
    if (reply->top_logprobs) {
        json_put_open(out, '[');
        for (size_t i = first; i < count; i++) {
            const struct token_record *item = record_at(choice, i, &of);
            tops_write(reply, item, of);
        }
        json_put_close(out, ']');
    } else
        json_put_null(out);
    json_put_key(out, "text_offset");
    json_put_open(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i >= first)
            json_put_int(out, (int64_t)offset);
        offset += character_count(reply_token_text(reply, record_at(choice, i, &of)->token));
    }
    json_put_close(out, ']');
    json_put_close(out, '}');
}

static void choice_write(struct reply *reply, const struct reply_choice *choice,
                         bool with_prompt, size_t first_byte, size_t first_token)
{
    struct json_writer *out = &reply->out;
    json_put_open(out, '{');
    json_put_key_int(out, "index", choice->index);
    if (with_prompt) {
        struct byte_buffer text = {0};
        const char *prompt = choice->prompt->text;
        if (byte_buffer_append(&text, prompt, strlen(prompt)) ||
            byte_buffer_append(&text, choice->text.bytes, choice->text.length))
            out->failed = true;
        json_put_key_view(out, "text", (struct text_view){text.bytes, text.length});
        byte_buffer_free(&text);
    } else
        json_put_key_view(
            out, "text",
            (struct text_view){choice->text.bytes ? choice->text.bytes + first_byte : "",
                               choice->text.length - first_byte});
    if (reply->logprobs)
        logprobs_write(reply, choice, first_token);
    else
        json_put_key_null(out, "logprobs");
    json_put_key_text(out, "finish_reason", reply_finish_name(choice));
    reply_matched_stop(reply, choice, "matched_stop");
    json_put_close(out, '}');
}

static void completion_events(struct reply *reply, struct reply_choice *choice)
{
    size_t records = choice->prompt_tokens.count + choice->tokens.count;
    bool text_new = choice->text_sent < choice->text.length;
    bool prompt_new = reply->echo && !choice->begun;
    if (!text_new && !prompt_new && !choice->finish &&
        !(reply->logprobs && choice->tokens_sent < records))
        return;
    json_put_raw(&reply->out, "data: ", 6);
    reply_head_write(reply, "text_completion");
    json_put_key(&reply->out, "choices");
    json_put_open(&reply->out, '[');
    choice_write(reply, choice, prompt_new, choice->text_sent, choice->tokens_sent);
    json_put_close(&reply->out, ']');
    if (reply->usage_always)
        reply_usage_write(reply, choice);
    json_put_close(&reply->out, '}');
    choice->begun = true;
    choice->text_sent = choice->text.length;
    choice->tokens_sent = records;
    choice->finished = choice->finish != GENERATION_RUNNING;
    reply_event(reply);
}

static void completion_last_events(struct reply *reply)
{
    reply_usage_event(reply, "text_completion");
}

static void completion_whole(struct reply *reply)
{
    struct json_writer *out = &reply->out;
    reply_head_write(reply, "text_completion");
    json_put_key(out, "choices");
    json_put_open(out, '[');
    for (uint32_t i = 0; i < reply->choice_count; i++)
        choice_write(reply, &reply->choices[i], reply->echo, 0, 0);
    json_put_close(out, ']');
    reply_tail_write(reply);
}

const struct reply_format completion_format = {
    .id_prefix = "cmpl-",
    .read = completion_read,
    .events = completion_events,
    .last_events = completion_last_events,
    .whole = completion_whole,
};
