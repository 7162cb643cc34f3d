/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache, one promise at a time; test_prefix_random.c is about all of them at once. */
#include "kv/prefix_cache.h"

#include "prefix_check.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 64u
#define PER_PAGE 4u

struct fixture {
    struct page_pool *pool;
    struct prefix_cache *cache;
};

static int setup(void **state)
{
    static char memory[PAGES];
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(page_pool_open(memory, PAGES, 1, &f->pool, ERROR_NONE), 0);
    assert_int_equal(prefix_cache_open(f->pool, PER_PAGE, 0, &f->cache, ERROR_NONE), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    const char *wrong = prefix_check(f->cache);
    if (wrong)
        print_error("not true: %s\n", wrong);
    prefix_cache_close(f->cache);
    bool all_back = f->pool->counts.free == PAGES;
    page_pool_close(f->pool);
    free(f);
    return wrong || !all_back;
}

/* "aaaabbbb": a token for each letter, a page for each four. */
static uint32_t tokens_of(const char *text, int32_t *tokens)
{
    uint32_t count = 0;
    for (; text[count]; count++)
        tokens[count] = text[count];
    return count;
}

static struct prefix_match match_key(struct fixture *f, struct prefix_key key, const char *text,
                                     int32_t *pages)
{
    int32_t tokens[PAGES * PER_PAGE];
    uint32_t count = tokens_of(text, tokens);
    assert_int_equal(prefix_cache_peek(f->cache, key, tokens, count) % PER_PAGE, 0);
    return prefix_cache_match(f->cache, key, tokens, count, pages);
}

static struct prefix_match match(struct fixture *f, const char *text, int32_t *pages)
{
    return match_key(f, PREFIX_KEY_NONE, text, pages);
}

static uint32_t matched(struct fixture *f, const char *text)
{
    int32_t pages[PAGES];
    return match(f, text, pages).tokens;
}

static uint32_t peeked(struct fixture *f, const char *text)
{
    int32_t tokens[PAGES * PER_PAGE];
    return prefix_cache_peek(f->cache, PREFIX_KEY_NONE, tokens, tokens_of(text, tokens));
}

/* Allocates pages for the text, inserts them, gives back what the cache did not take. */
static struct prefix_insert store_key(struct fixture *f, struct prefix_key key,
                                      const char *text, int32_t *pages)
{
    int32_t tokens[PAGES * PER_PAGE];
    uint32_t count = tokens_of(text, tokens), whole = (count + PER_PAGE - 1) / PER_PAGE;
    struct prefix_insert stored;
    assert_true(page_pool_alloc(f->pool, -1, whole, pages));
    assert_int_equal(prefix_cache_insert(f->cache, key, tokens, count, pages, &stored), 0);
    page_pool_release(f->pool, pages, stored.present);
    page_pool_release(f->pool, pages + stored.pages, whole - stored.pages);
    return stored;
}

static struct prefix_insert store(struct fixture *f, const char *text)
{
    int32_t pages[PAGES];
    return store_key(f, PREFIX_KEY_NONE, text, pages);
}

/* ---- match and insert -------------------------------------------------------------------- */

static void test_match_finds_nothing_in_an_empty_cache(void **state)
{
    struct fixture *f = *state;
    int32_t pages[PAGES];
    struct prefix_match found = match(f, "aaaabbbb", pages);
    assert_int_equal(found.pages, 0);
    assert_int_equal(found.tokens, 0);
    assert_int_equal(found.node, PREFIX_NONE);
    assert_int_equal(match(f, "", pages).pages, 0);
}

static void test_match_gives_the_pages_that_were_inserted(void **state)
{
    struct fixture *f = *state;
    int32_t given[PAGES], found[PAGES];
    struct prefix_insert stored = store_key(f, PREFIX_KEY_NONE, "aaaabbbbcccc", given);
    assert_int_equal(stored.pages, 3);
    assert_int_equal(stored.present, 0);
    assert_int_equal(match(f, "aaaabbbbccccdddd", found).pages, 3);
    assert_memory_equal(given, found, 3 * sizeof(*given));
}

static void test_match_is_floored_to_whole_pages(void **state)
{
    struct fixture *f = *state;
    store(f, "aaaabbbbcccc");
    assert_int_equal(matched(f, "aaaabbb"), 4);
    assert_int_equal(matched(f, "aaa"), 0);
    assert_int_equal(matched(f, "aaaabbbbccc"), 8); /* the last token is left to compute */
    assert_int_equal(matched(f, "aaaabbbxcccc"), 4);
}

static void test_insert_leaves_a_partial_last_page_to_its_request(void **state)
{
    struct fixture *f = *state;
    struct prefix_insert stored = store(f, "aaaabb");
    assert_int_equal(stored.pages, 1);
    assert_int_equal(f->pool->counts.cached, 1);
    assert_int_equal(matched(f, "aaaabbbb"), 4);
    stored = store(f, "aaa");
    assert_int_equal(stored.pages, 0);
    assert_int_equal(stored.node, PREFIX_NONE);
}

static void test_insert_tells_duplicates_from_new_pages(void **state)
{
    struct fixture *f = *state;
    int32_t first[PAGES], second[PAGES], found[PAGES];
    store_key(f, PREFIX_KEY_NONE, "aaaabbbbcccc", first);
    struct prefix_insert stored = store_key(f, PREFIX_KEY_NONE, "aaaabbbbddddeeee", second);
    assert_int_equal(stored.present, 2);
    assert_int_equal(stored.pages, 4);
    assert_int_equal(f->cache->stats.duplicate_pages, 2);
    assert_int_equal(f->pool->counts.cached, 5);
    assert_int_equal(match(f, "aaaabbbbddddeeee", found).pages, 4);
    assert_memory_equal(found, first, 2 * sizeof(*found));
    assert_memory_equal(found + 2, second + 2, 2 * sizeof(*found));
    assert_int_equal(matched(f, "aaaabbbbcccc"), 12);
}

static void test_insert_of_what_is_there_is_not_a_duplicate(void **state)
{
    struct fixture *f = *state;
    int32_t tokens[16], pages[4];
    struct prefix_insert stored;
    store(f, "aaaabbbb");
    assert_int_equal(match(f, "aaaabbbb", pages).pages, 2);
    tokens_of("aaaabbbb", tokens);
    assert_int_equal(prefix_cache_insert(f->cache, PREFIX_KEY_NONE, tokens, 8, pages, &stored),
                     0);
    assert_int_equal(stored.present, 2);
    assert_int_equal(f->cache->stats.duplicate_pages, 0);
}

static void test_children_may_share_the_start_of_a_page(void **state)
{
    struct fixture *f = *state;
    store(f, "aaaabbbb");
    store(f, "aaaabbbc");
    store(f, "aaaabbcc");
    store(f, "aaabbbbb");
    assert_int_equal(f->pool->counts.cached, 6);
    assert_int_equal(matched(f, "aaaabbbb"), 8);
    assert_int_equal(matched(f, "aaaabbbc"), 8);
    assert_int_equal(matched(f, "aaaabbcc"), 8);
    assert_int_equal(matched(f, "aaabbbbb"), 8);
    assert_int_equal(matched(f, "aaaabccc"), 4);
}

static void test_statistics_count_lookups_and_hits(void **state)
{
    struct fixture *f = *state;
    store(f, "aaaabbbb");
    matched(f, "aaaabbbbcc");
    matched(f, "xxxx");
    peeked(f, "aaaabbbb");
    assert_int_equal(f->cache->stats.lookups, 2);
    assert_int_equal(f->cache->stats.lookup_tokens, 14);
    assert_int_equal(f->cache->stats.hit_tokens, 8);
    assert_int_equal(f->cache->stats.stored_pages, 2);
}

/* ---- keys -------------------------------------------------------------------------------- */

static void test_keys_never_share(void **state)
{
    struct fixture *f = *state;
    static const struct prefix_key keys[] = {{NULL, 0}, {"a", 1},   {"b", 1},
                                             {"ab", 2}, {"a\0", 2}, {"", 0}};
    int32_t pages[6][PAGES], found[PAGES];
    for (int i = 0; i < 5; i++)
        assert_int_equal(store_key(f, keys[i], "aaaabbbb", pages[i]).present, 0);
    assert_int_equal(f->pool->counts.cached, 10);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(match_key(f, keys[i], "aaaabbbb", found).pages, 2);
        assert_memory_equal(found, pages[i], 2 * sizeof(*found));
    }
    assert_int_equal(match_key(f, keys[5], "aaaabbbb", found).pages, 2); /* empty is none */
    assert_memory_equal(found, pages[0], 2 * sizeof(*found));
    struct prefix_key unknown = {"c", 1};
    assert_int_equal(match_key(f, unknown, "aaaabbbb", found).pages, 0);
}

