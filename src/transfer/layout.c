/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a region's layout, our own or a peer's, so that everything after it may do plain
 * arithmetic. A layout is a sum of index times stride; it is sound when
 *
 *   - sorted by stride, each dimension steps over all that the ones below it span (then no two
 *     indices name the same byte), and the page steps over all of them;
 *   - the last page ends inside its base, and no product or sum on the way overflows.
 *
 * The first rule refuses a few interleavings that would not overlap either; no engine has such.
 * Bases may overlap one another: K and V can be two views of one buffer. What a base's memory
 * really is, nobody can check here: the owner says so, and only the owner's memory is at risk. */
#include "layout.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A dimension inside one page of one base. */
struct dimension {
    const char *name;
    uint32_t count;
    uint64_t stride;
};

#define DIMENSIONS_MAX 4

static bool multiply(uint64_t *value, uint64_t by)
{
    return !__builtin_mul_overflow(*value, by, value);
}

/* ---- the usual orders -------------------------------------------------------------------- */

/* Gives each stride in turn, innermost first, the bytes of all that lie inside it. */
struct nest {
    uint64_t bytes;
    bool fits;
};

static uint64_t nest_add(struct nest *nest, uint32_t count)
{
    uint64_t stride = nest->bytes;
    nest->fits &= multiply(&nest->bytes, count);
    return stride;
}

int baton_layout_fill(baton_layout *layout, int order, uint64_t *item_bytes)
{
    if (!layout || layout->struct_size < sizeof(*layout))
        return BATON_EINVAL;
    baton_layout filled = *layout;
    if (!filled.pages || !filled.tokens_per_page || !filled.layers || !filled.kv ||
        !filled.heads || !filled.head_bytes)
        return BATON_EINVAL;

    struct nest nest = {filled.head_bytes, true};
    filled.layer_stride = filled.kv_stride = 0;
    switch (order) {
    case BATON_ORDER_LAYER_MAJOR:
        filled.token_stride = nest_add(&nest, filled.tokens_per_page);
        filled.head_stride = nest_add(&nest, filled.heads);
        filled.kv_stride = nest_add(&nest, filled.kv);
        filled.layer_stride = nest_add(&nest, filled.layers);
        break;
    case BATON_ORDER_HEAD_MAJOR:
        filled.token_stride = nest_add(&nest, filled.tokens_per_page);
        filled.kv_stride = nest_add(&nest, filled.kv);
        filled.layer_stride = nest_add(&nest, filled.layers);
        filled.head_stride = nest_add(&nest, filled.heads);
        break;
    case BATON_ORDER_PER_LAYER:
        filled.token_stride = nest_add(&nest, filled.tokens_per_page);
        filled.head_stride = nest_add(&nest, filled.heads);
        break;
    case BATON_ORDER_TOKEN_MAJOR:
        filled.head_stride = nest_add(&nest, filled.heads);
        filled.token_stride = nest_add(&nest, filled.tokens_per_page);
        break;
    default: return BATON_EINVAL;
    }
    filled.page_stride = nest_add(&nest, filled.pages);
    if (!nest.fits)
        return BATON_EINVAL;
    *layout = filled;
    if (item_bytes)
        *item_bytes = filled.page_stride;
    return BATON_OK;
}

/* ---- checks ------------------------------------------------------------------------------ */

static int check_range(const char *name, uint64_t value, uint64_t least, uint64_t most,
                       struct error err)
{
    if (value >= least && value <= most)
        return BATON_OK;
    return error_set(err, BATON_EINVAL, "layout: %s is %llu, must be %llu to %llu", name,
                     (unsigned long long)value, (unsigned long long)least,
                     (unsigned long long)most);
}

static int check_common(const struct layout *layout, struct error err)
{
    int rc;
    if ((rc = check_range("memory", layout->memory, 0, BATON_MEMORY_CUDA, err)) ||
        (rc = check_range("dtype", layout->dtype, 0, BATON_DTYPE_U64, err)) ||
        (rc = check_range("pages", layout->pages, 1, LAYOUT_PAGES_MAX, err)) ||
        (rc = check_range("layers", layout->layers, 1, LAYOUT_LAYERS_MAX, err)) ||
        (rc = check_range("first_layer", layout->first_layer, 0, UINT32_MAX - layout->layers,
                          err)) ||
        (rc = check_range("base_count", layout->base_count, 1, LAYOUT_BASES_MAX, err)))
        return rc;
    if (!layout->bases)
        return error_set(err, BATON_EINVAL, "layout: bases is NULL but base_count is %u",
                         layout->base_count);
    return BATON_OK;
}

