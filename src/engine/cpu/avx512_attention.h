/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with bfloats for one row; see cpu_kernels.h. */
#ifndef BATON_ENGINE_AVX512_ATTENTION_H
#define BATON_ENGINE_AVX512_ATTENTION_H

#include "cpu_kernels.h"

void avx512_attend_row(const float *const *queries, uint32_t count, float scale,
                       const uint16_t *const *keys, const uint16_t *const *values,
                       uint32_t tokens, uint32_t dim, struct attention_state state, bool first);

#endif
