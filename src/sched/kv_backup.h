/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of a generation's pages outside of the pool. A decode worker that runs out of pages keeps those
 * of a retracted generation here: copying them back costs a memory copy, computing them anew a prompt. */
#ifndef BATON_SCHED_KV_BACKUP_H
#define BATON_SCHED_KV_BACKUP_H

#include "kv_memory.h"

struct kv_backup {
    uint32_t tokens; /* whose K and V are in it */
    uint32_t pages;
    uint64_t bytes;
    char data[]; /* [rank][page] */
};

/* Where copies are kept and how much they may take. */
struct kv_backups {
    const struct kv_memory *memory; /* NULL: no copies are made */
    uint64_t bytes, bytes_max;
};

/* NULL: none is made, because that is not wanted, there is no room, or no memory. */
struct kv_backup *kv_backup_save(struct kv_backups *backups, const int32_t *pages,
                                 uint32_t tokens);
/* Into pages[first] and those after it, which are the same place in the sequence. */
void kv_backup_restore(const struct kv_backups *backups, const struct kv_backup *backup,
                       const int32_t *pages, uint32_t first);
void kv_backup_drop(struct kv_backups *backups, struct kv_backup *backup); /* NULL is fine */

#endif
