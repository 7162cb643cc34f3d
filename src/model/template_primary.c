/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest expressions: literals, names, lists, dicts, tuples, and what can be assigned to;
 * and the making of nodes. */
#include "template_parser.h"

#include <string.h>

struct expression *jinja_expression_new(struct parser *parser, enum expression_type type,
                                        uint32_t line)
{
    struct expression *expression =
        jinja_compile_alloc(parser->compilation, 1, sizeof(*expression));
    if (expression)
        *expression = (struct expression){.type = type, .line = line};
    return expression;
}

static void height_over(struct expression *expression, const struct expression *operand)
{
    if (operand && operand->height >= expression->height)
        expression->height = operand->height + 1;
}

bool jinja_expression_finish(struct parser *parser, struct expression *expression)
{
    const struct argument_nodes *arguments = &expression->arguments;
    height_over(expression, expression->left);
    height_over(expression, expression->right);
    for (size_t i = 0; i < expression->item_count; i++)
        height_over(expression, expression->items[i]);
    for (size_t i = 0; i < arguments->positional_count; i++)
        height_over(expression, arguments->positional[i]);
    for (size_t i = 0; i < arguments->keyword_count; i++)
        height_over(expression, arguments->keywords[i].value);
    height_over(expression, arguments->more_positional);
    height_over(expression, arguments->more_keywords);
    if (expression->height <= PARSE_HEIGHT_MAX)
        return true;
    return jinja_reject(parser->compilation, BATON_ELIMIT, expression->line,
                        "an expression is nested more than %d deep", PARSE_HEIGHT_MAX);
}

bool jinja_expression_add(struct parser *parser, struct expression_list *list,
                          struct expression *expression)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 4;
        struct expression **items =
            jinja_compile_alloc(parser->compilation, capacity, sizeof(struct expression *));
        if (!items)
            return false;
        if (list->count)
            memcpy(items, list->items, list->count * sizeof(struct expression *));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = expression;
    return true;
}

/* A node over what is already parsed: *out becomes its left, or its items. */
bool jinja_wrap(struct parser *parser, enum expression_type type, uint32_t line,
                struct expression *right, struct expression **out)
{
    struct expression *node = jinja_expression_new(parser, type, line);
    if (!node)
        return false;
    node->left = *out;
    node->right = right;
    *out = node;
    return jinja_expression_finish(parser, node);
}

bool jinja_wrap_items(struct parser *parser, enum expression_type type, uint32_t line,
                      const struct expression_list *list, struct expression **out)
{
    struct expression *node = jinja_expression_new(parser, type, line);
    if (!node)
        return false;
    node->items = list->items;
    node->item_count = list->count;
    *out = node;
    return jinja_expression_finish(parser, node);
}

/* ---- literals and names ------------------------------------------------------------------ */

/* Strings next to each other are one. */
static bool parse_string(struct parser *parser, struct expression *constant)
{
    const struct token *first = parser->token;
    size_t length = 0;
    for (; parser_at(parser, TOKEN_STRING); parser->token++)
        length += parser->token->text.length;
    constant->constant = value_string(first->text.bytes, first->text.length);
    if (parser->token == first + 1)
        return true;
    char *bytes = jinja_compile_alloc(parser->compilation, length, 1);
    if (!bytes)
        return false;
    constant->constant = value_string(bytes, length);
    for (const struct token *token = first; token < parser->token; token++) {
        memcpy(bytes, token->text.bytes, token->text.length);
        bytes += token->text.length;
    }
    return true;
}

static bool constant_name(struct text name, struct value *out)
{
    if (jinja_text_is(name, "true") || jinja_text_is(name, "True"))
        *out = value_boolean(true);
    else if (jinja_text_is(name, "false") || jinja_text_is(name, "False"))
        *out = value_boolean(false);
    else if (jinja_text_is(name, "none") || jinja_text_is(name, "None"))
        *out = value_of(VALUE_NONE);
    else
        return false;
    return true;
}

static bool parse_name(struct parser *parser, struct expression **out)
{
    struct expression *node = *out;
    node->name = parser->token++->text;
    if (constant_name(node->name, &node->constant))
        return true;
    node->type = EXPRESSION_NAME;
    parser->mentions.loop += jinja_text_is(node->name, "loop");
    parser->mentions.caller += jinja_text_is(node->name, "caller");
    parser->mentions.kwargs += jinja_text_is(node->name, "kwargs");
    parser->mentions.varargs += jinja_text_is(node->name, "varargs");
    return true;
}

static bool parse_list(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token++->line;
    struct expression_list items = {0};
    while (!parser_at(parser, TOKEN_RIGHT_BRACKET)) {
        struct expression *item;
        if (items.count && !jinja_parser_expect(parser, TOKEN_COMMA))
            return false;
        if (parser_at(parser, TOKEN_RIGHT_BRACKET))
            break;
        if (!jinja_parse_expression(parser, true, &item) ||
            !jinja_expression_add(parser, &items, item))
            return false;
    }
    parser->token++;
    return jinja_wrap_items(parser, EXPRESSION_LIST, line, &items, out);
}

