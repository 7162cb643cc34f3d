/* SPDX-License-Identifier: Apache-2.0 */
/* SGLang's own API, POST /generate.
 *
 *   {"text": "..." or [...], or "input_ids": [...] or [[...]], "sampling_params": {...} or [...],
 *    "stream", "return_logprob", "logprob_start_len", "top_logprobs_num", "rid" ...}
 *   {"text", "output_ids", "meta_info": {...}}, an array of them for a batch or n > 1
 *
 * Events of a stream have all the text until now, unless the worker was started with
 * --incremental-streaming-output. */
#include "reply.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

#define MAX_NEW_TOKENS 128u

/* ---- reading -------------------------------------------------------------------------------- */

static void prompts_read(struct reply *reply, const struct request_reader *reader)
{
    const json_t *text = request_any(reader, "text"), *ids = request_any(reader, "input_ids");
    const char *field = text ? "text" : "input_ids";
    const json_t *given = text ? text : ids;
    if (!given || (text && ids)) {
        request_refuse(reader->error, 400, "text",
                       "either \"text\" or \"input_ids\" is needed%s",
                       given ? ", not both" : "");
        return;
    }
    bool batch = text ? json_is_array(text) : json_is_array(json_array_get(ids, 0));
    if (!batch && !json_is_string(given) && !json_is_array(given)) {
        request_refuse(reader->error, 400, field, "\"%s\" must be %s, not %s", field,
                       text ? "a string or an array of strings" : "an array of token ids",
                       request_type_name(given));
        return;
    }
    reply->is_batch = batch;
    if (!reply_prompts_open(reply, batch ? json_array_size(given) : 1))
        return;
    for (uint32_t i = 0; i < reply->prompt_count; i++) {
        const json_t *one = batch ? json_array_get(given, i) : given;
        if (text && json_is_string(one))
            reply_prompt_text(reply, &reply->prompts[i], json_string_value(one),
                              json_string_length(one), field);
        else if (!text && json_is_array(one))
            reply_prompt_ids(reply, &reply->prompts[i], one, field);
        else
            request_refuse(reader->error, 400, field, "\"%s\"[%u] is %s", field, i,
                           request_type_name(one));
    }
}

static void settings_read(struct reply *reply, const struct request_reader *reader)
{
    const json_t *given = request_any(reader, "sampling_params");
    json_t *empty = json_object();
    bool list = json_is_array(given);
    if (given && !json_is_object(given) && !list)
        request_refuse(reader->error, 400, "sampling_params",
                       "\"sampling_params\" must be an object, not %s",
                       request_type_name(given));
    if (list && json_array_size(given) != reply->prompt_count)
        request_refuse(reader->error, 400, "sampling_params",
                       "%zu \"sampling_params\" for %u prompts", json_array_size(given),
                       reply->prompt_count);
    for (uint32_t i = 0; i < reply->prompt_count && !reader->error->status; i++) {
        const json_t *one = list ? json_array_get(given, i) : given;
        if (one && !json_is_object(one) && !json_is_null(one))
            request_refuse(reader->error, 400, "sampling_params",
                           "\"sampling_params\"[%u] must be an object, not %s", i,
                           request_type_name(one));
        struct request_reader inner = {json_is_object(one) ? one : empty, reader->error};
        generation_settings_read(&inner, MAX_NEW_TOKENS,
                                 reply->server->model->config.vocab_size,
                                 &reply->prompts[i].settings);
        if (reply->prompts[i].settings.n > 1)
            reply->is_batch = true;
    }
    json_decref(empty);
}

/* Of a batch every prompt may have its own name. */
static void rids_read(struct reply *reply, const struct request_reader *reader)
{
    const json_t *rids = request_any(reader, "rid");
    if (!json_is_array(rids))
        return;
    for (uint32_t i = 0; i < reply->prompt_count; i++) {
        const char *rid = json_string_value(json_array_get(rids, i));
        if (!rid || strlen(rid) >= sizeof(reply->prompts[i].rid))
            request_refuse(reader->error, 400, "rid",
                           "\"rid\" must have a string of less than %zu characters for each "
                           "of the %u prompts",
                           sizeof(reply->prompts[i].rid), reply->prompt_count);
        else
            snprintf(reply->prompts[i].rid, sizeof(reply->prompts[i].rid), "%s", rid);
    }
}

/* In a batch these may be arrays, as long as all of it is the same. A copy of the field into `to`. */
static void same_for_all(const struct request_reader *reader, const char *name, json_t *to)
{
    const json_t *value = request_any(reader, name), *first = json_array_get(value, 0);
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item)
    {
        if (!json_equal(item, first))
            request_refuse(reader->error, 400, name,
                           "\"%s\" must be the same for all prompts of a request", name);
    }
    json_object_set(to, name, (json_t *)(json_is_array(value) ? first : value));
}

static void logprobs_read(struct reply *reply, const struct request_reader *reader)
{
    json_t *fields = json_object();
    struct request_reader inner = {fields, reader->error};
    same_for_all(reader, "return_logprob", fields);
    same_for_all(reader, "logprob_start_len", fields);
    same_for_all(reader, "top_logprobs_num", fields);
    reply->logprob_start = -1;
    request_bool(&inner, "return_logprob", &reply->logprobs);
    request_i64(&inner, "logprob_start_len", -1, INT32_MAX, &reply->logprob_start);
    request_u32(&inner, "top_logprobs_num", 0, SAMPLER_TOP_MAX, &reply->top_logprobs);
    json_decref(fields);
    for (uint32_t i = 0; i < reply->prompt_count; i++)
        if (reply->logprob_start >= (int64_t)reply->prompts[i].tokens.count)
            request_refuse(reader->error, 400, "logprob_start_len",
                           "\"logprob_start_len\" is %lld, and the prompt has %zu tokens",
                           (long long)reply->logprob_start, reply->prompts[i].tokens.count);
    request_bool(reader, "return_text_in_logprobs", &reply->logprob_texts);
}

