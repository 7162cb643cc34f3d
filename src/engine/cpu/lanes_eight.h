/* SPDX-License-Identifier: Apache-2.0 */
/* Where lanes are eight, they are also the eight partial sums of a row. */
#ifndef BATON_ENGINE_LANES_EIGHT_H
#define BATON_ENGINE_LANES_EIGHT_H

#define EIGHT 8
typedef lanes eight;

#define eight_load lanes_load
#define eight_load_half lanes_load_half
#define eight_set lanes_set
#define eight_add lanes_add
#define eight_fma lanes_fma
#define eight_sum lanes_sum
#define eight_sum4 lanes_sum4

#endif
