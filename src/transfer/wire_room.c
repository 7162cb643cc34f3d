/* SPDX-License-Identifier: Apache-2.0 */
/* The frames about one room, in the order of its life: OPEN, GRANT, COMMIT, AUX, LANDED, and
 * ABORT, FENCED, QUERY for those that end otherwise. What can be known from the frame alone is
 * checked here; whether a page lies in the region and in the grant only the room can say. */
#include "wire_codec.h"

/* ---- lists of state pages, in GRANT and COMMIT ---- */

#define STATE_BYTES_MIN 12

static void states_put(struct wire_buffer *out, const struct wire_state_pages *states,
                       uint32_t count)
{
    if (!wire_put_count(out, count, WIRE_REGIONS_MAX))
        return;
    for (uint32_t i = 0; i < count; i++) {
        wire_put_u32(out, states[i].region);
        wire_put_u32(out, states[i].first_token);
        wire_put_pages(out, states[i].pages);
    }
}

static uint32_t states_read(struct wire_reader *in, struct wire_state_pages *states)
{
    uint32_t seen = 1; /* region 0 is the KV cache: its pages are not state */
    uint32_t count = wire_read_count(in, WIRE_REGIONS_MAX, STATE_BYTES_MIN);
    for (uint32_t i = 0; i < count && !in->problem; i++) {
        states[i].region = wire_read_u32(in);
        wire_reader_check(in, states[i].region < WIRE_REGIONS_MAX, "no such state region");
        if (in->problem)
            break;
        wire_reader_check(in, !(seen >> states[i].region & 1),
                          "state pages for region 0, or twice for one region");
        seen |= 1u << states[i].region;
        states[i].first_token = wire_read_u32(in);
        states[i].pages = wire_read_pages(in);
    }
    return count;
}

/* ---- OPEN ---- */

void wire_open_put(struct wire_buffer *out, struct wire_header header,
                   const struct wire_open *open)
{
    size_t begin = wire_frame_begin(out, header, WIRE_OPEN);
    wire_put_u64(out, open->room);
    wire_put_u32(out, open->ticket);
    wire_put_u32(out, open->time_left_ms);
    wire_put_u32(out, open->queue_position);
    wire_put_u32(out, open->rank);
    wire_put_u32(out, open->required_dst);
    wire_frame_end(out, begin);
}

int wire_open_get(const uint8_t *payload, size_t length, struct wire_open *out,
                  struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_open open;
    open.room = wire_read_room(&in);
    open.ticket = wire_read_u32(&in);
    open.time_left_ms = wire_read_u32(&in);
    open.queue_position = wire_read_u32(&in);
    open.rank = wire_read_u32(&in);
    open.required_dst = wire_read_u32(&in);
    int rc = wire_reader_end(&in, "OPEN", err);
    if (!rc)
        *out = open;
    return rc;
}

/* ---- GRANT ---- */

void wire_grant_put(struct wire_buffer *out, struct wire_header header,
                    const struct wire_grant *grant)
{
    size_t begin = wire_frame_begin(out, header, WIRE_GRANT);
    wire_put_u64(out, grant->room);
    wire_put_u32(out, grant->ticket);
    wire_put_u32(out, grant->flags);
    wire_put_u32(out, grant->time_left_ms);
    wire_put_u32(out, grant->rank);
    wire_put_u32(out, grant->required_dst);
    wire_put_u32(out, grant->prefix);
    wire_put_u32(out, (uint32_t)grant->aux_slot);
    wire_put_pages(out, grant->pages);
    states_put(out, grant->states, grant->state_count);
    wire_frame_end(out, begin);
}

int wire_grant_get(const uint8_t *payload, size_t length, struct wire_grant *out,
                   struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_grant grant = {0};
    grant.room = wire_read_room(&in);
    grant.ticket = wire_read_u32(&in);
    grant.flags = wire_read_u32(&in);
    wire_reader_check(&in, !(grant.flags & ~WIRE_GRANT_DUMMY), "an unknown flag");
    grant.time_left_ms = wire_read_u32(&in);
    grant.rank = wire_read_u32(&in);
    grant.required_dst = wire_read_u32(&in);
    grant.prefix = wire_read_u32(&in);
    grant.aux_slot = (int32_t)wire_read_u32(&in);
    wire_reader_check(&in, grant.aux_slot >= -1, "an aux slot below -1");
    grant.pages = wire_read_pages(&in);
    grant.state_count = states_read(&in, grant.states);
    int rc = wire_reader_end(&in, "GRANT", err);
    if (!rc)
        *out = grant;
    return rc;
}

/* ---- COMMIT ---- */

static void source_put(struct wire_buffer *out, const struct wire_commit *commit)
{
    wire_put_u32(out, commit->total_pages);
    wire_put_u32(out, commit->first_token);
    wire_put_u32(out, commit->tokens);
    wire_put_u32(out, commit->page_offset);
    wire_put_pages(out, commit->pages);
    states_put(out, commit->states, commit->state_count);
}

