/* SPDX-License-Identifier: Apache-2.0 */
/* The queue loses nothing, keeps the order of each producer, and its bell wakes a consumer that
 * sleeps. Worth most under ThreadSanitizer. */
#include "base/mpsc.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct item {
    struct mpsc_node node;
    int producer;
    int number;
};

static struct item *item_of(struct mpsc_node *node)
{
    return node ? (struct item *)((char *)node - offsetof(struct item, node)) : NULL;
}

static void test_mpsc_new_queue_is_empty(void **state)
{
    (void)state;
    struct mpsc queue;
    mpsc_init(&queue);
    assert_null(mpsc_pop(&queue));
    assert_null(mpsc_pop(&queue));
}

static void test_mpsc_is_first_in_first_out(void **state)
{
    (void)state;
    struct mpsc queue;
    struct item items[5] = {{.number = 0}};
    mpsc_init(&queue);
    for (int i = 0; i < 5; i++)
        mpsc_push(&queue, &items[i].node);
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(item_of(mpsc_pop(&queue)), &items[i]);
    assert_null(mpsc_pop(&queue));
}

static void test_mpsc_node_can_be_queued_again_once_popped(void **state)
{
    (void)state;
    struct mpsc queue;
    struct item a = {.number = 0}, b = {.number = 0};
    mpsc_init(&queue);
    for (int round = 0; round < 1000; round++) {
        mpsc_push(&queue, &a.node);
        if (round % 3)
            mpsc_push(&queue, &b.node);
        assert_ptr_equal(item_of(mpsc_pop(&queue)), &a);
        if (round % 3)
            assert_ptr_equal(item_of(mpsc_pop(&queue)), &b);
        assert_null(mpsc_pop(&queue));
    }
}

#define PRODUCERS 4
#define ITEMS 20000

struct shared {
    struct mpsc queue;
    struct bell bell;
};

struct producer {
    pthread_t thread;
    struct shared *shared;
    struct item *items;
};

static void *produce(void *argument)
{
    struct producer *producer = argument;
    for (int i = 0; i < ITEMS; i++) {
        mpsc_push(&producer->shared->queue, &producer->items[i].node);
        bell_ring(&producer->shared->bell);
    }
    return NULL;
}

/* Sleeps on the bell only, so that a ring that is lost shows as a time-out. */
static void consume_all(struct shared *shared, int *next)
{
    for (int left = PRODUCERS * ITEMS; left > 0;) {
        struct pollfd readable = {.fd = shared->bell.fd, .events = POLLIN};
        assert_int_equal(poll(&readable, 1, 20000), 1);
        bell_answer(&shared->bell);
        for (struct item *item; (item = item_of(mpsc_pop(&shared->queue))); left--)
            assert_int_equal(item->number, next[item->producer]++);
    }
}

static void test_mpsc_many_producers_lose_nothing_and_keep_their_order(void **state)
{
    (void)state;
    struct shared shared;
    struct producer producers[PRODUCERS];
    int next[PRODUCERS] = {0};
    mpsc_init(&shared.queue);
    assert_int_equal(bell_open(&shared.bell), 0);
    for (int p = 0; p < PRODUCERS; p++) {
        producers[p].shared = &shared;
        producers[p].items = calloc(ITEMS, sizeof(struct item));
        assert_non_null(producers[p].items);
        for (int i = 0; i < ITEMS; i++) {
            producers[p].items[i].producer = p;
            producers[p].items[i].number = i;
        }
    }
    for (int p = 0; p < PRODUCERS; p++)
        assert_int_equal(pthread_create(&producers[p].thread, NULL, produce, &producers[p]), 0);
    consume_all(&shared, next);
    for (int p = 0; p < PRODUCERS; p++)
        assert_int_equal(pthread_join(producers[p].thread, NULL), 0);
    assert_null(mpsc_pop(&shared.queue));
    for (int p = 0; p < PRODUCERS; p++) {
        assert_int_equal(next[p], ITEMS);
        free(producers[p].items);
    }
    bell_close(&shared.bell);
}

static int readable_now(const struct bell *bell)
{
    struct pollfd readable = {.fd = bell->fd, .events = POLLIN};
    return poll(&readable, 1, 0);
}

static void test_bell_is_readable_from_ring_to_answer(void **state)
{
    (void)state;
    struct bell bell;
    assert_int_equal(bell_open(&bell), 0);
    assert_int_equal(readable_now(&bell), 0);
    bell_ring(&bell);
    bell_ring(&bell);
    assert_int_equal(readable_now(&bell), 1);
    bell_answer(&bell);
    assert_int_equal(readable_now(&bell), 0);
    bell_answer(&bell); /* woken for another reason: must not block */
    bell_ring(&bell);
    assert_int_equal(readable_now(&bell), 1);
    bell_close(&bell);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mpsc_new_queue_is_empty),
        cmocka_unit_test(test_mpsc_is_first_in_first_out),
        cmocka_unit_test(test_mpsc_node_can_be_queued_again_once_popped),
        cmocka_unit_test(test_mpsc_many_producers_lose_nothing_and_keep_their_order),
        cmocka_unit_test(test_bell_is_readable_from_ring_to_answer),
    };
    return cmocka_run_group_tests_name("base.mpsc", tests, NULL, NULL);
}
