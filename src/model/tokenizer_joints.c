/* SPDX-License-Identifier: Apache-2.0 */
/* A hash set of pairs of characters. */
#include "tokenizer_joints.h"

#include <stdlib.h>

#define PAIR_FREE 0

static uint64_t *slot_find(const struct joints *joints, uint64_t pair)
{
    size_t mask = joints->slots - 1;
    uint64_t hash = pair * 0x9e3779b97f4a7c15u;
    size_t slot = (size_t)(hash ^ hash >> 32) & mask;
    while (joints->pairs[slot] != PAIR_FREE && joints->pairs[slot] != pair)
        slot = (slot + 1) & mask;
    return &joints->pairs[slot];
}

static uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)(left + 1) << 32 | (right + 1); /* never PAIR_FREE */
}

static int joints_grow(struct joints *joints)
{
    struct joints larger = {.slots = joints->slots ? 2 * joints->slots : 1024,
                            .count = joints->count};
    larger.pairs = calloc(larger.slots, sizeof(*larger.pairs));
    if (!larger.pairs)
        return BATON_ENOMEM;
    for (size_t i = 0; i < joints->slots; i++) {
        if (joints->pairs[i] != PAIR_FREE)
            *slot_find(&larger, joints->pairs[i]) = joints->pairs[i];
    }
    free(joints->pairs);
    *joints = larger;
    return BATON_OK;
}

static int joint_add(struct joints *joints, uint32_t left, uint32_t right)
{
    if (joints->count >= joints->slots / 2 && joints_grow(joints))
        return BATON_ENOMEM;
    uint64_t pair = pair_of(left, right);
    uint64_t *slot = slot_find(joints, pair);
    joints->count += *slot == PAIR_FREE;
    *slot = pair;
    return BATON_OK;
}

static int token_joints_add(struct joints *joints, struct text_view key)
{
    uint32_t left = 0, code;
    size_t size;
    for (size_t i = 0; i < key.length; i += size) {
        if (utf8_next(key.bytes + i, key.length - i, &size, &code) != UTF8_WHOLE)
            return BATON_OK; /* no text has this in it */
        if (i && joint_add(joints, left, code))
            return BATON_ENOMEM;
        left = code;
    }
    return BATON_OK;
}

int joints_build(struct joints *joints, const struct vocabulary *vocabulary, struct error err)
{
    int rc = joints_grow(joints);
    for (uint32_t id = 0; id < vocabulary->count && !rc; id++) {
        enum token_kind kind = vocabulary_kind(vocabulary, id);
        if (kind == TOKEN_NORMAL || kind == TOKEN_USER_DEFINED)
            rc = token_joints_add(joints, vocabulary_key(vocabulary, id));
    }
    return rc ? error_set(err, rc, "out of memory for the joints of the tokens") : BATON_OK;
}

bool joints_have(const struct joints *joints, uint32_t left, uint32_t right)
{
    return *slot_find(joints, pair_of(left, right)) != PAIR_FREE;
}

void joints_free(struct joints *joints)
{
    free(joints->pairs);
    *joints = (struct joints){0};
}
