/* SPDX-License-Identifier: Apache-2.0 */
/* Names, strings and numbers of a template. */
#ifndef BATON_MODEL_TEMPLATE_LITERAL_H
#define BATON_MODEL_TEMPLATE_LITERAL_H

#include "template_lexer.h"

enum literal_type { LITERAL_NAME, LITERAL_STRING, LITERAL_INTEGER, LITERAL_FLOAT };

/* The bytes of the literal at `offset`, which must be inside; 0: there is none. */
size_t jinja_literal_length(struct text source, size_t offset, enum literal_type *type);
/* From what is written to what it stands for. */
bool jinja_literal_read(struct compilation *compilation, enum literal_type type,
                        struct token *token);

#endif
