/* SPDX-License-Identifier: Apache-2.0 */
/* See sampler_stop.h. For each stop string a Knuth-Morris-Pratt state: how many of its first bytes
 * the text ends with. The largest state is what must be kept. Text goes through byte by byte, so
 * that nothing depends on how it was cut. A stop string is valid UTF-8 and so is the text, hence what
 * is kept begins with a whole character. */
#include "sampler_stop.h"

#include <stdlib.h>
#include <string.h>

/* ---- the strings ---------------------------------------------------------------------------- */

static int check_string(const struct text_view *string, uint32_t index, struct error err)
{
    if (string->length == 0)
        return error_set(err, BATON_EINVAL, "stop string %u is empty", index);
    if (string->length > STOP_STRING_BYTES_MAX)
        return error_set(err, BATON_EINVAL,
                         "stop string %u has %zu bytes; at most %d are taken", index,
                         string->length, STOP_STRING_BYTES_MAX);
    if (utf8_valid_prefix(string->bytes, string->length) != string->length)
        return error_set(err, BATON_EINVAL, "stop string %u is not UTF-8", index);
    return BATON_OK;
}

/* The state after one more byte. */
static uint16_t advance(const struct stop_string *string, uint16_t state, char byte)
{
    while (state && (state == string->length || string->bytes[state] != byte))
        state = string->borders[state - 1];
    return (uint16_t)(state + (string->bytes[state] == byte));
}

static int string_open(struct stop_string *string, const struct text_view *from)
{
    string->bytes = malloc(from->length);
    string->borders = calloc(from->length, sizeof(*string->borders));
    if (!string->bytes || !string->borders)
        return BATON_ENOMEM;
    memcpy(string->bytes, from->bytes, from->length);
    string->length = (uint32_t)from->length;
    for (uint32_t i = 1; i < string->length; i++)
        string->borders[i] = advance(string, string->borders[i - 1], string->bytes[i]);
    return BATON_OK;
}

int stop_strings_open(const struct text_view *strings, uint32_t count,
                      struct stop_strings **out, struct error err)
{
    if (count > STOP_STRINGS_MAX)
        return error_set(err, BATON_EINVAL, "%u stop strings; at most %d are taken", count,
                         STOP_STRINGS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        int rc = check_string(&strings[i], i, err);
        if (rc)
            return rc;
    }
    struct stop_strings *made = NULL;
    if (count) {
        made = calloc(1, sizeof(*made) + count * sizeof(*made->strings));
        if (!made)
            goto no_memory;
        made->count = count;
        for (uint32_t i = 0; i < count; i++)
            if (string_open(&made->strings[i], &strings[i]))
                goto no_memory;
    }
    *out = made;
    return BATON_OK;

no_memory:
    stop_strings_close(made);
    return error_set(err, BATON_ENOMEM, "no memory for %u stop strings", count);
}

void stop_strings_close(struct stop_strings *strings)
{
    if (!strings)
        return;
    for (uint32_t i = 0; i < strings->count; i++) {
        free(strings->strings[i].bytes);
        free(strings->strings[i].borders);
    }
    free(strings);
}

size_t stop_text_out_max(const struct stop_strings *strings, size_t token_bytes)
{
    size_t longest = 0;
    for (uint32_t i = 0; strings && i < strings->count; i++)
        if (strings->strings[i].length > longest)
            longest = strings->strings[i].length;
    /* What was kept; the token; half a character before it and half a one after it, which are
     * flushed with it when it is the last. Every byte may become a U+FFFD. */
    return longest + (token_bytes + 8) * UNICODE_REPLACEMENT_SIZE;
}

/* ---- the text ------------------------------------------------------------------------------- */

int stop_text_open(struct stop_text *text, const struct tokenizer *tokenizer, uint32_t flags,
                   const struct stop_strings *strings, bool keep_stop)
{
    uint16_t *states = NULL;
    if (strings) {
        states = calloc(strings->count, sizeof(*states));
        if (!states)
            return BATON_ENOMEM;
    }
    *text = (struct stop_text){
        .strings = strings, .states = states, .keep_stop = keep_stop, .matched = -1};
    detokenizer_init(&text->detokenizer, tokenizer, flags);
    return BATON_OK;
}

void stop_text_close(struct stop_text *text)
{
    byte_buffer_free(&text->text);
    free(text->states);
    text->states = NULL;
}

/* What was let out is dropped; what was kept is the beginning of the buffer. */
static void forget_out(struct stop_text *text)
{
    if (text->out)
        memmove(text->text.bytes, text->text.bytes + text->out, text->text.length - text->out);
    text->text.length -= text->out;
    text->out = 0;
}

/* Feeds text from `from` on. Returns the end of the match, or 0. */
static size_t find_stop(struct stop_text *text, size_t from)
{
    uint32_t longest = 0;
    for (size_t i = from; i < text->text.length; i++) {
        for (uint32_t s = 0; s < text->strings->count; s++) {
            const struct stop_string *string = &text->strings->strings[s];
            text->states[s] = advance(string, text->states[s], text->text.bytes[i]);
            if (text->states[s] == string->length && string->length > longest) {
                longest = string->length;
                text->matched = (int32_t)s;
            }
        }
        if (longest)
            return i + 1;
    }
    return 0;
}

static size_t kept_bytes(const struct stop_text *text)
{
    uint16_t most = 0;
    for (uint32_t s = 0; text->strings && s < text->strings->count; s++)
        if (text->states[s] > most)
            most = text->states[s];
    return most;
}

int stop_text_push(struct stop_text *text, uint32_t token, bool may_stop, struct text_view *out)
{
    BATON_ASSERT(text->matched < 0);
    forget_out(text);
    size_t from = text->text.length;
    if (detokenizer_push(&text->detokenizer, token, &text->text))
        return BATON_ENOMEM;
    size_t end = text->strings && may_stop ? find_stop(text, from) : 0;
    if (end) {
        text->text.length = end;
        text->out = text->keep_stop ? end : end - text->strings->strings[text->matched].length;
    } else {
        text->out = text->text.length - kept_bytes(text);
    }
    *out = (struct text_view){text->text.bytes, text->out};
    return BATON_OK;
}

int stop_text_flush(struct stop_text *text, struct text_view *out)
{
    forget_out(text);
    if (text->matched >= 0)
        text->text.length = 0; /* what is left of the stop string */
    else if (detokenizer_flush(&text->detokenizer, &text->text))
        return BATON_ENOMEM;
    text->out = text->text.length;
    *out = (struct text_view){text->text.bytes, text->out};
    return BATON_OK;
}
