/* SPDX-License-Identifier: Apache-2.0 */
#include "up_ask.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_MAX (1u << 20)
#define ASK_MS 300000u

static bool event_came(const char *name, const char *data, size_t length, void *context)
{
    struct ask *ask = context;
    (void)name;
    if (strcmp(data, "[DONE]") == 0) {
        ask->finished = true;
        return true;
    }
    json_t *event = json_loadb(data, length, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    const char *problem =
        json_string_value(json_object_get(json_object_get(event, "error"), "message"));
    if (text && *text) {
        fputs(text, stdout);
        fflush(stdout);
        ask->pieces++;
    }
    if (problem)
        snprintf(ask->problem, sizeof(ask->problem), "%s", problem);
    json_decref(event);
    return true;
}

static void answer_head(struct http_request *request, const struct http_head *head,
                        void *context)
{
    struct ask *ask = context;
    (void)request;
    ask->status = head->status;
}

static void answer_came(struct http_request *request, const char *bytes, size_t length,
                        void *context)
{
    struct ask *ask = context;
    (void)request;
    if (ask->status == 200) {
        sse_feed(&ask->events, bytes, length);
        return;
    }
    size_t room = sizeof(ask->problem) - 1 - ask->problem_length;
    length = length < room ? length : room;
    memcpy(ask->problem + ask->problem_length, bytes, length);
    ask->problem_length += length;
    ask->problem[ask->problem_length] = '\0';
}

static void answer_done(struct http_request *request, const struct http_result *result,
                        void *context)
{
    struct ask *ask = context;
    const char *problem = NULL;
    (void)request;
    ask->request = NULL;
    sse_close(&ask->events);
    if (ask->pieces)
        putchar('\n');
    if (fflush(stdout))
        problem = "the answer cannot be written to stdout";
    if (result->outcome != HTTP_OUTCOME_DONE)
        problem = ask->problem[0] ? ask->problem : result->error;
    else if (result->status != 200 || ask->problem[0])
        problem = ask->problem[0] ? ask->problem : "the router refused the question";
    else if (!ask->finished)
        problem = "the answer ended too early";
    ask->done(ask, problem, ask->context);
}

int ask_start(struct ask *ask, struct http_client *client, const char *url,
              const char *authorization, const char *question, uint32_t max_tokens,
              struct error err)
{
    const struct http_header headers[] = {{"Content-Type", "application/json"},
                                          {"Authorization", authorization}};
    char target[400];
    struct iovec body;
    json_t *object =
        json_pack("{s:[{s:s, s:s}], s:i, s:i, s:b}", "messages", "role", "user", "content",
                  question, "max_tokens", (int)max_tokens, "temperature", 0, "stream", 1);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text)
        return error_set(err, BATON_EINVAL, "the question is not UTF-8");
    snprintf(target, sizeof(target), "%s/v1/chat/completions", url);
    body = (struct iovec){text, strlen(text)};
    sse_open(&ask->events, EVENT_MAX, event_came, ask);
    const struct http_request_options request = {
        .method = "POST",
        .url = target,
        .headers = headers,
        .header_count = authorization ? 2 : 1,
        .body = &body,
        .body_pieces = 1,
        .total_ms = ASK_MS,
        .head = answer_head,
        .body_came = answer_came,
        .done = answer_done,
        .context = ask,
    };
    int rc = http_request_start(client, &request, &ask->request, err);
    free(text);
    return rc;
}
