/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that are found in a text as a whole, before anything else is done to it: control tokens
 * and user-defined ones. Of those that begin at the same place the longest is taken, and the
 * first place goes first. */
#ifndef BATON_MODEL_TOKENIZER_ADDED_H
#define BATON_MODEL_TOKENIZER_ADDED_H

#include "unicode.h"

#include "base/error.h"

struct added_token {
    uint32_t id;
    bool control;      /* only where control tokens are parsed */
    bool single_word;  /* not when a letter or digit touches it */
    bool takes_before; /* and the white space before it ("lstrip") */
    bool takes_after;  /* and the white space behind it ("rstrip") */
};

/* A node of the tree of texts; its children are a list through `sibling`. */
struct added_node {
    uint32_t child, sibling; /* 0: none */
    uint32_t token;          /* in tokens; ADDED_NONE: no text ends here */
    uint8_t byte;
};

#define ADDED_NONE UINT32_MAX

struct added_tokens {
    struct added_node *nodes; /* those below 256 are the first bytes */
    size_t node_count, node_capacity;
    struct added_token *tokens;
    size_t count, capacity;
};

/* Adds a text that is not empty; the first token of a text stays. EINVAL: it is too long. */
int added_tokens_add(struct added_tokens *added, const char *text, size_t length,
                     struct added_token token, struct error err);
void added_tokens_free(struct added_tokens *added);

/* A walk through one text. */
struct added_search {
    const char *text;
    size_t length;
    bool parse_control;
    const struct text_range *untrusted; /* no control token may have a byte in these */
    size_t untrusted_count;

    size_t at;   /* where to look next; begin with all zero */
    size_t done; /* the end of the last token found */
};

struct added_match {
    size_t start, end; /* with the white space that the token takes */
    uint32_t id;
};

bool added_search_next(const struct added_tokens *added, struct added_search *search,
                       struct added_match *out);

#endif
