/* SPDX-License-Identifier: Apache-2.0 */
/* shm: the peer's pools are memfds that it passed to us over AF_UNIX; we map them and copy straight
 * into the destination page. One copy, no system call, as fast as this core's memcpy.
 *
 * The key in REGISTER says where each base lies: u32 count, then per base (region by region) u32
 * index of the memfd and u64 offset. Mapping is quick and done on the link thread; populating the
 * page tables of a large pool is not, so a worker does it in pieces while copies may already run.
 *
 * The writer is another process: only its FENCED or its exit proves that it has stopped, so a peer
 * whose exit we cannot see (no pidfd) is not reached by shm. */
#include "transfer/backend.h"
#include "transfer/link.h"
#include "transfer/manager.h"
#include "transfer/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define SHM_POPULATE_STEP (16u << 20)

struct shm_mapping {
    uint8_t *address;
    uint64_t bytes;
};

struct shm_state {
    struct worker_job populate;
    struct worker *worker;
    struct manager *manager;
    uint64_t populated; /* owner: worker */
    uint32_t populate_at;
    atomic_bool closing;
    struct shm_mapping mappings[PEER_FDS_MAX];
    uint32_t mapping_count;
    uint8_t **bases[WIRE_REGIONS_MAX]; /* [region][base] in our address space */
    uint32_t region_count;
};

static int shm_available(char *why, size_t why_size)
{
    int fd = memfd_create("baton-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        snprintf(why, why_size, "memfd_create: %s", strerror(errno));
        return -1;
    }
    close(fd);
    why[0] = 0;
    return 0;
}

static int shm_export_key(struct manager *manager, void *state, uint8_t **key,
                          uint32_t *key_bytes, struct error err)
{
    (void)state;
    uint32_t count = 0;
    for (uint32_t r = 0; r < manager->region_count; r++)
        count += manager->regions[r].layout.base_count;
    uint8_t *bytes = malloc(4 + (size_t)count * 12);
    if (!bytes)
        return error_set(err, BATON_ENOMEM, "out of memory for the shm key");
    memcpy(bytes, &count, 4);
    uint8_t *at = bytes + 4;
    for (uint32_t r = 0; r < manager->region_count; r++) {
        const struct layout *layout = &manager->regions[r].layout;
        for (uint32_t b = 0; b < layout->base_count; b++, at += 12) {
            uint32_t index = UINT32_MAX;
            uint64_t offset = 0;
            pool_locate(manager, layout->bases[b].address, layout->bases[b].bytes, &index,
                        &offset);
            memcpy(at, &index, 4);
            memcpy(at + 4, &offset, 8);
        }
    }
    *key = bytes;
    *key_bytes = 4 + count * 12;
    return BATON_OK;
}

/* The writer maps the reader's pools; the reader only needs the writer's death to be provable. */
static int shm_can_reach(struct manager *manager, void *state, struct peer *peer,
                         struct error why)
{
    (void)state;
    if (!peer->same_host)
        return error_set(why, BATON_EUNREACHABLE, "the peer is on another host");
    if (peer->pid_fd < 0)
        return error_set(why, BATON_EUNREACHABLE,
                         "the peer's process cannot be watched from here");
    /* Asked on both sides. On the receiving side our own pools matter, on the sending side theirs;
     * the side that passed descriptors is the receiving one. */
    if (peer->memory.attach == 0) {
        for (uint32_t r = 0; r < manager->region_count; r++) {
            const struct layout *layout = &manager->regions[r].layout;
            for (uint32_t b = 0; b < layout->base_count; b++) {
                uint32_t index;
                uint64_t offset;
                if (!pool_locate(manager, layout->bases[b].address, layout->bases[b].bytes,
                                 &index, &offset))
                    return error_set(why, BATON_EUNREACHABLE,
                                     "decode's memory is not from baton_pool_alloc");
            }
        }
        return BATON_OK;
    }
    const struct wire_backend_key *key = peer_backend_key(peer, "shm");
    uint32_t count = 0, bases = 0;
    for (uint32_t r = 0; r < peer->memory.region_count; r++)
        bases += peer->memory.regions[r].layout.base_count;
    if (key && key->key_bytes >= 4)
        memcpy(&count, key->key, 4);
    if (!key || count != bases || key->key_bytes != 4 + count * 12)
        return error_set(why, BATON_EUNREACHABLE,
                         "the peer's shm key does not fit its regions");
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index;
        memcpy(&index, key->key + 4 + i * 12, 4);
        if (index >= peer->fd_count)
            return error_set(why, BATON_EUNREACHABLE,
                             "the peer's memory is not from baton_pool_alloc");
    }
    return BATON_OK;
}

static void shm_free(struct shm_state *state)
{
    for (uint32_t i = 0; i < state->mapping_count; i++)
        munmap(state->mappings[i].address, state->mappings[i].bytes);
    for (uint32_t r = 0; r < state->region_count; r++)
        free(state->bases[r]);
    free(state);
}