void wire_commit_put(struct wire_buffer *out, struct wire_header header,
                     const struct wire_commit *commit)
{
    size_t begin = wire_frame_begin(out, header, WIRE_COMMIT);
    wire_put_u64(out, commit->room);
    wire_put_u32(out, commit->ticket);
    wire_put_u32(out, commit->flags);
    wire_put_u64(out, commit->watermark);
    wire_put_u32(out, commit->aux_bytes);
    wire_put_u64(out, commit->sum);
    if (wire_put_count(out, commit->lane_count, WIRE_STREAMS_MAX)) {
        for (uint32_t i = 0; i < commit->lane_count; i++) {
            wire_put_u64(out, commit->lanes[i].bytes);
            wire_put_u64(out, commit->lanes[i].operations);
            wire_put_u64(out, commit->lanes[i].landings);
        }
    }
    if (commit->flags & WIRE_COMMIT_SOURCE)
        source_put(out, commit);
    wire_frame_end(out, begin);
}

static void source_read(struct wire_reader *in, struct wire_commit *commit)
{
    commit->total_pages = wire_read_u32(in);
    commit->first_token = wire_read_u32(in);
    commit->tokens = wire_read_u32(in);
    commit->page_offset = wire_read_u32(in);
    commit->pages = wire_read_pages(in);
    wire_reader_check(in,
                      commit->page_offset <= commit->total_pages &&
                          commit->pages.count <= commit->total_pages - commit->page_offset,
                      "pages beyond the announced end");
    commit->state_count = states_read(in, commit->states);
    wire_reader_check(in, !commit->state_count || (commit->flags & WIRE_COMMIT_LAST),
                      "state pages before the last COMMIT");
}

int wire_commit_get(const uint8_t *payload, size_t length, struct wire_commit *out,
                    struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_commit commit = {0};
    commit.room = wire_read_room(&in);
    commit.ticket = wire_read_u32(&in);
    commit.flags = wire_read_u32(&in);
    wire_reader_check(&in, !(commit.flags & ~(WIRE_COMMIT_LAST | WIRE_COMMIT_SOURCE)),
                      "an unknown flag");
    commit.watermark = wire_read_u64(&in);
    commit.aux_bytes = wire_read_u32(&in);
    commit.sum = wire_read_u64(&in);
    commit.lane_count = wire_read_count(&in, WIRE_STREAMS_MAX, 24);
    for (uint32_t i = 0; i < commit.lane_count; i++) {
        commit.lanes[i].bytes = wire_read_u64(&in);
        commit.lanes[i].operations = wire_read_u64(&in);
        commit.lanes[i].landings = wire_read_u64(&in);
    }
    if (commit.flags & WIRE_COMMIT_SOURCE)
        source_read(&in, &commit);
    int rc = wire_reader_end(&in, "COMMIT", err);
    if (!rc)
        *out = commit;
    return rc;
}

/* ---- AUX ---- */

void wire_aux_put(struct wire_buffer *out, struct wire_header header,
                  const struct wire_aux *aux)
{
    size_t begin = wire_frame_begin(out, header, WIRE_AUX);
    wire_put_u64(out, aux->room);
    wire_put_u32(out, aux->ticket);
    wire_put_u32(out, aux->offset);
    wire_put_blob(out, aux->bytes, aux->length, WIRE_PAYLOAD_MAX);
    wire_frame_end(out, begin);
}

int wire_aux_get(const uint8_t *payload, size_t length, struct wire_aux *out, struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_aux aux;
    aux.room = wire_read_room(&in);
    aux.ticket = wire_read_u32(&in);
    aux.offset = wire_read_u32(&in);
    aux.bytes = wire_read_blob(&in, WIRE_PAYLOAD_MAX, &aux.length);
    wire_reader_check(&in, aux.length <= UINT32_MAX - aux.offset,
                      "bytes beyond the largest possible slot");
    int rc = wire_reader_end(&in, "AUX", err);
    if (!rc)
        *out = aux;
    return rc;
}

/* ---- LANDED, FENCED, QUERY ---- */

void wire_room_put(struct wire_buffer *out, struct wire_header header,
                   const struct wire_room *room)
{
    BATON_ASSERT(header.type == WIRE_LANDED || header.type == WIRE_FENCED ||
                 header.type == WIRE_QUERY);
    size_t begin = wire_frame_begin(out, header, header.type);
    wire_put_u64(out, room->room);
    wire_put_u32(out, room->ticket);
    wire_frame_end(out, begin);
}

int wire_room_get(const uint8_t *payload, size_t length, struct wire_room *out,
                  struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_room room;
    room.room = wire_read_room(&in);
    room.ticket = wire_read_u32(&in);
    int rc = wire_reader_end(&in, "LANDED, FENCED or QUERY", err);
    if (!rc)
        *out = room;
    return rc;
}

/* ---- ABORT ---- */

void wire_abort_put(struct wire_buffer *out, struct wire_header header,
                    const struct wire_abort *frame)
{
    size_t begin = wire_frame_begin(out, header, WIRE_ABORT);
    wire_put_u64(out, frame->room);
    wire_put_u32(out, frame->ticket);
    wire_put_u32(out, (uint32_t)frame->code);
    wire_put_text(out, frame->text);
    wire_frame_end(out, begin);
}

int wire_abort_get(const uint8_t *payload, size_t length, struct wire_abort *out,
                   struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_abort frame;
    frame.room = wire_read_room(&in);
    frame.ticket = wire_read_u32(&in);
    frame.code = (int32_t)wire_read_u32(&in);
    wire_reader_check(&in, frame.code < 0, "an error code that is not negative");
    frame.text = wire_read_string(&in, WIRE_TEXT_MAX);
    int rc = wire_reader_end(&in, "ABORT", err);
    if (!rc)
        *out = frame;
    return rc;
}
