/* SPDX-License-Identifier: Apache-2.0 */
/* A model on a device, and one step through it. engine.c builds these structs, forward.c runs. */
#ifndef BATON_ENGINE_FORWARD_H
#define BATON_ENGINE_FORWARD_H

#include "device.h"
#include "model/model_config.h"

#include <stdatomic.h>

struct forward_layer {
    float *attention_norm;
    struct device_weight *q, *k, *v, *o;
    float *q_bias, *k_bias, *v_bias; /* NULL: none */
    float *q_norm, *k_norm;          /* NULL: none */
    float *ffn_norm;
    struct device_weight *gate, *up, *down;
};

/* What a rank has of its own: its share of the units, its pages, its rows. */
struct forward_rank {
    struct range units;
    struct range q_outputs, kv_outputs, ffn_outputs, logits_outputs;
    struct page_layout layout;
    void *pages;
    uint32_t page_count;
    float *x;                             /* [row][hidden_size]: the residual stream */
    float *q, *k, *v;                     /* [row][the rank's heads * head_dim] */
    struct device_activations *hidden;    /* a norm's output */
    struct device_activations *attention; /* what the heads gave */
    struct device_activations *ffn;       /* silu(gate) * up */
    _Atomic uint32_t layers_stored;       /* of the running step */
};

struct forward_model {
    struct model_config config;
    struct device *device;
    struct device_weight *embedding, *output; /* output is embedding where they are tied */
    float *final_norm;
    struct forward_layer *layers;
    float *frequencies; /* of the rotary embedding: head_dim / 2 */
    uint32_t units;
    uint32_t *head_inputs; /* [units + 1]: of o */
    uint32_t *ffn_inputs;  /* [units + 1]: of down */
    uint32_t rank_count;
    struct forward_rank *ranks;
    float *attention_partials, *ffn_partials; /* NULL with one rank */
};

struct forward_step {
    struct forward_model *model;
    struct device_rows rows;
    const int32_t *tokens;
    float *cosine, *sine;     /* of `rows`, to be filled in */
    const uint32_t *selected; /* rows that want logits */
    uint32_t selected_count;
    float *logits;
    const atomic_bool *unwanted; /* by somebody who does not compute */
    bool given_up;               /* the same, as all members agree upon it */
};

/* All members of all crews, at once. */
void forward_run(struct forward_step *step, struct seat seat);

#endif
