/* SPDX-License-Identifier: Apache-2.0 */
/* A short name for a model's numbers: two workers that have the same one may hand KV caches to each
 * other. It covers the config and samples of every weight, so that a fine-tune of the same shape has
 * another; it does not depend on the file's name or place. */
#ifndef BATON_MODEL_MODEL_FINGERPRINT_H
#define BATON_MODEL_MODEL_FINGERPRINT_H

#include "weights.h"

#define MODEL_FINGERPRINT_BYTES 33 /* 32 hexadecimal digits and the end */

void model_fingerprint(const struct model_config *config, const struct weights *weights,
                       char out[MODEL_FINGERPRINT_BYTES]);

#endif
