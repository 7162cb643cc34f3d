/* SPDX-License-Identifier: Apache-2.0 */
/* The angles of the rotary position embedding. A step computes them once, for its rows, and all
 * layers use them: that is less memory than a table for every position of a long context, and costs
 * nothing beside the rest. */
#ifndef BATON_ENGINE_ROPE_H
#define BATON_ENGINE_ROPE_H

#include <stdint.h>

/* cosine[i], sine[i] of position * frequencies[i], for `count` frequencies. The product is
 * rounded to float, as in the implementations that models are trained with. */
void rope_angles(const float *frequencies, uint32_t count, uint32_t position, float *cosine,
                 float *sine);

#endif
