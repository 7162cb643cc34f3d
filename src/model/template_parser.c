/* SPDX-License-Identifier: Apache-2.0 */
/* Statements: recursive descent over the tokens, one function per tag. A tag that jinja2 has and
 * this has not is named in the error. */
#include "template_parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool jinja_parse_reject(const struct parser *parser, const char *format, ...)
{
    char sentence[400];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    return jinja_reject(parser->compilation, BATON_EINVAL, parser->token->line, "%s", sentence);
}

bool jinja_parse_expected(const struct parser *parser, const char *what)
{
    const struct token *token = parser->token;
    if (token->type == TOKEN_NAME)
        return jinja_parse_reject(parser, "%s is expected, not '%.*s'", what,
                                  (int)token->text.length, token->text.bytes);
    return jinja_parse_reject(parser, "%s is expected, not %s", what,
                              jinja_token_name(token->type));
}

bool jinja_parse_enter(struct parser *parser)
{
    if (++parser->depth <= PARSE_DEPTH_MAX)
        return true;
    return jinja_reject(parser->compilation, BATON_ELIMIT, parser->token->line,
                        "nested more than %d deep", PARSE_DEPTH_MAX);
}

bool jinja_parser_at_name(const struct parser *parser, const char *name)
{
    return parser_at(parser, TOKEN_NAME) && jinja_text_is(parser->token->text, name);
}

bool jinja_parser_skip(struct parser *parser, enum token_type type)
{
    if (!parser_at(parser, type))
        return false;
    parser->token++;
    return true;
}

bool jinja_parser_skip_name(struct parser *parser, const char *name)
{
    if (!jinja_parser_at_name(parser, name))
        return false;
    parser->token++;
    return true;
}

bool jinja_parser_expect(struct parser *parser, enum token_type type)
{
    return jinja_parser_skip(parser, type) ||
           jinja_parse_expected(parser, jinja_token_name(type));
}

/* ---- blocks ------------------------------------------------------------------------------ */

static bool parse_statement(struct parser *parser, struct block *block);

static void block_init(struct block *block)
{
    block->first = NULL;
    block->end = &block->first;
}

static struct statement *statement_new(struct parser *parser, enum statement_type type,
                                       uint32_t line)
{
    struct statement *statement =
        jinja_compile_alloc(parser->compilation, 1, sizeof(*statement));
    if (!statement)
        return NULL;
    *statement = (struct statement){.type = type, .line = line};
    block_init(&statement->body);
    block_init(&statement->otherwise);
    return statement;
}

static void block_add(struct block *block, struct statement *statement)
{
    *block->end = statement;
    block->end = &statement->next;
}

static bool parse_text(struct parser *parser, struct block *block)
{
    struct statement *text = statement_new(parser, STATEMENT_TEXT, parser->token->line);
    if (!text)
        return false;
    text->text = parser->token++->text;
    block_add(block, text);
    return true;
}

static bool parse_variable(struct parser *parser, struct block *block)
{
    struct statement *print = statement_new(parser, STATEMENT_PRINT, parser->token->line);
    if (!print)
        return false;
    parser->token++;
    if (!jinja_parse_tuple(parser, true, NULL, &print->expression) ||
        !jinja_parser_expect(parser, TOKEN_VARIABLE_END))
        return false;
    block_add(block, print);
    return true;
}

static bool at_any(const struct parser *parser, const char *const *names)
{
    for (; *names; names++)
        if (jinja_parser_at_name(parser, *names))
            return true;
    return false;
}

/* Text, variables and tags up to {% one of these names, which is then next. Without names: up to
 * the end of the template. */
static bool parse_block(struct parser *parser, const char *const *ends, struct block *block)
{
    for (;;) {
        bool good = true;
        switch (parser->token->type) {
        case TOKEN_DATA: good = parse_text(parser, block); break;
        case TOKEN_VARIABLE_BEGIN: good = parse_variable(parser, block); break;
        case TOKEN_BLOCK_BEGIN:
            parser->token++;
            if (ends && at_any(parser, ends))
                return true;
            good =
                parse_statement(parser, block) && jinja_parser_expect(parser, TOKEN_BLOCK_END);
            break;
        default:
            if (!ends)
                return true;
            return jinja_parse_reject(parser, "the template ends where '%s' is expected",
                                      ends[0]);
        }
        if (!good)
            return false;
    }
}