static void test_keys_go_with_their_last_page(void **state)
{
    struct fixture *f = *state;
    int32_t pages[PAGES];
    for (uint32_t i = 0; i < 1000; i++) { /* more than there are pages */
        struct prefix_key key = {&i, sizeof(i)};
        prefix_cache_make_room(f->cache, 2);
        store_key(f, key, "aaaabbbb", pages);
        assert_true(f->cache->keys.live <= 1 + PAGES / 2);
    }
    assert_true(f->cache->keys.count <= 2 + PAGES / 2); /* numbers are used again */
    prefix_cache_reset(f->cache);
    assert_int_equal(f->cache->keys.live, 1);
}

/* ---- locks and eviction ------------------------------------------------------------------ */

static void test_evict_takes_the_oldest_from_its_end(void **state)
{
    struct fixture *f = *state;
    store(f, "aaaabbbbcccc");
    store(f, "xxxxyyyy");
    assert_int_equal(prefix_cache_evict(f->cache, 2), 2);
    assert_int_equal(peeked(f, "aaaabbbbcccc"), 4);
    assert_int_equal(peeked(f, "xxxxyyyy"), 8);
    assert_int_equal(matched(f, "aaaa"), 4); /* now the others are the oldest */
    assert_int_equal(prefix_cache_evict(f->cache, 1), 1);
    assert_int_equal(peeked(f, "aaaa"), 4);
    assert_int_equal(peeked(f, "xxxxyyyy"), 4);
    assert_int_equal(prefix_cache_evict(f->cache, 100), 2);
    assert_int_equal(f->pool->counts.free, PAGES);
}

