/* SPDX-License-Identifier: Apache-2.0 */
/* One text's way to its tokens, from top to bottom:
 *
 *   bytes       repaired to valid UTF-8                                 utf8_repair
 *   text        cut at the added tokens found in it                     added_search_next
 *   segments    normalized, cut at the tokens found after that          normalizer_apply
 *   stretches   split into pieces by the patterns                       splitter_apply
 *   pieces      over characters: cut where no token has a joint         joints_have
 *   words       looked up, or symbols merged                            merges_apply
 *   tokens
 *
 * Threads. A tokenizer does not change; what a thread writes to is in an encoder. Encoders are
 * lent from a list under a lock and given back, so there are as many as threads encode at the
 * same time. One that a huge text has blown up is not kept. */
#include "tokenizer_state.h"
#include "tokenizer_words.h"

#include <stdlib.h>
#include <string.h>

#define IDLE_MAX 32
#define IDLE_BYTES_MAX (8u << 20)
#define TEXT_BYTES_MAX (1u << 30)

struct encoder {
    struct encoder *next;
    struct pattern_space *patterns;
    struct words *words;
    struct byte_buffer repaired;
    struct range_list untrusted; /* a copy, moved with the repairs */
    struct normalizer_space normalized;
    struct split_space split;
    struct merge_space merging;
};

/* ---- encoders ---------------------------------------------------------------------------- */

void encoder_close(struct encoder *encoder)
{
    while (encoder) {
        struct encoder *next = encoder->next;
        pattern_space_close(encoder->patterns);
        words_free(encoder->words);
        byte_buffer_free(&encoder->repaired);
        free(encoder->untrusted.ranges);
        byte_buffer_free(&encoder->normalized.text);
        byte_buffer_free(&encoder->normalized.other);
        split_space_free(&encoder->split);
        merge_space_free(&encoder->merging);
        free(encoder);
        encoder = next;
    }
}

static struct encoder *encoder_new(void)
{
    struct encoder *encoder = calloc(1, sizeof(*encoder));
    if (!encoder)
        return NULL;
    encoder->words = words_new();
    if (!encoder->words || pattern_space_open(&encoder->patterns)) {
        encoder_close(encoder);
        return NULL;
    }
    return encoder;
}

size_t encoder_memory(const struct encoder *encoder)
{
    const struct split_space *split = &encoder->split;
    return encoder->repaired.capacity + encoder->normalized.text.capacity +
           encoder->normalized.other.capacity + split->rewritten[0].capacity +
           split->rewritten[1].capacity +
           (split->pieces.capacity + split->spare.capacity + split->parts.capacity) *
               sizeof(struct text_range) +
           encoder->merging.symbol_capacity * 20 + encoder->merging.heap_capacity * 8;
}

static struct encoder *encoder_lend(struct tokenizer *tokenizer)
{
    pthread_mutex_lock(&tokenizer->lock);
    struct encoder *encoder = tokenizer->idle;
    if (encoder) {
        tokenizer->idle = encoder->next;
        tokenizer->idle_count--;
    }
    pthread_mutex_unlock(&tokenizer->lock);
    return encoder ? encoder : encoder_new();
}

static void encoder_give_back(struct tokenizer *tokenizer, struct encoder *encoder)
{
    bool keep = encoder_memory(encoder) <= IDLE_BYTES_MAX;
    encoder->next = NULL;
    pthread_mutex_lock(&tokenizer->lock);
    keep = keep && tokenizer->idle_count < IDLE_MAX;
    if (keep) {
        encoder->next = tokenizer->idle;
        tokenizer->idle = encoder;
        tokenizer->idle_count++;
    }
    pthread_mutex_unlock(&tokenizer->lock);
    if (!keep)
        encoder_close(encoder);
}

/* ---- words ------------------------------------------------------------------------------- */

static int out_of_memory(struct error err)
{
    return error_set(err, BATON_ENOMEM, "out of memory while a text was encoded");
}

