/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, iteration and the plain questions one can ask of a value. Dicts are in
 * template_dict.c, comparisons in template_compare.c. */
#include "template_value.h"

#include "template_run.h"
#include "template_text.h"

#include <string.h>

bool jinja_text_is(struct text text, const char *word)
{
    return strlen(word) == text.length && memcmp(text.bytes, word, text.length) == 0;
}

const char *jinja_type_name(struct value value)
{
    switch ((enum value_type)value.type) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED: return "undefined";
    case VALUE_NONE: return "none";
    case VALUE_BOOLEAN: return "a boolean";
    case VALUE_INTEGER: return "an integer";
    case VALUE_FLOAT: return "a float";
    case VALUE_STRING: return "a string";
    case VALUE_LIST: return "a list";
    case VALUE_TUPLE: return "a tuple";
    case VALUE_DICT: return "a dict";
    case VALUE_VIEW: return "a view of a dict";
    case VALUE_RANGE: return "a range";
    case VALUE_ITERATOR: return "an iterator";
    case VALUE_NAMESPACE: return "a namespace";
    case VALUE_LOOP: return "a loop";
    case VALUE_MACRO: return "a macro";
    case VALUE_FUNCTION: return "a function";
    case VALUE_METHOD: return "a method";
    }
    return "?";
}

bool jinja_truth(struct value value)
{
    switch ((enum value_type)value.type) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOLEAN: return value.boolean;
    case VALUE_INTEGER: return value.integer != 0;
    case VALUE_FLOAT: return value.number != 0;
    case VALUE_STRING: return value.length != 0;
    case VALUE_LIST:
    case VALUE_TUPLE: return value.list->count != 0;
    case VALUE_DICT:
    case VALUE_VIEW: return value.dict->count != 0;
    case VALUE_RANGE: return value.range->count != 0;
    case VALUE_ITERATOR: /* even where nothing comes out of it, as in Python */
    case VALUE_NAMESPACE:
    case VALUE_LOOP:
    case VALUE_MACRO:
    case VALUE_FUNCTION:
    case VALUE_METHOD: return true;
    }
    return true;
}

/* ---- lists ------------------------------------------------------------------------------- */

bool jinja_list_new(struct run *run, enum value_type type, size_t capacity, struct value *out)
{
    struct list *list = jinja_alloc(run, 1, sizeof(*list));
    if (!list)
        return false;
    *list = (struct list){.capacity = capacity};
    if (capacity && !(list->items = jinja_alloc(run, capacity, sizeof(*list->items))))
        return false;
    *out = (struct value){.type = (uint8_t)type, .list = list};
    return true;
}

bool jinja_list_append(struct run *run, struct list *list, struct value item)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 4;
        struct value *items = jinja_alloc(run, capacity, sizeof(*items));
        if (!items)
            return false;
        if (list->count)
            memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}

bool jinja_pair_new(struct run *run, struct value first, struct value second, struct value *out)
{
    struct value pair;
    if (!jinja_list_new(run, VALUE_TUPLE, 2, &pair))
        return false;
    pair.list->items[0] = first;
    pair.list->items[1] = second;
    pair.list->count = 2;
    *out = pair;
    return true;
}

bool jinja_iterator_new(struct run *run, struct list *items, struct value *out)
{
    struct iterator *iterator = jinja_alloc(run, 1, sizeof(*iterator));
    if (!iterator)
        return false;
    *iterator = (struct iterator){.items = items};
    *out = (struct value){.type = VALUE_ITERATOR, .iterator = iterator};
    return true;
}

/* ---- length and iteration ---------------------------------------------------------------- */

bool jinja_has_length(struct value value)
{
    switch ((enum value_type)value.type) {
    case VALUE_UNDEFINED:
    case VALUE_STRING:
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
    case VALUE_VIEW:
    case VALUE_RANGE: return true;
    default: return false;
    }
}

bool jinja_length(struct run *run, struct value value, size_t *out)
{
    switch ((enum value_type)value.type) {
    case VALUE_UNDEFINED: *out = 0; return true;
    case VALUE_STRING:
        *out = jinja_text_count(value_text(value));
        return jinja_charge(run, value.length);
    case VALUE_LIST:
    case VALUE_TUPLE: *out = value.list->count; return true;
    case VALUE_DICT:
    case VALUE_VIEW: *out = value.dict->count; return true;
    case VALUE_RANGE: *out = value.range->count; return true;
    default: return jinja_refuse(run, "%s has no length", jinja_type_name(value));
    }
}

bool jinja_iterable(struct value value)
{
    return jinja_has_length(value) || value.type == VALUE_ITERATOR;
}

bool jinja_iterate(struct run *run, struct value source, struct iteration *out)
{
    if (!jinja_iterable(source))
        return jinja_refuse(run, "cannot go through the items of %s", jinja_type_name(source));
    *out = (struct iteration){.source = source};
    return true;
}

int64_t jinja_range_item(const struct range *range, size_t index)
{
    return (int64_t)((uint64_t)range->start + (uint64_t)index * (uint64_t)range->step);
}

static bool view_item(struct run *run, struct value view, size_t index, struct value *item)
{
    const struct entry *entry = &view.dict->entries[index];
    if (view.detail == VIEW_ITEMS)
        return jinja_pair_new(run, entry->key, entry->value, item);
    *item = view.detail == VIEW_KEYS ? entry->key : entry->value;
    return true;
}

bool jinja_iterate_next(struct run *run, struct iteration *iteration, struct value *item)
{
    struct value source = iteration->source;
    *item = value_of(VALUE_MISSING);
    switch ((enum value_type)source.type) {
    case VALUE_STRING:
        if (iteration->next < source.length) {
            size_t length = jinja_text_step(value_text(source), iteration->next);
            *item = value_string(source.bytes + iteration->next, length);
            iteration->next += length;
        }
        return true;
    case VALUE_LIST:
    case VALUE_TUPLE:
        if (iteration->next < source.list->count)
            *item = source.list->items[iteration->next++];
        return true;
    case VALUE_DICT:
        if (iteration->next < source.dict->count)
            *item = source.dict->entries[iteration->next++].key;
        return true;
    case VALUE_VIEW:
        if (iteration->next >= source.dict->count)
            return true;
        return view_item(run, source, iteration->next++, item);
    case VALUE_RANGE:
        if (iteration->next < source.range->count)
            *item = value_integer(jinja_range_item(source.range, iteration->next++));
        return true;
    case VALUE_ITERATOR:
        if (source.iterator->next < source.iterator->items->count)
            *item = source.iterator->items->items[source.iterator->next++];
        return true;
    default: return true; /* undefined: no items */
    }
}

bool jinja_list_from(struct run *run, struct value source, struct value *out)
{
    struct iteration iteration;
    struct value list, item;
    if (!jinja_iterate(run, source, &iteration) || !jinja_list_new(run, VALUE_LIST, 0, &list))
        return false;
    do {
        if (!jinja_charge(run, 0) || !jinja_iterate_next(run, &iteration, &item) ||
            (value_given(item) && !jinja_list_append(run, list.list, item)))
            return false;
    } while (value_given(item));
    *out = list;
    return true;
}
