/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that compare items: without regard to case, unless told otherwise, and by attributes
 * of the items if asked to. */
#include "template_builtin.h"
#include "template_compare.h"
#include "template_evaluate.h"
#include "template_string.h"
#include "template_text.h"

static bool flag(struct value value)
{
    return value_given(value) && jinja_truth(value);
}

/* What an item is compared by. */
static bool key_of(struct run *run, struct value item, struct value attribute,
                   bool case_sensitive, struct value *out)
{
    *out = item;
    if (value_given(attribute) && attribute.type != VALUE_NONE &&
        !jinja_attribute_path(run, item, attribute, NULL, out))
        return false;
    return case_sensitive || jinja_ignore_case(run, *out, out);
}

/* sort takes several attributes, "a,b.c": the key is a list. */
static bool keys_of(struct run *run, struct value item, struct value attributes,
                    bool case_sensitive, struct value *out)
{
    struct value list, key;
    if (!jinja_list_new(run, VALUE_LIST, 1, &list))
        return false;
    if (!value_given(attributes) || attributes.type != VALUE_STRING) {
        if (!key_of(run, item, attributes, case_sensitive, &key) ||
            !jinja_list_append(run, list.list, key))
            return false;
        *out = list;
        return true;
    }
    struct text rest = value_text(attributes);
    for (bool more = true; more;) {
        ssize_t comma = jinja_text_find(rest, TEXT(","), 0);
        more = comma >= 0;
        struct text part = jinja_text_slice(rest, 0, more ? (size_t)comma : rest.length);
        if (!key_of(run, item, value_string(part.bytes, part.length), case_sensitive, &key) ||
            !jinja_list_append(run, list.list, key))
            return false;
        if (more)
            rest = jinja_text_slice(rest, (size_t)comma + 1, rest.length);
    }
    *out = list;
    return true;
}

static bool filter_sort(struct run *run, const struct call *call, struct value *out)
{
    struct value list;
    if (!jinja_list_from(run, call->subject, &list))
        return false;
    struct value *keys = jinja_alloc(run, list.list->count, sizeof(*keys));
    if (!keys)
        return false;
    for (size_t i = 0; i < list.list->count; i++)
        if (!keys_of(run, list.list->items[i], call->given[2], flag(call->given[1]), &keys[i]))
            return false;
    *out = list;
    return jinja_sort(run, list.list->items, keys, list.list->count, flag(call->given[0]));
}

static bool filter_dictsort(struct run *run, const struct call *call, struct value *out)
{
    struct value view = {.type = VALUE_VIEW, .detail = VIEW_ITEMS}, list;
    struct text by = TEXT("key");
    if (call->subject.type != VALUE_DICT)
        return jinja_refuse(run, "dictsort needs a dict, not %s",
                            jinja_type_name(call->subject));
    if (value_given(call->given[1]) && !jinja_need_string(run, call->given[1], "dictsort", &by))
        return false;
    if (!jinja_text_is(by, "key") && !jinja_text_is(by, "value"))
        return jinja_refuse(run, "dictsort sorts by 'key' or by 'value'");
    view.dict = call->subject.dict;
    if (!jinja_list_from(run, view, &list))
        return false;
    struct value *keys = jinja_alloc(run, list.list->count, sizeof(*keys));
    if (!keys)
        return false;
    for (size_t i = 0; i < list.list->count; i++) {
        struct value key = list.list->items[i].list->items[jinja_text_is(by, "value")];
        if (!key_of(run, key, value_of(VALUE_NONE), flag(call->given[0]), &keys[i]))
            return false;
    }
    *out = list;
    return jinja_sort(run, list.list->items, keys, list.list->count, flag(call->given[2]));
}

static bool filter_unique(struct run *run, const struct call *call, struct value *out)
{
    struct value list, seen, unique, key;
    if (!jinja_list_from(run, call->subject, &list) ||
        !jinja_dict_new(run, VALUE_DICT, &seen) || !jinja_list_new(run, VALUE_LIST, 0, &unique))
        return false;
    for (size_t i = 0; i < list.list->count; i++) {
        struct entry *entry;
        struct value item = list.list->items[i];
        if (!key_of(run, item, call->given[1], flag(call->given[0]), &key) ||
            !jinja_dict_get(run, seen.dict, key, &entry))
            return false;
        if (!entry && (!jinja_dict_set(run, seen.dict, key, value_of(VALUE_NONE)) ||
                       !jinja_list_append(run, unique.list, item)))
            return false;
    }
    return jinja_iterator_new(run, unique.list, out);
}

/* The first of the smallest, or of the largest. */
static bool extreme(struct run *run, const struct call *call, bool largest, struct value *out)
{
    struct value list, key, best_key = value_of(VALUE_MISSING);
    if (!jinja_list_from(run, call->subject, &list))
        return false;
    *out = value_undefined(TEXT("the extreme of nothing"), VALUE_MISSING);
    for (size_t i = 0; i < list.list->count; i++) {
        bool better = true;
        if (!key_of(run, list.list->items[i], call->given[1], flag(call->given[0]), &key))
            return false;
        if (i > 0 && !(largest ? jinja_less(run, best_key, key, &better)
                               : jinja_less(run, key, best_key, &better)))
            return false;
        if (better) {
            best_key = key;
            *out = list.list->items[i];
        }
    }
    return true;
}

static bool filter_min(struct run *run, const struct call *call, struct value *out)
{
    return extreme(run, call, false, out);
}

static bool filter_max(struct run *run, const struct call *call, struct value *out)
{
    return extreme(run, call, true, out);
}

static const struct builtin filters[] = {
    BUILTIN("sort", filter_sort, 0, "reverse", "case_sensitive", "attribute"),
    BUILTIN("dictsort", filter_dictsort, 0, "case_sensitive", "by", "reverse"),
    BUILTIN("unique", filter_unique, 0, "case_sensitive", "attribute"),
    BUILTIN("min", filter_min, 0, "case_sensitive", "attribute"),
    BUILTIN("max", filter_max, 0, "case_sensitive", "attribute"),
};
const struct builtin_table jinja_order_filters = BUILTIN_TABLE(filters);
