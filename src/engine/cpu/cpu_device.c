/* SPDX-License-Identifier: Apache-2.0 */
/* See cpu_device.h: opening and closing, memory, and the operations that go row by row. */
#include "cpu_device.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory --------------------------------------------------------------------------------- */

static void *memory_zeroed(size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = rounded < bytes ? NULL : aligned_alloc(64, rounded ? rounded : 64);
    if (memory)
        memset(memory, 0, rounded);
    return memory;
}

static void *cpu_memory_open(struct device *device, size_t bytes)
{
    (void)device;
    return memory_zeroed(bytes);
}

static void cpu_memory_close(struct device *device, void *memory)
{
    (void)device;
    free(memory);
}

/* ---- weights -------------------------------------------------------------------------------- */

struct load_job {
    struct packed_weight *weight;
    const struct weight *source;
    uint32_t threads;
};

static void load_share(void *context, uint32_t index)
{
    struct load_job *job = context;
    struct span share = span_of(job->weight->panels, index, job->threads);
    packed_weight_fill(job->weight, job->source, share.begin, share.end);
}

static int cpu_weight_load(struct device *device, const struct weight *source,
                           struct device_weight **out, struct error err)
{
    struct cpu_device *cpu = cpu_device_of(device);
    struct device_weight *weight = calloc(1, sizeof(*weight));
    if (!weight)
        return error_set(err, BATON_ENOMEM, "out of memory for weight %s", source->name);
    int rc = packed_weight_open(&cpu->weights, source, &weight->packed, err);
    if (rc) {
        free(weight);
        return rc;
    }
    struct load_job job = {&weight->packed, source, cpu->rank_count * cpu->members};
    thread_pool_run(cpu->pool, load_share, &job);
    *out = weight;
    return BATON_OK;
}

/* Its memory goes with the device. */
static void cpu_weight_free(struct device *device, struct device_weight *weight)
{
    (void)device;
    free(weight);
}

/* ---- activations ---------------------------------------------------------------------------- */

static void cpu_activations_close(struct device *device, struct device_activations *activations)
{
    (void)device;
    if (!activations)
        return;
    free(activations->groups);
    free(activations->values);
    free(activations);
}

static int cpu_activations_open(struct device *device, uint32_t rows, uint32_t columns,
                                const struct device_weight *const *weights,
                                uint32_t weight_count, struct device_activations **out,
                                struct error err)
{
    bool quants_wanted = false, values_wanted = false;
    for (uint32_t i = 0; i < weight_count; i++) {
        bool quantised = packed_is_quantised(weights[i]->packed.format);
        quants_wanted |= quantised;
        values_wanted |= !quantised;
    }
    struct device_activations *activations = calloc(1, sizeof(*activations));
    if (!activations)
        return error_set(err, BATON_ENOMEM, "out of memory for activations");
    activations->rows = rows;
    activations->columns = columns;
    activations->values_wanted = values_wanted;
    uint64_t groups = (rows + GROUP_ROWS - 1) / GROUP_ROWS;
    if (quants_wanted)
        activations->groups =
            memory_zeroed(groups * (columns / PACKED_BLOCK) * sizeof(struct quant_group));
    /* Quants alone need floats too where a head's part of a row is not whole blocks. */
    activations->values = memory_zeroed((uint64_t)rows * columns * sizeof(float));
    if (!activations->values || (quants_wanted && !activations->groups)) {
        cpu_activations_close(device, activations);
        return error_set(err, BATON_ENOMEM, "out of memory for activations of %ux%u", rows,
                         columns);
    }
    *out = activations;
    return BATON_OK;
}

void cpu_activations_set(const struct cpu_device *device, struct device_activations *to,
                         uint32_t rows, uint32_t row, uint32_t begin, uint32_t end,
                         const float *values)
{
    if (to->values_wanted) {
        float *out = to->values + (uint64_t)row * to->columns + begin;
        if (out != values)
            memcpy(out, values, (end - begin) * sizeof(float));
    }
    if (to->groups)
        device->kernels->quantise(values, (end - begin) / PACKED_BLOCK,
                                  cpu_group_of(to, row, begin), row % GROUP_ROWS,
                                  cpu_rows_are_few(device, rows));
}

void cpu_activations_set_rows(const struct cpu_device *device, struct device_activations *to,
                              uint32_t rows, uint32_t row, uint32_t count, uint32_t begin,
                              uint32_t end, const float *values, uint32_t stride)
{
    bool together = cpu_sets_groups(device, to);
    for (uint32_t r = 0, some; r < count; r += some) {
        const float *from = values + (uint64_t)r * stride;
        some =
            together && (row + r) % GROUP_ROWS == 0 && count - r >= GROUP_ROWS ? GROUP_ROWS : 1;
        if (some == 1)
            cpu_activations_set(device, to, rows, row + r, begin, end, from);
        else
            device->kernels->quantise_rows(from, from + PACKED_BLOCK / 2, stride,
                                           (end - begin) / PACKED_BLOCK,
                                           cpu_group_of(to, row + r, begin));
    }
}

