/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that double in size, so that a small template costs a page and a large conversation few
 * calls of malloc. A request that does not fit into the newest chunk starts another one; what is
 * left of the old one is lost, which is at most half of everything. */
#include "template_arena.h"

#include <stdint.h>
#include <stdlib.h>

struct arena_chunk {
    struct arena_chunk *older;
    _Alignas(max_align_t) char bytes[];
};

/* With AddressSanitizer every allocation is a chunk of its own, so that one byte too far is
 * seen. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_EXACT 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_EXACT 1
#endif

#define CHUNK_MIN ((size_t)4 << 10)
#define CHUNK_MAX ((size_t)1 << 20)
#define ALIGNMENT sizeof(void *)

void jinja_arena_init(struct arena *arena, size_t limit)
{
    *arena = (struct arena){.limit = limit};
}

void jinja_arena_free(struct arena *arena)
{
    while (arena->chunks) {
        struct arena_chunk *older = arena->chunks->older;
        free(arena->chunks);
        arena->chunks = older;
    }
}

static size_t chunk_room(size_t used)
{
#if defined(ARENA_EXACT)
    return 0 * used;
#else
    return used < CHUNK_MIN ? CHUNK_MIN : used > CHUNK_MAX ? CHUNK_MAX : used;
#endif
}

static bool chunk_add(struct arena *arena, size_t size)
{
    size_t left = arena->limit - arena->used;
    arena->refused = size > left;
    if (arena->refused)
        return false;
    size_t room = chunk_room(arena->used);
    if (room < size || room > left)
        room = size;
    struct arena_chunk *chunk = malloc(sizeof(*chunk) + room);
    if (!chunk)
        return false;
    chunk->older = arena->chunks;
    arena->chunks = chunk;
    arena->next = chunk->bytes;
    arena->left = room;
    arena->used += room;
    return true;
}

void *jinja_arena_alloc(struct arena *arena, size_t size)
{
    arena->refused = size > SIZE_MAX / 4;
    if (arena->refused)
        return NULL;
    size = size ? (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1) : ALIGNMENT;
    if (size > arena->left && !chunk_add(arena, size))
        return NULL;
    void *out = arena->next;
    arena->next += size;
    arena->left -= size;
    return out;
}

void *jinja_arena_array(struct arena *arena, size_t count, size_t size)
{
    size_t bytes;
    arena->refused = __builtin_mul_overflow(count, size, &bytes);
    return arena->refused ? NULL : jinja_arena_alloc(arena, bytes);
}
