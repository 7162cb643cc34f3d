/* SPDX-License-Identifier: Apache-2.0 */
#include "json_writer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void json_writer_reset(struct json_writer *writer)
{
    writer->out.length = 0;
    writer->comma = false;
    writer->failed = false;
}

void json_writer_free(struct json_writer *writer)
{
    byte_buffer_free(&writer->out);
    *writer = (struct json_writer){0};
}

void json_put_raw(struct json_writer *writer, const char *bytes, size_t length)
{
    if (byte_buffer_append(&writer->out, bytes, length))
        writer->failed = true;
}

static void value_begins(struct json_writer *writer)
{
    if (writer->comma)
        json_put_raw(writer, ",", 1);
    writer->comma = true;
}

void json_put_open(struct json_writer *writer, char bracket)
{
    value_begins(writer);
    json_put_raw(writer, &bracket, 1);
    writer->comma = false;
}

void json_put_close(struct json_writer *writer, char bracket)
{
    json_put_raw(writer, &bracket, 1);
    writer->comma = true;
}

void json_put_key(struct json_writer *writer, const char *key)
{
    value_begins(writer);
    json_put_raw(writer, "\"", 1);
    json_put_raw(writer, key, strlen(key));
    json_put_raw(writer, "\":", 2);
    writer->comma = false; /* the value follows without one */
}

static bool needs_escape(unsigned char byte)
{
    return byte < 0x20 || byte == '"' || byte == '\\' || byte == 0x7f;
}

static void escape_write(struct json_writer *writer, unsigned char byte)
{
    static const char letters[] = "btn?fr"; /* 8 .. 13 */
    char text[8];
    int length;
    if (byte == '"' || byte == '\\')
        length = snprintf(text, sizeof(text), "\\%c", byte);
    else if (byte >= 8 && byte <= 13 && byte != 11)
        length = snprintf(text, sizeof(text), "\\%c", letters[byte - 8]);
    else
        length = snprintf(text, sizeof(text), "\\u%04x", byte);
    json_put_raw(writer, text, (size_t)length);
}

/* How many bytes at the start can go out as they are. */
static size_t plain_length(const char *bytes, size_t length)
{
    size_t i = 0;
    while (i < length && !needs_escape((unsigned char)bytes[i]))
        i++;
    return utf8_valid_prefix(bytes, i);
}

void json_put_view(struct json_writer *writer, struct text_view text)
{
    value_begins(writer);
    json_put_raw(writer, "\"", 1);
    for (size_t at = 0; at < text.length;) {
        size_t plain = plain_length(text.bytes + at, text.length - at), size = 1;
        uint32_t code;
        json_put_raw(writer, text.bytes + at, plain);
        at += plain;
        if (at == text.length)
            break;
        if (needs_escape((unsigned char)text.bytes[at])) {
            escape_write(writer, (unsigned char)text.bytes[at]);
        } else {
            if (utf8_next(text.bytes + at, text.length - at, &size, &code) == UTF8_PARTIAL)
                size = text.length - at;
            json_put_raw(writer, UNICODE_REPLACEMENT, UNICODE_REPLACEMENT_SIZE);
        }
        at += size;
    }
    json_put_raw(writer, "\"", 1);
}

void json_put_text(struct json_writer *writer, const char *text)
{
    if (text)
        json_put_view(writer, (struct text_view){text, strlen(text)});
    else
        json_put_null(writer);
}

void json_put_int(struct json_writer *writer, int64_t number)
{
    char text[24];
    value_begins(writer);
    json_put_raw(writer, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, number));
}

void json_put_real(struct json_writer *writer, double number)
{
    char text[32];
    if (!isfinite(number)) {
        json_put_null(writer);
        return;
    }
    value_begins(writer);
    json_put_raw(writer, text, (size_t)snprintf(text, sizeof(text), "%.9g", number));
}

void json_put_bool(struct json_writer *writer, bool value)
{
    value_begins(writer);
    json_put_raw(writer, value ? "true" : "false", value ? 4 : 5);
}

void json_put_null(struct json_writer *writer)
{
    value_begins(writer);
    json_put_raw(writer, "null", 4);
}

void json_put_key_text(struct json_writer *writer, const char *key, const char *text)
{
    json_put_key(writer, key);
    json_put_text(writer, text);
}

void json_put_key_view(struct json_writer *writer, const char *key, struct text_view text)
{
    json_put_key(writer, key);
    json_put_view(writer, text);
}

void json_put_key_int(struct json_writer *writer, const char *key, int64_t number)
{
    json_put_key(writer, key);
    json_put_int(writer, number);
}

void json_put_key_real(struct json_writer *writer, const char *key, double number)
{
    json_put_key(writer, key);
    json_put_real(writer, number);
}

void json_put_key_bool(struct json_writer *writer, const char *key, bool value)
{
    json_put_key(writer, key);
    json_put_bool(writer, value);
}

void json_put_key_null(struct json_writer *writer, const char *key)
{
    json_put_key(writer, key);
    json_put_null(writer);
}
