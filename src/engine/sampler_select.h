/* SPDX-License-Identifier: Apache-2.0 */
/* The head of an order without sorting. Tokens are ordered by logit, the larger first, and among
 * equals by id, the lower first: no two are equal, and the order is the same on every machine. */
#ifndef BATON_ENGINE_SAMPLER_SELECT_H
#define BATON_ENGINE_SAMPLER_SELECT_H

#include <stdbool.h>
#include <stdint.h>

struct candidate {
    float logit;
    float weight;
    int32_t token;
};

static inline bool candidate_before(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

/* The shortest beginning of the order that has `most` candidates, or `mass` of weight: how many
 * they are, at least 1 (count is not 0). They are moved to the front, in no order but with the last
 * of them at the end. Expected time proportional to count. */
uint32_t candidates_head(struct candidate *candidates, uint32_t count, uint32_t most,
                         double mass);

/* For short lists. */
void candidates_sort(struct candidate *candidates, uint32_t count);

#endif
