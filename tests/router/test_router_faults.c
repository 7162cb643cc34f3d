/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that refuse, die, hang, lie, and clients that leave or are slow: every request ends, with an
 * answer or with a reason, and nothing is left over. */
#include "fake_worker.h"

#include "net/http_fixture.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BODY "{\"text\":\"hello\"}"

static struct fake p0, p1, d0, d1;
static struct bench bench;
static char out[4096];

/* Two of each; the first ones behave as told, the others answer. */
static void fleet_open(const struct router_options *options, enum manner prefill,
                       enum manner decode)
{
    struct fake *const fakes[] = {&p0, &d0, &p1, &d1};
    fake_open(&p0, "p0", prefill);
    fake_open(&d0, "d0", decode);
    fake_open(&p1, "p1", MANNER_ANSWER);
    fake_open(&d1, "d1", MANNER_ANSWER);
    bench_open(&bench, options, fakes, 4);
}

static void fleet_close(void)
{
    AWAIT(router_busy(bench.router) == 0);
    bench_close(&bench);
    fake_close(&p0);
    fake_close(&p1);
    fake_close(&d0);
    fake_close(&d1);
}

static void pair_open(const struct router_options *options, enum manner prefill,
                      enum manner decode)
{
    struct fake *const fakes[] = {&p0, &d0};
    fake_open(&p0, "p0", prefill);
    fake_open(&d0, "d0", decode);
    bench_open(&bench, options, fakes, 2);
}

static void pair_close(void)
{
    AWAIT(router_busy(bench.router) == 0);
    bench_close(&bench);
    fake_close(&p0);
    fake_close(&d0);
}

static uint32_t sum(atomic_uint *a, atomic_uint *b)
{
    return atomic_load(a) + atomic_load(b);
}

/* Ten requests, of which about half meet the bad worker first. */
static void expect_all_served(void)
{
    for (int i = 0; i < 10; i++) {
        assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
        assert_string_equal(out, "{\"by\":\"d1\"}");
    }
}

static void test_decode_that_breaks_off_is_replaced(void **state)
{
    static const enum manner manners[] = {MANNER_CUT, MANNER_STATUS};
    (void)state;
    for (int i = 0; i < 2; i++) {
        fleet_open(NULL, MANNER_ANSWER, manners[i]);
        atomic_store(&d0.status, 503);
        expect_all_served();
        assert_true(atomic_load(&d0.requests) > 0);
        assert_true(bench_metric(&bench, "baton:router_retries_total") > 0);
        fleet_close();
    }
}

static void test_prefill_that_breaks_off_is_replaced(void **state)
{
    static const enum manner manners[] = {MANNER_CUT, MANNER_STATUS};
    (void)state;
    for (int i = 0; i < 2; i++) {
        fleet_open(NULL, manners[i], MANNER_NEVER);
        atomic_store(&p0.status, 500);
        atomic_store(&d1.manner, MANNER_NEVER);
        /* Both wait for prefill p0, which fails; the second try has p1. Then decode answers. */
        int fd = bench_post(&bench, "/generate", BODY);
        AWAIT(sum(&d0.requests, &d1.requests) >= 1);
        if (atomic_load(&p0.requests)) {
            AWAIT(sum(&d0.requests, &d1.requests) == 2 && atomic_load(&p1.requests) == 1);
            AWAIT(sum(&d0.left, &d1.left) == 1); /* the first decode leg was cancelled */
        }
        close(fd);
        AWAIT(sum(&d0.left, &d1.left) == sum(&d0.requests, &d1.requests));
        fleet_close();
    }
}

static void test_a_worker_that_is_gone_costs_nothing(void **state)
{
    (void)state;
    fleet_open(NULL, MANNER_ANSWER, MANNER_ANSWER);
    fake_close(&d0);
    fake_close(&p0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
    AWAIT((bench_get(&bench, "GET", "/readiness", out), strstr(out, "\"healthy_workers\":2,")));
    fake_reopen(&d0);
    fake_reopen(&p0);
    AWAIT((bench_get(&bench, "GET", "/readiness", out), strstr(out, "\"healthy_workers\":4,")));
    uint32_t before = atomic_load(&d0.requests);
    for (int i = 0; i < 10; i++)
        assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
    assert_true(atomic_load(&d0.requests) > before);
    fleet_close();
}

static void test_nobody_there_is_said(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_ANSWER);
    fake_close(&d0);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 503);
    assert_non_null(strstr(out, "0 of 1 decode"));
    assert_non_null(strstr(out, "\"code\":\"no_worker\""));
    fake_reopen(&d0);
    AWAIT(bench_ask(&bench, "/generate", BODY, out) == 200);
    pair_close();
}