/* ---- row by row ----------------------------------------------------------------------------- */

static void cpu_sync(struct device *device, struct seat seat)
{
    barrier_wait(&cpu_device_of(device)->crews[seat.rank]);
}

static void cpu_sync_ranks(struct device *device, struct seat seat)
{
    (void)seat;
    barrier_wait(&cpu_device_of(device)->everyone);
}

static void cpu_embed(struct device *device, struct seat seat,
                      const struct device_weight *embedding, const int32_t *tokens,
                      uint32_t rows, float *x)
{
    (void)device;
    struct span share = span_of(rows, seat.index, seat.members);
    for (uint32_t r = share.begin; r < share.end; r++)
        packed_weight_row(&embedding->packed, (uint32_t)tokens[r],
                          x + (uint64_t)r * embedding->packed.inputs);
}

/* All the rows; normalise_rows takes those of one group. */
struct rows_normalised {
    const float *x;
    const uint32_t *selected;
    const float *weight;
    float epsilon;
    struct device_activations *out;
    uint32_t rows;
};

static void normalise_rows(struct cpu_device *cpu, struct seat seat,
                           const struct rows_normalised *of, struct span rows)
{
    float *some = cpu_scratch_of(cpu, seat)->rows;
    uint64_t columns = of->out->columns;
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        uint64_t from = of->selected ? of->selected[r] : r;
        cpu->kernels->norm(of->x + from * columns, of->weight, of->epsilon, of->out->columns,
                           some + (r - rows.begin) * columns);
    }
    cpu_activations_set_rows(cpu, of->out, of->rows, rows.begin, rows.end - rows.begin, 0,
                             of->out->columns, some, of->out->columns);
}

static void cpu_normalise(struct device *device, struct seat seat, const float *x,
                          const uint32_t *selected, uint32_t rows, const float *weight,
                          float epsilon, struct device_activations *out)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct rows_normalised of = {x, selected, weight, epsilon, out, rows};
    if (rows < GROUP_ROWS * seat.members) {
        struct span share = span_of(rows, seat.index, seat.members);
        for (uint32_t r = share.begin; r < share.end; r++)
            normalise_rows(cpu, seat, &of, (struct span){r, r + 1});
        return;
    }
    for (uint32_t i; cpu_take(cpu, seat, cpu_groups_in(rows), &i);)
        normalise_rows(cpu, seat, &of, cpu_group_rows(i, rows));
}

static void cpu_add_partials(struct device *device, struct seat seat, const float *partials,
                             uint32_t units, uint32_t rows, uint32_t columns, float *x)
{
    (void)device;
    /* Where the rows are few their parts are divided. */
    struct span share = span_of(columns, seat.index, seat.members);
    for (uint32_t r = 0; r < rows; r++) {
        float *to = x + (uint64_t)r * columns;
        for (uint32_t n = share.begin; n < share.end; n++) {
            float total = partials[(uint64_t)r * columns + n];
            for (uint32_t u = 1; u < units; u++)
                total += partials[((uint64_t)u * rows + r) * columns + n];
            to[n] += total;
        }
    }
}

/* ---- opening -------------------------------------------------------------------------------- */

/* The memory is not touched before it is used: a row's tiles may be many. */
static bool state_open(uint64_t queries, uint32_t dim, struct attention_state *state)
{
    state->largest = calloc(queries, sizeof(float));
    state->sum = calloc(queries, sizeof(float));
    state->weighted = calloc(queries * dim, sizeof(float));
    return state->largest && state->sum && state->weighted;
}

static void state_close(struct attention_state *state)
{
    free(state->largest);
    free(state->sum);
    free(state->weighted);
}

static void cpu_close(struct device *device)
{
    struct cpu_device *cpu = cpu_device_of(device);
    for (uint32_t i = 0; cpu->scratch && i < cpu->rank_count * cpu->members; i++) {
        free(cpu->scratch[i].ready);
        free(cpu->scratch[i].sums);
        free(cpu->scratch[i].tile);
        free(cpu->scratch[i].turned);
        free(cpu->scratch[i].places);
        free(cpu->scratch[i].bfloat_tile);
        free(cpu->scratch[i].bfloat_queries);
        free(cpu->scratch[i].seen);
        free(cpu->scratch[i].queries);
        state_close(&cpu->scratch[i].state);
        free(cpu->scratch[i].rows);
    }
    for (uint32_t i = 0; cpu->tiles && i < cpu->rank_count; i++)
        state_close(&cpu->tiles[i]);
    free(cpu->tiles);
    weight_arena_close(&cpu->weights);
    free(cpu->scratch);
    free(cpu->crews);
    free(cpu);
}

