/* SPDX-License-Identifier: Apache-2.0 */
/* Compiling and rendering, from the outside.
 *
 *   text -> tokens (template_lexer.c) -> tree (template_parser.c) -> variables for names
 *   (template_scope.c); then, per rendering, statements (template_execute.c) and expressions
 *   (template_evaluate.c) over values (template_value.c), with the filters, tests, methods and
 *   functions of template_builtin.h.
 *
 * A failure anywhere ends the rendering: every function returns false at once, and since all
 * memory is the arena's, nobody has to clean up on the way. */
#include "template.h"

#include "template_evaluate.h"
#include "template_json.h"
#include "template_text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define TEMPLATE_TEXT_MAX ((size_t)1 << 20)
#define TEMPLATE_TREE_MAX ((size_t)64 << 20)

int template_compile(const char *text, size_t length, struct template **out, struct error err)
{
    struct compilation compilation = {.err = err};
    struct template *template;
    if (length > TEMPLATE_TEXT_MAX)
        return error_set(err, BATON_ELIMIT,
                         "chat template: %zu bytes; more than %zu are refused", length,
                         TEMPLATE_TEXT_MAX);
    if (!jinja_text_valid(text, length))
        return error_set(err, BATON_EINVAL, "chat template: it is not UTF-8");
    template = calloc(1, sizeof(*template));
    if (!template)
        return error_set(err, BATON_ENOMEM, "chat template: out of memory");
    jinja_arena_init(&compilation.arena, TEMPLATE_TREE_MAX);
    bool good = jinja_lex(&compilation, text, length) &&
                jinja_parse(&compilation, &template->body) &&
                jinja_resolve(&compilation, &template->body, &template->scope);
    template->arena = compilation.arena;
    if (!good) {
        template_free(template);
        return compilation.code;
    }
    *out = template;
    return BATON_OK;
}

void template_free(struct template *template)
{
    if (!template)
        return;
    jinja_arena_free(&template->arena);
    free(template);
}

/* Missing where the caller set nothing; transformers always sets them. */
static bool context_default(struct run *run, struct text name, struct value value)
{
    struct value key = value_string(name.bytes, name.length);
    return jinja_dict_find(run, run->context, name) ||
           jinja_dict_set(run, run->context, key, value);
}

static bool context_open(struct run *run, const json_t *context)
{
    struct value value;
    if (!json_is_object(context))
        return jinja_refuse(run, "the context is not an object");
    if (!jinja_from_json(run, context, &value))
        return false;
    run->context = value.dict;
    return context_default(run, TEXT("tools"), value_of(VALUE_NONE)) &&
           context_default(run, TEXT("documents"), value_of(VALUE_NONE)) &&
           context_default(run, TEXT("add_generation_prompt"), value_boolean(false));
}

static void limits_fill(struct template_limits *limits)
{
    if (limits->steps == 0)
        limits->steps = TEMPLATE_STEPS_DEFAULT;
    if (limits->memory == 0)
        limits->memory = TEMPLATE_MEMORY_DEFAULT;
    if (limits->output == 0)
        limits->output = TEMPLATE_OUTPUT_DEFAULT;
    if (limits->output > UINT32_MAX / 2) /* strings have 32-bit lengths */
        limits->output = UINT32_MAX / 2;
    if (limits->depth == 0)
        limits->depth = TEMPLATE_DEPTH_DEFAULT;
}

int template_render(const struct template *template, const json_t *context,
                    const struct template_limits *limits, struct template_output *out,
                    struct error err)
{
    struct run run = {.err = err, .line = 1};
    struct frame *frame;
    if (limits)
        run.limits = *limits;
    limits_fill(&run.limits);
    run.steps = run.limits.steps;
    jinja_arena_init(&run.arena, run.limits.memory);
    if (getrandom(&run.seed, sizeof(run.seed), GRND_NONBLOCK) != sizeof(run.seed))
        run.seed = (uint64_t)(uintptr_t)&run ^ (uint64_t)time(NULL);

    bool good = context_open(&run, context) &&
                jinja_frame_new(&run, template->scope, NULL, &frame) &&
                jinja_execute(&run, frame, &template->body) != FLOW_FAILED &&
                jinja_write(&run, "", 1); /* the NUL after the text */
    jinja_arena_free(&run.arena);
    if (!good || run.code) {
        free(run.sink.bytes);
        return run.code;
    }
    out->text = run.sink.bytes;
    out->length = run.sink.length - 1;
    return BATON_OK;
}
