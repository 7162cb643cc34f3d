/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server as a whole: many clients, none left to give a place to, no descriptors, a port that
 * is taken, draining, closing under full load, timers, and TLS. */
#include "http_fixture.h"
#include "self_signed.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void limit_raise(uint32_t wanted)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted && limit.rlim_max >= wanted) {
        limit.rlim_cur = wanted;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void test_a_thousand_clients_at_once(void **state)
{
    enum { COUNT = 1000 };
    static int fds[COUNT];
    struct fixture fixture;
    struct http_server_options options = {0};
    (void)state;
    limit_raise(2 * COUNT + 100);
    fixture_open(&fixture, &options);
    for (int i = 0; i < COUNT; i++)
        fds[i] = client_connect(fixture.port);
    for (int i = 0; i < COUNT; i++)
        client_send(fds[i], "GET /stream?count=5&size=2 HTTP/1.1\r\n\r\n");
    for (int i = 0; i < COUNT; i++)
        expect_answer(fds[i], 200, "aabbccddee");
    assert_int_equal(http_server_connections(fixture.server), COUNT);
    for (int i = 0; i < COUNT; i++)
        close(fds[i]);
    fixture_await_connections(&fixture, 0);
    fixture_close(&fixture);
}

static bool readable_soon(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 300) > 0;
}

static void test_clients_beyond_the_limit_wait(void **state)
{
    int fds[6];
    struct fixture fixture;
    struct http_server_options options = {.connections_max = 2, .loops = 2};
    (void)state;
    fixture_open(&fixture, &options);
    for (int i = 0; i < 6; i++) {
        fds[i] = client_connect(fixture.port);
        client_send(fds[i], "GET /hello HTTP/1.1\r\n\r\n");
    }
    for (int i = 0; i < 4; i++)
        expect_answer(fds[i], 200, "hello");
    assert_false(readable_soon(fds[4]));
    close(fds[0]);
    expect_answer(fds[4], 200, "hello");
    close(fds[1]);
    expect_answer(fds[5], 200, "hello");
    for (int i = 2; i < 6; i++)
        close(fds[i]);
    fixture_close(&fixture);
}

static int lowest_free(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(fd);
    return fd;
}

static void test_without_descriptors_it_goes_on(void **state)
{
    enum { COUNT = 20 };
    int fds[COUNT];
    struct fixture fixture;
    struct http_server_options options = {0};
    struct rlimit before, low;
    (void)state;
    fixture_open(&fixture, &options);
    int served = client_connect(fixture.port);
    client_send(served, "GET /hello HTTP/1.1\r\n\r\n");
    expect_answer(served, 200, "hello");
    /* Sockets for all clients, and two descriptors more, are left. */
    for (int i = 0; i < COUNT; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    getrlimit(RLIMIT_NOFILE, &before);
    low = before;
    low.rlim_cur = (rlim_t)lowest_free() + 2;
    for (int i = 0; i < COUNT; i++)
        close(fds[i]);
    for (int i = 0; i < COUNT; i++) {
        if (i == 0)
            assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
    }
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    getpeername(served, (struct sockaddr *)&address, &length);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(connect(fds[i], (struct sockaddr *)&address, length), 0);
        client_send(fds[i], "GET /hello HTTP/1.1\r\n\r\n");
    }
    assert_false(readable_soon(fds[COUNT - 1]));
    client_send(served, "GET /later HTTP/1.1\r\n\r\n");
    expect_answer(served, 200, "later");
    setrlimit(RLIMIT_NOFILE, &before);
    for (int i = 0; i < COUNT; i++) {
        expect_answer(fds[i], 200, "hello");
        close(fds[i]);
    }
    close(served);
    fixture_close(&fixture);
}

static void nobody(struct http_exchange *exchange, void *context)
{
    (void)context;
    http_exchange_reply(exchange, 200, NULL, NULL, 0);
}

