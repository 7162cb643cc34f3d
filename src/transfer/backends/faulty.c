/* SPDX-License-Identifier: Apache-2.0 */
/* faulty: a medium that misbehaves, around any backend, for tests. "faulty:tcp:loss=5:delay_us=200"
 * in the list of backends carries the name tcp on the wire; only what this side copies is touched.
 *
 *   delay_us=N     every batch waits N us
 *   loss=P         P percent of the runs are not copied, but counted
 *   truncate=P     P percent of the runs lose their second half, but count in full
 *   reorder=1      a batch is copied from its end to its beginning
 *   stall_after=B  after B bytes a lane takes nothing more, for ever
 *   fail_after=B   after B bytes the medium reports an error
 *   die_after=B    after B bytes the process kills itself (SIGKILL)
 *   stop_after=B   after B bytes the process stops itself (SIGSTOP)
 *   seed=N         for the percentages */
#include "transfer/backend.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fault {
    const struct backend_ops *inner;
    uint64_t delay_us, loss, truncate, reorder, stall_after, fail_after, die_after, stop_after,
        seed;
    _Atomic uint64_t draws;
    _Atomic uint64_t bytes;
    _Atomic bool stopped;
};

int fault_parse(const char *spec, const struct backend_ops **inner, struct fault **out,
                struct error err)
{
    char copy[256];
    char *rest = NULL;
    snprintf(copy, sizeof(copy), "%s", spec);
    char *word = strtok_r(copy, ":", &rest);
    char why[160] = "a name is missing";
    const struct backend_ops *ops = word ? backend_get(word, ERROR_BUFFER(why)) : NULL;
    if (!ops)
        return error_set(err, BATON_EINVAL, "faulty: %s", why);
    struct fault *fault = calloc(1, sizeof(*fault));
    if (!fault)
        return error_set(err, BATON_ENOMEM, "out of memory for a fault");
    fault->inner = ops;
    const struct {
        const char *name;
        uint64_t *value;
    } fields[] = {
        {"delay_us", &fault->delay_us},
        {"loss", &fault->loss},
        {"truncate", &fault->truncate},
        {"reorder", &fault->reorder},
        {"stall_after", &fault->stall_after},
        {"fail_after", &fault->fail_after},
        {"die_after", &fault->die_after},
        {"stop_after", &fault->stop_after},
        {"seed", &fault->seed},
    };
    while ((word = strtok_r(NULL, ":", &rest))) {
        char *equals = strchr(word, '=');
        bool known = false;
        for (size_t i = 0; equals && i < sizeof(fields) / sizeof(fields[0]); i++) {
            if (strlen(fields[i].name) == (size_t)(equals - word) &&
                strncmp(word, fields[i].name, (size_t)(equals - word)) == 0) {
                *fields[i].value = strtoull(equals + 1, NULL, 10);
                known = true;
            }
        }
        if (!known) {
            free(fault);
            return error_set(err, BATON_EINVAL, "faulty: '%s' is no fault", word);
        }
    }
    *inner = ops;
    *out = fault;
    return BATON_OK;
}

void fault_free(struct fault *fault)
{
    free(fault);
}

static uint64_t fault_draw(struct fault *fault)
{
    uint64_t x = fault->seed * 0x9e3779b97f4a7c15ull + atomic_fetch_add(&fault->draws, 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (x ^ x >> 31) % 100;
}

/* One run, whole, half, or not at all; the caller counts it in full. */
static int fault_copy_run(struct fault *fault, struct lane *lane, struct plan_run run)
{
    if (fault->loss && fault_draw(fault) < fault->loss)
        return 1;
    if (fault->truncate && fault_draw(fault) < fault->truncate && run.length > 1)
        run.length /= 2;
    return fault->inner->copy(lane, &run, 1);
}

int fault_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    struct fault *fault = (struct fault *)(uintptr_t)lane->copy->endpoint->fault;
    uint64_t bytes = atomic_load(&fault->bytes);
    if (fault->die_after && bytes >= fault->die_after)
        kill(getpid(), SIGKILL);
    if (fault->stop_after && bytes >= fault->stop_after &&
        !atomic_exchange(&fault->stopped, true))
        kill(getpid(), SIGSTOP);
    if (fault->stall_after && bytes >= fault->stall_after)
        return 0;
    if (fault->fail_after && bytes >= fault->fail_after) {
        snprintf(lane->error_text, sizeof(lane->error_text),
                 "the faulty medium failed as it was told to");
        return BATON_ESYSTEM;
    }
    if (fault->delay_us)
        usleep((useconds_t)fault->delay_us);
    if (fault->reorder && runs == lane->runs) {
        /* The batch is the lane's own array: its order is ours to change before any is taken. */
        for (uint32_t i = 0; i < count / 2; i++) {
            struct plan_run swap = lane->runs[i];
            lane->runs[i] = lane->runs[count - 1 - i];
            lane->runs[count - 1 - i] = swap;
        }
    }
    uint32_t taken = 0;
    for (; taken < count; taken++) {
        int done = fault_copy_run(fault, lane, runs[taken]);
        if (done < 0)
            return done;
        if (done == 0)
            break;
        atomic_fetch_add(&fault->bytes, runs[taken].length);
    }
    return (int)taken;
}
