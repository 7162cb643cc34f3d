/* SPDX-License-Identifier: Apache-2.0 */
/* A template or a conversation that asks for too much gets an error, soon, with little memory and
 * on a small stack. */
#include "model/template.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static int render(const char *source, const json_t *context,
                  const struct template_limits *limits, char error[256])
{
    struct error err = {error, 256};
    struct template_output out = {0};
    struct template *template;
    int rc = template_compile(source, strlen(source), &template, err);
    if (rc)
        return rc;
    rc = template_render(template, context, limits, &out, err);
    template_free(template);
    free(out.text);
    return rc;
}

static void expect_limit(const char *source, const struct template_limits *limits,
                         const char *part)
{
    char error[256] = "";
    json_t *context = json_pack("{s:[i,i,i]}", "xs", 1, 2, 3);
    int rc = render(source, context, limits, error);
    json_decref(context);
    if (rc != BATON_ELIMIT || !strstr(error, part))
        fail_msg("<%.200s>: expected a limit with '%s', got %s: %s", source, part,
                 baton_error_name(rc), error);
}

static void expect_fine(const char *source, const struct template_limits *limits)
{
    char error[256] = "";
    json_t *context = json_pack("{s:[i,i,i]}", "xs", 1, 2, 3);
    int rc = render(source, context, limits, error);
    json_decref(context);
    if (rc)
        fail_msg("<%.200s>: %s", source, error);
}

/* ---- rendering --------------------------------------------------------------------------- */

static void test_steps_are_bounded(void **state)
{
    (void)state;
    const struct template_limits few = {.steps = 1000}, more = {.steps = 100000};
    expect_limit("{% for a in range(1000) %}{% endfor %}", &few, "more than 1000 steps");
    expect_limit("{% for x in xs %}{% set _ = xs.append(x) %}{% endfor %}", &more, "steps");
    expect_limit("{% set s = 'ab' * 5000 %}{% for i in range(1000) %}{{ s[i] }}{% endfor %}",
                 &more, "steps");
    expect_limit("{{ (range(9999)|list + [1])|join }}", &few, "steps");
    expect_limit("{% set s = 'a' * 9000 %}{% for i in range(900) %}{{ s.rfind('b' + s) }}"
                 "{% endfor %}",
                 &more, "steps");
    expect_fine("{% for a in range(100) %}{{ a }}{% endfor %}", &few);
}

static void test_memory_is_bounded(void **state)
{
    (void)state;
    const struct template_limits little = {.memory = 100000};
    expect_limit(
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l "
        "%}{% endfor %}",
        &little, "more than 100000 bytes of memory");
    expect_limit(
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s "
        "%}{% endfor %}",
        &little, "memory");
    expect_limit("{{ 'x'|tojson(indent=99999999) }}{{ ['a'] * 99999999 }}", &little, "bytes");
    expect_fine("{{ xs }}", &little);
}

static void test_output_is_bounded(void **state)
{
    (void)state;
    const struct template_limits little = {.output = 1000};
    expect_limit("{% for i in range(101) %}0123456789{% endfor %}", &little,
                 "writes more than 1000 bytes");
    expect_limit("{{ 'x' * 1001 }}", &little, "writes more than 1000 bytes");
    expect_limit("{{ 'x'.center(1001) }}", &little, "writes more than 1000 bytes");
    expect_limit("{{ '%1001d' % 1 }}", &little, "writes more than 1000 bytes");
    expect_limit("{{ 'x'|indent(2000, true) }}", &little, "writes more than 1000 bytes");
    expect_fine("{% for i in range(99) %}0123456789{% endfor %}", &little);
}

/* With the NUL that the text is given, a limit of n allows n - 1 bytes. */
static void test_output_may_fill_the_limit(void **state)
{
    (void)state;
    const struct template_limits ten = {.output = 10};
    expect_fine("012345678", &ten);
    expect_limit("0123456789", &ten, "writes more than 10 bytes");
}

static void test_depth_is_bounded(void **state)
{
    (void)state;
    expect_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, "nested more than");
    expect_limit("{% set _ = xs.append(xs) %}{{ xs }}", NULL, "nested more than");
    expect_limit("{% set _ = xs.append(xs) %}{{ xs|tojson }}", NULL, "nested more than");
    expect_limit(
        "{% set ys = [1, 2, 3] %}{% set _ = xs.append(xs) %}{% set _ = ys.append(ys) %}"
        "{{ xs == ys }}",
        NULL, "nested more than");
    expect_limit(
        "{% set ns = namespace(l=[]) %}{% for i in range(600) %}{% set ns.l = [ns.l] %}"
        "{% endfor %}{{ ns.l }}",
        NULL, "nested more than");
    expect_limit(
        "{% set ns = namespace(t=()) %}{% for i in range(600) %}{% set ns.t = (ns.t,) %}"
        "{% endfor %}{{ {ns.t: 1} }}",
        NULL, "nested more than");
}

