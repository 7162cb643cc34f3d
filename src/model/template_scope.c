/* SPDX-License-Identifier: Apache-2.0 */
/* Which variable a name means is decided when the template is compiled, by the rules of jinja2:
 *
 *   - the template, the body of a loop, of a macro, of a block that is captured, and of `with`
 *     are scopes; an `if` is none;
 *   - a name that is assigned in a scope is a variable of that scope. It starts with the value
 *     that the name has further out, and what is assigned is forgotten with the scope: that is
 *     why templates need namespace();
 *   - if there is none further out, the variable starts empty, even where the context has
 *     something of that name - unless the assignment is in an `if`, which may be skipped: then
 *     it starts with the context's;
 *   - a name that is only read means the nearest variable, or else the context's value.
 *
 * So a scope is gone through twice: first to collect what is assigned in it (not in the scopes
 * inside), then to give each name its variable and to do the same for the scopes inside. */
#include "template_tree.h"

#include <string.h>

#define SYMBOLS_MAX 4096 /* in one scope; they are searched one by one */

struct resolver {
    struct compilation *compilation;
    struct scope *scope;
};

static bool names_equal(struct text a, struct text b)
{
    return a.length == b.length && memcmp(a.bytes, b.bytes, a.length) == 0;
}

/* ---- symbols ----------------------------------------------------------------------------- */

static struct symbol *scope_symbol(const struct scope *scope, struct text name)
{
    for (size_t i = 0; i < scope->count; i++)
        if (names_equal(scope->symbols[i].name, name))
            return &scope->symbols[i];
    return NULL;
}

static bool scope_find(const struct scope *scope, struct text name, struct variable *out)
{
    for (uint32_t hops = 0; scope; scope = scope->outer, hops++) {
        const struct symbol *symbol = scope_symbol(scope, name);
        if (symbol) {
            *out = (struct variable){hops, (uint32_t)(symbol - scope->symbols)};
            return true;
        }
    }
    return false;
}

static bool symbol_add(struct resolver *resolver, struct symbol symbol)
{
    struct scope *scope = resolver->scope;
    if (scope->count == SYMBOLS_MAX) {
        resolver->compilation->code =
            error_set(resolver->compilation->err, BATON_ELIMIT,
                      "chat template: more than %d variables in one scope", SYMBOLS_MAX);
        return false;
    }
    if (scope->count == scope->capacity) {
        size_t capacity = scope->capacity ? 2 * scope->capacity : 8;
        struct symbol *symbols =
            jinja_compile_alloc(resolver->compilation, capacity, sizeof(*symbols));
        if (!symbols)
            return false;
        if (scope->count)
            memcpy(symbols, scope->symbols, scope->count * sizeof(*symbols));
        scope->symbols = symbols;
        scope->capacity = capacity;
    }
    scope->symbols[scope->count++] = symbol;
    return true;
}

static bool declare_load(struct resolver *resolver, struct text name)
{
    struct variable found;
    if (scope_find(resolver->scope, name, &found))
        return true;
    return symbol_add(resolver, (struct symbol){.name = name, .load = SYMBOL_CONTEXT});
}

static bool declare_store(struct resolver *resolver, struct text name)
{
    struct symbol *symbol = scope_symbol(resolver->scope, name);
    struct symbol added = {.name = name, .load = SYMBOL_NOTHING, .stored = true};
    if (symbol) {
        symbol->stored = true;
        return true;
    }
    if (resolver->scope->outer && scope_find(resolver->scope->outer, name, &added.outer))
        added.load = SYMBOL_OUTER;
    return symbol_add(resolver, added);
}

static bool declare_parameter(struct resolver *resolver, struct text name)
{
    struct symbol added = {.name = name, .load = SYMBOL_PARAMETER, .stored = true};
    struct symbol *symbol = scope_symbol(resolver->scope, name);
    if (!symbol)
        return symbol_add(resolver, added);
    *symbol = added;
    return true;
}

/* ---- collecting what a scope assigns and reads ------------------------------------------- */

static bool declare_block(struct resolver *resolver, const struct block *block);