static void generate_read(struct reply *reply, const struct request_reader *reader)
{
    reply_common_read(reply, reader);
    prompts_read(reply, reader);
    settings_read(reply, reader);
    rids_read(reply, reader);
    logprobs_read(reply, reader);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* [logprob, id, text or null] */
static void logprob_write(struct reply *reply, int32_t token, float logprob)
{
    struct json_writer *out = &reply->out;
    json_put_open(out, '[');
    json_put_real(out, logprob);
    json_put_int(out, token);
    if (reply->logprob_texts)
        json_put_view(out, reply_token_text(reply, token));
    else
        json_put_null(out);
    json_put_close(out, ']');
}

static void logprobs_write(struct reply *reply, const char *key, const char *top_key,
                           const struct token_records *records, size_t first)
{
    struct json_writer *out = &reply->out;
    json_put_key(out, key);
    json_put_open(out, '[');
    for (size_t i = first; i < records->count; i++)
        logprob_write(reply, records->items[i].token, records->items[i].logprob);
    json_put_close(out, ']');
    if (!reply->top_logprobs)
        return;
    json_put_key(out, top_key);
    json_put_open(out, '[');
    for (size_t i = first; i < records->count; i++) {
        const struct token_record *item = &records->items[i];
        if (!item->top_count) {
            json_put_null(out);
            continue;
        }
        json_put_open(out, '[');
        for (uint32_t k = 0; k < item->top_count; k++)
            logprob_write(reply, records->tops[item->top_first + k].token,
                          records->tops[item->top_first + k].logprob);
        json_put_close(out, ']');
    }
    json_put_close(out, ']');
}

static void finish_reason_write(struct reply *reply, const struct reply_choice *choice)
{
    struct json_writer *out = &reply->out;
    json_put_key(out, "finish_reason");
    if (!choice->finish) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '{');
    json_put_key_text(out, "type", reply_finish_name(choice));
    if (choice->finish == GENERATION_LENGTH)
        json_put_key_int(out, "length", (int64_t)choice->tokens.count);
    else if (choice->finish == GENERATION_STOP)
        reply_matched_stop(reply, choice, "matched");
    else
        json_put_key_text(out, "message", choice->reason ? choice->reason : "aborted");
    json_put_close(out, '}');
}

static void meta_write(struct reply *reply, const struct reply_choice *choice, size_t first)
{
    struct json_writer *out = &reply->out;
    json_put_key(out, "meta_info");
    json_put_open(out, '{');
    json_put_key_text(out, "id", choice->generation.rid);
    finish_reason_write(reply, choice);
    json_put_key_int(out, "prompt_tokens", (int64_t)choice->prompt->tokens.count);
    json_put_key_text(out, "weight_version", reply->server->model->weight_version);
    json_put_key_int(out, "completion_tokens", (int64_t)choice->tokens.count);
    json_put_key_int(out, "cached_tokens", choice->cached_tokens);
    if (reply->logprobs) {
        logprobs_write(reply, "input_token_logprobs", "input_top_logprobs",
                       &choice->prompt_tokens, 0);
        logprobs_write(reply, "output_token_logprobs", "output_top_logprobs", &choice->tokens,
                       first);
    }
    if (choice->finish)
        json_put_key_real(out, "e2e_latency",
                          (double)(clock_now_ns() - reply->received_ns) / 1e9);
    json_put_close(out, '}');
}

static void choice_write(struct reply *reply, const struct reply_choice *choice,
                         size_t first_byte, size_t first_token, bool indexed)
{
    struct json_writer *out = &reply->out;
    json_put_open(out, '{');
    json_put_key_view(
        out, "text",
        (struct text_view){choice->text.bytes ? choice->text.bytes + first_byte : "",
                           choice->text.length - first_byte});
    json_put_key(out, "output_ids");
    json_put_open(out, '[');
    for (size_t i = first_token; i < choice->tokens.count; i++)
        json_put_int(out, choice->tokens.items[i].token);
    json_put_close(out, ']');
    meta_write(reply, choice, first_token);
    if (indexed)
        json_put_key_int(out, "index", choice->index);
    json_put_close(out, '}');
}

static void generate_events(struct reply *reply, struct reply_choice *choice)
{
    bool incremental = reply->server->options.incremental_stream;
    if (choice->tokens_sent == choice->tokens.count && !choice->finish)
        return;
    json_put_raw(&reply->out, "data: ", 6);
    choice_write(reply, choice, incremental ? choice->text_sent : 0,
                 incremental ? choice->tokens_sent : 0, reply->is_batch);
    choice->text_sent = choice->text.length;
    choice->tokens_sent = choice->tokens.count;
    choice->finished = choice->finish != GENERATION_RUNNING;
    reply_event(reply);
}

static void generate_last_events(struct reply *reply)
{
    (void)reply;
}

static void generate_whole(struct reply *reply)
{
    if (reply->is_batch)
        json_put_open(&reply->out, '[');
    for (uint32_t i = 0; i < reply->choice_count; i++)
        choice_write(reply, &reply->choices[i], 0, 0, false);
    if (reply->is_batch)
        json_put_close(&reply->out, ']');
}

const struct reply_format generate_format = {
    .id_prefix = "",
    .read = generate_read,
    .events = generate_events,
    .last_events = generate_last_events,
    .whole = generate_whole,
};
