/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with bfloats in plain C; see cpu_kernels.h. */
#ifndef BATON_ENGINE_PORTABLE_ATTENTION_H
#define BATON_ENGINE_PORTABLE_ATTENTION_H

#include "cpu_kernels.h"

extern const struct bfloat_attention portable_attention;

#endif