/* The rest of a tag, and all up to and with the name of the one that ends its body. */
static bool parse_body(struct parser *parser, const char *const *ends, struct block *block)
{
    jinja_parser_skip(parser, TOKEN_COLON);
    if (!jinja_parse_enter(parser) || !jinja_parser_expect(parser, TOKEN_BLOCK_END) ||
        !parse_block(parser, ends, block))
        return false;
    parser->depth--;
    parser->token++;
    return true;
}

static bool last_was(const struct parser *parser, const char *name)
{
    return jinja_text_is(parser->token[-1].text, name);
}

/* ---- one function per tag, called after its name ----------------------------------------- */

static bool parse_if(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    static const char *const last_ends[] = {"endif", NULL};
    size_t capacity = 0;
    bool more = true, otherwise = false;
    while (more) {
        if (statement->branch_count == capacity) {
            capacity = capacity ? 2 * capacity : 2;
            struct branch *branches =
                jinja_compile_alloc(parser->compilation, capacity, sizeof(*branches));
            if (!branches)
                return false;
            if (statement->branch_count)
                memcpy(branches, statement->branches,
                       statement->branch_count * sizeof(*branches));
            statement->branches = branches;
        }
        struct branch branch = {0};
        struct block body;
        block_init(&body);
        if (!otherwise && !jinja_parse_tuple(parser, false, NULL, &branch.test))
            return false;
        if (!parse_body(parser, otherwise ? last_ends : ends, &body))
            return false;
        branch.body.first = body.first; /* `end` would point into this function */
        statement->branches[statement->branch_count++] = branch;
        otherwise = last_was(parser, "else");
        more = otherwise || last_was(parser, "elif");
    }
    return true;
}

static bool parse_for(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    static const char *const last_ends[] = {"endfor", NULL};
    parser->loops++;
    if (!jinja_parse_target(parser, false, "in", &statement->target))
        return false;
    if (!jinja_parser_skip_name(parser, "in"))
        return jinja_parse_expected(parser, "'in'");
    parser->loops--;
    if (!jinja_parse_tuple(parser, false, "recursive", &statement->expression))
        return false;
    if (jinja_parser_skip_name(parser, "if") &&
        !jinja_parse_expression(parser, true, &statement->test))
        return false;
    if (jinja_parser_at_name(parser, "recursive"))
        return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, parser->token->line,
                            "a recursive loop is not supported");
    uint32_t loop_mentions = parser->mentions.loop;
    parser->loops++;
    parser->breakable++;
    if (!parse_body(parser, ends, &statement->body))
        return false;
    parser->breakable--;
    statement->uses_loop = parser->mentions.loop != loop_mentions;
    if (last_was(parser, "else") && !parse_body(parser, last_ends, &statement->otherwise))
        return false;
    parser->loops--;
    return true;
}

static bool parse_set(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endset", NULL};
    if (!jinja_parse_target(parser, true, NULL, &statement->target))
        return false;
    if (jinja_parser_skip(parser, TOKEN_ASSIGN))
        return jinja_parse_tuple(parser, true, NULL, &statement->expression);
    statement->type = STATEMENT_SET_BLOCK;
    return jinja_parse_filters(parser, false, &statement->expression) &&
           parse_body(parser, ends, &statement->body);
}