static int list_reserve(struct token_list *list, size_t more)
{
    void *ids = list->ids;
    int rc = array_reserve(&ids, &list->capacity, list->count + more, sizeof(*list->ids));
    list->ids = ids;
    return rc;
}

/* The symbols that a word begins with, one for each byte or character; at most one per byte. */
struct symbols {
    const struct tokenizer *tokenizer;
    uint32_t *ids;
    size_t count;
    bool after_unknown;
};

static void symbol_put(struct symbols *symbols, uint32_t id)
{
    symbols->ids[symbols->count++] = id;
    symbols->after_unknown = false;
}

static void symbol_put_unknown(struct symbols *symbols)
{
    const struct tokenizer *tokenizer = symbols->tokenizer;
    bool fused = symbols->after_unknown && tokenizer->fuse_unknown;
    if (tokenizer->unknown != TOKEN_NONE && !fused)
        symbols->ids[symbols->count++] = tokenizer->unknown;
    symbols->after_unknown = true;
}

static void symbols_of_bytes(struct symbols *symbols, const char *word, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        uint32_t id = symbols->tokenizer->byte_ids[(uint8_t)word[i]];
        if (id != TOKEN_NONE)
            symbol_put(symbols, id);
        else
            symbol_put_unknown(symbols);
    }
}

/* A character that is no token becomes the tokens of its bytes, all of them or none. */
static void symbol_fall_back(struct symbols *symbols, const char *character, size_t size)
{
    const uint32_t *byte_ids = symbols->tokenizer->byte_ids;
    bool all = symbols->tokenizer->byte_fallback;
    for (size_t i = 0; i < size; i++)
        all = all && byte_ids[(uint8_t)character[i]] != TOKEN_NONE;
    for (size_t i = 0; i < size && all; i++)
        symbol_put(symbols, byte_ids[(uint8_t)character[i]]);
    if (!all)
        symbol_put_unknown(symbols);
}

static void symbols_of_characters(struct symbols *symbols, const char *word, size_t length)
{
    size_t size;
    uint32_t code;
    for (size_t i = 0; i < length; i += size) {
        utf8_next(word + i, length - i, &size, &code);
        uint32_t id = vocabulary_find(&symbols->tokenizer->vocabulary, word + i, size);
        if (id != TOKEN_NONE)
            symbol_put(symbols, id);
        else
            symbol_fall_back(symbols, word + i, size);
    }
}

static int word_encode(const struct tokenizer *tokenizer, struct encoder *encoder,
                       const char *word, size_t length, struct token_list *list,
                       struct error err)
{
    const struct word *known = words_find(encoder->words, word, length);
    if (list_reserve(list, known ? WORD_IDS_MAX : length))
        return out_of_memory(err);
    uint32_t *ids = list->ids + list->count;
    if (known) {
        memcpy(ids, known->ids, sizeof(known->ids)); /* all: faster than some */
        list->count += known->id_count;
        return BATON_OK;
    }
    struct symbols symbols = {tokenizer, ids, 0, false};
    if (tokenizer->over_bytes)
        symbols_of_bytes(&symbols, word, length);
    else
        symbols_of_characters(&symbols, word, length);
    size_t count = symbols.count;
    if (merges_apply(&tokenizer->merges, &encoder->merging, ids, &count))
        return out_of_memory(err);
    words_put(encoder->words, word, length, ids, count);
    list->count += count;
    return BATON_OK;
}

/* ---- pieces ------------------------------------------------------------------------------ */

/* The end of the word that begins at `start`: the first place behind it that no token spans. */
static size_t word_end(const struct tokenizer *tokenizer, struct text_view piece, size_t start)
{
    uint32_t left, right;
    size_t size, at = start;
    utf8_next(piece.bytes + at, piece.length - at, &size, &left);
    for (at += size; at < piece.length; at += size) {
        utf8_next(piece.bytes + at, piece.length - at, &size, &right);
        if (!joints_have(&tokenizer->joints, left, right))
            break;
        left = right;
    }
    return at;
}

