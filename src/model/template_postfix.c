/* SPDX-License-Identifier: Apache-2.0 */
/* What may follow an expression: .name, [item], (arguments), | filter and `is` test. Whatever is
 * not supported is refused here, by its name. */
#include "template_parser.h"

#include <string.h>

/* ---- arguments --------------------------------------------------------------------------- */

static bool keyword_add(struct parser *parser, struct argument_nodes *arguments,
                        struct keyword_node keyword)
{
    for (size_t i = 0; i < arguments->keyword_count; i++)
        if (arguments->keywords[i].name.length == keyword.name.length &&
            memcmp(arguments->keywords[i].name.bytes, keyword.name.bytes,
                   keyword.name.length) == 0)
            return jinja_parse_reject(parser, "the argument '%.*s' is given twice",
                                      (int)keyword.name.length, keyword.name.bytes);
    struct keyword_node *keywords = jinja_compile_alloc(
        parser->compilation, arguments->keyword_count + 1, sizeof(*keywords));
    if (!keywords)
        return false;
    if (arguments->keyword_count)
        memcpy(keywords, arguments->keywords, arguments->keyword_count * sizeof(*keywords));
    keywords[arguments->keyword_count++] = keyword;
    arguments->keywords = keywords;
    return true;
}

static bool parse_argument(struct parser *parser, struct argument_nodes *arguments,
                           struct expression_list *positional)
{
    const struct token *token = parser->token;
    bool starred = arguments->more_positional || arguments->more_keywords;
    struct expression *value;
    if (token->type == TOKEN_MULTIPLY || token->type == TOKEN_POWER) {
        struct expression **place = token->type == TOKEN_MULTIPLY ? &arguments->more_positional
                                                                  : &arguments->more_keywords;
        if (arguments->more_keywords || (token->type == TOKEN_MULTIPLY && starred))
            return jinja_parse_reject(parser, "the arguments are in the wrong order");
        parser->token++;
        return jinja_parse_expression(parser, true, place);
    }
    if (token->type == TOKEN_NAME && token[1].type == TOKEN_ASSIGN) {
        if (arguments->more_keywords)
            return jinja_parse_reject(parser, "the arguments are in the wrong order");
        parser->token += 2;
        return jinja_parse_expression(parser, true, &value) &&
               keyword_add(parser, arguments, (struct keyword_node){token->text, value});
    }
    if (starred || arguments->keyword_count)
        return jinja_parse_reject(parser, "an argument without a name follows one with it");
    return jinja_parse_expression(parser, true, &value) &&
           jinja_expression_add(parser, positional, value);
}

static bool parse_arguments(struct parser *parser, struct argument_nodes *out)
{
    struct expression_list positional = {0};
    if (!jinja_parser_expect(parser, TOKEN_LEFT_PARENTHESIS))
        return false;
    for (bool first = true; !parser_at(parser, TOKEN_RIGHT_PARENTHESIS); first = false) {
        if (!first && !jinja_parser_expect(parser, TOKEN_COMMA))
            return false;
        if (!first && parser_at(parser, TOKEN_RIGHT_PARENTHESIS))
            break;
        if (!parse_argument(parser, out, &positional))
            return false;
    }
    parser->token++;
    out->positional = positional.items;
    out->positional_count = positional.count;
    return true;
}

/* ---- postfix ----------------------------------------------------------------------------- */

static bool parse_attribute(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token++->line;
    const struct token *token = parser->token;
    if (token->type == TOKEN_INTEGER) {
        struct expression *index = jinja_expression_new(parser, EXPRESSION_CONSTANT, line);
        if (!index)
            return false;
        index->constant = value_integer(parser->token++->integer);
        return jinja_wrap(parser, EXPRESSION_ITEM, line, index, out);
    }
    if (token->type != TOKEN_NAME)
        return jinja_parse_expected(parser, "a name or a number");
    parser->token++;
    if (!jinja_wrap(parser, EXPRESSION_ATTRIBUTE, line, NULL, out))
        return false;
    (*out)->name = token->text;
    (*out)->methods = jinja_methods_find(token->text);
    return true;
}

/* What follows a colon of a slice; NULL if there is nothing. */
static bool parse_bound(struct parser *parser, struct expression **out)
{
    *out = NULL;
    if (parser_at(parser, TOKEN_COLON) || parser_at(parser, TOKEN_RIGHT_BRACKET) ||
        parser_at(parser, TOKEN_COMMA))
        return true;
    return jinja_parse_expression(parser, true, out);
}

