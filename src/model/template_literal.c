/* SPDX-License-Identifier: Apache-2.0 */
/* Python's literals, as jinja2 accepts them: strings with all of Python's escapes but \N{...},
 * integers with prefixes and underscores, floats. */
#include "template_literal.h"

#include "template_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- where they end ---------------------------------------------------------------------- */

static char byte_at(struct text source, size_t offset)
{
    return offset < source.length ? source.bytes[offset] : '\0';
}

static bool is_digit(char byte, int base)
{
    switch (base) {
    case 2: return byte == '0' || byte == '1';
    case 8: return byte >= '0' && byte <= '7';
    case 16: return isxdigit((unsigned char)byte);
    default: return isdigit((unsigned char)byte);
    }
}

/* Digits with single underscores between them: the bytes of them from `offset` on. */
static size_t digits_length(struct text source, size_t offset, int base)
{
    size_t i = offset;
    while (is_digit(byte_at(source, i), base)) {
        i++;
        if (byte_at(source, i) == '_' && is_digit(byte_at(source, i + 1), base))
            i++;
    }
    return i - offset;
}

static size_t float_length(struct text source, size_t offset)
{
    size_t digits = digits_length(source, offset, 10), end = offset + digits, fraction = 0;
    if (digits == 0 || (offset > 0 && source.bytes[offset - 1] == '.'))
        return 0;
    if (byte_at(source, end) == '.')
        fraction = digits_length(source, end + 1, 10);
    if (fraction)
        end += 1 + fraction;
    char letter = byte_at(source, end);
    size_t exponent = 0, sign = 0;
    if (letter == 'e' || letter == 'E') {
        char next = byte_at(source, end + 1);
        sign = next == '+' || next == '-';
        exponent = digits_length(source, end + 1 + sign, 10);
    }
    if (exponent)
        end += 1 + sign + exponent;
    return fraction || exponent ? end - offset : 0;
}

static int prefix_base(struct text source, size_t offset)
{
    if (byte_at(source, offset) != '0')
        return 10;
    switch (byte_at(source, offset + 1)) {
    case 'b':
    case 'B': return 2;
    case 'o':
    case 'O': return 8;
    case 'x':
    case 'X': return 16;
    default: return 10;
    }
}

static size_t integer_length(struct text source, size_t offset)
{
    int base = prefix_base(source, offset);
    if (base != 10) {
        size_t underscore = byte_at(source, offset + 2) == '_';
        size_t digits = digits_length(source, offset + 2 + underscore, base);
        if (digits)
            return 2 + underscore + digits;
    }
    size_t length = digits_length(source, offset, 10);
    if (byte_at(source, offset) != '0')
        return length;
    size_t zeros = 1; /* 0 and 00 are numbers, 01 is not */
    while (zeros < length && strchr("0_", source.bytes[offset + zeros]))
        zeros++;
    return source.bytes[offset + zeros - 1] == '_' ? zeros - 1 : zeros;
}

static size_t name_length(struct text source, size_t offset)
{
    size_t i = offset;
    while (isalnum((unsigned char)byte_at(source, i)) || byte_at(source, i) == '_')
        i++;
    return i - offset;
}

static size_t string_length(struct text source, size_t offset)
{
    char quote = byte_at(source, offset);
    if (quote != '\'' && quote != '"')
        return 0;
    for (size_t i = offset + 1; i < source.length; i++) {
        if (source.bytes[i] == quote)
            return i + 1 - offset;
        if (source.bytes[i] == '\\')
            i++;
    }
    return 0;
}

size_t jinja_literal_length(struct text source, size_t offset, enum literal_type *type)
{
    static const struct {
        enum literal_type type;
        size_t (*length)(struct text source, size_t offset);
    } kinds[] = {
        {LITERAL_FLOAT, float_length},
        {LITERAL_INTEGER, integer_length},
        {LITERAL_NAME, name_length},
        {LITERAL_STRING, string_length},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t length = kinds[i].length(source, offset);
        if (length) {
            *type = kinds[i].type;
            return length;
        }
    }
    return 0;
}

/* ---- what they stand for ----------------------------------------------------------------- */

/* Up to `most` digits of the base; the number of them. */
static size_t escape_digits(struct text text, size_t offset, size_t most, int base,
                            int32_t *out)
{
    size_t count = 0;
    int64_t code = 0;
    while (count < most && is_digit(byte_at(text, offset + count), base)) {
        char byte = text.bytes[offset + count++];
        int digit = isdigit((unsigned char)byte) ? byte - '0' : (byte | 0x20) - 'a' + 10;
        code = code * base + digit;
    }
    *out = code > 0x110000 ? 0x110000 : (int32_t)code;
    return count;
}

