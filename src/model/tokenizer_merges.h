/* SPDX-License-Identifier: Apache-2.0 */
/* Byte pair encoding itself: which two neighbours become one token, in which order of
 * precedence, and the loop that does it. */
#ifndef BATON_MODEL_TOKENIZER_MERGES_H
#define BATON_MODEL_TOKENIZER_MERGES_H

#include "tokenizer_vocabulary.h"

struct merge {
    uint64_t pair; /* left id << 32 | right id; MERGE_FREE: a free slot */
    uint32_t rank; /* the smallest goes first */
    uint32_t result;
};

#define MERGE_FREE UINT64_MAX
#define MERGE_RANK_NONE UINT32_MAX

struct merges {
    struct merge *slots; /* open addressing */
    size_t slot_count, count;
};

/* Room for `expected` merges, which may be a little more than will come. */
int merges_init(struct merges *merges, size_t expected, struct error err);
void merges_free(struct merges *merges);

/* Of two merges of one pair the one of the smaller rank stays. ENOMEM. */
int merges_add(struct merges *merges, uint32_t left, uint32_t right, uint32_t rank,
               uint32_t result);

/* SentencePiece's rule, for vocabularies without a list of merges: any two neighbours whose
 * concatenation is a token may become it, the one of the best score first. scores[id]. */
int merges_from_scores(struct merges *merges, const struct vocabulary *vocabulary,
                       const float *scores, struct error err);

/* What the loop needs beside the ids; all zero is empty. */
struct merge_space {
    struct merge_symbol *symbols;
    size_t symbol_capacity;
    uint64_t *heap;
    size_t heap_capacity;
};

void merge_space_free(struct merge_space *space);

/* Merges `ids` in place until no two neighbours can; *count becomes what is left. n log n. */
int merges_apply(const struct merges *merges, struct merge_space *space, uint32_t *ids,
                 size_t *count);

#endif
