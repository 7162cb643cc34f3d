/* SPDX-License-Identifier: Apache-2.0 */
/* See weight_arena.h. What is not used of a piece costs address space only, up to one huge page. */
#include "weight_arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define PIECE_BYTES (16 * HUGE_PAGE)

struct arena_piece {
    struct arena_piece *next;
    void *mapping;
    size_t mapping_bytes;
    char *free, *end;
};

static size_t rounded_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static struct arena_piece *piece_open(size_t bytes)
{
    struct arena_piece *piece = calloc(1, sizeof(*piece));
    if (!piece)
        return NULL;
    piece->mapping_bytes = rounded_up(bytes > PIECE_BYTES ? bytes : PIECE_BYTES, HUGE_PAGE);
    piece->mapping_bytes += HUGE_PAGE; /* so that it can begin at a huge page */
    piece->mapping = mmap(NULL, piece->mapping_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (piece->mapping == MAP_FAILED) {
        free(piece);
        return NULL;
    }
    piece->free = (char *)rounded_up((uintptr_t)piece->mapping, HUGE_PAGE);
    piece->end = (char *)piece->mapping + piece->mapping_bytes;
    /* Refused where the kernel has no huge pages: then it is only slower. */
    madvise(piece->mapping, piece->mapping_bytes, MADV_HUGEPAGE);
    return piece;
}

void *weight_arena_alloc(struct weight_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = rounded_up(bytes, 64);
    struct arena_piece *piece = arena->pieces;
    if (!piece || (size_t)(piece->end - piece->free) < bytes) {
        piece = piece_open(bytes);
        if (!piece)
            return NULL;
        piece->next = arena->pieces;
        arena->pieces = piece;
    }
    void *memory = piece->free;
    piece->free += bytes;
    return memory;
}

void weight_arena_close(struct weight_arena *arena)
{
    while (arena->pieces) {
        struct arena_piece *piece = arena->pieces;
        arena->pieces = piece->next;
        munmap(piece->mapping, piece->mapping_bytes);
        free(piece);
    }
}
