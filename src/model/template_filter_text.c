/* SPDX-License-Identifier: Apache-2.0 */
/* Filters for text. Most take any value and make a string of it first. */
#include "template_builtin.h"
#include "template_evaluate.h"
#include "template_format.h"
#include "template_print.h"
#include "template_string.h"
#include "template_text.h"

static bool filter_string(struct run *run, const struct call *call, struct value *out)
{
    return jinja_to_string(run, call->subject, out);
}

static bool filter_trim(struct run *run, const struct call *call, struct value *out)
{
    struct value string;
    struct text set, text;
    bool all = !value_given(call->given[0]) || call->given[0].type == VALUE_NONE;
    if (!jinja_to_string(run, call->subject, &string) ||
        (!all && !jinja_need_string(run, call->given[0], "trim", &set)))
        return false;
    text = value_text(string);
    if (!jinja_charge(run, text.length + (all ? 0 : (size_t)text.length * set.length)))
        return false;
    text = jinja_text_strip(text, all ? NULL : &set, true, true);
    *out = value_string(text.bytes, text.length);
    out->markup = string.markup;
    return true;
}

static bool recase(struct run *run, const struct call *call, enum letter_case letters,
                   struct value *out)
{
    struct value string;
    if (!jinja_to_string(run, call->subject, &string) ||
        !jinja_string_case(run, value_text(string), letters, out))
        return false;
    out->markup = string.markup;
    return true;
}

static bool filter_upper(struct run *run, const struct call *call, struct value *out)
{
    return recase(run, call, CASE_UPPER, out);
}

static bool filter_lower(struct run *run, const struct call *call, struct value *out)
{
    return recase(run, call, CASE_LOWER, out);
}

static bool filter_capitalize(struct run *run, const struct call *call, struct value *out)
{
    return recase(run, call, CASE_CAPITAL, out);
}

static bool is_word_break(int32_t character)
{
    return character == '-' || character == '(' || character == '{' || character == '[' ||
           character == '<' || jinja_is_space(character);
}

/* Not Python's title: words begin after white space and some marks, not after a quote. */
static bool filter_title(struct run *run, const struct call *call, struct value *out)
{
    size_t mark = run->sink.length;
    struct value string, part;
    if (!jinja_to_string(run, call->subject, &string))
        return false;
    struct text text = value_text(string);
    bool start = true;
    for (size_t i = 0, step; i < text.length; i += step) {
        int32_t character = jinja_text_decode(text, i, &step);
        if (!jinja_string_case(run, jinja_text_slice(text, i, i + step),
                               start ? CASE_UPPER : CASE_LOWER, &part) ||
            !jinja_print(run, part))
            return false;
        start = is_word_break(character);
    }
    return jinja_cut(run, mark, out);
}

static bool filter_replace(struct run *run, const struct call *call, struct value *out)
{
    struct value string, old, new;
    int64_t most = -1;
    bool all = !value_given(call->given[2]) || call->given[2].type == VALUE_NONE;
    return jinja_to_string(run, call->subject, &string) &&
           jinja_to_string(run, call->given[0], &old) &&
           jinja_to_string(run, call->given[1], &new) &&
           (all || jinja_need_integer(run, call->given[2], -1, "replace", &most)) &&
           jinja_string_replace(run, value_text(string), value_text(old), value_text(new), most,
                                out);
}

static bool filter_safe(struct run *run, const struct call *call, struct value *out)
{
    if (!jinja_to_string(run, call->subject, out))
        return false;
    out->markup = true;
    return true;
}

static bool filter_escape(struct run *run, const struct call *call, struct value *out)
{
    return jinja_escape(run, call->subject, out);
}

static bool filter_forceescape(struct run *run, const struct call *call, struct value *out)
{
    struct value string;
    if (!jinja_to_string(run, call->subject, &string))
        return false;
    string.markup = false;
    return jinja_escape(run, string, out);
}

static bool filter_center(struct run *run, const struct call *call, struct value *out)
{
    struct value string;
    int64_t width;
    if (!jinja_to_string(run, call->subject, &string) ||
        !jinja_need_integer(run, call->given[0], 80, "center", &width) ||
        !jinja_string_pad(run, value_text(string), width, TEXT(" "), '^', out))
        return false;
    out->markup = string.markup;
    return true;
}

/* 'format string' | format(values) */
static bool filter_format(struct run *run, const struct call *call, struct value *out)
{
    const struct arguments *arguments = call->arguments;
    struct value string, values;
    if (arguments->positional_count && arguments->keyword_count)
        return jinja_refuse(run, "format takes values with names or without, not both");
    if (!jinja_to_string(run, call->subject, &string))
        return false;
    if (arguments->keyword_count) {
        if (!jinja_dict_new(run, VALUE_DICT, &values) ||
            !jinja_dict_update(run, values.dict, arguments))
            return false;
    } else {
        if (!jinja_list_new(run, VALUE_TUPLE, 0, &values))
            return false;
        for (size_t i = 0; i < arguments->positional_count; i++)
            if (!jinja_list_append(run, values.list, arguments->positional[i]))
                return false;
    }
    return jinja_format_percent(run, string, values, out);
}

