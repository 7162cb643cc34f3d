/* SPDX-License-Identifier: Apache-2.0 */
/* AMX for products of many rows with quantised weights, in amx_products.c, and for attention, in
 * amx_attention.c; everything else is as in kernels_avx512.c. */
#include "amx_attention.h"
#include "amx_products.h"
#include "avx512_attention.h"
#include "avx512_products.h"
#include "lanes_avx512.h"

#include <math.h>

#include "element_kernels.inc"
#include "float_kernels.inc"

static const struct bfloat_attention bfloats = {
    .set_queries = amx_set_queries,
    .set_tile = amx_set_tile,
    .attend = amx_attend,
    .attend_row = avx512_attend_row,
};

const struct cpu_kernels cpu_kernels_amx = {
    .name = "amx",
    .fine = true,
    .quantise = quantise_fine,
    .quantise_rows = quantise_rows_fine,
    .prepare = amx_prepare,
    .multiply = amx_multiply,
    .direct_rows = AVX512_DIRECT_ROWS,
    .multiply_direct = avx512_multiply_direct_fine,
    .panels_rows = AVX512_PANELS_ROWS,
    .multiply_panels = avx512_multiply_panels_fine,
    FLOAT_KERNELS,
    .bfloats = &bfloats,
};
