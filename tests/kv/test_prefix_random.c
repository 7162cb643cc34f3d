/* SPDX-License-Identifier: Apache-2.0 */
/* Random requests on a small pool against the slow obvious cache: every match is the true longest
 * prefix and has its own bytes in its pages, evictions take the same pages in the same order, locked
 * pages stay, every page is in one state with the right number of holders, and an index that is fed
 * with the events knows what is in the cache.
 *
 * BATON_TEST_SEED repeats a run. */
#include "kv/prefix_cache.h"

#include "prefix_check.h"
#include "prefix_model.h"
#include "random_source.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include <xxhash.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(thread_sanitizer)
#define WORLDS 10u /* several times slower */
#else
#define WORLDS 50u
#endif
#define STEPS 20000u
#define REQUESTS 8u
#define INDEX_MAX 4096u

static const struct prefix_key keys[] = {{NULL, 0}, {"lora", 4}, {"lora\0x", 6}, {"salt", 4}};

struct request {
    bool live;
    uint32_t key;
    int32_t tokens[MODEL_TOKENS_MAX];
    uint32_t count;
    int32_t pages[MODEL_TOKENS_MAX];
    bool own[MODEL_TOKENS_MAX]; /* a hold of its own, otherwise under its lock */
    uint32_t page_count;
    int32_t node;
    uint32_t locked; /* pages from the start under the lock */
};

struct held { /* pages of a transfer, or in quarantine */
    int32_t pages[MODEL_PAGES_MAX];
    uint32_t count;
};

struct world {
    struct random_source random;
    uint64_t seed;
    uint32_t step;
    uint32_t tokens_per_page, vocabulary, key_count, length_max;
    struct page_pool *pool;
    struct prefix_cache *cache;
    struct prefix_model model;
    uint64_t *memory; /* one word per page: what it was filled with */
    struct request requests[REQUESTS];
    struct held transfer, quarantine;
    uint64_t index[INDEX_MAX]; /* hashes, learnt from events */
    uint32_t index_count;
};

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition))                                                                 \
            fail_msg("BATON_TEST_SEED=%llu step %u line %d: not true: %s",                \
                     (unsigned long long)world->seed, world->step, __LINE__, #condition); \
    } while (0)

static uint32_t below(struct world *world, uint32_t bound)
{
    return random_below(&world->random, bound);
}

/* ---- sequences --------------------------------------------------------------------------- */

/* What a page with the end of these tokens must hold. */
static uint64_t contents(uint32_t key, const int32_t *tokens, uint32_t count)
{
    return XXH64(tokens, count * sizeof(*tokens), 77 + key);
}

/* Often the start of a sequence that somebody has, with another end. */
static void sequence_make(struct world *world, struct request *request)
{
    const struct request *other = &world->requests[below(world, REQUESTS)];
    request->key = below(world, world->key_count);
    request->count = 1 + below(world, world->length_max);
    uint32_t same = 0;
    if (other->count && below(world, 4)) {
        same = below(world, other->count + 1);
        same = same < request->count ? same : request->count;
        memmove(request->tokens, other->tokens, same * sizeof(*request->tokens));
        if (below(world, 8))
            request->key = other->key;
    }
    for (uint32_t i = same; i < request->count; i++)
        request->tokens[i] = (int32_t)below(world, world->vocabulary);
}

static void check_contents(struct world *world, const struct request *request, uint32_t pages)
{
    for (uint32_t i = 0; i < pages; i++) {
        uint32_t end = (i + 1) * world->tokens_per_page;
        end = end < request->count ? end : request->count;
        CHECK(world->memory[request->pages[i]] == contents(request->key, request->tokens, end));
    }
}

static void fill_contents(struct world *world, const struct request *request, uint32_t from)
{
    for (uint32_t i = from; i < request->page_count; i++) {
        uint32_t end = (i + 1) * world->tokens_per_page;
        end = end < request->count ? end : request->count;
        world->memory[request->pages[i]] = contents(request->key, request->tokens, end);
    }
}

/* ---- holders ----------------------------------------------------------------------------- */

/* Who holds what, counted from scratch; the cache's hold aside. */
static void count_holders(struct world *world)
{
    uint32_t *holders = world->model.other_holders;
    memset(holders, 0, sizeof(world->model.other_holders));
    for (uint32_t r = 0; r < REQUESTS; r++)
        for (uint32_t i = 0; world->requests[r].live && i < world->requests[r].page_count; i++)
            holders[world->requests[r].pages[i]] += world->requests[r].own[i];
    for (uint32_t i = 0; i < world->transfer.count; i++)
        holders[world->transfer.pages[i]]++;
    for (uint32_t i = 0; i < world->quarantine.count; i++)
        holders[world->quarantine.pages[i]]++;
}

