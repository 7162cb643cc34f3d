/* SPDX-License-Identifier: Apache-2.0 */
/* Tests: `value is something`. All of jinja2's. */
#include "template_builtin.h"
#include "template_compare.h"
#include "template_evaluate.h"
#include "template_print.h"
#include "template_string.h"

static bool answer(bool truth, struct value *out)
{
    *out = value_boolean(truth);
    return true;
}

/* ---- types ------------------------------------------------------------------------------- */

#define TYPE_TEST(function_, condition)                                                \
    static bool function_(struct run *run, const struct call *call, struct value *out) \
    {                                                                                  \
        struct value value = call->subject;                                            \
        (void)run;                                                                     \
        return answer(condition, out);                                                 \
    }

TYPE_TEST(test_defined, value.type != VALUE_UNDEFINED)
TYPE_TEST(test_undefined, value.type == VALUE_UNDEFINED)
TYPE_TEST(test_none, value.type == VALUE_NONE)
TYPE_TEST(test_boolean, value.type == VALUE_BOOLEAN)
TYPE_TEST(test_true, value.type == VALUE_BOOLEAN && value.boolean)
TYPE_TEST(test_false, value.type == VALUE_BOOLEAN && !value.boolean)
TYPE_TEST(test_integer, value.type == VALUE_INTEGER)
TYPE_TEST(test_float, value.type == VALUE_FLOAT)
TYPE_TEST(test_number, value.type == VALUE_INTEGER || value.type == VALUE_FLOAT ||
                           value.type == VALUE_BOOLEAN)
TYPE_TEST(test_string, value.type == VALUE_STRING)
TYPE_TEST(test_mapping, value.type == VALUE_DICT)
TYPE_TEST(test_iterable, jinja_iterable(value) || value.type == VALUE_LOOP)
TYPE_TEST(test_sequence, jinja_has_length(value) && value.type != VALUE_VIEW)
TYPE_TEST(test_callable, value.type == VALUE_MACRO || value.type == VALUE_FUNCTION ||
                             value.type == VALUE_METHOD || value.type == VALUE_LOOP ||
                             value.type == VALUE_UNDEFINED)
TYPE_TEST(test_escaped, value.type == VALUE_STRING && value.markup)

/* ---- text, names ------------------------------------------------------------------------- */

static bool test_lower(struct run *run, const struct call *call, struct value *out)
{
    struct value string;
    return jinja_to_string(run, call->subject, &string) &&
           answer(jinja_string_is_case(value_text(string), CASE_LOWER), out);
}

static bool test_upper(struct run *run, const struct call *call, struct value *out)
{
    struct value string;
    return jinja_to_string(run, call->subject, &string) &&
           answer(jinja_string_is_case(value_text(string), CASE_UPPER), out);
}

static bool test_filter(struct run *run, const struct call *call, struct value *out)
{
    struct text name;
    return jinja_need_string(run, call->subject, "filter", &name) &&
           answer(jinja_filter_find(name) != NULL, out);
}

static bool test_test(struct run *run, const struct call *call, struct value *out)
{
    struct text name;
    return jinja_need_string(run, call->subject, "test", &name) &&
           answer(jinja_test_find(name) != NULL, out);
}

/* ---- numbers ----------------------------------------------------------------------------- */

static bool remainder_is(struct run *run, struct value value, struct value divisor,
                         int64_t wanted, struct value *out)
{
    struct value rest;
    bool equal;
    return jinja_operate(run, TOKEN_MODULO, value, divisor, &rest) &&
           jinja_equal(run, rest, value_integer(wanted), &equal) && answer(equal, out);
}

static bool test_odd(struct run *run, const struct call *call, struct value *out)
{
    return remainder_is(run, call->subject, value_integer(2), 1, out);
}

static bool test_even(struct run *run, const struct call *call, struct value *out)
{
    return remainder_is(run, call->subject, value_integer(2), 0, out);
}

static bool test_divisibleby(struct run *run, const struct call *call, struct value *out)
{
    return remainder_is(run, call->subject, call->given[0], 0, out);
}

/* ---- comparisons ------------------------------------------------------------------------- */

static bool test_equal(struct run *run, const struct call *call, struct value *out)
{
    bool equal;
    return jinja_equal(run, call->subject, call->given[0], &equal) && answer(equal, out);
}

