/* SPDX-License-Identifier: Apache-2.0 */
/* Words that were encoded before, and their tokens. Most of any text are a few thousand words. One
 * thread's: no lock. */
#ifndef BATON_MODEL_TOKENIZER_WORDS_H
#define BATON_MODEL_TOKENIZER_WORDS_H

#include <stddef.h>
#include <stdint.h>

#define WORD_TEXT_MAX 30
#define WORD_IDS_MAX 8

/*  0        1          2                              32                              64
 *  | length | id count | the word                     | its tokens                     |   */
struct word {
    uint8_t length; /* 0: nothing here */
    uint8_t id_count;
    char text[WORD_TEXT_MAX];
    uint32_t ids[WORD_IDS_MAX];
};

_Static_assert(sizeof(struct word) == 64, "one cache line");

struct words; /* a fixed number of them; a new word takes the place of an old one */

struct words *words_new(void); /* NULL: out of memory */
void words_free(struct words *words);

/* NULL when the word is not there. */
const struct word *words_find(const struct words *words, const char *text, size_t length);
/* Words that are too long, or have too many tokens, are not kept. */
void words_put(struct words *words, const char *text, size_t length, const uint32_t *ids,
               size_t count);

#endif
