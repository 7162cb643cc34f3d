/* SPDX-License-Identifier: Apache-2.0 */
/* Products with quantised weights by AVX-512's vector neural network instructions; see
 * cpu_kernels.h. */
#ifndef BATON_ENGINE_AVX512_PRODUCTS_H
#define BATON_ENGINE_AVX512_PRODUCTS_H

#include "cpu_kernels.h"

#define AVX512_DIRECT_ROWS 8

/* What the bytes of a ready block that have a sign are lifted by, so that they have none. */
#define AVX512_LIFT 128

void avx512_prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                    struct ready_block *out);
void avx512_multiply(enum packed_format format, const struct ready_block *weight,
                     uint32_t blocks, const struct quant_group *activations,
                     uint32_t group_stride, uint32_t rows, panel_sums *sums, bool add);
void avx512_multiply_direct(enum packed_format format, const uint8_t *weight, uint32_t blocks,
                            const struct quant_group *activations, uint32_t group_stride,
                            uint32_t rows, panel_sums *sums, bool add);

/* Of PANELS_TOGETHER panels. */
#define AVX512_PANELS_ROWS 3
void avx512_multiply_panels(enum packed_format format, const uint8_t *const *weights,
                            uint32_t blocks, const struct quant_group *activations,
                            uint32_t rows, panel_sums *const *sums, bool add);
void avx512_multiply_panels_fine(enum packed_format format, const uint8_t *const *weights,
                                 uint32_t blocks, const struct quant_group *activations,
                                 uint32_t rows, panel_sums *const *sums, bool add);

/* With fine quants. */
void avx512_multiply_direct_fine(enum packed_format format, const uint8_t *weight,
                                 uint32_t blocks, const struct quant_group *activations,
                                 uint32_t group_stride, uint32_t rows, panel_sums *sums,
                                 bool add);

#endif