static bool parse_dict(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token++->line;
    struct expression_list items = {0};
    while (!parser_at(parser, TOKEN_RIGHT_BRACE)) {
        struct expression *key, *value;
        if (items.count && !jinja_parser_expect(parser, TOKEN_COMMA))
            return false;
        if (parser_at(parser, TOKEN_RIGHT_BRACE))
            break;
        if (!jinja_parse_expression(parser, true, &key) ||
            !jinja_parser_expect(parser, TOKEN_COLON) ||
            !jinja_parse_expression(parser, true, &value) ||
            !jinja_expression_add(parser, &items, key) ||
            !jinja_expression_add(parser, &items, value))
            return false;
    }
    parser->token++;
    return jinja_wrap_items(parser, EXPRESSION_DICT, line, &items, out);
}

static bool tuple_ends(const struct parser *parser, const char *end)
{
    return parser_at(parser, TOKEN_VARIABLE_END) || parser_at(parser, TOKEN_BLOCK_END) ||
           parser_at(parser, TOKEN_RIGHT_PARENTHESIS) ||
           (end && jinja_parser_at_name(parser, end));
}

enum tuple_of { TUPLE_OF_CONDITIONS, TUPLE_OF_PLAIN, TUPLE_OF_PRIMARIES, TUPLE_OF_MEMBERS };

static bool parse_member(struct parser *parser, struct expression **out)
{
    const struct token *name = parser->token;
    if (name->type != TOKEN_NAME || name[1].type != TOKEN_DOT)
        return jinja_parse_primary(parser, out);
    struct expression *node = jinja_expression_new(parser, EXPRESSION_MEMBER, name->line);
    if (!node)
        return false;
    parser->token += 2;
    if (!parser_at(parser, TOKEN_NAME))
        return jinja_parse_expected(parser, "the name of an attribute");
    node->name = name->text;
    node->attribute = parser->token++->text;
    *out = node;
    return true;
}

static bool parse_tuple_item(struct parser *parser, enum tuple_of of, struct expression **out)
{
    switch (of) {
    case TUPLE_OF_PRIMARIES: return jinja_parse_primary(parser, out);
    case TUPLE_OF_MEMBERS: return parse_member(parser, out);
    default: return jinja_parse_expression(parser, of == TUPLE_OF_CONDITIONS, out);
    }
}

static bool parse_tuple(struct parser *parser, enum tuple_of of, const char *end,
                        bool may_be_empty, struct expression **out)
{
    uint32_t line = parser->token->line;
    struct expression_list items = {0};
    bool comma = false;
    while (!tuple_ends(parser, end)) {
        struct expression *item;
        if (!parse_tuple_item(parser, of, &item) || !jinja_expression_add(parser, &items, item))
            return false;
        if (!jinja_parser_skip(parser, TOKEN_COMMA))
            break;
        comma = true;
    }
    if (!comma && items.count) {
        *out = items.items[0];
        return true;
    }
    if (!items.count && !may_be_empty)
        return jinja_parse_expected(parser, "an expression");
    return jinja_wrap_items(parser, EXPRESSION_TUPLE, line, &items, out);
}

bool jinja_parse_tuple(struct parser *parser, bool conditions, const char *end,
                       struct expression **out)
{
    return parse_tuple(parser, conditions ? TUPLE_OF_CONDITIONS : TUPLE_OF_PLAIN, end, false,
                       out);
}

/* Only names can be assigned to. */
static bool check_target(const struct parser *parser, const struct expression *target)
{
    switch (target->type) {
    case EXPRESSION_MEMBER: return true;
    case EXPRESSION_NAME:
        if (parser->loops && jinja_text_is(target->name, "loop"))
            return jinja_parse_reject(parser, "'loop' cannot be assigned to inside a loop");
        return true;
    case EXPRESSION_TUPLE:
        for (size_t i = 0; i < target->item_count; i++)
            if (!check_target(parser, target->items[i]))
                return false;
        return true;
    default: return jinja_parse_reject(parser, "only a name can be assigned to");
    }
}

bool jinja_parse_target(struct parser *parser, bool members, const char *end,
                        struct expression **out)
{
    struct mentions before = parser->mentions; /* a target does not use the name */
    if (!parse_tuple(parser, members ? TUPLE_OF_MEMBERS : TUPLE_OF_PRIMARIES, end, false, out))
        return false;
    parser->mentions = before;
    return check_target(parser, *out);
}

bool jinja_parse_primary(struct parser *parser, struct expression **out)
{
    const struct token *token = parser->token;
    struct expression *node = jinja_expression_new(parser, EXPRESSION_CONSTANT, token->line);
    if (!node)
        return false;
    *out = node;
    switch (token->type) {
    case TOKEN_NAME: return parse_name(parser, out);
    case TOKEN_STRING: return parse_string(parser, node);
    case TOKEN_INTEGER: node->constant = value_integer(parser->token++->integer); return true;
    case TOKEN_FLOAT: node->constant = value_float(parser->token++->number); return true;
    case TOKEN_LEFT_BRACKET: return parse_list(parser, out);
    case TOKEN_LEFT_BRACE: return parse_dict(parser, out);
    case TOKEN_LEFT_PARENTHESIS:
        parser->token++;
        return parse_tuple(parser, TUPLE_OF_CONDITIONS, NULL, true, out) &&
               jinja_parser_expect(parser, TOKEN_RIGHT_PARENTHESIS);
    default: return jinja_parse_expected(parser, "an expression");
    }
}
