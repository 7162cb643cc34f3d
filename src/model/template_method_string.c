/* SPDX-License-Identifier: Apache-2.0 */
/* The methods of strings, except those that take them apart (template_method_split.c). Those of
 * a string that is marked as markup give marked strings. */
#include "template_builtin.h"
#include "template_format.h"
#include "template_print.h"
#include "template_run.h"
#include "template_string.h"
#include "template_text.h"

#include <string.h>

/* ---- white space and case ---------------------------------------------------------------- */

static bool strip(struct run *run, const struct call *call, bool left, bool right,
                  struct value *out)
{
    struct text set, text = value_text(call->subject);
    bool all = !value_given(call->given[0]) || call->given[0].type == VALUE_NONE;
    if (!all && !jinja_need_string(run, call->given[0], "strip", &set))
        return false;
    if (!jinja_charge(run, text.length + (all ? 0 : (size_t)text.length * set.length)))
        return false;
    text = jinja_text_strip(text, all ? NULL : &set, left, right);
    *out = value_string(text.bytes, text.length);
    out->markup = call->subject.markup;
    return true;
}

static bool method_strip(struct run *run, const struct call *call, struct value *out)
{
    return strip(run, call, true, true, out);
}

static bool method_lstrip(struct run *run, const struct call *call, struct value *out)
{
    return strip(run, call, true, false, out);
}

static bool method_rstrip(struct run *run, const struct call *call, struct value *out)
{
    return strip(run, call, false, true, out);
}

static bool recase(struct run *run, const struct call *call, enum letter_case letters,
                   struct value *out)
{
    if (!jinja_string_case(run, value_text(call->subject), letters, out))
        return false;
    out->markup = call->subject.markup;
    return true;
}

static bool method_upper(struct run *run, const struct call *call, struct value *out)
{
    return recase(run, call, CASE_UPPER, out);
}

static bool method_lower(struct run *run, const struct call *call, struct value *out)
{
    return recase(run, call, CASE_LOWER, out);
}

static bool method_title(struct run *run, const struct call *call, struct value *out)
{
    return recase(run, call, CASE_TITLE, out);
}

static bool method_capitalize(struct run *run, const struct call *call, struct value *out)
{
    return recase(run, call, CASE_CAPITAL, out);
}

static bool pad(struct run *run, const struct call *call, char align, struct value *out)
{
    struct text fill = TEXT(" ");
    int64_t width;
    if (!jinja_need_integer(run, call->given[0], 0, "filling up a text", &width) ||
        (value_given(call->given[1]) &&
         !jinja_need_string(run, call->given[1], "filling up a text", &fill)) ||
        !jinja_string_pad(run, value_text(call->subject), width, fill, align, out))
        return false;
    out->markup = call->subject.markup;
    return true;
}

static bool method_center(struct run *run, const struct call *call, struct value *out)
{
    return pad(run, call, '^', out);
}

static bool method_ljust(struct run *run, const struct call *call, struct value *out)
{
    return pad(run, call, '<', out);
}

static bool method_rjust(struct run *run, const struct call *call, struct value *out)
{
    return pad(run, call, '>', out);
}

/* A sign stays in front. */
static bool method_zfill(struct run *run, const struct call *call, struct value *out)
{
    struct text text = value_text(call->subject);
    size_t sign = text.length && (text.bytes[0] == '-' || text.bytes[0] == '+');
    int64_t width;
    struct value padded;
    if (!jinja_need_integer(run, call->given[0], 0, "zfill", &width) ||
        !jinja_string_pad(run, jinja_text_slice(text, sign, text.length),
                          width - (width > 0 && sign), TEXT("0"), '>', &padded) ||
        !jinja_join(run, value_string(text.bytes, sign), padded, out))
        return false;
    out->markup = call->subject.markup;
    return true;
}

/* ---- finding ----------------------------------------------------------------------------- */

/* An optional bound, as in slices: negative from the end, clamped. In bytes. */
static bool bound_offset(struct run *run, struct text text, struct value bound, size_t missing,
                         bool *beyond, size_t *out)
{
    int64_t number;
    if (!value_given(bound) || bound.type == VALUE_NONE) {
        *out = missing;
        return true;
    }
    if (!jinja_need_integer(run, bound, 0, "a bound", &number))
        return false;
    int64_t count = (int64_t)jinja_text_count(text);
    if (number < 0)
        number = number < -count ? 0 : number + count;
    *beyond = number > count;
    *out = jinja_text_offset(text, (size_t)number);
    return true;
}

/* The part between start and end (arguments 1 and 2), and where it begins. */
static bool part_of(struct run *run, const struct call *call, struct text *part, size_t *from,
                    bool *nowhere)
{
    struct text text = value_text(call->subject);
    bool beyond = false, unused = false;
    size_t to;
    if (!jinja_charge(run, text.length) ||
        !bound_offset(run, text, call->given[1], 0, &beyond, from) ||
        !bound_offset(run, text, call->given[2], text.length, &unused, &to))
        return false;
    *nowhere = beyond || *from > to;
    *part = *nowhere ? TEXT("") : jinja_text_slice(text, *from, to);
    return true;
}

