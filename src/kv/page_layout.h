/* SPDX-License-Identifier: Apache-2.0 */
/* Where the numbers of a KV cache lie inside its pages, said by five strides, so that kernels and
 * copies never know an order by heart. A page is one contiguous run of bytes, and pages follow each
 * other without a gap: neighbouring pages are one larger run, which is what makes a transfer of
 * many pages a handful of copies.
 *
 *   by layer   [page][layer][k|v][head][token][dim]   what attention of one layer reads is close
 *   by head    [page][head][layer][k|v][token][dim]   what another rank's heads need is one run
 *   by pair    [page][layer][head][k|v][token][dim]   a head's K and V are together: what attention
 *                                                     reads is one run, and the default
 *
 *   by layer, 2 layers, 2 heads:
 *   page 0                                                          page 1
 *   | layer 0                       | layer 1                      || layer 0 ...
 *   | K             | V             | K             | V            ||
 *   | head0 | head1 | head0 | head1 | head0 | head1 | head0 | head1||
 *
 * In all of them a head's tokens of one page are consecutive: token_stride is head_bytes. The fields have
 * the names and meanings of baton_layout in baton.h, and can be copied there one by one. */
#ifndef BATON_KV_PAGE_LAYOUT_H
#define BATON_KV_PAGE_LAYOUT_H

#include "base/error.h"

enum page_order {
    PAGE_ORDER_BY_LAYER = 0,
    PAGE_ORDER_BY_HEAD = 1,
    PAGE_ORDER_BY_PAIR = 2,
};
#define PAGE_ORDER_DEFAULT PAGE_ORDER_BY_PAIR /* measured: docs/rdma.md, "Which page order" */

/* A quantised type would be one more row of the table in page_layout.c: so many elements in a
 * block of so many bytes. */
enum page_element {
    PAGE_ELEMENT_F32 = 0,
    PAGE_ELEMENT_F16 = 1,
    PAGE_ELEMENT_BF16 = 2,
};

struct page_shape {
    enum page_element element;
    uint32_t layers;          /* held by this rank */
    uint32_t kv;              /* 2: K and V; 1: one latent for both */
    uint32_t heads;           /* KV heads held by this rank */
    uint32_t head_dim;        /* elements in one head of one token */
    uint32_t tokens_per_page; /* any number from 1 on; 16 is usual */
};

struct page_layout {
    struct page_shape shape;
    enum page_order order;
    uint32_t head_bytes;  /* one head of one token */
    uint64_t page_stride; /* also the bytes of a page */
    uint64_t layer_stride;
    uint64_t kv_stride;
    uint64_t head_stride;
    uint64_t token_stride;
};

/* EINVAL for a shape that has no bytes, whose head is not whole blocks of its element type, or
 * whose page would be larger than PAGE_BYTES_MAX. */
#define PAGE_BYTES_MAX (1ull << 40)
int page_layout_make(const struct page_shape *shape, enum page_order order,
                     struct page_layout *out, struct error err);

/* "f16", or NULL for a number that is no element type; and back, EINVAL for an unknown name. */
const char *page_element_name(enum page_element element);
int page_element_parse(const char *name, enum page_element *out, struct error err);

/* Bytes from the pool's base to head_bytes bytes of one token. This is the only formula. */
static inline uint64_t page_layout_offset(const struct page_layout *layout, int32_t page,
                                          uint32_t layer, uint32_t kv, uint32_t head,
                                          uint32_t token)
{
    return (uint64_t)page * layout->page_stride + layer * layout->layer_stride +
           kv * layout->kv_stride + head * layout->head_stride + token * layout->token_stride;
}

static inline void *page_layout_address(const struct page_layout *layout, void *base,
                                        int32_t page, uint32_t layer, uint32_t kv,
                                        uint32_t head, uint32_t token)
{
    return (char *)base + page_layout_offset(layout, page, layer, kv, head, token);
}

/* Pages that hold `tokens` tokens, the last one perhaps partly. */
static inline uint32_t page_layout_pages(const struct page_layout *layout, uint64_t tokens)
{
    uint32_t per_page = layout->shape.tokens_per_page;
    return (uint32_t)((tokens + per_page - 1) / per_page);
}

#endif
