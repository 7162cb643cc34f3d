/* SPDX-License-Identifier: Apache-2.0 */
/* See churn.h. */
#include "churn.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#define RUNNING_MAX 64u
#define RESERVED_PAGES 8u /* that a decode worker leaves free for each running request */
#define CHUNK_PAGES 128u  /* 2,048 tokens */
#define IN_FLIGHT 8u      /* prompts that a prefill worker is sending */

struct sequence {
    int32_t *tokens;
    uint32_t input, output;
    uint32_t generated;
    int32_t *pages;
    uint32_t page_count;
    uint32_t owned_from; /* pages before it are the cache's */
    int32_t node;        /* locked */
};

struct worker_model {
    struct page_pool *pool;
    struct prefix_cache *cache;
    const struct churn_options *options;
    struct churn_log *log;
    uint8_t *shadow; /* the pool's states when the log was last written */
    uint64_t *birth; /* per page */
    struct churn_result result;
    struct sequence slots[RUNNING_MAX];
    uint32_t running;
};

/* ---- clock ------------------------------------------------------------------------------- */

/* Of this thread only, so that other programs on the machine do not count. */
static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What it costs to look at the clock twice. */
static uint64_t clock_cost_ns(void)
{
    enum { TIMES = 2000 };
    uint64_t total = 0;
    for (int i = 0; i < TIMES; i++) {
        uint64_t start = now_ns();
        total += now_ns() - start;
    }
    return total / TIMES;
}

static void timed(struct worker_model *worker, enum churn_timed what, uint64_t start,
                  uint64_t pages)
{
    struct churn_time *time = &worker->result.times[what];
    time->ns += now_ns() - start;
    time->pages += pages;
    time->calls++;
}

static void times_correct(struct churn_time *times)
{
    uint64_t cost = clock_cost_ns();
    for (int i = 0; i < CHURN_TIMED; i++) {
        uint64_t clock = times[i].calls * cost;
        times[i].ns -= clock < times[i].ns ? clock : times[i].ns;
    }
}

/* ---- log --------------------------------------------------------------------------------- */

static void *array_grow(void *array, uint64_t needed, uint64_t *capacity, size_t size)
{
    if (needed <= *capacity)
        return array;
    *capacity = 2 * needed;
    array = realloc(array, *capacity * size);
    assert_non_null(array);
    return array;
}

static struct churn_operation *log_add(struct churn_log *log)
{
    log->operations = array_grow(log->operations, log->operation_count + 1,
                                 &log->operation_capacity, sizeof(*log->operations));
    return &log->operations[log->operation_count++];
}

void churn_log_free(struct churn_log *log)
{
    free(log->operations);
    free(log->freed);
    *log = (struct churn_log){0};
}

static int births_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Whatever became free since the last look, in the order in which it was allocated. */
static void log_freed(struct worker_model *worker)
{
    struct churn_log *log = worker->log;
    uint32_t pages = worker->pool->counts.pages;
    if (!log || memcmp(worker->shadow, worker->pool->states, pages) == 0)
        return;
    uint64_t start = log->freed_count;
    for (uint32_t page = 0; page < pages; page++) {
        if (worker->shadow[page] == PAGE_FREE || worker->pool->states[page] != PAGE_FREE)
            continue;
        log->freed = array_grow(log->freed, log->freed_count + 1, &log->freed_capacity,
                                sizeof(*log->freed));
        log->freed[log->freed_count++] = worker->birth[page];
    }
    memcpy(worker->shadow, worker->pool->states, pages);
    uint32_t count = (uint32_t)(log->freed_count - start);
    if (!count)
        return;
    qsort(log->freed + start, count, sizeof(*log->freed), births_compare);
    *log_add(log) = (struct churn_operation){.count = count, .birth = start};
}

static void log_alloc(struct worker_model *worker, int32_t after, const int32_t *pages,
                      uint32_t count, bool is_prompt)
{
    struct churn_log *log = worker->log;
    if (!log)
        return;
    *log_add(log) = (struct churn_operation){
        .is_alloc = true,
        .is_prompt = is_prompt,
        .count = count,
        .after = after < 0 ? -1 : (int64_t)worker->birth[after],
        .birth = log->births,
    };
    for (uint32_t i = 0; i < count; i++)
        worker->birth[pages[i]] = log->births++;
    memcpy(worker->shadow, worker->pool->states, worker->pool->counts.pages);
}

/* ---- one sequence ------------------------------------------------------------------------ */

