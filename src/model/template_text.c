/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 by utf8proc, with Python's idea of white space and of line ends. */
#include "template_text.h"

#include <string.h>
#include <utf8proc.h>

/* utf8proc takes signed lengths; a character has at most four bytes anyway. */
static utf8proc_ssize_t decode(const char *bytes, size_t left, int32_t *character)
{
    return utf8proc_iterate((const utf8proc_uint8_t *)bytes,
                            (utf8proc_ssize_t)(left < 4 ? left : 4), character);
}

bool jinja_text_valid(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length;) {
        int32_t character;
        utf8proc_ssize_t step = decode(bytes + i, length - i, &character);
        if (step <= 0)
            return false;
        i += (size_t)step;
    }
    return true;
}

int32_t jinja_text_decode(struct text text, size_t offset, size_t *step)
{
    unsigned char first = (unsigned char)text.bytes[offset];
    int32_t character;
    *step = 1;
    if (first < 0x80)
        return first;
    utf8proc_ssize_t length = decode(text.bytes + offset, text.length - offset, &character);
    if (length <= 0)
        return 0xfffd;
    *step = (size_t)length;
    return character;
}

size_t jinja_text_step(struct text text, size_t offset)
{
    size_t step;
    jinja_text_decode(text, offset, &step);
    return step;
}

size_t jinja_text_encode(int32_t character, char out[4])
{
    return (size_t)utf8proc_encode_char(character, (utf8proc_uint8_t *)out);
}

size_t jinja_text_count(struct text text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.length; i += jinja_text_step(text, i))
        count++;
    return count;
}

size_t jinja_text_offset(struct text text, size_t index)
{
    size_t offset = 0;
    while (index > 0 && offset < text.length) {
        offset += jinja_text_step(text, offset);
        index--;
    }
    return offset;
}

bool jinja_is_space(int32_t character)
{
    if (character < 0x80)
        return character == ' ' || (character >= 0x09 && character <= 0x0d) ||
               (character >= 0x1c && character <= 0x1f);
    return character == 0x85 || character == 0xa0 || character == 0x1680 ||
           (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
           character == 0x2029 || character == 0x202f || character == 0x205f ||
           character == 0x3000;
}

static bool stripped(int32_t character, const struct text *set)
{
    if (!set)
        return jinja_is_space(character);
    for (size_t i = 0, step; i < set->length; i += step)
        if (jinja_text_decode(*set, i, &step) == character)
            return true;
    return false;
}

struct text jinja_text_strip(struct text text, const struct text *set, bool left, bool right)
{
    size_t first = 0, end = text.length, step;
    while (left && first < end && stripped(jinja_text_decode(text, first, &step), set))
        first += step;
    while (right && end > first) {
        size_t last = end - 1;
        while (last > first && end - last < 4 &&
               ((unsigned char)text.bytes[last] & 0xc0) == 0x80)
            last--;
        if (!stripped(jinja_text_decode(text, last, &step), set) || last + step != end)
            break;
        end = last;
    }
    return jinja_text_slice(text, first, end);
}

ssize_t jinja_text_find(struct text text, struct text part, size_t from)
{
    if (from > text.length)
        return -1;
    if (part.length == 0)
        return (ssize_t)from;
    const char *found = memmem(text.bytes + from, text.length - from, part.bytes, part.length);
    return found ? found - text.bytes : -1;
}

ssize_t jinja_text_find_last(struct text text, struct text part)
{
    if (part.length > text.length)
        return -1;
    for (size_t i = text.length - part.length;; i--) {
        if (part.length == 0 || memcmp(text.bytes + i, part.bytes, part.length) == 0)
            return (ssize_t)i;
        if (i == 0)
            return -1;
    }
}

bool jinja_text_starts(struct text text, struct text with)
{
    return with.length <= text.length &&
           (with.length == 0 || memcmp(text.bytes, with.bytes, with.length) == 0);
}

bool jinja_text_ends(struct text text, struct text with)
{
    return with.length <= text.length &&
           (with.length == 0 ||
            memcmp(text.bytes + text.length - with.length, with.bytes, with.length) == 0);
}

struct text jinja_text_slice(struct text text, size_t from, size_t to)
{
    return (struct text){text.bytes + from, (uint32_t)(to - from)};
}

size_t jinja_text_line_end(struct text text, size_t offset)
{
    size_t step;
    int32_t character = jinja_text_decode(text, offset, &step);
    if (character == '\r')
        return offset + 1 < text.length && text.bytes[offset + 1] == '\n' ? 2 : 1;
    bool ends = (character >= '\n' && character <= '\f') ||
                (character >= 0x1c && character <= 0x1e) || character == 0x85 ||
                character == 0x2028 || character == 0x2029;
    return ends ? step : 0;
}