static void test_errors_when_opening(void **state)
{
    char text[256] = "", port[8];
    struct fixture fixture;
    struct http_server *server = NULL;
    struct http_server_options options = {0};
    (void)state;
    fixture_open(&fixture, &options);
    options = (struct http_server_options){
        .host = "127.0.0.1", .port = fixture.port, .loops = 1, .handler = nobody};
    assert_int_equal(http_server_open(&options, &server, ERROR_BUFFER(text)), BATON_EBUSY);
    snprintf(port, sizeof(port), "%u", fixture.port);
    assert_non_null(strstr(text, port));
    assert_non_null(strstr(text, "choose another port"));
    options.host = NULL; /* every address: that one is among them */
    assert_int_equal(http_server_open(&options, &server, ERROR_BUFFER(text)), BATON_EBUSY);
    options.host = "no.such.host.invalid";
    assert_int_equal(http_server_open(&options, &server, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_non_null(strstr(text, "no.such.host.invalid"));
    options = (struct http_server_options){
        .loops = 1, .handler = nobody, .tls_certificate = "/nowhere.pem", .tls_key = "/x"};
    assert_int_equal(http_server_open(&options, &server, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_non_null(strstr(text, "/nowhere.pem"));
    options.tls_key = NULL;
    assert_int_equal(http_server_open(&options, &server, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_null(server);
    fixture_close(&fixture);
}

static void test_every_address(void **state)
{
    char text[256] = "";
    struct http_server *server;
    struct http_server_options options = {.loops = 1, .handler = nobody};
    (void)state;
    if (http_server_open(&options, &server, ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
    assert_int_equal(client_get(http_server_port(server), "/"), 200);
    http_server_close(server);
}

static void test_draining(void **state)
{
    struct answer answer;
    struct fixture fixture;
    struct http_server_options options = {0};
    (void)state;
    fixture_open(&fixture, &options);
    int idle = client_connect(fixture.port);
    int streaming = client_connect(fixture.port);
    int half = client_connect(fixture.port);
    client_send(idle, "GET /hello HTTP/1.1\r\n\r\n");
    expect_answer(idle, 200, "hello");
    client_send(streaming, "GET /stream?count=200&size=1 HTTP/1.1\r\n\r\n");
    client_send(half, "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\na");
    fixture_await(&fixture.handled, 2);
    usleep(50000);
    http_server_drain(fixture.server);
    http_server_drain(fixture.server);
    assert_true(client_at_end(idle));
    int refused = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    getpeername(streaming, (struct sockaddr *)&address, &length);
    assert_int_equal(connect(refused, (struct sockaddr *)&address, length), -1);
    assert_int_equal(errno, ECONNREFUSED);
    client_send(half, "b");
    assert_true(client_receive(half, &answer));
    assert_string_equal(answer.body, "ab");
    assert_non_null(strstr(answer.head, "Connection: close\r\n"));
    answer_free(&answer);
    assert_true(client_receive(streaming, &answer));
    assert_true(answer.whole);
    assert_int_equal(answer.length, 200);
    answer_free(&answer);
    assert_true(client_at_end(streaming));
    close(refused);
    close(idle);
    close(streaming);
    close(half);
    fixture_await_connections(&fixture, 0);
    assert_int_equal(atomic_load(&fixture.left), 0);
    fixture_close(&fixture);
}

static void test_closing_under_load(void **state)
{
    static const char *const paths[] = {"/never", "/endless", "/stream?count=1000000&size=100",
                                        "/thread", "/hello"};
    enum { COUNT = 100 };
    int fds[COUNT];
    struct answer answer;
    struct fixture fixture;
    struct http_server_options options = {.loops = 3};
    (void)state;
    fixture_open(&fixture, &options);
    for (int i = 0; i < COUNT; i++) {
        char request[128];
        snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\n\r\n", paths[i % 5]);
        fds[i] = client_connect(fixture.port);
        client_send(fds[i], request);
    }
    fixture_await(&fixture.handled, COUNT);
    fixture_await(&fixture.ended, COUNT / 5); /* the threads' posts are in */
    fixture_close(&fixture);
    assert_int_equal(atomic_load(&fixture.left), COUNT / 5 * 3);
    for (int i = 0; i < COUNT; i++) {
        bool answered = client_receive(fds[i], &answer);
        assert_true(i % 5 >= 3 ? answered && answer.whole : !answered || !answer.whole);
        answer_free(&answer);
        close(fds[i]);
    }
}

struct counting_task {
    struct http_task task;
    struct http_loop *loop;
    struct counting_task *next;
    atomic_uint *ran;
};

static void count_and_pass_on(struct http_task *task)
{
    struct counting_task *counting = (struct counting_task *)task;
    if (counting->next)
        http_loop_post(counting->next->loop, &counting->next->task);
    atomic_fetch_add(counting->ran, 1);
}

static void test_posted_tasks_run_before_the_end(void **state)
{
    enum { COUNT = 5000 };
    static struct counting_task tasks[COUNT];
    atomic_uint ran = 0;
    struct fixture fixture;
    struct http_server_options options = {.loops = 2};
    (void)state;
    fixture_open(&fixture, &options);
    for (uint32_t i = 0; i < COUNT; i++) {
        tasks[i] = (struct counting_task){.task.run = count_and_pass_on,
                                          .loop = http_server_loop(fixture.server, i % 2),
                                          .ran = &ran};
        http_loop_post(tasks[i].loop, &tasks[i].task);
    }
    fixture_close(&fixture);
    assert_int_equal(atomic_load(&ran), COUNT);
}

/* ---- TLS ---------------------------------------------------------------------------------- */

static SSL *tls_connect(SSL_CTX *context, uint16_t port)
{
    int fd = client_connect(port);
    SSL *session = SSL_new(context);
    SSL_set_fd(session, fd);
    assert_int_equal(SSL_set1_host(session, "localhost"), 1);
    assert_int_equal(SSL_connect(session), 1);
    return session;
}

static void tls_leave(SSL *session)
{
    close(SSL_get_fd(session));
    SSL_free(session);
}

static void tls_ask(SSL *session, const char *request, const char *wanted)
{
    char text[4096];
    size_t length = 0;
    assert_int_equal(SSL_write(session, request, (int)strlen(request)), (int)strlen(request));
    do {
        int got = SSL_read(session, text + length, (int)(sizeof(text) - 1 - length));
        assert_true(got > 0);
        length += (size_t)got;
        text[length] = 0;
    } while (!strstr(text, wanted));
}

static void test_tls(void **state)
{
    struct self_signed files;
    struct fixture fixture;
    char byte;
    (void)state;
    signal(SIGPIPE, SIG_IGN); /* of this client; the server needs none */
    self_signed_make(&files);
    struct http_server_options options = {
        .tls_certificate = files.certificate, .tls_key = files.key, .body_max = 1000};
    fixture_open(&fixture, &options);
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    assert_int_equal(SSL_CTX_load_verify_locations(context, files.certificate, NULL), 1);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL *session = tls_connect(context, fixture.port);
    tls_ask(session, "GET /hello HTTP/1.1\r\n\r\n", "hello");
    tls_ask(session, "POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "abc");
    tls_ask(session, "GET /stream?count=3&size=2 HTTP/1.1\r\n\r\n", "0\r\n\r\n");
    tls_ask(session, "POST /echo HTTP/1.1\r\nContent-Length: 3000\r\n\r\nabc", "too_large");
    assert_int_equal(SSL_read(session, &byte, 1), 0);
    assert_int_equal(SSL_get_error(session, 0), SSL_ERROR_ZERO_RETURN); /* a proper end */
    tls_leave(session);
    /* Leaving, with and without a word; plain bytes; a handshake that stops. */
    session = tls_connect(context, fixture.port);
    tls_ask(session, "GET /endless HTTP/1.1\r\n\r\n", "HTTP/1.1 200");
    tls_leave(session);
    fixture_await(&fixture.left, 1);
    session = tls_connect(context, fixture.port);
    SSL_write(session, "GET /never HTTP/1.1\r\n\r\n", 23);
    fixture_await(&fixture.handled, 5);
    SSL_shutdown(session);
    fixture_await(&fixture.left, 2);
    tls_leave(session);
    int fd = client_connect(fixture.port);
    client_send(fd, "GET /hello HTTP/1.1\r\n\r\n");
    while (recv(fd, &byte, 1, 0) > 0) /* an alert, perhaps */
        ;
    close(fd);
    fd = client_connect(fixture.port);
    fixture_await_connections(&fixture, 1);
    close(fd);
    fixture_await_connections(&fixture, 0);
    session = tls_connect(context, fixture.port);
    tls_ask(session, "GET /stream?count=1000000&size=9 HTTP/1.1\r\n\r\n", "aaaaaaaaa");
    fixture_close(&fixture);
    tls_leave(session);
    SSL_CTX_free(context);
    self_signed_remove(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thousand_clients_at_once),
        cmocka_unit_test(test_clients_beyond_the_limit_wait),
        cmocka_unit_test(test_without_descriptors_it_goes_on),
        cmocka_unit_test(test_errors_when_opening),
        cmocka_unit_test(test_every_address),
        cmocka_unit_test(test_draining),
        cmocka_unit_test(test_closing_under_load),
        cmocka_unit_test(test_posted_tasks_run_before_the_end),
        cmocka_unit_test(test_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