static void sequence_open(struct worker_model *worker, struct sequence *sequence,
                          const struct traffic_request *request)
{
    uint32_t tokens = request->input + request->output;
    *sequence = (struct sequence){
        .tokens = malloc(tokens * sizeof(*sequence->tokens)),
        .input = request->input,
        .output = request->output,
        .pages = malloc((tokens / CHURN_TOKENS_PER_PAGE + 1) * sizeof(*sequence->pages)),
    };
    assert_true(sequence->tokens && sequence->pages);
    memcpy(sequence->tokens, request->tokens, tokens * sizeof(*sequence->tokens));

    uint64_t start = now_ns();
    uint32_t expected =
        prefix_cache_peek(worker->cache, PREFIX_KEY_NONE, sequence->tokens, request->input - 1);
    timed(worker, CHURN_PEEK, start, expected / CHURN_TOKENS_PER_PAGE);
    start = now_ns();
    struct prefix_match match = prefix_cache_match(
        worker->cache, PREFIX_KEY_NONE, sequence->tokens, request->input - 1, sequence->pages);
    timed(worker, CHURN_MATCH, start, match.pages);
    assert_int_equal(match.tokens, expected);
    start = now_ns();
    prefix_cache_lock(worker->cache, match.node);
    timed(worker, CHURN_LOCK, start, match.pages);
    sequence->node = match.node;
    sequence->page_count = sequence->owned_from = match.pages;
}

static bool worker_make_room(struct worker_model *worker, uint32_t count)
{
    uint32_t free = worker->pool->counts.free;
    if (count <= free)
        return true;
    uint64_t start = now_ns();
    if (worker->options->evicts_exactly)
        prefix_cache_evict(worker->cache, count - free);
    else
        prefix_cache_make_room(worker->cache, count);
    timed(worker, CHURN_EVICT, start, worker->pool->counts.free - free);
    log_freed(worker);
    return count <= worker->pool->counts.free;
}

static bool sequence_grow(struct worker_model *worker, struct sequence *sequence,
                          uint32_t count, bool is_prompt)
{
    if (!worker_make_room(worker, count))
        return false;
    int32_t after = sequence->page_count ? sequence->pages[sequence->page_count - 1] : -1;
    uint64_t start = now_ns();
    assert_true(
        page_pool_alloc(worker->pool, after, count, sequence->pages + sequence->page_count));
    timed(worker, CHURN_ALLOC, start, count);
    log_alloc(worker, after, sequence->pages + sequence->page_count, count, is_prompt);
    sequence->page_count += count;
    return true;
}

/* Gives the first `tokens` tokens to the cache and holds them there with a lock instead. */
static void sequence_store(struct worker_model *worker, struct sequence *sequence,
                           uint32_t tokens)
{
    struct prefix_insert stored;
    uint64_t start = now_ns();
    assert_int_equal(prefix_cache_insert(worker->cache, PREFIX_KEY_NONE, sequence->tokens,
                                         tokens, sequence->pages, &stored),
                     BATON_OK);
    timed(worker, CHURN_INSERT, start, stored.pages);
    prefix_cache_lock(worker->cache, stored.node);
    start = now_ns();
    prefix_cache_unlock(worker->cache, sequence->node);
    timed(worker, CHURN_UNLOCK, start, sequence->owned_from);
    sequence->node = stored.node;
    if (stored.present > sequence->owned_from) {
        uint32_t duplicates = stored.present - sequence->owned_from;
        page_pool_release(worker->pool, sequence->pages + sequence->owned_from, duplicates);
        int32_t *pages = malloc(stored.pages * sizeof(*pages));
        prefix_cache_match(worker->cache, PREFIX_KEY_NONE, sequence->tokens, tokens, pages);
        memcpy(sequence->pages, pages, stored.pages * sizeof(*pages));
        free(pages);
    }
    if (stored.pages > sequence->owned_from)
        sequence->owned_from = stored.pages;
    log_freed(worker);
}

static void sequence_close(struct worker_model *worker, struct sequence *sequence)
{
    uint32_t own = sequence->page_count - sequence->owned_from;
    uint64_t start = now_ns();
    page_pool_release(worker->pool, sequence->pages + sequence->owned_from, own);
    timed(worker, CHURN_RELEASE, start, own);
    start = now_ns();
    prefix_cache_unlock(worker->cache, sequence->node);
    timed(worker, CHURN_UNLOCK, start, sequence->owned_from);
    log_freed(worker);
    free(sequence->pages);
    free(sequence->tokens);
}

static uint32_t pages_for(uint32_t tokens)
{
    return (tokens + CHURN_TOKENS_PER_PAGE - 1) / CHURN_TOKENS_PER_PAGE;
}

static uint32_t pages_to_be_had(const struct page_pool *pool)
{
    return pool->counts.free + pool->counts.cached - pool->counts.shared;
}

/* ---- the two roles ----------------------------------------------------------------------- */