static void test_evict_follows_use_not_age(void **state)
{
    struct fixture *f = *state;
    store(f, "aaaa1111");
    store(f, "aaaa2222");
    store(f, "aaaa3333");
    matched(f, "aaaa1111");
    assert_int_equal(prefix_cache_evict(f->cache, 1), 1);
    assert_int_equal(peeked(f, "aaaa2222"), 4);
    assert_int_equal(prefix_cache_evict(f->cache, 1), 1);
    assert_int_equal(peeked(f, "aaaa3333"), 4);
    assert_int_equal(peeked(f, "aaaa1111"), 8);
}

static void test_peek_is_no_use(void **state)
{
    struct fixture *f = *state;
    store(f, "aaaa");
    store(f, "bbbb");
    assert_int_equal(peeked(f, "aaaa"), 4);
    prefix_cache_evict(f->cache, 1);
    assert_int_equal(peeked(f, "aaaa"), 0);
    store(f, "ccccddddeeee");
    uint32_t nodes = f->cache->tree.nodes;
    assert_int_equal(peeked(f, "ccccdddd"), 8);
    assert_int_equal(f->cache->tree.nodes, nodes); /* and does not split */
}

static void test_locked_pages_stay(void **state)
{
    struct fixture *f = *state;
    int32_t pages[PAGES];
    store(f, "aaaabbbbcccc");
    struct prefix_match held = match(f, "aaaabbbb", pages);
    prefix_cache_lock(f->cache, held.node);
    assert_int_equal(f->pool->counts.locked, 2);
    assert_int_equal(prefix_cache_evict(f->cache, 100), 1);
    assert_int_equal(peeked(f, "aaaabbbbcccc"), 8);
    assert_int_equal(prefix_cache_reset(f->cache), 0);
    assert_int_equal(matched(f, "aaaabbbb"), 8);
    prefix_cache_unlock(f->cache, held.node);
    assert_int_equal(f->pool->counts.locked, 0);
    assert_int_equal(prefix_cache_reset(f->cache), 2);
}

static void test_lock_covers_the_path_and_is_counted(void **state)
{
    struct fixture *f = *state;
    struct prefix_insert upper = store(f, "aaaabbbb"), lower = store(f, "aaaabbbbcccc");
    prefix_cache_lock(f->cache, lower.node);
    prefix_cache_lock(f->cache, lower.node);
    prefix_cache_lock(f->cache, upper.node);
    assert_int_equal(f->pool->counts.locked, 3);
    prefix_cache_unlock(f->cache, lower.node);
    assert_int_equal(f->pool->counts.locked, 3);
    prefix_cache_unlock(f->cache, lower.node);
    assert_int_equal(f->pool->counts.locked, 2);
    prefix_cache_unlock(f->cache, upper.node);
    assert_int_equal(f->pool->counts.locked, 0);
}

static void test_lock_survives_a_split(void **state)
{
    struct fixture *f = *state;
    struct prefix_insert held = store(f, "aaaabbbbccccdddd");
    prefix_cache_lock(f->cache, held.node);
    store(f, "aaaaxxxx");                             /* splits it after the first page */
    assert_int_equal(matched(f, "aaaabbbbcccc"), 12); /* and again */
    assert_int_equal(f->pool->counts.locked, 4);
    assert_int_equal(prefix_cache_evict(f->cache, 100), 1);
    assert_int_equal(peeked(f, "aaaabbbbccccdddd"), 16);
    prefix_cache_unlock(f->cache, held.node);
    assert_int_equal(f->pool->counts.locked, 0);
    assert_int_equal(prefix_cache_evict(f->cache, 100), 4);
}

static void test_lock_of_nothing_is_nothing(void **state)
{
    struct fixture *f = *state;
    prefix_cache_lock(f->cache, PREFIX_NONE);
    prefix_cache_unlock(f->cache, PREFIX_NONE);
    assert_int_equal(f->pool->counts.locked, 0);
}

