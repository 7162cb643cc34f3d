/* SPDX-License-Identifier: Apache-2.0 */
/* What the server answers itself: requests that it refuses, and browsers that ask what they may. */
#include "http_server_parts.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- error bodies ------------------------------------------------------------------------- */

/* Writes `text` as the inside of a JSON string; bytes that are no ASCII pass as they are if they may
 * be UTF-8, which those who write messages see to. */
static char *json_escape(char *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            out += sprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            out += sprintf(out, "\\u%04x", c);
        else
            *out++ = (char)c;
    }
    *out = 0;
    return out;
}

char *http_error_body(const char *type, const char *code, const char *message)
{
    size_t size = 6 * (strlen(type) + strlen(message) + (code ? strlen(code) : 0)) + 96;
    char *body = malloc(size);
    if (!body)
        return NULL;
    char *out = body + sprintf(body, "{\"error\":{\"message\":\"");
    out = json_escape(out, message);
    out += sprintf(out, "\",\"type\":\"");
    out = json_escape(out, type);
    out += sprintf(out, code ? "\",\"param\":null,\"code\":\"" : "\",\"param\":null,\"code\":");
    out = json_escape(out, code ? code : "null");
    sprintf(out, code ? "\"}}" : "}}");
    return body;
}

/* ---- refusals ----------------------------------------------------------------------------- */

static void limit_message(const struct http_server *server, int status, char *text, size_t size)
{
    if (status == 413)
        snprintf(text, size, "the request body is larger than this server takes (%zu bytes)",
                 server->body_max);
    else if (status == 431)
        snprintf(text, size,
                 "the request's headers are larger than this server takes (%zu bytes)",
                 server->header_max);
    else
        snprintf(text, size, "%s", http_status_phrase(status));
}

void http_refuse(struct http_connection *connection, int status, const char *message)
{
    char text[160], head[256];
    limit_message(connection->loop->server, status, text, sizeof(text));
    char *body = http_error_body(status < 500 ? "invalid_request_error" : "server_error",
                                 status == 413 ? "request_too_large" : NULL,
                                 message && *message ? message : text);
    size_t length = body ? strlen(body) : 0;
    int head_length =
        snprintf(head, sizeof(head),
                 "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\nConnection: close\r\n%s\r\n",
                 status, http_status_phrase(status), http_loop_date(connection->loop), length,
                 status == 401 ? "WWW-Authenticate: Bearer\r\n" : "");
    struct iovec pieces[2] = {{head, (size_t)head_length}, {body, length}};
    http_exchange_free(connection->exchange);
    connection->exchange = NULL;
    http_connection_send(connection, pieces, 2);
    free(body);
    http_connection_answered(connection, false);
}

/* ---- keys --------------------------------------------------------------------------------- */

/* Digests are compared, so that the time tells neither a key's bytes nor its length. */
static bool key_matches(const struct http_server *server, const char *authorization)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return false;
    const char *key = authorization + 7 + strspn(authorization + 7, " ");
    SHA256((const unsigned char *)key, strlen(key), digest);
    return CRYPTO_memcmp(digest, server->key_digest, sizeof(digest)) == 0;
}

bool http_admit(struct http_exchange *exchange)
{
    static const char message[] =
        "this server needs its API key: send the header \"Authorization: Bearer KEY\"";
    struct http_connection *connection = exchange->connection;
    struct http_server *server = connection->loop->server;
    if (!server->keyed || !strcmp(exchange->head.method, "OPTIONS") ||
        (server->open_path && server->open_path(exchange->path)) ||
        key_matches(server, http_head_header(&exchange->head, "Authorization")))
        return true;
    if (!exchange->framing.done) { /* not worth waiting for its body */
        http_refuse(connection, 401, message);
        return false;
    }
    connection->state = HTTP_CONNECTION_ANSWER;
    http_exchange_add_header(exchange, "WWW-Authenticate", "Bearer");
    http_exchange_reply_error(exchange, 401, "invalid_request_error", "invalid_api_key",
                              message);
    return false;
}

/* ---- browsers ----------------------------------------------------------------------------- */

void http_answer_options(struct http_exchange *exchange)
{
    const char *wanted = http_head_header(&exchange->head, "Access-Control-Request-Headers");
    http_exchange_add_header(exchange, "Allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS");
    http_exchange_add_header(exchange, "Access-Control-Allow-Methods",
                             "GET, HEAD, POST, PUT, DELETE, OPTIONS");
    http_exchange_add_header(exchange, "Access-Control-Allow-Headers",
                             wanted ? wanted : "Authorization, Content-Type");
    http_exchange_add_header(exchange, "Access-Control-Max-Age", "86400");
    http_exchange_reply(exchange, 204, NULL, NULL, 0);
}
