/* SPDX-License-Identifier: Apache-2.0 */
/* How much of what running generations may still produce is set aside when a new one is considered.
 * All of it would leave most of the pool empty, since few generations use up their max_new_tokens;
 * none of it would end in retractions. The rule is SGLang's: begin careful, become bolder with every
 * step that decodes, and after running out take what was seen as the measure.
 *
 *   0.7 |\                       initial = min(0.7 * conservativeness, 1)
 *       |  \          |\         floor   = 0.14 * initial, reached after 600 steps
 *       |    \        |  \
 *   0.1 |      \______|    \__   up at a retraction
 */
#ifndef BATON_SCHED_TOKEN_RATIO_H
#define BATON_SCHED_TOKEN_RATIO_H

#include <stdint.h>

#define TOKEN_RATIO_INITIAL 0.7
#define TOKEN_RATIO_FLOOR 0.14 /* of the initial one */
#define TOKEN_RATIO_STEPS 600
#define RETRACT_STEPS \
    20 /* room for so many tokens of each is made when the pages have run out */

struct token_ratio {
    double initial, floor, decay, now;
};

void token_ratio_init(struct token_ratio *ratio, double conservativeness);
void token_ratio_reset(struct token_ratio *ratio); /* nothing is running */
void token_ratio_decay(struct token_ratio *ratio); /* after a step that decoded */

/* After a retraction: what those that go on have generated, and will in the next RETRACT_STEPS, of
 * what they may. */
void token_ratio_retracted(struct token_ratio *ratio, uint32_t running, uint64_t generated,
                           uint64_t max_new);

#endif