static const struct device_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .weight_load = cpu_weight_load,
    .weight_free = cpu_weight_free,
    .activations_open = cpu_activations_open,
    .activations_close = cpu_activations_close,
    .memory_open = cpu_memory_open,
    .memory_close = cpu_memory_close,
    .sync = cpu_sync,
    .sync_ranks = cpu_sync_ranks,
    .embed = cpu_embed,
    .normalise = cpu_normalise,
    .project = cpu_project,
    .project_gated = cpu_project_gated,
    .project_residual = cpu_project_residual,
    .project_partials = cpu_project_partials,
    .add_partials = cpu_add_partials,
    .store_kv = cpu_store_kv,
    .attend = cpu_attend,
};

static uint32_t widest_row(const struct model_config *config)
{
    uint32_t heads = config->head_count * config->head_dim;
    uint32_t widest = config->hidden_size > heads ? config->hidden_size : heads;
    return widest > config->ffn_size ? widest : config->ffn_size;
}

static bool scratch_open(const struct model_config *config, struct cpu_scratch *scratch)
{
    uint64_t widest = widest_row(config);
    uint64_t queries = ATTENTION_ROWS * (config->head_count / config->kv_head_count);
    scratch->ready = memory_zeroed(4 * (widest / PACKED_BLOCK + 1) * sizeof(*scratch->ready));
    scratch->sums = memory_zeroed(2 * PANELS_TOGETHER * MATMUL_ROWS * sizeof(*scratch->sums));
    scratch->tile = memory_zeroed(2ull * ATTENTION_TILE * config->head_dim * sizeof(float));
    scratch->turned = memory_zeroed(1ull * ATTENTION_TILE * config->head_dim * sizeof(float));
    scratch->places = memory_zeroed(2ull * ATTENTION_TILE * sizeof(*scratch->places));
    scratch->bfloat_tile =
        memory_zeroed(2ull * ATTENTION_TILE * config->head_dim * sizeof(*scratch->bfloat_tile));
    scratch->bfloat_queries = memory_zeroed((queries + BFLOAT_QUERIES) * config->head_dim *
                                            sizeof(*scratch->bfloat_queries));
    scratch->seen = memory_zeroed(queries * sizeof(*scratch->seen));
    scratch->queries = memory_zeroed(queries * sizeof(*scratch->queries));
    scratch->rows = memory_zeroed(GROUP_ROWS * widest * sizeof(float));
    return state_open(queries, config->head_dim, &scratch->state) && scratch->ready &&
           scratch->sums && scratch->tile && scratch->turned && scratch->places &&
           scratch->bfloat_tile && scratch->bfloat_queries && scratch->seen &&
           scratch->queries && scratch->rows;
}

/* Only a crew of several divides the tiles of a row. */
static bool tiles_open(const struct model_config *config, const struct cpu_device *cpu,
                       struct attention_state *tiles)
{
    if (cpu->members == 1)
        return true;
    uint64_t queries = (config->context_length / ATTENTION_TILE + 1) *
                       (uint64_t)(config->head_count / cpu->rank_count);
    return state_open(queries, config->head_dim, tiles);
}

int cpu_device_open(const struct model_config *config, const struct cpu_kernels *kernels,
                    struct thread_pool *pool, uint32_t rank_count, uint32_t members,
                    struct device **out, struct error err)
{
    struct cpu_device *cpu = memory_zeroed(sizeof(*cpu));
    if (!cpu)
        return error_set(err, BATON_ENOMEM, "out of memory for a CPU device");
    cpu->base.ops = &cpu_ops;
    cpu->kernels = kernels;
    cpu->pool = pool;
    cpu->rank_count = rank_count;
    cpu->members = members;
    barrier_init(&cpu->everyone, rank_count * members, thread_pool_spins(pool));
    bool complete = true;
    cpu->crews = memory_zeroed(rank_count * sizeof(*cpu->crews));
    cpu->scratch = calloc((size_t)rank_count * members, sizeof(*cpu->scratch));
    cpu->tiles = calloc(rank_count, sizeof(*cpu->tiles));
    if (!cpu->crews || !cpu->scratch || !cpu->tiles)
        complete = false;
    for (uint32_t i = 0; complete && i < rank_count; i++)
        complete = tiles_open(config, cpu, &cpu->tiles[i]);
    for (uint32_t i = 0; complete && i < rank_count * members; i++)
        complete = scratch_open(config, &cpu->scratch[i]);
    if (!complete) {
        cpu_close(&cpu->base);
        return error_set(err, BATON_ENOMEM, "out of memory for %u compute threads",
                         rank_count * members);
    }
    for (uint32_t i = 0; i < rank_count; i++)
        barrier_init(&cpu->crews[i], members, thread_pool_spins(pool));
    *out = &cpu->base;
    return BATON_OK;
}
