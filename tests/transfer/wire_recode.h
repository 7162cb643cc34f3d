/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes one frame of any type and encodes what came out. Test and fuzzer share it, because both
 * rest on the same property: the format has exactly one spelling for a frame, so a payload that
 * the decoder takes must come out of the encoder byte for byte. */
#ifndef BATON_TESTS_WIRE_RECODE_H
#define BATON_TESTS_WIRE_RECODE_H

#include "transfer/wire.h"

#include <stdlib.h>
#include <string.h>

/* Page lists as an encoder wants them: native and aligned. One block holds all lists of a frame. */
struct recode_pages {
    int32_t *next;
};

static inline struct wire_pages recode_native(struct wire_pages pages, struct recode_pages *to)
{
    wire_pages_copy(pages, to->next);
    pages.bytes = (const uint8_t *)to->next;
    to->next += pages.count;
    return pages;
}

static inline void recode_states(struct wire_state_pages *states, uint32_t count,
                                 struct recode_pages *to)
{
    for (uint32_t i = 0; i < count; i++)
        states[i].pages = recode_native(states[i].pages, to);
}

static inline int recode_grant(struct wire_header header, const uint8_t *payload, size_t length,
                               struct wire_buffer *out, struct error err)
{
    struct wire_grant grant;
    int rc = wire_grant_get(payload, length, &grant, err);
    if (rc)
        return rc;
    int32_t *block = malloc(length);
    struct recode_pages to = {block};
    grant.pages = recode_native(grant.pages, &to);
    recode_states(grant.states, grant.state_count, &to);
    wire_grant_put(out, header, &grant);
    free(block);
    return 0;
}

static inline int recode_commit(struct wire_header header, const uint8_t *payload,
                                size_t length, struct wire_buffer *out, struct error err)
{
    struct wire_commit commit;
    int rc = wire_commit_get(payload, length, &commit, err);
    if (rc)
        return rc;
    int32_t *block = malloc(length);
    struct recode_pages to = {block};
    commit.pages = recode_native(commit.pages, &to);
    recode_states(commit.states, commit.state_count, &to);
    wire_commit_put(out, header, &commit);
    free(block);
    return 0;
}

static inline int recode_register(struct wire_header header, const uint8_t *payload,
                                  size_t length, struct wire_buffer *out, struct error err)
{
    struct wire_register frame;
    int rc = wire_register_get(payload, length, &frame, err);
    if (rc)
        return rc;
    wire_register_put(out, header, &frame);
    wire_register_free(&frame);
    return 0;
}

/* DATA has an encoder of its own kind: into a fixed buffer. */
static inline void recode_data_append(struct wire_buffer *out, struct wire_header header,
                                      uint32_t ticket, uint64_t bytes,
                                      const struct wire_data_run *runs, uint32_t run_count)
{
    size_t size = WIRE_HEADER_BYTES + 16 + (size_t)run_count * WIRE_DATA_RUN_BYTES;
    uint8_t *grown = realloc(out->bytes, out->size + size);
    if (!grown)
        abort();
    out->bytes = grown;
    out->capacity = out->size + size;
    out->size += wire_data_put(out->bytes + out->size, header.epoch, header.sequence, ticket,
                               bytes, runs, run_count);
}

static inline int recode_data(struct wire_header header, const uint8_t *payload, size_t length,
                              struct wire_buffer *out, struct error err)
{
    struct wire_data data;
    int rc = wire_data_get(payload, length, &data, err);
    if (rc)
        return rc;
    struct wire_data_run runs[WIRE_DATA_RUNS_MAX];
    for (uint32_t i = 0; i < data.run_count; i++)
        wire_data_run_get(data.runs + i * WIRE_DATA_RUN_BYTES, &runs[i]);
    recode_data_append(out, header, data.ticket, data.bytes, runs, data.run_count);
    return 0;
}

#define RECODE_CASE(type, frame)                                     \
    case type: {                                                     \
        struct wire_##frame decoded;                                 \
        int rc = wire_##frame##_get(payload, length, &decoded, err); \
        if (!rc)                                                     \
            wire_##frame##_put(out, header, &decoded);               \
        return rc;                                                   \
    }

/* header.type says which frame the payload is of. 0: out has the whole frame appended. */
static inline int wire_recode(struct wire_header header, const uint8_t *payload, size_t length,
                              struct wire_buffer *out, struct error err)
{
    switch (header.type) {
        RECODE_CASE(WIRE_HELLO, hello)
        RECODE_CASE(WIRE_PROOF, proof)
        RECODE_CASE(WIRE_CHOICE, choice)
        RECODE_CASE(WIRE_OPEN, open)
        RECODE_CASE(WIRE_AUX, aux)
        RECODE_CASE(WIRE_LANDED, room)
        RECODE_CASE(WIRE_FENCED, room)
        RECODE_CASE(WIRE_QUERY, room)
        RECODE_CASE(WIRE_ABORT, abort)
        RECODE_CASE(WIRE_HEARTBEAT, heartbeat)
        RECODE_CASE(WIRE_BYE, bye)
        RECODE_CASE(WIRE_ATTACH, attach)
        RECODE_CASE(WIRE_SIGNAL, signal)
    case WIRE_REGISTER: return recode_register(header, payload, length, out, err);
    case WIRE_GRANT: return recode_grant(header, payload, length, out, err);
    case WIRE_COMMIT: return recode_commit(header, payload, length, out, err);
    case WIRE_DATA: return recode_data(header, payload, length, out, err);
    default: return error_set(err, BATON_EPROTOCOL, "no frame of type %u", header.type);
    }
}
#undef RECODE_CASE

#endif
