/* SPDX-License-Identifier: Apache-2.0 */
/* From Oniguruma's language of regular expressions to PCRE2's. What the patterns of tokenizers use
 * means the same in both, but for this:
 *
 *              Oniguruma                       PCRE2
 *   \s         White_Space                     that and U+180E
 *   \w         Alphabetic, marks, digits, Pc   letters, numbers, underscore
 *   \h         a hexadecimal digit             horizontal space
 *   \p{Han}    the script                      the script's extensions
 *   ^ $        of every line                   of the text, unless PCRE2_MULTILINE (it is set)
 *   x{1,3}+    (?:x{1,3})+                     possessive
 *   \uHHHH     a character                     an error
 *   [a[bc]]    nested sets                     "[" is a character
 *   [a&&b]     intersection                    "&" is a character
 *   \p{L} ...  of Unicode 16                   of Unicode 14 (unicode_recent.c)
 *
 * Nested sets and intersections are refused. So is the option (?m), which means something else in each.
 *
 * One pattern is changed for speed: \s+$ tries every start within a run of spaces that does not
 * end its line, quadratic in the run; it can only ever match from the beginning of a run, and
 * is made to look for just that. */
#include "tokenizer_pattern.h"
#include "unicode.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SPACE_SET                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
    "\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACE_SET                                                               \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"   \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}" \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX_SET "0-9A-Fa-f"

#define GROUPS_MAX 64

struct translation {
    const char *source;
    size_t length, at;
    struct byte_buffer *out;
    struct error err;
    bool in_set;
    size_t atom; /* where in `out` the thing begins that a quantifier would repeat */
    size_t groups[GROUPS_MAX];
    size_t depth;
};

static int put(struct translation *work, const char *text, size_t length)
{
    if (byte_buffer_append(work->out, text, length))
        return error_set(work->err, BATON_ENOMEM, "out of memory for a pattern");
    return BATON_OK;
}

static int put_text(struct translation *work, const char *text)
{
    return put(work, text, strlen(text));
}

static int refuse(struct translation *work, const char *what)
{
    int shown = work->length < 200 ? (int)work->length : 200;
    return error_set(work->err, BATON_EUNSUPPORTED, "the pattern uses %s, at byte %zu of %.*s",
                     what, work->at, shown, work->source);
}

static char peek(const struct translation *work, size_t ahead)
{
    return work->at + ahead < work->length ? work->source[work->at + ahead] : '\0';
}

struct class
{
    const char *members, *others; /* as in a set; others NULL: cannot be said */
    const char *recent[4];        /* categories that PCRE2 does not know all of */
};

static const struct class class_space = {SPACE_SET, NO_SPACE_SET, {NULL}};
static const struct class class_word = {WORD_SET, NULL, {"L", "M", "Nd"}};
static const struct class class_digit = {"\\p{Nd}", NULL, {"Nd"}};
static const struct class class_hex = {HEX_SET, NULL, {NULL}};

static int put_recent(struct translation *work, const char *category, size_t length)
{
    if (unicode_recent_append(category, length, work->out))
        return error_set(work->err, BATON_ENOMEM, "out of memory for a pattern");
    return BATON_OK;
}

/* A class such as \s: its members alone within a set, as a set of its own elsewhere. */
static int put_class(struct translation *work, const struct class *class, bool negated)
{
    if (work->in_set && negated && !class->others)
        return refuse(work, "a negated class within a set");
    bool in_set = work->in_set;
    work->at += 2;
    if (in_set && negated)
        return put_text(work, class->others);
    int rc = in_set ? BATON_OK : put_text(work, negated ? "[^" : "[");
    if (!rc)
        rc = put_text(work, class->members);
    for (size_t i = 0; class->recent[i] && !rc; i++)
        rc = put_recent(work, class->recent[i], strlen(class->recent[i]));
    return rc || in_set ? rc : put_text(work, "]");
}

/* Names of general categories are as short as in Oniguruma; the others are scripts but for a few
 * properties. */
static bool property_is_script(const char *name, size_t length)
{
    static const char *const others[] = {"Any", "Alphabetic", "White_Space", "Emoji",
                                         "Extended_Pictographic"};
    if (length <= 2)
        return false;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strlen(others[i]) == length && memcmp(others[i], name, length) == 0)
            return false;
    }
    return true;
}

/* With what PCRE2 does not know of the category yet, where a set can say so. */
static int put_property_named(struct translation *work, const char *name, size_t length,
                              bool negated)
{
    bool as_set = !work->in_set;
    bool inverted = negated && !as_set;
    int rc = as_set ? put_text(work, negated ? "[^" : "[") : BATON_OK;
    if (!rc)
        rc = put_text(work, inverted ? "\\P{" : "\\p{");
    if (!rc && property_is_script(name, length))
        rc = put_text(work, "sc:");
    if (!rc)
        rc = put(work, name, length);
    if (!rc)
        rc = put_text(work, "}");
    if (!rc && !inverted)
        rc = put_recent(work, name, length);
    return rc || !as_set ? rc : put_text(work, "]");
}

static int put_property(struct translation *work)
{
    bool negated = peek(work, 1) == 'P';
    if (peek(work, 2) != '{')
        return refuse(work, "a property without braces");
    const char *name = work->source + work->at + 3;
    const char *end = memchr(name, '}', work->length - work->at - 3);
    if (!end || end - name > 64)
        return refuse(work, "a property without an end");
    work->at = (size_t)(end + 1 - work->source);
    if (name < end && *name == '^') {
        negated = !negated;
        name++;
    }
    return put_property_named(work, name, (size_t)(end - name), negated);
}

