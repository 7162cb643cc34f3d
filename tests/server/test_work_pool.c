/* SPDX-License-Identifier: Apache-2.0 */
/* Work is done once, by several threads, in order where there is one thread, and all of it before the
 * pool is gone. */
#include "server/work_pool.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#define ITEMS 20000u
#define ADDERS 4u

struct item {
    struct work work;
    atomic_uint runs;
    uint32_t order;
};

static struct item items[ITEMS];
static atomic_uint order;
static struct work_pool *pool;

static void item_run(struct work *work)
{
    struct item *item = (struct item *)work;
    atomic_fetch_add(&item->runs, 1);
    item->order = atomic_fetch_add(&order, 1);
}

static void items_reset(void)
{
    atomic_store(&order, 0);
    for (uint32_t i = 0; i < ITEMS; i++) {
        items[i].work.run = item_run;
        atomic_store(&items[i].runs, 0);
    }
}

static void *items_add(void *argument)
{
    for (uint32_t i = (uint32_t)(uintptr_t)argument; i < ITEMS; i += ADDERS)
        work_pool_add(pool, &items[i].work);
    return NULL;
}

static void test_everything_runs_once(void **state)
{
    pthread_t adders[ADDERS];
    (void)state;
    items_reset();
    assert_int_equal(work_pool_open(3, &pool, ERROR_NONE), 0);
    for (uintptr_t i = 0; i < ADDERS; i++)
        assert_int_equal(pthread_create(&adders[i], NULL, items_add, (void *)i), 0);
    for (uint32_t i = 0; i < ADDERS; i++)
        pthread_join(adders[i], NULL);
    work_pool_close(pool); /* waits for what is queued */
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(atomic_load(&items[i].runs), 1);
}

static void test_one_thread_keeps_the_order(void **state)
{
    (void)state;
    items_reset();
    assert_int_equal(work_pool_open(1, &pool, ERROR_NONE), 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        work_pool_add(pool, &items[i].work);
    work_pool_close(pool);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(items[i].order, i);
}

static sem_t both;

static void meet(struct work *work)
{
    (void)work;
    sem_post(&both);
    for (int value = 0; value < 2;) /* until the other one runs, too */
        sem_getvalue(&both, &value);
}

static void test_threads_run_side_by_side(void **state)
{
    struct work pair[2] = {{.run = meet}, {.run = meet}};
    (void)state;
    sem_init(&both, 0, 0);
    assert_int_equal(work_pool_open(2, &pool, ERROR_NONE), 0);
    work_pool_add(pool, &pair[0]);
    work_pool_add(pool, &pair[1]);
    work_pool_close(pool);
    sem_destroy(&both);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    work_pool_close(NULL);
    assert_int_equal(work_pool_open(2, &pool, ERROR_NONE), 0);
    work_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_runs_once),
        cmocka_unit_test(test_one_thread_keeps_the_order),
        cmocka_unit_test(test_threads_run_side_by_side),
        cmocka_unit_test(test_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
