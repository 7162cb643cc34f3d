/* SPDX-License-Identifier: Apache-2.0 */
/* The router with workers that answer: what they get, what the client gets, what operators see. */
#include "fake_worker.h"

#include "net/http_fixture.h"

#include <jansson.h>
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
    bench_close(&bench);
    fake_close(&p0);
    fake_close(&d0);
}

static void test_both_get_the_body_and_one_room(void **state)
{
    char prefill[4096], decode[4096];
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_ANSWER);
    json_int_t last_room = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
        assert_string_equal(out, "{\"by\":\"d0\"}");
        AWAIT(atomic_load(&p0.requests) == (uint32_t)i + 1);
        fake_body(&p0, prefill);
        fake_body(&d0, decode);
        assert_string_equal(prefill, decode);
        json_t *body = json_loads(decode, 0, NULL);
        json_int_t room = json_integer_value(json_object_get(body, "bootstrap_room"));
        assert_string_equal(json_string_value(json_object_get(body, "text")), "hello");
        assert_string_equal(json_string_value(json_object_get(body, "bootstrap_host")),
                            "127.0.0.1");
        assert_int_equal(json_integer_value(json_object_get(body, "bootstrap_port")), 8000);
        assert_true(room > 0 && room != last_room);
        last_room = room;
        json_decref(body);
        assert_string_equal(p0.request_id, d0.request_id);
        assert_true(strlen(d0.request_id) > 8);
    }
    pair_close();
}

static void test_headers_pass_both_ways(void **state)
{
    struct answer answer;
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_ANSWER);
    int fd = client_connect(bench.port);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-7\r\n"
                    "Authorization: Bearer secret\r\nContent-Length: 2\r\n\r\n{}");
    assert_true(client_receive(fd, &answer));
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.head, "X-Request-Id: mine-7\r\n"));
    assert_non_null(strstr(answer.head, "X-By: d0\r\n"));
    assert_non_null(strstr(answer.head, "Content-Type: application/json\r\n"));
    answer_free(&answer);
    assert_string_equal(d0.request_id, "mine-7");
    assert_string_equal(d0.authorization, "Bearer secret");
    /* And again on the same connection. */
    client_send(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    expect_answer(fd, 200, "{\"by\":\"d0\"}");
    close(fd);
    pair_close();
}

/* The second event is made only after the client has the first: nothing is kept back. */
static void test_a_stream_is_not_buffered(void **state)
{
    char first[512] = "";
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_STREAM);
    int fd = bench_post(&bench, "/generate", BODY);
    for (size_t length = 0; !strstr(first, "data: 0\n\n"); length++)
        assert_int_equal(read(fd, first + length, 1), 1);
    assert_non_null(strstr(first, "Content-Type: text/event-stream\r\n"));
    fake_go(&d0);
    char rest[512] = "";
    for (size_t length = 0; !strstr(rest, "\r\n0\r\n\r\n"); length++)
        assert_int_equal(read(fd, rest + length, 1), 1);
    assert_non_null(strstr(rest, "data: 1\n\n"));
    assert_non_null(strstr(rest, "data: [DONE]\n\n"));
    close(fd);
    pair_close();
}

/* Decode's answer does not wait for prefill's. */
static void test_prefill_may_take_its_time(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_NEVER, MANNER_ANSWER);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
    pair_close();
}

static void test_prefill_rates_the_prompt(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_RATED, MANNER_RATED);
    assert_int_equal(bench_ask(&bench, "/generate", "{\"return_logprob\":true}", out), 200);
    assert_string_equal(
        out, "[{\"text\":\"d0\",\"meta_info\":{\"input_token_logprobs\":[[-0.5,7,null]]}}]");
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
    assert_string_equal(out, "[{\"text\":\"d0\",\"meta_info\":{\"input_token_logprobs\":[]}}]");
    /* Where prefill has nothing to add, decode's answer stays as it is. */
    atomic_store(&p0.manner, MANNER_ANSWER);
    assert_int_equal(bench_ask(&bench, "/generate", "{\"return_logprob\":true}", out), 200);
    assert_non_null(strstr(out, "\"input_token_logprobs\":[]"));
    pair_close();
}

