/* SPDX-License-Identifier: Apache-2.0 */
/* Operators, from the loosest binding to the tightest:
 *
 *   a if b else c   or   and   not   == != < <= > >= in   + -   ~   * / // %   **   unary - +
 *
 * then postfix, filters and tests (template_postfix.c). ~ binds tighter than +, and a filter
 * applies to what a unary minus made: -1|abs is abs(-1). Both as in jinja2. */
#include "template_parser.h"

#include <string.h>

static bool parse_condition(struct parser *parser, struct expression **out);

static bool parse_unary(struct parser *parser, bool filters, struct expression **out)
{
    uint32_t line = parser->token->line;
    bool negate = parser_at(parser, TOKEN_SUBTRACT);
    if (negate || parser_at(parser, TOKEN_ADD)) {
        parser->token++;
        if (!jinja_parse_enter(parser) || !parse_unary(parser, false, out) ||
            !jinja_wrap(parser, negate ? EXPRESSION_NEGATE : EXPRESSION_PLUS, line, NULL, out))
            return false;
        parser->depth--;
    } else if (!jinja_parse_primary(parser, out)) {
        return false;
    }
    return jinja_parse_postfix(parser, out) &&
           (!filters || jinja_parse_filters_and_tests(parser, out));
}

static bool parse_operand(struct parser *parser, struct expression **out)
{
    return parse_unary(parser, true, out);
}

static bool at_operator(const struct parser *parser, const enum token_type *types, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (parser_at(parser, types[i]))
            return true;
    return false;
}

/* Operators of one strength, which group to the left. */
static bool parse_binary(struct parser *parser, const enum token_type *types, size_t count,
                         bool (*operand)(struct parser *, struct expression **),
                         struct expression **out)
{
    if (!operand(parser, out))
        return false;
    while (at_operator(parser, types, count)) {
        const struct token *token = parser->token++;
        struct expression *right;
        if (!operand(parser, &right) ||
            !jinja_wrap(parser, EXPRESSION_BINARY, token->line, right, out))
            return false;
        (*out)->operators = jinja_compile_alloc(parser->compilation, 1, 1);
        if (!(*out)->operators)
            return false;
        (*out)->operators[0] = (uint8_t)token->type;
    }
    return true;
}

static bool parse_power(struct parser *parser, struct expression **out)
{
    static const enum token_type types[] = {TOKEN_POWER};
    return parse_binary(parser, types, 1, parse_operand, out);
}

static bool parse_product(struct parser *parser, struct expression **out)
{
    static const enum token_type types[] = {TOKEN_MULTIPLY, TOKEN_DIVIDE, TOKEN_FLOOR_DIVIDE,
                                            TOKEN_MODULO};
    return parse_binary(parser, types, 4, parse_power, out);
}

static bool parse_concat(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token->line;
    struct expression_list items = {0};
    struct expression *item;
    if (!parse_product(parser, &item))
        return false;
    *out = item;
    if (!parser_at(parser, TOKEN_TILDE))
        return true;
    if (!jinja_expression_add(parser, &items, item))
        return false;
    while (jinja_parser_skip(parser, TOKEN_TILDE))
        if (!parse_product(parser, &item) || !jinja_expression_add(parser, &items, item))
            return false;
    return jinja_wrap_items(parser, EXPRESSION_CONCAT, line, &items, out);
}

static bool parse_sum(struct parser *parser, struct expression **out)
{
    static const enum token_type types[] = {TOKEN_ADD, TOKEN_SUBTRACT};
    return parse_binary(parser, types, 2, parse_concat, out);
}

/* Steps over a comparison's operation; 0: there is none. */
static uint8_t skip_comparison(struct parser *parser)
{
    static const enum token_type types[] = {TOKEN_EQUAL,   TOKEN_NOT_EQUAL,
                                            TOKEN_GREATER, TOKEN_GREATER_EQUAL,
                                            TOKEN_LESS,    TOKEN_LESS_EQUAL};
    if (at_operator(parser, types, 6))
        return (uint8_t)parser->token++->type;
    if (jinja_parser_skip_name(parser, "in"))
        return OPERATOR_IN;
    if (!jinja_parser_at_name(parser, "not") || parser->token[1].type != TOKEN_NAME ||
        !jinja_text_is(parser->token[1].text, "in"))
        return 0;
    parser->token += 2;
    return OPERATOR_NOT_IN;
}

static bool parse_comparison(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token->line;
    struct expression_list items = {0};
    uint8_t operators[64], operation;
    if (!parse_sum(parser, out))
        return false;
    while ((operation = skip_comparison(parser)) != 0) {
        struct expression *item;
        if (!items.count && !jinja_expression_add(parser, &items, *out))
            return false;
        if (items.count > sizeof(operators))
            return jinja_reject(parser->compilation, BATON_ELIMIT, line,
                                "more than %zu comparisons in a row", sizeof(operators));
        operators[items.count - 1] = operation;
        if (!parse_sum(parser, &item) || !jinja_expression_add(parser, &items, item))
            return false;
    }
    if (!items.count)
        return true;
    if (!jinja_wrap_items(parser, EXPRESSION_COMPARE, line, &items, out))
        return false;
    (*out)->operators = jinja_compile_alloc(parser->compilation, items.count - 1, 1);
    if (!(*out)->operators)
        return false;
    memcpy((*out)->operators, operators, items.count - 1);
    return true;
}

static bool parse_not(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token->line;
    if (!jinja_parser_skip_name(parser, "not"))
        return parse_comparison(parser, out);
    if (!jinja_parse_enter(parser) || !parse_not(parser, out))
        return false;
    parser->depth--;
    return jinja_wrap(parser, EXPRESSION_NOT, line, NULL, out);
}

static bool parse_and(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token->line;
    if (!parse_not(parser, out))
        return false;
    while (jinja_parser_skip_name(parser, "and")) {
        struct expression *right;
        if (!parse_not(parser, &right) || !jinja_wrap(parser, EXPRESSION_AND, line, right, out))
            return false;
    }
    return true;
}

static bool parse_or(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token->line;
    if (!parse_and(parser, out))
        return false;
    while (jinja_parser_skip_name(parser, "or")) {
        struct expression *right;
        if (!parse_and(parser, &right) || !jinja_wrap(parser, EXPRESSION_OR, line, right, out))
            return false;
    }
    return true;
}

static bool parse_condition(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token->line;
    if (!jinja_parse_enter(parser) || !parse_or(parser, out))
        return false;
    while (jinja_parser_skip_name(parser, "if")) {
        struct expression *test;
        struct expression_list otherwise = {0};
        if (!parse_or(parser, &test))
            return false;
        if (jinja_parser_skip_name(parser, "else")) {
            struct expression *value;
            if (!parse_condition(parser, &value) ||
                !jinja_expression_add(parser, &otherwise, value))
                return false;
        }
        struct expression *node = jinja_expression_new(parser, EXPRESSION_CONDITION, line);
        if (!node)
            return false;
        node->left = *out;
        node->right = test;
        node->items = otherwise.items;
        node->item_count = otherwise.count;
        *out = node;
        if (!jinja_expression_finish(parser, node))
            return false;
    }
    parser->depth--;
    return true;
}

bool jinja_parse_expression(struct parser *parser, bool conditions, struct expression **out)
{
    if (conditions)
        return parse_condition(parser, out);
    if (!jinja_parse_enter(parser) || !parse_or(parser, out))
        return false;
    parser->depth--;
    return true;
}
