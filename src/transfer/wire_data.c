/* SPDX-License-Identifier: Apache-2.0 */
/* DATA, the one frame on the copy path: it goes through plain loads and stores into buffers that
 * exist already, with one bounds check per frame. The bytes themselves follow it on the stream
 * and never pass through here: they go by readv straight into the granted pages. That is also why
 * the header's length does not count them, and why the table comes first: the reader must know
 * every destination before the first byte. */
#include "wire_codec.h"

#define DATA_FIXED_BYTES 16

/* An entry of the table is the struct, byte for byte, where the machine is little-endian. */
_Static_assert(sizeof(struct wire_data_run) == WIRE_DATA_RUN_BYTES, "padding in wire_data_run");
_Static_assert(offsetof(struct wire_data_run, base) == 2, "order of wire_data_run");
_Static_assert(offsetof(struct wire_data_run, length) == 4, "order of wire_data_run");
_Static_assert(offsetof(struct wire_data_run, offset) == 8, "order of wire_data_run");

static void runs_store(uint8_t *at, const struct wire_data_run *runs, uint32_t count)
{
    if (WIRE_NATIVE) {
        memcpy(at, runs, (size_t)count * WIRE_DATA_RUN_BYTES);
        return;
    }
    for (uint32_t i = 0; i < count; i++, at += WIRE_DATA_RUN_BYTES) {
        wire_store16(at, runs[i].region);
        wire_store16(at + 2, runs[i].base);
        wire_store32(at + 4, runs[i].length);
        wire_store64(at + 8, runs[i].offset);
    }
}

size_t wire_data_put(uint8_t *out, uint64_t epoch, uint32_t sequence, uint32_t ticket,
                     uint64_t bytes, const struct wire_data_run *runs, uint32_t run_count)
{
    BATON_ASSERT(run_count && run_count <= WIRE_DATA_RUNS_MAX);
    uint32_t length = DATA_FIXED_BYTES + run_count * WIRE_DATA_RUN_BYTES;
    uint8_t *payload = out + WIRE_HEADER_BYTES;
    wire_store32(out, WIRE_MAGIC);
    wire_store16(out + 4, WIRE_VERSION);
    wire_store16(out + 6, WIRE_DATA);
    wire_store32(out + 8, length);
    wire_store32(out + 12, sequence);
    wire_store64(out + 16, epoch);
    wire_store32(payload, ticket);
    wire_store32(payload + 4, run_count);
    wire_store64(payload + 8, bytes);
    runs_store(payload + DATA_FIXED_BYTES, runs, run_count);
    return WIRE_HEADER_BYTES + length;
}

int wire_data_get(const uint8_t *payload, size_t length, struct wire_data *out,
                  struct error err)
{
    if (length < DATA_FIXED_BYTES)
        return error_set(err, BATON_EPROTOCOL, "bad DATA frame: %zu bytes, at least %d needed",
                         length, DATA_FIXED_BYTES);
    struct wire_data data = {
        .ticket = wire_load32(payload),
        .run_count = wire_load32(payload + 4),
        .bytes = wire_load64(payload + 8),
        .runs = payload + DATA_FIXED_BYTES,
    };
    if (!data.run_count || data.run_count > WIRE_DATA_RUNS_MAX)
        return error_set(err, BATON_EPROTOCOL, "bad DATA frame: %u runs, 1 to %d are allowed",
                         data.run_count, WIRE_DATA_RUNS_MAX);
    if (length != DATA_FIXED_BYTES + (size_t)data.run_count * WIRE_DATA_RUN_BYTES)
        return error_set(err, BATON_EPROTOCOL,
                         "bad DATA frame: %zu bytes for a table of %u runs", length,
                         data.run_count);

    uint64_t bytes = 0;
    int bad = 0;
    for (uint32_t i = 0; i < data.run_count; i++) {
        const uint8_t *entry = data.runs + i * WIRE_DATA_RUN_BYTES;
        uint64_t run_bytes = wire_load32(entry + 4);
        bad |= !run_bytes | (wire_load64(entry + 8) > UINT64_MAX - run_bytes);
        bytes += run_bytes;
    }
    if (bad)
        return error_set(err, BATON_EPROTOCOL,
                         "bad DATA frame: a run without bytes, or beyond the end of memory");
    if (bytes != data.bytes)
        return error_set(err, BATON_EPROTOCOL,
                         "bad DATA frame: its runs add up to %llu bytes, it claims %llu",
                         (unsigned long long)bytes, (unsigned long long)data.bytes);
    *out = data;
    return 0;
}

void wire_data_run_get(const uint8_t *entry, struct wire_data_run *out)
{
    if (WIRE_NATIVE) {
        memcpy(out, entry, WIRE_DATA_RUN_BYTES);
        return;
    }
    out->region = wire_load16(entry);
    out->base = wire_load16(entry + 2);
    out->length = wire_load32(entry + 4);
    out->offset = wire_load64(entry + 8);
}
