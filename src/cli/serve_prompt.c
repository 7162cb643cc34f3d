/* SPDX-License-Identifier: Apache-2.0 */
/* See serve_prompt.h. Text prompts are made of words that are one token each in the usual vocabularies; how
 * many tokens they really were is what the server says. */
#include "serve_prompt.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ID 100 /* below are special tokens and single bytes, in most vocabularies */
#define TOKEN_BYTES_MAX 11
#define FRAME_BYTES 512

static const char *const words[64] = {
    "time",     "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
    "life",     "child",   "world",    "school", "state",      "family", "student", "group",
    "country",  "problem", "hand",     "part",   "place",      "case",   "week",    "company",
    "system",   "program", "question", "work",   "government", "number", "night",   "point",
    "home",     "water",   "room",     "mother", "area",       "money",  "story",   "fact",
    "month",    "lot",     "right",    "study",  "book",       "eye",    "job",     "word",
    "business", "issue",   "side",     "kind",   "head",       "house",  "service", "friend",
    "father",   "power",   "hour",     "game",   "line",       "end",    "member",  "law"};

const char *serve_endpoint_path(enum serve_endpoint endpoint)
{
    switch (endpoint) {
    case SERVE_GENERATE: return "/generate";
    case SERVE_COMPLETIONS: return "/v1/completions";
    case SERVE_CHAT: return "/v1/chat/completions";
    }
    return "";
}

static char *ids_write(char *out, const struct serve_prompt_options *options,
                       const struct serve_plan *plan, uint32_t item)
{
    uint32_t first = options->id_count > 2 * FIRST_ID ? FIRST_ID : 0;
    *out++ = '[';
    for (uint32_t i = 0; i < plan->items[item].input_tokens; i++) {
        uint64_t random = serve_plan_token(plan, item, i);
        out += sprintf(out, i ? ",%u" : "%u",
                       first + (uint32_t)(random % (options->id_count - first)));
    }
    *out++ = ']';
    return out;
}

static char *text_write(char *out, const struct serve_plan *plan, uint32_t item)
{
    *out++ = '"';
    for (uint32_t i = 0; i < plan->items[item].input_tokens; i++)
        out += sprintf(out, i ? " %s" : "%s", words[serve_plan_token(plan, item, i) % 64]);
    *out++ = '"';
    return out;
}

static char *prompt_write(char *out, const struct serve_prompt_options *options,
                          const struct serve_plan *plan, uint32_t item)
{
    return options->ids ? ids_write(out, options, plan, item) : text_write(out, plan, item);
}

char *serve_body(const struct serve_prompt_options *options, const struct serve_plan *plan,
                 uint32_t item, size_t *length)
{
    uint32_t output = plan->items[item].output_tokens;
    const char *eos = options->ignore_eos ? "true" : "false";
    size_t model = options->model ? strlen(options->model) : 0;
    char *body = malloc((size_t)plan->items[item].input_tokens * TOKEN_BYTES_MAX + FRAME_BYTES +
                        6 * model);
    if (!body)
        return NULL;
    json_t *name = options->model ? json_string(options->model) : NULL;
    char *out = body;
    *out++ = '{';
    if (name) { /* quoted as JSON wants it */
        out += sprintf(out, "\"model\":");
        out += json_dumpb(name, out, 6 * model + 2, JSON_ENCODE_ANY);
        *out++ = ',';
    }
    if (options->endpoint == SERVE_GENERATE) {
        out += sprintf(out, options->ids ? "\"input_ids\":" : "\"text\":");
        out = prompt_write(out, options, plan, item);
        out += sprintf(out,
                       ",\"sampling_params\":{\"max_new_tokens\":%u,\"temperature\":0,"
                       "\"ignore_eos\":%s},\"stream\":true}",
                       output, eos);
    } else {
        bool chat = options->endpoint == SERVE_CHAT;
        out += sprintf(out,
                       chat ? "\"messages\":[{\"role\":\"user\",\"content\":" : "\"prompt\":");
        out = prompt_write(out, options, plan, item);
        out +=
            sprintf(out,
                    "%s,\"max_tokens\":%u,\"temperature\":0,\"ignore_eos\":%s,\"stream\":true,"
                    "\"stream_options\":{\"include_usage\":true}}",
                    chat ? "}]" : "", output, eos);
    }
    json_decref(name);
    *length = (size_t)(out - body);
    return body;
}

/* ---- events ------------------------------------------------------------------------------- */

static uint32_t count_of(const json_t *object, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 && value < UINT32_MAX ? (uint32_t)value : 0;
}

static bool has_text(const json_t *object, const char *name)
{
    return json_string_length(json_object_get(object, name)) > 0;
}

/* {"error": "..."} or {"error": {"message": "..."}} */
static void error_read(const json_t *root, struct serve_event *event)
{
    const json_t *error = json_object_get(root, "error");
    const json_t *message = json_is_object(error) ? json_object_get(error, "message") : error;
    if (!error || json_is_null(error))
        return;
    snprintf(event->error, sizeof(event->error), "%s",
             json_is_string(message) ? json_string_value(message)
                                     : "an error without a message");
}

static void generate_read(const json_t *root, struct serve_event *event)
{
    const json_t *meta = json_object_get(root, "meta_info");
    const json_t *reason = json_object_get(meta, "finish_reason");
    event->token =
        has_text(root, "text") || json_array_size(json_object_get(root, "output_ids"));
    event->tokens_so_far = count_of(meta, "completion_tokens");
    event->prompt_tokens = count_of(meta, "prompt_tokens");
    const char *type = json_string_value(json_object_get(reason, "type"));
    if (type && !strcmp(type, "abort") && !*event->error) {
        const char *message = json_string_value(json_object_get(reason, "message"));
        snprintf(event->error, sizeof(event->error), "%s", message ? message : "aborted");
    }
}

static void openai_read(enum serve_endpoint endpoint, const json_t *root,
                        struct serve_event *event)
{
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *usage = json_object_get(root, "usage");
    event->token = endpoint == SERVE_CHAT
                       ? has_text(delta, "content") || has_text(delta, "reasoning_content")
                       : has_text(choice, "text");
    event->tokens_so_far = count_of(usage, "completion_tokens");
    event->prompt_tokens = count_of(usage, "prompt_tokens");
}

void serve_event_read(enum serve_endpoint endpoint, const char *data, size_t length,
                      struct serve_event *event)
{
    memset(event, 0, sizeof(*event));
    if (length == 6 && !memcmp(data, "[DONE]", 6)) {
        event->end = true;
        return;
    }
    json_t *root = json_loadb(data, length, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(root)) {
        snprintf(event->error, sizeof(event->error), "an event that is no JSON object: %.100s",
                 data);
    } else {
        error_read(root, event);
        if (endpoint == SERVE_GENERATE)
            generate_read(root, event);
        else
            openai_read(endpoint, root, event);
    }
    json_decref(root);
}
