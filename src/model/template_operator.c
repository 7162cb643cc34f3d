/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic as in Python, but for integers of 64 bits: what does not fit is an error, never a
 * wrong number. Booleans are the integers 0 and 1. */
#include "template_evaluate.h"

#include "template_format.h"
#include "template_print.h"

#include <math.h>
#include <string.h>

bool jinja_refuse_undefined(struct run *run, struct value undefined)
{
    if (undefined.detail == VALUE_MISSING)
        return jinja_refuse(run, "'%.*s' is undefined", JINJA_QUOTE(undefined));
    return jinja_refuse(run, "%s has no attribute '%.*s'",
                        jinja_type_name(value_of(undefined.detail)), JINJA_QUOTE(undefined));
}

static bool is_integer(struct value value)
{
    return value.type == VALUE_INTEGER || value.type == VALUE_BOOLEAN;
}

static bool is_number(struct value value)
{
    return is_integer(value) || value.type == VALUE_FLOAT;
}

static int64_t integer_of(struct value value)
{
    return value.type == VALUE_BOOLEAN ? value.boolean : value.integer;
}

static double float_of(struct value value)
{
    return value.type == VALUE_FLOAT ? value.number : (double)integer_of(value);
}

static bool refuse_overflow(struct run *run)
{
    return jinja_refuse(run, "a result does not fit into 64 bits");
}

static bool refuse_zero(struct run *run)
{
    return jinja_refuse(run, "division by zero");
}

static bool refuse_operands(struct run *run, int operation, struct value left,
                            struct value right)
{
    return jinja_refuse(run, "%s cannot be applied to %s and %s",
                        jinja_token_name((enum token_type)operation), jinja_type_name(left),
                        jinja_type_name(right));
}

/* ---- integers ---------------------------------------------------------------------------- */

/* Rounded down, and a remainder with the sign of the divisor. */
static bool integer_divide(struct run *run, int64_t a, int64_t b, bool remainder, int64_t *out)
{
    if (b == 0)
        return refuse_zero(run);
    if (b == -1) { /* the one case in which C's division overflows */
        if (!remainder && a == INT64_MIN)
            return refuse_overflow(run);
        *out = remainder ? 0 : -a;
        return true;
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = remainder ? rest : quotient;
    return true;
}

static bool integer_power(struct run *run, int64_t base, int64_t exponent, struct value *out)
{
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0)
            return refuse_zero(run);
        *out = value_float(pow((double)base, (double)exponent));
        return true;
    }
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return refuse_overflow(run);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            return refuse_overflow(run);
    }
    *out = value_integer(result);
    return true;
}

static bool integer_operate(struct run *run, int operation, int64_t a, int64_t b,
                            struct value *out)
{
    int64_t result = 0;
    switch (operation) {
    case TOKEN_ADD:
        if (__builtin_add_overflow(a, b, &result))
            return refuse_overflow(run);
        break;
    case TOKEN_SUBTRACT:
        if (__builtin_sub_overflow(a, b, &result))
            return refuse_overflow(run);
        break;
    case TOKEN_MULTIPLY:
        if (__builtin_mul_overflow(a, b, &result))
            return refuse_overflow(run);
        break;
    case TOKEN_DIVIDE:
        if (b == 0)
            return refuse_zero(run);
        *out = value_float((double)a / (double)b);
        return true;
    case TOKEN_POWER: return integer_power(run, a, b, out);
    default:
        if (!integer_divide(run, a, b, operation == TOKEN_MODULO, &result))
            return false;
    }
    *out = value_integer(result);
    return true;
}

/* ---- floats ------------------------------------------------------------------------------ */

static void float_divide(double a, double b, double *quotient, double *rest)
{
    *rest = fmod(a, b);
    double division = (a - *rest) / b;
    if (*rest != 0) {
        if ((b < 0) != (*rest < 0)) {
            *rest += b;
            division -= 1;
        }
    } else {
        *rest = copysign(0, b);
    }
    *quotient = floor(division);
    if (division - *quotient > 0.5)
        *quotient += 1;
    if (division == 0)
        *quotient = copysign(0, a / b);
}

static bool float_power(struct run *run, double a, double b, struct value *out)
{
    if (a == 0 && b < 0)
        return refuse_zero(run);
    double result = pow(a, b);
    if (isnan(result) && !isnan(a) && !isnan(b))
        return jinja_refuse(run, "a negative number has no such power");
    if (isinf(result) && !isinf(a) && !isinf(b))
        return jinja_refuse(run, "the result of '**' is too large");
    *out = value_float(result);
    return true;
}

