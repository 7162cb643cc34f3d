/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that read tokenizer.json share. tokenizer_json.c reads the vocabulary,
 * tokenizer_json_steps.c what happens to text before and after, tokenizer_folder.c the files
 * beside it. */
#ifndef BATON_MODEL_TOKENIZER_JSON_H
#define BATON_MODEL_TOKENIZER_JSON_H

#include "tokenizer_state.h"

#include <jansson.h>

/* A tokenizer out of the text of a tokenizer.json alone. `path` is for error texts. */
int tokenizer_open_json(const char *bytes, size_t size, const char *path,
                        struct tokenizer **out, struct error err);

/* The same, but for tokenizer_finish: the caller may know more about special tokens. */
int tokenizer_read_json(struct tokenizer *tokenizer, const char *bytes, size_t size,
                        const char *path, struct error err);

struct json_reader {
    const char *path;
    struct tokenizer *tokenizer;
    char space_letter[8]; /* what the decoder turns into a space; terminated */
    struct error err;
};

/* "path: sentence" */
int tokenizer_json_refuse(struct json_reader *reader, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The type of a step: "NFC"; "" if it has none. */
const char *tokenizer_json_type(const json_t *step);

/* Each may get null, or nothing. Splitting decides whether the model is over bytes. */
int tokenizer_json_normalizer(struct json_reader *reader, const json_t *json);
int tokenizer_json_splitter(struct json_reader *reader, const json_t *json);
int tokenizer_json_decoder(struct json_reader *reader, const json_t *json);
int tokenizer_json_template(struct json_reader *reader, const json_t *json);

#endif
