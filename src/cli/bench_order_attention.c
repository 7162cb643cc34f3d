/* SPDX-License-Identifier: Apache-2.0 */
/* Decode attention over pages in each order: one new token per sequence, all layers, one thread.
 *
 *   for each layer, sequence, KV head:                      as the engine's rows are divided
 *       for each page of the sequence:                      one tile of 16 tokens
 *           scores of `group` query heads, running maximum, weighted sum of V
 *
 * The arithmetic is the same for all orders and every number is read once, so that what differs is
 * where it lies. Three kernels: the engine's own (bench_order_engine.c), a plain one, and one that
 * only reads: a machine that computes faster than ours, or with more threads on the same memory,
 * lies between the last two. K and V are bf16, which every machine unpacks with a shift: two bytes an element,
 * as f16 has. The pools of all orders hold the same numbers, each in its place, and so the results
 * must be the same bits.
 *
 * Time is the thread's processor time, and the orders take turns within each round, because the
 * machine is shared: what others do hits all of them alike. */
#include "bench_order.h"

#include "bench_case.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define GROUP \
    4u /* query heads in the four lanes of a vector; a smaller group leaves lanes idle */
#define DIM_MAX 128u
#define ROUNDS_MAX 100u
#define HUGE_BYTES (2ull << 20)

typedef float float4 __attribute__((vector_size(16)));
typedef uint32_t word4 __attribute__((vector_size(16)));
#define INLINE static inline __attribute__((always_inline))

struct pool {
    baton_layout layout;
    uint64_t base_bytes; /* of one K or V pool of a layer; 0: all in one */
    uint8_t *memory;
    uint64_t bytes;
};

/* What one head of one layer needs of a pool: the address of a page's K and V. */
struct head_view {
    const uint8_t *k, *v;
    uint64_t page_stride;
};

static struct head_view pool_view(const struct pool *pool, uint32_t layer, uint32_t head)
{
    const baton_layout *layout = &pool->layout;
    uint64_t at = head * layout->head_stride;
    if (pool->base_bytes)
        return (struct head_view){pool->memory + layer * pool->base_bytes + at,
                                  pool->memory + (layout->layers + layer) * pool->base_bytes +
                                      at,
                                  layout->page_stride};
    at += layer * layout->layer_stride;
    return (struct head_view){pool->memory + at, pool->memory + at + layout->kv_stride,
                              layout->page_stride};
}

/* ---- the kernel: lanes are the query heads that share a KV head ---- */

