/* SPDX-License-Identifier: Apache-2.0 */
/* How families of models split their text, by the names that GGUF files use for it
 * ("tokenizer.ggml.pre"): a GGUF file carries the name only, not the patterns. */
#ifndef BATON_MODEL_TOKENIZER_FAMILIES_H
#define BATON_MODEL_TOKENIZER_FAMILIES_H

#include <stdbool.h>
#include <stddef.h>

#define FAMILY_PATTERNS_MAX 6

/* The pattern of GPT-2, which Hugging Face's ByteLevel pre-tokenizer has built in. */
#define PATTERN_GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct tokenizer_family {
    const char *names;                         /* "a|b|c" */
    const char *patterns[FAMILY_PATTERNS_MAX]; /* one after the other; matches are pieces */
    bool composes;                             /* text is brought to NFC first */
    bool whole_piece_first;                    /* a piece that is a token is not taken apart */
    bool adds_bos;                             /* unless the file says otherwise */
};

/* NULL when the name is not known. An empty name: that of files which have none. */
const struct tokenizer_family *tokenizer_family_find(const char *name, size_t length);

#endif
