/* SPDX-License-Identifier: Apache-2.0 */
/* object.name looks for a method first and for a key after that; object['name'] the other way
 * round. What is not there is undefined, which is an error only when it is used. */
#include "template_evaluate.h"

#include "template_loop.h"
#include "template_text.h"

#include <ctype.h>

/* ---- methods ----------------------------------------------------------------------------- */

struct method_set jinja_methods_find(struct text name)
{
    struct method_set methods = {
        .of_string = jinja_builtin_find(jinja_string_methods, name),
        .of_list = jinja_builtin_find(jinja_list_methods, name),
        .of_tuple = jinja_builtin_find(jinja_tuple_methods, name),
        .of_dict = jinja_builtin_find(jinja_dict_methods, name),
        .of_loop = jinja_builtin_find(jinja_loop_methods, name),
    };
    if (!methods.of_string)
        methods.of_string = jinja_builtin_find(jinja_split_methods, name);
    return methods;
}

const struct builtin *jinja_method_of(const struct method_set *methods, enum value_type type)
{
    switch (type) {
    case VALUE_STRING: return methods->of_string;
    case VALUE_LIST: return methods->of_list;
    case VALUE_TUPLE: return methods->of_tuple;
    case VALUE_DICT: return methods->of_dict;
    case VALUE_LOOP: return methods->of_loop;
    default: return NULL;
    }
}

static bool method_value(struct run *run, const struct builtin *builtin, struct value subject,
                         struct value *out)
{
    struct method *method = jinja_alloc(run, 1, sizeof(*method));
    if (!method)
        return false;
    *method = (struct method){builtin, subject};
    *out = (struct value){.type = VALUE_METHOD, .method = method};
    return true;
}

/* ---- attributes -------------------------------------------------------------------------- */

static bool macro_attribute(const struct macro *macro, struct text name, struct value *out)
{
    if (!jinja_text_is(name, "name"))
        return false;
    *out = value_string(macro->node->name.bytes, macro->node->name.length);
    return true;
}

bool jinja_attribute(struct run *run, struct value object, struct text name,
                     const struct method_set *methods, struct value *out)
{
    const struct builtin *method = jinja_method_of(methods, object.type);
    const struct entry *entry = NULL;
    if (object.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, object);
    if (method)
        return method_value(run, method, object, out);
    if (object.type == VALUE_LOOP)
        return jinja_loop_attribute(run, object.loop, name, out);
    if (object.type == VALUE_MACRO && macro_attribute(object.macro, name, out))
        return true;
    if (object.type == VALUE_DICT || object.type == VALUE_NAMESPACE)
        entry = jinja_dict_find(run, object.dict, name);
    *out = entry ? entry->value : value_undefined(name, object.type);
    return true;
}

/* ---- items ------------------------------------------------------------------------------- */

/* The item number `index` of `count`, from the end if it is negative. */
static bool index_resolve(struct value index, size_t count, size_t *out)
{
    int64_t number = index.type == VALUE_BOOLEAN ? index.boolean : index.integer;
    if (number < 0)
        number += (int64_t)count;
    *out = (size_t)number;
    return number >= 0 && (size_t)number < count;
}

static bool string_item(struct run *run, struct value string, struct value index,
                        struct value *out)
{
    struct text text = value_text(string);
    size_t number;
    if (!jinja_charge(run, text.length))
        return false;
    if (index_resolve(index, jinja_text_count(text), &number)) {
        size_t offset = jinja_text_offset(text, number);
        *out = value_string(text.bytes + offset, jinja_text_step(text, offset));
        out->markup = string.markup;
    }
    return true;
}

static bool numbered_item(struct run *run, struct value object, struct value index,
                          struct value *out)
{
    size_t number;
    switch ((enum value_type)object.type) {
    case VALUE_STRING: return string_item(run, object, index, out);
    case VALUE_LIST:
    case VALUE_TUPLE:
        if (index_resolve(index, object.list->count, &number))
            *out = object.list->items[number];
        return true;
    case VALUE_RANGE:
        if (index_resolve(index, object.range->count, &number))
            *out = value_integer(jinja_range_item(object.range, number));
        return true;
    default: return true;
    }
}

