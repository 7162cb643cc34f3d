/* SPDX-License-Identifier: Apache-2.0 */
/* Renders templates for the tests that compare with jinja2: one JSON object per line in, one per
 * line out, in the same order.
 *
 *   {"template": "...", "context": {...}, "now": 1700000000}
 *   {"text": "..."}   or   {"error": "...", "code": "BATON_EINVAL", "compile": true}
 */
#include "model/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *failure(int code, const char *text, bool compile)
{
    return json_pack("{s:s, s:s, s:b}", "error", text, "code", baton_error_name(code),
                     "compile", compile);
}

/* The template of a case: compiled, unless it is that of the case before. */
static int template_get(const json_t *source, struct template **out, struct error err)
{
    static json_t *last;
    static struct template *compiled;
    if (last && source && json_equal(last, source)) {
        *out = compiled;
        return 0;
    }
    template_free(compiled);
    json_decref(last);
    compiled = NULL;
    last = NULL;
    if (!source)
        return 0;
    int rc =
        template_compile(json_string_value(source), json_string_length(source), &compiled, err);
    if (rc == 0)
        last = json_copy((json_t *)source);
    *out = compiled;
    return rc;
}

static json_t *case_run(const json_t *request)
{
    const json_t *source = json_object_get(request, "template");
    struct template_limits limits = {
        .now = (time_t)json_integer_value(json_object_get(request, "now"))};
    struct template_output out;
    struct template *template;
    char text[1024] = "";
    int rc = template_get(source, &template, ERROR_BUFFER(text));
    if (rc)
        return failure(rc, text, true);
    rc = template_render(template, json_object_get(request, "context"), &limits, &out,
                         ERROR_BUFFER(text));
    if (rc)
        return failure(rc, text, false);
    json_t *reply = json_pack("{s:s#}", "text", out.text, (int)out.length);
    free(out.text);
    return reply;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int rc = 0;
    while (rc == 0 && (length = getline(&line, &room, stdin)) > 0) {
        json_error_t problem;
        json_t *request = json_loadb(line, (size_t)length, JSON_ALLOW_NUL, &problem);
        json_t *reply = request ? case_run(request) : NULL;
        char *text = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
        if (!text) {
            fprintf(stderr, "cannot run the case %.200s: %s\n", line,
                    request ? "its result is not UTF-8" : problem.text);
            rc = 1;
        } else {
            puts(text);
        }
        free(text);
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    template_get(NULL, NULL, ERROR_NONE);
    return rc;
}
