/* SPDX-License-Identifier: Apache-2.0 */
/* Printing as Python does: {{ [1, 'a', none] }} is [1, 'a', None]. */
#include "template_print.h"

#include "template_loop.h"
#include "template_run.h"
#include "template_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- numbers ----------------------------------------------------------------------------- */

/* digits "12345" and the power of ten of the first one, of a finite number */
static int float_digits(double number, char digits[20], int *exponent)
{
    char text[40];
    int precision = 0;
    do
        snprintf(text, sizeof(text), "%.*e", precision, number);
    while (strtod(text, NULL) != number && ++precision < 17);
    int count = 0;
    const char *c = text;
    for (; *c && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            digits[count++] = *c;
    *exponent = *c ? atoi(c + 1) : 0;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    digits[count] = '\0';
    return count;
}

size_t jinja_float_text(double number, char out[FLOAT_TEXT_MAX])
{
    char digits[20];
    int exponent, length = 0;
    if (isnan(number) || isinf(number))
        return (size_t)sprintf(out, "%s", isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
    int count = float_digits(number, digits, &exponent);
    if (signbit(number))
        out[length++] = '-';
    if (exponent < -4 || exponent >= 16)
        return (size_t)(length + sprintf(out + length, "%c%s%.*se%c%02d", digits[0],
                                         count > 1 ? "." : "", count - 1, digits + 1,
                                         exponent < 0 ? '-' : '+', abs(exponent)));
    if (exponent < 0)
        return (size_t)(length +
                        sprintf(out + length, "0.%.*s%s", -exponent - 1, "000", digits));
    int whole = exponent + 1, zeros = whole > count ? whole - count : 0;
    int known = whole < count ? whole : count;
    return (size_t)(length + sprintf(out + length, "%.*s%.*s.%s", known, digits, zeros,
                                     "0000000000000000", count > whole ? digits + whole : "0"));
}

static bool print_integer(struct run *run, int64_t integer)
{
    char text[24];
    int length = snprintf(text, sizeof(text), "%" PRId64, integer);
    return jinja_write(run, text, (size_t)length);
}

/* ---- strings ----------------------------------------------------------------------------- */

static bool is_printable(int32_t character)
{
    if (character < 0x7f)
        return character >= ' ';
    switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO: return false;
    default: return true;
    }
}

static bool print_escaped(struct run *run, int32_t character, char quote)
{
    char text[16];
    int length;
    switch (character) {
    case '\n': return jinja_write_text(run, "\\n");
    case '\r': return jinja_write_text(run, "\\r");
    case '\t': return jinja_write_text(run, "\\t");
    case '\\': return jinja_write_text(run, "\\\\");
    default: break;
    }
    if (character == quote)
        length = snprintf(text, sizeof(text), "\\%c", quote);
    else
        length = snprintf(text, sizeof(text),
                          character < 0x100     ? "\\x%02x"
                          : character < 0x10000 ? "\\u%04x"
                                                : "\\U%08x",
                          (unsigned)character);
    return jinja_write(run, text, (size_t)length);
}

static bool print_string_quoted(struct run *run, struct value string)
{
    struct text text = value_text(string);
    bool single = text.length && memchr(text.bytes, '\'', text.length);
    bool twofold = text.length && memchr(text.bytes, '"', text.length);
    char quote = single && !twofold ? '"' : '\'';
    if ((string.markup && !jinja_write_text(run, "Markup(")) || !jinja_write(run, &quote, 1))
        return false;
    for (size_t i = 0, step; i < text.length; i += step) {
        int32_t character = jinja_text_decode(text, i, &step);
        bool plain = is_printable(character) && character != quote && character != '\\';
        if (plain ? !jinja_write(run, text.bytes + i, step)
                  : !print_escaped(run, character, quote))
            return false;
    }
    return jinja_charge(run, text.length) && jinja_write(run, &quote, 1) &&
           (!string.markup || jinja_write_text(run, ")"));
}

/* ---- containers -------------------------------------------------------------------------- */

static bool print_items(struct run *run, const struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        if ((i && !jinja_write_text(run, ", ")) || !jinja_print_quoted(run, list->items[i]))
            return false;
    return true;
}

static bool print_list(struct run *run, struct value list)
{
    bool tuple = list.type == VALUE_TUPLE;
    return jinja_write(run, tuple ? "(" : "[", 1) && print_items(run, list.list) &&
           (!tuple || list.list->count != 1 || jinja_write_text(run, ",")) &&
           jinja_write(run, tuple ? ")" : "]", 1);
}

static bool print_dict(struct run *run, const struct dict *dict)
{
    if (!jinja_write_text(run, "{"))
        return false;
    for (size_t i = 0; i < dict->count; i++)
        if ((i && !jinja_write_text(run, ", ")) ||
            !jinja_print_quoted(run, dict->entries[i].key) || !jinja_write_text(run, ": ") ||
            !jinja_print_quoted(run, dict->entries[i].value))
            return false;
    return jinja_write_text(run, "}");
}

static bool print_view(struct run *run, struct value view)
{
    static const char *const names[] = {
        [VIEW_KEYS] = "dict_keys(",
        [VIEW_VALUES] = "dict_values(",
        [VIEW_ITEMS] = "dict_items(",
    };
    struct value list;
    return jinja_list_from(run, view, &list) &&
           jinja_write(run, names[view.detail], strlen(names[view.detail])) &&
           jinja_print_quoted(run, list) && jinja_write_text(run, ")");
}

static bool print_range(struct run *run, const struct range *range)
{
    return jinja_write_text(run, "range(") && print_integer(run, range->start) &&
           jinja_write_text(run, ", ") && print_integer(run, range->stop) &&
           (range->step == 1 ||
            (jinja_write_text(run, ", ") && print_integer(run, range->step))) &&
           jinja_write_text(run, ")");
}

static bool print_loop(struct run *run, struct loop *loop)
{
    size_t index, length;
    char text[64];
    if (!jinja_loop_position(run, loop, &index, &length))
        return false;
    int count = snprintf(text, sizeof(text), "<LoopContext %zu/%zu>", index, length);
    return jinja_write(run, text, (size_t)count);
}

static bool print_macro(struct run *run, const struct macro *macro)
{
    struct text name = macro->node->name;
    if (!name.bytes)
        return jinja_write_text(run, "<Macro anonymous>");
    return jinja_write_text(run, "<Macro ") &&
           print_string_quoted(run, value_string(name.bytes, name.length)) &&
           jinja_write_text(run, ">");
}

static bool print_nested(struct run *run, struct value value)
{
    switch ((enum value_type)value.type) {
    case VALUE_LIST:
    case VALUE_TUPLE: return print_list(run, value);
    case VALUE_DICT: return print_dict(run, value.dict);
    case VALUE_VIEW: return print_view(run, value);
    default:
        return jinja_write_text(run, "<Namespace ") && print_dict(run, value.dict) &&
               jinja_write_text(run, ">");
    }
}

bool jinja_print_quoted(struct run *run, struct value value)
{
    char number[FLOAT_TEXT_MAX];
    if (!jinja_charge(run, 0))
        return false;
    switch ((enum value_type)value.type) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED: return jinja_write_text(run, "Undefined");
    case VALUE_NONE: return jinja_write_text(run, "None");
    case VALUE_BOOLEAN:
        return value.boolean ? jinja_write_text(run, "True") : jinja_write_text(run, "False");
    case VALUE_INTEGER: return print_integer(run, value.integer);
    case VALUE_FLOAT: return jinja_write(run, number, jinja_float_text(value.number, number));
    case VALUE_STRING: return print_string_quoted(run, value);
    case VALUE_RANGE: return print_range(run, value.range);
    case VALUE_LOOP: return print_loop(run, value.loop);
    case VALUE_MACRO: return print_macro(run, value.macro);
    case VALUE_ITERATOR:
    case VALUE_FUNCTION:
    case VALUE_METHOD: return jinja_refuse(run, "%s cannot be printed", jinja_type_name(value));
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
    case VALUE_VIEW:
    case VALUE_NAMESPACE: break;
    }
    if (!jinja_enter(run) || !print_nested(run, value))
        return false;
    jinja_leave(run);
    return true;
}

