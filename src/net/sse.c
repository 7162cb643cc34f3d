/* SPDX-License-Identifier: Apache-2.0 */
#include "sse.h"

#include <stdlib.h>
#include <string.h>

void sse_open(struct sse *sse, size_t event_max, sse_on_event *event, void *context)
{
    memset(sse, 0, sizeof(*sse));
    sse->event_max = event_max;
    sse->event = event;
    sse->context = context;
}

void sse_close(struct sse *sse)
{
    free(sse->line.bytes);
    free(sse->data.bytes);
    memset(sse, 0, sizeof(*sse));
}

static int text_add(struct sse *sse, struct sse_text *text, const char *bytes, size_t length)
{
    if (text->length + length > sse->event_max)
        return BATON_EPROTOCOL;
    if (text->length + length + 1 > text->room) {
        size_t room = 2 * (text->length + length) + 256;
        char *grown = realloc(text->bytes, room);
        if (!grown)
            return BATON_ENOMEM;
        text->bytes = grown;
        text->room = room;
    }
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
    return BATON_OK;
}

/* A blank line. Without data there was no event. */
static int event_end(struct sse *sse)
{
    bool goes_on = true;
    if (sse->has_data) {
        sse->has_data = false;
        goes_on = sse->event(sse->name, sse->data.bytes, sse->data.length, sse->context);
        if (!goes_on)
            return BATON_AGAIN;
    }
    sse->data.length = 0;
    sse->name[0] = 0;
    return BATON_OK;
}

static bool field_is(const char *line, size_t name_length, const char *name)
{
    return strlen(name) == name_length && !memcmp(line, name, name_length);
}

static int line_end(struct sse *sse, const char *line, size_t length)
{
    if (!sse->begun && length >= 3 && !memcmp(line, "\xef\xbb\xbf", 3))
        line += 3, length -= 3;
    sse->begun = true;
    if (!length)
        return event_end(sse);
    const char *colon = memchr(line, ':', length);
    size_t name_length = colon ? (size_t)(colon - line) : length;
    const char *value = colon ? colon + 1 : line + length;
    size_t value_length = (size_t)(line + length - value);
    if (value_length && *value == ' ')
        value++, value_length--;
    if (field_is(line, name_length, "data")) {
        int code = sse->has_data ? text_add(sse, &sse->data, "\n", 1) : BATON_OK;
        sse->has_data = true;
        return code ? code : text_add(sse, &sse->data, value, value_length);
    }
    if (field_is(line, name_length, "event") && value_length < sizeof(sse->name)) {
        memcpy(sse->name, value, value_length);
        sse->name[value_length] = 0;
    }
    return BATON_OK;
}

int sse_feed(struct sse *sse, const char *bytes, size_t length)
{
    const char *end = bytes + length;
    while (bytes < end) {
        if (sse->after_cr && *bytes == '\n') {
            sse->after_cr = false;
            bytes++;
            continue;
        }
        sse->after_cr = false;
        const char *at = bytes;
        while (at < end && *at != '\n' && *at != '\r')
            at++;
        int code;
        if (at == end)
            return text_add(sse, &sse->line, bytes, (size_t)(at - bytes));
        sse->after_cr = *at == '\r';
        if (sse->line.length) {
            code = text_add(sse, &sse->line, bytes, (size_t)(at - bytes));
            if (!code)
                code = line_end(sse, sse->line.bytes, sse->line.length);
        } else {
            code = line_end(sse, bytes, (size_t)(at - bytes));
        }
        if (code)
            return code;
        sse->line.length = 0;
        bytes = at + 1;
    }
    return BATON_OK;
}