static bool find(struct run *run, const struct call *call, bool last, bool must,
                 struct value *out)
{
    struct text text = value_text(call->subject), wanted, part;
    size_t from;
    bool nowhere;
    ssize_t found = -1;
    if (!jinja_need_string(run, call->given[0], "find", &wanted) ||
        !part_of(run, call, &part, &from, &nowhere))
        return false;
    if (last && !jinja_charge(run, (size_t)part.length * (wanted.length + 1)))
        return false;
    if (!nowhere)
        found = last ? jinja_text_find_last(part, wanted) : jinja_text_find(part, wanted, 0);
    if (found < 0 && must)
        return jinja_refuse(run, "index: '%.*s' is not in the string", JINJA_QUOTE(wanted));
    int64_t index = -1;
    if (found >= 0)
        index = (int64_t)jinja_text_count(jinja_text_slice(text, 0, from + (size_t)found));
    *out = value_integer(index);
    return true;
}

static bool method_find(struct run *run, const struct call *call, struct value *out)
{
    return find(run, call, false, false, out);
}

static bool method_rfind(struct run *run, const struct call *call, struct value *out)
{
    return find(run, call, true, false, out);
}

static bool method_index(struct run *run, const struct call *call, struct value *out)
{
    return find(run, call, false, true, out);
}

static bool method_rindex(struct run *run, const struct call *call, struct value *out)
{
    return find(run, call, true, true, out);
}

static bool method_count(struct run *run, const struct call *call, struct value *out)
{
    struct text wanted, part;
    size_t from, at = 0;
    bool nowhere;
    int64_t count = 0;
    if (!jinja_need_string(run, call->given[0], "count", &wanted) ||
        !part_of(run, call, &part, &from, &nowhere))
        return false;
    if (nowhere)
        count = 0;
    else if (wanted.length == 0)
        count = (int64_t)jinja_text_count(part) + 1;
    else
        for (ssize_t found; (found = jinja_text_find(part, wanted, at)) >= 0; count++)
            at = (size_t)found + wanted.length;
    *out = value_integer(count);
    return true;
}

/* A string, or a tuple of them of which one suffices. */
static bool affix(struct run *run, const struct call *call, const char *what,
                  bool (*test)(struct text text, struct text with), struct value *out)
{
    struct text part, with;
    size_t from;
    bool nowhere, found = false;
    struct value wanted = call->given[0];
    struct list one = {.items = &wanted, .count = 1};
    const struct list *list = wanted.type == VALUE_TUPLE ? wanted.list : &one;
    if (!part_of(run, call, &part, &from, &nowhere))
        return false;
    for (size_t i = 0; i < list->count && !found; i++) {
        if (!jinja_need_string(run, list->items[i], what, &with))
            return false;
        found = !nowhere && test(part, with);
    }
    *out = value_boolean(found);
    return true;
}

static bool method_startswith(struct run *run, const struct call *call, struct value *out)
{
    return affix(run, call, "startswith", jinja_text_starts, out);
}

static bool method_endswith(struct run *run, const struct call *call, struct value *out)
{
    return affix(run, call, "endswith", jinja_text_ends, out);
}

static bool method_removeprefix(struct run *run, const struct call *call, struct value *out)
{
    struct text text = value_text(call->subject), with;
    if (!jinja_need_string(run, call->given[0], "removeprefix", &with))
        return false;
    if (jinja_text_starts(text, with))
        text = jinja_text_slice(text, with.length, text.length);
    *out = value_string(text.bytes, text.length);
    out->markup = call->subject.markup;
    return true;
}

static bool method_removesuffix(struct run *run, const struct call *call, struct value *out)
{
    struct text text = value_text(call->subject), with;
    if (!jinja_need_string(run, call->given[0], "removesuffix", &with))
        return false;
    if (jinja_text_ends(text, with))
        text = jinja_text_slice(text, 0, text.length - with.length);
    *out = value_string(text.bytes, text.length);
    out->markup = call->subject.markup;
    return true;
}

/* ---- making ------------------------------------------------------------------------------ */

static bool method_replace(struct run *run, const struct call *call, struct value *out)
{
    struct text old, new;
    int64_t most;
    struct value replacement = call->given[1];
    if (!jinja_need_string(run, call->given[0], "replace", &old) ||
        !jinja_need_string(run, replacement, "replace", &new) ||
        !jinja_need_integer(run, call->given[2], -1, "replace", &most))
        return false;
    if (call->subject.markup && !jinja_escape(run, replacement, &replacement))
        return false;
    if (!jinja_string_replace(run, value_text(call->subject), old, value_text(replacement),
                              most, out))
        return false;
    out->markup = call->subject.markup;
    return true;
}

