/* SPDX-License-Identifier: Apache-2.0 */
/* A tiny model as a Hugging Face folder on disk: config.json and model.safetensors. */
#ifndef BATON_TESTS_ENGINE_TINY_FOLDER_H
#define BATON_TESTS_ENGINE_TINY_FOLDER_H

#include "tiny_model.h"

/* Makes the folder `path` (a template for mkdtemp) with the text as config.json and the model's
 * float32 weights under the names that Hugging Face gives them. */
void tiny_folder_make(char *path, const char *config_json, const struct tiny_model *model);
void tiny_folder_remove(const char *path);

#endif
