/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of kernels that this processor can run, and what the tests of them have in common. */
#ifndef BATON_TESTS_KERNEL_TABLES_H
#define BATON_TESTS_KERNEL_TABLES_H

#include "engine/cpu/cpu_kernels.h"
#include "random_weights.h"

static const struct cpu_kernels *const reference = &cpu_kernels_portable;
extern const struct cpu_kernels *tables[CPU_KERNELS_MAX];
extern uint32_t table_count;

/* Fills `tables`, and prints their names. */
void tables_find(void);

/* The table whose bits a table has to give. */
const struct cpu_kernels *reference_of(const struct cpu_kernels *table);

void fill(struct random_stream *random, float *x, uint32_t count, float scale);
void check_bits(const struct cpu_kernels *table, const char *what, const float *found,
                const float *expected, uint32_t count);
void check_close(const char *what, double found, double expected, double tolerance);

#endif
