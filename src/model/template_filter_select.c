/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that apply other filters and tests to each item: map, select and their kin. */
#include "template_builtin.h"
#include "template_evaluate.h"
#include "template_string.h"

static const struct value *keyword_value(const struct arguments *arguments, const char *name)
{
    for (size_t i = 0; i < arguments->keyword_count; i++)
        if (jinja_text_is(arguments->keywords[i].name, name))
            return &arguments->keywords[i].value;
    return NULL;
}

/* ---- map --------------------------------------------------------------------------------- */

struct mapping {
    const struct value *attribute, *otherwise; /* map(attribute=, default=) */
    const struct builtin *filter;              /* map('filter', ...) */
    struct arguments arguments;                /* of the filter */
};

static bool mapping_prepare(struct run *run, const struct arguments *arguments,
                            struct mapping *out)
{
    struct text name;
    *out = (struct mapping){.attribute = keyword_value(arguments, "attribute")};
    if (arguments->positional_count == 0 && out->attribute) {
        out->otherwise = keyword_value(arguments, "default");
        if (arguments->keyword_count > 1u + (out->otherwise != NULL))
            return jinja_refuse(run, "map takes attribute and default");
        if (out->otherwise && out->otherwise->type == VALUE_NONE)
            out->otherwise = NULL;
        return true;
    }
    if (arguments->positional_count == 0)
        return jinja_refuse(run, "map needs the name of a filter");
    if (!jinja_need_string(run, arguments->positional[0], "map", &name))
        return false;
    out->attribute = NULL;
    out->filter = jinja_filter_find(name);
    if (!out->filter)
        return jinja_refuse(run, "map: the filter '%.*s' is not supported", JINJA_QUOTE(name));
    out->arguments = *arguments;
    out->arguments.positional++;
    out->arguments.positional_count--;
    return true;
}

static bool mapping_apply(struct run *run, const struct mapping *mapping, struct value item,
                          struct value *out)
{
    if (!mapping->attribute)
        return jinja_builtin_call(run, mapping->filter, item, &mapping->arguments, out);
    return jinja_attribute_path(run, item, *mapping->attribute, mapping->otherwise, out);
}

static bool filter_map(struct run *run, const struct call *call, struct value *out)
{
    struct mapping mapping;
    struct value items, mapped, item;
    if (!jinja_list_new(run, VALUE_LIST, 0, &mapped))
        return false;
    if (!jinja_truth(call->subject)) /* not even looked at */
        return jinja_iterator_new(run, mapped.list, out);
    if (!mapping_prepare(run, call->arguments, &mapping) ||
        !jinja_list_from(run, call->subject, &items) || !jinja_enter(run))
        return false;
    for (size_t i = 0; i < items.list->count; i++)
        if (!mapping_apply(run, &mapping, items.list->items[i], &item) ||
            !jinja_list_append(run, mapped.list, item))
            return false;
    jinja_leave(run);
    return jinja_iterator_new(run, mapped.list, out);
}

/* ---- select ------------------------------------------------------------------------------ */

static bool select_prepare(struct run *run, const struct arguments *arguments, size_t skip,
                           const struct builtin **test, struct arguments *rest)
{
    struct text name;
    *test = NULL;
    *rest = *arguments;
    if (arguments->positional_count <= skip)
        return true;
    if (!jinja_need_string(run, arguments->positional[skip], "select", &name))
        return false;
    *test = jinja_test_find(name);
    if (!*test)
        return jinja_refuse(run, "select: the test '%.*s' is not supported", JINJA_QUOTE(name));
    rest->positional += skip + 1;
    rest->positional_count -= skip + 1;
    return true;
}

/* The items that pass a test (or, with reject, those that do not); without a test, those that
 * are true. With attributes, it is the attribute that is tested. */
static bool select_items(struct run *run, const struct call *call, bool by_attribute,
                         bool reject, struct value *out)
{
    const struct arguments *arguments = call->arguments;
    const struct builtin *test;
    struct arguments rest;
    struct value items, selected;
    if (!jinja_list_new(run, VALUE_LIST, 0, &selected))
        return false;
    if (!jinja_truth(call->subject))
        return jinja_iterator_new(run, selected.list, out);
    if (by_attribute && arguments->positional_count == 0)
        return jinja_refuse(run, "the name of an attribute is missing");
    if (!select_prepare(run, arguments, by_attribute, &test, &rest) ||
        !jinja_list_from(run, call->subject, &items))
        return false;
    for (size_t i = 0; i < items.list->count; i++) {
        struct value item = items.list->items[i];
        bool passes;
        if (by_attribute &&
            !jinja_attribute_path(run, item, arguments->positional[0], NULL, &item))
            return false;
        passes = jinja_truth(item);
        if (test && !jinja_test_call(run, test, item, &rest, &passes))
            return false;
        if (passes != reject && !jinja_list_append(run, selected.list, items.list->items[i]))
            return false;
    }
    return jinja_iterator_new(run, selected.list, out);
}

static bool filter_select(struct run *run, const struct call *call, struct value *out)
{
    return select_items(run, call, false, false, out);
}

static bool filter_reject(struct run *run, const struct call *call, struct value *out)
{
    return select_items(run, call, false, true, out);
}

static bool filter_selectattr(struct run *run, const struct call *call, struct value *out)
{
    return select_items(run, call, true, false, out);
}

static bool filter_rejectattr(struct run *run, const struct call *call, struct value *out)
{
    return select_items(run, call, true, true, out);
}

/* value | attr('name'): a method or an attribute of a namespace, never the key of a dict. */
static bool filter_attr(struct run *run, const struct call *call, struct value *out)
{
    struct text name;
    if (!jinja_need_string(run, call->given[0], "attr", &name))
        return false;
    struct method_set methods = jinja_methods_find(name);
    if (call->subject.type != VALUE_DICT || methods.of_dict)
        return jinja_attribute(run, call->subject, name, &methods, out);
    *out = value_undefined(name, VALUE_DICT);
    return true;
}

static const struct builtin filters[] = {
    BUILTIN_ANY("map", filter_map),
    BUILTIN_ANY("select", filter_select),
    BUILTIN_ANY("reject", filter_reject),
    BUILTIN_ANY("selectattr", filter_selectattr),
    BUILTIN_ANY("rejectattr", filter_rejectattr),
    BUILTIN("attr", filter_attr, 1, "name"),
};
const struct builtin_table jinja_select_filters = BUILTIN_TABLE(filters);
