/* SPDX-License-Identifier: Apache-2.0 */
/* See node_pages.h. */
#include "node_pages.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS 16u
#define HEAD_WORDS 8u
#define STAMP 0x5a

int node_pages_open(struct node_pages *pages, int order, uint32_t count, uint32_t rank,
                    uint32_t tp_size)
{
    struct node_pages made = {0};
    baton_layout layout = BATON_LAYOUT_INIT;
    layout.dtype = BATON_DTYPE_BF16;
    layout.pages = count;
    layout.tokens_per_page = TOKENS;
    layout.layers = NODE_LAYERS;
    layout.kv = 2;
    layout.heads = NODE_HEADS / tp_size;
    layout.first_head = layout.heads * rank;
    layout.total_heads = NODE_HEADS;
    layout.head_bytes = HEAD_WORDS * 8;
    int code = baton_layout_fill(&layout, order, &made.item_bytes);
    if (code != BATON_OK)
        return code;
    bool one_base = order == BATON_ORDER_LAYER_MAJOR || order == BATON_ORDER_HEAD_MAJOR;
    layout.base_count = one_base ? 1 : NODE_LAYERS * 2;
    uint64_t base_bytes = made.item_bytes * count;
    if (posix_memalign((void **)&made.memory, 4096, base_bytes * layout.base_count) != 0)
        return BATON_ENOMEM;
    memset(made.memory, STAMP, base_bytes * layout.base_count);
    made.layout = layout;
    *pages = made;
    for (uint32_t i = 0; i < layout.base_count; i++)
        pages->bases[i] =
            (baton_base){pages->memory + i * base_bytes, base_bytes, made.item_bytes};
    pages->layout.bases = pages->bases;
    return BATON_OK;
}

void node_pages_close(struct node_pages *pages)
{
    free(pages->memory);
    pages->memory = NULL;
}

/* The formula of baton_layout. Heads are counted within this rank. */
static uint64_t *words_at(const struct node_pages *pages, int32_t page, uint32_t layer,
                          uint32_t kv, uint32_t head, uint32_t token)
{
    const baton_layout *layout = &pages->layout;
    bool one_base = layout->base_count == 1;
    uint8_t *base = pages->bases[one_base ? 0 : kv * NODE_LAYERS + layer].address;
    uint64_t offset = (uint64_t)page * layout->page_stride + head * layout->head_stride +
                      token * layout->token_stride;
    if (one_base)
        offset += layer * layout->layer_stride + kv * layout->kv_stride;
    return (uint64_t *)(void *)(base + offset);
}

/* splitmix64: neighbouring coordinates give unlike words. */
static uint64_t mix(uint64_t word)
{
    word += 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    word = (word ^ word >> 27) * 0x94d049bb133111ebu;
    return word ^ word >> 31;
}

/* Calls for every head of every token of a page: either stores its words, or counts wrong ones. */
static uint64_t page_walk(const struct node_pages *pages, int32_t page, uint64_t room,
                          uint32_t sequence, bool store)
{
    const baton_layout *layout = &pages->layout;
    uint64_t wrong = 0, page_key = mix(room << 20 ^ sequence);
    for (uint32_t i = 0; i < NODE_LAYERS * 2 * layout->heads * TOKENS; i++) {
        uint32_t token = i % TOKENS, head = i / TOKENS % layout->heads;
        uint32_t plane = i / TOKENS / layout->heads, layer = plane / 2, kv = plane % 2;
        uint32_t whole_head = layout->first_head + head;
        uint64_t key =
            page_key + (((plane * NODE_HEADS + whole_head) * (uint64_t)TOKENS + token) << 32);
        uint64_t *words = words_at(pages, page, layer, kv, head, token);
        for (uint32_t w = 0; w < HEAD_WORDS; w++) {
            if (store)
                words[w] = mix(key + w);
            else
                wrong += words[w] != mix(key + w);
        }
    }
    return wrong;
}

void node_pages_fill(const struct node_pages *pages, int32_t page, uint64_t room,
                     uint32_t sequence)
{
    page_walk(pages, page, room, sequence, true);
}

uint64_t node_pages_wrong(const struct node_pages *pages, int32_t page, uint64_t room,
                          uint32_t sequence)
{
    return page_walk(pages, page, room, sequence, false);
}

void node_pages_stamp(const struct node_pages *pages, int32_t page)
{
    for (uint32_t i = 0; i < pages->layout.base_count; i++)
        memset((uint8_t *)pages->bases[i].address + (uint64_t)page * pages->item_bytes, STAMP,
               pages->item_bytes);
}

uint64_t node_pages_touched(const struct node_pages *pages, int32_t page)
{
    uint64_t touched = 0;
    for (uint32_t i = 0; i < pages->layout.base_count; i++) {
        const uint8_t *bytes =
            (uint8_t *)pages->bases[i].address + (uint64_t)page * pages->item_bytes;
        for (uint64_t b = 0; b < pages->item_bytes; b++)
            touched += bytes[b] != STAMP;
    }
    return touched;
}