/* Where the only prefill worker fails, decode gets the request alone. */
static void test_without_the_only_prefill_decode_does_all(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_STATUS, MANNER_NEVER);
    atomic_store(&p0.status, 500);
    int fd = bench_post(&bench, "/generate", BODY);
    AWAIT(atomic_load(&d0.requests) == 2);
    fake_body(&d0, out);
    assert_string_equal(out, BODY);
    close(fd);
    AWAIT(atomic_load(&d0.left) == 2);
    pair_close();
}

static void test_what_prefill_refuses_is_told_at_once(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_STATUS, MANNER_NEVER);
    atomic_store(&p0.status, 400);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 400);
    assert_non_null(strstr(out, "refused by p0"));
    AWAIT(atomic_load(&d0.left) == 1);
    assert_int_equal(atomic_load(&d0.requests), 1);
    pair_close();
}

static void test_what_decode_refuses_is_told_at_once(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_NEVER, MANNER_STATUS);
    atomic_store(&d0.status, 400);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 400);
    assert_non_null(strstr(out, "refused by d0"));
    AWAIT(atomic_load(&p0.left) == 1);
    pair_close();
}

static void test_retries_have_an_end(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_STATUS);
    atomic_store(&d0.status, 500);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 500);
    assert_non_null(strstr(out, "refused by d0"));
    assert_int_equal(atomic_load(&d0.requests), 2);
    pair_close();
    pair_open(NULL, MANNER_ANSWER, MANNER_CUT);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 502);
    assert_non_null(strstr(out, "\"code\":\"decode_failed\""));
    assert_non_null(strstr(out, d0.url + 7));
    assert_true(bench_metric(&bench, "baton:router_retries_total") == 3);
    assert_true(bench_metric(&bench, "baton:router_failures_total{kind=\"broken\"}") == 4);
    pair_close();
}

static void test_a_head_alone_can_still_be_replaced(void **state)
{
    struct router_options options = bench_options();
    (void)state;
    options.stall_ms = 100;
    fleet_open(&options, MANNER_ANSWER, MANNER_HEAD);
    for (int i = 0; i < 2; i++)
        assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
    assert_true(atomic_load(&d0.requests) > 0);
    AWAIT(atomic_load(&d0.left) == atomic_load(&d0.requests));
    fleet_close();
}

/* The client has seen a byte: it is told in the stream, and the body has no end. */
static void expect_broken_stream(const char *reason)
{
    struct answer answer;
    int fd = bench_post(&bench, "/generate", BODY);
    assert_true(client_receive(fd, &answer));
    assert_int_equal(answer.status, 200);
    assert_false(answer.whole);
    assert_non_null(memmem(answer.body, answer.length, "ata: 0\n\n", 8));
    assert_non_null(memmem(answer.body, answer.length, "data: {\"error\":{\"message\":\"", 27));
    assert_non_null(memmem(answer.body, answer.length, reason, strlen(reason)));
    answer_free(&answer);
    close(fd);
}

static void test_a_stream_that_breaks_says_so(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_HALF);
    expect_broken_stream("decode worker: 127.0.0.1:");
    assert_true(bench_metric(&bench, "baton:router_answers_total{kind=\"broken\"}") == 1);
    pair_close();
}

static void test_a_stream_that_stalls_says_so(void **state)
{
    struct router_options options = bench_options();
    (void)state;
    options.stall_ms = 100;
    pair_open(&options, MANNER_ANSWER, MANNER_STREAM);
    expect_broken_stream("has stopped in the middle");
    AWAIT(atomic_load(&d0.left) == 1);
    pair_close();
}

static void test_a_worker_that_never_answers_is_given_up(void **state)
{
    struct router_options options = bench_options();
    (void)state;
    options.first_byte_ms = 100;
    pair_open(&options, MANNER_ANSWER, MANNER_NEVER);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 504);
    assert_non_null(strstr(out, "\"code\":\"decode_timeout\""));
    AWAIT(atomic_load(&d0.left) == 1);
    pair_close();
}

