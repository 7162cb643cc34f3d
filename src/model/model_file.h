/* SPDX-License-Identifier: Apache-2.0 */
/* A model as a person names it: a .gguf file, or a Hugging Face folder with config.json,
 * tokenizer.json and *.safetensors. Opens it, says what it is, and leads to its parts. Everything
 * handed out lives until model_file_close; nothing changes after opening, so that threads may
 * share it. The file must not be truncated while it is open (it is mapped, not read). */
#ifndef BATON_MODEL_MODEL_FILE_H
#define BATON_MODEL_MODEL_FILE_H

#include "model_config.h"
#include "weights.h"

struct model_file;

int model_file_open(const char *path, struct model_file **out, struct error err);
void model_file_close(struct model_file *file); /* NULL is fine */

const char *model_file_path(const struct model_file *file);
const struct model_config *model_file_config(const struct model_file *file);
const struct weights *model_file_weights(const struct model_file *file);

/* weights_prefault for this file. */
int model_file_prefault(const struct model_file *file, weights_progress *progress,
                        void *context, struct error err);

/* Where the tokenizer is: in the GGUF file (then this is not NULL) ... */
const struct gguf *model_file_gguf(const struct model_file *file);
/* ... or in tokenizer.json, whose path this is; NULL for GGUF. It need not exist. */
const char *model_file_tokenizer_json(const struct model_file *file);

/* The chat template's text, and the special tokens that templates name; NULL where the model has
 * none. Terminated strings. */
const char *model_file_chat_template(const struct model_file *file);
const char *model_file_bos_text(const struct model_file *file);
const char *model_file_eos_text(const struct model_file *file);

#endif