bool jinja_print(struct run *run, struct value value)
{
    if (value.type == VALUE_STRING)
        return jinja_write(run, value.bytes, value.length);
    if (value.type == VALUE_UNDEFINED)
        return true;
    return jinja_print_quoted(run, value);
}

bool jinja_to_string(struct run *run, struct value value, struct value *out)
{
    size_t mark = run->sink.length;
    if (value.type == VALUE_STRING) {
        *out = value;
        return true;
    }
    return jinja_print(run, value) && jinja_cut(run, mark, out);
}

/* ---- escaping ---------------------------------------------------------------------------- */

static const char *entity_of(char byte)
{
    switch (byte) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '\'': return "&#39;";
    case '"': return "&#34;";
    default: return NULL;
    }
}

bool jinja_escape(struct run *run, struct value value, struct value *out)
{
    size_t mark = run->sink.length, plain = 0;
    struct value string;
    if (!jinja_to_string(run, value, &string))
        return false;
    if (!string.markup) {
        for (size_t i = 0; i < string.length; i++) {
            const char *entity = entity_of(string.bytes[i]);
            if (!entity)
                continue;
            if (!jinja_write(run, string.bytes + plain, i - plain) ||
                !jinja_write(run, entity, strlen(entity)))
                return false;
            plain = i + 1;
        }
        if (!jinja_write(run, string.bytes + plain, string.length - plain) ||
            !jinja_cut(run, mark, &string))
            return false;
    }
    string.markup = true;
    *out = string;
    return true;
}
