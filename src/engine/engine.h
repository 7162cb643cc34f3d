/* SPDX-License-Identifier: Apache-2.0 */
/* A model that computes. Its owner (the scheduler's thread) hands it steps: for each of several
 * sequences some new tokens, the position of the first, and the pages that hold the sequence; it
 * stores their K and V into the pages and returns the logits that were asked for. A step may mix
 * prompts, pieces of prompts and single tokens. It keeps nothing between steps: what a sequence is,
 * is in its pages.
 *
 * The logits of a token depend on the tokens before it and on nothing else: not on what else is in
 * the step, on how a prompt was cut into pieces, on the threads or on the ranks. Bit for bit. */
#ifndef BATON_ENGINE_ENGINE_H
#define BATON_ENGINE_ENGINE_H

#include "kv/page_layout.h"
#include "model/model_config.h"
#include "model/weights.h"

struct engine;

struct engine_options {
    uint32_t rank_count; /* tensor-parallel ranks; divides engine_units(config) */
    uint32_t threads;    /* of all ranks together; 0: one for each core */
    uint32_t tokens_max; /* new tokens in a step */
    uint32_t logits_max; /* rows of logits in a step; at most tokens_max */
    const char *kernels; /* "portable", "neon", ...; NULL: the best for this processor */
};

/* How many ranks a model can be split into at most; a rank count divides it. They may be more than
 * its KV heads: then neighbours keep the same one and divide its query heads. */
uint32_t engine_units(const struct model_config *config);

/* The first KV head of a rank; engine_page_shape says how many it has. */
uint32_t engine_first_kv_head(const struct model_config *config, uint32_t rank_count,
                              uint32_t rank);

/* What one of rank_count ranks keeps of each page. EINVAL: the ranks do not divide the units. */
int engine_page_shape(const struct model_config *config, uint32_t rank_count,
                      enum page_element element, uint32_t tokens_per_page,
                      struct page_shape *out, struct error err);

/* Packs the weights; they and their file are not needed afterwards. `progress` may be NULL; see
 * weights.h. */
int engine_open(const struct model_config *config, const struct weights *weights,
                const struct engine_options *options, weights_progress *progress, void *context,
                struct engine **out, struct error err);
void engine_close(struct engine *engine); /* NULL is fine */

const struct model_config *engine_config(const struct engine *engine);
const char *engine_kernels_name(const struct engine *engine);
uint32_t engine_threads(const struct engine *engine);

/* Where rank `rank` has its pages: page_count of them from `base`, laid out as `layout` says (it
 * is copied). Borrowed until the engine is closed or other pages are set. */
int engine_set_pages(struct engine *engine, uint32_t rank, const struct page_layout *layout,
                     void *base, uint32_t page_count, struct error err);

struct engine_sequence {
    const int32_t *tokens; /* the new ones */
    uint32_t token_count;  /* at least 1 */
    uint32_t position;     /* of the first; everything before it is in the pages already */
    const int32_t *pages;  /* of the whole sequence, the same numbers in every rank's pool */
    uint32_t page_count;
    uint32_t logits_count; /* how many of the last tokens want their logits: 0 .. token_count */
};

/* Computes a step. `logits` gets a row of vocab_size floats for each one asked for, in the order of
 * the sequences. EINVAL (with the reason): a token, a position or a page that does not exist, more
 * than the options allow; nothing has been computed then. */
int engine_step(struct engine *engine, const struct engine_sequence *sequences, uint32_t count,
                float *logits, struct error err);

/* Any thread: the step that is being computed ends with its current layer, and engine_step returns
 * EABORTED. What it stored are the right bits, but not all of them. Between steps it does nothing. */
void engine_give_up(struct engine *engine);

/* Between steps the compute threads can do something else for the engine's owner: work(context, index)
 * for every index below engine_threads, all at once, the owner's thread being one of them. Returns when
 * all have returned. */
void engine_run(struct engine *engine, void (*work)(void *context, uint32_t index),
                void *context);

/* How many layers' K and V of the running step rank `rank` has in its pages. Any thread. It stays until
 * the next step, or until it is forgotten: whoever watches a step forgets the one before it first. */
uint32_t engine_layers_stored(const struct engine *engine, uint32_t rank);
void engine_layers_forget(struct engine *engine);

#endif
