/* SPDX-License-Identifier: Apache-2.0 */
/* The extra keys of the prefix cache (an adapter's name, a tenant's salt, a model's fingerprint) as
 * small numbers: each key is the root of a tree of its own, so that equal tokens under different
 * keys never share a page. Keys are compared byte for byte, never by their hash alone, because a
 * salt is there to keep tenants apart. A key lives as long as its tree has nodes. */
#ifndef BATON_KV_PREFIX_KEYS_H
#define BATON_KV_PREFIX_KEYS_H

#include "base/error.h"

struct prefix_key {
    const void *bytes; /* borrowed for the call */
    uint32_t size;
};
#define PREFIX_KEY_NONE ((struct prefix_key){NULL, 0})

struct prefix_key_entry;

struct prefix_keys {
    struct prefix_key_entry *entries; /* entry 0 is PREFIX_KEY_NONE and always there */
    uint32_t count;                   /* entries ever used */
    uint32_t capacity;                /* a power of two; as many buckets */
    uint32_t live;
    int32_t free; /* entries to be used again; -1: none */
    int32_t *buckets;
    uint64_t secret;
};

int prefix_keys_open(struct prefix_keys *keys, uint64_t secret); /* 0 or ENOMEM */
void prefix_keys_close(struct prefix_keys *keys);

/* The key's number, or -1 when it is unknown. */
int32_t prefix_keys_find(const struct prefix_keys *keys, struct prefix_key key);

/* The same, but an unknown key gets a number; -1 when there is no memory. A new key is kept from
 * its first hold to its last drop; hold it at once. */
int32_t prefix_keys_intern(struct prefix_keys *keys, struct prefix_key key);
void prefix_keys_hold(struct prefix_keys *keys, int32_t number);
void prefix_keys_drop(struct prefix_keys *keys, int32_t number);

/* What the first page of the key's tree has as its parent's hash: 0 for no key. */
uint64_t prefix_keys_hash(const struct prefix_keys *keys, int32_t number);

#endif
