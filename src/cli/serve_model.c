/* SPDX-License-Identifier: Apache-2.0 */
/* Which model does the server serve? Its own list says. */
#include "serve_load.h"

#include "net/http_client.h"

#include <event2/event.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define ANSWER_MAX (64u << 10)
#define ASK_MS 10000

struct asked {
    struct event_base *base;
    char answer[ANSWER_MAX];
    size_t length;
    int status;
    char error[320];
};

static void answer_came(struct http_request *request, const char *bytes, size_t length,
                        void *context)
{
    struct asked *asked = context;
    size_t room = sizeof(asked->answer) - asked->length;
    (void)request;
    memcpy(asked->answer + asked->length, bytes, length < room ? length : room);
    asked->length += length < room ? length : room;
}

static void answer_done(struct http_request *request, const struct http_result *result,
                        void *context)
{
    struct asked *asked = context;
    (void)request;
    asked->status = result->status;
    snprintf(asked->error, sizeof(asked->error), "%s", result->error);
    event_base_loopbreak(asked->base);
}

static bool model_find(const struct asked *asked, char *model, size_t size)
{
    json_t *root = json_loadb(asked->answer, asked->length, 0, NULL);
    const json_t *first = json_array_get(json_object_get(root, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id"));
    if (id)
        snprintf(model, size, "%s", id);
    json_decref(root);
    return id;
}

bool serve_model_ask(const char *url, const char *api_key, struct event_base *base,
                     struct http_client *client, char *model, size_t size, struct error err)
{
    static struct asked asked;
    char whole[512], authorization[300];
    size_t length = strlen(url);
    while (length && url[length - 1] == '/')
        length--;
    snprintf(whole, sizeof(whole), "%.*s/v1/models", (int)length, url);
    snprintf(authorization, sizeof(authorization), "Bearer %s", api_key ? api_key : "");
    asked = (struct asked){.base = base};
    struct http_header header = {"Authorization", authorization};
    struct http_request_options request = {.url = whole,
                                           .headers = &header,
                                           .header_count = api_key != NULL,
                                           .connect_ms = ASK_MS,
                                           .total_ms = ASK_MS,
                                           .body_came = answer_came,
                                           .done = answer_done,
                                           .context = &asked};
    if (http_request_start(client, &request, NULL, err) != BATON_OK)
        return false;
    event_base_dispatch(base);
    if (asked.status == 200 && model_find(&asked, model, size))
        return true;
    if (*asked.error)
        error_set(err, BATON_EPEER, "%s", asked.error);
    else
        error_set(err, BATON_EPEER, "%s answers %d and no list of models; give --model", whole,
                  asked.status);
    return false;
}
