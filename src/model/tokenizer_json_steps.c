/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a tokenizer.json around its model: each is an object with a "type", or a "Sequence"
 * of them. A type that is not known is refused by its name: leaving a step out would give wrong
 * tokens, and nobody would notice.
 *
 * Most types of pre-tokenizers are patterns by another name, and are read as such. */
#include "tokenizer_families.h"
#include "tokenizer_json.h"

#include <string.h>

#define SEQUENCE_DEPTH_MAX 8

typedef int step_reader(struct json_reader *reader, const json_t *step);

static int out_of_memory(struct json_reader *reader)
{
    return tokenizer_json_refuse(reader, BATON_ENOMEM, "out of memory for a tokenizer");
}

/* Calls `read` for the step, or for each one of a sequence, in their order. */
static int steps_read(struct json_reader *reader, const json_t *json, const char *list,
                      step_reader *read, int depth)
{
    if (!json || json_is_null(json))
        return BATON_OK;
    if (strcmp(tokenizer_json_type(json), "Sequence") != 0)
        return read(reader, json);
    const json_t *steps = json_object_get(json, list), *step;
    size_t index;
    int rc = BATON_OK;
    if (!json_is_array(steps) || depth == SEQUENCE_DEPTH_MAX)
        return tokenizer_json_refuse(reader, BATON_EINVAL,
                                     "a sequence without \"%s\", or too deep", list);
    json_array_foreach(steps, index, step)
    {
        if (!rc)
            rc = steps_read(reader, step, list, read, depth + 1);
    }
    return rc;
}

static bool is_type(const json_t *step, const char *type)
{
    return strcmp(tokenizer_json_type(step), type) == 0;
}

static int unknown_type(struct json_reader *reader, const json_t *step, const char *what)
{
    return tokenizer_json_refuse(reader, BATON_EUNSUPPORTED,
                                 "%s of type \"%.64s\" is not known here", what,
                                 tokenizer_json_type(step));
}

/* {"String": "x"} or {"Regex": "x"} */
static int pattern_read(struct json_reader *reader, const json_t *json, struct pattern **out)
{
    const json_t *text = json_object_get(json, "String");
    const json_t *regex = json_object_get(json, "Regex");
    char reason[400];
    int rc;
    if (!json_is_string(text) && !json_is_string(regex))
        return tokenizer_json_refuse(reader, BATON_EINVAL,
                                     "a pattern is neither String nor Regex");
    if (json_is_string(text))
        rc = pattern_open_literal(json_string_value(text), json_string_length(text), out,
                                  ERROR_BUFFER(reason));
    else
        rc = pattern_open(json_string_value(regex), json_string_length(regex), out,
                          ERROR_BUFFER(reason));
    return rc ? error_set(reader->err, rc, "%s: %s", reader->path, reason) : BATON_OK;
}

/* ---- normalizer -------------------------------------------------------------------------- */

static int normalizer_put(struct json_reader *reader, struct normalizer_step *step)
{
    return normalizer_add(&reader->tokenizer->normalizer, step) ? out_of_memory(reader)
                                                                : BATON_OK;
}

static int string_copy(struct json_reader *reader, const json_t *string,
                       struct byte_buffer *out)
{
    if (!json_is_string(string))
        return tokenizer_json_refuse(reader, BATON_EINVAL, "a normalizer lacks a string");
    return byte_buffer_append(out, json_string_value(string), json_string_length(string))
               ? out_of_memory(reader)
               : BATON_OK;
}

static int replace_read(struct json_reader *reader, const json_t *json)
{
    struct normalizer_step step = {.kind = NORMALIZER_REPLACE};
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *text = json_object_get(pattern, "String");
    int rc = string_copy(reader, json_object_get(json, "content"), &step.content);
    if (!rc && json_is_string(text) && json_string_length(text))
        rc = string_copy(reader, text, &step.text);
    else if (!rc)
        rc = pattern_read(reader, pattern, &step.pattern);
    if (!rc)
        return normalizer_put(reader, &step);
    normalizer_step_free(&step);
    return rc;
}