static int piece_encode(const struct tokenizer *tokenizer, struct encoder *encoder,
                        struct text_view piece, struct token_list *list, struct error err)
{
    if (tokenizer->whole_piece_first) {
        uint32_t id = vocabulary_find(&tokenizer->vocabulary, piece.bytes, piece.length);
        if (id != TOKEN_NONE)
            return token_list_append(list, id) ? out_of_memory(err) : BATON_OK;
    }
    if (!tokenizer->joints.count)
        return word_encode(tokenizer, encoder, piece.bytes, piece.length, list, err);
    size_t end;
    int rc = BATON_OK;
    for (size_t start = 0; start < piece.length && !rc; start = end) {
        end = word_end(tokenizer, piece, start);
        rc = word_encode(tokenizer, encoder, piece.bytes + start, end - start, list, err);
    }
    return rc;
}

static int stretch_encode(const struct tokenizer *tokenizer, struct encoder *encoder,
                          struct text_view stretch, bool first, struct token_list *list,
                          struct error err)
{
    struct split_space *split = &encoder->split;
    int rc = splitter_apply(&tokenizer->splitter, split, encoder->patterns, stretch.bytes,
                            stretch.length, first, err);
    for (size_t i = 0; i < split->pieces.count && !rc; i++) {
        struct text_range range = split->pieces.ranges[i];
        struct text_view piece = {split->text.bytes + range.start, range.end - range.start};
        rc = piece_encode(tokenizer, encoder, piece, list, err);
    }
    return rc;
}

/* ---- segments ---------------------------------------------------------------------------- */

/* Where a text came from, as far as the steps below need to know. */
struct origin {
    bool first;         /* it is the beginning of what the caller gave */
    bool parse_control; /* control tokens may be found in it */
};

static int segment_encode(const struct tokenizer *tokenizer, struct encoder *encoder,
                          struct text_view segment, struct origin origin,
                          struct token_list *list, struct error err)
{
    struct text_view text;
    int rc = normalizer_apply(&tokenizer->normalizer, &encoder->normalized, encoder->patterns,
                              segment.bytes, segment.length, &text, err);
    if (rc || !tokenizer->normalized.count)
        return rc ? rc : stretch_encode(tokenizer, encoder, text, origin.first, list, err);

    struct added_search search = {
        .text = text.bytes, .length = text.length, .parse_control = origin.parse_control};
    struct added_match match;
    size_t done = 0;
    while (!rc && added_search_next(&tokenizer->normalized, &search, &match)) {
        struct text_view stretch = {text.bytes + done, match.start - done};
        rc = stretch_encode(tokenizer, encoder, stretch, origin.first && !done, list, err);
        if (!rc && token_list_append(list, match.id))
            rc = out_of_memory(err);
        done = match.end;
    }
    struct text_view rest = {text.bytes + done, text.length - done};
    return rc ? rc : stretch_encode(tokenizer, encoder, rest, origin.first && !done, list, err);
}

/* Normalized text has lost its places in the original: a segment that is not trusted as a whole
 * is not trusted at all. */
static struct origin segment_origin(const struct encoder *encoder, uint32_t flags, size_t start,
                                    size_t end)
{
    return (struct origin){
        .first = start == 0,
        .parse_control =
            (flags & TOKENIZER_PARSE_SPECIAL) &&
            !text_ranges_touch(encoder->untrusted.ranges, encoder->untrusted.count, start, end),
    };
}