static bool parse_parameters(struct parser *parser, struct macro_node *macro)
{
    struct expression_list parameters = {0}, defaults = {0};
    if (!jinja_parser_expect(parser, TOKEN_LEFT_PARENTHESIS))
        return false;
    while (!parser_at(parser, TOKEN_RIGHT_PARENTHESIS)) {
        struct expression *parameter, *value;
        if (parameters.count && !jinja_parser_expect(parser, TOKEN_COMMA))
            return false;
        if (!parser_at(parser, TOKEN_NAME))
            return jinja_parse_expected(parser, "the name of a parameter");
        if (!(parameter = jinja_expression_new(parser, EXPRESSION_NAME, parser->token->line)))
            return false;
        parameter->name = parser->token++->text;
        for (size_t i = 0; i < parameters.count; i++)
            if (parameters.items[i]->name.length == parameter->name.length &&
                memcmp(parameters.items[i]->name.bytes, parameter->name.bytes,
                       parameter->name.length) == 0)
                return jinja_parse_reject(parser, "two parameters are called '%.*s'",
                                          (int)parameter->name.length, parameter->name.bytes);
        if (jinja_parser_skip(parser, TOKEN_ASSIGN)) {
            if (!jinja_parse_expression(parser, true, &value) ||
                !jinja_expression_add(parser, &defaults, value))
                return false;
        } else if (defaults.count) {
            return jinja_parse_reject(parser,
                                      "a parameter without a default follows one with it");
        }
        if (!jinja_expression_add(parser, &parameters, parameter))
            return false;
    }
    macro->parameters = parameters.items;
    macro->parameter_count = parameters.count;
    macro->defaults = defaults.items;
    macro->default_count = defaults.count;
    return jinja_parser_expect(parser, TOKEN_RIGHT_PARENTHESIS);
}

static bool has_parameter(const struct macro_node *macro, const char *name)
{
    for (size_t i = 0; i < macro->parameter_count; i++)
        if (jinja_text_is(macro->parameters[i]->name, name))
            return true;
    return false;
}

static struct macro_node *macro_new(struct parser *parser)
{
    struct macro_node *macro = jinja_compile_alloc(parser->compilation, 1, sizeof(*macro));
    if (!macro)
        return NULL;
    *macro = (struct macro_node){0};
    block_init(&macro->body);
    return macro;
}

/* The body of a macro, in which no loop around the macro can be left. */
static bool parse_macro_body(struct parser *parser, struct macro_node *macro,
                             const char *const *ends)
{
    struct mentions before = parser->mentions;
    uint32_t breakable = parser->breakable;
    parser->breakable = 0;
    if (!parse_body(parser, ends, &macro->body))
        return false;
    parser->breakable = breakable;
    macro->uses_caller =
        parser->mentions.caller != before.caller && !has_parameter(macro, "caller");
    macro->uses_keywords =
        parser->mentions.kwargs != before.kwargs && !has_parameter(macro, "kwargs");
    macro->uses_positional =
        parser->mentions.varargs != before.varargs && !has_parameter(macro, "varargs");
    return true;
}

static bool parse_macro(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endmacro", NULL};
    if (!parser_at(parser, TOKEN_NAME))
        return jinja_parse_expected(parser, "the name of a macro");
    struct text name = parser->token++->text;
    struct macro_node *macro = macro_new(parser);
    if (!macro)
        return false;
    macro->name = name;
    statement->macro = macro;
    return parse_parameters(parser, macro) && parse_macro_body(parser, macro, ends);
}

static bool parse_call(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endcall", NULL};
    struct macro_node *macro = macro_new(parser);
    if (!macro)
        return false;
    statement->macro = macro;
    if (parser_at(parser, TOKEN_LEFT_PARENTHESIS) && !parse_parameters(parser, macro))
        return false;
    if (!jinja_parse_expression(parser, true, &statement->expression))
        return false;
    if (statement->expression->type != EXPRESSION_CALL)
        return jinja_parse_reject(parser, "{%% call %%} needs the call of a macro");
    return parse_macro_body(parser, macro, ends);
}

/* transformers makes it a call block, so that what is set inside is not seen outside. */
static bool parse_generation(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endgeneration", NULL};
    statement->macro = macro_new(parser);
    return statement->macro && parse_macro_body(parser, statement->macro, ends);
}

static bool parse_filter(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endfilter", NULL};
    return jinja_parse_filters(parser, true, &statement->expression) &&
           parse_body(parser, ends, &statement->body);
}

