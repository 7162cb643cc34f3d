/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens and merges as files spell them. What is read from GGUF and what is read from JSON meets
 * here, so that both give the same tokenizer. */
#include "tokenizer_state.h"

#include <string.h>

/* GPT-2's alphabet: bytes that print in Latin-1 are their own letters, and the others, in
 * order, are the letters from U+0100 on. */
static int letter_to_byte(uint32_t letter)
{
    bool own = (letter >= 0x21 && letter <= 0x7e) || (letter >= 0xa1 && letter <= 0xac) ||
               (letter >= 0xae && letter <= 0xff);
    if (letter < 0x100)
        return own ? (int)letter : -1;
    letter -= 0x100;
    if (letter <= 0x20) /* 00..20 */
        return (int)letter;
    if (letter <= 0x42) /* 7f..a0 */
        return (int)(letter - 0x21 + 0x7f);
    return letter == 0x43 ? 0xad : -1;
}

bool byte_letters_decode(const char *text, size_t length, struct byte_buffer *out)
{
    size_t before = out->length, size;
    uint32_t letter;
    for (size_t i = 0; i < length; i += size) {
        int byte = -1;
        if (utf8_next(text + i, length - i, &size, &letter) == UTF8_WHOLE)
            byte = letter_to_byte(letter);
        char c = (char)byte;
        if (byte < 0 || byte_buffer_append(out, &c, 1)) {
            out->length = before;
            return false;
        }
    }
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int byte_token_value(const char *text, size_t length)
{
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* ---- tokens ------------------------------------------------------------------------------ */

static int set_over_bytes(struct tokenizer *tokenizer, uint32_t id, struct text_view text,
                          enum token_kind kind, struct error err)
{
    bool spelled = kind == TOKEN_NORMAL || kind == TOKEN_UNUSED || kind == TOKEN_BYTE;
    tokenizer->scratch.length = 0;
    if (spelled && byte_letters_decode(text.bytes, text.length, &tokenizer->scratch))
        text = (struct text_view){tokenizer->scratch.bytes, tokenizer->scratch.length};
    else if (kind == TOKEN_NORMAL)
        kind = TOKEN_UNUSED;
    return vocabulary_set(&tokenizer->vocabulary, id, text.bytes, text.length, kind, err);
}

static int spaces_restore(struct byte_buffer *out, struct text_view text,
                          struct text_view space_letter)
{
    out->length = 0;
    for (size_t i = 0; i < text.length;) {
        bool space = space_letter.length && text.length - i >= space_letter.length &&
                     memcmp(text.bytes + i, space_letter.bytes, space_letter.length) == 0;
        if (byte_buffer_append(out, space ? " " : text.bytes + i, 1))
            return BATON_ENOMEM;
        i += space ? space_letter.length : 1;
    }
    return BATON_OK;
}

int tokenizer_set_token(struct tokenizer *tokenizer, uint32_t id, struct text_view text,
                        enum token_kind kind, struct text_view space_letter, struct error err)
{
    struct vocabulary *vocabulary = &tokenizer->vocabulary;
    struct byte_buffer *output = &tokenizer->scratch;
    if (tokenizer->over_bytes)
        return set_over_bytes(tokenizer, id, text, kind, err);
    int byte = byte_token_value(text.bytes, text.length);
    if (kind == TOKEN_BYTE && byte < 0)
        kind = TOKEN_UNUSED;
    int rc = vocabulary_set(vocabulary, id, text.bytes, text.length, kind, err);
    if (rc || kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN)
        return rc;
    if (kind == TOKEN_BYTE) {
        char c = (char)byte;
        return vocabulary_set_output(vocabulary, id, &c, 1, err);
    }
    if (spaces_restore(output, text, space_letter))
        return error_set(err, BATON_ENOMEM, "out of memory for a token");
    return vocabulary_set_output(vocabulary, id, output->bytes, output->length, err);
}

void tokenizer_find_bytes(struct tokenizer *tokenizer)
{
    const struct vocabulary *vocabulary = &tokenizer->vocabulary;
    for (unsigned byte = 0; byte < 256 && tokenizer->over_bytes; byte++) {
        char c = (char)byte;
        tokenizer->byte_ids[byte] = vocabulary_find(vocabulary, &c, 1);
    }
    for (uint32_t id = 0; id < vocabulary->count && !tokenizer->over_bytes; id++) {
        struct text_view output = vocabulary_output(vocabulary, id);
        if (vocabulary_kind(vocabulary, id) != TOKEN_BYTE || output.length != 1)
            continue;
        uint8_t byte = (uint8_t)output.bytes[0];
        if (tokenizer->byte_ids[byte] == TOKEN_NONE)
            tokenizer->byte_ids[byte] = id;
    }
}

/* ---- merges ------------------------------------------------------------------------------ */

/* Both halves one behind the other in the scratch buffer, as keys of the vocabulary. */
static int halves_read(struct tokenizer *tokenizer, struct text_view left,
                       struct text_view right, size_t *left_length, struct error err)
{
    struct byte_buffer *both = &tokenizer->scratch;
    both->length = 0;
    if (!left.length || !right.length)
        return error_set(err, BATON_EINVAL, "one of its halves is empty");
    if (tokenizer->over_bytes) {
        if (!byte_letters_decode(left.bytes, left.length, both))
            return error_set(err, BATON_EINVAL, "its first half is not spelled in bytes");
        *left_length = both->length;
        if (!byte_letters_decode(right.bytes, right.length, both))
            return error_set(err, BATON_EINVAL, "its second half is not spelled in bytes");
        return BATON_OK;
    }
    *left_length = left.length;
    if (byte_buffer_append(both, left.bytes, left.length) ||
        byte_buffer_append(both, right.bytes, right.length))
        return error_set(err, BATON_ENOMEM, "out of memory for a merge");
    return BATON_OK;
}

int tokenizer_add_merge(struct tokenizer *tokenizer, struct text_view left,
                        struct text_view right, uint32_t rank, struct error err)
{
    const struct vocabulary *vocabulary = &tokenizer->vocabulary;
    const struct byte_buffer *both = &tokenizer->scratch;
    size_t cut = 0;
    int rc = halves_read(tokenizer, left, right, &cut, err);
    if (rc)
        return rc;
    uint32_t left_id = vocabulary_find(vocabulary, both->bytes, cut);
    uint32_t right_id = vocabulary_find(vocabulary, both->bytes + cut, both->length - cut);
    uint32_t result = vocabulary_find(vocabulary, both->bytes, both->length);
    if (left_id != TOKEN_NONE && right_id != TOKEN_NONE && result != TOKEN_NONE) {
        rc = merges_add(&tokenizer->merges, left_id, right_id, rank, result);
        return rc ? error_set(err, rc, "out of memory for a merge") : BATON_OK;
    }
    uint32_t named = vocabulary_find_name(vocabulary, both->bytes, both->length);
    if (tokenizer_is_control(tokenizer, named))
        return BATON_OK;
    return error_set(err, BATON_EINVAL, "%s no token of the vocabulary",
                     left_id == TOKEN_NONE    ? "its first half is"
                     : right_id == TOKEN_NONE ? "its second half is"
                                              : "its halves together are");
}
