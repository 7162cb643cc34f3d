/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server against clients that send garbage, half of something, too much, too slowly, do not
 * read, or leave. After each the same server must still answer, and hold nothing of them. */
#include "http_fixture.h"

#include "base/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS (1000 * NS_PER_MS)
#define BODY_MAX 100000
#define HEADER_MAX 8192

static struct fixture fixture;

static int setup(void **state)
{
    struct http_server_options options = {.body_max = BODY_MAX, .header_max = HEADER_MAX};
    (void)state;
    fixture_open(&fixture, &options);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(client_get(fixture.port, "/hello"), 200);
    fixture_await_connections(&fixture, 0);
    fixture_close(&fixture);
    return 0;
}

static void leave(int fd, bool reset)
{
    struct linger at_once = {1, 0};
    if (reset)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    close(fd);
}

/* Sends, and expects a refusal in JSON and then the end. */
static void refused(const void *bytes, size_t length, int status)
{
    struct answer answer;
    int fd = client_connect(fixture.port);
    client_send_bytes(fd, bytes, length);
    assert_true(client_receive(fd, &answer));
    assert_int_equal(answer.status, status);
    assert_true(answer.whole);
    assert_non_null(strstr(answer.head, "Content-Type: application/json\r\n"));
    assert_non_null(strstr(answer.head, "Connection: close\r\n"));
    assert_ptr_equal(strstr(answer.body, "{\"error\":{\"message\":\""), answer.body);
    answer_free(&answer);
    assert_true(client_at_end(fd));
    close(fd);
}

