/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP client against our server (fast, slow, endless, under TLS) and against a server of this file
 * that says exactly what the test wrote, in pieces, and then leaves. */
#include "net/http_client.h"

#include "http_fixture.h"
#include "self_signed.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct event_base *base;
static struct http_client *client;
static struct fixture fixture;

static void client_open(const struct http_client_options *wanted)
{
    struct http_client_options options = *wanted;
    char text[256] = "";
    base = event_base_new();
    options.base = base;
    if (http_client_open(&options, &client, ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
}

static void client_close(void)
{
    http_client_close(client);
    event_base_free(base);
}

static int setup(void **state)
{
    struct http_server_options options = {0};
    (void)state;
    fixture_open(&fixture, &options);
    client_open(&(struct http_client_options){0});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    client_close();
    fixture_close(&fixture);
    return 0;
}

/* ---- what came ---------------------------------------------------------------------------- */

struct heard {
    struct http_request *request;
    uint32_t heads, pieces, dones;
    int status;
    size_t length;
    char body[4096]; /* its beginning */
    enum http_outcome outcome;
    char error[320];
    /* what to do meanwhile */
    size_t pause_at, cancel_at; /* body lengths; 0: never */
    bool stop_when_paused;
    struct http_request_options *again; /* at the end */
    uint32_t again_count;
    uint32_t *open; /* when it comes to 0 the loop stops */
};

static void on_head(struct http_request *request, const struct http_head *head, void *context)
{
    struct heard *heard = context;
    assert_ptr_equal(request, heard->request);
    heard->status = head->status;
    heard->heads++;
}

static void on_body(struct http_request *request, const char *bytes, size_t length,
                    void *context)
{
    struct heard *heard = context;
    for (size_t i = 0; i < length && heard->length + i + 1 < sizeof(heard->body); i++)
        heard->body[heard->length + i] = bytes[i];
    heard->length += length;
    heard->pieces++;
    if (heard->cancel_at && heard->length >= heard->cancel_at) {
        http_request_cancel(request);
        event_base_loopbreak(base);
    } else if (heard->pause_at && heard->length >= heard->pause_at) {
        http_request_pause(request);
        if (heard->stop_when_paused)
            event_base_loopbreak(base);
    }
}

static void on_done(struct http_request *request, const struct http_result *result,
                    void *context)
{
    struct heard *heard = context;
    assert_ptr_equal(request, heard->request);
    heard->dones++;
    heard->outcome = result->outcome;
    if (result->status)
        heard->status = result->status;
    snprintf(heard->error, sizeof(heard->error), "%s", result->error);
    assert_true((result->outcome == HTTP_OUTCOME_DONE) == !*result->error);
    if (heard->again_count) {
        heard->again_count--;
        heard->length = 0;
        memset(heard->body, 0, sizeof(heard->body));
        assert_int_equal(http_request_start(client, heard->again, &heard->request, ERROR_NONE),
                         0);
        return;
    }
    if (!heard->open || --*heard->open == 0)
        event_base_loopbreak(base);
}

static void ask(struct heard *heard, struct http_request_options *options)
{
    char text[256] = "";
    options->head = on_head;
    options->body_came = on_body;
    options->done = on_done;
    options->context = heard;
    if (http_request_start(client, options, &heard->request, ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
    assert_int_equal(heard->dones, 0); /* never from within start */
}

static const char *url_of(uint16_t port, const char *path)
{
    static char url[512];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", port, path);
    return url;
}

/* One request, to its end. */
static struct heard get(const char *url)
{
    struct heard heard = {0};
    struct http_request_options options = {.url = url};
    ask(&heard, &options);
    event_base_dispatch(base);
    assert_int_equal(heard.dones, 1);
    return heard;
}

/* ---- a server that says what it is told to ------------------------------------------------ */

struct script {
    const char *answers[4]; /* one per connection; "" closes at once, NULL ends the list */
    size_t piece;           /* bytes per write */
    bool hold;              /* does not close after the answer */
    uint32_t wait_ms;       /* before closing */
    int listener;
    uint16_t port;
    pthread_t thread;
    atomic_uint requests;
};

static void script_serve(struct script *script, int fd, const char *answer)
{
    char request[8192];
    size_t length = 0;
    while (length < 4 || !memmem(request, length, "\r\n\r\n", 4)) {
        ssize_t got = recv(fd, request + length, sizeof(request) - length, 0);
        if (got <= 0)
            return;
        length += (size_t)got;
    }
    atomic_fetch_add(&script->requests, 1);
    for (size_t at = 0, total = strlen(answer); at < total; at += script->piece) {
        size_t now = total - at < script->piece ? total - at : script->piece;
        client_send_bytes(fd, answer + at, now);
        if (script->piece < total)
            usleep(2000);
    }
    usleep(script->wait_ms * 1000);
    if (script->hold)
        while (recv(fd, request, sizeof(request), 0) > 0)
            ;
}

static void *script_main(void *context)
{
    struct script *script = context;
    for (int i = 0; i < 4 && script->answers[i]; i++) {
        int fd = accept(script->listener, NULL, NULL);
        if (fd < 0)
            return NULL;
        if (*script->answers[i])
            script_serve(script, fd, script->answers[i]);
        close(fd);
    }
    return NULL;
}

static void script_open(struct script *script)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    script->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(script->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(script->listener, 16), 0);
    getsockname(script->listener, (struct sockaddr *)&address, &length);
    script->port = ntohs(address.sin_port);
    if (!script->piece)
        script->piece = 1 << 20;
    assert_int_equal(pthread_create(&script->thread, NULL, script_main, script), 0);
}

static void script_close(struct script *script)
{
    shutdown(script->listener, SHUT_RDWR);
    pthread_join(script->thread, NULL);
    close(script->listener);
}

static struct heard get_scripted(struct script *script)
{
    script_open(script);
    struct heard heard = get(url_of(script->port, "/x"));
    script_close(script);
    return heard;
}

/* ---- tests -------------------------------------------------------------------------------- */

static void test_requests_use_one_connection(void **state)
{
    struct http_header headers[] = {{"X-A", "b"}};
    struct iovec body[] = {{"{\"a\":", 5}, {"", 0}, {"1}", 2}};
    struct http_request_options options = {.method = "POST",
                                           .headers = headers,
                                           .header_count = 1,
                                           .body = body,
                                           .body_pieces = 3};
    (void)state;
    options.url = strdup(url_of(fixture.port, "/echo?x=1"));
    struct heard heard = {.again = &options, .again_count = 20};
    ask(&heard, &options);
    event_base_dispatch(base);
    assert_int_equal(heard.dones, 21);
    assert_int_equal(heard.status, 200);
    assert_string_equal(heard.body, "{\"a\":1}");
    assert_int_equal(http_client_idle(client), 1);
    assert_int_equal(http_server_connections(fixture.server), 1);
    assert_int_equal(get(url_of(fixture.port, "/later")).status, 200);
    assert_int_equal(get(url_of(fixture.port, "/nowhere")).status, 404);
    assert_int_equal(http_server_connections(fixture.server), 1);
    free((char *)(uintptr_t)options.url);
}

static void test_many_at_once(void **state)
{
    enum { COUNT = 300 };
    static struct heard heard[COUNT];
    uint32_t open = COUNT;
    (void)state;
    memset(heard, 0, sizeof(heard));
    for (int i = 0; i < COUNT; i++) {
        struct http_request_options options = {
            .url = url_of(fixture.port, i % 2 ? "/stream?count=5&size=3" : "/thread")};
        heard[i].open = &open;
        ask(&heard[i], &options);
    }
    event_base_dispatch(base);
    for (int i = 0; i < COUNT; i++)
        assert_string_equal(heard[i].body, i % 2 ? "aaabbbcccdddeee" : "thread");
}

static void test_chunks_come_before_they_are_whole(void **state)
{
    struct script script = {.answers = {"HTTP/1.1 100 Continue\r\n\r\n"
                                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                                        "1e\r\n012345678901234567890123456789\r\n0\r\n\r\n"},
                            .piece = 7};
    (void)state;
    struct heard heard = get_scripted(&script);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_DONE);
    assert_string_equal(heard.body, "012345678901234567890123456789");
    assert_true(heard.pieces >= 4);
    assert_int_equal(heard.heads, 1);
}

static void test_body_that_ends_with_the_connection(void **state)
{
    struct script script = {.answers = {"HTTP/1.0 200 OK\r\n\r\nall of it"}};
    (void)state;
    struct heard heard = get_scripted(&script);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_DONE);
    assert_string_equal(heard.body, "all of it");
    assert_int_equal(http_client_idle(client), 0);
}

static void test_answers_without_body(void **state)
{
    struct heard heard = {0};
    struct http_request_options options = {.method = "HEAD"};
    (void)state;
    options.url = url_of(fixture.port, "/hello");
    ask(&heard, &options);
    event_base_dispatch(base);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_DONE);
    assert_int_equal(heard.length, 0);
    assert_int_equal(http_client_idle(client), 1);
    heard = (struct heard){0};
    options.method = "OPTIONS";
    ask(&heard, &options);
    event_base_dispatch(base);
    assert_int_equal(heard.status, 204);
    assert_int_equal(http_client_idle(client), 1);
}

