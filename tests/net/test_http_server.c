/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server as good clients use it: requests in every legal shape, answers at once, later, from
 * another thread and in pieces, keep-alive and its ends, keys, and browsers. */
#include "http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct fixture fixture;

static int setup(void **state)
{
    struct http_server_options options = {0};
    (void)state;
    fixture_open(&fixture, &options);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_close(&fixture);
    return 0;
}

static void test_answers_now_later_and_from_a_thread(void **state)
{
    (void)state;
    int fd = client_connect(fixture.port);
    for (int i = 0; i < 3; i++) {
        client_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        expect_answer(fd, 200, "hello");
        client_send(fd, "GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
        expect_answer(fd, 200, "later");
        client_send(fd, "GET /thread HTTP/1.1\r\nHost: x\r\n\r\n");
        expect_answer(fd, 200, "thread");
    }
    close(fd);
    fixture_await_connections(&fixture, 0);
    assert_int_equal(atomic_load(&fixture.left), 0);
}

static void test_body_query_and_path_are_decoded(void **state)
{
    struct answer answer;
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "POST //echo//a%20b%2Fc?y=1&x=%41+b%26&x=second HTTP/1.1\r\n"
                    "Content-Length: 4\r\n\r\n\x01"
                    "23\n");
    assert_true(client_receive(fd, &answer));
    assert_memory_equal(answer.body,
                        "\x01"
                        "23\n",
                        4);
    assert_non_null(strstr(answer.head, "X-Path: /echo/a b/c\r\n"));
    assert_non_null(strstr(answer.head, "X-Echo: A b&\r\n"));
    assert_non_null(strstr(answer.head, "\r\nDate: "));
    answer_free(&answer);
    /* As proxies write targets, and a header that would be two. */
    client_send(fd, "GET http://somewhere:80/echo?x=a%0d%0aSet-Cookie:b HTTP/1.1\r\n\r\n");
    assert_true(client_receive(fd, &answer));
    assert_non_null(strstr(answer.head, "X-Path: /echo\r\n"));
    assert_null(strstr(answer.head, "Set-Cookie"));
    answer_free(&answer);
    close(fd);
}

static void test_chunked_bodies(void **state)
{
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                    "3\r\nabc\r\n00a;name=value\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n");
    expect_answer(fd, 200, "abc0123456789");
    client_send(fd, "GET /hello HTTP/1.1\r\n\r\n");
    expect_answer(fd, 200, "hello");
    close(fd);
}

/* A whole session, cut at each byte into two writes. */
static void test_requests_cut_anywhere(void **state)
{
    static const char text[] = "POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nfirst"
                               "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "6\r\nsecond\r\n0\r\n\r\n"
                               "GET /hello HTTP/1.1\r\n\r\n";
    (void)state;
    for (size_t cut = 1; cut < sizeof(text) - 1; cut++) {
        int fd = client_connect(fixture.port);
        client_send_bytes(fd, text, cut);
        sched_yield();
        client_send_bytes(fd, text + cut, sizeof(text) - 1 - cut);
        expect_answer(fd, 200, "first");
        expect_answer(fd, 200, "second");
        expect_answer(fd, 200, "hello");
        close(fd);
    }
}

static void test_pipelined_requests_are_answered_in_order(void **state)
{
    enum { COUNT = 100 };
    (void)state;
    int fd = client_connect(fixture.port);
    for (int i = 0; i < COUNT; i++) {
        client_send(fd, "GET /later HTTP/1.1\r\n\r\nGET /hello HTTP/1.1\r\n\r\n"
                        "GET /stream?count=2&size=1 HTTP/1.1\r\n\r\n");
    }
    for (int i = 0; i < COUNT; i++) {
        expect_answer(fd, 200, "later");
        expect_answer(fd, 200, "hello");
        expect_answer(fd, 200, "ab");
    }
    close(fd);
}

static void test_stream_is_one_chunk_per_write(void **state)
{
    struct answer answer;
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /stream?count=7&size=3 HTTP/1.1\r\n\r\n");
    assert_true(client_receive(fd, &answer));
    assert_int_equal(answer.chunks, 7);
    assert_string_equal(answer.body, "aaabbbcccdddeeefffggg");
    assert_non_null(strstr(answer.head, "Content-Type: text/event-stream\r\n"));
    answer_free(&answer);
    client_send(fd, "GET /hello HTTP/1.1\r\n\r\n");
    expect_answer(fd, 200, "hello");
    close(fd);
}

static void test_cut_stream_is_seen_to_be_incomplete(void **state)
{
    struct answer answer;
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /cut HTTP/1.1\r\n\r\n");
    assert_true(client_receive(fd, &answer));
    assert_false(answer.whole);
    answer_free(&answer);
    close(fd);
    fd = client_connect(fixture.port);
    client_send(fd, "GET /cut HTTP/1.0\r\n\r\n");
    assert_true(!client_receive(fd, &answer) || !answer.whole); /* a reset, not an end */
    answer_free(&answer);
    close(fd);
}

static void test_old_clients(void **state)
{
    struct answer answer;
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /stream?count=3&size=2 HTTP/1.0\r\n\r\n");
    assert_true(client_receive(fd, &answer)); /* no chunks: it ends with the connection */
    assert_string_equal(answer.body, "aabbcc");
    assert_int_equal(answer.chunks, 0);
    assert_null(strstr(answer.head, "chunked"));
    answer_free(&answer);
    close(fd);
    fd = client_connect(fixture.port);
    client_send(fd, "GET /hello HTTP/1.0\nConnection: Keep-Alive\n\n");
    assert_true(client_receive(fd, &answer));
    assert_non_null(strstr(answer.head, "Connection: keep-alive\r\n"));
    answer_free(&answer);
    client_send(fd, "GET /hello HTTP/1.0\r\n\r\n");
    expect_answer(fd, 200, "hello");
    assert_true(client_at_end(fd));
    close(fd);
}

