/* SPDX-License-Identifier: Apache-2.0 */
/* Heads and bodies as bytes: what is read, what is refused and with which status, and that the result
 * does not depend on where the bytes were cut. */
#include "net/http_message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int request_status(const char *text)
{
    char why[128] = "";
    struct http_head head;
    struct http_body body;
    size_t scanned = 0, length = http_head_find(text, strlen(text), &scanned);
    assert_true(length > 0);
    int status = http_head_parse_request(&head, text, length, ERROR_BUFFER(why));
    if (!status) {
        status = http_body_of_request(&body, &head, ERROR_BUFFER(why));
        http_head_free(&head);
    }
    assert_true(!status || *why);
    return status;
}

static void test_requests_that_are_refused(void **state)
{
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        {0, "GET / HTTP/1.1\r\n\r\n"},
        {0, "GET / HTTP/1.0\n\n"},
        {0, "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"},
        {0, "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n"},
        {0, "GET / HTTP/1.1\r\nEmpty:\r\nTabs:\t a\tb \t\r\n\r\n"},
        {400, "\r\n\r\n"},
        {400, "GET\r\n\r\n"},
        {400, "GET /\r\n\r\n"},
        {400, "GET  HTTP/1.1\r\n\r\n"},
        {400, "GET /a b HTTP/1.1\r\n\r\n"},
        {400, "GET /\x01 HTTP/1.1\r\n\r\n"},
        {400, "G(T / HTTP/1.1\r\n\r\n"},
        {400, "ABCDEFGHIJKLMNOPQRST / HTTP/1.1\r\n\r\n"},
        {400, "GET / FTP/1.1\r\n\r\n"},
        {505, "GET / HTTP/2.0\r\n\r\n"},
        {505, "GET / HTTP/1.11\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nName\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nName : a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n: a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nName: a\r\n folded\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nName: a\rb\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n"},
        {501, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int status = request_status(cases[i].text);
        if (status != cases[i].status)
            fail_msg("%d, not %d: %s", status, cases[i].status, cases[i].text);
    }
}

static void test_too_many_headers(void **state)
{
    char text[4096] = "GET / HTTP/1.1\r\n";
    (void)state;
    for (int i = 0; i < HTTP_HEADERS_MAX; i++)
        strcat(text, "A: b\r\n");
    size_t length = strlen(text);
    strcat(text, "\r\n");
    assert_int_equal(request_status(text), 0);
    strcpy(text + length, "A: b\r\n\r\n");
    assert_int_equal(request_status(text), 431);
}

static void test_a_nul_is_refused(void **state)
{
    struct http_head head;
    char why[128];
    (void)state;
    assert_int_equal(
        http_head_parse_request(&head, "GET /\0 HTTP/1.1\r\n\r\n", 19, ERROR_BUFFER(why)), 400);
}

static void test_heads_are_found_byte_by_byte(void **state)
{
    static const char *const texts[] = {"A\r\nB\r\n\r\nC\r\n\r\n", "A\n\nB", "A\n\r\nB",
                                        "A\r\n\nB", "\r\n\r\n"};
    static const size_t lengths[] = {8, 3, 4, 4, 4};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t scanned = 0, length = 0;
        while (!http_head_find(texts[i], length, &scanned)) {
            length++;
            assert_true(length <= strlen(texts[i]));
        }
        assert_int_equal(length, lengths[i]);
        scanned = 0;
        assert_int_equal(http_head_find(texts[i], strlen(texts[i]), &scanned), lengths[i]);
    }
}

