/* SPDX-License-Identifier: Apache-2.0 */
/* baton_pool_alloc: a memfd, sealed against shrinking (a peer that maps it must not be killed by our
 * truncating it), mapped and populated here. Pools are kept in a list under a lock, because
 * managers of any thread look their bases up in it when they open a link. */
#include "pool.h"

#include "manager.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct baton_pool {
    struct baton_pool *next;
    void *address;
    uint64_t bytes;
    int fd;
};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct baton_pool *pool_list;

int baton_pool_alloc(uint64_t bytes, baton_pool **out, char *err_text, size_t err_size)
{
    struct error err = {err_text, err_size};
    long page = sysconf(_SC_PAGESIZE);
    if (!out || bytes == 0 || bytes > (1ull << 46))
        return error_set(err, BATON_EINVAL, "a pool of %llu bytes", (unsigned long long)bytes);
    bytes = (bytes + (uint64_t)page - 1) / (uint64_t)page * (uint64_t)page;
    struct baton_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return error_set(err, BATON_ENOMEM, "out of memory for a pool");
    pool->bytes = bytes;
    pool->fd = memfd_create("baton-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (pool->fd < 0) {
        error_set(err, BATON_ESYSTEM,
                  "cannot create a memfd: %s; raise the limit of open files (ulimit -n)",
                  strerror(errno));
        goto free_pool;
    }
    if (ftruncate(pool->fd, (off_t)bytes) != 0 ||
        fcntl(pool->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
        fallocate(pool->fd, 0, 0, (off_t)bytes) != 0) {
        error_set(err, BATON_ENOMEM, "cannot get %llu bytes of shared memory: %s",
                  (unsigned long long)bytes, strerror(errno));
        goto close_fd;
    }
    pool->address =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, pool->fd, 0);
    if (pool->address == MAP_FAILED) {
        error_set(err, BATON_ENOMEM, "cannot map a pool of %llu bytes: %s",
                  (unsigned long long)bytes, strerror(errno));
        goto close_fd;
    }
    pthread_mutex_lock(&pool_lock);
    pool->next = pool_list;
    pool_list = pool;
    pthread_mutex_unlock(&pool_lock);
    *out = pool;
    return BATON_OK;

close_fd:
    close(pool->fd);
free_pool:
    free(pool);
    return BATON_ESYSTEM;
}

void *baton_pool_address(const baton_pool *pool)
{
    return pool->address;
}

void baton_pool_free(baton_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool_lock);
    for (struct baton_pool **slot = &pool_list; *slot; slot = &(*slot)->next) {
        if (*slot == pool) {
            *slot = pool->next;
            break;
        }
    }
    pthread_mutex_unlock(&pool_lock);
    munmap(pool->address, pool->bytes);
    close(pool->fd);
    free(pool);
}

static struct baton_pool *pool_holding(uint64_t address, uint64_t bytes)
{
    for (struct baton_pool *pool = pool_list; pool; pool = pool->next) {
        uint64_t start = (uint64_t)(uintptr_t)pool->address;
        if (address >= start && bytes <= pool->bytes && address - start <= pool->bytes - bytes)
            return pool;
    }
    return NULL;
}

/* The distinct pools of the manager's bases, in order; under pool_lock. */
static uint32_t pool_collect(struct manager *manager, struct baton_pool **pools, uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < manager->region_count; r++) {
        const struct layout *layout = &manager->regions[r].layout;
        for (uint32_t b = 0; b < layout->base_count; b++) {
            struct baton_pool *pool =
                pool_holding(layout->bases[b].address, layout->bases[b].bytes);
            bool known = !pool;
            for (uint32_t i = 0; i < count; i++)
                known |= pools[i] == pool;
            if (!known && count < max)
                pools[count++] = pool;
        }
    }
    return count;
}

uint32_t pool_fds(struct manager *manager, int *fds, uint32_t max)
{
    struct baton_pool *pools[64];
    pthread_mutex_lock(&pool_lock);
    uint32_t count = pool_collect(manager, pools, max < 64 ? max : 64);
    for (uint32_t i = 0; i < count; i++)
        fds[i] = pools[i]->fd;
    pthread_mutex_unlock(&pool_lock);
    return count;
}

bool pool_locate(struct manager *manager, uint64_t address, uint64_t bytes, uint32_t *index,
                 uint64_t *offset)
{
    struct baton_pool *pools[64];
    bool found = false;
    pthread_mutex_lock(&pool_lock);
    uint32_t count = pool_collect(manager, pools, 64);
    struct baton_pool *pool = pool_holding(address, bytes);
    for (uint32_t i = 0; pool && i < count; i++) {
        if (pools[i] == pool) {
            *index = i;
            *offset = address - (uint64_t)(uintptr_t)pool->address;
            found = true;
        }
    }
    pthread_mutex_unlock(&pool_lock);
    return found;
}
