/* SPDX-License-Identifier: Apache-2.0 */
/* The merge loop: of all neighbours that can merge, the pair of the smallest rank does, the
 * leftmost of equals; then again.
 *
 * Words are short, and for a few symbols nothing beats looking through all of them each time
 * (merge_short). Text without spaces, or a megabyte of one letter, is one word too: there
 * the pairs wait in a heap (merge_long). An entry is rank << 32 | position, so comparing two
 * numbers orders by rank and then from the left. Entries are not removed when their pair is
 * gone: a symbol remembers the rank of the pair that it begins now, and an entry that says
 * otherwise is stale. */
#include "tokenizer_merges.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_MAX 24

/* ---- the table --------------------------------------------------------------------------- */

static size_t pair_hash(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15u;
    return (size_t)(pair ^ pair >> 32);
}

static struct merge *slot_find(const struct merges *merges, uint64_t pair)
{
    size_t mask = merges->slot_count - 1;
    size_t slot = pair_hash(pair) & mask;
    while (merges->slots[slot].pair != pair && merges->slots[slot].pair != MERGE_FREE)
        slot = (slot + 1) & mask;
    return &merges->slots[slot];
}

static uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

static int slots_allocate(struct merges *merges, size_t slot_count)
{
    struct merge *slots = malloc(slot_count * sizeof(*slots));
    if (!slots)
        return BATON_ENOMEM;
    memset(slots, 0xff, slot_count * sizeof(*slots));
    merges->slots = slots;
    merges->slot_count = slot_count;
    return BATON_OK;
}

int merges_init(struct merges *merges, size_t expected, struct error err)
{
    size_t slot_count = 64;
    while (slot_count < expected + expected / 2)
        slot_count *= 2;
    *merges = (struct merges){0};
    if (expected > UINT32_MAX || slots_allocate(merges, slot_count))
        return error_set(err, BATON_ENOMEM, "out of memory for %zu merges", expected);
    return BATON_OK;
}

void merges_free(struct merges *merges)
{
    free(merges->slots);
    *merges = (struct merges){0};
}

static int merges_grow(struct merges *merges)
{
    struct merges larger = {.count = merges->count};
    int rc = slots_allocate(&larger, 2 * merges->slot_count);
    if (rc)
        return rc;
    for (size_t i = 0; i < merges->slot_count; i++) {
        if (merges->slots[i].pair != MERGE_FREE)
            *slot_find(&larger, merges->slots[i].pair) = merges->slots[i];
    }
    free(merges->slots);
    *merges = larger;
    return BATON_OK;
}

int merges_add(struct merges *merges, uint32_t left, uint32_t right, uint32_t rank,
               uint32_t result)
{
    if (merges->count >= merges->slot_count / 4 * 3) {
        int rc = merges_grow(merges);
        if (rc)
            return rc;
    }
    uint64_t pair = pair_of(left, right);
    struct merge *slot = slot_find(merges, pair);
    if (slot->pair == pair && slot->rank <= rank)
        return BATON_OK;
    if (slot->pair != pair)
        merges->count++;
    *slot = (struct merge){pair, rank, result};
    return BATON_OK;
}

/* ---- merges out of scores ---------------------------------------------------------------- */

struct scored {
    float score;
    uint32_t id;
};