static bool parse_with(struct parser *parser, struct statement *statement)
{
    static const char *const ends[] = {"endwith", NULL};
    struct expression_list targets = {0}, values = {0};
    uint32_t loops = parser->loops;
    parser->loops = 0; /* here even `loop` may be a target */
    while (!parser_at(parser, TOKEN_BLOCK_END)) {
        struct expression *target, *value;
        if ((targets.count && !jinja_parser_expect(parser, TOKEN_COMMA)) ||
            !jinja_parse_target(parser, false, NULL, &target) ||
            !jinja_parser_expect(parser, TOKEN_ASSIGN) ||
            !jinja_parse_expression(parser, true, &value) ||
            !jinja_expression_add(parser, &targets, target) ||
            !jinja_expression_add(parser, &values, value))
            return false;
    }
    parser->loops = loops;
    statement->targets = targets.items;
    statement->values = values.items;
    statement->target_count = targets.count;
    return parse_body(parser, ends, &statement->body);
}

static bool parse_jump(struct parser *parser, struct statement *statement)
{
    if (parser->breakable)
        return true;
    return jinja_parse_reject(parser, "'%s' is outside of a loop",
                              statement->type == STATEMENT_BREAK ? "break" : "continue");
}

/* {% print a, b %} is as good as {{ a }}{{ b }}: one statement each. */
static bool parse_print(struct parser *parser, struct block *block)
{
    uint32_t line = parser->token->line;
    for (bool first = true; !parser_at(parser, TOKEN_BLOCK_END); first = false) {
        struct statement *print = statement_new(parser, STATEMENT_PRINT, line);
        if (!print || (!first && !jinja_parser_expect(parser, TOKEN_COMMA)) ||
            !jinja_parse_expression(parser, true, &print->expression))
            return false;
        block_add(block, print);
    }
    return true;
}

static bool reject_tag(const struct parser *parser, struct text name)
{
    static const char *const foreign[] = {"block", "extends",    "include", "import", "from",
                                          "do",    "autoescape", "trans",   "debug",  NULL};
    for (size_t i = 0; foreign[i]; i++)
        if (jinja_text_is(name, foreign[i]))
            return jinja_reject(parser->compilation, BATON_EUNSUPPORTED, parser->token->line,
                                "{%% %s %%} is not supported", foreign[i]);
    return jinja_parse_reject(parser, "{%% %.*s %%} is unknown, or does not belong here",
                              (int)name.length, name.bytes);
}

static bool parse_statement(struct parser *parser, struct block *block)
{
    static const struct {
        const char *name;
        enum statement_type type;
        bool (*parse)(struct parser *parser, struct statement *statement);
    } tags[] = {
        {"if", STATEMENT_IF, parse_if},
        {"for", STATEMENT_FOR, parse_for},
        {"set", STATEMENT_SET, parse_set},
        {"macro", STATEMENT_MACRO, parse_macro},
        {"call", STATEMENT_CALL, parse_call},
        {"filter", STATEMENT_FILTER, parse_filter},
        {"with", STATEMENT_WITH, parse_with},
        {"generation", STATEMENT_GENERATION, parse_generation},
        {"break", STATEMENT_BREAK, parse_jump},
        {"continue", STATEMENT_CONTINUE, parse_jump},
    };
    if (!parser_at(parser, TOKEN_NAME))
        return jinja_parse_expected(parser, "the name of a tag");
    struct text name = parser->token->text;
    if (jinja_parser_skip_name(parser, "print"))
        return parse_print(parser, block);
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++) {
        if (!jinja_text_is(name, tags[i].name))
            continue;
        struct statement *statement = statement_new(parser, tags[i].type, parser->token->line);
        parser->token++;
        if (!statement || !tags[i].parse(parser, statement))
            return false;
        block_add(block, statement);
        return true;
    }
    return reject_tag(parser, name);
}

bool jinja_parse(struct compilation *compilation, struct block *out)
{
    struct parser parser = {.compilation = compilation, .token = compilation->tokens};
    struct block block;
    block_init(&block);
    if (!parse_block(&parser, NULL, &block))
        return false;
    if (!parser_at(&parser, TOKEN_END))
        return jinja_parse_expected(&parser, "text or a tag");
    out->first = block.first;
    return true;
}
