/* SPDX-License-Identifier: Apache-2.0 */
/* A data connection of the tcp backend, shared by tcp.c (its life and the backend's operations), tcp_out.c
 * (the sender's side) and tcp_in.c (the receiver's). After tcp_run_start all fields belong to the stream's
 * worker. */
#ifndef BATON_TRANSFER_TCP_STREAM_H
#define BATON_TRANSFER_TCP_STREAM_H

#include "transfer/backend.h"
#include "transfer/connection.h"
#include "transfer/link.h"
#include "transfer/manager.h"

#include <openssl/ssl.h>
#include <sys/uio.h>

#define TCP_RUNS_MAX 512
#define TCP_FRAME_BYTES (2u << 20) /* about this much per frame: an abort waits no longer */
#define TCP_RUN_MIN 512
#define TCP_STAGING_BYTES (1u << 20)
#define TCP_READS_PER_TURN 16
#define TCP_PIECES_PER_CALL 512 /* 32 and 128 were measured 1-3 % slower */
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

/* tcp.c */
void tcp_want(struct tcp_stream *stream, uint32_t events);
void tcp_wake_lanes(struct tcp_stream *stream);
void tcp_cut(struct tcp_stream *stream); /* nothing is read or written on it any more */
void tcp_broken(struct tcp_stream *stream, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void iovec_advance(struct iovec *pieces, uint32_t *at, uint32_t count, size_t bytes);

/* tcp_out.c */
int tcp_copy(struct lane *lane, const struct plan_run *runs, uint32_t count);
int tcp_flush(struct lane *lane);
void tcp_pump_out(struct tcp_stream *stream); /* the socket takes bytes again */

/* tcp_in.c */
void tcp_expect_frame(struct tcp_stream *stream);
void tcp_ready(struct worker_watch *watch, uint32_t events);

#endif
