/* SPDX-License-Identifier: Apache-2.0 */
/* tojson as transformers has it: json.dumps with ensure_ascii off and nothing escaped for HTML.
 * What differs from jansson's own writer: the separators, the way floats are written, and keys
 * that are no strings. */
#include "template_json.h"

#include "template_builtin.h"
#include "template_compare.h"
#include "template_print.h"
#include "template_run.h"
#include "template_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- in ---------------------------------------------------------------------------------- */

static bool list_from_json(struct run *run, const json_t *json, struct value *out)
{
    size_t count = json_array_size(json);
    if (!jinja_list_new(run, VALUE_LIST, count, out))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!jinja_from_json(run, json_array_get(json, i), &out->list->items[i]))
            return false;
    out->list->count = count;
    return true;
}

static bool dict_from_json(struct run *run, const json_t *json, struct value *out)
{
    if (!jinja_dict_new(run, VALUE_DICT, out))
        return false;
    json_t *object = (json_t *)json; /* iterators only read, but jansson does not say so */
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        struct value value;
        if (!jinja_from_json(run, json_object_iter_value(i), &value) ||
            !jinja_dict_set(run, out->dict, value_string(key, strlen(key)), value))
            return false;
    }
    return true;
}

bool jinja_from_json(struct run *run, const json_t *json, struct value *out)
{
    if (!jinja_charge(run, 0) || !jinja_enter(run))
        return false;
    switch (json_typeof(json)) {
    case JSON_NULL: *out = value_of(VALUE_NONE); break;
    case JSON_TRUE:
    case JSON_FALSE: *out = value_boolean(json_is_true(json)); break;
    case JSON_INTEGER: *out = value_integer(json_integer_value(json)); break;
    case JSON_REAL: *out = value_float(json_real_value(json)); break;
    case JSON_STRING:
        if (json_string_length(json) > UINT32_MAX / 2)
            return jinja_fail(run, BATON_ELIMIT, "a string of the context is too long");
        *out = value_string(json_string_value(json), json_string_length(json));
        break;
    case JSON_ARRAY:
        if (!list_from_json(run, json, out))
            return false;
        break;
    case JSON_OBJECT:
        if (!dict_from_json(run, json, out))
            return false;
        break;
    }
    jinja_leave(run);
    return true;
}

/* ---- out --------------------------------------------------------------------------------- */

static bool write_unicode_escape(struct run *run, int32_t character)
{
    char text[16];
    int length;
    if (character < 0x10000)
        length = snprintf(text, sizeof(text), "\\u%04x", (unsigned)character);
    else
        length = snprintf(text, sizeof(text), "\\u%04x\\u%04x",
                          0xd800u + (((unsigned)character - 0x10000) >> 10),
                          0xdc00u + (((unsigned)character - 0x10000) & 0x3ff));
    return jinja_write(run, text, (size_t)length);
}

static bool write_character(struct run *run, int32_t character)
{
    switch (character) {
    case '"': return jinja_write_text(run, "\\\"");
    case '\\': return jinja_write_text(run, "\\\\");
    case '\n': return jinja_write_text(run, "\\n");
    case '\r': return jinja_write_text(run, "\\r");
    case '\t': return jinja_write_text(run, "\\t");
    case '\f': return jinja_write_text(run, "\\f");
    case '\b': return jinja_write_text(run, "\\b");
    default: return write_unicode_escape(run, character);
    }
}

static bool write_string(struct run *run, struct text text, bool ascii)
{
    size_t plain = 0;
    if (!jinja_charge(run, text.length) || !jinja_write_text(run, "\""))
        return false;
    for (size_t i = 0, step; i < text.length; i += step) {
        int32_t character = jinja_text_decode(text, i, &step);
        if (character >= ' ' && character != '"' && character != '\\' &&
            (!ascii || character < 0x7f))
            continue;
        if (!jinja_write(run, text.bytes + plain, i - plain) ||
            !write_character(run, character))
            return false;
        plain = i + step;
    }
    return jinja_write(run, text.bytes + plain, text.length - plain) &&
           jinja_write_text(run, "\"");
}

