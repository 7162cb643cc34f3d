/* SPDX-License-Identifier: Apache-2.0 */
/* What the bits of each tensor type mean, as floats. Plain and slow on purpose: the kernels of
 * the engine are tested against it, and it fetches single rows (embeddings, norms, biases). */
#ifndef BATON_MODEL_DEQUANT_H
#define BATON_MODEL_DEQUANT_H

#include "weights.h"

/* `columns` values, a whole number of blocks, out of `data`, which need not be aligned. */
void dequant_row(enum tensor_type type, const uint8_t *data, uint64_t columns, float *out);

/* Row `row` of a weight: weight->columns floats. */
void dequant_weight_row(const struct weight *weight, uint32_t row, float *out);

float half_to_float(uint16_t bits);
float bfloat_to_float(uint16_t bits);

#endif
