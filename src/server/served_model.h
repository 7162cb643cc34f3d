/* SPDX-License-Identifier: Apache-2.0 */
/* A model as a worker serves it: the engine with its weights, the tokenizer, the chat template and
 * the names that clients know it by. Nothing in it changes after opening, but for the engine, which
 * is the scheduler's. */
#ifndef BATON_SERVER_SERVED_MODEL_H
#define BATON_SERVER_SERVED_MODEL_H

#include "engine/engine.h"
#include "model/model_fingerprint.h"
#include "model/template.h"
#include "model/tokenizer.h"

struct served_model {
    char *path;           /* as it was given */
    char *name;           /* what clients put into "model" */
    char *weight_version; /* what replies call the weights */
    struct model_config config;
    struct tokenizer *tokenizer;
    struct template *chat_template; /* NULL: the model has none */
    char *chat_template_text;       /* NULL likewise */
    char *bos_text, *eos_text;      /* NULL: none */
    struct engine *engine;
    uint64_t weight_bytes;
    char fingerprint[MODEL_FINGERPRINT_BYTES];
};

struct served_model_options {
    const char *path;
    const char *name;           /* NULL: the path's last part */
    const char *chat_template;  /* a file, or the text itself; NULL: the model's own */
    const char *weight_version; /* NULL: "default" */
    struct engine_options engine;
};

/* EINVAL also when the tokenizer has tokens that the model has no embedding for. progress: of the
 * weights, see weights.h; may be NULL. */
int served_model_open(const struct served_model_options *options, weights_progress *progress,
                      void *context, struct served_model **out, struct error err);
void served_model_close(struct served_model *model); /* NULL is fine */

#endif
