/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json, the file of Hugging Face's `tokenizers`:
 *
 *   {"normalizer": ..., "pre_tokenizer": ..., "decoder": ..., "post_processor": ...,
 *    "added_tokens": [{"id": 0, "content": "<s>", "special": true, "normalized": false,
 *                      "lstrip": false, "rstrip": false, "single_word": false}, ...],
 *    "model": {"type": "BPE", "vocab": {"Ġthe": 262, ...}, "merges": ["Ġ t", ["Ġt", "he"], ...],
 *              "unk_token": null, "fuse_unk": false, "byte_fallback": false,
 *              "ignore_merges": false}}
 *
 * Dropout is ignored: it is for training. Truncation and padding are the caller's business. */
#include "tokenizer_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define JSON_BYTES_MAX (128u << 20) /* Gemma's has 33 MB */

int tokenizer_json_refuse(struct json_reader *reader, int code, const char *format, ...)
{
    char sentence[256];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    return error_set(reader->err, code, "%s: %s", reader->path, sentence);
}

const char *tokenizer_json_type(const json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    return type ? type : "";
}

static struct text_view string_view(const json_t *string)
{
    return (struct text_view){json_string_value(string), json_string_length(string)};
}

/* ---- the vocabulary ---------------------------------------------------------------------- */

