/* SPDX-License-Identifier: Apache-2.0 */
/* See kv_backup.h. */
#include "kv_backup.h"

#include <stdlib.h>
#include <string.h>

static char *page_address(const struct kv_memory *memory, uint32_t rank, int32_t page)
{
    return (char *)baton_pool_address(memory->pools[rank]) +
           (uint64_t)page * memory->layout.page_stride;
}

static char *copy_address(const struct kv_memory *memory, const struct kv_backup *backup,
                          uint32_t rank, uint32_t page)
{
    uint64_t number = (uint64_t)rank * backup->pages + page;
    return (char *)backup->data + number * memory->layout.page_stride;
}

struct kv_backup *kv_backup_save(struct kv_backups *backups, const int32_t *pages,
                                 uint32_t tokens)
{
    const struct kv_memory *memory = backups->memory;
    if (!memory || tokens == 0)
        return NULL;
    uint32_t count = page_layout_pages(&memory->layout, tokens);
    uint64_t bytes = (uint64_t)count * memory->rank_count * memory->layout.page_stride;
    if (bytes > backups->bytes_max - backups->bytes)
        return NULL;
    struct kv_backup *backup = malloc(sizeof(*backup) + bytes);
    if (!backup)
        return NULL;
    backup->tokens = tokens;
    backup->pages = count;
    backup->bytes = bytes;
    for (uint32_t rank = 0; rank < memory->rank_count; rank++)
        for (uint32_t i = 0; i < count; i++)
            memcpy(copy_address(memory, backup, rank, i), page_address(memory, rank, pages[i]),
                   memory->layout.page_stride);
    backups->bytes += bytes;
    return backup;
}

void kv_backup_restore(const struct kv_backups *backups, const struct kv_backup *backup,
                       const int32_t *pages, uint32_t first)
{
    const struct kv_memory *memory = backups->memory;
    for (uint32_t rank = 0; rank < memory->rank_count; rank++)
        for (uint32_t i = first; i < backup->pages; i++)
            memcpy(page_address(memory, rank, pages[i]), copy_address(memory, backup, rank, i),
                   memory->layout.page_stride);
}

void kv_backup_drop(struct kv_backups *backups, struct kv_backup *backup)
{
    if (!backup)
        return;
    backups->bytes -= backup->bytes;
    free(backup);
}
