/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons. They recurse into containers, which a template can make as deep as it likes, or
 * even circular: so they count depth and steps like everything else. */
#include "template_compare.h"

#include "template_run.h"
#include "template_text.h"

#include <string.h>

static bool is_number(struct value value)
{
    return value.type == VALUE_BOOLEAN || value.type == VALUE_INTEGER ||
           value.type == VALUE_FLOAT;
}

static int64_t integer_of(struct value value)
{
    return value.type == VALUE_BOOLEAN ? value.boolean : value.integer;
}

/* -1, 0, 1, or 2 where a NaN is involved. Exact also where an integer has no double. */
static int compare_integer_float(int64_t integer, double number)
{
    if (number != number)
        return 2;
    if (number >= 9223372036854775808.0)
        return -1;
    if (number < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)number;
    if (integer != whole)
        return integer < whole ? -1 : 1;
    double rest = number - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int compare_numbers(struct value left, struct value right)
{
    if (left.type == VALUE_FLOAT && right.type == VALUE_FLOAT) {
        if (left.number != left.number || right.number != right.number)
            return 2;
        return left.number < right.number ? -1 : left.number > right.number;
    }
    if (right.type == VALUE_FLOAT)
        return compare_integer_float(integer_of(left), right.number);
    if (left.type == VALUE_FLOAT) {
        int reversed = compare_integer_float(integer_of(right), left.number);
        return reversed == 2 ? 2 : -reversed;
    }
    int64_t a = integer_of(left), b = integer_of(right);
    return a < b ? -1 : a > b;
}

/* UTF-8 sorts by bytes as its code points do. */
static int compare_strings(struct value left, struct value right)
{
    uint32_t shorter = left.length < right.length ? left.length : right.length;
    int order = shorter ? memcmp(left.bytes, right.bytes, shorter) : 0;
    if (order == 0)
        order = left.length < right.length ? -1 : left.length > right.length;
    return order;
}

static bool lists_equal(struct run *run, const struct list *left, const struct list *right,
                        bool *out)
{
    *out = left->count == right->count;
    for (size_t i = 0; i < left->count && i < right->count && *out; i++)
        if (!jinja_equal(run, left->items[i], right->items[i], out))
            return false;
    return true;
}

static bool dicts_equal(struct run *run, const struct dict *left, const struct dict *right,
                        bool *out)
{
    *out = left->count == right->count;
    for (size_t i = 0; i < left->count && *out; i++) {
        struct entry *other;
        if (!jinja_dict_get(run, right, left->entries[i].key, &other))
            return false;
        *out = other != NULL;
        if (other && !jinja_equal(run, left->entries[i].value, other->value, out))
            return false;
    }
    return true;
}

static bool ranges_equal(const struct range *left, const struct range *right)
{
    return left->count == right->count &&
           (left->count == 0 ||
            (left->start == right->start && (left->count == 1 || left->step == right->step)));
}

bool jinja_same(struct value left, struct value right)
{
    if (left.type != right.type)
        return false;
    switch ((enum value_type)left.type) {
    case VALUE_UNDEFINED: return false;
    case VALUE_NONE: return true;
    case VALUE_BOOLEAN: return left.boolean == right.boolean;
    case VALUE_INTEGER: return left.integer == right.integer;
    case VALUE_FLOAT: return left.number == right.number;
    case VALUE_STRING: return compare_strings(left, right) == 0;
    case VALUE_METHOD: return false;
    default: return left.list == right.list; /* whatever it points to */
    }
}

bool jinja_equal(struct run *run, struct value left, struct value right, bool *out)
{
    if (!jinja_charge(run, left.type == VALUE_STRING ? left.length : 0))
        return false;
    *out = false;
    if (is_number(left) && is_number(right)) {
        *out = compare_numbers(left, right) == 0;
        return true;
    }
    if (left.type != right.type)
        return true;
    switch ((enum value_type)left.type) {
    case VALUE_UNDEFINED: *out = true; return true;
    case VALUE_STRING: *out = compare_strings(left, right) == 0; return true;
    case VALUE_RANGE: *out = ranges_equal(left.range, right.range); return true;
    case VALUE_LIST:
    case VALUE_TUPLE:
        if (!jinja_enter(run) || !lists_equal(run, left.list, right.list, out))
            return false;
        break;
    case VALUE_DICT:
        if (!jinja_enter(run) || !dicts_equal(run, left.dict, right.dict, out))
            return false;
        break;
    default: *out = jinja_same(left, right); return true;
    }
    jinja_leave(run);
    return true;
}

static bool order(struct run *run, struct value left, struct value right, bool or_equal,
                  bool *out);

/* The first items that differ decide; if there are none, the shorter list comes first. */
static bool lists_order(struct run *run, const struct list *left, const struct list *right,
                        bool or_equal, bool *out)
{
    for (size_t i = 0; i < left->count && i < right->count; i++) {
        bool equal;
        if (!jinja_equal(run, left->items[i], right->items[i], &equal))
            return false;
        if (!equal)
            return order(run, left->items[i], right->items[i], or_equal, out);
    }
    *out = or_equal ? left->count <= right->count : left->count < right->count;
    return true;
}

static bool order(struct run *run, struct value left, struct value right, bool or_equal,
                  bool *out)
{
    if (!jinja_charge(run, left.type == VALUE_STRING ? left.length : 0))
        return false;
    if (is_number(left) && is_number(right)) {
        int result = compare_numbers(left, right);
        *out = result == -1 || (or_equal && result == 0);
        return true;
    }
    if (left.type == VALUE_STRING && right.type == VALUE_STRING) {
        int result = compare_strings(left, right);
        *out = result < 0 || (or_equal && result == 0);
        return true;
    }
    if (left.type == right.type && (left.type == VALUE_LIST || left.type == VALUE_TUPLE)) {
        if (!jinja_enter(run) || !lists_order(run, left.list, right.list, or_equal, out))
            return false;
        jinja_leave(run);
        return true;
    }
    return jinja_refuse(run, "%s and %s have no order", jinja_type_name(left),
                        jinja_type_name(right));
}

bool jinja_less(struct run *run, struct value left, struct value right, bool *out)
{
    return order(run, left, right, false, out);
}

bool jinja_less_equal(struct run *run, struct value left, struct value right, bool *out)
{
    return order(run, left, right, true, out);
}

static bool items_contain(struct run *run, struct value container, struct value item, bool *out)
{
    struct iteration iteration;
    struct value next;
    *out = false;
    if (!jinja_iterate(run, container, &iteration))
        return false;
    while (!*out) {
        if (!jinja_iterate_next(run, &iteration, &next))
            return false;
        if (!value_given(next))
            break;
        if (!jinja_equal(run, next, item, out))
            return false;
    }
    return true;
}

bool jinja_contains(struct run *run, struct value container, struct value item, bool *out)
{
    struct entry *entry;
    switch ((enum value_type)container.type) {
    case VALUE_STRING:
        if (item.type != VALUE_STRING)
            return jinja_refuse(run, "only a string can be in a string, not %s",
                                jinja_type_name(item));
        *out = jinja_text_find(value_text(container), value_text(item), 0) >= 0;
        return jinja_charge(run, container.length);
    case VALUE_DICT:
        if (!jinja_dict_get(run, container.dict, item, &entry))
            return false;
        *out = entry != NULL;
        return true;
    default: return items_contain(run, container, item, out);
    }
}

/* ---- sorting ----------------------------------------------------------------------------- */

struct sorting {
    struct run *run;
    struct value *items, *keys;             /* what is sorted */
    struct value *spare_items, *spare_keys; /* room for half of a merge */
    bool reverse;
};

/* Does the right one belong before the left one? Equal ones stay. */
static bool sort_swaps(struct sorting *sorting, struct value left, struct value right,
                       bool *out)
{
    return sorting->reverse ? jinja_less(sorting->run, left, right, out)
                            : jinja_less(sorting->run, right, left, out);
}

/* Merges two sorted neighbours: [first, middle) and [middle, end). */
static bool sort_merge(struct sorting *sorting, size_t first, size_t middle, size_t end)
{
    size_t lefts = middle - first, left = 0, right = middle, to = first;
    memcpy(sorting->spare_items, sorting->items + first, lefts * sizeof(struct value));
    memcpy(sorting->spare_keys, sorting->keys + first, lefts * sizeof(struct value));
    while (left < lefts && right < end) {
        bool swap;
        if (!sort_swaps(sorting, sorting->spare_keys[left], sorting->keys[right], &swap))
            return false;
        sorting->items[to] = swap ? sorting->items[right] : sorting->spare_items[left];
        sorting->keys[to] = swap ? sorting->keys[right] : sorting->spare_keys[left];
        to++;
        if (swap)
            right++;
        else
            left++;
    }
    memcpy(sorting->items + to, sorting->spare_items + left,
           (lefts - left) * sizeof(struct value));
    memcpy(sorting->keys + to, sorting->spare_keys + left,
           (lefts - left) * sizeof(struct value));
    return true;
}

bool jinja_sort(struct run *run, struct value *items, struct value *keys, size_t count,
                bool reverse)
{
    struct sorting sorting = {.run = run, .items = items, .keys = keys, .reverse = reverse};
    if (count < 2)
        return true;
    sorting.spare_items = jinja_alloc(run, count, sizeof(*items));
    sorting.spare_keys = jinja_alloc(run, count, sizeof(*keys));
    if (!sorting.spare_items || !sorting.spare_keys)
        return false;
    for (size_t width = 1; width < count; width *= 2)
        for (size_t first = 0; count - first > width; first += 2 * width) {
            size_t end = count - first > 2 * width ? first + 2 * width : count;
            if (!sort_merge(&sorting, first, first + width, end))
                return false;
            if (end == count)
                break;
        }
    return true;
}