static void test_broken_answers(void **state)
{
    static const struct {
        const char *answer;
        enum http_outcome outcome;
        const char *error;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", HTTP_OUTCOME_BROKEN, "middle"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", HTTP_OUTCOME_BROKEN,
         "middle"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
         HTTP_OUTCOME_BROKEN, "middle"},
        {"HTTP/1.1 200 OK\r\nContent", HTTP_OUTCOME_BROKEN, "headers"},
        {"", HTTP_OUTCOME_BROKEN, "before it answered"},
        {"SSH-2.0-OpenSSH\r\n\r\n", HTTP_OUTCOME_GARBLED, "HTTP"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", HTTP_OUTCOME_GARBLED,
         "chunks"},
        {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nxyz\r\n", HTTP_OUTCOME_GARBLED, "HTTP"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct script script = {.answers = {cases[i].answer}, .wait_ms = 1};
        struct heard heard = get_scripted(&script);
        assert_int_equal(heard.outcome, cases[i].outcome);
        if (!strstr(heard.error, cases[i].error) || !strstr(heard.error, "127.0.0.1:"))
            fail_msg("%s", heard.error);
    }
    char *endless = malloc(200000);
    memset(endless, 'a', 199999);
    endless[199999] = 0;
    memcpy(endless, "HTTP/1.1 200 OK\r\nA: ", 20);
    struct script script = {.answers = {endless}};
    assert_int_equal(get_scripted(&script).outcome, HTTP_OUTCOME_GARBLED);
    free(endless);
}