static bool escape_reject(struct compilation *compilation, uint32_t line, char letter)
{
    return jinja_reject(compilation, BATON_EINVAL, line,
                        "the escape \\%c in a string is cut short or means no character",
                        letter);
}

/* The escape whose letter is at `offset`: what it means is put to `out`. Returns the bytes that
 * the letter and its digits take, 0 after an error. */
static size_t escape_read(struct compilation *compilation, const struct token *token,
                          struct text text, size_t offset, char out[4], size_t *out_length)
{
    static const char letters[] = "abfnrtv\\'\"", meanings[] = "\a\b\f\n\r\t\v\\'\"";
    char letter = text.bytes[offset];
    const char *simple = letter ? strchr(letters, letter) : NULL;
    size_t wanted = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    int32_t code;
    if (simple) {
        out[0] = meanings[simple - letters];
        *out_length = 1;
        return 1;
    }
    if (letter == '\n') {
        *out_length = 0; /* the line goes on */
        return 1;
    }
    if (letter == 'N') {
        jinja_reject(compilation, BATON_EUNSUPPORTED, token->line,
                     "the escape \\N in a string is not supported");
        return 0;
    }
    size_t digits = wanted ? escape_digits(text, offset + 1, wanted, 16, &code)
                           : escape_digits(text, offset, 3, 8, &code);
    if (wanted && (digits != wanted || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))) {
        escape_reject(compilation, token->line, letter);
        return 0;
    }
    if (wanted || digits) {
        *out_length = jinja_text_encode(code, out);
        return digits + (wanted ? 1 : 0);
    }
    out[0] = '\\'; /* not an escape: both characters stay */
    *out_length = 1;
    return SIZE_MAX;
}

static bool string_read(struct compilation *compilation, struct token *token)
{
    struct text text = jinja_text_slice(token->text, 1, token->text.length - 1);
    size_t to = 0;
    if (!memchr(text.bytes, '\\', text.length)) {
        token->text = text;
        return true;
    }
    char *bytes = jinja_compile_alloc(compilation, text.length, 1);
    if (!bytes)
        return false;
    for (size_t i = 0; i < text.length;) {
        if (text.bytes[i] != '\\' || i + 1 == text.length) {
            bytes[to++] = text.bytes[i++];
            continue;
        }
        char meaning[4];
        size_t length;
        size_t taken = escape_read(compilation, token, text, i + 1, meaning, &length);
        if (taken == 0)
            return false;
        memcpy(bytes + to, meaning, length);
        to += length;
        i += taken == SIZE_MAX ? 1 : 1 + taken;
    }
    token->text = (struct text){bytes, (uint32_t)to};
    return true;
}

/* A copy without underscores and with a NUL, as strtoll and strtod want it. */
static bool number_copy(struct compilation *compilation, const struct token *token,
                        char copy[400])
{
    size_t to = 0;
    for (size_t i = 0; i < token->text.length; i++) {
        if (to + 1 == 400)
            return jinja_reject(compilation, BATON_ELIMIT, token->line, "a number is too long");
        if (token->text.bytes[i] != '_')
            copy[to++] = token->text.bytes[i];
    }
    copy[to] = '\0';
    return true;
}

static bool integer_read(struct compilation *compilation, struct token *token)
{
    char copy[400];
    int base = prefix_base(token->text, 0);
    if (!number_copy(compilation, token, copy))
        return false;
    errno = 0;
    token->integer = strtoll(base == 10 ? copy : copy + 2, NULL, base);
    if (errno)
        return jinja_reject(compilation, BATON_EUNSUPPORTED, token->line,
                            "integers of more than 64 bits are not supported");
    return true;
}

static bool float_read(struct compilation *compilation, struct token *token)
{
    char copy[400];
    if (!number_copy(compilation, token, copy))
        return false;
    token->number = strtod(copy, NULL);
    return true;
}

bool jinja_literal_read(struct compilation *compilation, enum literal_type type,
                        struct token *token)
{
    switch (type) {
    case LITERAL_STRING: return string_read(compilation, token);
    case LITERAL_INTEGER: return integer_read(compilation, token);
    case LITERAL_FLOAT: return float_read(compilation, token);
    case LITERAL_NAME: return true;
    }
    return true;
}
