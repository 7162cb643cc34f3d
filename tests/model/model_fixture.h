/* SPDX-License-Identifier: Apache-2.0 */
/* Small random models, in both forms: GGUF in memory and Hugging Face folders on disk. What each
 * tensor is called and how large it is, is written down here a second time, apart from weights.c
 * which is tested with it. */
#ifndef BATON_TESTS_MODEL_FIXTURE_H
#define BATON_TESTS_MODEL_FIXTURE_H

#include "gguf_writer.h"
#include "model/model_config.h"

#include <jansson.h>

struct fixture {
    enum model_family family;
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;
    enum tensor_type type; /* of the matrices; vectors are F32 in GGUF */
};

/* 2 layers, 64 wide, 4 heads on 2, 16 each, 96 in the middle, 40 tokens. */
struct fixture fixture_small(enum model_family family);

struct fixture_tensor {
    char name[TENSOR_NAME_BYTES];
    enum tensor_type type;
    uint32_t rows, columns; /* rows 0: a vector */
};

/* All tensors of a model, by their names in GGUF or in a folder. */
#define FIXTURE_TENSORS_MAX 64
uint32_t fixture_tensors(const struct fixture *fixture, bool hugging_face,
                         struct fixture_tensor tensors[FIXTURE_TENSORS_MAX]);

/* Metadata and tensors; the caller may add to it before it finishes it. */
void fixture_write_gguf(const struct fixture *fixture, struct gguf_writer *writer);

/* config.json. */
json_t *fixture_config(const struct fixture *fixture);

/* One safetensors file of these tensors, filled with numbers that follow from the seed. The
 * header gets `padding` spaces behind it. */
struct bytes fixture_safetensors(const struct fixture_tensor *tensors, uint32_t count,
                                 uint32_t padding, uint32_t seed);

/* A new folder under /tmp, into `path`; its removal with all that is in it. */
#define FIXTURE_PATH_BYTES 256
void fixture_folder_make(char path[FIXTURE_PATH_BYTES]);
void fixture_folder_remove(const char *path);
void fixture_file_write(const char *folder, const char *name, const void *data, size_t size);
void fixture_json_write(const char *folder, const char *name, json_t *json); /* takes json */

/* config.json and model.safetensors. */
void fixture_folder_write(const struct fixture *fixture, const char *folder);

#endif
