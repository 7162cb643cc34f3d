/* SPDX-License-Identifier: Apache-2.0 */
/* The value of an expression. */
#include "template_evaluate.h"

#include "template_compare.h"
#include "template_print.h"

#include <string.h>

/* ---- variables --------------------------------------------------------------------------- */

bool jinja_frame_new(struct run *run, const struct scope *scope, struct frame *outer,
                     struct frame **out)
{
    struct frame *frame =
        jinja_alloc(run, 1, sizeof(*frame) + scope->count * sizeof(frame->slots[0]));
    if (!frame)
        return false;
    frame->outer = outer;
    for (size_t i = 0; i < scope->count; i++)
        frame->slots[i] = value_of(VALUE_MISSING);
    jinja_frame_fill(run, scope, frame);
    *out = frame;
    return true;
}

/* The context's value, or a global function. */
static struct value context_value(struct run *run, struct text name)
{
    const struct entry *entry = jinja_dict_find(run, run->context, name);
    const struct builtin *function = entry ? NULL : jinja_function_find(name);
    if (entry)
        return entry->value;
    if (function)
        return (struct value){.type = VALUE_FUNCTION, .function = function};
    return value_of(VALUE_MISSING);
}

void jinja_frame_fill(struct run *run, const struct scope *scope, struct frame *frame)
{
    for (size_t i = 0; i < scope->count; i++) {
        const struct symbol *symbol = &scope->symbols[i];
        switch (symbol->load) {
        case SYMBOL_PARAMETER: break;
        case SYMBOL_CONTEXT: frame->slots[i] = context_value(run, symbol->name); break;
        case SYMBOL_OUTER:
            frame->slots[i] = *jinja_frame_slot(frame->outer, symbol->outer);
            break;
        case SYMBOL_NOTHING: frame->slots[i] = value_of(VALUE_MISSING); break;
        }
    }
}

struct value *jinja_frame_slot(struct frame *frame, struct variable variable)
{
    for (uint32_t i = 0; i < variable.hops; i++)
        frame = frame->outer;
    return &frame->slots[variable.slot];
}

static bool assign_tuple(struct run *run, struct frame *frame, const struct expression *target,
                         struct value value)
{
    struct value list;
    if (!jinja_list_from(run, value, &list))
        return false;
    if (list.list->count != target->item_count)
        return jinja_refuse(run, "%zu values cannot be assigned to %zu names", list.list->count,
                            target->item_count);
    for (size_t i = 0; i < target->item_count; i++)
        if (!jinja_assign(run, frame, target->items[i], list.list->items[i]))
            return false;
    return true;
}

bool jinja_assign(struct run *run, struct frame *frame, const struct expression *target,
                  struct value value)
{
    struct value *slot;
    switch (target->type) {
    case EXPRESSION_TUPLE: return assign_tuple(run, frame, target, value);
    case EXPRESSION_MEMBER:
        slot = jinja_frame_slot(frame, target->variable);
        if (slot->type != VALUE_NAMESPACE)
            return jinja_refuse(run, "'%.*s' is %s; only attributes of a namespace can be set",
                                JINJA_QUOTE(target->name), jinja_type_name(*slot));
        return jinja_dict_set(run, slot->dict,
                              value_string(target->attribute.bytes, target->attribute.length),
                              value);
    default: *jinja_frame_slot(frame, target->variable) = value; return true;
    }
}

/* ---- arguments and calls ----------------------------------------------------------------- */

static bool evaluate_positional(struct run *run, struct frame *frame,
                                const struct argument_nodes *nodes, struct arguments *out)
{
    struct value more = value_of(VALUE_MISSING);
    size_t count = nodes->positional_count;
    struct value *values = count ? jinja_alloc(run, count, sizeof(*values)) : NULL;
    if (count && !values)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!jinja_evaluate(run, frame, nodes->positional[i], &values[i]))
            return false;
    out->positional = values;
    out->positional_count = count;
    if (!nodes->more_positional)
        return true;
    if (!jinja_evaluate(run, frame, nodes->more_positional, &more) ||
        !jinja_list_from(run, more, &more))
        return false;
    size_t total = count + more.list->count;
    out->positional = jinja_alloc(run, total, sizeof(*values));
    if (!out->positional)
        return false;
    if (count)
        memcpy(out->positional, values, count * sizeof(*values));
    if (more.list->count)
        memcpy(out->positional + count, more.list->items, more.list->count * sizeof(*values));
    out->positional_count = total;
    return true;
}

