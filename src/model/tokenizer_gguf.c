/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer out of the metadata of a GGUF file:
 *
 *   tokenizer.ggml.model            gpt2: BPE over bytes; llama: SentencePiece, by scores;
 *                                   gemma4: BPE over characters
 *   tokenizer.ggml.pre              how text is split: tokenizer_families.c
 *   tokenizer.ggml.tokens           texts by id; of gpt2 in letters that stand for bytes
 *   tokenizer.ggml.token_type       kinds by id, numbered as in FILE_KINDS
 *   tokenizer.ggml.scores           llama
 *   tokenizer.ggml.merges           gpt2, gemma4: "left right", the first is the strongest
 *   tokenizer.ggml.*_token_id, add_bos_token, add_eos_token, add_space_prefix */
#include "gguf.h"
#include "tokenizer_families.h"
#include "tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name
#define SPACE_LETTER "\xe2\x96\x81" /* U+2581, which stands for a space */

static const enum token_kind FILE_KINDS[] = {
    TOKEN_NORMAL,       TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL,
    TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE,
};

struct reader {
    const struct gguf *file;
    struct tokenizer *tokenizer;
    struct gguf_array types; /* count 0: the file has none */
    struct error err;
};

/* ---- optional values --------------------------------------------------------------------- */

/* Missing is fine, and leaves *out as it was; a value of the wrong type is not. */
static int optional_id(struct reader *reader, const char *key, uint32_t *out)
{
    int rc = gguf_get_u32(reader->file, key, out, reader->err);
    return rc == BATON_ENOTFOUND ? BATON_OK : rc;
}

static int optional_bool(struct reader *reader, const char *key, bool *out)
{
    int rc = gguf_get_bool(reader->file, key, out, reader->err);
    return rc == BATON_ENOTFOUND ? BATON_OK : rc;
}

/* ---- tokens ------------------------------------------------------------------------------ */

static enum token_kind token_kind_read(const struct reader *reader, uint64_t id)
{
    if (id >= reader->types.count)
        return TOKEN_NORMAL;
    int64_t type = gguf_array_integer(&reader->types, id);
    bool known = type >= 0 && type < (int64_t)(sizeof(FILE_KINDS) / sizeof(FILE_KINDS[0]));
    return known ? FILE_KINDS[type] : TOKEN_NORMAL;
}

static int token_read(struct reader *reader, uint32_t id, struct gguf_string text)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    enum token_kind kind = token_kind_read(reader, id);
    if (!reader->types.count && !tokenizer->over_bytes &&
        byte_token_value(text.bytes, text.length) >= 0)
        kind = TOKEN_BYTE;
    return tokenizer_set_token(tokenizer, id, (struct text_view){text.bytes, text.length}, kind,
                               (struct text_view){SPACE_LETTER, 3}, reader->err);
}

/* Files without kinds at least name their special tokens. */
static void named_tokens_mark(struct tokenizer *tokenizer)
{
    const uint32_t ids[] = {tokenizer->bos, tokenizer->eos, tokenizer->eot, tokenizer->unknown};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        if (ids[i] < tokenizer->vocabulary.count)
            tokenizer->vocabulary.tokens[ids[i]].kind = TOKEN_CONTROL;
    }
}

static int tokens_read(struct reader *reader)
{
    struct gguf_array array;
    struct gguf_string *texts;
    int rc = gguf_get_array(reader->file, KEY("tokens"), GGUF_STRING, &array, reader->err);
    if (!rc && array.count > VOCABULARY_TOKENS_MAX)
        rc = error_set(reader->err, BATON_EINVAL, "%s: %llu tokens; at most %u are read",
                       gguf_path(reader->file), (unsigned long long)array.count,
                       VOCABULARY_TOKENS_MAX);
    if (!rc && gguf_has(reader->file, KEY("token_type")))
        rc = gguf_get_array(reader->file, KEY("token_type"), GGUF_INT32, &reader->types,
                            reader->err);
    if (!rc)
        rc = gguf_array_strings(&array, &texts, reader->err);
    if (rc)
        return rc;
    for (uint32_t id = 0; id < array.count && !rc; id++)
        rc = token_read(reader, id, texts[id]);
    free(texts);
    if (!rc && !reader->types.count)
        named_tokens_mark(reader->tokenizer);
    return rc ? rc : vocabulary_index(&reader->tokenizer->vocabulary, reader->err);
}

static int added_read(struct reader *reader)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    int rc = BATON_OK;
    for (uint32_t id = 0; id < tokenizer->vocabulary.count && !rc; id++) {
        struct text_view text = vocabulary_key(&tokenizer->vocabulary, id);
        struct added_token token = {.id = id, .control = tokenizer_is_control(tokenizer, id)};
        if (tokenizer_is_special(tokenizer, id) && text.length)
            rc = added_tokens_add(&tokenizer->added, text.bytes, text.length, token,
                                  reader->err);
    }
    return rc;
}

