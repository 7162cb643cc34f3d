/* SPDX-License-Identifier: Apache-2.0 */
/* Running the tree: statements (template_execute.c) write, expressions (template_evaluate.c)
 * have values. All return false when the rendering failed. */
#ifndef BATON_MODEL_TEMPLATE_EVALUATE_H
#define BATON_MODEL_TEMPLATE_EVALUATE_H

#include "template_run.h"
#include "template_tree.h"

/* The variables of a scope that was entered. */
struct frame {
    struct frame *outer;
    struct value slots[];
};

struct macro {
    const struct macro_node *node;
    struct frame *frame; /* where it was defined */
};

/* How a block ended. */
enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED };

enum flow jinja_execute(struct run *run, struct frame *frame, const struct block *block);

bool jinja_frame_new(struct run *run, const struct scope *scope, struct frame *outer,
                     struct frame **out);
/* Gives all variables but parameters the values they start with. */
void jinja_frame_fill(struct run *run, const struct scope *scope, struct frame *frame);
struct value *jinja_frame_slot(struct frame *frame, struct variable variable);
bool jinja_assign(struct run *run, struct frame *frame, const struct expression *target,
                  struct value value);

bool jinja_evaluate(struct run *run, struct frame *frame, const struct expression *expression,
                    struct value *out);
/* Filters over the text of a block: {% filter upper %}, {% set x | upper %}. */
bool jinja_evaluate_filters(struct run *run, struct frame *frame,
                            const struct expression *filters, struct value text,
                            struct value *out);
/* A call with one more keyword argument, `caller`, unless that is missing. */
bool jinja_evaluate_call(struct run *run, struct frame *frame, const struct expression *call,
                         struct value caller, struct value *out);

/* callee(arguments) (template_call.c) */
bool jinja_call(struct run *run, struct value callee, const struct arguments *arguments,
                struct value *out);
bool jinja_macro_call(struct run *run, const struct macro *macro,
                      const struct arguments *arguments, struct value *out);

/* The operators (template_operator.c); `operation` is a token's type. */
bool jinja_operate(struct run *run, int operation, struct value left, struct value right,
                   struct value *out);
bool jinja_negate(struct run *run, struct value operand, bool negative, struct value *out);
/* Fails with what is undefined. */
bool jinja_refuse_undefined(struct run *run, struct value undefined);

/* object.name, object[index], object[start:stop:step] (template_attribute.c) */
bool jinja_attribute(struct run *run, struct value object, struct text name,
                     const struct method_set *methods, struct value *out);
bool jinja_item(struct run *run, struct value object, struct value index, struct value *out);
bool jinja_slice(struct run *run, struct value object, const struct value bounds[3],
                 struct value *out);
/* "a.b.0": attributes of attributes, as sort, map and their kin take them. `otherwise`, unless it
 * is NULL, stands in for whatever is undefined on the way. */
bool jinja_attribute_path(struct run *run, struct value object, struct value path,
                          const struct value *otherwise, struct value *out);

#endif