/* Keys that cannot be hashed are simply not there. */
static bool hashable(struct value key)
{
    switch ((enum value_type)key.type) {
    case VALUE_NONE:
    case VALUE_BOOLEAN:
    case VALUE_INTEGER:
    case VALUE_FLOAT:
    case VALUE_STRING: return true;
    case VALUE_TUPLE:
        for (size_t i = 0; i < key.list->count; i++)
            if (key.list->items[i].type == VALUE_TUPLE || !hashable(key.list->items[i]))
                return false;
        return true;
    default: return false;
    }
}

bool jinja_item(struct run *run, struct value object, struct value index, struct value *out)
{
    struct entry *entry = NULL;
    struct text name = index.type == VALUE_STRING ? value_text(index) : TEXT("such an item");
    if (object.type == VALUE_UNDEFINED)
        return jinja_refuse_undefined(run, object);
    if (object.type == VALUE_DICT && hashable(index)) {
        if (!jinja_dict_get(run, object.dict, index, &entry))
            return false;
        if (entry) {
            *out = entry->value;
            return true;
        }
    }
    if (index.type == VALUE_STRING) {
        struct method_set methods = jinja_methods_find(name);
        return jinja_attribute(run, object, name, &methods, out);
    }
    *out = value_undefined(name, object.type);
    if (index.type == VALUE_INTEGER || index.type == VALUE_BOOLEAN)
        return numbered_item(run, object, index, out);
    return true;
}

/* A part of a path: digits are the number of an item. */
static struct value path_index(struct text part)
{
    int64_t number = 0;
    for (size_t i = 0; i < part.length; i++) {
        if (!isdigit((unsigned char)part.bytes[i]) || i == 18)
            return value_string(part.bytes, part.length);
        number = 10 * number + (part.bytes[i] - '0');
    }
    return part.length ? value_integer(number) : value_string("", 0);
}

static bool path_step(struct run *run, struct value object, struct value index,
                      const struct value *otherwise, struct value *out)
{
    if (!jinja_charge(run, 0) || !jinja_item(run, object, index, out))
        return false;
    if (out->type == VALUE_UNDEFINED && otherwise)
        *out = *otherwise;
    return true;
}

bool jinja_attribute_path(struct run *run, struct value object, struct value path,
                          const struct value *otherwise, struct value *out)
{
    *out = object;
    if (path.type != VALUE_STRING)
        return path_step(run, object, path, otherwise, out);
    struct text rest = value_text(path);
    for (bool more = true; more;) {
        ssize_t dot = jinja_text_find(rest, TEXT("."), 0);
        more = dot >= 0;
        struct text part = jinja_text_slice(rest, 0, more ? (size_t)dot : rest.length);
        if (!path_step(run, *out, path_index(part), otherwise, out))
            return false;
        if (more)
            rest = jinja_text_slice(rest, (size_t)dot + 1, rest.length);
    }
    return true;
}

/* ---- slices ------------------------------------------------------------------------------ */

struct slice {
    int64_t start, stop, step;
    size_t count;
};

static bool slice_integer(struct run *run, struct value bound, int64_t missing, int64_t *out)
{
    if (bound.type == VALUE_NONE)
        *out = missing;
    else if (bound.type == VALUE_INTEGER)
        *out = bound.integer;
    else if (bound.type == VALUE_BOOLEAN)
        *out = bound.boolean;
    else
        return jinja_refuse(run, "a slice needs integers, not %s", jinja_type_name(bound));
    return true;
}

/* Negative bounds count from the end; those beyond the ends are moved to them. */
static int64_t slice_clamp(int64_t bound, int64_t count, int64_t least, int64_t most)
{
    if (bound < 0)
        bound = bound < -count ? -1 : bound + count;
    return bound < least ? least : bound > most ? most : bound;
}

