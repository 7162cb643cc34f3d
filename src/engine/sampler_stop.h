/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a generation as it grows, and the strings that end it. What is let out is never taken
 * back: text that may turn out to be the beginning of a stop string is kept until that is decided.
 * It does not matter how the text is cut into tokens, or where characters begin and end in them.
 *
 *   stop strings "END", "\n\n"      tokens:  "a\n"   "b\nEN"   "D!"
 *                                   let out: "a"     "\nb\n"   "" and it is over
 *
 * The first stop string to be complete ends the text; of several that end at the same byte, the
 * longest. What comes after it in the same token is dropped. */
#ifndef BATON_ENGINE_SAMPLER_STOP_H
#define BATON_ENGINE_SAMPLER_STOP_H

#include "model/detokenizer.h"

#define STOP_STRINGS_MAX 64
#define STOP_STRING_BYTES_MAX 1024

struct stop_string {
    uint32_t length;
    char *bytes;
    uint16_t *borders; /* [length]: longest proper beginning of bytes[0..i] that also ends it */
};

struct stop_strings {
    uint32_t count;
    struct stop_string strings[];
};

/* EINVAL: too many, too long, empty, or not UTF-8; ENOMEM. count 0 gives NULL, which all others
 * take for "none". */
int stop_strings_open(const struct text_view *strings, uint32_t count,
                      struct stop_strings **out, struct error err);
void stop_strings_close(struct stop_strings *strings);

struct stop_text {
    struct detokenizer detokenizer;
    const struct stop_strings *strings; /* NULL: none */
    uint16_t *states;                   /* of each: how much of it the text ends with now */
    struct byte_buffer text;            /* what is kept, then what is new */
    size_t out;                         /* bytes at its beginning that were let out last */
    bool keep_stop;
    int32_t matched; /* index of the stop string that has ended the text; -1: none yet */
};

/* `strings` are borrowed. keep_stop: the stop string itself is part of the text. ENOMEM. */
int stop_text_open(struct stop_text *text, const struct tokenizer *tokenizer, uint32_t flags,
                   const struct stop_strings *strings, bool keep_stop);
void stop_text_close(struct stop_text *text);

/* Adds a token; `out` is what can be let out, good until the next call. Afterwards text->matched says
 * whether a stop string is complete. may_stop false: none is looked for in this token, and none that
 * begins in it is found later. ENOMEM. Not to be called after a match. */
int stop_text_push(struct stop_text *text, uint32_t token, bool may_stop,
                   struct text_view *out);

/* Nothing more will come: all that was kept. */
int stop_text_flush(struct stop_text *text, struct text_view *out);

/* An upper bound on the bytes that one push or flush can let out, for a vocabulary whose longest
 * token has token_bytes. */
size_t stop_text_out_max(const struct stop_strings *strings, size_t token_bytes);

#endif
