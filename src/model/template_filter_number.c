/* SPDX-License-Identifier: Apache-2.0 */
/* Filters for numbers, `default` and `length`; and the one place that knows all filters. */
#include "template_builtin.h"
#include "template_evaluate.h"
#include "template_string.h"
#include "template_text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool filter_default(struct run *run, const struct call *call, struct value *out)
{
    bool boolean = value_given(call->given[1]) && jinja_truth(call->given[1]);
    (void)run;
    *out = call->subject;
    if (call->subject.type == VALUE_UNDEFINED || (boolean && !jinja_truth(call->subject)))
        *out = value_given(call->given[0]) ? call->given[0] : value_string("", 0);
    return true;
}

static bool filter_length(struct run *run, const struct call *call, struct value *out)
{
    size_t length;
    if (!jinja_length(run, call->subject, &length))
        return false;
    *out = value_integer((int64_t)length);
    return true;
}

static bool filter_abs(struct run *run, const struct call *call, struct value *out)
{
    struct value value = call->subject;
    bool negative = value.type == VALUE_FLOAT
                        ? signbit(value.number) != 0
                        : value.type == VALUE_INTEGER && value.integer < 0;
    if (value.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, value);
    return jinja_negate(run, value, negative, out);
}

/* ---- int and float ----------------------------------------------------------------------- */

#define NUMBER_TEXT_MAX 400

/* Without white space around it, and without single underscores between digits, as Python takes
 * numbers. False: it is not one. */
static bool number_text(struct text text, char out[NUMBER_TEXT_MAX])
{
    size_t to = 0;
    text = jinja_text_strip(text, NULL, true, true);
    if (text.length == 0 || text.length >= NUMBER_TEXT_MAX)
        return false;
    for (size_t i = 0; i < text.length; i++) {
        char byte = text.bytes[i];
        bool between = i > 0 && i + 1 < text.length &&
                       isalnum((unsigned char)text.bytes[i - 1]) &&
                       isalnum((unsigned char)text.bytes[i + 1]);
        if (byte == '_' && !between)
            return false;
        if (byte != '_')
            out[to++] = byte;
    }
    out[to] = '\0';
    return strlen(out) == to; /* no NUL inside */
}

static bool parse_float(struct text text, double *out)
{
    char copy[NUMBER_TEXT_MAX], *end;
    if (!number_text(text, copy))
        return false;
    const char *digits = copy + (copy[0] == '-' || copy[0] == '+');
    bool word = !strcasecmp(digits, "inf") || !strcasecmp(digits, "infinity") ||
                !strcasecmp(digits, "nan");
    if (!word && digits[strspn(digits, "0123456789.eE+-")])
        return false;
    *out = strtod(copy, &end);
    return *end == '\0' && end != copy;
}

enum parsed { PARSED, PARSED_TOO_LARGE, PARSED_NOT };

static enum parsed parse_integer(struct text text, int base, int64_t *out)
{
    char copy[NUMBER_TEXT_MAX], *end;
    if (!number_text(text, copy))
        return PARSED_NOT;
    char *digits = copy + (copy[0] == '-' || copy[0] == '+');
    char letter = digits[0] == '0' ? (char)tolower((unsigned char)digits[1]) : '\0';
    int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefix && (base == prefix || base == 0)) {
        base = prefix;
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
    } else if (base == 0) {
        base = 10;
    }
    if (!isalnum((unsigned char)digits[0]) ||
        (base == 16 && digits[0] == '0' && tolower((unsigned char)digits[1]) == 'x'))
        return PARSED_NOT; /* strtoll would take more than Python */
    errno = 0;
    *out = strtoll(copy, &end, base);
    if (*end)
        return PARSED_NOT;
    return errno ? PARSED_TOO_LARGE : PARSED;
}

/* int(float): cut off towards zero. */
static bool truncated(struct run *run, double number, struct value *out)
{
    if (!(fabs(number) < 9.2e18))
        return jinja_refuse(run, "int: the number does not fit into 64 bits");
    *out = value_integer((int64_t)number);
    return true;
}