static bool keyword_given(const struct arguments *arguments, struct text name)
{
    for (size_t i = 0; i < arguments->keyword_count; i++)
        if (arguments->keywords[i].name.length == name.length &&
            memcmp(arguments->keywords[i].name.bytes, name.bytes, name.length) == 0)
            return true;
    return false;
}

static bool keywords_from_dict(struct run *run, struct value dict, struct arguments *out)
{
    for (size_t i = 0; i < dict.dict->count; i++) {
        const struct entry *entry = &dict.dict->entries[i];
        if (entry->key.type != VALUE_STRING)
            return jinja_refuse(run, "the name of an argument is %s",
                                jinja_type_name(entry->key));
        if (!jinja_charge(run, 64 * out->keyword_count))
            return false;
        if (keyword_given(out, value_text(entry->key)))
            return jinja_refuse(run, "the argument '%.*s' is given twice",
                                JINJA_QUOTE(entry->key));
        out->keywords[out->keyword_count++] =
            (struct keyword){value_text(entry->key), entry->value};
    }
    return true;
}

static bool evaluate_keywords(struct run *run, struct frame *frame,
                              const struct argument_nodes *nodes, struct value caller,
                              struct arguments *out)
{
    struct value more = value_of(VALUE_MISSING);
    size_t room = nodes->keyword_count + value_given(caller);
    if (nodes->more_keywords) {
        if (!jinja_evaluate(run, frame, nodes->more_keywords, &more))
            return false;
        if (more.type != VALUE_DICT)
            return jinja_refuse(run, "** needs a dict, not %s", jinja_type_name(more));
        room += more.dict->count;
    }
    if (room == 0)
        return true;
    out->keywords = jinja_alloc(run, room, sizeof(*out->keywords));
    if (!out->keywords)
        return false;
    for (size_t i = 0; i < nodes->keyword_count; i++) {
        struct keyword *keyword = &out->keywords[i];
        keyword->name = nodes->keywords[i].name;
        if (!jinja_evaluate(run, frame, nodes->keywords[i].value, &keyword->value))
            return false;
    }
    out->keyword_count = nodes->keyword_count;
    if (value_given(caller))
        out->keywords[out->keyword_count++] = (struct keyword){TEXT("caller"), caller};
    return !value_given(more) || keywords_from_dict(run, more, out);
}

static bool evaluate_arguments(struct run *run, struct frame *frame,
                               const struct argument_nodes *nodes, struct value caller,
                               struct arguments *out)
{
    *out = (struct arguments){0};
    return evaluate_positional(run, frame, nodes, out) &&
           evaluate_keywords(run, frame, nodes, caller, out);
}

/* The method of object.method(...) is called without making a value of it. */
bool jinja_evaluate_call(struct run *run, struct frame *frame, const struct expression *call,
                         struct value caller, struct value *out)
{
    const struct expression *callee = call->left;
    const struct builtin *method = NULL;
    struct arguments arguments;
    struct value object, function;
    if (callee->type == EXPRESSION_ATTRIBUTE) {
        if (!jinja_evaluate(run, frame, callee->left, &object))
            return false;
        method = jinja_method_of(&callee->methods, object.type);
        run->line = callee->line;
        if (!method && !jinja_attribute(run, object, callee->name, &callee->methods, &function))
            return false;
    } else if (!jinja_evaluate(run, frame, callee, &function)) {
        return false;
    }
    if (!evaluate_arguments(run, frame, &call->arguments, caller, &arguments))
        return false;
    run->line = call->line;
    return method ? jinja_builtin_call(run, method, object, &arguments, out)
                  : jinja_call(run, function, &arguments, out);
}

static bool evaluate_builtin(struct run *run, struct frame *frame,
                             const struct expression *expression, struct value subject,
                             struct value *out)
{
    struct arguments arguments;
    if (!evaluate_arguments(run, frame, &expression->arguments, value_of(VALUE_MISSING),
                            &arguments))
        return false;
    run->line = expression->line;
    return jinja_builtin_call(run, expression->builtin, subject, &arguments, out);
}

bool jinja_evaluate_filters(struct run *run, struct frame *frame,
                            const struct expression *filters, struct value text,
                            struct value *out)
{
    struct value subject = text;
    if (!filters) {
        *out = text;
        return true;
    }
    if (!jinja_enter(run) ||
        !jinja_evaluate_filters(run, frame, filters->left, text, &subject) ||
        !evaluate_builtin(run, frame, filters, subject, out))
        return false;
    jinja_leave(run);
    return true;
}

/* ---- everything else --------------------------------------------------------------------- */

