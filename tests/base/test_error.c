/* SPDX-License-Identifier: Apache-2.0 */
/* Every code has a name and a text of its own, sentences never leave their buffer, and an
 * assertion stops the process in this build too. */
#include "base/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const int error_codes[] = {
#define CODE(name, value, text) value,
    BATON_ERROR_LIST(CODE)
#undef CODE
};
enum { ERROR_COUNT = sizeof(error_codes) / sizeof(error_codes[0]) };

static void test_error_codes_are_negative_and_without_gaps(void **state)
{
    (void)state;
    for (int i = 0; i < ERROR_COUNT; i++)
        assert_int_equal(error_codes[i], -1 - i);
}

static void test_error_names_and_texts_are_distinct(void **state)
{
    (void)state;
    for (int i = 0; i < ERROR_COUNT; i++) {
        assert_memory_equal(baton_error_name(error_codes[i]), "BATON_E", 7);
        assert_string_not_equal(baton_error_text(error_codes[i]), "unknown error");
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(baton_error_name(error_codes[i]),
                                    baton_error_name(error_codes[j]));
            assert_string_not_equal(baton_error_text(error_codes[i]),
                                    baton_error_text(error_codes[j]));
        }
    }
    assert_string_equal(baton_error_name(BATON_EPEER), "BATON_EPEER");
    assert_string_equal(baton_error_text(BATON_EPEER), "peer lost");
}

static void test_error_of_no_list_is_still_printable(void **state)
{
    (void)state;
    const int strange[] = {-ERROR_COUNT - 1, 2, -2147483647 - 1, 2147483647};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(baton_error_name(strange[i]), "BATON_E?");
        assert_string_equal(baton_error_text(strange[i]), "unknown error");
    }
    assert_string_equal(baton_error_name(BATON_OK), "BATON_OK");
    assert_string_equal(baton_error_name(BATON_AGAIN), "BATON_AGAIN");
}

static void test_state_names_are_those_of_the_seed(void **state)
{
    (void)state;
    assert_string_equal(baton_state_name(BATON_FAILED), "Failed");
    assert_string_equal(baton_state_name(BATON_BOOTSTRAPPING), "Bootstrapping");
    assert_string_equal(baton_state_name(BATON_WAITING_FOR_INPUT), "WaitingForInput");
    assert_string_equal(baton_state_name(BATON_TRANSFERRING), "Transferring");
    assert_string_equal(baton_state_name(BATON_SUCCESS), "Success");
    assert_string_equal(baton_state_name(5), "?");
    assert_string_equal(baton_state_name(-1), "?");
}

static void test_version_is_that_of_the_header(void **state)
{
    (void)state;
    char expected[32];
    snprintf(expected, sizeof(expected), "%d.%d.%d", BATON_VERSION_MAJOR, BATON_VERSION_MINOR,
             BATON_VERSION_PATCH);
    assert_string_equal(baton_version(), expected);
}

static void test_error_set_returns_the_code_and_writes_the_sentence(void **state)
{
    (void)state;
    char text[64];
    int rc = error_set(ERROR_BUFFER(text), BATON_EINVAL, "page %d of region %s", 7, "kv");
    assert_int_equal(rc, BATON_EINVAL);
    assert_string_equal(text, "page 7 of region kv");
}

static void test_error_set_cuts_what_does_not_fit(void **state)
{
    (void)state;
    char text[8];
    memset(text, 'x', sizeof(text));
    struct error five = {text, 5};
    assert_int_equal(error_set(five, BATON_ELIMIT, "%s", "0123456789"), BATON_ELIMIT);
    assert_memory_equal(text, "0123\0xxx", sizeof(text));
}

static void test_error_set_without_a_buffer_returns_the_code(void **state)
{
    (void)state;
    char untouched = 'x';
    assert_int_equal(error_set(ERROR_NONE, BATON_EPEER, "lost %d", 1), BATON_EPEER);
    assert_int_equal(error_set((struct error){&untouched, 0}, BATON_EPEER, "x"), BATON_EPEER);
    assert_int_equal(untouched, 'x');
}

static void test_assert_stops_the_process_and_says_where(void **state)
{
    (void)state;
    int ends[2];
    char said[512] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        BATON_ASSERT(1 + 1 == 2);
        BATON_ASSERT(1 + 1 == 3);
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], said + used, sizeof(said) - 1 - used)) > 0;)
        used += (size_t)got;
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(said, "assertion failed: 1 + 1 == 3"));
    assert_non_null(strstr(said, "test_error.c:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_codes_are_negative_and_without_gaps),
        cmocka_unit_test(test_error_names_and_texts_are_distinct),
        cmocka_unit_test(test_error_of_no_list_is_still_printable),
        cmocka_unit_test(test_state_names_are_those_of_the_seed),
        cmocka_unit_test(test_version_is_that_of_the_header),
        cmocka_unit_test(test_error_set_returns_the_code_and_writes_the_sentence),
        cmocka_unit_test(test_error_set_cuts_what_does_not_fit),
        cmocka_unit_test(test_error_set_without_a_buffer_returns_the_code),
        cmocka_unit_test(test_assert_stops_the_process_and_says_where),
    };
    return cmocka_run_group_tests_name("base.error", tests, NULL, NULL);
}
