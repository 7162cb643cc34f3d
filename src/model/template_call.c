/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: arguments find their parameters, in builtins as in macros. */
#include "template_evaluate.h"

#include <string.h>

/* ---- builtins ---------------------------------------------------------------------------- */

const struct builtin *jinja_builtin_find(struct builtin_table table, struct text name)
{
    for (size_t i = 0; i < table.count; i++)
        if (jinja_text_is(name, table.items[i].name))
            return &table.items[i];
    return NULL;
}

static size_t parameter_count(const struct builtin *builtin)
{
    size_t count = 0;
    while (count < PARAMETERS_MAX && builtin->parameters[count])
        count++;
    return count;
}

static bool bind_keyword(struct run *run, const struct builtin *builtin,
                         const struct keyword *keyword, struct call *call)
{
    for (size_t i = 0; i < parameter_count(builtin); i++) {
        if (!jinja_text_is(keyword->name, builtin->parameters[i]))
            continue;
        if (value_given(call->given[i]))
            return jinja_refuse(run, "%s got two values for '%s'", builtin->name,
                                builtin->parameters[i]);
        call->given[i] = keyword->value;
        return true;
    }
    return jinja_refuse(run, "%s takes no argument called '%.*s'", builtin->name,
                        JINJA_QUOTE(keyword->name));
}

bool jinja_builtin_call(struct run *run, const struct builtin *builtin, struct value subject,
                        const struct arguments *arguments, struct value *out)
{
    struct call call = {.subject = subject, .arguments = arguments};
    size_t most = parameter_count(builtin);
    if (builtin->any)
        return builtin->function(run, &call, out);
    if (arguments->positional_count > most)
        return jinja_refuse(run, "%s takes at most %zu arguments, not %zu", builtin->name, most,
                            arguments->positional_count);
    for (size_t i = 0; i < arguments->positional_count; i++)
        call.given[i] = arguments->positional[i];
    for (size_t i = 0; i < arguments->keyword_count; i++)
        if (!bind_keyword(run, builtin, &arguments->keywords[i], &call))
            return false;
    for (size_t i = 0; i < builtin->required; i++)
        if (!value_given(call.given[i]))
            return jinja_refuse(run, "%s needs its argument '%s'", builtin->name,
                                builtin->parameters[i]);
    return builtin->function(run, &call, out);
}

/* ---- macros ------------------------------------------------------------------------------ */

static const struct keyword *keyword_find(const struct arguments *arguments, struct text name)
{
    for (size_t i = 0; i < arguments->keyword_count; i++)
        if (arguments->keywords[i].name.length == name.length &&
            memcmp(arguments->keywords[i].name.bytes, name.bytes, name.length) == 0)
            return &arguments->keywords[i];
    return NULL;
}

/* Parameters from positional arguments, then by name. Those without a value stay missing. */
static void bind_parameters(const struct macro_node *node, const struct arguments *arguments,
                            struct frame *frame)
{
    for (size_t i = 0; i < node->parameter_count; i++) {
        const struct expression *parameter = node->parameters[i];
        const struct keyword *keyword = keyword_find(arguments, parameter->name);
        struct value value = value_of(VALUE_MISSING);
        if (i < arguments->positional_count)
            value = arguments->positional[i];
        else if (keyword)
            value = keyword->value;
        *jinja_frame_slot(frame, parameter->variable) = value;
    }
}

/* Is this keyword argument one that no parameter took? */
static bool keyword_left(const struct macro_node *node, const struct arguments *arguments,
                         const struct keyword *keyword)
{
    if (node->uses_caller && jinja_text_is(keyword->name, "caller"))
        return false;
    for (size_t i = arguments->positional_count; i < node->parameter_count; i++)
        if (node->parameters[i]->name.length == keyword->name.length &&
            memcmp(node->parameters[i]->name.bytes, keyword->name.bytes,
                   keyword->name.length) == 0)
            return false;
    return true;
}

