/* SPDX-License-Identifier: Apache-2.0 */
/* The model, from tokens to logits, as every thread of every rank runs it. Between two operations
 * stands a sync wherever the second reads what other threads have written in the first.
 *
 *   embed
 *   for each layer   norm, q k v, (bias, head norms,) rotation, K and V into the pages,
 *                    attention, o, + residual
 *                    norm, silu(gate) * up, down, + residual
 *   norm, logits
 *
 * Ranks meet twice a layer, where o and down sum over heads and over the FFN that are divided among
 * them. They exchange the sums of units, not sums of their own, so that the result has one order
 * whatever the number of ranks. */
#include "forward.h"
#include "rope.h"
#include "thread_group.h"

static void fill_angles(struct forward_step *step, struct seat seat)
{
    struct forward_model *model = step->model;
    uint32_t half = model->config.head_dim / 2;
    uint32_t index = seat.rank * seat.members + seat.index;
    struct span share = span_of(step->rows.count, index, model->rank_count * seat.members);
    const struct device_sequence *sequence = step->rows.sequences;
    for (uint32_t row = share.begin; row < share.end; row++) {
        while (row >= sequence->first_row + sequence->row_count)
            sequence++;
        rope_angles(model->frequencies, half, sequence->position + row - sequence->first_row,
                    step->cosine + (uint64_t)row * half, step->sine + (uint64_t)row * half);
    }
}

static void project_qkv(struct forward_step *step, struct seat seat, struct forward_rank *rank,
                        const struct forward_layer *layer)
{
    struct device *device = step->model->device;
    uint32_t q_width = rank->q_outputs.end - rank->q_outputs.begin;
    uint32_t kv_width = rank->kv_outputs.end - rank->kv_outputs.begin;
    const struct device_projection projections[3] = {
        {layer->q, rank->q_outputs, layer->q_bias, rank->q, q_width},
        {layer->k, rank->kv_outputs, layer->k_bias, rank->k, kv_width},
        {layer->v, rank->kv_outputs, layer->v_bias, rank->v, kv_width},
    };
    device->ops->project(device, seat, rank->hidden, step->rows.count, projections, 3);
    device->ops->sync(device, seat);
}

static struct device_heads heads_of(const struct forward_model *model,
                                    const struct forward_rank *rank,
                                    const struct forward_layer *layer)
{
    const struct model_config *config = &model->config;
    return (struct device_heads){
        .q_heads = (rank->q_outputs.end - rank->q_outputs.begin) / config->head_dim,
        .kv_heads = (rank->kv_outputs.end - rank->kv_outputs.begin) / config->head_dim,
        .head_dim = config->head_dim,
        .rotate_pairs = config->rope_order == ROPE_PAIRS,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .epsilon = config->rms_epsilon,
        .layout = &rank->layout,
        .pages = rank->pages,
    };
}

/* x += the product, whichever ranks its units are on. */
static void add_to_residual(struct forward_step *step, struct seat seat,
                            struct forward_rank *rank, const struct device_activations *in,
                            const struct device_weight *weight, const uint32_t *unit_inputs,
                            float *partials)
{
    struct forward_model *model = step->model;
    struct device *device = model->device;
    uint32_t rows = step->rows.count;
    const struct device_unit_product product = {weight, unit_inputs, rank->units};
    if (model->rank_count == 1) {
        device->ops->project_residual(device, seat, in, rows, &product, rank->x);
    } else {
        device->ops->project_partials(device, seat, in, rows, &product, partials);
        device->ops->sync_ranks(device, seat);
        device->ops->add_partials(device, seat, partials, model->units, rows,
                                  model->config.hidden_size, rank->x);
    }
    device->ops->sync(device, seat);
}

static void attention_half(struct forward_step *step, struct seat seat,
                           struct forward_rank *rank, uint32_t index)
{
    struct forward_model *model = step->model;
    const struct forward_layer *layer = &model->layers[index];
    struct device *device = model->device;
    const struct device_heads heads = heads_of(model, rank, layer);
    device->ops->normalise(device, seat, rank->x, NULL, step->rows.count, layer->attention_norm,
                           model->config.rms_epsilon, rank->hidden);
    device->ops->sync(device, seat);
    project_qkv(step, seat, rank, layer);
    device->ops->store_kv(device, seat, &step->rows, &heads, index, rank->q, rank->k, rank->v);
    device->ops->sync(device, seat);
    if (seat.index == 0)
        atomic_store_explicit(&rank->layers_stored, index + 1, memory_order_release);
    device->ops->attend(device, seat, &step->rows, &heads, index, rank->q, rank->attention);
    device->ops->sync(device, seat);
    add_to_residual(step, seat, rank, rank->attention, layer->o, model->head_inputs,
                    model->attention_partials);
}

static void ffn_half(struct forward_step *step, struct seat seat, struct forward_rank *rank,
                     uint32_t index)
{
    struct forward_model *model = step->model;
    const struct forward_layer *layer = &model->layers[index];
    struct device *device = model->device;
    device->ops->normalise(device, seat, rank->x, NULL, step->rows.count, layer->ffn_norm,
                           model->config.rms_epsilon, rank->hidden);
    device->ops->sync(device, seat);
    device->ops->project_gated(device, seat, rank->hidden, step->rows.count, layer->gate,
                               layer->up, rank->ffn_outputs, rank->ffn);
    device->ops->sync(device, seat);
    add_to_residual(step, seat, rank, rank->ffn, layer->down, model->ffn_inputs,
                    model->ffn_partials);
}

static void logits_of_selected(struct forward_step *step, struct seat seat,
                               struct forward_rank *rank)
{
    struct forward_model *model = step->model;
    struct device *device = model->device;
    const struct device_projection projection = {
        .weight = model->output,
        .outputs = rank->logits_outputs,
        .out = step->logits + rank->logits_outputs.begin,
        .stride = model->config.vocab_size,
    };
    device->ops->normalise(device, seat, rank->x, step->selected, step->selected_count,
                           model->final_norm, model->config.rms_epsilon, rank->hidden);
    device->ops->sync(device, seat);
    device->ops->project(device, seat, rank->hidden, step->selected_count, &projection, 1);
    device->ops->sync(device, seat); /* what was dealt out is counted from 0 in the next step */
}

void forward_run(struct forward_step *step, struct seat seat)
{
    struct forward_model *model = step->model;
    struct forward_rank *rank = &model->ranks[seat.rank];
    struct device *device = model->device;
    fill_angles(step, seat);
    device->ops->embed(device, seat, model->embedding, step->tokens, step->rows.count, rank->x);
    device->ops->sync_ranks(device, seat); /* the angles are for all ranks */
    for (uint32_t layer = 0; layer < model->config.layer_count; layer++) {
        attention_half(step, seat, rank, layer);
        /* Between two places where all members meet: nobody reads it now, all read the same later. */
        if (seat.rank == 0 && seat.index == 0)
            step->given_up = atomic_load_explicit(step->unwanted, memory_order_relaxed);
        ffn_half(step, seat, rank, layer);
        if (step->given_up)
            return;
    }
    if (step->selected_count)
        logits_of_selected(step, seat, rank);
}
