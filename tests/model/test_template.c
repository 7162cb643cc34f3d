/* SPDX-License-Identifier: Apache-2.0 */
/* Small templates of our own against what jinja2 makes of them (golden/template_cases.json, by
 * template_golden.py), what is refused and how the refusal reads, and many threads at once. Real
 * templates are compared in template_real.py, random ones in template_random.py.
 *
 * usage: test_template FOLDER_OF_GOLDENS */
#include "model/template.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOW 1763216345 /* that of template_oracle.py */

static const char *golden_folder;

/* Renders into a text that the caller frees; NULL with the error. */
static char *render(const char *source, size_t length, const json_t *context, char *error,
                    size_t error_size, int *code)
{
    struct error err = {error, error_size};
    struct template_limits limits = {.now = NOW};
    struct template_output out = {0};
    struct template *template;
    *code = template_compile(source, length, &template, err);
    if (*code)
        return NULL;
    *code = template_render(template, context, &limits, &out, err);
    template_free(template);
    if (*code)
        return NULL;
    assert_int_equal(out.text[out.length], '\0');
    return out.text;
}

/* ---- goldens ----------------------------------------------------------------------------- */

static void case_check(const json_t *golden)
{
    const char *name = json_string_value(json_object_get(golden, "name"));
    const json_t *source = json_object_get(golden, "template");
    const char *text = json_string_value(json_object_get(golden, "text"));
    const char *message = json_string_value(json_object_get(golden, "error"));
    char error[512] = "";
    int code;
    char *ours = render(json_string_value(source), json_string_length(source),
                        json_object_get(golden, "context"), error, sizeof(error), &code);
    if (text && !ours)
        fail_msg("%s: %s", name, error);
    if (text && strcmp(text, ours) != 0)
        fail_msg("%s: expected <%s>, rendered <%s>", name, text, ours);
    if (!text && ours)
        fail_msg("%s: should be refused, rendered <%s>", name, ours);
    if (!text && !strstr(error, message))
        fail_msg("%s: the error lacks '%s': %s", name, message, error);
    if (!text && !*message && !strstr(error, "chat template, line "))
        fail_msg("%s: the error does not say where: %s", name, error);
    if (!text)
        assert_int_equal(code, BATON_EINVAL);
    free(ours);
}

static json_t *goldens_load(void)
{
    char path[4096];
    json_error_t problem;
    snprintf(path, sizeof(path), "%s/template_cases.json", golden_folder);
    json_t *cases = json_load_file(path, 0, &problem);
    if (!cases)
        fail_msg("%s: %s", path, problem.text);
    assert_true(json_array_size(cases) > 50);
    return cases;
}

