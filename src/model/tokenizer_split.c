/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces are ranges of one text. A step that cuts replaces the list of ranges; one that rewrites
 * makes a new text and ranges of that. Each piece is searched as if it were the whole text, so
 * that "\s+(?!\S)" sees its end. */
#include "tokenizer_split.h"

#include <stdlib.h>
#include <string.h>

int splitter_add(struct splitter *splitter, struct split_step *step)
{
    void *steps = splitter->steps;
    int rc = array_reserve(&steps, &splitter->capacity, splitter->count + 1,
                           sizeof(*splitter->steps));
    splitter->steps = steps;
    if (rc) {
        pattern_close(step->pattern);
        return rc;
    }
    splitter->steps[splitter->count++] = *step;
    return BATON_OK;
}

void splitter_free(struct splitter *splitter)
{
    for (size_t i = 0; i < splitter->count; i++)
        pattern_close(splitter->steps[i].pattern);
    free(splitter->steps);
    *splitter = (struct splitter){0};
}

void split_space_free(struct split_space *space)
{
    free(space->pieces.ranges);
    free(space->spare.ranges);
    free(space->parts.ranges);
    byte_buffer_free(&space->rewritten[0]);
    byte_buffer_free(&space->rewritten[1]);
    *space = (struct split_space){0};
}

static int range_push(struct range_list *list, size_t start, size_t end, struct error err)
{
    void *ranges = list->ranges;
    int rc = array_reserve(&ranges, &list->capacity, list->count + 1, sizeof(*list->ranges));
    list->ranges = ranges;
    if (rc)
        return error_set(err, rc, "out of memory while a text was split");
    list->ranges[list->count++] = (struct text_range){start, end};
    return BATON_OK;
}

/* ---- cutting ----------------------------------------------------------------------------- */

/* The matches within one piece, and what lies between them: `parts` are text and match in turn,
 * beginning and ending with text. Texts may be empty, and are then not there; a match of nothing
 * is a match. */
static int piece_match(const struct split_step *step, struct split_space *space,
                       struct pattern_space *patterns, struct text_range piece,
                       struct error err)
{
    const char *text = space->text.bytes + piece.start;
    struct pattern_walk walk = {0};
    size_t done = piece.start, start, end;
    int found, rc = BATON_OK;
    space->parts.count = 0;
    while ((found = pattern_walk_next(step->pattern, patterns, text, piece.end - piece.start,
                                      &walk, &start, &end, err)) > 0) {
        rc = range_push(&space->parts, done, piece.start + start, err);
        if (!rc)
            rc = range_push(&space->parts, piece.start + start, piece.start + end, err);
        if (rc)
            return rc;
        done = piece.start + end;
    }
    return found < 0 ? found : range_push(&space->parts, done, piece.end, err);
}

static int parts_keep(struct split_space *space, bool texts, bool matches, struct error err)
{
    int rc = BATON_OK;
    for (size_t i = 0; i < space->parts.count && !rc; i++) {
        struct text_range part = space->parts.ranges[i];
        if (part.start < part.end && (i % 2 ? matches : texts))
            rc = range_push(&space->spare, part.start, part.end, err);
    }
    return rc;
}

/* Does the part become one with the one before it? */
static bool part_joins(enum split_behavior behavior, bool match, bool previous_match)
{
    return behavior == SPLIT_CONTIGUOUS ? match == previous_match : match && !previous_match;
}

/* Parts joined with their neighbours: the one before, or (with_next, which goes through them from
 * the back) the one behind. */
static int parts_join(struct split_space *space, const struct split_step *step, bool with_next,
                      struct error err)
{
    struct range_list *parts = &space->parts, *out = &space->spare;
    size_t first = out->count;
    bool previous_match = false;
    for (size_t i = 0; i < parts->count; i++) {
        size_t at = with_next ? parts->count - 1 - i : i;
        struct text_range part = parts->ranges[at];
        bool is_match = at % 2 == 1, match = is_match != step->inverted;
        if (part.start == part.end && !is_match)
            continue;
        if (out->count > first && part_joins(step->behavior, match, previous_match)) {
            struct text_range *last = &out->ranges[out->count - 1];
            last->start = with_next ? part.start : last->start;
            last->end = with_next ? last->end : part.end;
        } else {
            int rc = range_push(out, part.start, part.end, err);
            if (rc)
                return rc;
        }
        previous_match = match;
    }
    return BATON_OK;
}

