/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a text into the pieces ("words") within which tokens are made: a list of steps, each of which
 * cuts the pieces of the one before, or rewrites them. Hugging Face calls it pre-tokenizer. */
#ifndef BATON_MODEL_TOKENIZER_SPLIT_H
#define BATON_MODEL_TOKENIZER_SPLIT_H

#include "tokenizer_pattern.h"
#include "unicode.h"

/* What becomes of a match of the pattern. */
enum split_behavior {
    SPLIT_ISOLATED,             /* a piece of its own */
    SPLIT_REMOVED,              /* nothing */
    SPLIT_MERGED_WITH_PREVIOUS, /* the end of the piece before it */
    SPLIT_MERGED_WITH_NEXT,     /* the beginning of the piece behind it */
    SPLIT_CONTIGUOUS,           /* one piece with the matches that touch it */
};

enum split_kind {
    SPLIT_BY_PATTERN,
    SPLIT_PREFIX, /* puts `prefix` before pieces that do not begin with it */
    SPLIT_SPACES, /* puts `prefix` in the place of every space */
};

struct split_step {
    enum split_kind kind;
    struct pattern *pattern;      /* BY_PATTERN */
    enum split_behavior behavior; /* BY_PATTERN */
    bool inverted;   /* BY_PATTERN: what lies between the matches counts as match */
    char prefix[8];  /* PREFIX, SPACES; terminated */
    bool first_only; /* PREFIX: only at the very beginning of the text */
};

struct splitter {
    struct split_step *steps;
    size_t count, capacity;
};

/* Takes the step over, with its pattern, also when it fails (ENOMEM). */
int splitter_add(struct splitter *splitter, struct split_step *step);
void splitter_free(struct splitter *splitter);

struct range_list {
    struct text_range *ranges;
    size_t count, capacity;
};

/* What a splitter writes to; `text` and `pieces` are its result. All zero is empty. */
struct split_space {
    struct text_view text;
    struct range_list pieces;
    struct range_list spare, parts;
    struct byte_buffer rewritten[2];
};

void split_space_free(struct split_space *space);

/* `first`: the text is the beginning of what the user gave. No piece is empty. */
int splitter_apply(const struct splitter *splitter, struct split_space *space,
                   struct pattern_space *patterns, const char *text, size_t length, bool first,
                   struct error err);

#endif
