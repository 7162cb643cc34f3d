/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides tell each other of their memory, in the key of REGISTER, little-endian:
 *
 *   u32 version | u32 UCP API major | u32 UCP API minor | u32 rails | u32 ranges | u64 cell
 *   ranges x (u64 address, u64 length, u32 bytes of its key) | the keys
 *
 * A key is what ucp_rkey_pack made of a registration; only UCX can read it, and does so without being
 * told its length (UCX_KEY_SLACK). */
#include "ucx.h"

#include <stdlib.h>
#include <string.h>

#define KEY_VERSION 1u
#define KEY_HEADER_WORDS 7
#define KEY_RANGE_BYTES 20

uint32_t ucx_range_find(const struct ucx_range *ranges, uint32_t count, uint64_t address,
                        uint64_t length, uint32_t *hint)
{
    uint32_t low = 0, high = count;
    if (*hint < count && address >= ranges[*hint].address &&
        address - ranges[*hint].address < ranges[*hint].length)
        low = *hint, high = *hint + 1;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (ranges[middle].address <= address)
            low = middle;
        else
            high = middle;
    }
    if (low >= count || address < ranges[low].address ||
        address - ranges[low].address > ranges[low].length ||
        length > ranges[low].length - (address - ranges[low].address))
        return UINT32_MAX;
    *hint = low;
    return low;
}

/* The packed keys one after another, their lengths in `lengths`. */
static int keys_pack(const struct ucx_manager *self, uint8_t *out, size_t room,
                     uint32_t *lengths, size_t *used, struct error err)
{
    *used = 0;
    for (uint32_t i = 0; i < self->range_count; i++) {
        void *packed;
        size_t size;
        ucs_status_t status = ucp_rkey_pack(self->context, self->handles[i], &packed, &size);
        if (status != UCS_OK)
            return ucx_host->error_set(err, BATON_ESYSTEM, "UCX cannot tell its keys: %s",
                                       ucx_reason(status));
        bool fits = size <= room - *used;
        if (fits)
            memcpy(out + *used, packed, size);
        ucp_rkey_buffer_release(packed);
        if (!fits)
            return ucx_host->error_set(err, BATON_ELIMIT,
                                       "%u pieces of memory are too many to tell",
                                       self->range_count);
        lengths[i] = (uint32_t)size;
        *used += size;
    }
    return BATON_OK;
}

static void key_write(const struct ucx_manager *self, uint32_t rails, const uint32_t *lengths,
                      uint8_t *out)
{
    unsigned major, minor, release;
    uint64_t cell = (uint64_t)(uintptr_t)self->cell;
    ucp_get_version(&major, &minor, &release);
    uint32_t header[KEY_HEADER_WORDS] = {KEY_VERSION, major, minor,
                                         rails < UCX_RAILS_MAX ? rails : UCX_RAILS_MAX,
                                         self->range_count};
    memcpy(header + 5, &cell, 8);
    memcpy(out, header, sizeof(header));
    out += sizeof(header);
    for (uint32_t i = 0; i < self->range_count; i++, out += KEY_RANGE_BYTES) {
        memcpy(out, &self->ranges[i], 16);
        memcpy(out + 16, &lengths[i], 4);
    }
}

int ucx_export_key(struct manager *manager, void *state, uint8_t **key, uint32_t *key_bytes,
                   struct error err)
{
    const struct ucx_manager *self = state;
    size_t fixed = KEY_HEADER_WORDS * 4 + (size_t)self->range_count * KEY_RANGE_BYTES, used = 0;
    uint8_t *bytes = calloc(1, WIRE_KEY_MAX);
    uint32_t *lengths = calloc(self->range_count, sizeof(*lengths));
    int code;
    if (!bytes || !lengths)
        code = ucx_host->error_set(err, BATON_ENOMEM, "out of memory for the UCX key");
    else if (fixed > WIRE_KEY_MAX)
        code = ucx_host->error_set(
            err, BATON_ELIMIT, "%u pieces of memory are too many to tell", self->range_count);
    else
        code = keys_pack(self, bytes + fixed, WIRE_KEY_MAX - fixed, lengths, &used, err);
    if (code == BATON_OK) {
        key_write(self, manager->config.copy_threads, lengths, bytes);
        *key = bytes;
        *key_bytes = (uint32_t)(fixed + used);
        bytes = NULL;
    }
    free(lengths);
    free(bytes);
    return code;
}

static int peer_take_ranges(struct ucx_peer *peer, const uint8_t *at, size_t left,
                            struct error err)
{
    size_t table = (size_t)peer->range_count * KEY_RANGE_BYTES, used = 0;
    peer->ranges = calloc((size_t)peer->range_count + 1, sizeof(*peer->ranges));
    peer->key_offsets = calloc((size_t)peer->range_count + 1, sizeof(*peer->key_offsets));
    peer->keys = calloc(1, left - table + UCX_KEY_SLACK);
    if (!peer->ranges || !peer->key_offsets || !peer->keys)
        return ucx_host->error_set(err, BATON_ENOMEM, "out of memory for the peer's keys");
    for (uint32_t i = 0; i < peer->range_count; i++, at += KEY_RANGE_BYTES) {
        uint32_t length;
        memcpy(&peer->ranges[i], at, 16);
        memcpy(&length, at + 16, 4);
        if (!length || length > left - table - used)
            return ucx_host->error_set(err, BATON_EPROTOCOL, "the peer's UCX key is malformed");
        peer->key_offsets[i] = (uint32_t)used;
        used += length;
    }
    if (used != left - table)
        return ucx_host->error_set(err, BATON_EPROTOCOL, "the peer's UCX key is malformed");
    memcpy(peer->keys, at, used);
    return BATON_OK;
}

int ucx_peer_read(const struct wire_backend_key *key, struct ucx_peer *out, struct error err)
{
    struct ucx_peer peer = {0};
    uint32_t header[KEY_HEADER_WORDS];
    unsigned major, minor, release;
    if (!key || key->key_bytes < sizeof(header))
        return ucx_host->error_set(err, BATON_EPROTOCOL, "the peer's UCX key is malformed");
    memcpy(header, key->key, sizeof(header));
    ucp_get_version(&major, &minor, &release);
    if (header[0] != KEY_VERSION || header[1] != major)
        return ucx_host->error_set(
            err, BATON_EUNREACHABLE,
            "UCX %u.%u here and %u.%u there (key version %u and %u) do not "
            "understand each other",
            major, minor, header[1], header[2], KEY_VERSION, header[0]);
    peer.rails = header[3];
    peer.range_count = header[4];
    memcpy(&peer.cell, header + 5, 8);
    size_t left = key->key_bytes - sizeof(header);
    if (!peer.rails || peer.rails > UCX_RAILS_MAX || left / KEY_RANGE_BYTES < peer.range_count)
        return ucx_host->error_set(err, BATON_EPROTOCOL, "the peer's UCX key is malformed");
    int code = peer_take_ranges(&peer, key->key + sizeof(header), left, err);
    if (code != BATON_OK) {
        ucx_peer_free(&peer);
        return code;
    }
    *out = peer;
    return BATON_OK;
}

void ucx_peer_free(struct ucx_peer *peer)
{
    free(peer->ranges);
    free(peer->key_offsets);
    free(peer->keys);
    *peer = (struct ucx_peer){0};
}
