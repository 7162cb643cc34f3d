/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache as one would explain it: a list of prefixes, each a whole number of pages long, each
 * with the page that holds its last tokens. Slow, obvious, without a tree. */
#ifndef BATON_TESTS_KV_PREFIX_MODEL_H
#define BATON_TESTS_KV_PREFIX_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_PAGES_MAX 128u  /* of the pool */
#define MODEL_TOKENS_MAX 128u /* of a sequence */

struct model_prefix {
    uint32_t key;
    uint32_t pages; /* how long it is */
    int32_t tokens[MODEL_TOKENS_MAX];
    int32_t page;
    uint32_t locks;
    uint64_t used; /* when, last */
};

struct prefix_model {
    uint32_t tokens_per_page;
    uint64_t now;
    uint32_t count;
    struct model_prefix prefixes[MODEL_PAGES_MAX];
    uint32_t other_holders[MODEL_PAGES_MAX]; /* per page; evicting those frees nothing */
};

/* Each is one moment: everything it uses was used at the same time. `pages` is how many whole pages
 * of tokens to look at. */
uint32_t model_match(struct prefix_model *model, uint32_t key, const int32_t *tokens,
                     uint32_t pages, int32_t *found);
uint32_t model_peek(const struct prefix_model *model, uint32_t key, const int32_t *tokens,
                    uint32_t pages);
uint32_t model_insert(struct prefix_model *model, uint32_t key, const int32_t *tokens,
                      uint32_t pages, const int32_t *given);
void model_lock(struct prefix_model *model, uint32_t key, const int32_t *tokens,
                uint32_t pages);
void model_unlock(struct prefix_model *model, uint32_t key, const int32_t *tokens,
                  uint32_t pages);
/* Until `count` pages are free or nothing can go any more; returns how many became free. */
uint32_t model_evict(struct prefix_model *model, uint32_t count);

/* NULL when the page is not in the cache. */
const struct model_prefix *model_page(const struct prefix_model *model, int32_t page);

#endif