static void test_golden_cases_render_as_in_jinja2(void **state)
{
    (void)state;
    json_t *cases = goldens_load();
    for (size_t i = 0; i < json_array_size(cases); i++)
        case_check(json_array_get(cases, i));
    json_decref(cases);
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void expect_refused(const char *source, int expected, const char *part)
{
    char error[512] = "";
    int code;
    json_t *context = json_pack("{s:s, s:{s:i}, s:[i,i]}", "s", "text", "d", "a", 1, "l", 1, 2);
    char *text = render(source, strlen(source), context, error, sizeof(error), &code);
    json_decref(context);
    if (text)
        fail_msg("<%s> should be refused, rendered <%s>", source, text);
    if (code != expected || !strstr(error, part))
        fail_msg("<%s>: expected %s with '%s', got %s: %s", source, baton_error_name(expected),
                 part, baton_error_name(code), error);
}

/* Even where it would never be reached. */
static void test_unsupported_is_named_with_its_line(void **state)
{
    (void)state;
    const struct {
        const char *source, *part;
    } cases[] = {
        {"a\n{% if false %}\n{{ x|groupby('a') }}{% endif %}", "line 3: the filter 'groupby'"},
        {"{{ x|foo.bar }}", "line 1: the filter 'foo.bar'"},
        {"\n\n{{ x is strange }}", "line 3: the test 'strange'"},
        {"{{ x|map('urlize')|list }}", "line 1: the filter 'urlize'"},
        {"{{ x|select('foo')|list }}", "line 1: the test 'foo'"},
        {"{{ x|selectattr('a', 'foo')|list }}", "line 1: the test 'foo'"},
        {"{{ 'x'\n.encode('utf-8') }}", "line 2: the method 'encode'"},
        {"{{ lipsum(3) }}", "line 1: the function 'lipsum'"},
        {"\n{% include 'x' %}", "line 2: {% include %}"},
        {"{% block a %}{% endblock %}", "line 1: {% block %}"},
        {"{% extends 'a' %}", "line 1: {% extends %}"},
        {"{% import 'a' as b %}", "line 1: {% import %}"},
        {"{% do x() %}", "line 1: {% do %}"},
        {"{% for a in x recursive %}{% endfor %}", "line 1: a recursive loop"},
        {"{{ '\\N{DASH}' }}", "line 1: the escape \\N"},
        {"{{ 99999999999999999999 }}", "line 1: integers of more than 64 bits"},
        {"{{ n\xc3\xa4me }}", "line 1: names of letters other than a-z"},
        {"{{ x[1:2, 3] }}", "line 1: several slices"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(cases[i].source, BATON_EUNSUPPORTED, cases[i].part);
}

static void test_bad_syntax_is_refused_with_its_line(void **state)
{
    (void)state;
    const struct {
        const char *source, *part;
    } cases[] = {
        {"\n{% if x %}", "line 2: the template ends where 'endif' is expected"},
        {"{% endif %}", "line 1: {% endif %} is unknown"},
        {"{% for x in l %}{% endif %}", "line 1: {% endif %} is unknown"},
        {"{{ x", "line 1: '}}' is expected, not the end of the template"},
        {"{% if x", "'%}' is expected"},
        {"{{ }}", "an expression is expected"},
        {"{{ 'abc }}", "unexpected character '''"},
        {"{{ a ! b }}", "unexpected character '!'"},
        {"{# x", "a comment has no end"},
        {"{% raw %}x", "has no {% endraw %}"},
        {"{{ (1, 2] }}", "unexpected ']'"},
        {"{{ 1) }}", "unexpected ')'"},
        {"{% break %}", "'break' is outside of a loop"},
        {"{% for x in l %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}",
         "'continue' is outside of a loop"},
        {"{% set 1 = 2 %}", "only a name can be assigned to"},
        {"{% set true = 2 %}", "only a name can be assigned to"},
        {"{% for loop in l %}{% endfor %}", "'loop' cannot be assigned to"},
        {"{% for x in l %}{% set loop = 1 %}{% endfor %}", "'loop' cannot be assigned to"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "a parameter without a default"},
        {"{% macro m(a, a) %}{% endmacro %}", "two parameters are called 'a'"},
        {"{{ f(a=1, a=2) }}", "the argument 'a' is given twice"},
        {"{{ f(a=1, 2) }}", "an argument without a name"},
        {"{% call x %}{% endcall %}", "{% call %} needs the call"},
        {"{{ x is defined is none }}", "two tests"},
        {"{{ '\\ud800' }}", "the escape \\u"},
        {"{{ '\\x4' }}", "the escape \\x"},
        {"{% if x %}{% else %}{% elif y %}{% endif %}", "{% elif %} is unknown"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(cases[i].source, BATON_EINVAL, cases[i].part);
}

static void test_errors_while_rendering_say_what_and_where(void **state)
{
    (void)state;
    const struct {
        const char *source, *part;
    } cases[] = {
        {"\n{{ foo.bar }}", "line 2: 'foo' is undefined"},
        {"{{ d.x.y }}", "line 1: a dict has no attribute 'x'"},
        {"{{ s + 1 }}", "line 1: '+' cannot be applied to a string and an integer"},
        {"{{ s() }}", "a string cannot be called"},
        {"{% for x in 5 %}{% endfor %}", "cannot go through the items of an integer"},
        {"{{ 5|length }}", "an integer has no length"},
        {"{{ [1, 'a']|sort }}", "have no order"},
        {"{{ {[]: 1} }}", "a list cannot be a key"},
        {"{% set d.x = 1 %}", "'d' is a dict; only attributes of a namespace"},
        {"{% set a, b = l + [3] %}", "3 values cannot be assigned to 2 names"},
        {"{{ s|trim(1, 2) }}", "trim takes at most 1 arguments, not 2"},
        {"{{ s|trim(foo=1) }}", "trim takes no argument called 'foo'"},
        {"{{ s|replace('a') }}", "replace needs its argument 'new'"},
        {"{{ s|replace('a', old='b') }}", "replace got two values for 'old'"},
        {"{{ range(999999999) }}", "range: more than"},
        {"{{ 9223372036854775807 + 1 }}", "does not fit into 64 bits"},
        {"{{ -9223372036854775807 - 2 }}", "does not fit into 64 bits"},
        {"{{ 2 ** 64 }}", "does not fit into 64 bits"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "does not fit into 64 bits"},
        {"{{ d|tojson(indent=[]) }}", "tojson: indent is a list"},
        {"{{ '%d' % 'x' }}", "%d needs a number, not a string"},
        {"{{ '%s %s' % 1 }}", "too few values"},
        {"{{ '{}{}'.format(1) }}", "too few values"},
        {"{{ '{'.format(1) }}", "format"},
        {"{{ l.pop(5) }}", "pop: the list has only 2 items"},
        {"{{ '{'|from_json }}", "from_json:"},
        {"{{ raise_exception('Not ' + s + '.') }}", "refuses the conversation: Not text."},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(cases[i].source, BATON_EINVAL, cases[i].part);
}

static void test_text_that_is_not_utf8_is_refused(void **state)
{
    (void)state;
    expect_refused("a\xff", BATON_EINVAL, "not UTF-8");
    expect_refused("{{ '\xed\xa0\x80' }}", BATON_EINVAL, "not UTF-8");
}

static void test_context_must_be_an_object(void **state)
{
    (void)state;
    char error[256];
    int code;
    json_t *list = json_array();
    assert_null(render("a", 1, list, error, sizeof(error), &code));
    assert_int_equal(code, BATON_EINVAL);
    assert_null(render("a", 1, NULL, error, sizeof(error), &code));
    assert_int_equal(code, BATON_EINVAL);
    json_decref(list);
}

/* NUL bytes are text like any other. */
static void test_zero_bytes_pass(void **state)
{
    (void)state;
    char error[256];
    int code;
    json_t *context = json_pack("{s:s#}", "s", "a\0b", 3);
    const char source[] = "{{ s }}\0{{ s|length }}{{ s|tojson }}";
    char *text = render(source, sizeof(source) - 1, context, error, sizeof(error), &code);
    assert_non_null(text);
    assert_memory_equal(text, "a\0b\0003\"a\\u0000b\"", 16);
    free(text);
    json_decref(context);
}

/* Even text that is not UTF-8, which only a caller's mistake can bring here. */
static void test_broken_strings_do_no_harm(void **state)
{
    (void)state;
    char error[256];
    int code;
    static const char source[] =
        "{{ s|length }}{{ s[::-1]|length }}{{ s|upper|length }}{{ [s]|tojson|length }}"
        "{{ [s]|string|length }}{{ s.split()|length }}{{ s.strip()|length }}{{ s|list|length "
        "}}";
    json_t *context = json_object();
    json_object_set_new(context, "s", json_stringn_nocheck("\xff\xc3 \xe4\xbd", 5));
    char *text = render(source, sizeof(source) - 1, context, error, sizeof(error), &code);
    assert_non_null(text);
    free(text);
    json_decref(context);
}

/* ---- threads ----------------------------------------------------------------------------- */

struct shared {
    const struct template *template;
    const json_t *context;
    const char *expected;
};

static void *render_many(void *argument)
{
    const struct shared *shared = argument;
    struct template_limits limits = {.now = NOW};
    for (int i = 0; i < 50; i++) {
        struct template_output out;
        if (template_render(shared->template, shared->context, &limits, &out, ERROR_NONE))
            return (void *)"a rendering failed";
        bool same = strcmp(out.text, shared->expected) == 0;
        free(out.text);
        if (!same)
            return (void *)"a rendering is different";
    }
    return NULL;
}

static void test_one_template_and_context_serve_many_threads(void **state)
{
    (void)state;
    json_t *cases = goldens_load(), *golden = json_array_get(cases, 1);
    const json_t *source = json_object_get(golden, "template");
    struct shared shared = {.context = json_object_get(golden, "context"),
                            .expected = json_string_value(json_object_get(golden, "text"))};
    struct template *template;
    pthread_t threads[4];
    assert_int_equal(template_compile(json_string_value(source), json_string_length(source),
                                      &template, ERROR_NONE),
                     0);
    shared.template = template;
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, &shared), 0);
    for (size_t i = 0; i < 4; i++) {
        void *problem;
        assert_int_equal(pthread_join(threads[i], &problem), 0);
        if (problem)
            fail_msg("%s", (const char *)problem);
    }
    template_free(template);
    json_decref(cases);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_cases_render_as_in_jinja2),
        cmocka_unit_test(test_unsupported_is_named_with_its_line),
        cmocka_unit_test(test_bad_syntax_is_refused_with_its_line),
        cmocka_unit_test(test_errors_while_rendering_say_what_and_where),
        cmocka_unit_test(test_text_that_is_not_utf8_is_refused),
        cmocka_unit_test(test_context_must_be_an_object),
        cmocka_unit_test(test_zero_bytes_pass),
        cmocka_unit_test(test_broken_strings_do_no_harm),
        cmocka_unit_test(test_one_template_and_context_serve_many_threads),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER_OF_GOLDENS\n", argv[0]);
        return 2;
    }
    golden_folder = argv[1];
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