static void test_evict_does_not_free_what_others_hold(void **state)
{
    struct fixture *f = *state;
    int32_t pages[PAGES];
    store_key(f, PREFIX_KEY_NONE, "aaaabbbb", pages);
    page_pool_retain(f->pool, pages + 1, 1);
    assert_int_equal(prefix_cache_evict(f->cache, 1), 1); /* both go, one of them is free */
    assert_int_equal(peeked(f, "aaaa"), 0);
    assert_int_equal(f->pool->counts.used, 1);
    page_pool_release(f->pool, pages + 1, 1);
    assert_int_equal(f->pool->counts.free, PAGES);
}

static void test_make_room_evicts_ahead_and_never_in_vain(void **state)
{
    struct fixture *f = *state;
    int32_t pages[PAGES];
    struct prefix_insert held = store(f, "aaaabbbb");
    store(f, "ccccddddeeeeffffgggghhhhiiii");
    assert_true(page_pool_alloc(f->pool, -1, PAGES - 9, pages));
    prefix_cache_lock(f->cache, held.node);
    assert_false(prefix_cache_make_room(f->cache, 8));
    assert_int_equal(f->pool->counts.cached, 7);
    assert_true(prefix_cache_make_room(f->cache, 0));
    assert_int_equal(f->pool->counts.cached, 7);
    assert_true(prefix_cache_make_room(f->cache, 1));
    assert_int_equal(f->pool->counts.free, 1 + PAGES / PREFIX_EVICT_AHEAD);
    assert_true(prefix_cache_make_room(f->cache, 7));
    assert_int_equal(f->pool->counts.free, 7);
    assert_false(prefix_cache_make_room(f->cache, UINT32_MAX));
    prefix_cache_unlock(f->cache, held.node);
    page_pool_release(f->pool, pages, PAGES - 9);
}

/* ---- a request as a worker runs it ------------------------------------------------------- */

/* Chunk after chunk into the cache while it runs, each time under a new lock. */
static void test_chunked_prefill_keeps_its_path_locked(void **state)
{
    struct fixture *f = *state;
    int32_t tokens[40 * PER_PAGE], pages[40], node = PREFIX_NONE;
    for (uint32_t i = 0; i < 40 * PER_PAGE; i++)
        tokens[i] = (int32_t)(i * i);
    for (uint32_t done = 0; done < 40; done += 8) {
        assert_true(prefix_cache_make_room(f->cache, 8));
        assert_true(page_pool_alloc(f->pool, done ? pages[done - 1] : -1, 8, pages + done));
        struct prefix_insert stored;
        assert_int_equal(prefix_cache_insert(f->cache, PREFIX_KEY_NONE, tokens,
                                             (done + 8) * PER_PAGE, pages, &stored),
                         0);
        assert_int_equal(stored.present, done);
        prefix_cache_lock(f->cache, stored.node);
        prefix_cache_unlock(f->cache, node);
        node = stored.node;
        assert_int_equal(prefix_cache_evict(f->cache, 100), 0);
        assert_int_equal(f->pool->counts.locked, done + 8);
    }
    for (uint32_t i = 1; i < 40; i++)
        assert_int_equal(pages[i], pages[i - 1] + 1); /* chunks continue each other's runs */
    prefix_cache_unlock(f->cache, node);
}

/* ---- open --------------------------------------------------------------------------------- */

static void test_open_refuses_pages_without_tokens(void **state)
{
    struct fixture *f = *state;
    struct prefix_cache *cache = NULL;
    assert_int_equal(prefix_cache_open(f->pool, 0, 0, &cache, ERROR_NONE), BATON_EINVAL);
    assert_null(cache);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_match_finds_nothing_in_an_empty_cache),
        TEST(test_match_gives_the_pages_that_were_inserted),
        TEST(test_match_is_floored_to_whole_pages),
        TEST(test_insert_leaves_a_partial_last_page_to_its_request),
        TEST(test_insert_tells_duplicates_from_new_pages),
        TEST(test_insert_of_what_is_there_is_not_a_duplicate),
        TEST(test_children_may_share_the_start_of_a_page),
        TEST(test_statistics_count_lookups_and_hits),
        TEST(test_keys_never_share),
        TEST(test_keys_go_with_their_last_page),
        TEST(test_evict_takes_the_oldest_from_its_end),
        TEST(test_evict_follows_use_not_age),
        TEST(test_peek_is_no_use),
        TEST(test_locked_pages_stay),
        TEST(test_lock_covers_the_path_and_is_counted),
        TEST(test_lock_survives_a_split),
        TEST(test_lock_of_nothing_is_nothing),
        TEST(test_evict_does_not_free_what_others_hold),
        TEST(test_make_room_evicts_ahead_and_never_in_vain),
        TEST(test_chunked_prefill_keeps_its_path_locked),
        TEST(test_open_refuses_pages_without_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
