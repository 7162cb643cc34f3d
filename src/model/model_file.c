/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model of either kind and keeps its parts together. What is GGUF's is in the one file;
 * a folder has config.json, generation_config.json, *.safetensors, and for the tokenizer
 * tokenizer.json, tokenizer_config.json and chat_template.jinja. */
#include "model_file.h"
#include "gguf.h"
#include "model_file_json.h"
#include "model_file_map.h"
#include "safetensors.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct model_file {
    char *path;
    struct gguf *gguf;               /* of a file */
    struct safetensors *safetensors; /* of a folder */
    char *tokenizer_json;
    struct model_config config;
    struct weights weights;
    char *chat_template, *bos_text, *eos_text;
};

/* ---- GGUF -------------------------------------------------------------------------------- */

/* A terminated copy; text with a zero byte in it is refused, since it would end there. */
static int text_copy(const char *path, const char *what, const char *bytes, size_t length,
                     char **out, struct error err)
{
    if (memchr(bytes, '\0', length))
        return error_set(err, BATON_EINVAL, "%s: %s has a zero byte in it", path, what);
    char *text = malloc(length + 1);
    if (!text)
        return error_set(err, BATON_ENOMEM, "%s: no memory for %s", path, what);
    memcpy(text, bytes, length);
    text[length] = '\0';
    *out = text;
    return BATON_OK;
}

static int gguf_template_read(struct model_file *file, struct error err)
{
    struct gguf_string text;
    int rc = gguf_get_string(file->gguf, "tokenizer.chat_template", &text, err);
    if (rc == BATON_ENOTFOUND)
        return BATON_OK;
    return rc ? rc
              : text_copy(file->path, "the chat template", text.bytes, text.length,
                          &file->chat_template, err);
}

static int gguf_token_text(const struct model_file *file, const struct gguf_string *tokens,
                           uint64_t count, int32_t token, char **out, struct error err)
{
    if (token == MODEL_TOKEN_NONE || (uint64_t)token >= count)
        return BATON_OK;
    return text_copy(file->path, "a special token", tokens[token].bytes, tokens[token].length,
                     out, err);
}

static int gguf_tokens_read(struct model_file *file, struct error err)
{
    struct gguf_array array;
    struct gguf_string *tokens;
    const struct model_config *config = &file->config;
    int32_t eos = config->eos_count ? config->eos_tokens[0] : MODEL_TOKEN_NONE;
    int rc = gguf_get_array(file->gguf, "tokenizer.ggml.tokens", GGUF_STRING, &array, err);
    if (rc == BATON_ENOTFOUND)
        return BATON_OK;
    if (rc || (rc = gguf_array_strings(&array, &tokens, err)))
        return rc;
    rc = gguf_token_text(file, tokens, array.count, config->bos_token, &file->bos_text, err);
    if (!rc)
        rc = gguf_token_text(file, tokens, array.count, eos, &file->eos_text, err);
    free(tokens);
    return rc;
}

static int gguf_model_open(struct model_file *file, struct error err)
{
    int rc;
    if ((rc = gguf_open(file->path, &file->gguf, err)) ||
        (rc = model_config_from_gguf(file->gguf, &file->config, err)) ||
        (rc = weights_resolve(&file->config, gguf_tensors(file->gguf), WEIGHTS_NAMED_GGUF,
                              file->path, &file->weights, err)) ||
        (rc = gguf_template_read(file, err)) || (rc = gguf_tokens_read(file, err)))
        return rc;
    return BATON_OK;
}

/* ---- Hugging Face folders ---------------------------------------------------------------- */

static int folder_config_read(struct model_file *file, struct error err)
{
    char path[PATH_MAX];
    json_t *config = NULL, *generation = NULL;
    int rc;
    if ((rc = file_path_join(file->path, "config.json", path, err)) ||
        (rc = model_json_load(path, &config, err)))
        return rc;
    if (!(rc = file_path_join(file->path, "generation_config.json", path, err)))
        rc = model_json_load(path, &generation, err);
    if (!rc || rc == BATON_ENOTFOUND)
        rc = model_config_from_json(config, generation, file->path, &file->config, err);
    json_decref(generation);
    json_decref(config);
    return rc;
}

static int template_file_read(struct model_file *file, struct error err)
{
    char path[PATH_MAX];
    struct file_map map;
    int rc;
    if ((rc = file_path_join(file->path, "chat_template.jinja", path, err)) ||
        (rc = file_map_open(path, &map, err)))
        return rc == BATON_ENOTFOUND ? BATON_OK : rc;
    rc = text_copy(path, "the chat template", (const char *)map.bytes, map.size,
                   &file->chat_template, err);
    file_map_close(&map);
    return rc;
}