static void bind_caller(const struct macro_node *node, const struct arguments *arguments,
                        struct frame *frame)
{
    const struct keyword *keyword = keyword_find(arguments, TEXT("caller"));
    struct value caller = keyword ? keyword->value : value_of(VALUE_NONE);
    if (caller.type == VALUE_NONE)
        caller = value_undefined(TEXT("caller"), VALUE_MISSING);
    *jinja_frame_slot(frame, node->caller) = caller;
}

/* varargs and kwargs, or the complaint that there are arguments for which nobody asked. */
static bool bind_rest(struct run *run, const struct macro_node *node,
                      const struct arguments *arguments, struct frame *frame)
{
    struct value kwargs, varargs;
    if (!jinja_dict_new(run, VALUE_DICT, &kwargs) ||
        !jinja_list_new(run, VALUE_TUPLE, 0, &varargs))
        return false;
    for (size_t i = 0; i < arguments->keyword_count; i++) {
        const struct keyword *keyword = &arguments->keywords[i];
        if (!keyword_left(node, arguments, keyword))
            continue;
        if (!node->uses_keywords)
            return jinja_refuse(run, "the macro '%.*s' takes no argument called '%.*s'",
                                JINJA_QUOTE(node->name), JINJA_QUOTE(keyword->name));
        if (!jinja_dict_set(run, kwargs.dict,
                            value_string(keyword->name.bytes, keyword->name.length),
                            keyword->value))
            return false;
    }
    for (size_t i = node->parameter_count; i < arguments->positional_count; i++) {
        if (!node->uses_positional)
            return jinja_refuse(run, "the macro '%.*s' takes at most %zu arguments, not %zu",
                                JINJA_QUOTE(node->name), node->parameter_count,
                                arguments->positional_count);
        if (!jinja_list_append(run, varargs.list, arguments->positional[i]))
            return false;
    }
    if (node->uses_keywords)
        *jinja_frame_slot(frame, node->keywords) = kwargs;
    if (node->uses_positional)
        *jinja_frame_slot(frame, node->positional) = varargs;
    return true;
}

/* In order, so that a default may use the parameters before it. */
static bool fill_defaults(struct run *run, const struct macro_node *node, struct frame *frame)
{
    size_t first = node->parameter_count - node->default_count;
    for (size_t i = 0; i < node->parameter_count; i++) {
        const struct expression *parameter = node->parameters[i];
        struct value *slot = jinja_frame_slot(frame, parameter->variable);
        if (value_given(*slot))
            continue;
        if (i < first)
            *slot = value_undefined(parameter->name, VALUE_MISSING);
        else if (!jinja_evaluate(run, frame, node->defaults[i - first], slot))
            return false;
    }
    return true;
}

bool jinja_macro_call(struct run *run, const struct macro *macro,
                      const struct arguments *arguments, struct value *out)
{
    const struct macro_node *node = macro->node;
    size_t mark = run->sink.length;
    struct frame *frame;
    if (!jinja_frame_new(run, node->scope, macro->frame, &frame))
        return false;
    bind_parameters(node, arguments, frame);
    if (node->uses_caller)
        bind_caller(node, arguments, frame);
    if (!bind_rest(run, node, arguments, frame) || !fill_defaults(run, node, frame) ||
        jinja_execute(run, frame, &node->body) == FLOW_FAILED)
        return false;
    return jinja_cut(run, mark, out);
}

bool jinja_call(struct run *run, struct value callee, const struct arguments *arguments,
                struct value *out)
{
    switch ((enum value_type)callee.type) {
    case VALUE_UNDEFINED: return jinja_refuse_undefined(run, callee);
    case VALUE_MACRO: return jinja_macro_call(run, callee.macro, arguments, out);
    case VALUE_FUNCTION:
        return jinja_builtin_call(run, callee.function, value_of(VALUE_MISSING), arguments,
                                  out);
    case VALUE_METHOD:
        return jinja_builtin_call(run, callee.method->builtin, callee.method->subject,
                                  arguments, out);
    default: return jinja_refuse(run, "%s cannot be called", jinja_type_name(callee));
    }
}
