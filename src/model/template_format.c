/* SPDX-License-Identifier: Apache-2.0 */
/* The two little languages of format strings. Of `{}`, specs inside of specs are not supported;
 * of %, a width of `*` is not. */
#include "template_format.h"

#include "template_evaluate.h"
#include "template_print.h"
#include "template_text.h"

#include <math.h>
#include <string.h>

struct formatter {
    struct run *run;
    struct text format;
    size_t at;
    bool escape; /* the format is marked as markup: what goes into it is escaped */
};

static bool at_end(const struct formatter *formatter)
{
    return formatter->at >= formatter->format.length;
}

/* NUL at the end. */
static char look(const struct formatter *formatter)
{
    return at_end(formatter) ? '\0' : formatter->format.bytes[formatter->at];
}

static bool skip(struct formatter *formatter, char byte)
{
    if (at_end(formatter) || look(formatter) != byte)
        return false;
    formatter->at++;
    return true;
}

static bool read_number(struct formatter *formatter, int32_t *out)
{
    int32_t number = 0;
    while (look(formatter) >= '0' && look(formatter) <= '9') {
        number = 10 * number + (look(formatter) - '0');
        if (number > FORMAT_WIDTH_MAX)
            return jinja_fail(formatter->run, BATON_ELIMIT,
                              "a number in a format string is larger than %d",
                              FORMAT_WIDTH_MAX);
        formatter->at++;
    }
    *out = number;
    return true;
}

/* str or repr of a value, as text. */
static bool value_as_text(struct formatter *formatter, struct value value, bool quoted,
                          struct value *out)
{
    struct run *run = formatter->run;
    size_t mark = run->sink.length;
    if (quoted ? !jinja_print_quoted(run, value) || !jinja_cut(run, mark, out)
               : !jinja_to_string(run, value, out))
        return false;
    return !formatter->escape || jinja_escape(run, *out, out);
}

static bool is_number(struct value value)
{
    return value.type == VALUE_INTEGER || value.type == VALUE_BOOLEAN ||
           value.type == VALUE_FLOAT;
}

/* Plain text up to one of the two bytes. */
static bool write_until(struct formatter *formatter, char a, char b)
{
    size_t from = formatter->at;
    while (!at_end(formatter) && look(formatter) != a && look(formatter) != b)
        formatter->at++;
    return jinja_write(formatter->run, formatter->format.bytes + from, formatter->at - from);
}

/* ---- % ----------------------------------------------------------------------------------- */

struct percent_values {
    struct value values;
    size_t next; /* of a tuple */
    bool used_names;
};

static bool percent_next(struct formatter *formatter, struct percent_values *values,
                         struct value *out)
{
    bool tuple = values->values.type == VALUE_TUPLE;
    size_t count = tuple ? values->values.list->count : 1;
    if (values->next >= count)
        return jinja_refuse(formatter->run, "%% has too few values for its format");
    *out = tuple ? values->values.list->items[values->next] : values->values;
    values->next++;
    return true;
}

/* %(name)s */
static bool percent_named(struct formatter *formatter, struct percent_values *values,
                          struct value *out)
{
    size_t from = formatter->at, depth = 1;
    while (!at_end(formatter) && depth) {
        depth += look(formatter) == '(';
        depth -= look(formatter) == ')';
        formatter->at++;
    }
    if (depth || values->values.type != VALUE_DICT)
        return jinja_refuse(formatter->run, "%%(name) in a format needs a dict");
    struct text name = jinja_text_slice(formatter->format, from, formatter->at - 1);
    const struct entry *entry = jinja_dict_find(formatter->run, values->values.dict, name);
    if (!entry)
        return jinja_refuse(formatter->run, "%%: the dict has no '%.*s'", JINJA_QUOTE(name));
    values->used_names = true;
    *out = entry->value;
    return true;
}

