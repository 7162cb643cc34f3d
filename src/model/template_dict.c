/* SPDX-License-Identifier: Apache-2.0 */
/* Dicts that keep the order of insertion. Keys are whatever Python can hash: above all strings,
 * but also none, booleans, numbers (1, 1.0 and true are the same key) and tuples of such. */
#include "template_compare.h"
#include "template_run.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define DICT_LINEAR 8

static bool hash_tuple(struct run *run, const struct list *tuple, uint64_t *out);

/* Equal keys have equal hashes. */
static bool hash_value(struct run *run, struct value key, uint64_t *out)
{
    int64_t integer = 0;
    switch ((enum value_type)key.type) {
    case VALUE_NONE: *out = run->seed; return true;
    case VALUE_UNDEFINED: *out = ~run->seed; return true;
    case VALUE_BOOLEAN: integer = key.boolean; break;
    case VALUE_INTEGER: integer = key.integer; break;
    case VALUE_FLOAT:
        if (!(key.number >= -9e18 && key.number <= 9e18) ||
            (double)(int64_t)key.number != key.number) {
            *out = XXH3_64bits_withSeed(&key.number, sizeof(key.number), run->seed);
            return true;
        }
        integer = (int64_t)key.number;
        break;
    case VALUE_STRING:
        *out = XXH3_64bits_withSeed(key.bytes, key.length, run->seed);
        return true;
    case VALUE_TUPLE: return hash_tuple(run, key.list, out);
    case VALUE_ITERATOR:
    case VALUE_NAMESPACE:
    case VALUE_LOOP:
    case VALUE_MACRO:
    case VALUE_FUNCTION: integer = (int64_t)(intptr_t)key.dict; break; /* each is only itself */
    default: return jinja_refuse(run, "%s cannot be a key", jinja_type_name(key));
    }
    *out = XXH3_64bits_withSeed(&integer, sizeof(integer), run->seed);
    return true;
}

static bool hash_tuple(struct run *run, const struct list *tuple, uint64_t *out)
{
    uint64_t hash = run->seed + tuple->count;
    if (!jinja_enter(run))
        return false;
    for (size_t i = 0; i < tuple->count; i++) {
        uint64_t item;
        if (!hash_value(run, tuple->items[i], &item))
            return false;
        hash = XXH3_64bits_withSeed(&item, sizeof(item), hash);
    }
    jinja_leave(run);
    *out = hash;
    return true;
}

bool jinja_dict_new(struct run *run, enum value_type type, struct value *out)
{
    struct dict *dict = jinja_alloc(run, 1, sizeof(*dict));
    if (!dict)
        return false;
    *dict = (struct dict){0};
    *out = (struct value){.type = (uint8_t)type, .dict = dict};
    return true;
}

static bool entry_matches(struct run *run, const struct entry *entry, uint64_t hash,
                          struct value key, bool *out)
{
    *out = false;
    if (entry->hash != hash)
        return true;
    if (entry->key.type == VALUE_STRING && key.type == VALUE_STRING) {
        *out = entry->key.length == key.length &&
               memcmp(entry->key.bytes, key.bytes, key.length) == 0;
        return true;
    }
    return jinja_equal(run, entry->key, key, out);
}

static bool dict_search(struct run *run, const struct dict *dict, struct value key,
                        uint64_t hash, struct entry **out)
{
    bool match = false;
    *out = NULL;
    if (!dict->index) {
        for (size_t i = 0; i < dict->count && !match; i++) {
            if (!entry_matches(run, &dict->entries[i], hash, key, &match))
                return false;
            if (match)
                *out = &dict->entries[i];
        }
        return true;
    }
    size_t mask = dict->index_size - 1;
    for (size_t i = hash & mask; dict->index[i] && !match; i = (i + 1) & mask) {
        struct entry *entry = &dict->entries[dict->index[i] - 1];
        if (!entry_matches(run, entry, hash, key, &match))
            return false;
        if (match)
            *out = entry;
    }
    return true;
}

bool jinja_dict_get(struct run *run, const struct dict *dict, struct value key,
                    struct entry **out)
{
    uint64_t hash;
    return hash_value(run, key, &hash) && dict_search(run, dict, key, hash, out);
}

struct entry *jinja_dict_find(struct run *run, const struct dict *dict, struct text key)
{
    struct entry *entry = NULL;
    uint64_t hash = XXH3_64bits_withSeed(key.bytes, key.length, run->seed);
    if (!dict_search(run, dict, value_string(key.bytes, key.length), hash, &entry))
        return NULL;
    return entry;
}

static void index_add(struct dict *dict, size_t number)
{
    size_t mask = dict->index_size - 1;
    size_t i = dict->entries[number].hash & mask;
    while (dict->index[i])
        i = (i + 1) & mask;
    dict->index[i] = (uint32_t)number + 1;
}

/* At most half full, so that a search ends soon. */
static bool index_build(struct run *run, struct dict *dict)
{
    size_t size = 2 * DICT_LINEAR;
    while (size < 2 * dict->capacity)
        size *= 2;
    if (size > dict->index_size) {
        uint32_t *index = jinja_alloc(run, size, sizeof(*index));
        if (!index)
            return false;
        dict->index = index;
        dict->index_size = size;
    }
    memset(dict->index, 0, dict->index_size * sizeof(*dict->index));
    for (size_t i = 0; i < dict->count; i++)
        index_add(dict, i);
    return true;
}

static bool dict_grow(struct run *run, struct dict *dict)
{
    size_t capacity = dict->capacity ? 2 * dict->capacity : 4;
    if (capacity > UINT32_MAX / 4)
        return jinja_fail(run, BATON_ELIMIT, "a dict of %zu entries is too large", capacity);
    struct entry *entries = jinja_alloc(run, capacity, sizeof(*entries));
    if (!entries)
        return false;
    if (dict->count)
        memcpy(entries, dict->entries, dict->count * sizeof(*entries));
    dict->entries = entries;
    dict->capacity = capacity;
    return capacity <= DICT_LINEAR || index_build(run, dict);
}

bool jinja_dict_set(struct run *run, struct dict *dict, struct value key, struct value value)
{
    struct entry *entry;
    uint64_t hash;
    if (!hash_value(run, key, &hash) || !dict_search(run, dict, key, hash, &entry))
        return false;
    if (entry) {
        entry->value = value;
        return true;
    }
    if (dict->count == dict->capacity && !dict_grow(run, dict))
        return false;
    dict->entries[dict->count] = (struct entry){key, value, hash};
    if (dict->index)
        index_add(dict, dict->count);
    dict->count++;
    return true;
}

bool jinja_dict_remove(struct run *run, struct dict *dict, struct entry *entry)
{
    size_t after = (size_t)(dict->entries + dict->count - entry) - 1;
    memmove(entry, entry + 1, after * sizeof(*entry));
    dict->count--;
    return jinja_charge(run, dict->count) && (!dict->index || index_build(run, dict));
}

bool jinja_dict_copy(struct run *run, const struct dict *from, struct dict *to)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct entry *entry = &from->entries[i];
        if (!jinja_charge(run, 0) || !jinja_dict_set(run, to, entry->key, entry->value))
            return false;
    }
    return true;
}
