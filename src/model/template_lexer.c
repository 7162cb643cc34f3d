/* SPDX-License-Identifier: Apache-2.0 */
/* The lexer of jinja2 with trim_blocks and lstrip_blocks, as transformers sets them:
 *
 *   - the one newline at the very end of the template is dropped, CR LF and CR become LF;
 *   - `{%` and `{#` take the white space before them if they are first on their line, `{%-`,
 *     `{{-`, `{#-` all white space before them, `{%+` none;
 *   - `%}` and `#}` take the newline after them, `-%}`, `-}}`, `-#}` all white space, `+%}` none;
 *   - inside brackets `}}` and `%}` are operators: {{ {'a': {}} }} is a dict in a dict.
 *
 * Literals are read in template_literal.c. */
#include "template_lexer.h"

#include "template_literal.h"
#include "template_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NESTING_MAX 200 /* brackets in brackets in one tag */

struct lexer {
    struct compilation *compilation;
    struct text source;
    size_t at;
    uint32_t line;
    bool line_starting; /* what was read last ended a line */
    size_t capacity;
    char brackets[NESTING_MAX]; /* the closing ones that are waited for */
    size_t nesting;
};

bool jinja_reject(struct compilation *compilation, int code, uint32_t line, const char *format,
                  ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    compilation->code =
        error_set(compilation->err, code, "chat template, line %u: %s", line, sentence);
    return false;
}

void *jinja_compile_alloc(struct compilation *compilation, size_t count, size_t size)
{
    void *out = jinja_arena_array(&compilation->arena, count, size);
    if (!out && compilation->arena.refused)
        compilation->code = error_set(compilation->err, BATON_ELIMIT,
                                      "chat template: it needs more than %zu bytes of memory",
                                      compilation->arena.limit);
    else if (!out)
        compilation->code =
            error_set(compilation->err, BATON_ENOMEM, "chat template: out of memory");
    return out;
}

const char *jinja_token_name(enum token_type type)
{
    static const char *const names[] = {
        [TOKEN_END] = "the end of the template",
        [TOKEN_DATA] = "text",
        [TOKEN_VARIABLE_BEGIN] = "'{{'",
        [TOKEN_VARIABLE_END] = "'}}'",
        [TOKEN_BLOCK_BEGIN] = "'{%'",
        [TOKEN_BLOCK_END] = "'%}'",
        [TOKEN_NAME] = "a name",
        [TOKEN_STRING] = "a string",
        [TOKEN_INTEGER] = "a number",
        [TOKEN_FLOAT] = "a number",
        [TOKEN_ADD] = "'+'",
        [TOKEN_SUBTRACT] = "'-'",
        [TOKEN_DIVIDE] = "'/'",
        [TOKEN_FLOOR_DIVIDE] = "'//'",
        [TOKEN_MULTIPLY] = "'*'",
        [TOKEN_MODULO] = "'%'",
        [TOKEN_POWER] = "'**'",
        [TOKEN_TILDE] = "'~'",
        [TOKEN_LEFT_BRACKET] = "'['",
        [TOKEN_RIGHT_BRACKET] = "']'",
        [TOKEN_LEFT_PARENTHESIS] = "'('",
        [TOKEN_RIGHT_PARENTHESIS] = "')'",
        [TOKEN_LEFT_BRACE] = "'{'",
        [TOKEN_RIGHT_BRACE] = "'}'",
        [TOKEN_EQUAL] = "'=='",
        [TOKEN_NOT_EQUAL] = "'!='",
        [TOKEN_GREATER] = "'>'",
        [TOKEN_GREATER_EQUAL] = "'>='",
        [TOKEN_LESS] = "'<'",
        [TOKEN_LESS_EQUAL] = "'<='",
        [TOKEN_ASSIGN] = "'='",
        [TOKEN_DOT] = "'.'",
        [TOKEN_COLON] = "':'",
        [TOKEN_PIPE] = "'|'",
        [TOKEN_COMMA] = "','",
        [TOKEN_SEMICOLON] = "';'",
    };
    return names[type];
}

/* ---- moving over the source -------------------------------------------------------------- */

/* A copy with plain newlines and without the last one. */
static bool source_copy(struct lexer *lexer, const char *bytes, size_t length)
{
    char *copy = jinja_compile_alloc(lexer->compilation, length, 1);
    size_t to = 0;
    if (!copy)
        return false;
    for (size_t i = 0; i < length; i++) {
        bool pair = bytes[i] == '\r' && i + 1 < length && bytes[i + 1] == '\n';
        if (!pair)
            copy[to++] = bytes[i] == '\r' ? '\n' : bytes[i];
    }
    if (to && copy[to - 1] == '\n')
        to--;
    lexer->source = (struct text){copy, (uint32_t)to};
    return true;
}

