/* SPDX-License-Identifier: Apache-2.0 */
/* One rendering: its memory, its output, what it may still use, and what went wrong. */
#ifndef BATON_MODEL_TEMPLATE_RUN_H
#define BATON_MODEL_TEMPLATE_RUN_H

#include "template.h"
#include "template_arena.h"
#include "template_value.h"

/* Where text is written, the output and also every string on its way: a string in the making is
 * written behind the output, then cut off into the arena (jinja_cut). That nests by itself. */
struct sink {
    char *bytes;
    size_t length, capacity;
};

struct run {
    struct arena arena;
    struct sink sink;
    struct template_limits limits;
    struct dict *context;
    uint64_t steps;
    uint32_t depth;
    uint32_t line; /* of what is evaluated, for error sentences */
    uint64_t seed; /* of hashes: a client must not choose which keys collide */
    struct error err;
    int code;
};

/* Sets the error, "chat template, line 7: ..."; returns false. */
bool jinja_fail(struct run *run, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* An argument or operand of the wrong type, and so on: EINVAL. */
#define jinja_refuse(run, ...) jinja_fail(run, BATON_EINVAL, __VA_ARGS__)
/* For %.*s of a string that may be long: what fits into a sentence. */
#define JINJA_QUOTE(string) (int)((string).length < 60 ? (string).length : 60), (string).bytes

/* Uses up steps: one, and one for each 64 bytes or items of work. */
bool jinja_charge(struct run *run, size_t work);

/* Around everything that may recurse; only a successful enter needs a leave. */
bool jinja_enter(struct run *run);
static inline void jinja_leave(struct run *run)
{
    run->depth--;
}

void *jinja_alloc(struct run *run, size_t count, size_t size);

bool jinja_write(struct run *run, const char *bytes, size_t length);
#define jinja_write_text(run, literal) jinja_write(run, literal, sizeof(literal) - 1)
bool jinja_write_repeated(struct run *run, char byte, size_t count);
/* Everything since `mark`, which was run->sink.length, becomes a string. */
bool jinja_cut(struct run *run, size_t mark, struct value *out);

/* left + right, neither escaped. */
bool jinja_join(struct run *run, struct value left, struct value right, struct value *out);

#endif
