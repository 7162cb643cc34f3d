/* SPDX-License-Identifier: Apache-2.0 */
/* From a model file's weights to a forward_model: every matrix on the device, every rank with its
 * share and its buffers. */
#ifndef BATON_ENGINE_FORWARD_OPEN_H
#define BATON_ENGINE_FORWARD_OPEN_H

#include "forward.h"

/* The parts that o and down sum over separately. They follow from the model alone, so that its bits do
 * too: one for each KV head, or some of its query heads where there are few KV heads. A part of the
 * matrices is whole panels and blocks; where it cannot be, there is one for all. */
uint32_t forward_units(const struct model_config *config);

/* Those of a rank. Where there are more ranks than KV heads, neighbours have the same one. */
struct range forward_kv_heads(const struct model_config *config, uint32_t rank_count,
                              uint32_t rank);

/* `model` holds config, device and rank_count, and is filled in; forward_close undoes it, complete
 * or not. rank_count divides the units; rows are the most of a step. */
int forward_open(struct forward_model *model, const struct weights *weights, uint32_t rows,
                 weights_progress *progress, void *context, struct error err);
void forward_close(struct forward_model *model);

#endif
