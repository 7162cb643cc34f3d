/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a Hugging Face folder: model.safetensors, or the shards that
 * model.safetensors.index.json lists, mapped read-only. Opening checks everything; nothing
 * changes afterwards. */
#ifndef BATON_MODEL_SAFETENSORS_H
#define BATON_MODEL_SAFETENSORS_H

#include "tensor.h"

#include <stddef.h>

struct safetensors;

/* ENOTFOUND: the folder holds no safetensors, or a shard is missing; EINVAL: a file is damaged;
 * EUNSUPPORTED: a type of numbers is not known. The error names the file and the tensor. */
int safetensors_open_folder(const char *folder, struct safetensors **out, struct error err);
void safetensors_close(struct safetensors *files); /* NULL is fine */

const struct tensor_table *safetensors_tensors(const struct safetensors *files);

/* One file's bytes, which stay the caller's. out->items is the caller's to free; `path` is for
 * error texts. */
int safetensors_parse(const uint8_t *bytes, size_t size, const char *path,
                      struct tensor_table *out, struct error err);

#endif
