/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers without a state: the number for a position is a function of (seed, position) and of
 * nothing else. So a request gives the same tokens alone and in a crowd, before and after it was
 * retracted, and on whichever worker it goes on. */
#ifndef BATON_ENGINE_SAMPLER_RANDOM_H
#define BATON_ENGINE_SAMPLER_RANDOM_H

#include <stdint.h>

/* Every bit of the input changes about half of the bits of the output; one to one. */
static inline uint64_t sampler_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* 0 <= u < 1, in steps of 2^-53. The seed is mixed first, so that the streams of neighbouring seeds
 * are not each other's shifted by one. */
static inline double sampler_uniform(uint64_t seed, uint64_t position)
{
    uint64_t stream = sampler_mix(seed + 0x9e3779b97f4a7c15ull);
    uint64_t bits = sampler_mix(stream + 0x9e3779b97f4a7c15ull * (position + 1));
    return (double)(bits >> 11) * 0x1p-53;
}

#endif
