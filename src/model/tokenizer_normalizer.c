/* SPDX-License-Identifier: Apache-2.0 */
/* Steps run one after the other, each from one buffer into the other. */
#include "tokenizer_normalizer.h"

#include <stdlib.h>
#include <string.h>

void normalizer_step_free(struct normalizer_step *step)
{
    byte_buffer_free(&step->text);
    byte_buffer_free(&step->content);
    pattern_close(step->pattern);
    *step = (struct normalizer_step){0};
}

int normalizer_add(struct normalizer *normalizer, struct normalizer_step *step)
{
    void *steps = normalizer->steps;
    int rc = array_reserve(&steps, &normalizer->capacity, normalizer->count + 1,
                           sizeof(*normalizer->steps));
    normalizer->steps = steps;
    if (rc) {
        normalizer_step_free(step);
        return rc;
    }
    normalizer->steps[normalizer->count++] = *step;
    *step = (struct normalizer_step){0};
    return BATON_OK;
}

void normalizer_free(struct normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->count; i++)
        normalizer_step_free(&normalizer->steps[i]);
    free(normalizer->steps);
    *normalizer = (struct normalizer){0};
}

static int out_of_memory(struct error err)
{
    return error_set(err, BATON_ENOMEM, "out of memory while a text was normalized");
}

static int prepend(const struct normalizer_step *step, struct text_view in,
                   struct byte_buffer *out)
{
    int rc = in.length ? byte_buffer_append(out, step->text.bytes, step->text.length) : 0;
    return rc ? rc : byte_buffer_append(out, in.bytes, in.length);
}

static int replace_text(const struct normalizer_step *step, struct text_view in,
                        struct byte_buffer *out)
{
    const char *at = in.bytes, *end = in.bytes + in.length;
    while (at < end) {
        const char *found = memmem(at, (size_t)(end - at), step->text.bytes, step->text.length);
        if (byte_buffer_append(out, at, (size_t)((found ? found : end) - at)))
            return BATON_ENOMEM;
        if (!found)
            break;
        if (byte_buffer_append(out, step->content.bytes, step->content.length))
            return BATON_ENOMEM;
        at = found + step->text.length;
    }
    return BATON_OK;
}

static int replace_matches(const struct normalizer_step *step, struct pattern_space *patterns,
                           struct text_view in, struct byte_buffer *out, struct error err)
{
    struct pattern_walk walk = {0};
    size_t done = 0, start, end;
    int found = 0;
    while (in.length && (found = pattern_walk_next(step->pattern, patterns, in.bytes, in.length,
                                                   &walk, &start, &end, err)) > 0) {
        if (byte_buffer_append(out, in.bytes + done, start - done) ||
            byte_buffer_append(out, step->content.bytes, step->content.length))
            return out_of_memory(err);
        done = end;
    }
    if (found < 0)
        return found;
    if (byte_buffer_append(out, in.bytes + done, in.length - done))
        return out_of_memory(err);
    return BATON_OK;
}

static int strip(const struct normalizer_step *step, struct text_view in,
                 struct byte_buffer *out)
{
    size_t start = step->left ? unicode_space_after(in.bytes, in.length, 0) : 0;
    size_t end = in.length;
    if (step->right && start < end)
        end -= unicode_space_before(in.bytes, in.length);
    return byte_buffer_append(out, in.bytes + start, end - start);
}

static int step_apply(const struct normalizer_step *step, struct pattern_space *patterns,
                      struct text_view in, struct byte_buffer *out, struct error err)
{
    int rc = BATON_OK;
    switch (step->kind) {
    case NORMALIZER_FORM: rc = unicode_normalize(step->form, in.bytes, in.length, out); break;
    case NORMALIZER_PREPEND: rc = prepend(step, in, out); break;
    case NORMALIZER_STRIP: rc = strip(step, in, out); break;
    case NORMALIZER_REPLACE:
        if (step->pattern)
            return replace_matches(step, patterns, in, out, err);
        rc = replace_text(step, in, out);
        break;
    }
    return rc ? out_of_memory(err) : BATON_OK;
}

int normalizer_apply(const struct normalizer *normalizer, struct normalizer_space *space,
                     struct pattern_space *patterns, const char *text, size_t length,
                     struct text_view *out, struct error err)
{
    struct text_view current = {text, length};
    for (size_t i = 0; i < normalizer->count; i++) {
        struct byte_buffer spare = space->other;
        space->other = space->text;
        space->text = spare;
        space->text.length = 0;
        int rc = step_apply(&normalizer->steps[i], patterns, current, &space->text, err);
        if (rc)
            return rc;
        current =
            (struct text_view){space->text.bytes ? space->text.bytes : "", space->text.length};
    }
    *out = current;
    return BATON_OK;
}
