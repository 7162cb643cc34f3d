/* SPDX-License-Identifier: Apache-2.0 */
/* Values as text: what {{ }} writes, what | string makes of them, and HTML escaping. */
#ifndef BATON_MODEL_TEMPLATE_PRINT_H
#define BATON_MODEL_TEMPLATE_PRINT_H

#include "template_value.h"

#define FLOAT_TEXT_MAX 32

/* str(value), written. */
bool jinja_print(struct run *run, struct value value);
/* repr(value), written: strings in quotes. */
bool jinja_print_quoted(struct run *run, struct value value);
/* str(value); a string stays what it is, marked or not. */
bool jinja_to_string(struct run *run, struct value value, struct value *out);
/* As Python writes a float: the shortest digits that mean it. Returns the length. */
size_t jinja_float_text(double number, char out[FLOAT_TEXT_MAX]);
/* A string of markup: itself if it is marked, else with & < > ' " replaced. */
bool jinja_escape(struct run *run, struct value value, struct value *out);

#endif