/* It takes requests but answers neither them nor health checks: those that wait go elsewhere. */
static void test_requests_leave_a_sick_worker(void **state)
{
    (void)state;
    fleet_open(NULL, MANNER_ANSWER, MANNER_NEVER);
    atomic_store(&d1.manner, MANNER_NEVER);
    int fd = bench_post(&bench, "/generate", BODY);
    AWAIT(sum(&d0.requests, &d1.requests) == 1);
    struct fake *waiting = atomic_load(&d0.requests) ? &d0 : &d1;
    struct fake *other = waiting == &d0 ? &d1 : &d0;
    atomic_store(&other->manner, MANNER_ANSWER);
    atomic_store(&waiting->sick, true);
    expect_answer(fd, 200, other == &d1 ? "{\"by\":\"d1\"}" : "{\"by\":\"d0\"}");
    AWAIT(atomic_load(&waiting->left) == 1);
    close(fd);
    atomic_store(&waiting->sick, false);
    AWAIT((bench_get(&bench, "GET", "/readiness", out), strstr(out, "\"healthy_workers\":4,")));
    fleet_close();
}

static void test_garbage_and_half_answers_are_replaced(void **state)
{
    static const enum manner manners[] = {MANNER_GARBAGE, MANNER_SHORT};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fake *const fakes[] = {&p0, &d0, &d1};
        fake_open(&p0, "p0", MANNER_ANSWER);
        raw_open(&d0, "d0", manners[i]);
        fake_open(&d1, "d1", MANNER_ANSWER);
        bench_open(&bench, NULL, fakes, 3);
        expect_all_served();
        assert_true(atomic_load(&d0.requests) > 0);
        bench_close(&bench);
        fake_close(&p0);
        raw_close(&d0);
        fake_close(&d1);
    }
}

static void test_a_client_that_leaves_cancels_both(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_NEVER, MANNER_NEVER);
    for (uint32_t i = 1; i <= 5; i++) {
        int fd = bench_post(&bench, "/generate", BODY);
        AWAIT(atomic_load(&p0.requests) == i && atomic_load(&d0.requests) == i);
        close(fd);
        AWAIT(atomic_load(&d0.left) == i);
        /* Prefill's leg is not merely forgotten. */
        assert_int_equal(bench_get(&bench, "GET", "/workers", out), 200);
        assert_null(strstr(out, "\"in_flight\":1"));
        AWAIT(atomic_load(&p0.left) == i);
    }
    /* And in the middle of a stream. */
    atomic_store(&d0.manner, MANNER_STREAM);
    int fd = bench_post(&bench, "/generate", BODY);
    char byte;
    assert_int_equal(read(fd, &byte, 1), 1);
    close(fd);
    AWAIT(atomic_load(&p0.left) == 6 && atomic_load(&d0.left) == 6);
    pair_close();
}

/* The worker makes 64 MB, the client reads nothing: most of it must not have been made. */
static void test_a_slow_client_holds_the_worker(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_ENDLESS);
    int fd = client_connect(bench.port);
    client_send(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    AWAIT(bench_metric(&bench, "baton:router_streams_held_total") >= 1);
    size_t before, stable = 0;
    for (int i = 0; i < 20000 && stable < 100; i++) {
        before = atomic_load(&d0.written);
        fake_moment();
        stable = atomic_load(&d0.written) == before ? stable + 1 : 0;
    }
    assert_true(stable == 100);
    assert_true(atomic_load(&d0.written) < 48u << 20);
    /* It goes on when the client does, to the end. */
    static char block[1 << 18];
    size_t length = 0;
    char end[5] = "";
    while (memcmp(end, "0\r\n\r\n", 5) != 0) {
        ssize_t got = read(fd, block, sizeof(block));
        assert_true(got > 0);
        length += (size_t)got;
        size_t kept = got < 5 ? (size_t)got : 5;
        memmove(end, end + kept, 5 - kept);
        memcpy(end + 5 - kept, block + got - kept, kept);
    }
    assert_true(length >= 64u << 20);
    close(fd);
    pair_close();
}

static void test_too_many_requests_are_refused(void **state)
{
    struct router_options options = bench_options();
    int fds[3];
    (void)state;
    options.max_in_flight = 3;
    pair_open(&options, MANNER_NEVER, MANNER_NEVER);
    for (int i = 0; i < 3; i++)
        fds[i] = bench_post(&bench, "/generate", BODY);
    AWAIT(router_busy(bench.router) == 3);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 429);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    pair_close();
}