static void running_remove(struct worker_model *worker, uint32_t index)
{
    sequence_close(worker, &worker->slots[index]);
    for (; index + 1 < worker->running; index++)
        worker->slots[index] = worker->slots[index + 1];
    worker->running--;
}

static void prefill_serve(struct worker_model *worker, const struct traffic_request *request)
{
    while (worker->running == IN_FLIGHT)
        running_remove(worker, 0); /* the oldest has landed */
    struct sequence *sequence = &worker->slots[worker->running++];
    sequence_open(worker, sequence, request);
    uint32_t pages = pages_for(request->input);
    while (worker->running > 1 &&
           pages - sequence->page_count > pages_to_be_had(worker->pool)) {
        running_remove(worker, 0);
        sequence = &worker->slots[worker->running - 1];
    }
    while (sequence->page_count < pages) {
        uint32_t left = pages - sequence->page_count;
        if (!sequence_grow(worker, sequence, left < CHUNK_PAGES ? left : CHUNK_PAGES, true)) {
            worker->result.refused++;
            running_remove(worker, worker->running - 1);
            return;
        }
        uint32_t tokens = sequence->page_count * CHURN_TOKENS_PER_PAGE;
        sequence_store(worker, sequence, tokens < request->input ? tokens : request->input);
    }
    worker->result.served++;
}

/* Room for one token more; false when there is none, and the sequence must end early. */
static bool sequence_next_token(struct worker_model *worker, struct sequence *sequence)
{
    sequence->generated++;
    if (pages_for(sequence->input + sequence->generated) <= sequence->page_count)
        return true;
    uint32_t rest = pages_for(sequence->input + sequence->output) - sequence->page_count;
    uint32_t growth = worker->options->growth;
    return sequence_grow(worker, sequence, rest < growth ? rest : growth, false);
}

/* One token for every running sequence. */
static void decode_step(struct worker_model *worker)
{
    for (uint32_t i = 0; i < worker->running;) {
        struct sequence *sequence = &worker->slots[i];
        if (sequence->generated < sequence->output && sequence_next_token(worker, sequence)) {
            i++;
            continue;
        }
        uint32_t room = sequence->page_count * CHURN_TOKENS_PER_PAGE;
        uint32_t known = sequence->input + sequence->generated;
        sequence_store(worker, sequence, known < room ? known : room);
        running_remove(worker, i);
    }
}

static void decode_serve(struct worker_model *worker, const struct traffic_request *request)
{
    while (worker->running == RUNNING_MAX)
        decode_step(worker);
    for (;;) {
        struct sequence *sequence = &worker->slots[worker->running++];
        sequence_open(worker, sequence, request);
        uint32_t need = pages_for(request->input) - sequence->page_count;
        uint32_t reserve = worker->running * RESERVED_PAGES;
        if (need + reserve <= pages_to_be_had(worker->pool)) {
            assert_true(sequence_grow(worker, sequence, need, true));
            worker->result.served++;
            return;
        }
        running_remove(worker, worker->running - 1);
        if (!worker->running) {
            worker->result.refused++;
            return;
        }
        for (uint32_t before = worker->running; worker->running == before;)
            decode_step(worker);
    }
}

struct churn_result churn_run(const struct churn_options *options, struct traffic *traffic)
{
    static char memory; /* nobody stores into the pages */
    uint32_t pages = options->pages;
    struct worker_model worker = {
        .options = options,
        .log = options->log,
        .shadow = calloc(pages, 1),
        .birth = calloc(pages, sizeof(uint64_t)),
    };
    struct traffic_request request;
    assert_int_equal(page_pool_open(&memory, pages, 1, &worker.pool, ERROR_NONE), 0);
    assert_int_equal(
        prefix_cache_open(worker.pool, CHURN_TOKENS_PER_PAGE, 0, &worker.cache, ERROR_NONE), 0);
    while (traffic_next(traffic, &request)) {
        if (options->role == CHURN_PREFILL)
            prefill_serve(&worker, &request);
        else
            decode_serve(&worker, &request);
        if (worker.cache->tree.nodes > worker.result.peak_nodes)
            worker.result.peak_nodes = worker.cache->tree.nodes;
    }
    while (worker.running)
        running_remove(&worker, 0);
    const struct page_counts *counts = &worker.pool->counts;
    assert_int_equal(counts->used + counts->locked + counts->shared + counts->quarantined, 0);
    assert_int_equal(counts->free + counts->cached, pages);
    prefix_cache_reset(worker.cache);
    assert_int_equal(counts->free, pages);
    worker.result.stats = worker.cache->stats;
    times_correct(worker.result.times);
    prefix_cache_close(worker.cache);
    page_pool_close(worker.pool);
    free(worker.birth);
    free(worker.shadow);
    return worker.result;
}
