/* SPDX-License-Identifier: Apache-2.0 */
/* The small change of the bootstrap contract: single JSON values as SGLang writes and reads
 * them, whole bodies, and the two kinds of reply. Everything here comes from the network or
 * goes into logs, so each value is checked where it is read, and nowhere twice. */
#include "bootstrap_parts.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bootstrap_reply_free(struct bootstrap_reply *reply)
{
    free(reply->body);
    reply->body = NULL;
}

void bootstrap_reply_text(struct bootstrap_reply *reply, int status, const char *format, ...)
{
    char text[768];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    char *body = strdup(text);
    *reply = (struct bootstrap_reply){.status = body ? status : 500,
                                      .content_type = "text/plain; charset=utf-8",
                                      .body = body};
}

void bootstrap_reply_json(struct bootstrap_reply *reply, json_t *json)
{
    char *body = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    *reply = (struct bootstrap_reply){.status = body ? 200 : 500,
                                      .content_type = "application/json; charset=utf-8",
                                      .body = body};
}

/* SGLang reads its numbers with int(), so "17000" is as good as 17000. */
bool bootstrap_number_read(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    const char *text = json_string_value(value);
    char *end;
    if (!text || !*text)
        return false;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || errno)
        return false;
    while (isspace((unsigned char)*end))
        end++;
    *out = number;
    return *end == '\0';
}

/* A decimal string, because epochs use all 64 bits and JSON integers have 63. */
bool bootstrap_epoch_read(const json_t *value, uint64_t *out)
{
    *out = 0;
    if (!value || json_is_null(value))
        return true;
    if (json_is_integer(value)) {
        *out = (uint64_t)json_integer_value(value);
        return json_integer_value(value) >= 0;
    }
    const char *text = json_string_value(value);
    if (!text || !*text || text[strspn(text, "0123456789")])
        return false;
    errno = 0;
    *out = strtoull(text, NULL, 10);
    return errno == 0;
}

bool bootstrap_room_read(const json_t *value, uint64_t *room)
{
    int64_t number;
    if (!bootstrap_number_read(value, &number) || number < 0)
        return false;
    *room = (uint64_t)number;
    return true;
}

/* Only what can stand in a host name or a numeric address: it goes into logs and replies. */
bool bootstrap_ip_read(const json_t *value, char ip[BOOTSTRAP_IP_SIZE])
{
    const char *text = json_string_value(value);
    if (!text || !*text || strlen(text) >= BOOTSTRAP_IP_SIZE)
        return false;
    for (const char *c = text; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr(".:_-%[]", *c))
            return false;
    }
    snprintf(ip, BOOTSTRAP_IP_SIZE, "%s", text);
    return true;
}

json_t *bootstrap_object_parse(const char *body, size_t size, struct error err)
{
    json_error_t problem;
    json_t *json = json_loadb(body ? body : "", body ? size : 0, 0, &problem);
    if (!json)
        error_set(err, BATON_EPROTOCOL, "it is not JSON: %s (at byte %d)", problem.text,
                  problem.position);
    else if (!json_is_object(json))
        error_set(err, BATON_EPROTOCOL, "it is JSON, but not an object");
    if (json_is_object(json))
        return json;
    json_decref(json);
    return NULL;
}

/* The object in a request's body; NULL with a 400 that says why not. */
json_t *bootstrap_body_parse(const struct bootstrap_request *request,
                             struct bootstrap_reply *reply)
{
    char text[256];
    json_t *json =
        bootstrap_object_parse(request->body, request->body_size, ERROR_BUFFER(text));
    if (!json)
        bootstrap_reply_text(reply, 400, "the body of %s cannot be read: %s", request->method,
                             text);
    return json;
}