/* Every name in an expression is read. */
static bool declare_expression(struct resolver *resolver, const struct expression *expression)
{
    if (!expression)
        return true;
    if (expression->type == EXPRESSION_NAME || expression->type == EXPRESSION_MEMBER)
        return declare_load(resolver, expression->name);
    const struct argument_nodes *arguments = &expression->arguments;
    if (!declare_expression(resolver, expression->left) ||
        !declare_expression(resolver, expression->right) ||
        !declare_expression(resolver, arguments->more_positional) ||
        !declare_expression(resolver, arguments->more_keywords))
        return false;
    for (size_t i = 0; i < expression->item_count; i++)
        if (!declare_expression(resolver, expression->items[i]))
            return false;
    for (size_t i = 0; i < arguments->positional_count; i++)
        if (!declare_expression(resolver, arguments->positional[i]))
            return false;
    for (size_t i = 0; i < arguments->keyword_count; i++)
        if (!declare_expression(resolver, arguments->keywords[i].value))
            return false;
    return true;
}

static bool declare_target(struct resolver *resolver, const struct expression *target,
                           bool parameter)
{
    if (target->type == EXPRESSION_MEMBER)
        return declare_load(resolver, target->name);
    if (target->type == EXPRESSION_NAME)
        return parameter ? declare_parameter(resolver, target->name)
                         : declare_store(resolver, target->name);
    for (size_t i = 0; i < target->item_count; i++)
        if (!declare_target(resolver, target->items[i], parameter))
            return false;
    return true;
}

static void restore_stored(struct scope *scope, const bool *stored, size_t count)
{
    for (size_t i = 0; i < scope->count; i++)
        scope->symbols[i].stored = i < count && stored[i];
}

static bool *copy_stored(struct resolver *resolver)
{
    struct scope *scope = resolver->scope;
    bool *stored = jinja_compile_alloc(resolver->compilation, scope->count, sizeof(bool));
    for (size_t i = 0; stored && i < scope->count; i++)
        stored[i] = scope->symbols[i].stored;
    return stored;
}

/* Each branch starts from what was assigned before the `if`. What is assigned only in branches
 * may be skipped at run time: it then has the value from the context. */
static bool declare_if(struct resolver *resolver, const struct statement *statement)
{
    struct scope *scope = resolver->scope;
    size_t count = scope->count, merged_count = 0;
    bool *before = copy_stored(resolver), *merged = NULL;
    if (!before)
        return false;
    for (size_t i = 0; i < statement->branch_count; i++) {
        restore_stored(scope, before, count);
        if (!declare_expression(resolver, statement->branches[i].test) ||
            !declare_block(resolver, &statement->branches[i].body))
            return false;
        bool *stored = copy_stored(resolver);
        if (!stored)
            return false;
        for (size_t k = 0; k < merged_count; k++)
            stored[k] |= merged[k];
        merged = stored;
        merged_count = scope->count;
    }
    restore_stored(scope, merged, merged_count);
    for (size_t i = 0; i < scope->count; i++) {
        struct symbol *symbol = &scope->symbols[i];
        bool already = i < count && before[i];
        if (symbol->stored && !already && symbol->load == SYMBOL_NOTHING)
            symbol->load = SYMBOL_CONTEXT;
    }
    return true;
}

static bool declare_statement(struct resolver *resolver, const struct statement *statement)
{
    switch (statement->type) {
    case STATEMENT_TEXT:
    case STATEMENT_GENERATION:
    case STATEMENT_BREAK:
    case STATEMENT_CONTINUE: return true;
    case STATEMENT_IF: return declare_if(resolver, statement);
    case STATEMENT_SET:
        return declare_expression(resolver, statement->expression) &&
               declare_target(resolver, statement->target, false);
    case STATEMENT_SET_BLOCK: return declare_target(resolver, statement->target, false);
    case STATEMENT_MACRO: return declare_store(resolver, statement->macro->name);
    case STATEMENT_WITH:
        for (size_t i = 0; i < statement->target_count; i++)
            if (!declare_expression(resolver, statement->values[i]))
                return false;
        return true;
    case STATEMENT_PRINT:
    case STATEMENT_FOR:
    case STATEMENT_CALL:
    case STATEMENT_FILTER: return declare_expression(resolver, statement->expression);
    }
    return true;
}

