/* SPDX-License-Identifier: Apache-2.0 */
/* Products of fine quants with quantised weights by AMX's tiles; see cpu_kernels.h. Few rows are in
 * avx512_products.h. */
#ifndef BATON_ENGINE_AMX_PRODUCTS_H
#define BATON_ENGINE_AMX_PRODUCTS_H

#include "cpu_kernels.h"

/* Whether the kernel lets this process use the tiles; asks for it. */
bool amx_allowed(void);

/* Makes all tiles of the calling thread 16 rows of 64 bytes, and leaves it at that. */
void amx_shape_tiles(void);

void amx_prepare(enum packed_format format, const uint8_t *blocks, uint32_t count,
                 struct ready_block *out);
void amx_multiply(enum packed_format format, const struct ready_block *weight, uint32_t blocks,
                  const struct quant_group *activations, uint32_t group_stride, uint32_t rows,
                  panel_sums *sums, bool add);

#endif