static void test_without_prefill_decode_does_all(void **state)
{
    struct fake *const fakes[] = {&d0};
    (void)state;
    fake_open(&d0, "d0", MANNER_ANSWER);
    bench_open(&bench, NULL, fakes, 1);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
    fake_body(&d0, out);
    assert_string_equal(out, BODY);
    assert_true(bench_metric(&bench, "baton:router_without_prefill_total") == 1);
    bench_close(&bench);
    fake_close(&d0);
}

static void test_decode_first_asks_only_decode(void **state)
{
    struct router_options options = bench_options();
    (void)state;
    options.flow = ROUTER_DECODE_FIRST;
    pair_open(&options, MANNER_ANSWER, MANNER_ANSWER);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, out), 200);
    fake_body(&d0, out);
    assert_string_equal(out, BODY);
    assert_int_equal(atomic_load(&p0.requests), 0);
    pair_close();
}

static void test_mixed_workers_take_turns(void **state)
{
    struct fake m0, m1;
    struct fake *const fakes[] = {&m0, &m1};
    (void)state;
    fake_open(&m0, "m0", MANNER_ANSWER);
    fake_open(&m1, "m1", MANNER_ANSWER);
    bench_open(&bench, NULL, fakes, 2);
    for (int i = 0; i < 10; i++)
        assert_int_equal(bench_ask(&bench, "/v1/chat/completions", BODY, NULL), 200);
    assert_int_equal(atomic_load(&m0.requests), 5);
    assert_int_equal(atomic_load(&m1.requests), 5);
    bench_close(&bench);
    fake_close(&m0);
    fake_close(&m1);
}

static void test_least_loaded_heeds_the_load_of_others(void **state)
{
    struct router_options options = bench_options();
    struct fake *const fakes[] = {&d0, &d1};
    (void)state;
    options.policy = &policy_least_loaded;
    fake_open(&d0, "d0", MANNER_ANSWER);
    fake_open(&d1, "d1", MANNER_ANSWER);
    atomic_store(&d0.load, 9);
    bench_open(&bench, &options, fakes, 2);
    AWAIT((bench_get(&bench, "GET", "/workers", out), strstr(out, "\"other_requests\":9")));
    for (int i = 0; i < 10; i++)
        assert_int_equal(bench_ask(&bench, "/generate", BODY, NULL), 200);
    assert_int_equal(atomic_load(&d1.requests), 10);
    bench_close(&bench);
    fake_close(&d0);
    fake_close(&d1);
}

static void test_workers_come_and_go(void **state)
{
    char body[256], path[128];
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_ANSWER);
    fake_open(&p1, "p1", MANNER_ANSWER);
    fake_open(&d1, "d1", MANNER_ANSWER);
    snprintf(body, sizeof(body), "{\"url\":\"%s\",\"worker_type\":\"decode\"}", d1.url);
    assert_int_equal(bench_ask(&bench, "/workers", body, NULL), 202);
    assert_int_equal(bench_ask(&bench, "/workers", body, NULL), 409);
    /* Nobody says where its bootstrap server is: it is asked. */
    snprintf(body, sizeof(body), "{\"url\":\"%s\",\"worker_type\":\"prefill\"}", p1.url);
    assert_int_equal(bench_ask(&bench, "/workers", body, NULL), 202);
    AWAIT((bench_get(&bench, "GET", "/readiness", out), strstr(out, "\"healthy_workers\":4,")));
    assert_int_equal(bench_get(&bench, "GET", "/workers", out), 200);
    assert_non_null(strstr(out, "\"bootstrap_port\":4321"));
    snprintf(path, sizeof(path), "/workers?url=%s", d0.url);
    assert_int_equal(bench_get(&bench, "DELETE", path, NULL), 202);
    assert_int_equal(bench_get(&bench, "DELETE", path, NULL), 404);
    AWAIT((bench_get(&bench, "GET", "/workers", out), strstr(out, "\"total\":3")));
    /* And by number. */
    json_t *list = json_loads(out, 0, NULL);
    const json_t *last = json_array_get(json_object_get(list, "workers"), 0);
    snprintf(path, sizeof(path), "/workers/%s", json_string_value(json_object_get(last, "id")));
    json_decref(list);
    assert_int_equal(bench_get(&bench, "DELETE", path, NULL), 202);
    AWAIT((bench_get(&bench, "GET", "/workers", out), strstr(out, "\"total\":2")));
    uint32_t before = atomic_load(&d0.requests);
    for (int i = 0; i < 4; i++)
        assert_int_equal(bench_ask(&bench, "/generate", BODY, NULL), 200);
    assert_int_equal(atomic_load(&d0.requests), before);
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"url\":\"ftp://x\"}",
                                      "{\"url\":\"http://x:1\",\"worker_type\":\"king\"}",
                                      "{\"url\":\"http://x:1\",\"bootstrap_port\":70000}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bench_ask(&bench, "/workers", bad[i], NULL), 400);
    pair_close();
    fake_close(&p1);
    fake_close(&d1);
}

