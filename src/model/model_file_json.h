/* SPDX-License-Identifier: Apache-2.0 */
/* JSON of model folders: bounded in size, and with errors that name the file and the field. */
#ifndef BATON_MODEL_MODEL_FILE_JSON_H
#define BATON_MODEL_MODEL_FILE_JSON_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* An object; the caller drops it with json_decref. EINVAL: it is not JSON, not an object, or
 * names a field twice. `path` is for error texts. */
int model_json_parse(const char *bytes, size_t size, const char *path, json_t **out,
                     struct error err);
/* The same of a file. ENOTFOUND when there is none. */
int model_json_load(const char *path, json_t **out, struct error err);

/* The same, for files of which only the strings are wanted: numbers become doubles, since
 * tokenizer_config.json has integers of 30 digits, which jansson would refuse. */
int model_json_load_strings(const char *path, json_t **out, struct error err);

#endif