static struct text rest(const struct lexer *lexer)
{
    return jinja_text_slice(lexer->source, lexer->at, lexer->source.length);
}

static bool at(const struct lexer *lexer, const char *word)
{
    return jinja_text_starts(rest(lexer), (struct text){word, (uint32_t)strlen(word)});
}

static void advance(struct lexer *lexer, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        lexer->line += lexer->source.bytes[lexer->at + i] == '\n';
    lexer->at += bytes;
}

static size_t space_length(struct text text, size_t from)
{
    struct text after = jinja_text_slice(text, from, text.length);
    return after.length - jinja_text_strip(after, NULL, true, false).length;
}

static struct token *token_add(struct lexer *lexer, enum token_type type, struct text text)
{
    struct compilation *compilation = lexer->compilation;
    if (compilation->token_count == lexer->capacity) {
        size_t capacity = lexer->capacity ? 2 * lexer->capacity : 256;
        struct token *tokens = jinja_compile_alloc(compilation, capacity, sizeof(*tokens));
        if (!tokens)
            return NULL;
        if (compilation->token_count)
            memcpy(tokens, compilation->tokens, compilation->token_count * sizeof(*tokens));
        compilation->tokens = tokens;
        lexer->capacity = capacity;
    }
    struct token *token = &compilation->tokens[compilation->token_count++];
    *token = (struct token){.type = type, .line = lexer->line, .text = text};
    return token;
}

/* The end of a tag, such as %}, with the sign before it and the white space it takes. 0: it is
 * not here. */
static size_t tag_end_length(struct text text, size_t from, const char *end, bool trim)
{
    struct text after = jinja_text_slice(text, from, text.length);
    struct text mark = {end, 2};
    bool sign = after.length && (after.bytes[0] == '-' || (after.bytes[0] == '+' && trim));
    size_t length = (size_t)sign + 2;
    if (!jinja_text_starts(jinja_text_slice(after, sign, after.length), mark))
        return 0;
    if (sign && after.bytes[0] == '-')
        length += space_length(after, length);
    else if (!sign && trim && length < after.length && after.bytes[length] == '\n')
        length++;
    return length;
}

/* ---- outside of tags --------------------------------------------------------------------- */

/* Data up to a tag: what is left of it after the tag has taken its white space. */
static struct text data_before(const struct lexer *lexer, struct text data, char sign,
                               bool variable)
{
    if (sign == '-')
        return jinja_text_strip(data, NULL, false, true);
    if (sign == '+' || variable)
        return data;
    ssize_t newline = jinja_text_find_last(data, TEXT("\n"));
    if (newline < 0 && !lexer->line_starting)
        return data;
    size_t line = (size_t)(newline + 1);
    if (line + space_length(data, line) != data.length)
        return data;
    return jinja_text_slice(data, 0, line);
}

/* `raw` and its end after {% and a sign; 0: it is another tag. */
static size_t raw_begin_length(const struct lexer *lexer, size_t from)
{
    size_t i = from + space_length(lexer->source, from);
    if (!jinja_text_starts(jinja_text_slice(lexer->source, i, lexer->source.length),
                           TEXT("raw")))
        return 0;
    i += 3;
    i += space_length(lexer->source, i);
    struct text after = jinja_text_slice(lexer->source, i, lexer->source.length);
    if (jinja_text_starts(after, TEXT("%}")))
        return i + 2 - from;
    if (!jinja_text_starts(after, TEXT("-%}")))
        return 0;
    i += 3;
    return i + space_length(lexer->source, i) - from;
}

/* The next {% endraw %}: where it is, its sign and its length. */
static bool raw_end_find(const struct lexer *lexer, size_t *where, char *sign, size_t *length)
{
    struct text source = lexer->source;
    ssize_t found = jinja_text_find(source, TEXT("{%"), lexer->at);
    for (; found >= 0; found = jinja_text_find(source, TEXT("{%"), (size_t)found + 1)) {
        size_t i = (size_t)found + 2;
        *sign = i < source.length ? source.bytes[i] : '\0';
        *sign = *sign == '-' || *sign == '+' ? *sign : '\0';
        i += *sign != '\0';
        i += space_length(source, i);
        if (!jinja_text_starts(jinja_text_slice(source, i, source.length), TEXT("endraw")))
            continue;
        i += 6;
        i += space_length(source, i);
        size_t end = tag_end_length(source, i, "%}", true);
        if (!end)
            continue;
        *where = (size_t)found;
        *length = i + end - (size_t)found;
        return true;
    }
    return false;
}