static bool test_not_equal(struct run *run, const struct call *call, struct value *out)
{
    bool equal;
    return jinja_equal(run, call->subject, call->given[0], &equal) && answer(!equal, out);
}

static bool ordered(struct run *run, struct value left, struct value right, bool or_equal,
                    struct value *out)
{
    bool truth;
    if (left.type == VALUE_UNDEFINED || right.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, left.type == VALUE_UNDEFINED ? left : right);
    return (or_equal ? jinja_less_equal(run, left, right, &truth)
                     : jinja_less(run, left, right, &truth)) &&
           answer(truth, out);
}

static bool test_less(struct run *run, const struct call *call, struct value *out)
{
    return ordered(run, call->subject, call->given[0], false, out);
}

static bool test_less_equal(struct run *run, const struct call *call, struct value *out)
{
    return ordered(run, call->subject, call->given[0], true, out);
}

static bool test_greater(struct run *run, const struct call *call, struct value *out)
{
    return ordered(run, call->given[0], call->subject, false, out);
}

static bool test_greater_equal(struct run *run, const struct call *call, struct value *out)
{
    return ordered(run, call->given[0], call->subject, true, out);
}

static bool test_in(struct run *run, const struct call *call, struct value *out)
{
    bool found;
    return jinja_contains(run, call->given[0], call->subject, &found) && answer(found, out);
}

static bool test_sameas(struct run *run, const struct call *call, struct value *out)
{
    (void)run;
    return answer(jinja_same(call->subject, call->given[0]), out);
}

static const struct builtin tests[] = {
    BUILTIN("defined", test_defined, 0),
    BUILTIN("undefined", test_undefined, 0),
    BUILTIN("none", test_none, 0),
    BUILTIN("boolean", test_boolean, 0),
    BUILTIN("true", test_true, 0),
    BUILTIN("false", test_false, 0),
    BUILTIN("integer", test_integer, 0),
    BUILTIN("float", test_float, 0),
    BUILTIN("number", test_number, 0),
    BUILTIN("string", test_string, 0),
    BUILTIN("mapping", test_mapping, 0),
    BUILTIN("iterable", test_iterable, 0),
    BUILTIN("sequence", test_sequence, 0),
    BUILTIN("callable", test_callable, 0),
    BUILTIN("escaped", test_escaped, 0),
    BUILTIN("lower", test_lower, 0),
    BUILTIN("upper", test_upper, 0),
    BUILTIN("filter", test_filter, 0),
    BUILTIN("test", test_test, 0),
    BUILTIN("odd", test_odd, 0),
    BUILTIN("even", test_even, 0),
    BUILTIN("divisibleby", test_divisibleby, 1, "num"),
    BUILTIN("==", test_equal, 1, "other"),
    BUILTIN("eq", test_equal, 1, "other"),
    BUILTIN("equalto", test_equal, 1, "other"),
    BUILTIN("!=", test_not_equal, 1, "other"),
    BUILTIN("ne", test_not_equal, 1, "other"),
    BUILTIN("<", test_less, 1, "other"),
    BUILTIN("lt", test_less, 1, "other"),
    BUILTIN("lessthan", test_less, 1, "other"),
    BUILTIN("<=", test_less_equal, 1, "other"),
    BUILTIN("le", test_less_equal, 1, "other"),
    BUILTIN(">", test_greater, 1, "other"),
    BUILTIN("gt", test_greater, 1, "other"),
    BUILTIN("greaterthan", test_greater, 1, "other"),
    BUILTIN(">=", test_greater_equal, 1, "other"),
    BUILTIN("ge", test_greater_equal, 1, "other"),
    BUILTIN("in", test_in, 1, "seq"),
    BUILTIN("sameas", test_sameas, 1, "other"),
};
const struct builtin_table jinja_tests = BUILTIN_TABLE(tests);

const struct builtin *jinja_test_find(struct text name)
{
    return jinja_builtin_find(jinja_tests, name);
}

bool jinja_test_call(struct run *run, const struct builtin *test, struct value subject,
                     const struct arguments *arguments, bool *out)
{
    struct value result;
    if (!jinja_charge(run, 0) || !jinja_builtin_call(run, test, subject, arguments, &result))
        return false;
    *out = jinja_truth(result);
    return true;
}