/* The counts of a layout that is not opaque. */
static int check_shape(const struct layout *layout, struct error err)
{
    int rc;
    if ((rc = check_range("tokens_per_page", layout->tokens_per_page, 1, LAYOUT_TOKENS_MAX,
                          err)) ||
        (rc = check_range("kv", layout->kv, 1, 2, err)) ||
        (rc = check_range("heads", layout->heads, 1, UINT32_MAX, err)))
        return rc;
    if (layout->heads > layout->total_heads ||
        layout->first_head > layout->total_heads - layout->heads)
        return error_set(err, BATON_EINVAL,
                         "layout: %u heads from head %u on do not fit in total_heads %u",
                         layout->heads, layout->first_head, layout->total_heads);
    if (layout->base_count != 1 && layout->base_count != layout->layers &&
        layout->base_count != layout->layers * layout->kv)
        return error_set(err, BATON_EINVAL,
                         "layout: base_count is %u, must be 1, %u (layers) or %u (layers * kv)",
                         layout->base_count, layout->layers, layout->layers * layout->kv);
    return BATON_OK;
}

static void sort_by_stride(struct dimension *dimensions, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && dimensions[j].stride < dimensions[j - 1].stride; j--) {
            struct dimension swap = dimensions[j];
            dimensions[j] = dimensions[j - 1];
            dimensions[j - 1] = swap;
        }
}

/* From the first to the last byte of one page in one base. Refuses dimensions that overlap. */
static int page_extent(const struct layout *layout, uint64_t *out, struct error err)
{
    struct dimension dimensions[DIMENSIONS_MAX] = {
        {"token_stride", layout->tokens_per_page, layout->token_stride},
        {"head_stride", layout->heads, layout->head_stride},
        {"kv_stride", layout_splits_kv(layout) ? 1 : layout->kv, layout->kv_stride},
        {"layer_stride", layout_splits_layers(layout) ? 1 : layout->layers,
         layout->layer_stride},
    };
    sort_by_stride(dimensions, DIMENSIONS_MAX);

    uint64_t extent = layout->head_bytes;
    for (uint32_t i = 0; i < DIMENSIONS_MAX; i++) {
        const struct dimension *dimension = &dimensions[i];
        if (dimension->count == 1)
            continue;
        if (dimension->stride < extent)
            return error_set(err, BATON_EINVAL,
                             "layout: %s is %llu, but what lies inside it spans %llu bytes",
                             dimension->name, (unsigned long long)dimension->stride,
                             (unsigned long long)extent);
        uint64_t span = dimension->stride;
        if (!multiply(&span, dimension->count - 1) ||
            __builtin_add_overflow(extent, span, &extent))
            return error_set(err, BATON_EINVAL, "layout: %s %llu times %u overflows 64 bits",
                             dimension->name, (unsigned long long)dimension->stride,
                             dimension->count);
    }
    *out = extent;
    return BATON_OK;
}

/* The pages of one base, each item_bytes long, lie inside it. */
static int check_base(const struct layout *layout, uint32_t index, struct error err)
{
    const struct layout_base *base = &layout->bases[index];
    uint64_t stride = layout_page_stride(layout, index);
    uint64_t end = layout->pages - 1, unused;
    if (stride < base->item_bytes)
        return error_set(
            err, BATON_EINVAL, "layout: page_stride is %llu, but item_bytes of base %u is %llu",
            (unsigned long long)stride, index, (unsigned long long)base->item_bytes);
    if (!multiply(&end, stride) || __builtin_add_overflow(end, base->item_bytes, &end) ||
        __builtin_add_overflow(base->address, base->bytes, &unused))
        return error_set(err, BATON_EINVAL, "layout: the addresses of base %u overflow 64 bits",
                         index);
    if (end > base->bytes)
        return error_set(
            err, BATON_EINVAL,
            "layout: %u pages with a stride of %llu bytes end at byte %llu of base "
            "%u, which has %llu",
            layout->pages, (unsigned long long)stride, (unsigned long long)end, index,
            (unsigned long long)base->bytes);
    return BATON_OK;
}

