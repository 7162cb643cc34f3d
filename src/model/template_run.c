/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of a rendering stands on: errors, limits, memory, and text in the making. */
#include "template_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool jinja_fail(struct run *run, int code, const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    run->code = error_set(run->err, code, "chat template, line %u: %s", run->line, sentence);
    return false;
}

bool jinja_charge(struct run *run, size_t work)
{
    uint64_t price = 1 + work / 64;
    if (price <= run->steps) {
        run->steps -= price;
        return true;
    }
    run->steps = 0;
    return jinja_fail(run, BATON_ELIMIT, "it takes more than %llu steps",
                      (unsigned long long)run->limits.steps);
}

bool jinja_enter(struct run *run)
{
    if (run->depth >= run->limits.depth)
        return jinja_fail(run, BATON_ELIMIT, "nested more than %u deep", run->limits.depth);
    run->depth++;
    return true;
}

void *jinja_alloc(struct run *run, size_t count, size_t size)
{
    void *out = jinja_arena_array(&run->arena, count, size);
    if (!out && run->arena.refused)
        jinja_fail(run, BATON_ELIMIT, "it needs more than %zu bytes of memory",
                   run->limits.memory);
    else if (!out)
        jinja_fail(run, BATON_ENOMEM, "out of memory");
    return out;
}

/* Room for `more` bytes at the end of the sink. */
static bool sink_reserve(struct run *run, size_t more)
{
    struct sink *sink = &run->sink;
    if (more > run->limits.output || sink->length > run->limits.output - more)
        return jinja_fail(run, BATON_ELIMIT, "it writes more than %zu bytes",
                          run->limits.output);
    if (sink->capacity - sink->length >= more)
        return true;
    size_t capacity = sink->capacity ? sink->capacity : 4096;
    while (capacity - sink->length < more)
        capacity *= 2;
    char *bytes = realloc(sink->bytes, capacity);
    if (!bytes)
        return jinja_fail(run, BATON_ENOMEM, "out of memory");
    sink->bytes = bytes;
    sink->capacity = capacity;
    return true;
}

bool jinja_write(struct run *run, const char *bytes, size_t length)
{
    if (length == 0)
        return true;
    if (!sink_reserve(run, length))
        return false;
    memcpy(run->sink.bytes + run->sink.length, bytes, length);
    run->sink.length += length;
    return true;
}

bool jinja_write_repeated(struct run *run, char byte, size_t count)
{
    if (count == 0)
        return true;
    if (!sink_reserve(run, count))
        return false;
    memset(run->sink.bytes + run->sink.length, byte, count);
    run->sink.length += count;
    return true;
}

bool jinja_cut(struct run *run, size_t mark, struct value *out)
{
    size_t length = run->sink.length - mark;
    char *bytes = jinja_alloc(run, length, 1);
    if (!bytes)
        return false;
    if (length)
        memcpy(bytes, run->sink.bytes + mark, length);
    run->sink.length = mark;
    *out = value_string(bytes, length);
    return true;
}

/* The first + copies both sides; those after it find, or leave, as much room again. */
bool jinja_join(struct run *run, struct value left, struct value right, struct value *out)
{
    size_t length = (size_t)left.length + right.length;
    struct buffer *buffer = left.buffer;
    if (right.length == 0 || left.length == 0) {
        *out = right.length == 0 ? left : right;
        return true;
    }
    if (length > UINT32_MAX / 2)
        return jinja_fail(run, BATON_ELIMIT, "a string of %zu bytes is too long", length);
    if (!buffer || left.bytes + left.length != buffer->bytes + buffer->used ||
        buffer->capacity - buffer->used < right.length) {
        size_t capacity = buffer ? 2 * length : length;
        buffer = jinja_alloc(run, 1, sizeof(*buffer) + capacity);
        if (!buffer)
            return false;
        buffer->capacity = capacity;
        buffer->used = left.length;
        memcpy(buffer->bytes, left.bytes, left.length);
        left.bytes = buffer->bytes;
    }
    memcpy(buffer->bytes + buffer->used, right.bytes, right.length);
    buffer->used += right.length;
    *out = value_string(left.bytes, length);
    out->buffer = buffer;
    return true;
}
