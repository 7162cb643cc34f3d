/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of one rank of a node, and what must be in it: every word follows from the room, the
 * page's place in the sequence and its coordinates in the model, whatever the order of a page in
 * memory and however the heads are divided. So two machines that share nothing but room numbers can
 * check every byte. */
#ifndef BATON_TESTS_NODE_PAGES_H
#define BATON_TESTS_NODE_PAGES_H

#include "baton.h"

#define NODE_LAYERS 4u
#define NODE_HEADS 4u /* in the whole model: TP of 1, 2 or 4 */

struct node_pages {
    baton_layout layout;
    baton_base bases[NODE_LAYERS * 2];
    uint64_t item_bytes;
    uint8_t *memory;
};

/* 0, or BATON_E*. order is one of enum baton_order. */
int node_pages_open(struct node_pages *pages, int order, uint32_t count, uint32_t rank,
                    uint32_t tp_size);
void node_pages_close(struct node_pages *pages);

void node_pages_fill(const struct node_pages *pages, int32_t page, uint64_t room,
                     uint32_t sequence);

/* How many words of the page are not what node_pages_fill would have put there. */
uint64_t node_pages_wrong(const struct node_pages *pages, int32_t page, uint64_t room,
                          uint32_t sequence);

/* Marks a page as nobody's, and counts the bytes that were stored into it since. */
void node_pages_stamp(const struct node_pages *pages, int32_t page);
uint64_t node_pages_touched(const struct node_pages *pages, int32_t page);

#endif
