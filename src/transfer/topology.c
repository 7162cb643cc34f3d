/* SPDX-License-Identifier: Apache-2.0 */
/* Which prefill ranks a decode rank must talk to. The rule is SGLang's, so that groups of either
 * make meet in the same pairs (P, D: tensor-parallel sizes; d: our rank):
 *
 *     D == P   leg d                          each prefill rank waits for 1 grant
 *     D >  P   leg d/(D/P)                    for D/P: its heads go to that many decode ranks
 *     D <  P   legs d*(P/D) .. +P/D-1         for 1; each leg brings its own heads
 *
 * Where prefill has more ranks than KV heads, neighbours hold the same head. Of the legs with the
 * same heads the first one sends; the others are dummies. */
#include "topology.h"

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static bool divides(uint32_t a, uint32_t b)
{
    return a % b == 0 || b % a == 0;
}

void topology_heads(uint32_t total_heads, uint32_t tp_size, uint32_t tp_rank, uint32_t *first,
                    uint32_t *count)
{
    uint32_t total = larger(total_heads, 1);
    if (tp_size <= total) {
        *count = total / tp_size;
        *first = tp_rank * *count;
    } else {
        *count = 1;
        *first = tp_rank / (tp_size / total);
    }
}

static int check_sizes(uint32_t prefill_tp, uint32_t prefill_pp, struct topology_rank decode,
                       uint32_t total_heads, struct error err)
{
    if (!prefill_tp || !prefill_pp)
        return error_set(err, BATON_EINVAL,
                         "the prefill group says it has tp size %u and pp size %u", prefill_tp,
                         prefill_pp);
    if (decode.tp_rank >= decode.tp_size || decode.pp_rank >= decode.pp_size)
        return error_set(err, BATON_EINVAL,
                         "decode rank tp %u of %u, pp %u of %u is outside its group",
                         decode.tp_rank, decode.tp_size, decode.pp_rank, decode.pp_size);
    if (!divides(prefill_tp, decode.tp_size))
        return error_set(err, BATON_ELAYOUT,
                         "tp sizes must divide each other: prefill has %u, decode %u",
                         prefill_tp, decode.tp_size);
    uint32_t total = larger(total_heads, 1);
    if (!divides(total, prefill_tp) || !divides(total, decode.tp_size))
        return error_set(err, BATON_ELAYOUT,
                         "%u KV heads cannot be shared evenly: tp size is %u at prefill, %u at "
                         "decode",
                         total, prefill_tp, decode.tp_size);
    if (prefill_pp != decode.pp_size && prefill_pp != 1 && decode.pp_size != 1)
        return error_set(err, BATON_ELAYOUT,
                         "pp sizes must be equal or one of them 1: prefill has %u, decode %u",
                         prefill_pp, decode.pp_size);
    return BATON_OK;
}

/* Neighbours share heads, so the leg before tells whether this one's are a replica. */
static bool leg_repeats(uint32_t total_heads, uint32_t prefill_tp, uint32_t tp_rank)
{
    uint32_t first, before, count;
    topology_heads(total_heads, prefill_tp, tp_rank, &first, &count);
    topology_heads(total_heads, prefill_tp, tp_rank - 1, &before, &count);
    return first == before;
}

int topology_map_legs(uint32_t prefill_tp, uint32_t prefill_pp, struct topology_rank decode,
                      uint32_t total_heads, struct topology_map *out, struct error err)
{
    int rc = check_sizes(prefill_tp, prefill_pp, decode, total_heads, err);
    if (rc)
        return rc;

    bool fan_out = decode.tp_size > prefill_tp;
    uint32_t legs = fan_out ? 1 : prefill_tp / decode.tp_size;
    uint32_t first_leg =
        fan_out ? decode.tp_rank / (decode.tp_size / prefill_tp) : decode.tp_rank * legs;
    uint32_t stages = decode.pp_size == 1 ? prefill_pp : 1;
    uint32_t last_stage = decode.pp_size == 1 ? prefill_pp - 1
                          : prefill_pp == 1   ? 0
                                              : decode.pp_rank;
    if (legs > TOPOLOGY_LEGS_MAX || stages > TOPOLOGY_LEGS_MAX / legs)
        return error_set(
            err, BATON_ELIMIT,
            "this decode rank would need %u x %u prefill ranks (tp x pp), at most %u", legs,
            stages, TOPOLOGY_LEGS_MAX);

    struct topology_map map = {.required_dst = fan_out ? decode.tp_size / prefill_tp : 1};
    if (prefill_pp == 1 &&
        __builtin_mul_overflow(map.required_dst, decode.pp_size, &map.required_dst))
        return error_set(err, BATON_ELIMIT, "a decode group of %u x %u ranks is too large",
                         decode.tp_size, decode.pp_size);
    for (uint32_t stage = 0; stage < stages; stage++)
        for (uint32_t i = 0; i < legs; i++)
            map.legs[map.leg_count++] = (struct topology_leg){
                .tp_rank = first_leg + i,
                .pp_rank = last_stage - stage,
                .dummy = i > 0 && leg_repeats(total_heads, prefill_tp, first_leg + i),
            };
    *out = map;
    return BATON_OK;
}
