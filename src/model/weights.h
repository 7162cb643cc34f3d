/* SPDX-License-Identifier: Apache-2.0 */
/* A model's weights by their role, whatever the file calls them: pointers into the mapping, with
 * shapes already checked against the config.
 *
 *   y = W x: a matrix has one row per output; columns are inputs. A vector is one row.
 *
 *   embedding     vocab_size x hidden_size
 *   q             head_count * head_dim x hidden_size       rows in config->rope_order
 *   k             kv_head_count * head_dim x hidden_size    rows in config->rope_order
 *   v             kv_head_count * head_dim x hidden_size
 *   o             hidden_size x head_count * head_dim
 *   gate, up      ffn_size x hidden_size
 *   down          hidden_size x ffn_size
 *   output        vocab_size x hidden_size; the embedding itself where they are tied
 *   norms         hidden_size (q_norm, k_norm: head_dim)
 */
#ifndef BATON_MODEL_WEIGHTS_H
#define BATON_MODEL_WEIGHTS_H

#include "model_config.h"
#include "tensor.h"

struct weight {
    const char *name;    /* the file's, for messages; NULL: the model has no such weight */
    const uint8_t *data; /* aligned to tensor_type_alignment(type) */
    enum tensor_type type;
    uint32_t rows, columns;
    uint64_t row_bytes; /* row r is at data + r * row_bytes; dequant.h turns it into floats */
};

struct layer_weights {
    struct weight attention_norm;
    struct weight q, k, v, o;
    struct weight q_bias, k_bias, v_bias; /* config->qkv_bias */
    struct weight q_norm, k_norm;         /* config->qk_norm */
    struct weight ffn_norm;
    struct weight gate, up, down;
};

struct weights {
    struct weight embedding;
    struct weight final_norm;
    struct weight output;
    bool tied; /* output is embedding */
    struct layer_weights *layers;
    uint32_t layer_count;
    uint64_t bytes;     /* of all weights, each counted once */
    uint8_t *realigned; /* copies of what the file keeps at odd addresses; or NULL */
};

enum weights_naming { WEIGHTS_NAMED_GGUF, WEIGHTS_NAMED_HUGGING_FACE };

/* Finds and checks every weight. ENOTFOUND: one is missing; EINVAL: one has another shape than
 * the config says; EUNSUPPORTED: a type that is not read here, or a tensor in the file that this
 * family has no use for (leaving it out would change the result). `path` is for error texts.
 * `tensors` must outlive the weights. */
int weights_resolve(const struct model_config *config, const struct tensor_table *tensors,
                    enum weights_naming naming, const char *path, struct weights *out,
                    struct error err);
void weights_release(struct weights *weights);

/* All weights one after the other, i < weights_count; NULL for one that the model has not, and
 * for an output that is the embedding. */
uint32_t weights_count(const struct weights *weights);
const struct weight *weights_at(const struct weights *weights, uint32_t i);

/* Called on the calling thread, a few hundred times at most; false stops the loading. */
typedef bool weights_progress(void *context, uint64_t bytes_done, uint64_t bytes_total);

/* Brings all weights into memory, so that the first token does not wait for the disk, and so
 * that a read error is an error here rather than a signal later. `progress` may be NULL.
 * ESYSTEM: the file cannot be read; EABORTED: progress said so. */
int weights_prefault(const struct weights *weights, weights_progress *progress, void *context,
                     struct error err);

#endif
