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
                               .reasoned = reasoning_parsed && in_reasoning,
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

/* ---- pieces of text ------------------------------------------------------------------------- */

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

static size_t space_before(const char *bytes, size_t length)
{
    size_t count = 0;
    while (count < length && is_space(bytes[count]))
        count++;
    return count;
}

static size_t length_without_space(const char *bytes, size_t length)
{
    while (length && is_space(bytes[length - 1]))
        length--;
    return length;
}

/* Is it, or may it with more text become, something that begins with `mark`? */
static bool may_begin_with(const char *bytes, size_t length, const char *mark)
{
    size_t mark_length = strlen(mark);
    return memcmp(bytes, mark, length < mark_length ? length : mark_length) == 0;
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

/* White space before the reply belongs to the marks before it. */
static void content_add(struct chat_text *text, const char *bytes, size_t length)
{
    size_t space = 0;
    if (!text->content_begun && (text->reasoned || text->call_count))
        space = space_before(bytes, length);
    if (length > space)
        text->content_begun = true;
    append(text, &text->content, bytes + space, length - space);
}

static void reasoning_add(struct chat_text *text, const char *bytes, size_t length)
{
    size_t space = text->reasoning.length ? 0 : space_before(bytes, length);
    append(text, &text->reasoning, bytes + space, length - space);
}

/* ---- steps over the pending text: from *at on; false: more text is needed -------------------- */

/* White space at its end is kept back: it is none of the reasoning if nothing follows. */
static bool reasoning_step(struct chat_text *text, size_t *at)
{
    bool whole;
    const char *bytes = text->pending.bytes + *at;
    size_t place = mark_find(bytes, text->pending.length - *at, THINK_END, &whole);
    size_t length = length_without_space(bytes, place);
    reasoning_add(text, bytes, length);
    *at += whole ? place + strlen(THINK_END) : length;
    text->reasoning_now = !whole;
    return whole;
}

static void call_is_content(struct chat_text *text, const char *bytes, size_t length)
{
    content_add(text, CALL, strlen(CALL));
    content_add(text, bytes, length);
}

static bool call_step(struct chat_text *text, size_t *at)
{
    const char *bytes = text->pending.bytes + *at;
    const char *end = memmem(bytes, text->pending.length - *at, CALL_END, strlen(CALL_END));
    if (!end)
        return false; /* a call is kept until it is whole */
    size_t length = (size_t)(end - bytes);
    if (!call_parse(text, bytes, length))
        call_is_content(text, bytes, length + strlen(CALL_END));
    *at += length + strlen(CALL_END);
    text->call_now = false;
    return true;
}

/* <think> counts only before anything else was said. A model that calls by JSON alone may turn out
 * to have called only when all is there. */
static bool content_step(struct chat_text *text, size_t *at)
{
    bool whole;
    const char *bytes = text->pending.bytes + *at;
    size_t length = text->pending.length - *at, space = space_before(bytes, length);
    const char *first = bytes + space;
    size_t rest = length - space;
    bool at_start = !text->content_begun && !text->call_count;
    if (at_start && text->reasoning_parsed && may_begin_with(first, rest, THINK)) {
        if (rest < strlen(THINK))
            return false;
        *at += space + strlen(THINK);
        text->reasoning_now = text->reasoned = true;
        return true;
    }
    if (at_start && text->tools == CHAT_TOOLS_JSON &&
        (may_begin_with(first, rest, "{") || may_begin_with(first, rest, PYTHON_TAG)))
        return false;
    if (text->tools != CHAT_TOOLS_TAGS) {
        content_add(text, bytes, length);
        *at += length;
        return false;
    }
    size_t place = mark_find(bytes, length, CALL, &whole);
    content_add(text, bytes, place);
    *at += place + (whole ? strlen(CALL) : 0);
    text->call_now = whole;
    return whole;
}

static void pending_drop(struct chat_text *text, size_t count)
{
    memmove(text->pending.bytes, text->pending.bytes + count, text->pending.length - count);
    text->pending.length -= count;
}

/* ---- from outside --------------------------------------------------------------------------- */

void chat_text_push(struct chat_text *text, struct text_view piece)
{
    size_t at = 0;
    bool more = true;
    append(text, &text->pending, piece.bytes, piece.length);
    if (text->failed || !text->pending.length)
        return;
    while (more && at < text->pending.length)
        more = text->reasoning_now ? reasoning_step(text, &at)
               : text->call_now    ? call_step(text, &at)
                                   : content_step(text, &at);
    pending_drop(text, at);
}

/* A whole reply that may be a call: {...}, perhaps after a mark. */
static bool reply_parse(struct chat_text *text, const char *bytes, size_t length)
{
    size_t skipped = space_before(bytes, length), tag = strlen(PYTHON_TAG);
    if (length - skipped >= tag &&
        may_begin_with(bytes + skipped, length - skipped, PYTHON_TAG))
        skipped += tag;
    return call_parse(text, bytes + skipped, length - skipped);
}

void chat_text_flush(struct chat_text *text)
{
    const char *bytes = text->pending.bytes ? text->pending.bytes : "";
    size_t length = text->pending.length;
    bool may_be_call = text->tools == CHAT_TOOLS_JSON && !text->content_begun;
    if (text->failed)
        return;
    if (text->reasoning_now)
        reasoning_add(text, bytes, length_without_space(bytes, length));
    else if (text->call_now) {
        if (!call_parse(text, bytes, length))
            call_is_content(text, bytes, length);
    } else if (!may_be_call || !reply_parse(text, bytes, length))
        content_add(text, bytes, length);
    text->call_now = false;
    text->pending.length = 0;
}
