/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's own attention over the pools of `bench order`: what is chosen there is for it. Kernels
 * take strides, so per-layer pools in one piece of memory are just one more layout. The pools' bits
 * are read as f16, the engine's default; they are numbers near 2 in that type too. */
#include "bench_order.h"

#include "engine/cpu/cpu_device.h"
#include "model/model_config.h"

#include <stdlib.h>
#include <string.h>

struct engine_attention {
    const struct order_shape *shape;
    struct thread_pool *threads;
    struct device *device;
    struct device_rows rows;
    struct device_sequence *sequences;
    float *q;
    struct device_activations out;
};

static int device_open(struct engine_attention *self, struct error err)
{
    const struct order_shape *shape = self->shape;
    const struct cpu_kernels *kernels;
    uint32_t q_heads = shape->heads * shape->group, width = q_heads * shape->dim;
    const struct model_config config = {.head_count = q_heads,
                                        .kv_head_count = shape->heads,
                                        .head_dim = shape->dim,
                                        .hidden_size = width,
                                        .ffn_size = width,
                                        .context_length = ORDER_SEQUENCE_PAGES * ORDER_TOKENS};
    int rc = cpu_kernels_find(NULL, &kernels, err);
    if (!rc)
        rc = thread_pool_open(1, &self->threads, err);
    if (!rc)
        rc = cpu_device_open(&config, kernels, self->threads, 1, 1, &self->device, err);
    return rc;
}

int engine_attention_open(const struct order_shape *shape, uint32_t sequences,
                          struct engine_attention **out, struct error err)
{
    struct engine_attention *self = calloc(1, sizeof(*self));
    if (!self)
        return error_set(err, BATON_ENOMEM, "no memory for the engine's attention");
    uint32_t width = shape->heads * shape->group * shape->dim;
    self->shape = shape;
    self->sequences = calloc(sequences, sizeof(*self->sequences));
    self->q = calloc(sequences, width * sizeof(float));
    self->out = (struct device_activations){.rows = sequences,
                                            .columns = width,
                                            .values = calloc(sequences, width * sizeof(float)),
                                            .values_wanted = true};
    self->rows = (struct device_rows){
        .count = sequences, .sequence_count = sequences, .sequences = self->sequences};
    int rc = BATON_OK;
    if (!self->sequences || !self->q || !self->out.values)
        rc = error_set(err, BATON_ENOMEM, "no memory for %u sequences", sequences);
    else
        rc = device_open(self, err);
    if (rc) {
        engine_attention_close(self);
        return rc;
    }
    for (uint64_t i = 0; i < (uint64_t)sequences * width; i++)
        self->q[i] = (float)(i * 2654435761u % 2000) / 8000 - 0.125f;
    *out = self;
    return BATON_OK;
}

void engine_attention_close(struct engine_attention *self)
{
    if (!self)
        return;
    if (self->device)
        self->device->ops->close(self->device);
    thread_pool_close(self->threads);
    free(self->sequences);
    free(self->q);
    free(self->out.values);
    free(self);
}

/* One token for every sequence through all layers; the sum of the results' bits. */
uint64_t engine_attention_step(struct engine_attention *self, const baton_layout *order,
                               uint64_t base_bytes, uint8_t *memory, const int32_t *pages)
{
    const struct order_shape *shape = self->shape;
    const struct seat seat = {0, 0, 1};
    struct page_layout layout = {
        .shape = {PAGE_ELEMENT_F16, shape->layers, 2, shape->heads, shape->dim, ORDER_TOKENS},
        .head_bytes = order->head_bytes,
        .page_stride = order->page_stride,
        .layer_stride = base_bytes ? base_bytes : order->layer_stride,
        .kv_stride = base_bytes ? base_bytes * shape->layers : order->kv_stride,
        .head_stride = order->head_stride,
        .token_stride = order->token_stride,
    };
    const struct device_heads heads = {.q_heads = shape->heads * shape->group,
                                       .kv_heads = shape->heads,
                                       .head_dim = shape->dim,
                                       .layout = &layout,
                                       .pages = memory};
    uint64_t bits = 0;
    for (uint32_t i = 0; i < self->rows.count; i++)
        self->sequences[i] =
            (struct device_sequence){.first_row = i,
                                     .row_count = 1,
                                     .position = ORDER_SEQUENCE_PAGES * ORDER_TOKENS - 1,
                                     .pages = pages + (uint64_t)i * ORDER_SEQUENCE_PAGES};
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        self->device->ops->attend(self->device, seat, &self->rows, &heads, layer, self->q,
                                  &self->out);
        for (uint32_t i = 0; i < self->rows.count; i++) {
            uint32_t word;
            memcpy(&word, &self->out.values[(uint64_t)i * self->out.columns], sizeof(word));
            bits = bits * 31 + word;
        }
    }
    return bits;
}