static void test_kept_connection_that_the_server_closes(void **state)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    struct script script = {.answers = {answer, answer}, .wait_ms = 0};
    struct heard heard = {0};
    struct http_request_options options = {0};
    (void)state;
    script_open(&script);
    options.url = strdup(url_of(script.port, "/x"));
    heard.again = &options; /* at once: before the server's end of the first is seen */
    heard.again_count = 1;
    ask(&heard, &options);
    event_base_dispatch(base);
    assert_int_equal(heard.dones, 2);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_DONE);
    assert_string_equal(heard.body, "ok");
    assert_int_equal(atomic_load(&script.requests), 2);
    free((char *)(uintptr_t)options.url);
    script_close(&script);
}

static void test_unreachable(void **state)
{
    char url[64];
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    (void)state;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, nobody listens */
    bind(fd, (struct sockaddr *)&address, sizeof(address));
    getsockname(fd, (struct sockaddr *)&address, &length);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(address.sin_port));
    struct heard heard = get(url);
    close(fd);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_UNREACHABLE);
    assert_non_null(strstr(heard.error, "refused"));
    assert_non_null(strstr(heard.error, "127.0.0.1:"));
    /* Where no resolver answers, only the limit ends it. */
    struct http_request_options options = {.url = "http://nosuch.invalid:80/",
                                           .connect_ms = 300};
    heard = (struct heard){0};
    ask(&heard, &options);
    event_base_dispatch(base);
    assert_true(heard.outcome == HTTP_OUTCOME_UNREACHABLE ||
                heard.outcome == HTTP_OUTCOME_TIMEOUT);
    assert_non_null(strstr(heard.error, "nosuch.invalid"));
}

