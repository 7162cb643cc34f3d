/* SPDX-License-Identifier: Apache-2.0 */
/* tcp: everywhere else. A link has a few data connections (streams), each owned by one copy worker on
 * either side, with one lane per stream. The sender's lane makes a DATA frame of as many runs as an
 * iovec list holds and writes it out of the pool with writev; the receiver's worker reads the table
 * of runs, checks every run against the grant, and readvs the bytes straight into the pages.
 *
 *   DATA | ticket, runs, bytes | (region, base, length, offset) x runs | bytes ...
 *
 * The storer is our own worker, so the fence is local: `revoke` runs on the worker between two
 * reads, and turns what is left of a dead room's frame into a read to nowhere. Bytes are counted per
 * leg and stream when a frame is whole; COMMIT says how many there must be.
 *
 * Small runs (below TCP_RUN_MIN on average) go through a staging buffer on either side: an entry of
 * an iovec list costs more than a short memcpy. The frame is the same, each side decides for
 * itself. TLS always goes through staging. */
#include "net/socket.h"
#include "transfer/backend.h"
#include "transfer/connection.h"
#include "transfer/link.h"
#include "transfer/manager.h"

#include <errno.h>
#include <openssl/ssl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define TCP_RUNS_MAX 512
#define TCP_FRAME_BYTES (2u << 20) /* about this much per frame: an abort waits no longer */
#define TCP_RUN_MIN 512
#define TCP_STAGING_BYTES (1u << 20)
#define TCP_READS_PER_TURN 16
#define TCP_PIECES_PER_CALL \
    128 /* a call moves a few 100 KB: a longer list is copied in for nothing */
#define TCP_FIXED_BYTES (WIRE_HEADER_BYTES + 16)
#define TCP_TABLE_BYTES (TCP_FIXED_BYTES + WIRE_DATA_RUNS_MAX * WIRE_DATA_RUN_BYTES)

enum tcp_in { TCP_IN_FIXED, TCP_IN_TABLE, TCP_IN_BYTES };

struct tcp_stream {
    struct worker_watch watch;
    struct worker_job start, stop, finish;
    struct worker *worker;
    struct manager *manager;
    uint64_t epoch, peer_epoch;
    uint32_t index;
    int fd;
    SSL *ssl;
    uint64_t session;          /* of the link */
    struct runtime_job broken; /* it ended on its own: the link thread ends the link */
    struct runtime_job freed;  /* the worker is done with it */
    char broken_text[160];

    /* owner: worker */
    bool running, closed;
    uint32_t events;
    struct lane *waiting; /* blocked lanes */
    /* out */
    bool out_busy;         /* a frame is being written */
    struct lane *out_lane; /* whose pages it has; NULL: nobody's any more */
    uint32_t out_sequence;
    uint32_t out_runs; /* of the frame that is being filled; 0: none is */
    uint32_t out_ticket;
    uint64_t out_bytes;
    bool out_packed;
    struct wire_data_run out_table[TCP_RUNS_MAX];
    uint8_t out_head[TCP_FIXED_BYTES + TCP_RUNS_MAX * WIRE_DATA_RUN_BYTES];
    struct iovec out[TCP_RUNS_MAX + 1];
    uint32_t out_at, out_count;
    uint8_t *staging_out;
    /* in */
    uint8_t *early; /* read before the stream was a stream */
    size_t early_at, early_left;
    enum tcp_in in_state;
    uint32_t in_sequence;
    uint8_t in_head[TCP_TABLE_BYTES];
    uint32_t in_have, in_need;
    uint32_t in_ticket;
    uint64_t in_bytes, in_left;
    struct leg *in_leg; /* NULL: to nowhere */
    struct iovec in[WIRE_DATA_RUNS_MAX];
    uint32_t in_at, in_count;
    bool in_packed;
    uint8_t *staging_in;
    uint32_t staging_have;
};

struct tcp_state {
    struct tcp_stream *streams[WIRE_STREAMS_MAX];
    uint32_t count;
    bool stopped;
    _Atomic(struct tcp_stream *) ready[WIRE_STREAMS_MAX]; /* the same, for the workers */
};

/* ---- streams: worker side ---- */

static void tcp_want(struct tcp_stream *stream, uint32_t events)
{
    if (stream->closed || stream->events == events)
        return;
    stream->events = events;
    worker_watch_change(stream->worker, &stream->watch, events);
}