static void test_garbage(void **state)
{
    static const uint8_t hello[] = {0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3};
    char noise[4096];
    (void)state;
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (char)(i * 31 + i / 7 + 129);
    refused(noise, sizeof(noise), 400);
    refused(hello, sizeof(hello), 400); /* TLS */
    refused("GET /hello\r\n\r\n", 14, 400);
    refused("GET hello HTTP/1.1\r\n\r\n", 22, 400);
    refused("GET /%zz HTTP/1.1\r\n\r\n", 21, 400);
    refused("GET / HTTP/3.1\r\n\r\n", 18, 505);
    refused("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 56, 400);
    assert_int_equal(atomic_load(&fixture.handled), 0);
}

static void test_http2_is_closed_at_once(void **state)
{
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_true(client_at_end(fd));
    close(fd);
}

static void test_huge_header(void **state)
{
    size_t length = 1 << 20;
    char *text = malloc(length);
    (void)state;
    memset(text, 'a', length);
    memcpy(text, "GET /hello HTTP/1.1\r\nA: ", 24);
    refused(text, length, 431);
    memset(text, 'A', length); /* a first line that does not end */
    refused(text, length, 431);
    /* As long as allowed is allowed. */
    memset(text, 'a', length);
    memcpy(text, "GET /hello HTTP/1.1\r\nA: ", 24);
    memcpy(text + HEADER_MAX - 4, "\r\n\r\n", 4);
    int fd = client_connect(fixture.port);
    client_send_bytes(fd, text, HEADER_MAX);
    expect_answer(fd, 200, "hello");
    close(fd);
    memcpy(text + HEADER_MAX - 4, "aaaa", 4);
    memcpy(text + HEADER_MAX - 3, "\r\n\r\n", 4);
    refused(text, HEADER_MAX + 1, 431);
    free(text);
}

static void test_huge_body(void **state)
{
    static char zeros[1 << 20];
    char head[128];
    (void)state;
    /* Announced: refused at once, the client need not send it. */
    int length = snprintf(head, sizeof(head),
                          "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\n"
                          "Content-Length: %d\r\n\r\n",
                          BODY_MAX + 1);
    refused(head, (size_t)length, 413);
    /* Sent all the same: it may be, so that every client gets to read the answer. */
    int fd = client_connect(fixture.port);
    snprintf(head, sizeof(head), "POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n", 8 << 20);
    client_send(fd, head);
    for (int i = 0; i < 8; i++)
        assert_true(client_send_bytes(fd, zeros, sizeof(zeros)));
    expect_answer(fd, 413, NULL);
    close(fd);
    /* Not announced. */
    fd = client_connect(fixture.port);
    client_send(fd, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFF\r\n");
    client_send_bytes(fd, zeros, sizeof(zeros));
    expect_answer(fd, 413, NULL);
    close(fd);
    assert_int_equal(atomic_load(&fixture.handled), 0);
}

static void test_leaving_at_every_byte(void **state)
{
    static const char text[] = "POST /echo HTTP/1.1\r\nContent-Length: 20\r\n\r\n0123456789";
    (void)state;
    for (size_t length = 0; length < sizeof(text); length++) {
        int fd = client_connect(fixture.port);
        client_send_bytes(fd, text, length);
        leave(fd, length % 2);
    }
    fixture_await_connections(&fixture, 0);
    assert_int_equal(atomic_load(&fixture.handled), 0);
    assert_int_equal(atomic_load(&fixture.left), 0);
}

static void test_leaving_while_the_answer_is_awaited(void **state)
{
    static char zeros[100000];
    (void)state;
    for (uint32_t i = 1; i <= 4; i++) {
        int fd = client_connect(fixture.port);
        client_send(fd, "GET /never HTTP/1.1\r\n\r\n");
        fixture_await(&fixture.handled, i);
        if (i == 3)
            client_send(fd, "GET /hello HTTP/1.1\r\n\r\n"); /* pipelined */
        if (i == 4) /* so much of it that the server reads no more */
            client_send_bytes(fd, zeros, sizeof(zeros));
        leave(fd, i == 2);
        fixture_await(&fixture.left, i);
    }
}

static void test_leaving_while_the_answer_streams(void **state)
{
    struct answer answer;
    char byte;
    (void)state;
    for (uint32_t i = 1; i <= 2; i++) {
        int fd = client_connect(fixture.port);
        client_send(fd, "GET /stream?count=1000000&size=10 HTTP/1.1\r\n\r\n");
        assert_int_equal(recv(fd, &byte, 1, 0), 1);
        leave(fd, i == 2);
        fixture_await(&fixture.left, i);
    }
    /* With the whole answer already in the pipe nobody is told. */
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /stream?count=3&size=10 HTTP/1.1\r\n\r\n");
    assert_true(client_receive(fd, &answer));
    answer_free(&answer);
    close(fd);
    fixture_await_connections(&fixture, 0);
    assert_int_equal(atomic_load(&fixture.left), 2);
}

static void test_slow_requests(void **state)
{
    (void)state;
    int silent = client_connect(fixture.port);
    int head = client_connect(fixture.port);
    int body = client_connect(fixture.port);
    int patient = client_connect(fixture.port);
    client_send(head, "GET /hello HTTP/1.1\r\nA: b");
    client_send(body, "POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\n01234");
    client_send(patient, "GET /never HTTP/1.1\r\n\r\n");
    fixture_await(&fixture.handled, 1);
    fixture_await_connections(&fixture, 4);
    usleep(50000); /* what was sent has been read: only then does their time begin */
    clock_advance_ns(100 * SECOND_NS);
    client_send(head, "c"); /* a byte now and then does not help */
    usleep(50000);
    clock_advance_ns(30 * SECOND_NS);
    expect_answer(head, 408, NULL);
    expect_answer(body, 408, NULL);
    assert_true(client_at_end(silent));
    close(silent);
    close(head);
    close(body);
    fixture_await_connections(&fixture, 1); /* waiting for an answer is no sin */
    assert_int_equal(atomic_load(&fixture.left), 0);
    close(patient);
    fixture_await(&fixture.left, 1);
}

static size_t read_some(int fd, size_t wanted)
{
    static char bytes[1 << 16];
    size_t got = 0;
    while (got < wanted) {
        ssize_t now = recv(fd, bytes, sizeof(bytes), 0);
        assert_true(now > 0);
        got += (size_t)now;
    }
    return got;
}

static void test_slow_reader_holds_little_and_not_for_ever(void **state)
{
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /endless HTTP/1.1\r\n\r\n");
    /* A reader that is as fast as the producer would never see it wait. */
    for (int i = 0; i < 10000 && atomic_load(&fixture.backlog_max) < HTTP_STREAM_HIGH; i++)
        usleep(1000);
    read_some(fd, 64 << 20);
    assert_true(atomic_load(&fixture.drained) > 0);
    assert_in_range(atomic_load(&fixture.backlog_max), HTTP_STREAM_HIGH,
                    HTTP_STREAM_HIGH + (64 << 10));
    clock_advance_ns(50 * SECOND_NS);
    read_some(fd, 16 << 20); /* it reads again: it may go on */
    assert_int_equal(atomic_load(&fixture.left), 0);
    /* Buffers fill, a tick sees the last of it, and a minute later it is over; on a busy machine they
     * may take longer to fill. */
    for (int i = 0; i < 20 && !atomic_load(&fixture.left); i++) {
        usleep(500000);
        clock_advance_ns(61 * SECOND_NS);
    }
    fixture_await(&fixture.left, 1);
    close(fd);
}

static void test_flood_of_a_producer_is_cut(void **state)
{
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /flood HTTP/1.1\r\n\r\n");
    fixture_await(&fixture.left, 1);
    close(fd);
}

static void test_input_during_a_stream_is_bounded(void **state)
{
    static char zeros[1 << 20];
    size_t sent = 0;
    (void)state;
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /never HTTP/1.1\r\n\r\n");
    fixture_await(&fixture.handled, 1);
    for (int quiet = 0; quiet < 20 && sent < (256u << 20);) {
        ssize_t now = send(fd, zeros, sizeof(zeros), MSG_DONTWAIT | MSG_NOSIGNAL);
        quiet = now > 0 ? 0 : quiet + 1;
        sent += now > 0 ? (size_t)now : 0;
        if (now < 0)
            usleep(10000);
    }
    assert_true(sent < (64u << 20)); /* what the kernel keeps, and a watermark */
    leave(fd, true);                 /* its FIN would wait behind all that */
    fixture_await(&fixture.left, 1);
}

/* Answers are many times larger than requests: who pipelines and does not read must not make us keep
 * them all. */
static void test_pipelining_without_reading_is_bounded(void **state)
{
    enum { COUNT = 1000, SIZE = 100000 };
    (void)state;
    int fd = client_connect(fixture.port);
    for (int i = 0; i < COUNT; i++)
        client_send(fd, "GET /large?size=100000 HTTP/1.1\r\n\r\n");
    usleep(200000);
    assert_true(atomic_load(&fixture.handled) < COUNT);
    for (int i = 0; i < COUNT; i++)
        expect_answer(fd, 200, NULL);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_garbage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_http2_is_closed_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_huge_header, setup, teardown),
        cmocka_unit_test_setup_teardown(test_huge_body, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leaving_at_every_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leaving_while_the_answer_is_awaited, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_leaving_while_the_answer_streams, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_reader_holds_little_and_not_for_ever, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_flood_of_a_producer_is_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(test_input_during_a_stream_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pipelining_without_reading_is_bounded, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