static bool lex_raw(struct lexer *lexer, size_t begin)
{
    size_t where, length;
    char sign;
    advance(lexer, begin);
    lexer->line_starting = lexer->source.bytes[lexer->at - 1] == '\n';
    if (!raw_end_find(lexer, &where, &sign, &length))
        return jinja_reject(lexer->compilation, BATON_EINVAL, lexer->line,
                            "{%% raw %%} has no {%% endraw %%}");
    struct text data = jinja_text_slice(lexer->source, lexer->at, where);
    struct text kept = data_before(lexer, data, sign, false);
    if (kept.length && !token_add(lexer, TOKEN_DATA, kept))
        return false;
    advance(lexer, data.length + length);
    lexer->line_starting = lexer->source.bytes[lexer->at - 1] == '\n';
    return true;
}

static bool lex_comment(struct lexer *lexer)
{
    ssize_t end = jinja_text_find(lexer->source, TEXT("#}"), lexer->at);
    if (end < 0)
        return jinja_reject(lexer->compilation, BATON_EINVAL, lexer->line,
                            "a comment has no end; '#}' is missing");
    size_t from = (size_t)end;
    if (from > lexer->at &&
        (lexer->source.bytes[from - 1] == '-' || lexer->source.bytes[from - 1] == '+'))
        from--;
    size_t length = tag_end_length(lexer->source, from, "#}", true);
    advance(lexer, from + length - lexer->at);
    lexer->line_starting = lexer->source.bytes[lexer->at - 1] == '\n';
    return true;
}

/* ---- inside of tags ---------------------------------------------------------------------- */

static bool lex_bracket(struct lexer *lexer, enum token_type type)
{
    char open = lexer->source.bytes[lexer->at];
    struct compilation *compilation = lexer->compilation;
    if (type == TOKEN_LEFT_BRACE || type == TOKEN_LEFT_BRACKET ||
        type == TOKEN_LEFT_PARENTHESIS) {
        if (lexer->nesting == NESTING_MAX)
            return jinja_reject(compilation, BATON_ELIMIT, lexer->line,
                                "more than %d brackets in one another", NESTING_MAX);
        lexer->brackets[lexer->nesting++] = open == '{' ? '}' : open == '[' ? ']' : ')';
    } else if (type == TOKEN_RIGHT_BRACE || type == TOKEN_RIGHT_BRACKET ||
               type == TOKEN_RIGHT_PARENTHESIS) {
        if (lexer->nesting == 0 || lexer->brackets[lexer->nesting - 1] != open)
            return jinja_reject(compilation, BATON_EINVAL, lexer->line, "unexpected '%c'",
                                open);
        lexer->nesting--;
    }
    return true;
}

