/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of upstreams: made anew at every change, sorted by role, and let go by their last holder. */
#include "upstream.h"

#include "base/clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct upstream_table {
    pthread_mutex_t mutex;
    struct upstream_set *current;
};

/* ---- lists ---------------------------------------------------------------------------------- */

struct upstream_set *upstream_set_hold(struct upstream_set *set)
{
    atomic_fetch_add_explicit(&set->holders, 1, memory_order_relaxed);
    return set;
}

void upstream_set_release(struct upstream_set *set)
{
    if (!set || atomic_fetch_sub_explicit(&set->holders, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < set->count; i++)
        upstream_release(set->items[i]);
    free(set);
}

void upstream_set_count(const struct upstream_set *set, enum upstream_role role,
                        uint32_t *there, uint32_t *usable)
{
    uint64_t now = clock_now_ns();
    *there = set->first[role + 1] - set->first[role];
    *usable = 0;
    for (uint32_t i = set->first[role]; i < set->first[role + 1]; i++)
        *usable += upstream_usable(set->items[i], now);
}

/* What `old` has, without one of them, and with another; either may be NULL. */
static struct upstream_set *set_make(const struct upstream_set *old,
                                     const struct upstream *without, struct upstream *with)
{
    uint32_t most = (old ? old->count : 0) + 1;
    struct upstream_set *set = calloc(1, sizeof(*set) + most * sizeof(set->items[0]));
    if (!set)
        return NULL;
    atomic_init(&set->holders, 1);
    for (uint32_t role = 0; role < UPSTREAM_ROLES; role++) {
        set->first[role] = set->count;
        for (uint32_t i = 0; old && i < old->count; i++)
            if (old->items[i]->role == role && old->items[i] != without)
                set->items[set->count++] = upstream_hold(old->items[i]);
        if (with && with->role == role)
            set->items[set->count++] = with;
    }
    set->first[UPSTREAM_ROLES] = set->count;
    return set;
}

/* ---- the table ------------------------------------------------------------------------------ */

int upstream_table_open(struct upstream_table **out, struct error err)
{
    struct upstream_table *table = calloc(1, sizeof(*table));
    struct upstream_set *empty = set_make(NULL, NULL, NULL);
    if (!table || !empty) {
        free(table);
        free(empty);
        return error_set(err, BATON_ENOMEM, "out of memory for the list of workers");
    }
    pthread_mutex_init(&table->mutex, NULL);
    table->current = empty;
    *out = table;
    return BATON_OK;
}

void upstream_table_close(struct upstream_table *table)
{
    if (!table)
        return;
    upstream_set_release(table->current);
    pthread_mutex_destroy(&table->mutex);
    free(table);
}

struct upstream_set *upstream_table_get(struct upstream_table *table)
{
    pthread_mutex_lock(&table->mutex);
    struct upstream_set *set = upstream_set_hold(table->current);
    pthread_mutex_unlock(&table->mutex);
    return set;
}

static struct upstream *set_find(const struct upstream_set *set, const char *name)
{
    size_t length = strlen(name);
    while (length && name[length - 1] == '/')
        length--;
    for (uint32_t i = 0; i < set->count; i++) {
        char number[24];
        snprintf(number, sizeof(number), "%" PRIu64, set->items[i]->number);
        if ((strncmp(set->items[i]->url, name, length) == 0 && !set->items[i]->url[length]) ||
            strcmp(number, name) == 0)
            return set->items[i];
    }
    return NULL;
}

/* With the mutex held. */
static int table_replace(struct upstream_table *table, const struct upstream *without,
                         struct upstream *with, struct error err)
{
    struct upstream_set *set = set_make(table->current, without, with);
    if (!set)
        return error_set(err, BATON_ENOMEM, "out of memory for the list of workers");
    upstream_set_release(table->current);
    table->current = set;
    return BATON_OK;
}

int upstream_table_add(struct upstream_table *table, struct upstream *upstream,
                       struct error err)
{
    int rc;
    pthread_mutex_lock(&table->mutex);
    if (set_find(table->current, upstream->url))
        rc = error_set(err, BATON_EEXIST, "%s is in the list already", upstream->url);
    else if (table->current->count == UPSTREAMS_MAX)
        rc = error_set(err, BATON_ELIMIT, "there are %d workers, and more are not possible",
                       UPSTREAMS_MAX);
    else
        rc = table_replace(table, NULL, upstream, err);
    pthread_mutex_unlock(&table->mutex);
    return rc;
}

int upstream_table_remove(struct upstream_table *table, const char *name, struct error err)
{
    pthread_mutex_lock(&table->mutex);
    const struct upstream *found = set_find(table->current, name);
    int rc = found ? table_replace(table, found, NULL, err)
                   : error_set(err, BATON_ENOTFOUND, "there is no worker \"%.200s\"", name);
    pthread_mutex_unlock(&table->mutex);
    return rc;
}
