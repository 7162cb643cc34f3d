/* SPDX-License-Identifier: Apache-2.0 */
/* cma: both ranks on one host, memory that somebody else allocated (numpy, torch, malloc). The
 * receiver's workers read the source pages with process_vm_readv straight into their own; so the
 * storer is ours, and the fence is local.
 *
 * Process ids are reused. The key therefore carries the address of a random cookie in the sender's
 * memory, and every call reads the cookie again beside the pages: if it is not the one from the
 * key, another process has the pid now, and the room fails.
 *
 * Local and remote pieces of one call need not be cut alike, so each side is merged for itself:
 * where only one side is contiguous, it still costs one entry. */
#include "transfer/backend.h"
#include "transfer/link.h"
#include "transfer/manager.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#define CMA_COOKIE_BYTES 16
#define CMA_KEY_BYTES (8 + CMA_COOKIE_BYTES)
#define CMA_PIECES_MAX 16 /* nothing is gained past 16 entries a call */

static uint8_t cma_cookie[CMA_COOKIE_BYTES];
static pthread_once_t cma_once = PTHREAD_ONCE_INIT;

struct cma_state {
    uint64_t cookie_address;
    uint8_t cookie[CMA_COOKIE_BYTES];
    int pid;
};

static void cma_draw_cookie(void)
{
    if (getrandom(cma_cookie, sizeof(cma_cookie), 0) != sizeof(cma_cookie))
        cma_cookie[0] = 1;
}

static int cma_available(char *why, size_t why_size)
{
    uint8_t from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1) {
        snprintf(why, why_size, "the kernel forbids process_vm_readv: %s", strerror(errno));
        return -1;
    }
    why[0] = 0;
    return 0;
}

static int cma_export_key(struct manager *manager, void *state, uint8_t **key,
                          uint32_t *key_bytes, struct error err)
{
    (void)state;
    (void)manager;
    pthread_once(&cma_once, cma_draw_cookie);
    uint8_t *bytes = malloc(CMA_KEY_BYTES);
    if (!bytes)
        return error_set(err, BATON_ENOMEM, "out of memory for the cma key");
    uint64_t address = (uint64_t)(uintptr_t)cma_cookie;
    memcpy(bytes, &address, 8);
    memcpy(bytes + 8, cma_cookie, CMA_COOKIE_BYTES);
    *key = bytes;
    *key_bytes = CMA_KEY_BYTES;
    return BATON_OK;
}

static bool cma_read_key(const struct peer *peer, struct cma_state *state)
{
    for (uint32_t i = 0; i < peer->memory.backend_count; i++) {
        const struct wire_backend_key *key = &peer->memory.backends[i];
        if (strcmp(key->name, "cma") != 0 || key->key_bytes != CMA_KEY_BYTES)
            continue;
        memcpy(&state->cookie_address, key->key, 8);
        memcpy(state->cookie, key->key + 8, CMA_COOKIE_BYTES);
        state->pid = peer->pid;
        return true;
    }
    return false;
}

static int cma_yama_scope(void)
{
    char text[8] = "";
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (read(fd, text, sizeof(text) - 1) < 0)
        text[0] = 0;
    close(fd);
    return atoi(text);
}

static int cma_can_reach(struct manager *manager, void *state, struct peer *peer,
                         struct error why)
{
    struct cma_state key;
    uint8_t seen[CMA_COOKIE_BYTES];
    (void)manager;
    (void)state;
    if (!peer->same_host)
        return error_set(why, BATON_EUNREACHABLE, "the peer is on another host");
    if (peer->pid <= 0)
        return error_set(why, BATON_EUNREACHABLE, "the peer's process id is not known here");
    if (!cma_read_key(peer, &key))
        return error_set(why, BATON_EUNREACHABLE, "the peer sent no cma key");
    if (peer->memory.attach)
        return BATON_OK; /* we are the side that is read; the other has tried it */
    struct iovec local = {seen, sizeof(seen)};
    struct iovec remote = {(void *)(uintptr_t)key.cookie_address, sizeof(seen)};
    if (process_vm_readv(key.pid, &local, 1, &remote, 1, 0) != (ssize_t)sizeof(seen)) {
        int failed = errno, scope = cma_yama_scope();
        if (failed == EPERM && scope > 0)
            return error_set(why, BATON_EUNREACHABLE,
                             "the kernel forbids reading process %d (kernel.yama.ptrace_scope "
                             "is %d, 0 allows it)",
                             key.pid, scope);
        return error_set(why, BATON_EUNREACHABLE, "the kernel forbids reading process %d: %s",
                         key.pid, strerror(failed));
    }
    if (memcmp(seen, key.cookie, sizeof(seen)) != 0)
        return error_set(why, BATON_EUNREACHABLE, "process %d is not the peer", key.pid);
    return BATON_OK;
}

