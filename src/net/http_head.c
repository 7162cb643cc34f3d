/* SPDX-License-Identifier: Apache-2.0 */
/* See http_message.h: the head of a message. It is copied once and cut into strings in place. */
#include "http_message.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define METHOD_LENGTH_MAX 16

size_t http_head_find(const char *bytes, size_t length, size_t *scanned)
{
    /* The end is a LF and then a blank line: three bytes at most are looked at again. */
    size_t from = *scanned > 3 ? *scanned - 3 : 0;
    const char *end = bytes + length;
    for (const char *at = bytes + from; (at = memchr(at, '\n', (size_t)(end - at))); at++) {
        if (end - at >= 2 && at[1] == '\n')
            return (size_t)(at + 2 - bytes);
        if (end - at >= 3 && at[1] == '\r' && at[2] == '\n')
            return (size_t)(at + 3 - bytes);
    }
    *scanned = length;
    return 0;
}

static bool is_token(const char *text)
{
    if (!*text)
        return false;
    for (; *text; text++) {
        if (!isalnum((unsigned char)*text) && !strchr("!#$%&'*+-.^_`|~", *text))
            return false;
    }
    return true;
}

/* No control characters, save tabs where they are blanks. */
static bool is_clean(const char *text, bool blanks)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == 0x7f || (c < 0x20 && !(blanks && c == '\t')) || (c == ' ' && !blanks))
            return false;
    }
    return true;
}

/* Cuts the next line off *rest; NULL when the blank line is reached. */
static char *line_cut(char **rest)
{
    char *line = *rest;
    char *end = strchr(line, '\n');
    if (!end)
        return NULL;
    *rest = end + 1;
    if (end > line && end[-1] == '\r')
        end--;
    *end = 0;
    return *line ? line : NULL;
}

static int header_add(struct http_head *head, char *line, struct error err)
{
    if (*line == ' ' || *line == '\t')
        return error_set(err, 400, "a header is folded over two lines");
    char *colon = strchr(line, ':');
    if (!colon)
        return error_set(err, 400, "a header line has no colon");
    *colon = 0;
    char *value = colon + 1 + strspn(colon + 1, " \t");
    size_t length = strlen(value);
    while (length && (value[length - 1] == ' ' || value[length - 1] == '\t'))
        value[--length] = 0;
    if (!is_token(line) || !is_clean(value, true))
        return error_set(err, 400, "a header has characters that do not belong there");
    if (head->header_count == HTTP_HEADERS_MAX)
        return error_set(err, 431, "more than %d headers", HTTP_HEADERS_MAX);
    head->headers[head->header_count++] = (struct http_header){line, value};
    return 0;
}

static int headers_parse(struct http_head *head, char *rest, struct error err)
{
    char *line;
    while ((line = line_cut(&rest))) {
        int status = header_add(head, line, err);
        if (status)
            return status;
    }
    return 0;
}

/* "HTTP/1.1" gives 1; negative: no such version. */
static int version_minor(const char *text)
{
    if (strncmp(text, "HTTP/1.", 7) || !isdigit((unsigned char)text[7]) || text[8])
        return -1;
    return text[7] - '0';
}

static int request_line_parse(struct http_head *head, char *line, struct error err)
{
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version)
        return error_set(err, 400, "the first line is not METHOD TARGET HTTP/1.1");
    *target++ = 0;
    *version++ = 0;
    if (!is_token(line) || strlen(line) > METHOD_LENGTH_MAX || !*target ||
        !is_clean(target, false))
        return error_set(err, 400, "the first line is not METHOD TARGET HTTP/1.1");
    if (strncmp(version, "HTTP/", 5))
        return error_set(err, 400, "the first line does not end with HTTP/1.1");
    head->minor = version_minor(version);
    if (head->minor < 0)
        return error_set(err, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    head->method = line;
    head->target = target;
    return 0;
}

/* HTTP/1.1 200 OK; the reason may be empty, and even its blank missing. */
static int status_line_parse(struct http_head *head, char *line, struct error err)
{
    char *code = strchr(line, ' ');
    if (code)
        *code++ = 0;
    head->minor = version_minor(line);
    if (!code || head->minor < 0 || strspn(code, "0123456789") != 3 ||
        (code[3] && code[3] != ' '))
        return error_set(err, 502, "the first line of the answer is not HTTP/1.1 STATUS");
    head->status = atoi(code);
    head->reason = code[3] ? code + 4 : "";
    return 0;
}

typedef int first_line_parse(struct http_head *head, char *line, struct error err);

static int head_parse(struct http_head *head, const char *bytes, size_t length,
                      first_line_parse *first, struct error err)
{
    head->text = NULL;
    head->method = head->target = head->reason = NULL;
    head->status = 0;
    head->header_count = 0;
    if (memchr(bytes, 0, length))
        return error_set(err, 400, "a NUL in the head");
    char *text = malloc(length + 1);
    if (!text)
        return error_set(err, 503, "out of memory");
    memcpy(text, bytes, length);
    text[length] = 0;
    char *rest = text;
    char *line = line_cut(&rest);
    int status = line ? first(head, line, err) : error_set(err, 400, "an empty first line");
    if (!status)
        status = headers_parse(head, rest, err);
    if (status) {
        free(text);
        head->header_count = 0;
        return status;
    }
    head->text = text;
    return 0;
}

int http_head_parse_request(struct http_head *head, const char *bytes, size_t length,
                            struct error err)
{
    return head_parse(head, bytes, length, request_line_parse, err);
}

int http_head_parse_answer(struct http_head *head, const char *bytes, size_t length,
                           struct error err)
{
    return head_parse(head, bytes, length, status_line_parse, err);
}

void http_head_free(struct http_head *head)
{
    free(head->text);
    head->text = NULL;
    head->header_count = 0;
}

const char *http_head_header(const struct http_head *head, const char *name)
{
    for (uint32_t i = 0; i < head->header_count; i++) {
        if (!strcasecmp(head->headers[i].name, name))
            return head->headers[i].value;
    }
    return NULL;
}

static bool list_has(const char *list, const char *token)
{
    size_t wanted = strlen(token);
    while (*list) {
        list += strspn(list, ", \t");
        size_t length = strcspn(list, ",");
        size_t trimmed = length;
        while (trimmed && (list[trimmed - 1] == ' ' || list[trimmed - 1] == '\t'))
            trimmed--;
        if (trimmed == wanted && !strncasecmp(list, token, wanted))
            return true;
        list += length;
    }
    return false;
}

bool http_head_lists(const struct http_head *head, const char *name, const char *token)
{
    for (uint32_t i = 0; i < head->header_count; i++) {
        if (!strcasecmp(head->headers[i].name, name) && list_has(head->headers[i].value, token))
            return true;
    }
    return false;
}

bool http_head_keeps_alive(const struct http_head *head)
{
    if (http_head_lists(head, "Connection", "close"))
        return false;
    return head->minor >= 1 || http_head_lists(head, "Connection", "keep-alive");
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool http_decode_percent(char *text, bool plus)
{
    char *out = text;
    for (; *text; text++) {
        if (*text == '+' && plus) {
            *out++ = ' ';
        } else if (*text == '%') {
            int high = hex_digit(text[1]);
            int low = high < 0 ? -1 : hex_digit(text[2]);
            if (low < 0 || high + low == 0)
                return false;
            *out++ = (char)(high << 4 | low);
            text += 2;
        } else {
            *out++ = *text;
        }
    }
    *out = 0;
    return true;
}
