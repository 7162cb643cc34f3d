/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to a text before it is split: a list of steps, usually none or one. */
#ifndef BATON_MODEL_TOKENIZER_NORMALIZER_H
#define BATON_MODEL_TOKENIZER_NORMALIZER_H

#include "tokenizer_pattern.h"
#include "unicode.h"

enum normalizer_kind {
    NORMALIZER_FORM,    /* a normal form of Unicode */
    NORMALIZER_PREPEND, /* a text before the text, unless it is empty */
    NORMALIZER_REPLACE, /* every match of a pattern, or every occurrence of a text */
    NORMALIZER_STRIP,   /* white space at the ends */
};

struct normalizer_step {
    enum normalizer_kind kind;
    enum unicode_form form;     /* FORM */
    struct byte_buffer text;    /* PREPEND; REPLACE: what is replaced, if by text */
    struct pattern *pattern;    /* REPLACE by pattern */
    struct byte_buffer content; /* REPLACE: what takes its place */
    bool left, right;           /* STRIP */
};

struct normalizer {
    struct normalizer_step *steps;
    size_t count, capacity;
};

/* Takes the step over, with all that it owns, also when it fails (ENOMEM). */
int normalizer_add(struct normalizer *normalizer, struct normalizer_step *step);
void normalizer_step_free(struct normalizer_step *step);
void normalizer_free(struct normalizer *normalizer);

/* What a normalizer writes to: the result of the last step is in `text`. */
struct normalizer_space {
    struct byte_buffer text, other;
};

/* Valid text in, valid text out. With no steps the result is the text itself. */
int normalizer_apply(const struct normalizer *normalizer, struct normalizer_space *space,
                     struct pattern_space *patterns, const char *text, size_t length,
                     struct text_view *out, struct error err);

#endif
