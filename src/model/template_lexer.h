/* SPDX-License-Identifier: Apache-2.0 */
/* From the text of a template to its tokens. */
#ifndef BATON_MODEL_TEMPLATE_LEXER_H
#define BATON_MODEL_TEMPLATE_LEXER_H

#include "base/error.h"
#include "template_arena.h"
#include "template_value.h"

enum token_type {
    TOKEN_END, /* of the template */
    TOKEN_DATA,
    TOKEN_VARIABLE_BEGIN, /* {{ */
    TOKEN_VARIABLE_END,   /* }} */
    TOKEN_BLOCK_BEGIN,    /* {% */
    TOKEN_BLOCK_END,      /* %} */
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_ADD,
    TOKEN_SUBTRACT,
    TOKEN_DIVIDE,
    TOKEN_FLOOR_DIVIDE,
    TOKEN_MULTIPLY,
    TOKEN_MODULO,
    TOKEN_POWER,
    TOKEN_TILDE,
    TOKEN_LEFT_BRACKET,
    TOKEN_RIGHT_BRACKET,
    TOKEN_LEFT_PARENTHESIS,
    TOKEN_RIGHT_PARENTHESIS,
    TOKEN_LEFT_BRACE,
    TOKEN_RIGHT_BRACE,
    TOKEN_EQUAL,
    TOKEN_NOT_EQUAL,
    TOKEN_GREATER,
    TOKEN_GREATER_EQUAL,
    TOKEN_LESS,
    TOKEN_LESS_EQUAL,
    TOKEN_ASSIGN,
    TOKEN_DOT,
    TOKEN_COLON,
    TOKEN_PIPE,
    TOKEN_COMMA,
    TOKEN_SEMICOLON,
};

struct token {
    enum token_type type;
    uint32_t line;
    struct text text; /* data and strings: what they stand for; others: as written */
    union {
        int64_t integer;
        double number;
    };
};

/* A template on its way to a tree. */
struct compilation {
    struct arena arena;
    struct error err;
    int code;
    struct token *tokens; /* the last one is TOKEN_END */
    size_t token_count;
};

/* Sets the error, "chat template, line 7: ..."; returns false. */
bool jinja_reject(struct compilation *compilation, int code, uint32_t line, const char *format,
                  ...) __attribute__((format(printf, 4, 5), cold));
void *jinja_compile_alloc(struct compilation *compilation, size_t count, size_t size);

bool jinja_lex(struct compilation *compilation, const char *source, size_t length);
/* "'endif'", "end of template"; for error sentences. */
const char *jinja_token_name(enum token_type type);

#endif
