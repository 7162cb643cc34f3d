/* SPDX-License-Identifier: Apache-2.0 */
/* Runs patterns, compiled to machine code where PCRE2 can. Input is checked before it gets here,
 * so PCRE2 does not check UTF-8 again.
 *
 * The machine's stack is not the limit: every thread brings a stack for compiled patterns that
 * grows to JIT_STACK_MAX, and a text that needs more is tried once more by the interpreter,
 * whose stack is the heap. After MATCH_LIMIT steps a match is given up, with an error: the
 * patterns of real tokenizers are nowhere near it, but files may hold any. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer_pattern.h"
#include "unicode.h"

#include <pcre2.h>
#include <stdlib.h>

#define JIT_STACK_START (32u << 10)
#define JIT_STACK_MAX (1u << 20)
#define MATCH_LIMIT 10000000u
#define HEAP_LIMIT_KB (64u << 10)

struct pattern {
    pcre2_code *code;
};

struct pattern_space {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int pattern_compile(const char *expression, size_t length, uint32_t options,
                           struct pattern **out, struct error err)
{
    int problem;
    size_t where;
    struct pattern *pattern = calloc(1, sizeof(*pattern));
    if (!pattern)
        return error_set(err, BATON_ENOMEM, "out of memory for a pattern");
    options |= PCRE2_UTF | PCRE2_NO_UTF_CHECK;
    pattern->code =
        pcre2_compile((PCRE2_SPTR)expression, length, options, &problem, &where, NULL);
    if (!pattern->code) {
        char text[128];
        pcre2_get_error_message(problem, (PCRE2_UCHAR *)text, sizeof(text));
        free(pattern);
        return error_set(err, BATON_EINVAL, "bad pattern: %s at byte %zu of %.*s", text, where,
                         length < 200 ? (int)length : 200, expression);
    }
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it: slower, not wrong */
    *out = pattern;
    return BATON_OK;
}

int pattern_open(const char *source, size_t length, struct pattern **out, struct error err)
{
    struct byte_buffer expression = {0};
    int rc = BATON_EINVAL;
    if (utf8_valid_prefix(source, length) == length)
        rc = pattern_translate(source, length, &expression, err);
    else
        error_set(err, rc, "bad pattern: it is not UTF-8");
    if (!rc)
        rc = pattern_compile(expression.bytes ? expression.bytes : "", expression.length,
                             PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, out, err);
    byte_buffer_free(&expression);
    return rc;
}

int pattern_open_literal(const char *text, size_t length, struct pattern **out,
                         struct error err)
{
    if (utf8_valid_prefix(text, length) != length)
        return error_set(err, BATON_EINVAL, "bad pattern: it is not UTF-8");
    return pattern_compile(text, length, PCRE2_LITERAL, out, err);
}

void pattern_close(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

int pattern_space_open(struct pattern_space **out)
{
    struct pattern_space *space = calloc(1, sizeof(*space));
    if (!space)
        return BATON_ENOMEM;
    space->match = pcre2_match_data_create(1, NULL);
    space->context = pcre2_match_context_create(NULL);
    space->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (!space->match || !space->context || !space->stack) {
        pattern_space_close(space);
        return BATON_ENOMEM;
    }
    pcre2_set_match_limit(space->context, MATCH_LIMIT);
    pcre2_set_heap_limit(space->context, HEAP_LIMIT_KB);
    pcre2_jit_stack_assign(space->context, NULL, space->stack);
    *out = space;
    return BATON_OK;
}

void pattern_space_close(struct pattern_space *space)
{
    if (!space)
        return;
    pcre2_match_data_free(space->match);
    pcre2_match_context_free(space->context);
    pcre2_jit_stack_free(space->stack);
    free(space);
}

static int pattern_failed(int problem, size_t length, struct error err)
{
    char text[128];
    if (problem == PCRE2_ERROR_NOMEMORY)
        return error_set(err, BATON_ENOMEM, "out of memory while a text of %zu bytes was split",
                         length);
    pcre2_get_error_message(problem, (PCRE2_UCHAR *)text, sizeof(text));
    return error_set(err, BATON_ELIMIT,
                     "a pattern of the tokenizer gave up on a text of %zu bytes: %s", length,
                     text);
}

int pattern_find(const struct pattern *pattern, struct pattern_space *space, const char *text,
                 size_t length, size_t offset, size_t *start, size_t *end, struct error err)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = pcre2_match(pattern->code, subject, length, offset, PCRE2_NO_UTF_CHECK,
                         space->match, space->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(pattern->code, subject, length, offset,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, space->match, space->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return pattern_failed(rc, length, err);
    const size_t *found = pcre2_get_ovector_pointer(space->match);
    *start = found[0];
    *end = found[1];
    return 1;
}

int pattern_walk_next(const struct pattern *pattern, struct pattern_space *space,
                      const char *text, size_t length, struct pattern_walk *walk, size_t *start,
                      size_t *end, struct error err)
{
    while (walk->at <= length) {
        int found = pattern_find(pattern, space, text, length, walk->at, start, end, err);
        if (found <= 0)
            return found;
        if (*start < *end || walk->last != *end + 1) {
            walk->at = *end;
            walk->last = *end + 1;
            return 1;
        }
        do
            walk->at++;
        while (walk->at < length && ((uint8_t)text[walk->at] & 0xc0) == 0x80);
    }
    return 0;
}
