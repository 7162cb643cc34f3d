/* SPDX-License-Identifier: Apache-2.0 */
/* What Python can tell about text, for UTF-8: characters are code points, white space and case
 * are Unicode's. Offsets are bytes; nothing here reads outside the text, valid UTF-8 or not (a
 * byte that starts no character counts as one). */
#ifndef BATON_MODEL_TEMPLATE_TEXT_H
#define BATON_MODEL_TEMPLATE_TEXT_H

#include "template_value.h"

#include <sys/types.h>

bool jinja_text_valid(const char *bytes, size_t length); /* UTF-8 throughout? */

/* Bytes of the character at `offset`, which must be inside. */
size_t jinja_text_step(struct text text, size_t offset);
/* The character at `offset`, and its length. */
int32_t jinja_text_decode(struct text text, size_t offset, size_t *step);
size_t jinja_text_encode(int32_t character, char out[4]);
size_t jinja_text_count(struct text text); /* characters */
/* Where character number `index` starts; the length for all beyond the last. */
size_t jinja_text_offset(struct text text, size_t index);

bool jinja_is_space(int32_t character);
/* The part without white space, or without the characters of `set`, at its ends. */
struct text jinja_text_strip(struct text text, const struct text *set, bool left, bool right);

/* The first (last) place of `part` at or after `from`; -1: nowhere. */
ssize_t jinja_text_find(struct text text, struct text part, size_t from);
ssize_t jinja_text_find_last(struct text text, struct text part);
bool jinja_text_starts(struct text text, struct text with);
bool jinja_text_ends(struct text text, struct text with);
struct text jinja_text_slice(struct text text, size_t from, size_t to);
/* Length of the line end at `offset` (of Python's splitlines), 0 where there is none. */
size_t jinja_text_line_end(struct text text, size_t offset);

#endif