static bool write_number(struct run *run, struct value value)
{
    char text[FLOAT_TEXT_MAX];
    size_t length;
    if (value.type == VALUE_INTEGER)
        length = (size_t)snprintf(text, sizeof(text), "%" PRId64, value.integer);
    else if (isnan(value.number))
        length = (size_t)snprintf(text, sizeof(text), "NaN");
    else if (isinf(value.number))
        length =
            (size_t)snprintf(text, sizeof(text), "%sInfinity", value.number < 0 ? "-" : "");
    else
        length = jinja_float_text(value.number, text);
    return jinja_write(run, text, length);
}

/* The new line and its indentation in a pretty list. */
static bool write_break(struct run *run, const struct json_style *style, uint32_t depth)
{
    if (!style->pretty)
        return true;
    if (!jinja_write_text(run, "\n"))
        return false;
    for (uint32_t i = 0; i < depth; i++)
        if (!jinja_write(run, style->indent.bytes, style->indent.length))
            return false;
    return true;
}

static bool write_value(struct run *run, struct value value, const struct json_style *style,
                        uint32_t depth);

static bool write_key(struct run *run, struct value key, const struct json_style *style)
{
    switch ((enum value_type)key.type) {
    case VALUE_STRING: return write_string(run, value_text(key), style->ascii);
    case VALUE_NONE: return jinja_write_text(run, "\"null\"");
    case VALUE_BOOLEAN:
        return key.boolean ? jinja_write_text(run, "\"true\"")
                           : jinja_write_text(run, "\"false\"");
    case VALUE_INTEGER:
    case VALUE_FLOAT:
        return jinja_write_text(run, "\"") && write_number(run, key) &&
               jinja_write_text(run, "\"");
    default: return jinja_refuse(run, "%s cannot be a key in JSON", jinja_type_name(key));
    }
}

static bool write_list(struct run *run, const struct list *list, const struct json_style *style,
                       uint32_t depth)
{
    if (list->count == 0)
        return jinja_write_text(run, "[]");
    if (!jinja_write_text(run, "["))
        return false;
    for (size_t i = 0; i < list->count; i++)
        if ((i && !jinja_write(run, style->comma.bytes, style->comma.length)) ||
            !write_break(run, style, depth + 1) ||
            !write_value(run, list->items[i], style, depth + 1))
            return false;
    return write_break(run, style, depth) && jinja_write_text(run, "]");
}

/* The entries' numbers, by key. */
static bool sorted_entries(struct run *run, const struct dict *dict, struct value *numbers)
{
    struct value *keys = jinja_alloc(run, dict->count, sizeof(*keys));
    if (!keys)
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        keys[i] = dict->entries[i].key;
        numbers[i] = value_integer((int64_t)i);
    }
    return jinja_sort(run, numbers, keys, dict->count, false);
}

static bool write_dict(struct run *run, const struct dict *dict, const struct json_style *style,
                       uint32_t depth)
{
    struct value *numbers = NULL;
    if (dict->count == 0)
        return jinja_write_text(run, "{}");
    if (style->sort_keys && (!(numbers = jinja_alloc(run, dict->count, sizeof(*numbers))) ||
                             !sorted_entries(run, dict, numbers)))
        return false;
    if (!jinja_write_text(run, "{"))
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        const struct entry *entry = &dict->entries[numbers ? (size_t)numbers[i].integer : i];
        if ((i && !jinja_write(run, style->comma.bytes, style->comma.length)) ||
            !write_break(run, style, depth + 1) || !write_key(run, entry->key, style) ||
            !jinja_write(run, style->colon.bytes, style->colon.length) ||
            !write_value(run, entry->value, style, depth + 1))
            return false;
    }
    return write_break(run, style, depth) && jinja_write_text(run, "}");
}

static bool write_value(struct run *run, struct value value, const struct json_style *style,
                        uint32_t depth)
{
    bool good;
    if (!jinja_charge(run, 0) || !jinja_enter(run))
        return false;
    switch ((enum value_type)value.type) {
    case VALUE_NONE: good = jinja_write_text(run, "null"); break;
    case VALUE_BOOLEAN:
        good = value.boolean ? jinja_write_text(run, "true") : jinja_write_text(run, "false");
        break;
    case VALUE_INTEGER:
    case VALUE_FLOAT: good = write_number(run, value); break;
    case VALUE_STRING: good = write_string(run, value_text(value), style->ascii); break;
    case VALUE_LIST:
    case VALUE_TUPLE: good = write_list(run, value.list, style, depth); break;
    case VALUE_DICT: good = write_dict(run, value.dict, style, depth); break;
    default: good = jinja_refuse(run, "%s has no form in JSON", jinja_type_name(value)); break;
    }
    jinja_leave(run);
    return good;
}

