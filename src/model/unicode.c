/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 by the table of well-formed sequences in the Unicode standard (3.9, D92):
 *
 *   00..7F
 *   C2..DF  80..BF
 *   E0      A0..BF  80..BF          (80..9F would be overlong)
 *   E1..EF  80..BF  80..BF          (ED: 80..9F, the rest are surrogates)
 *   F0      90..BF  80..BF  80..BF  (80..8F would be overlong)
 *   F1..F3  80..BF  80..BF  80..BF
 *   F4      80..8F  80..BF  80..BF  (above are no characters)
 *
 * A broken piece is the longest beginning of a row, or else one byte. */
#include "unicode.h"

#include "base/error.h"

#include <string.h>
#include <utf8proc.h>

/* The row of a first byte: how long it is, and which second bytes it takes. */
static size_t row_length(uint8_t first, uint8_t *least, uint8_t *most)
{
    *least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

enum utf8_state utf8_next(const char *text, size_t length, size_t *size, uint32_t *code)
{
    const uint8_t *bytes = (const uint8_t *)text;
    uint8_t least, most;
    size_t row = row_length(bytes[0], &least, &most);
    if (row <= 1) {
        *size = 1;
        *code = bytes[0];
        return row ? UTF8_WHOLE : UTF8_BROKEN;
    }
    uint32_t value = bytes[0] & (0x7fu >> row);
    for (size_t i = 1; i < row; i++) {
        *size = i;
        if (i == length)
            return UTF8_PARTIAL;
        if (bytes[i] < least || bytes[i] > most)
            return UTF8_BROKEN;
        value = value << 6 | (bytes[i] & 0x3f);
        least = 0x80;
        most = 0xbf;
    }
    *size = row;
    *code = value;
    return UTF8_WHOLE;
}

size_t utf8_encode(uint32_t code, char out[4])
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)out);
}

static bool eight_are_ascii(const char *text)
{
    uint64_t eight;
    memcpy(&eight, text, 8);
    return !(eight & 0x8080808080808080u);
}

size_t utf8_valid_prefix(const char *text, size_t length)
{
    size_t i = 0, size;
    uint32_t code;
    while (i < length) {
        if (length - i >= 8 && eight_are_ascii(text + i)) {
            i += 8;
            continue;
        }
        if (utf8_next(text + i, length - i, &size, &code) != UTF8_WHOLE)
            break;
        i += size;
    }
    return i;
}

bool text_ranges_touch(const struct text_range *ranges, size_t count, size_t start, size_t end)
{
    size_t low = 0, high = count; /* the first range that ends behind start */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].end <= start)
            low = middle + 1;
        else
            high = middle;
    }
    while (low < count && ranges[low].start < end && ranges[low].start == ranges[low].end)
        low++; /* empty */
    return low < count && ranges[low].start < end;
}

/* Moves those boundaries of the ranges that lie at or before `position` of the old text. */
struct range_mover {
    struct text_range *ranges;
    size_t count, next; /* boundary 2i is the start of range i, 2i + 1 its end */
};

static void ranges_move(struct range_mover *mover, size_t position, size_t moved)
{
    for (; mover->next < 2 * mover->count; mover->next++) {
        struct text_range *range = &mover->ranges[mover->next / 2];
        size_t *boundary = mover->next % 2 ? &range->end : &range->start;
        if (*boundary > position)
            return;
        *boundary = moved - (position - *boundary);
    }
}

int utf8_repair(const char *text, size_t length, struct text_range *ranges, size_t range_count,
                struct byte_buffer *out)
{
    struct range_mover mover = {ranges, range_count, 0};
    size_t i = 0, begin = out->length;
    while (i < length) {
        size_t size = 0;
        uint32_t code;
        size_t valid = utf8_valid_prefix(text + i, length - i);
        int rc = byte_buffer_append(out, text + i, valid);
        if (rc)
            return rc;
        i += valid;
        ranges_move(&mover, i, out->length - begin);
        if (i == length)
            break;
        utf8_next(text + i, length - i, &size, &code);
        rc = byte_buffer_append(out, UNICODE_REPLACEMENT, UNICODE_REPLACEMENT_SIZE);
        if (rc)
            return rc;
        i += size;
        for (size_t k = 1; k < size; k++) /* a boundary inside the piece: behind it */
            ranges_move(&mover, i - size + k, out->length - begin);
        ranges_move(&mover, i, out->length - begin);
    }
    ranges_move(&mover, length, out->length - begin);
    return BATON_OK;
}

bool unicode_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* Alphabetic, marks, decimal digits, connectors and joiners. Alphabetic beyond letters and marks
 * are letter-numbers and the circled and squared Latin letters. */
bool unicode_is_word(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default:
        return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
               (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
               (code >= 0x1f170 && code <= 0x1f189);
    }
}

static size_t character_start(const char *text, size_t end)
{
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && ((uint8_t)text[start] & 0xc0) == 0x80)
        start--;
    return start;
}

size_t unicode_space_before(const char *text, size_t end)
{
    size_t start = end, size;
    uint32_t code;
    while (start > 0) {
        size_t previous = character_start(text, start);
        if (utf8_next(text + previous, start - previous, &size, &code) != UTF8_WHOLE ||
            !unicode_is_space(code))
            break;
        start = previous;
    }
    return end - start;
}

size_t unicode_space_after(const char *text, size_t length, size_t start)
{
    size_t end = start, size;
    uint32_t code;
    while (end < length && utf8_next(text + end, length - end, &size, &code) == UTF8_WHOLE &&
           unicode_is_space(code))
        end += size;
    return end - start;
}