static void test_localhost_by_name(void **state)
{
    char url[64];
    (void)state;
    snprintf(url, sizeof(url), "http://localhost:%u/hello", fixture.port);
    struct heard heard = get(url); /* the fixture listens on IPv4 only */
    assert_string_equal(heard.error, "");
    assert_string_equal(heard.body, "hello");
}

static void test_bad_urls(void **state)
{
    static const char *const urls[] = {"",
                                       "host:80",
                                       "ftp://host/",
                                       "http://",
                                       "http:///x",
                                       "http://host:0/",
                                       "http://host:70000/",
                                       "http://host:8x/",
                                       "http://[::1/",
                                       "http://user@host/",
                                       "http://host/a b",
                                       "http://host/a\r\nX: y"};
    (void)state;
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        char text[512] = "";
        struct http_request_options options = {.url = urls[i], .done = on_done};
        assert_int_equal(http_request_start(client, &options, NULL, ERROR_BUFFER(text)),
                         BATON_EINVAL);
        assert_true(*text);
    }
    struct http_header split = {"A", "b\r\nC: d"};
    struct http_request_options options = {
        .url = "http://host", .done = on_done, .headers = &split, .header_count = 1};
    assert_int_equal(http_request_start(client, &options, NULL, ERROR_NONE), BATON_EINVAL);
}

static void test_time_limits(void **state)
{
    static const struct {
        const char *path, *error;
        uint32_t first_byte_ms, total_ms;
    } cases[] = {
        {"/never", "did not answer within 30 ms", 30, 5000},
        {"/never", "did not finish its answer within 40 ms", 0, 40},
        {"/stream?count=1000000&size=1", "did not finish its answer within 50 ms", 5000, 50}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct heard heard = {0};
        struct http_request_options options = {.url = url_of(fixture.port, cases[i].path),
                                               .first_byte_ms = cases[i].first_byte_ms,
                                               .total_ms = cases[i].total_ms,
                                               .connect_ms = 5000};
        ask(&heard, &options);
        event_base_dispatch(base);
        assert_int_equal(heard.outcome, HTTP_OUTCOME_TIMEOUT);
        if (!strstr(heard.error, cases[i].error))
            fail_msg("%s", heard.error);
        fixture_await(&fixture.left, (uint32_t)i + 1); /* and the server knows */
    }
    /* A connection that does not come to stand: TLS to one who says nothing. */
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    char url[64];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(fd, (struct sockaddr *)&address, sizeof(address));
    listen(fd, 1);
    getsockname(fd, (struct sockaddr *)&address, &length);
    snprintf(url, sizeof(url), "https://127.0.0.1:%u/", ntohs(address.sin_port));
    struct heard heard = {0};
    struct http_request_options options = {.url = url, .connect_ms = 30, .total_ms = 5000};
    ask(&heard, &options);
    event_base_dispatch(base);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_TIMEOUT);
    assert_non_null(strstr(heard.error, "connected to within 30 ms"));
    close(fd);
}

