/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 with VNNI; products with quantised weights are in avx512_products.c. */
#include "avx512_products.h"
#include "lanes_avx512.h"

#include <math.h>

#include "element_kernels.inc"
#include "float_kernels.inc"

const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512",
    .quantise = quantise,
    .quantise_rows = quantise_rows,
    .prepare = avx512_prepare,
    .multiply = avx512_multiply,
    .direct_rows = AVX512_DIRECT_ROWS,
    .multiply_direct = avx512_multiply_direct,
    .panels_rows = AVX512_PANELS_ROWS,
    .multiply_panels = avx512_multiply_panels,
    FLOAT_KERNELS,
};
