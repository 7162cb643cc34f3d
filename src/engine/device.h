/* SPDX-License-Identifier: Apache-2.0 */
/* What forward.c needs of the machine that computes: a dozen operations, each a whole piece of the
 * model, on memory that only the device looks into. cpu/ is the device that is always there, and
 * with the portable kernels the one that all others are compared with.
 *
 * Who calls. A rank's crew, all its members at once with the same arguments but their own seat,
 * in the same order. An operation divides its work by the seat; its results are there for the
 * others after device->sync. A device that has its own parallelism (a GPU) has crews of one.
 *
 * The order of sums is part of every operation (design: the same tokens, always): a row depends on
 * its own inputs only, and on nothing that the arguments leave open. Where a sum runs over heads or
 * over the FFN it is made of *units*, the part of one KV head or of some of its query heads: a
 * unit's sum is ascending, and the units are added in ascending order, whichever rank computed
 * them. */
#ifndef BATON_ENGINE_DEVICE_H
#define BATON_ENGINE_DEVICE_H

#include "kv/page_layout.h"
#include "model/weights.h"

#include <stdbool.h>

struct device;
struct device_weight;      /* a matrix, packed as the device likes it */
struct device_activations; /* rows that go into a matrix, rounded as the matrix wants them */

/* One thread of one rank. */
struct seat {
    uint32_t rank;
    uint32_t index;   /* in the rank's crew */
    uint32_t members; /* of the crew */
};

struct range {
    uint32_t begin, end;
};

/* One sequence's part of a step. Its rows are consecutive, and so are their positions. */
struct device_sequence {
    uint32_t first_row, row_count;
    uint32_t position;    /* of the first row */
    const int32_t *pages; /* position p is in pages[p / tokens_per_page] */
};

struct device_rows {
    uint32_t count;
    uint32_t sequence_count;
    const struct device_sequence *sequences;
    const float *cosine, *sine; /* [row][head_dim / 2] */
};

/* A rank's heads, and where it keeps their K and V. */
struct device_heads {
    uint32_t q_heads, kv_heads, head_dim;
    bool rotate_pairs;            /* (2i, 2i+1); else (i, i + head_dim / 2) */
    const float *q_norm, *k_norm; /* head_dim each; NULL: none */
    float epsilon;
    const struct page_layout *layout;
    void *pages;
};

/* Outputs [outputs.begin, outputs.end) of a matrix; output n goes to out[row * stride + n -
 * outputs.begin]. */
struct device_projection {
    const struct device_weight *weight;
    struct range outputs; /* begin: a multiple of 16 */
    const float *bias;    /* by output of the matrix; NULL: none */
    float *out;
    uint32_t stride;
};

/* A product whose sum runs over units. Unit u's inputs are unit_inputs[u] .. unit_inputs[u + 1] of
 * the matrix; the activations hold those of units.begin .. units.end, and nothing else. */
#define DEVICE_UNITS_MAX 256
struct device_unit_product {
    const struct device_weight *weight;
    const uint32_t *unit_inputs; /* multiples of 32, but for the last */
    struct range units;
};

struct device_ops {
    const char *name;
    void (*close)(struct device *device);

    /* ---- memory; one caller ----
     * Weights are packed when they are loaded, by all threads of the machine; the source is not
     * needed afterwards. */
    int (*weight_load)(struct device *device, const struct weight *source,
                       struct device_weight **out, struct error err);
    void (*weight_free)(struct device *device, struct device_weight *weight); /* NULL is fine */

    /* Rows for the `weight_count` matrices of `columns` inputs each (or a range of them). */
    int (*activations_open)(struct device *device, uint32_t rows, uint32_t columns,
                            const struct device_weight *const *weights, uint32_t weight_count,
                            struct device_activations **out, struct error err);
    void (*activations_close)(struct device *device, struct device_activations *activations);

    /* Memory of the device; zeroed. */
    void *(*memory_open)(struct device *device, size_t bytes);
    void (*memory_close)(struct device *device, void *memory);

    /* ---- computing; every member of the crew ---- */
    void (*sync)(struct device *device, struct seat seat);
    void (*sync_ranks)(struct device *device, struct seat seat); /* the crews of all ranks */

    /* x[row] = the embedding's row of tokens[row] */
    void (*embed)(struct device *device, struct seat seat,
                  const struct device_weight *embedding, const int32_t *tokens, uint32_t rows,
                  float *x);

    /* out[row] = RMS norm of x[row], or of x[selected[row]] */
    void (*normalise)(struct device *device, struct seat seat, const float *x,
                      const uint32_t *selected, uint32_t rows, const float *weight,
                      float epsilon, struct device_activations *out);

    void (*project)(struct device *device, struct seat seat,
                    const struct device_activations *in, uint32_t rows,
                    const struct device_projection *projections, uint32_t count);

    /* out = silu(gate in) * (up in), for the outputs of the range, which begins at a multiple of
     * 32 and is column 0 of `out` */
    void (*project_gated)(struct device *device, struct seat seat,
                          const struct device_activations *in, uint32_t rows,
                          const struct device_weight *gate, const struct device_weight *up,
                          struct range outputs, struct device_activations *out);

    /* x += the product of all units */
    void (*project_residual)(struct device *device, struct seat seat,
                             const struct device_activations *in, uint32_t rows,
                             const struct device_unit_product *product, float *x);

    /* The same in two halves for ranks that have only some units: first each rank stores its
     * units, partials[unit][row][output], and after a sync of all ranks each adds them up. */
    void (*project_partials)(struct device *device, struct seat seat,
                             const struct device_activations *in, uint32_t rows,
                             const struct device_unit_product *product, float *partials);
    void (*add_partials)(struct device *device, struct seat seat, const float *partials,
                         uint32_t units, uint32_t rows, uint32_t columns, float *x);

    /* Norm and rotation of q (in place) and k; k and v into the pages, rounded to their type. */
    void (*store_kv)(struct device *device, struct seat seat, const struct device_rows *rows,
                     const struct device_heads *heads, uint32_t layer, float *q, float *k,
                     const float *v);

    /* Every row attends to the positions up to its own, all of them read from the pages. */
    void (*attend)(struct device *device, struct seat seat, const struct device_rows *rows,
                   const struct device_heads *heads, uint32_t layer, const float *q,
                   struct device_activations *out);
};

/* The first member of every device's struct. */
struct device {
    const struct device_ops *ops;
};

#endif