static bool parse_slice(struct parser *parser, uint32_t line, struct expression *start,
                        struct expression **out)
{
    struct expression **bounds =
        jinja_compile_alloc(parser->compilation, 3, sizeof(struct expression *));
    if (!bounds)
        return false;
    bounds[0] = start;
    bounds[1] = bounds[2] = NULL;
    parser->token++;
    if (!parse_bound(parser, &bounds[1]) ||
        (jinja_parser_skip(parser, TOKEN_COLON) && !parse_bound(parser, &bounds[2])))
        return false;
    struct expression *node = jinja_expression_new(parser, EXPRESSION_SLICE, line);
    if (!node)
        return false;
    node->left = *out;
    node->items = bounds;
    node->item_count = 3;
    *out = node;
    return jinja_expression_finish(parser, node);
}

static bool parse_subscript(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token++->line;
    struct expression *index = NULL;
    struct expression_list items = {0};
    if (!parse_bound(parser, &index))
        return false;
    if (parser_at(parser, TOKEN_COLON)) {
        if (!parse_slice(parser, line, index, out))
            return false;
        if (parser_at(parser, TOKEN_COMMA))
            return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, line,
                                "several slices in one pair of brackets are not supported");
        return jinja_parser_expect(parser, TOKEN_RIGHT_BRACKET);
    }
    if (!index && !jinja_wrap_items(parser, EXPRESSION_TUPLE, line, &items, &index))
        return false;
    while (parser_at(parser, TOKEN_COMMA)) { /* a tuple */
        struct expression *item;
        if (!items.count && !jinja_expression_add(parser, &items, index))
            return false;
        parser->token++;
        if (!jinja_parse_expression(parser, true, &item) ||
            !jinja_expression_add(parser, &items, item))
            return false;
    }
    if (items.count && !jinja_wrap_items(parser, EXPRESSION_TUPLE, line, &items, &index))
        return false;
    return jinja_wrap(parser, EXPRESSION_ITEM, line, index, out) &&
           jinja_parser_expect(parser, TOKEN_RIGHT_BRACKET);
}

static bool check_callee(struct parser *parser, const struct expression *callee, uint32_t line)
{
    if (callee->type == EXPRESSION_ATTRIBUTE && jinja_method_unsupported(callee->name))
        return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, line,
                            "the method '%.*s' is not supported", (int)callee->name.length,
                            callee->name.bytes);
    if (callee->type == EXPRESSION_NAME && jinja_function_unsupported(callee->name))
        return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, line,
                            "the function '%.*s' is not supported", (int)callee->name.length,
                            callee->name.bytes);
    return true;
}

static bool parse_call(struct parser *parser, struct expression **out)
{
    struct expression *node =
        jinja_expression_new(parser, EXPRESSION_CALL, parser->token->line);
    if (!node || !check_callee(parser, *out, node->line) ||
        !parse_arguments(parser, &node->arguments))
        return false;
    node->left = *out;
    *out = node;
    return jinja_expression_finish(parser, node);
}

bool jinja_parse_postfix(struct parser *parser, struct expression **out)
{
    for (;;) {
        bool good;
        switch (parser->token->type) {
        case TOKEN_DOT: good = parse_attribute(parser, out); break;
        case TOKEN_LEFT_BRACKET: good = parse_subscript(parser, out); break;
        case TOKEN_LEFT_PARENTHESIS: good = parse_call(parser, out); break;
        default: return true;
        }
        if (!good)
            return false;
    }
}

/* ---- filters and tests ------------------------------------------------------------------- */

/* a.b is one name here. */
static bool parse_dotted(struct parser *parser, const char *what, struct text *out)
{
    if (!parser_at(parser, TOKEN_NAME))
        return jinja_parse_expected(parser, what);
    *out = parser->token++->text;
    while (jinja_parser_skip(parser, TOKEN_DOT)) {
        if (!parser_at(parser, TOKEN_NAME))
            return jinja_parse_expected(parser, what);
        struct text more = parser->token++->text;
        out->length = (uint32_t)(more.bytes + more.length - out->bytes);
    }
    return true;
}