static int scored_compare(const void *a, const void *b)
{
    const struct scored *left = a, *right = b;
    if (left->score != right->score)
        return left->score > right->score ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

/* Every way to cut a token into two tokens, at the borders of its characters. */
static int token_cuts_add(struct merges *merges, const struct vocabulary *vocabulary,
                          uint32_t id, uint32_t rank)
{
    struct text_view key = vocabulary_key(vocabulary, id);
    for (size_t cut = 1; cut < key.length; cut++) {
        if (((uint8_t)key.bytes[cut] & 0xc0) == 0x80)
            continue;
        uint32_t left = vocabulary_find(vocabulary, key.bytes, cut);
        if (left == TOKEN_NONE)
            continue;
        uint32_t right = vocabulary_find(vocabulary, key.bytes + cut, key.length - cut);
        if (right != TOKEN_NONE && merges_add(merges, left, right, rank, id))
            return BATON_ENOMEM;
    }
    return BATON_OK;
}

/* Only tokens of a bounded length: a file may hold one of a gigabyte. */
#define CUT_TOKEN_MAX 512

int merges_from_scores(struct merges *merges, const struct vocabulary *vocabulary,
                       const float *scores, struct error err)
{
    size_t count = 0;
    struct scored *order = calloc(vocabulary->count + 1, sizeof(*order));
    if (!order)
        return error_set(err, BATON_ENOMEM, "out of memory for the scores of the tokens");
    for (uint32_t id = 0; id < vocabulary->count; id++) {
        struct text_view key = vocabulary_key(vocabulary, id);
        if (key.length <= CUT_TOKEN_MAX && !isnan(scores[id]) &&
            vocabulary_find(vocabulary, key.bytes, key.length) == id)
            order[count++] = (struct scored){scores[id], id};
    }
    qsort(order, count, sizeof(*order), scored_compare);
    uint32_t rank = 0;
    int rc = BATON_OK;
    for (size_t i = 0; i < count && !rc; i++) {
        if (i && order[i].score != order[i - 1].score)
            rank++;
        rc = token_cuts_add(merges, vocabulary, order[i].id, rank);
    }
    free(order);
    return rc ? error_set(err, rc, "out of memory for the merges of the tokens") : BATON_OK;
}

/* ---- short words ------------------------------------------------------------------------- */

static void pair_look_up(const struct merges *merges, uint32_t left, uint32_t right,
                         uint32_t *rank, uint32_t *result)
{
    const struct merge *merge = slot_find(merges, pair_of(left, right));
    *rank = merge->rank; /* of a free slot: MERGE_RANK_NONE */
    *result = merge->result;
}

static size_t merge_short(const struct merges *merges, uint32_t *ids, size_t count)
{
    uint32_t ranks[SHORT_MAX], results[SHORT_MAX];
    for (size_t i = 0; i + 1 < count; i++)
        pair_look_up(merges, ids[i], ids[i + 1], &ranks[i], &results[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            if (ranks[i] < ranks[best])
                best = i;
        }
        if (ranks[best] == MERGE_RANK_NONE)
            break;
        ids[best] = results[best];
        count--;
        for (size_t i = best + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            ranks[i - 1] = ranks[i];
            results[i - 1] = results[i];
        }
        if (best + 1 < count)
            pair_look_up(merges, ids[best], ids[best + 1], &ranks[best], &results[best]);
        if (best > 0)
            pair_look_up(merges, ids[best - 1], ids[best], &ranks[best - 1],
                         &results[best - 1]);
    }
    return count;
}

/* ---- long words -------------------------------------------------------------------------- */

struct merge_symbol {
    uint32_t id, result;
    uint32_t rank;           /* of the pair that begins here; MERGE_RANK_NONE: none does */
    uint32_t previous, next; /* SYMBOL_NONE at the ends */
};

#define SYMBOL_NONE UINT32_MAX

void merge_space_free(struct merge_space *space)
{
    free(space->symbols);
    free(space->heap);
    *space = (struct merge_space){0};
}

/* A smallest-first heap of four branches: shallower than two, and four keys share a line. */
static void heap_sink(uint64_t *heap, size_t count, size_t at)
{
    uint64_t entry = heap[at];
    for (;;) {
        size_t child = 4 * at + 1, least = child;
        if (child >= count)
            break;
        size_t end = child + 4 < count ? child + 4 : count;
        for (size_t i = child + 1; i < end; i++) {
            if (heap[i] < heap[least])
                least = i;
        }
        if (heap[least] >= entry)
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = entry;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry)
{
    size_t at = (*count)++;
    while (at > 0 && heap[(at - 1) / 4] > entry) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    uint64_t least = heap[0];
    heap[0] = heap[--*count];
    if (*count)
        heap_sink(heap, *count, 0);
    return least;
}

static uint64_t entry_of(uint32_t rank, uint32_t position)
{
    return (uint64_t)rank << 32 | position;
}

/* Looks at the pair that begins at `at` anew; true if it can merge. */
static bool symbol_pair(const struct merges *merges, struct merge_symbol *symbols, uint32_t at)
{
    struct merge_symbol *symbol = &symbols[at];
    symbol->rank = MERGE_RANK_NONE;
    if (symbol->next != SYMBOL_NONE)
        pair_look_up(merges, symbol->id, symbols[symbol->next].id, &symbol->rank,
                     &symbol->result);
    return symbol->rank != MERGE_RANK_NONE;
}

/* Swallows the next symbol. */
static void symbol_merge(struct merge_symbol *symbols, uint32_t at)
{
    struct merge_symbol *symbol = &symbols[at], *eaten = &symbols[symbol->next];
    symbol->id = symbol->result;
    symbol->next = eaten->next;
    eaten->rank = MERGE_RANK_NONE;
    if (symbol->next != SYMBOL_NONE)
        symbols[symbol->next].previous = at;
}

/* Every merge takes one symbol away and adds at most two entries. */
static int space_reserve(struct merge_space *space, size_t count)
{
    void *symbols = space->symbols, *heap = space->heap;
    int rc = array_reserve(&symbols, &space->symbol_capacity, count, sizeof(*space->symbols));
    space->symbols = symbols;
    if (rc)
        return rc;
    rc = array_reserve(&heap, &space->heap_capacity, 3 * count, sizeof(*space->heap));
    space->heap = heap;
    return rc;
}

static size_t symbols_begin(const struct merges *merges, struct merge_space *space,
                            const uint32_t *ids, size_t count)
{
    struct merge_symbol *symbols = space->symbols;
    for (uint32_t i = 0; i < count; i++) {
        symbols[i] = (struct merge_symbol){.id = ids[i], .rank = MERGE_RANK_NONE};
        symbols[i].previous = i ? i - 1 : SYMBOL_NONE;
        symbols[i].next = i + 1 < count ? i + 1 : SYMBOL_NONE;
    }
    size_t entries = 0;
    for (uint32_t i = 0; i + 1 < count; i++) {
        if (symbol_pair(merges, symbols, i))
            space->heap[entries++] = entry_of(symbols[i].rank, i);
    }
    for (size_t i = entries / 4 + 1; i-- > 0;) {
        if (i < entries)
            heap_sink(space->heap, entries, i);
    }
    return entries;
}

static int merge_long(const struct merges *merges, struct merge_space *space, uint32_t *ids,
                      size_t *count)
{
    if (*count >= SYMBOL_NONE || space_reserve(space, *count))
        return BATON_ENOMEM;
    struct merge_symbol *symbols = space->symbols;
    size_t entries = symbols_begin(merges, space, ids, *count);
    while (entries) {
        uint64_t entry = heap_pop(space->heap, &entries);
        uint32_t at = (uint32_t)entry;
        if (symbols[at].rank != entry >> 32)
            continue;
        symbol_merge(symbols, at);
        if (symbol_pair(merges, symbols, at))
            heap_push(space->heap, &entries, entry_of(symbols[at].rank, at));
        uint32_t before = symbols[at].previous;
        if (before != SYMBOL_NONE && symbol_pair(merges, symbols, before))
            heap_push(space->heap, &entries, entry_of(symbols[before].rank, before));
    }
    size_t left = 0;
    for (uint32_t at = 0; at != SYMBOL_NONE; at = symbols[at].next)
        ids[left++] = symbols[at].id;
    *count = left;
    return BATON_OK;
}

int merges_apply(const struct merges *merges, struct merge_space *space, uint32_t *ids,
                 size_t *count)
{
    if (*count > SHORT_MAX)
        return merge_long(merges, space, ids, count);
    *count = merge_short(merges, ids, *count);
    return BATON_OK;
}
