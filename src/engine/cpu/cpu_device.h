/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: the operations of device.h, divided over the threads of a pool, with the
 * kernels of one table. The parts are in cpu_matmul.c and cpu_attention.c. */
#ifndef BATON_ENGINE_CPU_DEVICE_H
#define BATON_ENGINE_CPU_DEVICE_H

#include "../device.h"
#include "../thread_group.h"
#include "cpu_kernels.h"

struct device_weight {
    struct packed_weight packed;
};

/* Rows as floats, as quants, or as both, whatever the matrices want. */
struct device_activations {
    uint32_t rows, columns;
    float *values;              /* [row][columns] */
    struct quant_group *groups; /* [row / GROUP_ROWS][columns / 32] */
    bool values_wanted;         /* by a matrix; `values` may be there as working memory only */
};

#define MATMUL_ROWS 64    /* rows of one panel at a time: their sums stay in the cache */
#define ATTENTION_ROWS 32 /* queries of one head that share a tile of keys and values */

/* What a thread needs for itself. */
struct cpu_scratch {
    struct ready_block *ready;              /* four panels */
    panel_sums *sums;                       /* [8][MATMUL_ROWS] */
    float *tile;                            /* keys and then values of a tile */
    float *turned;                          /* the keys as the kernels want them */
    const uint16_t **places;                /* or where they are in their pages */
    uint16_t *bfloat_tile, *bfloat_queries; /* for attention with bfloats */
    uint32_t *seen;                         /* by each query of a tile */
    const float **queries;                  /* of an attention task */
    struct attention_state state;           /* and theirs */
    float *rows;                            /* a group of the widest */
};

struct cpu_device {
    struct device base;
    const struct cpu_kernels *kernels;
    struct thread_pool *pool;
    struct weight_arena weights;
    uint32_t rank_count, members; /* of each crew */
    struct barrier *crews;        /* [rank] */
    struct barrier everyone;
    /* Of each rank: one row's tiles, for a crew that divides them, [tile][query head]. */
    struct attention_state *tiles;
    struct cpu_scratch *scratch; /* [rank * members + index] */
};

/* For models no wider than `config`. `pool` has rank_count * members threads and outlives the
 * device. */
int cpu_device_open(const struct model_config *config, const struct cpu_kernels *kernels,
                    struct thread_pool *pool, uint32_t rank_count, uint32_t members,
                    struct device **out, struct error err);

/* ---- for the parts of the device ---- */

static inline struct cpu_device *cpu_device_of(struct device *device)
{
    return (struct cpu_device *)device;
}

static inline struct cpu_scratch *cpu_scratch_of(struct cpu_device *device, struct seat seat)
{
    return &device->scratch[seat.rank * device->members + seat.index];
}

/* Whether so few rows meet packed weights. */
static inline bool cpu_rows_are_few(const struct cpu_device *device, uint32_t rows)
{
    return rows <= device->kernels->direct_rows;
}

/* Takes one of `count` things that are dealt out, one after another, to whoever is free: cores are not
 * equally fast at all times. One operation between two meetings of the crew does so. False: nothing is
 * left. */
static inline bool cpu_take(struct cpu_device *device, struct seat seat, uint32_t count,
                            uint32_t *index)
{
    *index = barrier_take(&device->crews[seat.rank]);
    return *index < count;
}

/* What a member has of `count` things: with few rows a part of its own, whose weights follow each other
 * in memory; those of many rows are dealt out. */
struct cpu_share {
    struct span own;
    uint32_t dealt; /* things, or none */
};

static inline struct cpu_share cpu_share_of(const struct cpu_device *device, struct seat seat,
                                            uint32_t rows, uint32_t count)
{
    if (!cpu_rows_are_few(device, rows))
        return (struct cpu_share){.dealt = count};
    return (struct cpu_share){.own = span_of(count, seat.index, seat.members)};
}

static inline bool cpu_share_next(struct cpu_device *device, struct seat seat,
                                  struct cpu_share *share, uint32_t *index)
{
    if (share->dealt)
        return cpu_take(device, seat, share->dealt, index);
    *index = share->own.begin++;
    return *index < share->own.end;
}

/* Puts a row of floats into the form that the matrices want, if there are `rows` rows in all: columns
 * [begin, end) of row `row`, begin a multiple of 32, end one too or the last. */
void cpu_activations_set(const struct cpu_device *device, struct device_activations *to,
                         uint32_t rows, uint32_t row, uint32_t begin, uint32_t end,
                         const float *values);

/* `count` rows of them, `stride` apart. */
void cpu_activations_set_rows(const struct cpu_device *device, struct device_activations *to,
                              uint32_t rows, uint32_t row, uint32_t count, uint32_t begin,
                              uint32_t end, const float *values, uint32_t stride);

/* Whether a whole group of rows can be set by the table's quantise_rows. */
static inline bool cpu_sets_groups(const struct cpu_device *device,
                                   const struct device_activations *to)
{
    return device->kernels->quantise_rows && to->groups && !to->values_wanted;
}

static inline struct quant_group *cpu_group_of(const struct device_activations *activations,
                                               uint32_t row, uint32_t column)
{
    uint64_t blocks = activations->columns / PACKED_BLOCK;
    return activations->groups + row / GROUP_ROWS * blocks + column / PACKED_BLOCK;
}

static inline uint32_t cpu_groups_in(uint32_t rows)
{
    return (rows + GROUP_ROWS - 1) / GROUP_ROWS;
}

/* Rows of group `group`. */
static inline struct span cpu_group_rows(uint32_t group, uint32_t rows)
{
    uint32_t begin = group * GROUP_ROWS;
    return (struct span){begin, rows - begin < GROUP_ROWS ? rows : begin + GROUP_ROWS};
}

void cpu_project(struct device *device, struct seat seat, const struct device_activations *in,
                 uint32_t rows, const struct device_projection *projections, uint32_t count);
void cpu_project_gated(struct device *device, struct seat seat,
                       const struct device_activations *in, uint32_t rows,
                       const struct device_weight *gate, const struct device_weight *up,
                       struct range outputs, struct device_activations *out);
void cpu_project_residual(struct device *device, struct seat seat,
                          const struct device_activations *in, uint32_t rows,
                          const struct device_unit_product *product, float *x);
void cpu_project_partials(struct device *device, struct seat seat,
                          const struct device_activations *in, uint32_t rows,
                          const struct device_unit_product *product, float *partials);

void cpu_store_kv(struct device *device, struct seat seat, const struct device_rows *rows,
                  const struct device_heads *heads, uint32_t layer, float *q, float *k,
                  const float *v);
void cpu_attend(struct device *device, struct seat seat, const struct device_rows *rows,
                const struct device_heads *heads, uint32_t layer, const float *q,
                struct device_activations *out);

#endif
