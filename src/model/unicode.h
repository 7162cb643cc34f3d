/* SPDX-License-Identifier: Apache-2.0 */
/* Text as characters: UTF-8 that may be broken, normal forms, and the few classes of characters
 * that tokenizers ask about outside of their patterns. */
#ifndef BATON_MODEL_UNICODE_H
#define BATON_MODEL_UNICODE_H

#include "tokenizer_buffer.h"

#include <stdbool.h>

/* Bytes of somebody else's, not terminated. */
struct text_view {
    const char *bytes;
    size_t length;
};

/* A part of a text, in bytes. */
struct text_range {
    size_t start, end;
};

/* Do any of these, ascending and apart from each other, have a byte in start..end? */
bool text_ranges_touch(const struct text_range *ranges, size_t count, size_t start, size_t end);

#define UNICODE_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */
#define UNICODE_REPLACEMENT_SIZE 3

enum utf8_state {
    UTF8_WHOLE,   /* *size bytes are one character, whose number is *code */
    UTF8_PARTIAL, /* the text ends inside a character that more bytes could complete */
    UTF8_BROKEN, /* *size bytes that nothing can complete; a decoder replaces them by one U+FFFD */
};

/* What the text begins with; length is at least 1. */
enum utf8_state utf8_next(const char *text, size_t length, size_t *size, uint32_t *code);

size_t utf8_encode(uint32_t code, char out[4]); /* the number of bytes */

/* How many bytes at the beginning are whole characters; all of them: the text is valid. */
size_t utf8_valid_prefix(const char *text, size_t length);

/* Appends the text with every broken piece replaced by U+FFFD, piece for piece as Python's
 * bytes.decode(errors="replace") and Rust's from_utf8_lossy do. `ranges` are parts of the text in
 * ascending order; they are moved to where their text is in `out`. ENOMEM. */
int utf8_repair(const char *text, size_t length, struct text_range *ranges, size_t range_count,
                struct byte_buffer *out);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Appends valid text in its normal form, in time linear in its length. ENOMEM. */
int unicode_normalize(enum unicode_form form, const char *text, size_t length,
                      struct byte_buffer *out);

bool unicode_is_space(uint32_t code); /* White_Space */
bool unicode_is_word(uint32_t code);  /* \w of UTS 18 */

/* How many bytes of white space the text begins or ends with. */
size_t unicode_space_before(const char *text, size_t end);
size_t unicode_space_after(const char *text, size_t length, size_t start);

/* Appends, as members of a set in a pattern, the characters of a general category ("L", "Nd"), or
 * of the script "Han", that Unicode has had since version 15. ENOMEM. */
int unicode_recent_append(const char *category, size_t length, struct byte_buffer *out);

#endif
