/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of attention with bfloats, in lanes; a file includes lanes_portable.h or lanes_avx512.h before
 * it. */
#ifndef BATON_ENGINE_LANES_WEIGHT_H
#define BATON_ENGINE_LANES_WEIGHT_H

#define LANES_PER_LN2 0x1.715476p+0f

/* exp(score - largest), which becomes a bfloat: within 0.0001 of itself, a twentieth of what that changes,
 * and 1 for the largest, as lanes_exp but with 2^r and a shorter polynomial. `less` is -largest * LANES_PER_LN2. */
static inline lanes lanes_weight(lanes score, lanes less)
{
    lanes x = lanes_fma(score, lanes_set(LANES_PER_LN2), less);
    x = lanes_larger(lanes_set(-100.0f), x);
    lanes shifted = lanes_add(x, lanes_set(LANES_SHIFT));
    lanes r = lanes_subtract(x, lanes_subtract(shifted, lanes_set(LANES_SHIFT)));
    lanes y = lanes_fma(lanes_set(0x1.c2a220p-5f), r, lanes_set(0x1.f00c52p-3f));
    y = lanes_fma(y, r, lanes_set(0x1.62f5fap-1f));
    y = lanes_fma(y, r, lanes_set(1.0f));
    return lanes_times_power(y, shifted);
}

#endif
