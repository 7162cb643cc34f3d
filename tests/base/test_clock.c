/* SPDX-License-Identifier: Apache-2.0 */
/* The clock never runs backwards, and a test can push it over a deadline. */
#include "base/clock.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <time.h>

static void test_clock_never_runs_backwards(void **state)
{
    (void)state;
    uint64_t before = clock_now_ns();
    for (int i = 0; i < 100000; i++) {
        uint64_t now = clock_now_ns();
        assert_true(now >= before);
        before = now;
    }
}

static void test_clock_follows_real_time(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 5 * 1000000};
    uint64_t before = clock_now_ns();
    assert_int_equal(nanosleep(&pause, NULL), 0);
    assert_true(clock_now_ns() - before >= 5 * NS_PER_MS);
}

static void test_clock_can_be_pushed_over_a_deadline(void **state)
{
    (void)state;
    const uint64_t five_minutes = 300000 * NS_PER_MS;
    uint64_t deadline = clock_now_ns() + five_minutes;
    assert_true(clock_now_ns() < deadline);
    clock_advance_ns(five_minutes);
    assert_true(clock_now_ns() >= deadline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock_never_runs_backwards),
        cmocka_unit_test(test_clock_follows_real_time),
        cmocka_unit_test(test_clock_can_be_pushed_over_a_deadline),
    };
    return cmocka_run_group_tests_name("base.clock", tests, NULL, NULL);
}