static bool filter_int(struct run *run, const struct call *call, struct value *out)
{
    struct value value = call->subject;
    int64_t base, integer;
    double number;
    if (value.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, value);
    if (!jinja_need_integer(run, call->given[1], 10, "int", &base))
        return false;
    if (base != 0 && (base < 2 || base > 36))
        return jinja_refuse(run, "int: the base must be 0 or 2 to 36");
    *out = value_given(call->given[0]) ? call->given[0] : value_integer(0);
    switch ((enum value_type)value.type) {
    case VALUE_BOOLEAN: *out = value_integer(value.boolean); return true;
    case VALUE_INTEGER: *out = value; return true;
    case VALUE_FLOAT: return isnan(value.number) || truncated(run, value.number, out);
    case VALUE_STRING: break;
    default: return true;
    }
    switch (parse_integer(value_text(value), (int)base, &integer)) {
    case PARSED: *out = value_integer(integer); return true;
    case PARSED_TOO_LARGE:
        return jinja_refuse(run, "int: the number does not fit into 64 bits");
    case PARSED_NOT: break;
    }
    if (!parse_float(value_text(value), &number) || !isfinite(number))
        return true;
    return truncated(run, number, out);
}

static bool filter_float(struct run *run, const struct call *call, struct value *out)
{
    struct value value = call->subject;
    double number;
    if (value.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, value);
    *out = value_given(call->given[0]) ? call->given[0] : value_float(0);
    switch ((enum value_type)value.type) {
    case VALUE_BOOLEAN: *out = value_float(value.boolean); return true;
    case VALUE_INTEGER: *out = value_float((double)value.integer); return true;
    case VALUE_FLOAT: *out = value; return true;
    case VALUE_STRING:
        if (parse_float(value_text(value), &number))
            *out = value_float(number);
        return true;
    default: return true;
    }
}

/* ---- round ------------------------------------------------------------------------------- */

#define ROUND_PRECISION_MAX 30

/* printf rounds the exact value, half to even, as Python's round does. The others go through
 * integers in Python, which have no -0: hence the + 0.0. */
static bool filter_round(struct run *run, const struct call *call, struct value *out)
{
    struct value value = call->subject;
    struct text method = TEXT("common");
    char text[512];
    int64_t precision;
    if (value.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, value);
    if (!jinja_need_integer(run, call->given[0], 0, "round", &precision) ||
        (value_given(call->given[1]) &&
         !jinja_need_string(run, call->given[1], "round", &method)))
        return false;
    bool common = jinja_text_is(method, "common"), ceiling = jinja_text_is(method, "ceil");
    if (!common && !ceiling && !jinja_text_is(method, "floor"))
        return jinja_refuse(run, "round: the method must be common, ceil or floor");
    if (precision < 0 || precision > ROUND_PRECISION_MAX)
        return jinja_fail(run, BATON_EUNSUPPORTED, "round: the precision must be 0 to %d",
                          ROUND_PRECISION_MAX);
    bool integer = value.type == VALUE_INTEGER || value.type == VALUE_BOOLEAN;
    if (!integer && value.type != VALUE_FLOAT)
        return jinja_refuse(run, "round needs a number, not %s", jinja_type_name(value));
    if (integer && common)
        return jinja_negate(run, value, false, out);
    double number = value.type == VALUE_FLOAT     ? value.number
                    : value.type == VALUE_BOOLEAN ? value.boolean
                                                  : (double)value.integer;
    if (!isfinite(number)) {
        *out = value_float(number);
        return common || jinja_refuse(run, "round: the number is not finite");
    }
    double scale = pow(10, (double)precision);
    snprintf(text, sizeof(text), "%.*f", (int)precision, number);
    *out = value_float(common    ? strtod(text, NULL)
                       : ceiling ? (ceil(number * scale) + 0.0) / scale
                                 : (floor(number * scale) + 0.0) / scale);
    return true;
}

static const struct builtin filters[] = {
    BUILTIN("default", filter_default, 0, "default_value", "boolean"),
    BUILTIN("d", filter_default, 0, "default_value", "boolean"),
    BUILTIN("length", filter_length, 0),
    BUILTIN("count", filter_length, 0),
    BUILTIN("abs", filter_abs, 0),
    BUILTIN("int", filter_int, 0, "default", "base"),
    BUILTIN("float", filter_float, 0, "default"),
    BUILTIN("round", filter_round, 0, "precision", "method"),
};
const struct builtin_table jinja_number_filters = BUILTIN_TABLE(filters);

const struct builtin *jinja_filter_find(struct text name)
{
    const struct builtin_table *const tables[] = {
        &jinja_text_filters,  &jinja_number_filters, &jinja_list_filters,
        &jinja_order_filters, &jinja_select_filters, &jinja_json_filters,
    };
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        const struct builtin *filter = jinja_builtin_find(*tables[i], name);
        if (filter)
            return filter;
    }
    return NULL;
}