static int put_unicode_escape(struct translation *work)
{
    char text[16];
    for (size_t i = 2; i < 6; i++) {
        if (!peek(work, i) || !strchr("0123456789abcdefABCDEF", peek(work, i)))
            return refuse(work, "\\u without four digits");
    }
    snprintf(text, sizeof(text), "\\x{%.4s}", work->source + work->at + 2);
    work->at += 6;
    return put_text(work, text);
}

static int put_escape(struct translation *work)
{
    switch (peek(work, 1)) {
    case 's': return put_class(work, &class_space, false);
    case 'S': return put_class(work, &class_space, true);
    case 'w': return put_class(work, &class_word, false);
    case 'W': return put_class(work, &class_word, true);
    case 'd': return put_class(work, &class_digit, false);
    case 'D': return put_class(work, &class_digit, true);
    case 'h': return put_class(work, &class_hex, false);
    case 'H': return put_class(work, &class_hex, true);
    case 'p':
    case 'P': return put_property(work);
    case 'u': return put_unicode_escape(work);
    case 'Q':
    case 'E':
    case 'K':
    case 'C': return refuse(work, "an escape that means something else here");
    default: break;
    }
    size_t length = work->at + 1 < work->length ? 2 : 1;
    work->at += length;
    return put(work, work->source + work->at - length, length);
}

static int put_in_set(struct translation *work)
{
    char c = peek(work, 0);
    if (c == '[' && peek(work, 1) != ':')
        return refuse(work, "a set within a set");
    if (c == '&' && peek(work, 1) == '&')
        return refuse(work, "an intersection of sets");
    if (c == '[') { /* [:name:] */
        const char *rest = work->source + work->at;
        const char *end = memmem(rest, work->length - work->at, ":]", 2);
        if (!end)
            return refuse(work, "a set within a set");
        size_t length = (size_t)(end + 2 - rest);
        work->at += length;
        return put(work, rest, length);
    }
    work->at++;
    if (c == ']')
        work->in_set = false;
    return put(work, &c, 1);
}

static int put_set_begin(struct translation *work)
{
    size_t length = 1;
    work->in_set = true;
    if (peek(work, length) == '^')
        length++;
    if (peek(work, length) == ']') /* the first one is a character */
        length++;
    work->at += length;
    return put(work, work->source + work->at - length, length);
}

static int put_group_begin(struct translation *work)
{
    if (work->depth == GROUPS_MAX)
        return refuse(work, "groups in groups too deep");
    if (peek(work, 1) == '?' && peek(work, 2) != '#') {
        size_t i = 2;
        while (strchr("imx-", peek(work, i)) && peek(work, i)) {
            if (peek(work, i) == 'm')
                return refuse(work, "the option m");
            i++;
        }
    }
    work->groups[work->depth++] = work->out->length;
    work->at++;
    return put_text(work, "(");
}

static int put_group_end(struct translation *work)
{
    if (!work->depth)
        return refuse(work, "a group that has no beginning");
    work->atom = work->groups[--work->depth];
    work->at++;
    return put_text(work, ")");
}

/* The length of {n}, {n,} or {n,m} here; 0 when it is none. */
static size_t interval_length(const struct translation *work)
{
    size_t i = 1;
    while (peek(work, i) >= '0' && peek(work, i) <= '9')
        i++;
    if (i == 1)
        return 0;
    if (peek(work, i) == ',')
        i++;
    while (peek(work, i) >= '0' && peek(work, i) <= '9')
        i++;
    return peek(work, i) == '}' ? i + 1 : 0;
}

/* x{1,3}+ as (?:x{1,3})+ */
static int put_interval(struct translation *work, size_t length)
{
    bool repeated = peek(work, length) == '+';
    int rc = put(work, work->source + work->at, length);
    work->at += length;
    if (rc || !repeated)
        return rc;
    size_t tail = work->out->length - work->atom;
    rc = put_text(work, "(?:)");
    if (rc)
        return rc;
    memmove(work->out->bytes + work->atom + 3, work->out->bytes + work->atom, tail);
    memcpy(work->out->bytes + work->atom, "(?:", 3);
    work->out->bytes[work->atom + 3 + tail] = ')';
    return BATON_OK;
}

static int put_next(struct translation *work)
{
    char c = peek(work, 0);
    size_t interval = !work->in_set && c == '{' ? interval_length(work) : 0;
    if (interval)
        return put_interval(work, interval);
    if (c == '\\' || (work->in_set && c != '\\')) {
        if (!work->in_set)
            work->atom = work->out->length;
        return c == '\\' ? put_escape(work) : put_in_set(work);
    }
    if (c == ')')
        return put_group_end(work);
    if (!strchr("*+?", c) || !c)
        work->atom = work->out->length;
    if (c == '[')
        return put_set_begin(work);
    if (c == '(')
        return put_group_begin(work);
    size_t length = 1; /* a character is repeated as a whole, not its last byte */
    while (work->at + length < work->length &&
           ((uint8_t)work->source[work->at + length] & 0xc0) == 0x80)
        length++;
    work->at += length;
    return put(work, work->source + work->at - length, length);
}

int pattern_translate(const char *source, size_t length, struct byte_buffer *out,
                      struct error err)
{
    struct translation work = {.source = source, .length = length, .out = out, .err = err};
    int rc = BATON_OK;
    if (length == 4 && memcmp(source, "\\s+$", 4) == 0)
        rc = put_text(&work, "(?<![" SPACE_SET "])");
    while (work.at < work.length && !rc)
        rc = put_next(&work);
    if (!rc && work.in_set)
        rc = refuse(&work, "a set that has no end");
    if (!rc && work.depth)
        rc = refuse(&work, "a group that has no end");
    return rc;
}