static void check_pages(struct world *world)
{
    uint32_t locked = 0, quarantined = 0;
    count_holders(world);
    for (int32_t page = 0; page < (int32_t)world->pool->counts.pages; page++) {
        const struct model_prefix *prefix = model_page(&world->model, page);
        uint32_t others = world->model.other_holders[page];
        enum page_state state = page_pool_state(world->pool, page);
        CHECK(world->pool->holders[page] == others + (prefix != NULL));
        CHECK((state == PAGE_CACHED) == (prefix != NULL));
        CHECK((state == PAGE_FREE) == (!prefix && !others));
        CHECK(!prefix ||
              world->memory[page] == contents(prefix->key, prefix->tokens,
                                              prefix->pages * world->tokens_per_page));
        locked += prefix && prefix->locks;
        quarantined += state == PAGE_QUARANTINED;
    }
    CHECK(world->pool->counts.locked == locked);
    CHECK(world->pool->counts.quarantined == quarantined);
    CHECK(world->pool->counts.quarantined == world->quarantine.count);
}

/* ---- what a request does ----------------------------------------------------------------- */

static void relock(struct world *world, struct request *request, int32_t node, uint32_t pages)
{
    prefix_cache_lock(world->cache, node);
    model_lock(&world->model, request->key, request->tokens, pages);
    prefix_cache_unlock(world->cache, request->node);
    model_unlock(&world->model, request->key, request->tokens, request->locked);
    request->node = node;
    request->locked = pages;
}

static void request_unlock(struct world *world, struct request *request)
{
    relock(world, request, PREFIX_NONE, 0);
}

/* Room for `count` pages, in either way. */
static bool make_room(struct world *world, uint32_t count)
{
    const struct page_counts *counts = &world->pool->counts;
    count_holders(world);
    uint32_t missing = count > counts->free ? count - counts->free : 0;
    if (below(world, 2)) {
        uint32_t expected = model_evict(&world->model, missing);
        CHECK(prefix_cache_evict(world->cache, missing) == expected);
        return count <= counts->free;
    }
    if (missing && missing <= counts->cached)
        model_evict(&world->model, missing + counts->pages / PREFIX_EVICT_AHEAD);
    bool possible = prefix_cache_make_room(world->cache, count);
    CHECK(possible == (count <= counts->free));
    return possible;
}

static void request_start(struct world *world, struct request *request)
{
    int32_t expected[MODEL_TOKENS_MAX];
    sequence_make(world, request);
    uint32_t asked = request->count - below(world, 2);
    uint32_t pages = asked / world->tokens_per_page;
    uint32_t peeked =
        prefix_cache_peek(world->cache, keys[request->key], request->tokens, asked);
    struct prefix_match match = prefix_cache_match(world->cache, keys[request->key],
                                                   request->tokens, asked, request->pages);
    uint32_t known = model_match(&world->model, request->key, request->tokens, pages, expected);
    CHECK(match.pages == known && match.tokens == known * world->tokens_per_page);
    CHECK(peeked == match.tokens);
    CHECK(memcmp(expected, request->pages, known * sizeof(*expected)) == 0);
    CHECK((match.node == PREFIX_NONE) == (known == 0));
    check_contents(world, request, known);
    if (below(world, 5) == 0)
        return; /* only asked */

    request->node = PREFIX_NONE;
    request->locked = 0;
    relock(world, request, match.node, known);
    uint32_t whole =
        (request->count + world->tokens_per_page - 1) / world->tokens_per_page - known;
    int32_t after = known ? request->pages[known - 1] : -1;
    if (!make_room(world, whole) ||
        !page_pool_alloc(world->pool, after, whole, request->pages + known)) {
        request_unlock(world, request);
        return;
    }
    request->live = true;
    request->page_count = known + whole;
    for (uint32_t i = 0; i < request->page_count; i++)
        request->own[i] = i >= known;
    fill_contents(world, request, known);
}

/* The first `count` tokens go to the cache; who wants to go on with them locks them there. Duplicates
 * are given back, or kept. */