static void test_connection_lists(void **state)
{
    static const struct {
        const char *head;
        bool alive;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\n\r\n", true},
        {"HTTP/1.1 200\r\nConnection: close\r\n\r\n", false},
        {"HTTP/1.1 200 \r\nConnection: upgrade ,\tClose\r\n\r\n", false},
        {"HTTP/1.1 200 \r\nConnection: closed\r\n\r\n", true},
        {"HTTP/1.1 200 \r\nConnection: x\r\nconnection: close\r\n\r\n", false},
        {"HTTP/1.0 200 OK\r\n\r\n", false},
        {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n\r\n", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct http_head head;
        assert_int_equal(
            http_head_parse_answer(&head, cases[i].head, strlen(cases[i].head), ERROR_NONE), 0);
        assert_int_equal(http_head_keeps_alive(&head), cases[i].alive);
        http_head_free(&head);
    }
}

static void test_answers_that_are_refused(void **state)
{
    static const char *const texts[] = {"HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n",
                                        "HTTP/2.0 200 OK\r\n\r\n", "200 OK\r\n\r\n",
                                        "HTTP/1.1\r\n\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct http_head head;
        assert_int_equal(http_head_parse_answer(&head, texts[i], strlen(texts[i]), ERROR_NONE),
                         502);
    }
}

/* Feeds `text` in pieces of `step` bytes; what was no body is left in *rest. NULL: refused. */
static char *body_read(struct http_body body, const char *text, size_t step, const char **rest)
{
    char *out = calloc(1, strlen(text) + 1);
    const char *end = text + strlen(text);
    while (text < end && !body.done) {
        const char *data;
        size_t length, piece = (size_t)(end - text) < step ? (size_t)(end - text) : step;
        long taken = http_body_take(&body, text, piece, &data, &length);
        if (taken < 0) {
            free(out);
            return NULL;
        }
        assert_true(taken > 0);
        if (length)
            strncat(out, data, length);
        text += taken;
    }
    *rest = text;
    return out;
}

static void test_chunks_do_not_depend_on_cuts(void **state)
{
    static const char text[] =
        "5\r\nhello\r\n1;a=b\r\n \r\n00005\nworld\n0;x\r\nT: 1\r\nU: 2\r\n\r\nNEXT";
    struct http_body chunks = {.framing = HTTP_FRAMING_CHUNKS};
    (void)state;
    for (size_t step = 1; step <= sizeof(text); step++) {
        const char *rest;
        char *body = body_read(chunks, text, step, &rest);
        assert_non_null(body);
        assert_string_equal(body, "hello world");
        assert_string_equal(rest, "NEXT");
        free(body);
    }
}

static void test_chunks_that_are_refused(void **state)
{
    static const char *const texts[] = {
        "\r\n",     "x\r\n",           "-1\r\n",        " 5\r\n",
        "5hello",   "5\r\nhellox\r\n", "5\r\nhello\rx", "FFFFFFFFFFFFFFFFF\r\n",
        "0\r\n\rx", "5g\r\nhello\r\n", ";a\r\n"};
    struct http_body chunks = {.framing = HTTP_FRAMING_CHUNKS};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (size_t step = 1; step < 32; step++) {
            const char *rest;
            char *body = body_read(chunks, texts[i], step, &rest);
            if (body)
                fail_msg("taken: %s", texts[i]);
        }
    }
}

static void test_endless_extensions_are_refused(void **state)
{
    char text[10000];
    struct http_body chunks = {.framing = HTTP_FRAMING_CHUNKS};
    const char *rest;
    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "5;", 2);
    text[sizeof(text) - 1] = 0;
    assert_null(body_read(chunks, text, 100, &rest));
    memcpy(text, "0\r\n", 3);
    assert_null(body_read(chunks, text, 100, &rest));
}

static struct http_body answer_body(const char *text, bool head_only, int expected)
{
    struct http_head head;
    struct http_body body = {0};
    assert_int_equal(http_head_parse_answer(&head, text, strlen(text), ERROR_NONE), 0);
    assert_int_equal(http_body_of_answer(&body, &head, head_only, ERROR_NONE), expected);
    http_head_free(&head);
    return body;
}

static void test_bodies_of_answers(void **state)
{
    (void)state;
    assert_int_equal(answer_body("HTTP/1.1 200 OK\r\n\r\n", false, 0).framing,
                     HTTP_FRAMING_CLOSE);
    assert_true(answer_body("HTTP/1.1 204 OK\r\nContent-Length: 5\r\n\r\n", false, 0).done);
    assert_true(answer_body("HTTP/1.1 304 OK\r\n\r\n", false, 0).done);
    assert_true(answer_body("HTTP/1.1 100 OK\r\n\r\n", false, 0).done);
    assert_true(answer_body("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, 0).done);
    assert_true(answer_body("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, 0).done);
    assert_int_equal(answer_body("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false, 0).left,
                     5);
    answer_body("HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\n", false, 502);
}

static void test_percent(void **state)
{
    static const char *const bad[] = {"%", "%4", "%4g", "%g4", "a%00b"};
    char text[] = "a%20b+c%2b%C3%a9";
    (void)state;
    assert_true(http_decode_percent(text, true));
    assert_string_equal(text, "a b c+\xc3\xa9");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char copy[16];
        snprintf(copy, sizeof(copy), "%s", bad[i]);
        assert_false(http_decode_percent(copy, false));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_that_are_refused),
        cmocka_unit_test(test_too_many_headers),
        cmocka_unit_test(test_a_nul_is_refused),
        cmocka_unit_test(test_heads_are_found_byte_by_byte),
        cmocka_unit_test(test_connection_lists),
        cmocka_unit_test(test_answers_that_are_refused),
        cmocka_unit_test(test_chunks_do_not_depend_on_cuts),
        cmocka_unit_test(test_chunks_that_are_refused),
        cmocka_unit_test(test_endless_extensions_are_refused),
        cmocka_unit_test(test_bodies_of_answers),
        cmocka_unit_test(test_percent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