/* ---- merges ------------------------------------------------------------------------------ */

static int merge_read(struct reader *reader, struct gguf_string merge, uint32_t rank)
{
    char reason[128];
    const char *space =
        merge.length > 1 ? memchr(merge.bytes + 1, ' ', merge.length - 1) : NULL;
    if (!space)
        return error_set(reader->err, BATON_EINVAL, "%s: merge %u is not two tokens",
                         gguf_path(reader->file), rank);
    struct text_view left = {merge.bytes, (size_t)(space - merge.bytes)};
    struct text_view right = {space + 1, merge.length - left.length - 1};
    int rc = tokenizer_add_merge(reader->tokenizer, left, right, rank, ERROR_BUFFER(reason));
    return rc ? error_set(reader->err, rc, "%s: merge %u: %s", gguf_path(reader->file), rank,
                          reason)
              : BATON_OK;
}

static int merges_read(struct reader *reader)
{
    struct gguf_array array;
    struct gguf_string *texts;
    int rc = gguf_get_array(reader->file, KEY("merges"), GGUF_STRING, &array, reader->err);
    if (!rc && array.count >= MERGE_RANK_NONE)
        rc = error_set(reader->err, BATON_EINVAL, "%s: too many merges",
                       gguf_path(reader->file));
    if (!rc)
        rc = merges_init(&reader->tokenizer->merges, (size_t)array.count, reader->err);
    if (!rc)
        rc = gguf_array_strings(&array, &texts, reader->err);
    if (rc)
        return rc;
    for (uint32_t rank = 0; rank < array.count && !rc; rank++)
        rc = merge_read(reader, texts[rank], rank);
    free(texts);
    return rc;
}

static int scores_read(struct reader *reader)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    struct gguf_array array;
    size_t count = tokenizer->vocabulary.count;
    int rc = gguf_get_array(reader->file, KEY("scores"), GGUF_FLOAT32, &array, reader->err);
    if (!rc && array.count != count)
        rc = error_set(reader->err, BATON_EINVAL, "%s: %zu tokens, but %llu scores",
                       gguf_path(reader->file), count, (unsigned long long)array.count);
    if (!rc)
        rc = merges_init(&tokenizer->merges, 2 * count, reader->err);
    if (rc)
        return rc;
    float *scores = calloc(count + 1, sizeof(*scores));
    if (!scores)
        return error_set(reader->err, BATON_ENOMEM, "out of memory for %zu scores", count);
    for (size_t id = 0; id < count; id++)
        scores[id] = (float)gguf_array_float(&array, id);
    rc = merges_from_scores(&tokenizer->merges, &tokenizer->vocabulary, scores, reader->err);
    free(scores);
    return rc;
}

/* ---- splitting and normalizing ----------------------------------------------------------- */

static int split_by(struct reader *reader, const char *pattern)
{
    struct split_step step = {.kind = SPLIT_BY_PATTERN, .behavior = SPLIT_ISOLATED};
    int rc = pattern_open(pattern, strlen(pattern), &step.pattern, reader->err);
    if (!rc && splitter_add(&reader->tokenizer->splitter, &step))
        rc = error_set(reader->err, BATON_ENOMEM, "out of memory for a pattern");
    return rc;
}

static int normalize_by(struct reader *reader, struct normalizer_step step, const char *text,
                        const char *content)
{
    if (byte_buffer_append(&step.text, text, strlen(text)) ||
        byte_buffer_append(&step.content, content, strlen(content)) ||
        normalizer_add(&reader->tokenizer->normalizer, &step)) {
        normalizer_step_free(&step);
        return error_set(reader->err, BATON_ENOMEM, "out of memory for a tokenizer");
    }
    return BATON_OK;
}

static int family_read(struct reader *reader, bool *adds_bos)
{
    struct gguf_string name = {"", 0};
    int rc = gguf_get_string(reader->file, KEY("pre"), &name, reader->err);
    if (rc && rc != BATON_ENOTFOUND)
        return rc;
    const struct tokenizer_family *family = tokenizer_family_find(name.bytes, name.length);
    if (!family)
        return error_set(reader->err, BATON_EUNSUPPORTED,
                         "%s: its text is split the way of \"%.*s\" (tokenizer.ggml.pre), "
                         "which is not known here",
                         gguf_path(reader->file), name.length < 64 ? (int)name.length : 64,
                         name.bytes);
    reader->tokenizer->whole_piece_first = family->whole_piece_first;
    *adds_bos = family->adds_bos;
    rc = BATON_OK;
    for (size_t i = 0; i < FAMILY_PATTERNS_MAX && family->patterns[i] && !rc; i++)
        rc = split_by(reader, family->patterns[i]);
    if (!rc && family->composes)
        rc = normalize_by(
            reader, (struct normalizer_step){.kind = NORMALIZER_FORM, .form = UNICODE_NFC}, "",
            "");
    return rc;
}

