/* SPDX-License-Identifier: Apache-2.0 */
/* NEON with the int8 matrix product (Armv8.6: Neoverse-V1, N2 and later). What it is for is in
 * i8mm_products.c; everything else is as in kernels_neon.c. */
#include "cpu_kernels.h"
#include "i8mm_products.h"
#include "lanes_neon.h"

#include <math.h>

#include "element_kernels.inc"
#include "float_kernels.inc"

const struct cpu_kernels cpu_kernels_i8mm = {
    .name = "i8mm",
    .quantise = quantise,
    .prepare = i8mm_prepare,
    .multiply = i8mm_multiply,
    .direct_rows = I8MM_DIRECT_ROWS,
    .multiply_direct = i8mm_multiply_direct,
    FLOAT_KERNELS,
};