static bool declare_block(struct resolver *resolver, const struct block *block)
{
    for (const struct statement *statement = block->first; statement;
         statement = statement->next)
        if (!declare_statement(resolver, statement))
            return false;
    return true;
}

/* ---- giving names their variables -------------------------------------------------------- */

static bool resolve_block(struct resolver *resolver, struct block *block);

/* Every name was declared, so that every name is found. */
static void resolve_name(struct resolver *resolver, struct text name, struct variable *out)
{
    BATON_ASSERT(scope_find(resolver->scope, name, out));
}

static void resolve_expression(struct resolver *resolver, struct expression *expression)
{
    if (!expression)
        return;
    if (expression->type == EXPRESSION_NAME || expression->type == EXPRESSION_MEMBER)
        resolve_name(resolver, expression->name, &expression->variable);
    struct argument_nodes *arguments = &expression->arguments;
    resolve_expression(resolver, expression->left);
    resolve_expression(resolver, expression->right);
    resolve_expression(resolver, arguments->more_positional);
    resolve_expression(resolver, arguments->more_keywords);
    for (size_t i = 0; i < expression->item_count; i++)
        resolve_expression(resolver, expression->items[i]);
    for (size_t i = 0; i < arguments->positional_count; i++)
        resolve_expression(resolver, arguments->positional[i]);
    for (size_t i = 0; i < arguments->keyword_count; i++)
        resolve_expression(resolver, arguments->keywords[i].value);
}

/* A scope inside the current one, which becomes the current one. */
static struct scope *scope_open(struct resolver *resolver)
{
    struct scope *scope = jinja_compile_alloc(resolver->compilation, 1, sizeof(*scope));
    if (!scope)
        return NULL;
    *scope = (struct scope){.outer = resolver->scope};
    resolver->scope = scope;
    return scope;
}

static void scope_close(struct resolver *resolver)
{
    resolver->scope = resolver->scope->outer;
}

/* A scope that is only statements. */
static bool resolve_inner_block(struct resolver *resolver, struct block *block,
                                struct scope **scope)
{
    if (!(*scope = scope_open(resolver)) || !declare_block(resolver, block) ||
        !resolve_block(resolver, block))
        return false;
    scope_close(resolver);
    return true;
}

/* The target's variables come first in both scopes, so that they have the same numbers. */
static bool resolve_for_test(struct resolver *resolver, struct statement *statement)
{
    if (!statement->test)
        return true;
    if (!(statement->test_scope = scope_open(resolver)) ||
        !declare_target(resolver, statement->target, true) ||
        !declare_expression(resolver, statement->test))
        return false;
    resolve_expression(resolver, statement->test);
    scope_close(resolver);
    return true;
}

static bool resolve_for(struct resolver *resolver, struct statement *statement)
{
    resolve_expression(resolver, statement->expression);
    if (!resolve_for_test(resolver, statement) ||
        !resolve_inner_block(resolver, &statement->otherwise, &statement->otherwise_scope))
        return false;
    if (!(statement->scope = scope_open(resolver)) ||
        !declare_target(resolver, statement->target, true) ||
        (statement->uses_loop && !declare_parameter(resolver, TEXT("loop"))) ||
        !declare_block(resolver, &statement->body))
        return false;
    resolve_expression(resolver, statement->target);
    if (statement->uses_loop)
        resolve_name(resolver, TEXT("loop"), &statement->loop);
    if (!resolve_block(resolver, &statement->body))
        return false;
    scope_close(resolver);
    return true;
}

static bool declare_special(struct resolver *resolver, bool used, struct text name,
                            struct variable *out)
{
    if (!used)
        return true;
    if (!declare_parameter(resolver, name))
        return false;
    resolve_name(resolver, name, out);
    return true;
}

