/* SPDX-License-Identifier: Apache-2.0 */
/* Which prefill ranks one decode rank talks to, and how many decode ranks each prefill rank waits
 * for. Pure arithmetic that both sides could do; only decode does, and tells in GRANT. */
#ifndef BATON_TRANSFER_TOPOLOGY_H
#define BATON_TRANSFER_TOPOLOGY_H

#include "base/error.h"

#include <stdbool.h>

#define TOPOLOGY_LEGS_MAX 64

struct topology_rank {
    uint32_t tp_size, tp_rank;
    uint32_t pp_size, pp_rank;
};

/* One prefill rank to contact. A dummy has nothing to send (its heads are a replica of another
 * leg's), but must hear of the room, or it would wait for ever. */
struct topology_leg {
    uint32_t tp_rank;
    uint32_t pp_rank;
    bool dummy;
};

struct topology_map {
    struct topology_leg legs[TOPOLOGY_LEGS_MAX];
    uint32_t leg_count;
    /* Grants that each contacted prefill rank must wait for, dummies included. */
    uint32_t required_dst;
};

/* prefill_tp/pp: the prefill group's sizes. decode: our own rank. total_heads: KV heads in the
 * model; 1 for a latent; 0 if pages are opaque, then unequal tp sizes are taken to hold replicas
 * (pages cut by head would differ in item_bytes, which layout_match refuses).
 * Errors: EINVAL (a size of 0, a rank outside its group), ELAYOUT (sizes that do not divide each
 * other; the sentence has the numbers), ELIMIT (more than TOPOLOGY_LEGS_MAX). */
int topology_map_legs(uint32_t prefill_tp, uint32_t prefill_pp, struct topology_rank decode,
                      uint32_t total_heads, struct topology_map *out, struct error err);

/* The heads of a rank: [first, first+count) of total; ranks share heads when tp > total. Sizes
 * must divide each other one way; a total of 0 (opaque) counts as 1, one that all ranks share. */
void topology_heads(uint32_t total_heads, uint32_t tp_size, uint32_t tp_rank, uint32_t *first,
                    uint32_t *count);

#endif