static bool percent_flags(struct formatter *formatter, struct format_spec *spec)
{
    for (;; formatter->at++) {
        switch (look(formatter)) {
        case '-': spec->align = '<'; break;
        case '+': spec->sign = '+'; break;
        case ' ': spec->sign = spec->sign ? spec->sign : ' '; break;
        case '#': spec->alternate = true; break;
        case '0':
            if (spec->align != '<')
                spec->align = '=';
            break;
        default: goto numbers;
        }
    }
numbers:
    if (look(formatter) == '*')
        return jinja_fail(formatter->run, BATON_EUNSUPPORTED,
                          "a width of * in a format is not supported");
    if (!read_number(formatter, &spec->width))
        return false;
    spec->precision = -1;
    return !skip(formatter, '.') || read_number(formatter, &spec->precision);
}

static bool percent_number(struct formatter *formatter, struct value value,
                           struct format_spec *spec)
{
    bool integer = strchr("dixXo", spec->type) != NULL;
    if (value.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(formatter->run, value);
    if (!is_number(value))
        return jinja_refuse(formatter->run, "%%%c needs a number, not %s", spec->type,
                            jinja_type_name(value));
    if (integer && value.type == VALUE_FLOAT) {
        if ((spec->type != 'd' && spec->type != 'i') || !(fabs(value.number) < 9e18))
            return jinja_refuse(formatter->run, "%%%c needs an integer", spec->type);
        value = value_integer((int64_t)value.number);
    }
    if (integer && spec->precision > 0)
        return jinja_fail(formatter->run, BATON_EUNSUPPORTED,
                          "a precision of integers in a format is not supported");
    if (spec->type == 'i')
        spec->type = 'd';
    if (spec->align == '=') {
        spec->fill[0] = '0';
        spec->fill_length = 1;
    }
    return jinja_format_number(formatter->run, value, spec);
}

static bool percent_character(struct formatter *formatter, struct value value,
                              const struct format_spec *spec)
{
    char bytes[4];
    struct text text = {bytes, 0};
    if (value.type == VALUE_STRING && jinja_text_count(value_text(value)) == 1)
        text = value_text(value);
    else if (value.type == VALUE_INTEGER && value.integer >= 0 && value.integer < 0x110000 &&
             (value.integer < 0xd800 || value.integer >= 0xe000))
        text.length = (uint32_t)jinja_text_encode((int32_t)value.integer, bytes);
    else
        return jinja_refuse(formatter->run, "%%c needs one character");
    return jinja_format_string(formatter->run, text, spec);
}

/* After the %. */
static bool percent_item(struct formatter *formatter, struct percent_values *values)
{
    struct format_spec spec = {0};
    struct value value = value_of(VALUE_MISSING), text;
    if (skip(formatter, '(') && !percent_named(formatter, values, &value))
        return false;
    if (!percent_flags(formatter, &spec))
        return false;
    spec.type = look(formatter);
    formatter->at++;
    if (spec.type == '%')
        return jinja_write_text(formatter->run, "%");
    if (!spec.type || !strchr("srdiuxXoeEfFgGc", spec.type))
        return jinja_refuse(formatter->run, "a format has an unknown or unfinished '%%'");
    if (!value_given(value) && !percent_next(formatter, values, &value))
        return false;
    if (spec.type == 'u')
        spec.type = 'd';
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'c')
        spec.align = spec.align == '<' ? '<' : '>'; /* a zero means nothing here */
    if (spec.type == 'c')
        return percent_character(formatter, value, &spec);
    if (spec.type != 's' && spec.type != 'r')
        return percent_number(formatter, value, &spec);
    return value_as_text(formatter, value, spec.type == 'r', &text) &&
           jinja_format_string(formatter->run, value_text(text), &spec);
}

