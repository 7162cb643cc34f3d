/* SPDX-License-Identifier: Apache-2.0 */
/* The exponential, in lanes; a file includes one lanes_*.h before it. */
#ifndef BATON_ENGINE_LANES_EXP_H
#define BATON_ENGINE_LANES_EXP_H

/* exp(x) = 2^n * exp(r), n the nearest whole number to x / ln 2, r = x - n ln 2 in two steps (the
 * first is exact), |r| <= 0.35; exp(r) by a polynomial fitted to that interval. Adding 1.5 * 2^23
 * rounds to a whole number, faster than the instruction for it. The error is below 1.5 units in
 * the last place. Beyond -87 and 88 the result stays what it is there. */
static inline lanes lanes_exp(lanes x)
{
    x = lanes_smaller(lanes_set(88.0f), lanes_larger(lanes_set(-87.0f), x));
    lanes shifted =
        lanes_add(lanes_multiply(x, lanes_set(0x1.715476p+0f)), lanes_set(LANES_SHIFT));
    lanes n = lanes_subtract(shifted, lanes_set(LANES_SHIFT));
    lanes r = lanes_fma(n, lanes_set(-0x1.63p-1f), x);
    r = lanes_fma(n, lanes_set(0x1.bd0106p-13f), r);
    lanes y = lanes_set(0x1.6a23cep-10f);
    y = lanes_fma(y, r, lanes_set(0x1.123a20p-7f));
    y = lanes_fma(y, r, lanes_set(0x1.5558f2p-5f));
    y = lanes_fma(y, r, lanes_set(0x1.555492p-3f));
    y = lanes_fma(y, r, lanes_set(0x1.fffffcp-2f));
    y = lanes_fma(y, r, lanes_set(1.0f));
    y = lanes_fma(y, r, lanes_set(1.0f));
    return lanes_multiply(y, lanes_power_of_shifted(shifted));
}

#endif
