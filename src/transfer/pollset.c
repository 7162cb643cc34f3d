/* SPDX-License-Identifier: Apache-2.0 */
/* Poll sets: the words of many rooms, read in one sweep. A group's state is the smallest of its
 * members', so a room over several ranks is one entry. */
#include "base/clock.h"
#include "manager.h"
#include "room.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct pollset_member {
    const struct room *room;
    uint32_t generation;
    uint32_t group;
};

struct baton_pollset {
    uint32_t capacity;
    uint32_t member_count, member_capacity;
    struct pollset_member *members; /* by group, ascending: one pass computes the minima */
    uint8_t *last;                  /* states of the last call, 255 before the first */
};

int baton_pollset_open(uint32_t capacity, baton_pollset **out)
{
    if (!out || capacity == 0)
        return BATON_EINVAL;
    struct baton_pollset *set = calloc(1, sizeof(*set));
    if (!set)
        return BATON_ENOMEM;
    set->capacity = capacity;
    set->last = malloc(capacity);
    if (!set->last) {
        free(set);
        return BATON_ENOMEM;
    }
    memset(set->last, 255, capacity);
    *out = set;
    return BATON_OK;
}

void baton_pollset_close(baton_pollset *set)
{
    if (!set)
        return;
    free(set->members);
    free(set->last);
    free(set);
}

static int pollset_add(baton_pollset *set, uint32_t group, const struct room *room)
{
    if (group >= set->capacity)
        return BATON_EINVAL;
    if (set->member_count == set->member_capacity) {
        uint32_t capacity = set->member_capacity ? set->member_capacity * 2 : set->capacity;
        struct pollset_member *members = realloc(set->members, capacity * sizeof(*members));
        if (!members)
            return BATON_ENOMEM;
        set->members = members;
        set->member_capacity = capacity;
    }
    uint32_t at = set->member_count++;
    for (; at > 0 && set->members[at - 1].group > group; at--)
        set->members[at] = set->members[at - 1];
    set->members[at] =
        (struct pollset_member){.room = room, .generation = room->generation, .group = group};
    set->last[group] = 255;
    return BATON_OK;
}

int baton_pollset_add_sender(baton_pollset *set, uint32_t group, baton_sender *sender)
{
    return set && sender ? pollset_add(set, group, sender_room(sender)) : BATON_EINVAL;
}

int baton_pollset_add_receiver(baton_pollset *set, uint32_t group, baton_receiver *receiver)
{
    return set && receiver ? pollset_add(set, group, receiver_room(receiver)) : BATON_EINVAL;
}

int baton_pollset_clear(baton_pollset *set, uint32_t group)
{
    if (!set || group >= set->capacity)
        return BATON_EINVAL;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < set->member_count; i++)
        if (set->members[i].group != group)
            set->members[kept++] = set->members[i];
    set->member_count = kept;
    set->last[group] = 255;
    return BATON_OK;
}

int baton_poll_many(baton_pollset *set, uint8_t *states, uint32_t count)
{
    if (!set || (count && !states))
        return BATON_EINVAL;
    if (count > set->capacity)
        count = set->capacity;
    memset(states, BATON_SUCCESS, count);
    const struct manager *ticked = NULL;
    for (uint32_t i = 0; i < set->member_count && set->members[i].group < count; i++) {
        const struct pollset_member *member = &set->members[i];
        uint64_t word = atomic_load_explicit(&member->room->word, memory_order_acquire);
        uint8_t state = word >> 32 == member->generation ? (uint8_t)word : BATON_FAILED;
        if (state < states[member->group])
            states[member->group] = state;
        if (member->room->manager != ticked) {
            ticked = member->room->manager;
            baton_manager_tick((baton_manager *)(uintptr_t)ticked);
        }
    }
    int changed = 0;
    for (uint32_t i = 0; i < count; i++) {
        changed += states[i] != set->last[i];
        set->last[i] = states[i];
    }
    return changed;
}

int baton_pollset_wait(baton_pollset *set, uint8_t *states, uint32_t count, uint32_t timeout_ms)
{
    if (!set || !states)
        return BATON_EINVAL;
    if (set->member_count == 0) {
        usleep(timeout_ms * 1000);
        return baton_poll_many(set, states, count);
    }
    struct runtime *runtime = set->members[0].room->manager->runtime;
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    for (;;) {
        /* The number first, then the states: a change in between makes the futex return at once. */
        uint32_t seen = atomic_load_explicit(&runtime->changes, memory_order_seq_cst);
        int changed = baton_poll_many(set, states, count);
        if (changed)
            return changed;
        clock_gettime(CLOCK_MONOTONIC, &now);
        struct timespec left = {end.tv_sec - now.tv_sec, end.tv_nsec - now.tv_nsec};
        if (left.tv_nsec < 0) {
            left.tv_sec--;
            left.tv_nsec += 1000000000;
        }
        if (left.tv_sec < 0)
            return 0;
        atomic_fetch_add_explicit(&runtime->waiters, 1, memory_order_seq_cst);
        syscall(SYS_futex, &runtime->changes, FUTEX_WAIT_PRIVATE, seen, &left, NULL, 0);
        atomic_fetch_sub_explicit(&runtime->waiters, 1, memory_order_seq_cst);
    }
}
