/* SPDX-License-Identifier: Apache-2.0 */
/* loopback: the backend to read first. Both ranks are in this process, so the peer's addresses are
 * our own, a copy is a memcpy, it is complete when it returns, and a fence is the end of our own
 * lanes. Every other backend answers the same questions less simply. */
#include "transfer/backend.h"
#include "transfer/link.h"

#include <string.h>

static int loopback_can_reach(struct manager *manager, void *state, struct peer *peer,
                              struct error why)
{
    (void)state;
    (void)manager;
    if (!peer->same_process)
        return error_set(why, BATON_EUNREACHABLE, "the peer is another process");
    return BATON_OK;
}

static int loopback_connect(struct endpoint *endpoint, struct error err)
{
    (void)err;
    backend_rails_from_threads(endpoint);
    return BATON_OK;
}

static int loopback_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    const struct copy_region *region = &lane->copy->regions[lane->region_index];
    uint64_t bytes = 0;
    uint32_t taken = 0;
    while (taken < count && bytes < COPY_SLICE_BYTES) {
        const struct plan_run *run = &runs[taken++];
        memcpy((uint8_t *)(uintptr_t)region->dst->bases[run->dst_base].address +
                   run->dst_offset,
               (const uint8_t *)(uintptr_t)region->src->bases[run->src_base].address +
                   run->src_offset,
               run->length);
        bytes += run->length;
    }
    return (int)taken;
}

const struct backend_ops backend_loopback = {
    .name = "loopback",
    .about = "two ranks of one process: memcpy",
    /* The storer is another manager's lane: only its FENCED says that it has stopped. */
    .capabilities = BACKEND_PUT | BACKEND_REMOTE_WRITER | BACKEND_IMMEDIATE,
    .run_bytes_min = 0,
    .available = backend_always_available,
    .open = backend_open_nothing,
    .close = backend_close_nothing,
    .export_key = backend_no_key,
    .can_reach = loopback_can_reach,
    .connect = loopback_connect,
    .stop = backend_keep_nothing,
    .disconnect = backend_keep_nothing,
    .stream = backend_no_stream,
    .signal = backend_no_signal,
    .tick = backend_no_tick,
    .spread = backend_all_rails,
    .copy = loopback_copy,
    .flush = backend_nothing_in_flight,
    .revoke = backend_nothing_to_revoke,
};