static void test_cancel_everywhere(void **state)
{
    struct heard heard = {.cancel_at = 1};
    struct http_request_options options = {0};
    (void)state;
    options.url = url_of(fixture.port, "/endless");
    ask(&heard, &options); /* in the middle of the body */
    event_base_dispatch(base);
    assert_int_equal(heard.dones, 0);
    fixture_await(&fixture.left, 1);
    options.url = url_of(fixture.port, "/never");
    ask(&heard, &options); /* before the connection stands */
    http_request_cancel(heard.request);
    ask(&heard, &options); /* while waiting */
    struct timeval moment = {0, 50000};
    event_base_loopexit(base, &moment);
    event_base_dispatch(base);
    http_request_cancel(heard.request);
    event_base_loop(base, EVLOOP_NONBLOCK);
    fixture_await(&fixture.left, 2);
    options.url = "http://nosuch.invalid/";
    ask(&heard, &options); /* while the name is looked for */
    http_request_cancel(heard.request);
    event_base_loop(base, EVLOOP_NONBLOCK);
    options.url = "http://127.0.0.1:1/";
    ask(&heard, &options); /* refused, but not told yet */
    http_request_cancel(heard.request);
    event_base_loop(base, EVLOOP_NONBLOCK);
    assert_int_equal(heard.dones, 0);
    http_request_cancel(NULL);
}

static void test_closing_with_requests_underway(void **state)
{
    static struct heard heard[3];
    static const char *const paths[] = {"/never", "/endless", "/hello"};
    (void)state;
    memset(heard, 0, sizeof(heard));
    for (int i = 0; i < 3; i++) {
        struct http_request_options options = {.url = url_of(fixture.port, paths[i])};
        ask(&heard[i], &options);
    }
    event_base_loop(base, EVLOOP_ONCE); /* teardown closes */
}

static void test_a_paused_consumer_bounds_the_server(void **state)
{
    struct heard heard = {.pause_at = 1 << 20, .stop_when_paused = true};
    struct http_request_options options = {.url = url_of(fixture.port, "/endless")};
    (void)state;
    ask(&heard, &options);
    event_base_dispatch(base);
    size_t at_pause = heard.length;
    for (int i = 0; i < 3; i++) { /* nothing comes while it is paused, however long */
        struct timeval moment = {0, 50000};
        event_base_loopexit(base, &moment);
        event_base_dispatch(base);
        assert_int_equal(heard.length, at_pause);
    }
    heard.pause_at = 0;
    heard.cancel_at = at_pause + (32 << 20);
    http_request_resume(heard.request);
    http_request_resume(heard.request);
    event_base_dispatch(base);
    assert_true(heard.length >= heard.cancel_at);
    fixture_await(&fixture.left, 1);
    assert_in_range(atomic_load(&fixture.backlog_max), HTTP_STREAM_HIGH,
                    HTTP_STREAM_HIGH + (64 << 10));
}

/* The end comes while the request is paused: first the bytes, then the end. */
static void test_pause_before_the_end(void **state)
{
    struct script script = {.answers = {"HTTP/1.0 200 OK\r\n\r\n0123456789"}, .piece = 24};
    struct heard heard = {.pause_at = 1, .stop_when_paused = true};
    struct http_request_options options = {0};
    (void)state;
    script_open(&script);
    options.url = url_of(script.port, "/");
    ask(&heard, &options);
    event_base_dispatch(base);
    usleep(50000); /* the server has sent all and gone */
    struct timeval moment = {0, 20000};
    event_base_loopexit(base, &moment);
    event_base_dispatch(base);
    assert_true(heard.length < 10);
    heard.pause_at = 0;
    http_request_resume(heard.request);
    event_base_dispatch(base);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_DONE);
    assert_string_equal(heard.body, "0123456789");
    script_close(&script);
}

