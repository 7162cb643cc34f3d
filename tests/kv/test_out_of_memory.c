/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of kv fails once, the first, the second and so on: each time the caller is told, and
 * nothing is left behind or half done. The linker puts the functions below in front of the C
 * library's (--wrap). */
#include "kv/prefix_cache.h"

#include "prefix_check.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 100u
#define PER_PAGE 4u
#define NEVER UINT32_MAX

static uint32_t fails_after = NEVER; /* so many allocations from now */
static uint32_t outstanding;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void __wrap_free(void *memory);

static bool fails(void)
{
    return fails_after != NEVER && fails_after-- == 0;
}

static void *counted(void *memory)
{
    outstanding += memory != NULL;
    return memory;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *memory, size_t size)
{
    if (fails())
        return NULL;
    return memory ? __real_realloc(memory, size) : counted(__real_malloc(size));
}

void __wrap_free(void *memory)
{
    outstanding -= memory != NULL;
    __real_free(memory);
}

static void test_open_fails_at_every_allocation(void **state)
{
    (void)state;
    static char memory[PAGES];
    uint32_t failures = 0;
    for (uint32_t nth = 0;; nth++) {
        struct page_pool *pool = NULL;
        struct prefix_cache *cache = NULL;
        char text[200] = "";
        uint32_t before = outstanding;
        fails_after = nth;
        int rc = page_pool_open(memory, PAGES, 1, &pool, ERROR_BUFFER(text));
        if (!rc)
            rc = prefix_cache_open(pool, PER_PAGE, 16, &cache, ERROR_BUFFER(text));
        bool done = fails_after != NEVER;
        fails_after = NEVER;
        prefix_cache_close(cache);
        page_pool_close(pool);
        assert_int_equal(outstanding, before);
        if (done)
            break;
        failures++;
        assert_int_equal(rc, BATON_ENOMEM);
        assert_non_null(strstr(text, "no memory"));
    }
    assert_true(failures >= 10);
}

/* A key is the one thing for which the cache needs memory after open. */
static void test_insert_with_a_new_key_fails_and_changes_nothing(void **state)
{
    (void)state;
    static char memory[PAGES];
    struct page_pool *pool;
    struct prefix_cache *cache;
    int32_t tokens[PER_PAGE] = {1, 2, 3, 4}, page;
    uint32_t failures = 0, before = outstanding;
    assert_int_equal(page_pool_open(memory, PAGES, 1, &pool, ERROR_NONE), 0);
    assert_int_equal(prefix_cache_open(pool, PER_PAGE, 0, &cache, ERROR_NONE), 0);
    for (uint32_t i = 0; i < PAGES; i++) {
        struct prefix_key key = {&i, sizeof(i)};
        struct prefix_insert stored = {.pages = 77};
        assert_true(page_pool_alloc(pool, -1, 1, &page));
        for (uint32_t nth = 0;; nth++) {
            fails_after = nth;
            int rc = prefix_cache_insert(cache, key, tokens, PER_PAGE, &page, &stored);
            bool done = fails_after != NEVER;
            fails_after = NEVER;
            if (done) {
                assert_int_equal(rc, BATON_OK);
                break;
            }
            failures++;
            assert_int_equal(rc, BATON_ENOMEM);
            assert_int_equal(stored.pages, 77);
            assert_int_equal(page_pool_state(pool, page), PAGE_USED);
            assert_int_equal(prefix_cache_peek(cache, key, tokens, PER_PAGE), 0);
        }
        assert_int_equal(stored.pages, 1);
        assert_null(prefix_check(cache));
    }
    assert_true(failures > PAGES); /* one for each key, and more where the table grew */
    prefix_cache_close(cache);
    assert_int_equal(pool->counts.free, PAGES);
    page_pool_close(pool);
    assert_int_equal(outstanding, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_fails_at_every_allocation),
        cmocka_unit_test(test_insert_with_a_new_key_fails_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