static int check_opaque(const struct layout *layout, struct error err)
{
    if (layout->tokens_per_page != 1 || layout->kv != 1 || layout->heads != 1 ||
        layout->first_head != 0 || layout->total_heads != 1 ||
        layout->layers != layout->base_count || layout->page_stride || layout->layer_stride ||
        layout->kv_stride || layout->head_stride || layout->token_stride)
        return error_set(
            err, BATON_EINVAL,
            "layout: opaque pages (head_bytes 0) have one token, one head, a layer "
            "per base and no strides");
    for (uint32_t i = 0; i < layout->base_count; i++) {
        if (!layout->bases[i].item_bytes)
            return error_set(err, BATON_EINVAL,
                             "layout: item_bytes of base %u is 0; opaque pages need it", i);
        int rc = check_base(layout, i, err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

static int check_strided(const struct layout *layout, struct error err)
{
    uint64_t extent;
    int rc;
    if ((rc = check_shape(layout, err)) || (rc = page_extent(layout, &extent, err)))
        return rc;
    if (layout->page_stride < extent)
        return error_set(err, BATON_EINVAL,
                         "layout: page_stride is %llu, but a page spans %llu",
                         (unsigned long long)layout->page_stride, (unsigned long long)extent);
    for (uint32_t i = 0; i < layout->base_count; i++) {
        if (layout->bases[i].item_bytes < extent)
            return error_set(
                err, BATON_EINVAL,
                "layout: item_bytes of base %u is %llu, but a page spans %llu bytes", i,
                (unsigned long long)layout->bases[i].item_bytes, (unsigned long long)extent);
        if ((rc = check_base(layout, i, err)))
            return rc;
    }
    return BATON_OK;
}

int layout_check(const struct layout *layout, struct error err)
{
    int rc = check_common(layout, err);
    if (rc)
        return rc;
    return layout_is_opaque(layout) ? check_opaque(layout, err) : check_strided(layout, err);
}

int layout_check_pages(const struct layout *layout, const int32_t *pages, uint32_t begin,
                       uint32_t end, const char *whose, struct error err)
{
    if (begin < end && !pages)
        return error_set(err, BATON_EINVAL, "%s list of pages is NULL", whose);
    for (uint32_t i = begin; i < end; i++)
        if ((uint32_t)pages[i] >= layout->pages) /* also what is negative */
            return error_set(
                err, BATON_EINVAL,
                "page %d at position %u of %s list is outside the region, which has "
                "%u pages",
                pages[i], i, whose, layout->pages);
    return BATON_OK;
}

/* ---- from the public struct -------------------------------------------------------------- */

static int bases_copy(const baton_layout *from, struct layout *out, struct error err)
{
    struct layout_base *bases = calloc(from->base_count, sizeof(*bases));
    if (!bases)
        return error_set(err, BATON_ENOMEM, "layout: no memory for %u bases", from->base_count);
    out->bases = bases;
    for (uint32_t i = 0; i < from->base_count; i++) {
        if (!from->bases[i].address)
            return error_set(err, BATON_EINVAL, "layout: the address of base %u is NULL", i);
        bases[i] = (struct layout_base){(uint64_t)(uintptr_t)from->bases[i].address,
                                        from->bases[i].bytes, from->bases[i].item_bytes};
    }
    return BATON_OK;
}

/* Bring opaque pages into the form in which the formula holds for them. */
static int opaque_normalise(const baton_layout *from, struct layout *out, struct error err)
{
    if (from->tokens_per_page || from->heads || from->head_bytes)
        return error_set(
            err, BATON_EINVAL,
            "layout: tokens_per_page %u, heads %u, head_bytes %u: either all are 0 "
            "(opaque pages) or none",
            from->tokens_per_page, from->heads, from->head_bytes);
    if (from->layers && from->layers != from->base_count)
        return error_set(err, BATON_EINVAL,
                         "layout: opaque pages have one layer per base, but layers is %u and "
                         "base_count %u",
                         from->layers, from->base_count);
    for (uint32_t i = 0; i < out->base_count; i++)
        if (from->page_stride && from->page_stride != out->bases[i].item_bytes)
            return error_set(
                err, BATON_EINVAL,
                "layout: opaque pages follow each other at item_bytes (%llu in base "
                "%u), but page_stride is %llu; leave it 0",
                (unsigned long long)out->bases[i].item_bytes, i,
                (unsigned long long)from->page_stride);
    out->tokens_per_page = out->kv = out->heads = out->total_heads = 1;
    out->first_head = 0;
    out->layers = out->base_count;
    out->page_stride = out->layer_stride = out->kv_stride = 0;
    out->head_stride = out->token_stride = 0;
    return BATON_OK;
}

/* What the caller may leave out: item_bytes, and the stride of a single page. */
static int strided_normalise(struct layout *out, struct error err)
{
    uint64_t extent;
    int rc;
    if ((rc = check_common(out, err)) || (rc = check_shape(out, err)) ||
        (rc = page_extent(out, &extent, err)))
        return rc;
    for (uint32_t i = 0; i < out->base_count; i++) {
        if (!out->bases[i].item_bytes)
            out->bases[i].item_bytes = extent;
        if (out->pages == 1 && out->page_stride < out->bases[i].item_bytes)
            out->page_stride = out->bases[i].item_bytes;
    }
    return BATON_OK;
}

int layout_from_public(const baton_layout *from, struct layout *out, struct error err)
{
    if (!from || from->struct_size < sizeof(*from))
        return error_set(err, BATON_EINVAL,
                         "layout: struct_size is %u, must be %zu; start with BATON_LAYOUT_INIT",
                         from ? from->struct_size : 0, sizeof(*from));
    struct layout layout = {
        .memory = from->memory,
        .dtype = from->dtype,
        .pages = from->pages,
        .tokens_per_page = from->tokens_per_page,
        .layers = from->layers,
        .first_layer = from->first_layer,
        .kv = from->kv,
        .heads = from->heads,
        .first_head = from->first_head,
        .total_heads = from->total_heads,
        .head_bytes = from->head_bytes,
        .page_stride = from->page_stride,
        .layer_stride = from->layer_stride,
        .kv_stride = from->kv_stride,
        .head_stride = from->head_stride,
        .token_stride = from->token_stride,
        .base_count = from->base_count,
    };
    int rc = check_range("base_count", from->base_count, 1, LAYOUT_BASES_MAX, err);
    if (rc)
        return rc;
    if (!from->bases)
        return error_set(err, BATON_EINVAL, "layout: bases is NULL but base_count is %u",
                         from->base_count);
    bool opaque = !from->tokens_per_page || !from->heads || !from->head_bytes;
    if ((rc = bases_copy(from, &layout, err)) ||
        (rc =
             opaque ? opaque_normalise(from, &layout, err) : strided_normalise(&layout, err)) ||
        (rc = layout_check(&layout, err))) {
        layout_free(&layout);
        return rc;
    }
    *out = layout;
    return BATON_OK;
}

void layout_free(struct layout *layout)
{
    free(layout->bases);
    layout->bases = NULL;
    layout->base_count = 0;
}

/* ---- two layouts ------------------------------------------------------------------------- */

static int match_equal(const char *name, uint32_t src, uint32_t dst, struct error err)
{
    if (src == dst)
        return BATON_OK;
    return error_set(err, BATON_ELAYOUT,
                     "layouts differ: %s is %u at the sender and %u at the receiver", name, src,
                     dst);
}

static int match_items(const struct layout *src, const struct layout *dst, struct error err)
{
    int rc;
    if ((rc = match_equal("base_count of opaque pages", src->base_count, dst->base_count,
                          err)) ||
        (rc = match_equal("first_layer of opaque pages", src->first_layer, dst->first_layer,
                          err)))
        return rc;
    for (uint32_t i = 0; i < src->base_count; i++)
        if (src->bases[i].item_bytes != dst->bases[i].item_bytes)
            return error_set(err, BATON_ELAYOUT,
                             "layouts differ: item_bytes of base %u is %llu at the sender and "
                             "%llu at the receiver; opaque pages must be equal",
                             i, (unsigned long long)src->bases[i].item_bytes,
                             (unsigned long long)dst->bases[i].item_bytes);
    return BATON_OK;
}

static int match_strided(const struct layout *src, const struct layout *dst, struct error err)
{
    int rc;
    if ((rc = match_equal("head_bytes", src->head_bytes, dst->head_bytes, err)) ||
        (rc = match_equal("kv", src->kv, dst->kv, err)) ||
        (rc = match_equal("total_heads", src->total_heads, dst->total_heads, err)))
        return rc;
    if (src->tokens_per_page % dst->tokens_per_page &&
        dst->tokens_per_page % src->tokens_per_page)
        return error_set(err, BATON_ELAYOUT,
                         "layouts differ: tokens_per_page is %u at the sender and %u at the "
                         "receiver; one must divide the other",
                         src->tokens_per_page, dst->tokens_per_page);
    if (src->first_layer + src->layers <= dst->first_layer ||
        dst->first_layer + dst->layers <= src->first_layer)
        return error_set(err, BATON_ELAYOUT,
                         "layouts have no layer in common: %u to %u at the sender, %u to %u at "
                         "the receiver",
                         src->first_layer, src->first_layer + src->layers - 1, dst->first_layer,
                         dst->first_layer + dst->layers - 1);
    return BATON_OK;
}

int layout_match(const struct layout *src, const struct layout *dst, struct error err)
{
    if (src->memory > BATON_MEMORY_CUDA || dst->memory > BATON_MEMORY_CUDA)
        return error_set(err, BATON_ELAYOUT,
                         "unknown kind of memory: %u at the sender, %u at the receiver",
                         src->memory, dst->memory);
    int rc = match_equal("dtype", src->dtype, dst->dtype, err);
    if (rc)
        return rc;
    if (layout_is_opaque(src) != layout_is_opaque(dst))
        return error_set(err, BATON_ELAYOUT, "layouts differ: pages are opaque only at the %s",
                         layout_is_opaque(src) ? "sender" : "receiver");
    return layout_is_opaque(src) ? match_items(src, dst, err) : match_strided(src, dst, err);
}
