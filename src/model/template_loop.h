/* SPDX-License-Identifier: Apache-2.0 */
/* A running {% for %} and the `loop` that its body sees. */
#ifndef BATON_MODEL_TEMPLATE_LOOP_H
#define BATON_MODEL_TEMPLATE_LOOP_H

#include "template_evaluate.h"

bool jinja_loop_open(struct run *run, const struct statement *statement, struct frame *frame,
                     struct value source, struct loop **out);
/* The next item that passes the loop's `if`; missing at the end. */
bool jinja_loop_next(struct run *run, struct loop *loop, struct value *item);
/* loop.index and so on; undefined for what a loop does not have. */
bool jinja_loop_attribute(struct run *run, struct loop *loop, struct text name,
                          struct value *out);
/* <LoopContext 1/3> */
bool jinja_loop_position(struct run *run, struct loop *loop, size_t *index, size_t *length);

#endif
