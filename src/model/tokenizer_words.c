/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of places: a word's hash chooses a pair, it is in one of the two. A new word takes the
 * second place and moves the one that was there to the first, so that of two frequent words
 * neither drives the other out. */
#include "tokenizer_words.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PAIRS 4096 /* 512 KB */

struct words {
    struct word pairs[PAIRS][2];
};

struct words *words_new(void)
{
    return calloc(1, sizeof(struct words));
}

void words_free(struct words *words)
{
    free(words);
}

static size_t pair_of(const char *text, size_t length)
{
    return (size_t)XXH3_64bits(text, length) % PAIRS;
}

static int word_is(const struct word *word, const char *text, size_t length)
{
    return word->length == length && memcmp(word->text, text, length) == 0;
}

const struct word *words_find(const struct words *words, const char *text, size_t length)
{
    if (!length || length > WORD_TEXT_MAX)
        return NULL;
    const struct word *pair = words->pairs[pair_of(text, length)];
    return word_is(&pair[1], text, length)   ? &pair[1]
           : word_is(&pair[0], text, length) ? &pair[0]
                                             : NULL;
}

void words_put(struct words *words, const char *text, size_t length, const uint32_t *ids,
               size_t count)
{
    if (!length || length > WORD_TEXT_MAX || count > WORD_IDS_MAX)
        return;
    struct word *pair = words->pairs[pair_of(text, length)];
    pair[0] = pair[1];
    pair[1].length = (uint8_t)length;
    pair[1].id_count = (uint8_t)count;
    memcpy(pair[1].text, text, length);
    memcpy(pair[1].ids, ids, count * sizeof(*ids));
}