/* A negative step starts at the end. */
static bool slice_resolve(struct run *run, const struct value bounds[3], size_t length,
                          struct slice *out)
{
    int64_t count = (int64_t)length, start = 0, stop = 0, step = 0;
    if (!slice_integer(run, bounds[2], 1, &step))
        return false;
    if (step == 0)
        return jinja_refuse(run, "the step of a slice is 0");
    if (step == INT64_MIN)
        step++;
    int64_t least = step < 0 ? -1 : 0, most = step < 0 ? count - 1 : count;
    if (!slice_integer(run, bounds[0], step < 0 ? INT64_MAX : 0, &start) ||
        !slice_integer(run, bounds[1], step < 0 ? INT64_MIN : INT64_MAX, &stop))
        return false;
    start = slice_clamp(start, count, least, most);
    stop = slice_clamp(stop, count, least, most);
    int64_t span = step < 0 ? start - stop : stop - start;
    uint64_t stride = step < 0 ? (uint64_t)-step : (uint64_t)step;
    *out = (struct slice){.start = start, .stop = stop, .step = step};
    if (span > 0)
        out->count = (size_t)(((uint64_t)span - 1) / stride + 1);
    return true;
}

/* The offsets of all characters, for steps other than 1. */
static bool string_slice_steps(struct run *run, struct text text, size_t length,
                               struct slice slice, struct value *out)
{
    size_t mark = run->sink.length, offset = 0;
    uint32_t *offsets = jinja_alloc(run, length + 1, sizeof(*offsets));
    if (!offsets)
        return false;
    for (size_t i = 0; i < length; i++) {
        offsets[i] = (uint32_t)offset;
        offset += jinja_text_step(text, offset);
    }
    offsets[length] = text.length;
    for (size_t i = 0; i < slice.count; i++) {
        size_t at = (size_t)(slice.start + (int64_t)i * slice.step);
        if (!jinja_write(run, text.bytes + offsets[at], offsets[at + 1] - offsets[at]))
            return false;
    }
    return jinja_cut(run, mark, out);
}

static bool string_slice(struct run *run, struct value string, const struct value bounds[3],
                         struct value *out)
{
    struct text text = value_text(string);
    struct slice slice;
    size_t length = jinja_text_count(text);
    if (!jinja_charge(run, text.length) || !slice_resolve(run, bounds, length, &slice))
        return false;
    if (slice.count == 0) {
        *out = value_string("", 0);
    } else if (slice.step == 1) {
        size_t from = jinja_text_offset(text, (size_t)slice.start);
        struct text rest = jinja_text_slice(text, from, text.length);
        *out = value_string(rest.bytes, jinja_text_offset(rest, slice.count));
    } else if (!string_slice_steps(run, text, length, slice, out)) {
        return false;
    }
    out->markup = string.markup;
    return true;
}

static bool list_slice(struct run *run, struct value list, const struct value bounds[3],
                       struct value *out)
{
    struct slice slice;
    struct value part;
    if (!slice_resolve(run, bounds, list.list->count, &slice) ||
        !jinja_charge(run, slice.count) || !jinja_list_new(run, list.type, slice.count, &part))
        return false;
    for (size_t i = 0; i < slice.count; i++)
        part.list->items[i] = list.list->items[slice.start + (int64_t)i * slice.step];
    part.list->count = slice.count;
    *out = part;
    return true;
}

static bool range_slice(struct run *run, const struct range *range,
                        const struct value bounds[3], struct value *out)
{
    struct slice slice;
    struct range *part = jinja_alloc(run, 1, sizeof(*part));
    if (!part || !slice_resolve(run, bounds, range->count, &slice))
        return false;
    *part = (struct range){
        .start = jinja_range_item(range, (size_t)slice.start),
        .stop = jinja_range_item(range, (size_t)slice.stop),
        .step = (int64_t)((uint64_t)range->step * (uint64_t)slice.step),
        .count = slice.count,
    };
    *out = (struct value){.type = VALUE_RANGE, .range = part};
    return true;
}

bool jinja_slice(struct run *run, struct value object, const struct value bounds[3],
                 struct value *out)
{
    switch ((enum value_type)object.type) {
    case VALUE_UNDEFINED: return jinja_refuse_undefined(run, object);
    case VALUE_STRING: return string_slice(run, object, bounds, out);
    case VALUE_LIST:
    case VALUE_TUPLE: return list_slice(run, object, bounds, out);
    case VALUE_RANGE: return range_slice(run, object.range, bounds, out);
    default: return jinja_refuse(run, "%s has no slices", jinja_type_name(object));
    }
}
