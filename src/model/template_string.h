/* SPDX-License-Identifier: Apache-2.0 */
/* What the methods of strings and the filters for text both do. Everything is written to the
 * run's sink, or made into a value where there is an `out`. */
#ifndef BATON_MODEL_TEMPLATE_STRING_H
#define BATON_MODEL_TEMPLATE_STRING_H

#include "template_value.h"

enum letter_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL };

/* CASE_TITLE: the first letter of each word is large; CASE_CAPITAL: that of the text. */
bool jinja_string_case(struct run *run, struct text text, enum letter_case letters,
                       struct value *out);
/* Lower case if it is a string, else itself: for comparisons that ignore case. */
bool jinja_ignore_case(struct run *run, struct value value, struct value *out);
/* Are there letters with case, and are all of them of this one? */
bool jinja_string_is_case(struct text text, enum letter_case letters);

enum letter_class { CLASS_ALPHA, CLASS_DIGIT, CLASS_ALPHANUMERIC, CLASS_SPACE, CLASS_ASCII };
/* All characters are of the class (and, except for ASCII, there is one). */
bool jinja_string_is_class(struct text text, enum letter_class class);
bool jinja_is_word_character(int32_t character); /* \w of a regular expression */

/* The first `most` times, or all if it is negative. */
bool jinja_string_replace(struct run *run, struct text text, struct text old, struct text new,
                          int64_t most, struct value *out);
/* Filled with a character up to a width; align is '<', '>' or '^'. */
bool jinja_string_pad(struct run *run, struct text text, int64_t width, struct text fill,
                      char align, struct value *out);

/* Arguments. `what` names the function in error sentences. */
bool jinja_need_string(struct run *run, struct value value, const char *what, struct text *out);
/* The default where it was not given. */
bool jinja_need_integer(struct run *run, struct value value, int64_t missing, const char *what,
                        int64_t *out);

#endif
