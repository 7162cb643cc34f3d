/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar below the frames: numbers, strings, lists and the rule for text.
 *
 * Names and texts of a peer end up in logs, in exceptions and in JSON. So only UTF-8 without
 * control characters is let in: no NUL to cut a name short, no newline to forge a log line, no
 * escape sequence for somebody's terminal, nothing that a JSON writer refuses. Texts on the way
 * out are made to fit; names are refused, because a changed name would be another name. */
#include "wire_codec.h"

#include <stdlib.h>

#define BUFFER_BYTES_FIRST 512

/* ---- text ---- */

/* How many bytes the character at the front takes, 0 if it is not one that may travel. */
static size_t character_bytes(const uint8_t *text, size_t left)
{
    if (!left || text[0] < 0x20 || text[0] == 0x7f)
        return 0;
    if (text[0] < 0x80)
        return 1;
    size_t size = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4 || left < size)
        return 0;
    uint32_t point = text[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (text[i] & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000}; /* 0x80-0x9f are controls */
    if (point < least[size] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
        return 0;
    return size;
}

int wire_text_valid(const char *bytes, size_t length)
{
    const uint8_t *text = (const uint8_t *)bytes;
    while (length) {
        size_t size = character_bytes(text, length);
        if (!size)
            return 0;
        text += size;
        length -= size;
    }
    return 1;
}

/* Writes at most max bytes of the text, whole characters only, and returns how many. What is no
 * character is written as a blank (controls) or a question mark (bytes that are not UTF-8). */
static size_t text_fit(struct wire_string text, uint8_t *out, size_t max)
{
    const uint8_t *from = (const uint8_t *)text.bytes;
    size_t done = 0;
    while (done < text.length) {
        size_t size = character_bytes(from + done, text.length - done);
        if (done + (size ? size : 1) > max)
            break;
        if (size)
            memcpy(out + done, from + done, size);
        else
            out[done] = from[done] < 0x80 ? ' ' : '?';
        done += size ? size : 1;
    }
    return done;
}

struct wire_string wire_string_of(const char *text)
{
    size_t length = text ? strlen(text) : 0;
    return (struct wire_string){text, length > UINT32_MAX ? UINT32_MAX : (uint32_t)length};
}

void wire_string_copy(struct wire_string string, char *out, size_t size)
{
    if (size)
        out[text_fit(string, (uint8_t *)out, size - 1)] = '\0';
}

/* ---- writer ---- */

void wire_buffer_free(struct wire_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct wire_buffer){0};
}

uint8_t *wire_extend(struct wire_buffer *out, size_t bytes)
{
    if (out->failed)
        return NULL;
    if (bytes > out->capacity - out->size) {
        size_t capacity = out->capacity ? out->capacity : BUFFER_BYTES_FIRST;
        while (capacity - out->size < bytes && capacity <= SIZE_MAX / 2)
            capacity *= 2;
        uint8_t *grown = capacity - out->size < bytes ? NULL : realloc(out->bytes, capacity);
        if (!grown) {
            out->failed = 1;
            return NULL;
        }
        out->bytes = grown;
        out->capacity = capacity;
    }
    uint8_t *at = out->bytes + out->size;
    out->size += bytes;
    return at;
}

size_t wire_frame_begin(struct wire_buffer *out, struct wire_header header, uint16_t type)
{
    size_t begin = out->size;
    header.version = WIRE_VERSION;
    header.type = type;
    header.length = 0;
    wire_header_put(out, &header);
    return begin;
}

void wire_frame_end(struct wire_buffer *out, size_t begin)
{
    if (!out->failed) {
        uint8_t *header = out->bytes + begin;
        size_t length = out->size - begin - WIRE_HEADER_BYTES;
        if (length <= wire_length_max(wire_load16(header + 6))) {
            wire_store32(header + 8, (uint32_t)length);
            return;
        }
        out->failed = 1;
    }
    out->size = begin;
}

void wire_put_u16(struct wire_buffer *out, uint16_t value)
{
    uint8_t *at = wire_extend(out, sizeof(value));
    if (at)
        wire_store16(at, value);
}

void wire_put_u32(struct wire_buffer *out, uint32_t value)
{
    uint8_t *at = wire_extend(out, sizeof(value));
    if (at)
        wire_store32(at, value);
}

void wire_put_u64(struct wire_buffer *out, uint64_t value)
{
    uint8_t *at = wire_extend(out, sizeof(value));
    if (at)
        wire_store64(at, value);
}

void wire_put_bytes(struct wire_buffer *out, const void *bytes, size_t length)
{
    uint8_t *at = wire_extend(out, length);
    if (at && length)
        memcpy(at, bytes, length);
}

int wire_put_count(struct wire_buffer *out, uint32_t count, uint32_t max)
{
    if (count > max)
        out->failed = 1;
    wire_put_u32(out, count);
    return !out->failed;
}

void wire_put_blob(struct wire_buffer *out, const void *bytes, uint32_t length, uint32_t max)
{
    if (wire_put_count(out, length, max))
        wire_put_bytes(out, bytes, length);
}

void wire_put_name(struct wire_buffer *out, struct wire_string name, uint32_t max)
{
    if (!wire_text_valid(name.bytes, name.length))
        out->failed = 1;
    wire_put_blob(out, name.bytes, name.length, max);
}