static bool filter_wordcount(struct run *run, const struct call *call, struct value *out)
{
    struct value string;
    int64_t count = 0;
    bool inside = false;
    if (!jinja_to_string(run, call->subject, &string) || !jinja_charge(run, string.length))
        return false;
    struct text text = value_text(string);
    for (size_t i = 0, step; i < text.length; i += step) {
        bool word = jinja_is_word_character(jinja_text_decode(text, i, &step));
        count += word && !inside;
        inside = word;
    }
    *out = value_integer(count);
    return true;
}

/* ---- indent and truncate ----------------------------------------------------------------- */

static bool indent_width(struct run *run, struct value width, struct value *out)
{
    size_t mark = run->sink.length;
    int64_t spaces;
    if (width.type == VALUE_STRING) {
        *out = width;
        return true;
    }
    if (!jinja_need_integer(run, width, 4, "indent", &spaces))
        return false;
    return jinja_write_repeated(run, ' ', spaces > 0 ? (size_t)spaces : 0) &&
           jinja_cut(run, mark, out);
}

/* Every line but the first, and but empty ones. Whatever ended a line becomes a newline. */
static bool filter_indent(struct run *run, const struct call *call, struct value *out)
{
    bool first = value_given(call->given[1]) && jinja_truth(call->given[1]);
    bool blank = value_given(call->given[2]) && jinja_truth(call->given[2]);
    size_t mark = run->sink.length;
    struct text text;
    struct value by;
    if (call->subject.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, call->subject);
    if (!jinja_need_string(run, call->subject, "indent", &text) ||
        !indent_width(run, call->given[0], &by) || !jinja_charge(run, text.length))
        return false;
    bool start = true, any = false; /* at the start of a line; not in the first line */
    for (size_t i = 0; i <= text.length;) {
        size_t end = i < text.length ? jinja_text_line_end(text, i) : 0;
        bool empty = i == text.length || end;
        if (start && (any ? blank || !empty : first) && !jinja_print(run, by))
            return false;
        start = end > 0;
        if (i == text.length)
            break;
        size_t step = end ? end : jinja_text_step(text, i);
        if (end ? !jinja_write_text(run, "\n") : !jinja_write(run, text.bytes + i, step))
            return false;
        any |= start;
        i += step;
    }
    if (!jinja_cut(run, mark, out))
        return false;
    out->markup = call->subject.markup;
    return true;
}

static bool filter_truncate(struct run *run, const struct call *call, struct value *out)
{
    bool kill_words = value_given(call->given[1]) && jinja_truth(call->given[1]);
    struct text text, end = TEXT("...");
    int64_t length, leeway;
    size_t count;
    if (!jinja_need_integer(run, call->given[0], 255, "truncate", &length) ||
        (value_given(call->given[2]) &&
         !jinja_need_string(run, call->given[2], "truncate", &end)) ||
        !jinja_need_integer(run, call->given[3], 5, "truncate", &leeway) ||
        !jinja_length(run, call->subject, &count))
        return false;
    int64_t end_length = (int64_t)jinja_text_count(end);
    if (length < end_length || leeway < 0 || leeway > INT32_MAX || length > INT32_MAX)
        return jinja_refuse(run, "truncate: the length or the leeway is out of range");
    *out = call->subject;
    if ((int64_t)count <= length + leeway)
        return true; /* whatever it is */
    if (!jinja_need_string(run, call->subject, "truncate", &text))
        return false;
    text = jinja_text_slice(text, 0, jinja_text_offset(text, (size_t)(length - end_length)));
    ssize_t space = kill_words ? -1 : jinja_text_find_last(text, TEXT(" "));
    if (space >= 0)
        text = jinja_text_slice(text, 0, (size_t)space);
    return jinja_join(run, value_string(text.bytes, text.length),
                      value_string(end.bytes, end.length), out);
}

static const struct builtin filters[] = {
    BUILTIN("string", filter_string, 0),
    BUILTIN("trim", filter_trim, 0, "chars"),
    BUILTIN("upper", filter_upper, 0),
    BUILTIN("lower", filter_lower, 0),
    BUILTIN("capitalize", filter_capitalize, 0),
    BUILTIN("title", filter_title, 0),
    BUILTIN("replace", filter_replace, 2, "old", "new", "count"),
    BUILTIN("safe", filter_safe, 0),
    BUILTIN("escape", filter_escape, 0),
    BUILTIN("e", filter_escape, 0),
    BUILTIN("forceescape", filter_forceescape, 0),
    BUILTIN("center", filter_center, 0, "width"),
    BUILTIN_ANY("format", filter_format),
    BUILTIN("wordcount", filter_wordcount, 0),
    BUILTIN("indent", filter_indent, 0, "width", "first", "blank"),
    BUILTIN("truncate", filter_truncate, 0, "length", "killwords", "end", "leeway"),
};
const struct builtin_table jinja_text_filters = BUILTIN_TABLE(filters);