static void test_some_requests_are_for_all(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_ANSWER);
    assert_int_equal(bench_ask(&bench, "/flush_cache?timeout=1.5", "", out), 200);
    assert_non_null(strstr(out, "\"success\":true"));
    assert_int_equal(atomic_load(&p0.flushed) + atomic_load(&d0.flushed), 2);
    assert_int_equal(bench_ask(&bench, "/abort_request", "{\"rid\":\"7\"}", out), 200);
    fake_body(&p0, out);
    assert_string_equal(out, "{\"rid\":\"7\"}");
    assert_int_equal(bench_get(&bench, "GET", "/get_server_info", out), 200);
    assert_non_null(strstr(out, "\"disaggregation_bootstrap_port\":4321"));
    assert_int_equal(bench_get(&bench, "GET", "/v1/models", out), 200);
    assert_string_equal(out, "{\"by\":\"d0\"}");
    assert_int_equal(bench_get(&bench, "GET", "/nothing", out), 404);
    assert_int_equal(bench_get(&bench, "GET", "/generate", out), 405);
    assert_int_equal(bench_get(&bench, "GET", "/health", out), 200);
    pair_close();
}

static void test_an_api_key_is_asked_for_and_shown(void **state)
{
    struct router_options options = bench_options();
    (void)state;
    options.api_key = "k1";
    pair_open(&options, MANNER_ANSWER, MANNER_ANSWER);
    AWAIT(bench_get(&bench, "GET", "/readiness", NULL) == 200);
    assert_int_equal(bench_ask(&bench, "/generate", BODY, NULL), 401);
    int fd = client_connect(bench.port);
    client_send(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k1\r\n"
                    "Content-Length: 2\r\n\r\n{}");
    expect_answer(fd, 200, "{\"by\":\"d0\"}");
    close(fd);
    assert_string_equal(d0.authorization, "Bearer k1");
    pair_close();
}

static void test_metrics_count(void **state)
{
    (void)state;
    pair_open(NULL, MANNER_ANSWER, MANNER_ANSWER);
    for (int i = 0; i < 7; i++)
        assert_int_equal(bench_ask(&bench, "/generate", BODY, NULL), 200);
    assert_int_equal(bench_ask(&bench, "/generate", "no JSON", NULL), 400);
    assert_true(bench_metric(&bench, "baton:router_requests_total") == 8);
    assert_true(bench_metric(&bench, "baton:router_answers_total{kind=\"ok\"}") == 7);
    assert_true(bench_metric(&bench, "baton:router_answers_total{kind=\"refused\"}") == 1);
    assert_true(bench_metric(&bench, "baton:router_added_latency_seconds_count") == 7);
    assert_true(bench_metric(&bench, "baton:router_in_flight") == 0);
    pair_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_get_the_body_and_one_room),
        cmocka_unit_test(test_headers_pass_both_ways),
        cmocka_unit_test(test_a_stream_is_not_buffered),
        cmocka_unit_test(test_prefill_may_take_its_time),
        cmocka_unit_test(test_prefill_rates_the_prompt),
        cmocka_unit_test(test_without_prefill_decode_does_all),
        cmocka_unit_test(test_decode_first_asks_only_decode),
        cmocka_unit_test(test_mixed_workers_take_turns),
        cmocka_unit_test(test_least_loaded_heeds_the_load_of_others),
        cmocka_unit_test(test_workers_come_and_go),
        cmocka_unit_test(test_some_requests_are_for_all),
        cmocka_unit_test(test_an_api_key_is_asked_for_and_shown),
        cmocka_unit_test(test_metrics_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
