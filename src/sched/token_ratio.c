/* SPDX-License-Identifier: Apache-2.0 */
/* See token_ratio.h. */
#include "token_ratio.h"

void token_ratio_init(struct token_ratio *ratio, double conservativeness)
{
    double initial = TOKEN_RATIO_INITIAL * conservativeness;
    ratio->initial = initial < 1 ? initial : 1;
    ratio->floor = ratio->initial * TOKEN_RATIO_FLOOR;
    ratio->decay = (ratio->initial - ratio->floor) / TOKEN_RATIO_STEPS;
    ratio->now = ratio->initial;
}

void token_ratio_reset(struct token_ratio *ratio)
{
    ratio->now = ratio->initial;
}

void token_ratio_decay(struct token_ratio *ratio)
{
    ratio->now -= ratio->decay;
    if (ratio->now < ratio->floor)
        ratio->now = ratio->floor;
}

void token_ratio_retracted(struct token_ratio *ratio, uint32_t running, uint64_t generated,
                           uint64_t max_new)
{
    double seen = (double)(generated + (uint64_t)RETRACT_STEPS * running);
    ratio->now = seen < (double)max_new ? seen / (double)max_new : 1;
}
