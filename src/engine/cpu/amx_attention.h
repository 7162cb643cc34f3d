/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with bfloats for many rows by AMX's tiles; see cpu_kernels.h. */
#ifndef BATON_ENGINE_AMX_ATTENTION_H
#define BATON_ENGINE_AMX_ATTENTION_H

#include "cpu_kernels.h"

void amx_set_queries(const float *const *queries, uint32_t count, float scale, uint32_t dim,
                     uint16_t *out);
void amx_set_tile(const uint16_t *const *keys, const uint16_t *const *values, uint32_t tokens,
                  uint32_t dim, uint16_t *out);
void amx_attend(const uint16_t *queries, uint32_t count, const uint32_t *seen,
                const uint16_t *tile, uint32_t dim, struct attention_state state, bool first);

#endif
