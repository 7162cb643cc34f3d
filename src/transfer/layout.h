/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a region as the library keeps it: owned, checked, and the same struct for our own
 * memory and for a peer's (where the addresses are the peer's and only mean something there). */
#ifndef BATON_TRANSFER_LAYOUT_H
#define BATON_TRANSFER_LAYOUT_H

#include "base/error.h"

#define LAYOUT_BASES_MAX 4096
#define LAYOUT_LAYERS_MAX LAYOUT_BASES_MAX
#define LAYOUT_PAGES_MAX (1u << 28)
#define LAYOUT_TOKENS_MAX (1u << 20) /* in one page */

struct layout_base {
    uint64_t address; /* in the owner's address space */
    uint64_t bytes;
    uint64_t item_bytes;
};

/* Field for field baton_layout, see there. Opaque layouts are normalised so that the formula
 * holds for them too, with tokens_per_page = heads = total_heads = kv = 1, layers = base_count;
 * item_bytes then differ from base to base and head_bytes is 0 ("the base's item_bytes"). */
struct layout {
    uint32_t memory;
    uint32_t dtype;
    uint32_t pages;
    uint32_t tokens_per_page;
    uint32_t layers;
    uint32_t first_layer;
    uint32_t kv;
    uint32_t heads;
    uint32_t first_head;
    uint32_t total_heads;
    uint32_t head_bytes;  /* 0: opaque */
    uint64_t page_stride; /* 0 for opaque: each base's item_bytes */
    uint64_t layer_stride;
    uint64_t kv_stride;
    uint64_t head_stride;
    uint64_t token_stride;
    uint32_t base_count;
    struct layout_base *bases; /* owned */
};

/* Copies and checks. Outputs only on success; layout_free releases. item_bytes of 0 are filled in
 * with what one page takes. Errors: EINVAL with a sentence, ENOMEM. */
int layout_from_public(const baton_layout *from, struct layout *out, struct error err);

/* Every byte that the formula can name lies inside its base, dimensions do not overlap each
 * other in a base, nothing overflows. For what came over the wire as well as for our own.
 * EINVAL with a sentence when not. */
int layout_check(const struct layout *layout, struct error err);

/* The pages at positions [begin, end) of a list are the region's. `whose` names the list in the
 * sentence ("the grant's"). EINVAL when not. */
int layout_check_pages(const struct layout *layout, const int32_t *pages, uint32_t begin,
                       uint32_t end, const char *whose, struct error err);
void layout_free(struct layout *layout);

static inline int layout_is_opaque(const struct layout *layout)
{
    return layout->head_bytes == 0;
}

/* Whether layers, or k and v, are told apart by their base rather than by a stride. */
static inline int layout_splits_layers(const struct layout *layout)
{
    return layout->base_count > 1;
}

static inline int layout_splits_kv(const struct layout *layout)
{
    return layout->kv > 1 && layout->base_count > 1 && layout->base_count != layout->layers;
}

/* The base that holds (layer, k|v), and what the two add to the offset in it. */
static inline uint32_t layout_base_of(const struct layout *layout, uint32_t layer, uint32_t kv)
{
    return (layout_splits_layers(layout) ? layer : 0) +
           (layout_splits_kv(layout) ? kv * layout->layers : 0);
}

static inline uint64_t layout_base_offset(const struct layout *layout, uint32_t layer,
                                          uint32_t kv)
{
    return (layout_splits_layers(layout) ? 0 : layer * layout->layer_stride) +
           (layout_splits_kv(layout) ? 0 : kv * layout->kv_stride);
}

static inline uint64_t layout_page_stride(const struct layout *layout, uint32_t base)
{
    return layout->page_stride ? layout->page_stride : layout->bases[base].item_bytes;
}

/* The page that byte `offset` of `base` lies in: pages are the outermost dimension. */
static inline uint64_t layout_page_of(const struct layout *layout, uint32_t base,
                                      uint64_t offset)
{
    return offset / layout_page_stride(layout, base);
}

/* Whether bytes can go from src to dst at all: dtype, head_bytes, kv, total_heads equal, one
 * tokens_per_page divides the other, layers overlap, opaque only with opaque of the same items
 * and the same first layer, memory kinds known. ELAYOUT and a sentence that names both values
 * when not. Heads need not overlap (a dummy rank). */
int layout_match(const struct layout *src, const struct layout *dst, struct error err);

#endif