static int vocab_read(struct json_reader *reader, const json_t *vocab)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    struct text_view space_letter = {reader->space_letter, strlen(reader->space_letter)};
    if (!json_is_object(vocab))
        return tokenizer_json_refuse(reader, BATON_EINVAL, "model.vocab is not an object");
    for (void *at = json_object_iter((json_t *)vocab); at;
         at = json_object_iter_next((json_t *)vocab, at)) {
        struct text_view text = {json_object_iter_key(at), json_object_iter_key_len(at)};
        const json_t *id = json_object_iter_value(at);
        bool byte = tokenizer->byte_fallback && byte_token_value(text.bytes, text.length) >= 0;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= VOCABULARY_TOKENS_MAX)
            return tokenizer_json_refuse(reader, BATON_EINVAL,
                                         "model.vocab has an id that is not one");
        int rc =
            tokenizer_set_token(tokenizer, (uint32_t)json_integer_value(id), text,
                                byte ? TOKEN_BYTE : TOKEN_NORMAL, space_letter, reader->err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

static int added_id_read(struct json_reader *reader, const json_t *token, size_t index,
                         uint32_t *id)
{
    const json_t *number = json_object_get(token, "id");
    const json_t *content = json_object_get(token, "content");
    if (!json_is_integer(number) || json_integer_value(number) < 0 ||
        json_integer_value(number) >= VOCABULARY_TOKENS_MAX || !json_is_string(content))
        return tokenizer_json_refuse(
            reader, BATON_EINVAL, "added_tokens[%zu] has no id, or no content that is a string",
            index);
    *id = (uint32_t)json_integer_value(number);
    return BATON_OK;
}

static int added_tokens_read(struct json_reader *reader, const json_t *added)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    struct text_view space_letter = {reader->space_letter, strlen(reader->space_letter)};
    const json_t *token;
    size_t index;
    json_array_foreach(added, index, token)
    {
        uint32_t id = 0;
        int rc = added_id_read(reader, token, index, &id);
        if (rc)
            return rc;
        enum token_kind kind = json_is_true(json_object_get(token, "special"))
                                   ? TOKEN_CONTROL
                                   : TOKEN_USER_DEFINED;
        rc = tokenizer_set_token(tokenizer, id, string_view(json_object_get(token, "content")),
                                 kind, space_letter, reader->err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

/* Their texts go to where they are looked for: as they are, or as the normalizer leaves them. */
static int added_texts_read(struct json_reader *reader, const json_t *added,
                            struct pattern_space *patterns, struct normalizer_space *space)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    const json_t *json;
    size_t index;
    json_array_foreach(added, index, json)
    {
        struct text_view text = string_view(json_object_get(json, "content"));
        bool normalized = json_is_true(json_object_get(json, "normalized"));
        struct added_token token = {
            .id = (uint32_t)json_integer_value(json_object_get(json, "id")),
            .control = json_is_true(json_object_get(json, "special")),
            .single_word = json_is_true(json_object_get(json, "single_word")),
            .takes_before = json_is_true(json_object_get(json, "lstrip")),
            .takes_after = json_is_true(json_object_get(json, "rstrip")),
        };
        int rc = BATON_OK;
        if (normalized)
            rc = normalizer_apply(&tokenizer->normalizer, space, patterns, text.bytes,
                                  text.length, &text, reader->err);
        if (!rc && text.length)
            rc = added_tokens_add(normalized ? &tokenizer->normalized : &tokenizer->added,
                                  text.bytes, text.length, token, reader->err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

static int added_read(struct json_reader *reader, const json_t *added)
{
    struct normalizer_space space = {0};
    struct pattern_space *patterns;
    int rc = added_tokens_read(reader, added);
    if (rc)
        return rc;
    if (pattern_space_open(&patterns))
        return tokenizer_json_refuse(reader, BATON_ENOMEM, "out of memory for a tokenizer");
    rc = added_texts_read(reader, added, patterns, &space);
    pattern_space_close(patterns);
    byte_buffer_free(&space.text);
    byte_buffer_free(&space.other);
    return rc;
}

/* ---- merges ------------------------------------------------------------------------------ */

/* "left right" or ["left", "right"]. */
static bool merge_halves(const json_t *merge, struct text_view *left, struct text_view *right)
{
    if (json_is_array(merge)) {
        *left = string_view(json_array_get(merge, 0));
        *right = string_view(json_array_get(merge, 1));
        return json_array_size(merge) == 2 && left->bytes && right->bytes;
    }
    struct text_view both = string_view(merge);
    const char *space = both.bytes ? memchr(both.bytes, ' ', both.length) : NULL;
    if (!space)
        return false;
    *left = (struct text_view){both.bytes, (size_t)(space - both.bytes)};
    *right = (struct text_view){space + 1, both.length - left->length - 1};
    return true;
}

static int merges_read(struct json_reader *reader, const json_t *merges)
{
    const json_t *merge;
    size_t rank;
    if (!json_is_array(merges) || json_array_size(merges) >= MERGE_RANK_NONE)
        return tokenizer_json_refuse(reader, BATON_EINVAL, "model.merges is not a list");
    int rc = merges_init(&reader->tokenizer->merges, json_array_size(merges), reader->err);
    if (rc)
        return rc;
    json_array_foreach(merges, rank, merge)
    {
        char reason[128];
        struct text_view left, right;
        if (!merge_halves(merge, &left, &right))
            return tokenizer_json_refuse(reader, BATON_EINVAL, "merge %zu is not two tokens",
                                         rank);
        rc = tokenizer_add_merge(reader->tokenizer, left, right, (uint32_t)rank,
                                 ERROR_BUFFER(reason));
        if (rc)
            return tokenizer_json_refuse(reader, rc, "merge %zu: %s", rank, reason);
    }
    return BATON_OK;
}

/* ---- the model --------------------------------------------------------------------------- */

static bool string_is_empty(const json_t *string)
{
    return !json_is_string(string) || !json_string_length(string);
}

/* Files of the first versions do not say the type. */
static int model_check(struct json_reader *reader, const json_t *model)
{
    if (!json_is_object(model))
        return tokenizer_json_refuse(reader, BATON_EINVAL, "it has no model");
    const char *type = tokenizer_json_type(model);
    bool bpe = *type ? strcmp(type, "BPE") == 0 : json_object_get(model, "merges") != NULL;
    if (!bpe)
        return tokenizer_json_refuse(reader, BATON_EUNSUPPORTED,
                                     "its model is \"%.64s\"; only BPE is read", type);
    if (!string_is_empty(json_object_get(model, "continuing_subword_prefix")) ||
        !string_is_empty(json_object_get(model, "end_of_word_suffix")))
        return tokenizer_json_refuse(
            reader, BATON_EUNSUPPORTED,
            "its tokens have a prefix or suffix for their place in a word");
    return BATON_OK;
}

/* Before the index is made, so that merges cannot make it. */
static void unknown_read(struct json_reader *reader, const json_t *model)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    struct text_view name = string_view(json_object_get(model, "unk_token"));
    if (!name.bytes)
        return;
    const json_t *id =
        json_object_getn(json_object_get(model, "vocab"), name.bytes, name.length);
    if (!json_is_integer(id))
        return;
    tokenizer->unknown = (uint32_t)json_integer_value(id);
    if (vocabulary_kind(&tokenizer->vocabulary, tokenizer->unknown) == TOKEN_NORMAL)
        tokenizer->vocabulary.tokens[tokenizer->unknown].kind = TOKEN_UNKNOWN;
}

static int model_read(struct json_reader *reader, const json_t *model, const json_t *added)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    tokenizer->byte_fallback =
        !tokenizer->over_bytes && json_is_true(json_object_get(model, "byte_fallback"));
    tokenizer->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    tokenizer->whole_piece_first = json_is_true(json_object_get(model, "ignore_merges"));
    int rc = vocab_read(reader, json_object_get(model, "vocab"));
    if (!rc)
        rc = added_read(reader, added);
    if (rc)
        return rc;
    unknown_read(reader, model);
    rc = vocabulary_index(&tokenizer->vocabulary, reader->err);
    if (rc)
        return rc;
    tokenizer_find_bytes(tokenizer);
    return merges_read(reader, json_object_get(model, "merges"));
}

static int document_read(struct json_reader *reader, const json_t *document)
{
    const json_t *model = json_object_get(document, "model");
    int rc = model_check(reader, model);
    if (!rc)
        rc = tokenizer_json_normalizer(reader, json_object_get(document, "normalizer"));
    if (!rc)
        rc = tokenizer_json_splitter(reader, json_object_get(document, "pre_tokenizer"));
    if (!rc)
        rc = tokenizer_json_decoder(reader, json_object_get(document, "decoder"));
    if (!rc)
        rc = model_read(reader, model, json_object_get(document, "added_tokens"));
    return rc ? rc
              : tokenizer_json_template(reader, json_object_get(document, "post_processor"));
}

int tokenizer_read_json(struct tokenizer *tokenizer, const char *bytes, size_t size,
                        const char *path, struct error err)
{
    struct json_reader reader = {.path = path, .tokenizer = tokenizer, .err = err};
    json_error_t problem;
    if (size > JSON_BYTES_MAX)
        return tokenizer_json_refuse(&reader, BATON_ELIMIT, "%zu bytes; at most %u are read",
                                     size, JSON_BYTES_MAX);
    json_t *document = json_loadb(bytes, size, JSON_ALLOW_NUL, &problem);
    if (!document)
        return tokenizer_json_refuse(&reader, BATON_EINVAL, "bad JSON in line %d, byte %d",
                                     problem.line, problem.position);
    int rc = document_read(&reader, document);
    json_decref(document);
    return rc;
}

int tokenizer_open_json(const char *bytes, size_t size, const char *path,
                        struct tokenizer **out, struct error err)
{
    struct tokenizer *tokenizer;
    int rc = tokenizer_new(&tokenizer, err);
    if (rc)
        return rc;
    rc = tokenizer_read_json(tokenizer, bytes, size, path, err);
    if (!rc)
        rc = tokenizer_finish(tokenizer, err);
    if (rc) {
        tokenizer_close(tokenizer);
        return rc;
    }
    *out = tokenizer;
    return BATON_OK;
}
