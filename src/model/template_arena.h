/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is only ever given back as a whole: a compiled template is one arena, and so are
 * the values of one rendering. Nothing in between needs an owner, and an error path has nothing
 * to free. */
#ifndef BATON_MODEL_TEMPLATE_ARENA_H
#define BATON_MODEL_TEMPLATE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks; /* newest first */
    char *next;
    size_t left;  /* bytes from next to the end of the newest chunk */
    size_t used;  /* bytes of all chunks */
    size_t limit; /* of used */
    bool refused; /* the last allocation failed because of the limit, not of the system */
};

void jinja_arena_init(struct arena *arena, size_t limit);
void jinja_arena_free(struct arena *arena);
/* Aligned for anything, not cleared; NULL: the limit, or no memory. */
void *jinja_arena_alloc(struct arena *arena, size_t size);
/* Room for `count` items of `size` bytes. */
void *jinja_arena_array(struct arena *arena, size_t count, size_t size);

#endif
