/* SPDX-License-Identifier: Apache-2.0 */
#include "chat_text.h"

#include "base/error.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define THINK "<think>"
#define THINK_END "</think>"
#define CALL "<tool_call>"
#define CALL_END "</tool_call>"
#define PYTHON_TAG "<|python_tag|>"

void chat_text_open(struct chat_text *text, bool reasoning_parsed, bool in_reasoning,
                    enum chat_tools tools)
{
    *text = (struct chat_text){.reasoning_parsed = reasoning_parsed,
                               .reasoning_now = reasoning_parsed && in_reasoning,
                               .tools = tools};
}

void chat_text_close(struct chat_text *text)
{
    for (uint32_t i = 0; i < text->call_count; i++) {
        free(text->calls[i].name);
        free(text->calls[i].arguments);
    }
    free(text->calls);
    byte_buffer_free(&text->pending);
    byte_buffer_free(&text->reasoning);
    byte_buffer_free(&text->content);
}

static void append(struct chat_text *text, struct byte_buffer *to, const char *bytes,
                   size_t length)
{
    if (byte_buffer_append(to, bytes, length))
        text->failed = true;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static bool call_add(struct chat_text *text, const char *name, char *arguments)
{
    uint64_t random = 0;
    struct chat_call *calls =
        realloc(text->calls, (text->call_count + 1) * sizeof(*text->calls));
    if (!calls)
        return false;
    text->calls = calls;
    struct chat_call *call = &calls[text->call_count];
    call->name = strdup(name);
    if (!call->name)
        return false;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        random = text->call_count;
    snprintf(call->id, sizeof(call->id), "call_%016llx", (unsigned long long)random);
    call->arguments = arguments;
    text->call_count++;
    return true;
}

/* {"name": ..., "arguments" or "parameters": {...}}. False: it is none. */
static bool call_parse(struct chat_text *text, const char *bytes, size_t length)
{
    json_t *object = json_loadb(bytes, length, 0, NULL);
    const char *name = json_string_value(json_object_get(object, "name"));
    const json_t *given = json_object_get(object, "arguments");
    bool sound = false;
    if (!given)
        given = json_object_get(object, "parameters");
    if (name && *name && text->call_count < CHAT_CALLS_MAX &&
        (!given || json_is_object(given))) {
        char *arguments = given ? json_dumps(given, 0) : strdup("{}");
        sound = arguments && call_add(text, name, arguments);
        if (!sound)
            free(arguments);
    }
    json_decref(object);
    return sound;
}

/* ---- content -------------------------------------------------------------------------------- */

/* White space before the reply belongs to the marks before it. */
static void content_add(struct chat_text *text, const char *bytes, size_t length)
{
    if (!text->content_begun && (text->reasoning.length || text->call_count)) {
        size_t space = strspn(bytes, " \n\r\t");
        if (space > length)
            space = length;
        bytes += space;
        length -= space;
    }
    if (length)
        text->content_begun = true;
    append(text, &text->content, bytes, length);
}

/* Where `mark` is in the text: its place; otherwise where it may have begun at the very end, and
 * otherwise the end. *whole says which. */
static size_t mark_find(const char *bytes, size_t length, const char *mark, bool *whole)
{
    size_t mark_length = strlen(mark);
    const char *found = memmem(bytes, length, mark, mark_length);
    *whole = found != NULL;
    if (found)
        return (size_t)(found - bytes);
    size_t most = length < mark_length - 1 ? length : mark_length - 1;
    for (size_t begun = most; begun > 0; begun--)
        if (memcmp(bytes + length - begun, mark, begun) == 0)
            return length - begun;
    return length;
}

/* What the pending text begins with up to `mark` goes to `to`; true: the mark is there and gone. */
static bool take_until(struct chat_text *text, const char *mark, struct byte_buffer *to,
                       size_t *at)
{
    bool whole;
    const char *bytes = text->pending.bytes + *at;
    size_t place = mark_find(bytes, text->pending.length - *at, mark, &whole);
    if (to)
        append(text, to, bytes, place);
    else
        content_add(text, bytes, place);
    *at += place + (whole ? strlen(mark) : 0);
    return whole;
}

/* One step over the pending text; false: more text is needed. */
static bool reasoning_step(struct chat_text *text, size_t *at)
{
    if (!take_until(text, THINK_END, &text->reasoning, at))
        return false;
    text->reasoning_now = false;
    return true;
}

static bool call_step(struct chat_text *text, size_t *at)
{
    const char *bytes = text->pending.bytes + *at;
    const char *end = memmem(bytes, text->pending.length - *at, CALL_END, strlen(CALL_END));
    if (!end)
        return false; /* a call is kept until it is whole */
    if (!call_parse(text, bytes, (size_t)(end - bytes))) {
        content_add(text, CALL, strlen(CALL));
        content_add(text, bytes, (size_t)(end - bytes) + strlen(CALL_END));
    }
    *at += (size_t)(end - bytes) + strlen(CALL_END);
    text->call_now = false;
    return true;
}

/* <think> counts only before anything else was said. */
static bool content_step(struct chat_text *text, size_t *at)
{
    const char *bytes = text->pending.bytes + *at;
    size_t length = text->pending.length - *at;
    if (text->reasoning_parsed && !text->content_begun && !text->call_count) {
        size_t space = strspn(bytes, " \n\r\t");
        size_t rest = length > space ? length - space : 0;
        size_t compared = rest < strlen(THINK) ? rest : strlen(THINK);
        if (memcmp(bytes + space, THINK, compared) == 0) {
            if (compared < strlen(THINK))
                return false;
            *at += space + strlen(THINK);
            text->reasoning_now = true;
            return true;
        }
    }
    if (text->tools == CHAT_TOOLS_TAGS) {
        text->call_now = take_until(text, CALL, NULL, at);
        return text->call_now;
    }
    content_add(text, bytes, length);
    *at = text->pending.length;
    return false;
}

static void pending_drop(struct chat_text *text, size_t count)
{
    memmove(text->pending.bytes, text->pending.bytes + count, text->pending.length - count);
    text->pending.length -= count;
}

/* A model that calls by JSON alone may turn out to have called only when all is there. */
static bool whole_answer_kept(const struct chat_text *text)
{
    if (text->tools != CHAT_TOOLS_JSON || text->content_begun || text->reasoning_now)
        return false;
    size_t space = strspn(text->pending.bytes, " \n\r\t");
    const char *begin = text->pending.bytes + space;
    return *begin == '{' || *begin == '\0' ||
           strncmp(begin, PYTHON_TAG, strnlen(begin, strlen(PYTHON_TAG))) == 0;
}

void chat_text_push(struct chat_text *text, struct text_view piece)
{
    size_t at = 0;
    bool more = true;
    append(text, &text->pending, piece.bytes, piece.length);
    append(text, &text->pending, "", 1); /* the scans below end at a NUL */
    if (text->failed)
        return;
    text->pending.length--;
    if (whole_answer_kept(text))
        return;
    while (more && at < text->pending.length)
        more = text->reasoning_now ? reasoning_step(text, &at)
               : text->call_now    ? call_step(text, &at)
                                   : content_step(text, &at);
    pending_drop(text, at);
}

void chat_text_flush(struct chat_text *text)
{
    size_t length = text->pending.length, tag = strlen(PYTHON_TAG);
    append(text, &text->pending, "", 1);
    if (!length || text->failed)
        return;
    const char *bytes = text->pending.bytes;
    size_t space = strspn(bytes, " \n\r\t");
    if (text->reasoning_now)
        append(text, &text->reasoning, bytes, length);
    else if (text->call_now && !call_parse(text, bytes, length)) {
        content_add(text, CALL, strlen(CALL));
        content_add(text, bytes, length);
    } else if (text->tools == CHAT_TOOLS_JSON && !text->content_begun && !text->call_now) {
        const char *json = bytes + space;
        if (strncmp(json, PYTHON_TAG, tag) == 0)
            json += tag;
        if (!call_parse(text, json, length - (size_t)(json - bytes)))
            content_add(text, bytes, length);
    } else if (!text->call_now)
        content_add(text, bytes, length);
    text->pending.length = 0;
}
