/* SPDX-License-Identifier: Apache-2.0 */
/* ==, <, in, and sorting, as Python defines them for these types. */
#ifndef BATON_MODEL_TEMPLATE_COMPARE_H
#define BATON_MODEL_TEMPLATE_COMPARE_H

#include "template_value.h"

bool jinja_equal(struct run *run, struct value left, struct value right, bool *out);
/* left < right; fails where Python has no order, as between a string and a number. */
bool jinja_less(struct run *run, struct value left, struct value right, bool *out);
bool jinja_less_equal(struct run *run, struct value left, struct value right, bool *out);
/* item in container */
bool jinja_contains(struct run *run, struct value container, struct value item, bool *out);
/* `is`: the same object. */
bool jinja_same(struct value left, struct value right);

/* Sorts the items by their keys (as many), stably. Elements of equal keys keep their order, in
 * reverse too. */
bool jinja_sort(struct run *run, struct value *items, struct value *keys, size_t count,
                bool reverse);

#endif