bool jinja_to_json(struct run *run, struct value value, const struct json_style *style)
{
    return write_value(run, value, style, 0);
}

/* ---- the filters ------------------------------------------------------------------------- */

static bool style_indent(struct run *run, struct value indent, struct json_style *style)
{
    struct value spaces;
    size_t mark = run->sink.length;
    if (!value_given(indent) || indent.type == VALUE_NONE)
        return true;
    style->pretty = true;
    style->comma = TEXT(",");
    if (indent.type == VALUE_STRING) {
        style->indent = value_text(indent);
        return true;
    }
    if (indent.type != VALUE_INTEGER && indent.type != VALUE_BOOLEAN)
        return jinja_refuse(run, "tojson: indent is %s", jinja_type_name(indent));
    int64_t width = indent.type == VALUE_BOOLEAN ? indent.boolean : indent.integer;
    if (!jinja_write_repeated(run, ' ', width > 0 ? (size_t)width : 0) ||
        !jinja_cut(run, mark, &spaces))
        return false;
    style->indent = value_text(spaces);
    return true;
}

static bool style_separators(struct run *run, struct value separators, struct json_style *style)
{
    if (!value_given(separators) || separators.type == VALUE_NONE)
        return true;
    if ((separators.type != VALUE_TUPLE && separators.type != VALUE_LIST) ||
        separators.list->count != 2 || separators.list->items[0].type != VALUE_STRING ||
        separators.list->items[1].type != VALUE_STRING)
        return jinja_refuse(run, "tojson: separators must be two strings");
    style->comma = value_text(separators.list->items[0]);
    style->colon = value_text(separators.list->items[1]);
    return true;
}

static bool filter_tojson(struct run *run, const struct call *call, struct value *out)
{
    struct json_style style = {.comma = TEXT(", "), .colon = TEXT(": ")};
    size_t mark = run->sink.length;
    style.ascii = value_given(call->given[0]) && jinja_truth(call->given[0]);
    style.sort_keys = value_given(call->given[3]) && jinja_truth(call->given[3]);
    return style_indent(run, call->given[1], &style) &&
           style_separators(run, call->given[2], &style) &&
           jinja_to_json(run, call->subject, &style) && jinja_cut(run, mark, out);
}

/* Strings of a parsed text must live as long as the rendering. */
static bool copy_strings(struct run *run, struct value *value)
{
    char *bytes;
    switch ((enum value_type)value->type) {
    case VALUE_STRING:
        if (!(bytes = jinja_alloc(run, value->length, 1)))
            return false;
        memcpy(bytes, value->bytes, value->length);
        value->bytes = bytes;
        return true;
    case VALUE_LIST:
        for (size_t i = 0; i < value->list->count; i++)
            if (!copy_strings(run, &value->list->items[i]))
                return false;
        return true;
    case VALUE_DICT:
        for (size_t i = 0; i < value->dict->count; i++)
            if (!copy_strings(run, &value->dict->entries[i].key) ||
                !copy_strings(run, &value->dict->entries[i].value))
                return false;
        return true;
    default: return true;
    }
}

static bool filter_from_json(struct run *run, const struct call *call, struct value *out)
{
    json_error_t problem;
    if (call->subject.type != VALUE_STRING)
        return jinja_refuse(run, "from_json needs a string, not %s",
                            jinja_type_name(call->subject));
    json_t *json = json_loadb(call->subject.bytes, call->subject.length,
                              JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    if (!json)
        return jinja_refuse(run, "from_json: %s (at byte %d)", problem.text, problem.position);
    bool good = jinja_charge(run, call->subject.length) && jinja_from_json(run, json, out) &&
                copy_strings(run, out);
    json_decref(json);
    return good;
}

static const struct builtin filters[] = {
    BUILTIN("tojson", filter_tojson, 0, "ensure_ascii", "indent", "separators", "sort_keys"),
    BUILTIN("from_json", filter_from_json, 0),
};
const struct builtin_table jinja_json_filters = BUILTIN_TABLE(filters);
