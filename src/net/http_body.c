/* SPDX-License-Identifier: Apache-2.0 */
/* See http_message.h: where a body ends. Chunks are taken apart as they come: a chunk's bytes are
 * given on before the chunk is whole. */
#include "http_message.h"

#include <string.h>
#include <strings.h>

#define OVERHEAD_MAX 8192            /* of extensions or trailers between two bytes of data */
#define LENGTH_MAX (UINT64_MAX / 64) /* of one chunk or body; no sum overflows */

static bool length_parse(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > LENGTH_MAX)
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *out = value;
    return true;
}

/* 1 with a length, 0 without, negative: contradictory or no number. */
static int content_length(const struct http_head *head, uint64_t *out)
{
    int found = 0;
    for (uint32_t i = 0; i < head->header_count; i++) {
        uint64_t value;
        if (strcasecmp(head->headers[i].name, "Content-Length"))
            continue;
        if (!length_parse(head->headers[i].value, &value) || (found && value != *out))
            return -1;
        *out = value;
        found = 1;
    }
    return found;
}

/* 1 for "chunked", 0 without the header, negative: something else, or more than that. */
static int transfer_encoding(const struct http_head *head)
{
    int found = 0;
    for (uint32_t i = 0; i < head->header_count; i++) {
        if (strcasecmp(head->headers[i].name, "Transfer-Encoding"))
            continue;
        if (found || head->minor < 1 || strcasecmp(head->headers[i].value, "chunked"))
            return -1;
        found = 1;
    }
    return found;
}

/* Fills in framing CHUNKS, LENGTH, or NONE where neither header is there. */
static int framing_parse(struct http_body *body, const struct http_head *head, struct error err)
{
    uint64_t length = 0;
    int given = content_length(head, &length);
    int chunked = transfer_encoding(head);
    *body = (struct http_body){.framing = HTTP_FRAMING_NONE};
    if (given < 0)
        return error_set(err, 400, "Content-Length is no number, or two different ones");
    if (chunked < 0)
        return error_set(err, 501, "the only Transfer-Encoding known here is chunked, once");
    if (chunked && given)
        return error_set(err, 400, "both Content-Length and Transfer-Encoding");
    if (chunked) {
        body->framing = HTTP_FRAMING_CHUNKS;
    } else if (given) {
        body->framing = HTTP_FRAMING_LENGTH;
        body->left = length;
    }
    body->done = body->framing == HTTP_FRAMING_NONE ||
                 (body->framing == HTTP_FRAMING_LENGTH && length == 0);
    return 0;
}

int http_body_of_request(struct http_body *body, const struct http_head *head, struct error err)
{
    return framing_parse(body, head, err);
}

int http_body_of_answer(struct http_body *body, const struct http_head *head, bool head_only,
                        struct error err)
{
    if (head_only || head->status < 200 || head->status == 204 || head->status == 304) {
        *body = (struct http_body){.framing = HTTP_FRAMING_NONE, .done = true};
        return 0;
    }
    if (framing_parse(body, head, err))
        return 502;
    if (body->framing == HTTP_FRAMING_NONE) {
        body->framing = HTTP_FRAMING_CLOSE;
        body->done = false;
    }
    return 0;
}

/* ---- chunks ------------------------------------------------------------------------------- */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static enum http_chunk_state size_end(const struct http_body *body)
{
    return body->left ? HTTP_CHUNK_DATA : HTTP_CHUNK_TRAILER;
}

static bool size_byte(struct http_body *body, char c)
{
    int digit = digit_of(c);
    if (digit >= 0) {
        if (body->chunk == HTTP_CHUNK_SIZE)
            body->left = 0;
        else if (body->left > LENGTH_MAX / 16)
            return false;
        body->left = body->left * 16 + (uint64_t)digit;
        body->chunk = HTTP_CHUNK_DIGITS;
        return true;
    }
    if (body->chunk == HTTP_CHUNK_SIZE)
        return false;
    if (c == '\n')
        body->chunk = size_end(body);
    else if (c == ';' || c == ' ' || c == '\t' || c == '\r')
        body->chunk = HTTP_CHUNK_EXTENSION;
    else
        return false;
    return true;
}

/* One byte that is not data; false: it may not be here. */
static bool chunk_byte(struct http_body *body, char c)
{
    switch (body->chunk) {
    case HTTP_CHUNK_SIZE:
    case HTTP_CHUNK_DIGITS: return size_byte(body, c);
    case HTTP_CHUNK_EXTENSION:
        if (c == '\n')
            body->chunk = size_end(body);
        return true;
    case HTTP_CHUNK_DATA: return false; /* not reached */
    case HTTP_CHUNK_DATA_END:
        body->chunk = c == '\n' ? HTTP_CHUNK_SIZE : HTTP_CHUNK_DATA_LF;
        return c == '\n' || c == '\r';
    case HTTP_CHUNK_DATA_LF: body->chunk = HTTP_CHUNK_SIZE; return c == '\n';
    case HTTP_CHUNK_TRAILER:
        body->done = c == '\n';
        body->chunk = c == '\r' ? HTTP_CHUNK_TRAILER_LF : HTTP_CHUNK_TRAILER_LINE;
        return true;
    case HTTP_CHUNK_TRAILER_LINE:
        if (c == '\n')
            body->chunk = HTTP_CHUNK_TRAILER;
        return true;
    case HTTP_CHUNK_TRAILER_LF: body->done = true; return c == '\n';
    }
    return false;
}

/* Data: as much as there is of it, at most to the end of the body or chunk. */
static long data_take(struct http_body *body, const char *bytes, size_t length,
                      const char **data, size_t *data_length)
{
    size_t taken = length;
    if (body->framing != HTTP_FRAMING_CLOSE) {
        if (taken > body->left)
            taken = (size_t)body->left;
        body->left -= taken;
    }
    *data = bytes;
    *data_length = taken;
    return (long)taken;
}

static long chunks_take(struct http_body *body, const char *bytes, size_t length,
                        const char **data, size_t *data_length)
{
    size_t at = 0;
    while (at < length && !body->done && body->chunk != HTTP_CHUNK_DATA) {
        if (!chunk_byte(body, bytes[at++]) || ++body->overhead > OVERHEAD_MAX)
            return -1;
    }
    if (at == length || body->done)
        return (long)at;
    body->overhead = 0;
    long taken = data_take(body, bytes + at, length - at, data, data_length);
    if (!body->left)
        body->chunk = HTTP_CHUNK_DATA_END;
    return (long)at + taken;
}

long http_body_take(struct http_body *body, const char *bytes, size_t length, const char **data,
                    size_t *data_length)
{
    *data = NULL;
    *data_length = 0;
    if (body->done || !length)
        return 0;
    if (body->framing == HTTP_FRAMING_CHUNKS)
        return chunks_take(body, bytes, length, data, data_length);
    long taken = data_take(body, bytes, length, data, data_length);
    body->done = body->framing == HTTP_FRAMING_LENGTH && !body->left;
    return taken;
}