void wire_put_text(struct wire_buffer *out, struct wire_string text)
{
    uint8_t fitted[WIRE_TEXT_MAX];
    uint32_t length = (uint32_t)text_fit(text, fitted, sizeof(fitted));
    wire_put_blob(out, fitted, length, WIRE_TEXT_MAX);
}

void wire_put_pages(struct wire_buffer *out, struct wire_pages pages)
{
    if (!wire_put_count(out, pages.count, WIRE_PAYLOAD_MAX / sizeof(int32_t)))
        return;
    uint8_t *at = wire_extend(out, (size_t)pages.count * sizeof(int32_t));
    if (!at || !pages.count)
        return;
    memcpy(at, pages.bytes, (size_t)pages.count * sizeof(int32_t));
    for (uint32_t i = 0; !WIRE_NATIVE && i < pages.count; i++) {
        uint32_t native;
        memcpy(&native, at + i * sizeof(native), sizeof(native));
        wire_store32(at + i * sizeof(native), native);
    }
}

/* ---- reader ---- */

struct wire_reader wire_reader_of(const uint8_t *payload, size_t length)
{
    static const uint8_t nothing[1];
    const uint8_t *start = length ? payload : nothing; /* NULL is fine for an empty payload */
    return (struct wire_reader){
        .start = start, .field = start, .at = start, .end = start + length};
}

void wire_reader_check(struct wire_reader *in, int condition, const char *problem)
{
    if (condition || in->problem)
        return;
    in->problem = problem;
    in->problem_at = (size_t)(in->field - in->start);
}

int wire_reader_end(struct wire_reader *in, const char *frame, struct error err)
{
    size_t length = (size_t)(in->end - in->start);
    if (in->problem)
        return error_set(err, BATON_EPROTOCOL, "bad %s frame: %s at byte %zu of %zu", frame,
                         in->problem, in->problem_at, length);
    if (in->at != in->end)
        return error_set(err, BATON_EPROTOCOL, "bad %s frame: %zu bytes after its last field",
                         frame, (size_t)(in->end - in->at));
    return 0;
}

const uint8_t *wire_read_bytes(struct wire_reader *in, size_t length)
{
    if (in->problem)
        return NULL;
    in->field = in->at;
    wire_reader_check(in, length <= (size_t)(in->end - in->at), "it ends inside the field");
    if (in->problem)
        return NULL;
    in->at += length;
    return in->field;
}

uint16_t wire_read_u16(struct wire_reader *in)
{
    const uint8_t *at = wire_read_bytes(in, sizeof(uint16_t));
    return at ? wire_load16(at) : 0;
}

uint32_t wire_read_u32(struct wire_reader *in)
{
    const uint8_t *at = wire_read_bytes(in, sizeof(uint32_t));
    return at ? wire_load32(at) : 0;
}

uint64_t wire_read_u64(struct wire_reader *in)
{
    const uint8_t *at = wire_read_bytes(in, sizeof(uint64_t));
    return at ? wire_load64(at) : 0;
}

uint32_t wire_read_flag(struct wire_reader *in)
{
    uint32_t value = wire_read_u32(in);
    wire_reader_check(in, value <= 1, "a yes or no is neither 0 nor 1");
    return value;
}

uint64_t wire_read_room(struct wire_reader *in)
{
    uint64_t room = wire_read_u64(in);
    wire_reader_check(in, room <= WIRE_ROOM_MAX, "a room above 2^63-1");
    return room;
}

uint32_t wire_read_count(struct wire_reader *in, uint32_t max, size_t element_bytes)
{
    uint32_t count = wire_read_u32(in);
    wire_reader_check(in, count <= max, "a length or count above its limit");
    wire_reader_check(in, count <= (size_t)(in->end - in->at) / element_bytes,
                      "a length or count larger than the bytes that follow");
    return in->problem ? 0 : count;
}

const uint8_t *wire_read_blob(struct wire_reader *in, uint32_t max, uint32_t *length)
{
    *length = wire_read_count(in, max, 1);
    return wire_read_bytes(in, *length);
}

struct wire_string wire_read_string(struct wire_reader *in, uint32_t max)
{
    struct wire_string string;
    string.bytes = (const char *)wire_read_blob(in, max, &string.length);
    wire_reader_check(in, wire_text_valid(string.bytes, string.length),
                      "a name or text with control characters or bytes that are not UTF-8");
    return string;
}

void wire_read_name(struct wire_reader *in, char *out, size_t size)
{
    struct wire_string string = wire_read_string(in, (uint32_t)size - 1);
    if (!in->problem)
        memcpy(out, string.bytes, string.length);
    out[in->problem ? 0 : string.length] = '\0';
}

struct wire_pages wire_read_pages(struct wire_reader *in)
{
    struct wire_pages pages = {.count = wire_read_count(in, UINT32_MAX, sizeof(int32_t))};
    pages.bytes = wire_read_bytes(in, (size_t)pages.count * sizeof(int32_t));
    uint32_t signs = 0;
    for (uint32_t i = 0; i < pages.count; i++)
        signs |= wire_load32(pages.bytes + i * sizeof(int32_t));
    wire_reader_check(in, (signs & 0x80000000u) == 0, "a negative page id");
    return pages;
}

void wire_pages_copy(struct wire_pages pages, int32_t *out)
{
    if (!pages.count)
        return;
    memcpy(out, pages.bytes, (size_t)pages.count * sizeof(int32_t));
    for (uint32_t i = 0; !WIRE_NATIVE && i < pages.count; i++)
        out[i] = (int32_t)le32toh((uint32_t)out[i]);
}