/* ---- the kinds of models ----------------------------------------------------------------- */

static int bytes_model_read(struct reader *reader, bool *adds_bos)
{
    reader->tokenizer->over_bytes = true;
    reader->tokenizer->unknown = TOKEN_NONE; /* a byte without a token is dropped */
    int rc = family_read(reader, adds_bos);
    if (!rc)
        rc = tokens_read(reader);
    if (!rc)
        rc = added_read(reader);
    return rc ? rc : merges_read(reader);
}

static int characters_model_read(struct reader *reader, bool add_prefix)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    tokenizer->byte_fallback = true;
    tokenizer->fuse_unknown = true;
    int rc = optional_bool(reader, KEY("add_space_prefix"), &add_prefix);
    tokenizer->drop_first_space = add_prefix;
    if (!rc && add_prefix)
        rc = normalize_by(reader, (struct normalizer_step){.kind = NORMALIZER_PREPEND},
                          SPACE_LETTER, "");
    if (!rc)
        rc = normalize_by(reader, (struct normalizer_step){.kind = NORMALIZER_REPLACE}, " ",
                          SPACE_LETTER);
    if (!rc)
        rc = tokens_read(reader);
    return rc ? rc : added_read(reader);
}

static int model_read(struct reader *reader, bool *adds_bos)
{
    struct gguf_string model;
    int rc = gguf_get_string(reader->file, KEY("model"), &model, reader->err);
    if (rc)
        return rc;
    if (gguf_string_equal(model, "gpt2"))
        return bytes_model_read(reader, adds_bos);
    *adds_bos = true;
    if (gguf_string_equal(model, "llama")) {
        rc = characters_model_read(reader, true);
        return rc ? rc : scores_read(reader);
    }
    if (gguf_string_equal(model, "gemma4")) {
        rc = split_by(reader, "[^\\n]+|[\\n]+");
        if (!rc)
            rc = characters_model_read(reader, false);
        return rc ? rc : merges_read(reader);
    }
    return error_set(reader->err, BATON_EUNSUPPORTED,
                     "%s: its tokenizer is \"%.*s\"; gpt2 and llama are read",
                     gguf_path(reader->file), model.length < 64 ? (int)model.length : 64,
                     model.bytes);
}

static int ids_read(struct reader *reader)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    int rc = optional_id(reader, KEY("bos_token_id"), &tokenizer->bos);
    if (!rc)
        rc = optional_id(reader, KEY("eos_token_id"), &tokenizer->eos);
    if (!rc)
        rc = optional_id(reader, KEY("eot_token_id"), &tokenizer->eot);
    return rc ? rc : optional_id(reader, KEY("unknown_token_id"), &tokenizer->unknown);
}

static int around_read(struct reader *reader, bool adds_bos)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    bool adds_eos = false;
    uint32_t end_of_message = TOKEN_NONE;
    int rc = optional_bool(reader, KEY("add_bos_token"), &adds_bos);
    if (!rc)
        rc = optional_bool(reader, KEY("add_eos_token"), &adds_eos);
    if (!rc)
        rc = optional_id(reader, KEY("eom_token_id"), &end_of_message);
    if (!rc)
        rc = tokenizer_add_end(tokenizer, end_of_message, reader->err);
    if (!rc)
        rc = tokenizer_finish(tokenizer, reader->err);
    if (rc)
        return rc;
    if ((adds_bos && tokenizer->bos != TOKEN_NONE &&
         token_list_append(&tokenizer->prefix, tokenizer->bos)) ||
        (adds_eos && tokenizer->eos != TOKEN_NONE &&
         token_list_append(&tokenizer->suffix, tokenizer->eos)))
        return error_set(reader->err, BATON_ENOMEM, "out of memory for a tokenizer");
    return BATON_OK;
}

int tokenizer_open_gguf(const struct gguf *file, struct tokenizer **out, struct error err)
{
    struct reader reader = {.file = file, .err = err};
    bool adds_bos = false;
    int rc = tokenizer_new(&reader.tokenizer, err);
    if (rc)
        return rc;
    rc = ids_read(&reader);
    if (!rc)
        rc = model_read(&reader, &adds_bos);
    if (!rc)
        tokenizer_find_bytes(reader.tokenizer);
    if (!rc)
        rc = around_read(&reader, adds_bos);
    if (rc) {
        tokenizer_close(reader.tokenizer);
        return rc;
    }
    *out = reader.tokenizer;
    return BATON_OK;
}
