/* SPDX-License-Identifier: Apache-2.0 */
/* What all three APIs have in their bodies: prompts as text or as tokens, and the fields around
 * them. */
#include "reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_KEY_MAX 1024u

bool reply_prompts_open(struct reply *reply, size_t count)
{
    if (count == 0 || count > REPLY_CHOICES_MAX) {
        request_refuse(&reply->error, 400, NULL,
                       "%zu prompts in one request; 1 to %u are taken", count,
                       REPLY_CHOICES_MAX);
        return false;
    }
    reply->prompts = calloc(count, sizeof(*reply->prompts));
    if (!reply->prompts)
        request_refuse(&reply->error, 503, NULL, "out of memory");
    else
        reply->prompt_count = (uint32_t)count;
    return reply->prompts && !reply->error.status;
}

void reply_prompt_text(struct reply *reply, struct reply_prompt *prompt, const char *text,
                       size_t length, const char *field)
{
    char reason[512];
    int rc = tokenizer_encode(reply->server->model->tokenizer, text, length,
                              TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, &prompt->tokens,
                              ERROR_BUFFER(reason));
    if (rc)
        request_refuse(&reply->error, request_status(rc), field, "%s", reason);
    else if (!prompt->tokens.count)
        request_refuse(&reply->error, 400, field,
                       "\"%s\" is empty: there is nothing to continue", field);
    if (reply->echo && !(prompt->text = strndup(text, length)))
        request_refuse(&reply->error, 503, NULL, "out of memory");
}

void reply_prompt_ids(struct reply *reply, struct reply_prompt *prompt, const json_t *ids,
                      const char *field)
{
    size_t i;
    json_t *item;
    uint32_t vocab_size = reply->server->model->config.vocab_size;
    if (!json_array_size(ids))
        request_refuse(&reply->error, 400, field,
                       "\"%s\" is empty: there is nothing to continue", field);
    json_array_foreach(ids, i, item)
    {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= vocab_size) {
            request_refuse(&reply->error, 400, field,
                           "\"%s\"[%zu] is not a token of this model (0 to %u)", field, i,
                           vocab_size - 1);
            return;
        }
        if (token_list_append(&prompt->tokens, (uint32_t)id)) {
            request_refuse(&reply->error, 503, NULL, "out of memory");
            return;
        }
    }
}

static void rid_read(struct reply *reply, const struct request_reader *reader)
{
    const json_t *rid = request_any(reader, "rid");
    if (json_is_string(rid) && json_string_length(rid) >= sizeof(reply->id))
        request_refuse(&reply->error, 400, "rid", "\"rid\" is longer than %zu characters",
                       sizeof(reply->id) - 1);
    else if (json_is_string(rid) && json_string_length(rid))
        snprintf(reply->id, sizeof(reply->id), "%s", json_string_value(rid));
    else if (rid && !json_is_array(rid) && !json_is_string(rid))
        request_refuse(&reply->error, 400, "rid", "\"rid\" must be a string, not %s",
                       request_type_name(rid));
}

/* Both keep prompts apart in the prefix cache. */
static void cache_key_read(struct reply *reply, const struct request_reader *reader)
{
    const char *salt = request_string(reader, "cache_salt");
    const char *extra = request_string(reader, "extra_key");
    if (!salt && !extra)
        return;
    size_t size = (salt ? strlen(salt) : 0) + (extra ? strlen(extra) : 0) + 2;
    if (size > CACHE_KEY_MAX) {
        request_refuse(&reply->error, 400, salt ? "cache_salt" : "extra_key",
                       "\"cache_salt\" and \"extra_key\" are longer than %u bytes together",
                       CACHE_KEY_MAX - 2);
        return;
    }
    reply->cache_key = malloc(size);
    if (reply->cache_key)
        snprintf(reply->cache_key, size, "%s\n%s", salt ? salt : "", extra ? extra : "");
    else
        request_refuse(&reply->error, 503, NULL, "out of memory");
}

void reply_common_read(struct reply *reply, const struct request_reader *reader)
{
    int64_t priority = 0;
    const json_t *options;
    const char *model = request_string(reader, "model");
    request_bool(reader, "stream", &reply->stream);
    options = request_object(reader, "stream_options");
    if (options) {
        struct request_reader inner = {options, reader->error};
        request_bool(&inner, "include_usage", &reply->include_usage);
        request_bool(&inner, "continuous_usage_stats", &reply->usage_always);
    }
    request_i64(reader, "priority", INT32_MIN, INT32_MAX, &priority);
    reply->priority = (int32_t)priority;
    rid_read(reply, reader);
    cache_key_read(reply, reader);
    reply_rooms_read(reply, reader);
    if (model && !(reply->model_name = strdup(model)))
        request_refuse(&reply->error, 503, NULL, "out of memory");
}

/* ---- for writing ---------------------------------------------------------------------------- */

const char *reply_model_name(const struct reply *reply)
{
    return reply->model_name ? reply->model_name : reply->server->model->name;
}

struct text_view reply_token_text(const struct reply *reply, int32_t token)
{
    return tokenizer_text(reply->server->model->tokenizer, (uint32_t)token);
}

const char *reply_finish_name(const struct reply_choice *choice)
{
    switch (choice->finish) {
    case GENERATION_STOP: return "stop";
    case GENERATION_LENGTH: return "length";
    case GENERATION_ABORTED:
    case GENERATION_FAILED: return "abort";
    default: return NULL;
    }
}

void reply_matched_stop(struct reply *reply, const struct reply_choice *choice, const char *key)
{
    json_put_key(&reply->out, key);
    if (choice->matched_string >= 0)
        json_put_text(&reply->out, choice->prompt->settings.stop_texts[choice->matched_string]);
    else if (choice->matched_token >= 0)
        json_put_int(&reply->out, choice->matched_token);
    else
        json_put_null(&reply->out);
}

void reply_usage_write(struct reply *reply, const struct reply_choice *only)
{
    uint64_t prompt = 0, completion = 0, cached = 0, reasoning = 0;
    const struct reply_prompt *counted = NULL;
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        const struct reply_choice *choice = &reply->choices[i];
        if (only && only != choice)
            continue;
        if (choice->prompt != counted) { /* n choices have one prompt */
            prompt += choice->prompt->tokens.count;
            cached += choice->cached_tokens;
            counted = choice->prompt;
        }
        completion += choice->tokens.count;
        reasoning += choice->reasoning_tokens;
    }
    json_put_key(&reply->out, "usage");
    json_put_open(&reply->out, '{');
    json_put_key_int(&reply->out, "prompt_tokens", (int64_t)prompt);
    json_put_key_int(&reply->out, "completion_tokens", (int64_t)completion);
    json_put_key_int(&reply->out, "total_tokens", (int64_t)(prompt + completion));
    json_put_key(&reply->out, "prompt_tokens_details");
    json_put_open(&reply->out, '{');
    json_put_key_int(&reply->out, "cached_tokens", (int64_t)cached);
    json_put_close(&reply->out, '}');
    json_put_key(&reply->out, "completion_tokens_details"); /* where OpenAI has it */
    json_put_open(&reply->out, '{');
    json_put_key_int(&reply->out, "reasoning_tokens", (int64_t)reasoning);
    json_put_close(&reply->out, '}');
    json_put_key_int(&reply->out, "reasoning_tokens",
                     (int64_t)reasoning); /* where SGLang has */
    json_put_close(&reply->out, '}');
}
