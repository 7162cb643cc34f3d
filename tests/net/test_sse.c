/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events, in every cut, against a slow reading of the same text. */
#include "net/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Events as "[name|data]". */
struct seen {
    char text[1024];
    int stop_after;
};

static bool see(const char *name, const char *data, size_t length, void *context)
{
    struct seen *seen = context;
    assert_int_equal(strlen(data), length);
    size_t used = strlen(seen->text);
    snprintf(seen->text + used, sizeof(seen->text) - used, "[%s|%s]", name, data);
    return --seen->stop_after != 0;
}

static void expect_events(const char *text, const char *events)
{
    for (size_t step = 1; step <= strlen(text) + 1; step++) {
        struct seen seen = {.stop_after = -1};
        struct sse sse;
        sse_open(&sse, 4096, see, &seen);
        for (size_t at = 0; at < strlen(text); at += step) {
            size_t length = strlen(text) - at < step ? strlen(text) - at : step;
            assert_int_equal(sse_feed(&sse, text + at, length), 0);
        }
        assert_string_equal(seen.text, events);
        sse_close(&sse);
    }
}

static void test_events(void **state)
{
    (void)state;
    expect_events("data: a\n\ndata: b\n\n", "[|a][|b]");
    expect_events("data: a\r\n\r\ndata:b\r\n\r\n", "[|a][|b]");
    expect_events("data: a\r\rdata:  b\r\r", "[|a][| b]");
    expect_events("data: a\r\n\ndata: b\r\r\n", "[|a][|b]");
    expect_events("data: one\ndata: two\ndata\ndata:\n\n", "[|one\ntwo\n\n]");
    expect_events(": comment\n\n\n:\ndata: x\n\n", "[|x]");
    expect_events("event: end\nid: 7\nretry: 1\nunknown: z\ndata: {\"a\":1}\n\ndata: y\n\n",
                  "[end|{\"a\":1}][|y]");
    expect_events("event: lonely\n\ndata: x\n\n", "[|x]");
    expect_events("\xef\xbb\xbf"
                  "data: x\n\n",
                  "[|x]");
    expect_events("data: [DONE]\n\n", "[|[DONE]]");
    expect_events("data: unfinished\n", "");
    expect_events("data:\n\n", "[|]");
    expect_events("datax: 1\ndat: 2\n\n", "");
}

static void test_a_callback_may_stop(void **state)
{
    struct seen seen = {.stop_after = 2};
    struct sse sse;
    (void)state;
    sse_open(&sse, 100, see, &seen);
    assert_int_equal(sse_feed(&sse, "data: a\n\ndata: b\n\ndata: c\n\n", 27), BATON_AGAIN);
    assert_string_equal(seen.text, "[|a][|b]");
    sse_close(&sse);
}

static void test_large_events_are_refused(void **state)
{
    struct seen seen = {.stop_after = -1};
    struct sse sse;
    (void)state;
    for (int lines = 0; lines < 2; lines++) { /* one long line, and many short ones */
        sse_open(&sse, 100, see, &seen);
        int code = sse_feed(&sse, "data: ", 6);
        for (int i = 0; i < 200 && code == 0; i++)
            code = lines ? sse_feed(&sse, "\ndata: x", 8) : sse_feed(&sse, "x", 1);
        assert_int_equal(code, BATON_EPROTOCOL);
        sse_close(&sse);
    }
    assert_string_equal(seen.text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_a_callback_may_stop),
        cmocka_unit_test(test_large_events_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
