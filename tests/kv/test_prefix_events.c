/* SPDX-License-Identifier: Apache-2.0 */
/* What a router is told: hashes that it can compute itself, each page once when it comes and once
 * when it goes, in order, and a clear word when it missed something. */
#include "kv/prefix_cache.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <xxhash.h>

#define PAGES 32u
#define PER_PAGE 2u
#define CAPACITY 8u

static struct page_pool *pool;
static struct prefix_cache *cache;

static int setup(void **state)
{
    static char memory[PAGES];
    (void)state;
    assert_int_equal(page_pool_open(memory, PAGES, 1, &pool, ERROR_NONE), 0);
    assert_int_equal(prefix_cache_open(pool, PER_PAGE, CAPACITY, &cache, ERROR_NONE), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    prefix_cache_close(cache);
    page_pool_close(pool);
    return 0;
}

/* Tokens first, first+1, first+2 ... in `count` pages. */
static void store(struct prefix_key key, int32_t first, uint32_t count)
{
    int32_t tokens[PAGES * PER_PAGE], pages[PAGES];
    struct prefix_insert stored;
    for (uint32_t i = 0; i < count * PER_PAGE; i++)
        tokens[i] = first + (int32_t)i;
    assert_true(page_pool_alloc(pool, -1, count, pages));
    assert_int_equal(prefix_cache_insert(cache, key, tokens, count * PER_PAGE, pages, &stored),
                     0);
    page_pool_release(pool, pages, stored.present);
}

static void expect_stored(uint64_t parent, int32_t first_token)
{
    struct prefix_event event;
    int32_t tokens[PER_PAGE] = {first_token, first_token + 1};
    assert_true(prefix_cache_next_event(cache, &event));
    assert_int_equal(event.kind, PREFIX_STORED);
    assert_int_equal(event.parent, parent);
    assert_memory_equal(event.tokens, tokens, sizeof(tokens));
    assert_int_equal(event.hash, XXH3_64bits_withSeed(tokens, sizeof(tokens), parent));
}

static uint64_t chain(uint64_t parent, int32_t first_token)
{
    int32_t tokens[PER_PAGE] = {first_token, first_token + 1};
    return XXH3_64bits_withSeed(tokens, sizeof(tokens), parent);
}

static void expect_removed(uint64_t hash)
{
    struct prefix_event event;
    assert_true(prefix_cache_next_event(cache, &event));
    assert_int_equal(event.kind, PREFIX_REMOVED);
    assert_int_equal(event.hash, hash);
}

static void expect_no_event(void)
{
    struct prefix_event event;
    assert_false(prefix_cache_next_event(cache, &event));
}

static void test_events_tell_what_comes_and_goes(void **state)
{
    (void)state;
    store(PREFIX_KEY_NONE, 10, 3);
    expect_stored(0, 10);
    expect_stored(chain(0, 10), 12);
    expect_stored(chain(chain(0, 10), 12), 14);
    expect_no_event();
    store(PREFIX_KEY_NONE, 10, 2); /* nothing new */
    expect_no_event();
    assert_int_equal(prefix_cache_evict(cache, 1), 1);
    assert_int_equal(prefix_cache_evict(cache, 2), 2);
    expect_removed(chain(chain(chain(0, 10), 12), 14));
    expect_removed(chain(chain(0, 10), 12));
    expect_removed(chain(0, 10));
    expect_no_event();
}

static void test_events_keep_the_tokens_of_pages_that_are_gone(void **state)
{
    (void)state;
    store(PREFIX_KEY_NONE, 10, 1);
    prefix_cache_reset(cache);
    store(PREFIX_KEY_NONE, 50, 1); /* in the same page */
    expect_stored(0, 10);
    expect_removed(chain(0, 10));
    expect_stored(0, 50);
}

static void test_events_of_keys_start_from_the_key(void **state)
{
    (void)state;
    struct prefix_key key = {"tenant 7", 8};
    store(key, 10, 1);
    expect_stored(XXH3_64bits("tenant 7", 8), 10);
}

/* The numbers are part of what routers and other workers rely on: they do not change. Made by Python's
 * xxhash 3.x: a = xxh3_64_intdigest(struct.pack("<2i", 1, 2), seed=0), then (3, 4) with seed=a. */
static void test_events_have_known_hashes(void **state)
{
    (void)state;
    struct prefix_event event;
    store(PREFIX_KEY_NONE, 1, 2);
    assert_true(prefix_cache_next_event(cache, &event));
    assert_int_equal(event.hash, 0x389e2c8892d5450u);
    assert_true(prefix_cache_next_event(cache, &event));
    assert_int_equal(event.hash, 0x5f92f669997edfu);
}

static void test_events_lost_are_admitted_and_can_be_read_anew(void **state)
{
    (void)state;
    struct prefix_event event;
    store(PREFIX_KEY_NONE, 10, CAPACITY);
    store(PREFIX_KEY_NONE, 100, 1); /* one too many */
    prefix_cache_evict(cache, 2);
    assert_true(prefix_cache_next_event(cache, &event));
    assert_int_equal(event.kind, PREFIX_LOST);
    expect_no_event();

    uint64_t parent = 0;
    uint32_t blocks = 0;
    for (int32_t page = 0; page < (int32_t)PAGES; page++)
        blocks += prefix_cache_block(cache, page, &event);
    assert_int_equal(blocks, CAPACITY + 1 - 2);
    for (int32_t page = 0; page < (int32_t)CAPACITY - 2; page++) {
        assert_true(prefix_cache_block(cache, page, &event));
        assert_int_equal(event.parent, parent);
        parent = chain(parent, 10 + 2 * page);
        assert_int_equal(event.hash, parent);
        assert_int_equal(event.tokens[0], 10 + 2 * page);
    }
    store(PREFIX_KEY_NONE, 200, 1); /* complete again */
    expect_stored(0, 200);
    expect_no_event();
}

static void test_events_fill_the_ring_to_the_brim(void **state)
{
    (void)state;
    for (int32_t round = 0; round < 5; round++) {
        store(PREFIX_KEY_NONE, 10, CAPACITY / 2);
        prefix_cache_reset(cache);
        uint64_t hashes[CAPACITY / 2], parent = 0;
        for (uint32_t i = 0; i < CAPACITY / 2; i++) {
            expect_stored(parent, 10 + 2 * (int32_t)i);
            hashes[i] = parent = chain(parent, 10 + 2 * (int32_t)i);
        }
        for (uint32_t i = CAPACITY / 2; i-- > 0;)
            expect_removed(hashes[i]);
        expect_no_event();
        store(PREFIX_KEY_NONE, 300 + round, 1); /* so that the ring turns */
        expect_stored(0, 300 + round);
        prefix_cache_reset(cache);
        expect_removed(chain(0, 300 + round));
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_events_tell_what_comes_and_goes),
        TEST(test_events_keep_the_tokens_of_pages_that_are_gone),
        TEST(test_events_of_keys_start_from_the_key),
        TEST(test_events_have_known_hashes),
        TEST(test_events_lost_are_admitted_and_can_be_read_anew),
        TEST(test_events_fill_the_ring_to_the_brim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
