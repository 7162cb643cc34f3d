/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and shapes that break what is only made for the usual ones: prompts of a million tokens, trees
 * that are one long chain, nodes with a hundred thousand children, prompts that differ in one token. */
#include "kv/prefix_cache.h"

#include "prefix_check.h"
#include "random_source.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

struct big {
    struct page_pool *pool;
    struct prefix_cache *cache;
    int32_t *tokens, *pages, *found;
};

static struct big big_open(uint32_t pages, uint32_t tokens_per_page)
{
    static char memory;
    struct big big = {
        .tokens = calloc((size_t)pages * tokens_per_page, sizeof(int32_t)),
        .pages = calloc(pages, sizeof(int32_t)),
        .found = calloc(pages, sizeof(int32_t)),
    };
    assert_int_equal(page_pool_open(&memory, pages, 1, &big.pool, ERROR_NONE), 0);
    assert_int_equal(prefix_cache_open(big.pool, tokens_per_page, 0, &big.cache, ERROR_NONE),
                     0);
    return big;
}

static void big_close(struct big *big)
{
    uint32_t pages = big->pool->counts.pages;
    const char *wrong = prefix_check(big->cache);
    if (wrong)
        fail_msg("not true: %s", wrong);
    prefix_cache_close(big->cache);
    assert_int_equal(big->pool->counts.free, pages);
    page_pool_close(big->pool);
    free(big->tokens);
    free(big->pages);
    free(big->found);
}

static struct prefix_insert big_insert(struct big *big, uint32_t tokens)
{
    struct prefix_insert stored;
    assert_int_equal(prefix_cache_insert(big->cache, PREFIX_KEY_NONE, big->tokens, tokens,
                                         big->pages, &stored),
                     0);
    return stored;
}

static void test_million_tokens_are_split_anywhere(void **state)
{
    (void)state;
    enum { TOKENS = 1 << 20, PER_PAGE = 16, PAGES = TOKENS / PER_PAGE };
    struct big big = big_open(PAGES, PER_PAGE);
    struct random_source random = {random_seed()};
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)random.state);
    for (uint32_t i = 0; i < TOKENS; i++)
        big.tokens[i] = (int32_t)random_below(&random, 128000);
    assert_true(page_pool_alloc(big.pool, -1, PAGES, big.pages));
    struct prefix_insert stored = big_insert(&big, TOKENS);
    assert_int_equal(stored.pages, PAGES);
    prefix_cache_lock(big.cache, stored.node);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t count = random_below(&random, TOKENS);
        struct prefix_match match =
            prefix_cache_match(big.cache, PREFIX_KEY_NONE, big.tokens, count, big.found);
        assert_int_equal(match.pages, count / PER_PAGE);
        assert_memory_equal(big.found, big.pages, match.pages * sizeof(int32_t));
    }
    assert_true(big.cache->tree.nodes > 75);
    assert_int_equal(prefix_cache_evict(big.cache, PAGES), 0);
    assert_int_equal(big.pool->counts.locked, PAGES);
    prefix_cache_unlock(big.cache, stored.node);
    assert_int_equal(big.pool->counts.locked, 0);
    assert_int_equal(prefix_cache_evict(big.cache, PAGES / 2), PAGES / 2);
    assert_int_equal(prefix_cache_peek(big.cache, PREFIX_KEY_NONE, big.tokens, TOKENS),
                     TOKENS / 2);
    big_close(&big);
}

static void test_chain_of_one_page_nodes(void **state)
{
    (void)state;
    enum { PAGES = 4000 };
    struct big big = big_open(PAGES, 1);
    int32_t node = PREFIX_NONE;
    for (uint32_t i = 0; i < PAGES; i++) { /* all the same token: only the length differs */
        assert_true(page_pool_alloc(big.pool, i ? big.pages[i - 1] : -1, 1, big.pages + i));
        struct prefix_insert stored = big_insert(&big, i + 1);
        assert_int_equal(stored.present, i);
        prefix_cache_lock(big.cache, stored.node);
        prefix_cache_unlock(big.cache, node);
        node = stored.node;
    }
    assert_int_equal(big.cache->tree.nodes, PAGES);
    assert_int_equal(big.pool->counts.locked, PAGES);
    prefix_cache_unlock(big.cache, node);
    assert_int_equal(prefix_cache_evict(big.cache, PAGES - 1), PAGES - 1);
    assert_int_equal(prefix_cache_peek(big.cache, PREFIX_KEY_NONE, big.tokens, PAGES), 1);
    big_close(&big);
}

static void test_hundred_thousand_children(void **state)
{
    (void)state;
    enum { CHILDREN = 100000, PER_PAGE = 16 };
    struct big big = big_open(CHILDREN + 1, PER_PAGE);
    int32_t *own = calloc(CHILDREN + 1, sizeof(*own)); /* the last one is the parent's */
    assert_true(page_pool_alloc(big.pool, -1, CHILDREN + 1, own));
    for (int32_t i = 0; i < CHILDREN; i++) { /* they differ in their last token */
        big.tokens[2 * PER_PAGE - 1] = i;
        big.pages[0] = own[CHILDREN];
        big.pages[1] = own[i];
        struct prefix_insert stored = big_insert(&big, 2 * PER_PAGE);
        assert_int_equal(stored.present, i > 0);
    }
    for (int32_t i = 0; i < CHILDREN; i += 97) {
        big.tokens[2 * PER_PAGE - 1] = i;
        struct prefix_match match =
            prefix_cache_match(big.cache, PREFIX_KEY_NONE, big.tokens, 2 * PER_PAGE, big.found);
        assert_int_equal(match.pages, 2);
        assert_int_equal(big.found[1], own[i]);
    }
    big.tokens[2 * PER_PAGE - 1] = CHILDREN;
    assert_int_equal(prefix_cache_peek(big.cache, PREFIX_KEY_NONE, big.tokens, 2 * PER_PAGE),
                     PER_PAGE);
    free(own);
    big_close(&big);
}

/* The first prompt is all the same token; every other one leaves it at another place. */
static void test_prompts_that_differ_in_one_token(void **state)
{
    (void)state;
    enum { PER_PAGE = 4, LENGTH = 64, WHOLE = LENGTH / PER_PAGE, PAGES = WHOLE * (LENGTH + 1) };
    struct big big = big_open(PAGES, PER_PAGE);
    for (uint32_t change = LENGTH + 1; change-- > 0;) { /* LENGTH: no change */
        for (uint32_t i = 0; i < LENGTH; i++)
            big.tokens[i] = i == change ? -1 : INT32_MAX;
        assert_true(page_pool_alloc(big.pool, -1, WHOLE, big.pages));
        struct prefix_insert stored = big_insert(&big, LENGTH);
        assert_int_equal(stored.present, change == LENGTH ? 0 : change / PER_PAGE);
        page_pool_release(big.pool, big.pages, stored.present);
    }
    uint32_t expected = WHOLE; /* the first, and what comes after each change */
    for (uint32_t change = 0; change < LENGTH; change++)
        expected += WHOLE - change / PER_PAGE;
    assert_int_equal(big.pool->counts.cached, expected);
    big_close(&big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_million_tokens_are_split_anywhere),
        cmocka_unit_test(test_chain_of_one_page_nodes),
        cmocka_unit_test(test_hundred_thousand_children),
        cmocka_unit_test(test_prompts_that_differ_in_one_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
