/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever is in a tokenizer.json or in the metadata of a GGUF file, it is refused with a reason or
 * read; and what was read encodes any text: every id is one of the vocabulary, no control token
 * comes out of text that may not hold one, and the way back gives whole characters, the same
 * token by token as all at once.
 *
 * An input is a file, and behind a line "---" a text to encode:
 *
 *   {"model": {"type": "BPE", ...}}        or the bytes of a GGUF file
 *   ---
 *   Hello */
#include "model/detokenizer.h"
#include "model/gguf.h"
#include "model/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATOR "\n---\n"
#define TEXT_MAX 512 /* a pattern of the file may be as slow as it likes; see MATCH_LIMIT */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_tokenizer: %s\n", what);
    abort();
}

static void decode_check(struct tokenizer *tokenizer, const struct token_list *list)
{
    struct byte_buffer all = {0}, stream = {0};
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, tokenizer, DETOKENIZER_SHOW_CONTROL);
    for (size_t i = 0; i < list->count; i++) {
        size_t before = stream.length;
        require(!detokenizer_push(&detokenizer, list->ids[i], &stream), "out of memory");
        size_t part = stream.length - before;
        require(!part || utf8_valid_prefix(stream.bytes + before, part) == part,
                "a part of a character came out");
    }
    require(!detokenizer_flush(&detokenizer, &stream), "out of memory");
    require(
        !detokenizer_decode(tokenizer, list->ids, list->count, DETOKENIZER_SHOW_CONTROL, &all),
        "out of memory");
    require(all.length == stream.length &&
                (!all.length || memcmp(all.bytes, stream.bytes, all.length) == 0),
            "token by token is not the same as all at once");
    byte_buffer_free(&all);
    byte_buffer_free(&stream);
}

static void text_try(struct tokenizer *tokenizer, const char *text, size_t length,
                     uint32_t flags)
{
    struct token_list list = {0};
    char reason[256] = "";
    int rc = tokenizer_encode(tokenizer, text, length, flags, &list, ERROR_BUFFER(reason));
    require(rc == BATON_OK || (rc == BATON_ELIMIT && *reason && !list.count),
            "a text was refused without a reason");
    for (size_t i = 0; i < list.count; i++) {
        require(list.ids[i] < tokenizer_vocabulary_size(tokenizer), "an id is no token");
        require(flags || !tokenizer_is_control(tokenizer, list.ids[i]) ||
                    list.ids[i] == tokenizer->unknown,
                "text became a control token");
    }
    decode_check(tokenizer, &list);
    token_list_free(&list);
}

static void tokenizer_try(struct tokenizer *tokenizer, const char *text, size_t length)
{
    size_t count;
    const uint32_t *ends = tokenizer_ends(tokenizer, &count);
    for (size_t i = 0; i < count; i++)
        require(ends[i] < tokenizer_vocabulary_size(tokenizer), "an end is no token");
    text_try(tokenizer, text, length, 0);
    text_try(tokenizer, text, length, TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL);
}

static int file_open(const char *file, size_t size, struct tokenizer **tokenizer,
                     struct error err)
{
    struct gguf *gguf;
    if (size < 4 || memcmp(file, "GGUF", 4) != 0)
        return tokenizer_open_json(file, size, "input", tokenizer, err);
    int rc = gguf_parse((const uint8_t *)file, size, "input", &gguf, err);
    if (rc)
        return rc;
    rc = tokenizer_open_gguf(gguf, tokenizer, err);
    gguf_close(gguf);
    return rc;
}

/* The last one: a GGUF file may hold anything. */
static const char *separator_find(const char *bytes, size_t size)
{
    const char *found = NULL, *at = bytes;
    while ((at = memmem(at, size - (size_t)(at - bytes), SEPARATOR, strlen(SEPARATOR))))
        found = at++;
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *tokenizer = NULL;
    char reason[1024] = "";
    if (!size)
        return 0;
    const char *bytes = (const char *)data, *separator = separator_find(bytes, size);
    size_t file_size = separator ? (size_t)(separator - bytes) : size;
    const char *text = separator ? separator + strlen(SEPARATOR) : "ab <s> 1 \xe2\x82\xac \xff";
    size_t length = separator ? size - file_size - strlen(SEPARATOR) : strlen(text);
    int rc = file_open(bytes, file_size, &tokenizer, ERROR_BUFFER(reason));
    require(rc == BATON_OK ? tokenizer != NULL : *reason && !tokenizer,
            "a file was neither read nor refused with a reason");
    if (rc)
        return 0;
    tokenizer_try(tokenizer, text, length < TEXT_MAX ? length : TEXT_MAX);
    tokenizer_close(tokenizer);
    return 0;
}
