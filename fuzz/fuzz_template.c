/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a chat template, with any JSON as its conversation. An input is the template, and
 * after a line of "---" the context, if it brings one. Whatever happens, it ends soon: with a text
 * that is UTF-8, or with a sentence that says why not. */
#include "model/template.h"
#include "model/template_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char default_context[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be good.\"},"
    " {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"H\\u00fc "
    "\\ud83d\\ude42\"}]},"
    " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "
    "\"f\","
    " \"arguments\": {\"x\": 1.5, \"y\": [true, -7]}}}]}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}],"
    " \"x\": 3, \"s\": \"a,b <c>\", \"d\": {\"a\": 1, \"b\": [2]}, \"bos_token\": \"<s>\"}";

static void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "fuzz_template: %s\n", what);
        abort();
    }
}

static void template_try(const char *source, size_t length, const json_t *context)
{
    const struct template_limits limits = {
        .steps = 200000, .memory = 4 << 20, .output = 256 << 10, .now = 1763216345};
    struct template *template = NULL;
    struct template_output out = {0};
    char text[256] = "";
    int rc = template_compile(source, length, &template, ERROR_BUFFER(text));
    require((rc == 0) == (template != NULL), "a template without success, or none with it");
    require(rc == 0 || *text, "no sentence says why it does not compile");
    if (rc)
        return;
    /* Twice, because the first rendering must leave the template and the context as they were. */
    for (int i = 0; i < 2; i++) {
        struct template_output again = {0};
        int second = template_render(template, context, &limits, &again, ERROR_BUFFER(text));
        require(second == 0 || *text, "no sentence says why it does not render");
        require(second || jinja_text_valid(again.text, again.length), "the text is not UTF-8");
        require(i == 0 || second == rc, "the second rendering ends otherwise");
        require(i == 0 || (again.length == out.length &&
                           (!out.text || memcmp(again.text, out.text, out.length) == 0)),
                "the second rendering is different");
        free(out.text);
        out = again;
        rc = second;
    }
    free(out.text);
    template_free(template);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char separator[] = "\n---\n";
    const char *source = (const char *)data;
    const char *found = memmem(data, size, separator, sizeof(separator) - 1);
    size_t length = found ? (size_t)(found - source) : size;
    const char *json = found ? found + sizeof(separator) - 1 : default_context;
    size_t json_size = found ? (size_t)(source + size - json) : sizeof(default_context) - 1;
    json_t *context = json_loadb(json, json_size, JSON_ALLOW_NUL, NULL);
    if (!context)
        context = json_loadb(default_context, sizeof(default_context) - 1, 0, NULL);
    require(context != NULL, "the default context is not JSON");
    /* On a heap block of exactly its size, so that one byte too far is seen. */
    char *copy = malloc(length ? length : 1);
    require(copy != NULL, "out of memory");
    memcpy(copy, source, length);
    template_try(copy, length, context);
    free(copy);
    json_decref(context);
    return 0;
}
