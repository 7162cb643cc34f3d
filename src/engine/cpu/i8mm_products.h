/* SPDX-License-Identifier: Apache-2.0 */
/* The products of the i8mm kernels; cpu_kernels.h says what they are. They are a file of their own
 * because gcc orders these loops better with the scheduling pass that spoils those in float. */
#ifndef BATON_ENGINE_I8MM_PRODUCTS_H
#define BATON_ENGINE_I8MM_PRODUCTS_H

#include "cpu_kernels.h"

#define I8MM_DIRECT_ROWS 8 /* beyond, it is cheaper to make a panel ready */

void i8mm_prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                  struct ready_block *out);
void i8mm_multiply(enum packed_format format, const struct ready_block *weight, uint32_t blocks,
                   const struct quant_group *activations, uint32_t group_stride, uint32_t rows,
                   panel_sums *sums, bool add);
void i8mm_multiply_direct(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                          const struct quant_group *activations, uint32_t group_stride,
                          uint32_t rows, panel_sums *sums, bool add);

#endif
