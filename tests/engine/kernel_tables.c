/* SPDX-License-Identifier: Apache-2.0 */
/* See kernel_tables.h. */
#include "kernel_tables.h"
#include "engine/cpu/number.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

const struct cpu_kernels *tables[CPU_KERNELS_MAX];
uint32_t table_count;

void tables_find(void)
{
    table_count = cpu_kernels_available(tables);
    for (uint32_t t = 0; t < table_count; t++)
        printf("kernels: %s\n", tables[t]->name);
}

const struct cpu_kernels *reference_of(const struct cpu_kernels *table)
{
#if GROUP_PARTS > 1
    if (table->fine)
        return &cpu_kernels_portable_fine;
#endif
    return table->fine ? NULL : reference;
}

void fill(struct random_stream *random, float *x, uint32_t count, float scale)
{
    for (uint32_t i = 0; i < count; i++)
        x[i] = random_stream_float(random, scale);
}

void check_bits(const struct cpu_kernels *table, const char *what, const float *found,
                const float *expected, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (float_to_bits(found[i]) != float_to_bits(expected[i]))
            fail_msg("%s %s [%u of %u]: %.9g (%08x), portable gives %.9g (%08x)", table->name,
                     what, i, count, (double)found[i], float_to_bits(found[i]),
                     (double)expected[i], float_to_bits(expected[i]));
}

void check_close(const char *what, double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%s: %.9g, in double precision %.9g", what, found, expected);
}