INLINE word4 bits_of(float4 value)
{
    word4 bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

INLINE float4 floats_of(word4 bits)
{
    float4 value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

INLINE float4 splat(float value)
{
    return (float4){value, value, value, value};
}

INLINE float4 larger(float4 left, float4 right)
{
    word4 mask = (word4)(left > right);
    return floats_of((bits_of(left) & mask) | (bits_of(right) & ~mask));
}

/* e^x for x <= 0: 2^n by the exponent, the rest by a polynomial (relative error below 1e-6). */
INLINE float4 exponential(float4 x)
{
    const float4 round = splat(12582912.0f); /* 1.5 * 2^23: the integer is in the low bits */
    x = larger(x, splat(-80.0f));
    float4 shifted = x * splat(1.44269504f) + round;
    float4 rest = x - (shifted - round) * splat(0.693147182f);
    float4 sum = splat(0.00833333377f);
    sum = sum * rest + splat(0.0416666679f);
    sum = sum * rest + splat(0.166666672f);
    sum = sum * rest + splat(0.5f);
    sum = sum * rest + splat(1.0f);
    sum = sum * rest + splat(1.0f);
    return floats_of(bits_of(sum) + (bits_of(shifted) << 23));
}

/* Eight elements of a row: those of even index and those of odd index. */
INLINE void row_load(const uint8_t *row, uint32_t at, float4 *even, float4 *odd)
{
    word4 words;
    memcpy(&words, row + at * 2, sizeof(words));
    *even = floats_of(words << 16);
    *odd = floats_of(words & 0xffff0000u);
}

struct running {
    float4 top, sum;
    float4 out[DIM_MAX / 8][GROUP][2]; /* as row_load splits them */
};

/* scores[t] = q . k[t]; q[d] has element d of every query head */
INLINE void tile_scores(const float4 *q, const uint8_t *k, uint32_t dim,
                        float4 scores[ORDER_TOKENS])
{
    for (uint32_t t = 0; t < ORDER_TOKENS; t += 4) {
        const uint8_t *rows = k + t * dim * 2;
        float4 sums[4][2] = {0};
        for (uint32_t d = 0; d < dim; d += 8) {
            float4 even[4], odd[4];
            for (uint32_t j = 0; j < 4; j++)
                row_load(rows + j * dim * 2, d, &even[j], &odd[j]);
            for (uint32_t lane = 0; lane < 4; lane++)
                for (uint32_t j = 0; j < 4; j++) {
                    sums[j][0] += q[d + 2 * lane] * splat(even[j][lane]);
                    sums[j][1] += q[d + 2 * lane + 1] * splat(odd[j][lane]);
                }
        }
        for (uint32_t j = 0; j < 4; j++)
            scores[t + j] = sums[j][0] + sums[j][1];
    }
}

/* Scores become weights; what was summed under a smaller maximum shrinks. */
INLINE void tile_soften(struct running *state, uint32_t dim, float4 scores[ORDER_TOKENS])
{
    float4 top = state->top;
    for (uint32_t t = 0; t < ORDER_TOKENS; t++)
        top = larger(scores[t], top);
    float4 shrink = exponential(state->top - top);
    state->top = top;
    state->sum *= shrink;
    for (uint32_t i = 0; i < dim / 8; i++)
        for (uint32_t g = 0; g < GROUP; g++) {
            state->out[i][g][0] *= splat(shrink[g]);
            state->out[i][g][1] *= splat(shrink[g]);
        }
    for (uint32_t t = 0; t < ORDER_TOKENS; t++) {
        scores[t] = exponential(scores[t] - top);
        state->sum += scores[t];
    }
}

INLINE void tile_values(struct running *state, const uint8_t *v, uint32_t dim,
                        const float4 weights[ORDER_TOKENS])
{
    for (uint32_t i = 0; i < dim / 8; i++) {
        float4 sums[GROUP][2];
        memcpy(sums, state->out[i], sizeof(sums));
        for (uint32_t t = 0; t < ORDER_TOKENS; t++) {
            float4 even, odd;
            row_load(v + t * dim * 2, i * 8, &even, &odd);
            for (uint32_t g = 0; g < GROUP; g++) {
                sums[g][0] += even * splat(weights[t][g]);
                sums[g][1] += odd * splat(weights[t][g]);
            }
        }
        memcpy(state->out[i], sums, sizeof(sums));
    }
}

INLINE void head_attend(const struct head_view *view, const int32_t *pages, uint32_t dim,
                        const float4 *q, struct running *state)
{
    *state = (struct running){.top = splat(-1e30f)};
    for (uint32_t i = 0; i < ORDER_SEQUENCE_PAGES; i++) {
        float4 scores[ORDER_TOKENS];
        uint64_t at = (uint64_t)pages[i] * view->page_stride;
        tile_scores(q, view->k + at, dim, scores);
        tile_soften(state, dim, scores);
        tile_values(state, view->v + at, dim, scores);
    }
}

static void head_attend_128(const struct head_view *view, const int32_t *pages, const float4 *q,
                            struct running *state)
{
    head_attend(view, pages, 128, q, state);
}

static void head_attend_64(const struct head_view *view, const int32_t *pages, const float4 *q,
                           struct running *state)
{
    head_attend(view, pages, 64, q, state);
}

/* Adds up what head_attend would read, in the same order of pages. */
static word4 head_read(const struct head_view *view, const int32_t *pages, uint32_t dim)
{
    word4 sums[4] = {0};
    for (uint32_t i = 0; i < ORDER_SEQUENCE_PAGES; i++) {
        uint64_t at = (uint64_t)pages[i] * view->page_stride;
        const uint8_t *tiles[2] = {view->k + at, view->v + at};
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t offset = 0; offset < ORDER_TOKENS * dim * 2; offset += sizeof(sums)) {
                word4 words[4];
                memcpy(words, tiles[half] + offset, sizeof(words));
                for (uint32_t k = 0; k < 4; k++)
                    sums[k] += words[k];
            }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* ---- pools ---- */

static uint32_t mix(uint32_t value)
{
    value = (value ^ value >> 16) * 0x45d9f3b;
    value = (value ^ value >> 16) * 0x45d9f3b;
    return value ^ value >> 16;
}

/* One head's tokens of one page: between -2 and 2, never odd bit patterns. */
static void tile_fill(uint8_t *tile, uint32_t key, uint32_t elements)
{
    for (uint32_t i = 0; i < elements; i++) {
        uint32_t noise = (key + i) * 0x9e3779b1u;
        uint16_t value = (uint16_t)(0x3f00 | (noise >> 16 & 0x80ff));
        memcpy(tile + 2 * i, &value, sizeof(value));
    }
}

static void pool_fill(const struct pool *pool, const struct order_shape *shape)
{
    uint32_t elements = ORDER_TOKENS * shape->dim;
    for (uint32_t page = 0; page < pool->layout.pages; page++)
        for (uint32_t layer = 0; layer < shape->layers; layer++)
            for (uint32_t head = 0; head < shape->heads; head++) {
                struct head_view view = pool_view(pool, layer, head);
                uint32_t key = mix(page * 8191 + mix(layer * 127 + head));
                uint64_t at = page * view.page_stride;
                tile_fill(pool->memory + (view.k - pool->memory) + at, key, elements);
                tile_fill(pool->memory + (view.v - pool->memory) + at, ~key, elements);
            }
}

static int pool_open(const struct attention_question *question, enum order order,
                     struct pool *out, struct error err)
{
    const struct order_shape *shape = question->shape;
    struct pool pool = {.layout = BATON_LAYOUT_INIT};
    uint64_t item_bytes = 0;
    pool.layout.pages = (uint32_t)(question->pool_bytes / order_page_bytes(shape));
    pool.layout.tokens_per_page = ORDER_TOKENS;
    pool.layout.layers = shape->layers;
    pool.layout.kv = 2;
    pool.layout.heads = shape->heads;
    pool.layout.head_bytes = shape->dim * 2;
    int rc = order_fill(&pool.layout, order, &item_bytes);
    if (rc)
        return error_set(err, rc, "%s: %s", shape->name, baton_error_text(rc));
    uint64_t bytes = item_bytes * pool.layout.pages;
    if (order == ORDER_PER_LAYER) {
        pool.base_bytes = bytes;
        bytes *= shape->layers * 2;
    }
    pool.bytes = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    pool.memory = aligned_alloc(HUGE_BYTES, pool.bytes);
    if (!pool.memory)
        return error_set(err, BATON_ENOMEM, "no memory for a pool of %llu bytes",
                         (unsigned long long)pool.bytes);
    if (madvise(pool.memory, pool.bytes, question->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) &&
        question->huge) {
        rc = error_set(err, BATON_ESYSTEM, "no huge pages: %s", strerror(errno));
        free(pool.memory);
        return rc;
    }
    pool_fill(&pool, shape);
    *out = pool;
    return BATON_OK;
}

/* Of all memory of the process: the pools are nearly all of it. */
static uint64_t huge_bytes(void)
{
    char line[128];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "AnonHugePages: %llu kB", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

/* ---- measuring ---- */

struct measurement {
    const struct attention_question *question;
    struct pool pools[ORDERS];
    int32_t *pages[2]; /* of all sequences, one after the other: scattered, in order */
    uint32_t sequences;
    float4 q[DIM_MAX];
    struct engine_attention *engine;
};

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One head of one sequence; returns the bits of what it computed. */
static uint64_t head_run(const struct measurement *measurement, const struct head_view *view,
                         const int32_t *pages, enum attention_kernel kernel)
{
    struct running state;
    uint32_t dim = measurement->question->shape->dim;
    word4 result;
    if (kernel == KERNEL_READ) {
        result = head_read(view, pages, dim);
    } else {
        if (dim == 128)
            head_attend_128(view, pages, measurement->q, &state);
        else
            head_attend_64(view, pages, measurement->q, &state);
        result = bits_of(state.out[1][2][0] / state.sum);
    }
    uint64_t bits = 0;
    for (uint32_t lane = 0; lane < 4; lane++)
        bits = bits * 0x9e3779b97f4a7c15ull + result[lane];
    return bits;
}

/* One token for every sequence through all layers. */
static uint64_t step_run(const struct measurement *measurement, const struct pool *pool,
                         const int32_t *pages, enum attention_kernel kernel)
{
    const struct order_shape *shape = measurement->question->shape;
    uint64_t bits = 0;
    if (kernel == KERNEL_ENGINE)
        return engine_attention_step(measurement->engine, &pool->layout, pool->base_bytes,
                                     pool->memory, pages);
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        for (uint32_t sequence = 0; sequence < measurement->sequences; sequence++)
            for (uint32_t head = 0; head < shape->heads; head++) {
                struct head_view view = pool_view(pool, layer, head);
                bits = bits * 31 + head_run(measurement, &view,
                                            pages + sequence * ORDER_SEQUENCE_PAGES, kernel);
            }
    return bits;
}

static int rounds_run(const struct measurement *measurement, const int32_t *pages,
                      enum attention_kernel kernel, struct attention_figures *out,
                      struct error err)
{
    const struct pool *pools = measurement->pools;
    const uint32_t rounds = measurement->question->rounds, base = ORDER_PER_LAYER;
    double seconds[ORDERS][ROUNDS_MAX], ratios[ORDERS][ROUNDS_MAX];
    uint64_t expected = step_run(measurement, &pools[base], pages, kernel);
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t turn = 0; turn < ORDERS; turn++) {
            uint32_t order = (round + turn) % ORDERS;
            double begin = processor_seconds();
            uint64_t bits = step_run(measurement, &pools[order], pages, kernel);
            seconds[order][round] = processor_seconds() - begin;
            if (bits != expected)
                return error_set(err, BATON_ECORRUPT,
                                 "the orders do not agree: the kernel or a stride is wrong");
        }
        for (uint32_t order = 0; order < ORDERS; order++)
            ratios[order][round] = seconds[order][round] / seconds[base][round];
    }
    for (uint32_t order = 0; order < ORDERS; order++) {
        out->seconds[order] = samples_quantile(seconds[order], rounds, 0.5);
        out->ratio[order] = samples_quantile(ratios[order], rounds, 0.5);
    }
    return BATON_OK;
}

static int measurement_open(struct measurement *measurement, struct error err)
{
    const struct attention_question *question = measurement->question;
    uint32_t pages = (uint32_t)(question->pool_bytes / order_page_bytes(question->shape));
    measurement->sequences = pages / ORDER_SEQUENCE_PAGES;
    if (!measurement->sequences)
        return error_set(err, BATON_EINVAL,
                         "a pool of %llu bytes has fewer than %u pages of %s",
                         (unsigned long long)question->pool_bytes, ORDER_SEQUENCE_PAGES,
                         question->shape->name);
    for (uint32_t list = 0; list < 2; list++)
        if (!(measurement->pages[list] = malloc(pages * sizeof(int32_t))))
            return error_set(err, BATON_ENOMEM, "no memory for %u pages", pages);
    pages_shuffle(measurement->pages[0], pages, 5);
    for (uint32_t i = 0; i < pages; i++)
        measurement->pages[1][i] = (int32_t)i;
    for (uint32_t i = 0; i < DIM_MAX; i++)
        for (uint32_t g = 0; g < question->shape->group; g++)
            measurement->q[i][g] = ((float)(mix(g * 512 + i) % 2000) - 1000) / 8000;
    int rc = engine_attention_open(question->shape, measurement->sequences,
                                   &measurement->engine, err);
    for (int order = 0; order < (int)ORDERS && !rc; order++)
        rc = pool_open(question, (enum order)order, &measurement->pools[order], err);
    return rc;
}

int attention_measure(const struct attention_question *question, struct attention_answer *out,
                      struct error err)
{
    struct measurement measurement = {.question = question};
    struct attention_answer answer = {0};
    uint64_t pools = 0;
    BATON_ASSERT(question->rounds <= ROUNDS_MAX);
    int rc = measurement_open(&measurement, err);
    for (uint32_t list = 0; list < 2 && !rc; list++)
        for (int kernel = 0; kernel < KERNELS && !rc; kernel++)
            rc = rounds_run(&measurement, measurement.pages[list],
                            (enum attention_kernel)kernel, &answer.figures[list][kernel], err);
    for (uint32_t order = 0; order < ORDERS; order++)
        pools += measurement.pools[order].bytes;
    answer.huge_share = pools ? (double)huge_bytes() / (double)pools : 0;
    answer.bytes = (uint64_t)measurement.sequences * ORDER_SEQUENCE_PAGES *
                   order_page_bytes(question->shape);
    for (uint32_t order = 0; order < ORDERS; order++)
        free(measurement.pools[order].memory);
    engine_attention_close(measurement.engine);
    free(measurement.pages[0]);
    free(measurement.pages[1]);
    if (!rc)
        *out = answer;
    return rc;
}
