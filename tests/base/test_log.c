/* SPDX-License-Identifier: Apache-2.0 */
/* Each test logs in a child whose stderr is a pipe, since the level is read from the environment
 * once per process and since stderr is where the lines must go. */
#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAID_BYTES (1 << 20)

/* Runs `body` in a child with BATON_LOG set to `level` (NULL: unset); returns what it logged. */
static char *said_by(void (*body)(void), const char *level)
{
    int ends[2];
    char *said = malloc(SAID_BYTES);
    assert_non_null(said);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (level)
            setenv("BATON_LOG", level, 1);
        else
            unsetenv("BATON_LOG");
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], said + used, SAID_BYTES - 1 - used)) > 0;)
        used += (size_t)got;
    said[used] = '\0';
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return said;
}

static void log_one_of_each(void)
{
    LOG_ERROR(transfer, "e %d", 1);
    LOG_WARNING(transfer, "w %d", 2);
    LOG_INFO(transfer, "i %d", 3);
    LOG_DEBUG(transfer, "d %d", 4);
}

static void assert_lines(const char *level, int expected)
{
    char *said = said_by(log_one_of_each, level);
    int lines = 0;
    for (const char *p = said; (p = strchr(p, '\n')); p++)
        lines++;
    assert_int_equal(lines, expected);
    free(said);
}

static void test_log_level_comes_from_the_environment(void **state)
{
    (void)state;
    assert_lines(NULL, 2);
    assert_lines("error", 1);
    assert_lines("warning", 2);
    assert_lines("info", 3);
    assert_lines("debug", 4);
    assert_lines("0", 1);
    assert_lines("3", 4);
}

static void test_log_level_that_is_nonsense_means_warning(void **state)
{
    (void)state;
    assert_lines("", 2);
    assert_lines("loud", 2);
    assert_lines("4", 2);
    assert_lines("-1", 2);
    assert_lines("33", 2);
}

static void log_after_level_was_set(void)
{
    baton_log_level(3);
    log_one_of_each();
    baton_log_level(-7); /* the least is error */
    log_one_of_each();
}

static void test_log_level_can_be_changed_at_run_time(void **state)
{
    (void)state;
    char *said = said_by(log_after_level_was_set, "error");
    int errors = 0, debugs = 0;
    for (const char *p = said; (p = strstr(p, "transfer: e 1\n")); p++)
        errors++;
    for (const char *p = said; (p = strstr(p, "transfer: d 4\n")); p++)
        debugs++;
    assert_int_equal(errors, 2);
    assert_int_equal(debugs, 1);
    free(said);
}

static void log_one(void)
{
    LOG_ERROR(net, "link lost room %llu peer %s", 42ull, "10.0.0.1:9000");
}

static void test_log_line_says_when_how_bad_who_and_what(void **state)
{
    (void)state;
    char *said = said_by(log_one, NULL);
    unsigned hour, minute, second, millisecond, pid;
    char letter, rest[128];
    int fields = sscanf(said, "%2u:%2u:%2u.%3u %c baton[%u] %127[^\n]", &hour, &minute, &second,
                        &millisecond, &letter, &pid, rest);
    assert_int_equal(fields, 7);
    assert_int_equal(letter, 'E');
    assert_string_equal(rest, "net: link lost room 42 peer 10.0.0.1:9000");
    assert_true(said[strlen(said) - 1] == '\n');
    free(said);
}

static void log_far_too_much(void)
{
    char text[5000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    LOG_ERROR(net, "%s", text);
    LOG_ERROR(net, "next");
}

static void test_log_line_that_is_too_long_is_cut_and_ends(void **state)
{
    (void)state;
    char *said = said_by(log_far_too_much, NULL);
    char *end = strchr(said, '\n');
    assert_non_null(end);
    assert_true(end - said > 900 && end - said < 1024);
    assert_non_null(strstr(end, "net: next\n"));
    free(said);
}

#define THREADS 4
#define LINES 250

static void *log_many(void *argument)
{
    const char *letter = argument;
    char text[200];
    memset(text, *letter, sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    for (int i = 0; i < LINES; i++)
        LOG_ERROR(net, "%s", text);
    return NULL;
}

static void log_from_threads(void)
{
    static const char letters[THREADS] = {'a', 'b', 'c', 'd'};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, log_many, (void *)&letters[i]))
            _exit(1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void test_log_lines_of_several_threads_do_not_mix(void **state)
{
    (void)state;
    char *said = said_by(log_from_threads, NULL);
    int lines = 0;
    for (char *line = said; *line; lines++) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        char *text = strstr(line, "net: ");
        assert_non_null(text);
        text += 5;
        assert_int_equal(strlen(text), 199);
        assert_int_equal(strspn(text, (char[]){text[0], '\0'}), 199);
        line = end + 1;
    }
    assert_int_equal(lines, THREADS * LINES);
    free(said);
}

static void log_to_nowhere(void)
{
    close(STDERR_FILENO);
    LOG_ERROR(net, "nobody reads this");
}

static void test_log_survives_a_closed_stderr(void **state)
{
    (void)state;
    char *said = said_by(log_to_nowhere, NULL);
    assert_string_equal(said, "");
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_level_comes_from_the_environment),
        cmocka_unit_test(test_log_level_that_is_nonsense_means_warning),
        cmocka_unit_test(test_log_level_can_be_changed_at_run_time),
        cmocka_unit_test(test_log_line_says_when_how_bad_who_and_what),
        cmocka_unit_test(test_log_line_that_is_too_long_is_cut_and_ends),
        cmocka_unit_test(test_log_lines_of_several_threads_do_not_mix),
        cmocka_unit_test(test_log_survives_a_closed_stderr),
    };
    return cmocka_run_group_tests_name("base.log", tests, NULL, NULL);
}