static int cma_connect(struct endpoint *endpoint, struct error err)
{
    backend_rails_from_threads(endpoint);
    struct cma_state *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set(err, BATON_ENOMEM, "out of memory for an endpoint");
    cma_read_key(endpoint->peer, state);
    endpoint->state = state;
    return BATON_OK;
}

static void cma_disconnect(struct endpoint *endpoint)
{
    free(endpoint->state);
}

static void piece_add(struct iovec *pieces, uint32_t *count, uint8_t *address, size_t length)
{
    struct iovec *last = *count ? &pieces[*count - 1] : NULL;
    if (last && (uint8_t *)last->iov_base + last->iov_len == address)
        last->iov_len += length;
    else
        pieces[(*count)++] = (struct iovec){address, length};
}

static int cma_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    const struct cma_state *state = lane->copy->endpoint->state;
    const struct copy_region *region = &lane->copy->regions[lane->region_index];
    struct iovec local[CMA_PIECES_MAX + 1], remote[CMA_PIECES_MAX + 1];
    uint8_t cookie[CMA_COOKIE_BYTES];
    uint32_t locals = 0, remotes = 0, taken = 0;
    size_t bytes = sizeof(cookie);
    local[locals++] = (struct iovec){cookie, sizeof(cookie)};
    remote[remotes++] =
        (struct iovec){(void *)(uintptr_t)state->cookie_address, sizeof(cookie)};
    while (taken < count && locals < CMA_PIECES_MAX && remotes < CMA_PIECES_MAX &&
           bytes < COPY_SLICE_BYTES + sizeof(cookie)) {
        const struct plan_run *run = &runs[taken++];
        piece_add(local, &locals,
                  (uint8_t *)(uintptr_t)region->dst->bases[run->dst_base].address +
                      run->dst_offset,
                  run->length);
        piece_add(remote, &remotes,
                  (uint8_t *)(uintptr_t)region->src->bases[run->src_base].address +
                      run->src_offset,
                  run->length);
        bytes += run->length;
    }
    ssize_t got = process_vm_readv(state->pid, local, locals, remote, remotes, 0);
    if (got != (ssize_t)bytes) {
        snprintf(lane->error_text, sizeof(lane->error_text),
                 "process_vm_readv of process %d: %s", state->pid,
                 got < 0 ? strerror(errno) : "some of the source pages are not mapped there");
        return BATON_EPEER;
    }
    if (memcmp(cookie, state->cookie, sizeof(cookie)) != 0) {
        snprintf(lane->error_text, sizeof(lane->error_text),
                 "process %d is not the peer any more", state->pid);
        return BATON_EPEER;
    }
    return (int)taken;
}

const struct backend_ops backend_cma = {
    .name = "cma",
    .about = "same host, memory of any origin: decode reads with process_vm_readv",
    .capabilities = BACKEND_GET,
    .run_bytes_min = 0,
    .available = cma_available,
    .open = backend_open_nothing,
    .close = backend_close_nothing,
    .export_key = cma_export_key,
    .can_reach = cma_can_reach,
    .connect = cma_connect,
    .stop = backend_keep_nothing,
    .disconnect = cma_disconnect,
    .stream = backend_no_stream,
    .signal = backend_no_signal,
    .tick = backend_no_tick,
    .spread = backend_all_rails,
    .copy = cma_copy,
    .flush = backend_nothing_in_flight,
    .revoke = backend_nothing_to_revoke,
};