static bool evaluate_name(struct run *run, struct frame *frame,
                          const struct expression *expression, struct value *out)
{
    (void)run;
    *out = *jinja_frame_slot(frame, expression->variable);
    if (!value_given(*out))
        *out = value_undefined(expression->name, VALUE_MISSING);
    return true;
}

static bool evaluate_list(struct run *run, struct frame *frame,
                          const struct expression *expression, struct value *out)
{
    enum value_type type = expression->type == EXPRESSION_LIST ? VALUE_LIST : VALUE_TUPLE;
    struct value list;
    if (!jinja_list_new(run, type, expression->item_count, &list))
        return false;
    for (size_t i = 0; i < expression->item_count; i++) {
        struct value item;
        if (!jinja_evaluate(run, frame, expression->items[i], &item) ||
            !jinja_list_append(run, list.list, item))
            return false;
    }
    *out = list;
    return true;
}

static bool evaluate_dict(struct run *run, struct frame *frame,
                          const struct expression *expression, struct value *out)
{
    struct value dict;
    if (!jinja_dict_new(run, VALUE_DICT, &dict))
        return false;
    for (size_t i = 0; i + 1 < expression->item_count; i += 2) {
        struct value key, value;
        if (!jinja_evaluate(run, frame, expression->items[i], &key) ||
            !jinja_evaluate(run, frame, expression->items[i + 1], &value) ||
            !jinja_dict_set(run, dict.dict, key, value))
            return false;
    }
    *out = dict;
    return true;
}

static bool evaluate_concat(struct run *run, struct frame *frame,
                            const struct expression *expression, struct value *out)
{
    struct value joined = value_string("", 0);
    for (size_t i = 0; i < expression->item_count; i++) {
        struct value item;
        if (!jinja_evaluate(run, frame, expression->items[i], &item) ||
            !jinja_to_string(run, item, &item) || !jinja_join(run, joined, item, &joined))
            return false;
    }
    joined.markup = false;
    *out = joined;
    return true;
}

static bool compare(struct run *run, uint8_t operation, struct value left, struct value right,
                    bool *out)
{
    bool negate = false, good;
    if (operation != TOKEN_EQUAL && operation != TOKEN_NOT_EQUAL && operation < OPERATOR_IN &&
        (left.type == VALUE_UNDEFINED || right.type == VALUE_UNDEFINED))
        return jinja_refuse_undefined(run, left.type == VALUE_UNDEFINED ? left : right);
    switch (operation) {
    case TOKEN_EQUAL: good = jinja_equal(run, left, right, out); break;
    case TOKEN_NOT_EQUAL:
        negate = true;
        good = jinja_equal(run, left, right, out);
        break;
    case TOKEN_LESS: good = jinja_less(run, left, right, out); break;
    case TOKEN_GREATER: good = jinja_less(run, right, left, out); break;
    case TOKEN_LESS_EQUAL: good = jinja_less_equal(run, left, right, out); break;
    case TOKEN_GREATER_EQUAL: good = jinja_less_equal(run, right, left, out); break;
    default:
        negate = operation == OPERATOR_NOT_IN;
        good = jinja_contains(run, right, left, out);
        break;
    }
    *out ^= good && negate;
    return good;
}

/* 1 < 2 < 3 is 1 < 2 and 2 < 3. */
static bool evaluate_compare(struct run *run, struct frame *frame,
                             const struct expression *expression, struct value *out)
{
    struct value left, right;
    bool truth = true;
    if (!jinja_evaluate(run, frame, expression->items[0], &left))
        return false;
    for (size_t i = 1; i < expression->item_count && truth; i++) {
        if (!jinja_evaluate(run, frame, expression->items[i], &right))
            return false;
        run->line = expression->line;
        if (!compare(run, expression->operators[i - 1], left, right, &truth))
            return false;
        left = right;
    }
    *out = value_boolean(truth);
    return true;
}

/* a and b, a or b: one of the operands, not a boolean. */
static bool evaluate_logic(struct run *run, struct frame *frame,
                           const struct expression *expression, struct value *out)
{
    if (!jinja_evaluate(run, frame, expression->left, out))
        return false;
    if (jinja_truth(*out) == (expression->type == EXPRESSION_OR))
        return true;
    return jinja_evaluate(run, frame, expression->right, out);
}

