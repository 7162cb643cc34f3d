/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming decoding. Two rules for bytes that are no text, both those of Hugging Face's library:
 *
 *   over bytes         the longest beginning of a character, or else one byte, becomes one
 *                      U+FFFD (Rust's from_utf8_lossy);
 *   byte fallback      every byte token that is not part of a whole character becomes one.
 *
 * Two things are done otherwise. When one byte token of a run is broken, Hugging Face replaces every
 * byte of the run, also those of whole characters; a stream has long sent those, so they stay,
 * as in SentencePiece. And over bytes Hugging Face takes the letters of a user-defined token for
 * bytes where it can, so that "é" comes back as a broken byte; here it comes back as "é". */
#include "detokenizer.h"

#include <string.h>

#define CHUNK 256 /* bytes of a token that are looked at in one go */

void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer,
                      uint32_t flags)
{
    *detokenizer = (struct detokenizer){
        .tokenizer = tokenizer,
        .show_control = flags & DETOKENIZER_SHOW_CONTROL,
        .at_start = !(flags & DETOKENIZER_CONTINUES) && tokenizer_drops_first_space(tokenizer),
    };
}

/* The output has room; see detokenizer_push. */
static void text_put(struct detokenizer *detokenizer, const char *text, size_t length,
                     struct byte_buffer *out)
{
    bool drop = detokenizer->at_start && length && text[0] == ' ';
    detokenizer->at_start = detokenizer->at_start && !length;
    memcpy(out->bytes + out->length, text + drop, length - drop);
    out->length += length - drop;
}

static void broken_put(struct detokenizer *detokenizer, size_t size, struct byte_buffer *out)
{
    size_t count = tokenizer_over_bytes(detokenizer->tokenizer) ? 1 : size;
    while (count--)
        text_put(detokenizer, UNICODE_REPLACEMENT, UNICODE_REPLACEMENT_SIZE, out);
}

/* Whole and broken characters go out, the beginning of one stays behind. */
static void bytes_put(struct detokenizer *detokenizer, const char *bytes, size_t length,
                      struct byte_buffer *out)
{
    size_t size;
    uint32_t code;
    for (size_t i = 0; i < length; i += size) {
        size = utf8_valid_prefix(bytes + i, length - i);
        if (size) {
            text_put(detokenizer, bytes + i, size, out);
        } else if (utf8_next(bytes + i, length - i, &size, &code) == UTF8_BROKEN) {
            broken_put(detokenizer, size, out);
        } else {
            memcpy(detokenizer->pending, bytes + i, length - i);
            detokenizer->pending_length = (uint8_t)(length - i);
            return;
        }
    }
}

int detokenizer_push(struct detokenizer *detokenizer, uint32_t id, struct byte_buffer *out)
{
    if (!detokenizer->show_control && tokenizer_is_control(detokenizer->tokenizer, id))
        return BATON_OK;
    struct text_view text = tokenizer_text(detokenizer->tokenizer, id);
    size_t most = text.length + sizeof(detokenizer->pending);
    if (most > SIZE_MAX / UNICODE_REPLACEMENT_SIZE ||
        byte_buffer_reserve(out, most * UNICODE_REPLACEMENT_SIZE))
        return BATON_ENOMEM;
    while (text.length) {
        char chunk[sizeof(detokenizer->pending) + CHUNK];
        size_t pending = detokenizer->pending_length;
        size_t taken = text.length < CHUNK ? text.length : CHUNK;
        memcpy(chunk, detokenizer->pending, pending);
        memcpy(chunk + pending, text.bytes, taken);
        detokenizer->pending_length = 0;
        bytes_put(detokenizer, chunk, pending + taken, out);
        text.bytes += taken;
        text.length -= taken;
    }
    return BATON_OK;
}

int detokenizer_flush(struct detokenizer *detokenizer, struct byte_buffer *out)
{
    if (byte_buffer_reserve(out, sizeof(detokenizer->pending) * UNICODE_REPLACEMENT_SIZE))
        return BATON_ENOMEM;
    if (detokenizer->pending_length)
        broken_put(detokenizer, detokenizer->pending_length, out);
    detokenizer->pending_length = 0;
    return BATON_OK;
}

int detokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                       uint32_t flags, struct byte_buffer *out)
{
    struct detokenizer detokenizer;
    size_t before = out->length;
    int rc = BATON_OK;
    detokenizer_init(&detokenizer, tokenizer, flags);
    for (size_t i = 0; i < count && !rc; i++)
        rc = detokenizer_push(&detokenizer, ids[i], out);
    if (!rc)
        rc = detokenizer_flush(&detokenizer, out);
    if (rc)
        out->length = before;
    return rc;
}