static void test_tls(void **state)
{
    struct self_signed files;
    struct fixture secure;
    char by_name[96], by_number[96];
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    self_signed_make(&files);
    struct http_server_options options = {.tls_certificate = files.certificate,
                                          .tls_key = files.key};
    fixture_open(&secure, &options);
    snprintf(by_name, sizeof(by_name), "https://localhost:%u/stream?count=9&size=9",
             secure.port);
    snprintf(by_number, sizeof(by_number), "https://127.0.0.1:%u/hello", secure.port);
    client_open(&(struct http_client_options){0});
    struct heard heard = get(by_number); /* nobody vouches for it */
    assert_int_equal(heard.outcome, HTTP_OUTCOME_UNREACHABLE);
    if (!strstr(heard.error, "self-signed") && !strstr(heard.error, "self signed"))
        fail_msg("%s", heard.error);
    client_close();
    client_open(&(struct http_client_options){.tls_authority = files.certificate});
    for (int i = 0; i < 3; i++) {
        assert_string_equal(get(by_number).body, "hello");
        assert_int_equal(get(by_name).length, 81);
    }
    assert_int_equal(http_client_idle(client), 2);
    assert_int_equal(http_server_connections(secure.server), 2);
    heard = (struct heard){.cancel_at = 3 << 20};
    snprintf(by_name, sizeof(by_name), "https://localhost:%u/endless", secure.port);
    struct http_request_options request = {.url = by_name};
    ask(&heard, &request);
    event_base_dispatch(base);
    fixture_await(&secure.left, 1);
    snprintf(by_name, sizeof(by_name), "http://localhost:%u/hello", secure.port);
    assert_int_equal(get(by_name).outcome, HTTP_OUTCOME_BROKEN); /* plain to a TLS port */
    client_close();
    client_open(&(struct http_client_options){.tls_unchecked = true});
    assert_string_equal(get(by_number).body, "hello");
    client_close();
    client_open(&(struct http_client_options){.tls_authority = "/nowhere.pem"});
    heard = get(by_number);
    assert_int_equal(heard.outcome, HTTP_OUTCOME_UNREACHABLE);
    assert_non_null(strstr(heard.error, "/nowhere.pem"));
    client_close();
    fixture_close(&secure);
    self_signed_remove(&files);
}

static void test_idle_connections_are_limited(void **state)
{
    enum { COUNT = 10 };
    static struct heard heard[COUNT];
    uint32_t open = COUNT;
    struct http_server_options server = {0};
    (void)state;
    memset(heard, 0, sizeof(heard));
    fixture_open(&fixture, &server);
    client_open(&(struct http_client_options){.idle_max = 3, .idle_seconds = 20});
    for (int i = 0; i < COUNT; i++) {
        struct http_request_options options = {.url = url_of(fixture.port, "/later")};
        heard[i].open = &open;
        ask(&heard[i], &options);
    }
    event_base_dispatch(base);
    assert_int_equal(http_client_idle(client), 3);
    clock_advance_ns(21000 * NS_PER_MS);
    struct timeval moment = {1, 100000}; /* a tick */
    event_base_loopexit(base, &moment);
    event_base_dispatch(base);
    assert_int_equal(http_client_idle(client), 0);
    fixture_await_connections(&fixture, 0);
    client_close();
    fixture_close(&fixture);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SERVER(test_requests_use_one_connection),
        WITH_SERVER(test_many_at_once),
        WITH_SERVER(test_chunks_come_before_they_are_whole),
        WITH_SERVER(test_body_that_ends_with_the_connection),
        WITH_SERVER(test_answers_without_body),
        WITH_SERVER(test_broken_answers),
        WITH_SERVER(test_kept_connection_that_the_server_closes),
        WITH_SERVER(test_unreachable),
        WITH_SERVER(test_localhost_by_name),
        WITH_SERVER(test_bad_urls),
        WITH_SERVER(test_time_limits),
        WITH_SERVER(test_cancel_everywhere),
        WITH_SERVER(test_closing_with_requests_underway),
        WITH_SERVER(test_a_paused_consumer_bounds_the_server),
        WITH_SERVER(test_pause_before_the_end),
        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_idle_connections_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