bool jinja_format_percent(struct run *run, struct value format, struct value values,
                          struct value *out)
{
    struct formatter formatter = {
        .run = run, .format = value_text(format), .escape = format.markup};
    struct percent_values state = {.values = values};
    size_t mark = run->sink.length;
    while (!at_end(&formatter)) {
        if (!jinja_charge(run, 0) || !write_until(&formatter, '%', '%') ||
            (skip(&formatter, '%') && !percent_item(&formatter, &state)))
            return false;
    }
    size_t count = values.type == VALUE_TUPLE ? values.list->count : 1;
    bool mapping = values.type == VALUE_DICT || values.type == VALUE_LIST ||
                   values.type == VALUE_RANGE || values.type == VALUE_UNDEFINED;
    if (state.next < count && !state.used_names && !mapping)
        return jinja_refuse(run, "%% has more values than its format");
    if (!jinja_cut(run, mark, out))
        return false;
    out->markup = format.markup;
    return true;
}

/* ---- {} ---------------------------------------------------------------------------------- */

struct brace_values {
    const struct arguments *arguments;
    size_t next;
    bool numbered; /* {0} and {} do not go together */
};

static bool brace_positional(struct formatter *formatter, struct brace_values *values,
                             struct text number, struct value *out)
{
    size_t index = 0;
    if (number.length == 0 ? values->numbered : values->next > 0)
        return jinja_refuse(formatter->run, "a format has both {} and {0}");
    for (size_t i = 0; i < number.length && index < SIZE_MAX / 20; i++)
        index = 10 * index + (size_t)(number.bytes[i] - '0');
    if (number.length == 0)
        index = values->next++;
    else
        values->numbered = true;
    if (index >= values->arguments->positional_count)
        return jinja_refuse(formatter->run, "a format has too few values");
    *out = values->arguments->positional[index];
    return true;
}

static bool brace_named(struct formatter *formatter, const struct brace_values *values,
                        struct text name, struct value *out)
{
    const struct arguments *arguments = values->arguments;
    for (size_t i = 0; i < arguments->keyword_count; i++) {
        struct text keyword = arguments->keywords[i].name;
        if (keyword.length == name.length &&
            memcmp(keyword.bytes, name.bytes, name.length) == 0) {
            *out = arguments->keywords[i].value;
            return true;
        }
    }
    return jinja_refuse(formatter->run, "a format has no value for '%.*s'", JINJA_QUOTE(name));
}

static bool all_digits(struct text text)
{
    for (size_t i = 0; i < text.length; i++)
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return false;
    return true;
}

/* Up to one of these bytes, or the end. */
static struct text read_word(struct formatter *formatter, const char *ends)
{
    size_t from = formatter->at;
    while (!at_end(formatter) && (look(formatter) == '\0' || !strchr(ends, look(formatter))))
        formatter->at++;
    return jinja_text_slice(formatter->format, from, formatter->at);
}

/* name, number or nothing, then .attributes and [items] */
static bool brace_field(struct formatter *formatter, struct brace_values *values,
                        struct value *out)
{
    struct text word = read_word(formatter, ".[!:}");
    if (all_digits(word) ? !brace_positional(formatter, values, word, out)
                         : !brace_named(formatter, values, word, out))
        return false;
    for (;;) {
        bool item = look(formatter) == '[';
        if (!item && look(formatter) != '.')
            return true;
        formatter->at++;
        word = read_word(formatter, item ? "]" : ".[!:}");
        if ((item && !skip(formatter, ']')) || word.length == 0)
            return jinja_refuse(formatter->run, "a format has an unfinished field");
        struct method_set methods = jinja_methods_find(word);
        struct value index = value_string(word.bytes, word.length);
        if (item && all_digits(word) && word.length < 10) {
            index = value_integer(0);
            for (size_t i = 0; i < word.length; i++)
                index.integer = 10 * index.integer + (word.bytes[i] - '0');
        }
        if (item ? !jinja_item(formatter->run, *out, index, out)
                 : !jinja_attribute(formatter->run, *out, word, &methods, out))
            return false;
    }
}