static int prepend_read(struct json_reader *reader, const json_t *json)
{
    struct normalizer_step step = {.kind = NORMALIZER_PREPEND};
    int rc = string_copy(reader, json_object_get(json, "prepend"), &step.text);
    if (!rc)
        return normalizer_put(reader, &step);
    normalizer_step_free(&step);
    return rc;
}

static int normalizer_read(struct json_reader *reader, const json_t *json)
{
    static const struct {
        const char *type;
        enum unicode_form form;
    } forms[] = {{"NFC", UNICODE_NFC},
                 {"NFD", UNICODE_NFD},
                 {"NFKC", UNICODE_NFKC},
                 {"NFKD", UNICODE_NFKD}};
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct normalizer_step step = {.kind = NORMALIZER_FORM, .form = forms[i].form};
        if (is_type(json, forms[i].type))
            return normalizer_put(reader, &step);
    }
    if (is_type(json, "Replace"))
        return replace_read(reader, json);
    if (is_type(json, "Prepend"))
        return prepend_read(reader, json);
    if (is_type(json, "Strip")) {
        struct normalizer_step step = {
            .kind = NORMALIZER_STRIP,
            .left = !json_is_false(json_object_get(json, "strip_left")),
            .right = !json_is_false(json_object_get(json, "strip_right"))};
        return normalizer_put(reader, &step);
    }
    return unknown_type(reader, json, "a normalizer");
}

int tokenizer_json_normalizer(struct json_reader *reader, const json_t *json)
{
    return steps_read(reader, json, "normalizers", normalizer_read, 0);
}

/* ---- pre-tokenizer ----------------------------------------------------------------------- */

static int split_put(struct json_reader *reader, struct split_step *step)
{
    return splitter_add(&reader->tokenizer->splitter, step) ? out_of_memory(reader) : BATON_OK;
}

static int split_put_regex(struct json_reader *reader, const char *regex,
                           enum split_behavior behavior, bool inverted)
{
    struct split_step step = {
        .kind = SPLIT_BY_PATTERN, .behavior = behavior, .inverted = inverted};
    int rc = pattern_open(regex, strlen(regex), &step.pattern, reader->err);
    return rc ? rc : split_put(reader, &step);
}

static int split_put_letter(struct json_reader *reader, enum split_kind kind,
                            const char *letter, bool first_only)
{
    struct split_step step = {.kind = kind, .first_only = first_only};
    if (!letter || !*letter || strlen(letter) >= sizeof(step.prefix))
        return tokenizer_json_refuse(reader, BATON_EINVAL,
                                     "the replacement of a space is not a letter");
    memcpy(step.prefix, letter, strlen(letter) + 1);
    return split_put(reader, &step);
}

static int behavior_read(struct json_reader *reader, const json_t *json,
                         enum split_behavior *out)
{
    static const struct {
        const char *name;
        enum split_behavior behavior;
    } names[] = {{"Isolated", SPLIT_ISOLATED},
                 {"Removed", SPLIT_REMOVED},
                 {"MergedWithPrevious", SPLIT_MERGED_WITH_PREVIOUS},
                 {"MergedWithNext", SPLIT_MERGED_WITH_NEXT},
                 {"Contiguous", SPLIT_CONTIGUOUS}};
    const char *name = json_string_value(json_object_get(json, "behavior"));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (name && strcmp(names[i].name, name) == 0) {
            *out = names[i].behavior;
            return BATON_OK;
        }
    }
    return tokenizer_json_refuse(reader, BATON_EINVAL,
                                 "a split of behavior \"%.64s\" is not known here",
                                 name ? name : "");
}

static int split_read(struct json_reader *reader, const json_t *json)
{
    struct split_step step = {.kind = SPLIT_BY_PATTERN,
                              .inverted = json_is_true(json_object_get(json, "invert"))};
    int rc = behavior_read(reader, json, &step.behavior);
    if (!rc)
        rc = pattern_read(reader, json_object_get(json, "pattern"), &step.pattern);
    return rc ? rc : split_put(reader, &step);
}

