/* SPDX-License-Identifier: Apache-2.0 */
/* A compiled template: its tree of statements and expressions, and its scopes. Nothing of it
 * changes after template_compile, so any number of threads may render it. */
#ifndef BATON_MODEL_TEMPLATE_TREE_H
#define BATON_MODEL_TEMPLATE_TREE_H

#include "template_arena.h"
#include "template_builtin.h"
#include "template_lexer.h"
#include "template_value.h"

/* ---- expressions ------------------------------------------------------------------------- */

enum expression_type {
    EXPRESSION_CONSTANT,
    EXPRESSION_NAME,
    EXPRESSION_LIST,      /* items */
    EXPRESSION_TUPLE,     /* items */
    EXPRESSION_DICT,      /* items: key, value, key, value ... */
    EXPRESSION_CONCAT,    /* items, joined by ~ */
    EXPRESSION_COMPARE,   /* items: 1 < 2 < 3; operators: one less */
    EXPRESSION_NOT,       /* left */
    EXPRESSION_NEGATE,    /* left */
    EXPRESSION_PLUS,      /* left */
    EXPRESSION_AND,       /* left, right */
    EXPRESSION_OR,        /* left, right */
    EXPRESSION_BINARY,    /* left, right, by `operators[0]` */
    EXPRESSION_CONDITION, /* left if right else items[0], which may be missing */
    EXPRESSION_ATTRIBUTE, /* left.name */
    EXPRESSION_ITEM,      /* left[right] */
    EXPRESSION_SLICE,     /* left[items[0]:items[1]:items[2]], each may be NULL */
    EXPRESSION_CALL,      /* left(arguments) */
    EXPRESSION_FILTER,    /* left | name(arguments); left is NULL for the text of a block */
    EXPRESSION_TEST,      /* left is name(arguments) */
    EXPRESSION_MEMBER,    /* only a target: name.attribute of a namespace */
};

/* What `operators` holds besides tokens. */
enum { OPERATOR_IN = 100, OPERATOR_NOT_IN };

/* A variable: that many scopes up from where it is used, and its number there. */
struct variable {
    uint32_t hops, slot;
};

struct keyword_node {
    struct text name;
    struct expression *value;
};

struct argument_nodes {
    struct expression **positional;
    size_t positional_count;
    struct keyword_node *keywords;
    size_t keyword_count;
    struct expression *more_positional; /* *list; NULL: none */
    struct expression *more_keywords;   /* **dict; NULL: none */
};

struct expression {
    enum expression_type type;
    uint32_t line;
    uint32_t height; /* of the tree below, for a bound on recursion */
    struct value constant;
    struct text name;
    struct text attribute; /* EXPRESSION_MEMBER */
    struct variable variable;
    struct expression *left, *right;
    struct expression **items;
    size_t item_count;
    uint8_t *operators;
    struct argument_nodes arguments;
    const struct builtin *builtin; /* filter, test */
    struct method_set methods;     /* attribute: those of this name */
};

/* ---- scopes ------------------------------------------------------------------------------ */

/* How a variable gets its value when its scope is entered. */
enum symbol_load {
    SYMBOL_PARAMETER, /* from whoever enters */
    SYMBOL_CONTEXT,   /* from the context, or a global function */
    SYMBOL_OUTER,     /* a copy of the variable of that name further out */
    SYMBOL_NOTHING,   /* it is assigned later */
};

struct symbol {
    struct text name;
    enum symbol_load load;
    bool stored;
    struct variable outer; /* seen from the scope outside of the symbol's */
};

struct scope {
    struct scope *outer;
    struct symbol *symbols;
    size_t count, capacity;
};

/* ---- statements -------------------------------------------------------------------------- */

enum statement_type {
    STATEMENT_TEXT,
    STATEMENT_PRINT,
    STATEMENT_IF,
    STATEMENT_FOR,
    STATEMENT_SET,
    STATEMENT_SET_BLOCK,
    STATEMENT_MACRO,
    STATEMENT_CALL,
    STATEMENT_FILTER,
    STATEMENT_WITH,
    STATEMENT_GENERATION,
    STATEMENT_BREAK,
    STATEMENT_CONTINUE,
};

struct block {
    struct statement *first;
    struct statement **end; /* where the next one is linked in, while parsing */
};

struct branch {
    struct expression *test; /* NULL: else */
    struct block body;
};

/* The parameters and the body of a macro or of a {% call %}. */
struct macro_node {
    struct text name;
    struct expression **parameters; /* names */
    size_t parameter_count;
    struct expression **defaults; /* of the last so many parameters */
    size_t default_count;
    struct block body;
    struct scope *scope;
    struct variable caller, keywords, positional; /* caller, kwargs, varargs, where used */
    bool uses_caller, uses_keywords, uses_positional;
};

struct statement {
    enum statement_type type;
    uint32_t line;
    struct statement *next;
    struct text text;              /* TEXT */
    struct expression *target;     /* FOR, SET, SET_BLOCK */
    struct expression *expression; /* PRINT, SET; FOR: what to go through; SET_BLOCK, FILTER:
                                      the filters or NULL; CALL: the call */
    struct expression *test;       /* FOR: or NULL */
    struct branch *branches;       /* IF */
    size_t branch_count;
    struct block body;             /* FOR, SET_BLOCK, FILTER, WITH */
    struct block otherwise;        /* FOR: else */
    struct scope *scope;           /* of the body */
    struct scope *test_scope;      /* FOR */
    struct scope *otherwise_scope; /* FOR */
    bool uses_loop;                /* FOR: `loop` is used in the body */
    struct variable loop;
    struct macro_node *macro;    /* MACRO, CALL, GENERATION */
    struct variable macro_place; /* MACRO: where it is stored */
    struct expression **targets; /* WITH */
    struct expression **values;  /* WITH */
    size_t target_count;
};

struct template
{
    struct arena arena;
    struct block body;
    struct scope *scope;
};

/* From tokens to the tree (template_parser.c, template_expression.c). */
bool jinja_parse(struct compilation *compilation, struct block *out);
/* Gives every name its variable (template_scope.c). */
bool jinja_resolve(struct compilation *compilation, struct block *body, struct scope **out);

#endif
