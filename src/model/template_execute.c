/* SPDX-License-Identifier: Apache-2.0 */
/* Statements. Text goes to the end of the run's sink; a block whose text is wanted as a value is
 * executed like any other and then cut off (jinja_cut). */
#include "template_evaluate.h"

#include "template_loop.h"
#include "template_print.h"

static enum flow flow_of(bool good)
{
    return good ? FLOW_NEXT : FLOW_FAILED;
}

static enum flow execute_print(struct run *run, struct frame *frame,
                               const struct statement *statement)
{
    struct value value;
    return flow_of(jinja_evaluate(run, frame, statement->expression, &value) &&
                   jinja_print(run, value));
}

static enum flow execute_if(struct run *run, struct frame *frame,
                            const struct statement *statement)
{
    for (size_t i = 0; i < statement->branch_count; i++) {
        const struct branch *branch = &statement->branches[i];
        struct value test = value_boolean(true);
        if (branch->test && !jinja_evaluate(run, frame, branch->test, &test))
            return FLOW_FAILED;
        if (jinja_truth(test))
            return jinja_execute(run, frame, &branch->body);
    }
    return FLOW_NEXT;
}

static enum flow execute_otherwise(struct run *run, struct frame *frame,
                                   const struct statement *statement)
{
    struct frame *inner;
    if (!statement->otherwise.first)
        return FLOW_NEXT;
    if (!jinja_frame_new(run, statement->otherwise_scope, frame, &inner))
        return FLOW_FAILED;
    return jinja_execute(run, inner, &statement->otherwise);
}

/* One frame for all iterations: a macro that is defined in the loop sees the current one. The
 * `else` follows if no iteration got to the end of the body; so jinja2 does it, for which an
 * iteration that was left by break or continue does not count. */
static enum flow execute_for(struct run *run, struct frame *frame,
                             const struct statement *statement)
{
    struct frame *inner;
    struct loop *loop;
    struct value source, item;
    enum flow flow = FLOW_NEXT;
    bool completed = false;
    if (!jinja_evaluate(run, frame, statement->expression, &source) ||
        !jinja_loop_open(run, statement, frame, source, &loop) ||
        !jinja_frame_new(run, statement->scope, frame, &inner))
        return FLOW_FAILED;
    while (flow != FLOW_BREAK) {
        run->line = statement->line;
        if (!jinja_loop_next(run, loop, &item))
            return FLOW_FAILED;
        if (!value_given(item))
            break;
        jinja_frame_fill(run, statement->scope, inner);
        if (!jinja_assign(run, inner, statement->target, item))
            return FLOW_FAILED;
        if (statement->uses_loop)
            *jinja_frame_slot(inner, statement->loop) =
                (struct value){.type = VALUE_LOOP, .loop = loop};
        flow = jinja_execute(run, inner, &statement->body);
        if (flow == FLOW_FAILED)
            return flow;
        completed |= flow == FLOW_NEXT;
    }
    return completed ? FLOW_NEXT : execute_otherwise(run, frame, statement);
}

static enum flow execute_set(struct run *run, struct frame *frame,
                             const struct statement *statement)
{
    struct value value;
    return flow_of(jinja_evaluate(run, frame, statement->expression, &value) &&
                   jinja_assign(run, frame, statement->target, value));
}

/* {% set x %}...{% endset %} and {% filter x %}...{% endfilter %} */
static enum flow execute_captured(struct run *run, struct frame *frame,
                                  const struct statement *statement)
{
    size_t mark = run->sink.length;
    struct frame *inner;
    struct value text;
    if (!jinja_frame_new(run, statement->scope, frame, &inner))
        return FLOW_FAILED;
    enum flow flow = jinja_execute(run, inner, &statement->body);
    if (flow == FLOW_FAILED || !jinja_cut(run, mark, &text))
        return FLOW_FAILED;
    if (flow != FLOW_NEXT)
        return flow; /* a break on the way: nothing is set or written */
    if (!jinja_evaluate_filters(run, inner, statement->expression, text, &text))
        return FLOW_FAILED;
    return flow_of(statement->type == STATEMENT_FILTER
                       ? jinja_print(run, text)
                       : jinja_assign(run, frame, statement->target, text));
}

static bool macro_new(struct run *run, struct frame *frame, const struct macro_node *node,
                      struct value *out)
{
    struct macro *macro = jinja_alloc(run, 1, sizeof(*macro));
    if (!macro)
        return false;
    *macro = (struct macro){node, frame};
    *out = (struct value){.type = VALUE_MACRO, .macro = macro};
    return true;
}

static enum flow execute_macro(struct run *run, struct frame *frame,
                               const struct statement *statement)
{
    return flow_of(macro_new(run, frame, statement->macro,
                             jinja_frame_slot(frame, statement->macro_place)));
}

static enum flow execute_call(struct run *run, struct frame *frame,
                              const struct statement *statement)
{
    struct value caller, text;
    return flow_of(macro_new(run, frame, statement->macro, &caller) &&
                   jinja_evaluate_call(run, frame, statement->expression, caller, &text) &&
                   jinja_print(run, text));
}

static enum flow execute_generation(struct run *run, struct frame *frame,
                                    const struct statement *statement)
{
    struct macro macro = {statement->macro, frame};
    struct arguments none = {0};
    struct value text;
    return flow_of(jinja_macro_call(run, &macro, &none, &text) && jinja_print(run, text));
}

static enum flow execute_with(struct run *run, struct frame *frame,
                              const struct statement *statement)
{
    struct frame *inner;
    struct value value;
    if (!jinja_frame_new(run, statement->scope, frame, &inner))
        return FLOW_FAILED;
    for (size_t i = 0; i < statement->target_count; i++)
        if (!jinja_evaluate(run, frame, statement->values[i], &value) ||
            !jinja_assign(run, inner, statement->targets[i], value))
            return FLOW_FAILED;
    return jinja_execute(run, inner, &statement->body);
}

static enum flow execute_statement(struct run *run, struct frame *frame,
                                   const struct statement *statement)
{
    switch (statement->type) {
    case STATEMENT_TEXT:
        return flow_of(jinja_write(run, statement->text.bytes, statement->text.length));
    case STATEMENT_PRINT: return execute_print(run, frame, statement);
    case STATEMENT_IF: return execute_if(run, frame, statement);
    case STATEMENT_FOR: return execute_for(run, frame, statement);
    case STATEMENT_SET: return execute_set(run, frame, statement);
    case STATEMENT_SET_BLOCK:
    case STATEMENT_FILTER: return execute_captured(run, frame, statement);
    case STATEMENT_MACRO: return execute_macro(run, frame, statement);
    case STATEMENT_CALL: return execute_call(run, frame, statement);
    case STATEMENT_WITH: return execute_with(run, frame, statement);
    case STATEMENT_GENERATION: return execute_generation(run, frame, statement);
    case STATEMENT_BREAK: return FLOW_BREAK;
    case STATEMENT_CONTINUE: return FLOW_CONTINUE;
    }
    return FLOW_NEXT;
}

enum flow jinja_execute(struct run *run, struct frame *frame, const struct block *block)
{
    enum flow flow = FLOW_NEXT;
    if (!jinja_enter(run))
        return FLOW_FAILED;
    for (const struct statement *statement = block->first; statement && flow == FLOW_NEXT;
         statement = statement->next) {
        run->line = statement->line;
        flow = jinja_charge(run, 0) ? execute_statement(run, frame, statement) : FLOW_FAILED;
    }
    jinja_leave(run);
    return flow;
}
