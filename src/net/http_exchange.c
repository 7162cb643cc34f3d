/* SPDX-License-Identifier: Apache-2.0 */
/* A request as the handler sees it: where it points, what it carries. */
#include "http_server_parts.h"

#include <stdlib.h>
#include <string.h>

#define BODY_ROOM_FIRST 4096

/* "//a///b" is "/a/b": some routers put their own slash after ours. */
static void slashes_collapse(char *path)
{
    char *out = path;
    for (const char *at = path; *at; at++) {
        if (*at != '/' || out == path || out[-1] != '/')
            *out++ = *at;
    }
    *out = 0;
}

/* "/path?query", or "http://host/path?query" as proxies write it, or "*". */
static const char *target_path(const char *target)
{
    if (*target == '/' || !strcmp(target, "*"))
        return target;
    if (strncmp(target, "http://", 7) && strncmp(target, "https://", 8))
        return NULL;
    const char *path = strchr(strstr(target, "://") + 3, '/');
    return path ? path : "/";
}

static int path_parse(struct http_exchange *exchange, struct error err)
{
    const char *path = target_path(exchange->head.target);
    if (!path)
        return error_set(err, 400, "the target of the request does not begin with /");
    size_t length = strcspn(path, "?#");
    if (path[length] == '?')
        exchange->query = path + length + 1;
    exchange->path = strndup(path, length);
    if (!exchange->path)
        return error_set(err, 503, "out of memory");
    if (!http_decode_percent(exchange->path, false))
        return error_set(err, 400, "the path of the request is not well encoded");
    slashes_collapse(exchange->path);
    return 0;
}

int http_exchange_new(struct http_connection *connection, const char *head, size_t length,
                      struct http_exchange **out, struct error err)
{
    struct http_exchange *exchange = calloc(1, sizeof(*exchange));
    if (!exchange)
        return error_set(err, 503, "out of memory");
    exchange->connection = connection;
    int status = http_head_parse_request(&exchange->head, head, length, err);
    if (!status)
        status = path_parse(exchange, err);
    if (!status)
        status = http_body_of_request(&exchange->framing, &exchange->head, err);
    if (status) {
        http_exchange_free(exchange);
        return status;
    }
    exchange->keep_alive = http_head_keeps_alive(&exchange->head);
    exchange->head_only = !strcmp(exchange->head.method, "HEAD");
    *out = exchange;
    return 0;
}

void http_exchange_free(struct http_exchange *exchange)
{
    struct http_parameter *parameter;
    if (!exchange)
        return;
    while ((parameter = exchange->parameters)) {
        exchange->parameters = parameter->next;
        free(parameter->name); /* the value is in the same block */
        free(parameter);
    }
    http_head_free(&exchange->head);
    free(exchange->path);
    free(exchange->body);
    free(exchange->more_headers);
    free(exchange);
}

/* Grows with what has come, not with what was announced. */
char *http_exchange_body_room(struct http_exchange *exchange, size_t length)
{
    size_t needed = exchange->body_length + length + 1;
    if (needed > exchange->body_room) {
        size_t room = exchange->body_room ? exchange->body_room * 2 : BODY_ROOM_FIRST;
        if (room < needed)
            room = needed;
        char *grown = realloc(exchange->body, room);
        if (!grown)
            return NULL;
        exchange->body = grown;
        exchange->body_room = room;
    }
    return exchange->body + exchange->body_length;
}

void http_exchange_body_grown(struct http_exchange *exchange, size_t length)
{
    exchange->body_length += length;
    exchange->body[exchange->body_length] = 0;
}

int http_exchange_body_add(struct http_exchange *exchange, const char *bytes, size_t length)
{
    if (!length)
        return 0;
    if (exchange->body_length + length > exchange->connection->loop->server->body_max)
        return 413;
    char *room = http_exchange_body_room(exchange, length);
    if (!room)
        return 503;
    memcpy(room, bytes, length);
    http_exchange_body_grown(exchange, length);
    return 0;
}

/* ---- what the handler asks ---------------------------------------------------------------- */

const char *http_exchange_method(const struct http_exchange *exchange)
{
    return exchange->head.method;
}

const char *http_exchange_path(const struct http_exchange *exchange)
{
    return exchange->path;
}

const char *http_exchange_header(const struct http_exchange *exchange, const char *name)
{
    return http_head_header(&exchange->head, name);
}

const char *http_exchange_body(struct http_exchange *exchange, size_t *length)
{
    if (length)
        *length = exchange->body_length;
    return exchange->body ? exchange->body : "";
}

const char *http_exchange_peer(const struct http_exchange *exchange)
{
    return exchange->connection->peer;
}

struct http_loop *http_exchange_loop(const struct http_exchange *exchange)
{
    return exchange->connection->loop;
}

void http_exchange_watch(struct http_exchange *exchange, http_notice *left,
                         http_notice *drained, void *context)
{
    http_loop_check_thread(exchange->connection->loop);
    exchange->left = left;
    exchange->drained = drained;
    exchange->notice_context = context;
}

/* One "name=value" of the query; what is not well encoded is as if it were not there. */
static bool parameter_add(struct http_exchange *exchange, const char *text, size_t length)
{
    struct http_parameter *parameter = malloc(sizeof(*parameter));
    char *name = strndup(text, length);
    if (!parameter || !name)
        goto drop;
    char *value = strchr(name, '=');
    if (value)
        *value++ = 0;
    else
        value = name + length;
    if (!http_decode_percent(name, true) || !http_decode_percent(value, true))
        goto drop;
    *parameter = (struct http_parameter){exchange->parameters, name, value};
    exchange->parameters = parameter;
    return true;
drop:
    free(parameter);
    free(name);
    return false;
}

const char *http_exchange_query(struct http_exchange *exchange, const char *name)
{
    const char *at = exchange->query;
    const char *found = NULL;
    if (at && !exchange->parameters_parsed) {
        for (size_t length; *at && *at != '#'; at += length + (at[length] == '&')) {
            length = strcspn(at, "&#");
            if (length)
                parameter_add(exchange, at, length);
        }
    }
    exchange->parameters_parsed = true;
    /* The list is backwards; of equal names the first of the query counts. */
    for (struct http_parameter *one = exchange->parameters; one; one = one->next) {
        if (!strcmp(one->name, name))
            found = one->value;
    }
    return found;
}
