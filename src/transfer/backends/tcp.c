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
#include "tcp_stream.h"

#include "net/socket.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- streams: worker side ---- */

void tcp_want(struct tcp_stream *stream, uint32_t events)
{
    if (stream->closed || stream->events == events)
        return;
    stream->events = events;
    worker_watch_change(stream->worker, &stream->watch, events);
}

void tcp_wake_lanes(struct tcp_stream *stream)
{
    while (stream->waiting) {
        struct lane *lane = stream->waiting;
        stream->waiting = lane->wait_next;
        lane->waiting = false;
        lane_post(lane);
    }
}

/* Nothing is read or written on this stream any more. */
void tcp_cut(struct tcp_stream *stream)
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

void tcp_broken(struct tcp_stream *stream, const char *format, ...)
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

void iovec_advance(struct iovec *pieces, uint32_t *at, uint32_t count, size_t bytes)
{
    while (*at < count && bytes >= pieces[*at].iov_len)
        bytes -= pieces[(*at)++].iov_len;
    if (bytes) {
        pieces[*at].iov_base = (uint8_t *)pieces[*at].iov_base + bytes;
        pieces[*at].iov_len -= bytes;
    }
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

static int tcp_export_key(struct manager *manager, void *state, uint8_t **key,
                          uint32_t *key_bytes, struct error err)
{
    (void)state;
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
    const struct wire_backend_key *key = peer_backend_key(peer, "tcp");
    if (key && key->key_bytes == 4)
        memcpy(&streams, key->key, 4);
    return streams > WIRE_STREAMS_MAX ? WIRE_STREAMS_MAX : streams;
}

static int tcp_can_reach(struct manager *manager, void *state, struct peer *peer,
                         struct error why)
{
    (void)state;
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
    endpoint->rail_count =
        manager->config.tcp_streams < theirs ? manager->config.tcp_streams : theirs;
    state->count = endpoint->rail_count;
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
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
    endpoint_wake(endpoint); /* lanes that came before their stream were sent away */
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
    .capabilities = BACKEND_PUT | BACKEND_STREAMS | BACKEND_COUNTED,
    .run_bytes_min = TCP_RUN_MIN,
    .available = backend_always_available,
    .open = backend_open_nothing,
    .close = backend_close_nothing,
    .export_key = tcp_export_key,
    .can_reach = tcp_can_reach,
    .connect = tcp_connect,
    .stop = tcp_stop,
    .disconnect = tcp_disconnect,
    .stream = tcp_stream,
    .signal = backend_no_signal,
    .tick = backend_no_tick,
    .spread = backend_all_rails,
    .copy = tcp_copy,
    .flush = tcp_flush,
    .revoke = tcp_revoke,
};
