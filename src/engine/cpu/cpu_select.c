/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels this processor can run. Asked once, at start; among tables of equally fine activations
 * the choice never changes a result, only how soon it is there. */
#include "cpu_kernels.h"

#include <stdio.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>

/* Of <asm/hwcap.h>; older headers do not have all. */
#define HWCAP_DOTPROD (1ul << 20)
#define HWCAP2_INT8_MATRIX (1ul << 13)

static uint32_t processor_kernels(const struct cpu_kernels **out)
{
    uint32_t count = 0;
    bool dotprod = getauxval(AT_HWCAP) & HWCAP_DOTPROD;
    if (dotprod && (getauxval(AT_HWCAP2) & HWCAP2_INT8_MATRIX))
        out[count++] = &cpu_kernels_i8mm;
    if (dotprod)
        out[count++] = &cpu_kernels_neon;
    return count;
}
#elif defined(__x86_64__)
#include "amx_products.h"

#include <cpuid.h>

/* What not every compiler has a name for. */
static bool has_halves(void) /* F16C */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

static bool has_tiles(void) /* AMX, and AMX and AVX-512 with bfloat16 */
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) && (d >> 22 & 1) &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

static uint32_t processor_kernels(const struct cpu_kernels **out)
{
    uint32_t count = 0;
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_halves();
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")) {
        if (has_tiles() && amx_allowed())
            out[count++] = &cpu_kernels_amx;
        out[count++] = &cpu_kernels_avx512;
    }
    if (avx2)
        out[count++] = &cpu_kernels_avx2;
    out[count++] = &cpu_kernels_portable_fine;
    return count;
}
#else
static uint32_t processor_kernels(const struct cpu_kernels **out)
{
    (void)out;
    return 0;
}
#endif

uint32_t cpu_kernels_available(const struct cpu_kernels *out[CPU_KERNELS_MAX])
{
    uint32_t count = processor_kernels(out);
    out[count++] = &cpu_kernels_portable;
    return count;
}

int cpu_kernels_find(const char *name, const struct cpu_kernels **out, struct error err)
{
    const struct cpu_kernels *tables[CPU_KERNELS_MAX];
    uint32_t count = cpu_kernels_available(tables);
    char names[128] = "";
    for (uint32_t i = 0; i < count; i++) {
        if (!name || !*name || !strcmp(name, tables[i]->name)) {
            *out = tables[i];
            return BATON_OK;
        }
        size_t length = strlen(names);
        snprintf(names + length, sizeof(names) - length, "%s%s", i ? ", " : "",
                 tables[i]->name);
    }
    return error_set(err, BATON_ENOTFOUND,
                     "there are no kernels \"%s\" on this processor; it can run %s", name,
                     names);
}
