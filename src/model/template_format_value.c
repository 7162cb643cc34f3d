/* SPDX-License-Identifier: Apache-2.0 */
/* One value, formatted: sign, prefix, digits, grouping, and fill up to a width. */
#include "template_format.h"

#include "template_print.h"
#include "template_run.h"
#include "template_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIGITS_MAX 512 /* of %f of the largest double, and a precision of 100 */
#define PRECISION_MAX 100

/* ---- width ------------------------------------------------------------------------------- */

static bool write_fill(struct run *run, const struct format_spec *spec, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!jinja_write(run, spec->fill_length ? spec->fill : " ",
                         spec->fill_length ? spec->fill_length : 1))
            return false;
    return true;
}

/* `before` is a sign and a prefix, after which '=' fills. */
static bool write_aligned(struct run *run, struct text before, struct text text,
                          const struct format_spec *spec, char align)
{
    size_t length = jinja_text_count(before) + jinja_text_count(text);
    size_t missing = (size_t)spec->width > length ? (size_t)spec->width - length : 0;
    size_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    size_t inside = align == '=' ? missing : 0;
    return jinja_charge(run, text.length + missing) && write_fill(run, spec, left) &&
           jinja_write(run, before.bytes, before.length) && write_fill(run, spec, inside) &&
           jinja_write(run, text.bytes, text.length) &&
           write_fill(run, spec, missing - left - inside);
}

bool jinja_format_string(struct run *run, struct text text, const struct format_spec *spec)
{
    if (spec->precision >= 0)
        text = jinja_text_slice(text, 0, jinja_text_offset(text, (size_t)spec->precision));
    return write_aligned(run, TEXT(""), text, spec, spec->align ? spec->align : '<');
}

/* ---- digits ------------------------------------------------------------------------------ */

static size_t binary_digits(uint64_t number, char out[72])
{
    size_t length = 0;
    for (int bit = 63; bit >= 0; bit--)
        if (length || (number >> bit & 1) || bit == 0)
            out[length++] = (char)('0' + (number >> bit & 1));
    return length;
}

static size_t integer_digits(uint64_t number, char type, char out[72])
{
    switch (type) {
    case 'b': return binary_digits(number, out);
    case 'o': return (size_t)snprintf(out, 72, "%" PRIo64, number);
    case 'x': return (size_t)snprintf(out, 72, "%" PRIx64, number);
    case 'X': return (size_t)snprintf(out, 72, "%" PRIX64, number);
    default: return (size_t)snprintf(out, 72, "%" PRIu64, number);
    }
}

/* Puts the separator between groups of digits, three of them or four of the other bases. */
static size_t group_digits(const char *digits, size_t length, char grouping, size_t size,
                           char out[DIGITS_MAX * 2])
{
    size_t whole = strspn(digits, "0123456789abcdefABCDEF"), to = 0;
    if (size == 3)
        whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < length; i++) {
        if (grouping && i > 0 && i < whole && (whole - i) % size == 0)
            out[to++] = grouping;
        out[to++] = digits[i];
    }
    return to;
}

static bool write_digits(struct run *run, bool negative, const char *prefix, const char *digits,
                         size_t length, size_t group, const struct format_spec *spec)
{
    char before[8], grouped[DIGITS_MAX * 2];
    const char *sign = negative ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";
    int before_length = snprintf(before, sizeof(before), "%s%s", sign, prefix);
    size_t grouped_length = group_digits(digits, length, spec->grouping, group, grouped);
    return write_aligned(run, (struct text){before, (uint32_t)before_length},
                         (struct text){grouped, (uint32_t)grouped_length}, spec,
                         spec->align ? spec->align : '>');
}

static bool format_integer(struct run *run, int64_t integer, const struct format_spec *spec)
{
    char digits[73];
    uint64_t magnitude = integer < 0 ? -(uint64_t)integer : (uint64_t)integer;
    size_t length = integer_digits(magnitude, spec->type, digits);
    const char *prefix = "";
    digits[length] = '\0';
    if (spec->alternate)
        prefix = spec->type == 'b'   ? "0b"
                 : spec->type == 'o' ? "0o"
                 : spec->type == 'x' ? "0x"
                 : spec->type == 'X' ? "0X"
                                     : "";
    bool decimal = spec->type == 'd' || spec->type == 0;
    return write_digits(run, integer < 0, prefix, digits, length, decimal ? 3 : 4, spec);
}

static bool format_float(struct run *run, double number, const struct format_spec *spec)
{
    char digits[DIGITS_MAX], pattern[16];
    bool percent = spec->type == '%', finite = isfinite(number);
    char type = percent ? 'f' : spec->type ? spec->type : 'g';
    int precision = spec->precision >= 0 ? spec->precision : 6;
    if (precision > PRECISION_MAX)
        return jinja_fail(run, BATON_ELIMIT, "a precision of %d is too large", precision);
    if (spec->type == 0 && spec->precision < 0 && finite) {
        size_t length = jinja_float_text(fabs(number), digits);
        return write_digits(run, signbit(number) != 0, "", digits, length, 3, spec);
    }
    snprintf(pattern, sizeof(pattern), "%%%s.*%c%s", spec->alternate ? "#" : "", type,
             percent ? "%%" : "");
    int length = snprintf(digits, sizeof(digits), pattern, precision,
                          fabs(percent ? number * 100 : number));
    if (length < 0 || (size_t)length >= sizeof(digits))
        return jinja_fail(run, BATON_ELIMIT, "a number is too long");
    return write_digits(run, signbit(number) && !isnan(number), "", digits, (size_t)length, 3,
                        spec);
}

bool jinja_format_number(struct run *run, struct value number, const struct format_spec *spec)
{
    bool floating = number.type == VALUE_FLOAT;
    int64_t integer = number.type == VALUE_BOOLEAN ? number.boolean : number.integer;
    if (spec->width > FORMAT_WIDTH_MAX)
        return jinja_fail(run, BATON_ELIMIT, "a width of %d is too large", spec->width);
    switch (spec->type) {
    case 0:
        return floating ? format_float(run, number.number, spec)
                        : format_integer(run, integer, spec);
    case 'b':
    case 'd':
    case 'o':
    case 'x':
    case 'X':
        if (!floating)
            return format_integer(run, integer, spec);
        return jinja_refuse(run, "a float cannot be formatted as '%c'", spec->type);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case '%': return format_float(run, floating ? number.number : (double)integer, spec);
    default: return jinja_refuse(run, "a number cannot be formatted as '%c'", spec->type);
    }
}