static void request_store(struct world *world, struct request *request, uint32_t count,
                          bool goes_on)
{
    struct prefix_insert stored;
    uint32_t pages = count / world->tokens_per_page;
    CHECK(prefix_cache_insert(world->cache, keys[request->key], request->tokens, count,
                              request->pages, &stored) == BATON_OK);
    uint32_t present =
        model_insert(&world->model, request->key, request->tokens, pages, request->pages);
    CHECK(stored.pages == pages && stored.present == present);
    for (uint32_t i = present; i < pages; i++) {
        CHECK(request->own[i]);
        request->own[i] = false;
    }
    if (goes_on && pages > request->locked)
        relock(world, request, stored.node, pages);
    bool keep = below(world, 2);
    for (uint32_t i = 0; i < present && !keep; i++) {
        if (!request->own[i])
            continue;
        page_pool_release(world->pool, &request->pages[i], 1);
        request->own[i] = false;
        int32_t found[MODEL_TOKENS_MAX];
        prefix_cache_match(world->cache, keys[request->key], request->tokens, count, found);
        model_match(&world->model, request->key, request->tokens, pages, found);
        request->pages[i] = found[i];
    }
    check_contents(world, request, request->page_count);
}

static void request_end(struct world *world, struct request *request)
{
    for (uint32_t i = 0; i < request->page_count; i++)
        if (request->own[i])
            page_pool_release(world->pool, &request->pages[i], 1);
    request->live = false;
    request_unlock(world, request);
}

/* The transfer into its own pages failed: they wait until nobody can store into them. */
static void request_fail(struct world *world, struct request *request)
{
    for (uint32_t i = 0; i < request->page_count; i++) {
        if (!request->own[i])
            continue;
        if (world->pool->holders[request->pages[i]] == 1 &&
            world->quarantine.count < MODEL_PAGES_MAX) {
            page_pool_quarantine(world->pool, &request->pages[i], 1);
            world->quarantine.pages[world->quarantine.count++] = request->pages[i];
            world->memory[request->pages[i]] = 0xdead;
        } else {
            page_pool_release(world->pool, &request->pages[i], 1);
        }
    }
    request->live = false;
    request_unlock(world, request);
}

static void request_step(struct world *world)
{
    struct request *request = &world->requests[below(world, REQUESTS)];
    if (!request->live) {
        request_start(world, request);
        return;
    }
    switch (below(world, 8)) {
    case 0:
    case 1: request_end(world, request); break;
    case 2: request_fail(world, request); break;
    case 3:
        request_store(world, request, request->count, below(world, 2));
        request_end(world, request);
        break;
    default: request_store(world, request, below(world, request->count + 1), true); break;
    }
}

/* ---- what else happens ------------------------------------------------------------------- */

static void transfer_step(struct world *world)
{
    struct held *transfer = &world->transfer;
    struct request *request = &world->requests[below(world, REQUESTS)];
    if (transfer->count && below(world, 2)) {
        page_pool_release(world->pool, transfer->pages, transfer->count);
        transfer->count = 0;
    }
    if (!request->live || transfer->count + request->page_count > MODEL_PAGES_MAX)
        return;
    page_pool_retain(world->pool, request->pages, request->page_count);
    memcpy(transfer->pages + transfer->count, request->pages,
           request->page_count * sizeof(*request->pages));
    transfer->count += request->page_count;
}

static void fence_step(struct world *world)
{
    struct held *quarantine = &world->quarantine;
    uint32_t fenced = below(world, quarantine->count + 1);
    page_pool_readmit(world->pool, quarantine->pages, fenced);
    page_pool_release(world->pool, quarantine->pages, fenced);
    quarantine->count -= fenced;
    memmove(quarantine->pages, quarantine->pages + fenced,
            quarantine->count * sizeof(*quarantine->pages));
}

static void evict_step(struct world *world)
{
    count_holders(world);
    uint32_t count = below(world, 10) ? below(world, 6) : UINT32_MAX;
    uint32_t expected = model_evict(&world->model, count);
    uint32_t freed = count == UINT32_MAX ? prefix_cache_reset(world->cache)
                                         : prefix_cache_evict(world->cache, count);
    CHECK(freed == expected);
}

/* ---- an index that learns from events ---------------------------------------------------- */

static uint64_t *index_find(struct world *world, uint64_t hash)
{
    for (uint32_t i = 0; i < world->index_count; i++)
        if (world->index[i] == hash)
            return &world->index[i];
    return NULL;
}

static void index_store(struct world *world, const struct prefix_event *event)
{
    CHECK(world->index_count < INDEX_MAX && !index_find(world, event->hash));
    CHECK(event->hash == XXH3_64bits_withSeed(event->tokens,
                                              world->tokens_per_page * sizeof(int32_t),
                                              event->parent));
    world->index[world->index_count++] = event->hash;
}

static void index_rebuild(struct world *world)
{
    struct prefix_event event;
    world->index_count = 0;
    for (int32_t page = 0; page < (int32_t)world->pool->counts.pages; page++)
        if (prefix_cache_block(world->cache, page, &event))
            index_store(world, &event);
}

