/* SPDX-License-Identifier: Apache-2.0 */
/* The methods of lists, tuples and dicts. All values belong to the rendering, the context's too:
 * a template that changes a message changes its own copy. */
#include "template_builtin.h"
#include "template_compare.h"
#include "template_run.h"
#include "template_string.h"

#include <string.h>

/* ---- lists ------------------------------------------------------------------------------- */

static bool list_append(struct run *run, const struct call *call, struct value *out)
{
    *out = value_of(VALUE_NONE);
    return jinja_list_append(run, call->subject.list, call->given[0]);
}

static bool list_extend(struct run *run, const struct call *call, struct value *out)
{
    struct value more;
    if (!jinja_list_from(run, call->given[0], &more))
        return false;
    for (size_t i = 0; i < more.list->count; i++)
        if (!jinja_list_append(run, call->subject.list, more.list->items[i]))
            return false;
    *out = value_of(VALUE_NONE);
    return true;
}

static bool list_insert(struct run *run, const struct call *call, struct value *out)
{
    struct list *list = call->subject.list;
    int64_t index, count = (int64_t)list->count;
    if (!jinja_need_integer(run, call->given[0], 0, "insert", &index) ||
        !jinja_charge(run, list->count) || !jinja_list_append(run, list, call->given[1]))
        return false;
    if (index < 0)
        index = index < -count ? 0 : index + count;
    if (index < count) {
        memmove(list->items + index + 1, list->items + index,
                (size_t)(count - index) * sizeof(*list->items));
        list->items[index] = call->given[1];
    }
    *out = value_of(VALUE_NONE);
    return true;
}

static bool list_take(struct run *run, struct list *list, size_t index, struct value *out)
{
    *out = list->items[index];
    memmove(list->items + index, list->items + index + 1,
            (list->count - index - 1) * sizeof(*list->items));
    list->count--;
    return jinja_charge(run, list->count);
}

static bool list_pop(struct run *run, const struct call *call, struct value *out)
{
    struct list *list = call->subject.list;
    int64_t index, count = (int64_t)list->count;
    if (!jinja_need_integer(run, call->given[0], -1, "pop", &index))
        return false;
    if (index < 0)
        index += count;
    if (index < 0 || index >= count)
        return jinja_refuse(run, "pop: the list has only %zu items", list->count);
    return list_take(run, list, (size_t)index, out);
}

/* Where the value is; the count if it is nowhere. */
static bool list_search(struct run *run, const struct list *list, struct value wanted,
                        size_t *out)
{
    bool found = false;
    size_t i = 0;
    for (; i < list->count; i++) {
        if (!jinja_equal(run, list->items[i], wanted, &found))
            return false;
        if (found)
            break;
    }
    *out = i;
    return true;
}

static bool list_remove(struct run *run, const struct call *call, struct value *out)
{
    struct list *list = call->subject.list;
    size_t index;
    if (!list_search(run, list, call->given[0], &index))
        return false;
    if (index == list->count)
        return jinja_refuse(run, "remove: the value is not in the list");
    if (!list_take(run, list, index, out))
        return false;
    *out = value_of(VALUE_NONE);
    return true;
}

static bool list_index(struct run *run, const struct call *call, struct value *out)
{
    size_t index;
    if (!list_search(run, call->subject.list, call->given[0], &index))
        return false;
    if (index == call->subject.list->count)
        return jinja_refuse(run, "index: the value is not there");
    *out = value_integer((int64_t)index);
    return true;
}

static bool list_count(struct run *run, const struct call *call, struct value *out)
{
    int64_t count = 0;
    for (size_t i = 0; i < call->subject.list->count; i++) {
        bool equal;
        if (!jinja_equal(run, call->subject.list->items[i], call->given[0], &equal))
            return false;
        count += equal;
    }
    *out = value_integer(count);
    return true;
}

static bool list_clear(struct run *run, const struct call *call, struct value *out)
{
    (void)run;
    call->subject.list->count = 0;
    *out = value_of(VALUE_NONE);
    return true;
}

static bool list_copy(struct run *run, const struct call *call, struct value *out)
{
    return jinja_list_from(run, call->subject, out);
}

static bool list_reverse(struct run *run, const struct call *call, struct value *out)
{
    struct list *list = call->subject.list;
    for (size_t i = 0; i < list->count / 2; i++) {
        struct value swap = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = swap;
    }
    *out = value_of(VALUE_NONE);
    return jinja_charge(run, list->count);
}

static const struct builtin list_methods[] = {
    BUILTIN("append", list_append, 1, "object"),
    BUILTIN("extend", list_extend, 1, "iterable"),
    BUILTIN("insert", list_insert, 2, "index", "object"),
    BUILTIN("pop", list_pop, 0, "index"),
    BUILTIN("remove", list_remove, 1, "value"),
    BUILTIN("index", list_index, 1, "value"),
    BUILTIN("count", list_count, 1, "value"),
    BUILTIN("clear", list_clear, 0),
    BUILTIN("copy", list_copy, 0),
    BUILTIN("reverse", list_reverse, 0),
};
const struct builtin_table jinja_list_methods = BUILTIN_TABLE(list_methods);

static const struct builtin tuple_methods[] = {
    BUILTIN("index", list_index, 1, "value"),
    BUILTIN("count", list_count, 1, "value"),
};
const struct builtin_table jinja_tuple_methods = BUILTIN_TABLE(tuple_methods);

/* ---- dicts ------------------------------------------------------------------------------- */

static bool view_of(struct value dict, int which, struct value *out)
{
    *out = (struct value){.type = VALUE_VIEW, .detail = (uint8_t)which, .dict = dict.dict};
    return true;
}