/* Closing it with requests at every stage: the clients are cut, nothing is touched after that. */
static void test_closing_cuts_what_is_there(void **state)
{
    int fds[8];
    (void)state;
    pair_open(NULL, MANNER_NEVER, MANNER_NEVER);
    for (int i = 0; i < 8; i++) {
        atomic_store(&d0.manner, i % 2 ? MANNER_STREAM : MANNER_NEVER);
        fds[i] = bench_post(&bench, "/generate", BODY);
        AWAIT(atomic_load(&d0.requests) == (uint32_t)i + 1);
    }
    bench_close(&bench);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    AWAIT(atomic_load(&d0.left) == 8);
    fake_close(&p0);
    fake_close(&d0);
}

/* Several loops, many clients, workers whose manners change all the time: everything ends, and the
 * counts come out even. */
struct crowd {
    atomic_uint ended, good;
};

static void *client_run(void *context)
{
    struct crowd *crowd = context;
    for (int i = 0; i < 40; i++) {
        struct answer answer;
        int fd = bench_post(&bench, "/generate", BODY);
        if (i % 8 == 3)
            close(fd); /* and away */
        else {
            bool came = client_receive(fd, &answer);
            atomic_fetch_add(&crowd->good, came && answer.status == 200 && answer.whole);
            answer_free(&answer);
            close(fd);
        }
    }
    atomic_fetch_add(&crowd->ended, 1);
    return NULL;
}

static void test_a_crowd_among_changing_manners(void **state)
{
    static const enum manner manners[] = {MANNER_ANSWER, MANNER_CUT,    MANNER_HALF,
                                          MANNER_ANSWER, MANNER_STATUS, MANNER_NEVER};
    struct router_options options = bench_options();
    struct crowd crowd = {0};
    pthread_t clients[6];
    (void)state;
    options.threads = 3;
    options.first_byte_ms = 200;
    fleet_open(&options, MANNER_ANSWER, MANNER_ANSWER);
    atomic_store(&p0.status, 500);
    atomic_store(&d0.status, 503);
    for (int i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, client_run, &crowd), 0);
    for (uint32_t i = 0; atomic_load(&crowd.ended) < 6; i++) {
        atomic_store(&d0.manner, manners[i % 6]);
        atomic_store(&p0.manner, manners[(i / 6) % 6]);
        fake_moment();
    }
    for (int i = 0; i < 6; i++)
        pthread_join(clients[i], NULL);
    assert_true(atomic_load(&crowd.good) > 60);
    AWAIT(bench_metric(&bench, "baton:router_in_flight") == 0);
    atomic_store(&p0.manner, MANNER_ANSWER);
    atomic_store(&d0.manner, MANNER_ANSWER);
    AWAIT((bench_get(&bench, "GET", "/workers", out),
           !strstr(out, "\"in_flight\":1") && !strstr(out, "\"in_flight\":2")));
    fleet_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_that_breaks_off_is_replaced),
        cmocka_unit_test(test_prefill_that_breaks_off_is_replaced),
        cmocka_unit_test(test_a_worker_that_is_gone_costs_nothing),
        cmocka_unit_test(test_nobody_there_is_said),
        cmocka_unit_test(test_without_the_only_prefill_decode_does_all),
        cmocka_unit_test(test_what_prefill_refuses_is_told_at_once),
        cmocka_unit_test(test_what_decode_refuses_is_told_at_once),
        cmocka_unit_test(test_retries_have_an_end),
        cmocka_unit_test(test_a_head_alone_can_still_be_replaced),
        cmocka_unit_test(test_a_stream_that_breaks_says_so),
        cmocka_unit_test(test_a_stream_that_stalls_says_so),
        cmocka_unit_test(test_a_worker_that_never_answers_is_given_up),
        cmocka_unit_test(test_requests_leave_a_sick_worker),
        cmocka_unit_test(test_garbage_and_half_answers_are_replaced),
        cmocka_unit_test(test_a_client_that_leaves_cancels_both),
        cmocka_unit_test(test_a_slow_client_holds_the_worker),
        cmocka_unit_test(test_too_many_requests_are_refused),
        cmocka_unit_test(test_closing_cuts_what_is_there),
        cmocka_unit_test(test_a_crowd_among_changing_manners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