static void test_connection_close_is_honoured(void **state)
{
    struct answer answer;
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(
        fd, "GET /hello HTTP/1.1\r\nConnection: x, CLOSE\r\n\r\nGET /hello HTTP/1.1\r\n\r\n");
    assert_true(client_receive(fd, &answer));
    assert_non_null(strstr(answer.head, "Connection: close\r\n"));
    answer_free(&answer);
    assert_true(client_at_end(fd));
    close(fd);
}

static void test_head_and_options(void **state)
{
    struct answer answer;
    char text[512];
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "HEAD /hello HTTP/1.1\r\n\r\nHEAD /stream?count=2&size=1 HTTP/1.1\r\n\r\n"
                    "OPTIONS /v1/anything HTTP/1.1\r\nOrigin: http://a\r\n"
                    "Access-Control-Request-Headers: x-mine\r\n\r\n"
                    "GET /hello HTTP/1.1\r\nOrigin: http://a\r\n\r\n");
    for (int i = 0; i < 2; i++) { /* no body follows these heads */
        size_t length = 0;
        while (length < 4 || memcmp(text + length - 4, "\r\n\r\n", 4))
            assert_int_equal(recv(fd, text + length++, 1, 0), 1);
        text[length] = 0;
        assert_non_null(strstr(text, i ? "chunked" : "Content-Length: 5"));
    }
    assert_true(client_receive(fd, &answer));
    assert_int_equal(answer.status, 204);
    assert_non_null(strstr(answer.head, "Access-Control-Allow-Origin: *\r\n"));
    assert_non_null(strstr(answer.head, "Access-Control-Allow-Headers: x-mine\r\n"));
    answer_free(&answer);
    assert_true(client_receive(fd, &answer));
    assert_string_equal(answer.body, "hello");
    assert_non_null(strstr(answer.head, "Access-Control-Allow-Origin: *\r\n"));
    answer_free(&answer);
    close(fd);
}

static void test_expect_continue(void **state)
{
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    expect_answer(fd, 100, NULL);
    client_send(fd, "abc");
    expect_answer(fd, 200, "abc");
    close(fd);
}

static void test_large_bodies_both_ways(void **state)
{
    enum { SIZE = 3 << 20 };
    struct answer answer;
    char head[128];
    char *body = malloc(SIZE);
    (void)state;
    for (int i = 0; i < SIZE; i++)
        body[i] = (char)(i * 7 + i / 251);
    int fd = client_connect(fixture.port);
    snprintf(head, sizeof(head), "POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n", SIZE);
    client_send(fd, head);
    client_send_bytes(fd, body, SIZE);
    assert_true(client_receive(fd, &answer));
    assert_int_equal(answer.length, SIZE);
    assert_memory_equal(answer.body, body, SIZE);
    answer_free(&answer);
    close(fd);
    free(body);
}

static void test_errors_are_json(void **state)
{
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /nowhere HTTP/1.1\r\n\r\n");
    expect_answer(
        fd, 404,
        "{\"error\":{\"message\":\"no \\\"such\\\" path\",\"type\":\"not_found_error\","
        "\"param\":null,\"code\":null}}");
    close(fd);
}

static bool is_open_path(const char *path)
{
    return !strcmp(path, "/hello");
}

static int request_with(uint16_t port, const char *path, const char *authorization)
{
    struct answer answer;
    char request[512];
    int fd = client_connect(port);
    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\n%s\r\n", path, authorization);
    client_send(fd, request);
    assert_true(client_receive(fd, &answer));
    int status = answer.status;
    answer_free(&answer);
    close(fd);
    return status;
}

static void test_api_key(void **state)
{
    struct fixture keyed;
    struct http_server_options options = {.api_key = "secret", .open_path = is_open_path};
    (void)state;
    fixture_open(&keyed, &options);
    assert_int_equal(request_with(keyed.port, "/hello", ""), 200);
    assert_int_equal(request_with(keyed.port, "/echo", ""), 401);
    assert_int_equal(request_with(keyed.port, "/echo", "Authorization: Bearer secre\r\n"), 401);
    assert_int_equal(request_with(keyed.port, "/echo", "Authorization: Bearer secret2\r\n"),
                     401);
    assert_int_equal(request_with(keyed.port, "/echo", "Authorization: Basic secret\r\n"), 401);
    assert_int_equal(request_with(keyed.port, "/echo", "authorization: bearer secret\r\n"),
                     200);
    assert_int_equal(atomic_load(&keyed.handled), 2);
    /* Refused before the body is there, and the connection with it. */
    int fd = client_connect(keyed.port);
    client_send(fd, "POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc");
    expect_answer(fd, 401, NULL);
    assert_true(client_at_end(fd));
    close(fd);
    fixture_close(&keyed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers_now_later_and_from_a_thread, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_body_query_and_path_are_decoded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_chunked_bodies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_requests_cut_anywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pipelined_requests_are_answered_in_order, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_stream_is_one_chunk_per_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_stream_is_seen_to_be_incomplete, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_old_clients, setup, teardown),
        cmocka_unit_test_setup_teardown(test_connection_close_is_honoured, setup, teardown),
        cmocka_unit_test_setup_teardown(test_head_and_options, setup, teardown),
        cmocka_unit_test_setup_teardown(test_expect_continue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_bodies_both_ways, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors_are_json, setup, teardown),
        cmocka_unit_test(test_api_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