static void test_deep_context_is_refused(void **state)
{
    (void)state;
    char error[256];
    json_t *inner = json_array();
    for (int i = 0; i < 1500; i++)
        inner = json_pack("[o]", inner);
    json_t *context = json_pack("{s:o}", "messages", inner);
    assert_int_equal(render("{{ messages }}", context, NULL, error), BATON_ELIMIT);
    json_decref(context);
}

/* ---- compiling --------------------------------------------------------------------------- */

static char *repeated(const char *before, const char *part, size_t count, const char *after)
{
    size_t length = strlen(part);
    char *text = malloc(strlen(before) + count * length + strlen(after) + 1);
    assert_non_null(text);
    char *end = stpcpy(text, before);
    for (size_t i = 0; i < count; i++)
        end = stpcpy(end, part);
    strcpy(end, after);
    return text;
}

static void expect_compile_limit(const char *before, const char *part, size_t count,
                                 const char *after)
{
    char *text = repeated(before, part, count, after);
    expect_limit(text, NULL, "");
    free(text);
}

static void test_nesting_of_the_source_is_bounded(void **state)
{
    (void)state;
    expect_compile_limit("{{ ", "(", 100000, "");
    expect_compile_limit("{{ ", "[", 100000, "");
    expect_compile_limit("{{ ", "not ", 100000, "x }}");
    expect_compile_limit("{{ ", "-", 100000, "1 }}");
    expect_compile_limit("{{ ", "1 + ", 100000, "1 }}");
    expect_compile_limit("{{ x", ".a", 100000, " }}");
    expect_compile_limit("{{ x", "|e", 100000, " }}");
    expect_compile_limit("{{ ", "1 if 1 else ", 100000, "1 }}");
    expect_compile_limit("{{ ", "1 < ", 100000, "1 }}");
    expect_compile_limit("{{ ", "1 and ", 100000, "1 }}");
    expect_compile_limit("", "{% if x %}", 100000, "");
    expect_compile_limit("", "{% for x in xs %}", 50000, "");
    expect_compile_limit("", "{% macro m() %}", 50000, "");
}

static void test_long_sources_are_refused(void **state)
{
    (void)state;
    expect_compile_limit("", "x", (1 << 20) + 1, "");
}

/* As long as a template may be, and nothing about it is quadratic. */
static void test_long_sources_are_compiled(void **state)
{
    (void)state;
    char *lists[] = {
        repeated("{{ [", "1,", 100000, "]|length }}"),
        repeated("{{ 'a'", " ~ 'b'", 100000, "}}"),
        repeated("{% if x %}", "{% elif x %}", 80000, "{% endif %}"),
        repeated("", "{{ x }}{# c #}\n", 60000, ""),
        repeated("{{ {", "'a':1,", 40000, "} }}"),
    };
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        expect_fine(lists[i], NULL);
        free(lists[i]);
    }
}

/* ---- stack ------------------------------------------------------------------------------- */

/* The deepest there is: expressions in macros in calls, to the limit of the depth, and the
 * deepest sources. On the stack that template.h promises to suffice. */
static void *render_deep(void *argument)
{
    static const char *const sources[] = {
        "{% macro m(x) %}{% if x %}{% for i in [1] %}{{ ([{'a': ('' ~ m(x + "
        "1))[0:]}]|map('string')"
        "|list)[0].strip().format(1) }}{% endfor %}{% endif %}{% endmacro %}{{ m(1) }}",
        "{% macro m(x) %}{% set y | upper %}{% filter trim %}{{ caller }}{% call m(-(1 + "
        "-(x))) %}"
        "{{ 1 if m(2) else 2 }}{% endcall %}{% endfilter %}{% endset %}{% endmacro %}{{ m(1) "
        "}}",
        "{% set _ = xs.append({'a': (xs, xs)}) %}{{ xs }}",
        "{% set _ = xs.append({'a': (xs, xs)}) %}{{ xs|tojson(indent=1) }}",
    };
    char error[256];
    int *failed = argument;
    json_t *context = json_pack("{s:[i]}", "xs", 1);
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        *failed += render(sources[i], context, NULL, error) != BATON_ELIMIT;
    json_decref(context);
    return NULL;
}

static void test_a_small_stack_suffices(void **state)
{
    (void)state;
    size_t size = 512 << 10;
    pthread_attr_t attributes;
    pthread_t thread;
    int failed = 0;
#if defined(SANITIZED)
    size *= 8; /* their frames are larger; the promise is for the plain build */
#endif
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, size), 0);
    assert_int_equal(pthread_create(&thread, &attributes, render_deep, &failed), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_bounded),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_output_is_bounded),
        cmocka_unit_test(test_output_may_fill_the_limit),
        cmocka_unit_test(test_depth_is_bounded),
        cmocka_unit_test(test_deep_context_is_refused),
        cmocka_unit_test(test_nesting_of_the_source_is_bounded),
        cmocka_unit_test(test_long_sources_are_refused),
        cmocka_unit_test(test_long_sources_are_compiled),
        cmocka_unit_test(test_a_small_stack_suffices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