static bool evaluate_condition(struct run *run, struct frame *frame,
                               const struct expression *expression, struct value *out)
{
    struct value test;
    if (!jinja_evaluate(run, frame, expression->right, &test))
        return false;
    if (jinja_truth(test))
        return jinja_evaluate(run, frame, expression->left, out);
    if (expression->item_count)
        return jinja_evaluate(run, frame, expression->items[0], out);
    *out = value_undefined(TEXT("a condition without else"), VALUE_MISSING);
    return true;
}

static bool evaluate_unary(struct run *run, struct frame *frame,
                           const struct expression *expression, struct value *out)
{
    struct value operand;
    if (!jinja_evaluate(run, frame, expression->left, &operand))
        return false;
    run->line = expression->line;
    if (expression->type != EXPRESSION_NOT)
        return jinja_negate(run, operand, expression->type == EXPRESSION_NEGATE, out);
    *out = value_boolean(!jinja_truth(operand));
    return true;
}

static bool evaluate_binary(struct run *run, struct frame *frame,
                            const struct expression *expression, struct value *out)
{
    struct value left, right;
    if (!jinja_evaluate(run, frame, expression->left, &left) ||
        !jinja_evaluate(run, frame, expression->right, &right))
        return false;
    run->line = expression->line;
    if (expression->type == EXPRESSION_ITEM)
        return jinja_item(run, left, right, out);
    return jinja_operate(run, expression->operators[0], left, right, out);
}

static bool evaluate_attribute(struct run *run, struct frame *frame,
                               const struct expression *expression, struct value *out)
{
    struct value object;
    if (!jinja_evaluate(run, frame, expression->left, &object))
        return false;
    run->line = expression->line;
    return jinja_attribute(run, object, expression->name, &expression->methods, out);
}

static bool evaluate_slice(struct run *run, struct frame *frame,
                           const struct expression *expression, struct value *out)
{
    struct value object, bounds[3];
    if (!jinja_evaluate(run, frame, expression->left, &object))
        return false;
    for (size_t i = 0; i < 3; i++) {
        bounds[i] = value_of(VALUE_NONE);
        if (expression->items[i] &&
            !jinja_evaluate(run, frame, expression->items[i], &bounds[i]))
            return false;
    }
    run->line = expression->line;
    return jinja_slice(run, object, bounds, out);
}

static bool evaluate_filter(struct run *run, struct frame *frame,
                            const struct expression *expression, struct value *out)
{
    struct value subject;
    return jinja_evaluate(run, frame, expression->left, &subject) &&
           evaluate_builtin(run, frame, expression, subject, out);
}

static bool evaluate_call(struct run *run, struct frame *frame,
                          const struct expression *expression, struct value *out)
{
    return jinja_evaluate_call(run, frame, expression, value_of(VALUE_MISSING), out);
}

static bool evaluate_constant(struct run *run, struct frame *frame,
                              const struct expression *expression, struct value *out)
{
    (void)run;
    (void)frame;
    *out = expression->constant;
    return true;
}

bool jinja_evaluate(struct run *run, struct frame *frame, const struct expression *expression,
                    struct value *out)
{
    static bool (*const evaluators[])(struct run *, struct frame *, const struct expression *,
                                      struct value *) = {
        [EXPRESSION_CONSTANT] = evaluate_constant,
        [EXPRESSION_NAME] = evaluate_name,
        [EXPRESSION_LIST] = evaluate_list,
        [EXPRESSION_TUPLE] = evaluate_list,
        [EXPRESSION_DICT] = evaluate_dict,
        [EXPRESSION_CONCAT] = evaluate_concat,
        [EXPRESSION_COMPARE] = evaluate_compare,
        [EXPRESSION_NOT] = evaluate_unary,
        [EXPRESSION_NEGATE] = evaluate_unary,
        [EXPRESSION_PLUS] = evaluate_unary,
        [EXPRESSION_AND] = evaluate_logic,
        [EXPRESSION_OR] = evaluate_logic,
        [EXPRESSION_BINARY] = evaluate_binary,
        [EXPRESSION_CONDITION] = evaluate_condition,
        [EXPRESSION_ATTRIBUTE] = evaluate_attribute,
        [EXPRESSION_ITEM] = evaluate_binary,
        [EXPRESSION_SLICE] = evaluate_slice,
        [EXPRESSION_CALL] = evaluate_call,
        [EXPRESSION_FILTER] = evaluate_filter,
        [EXPRESSION_TEST] = evaluate_filter,
        [EXPRESSION_MEMBER] = evaluate_name,
    };
    run->line = expression->line;
    if (!jinja_charge(run, 0) || !jinja_enter(run) ||
        !evaluators[expression->type](run, frame, expression, out))
        return false;
    jinja_leave(run);
    return true;
}