static int byte_level_read(struct json_reader *reader, const json_t *json)
{
    int rc = BATON_OK;
    reader->tokenizer->over_bytes = true;
    if (json_is_true(json_object_get(json, "add_prefix_space")))
        rc = split_put_letter(reader, SPLIT_PREFIX, " ", false);
    if (!rc && !json_is_false(json_object_get(json, "use_regex")))
        rc = split_put_regex(reader, PATTERN_GPT2, SPLIT_ISOLATED, false);
    return rc;
}

/* Files of older versions say add_prefix_space instead of prepend_scheme. */
static const char *metaspace_scheme(const json_t *json)
{
    const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    if (scheme)
        return scheme;
    return json_is_false(json_object_get(json, "add_prefix_space")) ? "never" : "always";
}

static int metaspace_read(struct json_reader *reader, const json_t *json)
{
    const char *letter = json_string_value(json_object_get(json, "replacement"));
    const char *scheme = metaspace_scheme(json);
    int rc = split_put_letter(reader, SPLIT_SPACES, letter, false);
    if (!rc && strcmp(scheme, "never") != 0)
        rc = split_put_letter(reader, SPLIT_PREFIX, letter, strcmp(scheme, "first") == 0);
    if (rc || json_is_false(json_object_get(json, "split")))
        return rc;
    struct split_step step = {.kind = SPLIT_BY_PATTERN, .behavior = SPLIT_MERGED_WITH_NEXT};
    rc = pattern_open_literal(letter, strlen(letter), &step.pattern, reader->err);
    return rc ? rc : split_put(reader, &step);
}

static int splitter_read(struct json_reader *reader, const json_t *json)
{
    if (reader->tokenizer->over_bytes)
        return tokenizer_json_refuse(
            reader, BATON_EUNSUPPORTED,
            "a pre-tokenizer comes after ByteLevel, and would split letters "
            "that stand for bytes");
    if (is_type(json, "ByteLevel"))
        return byte_level_read(reader, json);
    if (is_type(json, "Split"))
        return split_read(reader, json);
    if (is_type(json, "Metaspace"))
        return metaspace_read(reader, json);
    if (is_type(json, "Digits"))
        return split_put_regex(reader, "\\p{N}",
                               json_is_true(json_object_get(json, "individual_digits"))
                                   ? SPLIT_ISOLATED
                                   : SPLIT_CONTIGUOUS,
                               false);
    if (is_type(json, "Whitespace"))
        return split_put_regex(reader, "\\w+|[^\\w\\s]+", SPLIT_REMOVED, true);
    if (is_type(json, "WhitespaceSplit"))
        return split_put_regex(reader, "\\s", SPLIT_REMOVED, false);
    if (is_type(json, "Punctuation")) {
        enum split_behavior behavior = SPLIT_ISOLATED;
        int rc = json_object_get(json, "behavior") ? behavior_read(reader, json, &behavior)
                                                   : BATON_OK;
        return rc ? rc : split_put_regex(reader, "[!-/:-@\\[-`{-~\\p{P}]", behavior, false);
    }
    return unknown_type(reader, json, "a pre-tokenizer");
}

int tokenizer_json_splitter(struct json_reader *reader, const json_t *json)
{
    return steps_read(reader, json, "pretokenizers", splitter_read, 0);
}

/* ---- decoder ----------------------------------------------------------------------------- */

static int space_letter_read(struct json_reader *reader, const json_t *letter)
{
    size_t length = json_string_length(letter);
    if (!length || length >= sizeof(reader->space_letter))
        return tokenizer_json_refuse(
            reader, BATON_EUNSUPPORTED,
            "its decoder replaces something else than a letter by a space");
    memcpy(reader->space_letter, json_string_value(letter), length);
    return BATON_OK;
}

static int decoder_replace_read(struct json_reader *reader, const json_t *json)
{
    const char *content = json_string_value(json_object_get(json, "content"));
    const json_t *pattern = json_object_get(json, "pattern");
    if (!content || strcmp(content, " ") != 0)
        return tokenizer_json_refuse(
            reader, BATON_EUNSUPPORTED,
            "its decoder replaces text by something else than a space");
    return space_letter_read(reader, json_object_get(pattern, "String"));
}

