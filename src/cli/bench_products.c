/* SPDX-License-Identifier: Apache-2.0 */
/* See bench_products.h. A file of its own, because it is compiled for processors that have the
 * instruction; bench_products_name says whether this one does. */
#include "bench_products.h"

#include <stddef.h>
#include <stdint.h>

#define LOOPS 2000000u
#define CHAINS 12 /* sums that do not wait for each other */

#if defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>

#ifndef HWCAP2_I8MM
#define HWCAP2_I8MM (1ul << 13)
#endif

const char *bench_products_name(void)
{
    return getauxval(AT_HWCAP2) & HWCAP2_I8MM ? "smmla" : NULL;
}

double bench_products_work(void)
{
    int32x4_t sum[CHAINS];
    int8x16_t a = vdupq_n_s8(1), b = vdupq_n_s8(2);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = vdupq_n_s32(c);
    for (uint32_t i = 0; i < LOOPS; i++) {
        for (int c = 0; c < CHAINS; c++)
            sum[c] = vmmlaq_s32(sum[c], a, b);
        __asm__ volatile("" : "+w"(a), "+w"(b));
    }
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" : : "w"(sum[c]));
    return 64.0 * CHAINS * LOOPS; /* 4 sums of 8 products */
}
#elif defined(__x86_64__)
#include <immintrin.h>

const char *bench_products_name(void)
{
    return __builtin_cpu_supports("avx512vnni") ? "vpdpbusd" : NULL;
}

__attribute__((target("avx512f,avx512vnni"))) double bench_products_work(void)
{
    __m512i sum[CHAINS];
    __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_set1_epi32(c);
    for (uint32_t i = 0; i < LOOPS; i++) {
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_dpbusd_epi32(sum[c], a, b);
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" : : "v"(sum[c]));
    return 128.0 * CHAINS * LOOPS; /* 16 sums of 4 products */
}
#else
const char *bench_products_name(void)
{
    return NULL;
}

double bench_products_work(void)
{
    return 0;
}
#endif