static bool resolve_macro(struct resolver *resolver, struct macro_node *macro)
{
    if (!(macro->scope = scope_open(resolver)))
        return false;
    for (size_t i = 0; i < macro->parameter_count; i++)
        if (!declare_parameter(resolver, macro->parameters[i]->name))
            return false;
    if (!declare_special(resolver, macro->uses_caller, TEXT("caller"), &macro->caller) ||
        !declare_special(resolver, macro->uses_keywords, TEXT("kwargs"), &macro->keywords) ||
        !declare_special(resolver, macro->uses_positional, TEXT("varargs"), &macro->positional))
        return false;
    for (size_t i = 0; i < macro->default_count; i++)
        if (!declare_expression(resolver, macro->defaults[i]))
            return false;
    if (!declare_block(resolver, &macro->body))
        return false;
    for (size_t i = 0; i < macro->parameter_count; i++)
        resolve_expression(resolver, macro->parameters[i]);
    for (size_t i = 0; i < macro->default_count; i++)
        resolve_expression(resolver, macro->defaults[i]);
    if (!resolve_block(resolver, &macro->body))
        return false;
    scope_close(resolver);
    return true;
}

/* The filters of a block are applied inside its scope. */
static bool resolve_captured(struct resolver *resolver, struct statement *statement)
{
    if (!(statement->scope = scope_open(resolver)) ||
        !declare_block(resolver, &statement->body) ||
        !declare_expression(resolver, statement->expression))
        return false;
    resolve_expression(resolver, statement->expression);
    if (!resolve_block(resolver, &statement->body))
        return false;
    scope_close(resolver);
    return true;
}

static bool resolve_with(struct resolver *resolver, struct statement *statement)
{
    for (size_t i = 0; i < statement->target_count; i++)
        resolve_expression(resolver, statement->values[i]);
    if (!(statement->scope = scope_open(resolver)))
        return false;
    for (size_t i = 0; i < statement->target_count; i++)
        if (!declare_target(resolver, statement->targets[i], true))
            return false;
    if (!declare_block(resolver, &statement->body))
        return false;
    for (size_t i = 0; i < statement->target_count; i++)
        resolve_expression(resolver, statement->targets[i]);
    if (!resolve_block(resolver, &statement->body))
        return false;
    scope_close(resolver);
    return true;
}

static bool resolve_if(struct resolver *resolver, struct statement *statement)
{
    for (size_t i = 0; i < statement->branch_count; i++) {
        resolve_expression(resolver, statement->branches[i].test);
        if (!resolve_block(resolver, &statement->branches[i].body))
            return false;
    }
    return true;
}

static bool resolve_statement(struct resolver *resolver, struct statement *statement)
{
    switch (statement->type) {
    case STATEMENT_TEXT:
    case STATEMENT_BREAK:
    case STATEMENT_CONTINUE: return true;
    case STATEMENT_PRINT: resolve_expression(resolver, statement->expression); return true;
    case STATEMENT_IF: return resolve_if(resolver, statement);
    case STATEMENT_FOR: return resolve_for(resolver, statement);
    case STATEMENT_SET:
        resolve_expression(resolver, statement->expression);
        resolve_expression(resolver, statement->target);
        return true;
    case STATEMENT_SET_BLOCK:
        resolve_expression(resolver, statement->target);
        return resolve_captured(resolver, statement);
    case STATEMENT_FILTER: return resolve_captured(resolver, statement);
    case STATEMENT_MACRO:
        resolve_name(resolver, statement->macro->name, &statement->macro_place);
        return resolve_macro(resolver, statement->macro);
    case STATEMENT_CALL:
        resolve_expression(resolver, statement->expression);
        return resolve_macro(resolver, statement->macro);
    case STATEMENT_GENERATION: return resolve_macro(resolver, statement->macro);
    case STATEMENT_WITH: return resolve_with(resolver, statement);
    }
    return true;
}

static bool resolve_block(struct resolver *resolver, struct block *block)
{
    for (struct statement *statement = block->first; statement; statement = statement->next)
        if (!resolve_statement(resolver, statement))
            return false;
    return true;
}

bool jinja_resolve(struct compilation *compilation, struct block *body, struct scope **out)
{
    struct resolver resolver = {.compilation = compilation};
    struct scope *scope = scope_open(&resolver);
    if (!scope || !declare_block(&resolver, body) || !resolve_block(&resolver, body))
        return false;
    *out = scope;
    return true;
}
