/* SPDX-License-Identifier: Apache-2.0 */
/* The methods that take strings apart. The parts are slices of the string, not copies. */
#include "template_builtin.h"
#include "template_run.h"
#include "template_string.h"
#include "template_text.h"

struct splitter {
    struct run *run;
    struct list *parts;
    bool markup;
};

static bool part_add(struct splitter *splitter, struct text text, size_t from, size_t to)
{
    struct text part = jinja_text_slice(text, from, to);
    struct value value = value_string(part.bytes, part.length);
    value.markup = splitter->markup;
    return jinja_charge(splitter->run, 0) &&
           jinja_list_append(splitter->run, splitter->parts, value);
}

/* ---- split ------------------------------------------------------------------------------- */

static bool split_at(struct splitter *splitter, struct text text, struct text separator,
                     int64_t most)
{
    size_t from = 0;
    for (; most != 0; most -= most > 0) {
        ssize_t found = jinja_text_find(text, separator, from);
        if (found < 0)
            break;
        if (!part_add(splitter, text, from, (size_t)found))
            return false;
        from = (size_t)found + separator.length;
    }
    return part_add(splitter, text, from, text.length);
}

static size_t word_end(struct text text, size_t from)
{
    size_t step;
    while (from < text.length && !jinja_is_space(jinja_text_decode(text, from, &step)))
        from += step;
    return from;
}

/* Words; the rest after the last split is one part and keeps the white space inside of it. */
static bool split_words(struct splitter *splitter, struct text text, int64_t most)
{
    for (;;) {
        text = jinja_text_strip(text, NULL, true, false);
        if (text.length == 0)
            return true;
        if (most == 0)
            return part_add(splitter, text, 0, text.length);
        size_t end = word_end(text, 0);
        if (!part_add(splitter, text, 0, end))
            return false;
        text = jinja_text_slice(text, end, text.length);
        most -= most > 0;
    }
}

/* ---- rsplit: the same from the end, parts in reverse ------------------------------------- */

static bool rsplit_at(struct splitter *splitter, struct text text, struct text separator,
                      int64_t most)
{
    for (; most != 0; most -= most > 0) {
        if (!jinja_charge(splitter->run, (size_t)text.length * separator.length))
            return false;
        ssize_t found = jinja_text_find_last(text, separator);
        if (found < 0)
            break;
        if (!part_add(splitter, text, (size_t)found + separator.length, text.length))
            return false;
        text = jinja_text_slice(text, 0, (size_t)found);
    }
    return part_add(splitter, text, 0, text.length);
}

static size_t word_start(struct text text)
{
    struct text rest = text;
    while (rest.length) {
        size_t last = rest.length - 1, step;
        while (last > 0 && rest.length - last < 4 &&
               ((unsigned char)rest.bytes[last] & 0xc0) == 0x80)
            last--;
        if (jinja_is_space(jinja_text_decode(rest, last, &step)))
            break;
        rest = jinja_text_slice(rest, 0, last);
    }
    return rest.length;
}

static bool rsplit_words(struct splitter *splitter, struct text text, int64_t most)
{
    for (;;) {
        text = jinja_text_strip(text, NULL, false, true);
        if (text.length == 0)
            return true;
        if (most == 0)
            return part_add(splitter, text, 0, text.length);
        size_t start = word_start(text);
        if (!part_add(splitter, text, start, text.length))
            return false;
        text = jinja_text_slice(text, 0, start);
        most -= most > 0;
    }
}

static void parts_reverse(struct list *parts)
{
    for (size_t i = 0; i < parts->count / 2; i++) {
        struct value swap = parts->items[i];
        parts->items[i] = parts->items[parts->count - 1 - i];
        parts->items[parts->count - 1 - i] = swap;
    }
}

static bool split(struct run *run, const struct call *call, bool from_end, struct value *out)
{
    struct splitter splitter = {.run = run, .markup = call->subject.markup};
    struct text text = value_text(call->subject), separator = TEXT("");
    bool words = !value_given(call->given[0]) || call->given[0].type == VALUE_NONE, good;
    int64_t most;
    struct value list;
    if ((!words && !jinja_need_string(run, call->given[0], "split", &separator)) ||
        !jinja_need_integer(run, call->given[1], -1, "split", &most) ||
        !jinja_charge(run, text.length) || !jinja_list_new(run, VALUE_LIST, 0, &list))
        return false;
    if (!words && separator.length == 0)
        return jinja_refuse(run, "split needs a separator that is not empty");
    splitter.parts = list.list;
    if (from_end)
        good = words ? rsplit_words(&splitter, text, most)
                     : rsplit_at(&splitter, text, separator, most);
    else
        good = words ? split_words(&splitter, text, most)
                     : split_at(&splitter, text, separator, most);
    if (from_end)
        parts_reverse(list.list);
    *out = list;
    return good;
}

static bool method_split(struct run *run, const struct call *call, struct value *out)
{
    return split(run, call, false, out);
}

static bool method_rsplit(struct run *run, const struct call *call, struct value *out)
{
    return split(run, call, true, out);
}

/* ---- lines and partitions ---------------------------------------------------------------- */

static bool method_splitlines(struct run *run, const struct call *call, struct value *out)
{
    struct splitter splitter = {.run = run, .markup = call->subject.markup};
    struct text text = value_text(call->subject);
    bool keep = value_given(call->given[0]) && jinja_truth(call->given[0]);
    size_t from = 0;
    if (!jinja_charge(run, text.length) || !jinja_list_new(run, VALUE_LIST, 0, out))
        return false;
    splitter.parts = out->list;
    for (size_t i = 0; i < text.length;) {
        size_t end = jinja_text_line_end(text, i);
        if (end && !part_add(&splitter, text, from, i + (keep ? end : 0)))
            return false;
        i += end ? end : jinja_text_step(text, i);
        from = end ? i : from;
    }
    return from == text.length || part_add(&splitter, text, from, text.length);
}

static bool partition(struct run *run, const struct call *call, bool last, struct value *out)
{
    struct splitter splitter = {.run = run, .markup = call->subject.markup};
    struct text text = value_text(call->subject), separator;
    if (!jinja_need_string(run, call->given[0], "partition", &separator) ||
        !jinja_charge(run, (size_t)text.length * (last ? separator.length : 1)))
        return false;
    if (separator.length == 0)
        return jinja_refuse(run, "partition needs a separator that is not empty");
    ssize_t found =
        last ? jinja_text_find_last(text, separator) : jinja_text_find(text, separator, 0);
    size_t first = found < 0 ? (last ? 0 : text.length) : (size_t)found;
    size_t second = found < 0 ? first : first + separator.length;
    if (!jinja_list_new(run, VALUE_TUPLE, 3, out))
        return false;
    splitter.parts = out->list;
    return part_add(&splitter, text, 0, first) && part_add(&splitter, text, first, second) &&
           part_add(&splitter, text, second, text.length);
}

static bool method_partition(struct run *run, const struct call *call, struct value *out)
{
    return partition(run, call, false, out);
}

static bool method_rpartition(struct run *run, const struct call *call, struct value *out)
{
    return partition(run, call, true, out);
}

static const struct builtin methods[] = {
    BUILTIN("split", method_split, 0, "sep", "maxsplit"),
    BUILTIN("rsplit", method_rsplit, 0, "sep", "maxsplit"),
    BUILTIN("splitlines", method_splitlines, 0, "keepends"),
    BUILTIN("partition", method_partition, 1, "sep"),
    BUILTIN("rpartition", method_rpartition, 1, "sep"),
};
const struct builtin_table jinja_split_methods = BUILTIN_TABLE(methods);
