/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the Jinja2 program that a model file carries, which turns a conversation into
 * the text that the model was trained on. The language is that of Hugging Face transformers:
 * jinja2 with trim_blocks, lstrip_blocks and loop controls, inside a sandbox.
 *
 *   template_compile(text, length, &template, err);       once per model
 *   template_render(template, context, NULL, &out, err);  per request, from any thread
 *   free(out.text);
 *   template_free(template);
 *
 * What jinja2 has and this has not is refused by template_compile with its name and its line;
 * nothing in a template or a conversation can crash, hang or exhaust the process.
 *
 * Beyond transformers: lists and dicts have their changing methods (append, pop, update ...),
 * which its sandbox refuses, and there is a filter from_json; published templates use both. */
#ifndef BATON_MODEL_TEMPLATE_H
#define BATON_MODEL_TEMPLATE_H

#include "base/error.h"

#include <jansson.h>
#include <time.h>

struct template;

/* What one rendering may use; 0 stands for the default. */
struct template_limits {
    uint64_t steps; /* evaluated expressions and statements, and bytes looked at / 64 */
    size_t memory;  /* bytes of values made on the way */
    size_t output;  /* bytes of text */
    uint32_t depth; /* expressions, statements and macro calls inside one another */
    time_t now;     /* what strftime_now tells, in the local time zone; 0: the clock */
};

#define TEMPLATE_STEPS_DEFAULT 50000000ull
#define TEMPLATE_MEMORY_DEFAULT ((size_t)256 << 20)
#define TEMPLATE_OUTPUT_DEFAULT ((size_t)64 << 20)
#define TEMPLATE_DEPTH_DEFAULT 500u /* 512 KiB of stack suffice */

struct template_output {
    char *text; /* UTF-8 with a NUL after it; the caller frees it */
    size_t length;
};

/* EINVAL: not Jinja, or not UTF-8; EUNSUPPORTED: Jinja that is not supported; ELIMIT: nested too
 * deeply or too long; ENOMEM. The text is copied. */
int template_compile(const char *text, size_t length, struct template **out, struct error err);
void template_free(struct template *template);

/* The context is an object: messages, tools, documents, add_generation_prompt, bos_token,
 * eos_token and whatever else the request brings. It is only read, so several threads may share
 * it. As in transformers, tools and documents are none and add_generation_prompt is false where
 * they are missing; everything else that is missing is undefined.
 *
 * EINVAL: the template refused the conversation (raise_exception) or could not work with it, in
 * words that are fit for the client; ELIMIT: a limit was reached; ENOMEM. */
int template_render(const struct template *template, const json_t *context,
                    const struct template_limits *limits, struct template_output *out,
                    struct error err);

#endif
