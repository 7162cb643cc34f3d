/* SPDX-License-Identifier: Apache-2.0 */
/* The widest product of 8-bit numbers that this processor has, again and again. */
#ifndef BATON_CLI_BENCH_PRODUCTS_H
#define BATON_CLI_BENCH_PRODUCTS_H

/* The instruction; NULL where there is none that is known here. */
const char *bench_products_name(void);

/* Some tenths of a second of it; returns how many multiplications and additions that was. */
double bench_products_work(void);

#endif
