/* SPDX-License-Identifier: Apache-2.0 */
/* Normal forms by utf8proc's tables, in linear time.
 *
 * utf8proc_map() sorts combining marks by insertion: a megabyte of marks in the wrong order takes
 * it minutes, and anybody may send one. So characters are decomposed one by one, the marks
 * sorted by counting, and only then is utf8proc asked to compose.
 *
 * Most text is in normal form as it is. Characters below a bound (U+0300 for NFC, U+0080 for
 * the others) are never changed by it, and none of them joins the character before it, so text is
 * taken apart into stretches of such characters, which are copied, and *knots*: everything else,
 * each with the character before it, which may join what follows.
 *
 * The tables that Hugging Face's library normalizes by are those of Unicode 9. Characters that came
 * later and would be changed or moved (`later`) are left where they are, as there. */
#include "unicode.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define SORT_BY_INSERTION_MAX \
    16                    /* of so few marks; text that is not hostile has two or three */
#define DECOMPOSED_MAX 32 /* the longest decomposition of one character has 18 */

static const struct {
    uint32_t first, last;
} later[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
    {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785}, {0x10787, 0x107b0},
    {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
};

static bool is_later(uint32_t code)
{
    size_t low = 0, high = sizeof(later) / sizeof(later[0]);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (later[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof(later) / sizeof(later[0]) && later[low].first <= code;
}

struct knot {
    utf8proc_int32_t *codes, *sorted;
    size_t count, capacity, sorted_capacity;
};

static uint16_t combining_class(utf8proc_int32_t code)
{
    return (uint16_t)utf8proc_get_property(code)->combining_class;
}

static utf8proc_option_t form_options(enum unicode_form form)
{
    int options = UTF8PROC_STABLE;
    options |=
        form == UNICODE_NFC || form == UNICODE_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (form == UNICODE_NFKC || form == UNICODE_NFKD)
        options |= UTF8PROC_COMPAT;
    return (utf8proc_option_t)options;
}

static void marks_insertion_sort(utf8proc_int32_t *codes, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        utf8proc_int32_t code = codes[i];
        size_t k = i;
        for (; k > 0 && combining_class(codes[k - 1]) > combining_class(code); k--)
            codes[k] = codes[k - 1];
        codes[k] = code;
    }
}

static int marks_counting_sort(struct knot *knot, utf8proc_int32_t *codes, size_t count)
{
    void *sorted = knot->sorted;
    int rc = array_reserve(&sorted, &knot->sorted_capacity, count, sizeof(*codes));
    knot->sorted = sorted;
    if (rc)
        return rc;
    size_t starts[256] = {0};
    for (size_t i = 0; i < count; i++)
        starts[combining_class(codes[i]) & 255]++;
    for (size_t class = 0, start = 0; class < 256; class ++) {
        size_t here = starts[class];
        starts[class] = start;
        start += here;
    }
    for (size_t i = 0; i < count; i++)
        knot->sorted[starts[combining_class(codes[i]) & 255]++] = codes[i];
    memcpy(codes, knot->sorted, count * sizeof(*codes));
    return BATON_OK;
}

/* Canonical order: each run of marks sorted by class, equal ones as they were. */
static int knot_order(struct knot *knot)
{
    size_t i = 0;
    while (i < knot->count) {
        size_t start = i;
        while (i < knot->count && combining_class(knot->codes[i]))
            i++;
        if (i - start > SORT_BY_INSERTION_MAX) {
            int rc = marks_counting_sort(knot, knot->codes + start, i - start);
            if (rc)
                return rc;
        } else if (i - start > 1) {
            marks_insertion_sort(knot->codes + start, i - start);
        }
        i++;
    }
    return BATON_OK;
}

static int knot_decompose(struct knot *knot, const char *text, size_t length,
                          utf8proc_option_t options)
{
    size_t size;
    uint32_t code;
    knot->count = 0;
    for (size_t i = 0; i < length; i += size) {
        void *codes = knot->codes;
        int rc = array_reserve(&codes, &knot->capacity, knot->count + DECOMPOSED_MAX,
                               sizeof(*knot->codes));
        knot->codes = codes;
        if (rc)
            return rc;
        BATON_ASSERT(utf8_next(text + i, length - i, &size, &code) == UTF8_WHOLE);
        int boundary = 0;
        utf8proc_ssize_t made =
            utf8proc_decompose_char((utf8proc_int32_t)code, knot->codes + knot->count,
                                    DECOMPOSED_MAX, options, &boundary);
        BATON_ASSERT(made >= 0 && made <= DECOMPOSED_MAX);
        knot->count += (size_t)made;
    }
    return BATON_OK;
}

static int knot_append(struct knot *knot, const char *text, size_t length,
                       utf8proc_option_t options, struct byte_buffer *out)
{
    int rc = knot_decompose(knot, text, length, options);
    if (!rc)
        rc = knot_order(knot);
    if (!rc)
        rc = byte_buffer_reserve(out, 4 * knot->count);
    if (rc)
        return rc;
    utf8proc_ssize_t count =
        utf8proc_normalize_utf32(knot->codes, (utf8proc_ssize_t)knot->count, options);
    for (utf8proc_ssize_t i = 0; i < count; i++)
        out->length += utf8_encode((uint32_t)knot->codes[i], out->bytes + out->length);
    return BATON_OK;
}

/* The end of the stretch of characters below `bound` that starts at i; the last one's start. */
static size_t plain_stretch(const char *text, size_t length, size_t i, uint32_t bound,
                            size_t *last)
{
    size_t size;
    uint32_t code;
    *last = i;
    while (i < length) {
        BATON_ASSERT(utf8_next(text + i, length - i, &size, &code) == UTF8_WHOLE);
        if (code >= bound)
            break;
        *last = i;
        i += size;
    }
    return i;
}

/* The end of the knot that starts at i, and the size of the later character there, if one is. */
static size_t knot_end(const char *text, size_t length, size_t i, uint32_t bound,
                       size_t *later_size)
{
    size_t size;
    uint32_t code;
    *later_size = 0;
    for (; i < length; i += size) {
        BATON_ASSERT(utf8_next(text + i, length - i, &size, &code) == UTF8_WHOLE);
        if (code < bound)
            break;
        if (is_later(code)) {
            *later_size = size;
            break;
        }
    }
    return i;
}

int unicode_normalize(enum unicode_form form, const char *text, size_t length,
                      struct byte_buffer *out)
{
    utf8proc_option_t options = form_options(form);
    uint32_t bound = form == UNICODE_NFC ? 0x300 : 0x80;
    struct knot knot = {0};
    size_t i = 0, last, later_size;
    int rc = BATON_OK;
    while (i < length && !rc) {
        size_t end = plain_stretch(text, length, i, bound, &last);
        size_t copied = end == length ? end : last;
        rc = byte_buffer_append(out, text + i, copied - i);
        if (rc || end == length)
            break;
        i = knot_end(text, length, end, bound, &later_size);
        rc = knot_append(&knot, text + copied, i - copied, options, out);
        if (!rc)
            rc = byte_buffer_append(out, text + i, later_size);
        i += later_size;
    }
    free(knot.codes);
    free(knot.sorted);
    return rc;
}
