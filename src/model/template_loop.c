/* SPDX-License-Identifier: Apache-2.0 */
/* Items are taken one at a time, because the loop's `if` may depend on what the body did before.
 * loop.last, nextitem and length look ahead: as far as one item, or to the end. */
#include "template_loop.h"

#include "template_compare.h"

struct loop {
    const struct statement *statement;
    struct frame *test_frame; /* of the loop's `if`; NULL: it has none */
    struct iteration source;
    struct list *ahead; /* taken from the source, but not yet given out; NULL: nothing was */
    size_t ahead_next;
    int64_t index; /* of the current item, from 0; -1 before the first */
    struct value previous, current;
    struct value changed; /* what `changed` was last asked about */
};

bool jinja_loop_open(struct run *run, const struct statement *statement, struct frame *frame,
                     struct value source, struct loop **out)
{
    struct loop *loop = jinja_alloc(run, 1, sizeof(*loop));
    if (!loop)
        return false;
    *loop = (struct loop){.statement = statement, .index = -1};
    if (!jinja_iterate(run, source, &loop->source))
        return false;
    if (statement->test &&
        !jinja_frame_new(run, statement->test_scope, frame, &loop->test_frame))
        return false;
    *out = loop;
    return true;
}

/* What was assigned to the target: an item of a loop with an `if` comes out of it in the target's
 * shape, a tuple where it may have been a list. */
static bool target_value(struct run *run, struct frame *frame, const struct expression *target,
                         struct value *out)
{
    struct value tuple, item;
    if (target->type != EXPRESSION_TUPLE) {
        *out = *jinja_frame_slot(frame, target->variable);
        return true;
    }
    if (!jinja_list_new(run, VALUE_TUPLE, target->item_count, &tuple))
        return false;
    for (size_t i = 0; i < target->item_count; i++)
        if (!target_value(run, frame, target->items[i], &item) ||
            !jinja_list_append(run, tuple.list, item))
            return false;
    *out = tuple;
    return true;
}

/* The next item of the source that passes the test; missing at the end. */
static bool loop_take(struct run *run, struct loop *loop, struct value *item)
{
    const struct statement *statement = loop->statement;
    for (;;) {
        struct value passes;
        if (!jinja_charge(run, 0) || !jinja_iterate_next(run, &loop->source, item))
            return false;
        if (!loop->test_frame || !value_given(*item))
            return true;
        if (!jinja_assign(run, loop->test_frame, statement->target, *item) ||
            !jinja_evaluate(run, loop->test_frame, statement->test, &passes))
            return false;
        if (jinja_truth(passes))
            return target_value(run, loop->test_frame, statement->target, item);
    }
}

/* Takes up to `count` items ahead; says how many there are. */
static bool loop_look(struct run *run, struct loop *loop, size_t count, size_t *out)
{
    struct value list;
    if (!loop->ahead) {
        if (!jinja_list_new(run, VALUE_LIST, 1, &list))
            return false;
        loop->ahead = list.list;
    }
    while (loop->ahead->count - loop->ahead_next < count) {
        struct value item;
        if (!loop_take(run, loop, &item))
            return false;
        if (!value_given(item))
            break;
        if (loop->ahead_next == loop->ahead->count)
            loop->ahead_next = loop->ahead->count = 0;
        if (!jinja_list_append(run, loop->ahead, item))
            return false;
    }
    *out = loop->ahead->count - loop->ahead_next;
    return true;
}

bool jinja_loop_next(struct run *run, struct loop *loop, struct value *item)
{
    if (loop->ahead && loop->ahead_next < loop->ahead->count)
        *item = loop->ahead->items[loop->ahead_next++];
    else if (!loop_take(run, loop, item))
        return false;
    if (!value_given(*item))
        return true;
    loop->index++;
    loop->previous = loop->current;
    loop->current = *item;
    return true;
}