static bool float_operate(struct run *run, int operation, double a, double b, struct value *out)
{
    double quotient, rest;
    switch (operation) {
    case TOKEN_ADD: *out = value_float(a + b); return true;
    case TOKEN_SUBTRACT: *out = value_float(a - b); return true;
    case TOKEN_MULTIPLY: *out = value_float(a * b); return true;
    case TOKEN_POWER: return float_power(run, a, b, out);
    default: break;
    }
    if (b == 0)
        return refuse_zero(run);
    if (operation == TOKEN_DIVIDE) {
        *out = value_float(a / b);
        return true;
    }
    float_divide(a, b, &quotient, &rest);
    *out = value_float(operation == TOKEN_MODULO ? rest : quotient);
    return true;
}

/* ---- strings and lists ------------------------------------------------------------------- */

/* A string that is marked as markup escapes the other one. */
static bool strings_add(struct run *run, struct value left, struct value right,
                        struct value *out)
{
    bool markup = left.markup || right.markup;
    if (markup && (!jinja_escape(run, left, &left) || !jinja_escape(run, right, &right)))
        return false;
    if (!jinja_join(run, left, right, out))
        return false;
    out->markup = markup;
    return true;
}

static bool lists_add(struct run *run, struct value left, struct value right, struct value *out)
{
    struct value sum;
    if (!jinja_list_new(run, left.type, left.list->count + right.list->count, &sum))
        return false;
    for (size_t i = 0; i < left.list->count; i++)
        sum.list->items[sum.list->count++] = left.list->items[i];
    for (size_t i = 0; i < right.list->count; i++)
        sum.list->items[sum.list->count++] = right.list->items[i];
    *out = sum;
    return jinja_charge(run, sum.list->count);
}

static bool string_repeat(struct run *run, struct value string, int64_t times,
                          struct value *out)
{
    size_t mark = run->sink.length;
    if (string.length == 0 || times <= 0) {
        *out = value_string("", 0);
    } else {
        for (int64_t i = 0; i < times; i++)
            if (!jinja_charge(run, 0) || !jinja_write(run, string.bytes, string.length))
                return false;
        if (!jinja_cut(run, mark, out))
            return false;
    }
    out->markup = string.markup;
    return true;
}

static bool list_repeat(struct run *run, struct value list, int64_t times, struct value *out)
{
    struct value repeated;
    if (!jinja_list_new(run, list.type, 0, &repeated))
        return false;
    for (int64_t i = 0; i < times && list.list->count; i++) {
        if (!jinja_charge(run, list.list->count))
            return false;
        for (size_t k = 0; k < list.list->count; k++)
            if (!jinja_list_append(run, repeated.list, list.list->items[k]))
                return false;
    }
    *out = repeated;
    return true;
}

static bool repeat(struct run *run, struct value what, int64_t times, struct value *out)
{
    return what.type == VALUE_STRING ? string_repeat(run, what, times, out)
                                     : list_repeat(run, what, times, out);
}

static bool is_sequence(struct value value)
{
    return value.type == VALUE_STRING || value.type == VALUE_LIST || value.type == VALUE_TUPLE;
}

bool jinja_operate(struct run *run, int operation, struct value left, struct value right,
                   struct value *out)
{
    if (operation == TOKEN_MODULO && left.type == VALUE_STRING)
        return jinja_format_percent(run, left, right, out);
    if (left.type == VALUE_UNDEFINED || right.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, left.type == VALUE_UNDEFINED ? left : right);
    if (is_integer(left) && is_integer(right))
        return integer_operate(run, operation, integer_of(left), integer_of(right), out);
    if (is_number(left) && is_number(right))
        return float_operate(run, operation, float_of(left), float_of(right), out);
    if (operation == TOKEN_ADD && left.type == right.type && left.type == VALUE_STRING)
        return strings_add(run, left, right, out);
    if (operation == TOKEN_ADD && left.type == right.type && is_sequence(left))
        return lists_add(run, left, right, out);
    if (operation == TOKEN_MULTIPLY && is_sequence(left) && is_integer(right))
        return repeat(run, left, integer_of(right), out);
    if (operation == TOKEN_MULTIPLY && is_integer(left) && is_sequence(right))
        return repeat(run, right, integer_of(left), out);
    return refuse_operands(run, operation, left, right);
}

bool jinja_negate(struct run *run, struct value operand, bool negative, struct value *out)
{
    if (operand.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, operand);
    if (operand.type == VALUE_FLOAT) {
        *out = value_float(negative ? -operand.number : operand.number);
        return true;
    }
    if (!is_integer(operand))
        return jinja_refuse(run, "%s has no negative", jinja_type_name(operand));
    int64_t integer = integer_of(operand);
    if (negative && __builtin_sub_overflow(0, integer, &integer))
        return refuse_overflow(run);
    *out = value_integer(integer);
    return true;
}