static void tcp_wake_lanes(struct tcp_stream *stream)
{
    while (stream->waiting) {
        struct lane *lane = stream->waiting;
        stream->waiting = lane->wait_next;
        lane->waiting = false;
        lane_post(lane);
    }
}

/* Nothing is read or written on this stream any more. */
static void tcp_cut(struct tcp_stream *stream)
{
    if (stream->closed)
        return;
    stream->closed = true;
    if (stream->running)
        worker_watch_remove(stream->worker, &stream->watch);
    shutdown(stream->fd, SHUT_RDWR);
    struct lane *lane = stream->out_lane;
    stream->out_busy = false;
    stream->out_runs = 0;
    stream->out_lane = NULL;
    stream->in_leg = NULL;
    if (lane)
        lane_post(lane);
    tcp_wake_lanes(stream);
}

static void tcp_broken(struct tcp_stream *stream, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void tcp_broken(struct tcp_stream *stream, const char *format, ...)
{
    va_list args;
    if (stream->closed)
        return;
    va_start(args, format);
    vsnprintf(stream->broken_text, sizeof(stream->broken_text), format, args);
    va_end(args);
    tcp_cut(stream);
    runtime_post(stream->manager->runtime, &stream->broken);
}

/* ---- writing ---- */

static void iovec_advance(struct iovec *pieces, uint32_t *at, uint32_t count, size_t bytes)
{
    while (*at < count && bytes >= pieces[*at].iov_len)
        bytes -= pieces[(*at)++].iov_len;
    if (bytes) {
        pieces[*at].iov_base = (uint8_t *)pieces[*at].iov_base + bytes;
        pieces[*at].iov_len -= bytes;
    }
}

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

static void tcp_pump_out(struct tcp_stream *stream)
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
    return atomic_load_explicit(&state->ready[lane->index], memory_order_acquire);
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
static int tcp_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
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

static int tcp_flush(struct lane *lane)
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

/* ---- reading ---- */

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

static void tcp_expect_frame(struct tcp_stream *stream)
{
    stream->in_state = TCP_IN_FIXED;
    stream->in_have = 0;
    stream->in_need = TCP_FIXED_BYTES;
    stream->in_leg = NULL;
    stream->in_ticket = 0;
}

/* Which leg a ticket means, as long as the room lives. Legs of a granted room stay until every
 * worker has answered the fence, and we are one of them. */
static struct leg *tcp_leg(struct tcp_stream *stream, uint32_t ticket)
{
    struct room *room = manager_room_by_ticket(stream->manager, ticket);
    struct leg *leg = room ? room->legs : NULL;
    while (leg && leg->session != stream->session)
        leg = leg->next;
    return leg;
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
    stream->in_leg = tcp_leg(stream, data.ticket);
    if (!stream->in_leg) {
        atomic_fetch_add_explicit(&stream->manager->frames_stale, 1, memory_order_relaxed);
        return true;
    }
    for (uint32_t i = 0; i < data.run_count; i++) {
        struct wire_data_run run;
        wire_data_run_get(data.runs + (size_t)i * WIRE_DATA_RUN_BYTES, &run);
        if (!tcp_run_allowed(stream->manager, &run, data.ticket)) {
            if (tcp_leg(stream, data.ticket) != stream->in_leg) {
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
        /* Release: who reads the count (and then tells the caller) sees the bytes. */
        atomic_fetch_add_explicit(&leg->landed_bytes[stream->index], stream->in_bytes,
                                  memory_order_release);
        runtime_post(stream->manager->runtime, &leg->room->job);
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

static void tcp_ready(struct worker_watch *watch, uint32_t events)
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

/* ---- life of a stream ---- */

static void tcp_run_start(struct worker_job *job)
{
    struct tcp_stream *stream =
        (struct tcp_stream *)((char *)job - offsetof(struct tcp_stream, start));
    if (stream->closed)
        return;
    stream->watch.fd = stream->fd;
    stream->watch.ready = tcp_ready;
    stream->events = EPOLLIN;
    tcp_expect_frame(stream);
    if (worker_watch_add(stream->worker, &stream->watch, EPOLLIN) != 0) {
        tcp_broken(stream, "cannot watch data connection %u: %s", stream->index,
                   strerror(errno));
        return;
    }
    stream->running = true;
    tcp_wake_lanes(stream);
    tcp_ready(&stream->watch, EPOLLIN); /* the handshake may have read ahead */
}

static void tcp_run_stop(struct worker_job *job)
{
    tcp_cut((struct tcp_stream *)((char *)job - offsetof(struct tcp_stream, stop)));
}

static void tcp_free(struct tcp_stream *stream)
{
    if (stream->ssl)
        SSL_free(stream->ssl);
    socket_close(stream->fd);
    free(stream->early);
    free(stream->staging_in);
    free(stream->staging_out);
    free(stream);
}

static void tcp_run_finish(struct worker_job *job)
{
    struct tcp_stream *stream =
        (struct tcp_stream *)((char *)job - offsetof(struct tcp_stream, finish));
    tcp_cut(stream);
    runtime_post(stream->manager->runtime, &stream->freed); /* the worker's last touch */
}

static void tcp_on_freed(struct runtime_job *job)
{
    struct tcp_stream *stream =
        (struct tcp_stream *)((char *)job - offsetof(struct tcp_stream, freed));
    struct manager *manager = stream->manager;
    if (atomic_load_explicit(&stream->broken.queued, memory_order_acquire)) {
        runtime_post(manager->runtime, &stream->freed); /* behind it in the queue */
        return;
    }
    tcp_free(stream);
    atomic_fetch_sub_explicit(&manager->worker_objects, 1, memory_order_release);
}

static void tcp_on_broken(struct runtime_job *job)
{
    struct tcp_stream *stream =
        (struct tcp_stream *)((char *)job - offsetof(struct tcp_stream, broken));
    for (struct link *link = stream->manager->links; link; link = link->next) {
        if (link->session == stream->session && link->state == LINK_READY) {
            link_close(link, BATON_EPEER, "%s", stream->broken_text);
            return;
        }
    }
}

/* ---- operations ---- */

static int tcp_export_key(struct manager *manager, uint8_t **key, uint32_t *key_bytes,
                          struct error err)
{
    uint32_t *streams = malloc(sizeof(*streams));
    if (!streams)
        return error_set(err, BATON_ENOMEM, "out of memory for the tcp key");
    *streams = manager->config.tcp_streams;
    *key = (uint8_t *)streams;
    *key_bytes = sizeof(*streams);
    return BATON_OK;
}

static uint32_t tcp_streams_of(const struct peer *peer)
{
    uint32_t streams = 0;
    for (uint32_t i = 0; i < peer->memory.backend_count; i++)
        if (strcmp(peer->memory.backends[i].name, "tcp") == 0 &&
            peer->memory.backends[i].key_bytes == 4)
            memcpy(&streams, peer->memory.backends[i].key, 4);
    return streams > WIRE_STREAMS_MAX ? WIRE_STREAMS_MAX : streams;
}

static int tcp_can_reach(struct manager *manager, struct peer *peer, struct error why)
{
    (void)manager;
    if (tcp_streams_of(peer) == 0)
        return error_set(why, BATON_EUNREACHABLE, "the peer offers no data connections");
    return BATON_OK;
}

static int tcp_connect(struct endpoint *endpoint, struct error err)
{
    struct manager *manager = endpoint->manager;
    uint32_t theirs = tcp_streams_of(endpoint->peer), workers = manager->runtime->worker_count;
    struct tcp_state *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set(err, BATON_ENOMEM, "out of memory for an endpoint");
    endpoint->state = state;
    endpoint->lane_count =
        manager->config.tcp_streams < theirs ? manager->config.tcp_streams : theirs;
    state->count = endpoint->lane_count;
    for (uint32_t i = 0; i < endpoint->lane_count; i++)
        endpoint->workers[i] = manager->runtime->workers[i % workers];
    return BATON_OK;
}

static int tcp_stream(struct endpoint *endpoint, uint32_t index, int fd,
                      struct connection_rest *rest, struct error err)
{
    struct tcp_state *state = endpoint->state;
    struct tcp_stream *stream = NULL;
    if (index < state->count && !state->streams[index] && !state->stopped)
        stream = calloc(1, sizeof(*stream));
    if (stream) {
        stream->staging_in = malloc(TCP_STAGING_BYTES);
        stream->staging_out = malloc(TCP_STAGING_BYTES);
    }
    bool lost = rest->length && !rest->bytes;
    if (!stream || !stream->staging_in || !stream->staging_out || lost) {
        if (stream) {
            free(stream->staging_in);
            free(stream->staging_out);
            free(stream);
        }
        stream_refuse(fd, rest);
        return error_set(err, BATON_EPROTOCOL,
                         "index %u of %u is taken, unknown, or out of memory", index,
                         state->count);
    }
    stream->worker = endpoint->workers[index];
    stream->manager = endpoint->manager;
    stream->epoch = endpoint->manager->epoch;
    stream->peer_epoch = endpoint->peer->epoch;
    stream->index = index;
    stream->fd = fd;
    stream->ssl = rest->ssl;
    stream->early = rest->bytes;
    stream->early_left = rest->bytes ? rest->length : 0;
    stream->session = endpoint->link->session;
    /* HELLO was frame 0 of this connection, PROOF (with a key) frame 1. */
    stream->out_sequence = stream->in_sequence = endpoint->manager->config.key[0] ? 2 : 1;
    worker_job_init(&stream->start, tcp_run_start);
    worker_job_init(&stream->stop, tcp_run_stop);
    worker_job_init(&stream->finish, tcp_run_finish);
    runtime_job_init(&stream->broken, tcp_on_broken);
    runtime_job_init(&stream->freed, tcp_on_freed);
    atomic_fetch_add_explicit(&endpoint->manager->worker_objects, 1, memory_order_relaxed);
    state->streams[index] = stream;
    worker_post(stream->worker, &stream->start);
    atomic_store_explicit(&state->ready[index], stream, memory_order_release);
    /* Lanes that came before their stream were sent away: all of this link's look again. */
    for (struct leg *leg = endpoint->link->legs; leg; leg = leg->link_next)
        copy_wake(&leg->copy);
    return BATON_OK;
}

static void tcp_stop(struct endpoint *endpoint)
{
    struct tcp_state *state = endpoint->state;
    state->stopped = true;
    for (uint32_t i = 0; i < state->count; i++)
        if (state->streams[i])
            worker_post(state->streams[i]->worker, &state->streams[i]->stop);
}

static void tcp_disconnect(struct endpoint *endpoint)
{
    struct tcp_state *state = endpoint->state;
    for (uint32_t i = 0; i < state->count; i++)
        if (state->streams[i])
            worker_post(state->streams[i]->worker, &state->streams[i]->finish);
    free(state);
}

/* arg NULL: only the barrier. */
static void tcp_revoke_on_worker(void *arg, uint32_t ticket)
{
    struct tcp_stream *stream = arg;
    if (stream && stream->in_state == TCP_IN_BYTES && stream->in_ticket == ticket)
        stream->in_leg = NULL;
}

/* The streams of this link stop storing. Every other worker passes a barrier as well: a peer that
 * sends somebody else's ticket makes it look at this room, and the room must still be there. */
static int tcp_revoke(struct endpoint *endpoint, uint32_t ticket, struct copy_fence *fence)
{
    struct tcp_state *state = endpoint->state;
    struct runtime *runtime = endpoint->manager->runtime;
    struct worker *workers[COPY_FENCE_PARTS];
    void *streams[COPY_FENCE_PARTS];
    uint32_t count = 0;
    (void)ticket;
    for (uint32_t i = 0; i < state->count; i++) {
        if (state->streams[i]) {
            workers[count] = state->streams[i]->worker;
            streams[count++] = state->streams[i];
        }
    }
    for (uint32_t w = 0; w < runtime->worker_count; w++) {
        bool covered = false;
        for (uint32_t i = 0; i < count; i++)
            covered |= workers[i] == runtime->workers[w];
        if (!covered) {
            workers[count] = runtime->workers[w];
            streams[count++] = NULL;
        }
    }
    return copy_fence_start(fence, count, workers, tcp_revoke_on_worker, streams);
}

const struct backend_ops backend_tcp = {
    .name = "tcp",
    .about =
        "any peer: several connections, writev out of the pool, readv into the granted pages",
    .capabilities = BACKEND_PUT | BACKEND_STREAMS,
    .run_bytes_min = TCP_RUN_MIN,
    .available = backend_always_available,
    .export_key = tcp_export_key,
    .can_reach = tcp_can_reach,
    .connect = tcp_connect,
    .stop = tcp_stop,
    .disconnect = tcp_disconnect,
    .stream = tcp_stream,
    .copy = tcp_copy,
    .flush = tcp_flush,
    .revoke = tcp_revoke,
};
