/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's side of tcp: the head and the table of a DATA frame, every run checked against the grant,
 * then its bytes straight into the pages; into staging when runs are small; to nowhere when the room is
 * dead. Bytes are counted when the frame is whole. */
#include "tcp_stream.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Bytes into memory; >0 read, 0 would block, -1 ended or broken (told). */
static ssize_t tcp_read_bytes(struct tcp_stream *stream, struct iovec *pieces, uint32_t count)
{
    ssize_t got;
    if (stream->early_left) {
        size_t take =
            pieces[0].iov_len < stream->early_left ? pieces[0].iov_len : stream->early_left;
        memcpy(pieces[0].iov_base, stream->early + stream->early_at, take);
        stream->early_at += take;
        stream->early_left -= take;
        return (ssize_t)take;
    }
    if (stream->ssl) {
        got = SSL_read(stream->ssl, pieces[0].iov_base, (int)pieces[0].iov_len);
        if (got <= 0) {
            int why = SSL_get_error(stream->ssl, (int)got);
            if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
                return 0;
            got = why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
            errno = ECONNRESET;
        }
    } else {
        got = readv(stream->fd, pieces,
                    (int)(count > TCP_PIECES_PER_CALL ? TCP_PIECES_PER_CALL : count));
    }
    if (got > 0)
        return got;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    tcp_broken(stream, "data connection %u: %s", stream->index,
               got == 0 ? "closed by the peer" : strerror(errno));
    return -1;
}

void tcp_expect_frame(struct tcp_stream *stream)
{
    stream->in_state = TCP_IN_FIXED;
    stream->in_have = 0;
    stream->in_need = TCP_FIXED_BYTES;
    stream->in_leg = NULL;
    stream->in_ticket = 0;
}

/* Is every page that the run touches granted to this ticket? */
static bool tcp_run_allowed(const struct manager *manager, const struct wire_data_run *run,
                            uint32_t ticket)
{
    if (run->region >= manager->region_count)
        return false;
    const struct region *region = &manager->regions[run->region];
    const struct layout *layout = &region->layout;
    if (run->base >= layout->base_count || run->offset > layout->bases[run->base].bytes ||
        run->length > layout->bases[run->base].bytes - run->offset)
        return false;
    uint64_t first = layout_page_of(layout, run->base, run->offset);
    uint64_t last = layout_page_of(layout, run->base, run->offset + run->length - 1);
    for (uint64_t page = first; page <= last; page++)
        if (page >= layout->pages ||
            atomic_load_explicit(&region->page_ticket[page], memory_order_relaxed) != ticket)
            return false;
    return true;
}

static bool tcp_take_fixed(struct tcp_stream *stream)
{
    struct wire_header header;
    char why[160];
    if (wire_header_get(stream->in_head, &header, ERROR_BUFFER(why)) != BATON_OK ||
        header.type != WIRE_DATA || header.sequence != stream->in_sequence ||
        header.epoch != stream->peer_epoch || header.length < 16 + WIRE_DATA_RUN_BYTES ||
        header.length > 16 + WIRE_DATA_RUNS_MAX * WIRE_DATA_RUN_BYTES) {
        atomic_fetch_add(&stream->manager->frames_bad, 1);
        tcp_broken(stream, "a bad frame on data connection %u", stream->index);
        return false;
    }
    stream->in_sequence++;
    stream->in_need = WIRE_HEADER_BYTES + header.length;
    stream->in_state = TCP_IN_TABLE;
    return true;
}