static bool loop_length(struct run *run, struct loop *loop, int64_t *out)
{
    size_t length;
    if (!loop->test_frame && jinja_has_length(loop->source.source)) {
        if (!jinja_length(run, loop->source.source, &length))
            return false;
        *out = (int64_t)length;
        return true;
    }
    if (!loop_look(run, loop, SIZE_MAX, &length))
        return false;
    *out = (int64_t)length + loop->index + 1;
    return true;
}

bool jinja_loop_position(struct run *run, struct loop *loop, size_t *index, size_t *length)
{
    int64_t count;
    if (!loop_length(run, loop, &count))
        return false;
    *index = (size_t)(loop->index + 1);
    *length = (size_t)count;
    return true;
}

static bool loop_next_item(struct run *run, struct loop *loop, struct value *out)
{
    size_t count;
    if (!loop_look(run, loop, 1, &count))
        return false;
    *out = count ? loop->ahead->items[loop->ahead_next]
                 : value_undefined(TEXT("nextitem"), VALUE_LOOP);
    return true;
}

bool jinja_loop_attribute(struct run *run, struct loop *loop, struct text name,
                          struct value *out)
{
    int64_t length;
    size_t count;
    if (jinja_text_is(name, "index0")) {
        *out = value_integer(loop->index);
    } else if (jinja_text_is(name, "index")) {
        *out = value_integer(loop->index + 1);
    } else if (jinja_text_is(name, "first")) {
        *out = value_boolean(loop->index == 0);
    } else if (jinja_text_is(name, "last")) {
        if (!loop_look(run, loop, 1, &count))
            return false;
        *out = value_boolean(count == 0);
    } else if (jinja_text_is(name, "previtem")) {
        *out = loop->index > 0 ? loop->previous : value_undefined(name, VALUE_LOOP);
    } else if (jinja_text_is(name, "nextitem")) {
        return loop_next_item(run, loop, out);
    } else if (jinja_text_is(name, "depth")) {
        *out = value_integer(1);
    } else if (jinja_text_is(name, "depth0")) {
        *out = value_integer(0);
    } else if (jinja_text_is(name, "length") || jinja_text_is(name, "revindex") ||
               jinja_text_is(name, "revindex0")) {
        if (!loop_length(run, loop, &length))
            return false;
        if (!jinja_text_is(name, "length"))
            length -= loop->index + jinja_text_is(name, "revindex0");
        *out = value_integer(length);
    } else {
        *out = value_undefined(name, VALUE_LOOP);
    }
    return true;
}

/* ---- methods ----------------------------------------------------------------------------- */

static bool loop_cycle(struct run *run, const struct call *call, struct value *out)
{
    const struct arguments *arguments = call->arguments;
    if (arguments->positional_count == 0 || arguments->keyword_count)
        return jinja_refuse(run, "loop.cycle needs values without names");
    *out =
        arguments->positional[(size_t)call->subject.loop->index % arguments->positional_count];
    return true;
}

static bool loop_changed(struct run *run, const struct call *call, struct value *out)
{
    struct loop *loop = call->subject.loop;
    struct value tuple;
    bool same = false;
    if (call->arguments->keyword_count)
        return jinja_refuse(run, "loop.changed takes values without names");
    if (!jinja_list_new(run, VALUE_TUPLE, 0, &tuple))
        return false;
    for (size_t i = 0; i < call->arguments->positional_count; i++)
        if (!jinja_list_append(run, tuple.list, call->arguments->positional[i]))
            return false;
    if (value_given(loop->changed) && !jinja_equal(run, loop->changed, tuple, &same))
        return false;
    loop->changed = tuple;
    *out = value_boolean(!same);
    return true;
}

static const struct builtin methods[] = {
    BUILTIN_ANY("cycle", loop_cycle),
    BUILTIN_ANY("changed", loop_changed),
};
const struct builtin_table jinja_loop_methods = BUILTIN_TABLE(methods);
