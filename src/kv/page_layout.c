/* SPDX-License-Identifier: Apache-2.0 */
/* See page_layout.h. Shapes come from model files and from options, so every product is checked. */
#include "page_layout.h"

#include <string.h>

static const struct element_type {
    const char *name;
    uint32_t block_elements;
    uint32_t block_bytes;
} element_types[] = {
    [PAGE_ELEMENT_F32] = {"f32", 1, 4},
    [PAGE_ELEMENT_F16] = {"f16", 1, 2},
    [PAGE_ELEMENT_BF16] = {"bf16", 1, 2},
};
#define ELEMENT_TYPES (sizeof(element_types) / sizeof(*element_types))

const char *page_element_name(enum page_element element)
{
    return (size_t)element < ELEMENT_TYPES ? element_types[element].name : NULL;
}

int page_element_parse(const char *name, enum page_element *out, struct error err)
{
    for (size_t i = 0; i < ELEMENT_TYPES; i++) {
        if (strcmp(element_types[i].name, name) == 0) {
            *out = (enum page_element)i;
            return BATON_OK;
        }
    }
    return error_set(err, BATON_EINVAL,
                     "unknown element type \"%s\" of the KV cache; use f32, f16 or bf16", name);
}

static int shape_check(const struct page_shape *shape, struct error err)
{
    if (!page_element_name(shape->element))
        return error_set(err, BATON_EINVAL, "KV pages: %u is no element type", shape->element);
    if (!shape->layers || !shape->heads || !shape->head_dim || !shape->tokens_per_page)
        return error_set(err, BATON_EINVAL,
                         "KV pages need at least one of each: %u layers, %u heads, %u elements "
                         "in a head, %u tokens in a page",
                         shape->layers, shape->heads, shape->head_dim, shape->tokens_per_page);
    if (shape->kv != 1 && shape->kv != 2)
        return error_set(err, BATON_EINVAL,
                         "KV pages: kv is %u, must be 2 (K and V) or 1 (one latent)",
                         shape->kv);
    uint32_t block = element_types[shape->element].block_elements;
    if (shape->head_dim % block)
        return error_set(err, BATON_EINVAL,
                         "KV pages: a head of %u elements is not whole blocks of %u (%s)",
                         shape->head_dim, block, page_element_name(shape->element));
    return BATON_OK;
}

/* The next larger stride: `count` times the one inside. Zero marks an overflow and stays zero. */
static uint64_t stride_around(uint64_t inner, uint32_t count)
{
    uint64_t outer;
    if (__builtin_mul_overflow(inner, count, &outer) || outer > PAGE_BYTES_MAX)
        return 0;
    return outer;
}

int page_layout_make(const struct page_shape *shape, enum page_order order,
                     struct page_layout *out, struct error err)
{
    int rc = shape_check(shape, err);
    if (rc)
        return rc;
    if (order != PAGE_ORDER_BY_LAYER && order != PAGE_ORDER_BY_HEAD &&
        order != PAGE_ORDER_BY_PAIR)
        return error_set(err, BATON_EINVAL, "KV pages: %u is no order", order);
    const struct element_type *type = &element_types[shape->element];
    struct page_layout layout = {.shape = *shape, .order = order};
    layout.token_stride =
        stride_around(type->block_bytes, shape->head_dim / type->block_elements);
    uint64_t head_of_page = stride_around(layout.token_stride, shape->tokens_per_page);
    if (order == PAGE_ORDER_BY_LAYER) {
        layout.head_stride = head_of_page;
        layout.kv_stride = stride_around(layout.head_stride, shape->heads);
        layout.layer_stride = stride_around(layout.kv_stride, shape->kv);
        layout.page_stride = stride_around(layout.layer_stride, shape->layers);
    } else if (order == PAGE_ORDER_BY_PAIR) {
        layout.kv_stride = head_of_page;
        layout.head_stride = stride_around(layout.kv_stride, shape->kv);
        layout.layer_stride = stride_around(layout.head_stride, shape->heads);
        layout.page_stride = stride_around(layout.layer_stride, shape->layers);
    } else {
        layout.kv_stride = head_of_page;
        layout.layer_stride = stride_around(layout.kv_stride, shape->kv);
        layout.head_stride = stride_around(layout.layer_stride, shape->layers);
        layout.page_stride = stride_around(layout.head_stride, shape->heads);
    }
    if (!layout.page_stride || layout.token_stride > UINT32_MAX)
        return error_set(
            err, BATON_EINVAL,
            "KV pages of %u layers, %u heads, %u elements and %u tokens are larger "
            "than %llu bytes",
            shape->layers, shape->heads, shape->head_dim, shape->tokens_per_page,
            PAGE_BYTES_MAX);
    layout.head_bytes = (uint32_t)layout.token_stride;
    *out = layout;
    return BATON_OK;
}