static bool tcp_take_table(struct tcp_stream *stream)
{
    struct wire_data data;
    char why[160];
    const uint8_t *payload = stream->in_head + WIRE_HEADER_BYTES;
    if (wire_data_get(payload, stream->in_need - WIRE_HEADER_BYTES, &data, ERROR_BUFFER(why)) !=
        BATON_OK) {
        atomic_fetch_add(&stream->manager->frames_bad, 1);
        tcp_broken(stream, "data connection %u: %s", stream->index, why);
        return false;
    }
    stream->in_ticket = data.ticket;
    stream->in_bytes = stream->in_left = data.bytes;
    stream->in_at = 0;
    stream->in_count = data.run_count;
    stream->in_state = TCP_IN_BYTES;
    stream->in_leg = leg_of_ticket(stream->manager, stream->session, data.ticket);
    if (!stream->in_leg) {
        atomic_fetch_add_explicit(&stream->manager->frames_stale, 1, memory_order_relaxed);
        return true;
    }
    for (uint32_t i = 0; i < data.run_count; i++) {
        struct wire_data_run run;
        wire_data_run_get(data.runs + (size_t)i * WIRE_DATA_RUN_BYTES, &run);
        if (!tcp_run_allowed(stream->manager, &run, data.ticket)) {
            if (leg_of_ticket(stream->manager, stream->session, data.ticket) !=
                stream->in_leg) {
                stream->in_leg = NULL; /* the room ended while we looked */
                return true;
            }
            atomic_fetch_add(&stream->manager->frames_bad, 1);
            tcp_broken(stream, "data connection %u: bytes for a page that was not granted",
                       stream->index);
            return false;
        }
        const struct layout *layout = &stream->manager->regions[run.region].layout;
        stream->in[i] = (struct iovec){
            (uint8_t *)(uintptr_t)layout->bases[run.base].address + run.offset, run.length};
    }
    stream->in_packed = data.bytes <= TCP_STAGING_BYTES &&
                        (stream->ssl || data.bytes / data.run_count < TCP_RUN_MIN);
    stream->staging_have = 0;
    return true;
}

static void tcp_frame_whole(struct tcp_stream *stream)
{
    struct leg *leg = stream->in_leg;
    if (leg) {
        if (stream->in_packed) {
            const uint8_t *from = stream->staging_in;
            for (uint32_t i = 0; i < stream->in_count; i++) {
                memcpy(stream->in[i].iov_base, from, stream->in[i].iov_len);
                from += stream->in[i].iov_len;
            }
        }
        leg_count_landed(leg, stream->index, stream->in_bytes);
    }
    tcp_expect_frame(stream);
}

/* Reads some of the frame's bytes; false when there is nothing more for now. */
static bool tcp_read_payload(struct tcp_stream *stream)
{
    ssize_t got;
    if (!stream->in_leg) {
        struct iovec nowhere = {stream->staging_in, stream->in_left < TCP_STAGING_BYTES
                                                        ? stream->in_left
                                                        : TCP_STAGING_BYTES};
        got = tcp_read_bytes(stream, &nowhere, 1);
    } else if (stream->in_packed) {
        struct iovec staging = {stream->staging_in + stream->staging_have, stream->in_left};
        got = tcp_read_bytes(stream, &staging, 1);
        if (got > 0)
            stream->staging_have += (uint32_t)got;
    } else {
        got = tcp_read_bytes(stream, stream->in + stream->in_at,
                             stream->in_count - stream->in_at);
        if (got > 0)
            iovec_advance(stream->in, &stream->in_at, stream->in_count, (size_t)got);
    }
    if (got <= 0)
        return false;
    stream->in_left -= (uint64_t)got;
    if (stream->in_left == 0)
        tcp_frame_whole(stream);
    return true;
}

static bool tcp_read_step(struct tcp_stream *stream)
{
    if (stream->in_state == TCP_IN_BYTES)
        return tcp_read_payload(stream);
    struct iovec head = {stream->in_head + stream->in_have, stream->in_need - stream->in_have};
    ssize_t got = tcp_read_bytes(stream, &head, 1);
    if (got <= 0)
        return false;
    stream->in_have += (uint32_t)got;
    if (stream->in_have < stream->in_need)
        return true;
    return stream->in_state == TCP_IN_FIXED ? tcp_take_fixed(stream) : tcp_take_table(stream);
}

/* Bytes that epoll knows nothing of. */
static bool tcp_has_more(const struct tcp_stream *stream)
{
    return stream->early_left || (stream->ssl && SSL_pending(stream->ssl));
}

void tcp_ready(struct worker_watch *watch, uint32_t events)
{
    struct tcp_stream *stream = (struct tcp_stream *)watch;
    if (stream->closed)
        return;
    if (stream->ssl && stream->out_busy)
        tcp_pump_out(stream);
    else if (events & EPOLLOUT && stream->out_busy)
        tcp_pump_out(stream);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) || stream->ssl)
        for (int turn = 0; turn < TCP_READS_PER_TURN || tcp_has_more(stream); turn++)
            if (stream->closed || !tcp_read_step(stream))
                break;
}
