/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's side of tcp: runs collect in a DATA frame until it is full, until its lane flushes, or until
 * another lane wants the stream; then the frame goes out with as few calls as the socket takes. One
 * frame is on its way at a time; lanes that come meanwhile wait in the stream's list. */
#include "tcp_stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* 1: all written, 0: the socket is full, -1: broken. */
static int tcp_write_some(struct tcp_stream *stream)
{
    while (stream->out_at < stream->out_count) {
        ssize_t wrote;
        if (stream->ssl) {
            struct iovec *piece = &stream->out[stream->out_at];
            wrote = SSL_write(stream->ssl, piece->iov_base, (int)piece->iov_len);
            if (wrote <= 0) {
                int why = SSL_get_error(stream->ssl, (int)wrote);
                if (why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ)
                    return 0;
                errno = EPIPE;
            }
        } else {
            uint32_t pieces = stream->out_count - stream->out_at;
            struct msghdr message = {
                .msg_iov = stream->out + stream->out_at,
                .msg_iovlen = pieces < TCP_PIECES_PER_CALL ? pieces : TCP_PIECES_PER_CALL};
            wrote = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        if (wrote < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (wrote <= 0) {
            tcp_broken(stream, "data connection %u: %s", stream->index, strerror(errno));
            return -1;
        }
        iovec_advance(stream->out, &stream->out_at, stream->out_count, (size_t)wrote);
    }
    return 1;
}

void tcp_pump_out(struct tcp_stream *stream)
{
    int done = tcp_write_some(stream);
    if (done < 0)
        return;
    tcp_want(stream, done ? EPOLLIN : EPOLLIN | EPOLLOUT);
    if (!done)
        return;
    struct lane *lane = stream->out_lane;
    stream->out_busy = false;
    stream->out_lane = NULL;
    if (lane)
        lane_post(lane);
    tcp_wake_lanes(stream);
}

static struct tcp_stream *tcp_stream_of(const struct lane *lane)
{
    struct tcp_state *state = lane->copy->endpoint->state;
    return atomic_load_explicit(&state->ready[lane->rail], memory_order_acquire);
}

static void tcp_block(struct tcp_stream *stream, struct lane *lane)
{
    if (lane->waiting)
        return;
    lane->waiting = true;
    lane->wait_next = stream->waiting;
    stream->waiting = lane;
}

/* The frame that is being filled goes out. */
static void tcp_send_frame(struct tcp_stream *stream)
{
    size_t head = wire_data_put(stream->out_head, stream->epoch, stream->out_sequence++,
                                stream->out_ticket, stream->out_bytes, stream->out_table,
                                stream->out_runs);
    stream->out[0] = (struct iovec){stream->out_head, head};
    stream->out_count = 1 + stream->out_runs;
    if (stream->out_packed) {
        stream->out[1] = (struct iovec){stream->staging_out, stream->out_bytes};
        stream->out_count = 2;
    }
    stream->out_at = 0;
    stream->out_runs = 0;
    stream->out_busy = true;
    int done = tcp_write_some(stream);
    if (done == 0)
        tcp_want(stream, EPOLLIN | EPOLLOUT);
    if (done <= 0)
        return;
    stream->out_busy = false;
    stream->out_lane = NULL;
}

static bool tcp_frame_takes(const struct tcp_stream *stream, uint64_t length)
{
    uint64_t limit = stream->out_packed ? TCP_STAGING_BYTES : TCP_FRAME_BYTES;
    return stream->out_runs < TCP_RUNS_MAX && stream->out_bytes + length <= limit;
}

static void tcp_frame_add(struct tcp_stream *stream, struct lane *lane,
                          const struct plan_run *run)
{
    const struct copy_region *region = &lane->copy->regions[lane->region_index];
    uint8_t *source =
        (uint8_t *)(uintptr_t)region->src->bases[run->src_base].address + run->src_offset;
    if (stream->out_runs == 0) {
        stream->out_lane = lane;
        stream->out_ticket = lane->copy->ticket;
        stream->out_bytes = 0;
        stream->out_packed =
            (stream->ssl || lane->copy->packed) && run->length <= TCP_STAGING_BYTES;
    }
    if (stream->out_packed)
        memcpy(stream->staging_out + stream->out_bytes, source, run->length);
    stream->out_table[stream->out_runs++] =
        (struct wire_data_run){(uint16_t)region->region, (uint16_t)run->dst_base,
                               (uint32_t)run->length, run->dst_offset};
    stream->out[stream->out_runs] = (struct iovec){source, run->length};
    stream->out_bytes += run->length;
}

/* Runs collect in a frame until it is full, or until its lane flushes or another lane comes. */
int tcp_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    struct tcp_stream *stream = tcp_stream_of(lane);
    if (!stream)
        return 0; /* the stream's arrival wakes every lane of the endpoint, see tcp_stream */
    if (stream->closed) {
        snprintf(lane->error_text, sizeof(lane->error_text), "the data connection is closed");
        return BATON_EPEER;
    }
    if (stream->out_runs && stream->out_lane != lane)
        tcp_send_frame(stream);
    uint32_t taken = 0;
    while (stream->running && !stream->out_busy && !stream->closed && taken < count) {
        if (stream->out_runs && !tcp_frame_takes(stream, runs[taken].length))
            tcp_send_frame(stream);
        else
            tcp_frame_add(stream, lane, &runs[taken++]);
    }
    if (taken == 0)
        tcp_block(stream, lane);
    return (int)taken;
}

/* The lane's room is dead, and the peer reads slowly or not at all: the rest of the frame must keep
 * its length, but not its source. The receiver throws those bytes away. */
static void tcp_disown_frame(struct tcp_stream *stream)
{
    uint64_t left = 0;
    uint32_t first = stream->out_at ? stream->out_at : 1;
    for (uint32_t i = first; i < stream->out_count; i++)
        left += stream->out[i].iov_len;
    stream->out_count = first;
    while (left) {
        size_t piece = left < TCP_STAGING_BYTES ? left : TCP_STAGING_BYTES;
        stream->out[stream->out_count++] = (struct iovec){stream->staging_out, piece};
        left -= piece;
    }
    stream->out_lane = NULL;
}

int tcp_flush(struct lane *lane)
{
    struct tcp_stream *stream = tcp_stream_of(lane);
    if (!stream)
        return 1;
    if (lane->waiting && lane->cancelled) {
        for (struct lane **slot = &stream->waiting; *slot; slot = &(*slot)->wait_next) {
            if (*slot == lane) {
                *slot = lane->wait_next;
                break;
            }
        }
        lane->waiting = false;
    }
    if (stream->out_runs && stream->out_lane == lane) {
        if (lane->cancelled) {
            stream->out_runs = 0; /* nobody has seen anything of it */
            stream->out_lane = NULL;
            tcp_wake_lanes(stream);
        } else {
            tcp_send_frame(stream);
        }
    }
    if (stream->out_lane == lane && lane->cancelled)
        tcp_disown_frame(stream);
    return stream->out_lane != lane;
}