/* A string, or a list of {"name": ..., "template": ...}, of which the one called default. */
static const char *template_find(const json_t *value)
{
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)value, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(entry, "template"));
    }
    return json_string_value(value);
}

/* A string, or {"content": "<s>", ...}. */
static const char *token_find(const json_t *config, const char *name)
{
    const json_t *value = json_object_get(config, name);
    const char *text = json_string_value(value);
    return text ? text : json_string_value(json_object_get(value, "content"));
}

static int string_keep(const char *path, const char *text, char **out, struct error err)
{
    if (!text || *out)
        return BATON_OK;
    return text_copy(path, "a string", text, strlen(text), out, err);
}

static int tokenizer_config_read(struct model_file *file, struct error err)
{
    char path[PATH_MAX];
    json_t *config;
    int rc;
    if ((rc = file_path_join(file->path, "tokenizer_config.json", path, err)) ||
        (rc = model_json_load_strings(path, &config, err)))
        return rc == BATON_ENOTFOUND ? BATON_OK : rc;
    const char *chat_template = template_find(json_object_get(config, "chat_template"));
    if (!(rc = string_keep(path, chat_template, &file->chat_template, err)) &&
        !(rc = string_keep(path, token_find(config, "bos_token"), &file->bos_text, err)))
        rc = string_keep(path, token_find(config, "eos_token"), &file->eos_text, err);
    json_decref(config);
    return rc;
}

static int folder_model_open(struct model_file *file, struct error err)
{
    char path[PATH_MAX];
    int rc;
    if ((rc = folder_config_read(file, err)) ||
        (rc = safetensors_open_folder(file->path, &file->safetensors, err)) ||
        (rc = weights_resolve(&file->config, safetensors_tensors(file->safetensors),
                              WEIGHTS_NAMED_HUGGING_FACE, file->path, &file->weights, err)) ||
        (rc = template_file_read(file, err)) || (rc = tokenizer_config_read(file, err)) ||
        (rc = file_path_join(file->path, "tokenizer.json", path, err)) ||
        (rc = string_keep(file->path, path, &file->tokenizer_json, err)))
        return rc;
    return BATON_OK;
}

/* ---- both -------------------------------------------------------------------------------- */

int model_file_open(const char *path, struct model_file **out, struct error err)
{
    struct stat about;
    int rc;
    if (stat(path, &about))
        return error_set(err, errno == ENOENT ? BATON_ENOTFOUND : BATON_ESYSTEM,
                         "%s: %s (a model is a .gguf file or a Hugging Face folder)", path,
                         strerror(errno));
    struct model_file *file = calloc(1, sizeof(*file));
    if (!file || !(file->path = strdup(path)))
        rc = error_set(err, BATON_ENOMEM, "%s: out of memory", path);
    else if (S_ISDIR(about.st_mode))
        rc = folder_model_open(file, err);
    else
        rc = gguf_model_open(file, err);
    if (rc)
        model_file_close(file);
    else
        *out = file;
    return rc;
}

void model_file_close(struct model_file *file)
{
    if (!file)
        return;
    weights_release(&file->weights);
    safetensors_close(file->safetensors);
    gguf_close(file->gguf);
    free(file->eos_text);
    free(file->bos_text);
    free(file->chat_template);
    free(file->tokenizer_json);
    free(file->path);
    free(file);
}

int model_file_prefault(const struct model_file *file, weights_progress *progress,
                        void *context, struct error err)
{
    char text[256];
    int rc = weights_prefault(&file->weights, progress, context, ERROR_BUFFER(text));
    return rc ? error_set(err, rc, "%s: %s", file->path, text) : BATON_OK;
}

const char *model_file_path(const struct model_file *file)
{
    return file->path;
}

const struct model_config *model_file_config(const struct model_file *file)
{
    return &file->config;
}

const struct weights *model_file_weights(const struct model_file *file)
{
    return &file->weights;
}

const struct gguf *model_file_gguf(const struct model_file *file)
{
    return file->gguf;
}

const char *model_file_tokenizer_json(const struct model_file *file)
{
    return file->tokenizer_json;
}

const char *model_file_chat_template(const struct model_file *file)
{
    return file->chat_template;
}

const char *model_file_bos_text(const struct model_file *file)
{
    return file->bos_text;
}

const char *model_file_eos_text(const struct model_file *file)
{
    return file->eos_text;
}