static bool method_join(struct run *run, const struct call *call, struct value *out)
{
    size_t mark = run->sink.length;
    struct iteration iteration;
    struct value item;
    if (!jinja_iterate(run, call->given[0], &iteration))
        return false;
    for (bool first = true;; first = false) {
        if (!jinja_charge(run, 0) || !jinja_iterate_next(run, &iteration, &item))
            return false;
        if (!value_given(item))
            break;
        if (item.type != VALUE_STRING)
            return jinja_refuse(run, "join needs strings, not %s", jinja_type_name(item));
        if ((call->subject.markup && !jinja_escape(run, item, &item)) ||
            (!first && !jinja_print(run, call->subject)) || !jinja_print(run, item))
            return false;
    }
    if (!jinja_cut(run, mark, out))
        return false;
    out->markup = call->subject.markup;
    return true;
}

static bool method_format(struct run *run, const struct call *call, struct value *out)
{
    return jinja_format_braces(run, call->subject, call->arguments, out);
}

/* ---- asking ------------------------------------------------------------------------------ */

static bool method_isalpha(struct run *run, const struct call *call, struct value *out)
{
    *out = value_boolean(jinja_string_is_class(value_text(call->subject), CLASS_ALPHA));
    return jinja_charge(run, call->subject.length);
}

static bool method_isdigit(struct run *run, const struct call *call, struct value *out)
{
    *out = value_boolean(jinja_string_is_class(value_text(call->subject), CLASS_DIGIT));
    return jinja_charge(run, call->subject.length);
}

static bool method_isalnum(struct run *run, const struct call *call, struct value *out)
{
    *out = value_boolean(jinja_string_is_class(value_text(call->subject), CLASS_ALPHANUMERIC));
    return jinja_charge(run, call->subject.length);
}

static bool method_isspace(struct run *run, const struct call *call, struct value *out)
{
    *out = value_boolean(jinja_string_is_class(value_text(call->subject), CLASS_SPACE));
    return jinja_charge(run, call->subject.length);
}

static bool method_isascii(struct run *run, const struct call *call, struct value *out)
{
    *out = value_boolean(jinja_string_is_class(value_text(call->subject), CLASS_ASCII));
    return jinja_charge(run, call->subject.length);
}

static bool method_isupper(struct run *run, const struct call *call, struct value *out)
{
    *out = value_boolean(jinja_string_is_case(value_text(call->subject), CASE_UPPER));
    return jinja_charge(run, call->subject.length);
}

static bool method_islower(struct run *run, const struct call *call, struct value *out)
{
    *out = value_boolean(jinja_string_is_case(value_text(call->subject), CASE_LOWER));
    return jinja_charge(run, call->subject.length);
}

static const struct builtin methods[] = {
    BUILTIN("strip", method_strip, 0, "chars"),
    BUILTIN("lstrip", method_lstrip, 0, "chars"),
    BUILTIN("rstrip", method_rstrip, 0, "chars"),
    BUILTIN("upper", method_upper, 0),
    BUILTIN("lower", method_lower, 0),
    BUILTIN("title", method_title, 0),
    BUILTIN("capitalize", method_capitalize, 0),
    BUILTIN("center", method_center, 1, "width", "fillchar"),
    BUILTIN("ljust", method_ljust, 1, "width", "fillchar"),
    BUILTIN("rjust", method_rjust, 1, "width", "fillchar"),
    BUILTIN("zfill", method_zfill, 1, "width"),
    BUILTIN("find", method_find, 1, "sub", "start", "end"),
    BUILTIN("rfind", method_rfind, 1, "sub", "start", "end"),
    BUILTIN("index", method_index, 1, "sub", "start", "end"),
    BUILTIN("rindex", method_rindex, 1, "sub", "start", "end"),
    BUILTIN("count", method_count, 1, "sub", "start", "end"),
    BUILTIN("startswith", method_startswith, 1, "prefix", "start", "end"),
    BUILTIN("endswith", method_endswith, 1, "suffix", "start", "end"),
    BUILTIN("removeprefix", method_removeprefix, 1, "prefix"),
    BUILTIN("removesuffix", method_removesuffix, 1, "suffix"),
    BUILTIN("replace", method_replace, 2, "old", "new", "count"),
    BUILTIN("join", method_join, 1, "iterable"),
    BUILTIN_ANY("format", method_format),
    BUILTIN("isalpha", method_isalpha, 0),
    BUILTIN("isdigit", method_isdigit, 0),
    BUILTIN("isalnum", method_isalnum, 0),
    BUILTIN("isspace", method_isspace, 0),
    BUILTIN("isascii", method_isascii, 0),
    BUILTIN("isupper", method_isupper, 0),
    BUILTIN("islower", method_islower, 0),
};
const struct builtin_table jinja_string_methods = BUILTIN_TABLE(methods);