static void shm_populate(struct worker_job *job)
{
    struct shm_state *state = (struct shm_state *)job;
    if (atomic_load_explicit(&state->closing, memory_order_acquire)) {
        struct manager *manager = state->manager;
        shm_free(state);
        atomic_fetch_sub_explicit(&manager->worker_objects, 1, memory_order_release);
        return;
    }
    if (state->populate_at == state->mapping_count)
        return;
    struct shm_mapping *mapping = &state->mappings[state->populate_at];
    uint64_t left = mapping->bytes - state->populated;
    uint64_t step = left < SHM_POPULATE_STEP ? left : SHM_POPULATE_STEP;
    /* Refused by kernels before 5.14: the first copy into each page then costs a fault. */
    madvise(mapping->address + state->populated, step, MADV_POPULATE_WRITE);
    state->populated += step;
    if (state->populated == mapping->bytes) {
        state->populated = 0;
        state->populate_at++;
    }
    worker_post(state->worker, &state->populate);
}

static int shm_map_fd(struct shm_state *state, int fd, struct error err)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &info) != 0)
        return error_set(err, BATON_EPROTOCOL,
                         "the peer passed a descriptor that is no sealed memfd");
    void *address = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return error_set(err, BATON_ESYSTEM, "cannot map the peer's pool of %lld bytes: %s",
                         (long long)info.st_size, strerror(errno));
    state->mappings[state->mapping_count++] =
        (struct shm_mapping){address, (uint64_t)info.st_size};
    return BATON_OK;
}

static int shm_place_bases(struct shm_state *state, const struct peer *peer, struct error err)
{
    const uint8_t *at = peer_backend_key(peer, "shm")->key + 4;
    for (uint32_t r = 0; r < peer->memory.region_count; r++) {
        const struct layout *layout = &peer->memory.regions[r].layout;
        state->bases[r] = calloc(layout->base_count, sizeof(uint8_t *));
        state->region_count = r + 1;
        if (!state->bases[r])
            return error_set(err, BATON_ENOMEM, "out of memory for a mapping");
        for (uint32_t b = 0; b < layout->base_count; b++, at += 12) {
            uint32_t index;
            uint64_t offset;
            memcpy(&index, at, 4);
            memcpy(&offset, at + 4, 8);
            const struct shm_mapping *mapping = &state->mappings[index];
            if (offset > mapping->bytes || layout->bases[b].bytes > mapping->bytes - offset)
                return error_set(err, BATON_EPROTOCOL,
                                 "a base of the peer lies outside its pool");
            state->bases[r][b] = mapping->address + offset;
        }
    }
    return BATON_OK;
}

static int shm_connect(struct endpoint *endpoint, struct error err)
{
    struct peer *peer = endpoint->peer;
    backend_rails_from_threads(endpoint);
    if (peer->memory.attach == 0)
        return BATON_OK; /* we are the receiving side */
    struct shm_state *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set(err, BATON_ENOMEM, "out of memory for a mapping");
    int code = BATON_OK;
    for (uint32_t i = 0; code == BATON_OK && i < peer->fd_count; i++)
        code = shm_map_fd(state, peer->fds[i], err);
    if (code == BATON_OK)
        code = shm_place_bases(state, peer, err);
    if (code != BATON_OK) {
        shm_free(state);
        return code;
    }
    worker_job_init(&state->populate, shm_populate);
    state->manager = endpoint->manager;
    atomic_fetch_add_explicit(&state->manager->worker_objects, 1, memory_order_relaxed);
    state->worker = endpoint->workers[endpoint->rail_count - 1];
    endpoint->state = state;
    worker_post(state->worker, &state->populate);
    return BATON_OK;
}

static void shm_disconnect(struct endpoint *endpoint)
{
    struct shm_state *state = endpoint->state;
    if (!state)
        return;
    /* Unmapping a large pool takes long: the worker does it. */
    atomic_store_explicit(&state->closing, true, memory_order_release);
    worker_post(state->worker, &state->populate);
}

static int shm_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    const struct shm_state *state = lane->copy->endpoint->state;
    const struct copy_region *region = &lane->copy->regions[lane->region_index];
    uint8_t *const *to = state->bases[region->region];
    uint64_t bytes = 0;
    uint32_t taken = 0;
    while (taken < count && bytes < COPY_SLICE_BYTES) {
        const struct plan_run *run = &runs[taken++];
        memcpy(to[run->dst_base] + run->dst_offset,
               (const uint8_t *)(uintptr_t)region->src->bases[run->src_base].address +
                   run->src_offset,
               run->length);
        bytes += run->length;
    }
    return (int)taken;
}

const struct backend_ops backend_shm = {
    .name = "shm",
    .about = "same host, decode's pages in pools from baton_pool_alloc: one copy, straight "
             "into place",
    .capabilities = BACKEND_PUT | BACKEND_REMOTE_WRITER | BACKEND_IMMEDIATE,
    .run_bytes_min = 0,
    .available = shm_available,
    .open = backend_open_nothing,
    .close = backend_close_nothing,
    .export_key = shm_export_key,
    .can_reach = shm_can_reach,
    .connect = shm_connect,
    .stop = backend_keep_nothing,
    .disconnect = shm_disconnect,
    .stream = backend_no_stream,
    .signal = backend_no_signal,
    .tick = backend_no_tick,
    .spread = backend_all_rails,
    .copy = shm_copy,
    .flush = backend_nothing_in_flight,
    .revoke = backend_nothing_to_revoke,
};