static bool lex_operator(struct lexer *lexer)
{
    static const struct {
        const char *mark;
        enum token_type type;
    } operators[] = {
        {"//", TOKEN_FLOOR_DIVIDE},
        {"**", TOKEN_POWER},
        {"==", TOKEN_EQUAL},
        {"!=", TOKEN_NOT_EQUAL},
        {">=", TOKEN_GREATER_EQUAL},
        {"<=", TOKEN_LESS_EQUAL},
        {"+", TOKEN_ADD},
        {"-", TOKEN_SUBTRACT},
        {"/", TOKEN_DIVIDE},
        {"*", TOKEN_MULTIPLY},
        {"%", TOKEN_MODULO},
        {"~", TOKEN_TILDE},
        {"[", TOKEN_LEFT_BRACKET},
        {"]", TOKEN_RIGHT_BRACKET},
        {"(", TOKEN_LEFT_PARENTHESIS},
        {")", TOKEN_RIGHT_PARENTHESIS},
        {"{", TOKEN_LEFT_BRACE},
        {"}", TOKEN_RIGHT_BRACE},
        {">", TOKEN_GREATER},
        {"<", TOKEN_LESS},
        {"=", TOKEN_ASSIGN},
        {".", TOKEN_DOT},
        {":", TOKEN_COLON},
        {"|", TOKEN_PIPE},
        {",", TOKEN_COMMA},
        {";", TOKEN_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        size_t length = strlen(operators[i].mark);
        if (!at(lexer, operators[i].mark))
            continue;
        if (!lex_bracket(lexer, operators[i].type) ||
            !token_add(lexer, operators[i].type, jinja_text_slice(rest(lexer), 0, length)))
            return false;
        advance(lexer, length);
        return true;
    }
    unsigned char byte = (unsigned char)lexer->source.bytes[lexer->at];
    if (byte >= 0x80)
        return jinja_reject(lexer->compilation, BATON_EUNSUPPORTED, lexer->line,
                            "names of letters other than a-z are not supported");
    return jinja_reject(
        lexer->compilation, BATON_EINVAL, lexer->line,
        byte > ' ' ? "unexpected character '%c'" : "unexpected character of code %d", byte);
}

static bool lex_literal(struct lexer *lexer, enum literal_type type, size_t length)
{
    static const enum token_type types[] = {
        [LITERAL_NAME] = TOKEN_NAME,
        [LITERAL_STRING] = TOKEN_STRING,
        [LITERAL_INTEGER] = TOKEN_INTEGER,
        [LITERAL_FLOAT] = TOKEN_FLOAT,
    };
    struct text text = jinja_text_slice(rest(lexer), 0, length);
    struct token *token = token_add(lexer, types[type], text);
    if (!token || !jinja_literal_read(lexer->compilation, type, token))
        return false;
    advance(lexer, length);
    return true;
}

/* Up to and with the end of the tag, or to the end of the source. */
static bool lex_tag(struct lexer *lexer, const char *end, enum token_type end_type)
{
    bool block = end_type == TOKEN_BLOCK_END;
    while (lexer->at < lexer->source.length) {
        size_t length =
            lexer->nesting ? 0 : tag_end_length(lexer->source, lexer->at, end, block);
        if (length) {
            if (!token_add(lexer, end_type, jinja_text_slice(rest(lexer), 0, length)))
                return false;
            advance(lexer, length);
            lexer->line_starting = lexer->source.bytes[lexer->at - 1] == '\n';
            return true;
        }
        size_t space = space_length(lexer->source, lexer->at);
        if (space) {
            advance(lexer, space);
            continue;
        }
        enum literal_type type;
        length = jinja_literal_length(lexer->source, lexer->at, &type);
        if (length ? !lex_literal(lexer, type, length) : !lex_operator(lexer))
            return false;
    }
    return true;
}

/* ---- the whole --------------------------------------------------------------------------- */

/* The next {%, {{ or {#; the length of the source if there is none. */
static size_t tag_find(const struct lexer *lexer)
{
    struct text source = lexer->source;
    for (size_t i = lexer->at; i + 1 < source.length; i++)
        if (source.bytes[i] == '{' && strchr("%{#", source.bytes[i + 1]) && source.bytes[i + 1])
            return i;
    return source.length;
}

static bool lex_data_and_tag(struct lexer *lexer)
{
    size_t where = tag_find(lexer);
    struct text data = jinja_text_slice(lexer->source, lexer->at, where);
    if (where == lexer->source.length) {
        if (data.length && !token_add(lexer, TOKEN_DATA, data))
            return false;
        advance(lexer, data.length);
        return true;
    }
    char kind = lexer->source.bytes[where + 1];
    char sign = where + 2 < lexer->source.length ? lexer->source.bytes[where + 2] : '\0';
    size_t begin = 2 + (sign == '-' || sign == '+');
    struct text kept = data_before(lexer, data, sign, kind == '{');
    if (kept.length && !token_add(lexer, TOKEN_DATA, kept))
        return false;
    advance(lexer, data.length);
    size_t raw = kind == '%' ? raw_begin_length(lexer, lexer->at + begin) : 0;
    lexer->line_starting = false;
    if (raw)
        return lex_raw(lexer, begin + raw);
    enum token_type type = kind == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN;
    if (kind != '#' && !token_add(lexer, type, jinja_text_slice(rest(lexer), 0, begin)))
        return false;
    advance(lexer, begin);
    if (kind == '#')
        return lex_comment(lexer);
    return kind == '{' ? lex_tag(lexer, "}}", TOKEN_VARIABLE_END)
                       : lex_tag(lexer, "%}", TOKEN_BLOCK_END);
}

bool jinja_lex(struct compilation *compilation, const char *source, size_t length)
{
    struct lexer lexer = {.compilation = compilation, .line = 1, .line_starting = true};
    if (!source_copy(&lexer, source, length))
        return false;
    while (lexer.at < lexer.source.length)
        if (!lex_data_and_tag(&lexer))
            return false;
    return token_add(&lexer, TOKEN_END, TEXT("")) != NULL;
}