static bool dict_keys(struct run *run, const struct call *call, struct value *out)
{
    (void)run;
    return view_of(call->subject, VIEW_KEYS, out);
}

static bool dict_values(struct run *run, const struct call *call, struct value *out)
{
    (void)run;
    return view_of(call->subject, VIEW_VALUES, out);
}

static bool dict_items(struct run *run, const struct call *call, struct value *out)
{
    (void)run;
    return view_of(call->subject, VIEW_ITEMS, out);
}

static bool dict_get(struct run *run, const struct call *call, struct value *out)
{
    struct entry *entry;
    if (!jinja_dict_get(run, call->subject.dict, call->given[0], &entry))
        return false;
    *out = value_given(call->given[1]) ? call->given[1] : value_of(VALUE_NONE);
    if (entry)
        *out = entry->value;
    return true;
}

static bool dict_pop(struct run *run, const struct call *call, struct value *out)
{
    struct entry *entry;
    if (!jinja_dict_get(run, call->subject.dict, call->given[0], &entry))
        return false;
    if (entry) {
        *out = entry->value;
        return jinja_dict_remove(run, call->subject.dict, entry);
    }
    if (!value_given(call->given[1]))
        return jinja_refuse(run, "pop: the dict has no such key");
    *out = call->given[1];
    return true;
}

static bool dict_popitem(struct run *run, const struct call *call, struct value *out)
{
    struct dict *dict = call->subject.dict;
    if (dict->count == 0)
        return jinja_refuse(run, "popitem: the dict is empty");
    struct entry *entry = &dict->entries[dict->count - 1];
    return jinja_pair_new(run, entry->key, entry->value, out) &&
           jinja_dict_remove(run, dict, entry);
}

static bool dict_setdefault(struct run *run, const struct call *call, struct value *out)
{
    struct entry *entry;
    if (!jinja_dict_get(run, call->subject.dict, call->given[0], &entry))
        return false;
    *out = value_given(call->given[1]) ? call->given[1] : value_of(VALUE_NONE);
    if (entry) {
        *out = entry->value;
        return true;
    }
    return jinja_dict_set(run, call->subject.dict, call->given[0], *out);
}

/* From a dict or from pairs, then from named arguments; dict() does the same. */
bool jinja_dict_update(struct run *run, struct dict *dict, const struct arguments *arguments)
{
    if (arguments->positional_count > 1)
        return jinja_refuse(run, "a dict can be made from one value, not from %zu",
                            arguments->positional_count);
    struct value source =
        arguments->positional_count ? arguments->positional[0] : value_of(VALUE_MISSING);
    if (source.type == VALUE_UNDEFINED)
        return jinja_refuse(run, "a dict cannot be made from undefined");
    if (source.type == VALUE_DICT) {
        if (!jinja_dict_copy(run, source.dict, dict))
            return false;
    } else if (value_given(source)) {
        struct value pairs, pair;
        if (!jinja_list_from(run, source, &pairs))
            return false;
        for (size_t i = 0; i < pairs.list->count; i++) {
            if (!jinja_list_from(run, pairs.list->items[i], &pair))
                return false;
            if (pair.list->count != 2)
                return jinja_refuse(run, "a dict can be made from pairs, not from %zu values",
                                    pair.list->count);
            if (!jinja_dict_set(run, dict, pair.list->items[0], pair.list->items[1]))
                return false;
        }
    }
    for (size_t i = 0; i < arguments->keyword_count; i++) {
        struct text name = arguments->keywords[i].name;
        if (!jinja_dict_set(run, dict, value_string(name.bytes, name.length),
                            arguments->keywords[i].value))
            return false;
    }
    return true;
}

static bool dict_update(struct run *run, const struct call *call, struct value *out)
{
    *out = value_of(VALUE_NONE);
    return jinja_dict_update(run, call->subject.dict, call->arguments);
}

static bool dict_clear(struct run *run, const struct call *call, struct value *out)
{
    (void)run;
    *call->subject.dict = (struct dict){0};
    *out = value_of(VALUE_NONE);
    return true;
}

static bool dict_copy(struct run *run, const struct call *call, struct value *out)
{
    return jinja_dict_new(run, VALUE_DICT, out) &&
           jinja_dict_copy(run, call->subject.dict, out->dict);
}

static const struct builtin dict_methods[] = {
    BUILTIN("keys", dict_keys, 0),
    BUILTIN("values", dict_values, 0),
    BUILTIN("items", dict_items, 0),
    BUILTIN("get", dict_get, 1, "key", "default"),
    BUILTIN("pop", dict_pop, 1, "key", "default"),
    BUILTIN("popitem", dict_popitem, 0),
    BUILTIN("setdefault", dict_setdefault, 1, "key", "default"),
    BUILTIN_ANY("update", dict_update),
    BUILTIN("clear", dict_clear, 0),
    BUILTIN("copy", dict_copy, 0),
};
const struct builtin_table jinja_dict_methods = BUILTIN_TABLE(dict_methods);

/* ---- what is not there ------------------------------------------------------------------- */

bool jinja_method_unsupported(struct text name)
{
    static const char *const names[] = {
        "casefold",         "encode",       "expandtabs", "format_map",
        "isdecimal",        "isidentifier", "isnumeric",  "isprintable",
        "istitle",          "maketrans",    "translate",  "swapcase",
        "fromkeys",         "sort",         "decode",     "hex",
        "to_bytes",         "is_integer",   "bit_length", "conjugate",
        "as_integer_ratio",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (jinja_text_is(name, names[i]))
            return true;
    return false;
}
