/* SPDX-License-Identifier: Apache-2.0 */
/* See prefix_keys.h. A chained hash table whose entries keep their place, because their numbers are
 * stored in the tree. */
#include "prefix_keys.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CAPACITY_FIRST 16u

struct prefix_key_entry {
    void *bytes; /* owned; NULL for the empty key */
    uint32_t size;
    uint32_t holds;
    uint64_t hash;   /* as in events: the same in every process */
    uint64_t placed; /* decides the bucket; not to be guessed from outside */
    int32_t next;    /* in its bucket, or in the list of free entries */
};

static uint64_t key_place(const struct prefix_keys *keys, struct prefix_key key)
{
    return key.size ? XXH3_64bits_withSeed(key.bytes, key.size, keys->secret) : 0;
}

static void entry_link(struct prefix_keys *keys, int32_t number)
{
    struct prefix_key_entry *entry = &keys->entries[number];
    int32_t *bucket = &keys->buckets[entry->placed & (keys->capacity - 1)];
    entry->next = *bucket;
    *bucket = number;
}

/* Twice as many entries and buckets. Called only when every entry is live. */
static int keys_grow(struct prefix_keys *keys)
{
    uint32_t capacity = keys->capacity ? 2 * keys->capacity : CAPACITY_FIRST;
    if (capacity > INT32_MAX)
        return BATON_ENOMEM;
    int32_t *buckets = malloc(capacity * sizeof(*buckets));
    if (!buckets)
        return BATON_ENOMEM;
    struct prefix_key_entry *entries =
        realloc(keys->entries, capacity * sizeof(*keys->entries));
    if (!entries) {
        free(buckets);
        return BATON_ENOMEM;
    }
    free(keys->buckets);
    keys->entries = entries;
    keys->buckets = buckets;
    keys->capacity = capacity;
    for (uint32_t i = 0; i < capacity; i++)
        buckets[i] = -1;
    for (uint32_t i = 0; i < keys->count; i++)
        entry_link(keys, (int32_t)i);
    return BATON_OK;
}

int prefix_keys_open(struct prefix_keys *keys, uint64_t secret)
{
    *keys = (struct prefix_keys){.free = -1, .secret = secret};
    int32_t none = prefix_keys_intern(keys, PREFIX_KEY_NONE);
    if (none < 0)
        return BATON_ENOMEM;
    prefix_keys_hold(keys, none); /* for good */
    return BATON_OK;
}

void prefix_keys_close(struct prefix_keys *keys)
{
    for (uint32_t i = 0; i < keys->count; i++)
        free(keys->entries[i].bytes);
    free(keys->entries);
    free(keys->buckets);
    *keys = (struct prefix_keys){.free = -1};
}

static int32_t key_find(const struct prefix_keys *keys, struct prefix_key key, uint64_t placed)
{
    if (!keys->capacity)
        return -1;
    int32_t number = keys->buckets[placed & (keys->capacity - 1)];
    for (; number >= 0; number = keys->entries[number].next) {
        const struct prefix_key_entry *entry = &keys->entries[number];
        if (entry->size == key.size &&
            (!key.size || memcmp(entry->bytes, key.bytes, key.size) == 0))
            return number;
    }
    return -1;
}

int32_t prefix_keys_find(const struct prefix_keys *keys, struct prefix_key key)
{
    return key.size ? key_find(keys, key, key_place(keys, key)) : 0;
}

int32_t prefix_keys_intern(struct prefix_keys *keys, struct prefix_key key)
{
    uint64_t placed = key_place(keys, key);
    int32_t number = key_find(keys, key, placed);
    if (number >= 0)
        return number;
    if (keys->free < 0 && keys->count == keys->capacity && keys_grow(keys))
        return -1;
    void *bytes = NULL;
    if (key.size) {
        bytes = malloc(key.size);
        if (!bytes)
            return -1;
        memcpy(bytes, key.bytes, key.size);
    }
    number = keys->free;
    if (number >= 0)
        keys->free = keys->entries[number].next;
    else
        number = (int32_t)keys->count++;
    keys->entries[number] = (struct prefix_key_entry){
        .bytes = bytes,
        .size = key.size,
        .hash = key.size ? XXH3_64bits(key.bytes, key.size) : 0,
        .placed = placed,
    };
    entry_link(keys, number);
    keys->live++;
    return number;
}

void prefix_keys_hold(struct prefix_keys *keys, int32_t number)
{
    keys->entries[number].holds++;
}

void prefix_keys_drop(struct prefix_keys *keys, int32_t number)
{
    struct prefix_key_entry *entry = &keys->entries[number];
    BATON_ASSERT(entry->holds > 0);
    if (--entry->holds)
        return;
    int32_t *link = &keys->buckets[entry->placed & (keys->capacity - 1)];
    while (*link != number)
        link = &keys->entries[*link].next;
    *link = entry->next;
    free(entry->bytes);
    *entry = (struct prefix_key_entry){.next = keys->free};
    keys->free = number;
    keys->live--;
}

uint64_t prefix_keys_hash(const struct prefix_keys *keys, int32_t number)
{
    return keys->entries[number].hash;
}