static int text_encode(const struct tokenizer *tokenizer, struct encoder *encoder,
                       struct text_view text, uint32_t flags, struct token_list *list,
                       struct error err)
{
    struct added_search search = {.text = text.bytes,
                                  .length = text.length,
                                  .parse_control = flags & TOKENIZER_PARSE_SPECIAL,
                                  .untrusted = encoder->untrusted.ranges,
                                  .untrusted_count = encoder->untrusted.count};
    struct added_match match;
    size_t done = 0;
    int rc = BATON_OK;
    while (!rc && added_search_next(&tokenizer->added, &search, &match)) {
        struct text_view segment = {text.bytes + done, match.start - done};
        struct origin origin = segment_origin(encoder, flags, done, match.start);
        if (segment.length)
            rc = segment_encode(tokenizer, encoder, segment, origin, list, err);
        if (!rc && token_list_append(list, match.id))
            rc = out_of_memory(err);
        done = match.end;
    }
    struct text_view rest = {text.bytes + done, text.length - done};
    struct origin origin = segment_origin(encoder, flags, done, text.length);
    if (!rc && rest.length)
        rc = segment_encode(tokenizer, encoder, rest, origin, list, err);
    return rc;
}

/* ---- the whole --------------------------------------------------------------------------- */

static int list_extend(struct token_list *list, const struct token_list *more)
{
    if (list_reserve(list, more->count))
        return BATON_ENOMEM;
    for (size_t i = 0; i < more->count; i++)
        list->ids[list->count++] = more->ids[i];
    return BATON_OK;
}

static int untrusted_copy(struct encoder *encoder, const struct text_range *untrusted,
                          size_t count, size_t length)
{
    void *ranges = encoder->untrusted.ranges;
    int rc = array_reserve(&ranges, &encoder->untrusted.capacity, count, sizeof(*untrusted));
    encoder->untrusted.ranges = ranges;
    encoder->untrusted.count = 0;
    if (rc)
        return rc;
    size_t before = 0;
    for (size_t i = 0; i < count; i++) {
        BATON_ASSERT(untrusted[i].start >= before && untrusted[i].start <= untrusted[i].end &&
                     untrusted[i].end <= length);
        before = untrusted[i].end;
        encoder->untrusted.ranges[i] = untrusted[i];
    }
    encoder->untrusted.count = count;
    return BATON_OK;
}

/* The text itself where it is valid, which is nearly always; otherwise a repaired copy. */
static int text_repair(struct encoder *encoder, const char *text, size_t length,
                       struct text_view *out)
{
    *out = (struct text_view){length ? text : "", length};
    if (utf8_valid_prefix(text, length) == length)
        return BATON_OK;
    encoder->repaired.length = 0;
    int rc = utf8_repair(text, length, encoder->untrusted.ranges, encoder->untrusted.count,
                         &encoder->repaired);
    *out = (struct text_view){encoder->repaired.bytes, encoder->repaired.length};
    return rc;
}

int tokenizer_encode_guarded(struct tokenizer *tokenizer, const char *text, size_t length,
                             const struct text_range *untrusted, size_t untrusted_count,
                             uint32_t flags, struct token_list *list, struct error err)
{
    if (length > TEXT_BYTES_MAX)
        return error_set(err, BATON_ELIMIT, "the text has %zu bytes; at most %u are encoded",
                         length, TEXT_BYTES_MAX);
    struct encoder *encoder = encoder_lend(tokenizer);
    if (!encoder)
        return out_of_memory(err);
    size_t count_before = list->count;
    struct text_view repaired;
    bool around = flags & TOKENIZER_ADD_SPECIAL;
    int rc = untrusted_copy(encoder, untrusted, untrusted_count, length);
    if (!rc)
        rc = text_repair(encoder, text, length, &repaired);
    if (!rc && around)
        rc = list_extend(list, &tokenizer->prefix);
    if (rc)
        out_of_memory(err);
    else
        rc = text_encode(tokenizer, encoder, repaired, flags, list, err);
    if (!rc && around && list_extend(list, &tokenizer->suffix))
        rc = out_of_memory(err);
    if (rc)
        list->count = count_before;
    encoder_give_back(tokenizer, encoder);
    return rc;
}

int tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t length,
                     uint32_t flags, struct token_list *list, struct error err)
{
    return tokenizer_encode_guarded(tokenizer, text, length, NULL, 0, flags, list, err);
}
