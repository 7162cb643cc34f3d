/* SPDX-License-Identifier: Apache-2.0 */
/* See sampler_select.h: a quickselect that stops by count or by weight. */
#include "sampler_select.h"

#include <stdlib.h>

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate kept = *a;
    *a = *b;
    *b = kept;
}

/* Takes the median of the first, the middle and the last one to the end as the pivot, and returns
 * where it belongs, with all that come before it to its left. */
static uint32_t partition(struct candidate *c, uint32_t from, uint32_t to)
{
    uint32_t middle = from + (to - from) / 2, last = to - 1;
    if (candidate_before(&c[middle], &c[from]))
        swap(&c[middle], &c[from]);
    if (candidate_before(&c[last], &c[from]))
        swap(&c[last], &c[from]);
    if (candidate_before(&c[middle], &c[last]))
        swap(&c[middle], &c[last]);
    uint32_t place = from;
    for (uint32_t i = from; i < last; i++)
        if (candidate_before(&c[i], &c[last]))
            swap(&c[i], &c[place++]);
    swap(&c[place], &c[last]);
    return place;
}

static double weight_of(const struct candidate *c, uint32_t from, uint32_t to)
{
    double sum = 0;
    for (uint32_t i = from; i < to; i++)
        sum += (double)c[i].weight;
    return sum;
}

uint32_t candidates_head(struct candidate *c, uint32_t count, uint32_t most, double mass)
{
    uint32_t from = 0, to = count; /* the last of the head is in here */
    double before = 0;             /* weight of those left of `from` */
    if (most > count)
        most = count;
    while (to - from > 1) {
        uint32_t pivot = partition(c, from, to);
        double left = before + weight_of(c, from, pivot);
        double with_pivot = left + (double)c[pivot].weight;
        if (pivot > from && (pivot >= most || left >= mass)) {
            to = pivot;
        } else if (pivot + 1 >= most || with_pivot >= mass) {
            return pivot + 1;
        } else {
            from = pivot + 1;
            before = with_pivot;
        }
    }
    /* One is left, and it ends the head. None is left where sums in another order were rounded
     * to just below the mass: then the next one, if there is one, ends it. */
    return from < count ? from + 1 : count;
}

static int compare(const void *a, const void *b)
{
    return candidate_before(a, b) ? -1 : 1;
}

void candidates_sort(struct candidate *candidates, uint32_t count)
{
    qsort(candidates, count, sizeof(*candidates), compare);
}
