/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer out of a Hugging Face folder: tokenizer.json, and what the files beside it add.
 *
 *   tokenizer_config.json    bos_token, eos_token; add_bos_token, add_eos_token, which overrule
 *   special_tokens_map.json  the post-processor where they are given
 *   generation_config.json   eos_token_id: one id, or a list, of tokens that end a generation
 *   config.json              the same, in older models
 *
 * Only tokenizer.json has to exist. */
#include "model_file_json.h"
#include "model_file_map.h"
#include "tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct folder {
    const char *path;
    struct tokenizer *tokenizer;
    struct error err;
};

/* The file's content, NULL when there is no such file. */
static int optional_load(struct folder *folder, const char *name,
                         int (*load)(const char *, json_t **, struct error), json_t **out)
{
    char path[4096];
    int length = snprintf(path, sizeof(path), "%s/%s", folder->path, name);
    *out = NULL;
    if (length < 0 || (size_t)length >= sizeof(path))
        return error_set(folder->err, BATON_EINVAL, "the path of the model is too long");
    int rc = load(path, out, folder->err);
    return rc == BATON_ENOTFOUND ? BATON_OK : rc;
}

/* A special token by its text: "<s>", or {"content": "<s>"}. */
static void named_token_read(struct folder *folder, const json_t *json, const char *name,
                             uint32_t *id)
{
    const json_t *value = json_object_get(json, name);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (json_is_string(value) && *id == TOKEN_NONE)
        *id = tokenizer_find(folder->tokenizer, json_string_value(value),
                             json_string_length(value));
}

/* Puts the token in its place around a text, or takes it away. */
static int around_set(struct folder *folder, struct token_list *list, uint32_t id,
                      const json_t *wanted)
{
    bool there = list->count && list->ids[0] == id;
    if (!json_is_boolean(wanted) || id == TOKEN_NONE || json_is_true(wanted) == there)
        return BATON_OK;
    if (there) {
        memmove(list->ids, list->ids + 1, --list->count * sizeof(*list->ids));
        return BATON_OK;
    }
    if (token_list_append(list, id))
        return error_set(folder->err, BATON_ENOMEM, "out of memory for a tokenizer");
    memmove(list->ids + 1, list->ids, (list->count - 1) * sizeof(*list->ids));
    list->ids[0] = id;
    return BATON_OK;
}

static int special_tokens_read(struct folder *folder)
{
    struct tokenizer *tokenizer = folder->tokenizer;
    json_t *config, *map;
    int rc = optional_load(folder, "tokenizer_config.json", model_json_load_strings, &config);
    if (rc)
        return rc;
    rc = optional_load(folder, "special_tokens_map.json", model_json_load_strings, &map);
    if (!rc) {
        named_token_read(folder, config, "bos_token", &tokenizer->bos);
        named_token_read(folder, config, "eos_token", &tokenizer->eos);
        named_token_read(folder, map, "bos_token", &tokenizer->bos);
        named_token_read(folder, map, "eos_token", &tokenizer->eos);
        rc = around_set(folder, &tokenizer->prefix, tokenizer->bos,
                        json_object_get(config, "add_bos_token"));
    }
    if (!rc)
        rc = around_set(folder, &tokenizer->suffix, tokenizer->eos,
                        json_object_get(config, "add_eos_token"));
    json_decref(map);
    json_decref(config);
    return rc;
}

static uint32_t id_value(const json_t *id)
{
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    return value >= 0 && value < VOCABULARY_TOKENS_MAX ? (uint32_t)value : TOKEN_NONE;
}

static int ends_read(struct folder *folder, const char *name)
{
    struct tokenizer *tokenizer = folder->tokenizer;
    json_t *config;
    int rc = optional_load(folder, name, model_json_load, &config);
    if (rc)
        return rc;
    const json_t *ends = json_object_get(config, "eos_token_id"), *id;
    size_t index;
    if (tokenizer->bos == TOKEN_NONE)
        tokenizer->bos = id_value(json_object_get(config, "bos_token_id"));
    if (tokenizer->eos == TOKEN_NONE)
        tokenizer->eos = id_value(json_is_array(ends) ? json_array_get(ends, 0) : ends);
    rc = tokenizer_add_end(tokenizer, id_value(ends), folder->err);
    json_array_foreach(ends, index, id)
    {
        if (!rc)
            rc = tokenizer_add_end(tokenizer, id_value(id), folder->err);
    }
    json_decref(config);
    return rc;
}

static int tokenizer_json_read(struct folder *folder)
{
    char path[4096];
    struct file_map map;
    int length = snprintf(path, sizeof(path), "%s/tokenizer.json", folder->path);
    if (length < 0 || (size_t)length >= sizeof(path))
        return error_set(folder->err, BATON_EINVAL, "the path of the model is too long");
    int rc = file_map_open(path, &map, folder->err);
    if (rc)
        return rc;
    rc = tokenizer_read_json(folder->tokenizer, (const char *)map.bytes, map.size, path,
                             folder->err);
    file_map_close(&map);
    return rc;
}

int tokenizer_open_folder(const char *path, struct tokenizer **out, struct error err)
{
    struct folder folder = {.path = path, .err = err};
    int rc = tokenizer_new(&folder.tokenizer, err);
    if (rc)
        return rc;
    rc = tokenizer_json_read(&folder);
    if (!rc)
        rc = special_tokens_read(&folder);
    if (!rc)
        rc = ends_read(&folder, "generation_config.json");
    if (!rc)
        rc = ends_read(&folder, "config.json");
    if (!rc)
        rc = tokenizer_finish(folder.tokenizer, err);
    if (rc) {
        tokenizer_close(folder.tokenizer);
        return rc;
    }
    *out = folder.tokenizer;
    return BATON_OK;
}
