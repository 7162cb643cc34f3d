/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of the parser share: template_parser.c reads statements,
 * template_expression.c expressions. */
#ifndef BATON_MODEL_TEMPLATE_PARSER_H
#define BATON_MODEL_TEMPLATE_PARSER_H

#include "template_tree.h"

#define PARSE_DEPTH_MAX 150  /* blocks in blocks, and expressions in expressions */
#define PARSE_HEIGHT_MAX 300 /* of an expression's tree: a + b + c ... has one per operator */

/* Names with a meaning of their own, if somebody uses them. */
struct mentions {
    uint32_t loop, caller, kwargs, varargs;
};

struct parser {
    struct compilation *compilation;
    const struct token *token; /* the next one */
    uint32_t depth;
    uint32_t breakable; /* loops that a break here would be inside of */
    uint32_t loops;     /* loops around here, also around the macro that is parsed */
    struct mentions mentions;
};

/* All return false after an error. */
bool jinja_parse_enter(struct parser *parser);
bool jinja_parse_reject(const struct parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
bool jinja_parse_expected(const struct parser *parser, const char *what);

static inline bool parser_at(const struct parser *parser, enum token_type type)
{
    return parser->token->type == type;
}
bool jinja_parser_at_name(const struct parser *parser, const char *name);
/* Steps over it if it is next. */
bool jinja_parser_skip(struct parser *parser, enum token_type type);
bool jinja_parser_skip_name(struct parser *parser, const char *name);
bool jinja_parser_expect(struct parser *parser, enum token_type type);

struct expression *jinja_expression_new(struct parser *parser, enum expression_type type,
                                        uint32_t line);
/* To be called when its operands are set; false: the tree is too high. */
bool jinja_expression_finish(struct parser *parser, struct expression *expression);
/* A node over what is already parsed: *out becomes its left, or there is none before. */
bool jinja_wrap(struct parser *parser, enum expression_type type, uint32_t line,
                struct expression *right, struct expression **out);

/* a if b else c; or, without conditions, what stands above that. */
bool jinja_parse_expression(struct parser *parser, bool conditions, struct expression **out);
/* Expressions with commas between them make a tuple. `end` is a name that ends it, or NULL. */
bool jinja_parse_tuple(struct parser *parser, bool conditions, const char *end,
                       struct expression **out);
/* Names, tuples of names, and with `members` namespace.attribute. */
bool jinja_parse_target(struct parser *parser, bool members, const char *end,
                        struct expression **out);
/* | a | b(c), or only `a | b(c)` where `inline_first`. *out is the subject before; it may be
 * NULL. */
bool jinja_parse_filters(struct parser *parser, bool inline_first, struct expression **out);

/* A list that grows while it is parsed. */
struct expression_list {
    struct expression **items;
    size_t count, capacity;
};
bool jinja_expression_add(struct parser *parser, struct expression_list *list,
                          struct expression *expression);
bool jinja_wrap_items(struct parser *parser, enum expression_type type, uint32_t line,
                      const struct expression_list *list, struct expression **out);

/* The layers of an expression, each in its file. */
bool jinja_parse_primary(struct parser *parser, struct expression **out);
bool jinja_parse_postfix(struct parser *parser, struct expression **out);
bool jinja_parse_filters_and_tests(struct parser *parser, struct expression **out);

#endif
