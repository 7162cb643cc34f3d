/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes out: whole answers, and streams in chunks. An HTTP/1.0 client knows no chunks; for it a
 * stream ends with the connection. */
#include "http_server_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_SIZE 512

const char *http_status_phrase(int status)
{
    switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
    }
}

static bool header_fits(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 && *text != '\t')
            return false;
    }
    return true;
}

void http_exchange_add_header(struct http_exchange *exchange, const char *name,
                              const char *value)
{
    http_loop_check_thread(exchange->connection->loop);
    size_t length = strlen(name) + strlen(value) + 4;
    if (!header_fits(name) || !header_fits(value))
        return;
    char *grown = realloc(exchange->more_headers, exchange->more_length + length + 1);
    if (!grown)
        return;
    snprintf(grown + exchange->more_length, length + 1, "%s: %s\r\n", name, value);
    exchange->more_headers = grown;
    exchange->more_length += length;
}

static bool has_no_body(int status)
{
    return status < 200 || status == 204 || status == 304;
}

/* What the client needs to know about where the body ends, and the connection. */
static void framing_write(struct http_exchange *exchange, char *text, size_t size, int status,
                          size_t length)
{
    char *end = text + size;
    *text = 0;
    if (exchange->streaming && exchange->chunked)
        text += snprintf(text, size, "Transfer-Encoding: chunked\r\n");
    else if (!exchange->streaming && !has_no_body(status))
        text += snprintf(text, size, "Content-Length: %zu\r\n", length);
    if (!exchange->keep_alive)
        text += snprintf(text, (size_t)(end - text), "Connection: close\r\n");
    else if (exchange->head.minor == 0)
        text += snprintf(text, (size_t)(end - text), "Connection: keep-alive\r\n");
    if (http_head_header(&exchange->head, "Origin"))
        snprintf(text, (size_t)(end - text), "Access-Control-Allow-Origin: *\r\n");
}

/* The head, and as much of a body as there is, in one piece. */
static void head_send(struct http_exchange *exchange, int status, const char *type,
                      const void *body, size_t length)
{
    char head[HEAD_SIZE], framing[192];
    framing_write(exchange, framing, sizeof(framing), status, length);
    int head_length =
        snprintf(head, sizeof(head), "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%.128s%s%s", status,
                 http_status_phrase(status), http_loop_date(exchange->connection->loop),
                 type ? "Content-Type: " : "", type ? type : "", type ? "\r\n" : "", framing);
    struct iovec pieces[4] = {
        {head, (size_t)head_length},
        {exchange->more_headers, exchange->more_length},
        {(void *)(uintptr_t) "\r\n", 2},
        {(void *)(uintptr_t)body, exchange->head_only || has_no_body(status) ? 0 : length},
    };
    http_connection_send(exchange->connection, pieces, 4);
}

/* Is the exchange still the handler's? In `left` it is not. */
static bool is_open(const struct http_exchange *exchange)
{
    http_loop_check_thread(exchange->connection->loop);
    return exchange->connection->state == HTTP_CONNECTION_ANSWER;
}

static void exchange_over(struct http_exchange *exchange)
{
    struct http_connection *connection = exchange->connection;
    bool keep_alive = exchange->keep_alive;
    http_exchange_free(exchange);
    http_connection_answered(connection, keep_alive);
}

void http_exchange_reply(struct http_exchange *exchange, int status, const char *type,
                         const void *body, size_t length)
{
    if (!is_open(exchange))
        return;
    BATON_ASSERT(!exchange->streaming);
    if (exchange->connection->loop->draining)
        exchange->keep_alive = false;
    head_send(exchange, status, type, body, length);
    exchange_over(exchange);
}

void http_exchange_reply_error(struct http_exchange *exchange, int status, const char *type,
                               const char *code, const char *message)
{
    char *body = http_error_body(type, code, message);
    http_exchange_reply(exchange, status, "application/json", body, body ? strlen(body) : 0);
    free(body);
}

void http_exchange_stream_begin(struct http_exchange *exchange, int status, const char *type)
{
    if (!is_open(exchange))
        return;
    BATON_ASSERT(!exchange->streaming);
    exchange->streaming = true;
    exchange->chunked = exchange->head.minor >= 1 && !has_no_body(status);
    if (exchange->connection->loop->draining || (!exchange->chunked && !has_no_body(status)))
        exchange->keep_alive = false;
    head_send(exchange, status, type, NULL, 0);
}

void http_exchange_stream_write(struct http_exchange *exchange, const void *bytes,
                                size_t length)
{
    if (!is_open(exchange) || !length || exchange->head_only)
        return;
    BATON_ASSERT(exchange->streaming);
    char size[24];
    struct iovec pieces[3] = {
        {size, 0}, {(void *)(uintptr_t)bytes, length}, {(void *)(uintptr_t) "\r\n", 2}};
    if (exchange->chunked)
        pieces[0].iov_len = (size_t)snprintf(size, sizeof(size), "%zx\r\n", length);
    http_connection_send(exchange->connection, pieces + !exchange->chunked,
                         exchange->chunked ? 3 : 1);
}

void http_exchange_stream_end(struct http_exchange *exchange)
{
    struct iovec last = {(void *)(uintptr_t) "0\r\n\r\n", 5};
    if (!is_open(exchange))
        return;
    BATON_ASSERT(exchange->streaming);
    if (exchange->chunked && !exchange->head_only)
        http_connection_send(exchange->connection, &last, 1);
    exchange_over(exchange);
}

void http_exchange_cut(struct http_exchange *exchange)
{
    struct http_connection *connection = exchange->connection;
    if (!is_open(exchange))
        return;
    /* A chunked body that stops is seen to be incomplete; one that ends with the connection is not,
     * unless the connection is reset. */
    bool reset = !exchange->chunked;
    connection->exchange = NULL;
    http_exchange_free(exchange);
    http_connection_bury(connection, reset);
}

size_t http_exchange_backlog(const struct http_exchange *exchange)
{
    return http_connection_backlog(exchange->connection);
}