/* Turns the ranges from `first` on into the order of the text, and leaves out the empty ones. */
static void ranges_tidy(struct range_list *list, size_t first, bool backward)
{
    struct text_range *ranges = list->ranges;
    for (size_t i = first, k = list->count; backward && i + 1 < k; i++) {
        struct text_range range = ranges[i];
        ranges[i] = ranges[--k];
        ranges[k] = range;
    }
    size_t count = first;
    for (size_t i = first; i < list->count; i++) {
        if (ranges[i].start < ranges[i].end)
            ranges[count++] = ranges[i];
    }
    list->count = count;
}

static int piece_cut(const struct split_step *step, struct split_space *space,
                     struct pattern_space *patterns, struct text_range piece, struct error err)
{
    int rc = piece_match(step, space, patterns, piece, err);
    if (rc)
        return rc;
    if (step->behavior == SPLIT_ISOLATED)
        return parts_keep(space, true, true, err);
    if (step->behavior == SPLIT_REMOVED)
        return parts_keep(space, !step->inverted, step->inverted, err);
    bool with_next = step->behavior == SPLIT_MERGED_WITH_NEXT;
    size_t first = space->spare.count;
    rc = parts_join(space, step, with_next, err);
    if (!rc)
        ranges_tidy(&space->spare, first, with_next);
    return rc;
}

/* ---- rewriting --------------------------------------------------------------------------- */

static int piece_replace_spaces(const char *prefix, const char *text, size_t length,
                                struct byte_buffer *out)
{
    const char *at = text, *end = text + length;
    while (at < end) {
        const char *space = memchr(at, ' ', (size_t)(end - at));
        if (byte_buffer_append(out, at, (size_t)((space ? space : end) - at)))
            return BATON_ENOMEM;
        if (!space)
            break;
        if (byte_buffer_append(out, prefix, strlen(prefix)))
            return BATON_ENOMEM;
        at = space + 1;
    }
    return BATON_OK;
}

static int piece_prefix(const struct split_step *step, const char *text, size_t length,
                        bool first, struct byte_buffer *out)
{
    size_t size = strlen(step->prefix);
    bool there = length >= size && memcmp(text, step->prefix, size) == 0;
    if (!there && (first || !step->first_only) && byte_buffer_append(out, step->prefix, size))
        return BATON_ENOMEM;
    return byte_buffer_append(out, text, length);
}

static int pieces_rewrite(const struct split_step *step, struct split_space *space, bool first,
                          struct error err)
{
    struct byte_buffer *out =
        &space->rewritten[space->text.bytes == space->rewritten[0].bytes ? 1 : 0];
    out->length = 0;
    for (size_t i = 0; i < space->pieces.count; i++) {
        struct text_range piece = space->pieces.ranges[i];
        const char *text = space->text.bytes + piece.start;
        size_t start = out->length, length = piece.end - piece.start;
        int rc = step->kind == SPLIT_PREFIX
                     ? piece_prefix(step, text, length, first && piece.start == 0, out)
                     : piece_replace_spaces(step->prefix, text, length, out);
        if (rc)
            return error_set(err, rc, "out of memory while a text was split");
        space->pieces.ranges[i] = (struct text_range){start, out->length};
    }
    space->text = (struct text_view){out->bytes, out->length};
    return BATON_OK;
}

/* ---- all of it --------------------------------------------------------------------------- */

static int pieces_cut(const struct split_step *step, struct split_space *space,
                      struct pattern_space *patterns, struct error err)
{
    int rc = BATON_OK;
    space->spare.count = 0;
    for (size_t i = 0; i < space->pieces.count && !rc; i++)
        rc = piece_cut(step, space, patterns, space->pieces.ranges[i], err);
    struct range_list cut = space->spare;
    space->spare = space->pieces;
    space->pieces = cut;
    return rc;
}

int splitter_apply(const struct splitter *splitter, struct split_space *space,
                   struct pattern_space *patterns, const char *text, size_t length, bool first,
                   struct error err)
{
    space->text = (struct text_view){text, length};
    space->pieces.count = 0;
    int rc = length ? range_push(&space->pieces, 0, length, err) : BATON_OK;
    for (size_t i = 0; i < splitter->count && !rc; i++) {
        const struct split_step *step = &splitter->steps[i];
        rc = step->kind == SPLIT_BY_PATTERN ? pieces_cut(step, space, patterns, err)
                                            : pieces_rewrite(step, space, first, err);
    }
    return rc;
}
