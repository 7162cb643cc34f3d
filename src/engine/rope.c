/* SPDX-License-Identifier: Apache-2.0 */
/* See rope.h. Sine and cosine are our own, so that two machines with different C libraries agree in
 * every bit: the angle is reduced to [-pi/4, pi/4] (pi/2 in two parts, the first short enough that
 * its multiples are exact), then two Taylor polynomials whose error is far below a float's. */
#include "rope.h"

#include <math.h>

#define HALF_PI_HIGH 0x1.921fb544p+0 /* 33 bits */
#define HALF_PI_LOW 0x1.0b4611a626331p-34

static double sine_near_zero(double r)
{
    double s = r * r;
    return r * (1.0 + s * (-1.0 / 6 +
                           s * (1.0 / 120 + s * (-1.0 / 5040 +
                                                 s * (1.0 / 362880 + s * (-1.0 / 39916800))))));
}

static double cosine_near_zero(double r)
{
    double s = r * r;
    return 1.0 + s * (-1.0 / 2 +
                      s * (1.0 / 24 +
                           s * (-1.0 / 720 + s * (1.0 / 40320 + s * (-1.0 / 3628800 +
                                                                     s * (1.0 / 479001600))))));
}

static void sine_cosine(double angle, float *sine, float *cosine)
{
    double turns = nearbyint(angle * 0x1.45f306dc9c883p-1); /* quarter turns */
    double r = (angle - turns * HALF_PI_HIGH) - turns * HALF_PI_LOW;
    double s = sine_near_zero(r), c = cosine_near_zero(r);
    switch ((int64_t)turns & 3) {
    case 0:
        *sine = (float)s;
        *cosine = (float)c;
        return;
    case 1:
        *sine = (float)c;
        *cosine = (float)-s;
        return;
    case 2:
        *sine = (float)-s;
        *cosine = (float)-c;
        return;
    default:
        *sine = (float)-c;
        *cosine = (float)s;
        return;
    }
}

void rope_angles(const float *frequencies, uint32_t count, uint32_t position, float *cosine,
                 float *sine)
{
    for (uint32_t i = 0; i < count; i++) {
        float angle = (float)position * frequencies[i];
        sine_cosine((double)angle, &sine[i], &cosine[i]);
    }
}