/* map, select and their kin take the name of a filter or test as an argument. */
static bool check_inner_name(struct parser *parser, const struct expression *filter)
{
    bool map = jinja_text_is(filter->name, "map");
    bool by_value =
        jinja_text_is(filter->name, "select") || jinja_text_is(filter->name, "reject");
    bool by_attribute =
        jinja_text_is(filter->name, "selectattr") || jinja_text_is(filter->name, "rejectattr");
    size_t place = by_attribute;
    if (!(map || by_value || by_attribute) || filter->arguments.positional_count <= place)
        return true;
    const struct expression *argument = filter->arguments.positional[place];
    if (argument->type != EXPRESSION_CONSTANT || argument->constant.type != VALUE_STRING)
        return true;
    struct text name = value_text(argument->constant);
    if (map ? jinja_filter_find(name) : jinja_test_find(name))
        return true;
    return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, argument->line,
                        "the %s '%.*s' is not supported", map ? "filter" : "test",
                        (int)name.length, name.bytes);
}

bool jinja_parse_filters(struct parser *parser, bool inline_first, struct expression **out)
{
    while (inline_first || jinja_parser_skip(parser, TOKEN_PIPE)) {
        uint32_t line = parser->token->line;
        struct expression *node = jinja_expression_new(parser, EXPRESSION_FILTER, line);
        inline_first = false;
        if (!node || !parse_dotted(parser, "the name of a filter", &node->name))
            return false;
        node->builtin = jinja_filter_find(node->name);
        if (!node->builtin)
            return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, line,
                                "the filter '%.*s' is not supported", (int)node->name.length,
                                node->name.bytes);
        if (parser_at(parser, TOKEN_LEFT_PARENTHESIS) &&
            !parse_arguments(parser, &node->arguments))
            return false;
        node->left = *out;
        *out = node;
        if (!check_inner_name(parser, node) || !jinja_expression_finish(parser, node))
            return false;
    }
    return true;
}

/* A test may have one argument without parentheses: x is divisibleby 3. */
static bool parse_bare_argument(struct parser *parser, struct argument_nodes *arguments)
{
    struct expression_list positional = {0};
    struct expression *value;
    switch (parser->token->type) {
    case TOKEN_NAME:
    case TOKEN_STRING:
    case TOKEN_INTEGER:
    case TOKEN_FLOAT:
    case TOKEN_LEFT_BRACKET:
    case TOKEN_LEFT_BRACE: break;
    default: return true;
    }
    if (jinja_parser_at_name(parser, "else") || jinja_parser_at_name(parser, "or") ||
        jinja_parser_at_name(parser, "and"))
        return true;
    if (jinja_parser_at_name(parser, "is"))
        return jinja_parse_reject(parser, "two tests cannot follow one another");
    if (!jinja_parse_primary(parser, &value) || !jinja_parse_postfix(parser, &value) ||
        !jinja_expression_add(parser, &positional, value))
        return false;
    arguments->positional = positional.items;
    arguments->positional_count = 1;
    return true;
}

static bool parse_test(struct parser *parser, struct expression **out)
{
    uint32_t line = parser->token++->line;
    bool negated = jinja_parser_skip_name(parser, "not");
    struct expression *node = jinja_expression_new(parser, EXPRESSION_TEST, line);
    if (!node || !parse_dotted(parser, "the name of a test", &node->name))
        return false;
    node->builtin = jinja_test_find(node->name);
    if (!node->builtin)
        return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, line,
                            "the test '%.*s' is not supported", (int)node->name.length,
                            node->name.bytes);
    if (parser_at(parser, TOKEN_LEFT_PARENTHESIS)
            ? !parse_arguments(parser, &node->arguments)
            : !parse_bare_argument(parser, &node->arguments))
        return false;
    node->left = *out;
    *out = node;
    return jinja_expression_finish(parser, node) &&
           (!negated || jinja_wrap(parser, EXPRESSION_NOT, line, NULL, out));
}

bool jinja_parse_filters_and_tests(struct parser *parser, struct expression **out)
{
    for (;;) {
        bool good;
        if (parser_at(parser, TOKEN_PIPE))
            good = jinja_parse_filters(parser, false, out);
        else if (jinja_parser_at_name(parser, "is"))
            good = parse_test(parser, out);
        else if (parser_at(parser, TOKEN_LEFT_PARENTHESIS))
            good = parse_call(parser, out);
        else
            return true;
        if (!good)
            return false;
    }
}
