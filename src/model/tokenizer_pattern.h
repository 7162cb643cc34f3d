/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of tokenizers, run by PCRE2. They are written for Oniguruma, which is what
 * Hugging Face's library runs; tokenizer_pattern.c lists where the two languages differ. */
#ifndef BATON_MODEL_TOKENIZER_PATTERN_H
#define BATON_MODEL_TOKENIZER_PATTERN_H

#include "tokenizer_buffer.h"

#include "base/error.h"

struct pattern; /* never changes: threads may share it */

/* EINVAL: no regular expression; EUNSUPPORTED: it uses what has no counterpart. */
int pattern_open(const char *source, size_t length, struct pattern **out, struct error err);
/* One that matches just this text. */
int pattern_open_literal(const char *text, size_t length, struct pattern **out,
                         struct error err);
void pattern_close(struct pattern *pattern); /* NULL is fine */

/* What a thread needs to run patterns. */
struct pattern_space;
int pattern_space_open(struct pattern_space **out);
void pattern_space_close(struct pattern_space *space);

/* The first match that begins at `offset` or later in text that is valid UTF-8. 1: found, 0: not;
 * ELIMIT: the pattern tried too many ways, ENOMEM. */
int pattern_find(const struct pattern *pattern, struct pattern_space *space, const char *text,
                 size_t length, size_t offset, size_t *start, size_t *end, struct error err);

/* A walk from match to match, as Oniguruma's find_iter does it; begin with all zero. A match of
 * nothing counts, unless it touches the match before it. */
struct pattern_walk {
    size_t at;   /* where to search on */
    size_t last; /* one more than the end of the last match; 0: there was none */
};
int pattern_walk_next(const struct pattern *pattern, struct pattern_space *space,
                      const char *text, size_t length, struct pattern_walk *walk, size_t *start,
                      size_t *end, struct error err);

/* The same expression in PCRE2's language, appended; for pattern_open and for tests. */
int pattern_translate(const char *source, size_t length, struct byte_buffer *out,
                      struct error err);

#endif
