/* SPDX-License-Identifier: Apache-2.0 */
/* From a model file's weights to a forward_model: every matrix on the device, every rank with its
 * share and its buffers. */
#ifndef BATON_ENGINE_FORWARD_OPEN_H
#define BATON_ENGINE_FORWARD_OPEN_H

#include "forward.h"

/* The parts that o and down sum over separately: one for each KV head where a head's part of the
 * matrices is whole panels and blocks, else one for all. */
uint32_t forward_units(const struct model_config *config);

/* `model` holds config, device and rank_count, and is filled in; forward_close undoes it, complete
 * or not. rank_count divides the units; rows are the most of a step. */
int forward_open(struct forward_model *model, const struct weights *weights, uint32_t rows,
                 weights_progress *progress, void *context, struct error err);
void forward_close(struct forward_model *model);

#endif