/* [[fill]align][sign][#][0][width][grouping][.precision][type] */
static bool brace_spec(struct formatter *formatter, struct format_spec *spec)
{
    struct text rest =
        jinja_text_slice(formatter->format, formatter->at, formatter->format.length);
    size_t step = rest.length ? jinja_text_step(rest, 0) : 0;
    if (step < rest.length && memchr("<>=^", rest.bytes[step], 4)) {
        memcpy(spec->fill, rest.bytes, step);
        spec->fill_length = (uint32_t)step;
        spec->align = rest.bytes[step];
        formatter->at += step + 1;
    } else if (rest.length && memchr("<>=^", rest.bytes[0], 4)) {
        spec->align = rest.bytes[0];
        formatter->at++;
    }
    if (skip(formatter, '+'))
        spec->sign = '+';
    else if (skip(formatter, ' '))
        spec->sign = ' ';
    else
        skip(formatter, '-');
    spec->alternate = skip(formatter, '#');
    if (skip(formatter, '0')) {
        spec->align = spec->align ? spec->align : '=';
        spec->fill[0] = spec->fill_length ? spec->fill[0] : '0';
        spec->fill_length = spec->fill_length ? spec->fill_length : 1;
    }
    if (!read_number(formatter, &spec->width))
        return false;
    if (look(formatter) == ',' || look(formatter) == '_')
        spec->grouping = formatter->format.bytes[formatter->at++];
    spec->precision = -1;
    if (skip(formatter, '.') && !read_number(formatter, &spec->precision))
        return false;
    if (look(formatter) != '}' && !at_end(formatter))
        spec->type = formatter->format.bytes[formatter->at++];
    if (look(formatter) != '}')
        return jinja_refuse(formatter->run, "a format has a spec that is not understood");
    return true;
}

static bool brace_value(struct formatter *formatter, struct value value,
                        const struct format_spec *spec)
{
    struct value text;
    bool plain = !spec->width && spec->precision < 0 && !spec->type && !spec->sign &&
                 !spec->grouping && !spec->alternate;
    if (is_number(value) && !(value.type == VALUE_BOOLEAN && plain))
        return jinja_format_number(formatter->run, value, spec);
    if (!plain && (value.type != VALUE_STRING || (spec->type && spec->type != 's') ||
                   spec->sign || spec->grouping || spec->alternate || spec->align == '='))
        return jinja_refuse(formatter->run, "%s cannot be formatted in this way",
                            jinja_type_name(value));
    return value_as_text(formatter, value, false, &text) &&
           jinja_format_string(formatter->run, value_text(text), spec);
}

/* After the {, up to and with the }. */
static bool brace_item(struct formatter *formatter, struct brace_values *values)
{
    struct format_spec spec = {.precision = -1};
    struct value value;
    if (!brace_field(formatter, values, &value))
        return false;
    if (skip(formatter, '!')) {
        char conversion = look(formatter);
        formatter->at++;
        if (conversion != 's' && conversion != 'r')
            return jinja_refuse(formatter->run, "a format has an unknown conversion after '!'");
        if (!value_as_text(formatter, value, conversion == 'r', &value))
            return false;
    }
    if (skip(formatter, ':') && !brace_spec(formatter, &spec))
        return false;
    if (!skip(formatter, '}'))
        return jinja_refuse(formatter->run, "a format has an unfinished '{'");
    return brace_value(formatter, value, &spec);
}

bool jinja_format_braces(struct run *run, struct value format,
                         const struct arguments *arguments, struct value *out)
{
    struct formatter formatter = {
        .run = run, .format = value_text(format), .escape = format.markup};
    struct brace_values values = {.arguments = arguments};
    size_t mark = run->sink.length;
    while (!at_end(&formatter)) {
        if (!jinja_charge(run, 0) || !write_until(&formatter, '{', '}'))
            return false;
        if (at_end(&formatter))
            break;
        char brace = formatter.format.bytes[formatter.at++];
        if (skip(&formatter, brace)) {
            if (!jinja_write(run, &brace, 1))
                return false;
        } else if (brace == '}') {
            return jinja_refuse(run, "a format has a single '}'");
        } else if (!brace_item(&formatter, &values)) {
            return false;
        }
    }
    if (!jinja_cut(run, mark, out))
        return false;
    out->markup = format.markup;
    return true;
}
