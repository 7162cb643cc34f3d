/* SPDX-License-Identifier: Apache-2.0 */
/* Filters for lists and whatever else has items. Those that jinja2 makes generators of give
 * iterators here too: true in an `if`, without a length, to be gone through once. */
#include "template_builtin.h"
#include "template_evaluate.h"
#include "template_print.h"
#include "template_string.h"

static bool filter_list(struct run *run, const struct call *call, struct value *out)
{
    return jinja_list_from(run, call->subject, out);
}

static bool filter_join(struct run *run, const struct call *call, struct value *out)
{
    size_t mark;
    struct iteration iteration;
    struct value separator = value_string("", 0), item;
    bool by_attribute = value_given(call->given[1]) && call->given[1].type != VALUE_NONE;
    if ((value_given(call->given[0]) && !jinja_to_string(run, call->given[0], &separator)) ||
        !jinja_iterate(run, call->subject, &iteration))
        return false;
    mark = run->sink.length;
    for (bool first = true;; first = false) {
        if (!jinja_charge(run, 0) || !jinja_iterate_next(run, &iteration, &item))
            return false;
        if (!value_given(item))
            return jinja_cut(run, mark, out);
        if ((by_attribute && !jinja_attribute_path(run, item, call->given[1], NULL, &item)) ||
            (!first && !jinja_print(run, separator)) || !jinja_print(run, item))
            return false;
    }
}

static bool filter_first(struct run *run, const struct call *call, struct value *out)
{
    struct iteration iteration;
    if (!jinja_iterate(run, call->subject, &iteration) ||
        !jinja_iterate_next(run, &iteration, out))
        return false;
    if (!value_given(*out))
        *out = value_undefined(TEXT("the first item of nothing"), VALUE_MISSING);
    return true;
}

static bool filter_last(struct run *run, const struct call *call, struct value *out)
{
    struct value list;
    if (call->subject.type == VALUE_ITERATOR)
        return jinja_refuse(run, "last does not work on an iterator; use list before it");
    if (!jinja_list_from(run, call->subject, &list))
        return false;
    *out = list.list->count ? list.list->items[list.list->count - 1]
                            : value_undefined(TEXT("the last item of nothing"), VALUE_MISSING);
    return true;
}

static bool filter_reverse(struct run *run, const struct call *call, struct value *out)
{
    static const struct value backwards[3] = {
        {.type = VALUE_NONE}, {.type = VALUE_NONE}, {.type = VALUE_INTEGER, .integer = -1}};
    struct value list;
    if (call->subject.type == VALUE_STRING)
        return jinja_slice(run, call->subject, backwards, out);
    if (!jinja_list_from(run, call->subject, &list) ||
        !jinja_slice(run, list, backwards, &list))
        return false;
    if (call->subject.type != VALUE_ITERATOR)
        return jinja_iterator_new(run, list.list, out);
    *out = list;
    return true;
}

static bool filter_items(struct run *run, const struct call *call, struct value *out)
{
    struct value view = {.type = VALUE_VIEW, .detail = VIEW_ITEMS}, list;
    if (call->subject.type == VALUE_DICT)
        view.dict = call->subject.dict;
    else if (call->subject.type == VALUE_UNDEFINED)
        view = call->subject;
    else
        return jinja_refuse(run, "items needs a dict, not %s", jinja_type_name(call->subject));
    return jinja_list_from(run, view, &list) && jinja_iterator_new(run, list.list, out);
}

static bool filter_batch(struct run *run, const struct call *call, struct value *out)
{
    int64_t size;
    struct value items, batches, batch;
    struct value fill = call->given[1];
    if (!jinja_need_integer(run, call->given[0], 0, "batch", &size) ||
        !jinja_list_from(run, call->subject, &items) ||
        !jinja_list_new(run, VALUE_LIST, 0, &batches))
        return false;
    for (size_t i = 0; i < items.list->count; i++) {
        bool full = i == 0 || (int64_t)batch.list->count == size;
        if (full && (!jinja_list_new(run, VALUE_LIST, 0, &batch) ||
                     !jinja_list_append(run, batches.list, batch)))
            return false;
        if (!jinja_list_append(run, batch.list, items.list->items[i]))
            return false;
    }
    if (items.list->count && value_given(fill) && fill.type != VALUE_NONE)
        while ((int64_t)batch.list->count < size)
            if (!jinja_charge(run, 0) || !jinja_list_append(run, batch.list, fill))
                return false;
    return jinja_iterator_new(run, batches.list, out);
}

/* So many lists of nearly the same length. */
static bool filter_slice(struct run *run, const struct call *call, struct value *out)
{
    int64_t slices;
    struct value items, lists, list, fill = call->given[1];
    if (!jinja_need_integer(run, call->given[0], 0, "slice", &slices) ||
        !jinja_list_from(run, call->subject, &items) ||
        !jinja_list_new(run, VALUE_LIST, 0, &lists))
        return false;
    if (slices == 0)
        return jinja_refuse(run, "slice: division by zero");
    int64_t count = (int64_t)items.list->count, next = 0;
    for (int64_t i = 0; i < slices; i++) {
        bool longer = i < count % slices;
        if (!jinja_charge(run, 0) || !jinja_list_new(run, VALUE_LIST, 0, &list))
            return false;
        for (int64_t end = next + count / slices + longer; next < end; next++)
            if (!jinja_list_append(run, list.list, items.list->items[next]))
                return false;
        if (value_given(fill) && fill.type != VALUE_NONE && !longer &&
            !jinja_list_append(run, list.list, fill))
            return false;
        if (!jinja_list_append(run, lists.list, list))
            return false;
    }
    return jinja_iterator_new(run, lists.list, out);
}

static bool filter_sum(struct run *run, const struct call *call, struct value *out)
{
    bool by_attribute = value_given(call->given[0]) && call->given[0].type != VALUE_NONE;
    struct value sum = value_given(call->given[1]) ? call->given[1] : value_integer(0), item;
    struct iteration iteration;
    if (sum.type == VALUE_STRING)
        return jinja_refuse(run, "sum does not add strings; use join");
    if (!jinja_iterate(run, call->subject, &iteration))
        return false;
    for (;;) {
        if (!jinja_charge(run, 0) || !jinja_iterate_next(run, &iteration, &item))
            return false;
        if (!value_given(item))
            break;
        if ((by_attribute && !jinja_attribute_path(run, item, call->given[0], NULL, &item)) ||
            !jinja_operate(run, TOKEN_ADD, sum, item, &sum))
            return false;
    }
    *out = sum;
    return true;
}

static const struct builtin filters[] = {
    BUILTIN("list", filter_list, 0),
    BUILTIN("join", filter_join, 0, "d", "attribute"),
    BUILTIN("first", filter_first, 0),
    BUILTIN("last", filter_last, 0),
    BUILTIN("reverse", filter_reverse, 0),
    BUILTIN("items", filter_items, 0),
    BUILTIN("batch", filter_batch, 1, "linecount", "fill_with"),
    BUILTIN("slice", filter_slice, 1, "slices", "fill_with"),
    BUILTIN("sum", filter_sum, 0, "attribute", "start"),
};
const struct builtin_table jinja_list_filters = BUILTIN_TABLE(filters);
