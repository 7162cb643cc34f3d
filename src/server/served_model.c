/* SPDX-License-Identifier: Apache-2.0 */
#include "served_model.h"

#include "base/log.h"
#include "model/model_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TEMPLATE_FILE_MAX (4u << 20)

static char *copy(const char *text)
{
    return text ? strdup(text) : NULL;
}

/* "models/SmolLM2.Q4_1.gguf" is SmolLM2.Q4_1. */
static char *name_of_path(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (length - begin > 5 && strncmp(path + length - 5, ".gguf", 5) == 0)
        length -= 5;
    return strndup(path + begin, length - begin);
}

static int template_file_read(const char *path, char **out, struct error err)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return error_set(err, BATON_ESYSTEM, "the chat template %s cannot be opened", path);
    char *text = malloc(TEMPLATE_FILE_MAX + 1);
    size_t length = text ? fread(text, 1, TEMPLATE_FILE_MAX + 1, file) : 0;
    int bad = ferror(file);
    fclose(file);
    if (!text)
        return error_set(err, BATON_ENOMEM, "out of memory");
    if (bad || length > TEMPLATE_FILE_MAX) {
        free(text);
        return error_set(err, BATON_EINVAL, "the chat template %s %s", path,
                         bad ? "cannot be read" : "is longer than 4 MB");
    }
    text[length] = '\0';
    *out = text;
    return BATON_OK;
}

/* Template text has braces; the name of a file hardly ever. */
static int template_open(struct served_model *model, const char *given, const char *own,
                         struct error err)
{
    char reason[512];
    if (given && !strchr(given, '{')) {
        int rc = template_file_read(given, &model->chat_template_text, err);
        if (rc)
            return rc;
    } else {
        model->chat_template_text = copy(given ? given : own);
        if ((given || own) && !model->chat_template_text)
            return error_set(err, BATON_ENOMEM, "out of memory");
    }
    if (!model->chat_template_text)
        return BATON_OK;
    int rc = template_compile(model->chat_template_text, strlen(model->chat_template_text),
                              &model->chat_template, ERROR_BUFFER(reason));
    if (rc && given)
        return error_set(err, rc, "the chat template given: %s", reason);
    if (rc) /* everything but chats works without it */
        LOG_WARNING(server, "the model's chat template cannot be used: %s", reason);
    return BATON_OK;
}

static int tokenizer_open(struct served_model *model, const struct model_file *file,
                          struct error err)
{
    int rc = model_file_gguf(file)
                 ? tokenizer_open_gguf(model_file_gguf(file), &model->tokenizer, err)
                 : tokenizer_open_folder(model->path, &model->tokenizer, err);
    if (rc)
        return rc;
    uint32_t known = tokenizer_vocabulary_size(model->tokenizer);
    if (known > model->config.vocab_size)
        return error_set(err, BATON_EINVAL,
                         "%s: the tokenizer does not fit the model: it has %u tokens, the "
                         "model embeds %u",
                         model->path, known, model->config.vocab_size);
    return BATON_OK;
}

static int names_set(struct served_model *model, const struct served_model_options *options,
                     const struct model_file *file, struct error err)
{
    const char *version = options->weight_version ? options->weight_version : "default";
    const char *bos = model_file_bos_text(file), *eos = model_file_eos_text(file);
    model->path = copy(options->path);
    model->name = options->name ? copy(options->name) : name_of_path(options->path);
    model->weight_version = copy(version);
    model->bos_text = copy(bos);
    model->eos_text = copy(eos);
    if (!model->path || !model->name || !model->weight_version || (bos && !model->bos_text) ||
        (eos && !model->eos_text))
        return error_set(err, BATON_ENOMEM, "out of memory");
    return BATON_OK;
}

static int parts_open(struct served_model *model, const struct served_model_options *options,
                      const struct model_file *file, weights_progress *progress, void *context,
                      struct error err)
{
    int rc = names_set(model, options, file, err);
    if (rc)
        return rc;
    model->config = *model_file_config(file);
    model->weight_bytes = model_file_weights(file)->bytes;
    model_fingerprint(&model->config, model_file_weights(file), model->fingerprint);
    if ((rc = tokenizer_open(model, file, err)) ||
        (rc =
             template_open(model, options->chat_template, model_file_chat_template(file), err)))
        return rc;
    return engine_open(&model->config, model_file_weights(file), &options->engine, progress,
                       context, &model->engine, err);
}

int served_model_open(const struct served_model_options *options, weights_progress *progress,
                      void *context, struct served_model **out, struct error err)
{
    struct model_file *file;
    int rc = model_file_open(options->path, &file, err);
    if (rc)
        return rc;
    struct served_model *model = calloc(1, sizeof(*model));
    rc = model ? parts_open(model, options, file, progress, context, err)
               : error_set(err, BATON_ENOMEM, "out of memory");
    model_file_close(file);
    if (rc) {
        served_model_close(model);
        return rc;
    }
    *out = model;
    return BATON_OK;
}

void served_model_close(struct served_model *model)
{
    if (!model)
        return;
    engine_close(model->engine);
    if (model->chat_template)
        template_free(model->chat_template);
    tokenizer_close(model->tokenizer);
    free(model->chat_template_text);
    free(model->bos_text);
    free(model->eos_text);
    free(model->weight_version);
    free(model->name);
    free(model->path);
    free(model);
}