static int decoder_strip_read(struct json_reader *reader, const json_t *json)
{
    const char *content = json_string_value(json_object_get(json, "content"));
    json_int_t start = json_integer_value(json_object_get(json, "start"));
    json_int_t stop = json_integer_value(json_object_get(json, "stop"));
    if (!content || strcmp(content, " ") != 0 || start < 0 || start > 1 || stop != 0)
        return tokenizer_json_refuse(reader, BATON_EUNSUPPORTED,
                                     "its decoder strips more than a space at the beginning");
    reader->tokenizer->drop_first_space = start == 1;
    return BATON_OK;
}

static int decoder_read(struct json_reader *reader, const json_t *json)
{
    if (is_type(json, "ByteLevel") || is_type(json, "ByteFallback") || is_type(json, "Fuse"))
        return BATON_OK; /* what we do anyway */
    if (is_type(json, "Replace"))
        return decoder_replace_read(reader, json);
    if (is_type(json, "Strip"))
        return decoder_strip_read(reader, json);
    if (is_type(json, "Metaspace")) {
        reader->tokenizer->drop_first_space = strcmp(metaspace_scheme(json), "never") != 0;
        return space_letter_read(reader, json_object_get(json, "replacement"));
    }
    return unknown_type(reader, json, "a decoder");
}

int tokenizer_json_decoder(struct json_reader *reader, const json_t *json)
{
    return steps_read(reader, json, "decoders", decoder_read, 0);
}

/* ---- post-processor ---------------------------------------------------------------------- */

static int around_put(struct json_reader *reader, struct token_list *list, const json_t *id)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= (json_int_t)reader->tokenizer->vocabulary.count)
        return tokenizer_json_refuse(reader, BATON_EINVAL,
                                     "its post-processor adds a token that it does not have");
    return token_list_append(list, (uint32_t)json_integer_value(id)) ? out_of_memory(reader)
                                                                     : BATON_OK;
}

/* {"SpecialToken": {"id": "<s>"}}: its ids are in the table of special tokens. */
static int special_put(struct json_reader *reader, const json_t *table, const json_t *special,
                       struct token_list *list)
{
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *ids = name ? json_object_get(json_object_get(table, name), "ids") : NULL;
    const json_t *id;
    size_t index;
    if (!json_is_array(ids))
        return tokenizer_json_refuse(
            reader, BATON_EINVAL,
            "its post-processor names a special token that it does not define");
    int rc = BATON_OK;
    json_array_foreach(ids, index, id)
    {
        if (!rc)
            rc = around_put(reader, list, id);
    }
    return rc;
}

static int template_read(struct json_reader *reader, const json_t *json)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    const json_t *pieces = json_object_get(json, "single"), *piece;
    const json_t *table = json_object_get(json, "special_tokens");
    struct token_list *list = &tokenizer->prefix;
    size_t index;
    if (!json_is_array(pieces))
        return tokenizer_json_refuse(reader, BATON_EUNSUPPORTED,
                                     "its post-processor has no template for a single text");
    int rc = BATON_OK;
    json_array_foreach(pieces, index, piece)
    {
        if (json_object_get(piece, "Sequence"))
            list = &tokenizer->suffix;
        else if (!rc)
            rc = special_put(reader, table, json_object_get(piece, "SpecialToken"), list);
    }
    return rc;
}

/* {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]} */
static int pair_read(struct json_reader *reader, const json_t *json)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    int rc =
        around_put(reader, &tokenizer->prefix, json_array_get(json_object_get(json, "cls"), 1));
    return rc ? rc
              : around_put(reader, &tokenizer->suffix,
                           json_array_get(json_object_get(json, "sep"), 1));
}

static int post_processor_read(struct json_reader *reader, const json_t *json)
{
    if (is_type(json, "ByteLevel"))
        return BATON_OK; /* it is about offsets */
    if (is_type(json, "TemplateProcessing"))
        return template_read(reader, json);
    if (is_type(json, "RobertaProcessing") || is_type(json, "BertProcessing"))
        return pair_read(reader, json);
    return unknown_type(reader, json, "a post-processor");
}

int tokenizer_json_template(struct json_reader *reader, const json_t *json)
{
    return steps_read(reader, json, "processors", post_processor_read, 0);
}
