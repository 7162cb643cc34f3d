/* SPDX-License-Identifier: Apache-2.0 */
/* See prefix_model.h. */
#include "prefix_model.h"

#include <stddef.h>
#include <string.h>

static bool prefix_is(const struct prefix_model *model, const struct model_prefix *prefix,
                      uint32_t key, const int32_t *tokens, uint32_t pages)
{
    return prefix->key == key && prefix->pages == pages &&
           memcmp(prefix->tokens, tokens, pages * model->tokens_per_page * sizeof(*tokens)) ==
               0;
}

static const struct model_prefix *find(const struct prefix_model *model, uint32_t key,
                                       const int32_t *tokens, uint32_t pages)
{
    for (uint32_t i = 0; i < model->count; i++)
        if (prefix_is(model, &model->prefixes[i], key, tokens, pages))
            return &model->prefixes[i];
    return NULL;
}

static struct model_prefix *find_to_change(struct prefix_model *model, uint32_t key,
                                           const int32_t *tokens, uint32_t pages)
{
    return (struct model_prefix *)find(model, key, tokens, pages);
}

uint32_t model_peek(const struct prefix_model *model, uint32_t key, const int32_t *tokens,
                    uint32_t pages)
{
    uint32_t known = 0;
    while (known < pages && find(model, key, tokens, known + 1))
        known++;
    return known;
}

uint32_t model_match(struct prefix_model *model, uint32_t key, const int32_t *tokens,
                     uint32_t pages, int32_t *found)
{
    uint32_t known = model_peek(model, key, tokens, pages);
    model->now++;
    for (uint32_t i = 0; i < known; i++) {
        struct model_prefix *prefix = find_to_change(model, key, tokens, i + 1);
        found[i] = prefix->page;
        prefix->used = model->now;
    }
    return known;
}

uint32_t model_insert(struct prefix_model *model, uint32_t key, const int32_t *tokens,
                      uint32_t pages, const int32_t *given)
{
    int32_t found[MODEL_PAGES_MAX];
    uint32_t known = model_match(model, key, tokens, pages, found);
    for (uint32_t i = known; i < pages; i++) {
        struct model_prefix *prefix = &model->prefixes[model->count++];
        *prefix = (struct model_prefix){
            .key = key, .pages = i + 1, .page = given[i], .used = model->now};
        memcpy(prefix->tokens, tokens, (i + 1) * model->tokens_per_page * sizeof(*tokens));
    }
    return known;
}

void model_lock(struct prefix_model *model, uint32_t key, const int32_t *tokens, uint32_t pages)
{
    for (uint32_t i = 0; i < pages; i++)
        find_to_change(model, key, tokens, i + 1)->locks++;
}

void model_unlock(struct prefix_model *model, uint32_t key, const int32_t *tokens,
                  uint32_t pages)
{
    model->now++;
    for (uint32_t i = 0; i < pages; i++) {
        struct model_prefix *prefix = find_to_change(model, key, tokens, i + 1);
        if (--prefix->locks == 0)
            prefix->used = model->now; /* until just now */
    }
}

static bool has_child(const struct prefix_model *model, const struct model_prefix *parent)
{
    for (uint32_t i = 0; i < model->count; i++) {
        const struct model_prefix *child = &model->prefixes[i];
        if (child->key == parent->key && child->pages == parent->pages + 1 &&
            memcmp(child->tokens, parent->tokens,
                   parent->pages * model->tokens_per_page * sizeof(*child->tokens)) == 0)
            return true;
    }
    return false;
}

static struct model_prefix *next_to_go(struct prefix_model *model)
{
    struct model_prefix *oldest = NULL;
    for (uint32_t i = 0; i < model->count; i++) {
        struct model_prefix *prefix = &model->prefixes[i];
        if (!prefix->locks && (!oldest || prefix->used < oldest->used) &&
            !has_child(model, prefix))
            oldest = prefix;
    }
    return oldest;
}

uint32_t model_evict(struct prefix_model *model, uint32_t count)
{
    uint32_t freed = 0;
    while (freed < count) {
        struct model_prefix *prefix = next_to_go(model);
        if (!prefix)
            break;
        freed += model->other_holders[prefix->page] == 0;
        *prefix = model->prefixes[--model->count];
    }
    return freed;
}

const struct model_prefix *model_page(const struct prefix_model *model, int32_t page)
{
    for (uint32_t i = 0; i < model->count; i++)
        if (model->prefixes[i].page == page)
            return &model->prefixes[i];
    return NULL;
}