static uint64_t model_hash(const struct world *world, const struct model_prefix *prefix)
{
    struct prefix_key key = keys[prefix->key];
    uint64_t hash = key.size ? XXH3_64bits(key.bytes, key.size) : 0;
    for (uint32_t i = 0; i < prefix->pages; i++)
        hash = XXH3_64bits_withSeed(prefix->tokens + i * world->tokens_per_page,
                                    world->tokens_per_page * sizeof(int32_t), hash);
    return hash;
}

static void event_step(struct world *world)
{
    struct prefix_event event;
    if (!world->cache->events.capacity) {
        CHECK(!prefix_cache_next_event(world->cache, &event));
        return;
    }
    while (prefix_cache_next_event(world->cache, &event)) {
        if (event.kind == PREFIX_LOST) {
            index_rebuild(world);
        } else if (event.kind == PREFIX_STORED) {
            index_store(world, &event);
        } else {
            uint64_t *found = index_find(world, event.hash);
            CHECK(found != NULL);
            *found = world->index[--world->index_count];
        }
    }
    CHECK(world->index_count == world->model.count);
    for (uint32_t i = 0; i < world->model.count; i++)
        CHECK(index_find(world, model_hash(world, &world->model.prefixes[i])));
}

/* ---- worlds ------------------------------------------------------------------------------ */

static void world_open(struct world *world, uint64_t seed)
{
    static const uint32_t capacities[] = {0, 7, 64, 2048};
    memset(world, 0, sizeof(*world));
    world->seed = world->random.state = seed;
    world->tokens_per_page = 1 + below(world, 4);
    world->vocabulary = 1 + below(world, 4);
    world->key_count = 1 + below(world, 4);
    world->length_max = 4 + below(world, 60);
    uint32_t pages = 4 + below(world, 90);
    world->model.tokens_per_page = world->tokens_per_page;
    world->memory = calloc(pages, sizeof(*world->memory));
    CHECK(page_pool_open(world->memory, pages * sizeof(*world->memory), sizeof(*world->memory),
                         &world->pool, ERROR_NONE) == BATON_OK);
    CHECK(prefix_cache_open(world->pool, world->tokens_per_page, capacities[below(world, 4)],
                            &world->cache, ERROR_NONE) == BATON_OK);
}

static void world_step(struct world *world)
{
    uint32_t dice = below(world, 100);
    if (dice < 80)
        request_step(world);
    else if (dice < 86)
        transfer_step(world);
    else if (dice < 92)
        fence_step(world);
    else if (dice < 95)
        evict_step(world);
    else
        event_step(world);
}

/* Everybody leaves: every page comes back. */
static void world_close(struct world *world)
{
    for (uint32_t r = 0; r < REQUESTS; r++)
        if (world->requests[r].live)
            request_end(world, &world->requests[r]);
    page_pool_release(world->pool, world->transfer.pages, world->transfer.count);
    page_pool_readmit(world->pool, world->quarantine.pages, world->quarantine.count);
    page_pool_release(world->pool, world->quarantine.pages, world->quarantine.count);
    prefix_cache_reset(world->cache);
    CHECK(world->pool->counts.free == world->pool->counts.pages);
    CHECK(world->cache->keys.live == 1);
    CHECK(world->cache->tree.nodes == 0);
    prefix_cache_close(world->cache);
    page_pool_close(world->pool);
    free(world->memory);
}

static void test_prefix_cache_against_a_list_of_prefixes(void **state)
{
    (void)state;
    static struct world storage;
    struct world *world = &storage;
    uint64_t seed = random_seed(), hits = 0, evicted = 0;
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (uint32_t number = 0; number < WORLDS; number++) {
        world_open(world, seed + number);
        for (world->step = 0; world->step < STEPS; world->step++) {
            world_step(world);
            if (world->step % 8 == 0)
                check_pages(world);
            const char *wrong = world->step % 64 ? NULL : prefix_check(world->cache);
            if (wrong)
                fail_msg("BATON_TEST_SEED=%llu step %u: not true: %s",
                         (unsigned long long)world->seed, world->step, wrong);
        }
        hits += world->cache->stats.hit_tokens;
        evicted += world->cache->stats.evicted_pages;
        world_close(world);
    }
    print_message("%u steps, %llu tokens hit, %llu pages evicted\n", WORLDS * STEPS,
                  (unsigned long long)hits, (unsigned long long)evicted);
    assert_true(hits > 1000 && evicted > 1000); /* it was about something */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_cache_against_a_list_of_prefixes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
