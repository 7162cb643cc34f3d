/* SPDX-License-Identifier: Apache-2.0 */
/* One side of a measured hand-over: a process with a pool and a manager per rank, which does
 * what the parent asks (role.h). It uses nothing but the public interface, as an engine would,
 * and it sleeps in baton_pollset_wait instead of spinning: on a small machine the library needs
 * the core. */
#include "role.h"

#include "base/clock.h"
#include "base/options.h"
#include "bench_limits.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM_TIMEOUT_NS (60000 * NS_PER_MS)
#define FENCE_TIMEOUT_NS (20000 * NS_PER_MS)
#define SPIN_NS 80000

/* One room on every rank of this side. */
struct side_room {
    baton_sender *senders[BENCH_RANKS_MAX];
    baton_receiver *receivers[BENCH_RANKS_MAX];
};

struct side {
    int fd;
    bool prefill;
    bool opened;
    struct bench_case work;
    uint32_t ranks;
    struct bench_pool pools[BENCH_RANKS_MAX];
    baton_manager *managers[BENCH_RANKS_MAX];
    baton_bootstrap *bootstrap;
    char bootstrap_address[32];
    baton_pollset *set; /* one group per room */
    int32_t *pages;     /* the sequence: position -> page */
    struct side_room rooms[ROLE_ROOMS_MAX];
    uint32_t room_count;
    struct copy_limit limit;
};

/* ---- opening ----------------------------------------------------------------------------- */

static int side_rank_open(struct side *side, uint32_t rank, struct error err)
{
    const struct bench_case *work = &side->work;
    baton_manager_options options = BATON_MANAGER_OPTIONS_INIT;
    baton_region region = {
        .struct_size = sizeof(region), .kind = BATON_REGION_KV, .name = "kv"};
    bool shared = !side->prefill && work->shared_pool;
    int rc = bench_pool_open(work, rank, side->ranks, shared, &side->pools[rank], err);
    if (rc)
        return rc;
    if (side->prefill)
        bench_pool_fill(&side->pools[rank], side->pages, 0, work->pages);
    region.layout = side->pools[rank].layout;
    options.rank = rank;
    options.tp_size = side->ranks;
    options.host = "127.0.0.1";
    options.bootstrap = side->bootstrap_address;
    options.register_rank = side->prefill;
    options.fingerprint = "baton-bench";
    options.regions = &region;
    options.region_count = 1;
    options.backends = work->backends[0] ? work->backends : NULL;
    options.copy_threads = work->threads;
    options.tcp_streams = work->streams;
    options.ib_device = side->prefill ? work->prefill_device : work->decode_device;
    options.max_sge = work->max_sge;
    options.max_inflight = work->max_inflight;
    return baton_manager_open(&options, &side->managers[rank], err.text, err.size);
}

static int side_bootstrap(struct side *side, struct role_request *request, struct error err)
{
    if (side->prefill) {
        int rc = baton_bootstrap_open("127.0.0.1", 0, &side->bootstrap, err.text, err.size);
        if (rc)
            return rc;
        request->bootstrap_port = baton_bootstrap_port(side->bootstrap);
    }
    snprintf(side->bootstrap_address, sizeof(side->bootstrap_address), "127.0.0.1:%u",
             request->bootstrap_port);
    return BATON_OK;
}

static int side_open(struct side *side, struct role_request *request, struct error err)
{
    const struct bench_case *work = &request->work;
    int rc = side->opened ? error_set(err, BATON_ESTATE, "open already") : BATON_OK;
    if (!rc)
        rc = bench_case_check(work, err);
    if (!rc)
        rc = side_bootstrap(side, request, err);
    if (rc)
        return rc;
    side->opened = true;
    side->work = *work;
    side->work.backends[sizeof(side->work.backends) - 1] = '\0';
    side->work.prefill_device[sizeof(side->work.prefill_device) - 1] = '\0';
    side->work.decode_device[sizeof(side->work.decode_device) - 1] = '\0';
    side->ranks = side->prefill ? work->src_tp : work->dst_tp;
    side->pages = malloc(work->pages * sizeof(*side->pages));
    if (!side->pages)
        return error_set(err, BATON_ENOMEM, "no memory for a list of %u pages", work->pages);
    pages_list(work, side->prefill, side->pages);
    rc = baton_pollset_open(ROLE_ROOMS_MAX, &side->set);
    if (rc)
        return error_set(err, rc, "poll set: %s", baton_error_text(rc));
    for (uint32_t rank = 0; rank < side->ranks && !rc; rank++)
        rc = side_rank_open(side, rank, err);
    return rc;
}

/* ---- rooms ------------------------------------------------------------------------------- */

static void room_close(struct side *side, uint32_t group)
{
    struct side_room *room = &side->rooms[group];
    baton_pollset_clear(side->set, group);
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        if (room->senders[rank])
            baton_sender_close(room->senders[rank]);
        if (room->receivers[rank])
            baton_receiver_close(room->receivers[rank]);
    }
    *room = (struct side_room){0};
}

static void side_close(struct side *side)
{
    for (uint32_t group = 0; side->set && group < ROLE_ROOMS_MAX; group++)
        room_close(side, group);
    if (side->set)
        baton_pollset_close(side->set);
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        if (side->managers[rank])
            baton_manager_close(side->managers[rank]);
        bench_pool_close(&side->pools[rank]);
    }
    if (side->bootstrap)
        baton_bootstrap_close(side->bootstrap);
    copy_limit_close(&side->limit);
    free(side->pages);
}

static int sender_rank_open(struct side *side, uint32_t group, uint32_t rank, uint64_t id,
                            uint32_t count, struct error err)
{
    baton_sender_options options = BATON_SENDER_OPTIONS_INIT;
    baton_sender_init_options init = BATON_SENDER_INIT_OPTIONS_INIT;
    baton_sender **sender = &side->rooms[group].senders[rank];
    options.room = id;
    int rc = baton_sender_open(side->managers[rank], &options, sender, err.text, err.size);
    if (rc)
        return rc;
    init.pages = count;
    rc = baton_sender_init(*sender, &init);
    if (!rc)
        rc = baton_pollset_add_sender(side->set, group, *sender);
    return rc ? error_set(err, rc, "sender of rank %u: %s", rank, baton_error_text(rc)) : rc;
}

static int receiver_rank_open(struct side *side, uint32_t group, uint32_t rank, uint64_t id,
                              uint32_t first, uint32_t count, struct error err)
{
    baton_receiver_options options = BATON_RECEIVER_OPTIONS_INIT;
    baton_receiver_init_options init = BATON_RECEIVER_INIT_OPTIONS_INIT;
    baton_receiver **receiver = &side->rooms[group].receivers[rank];
    options.room = id;
    options.bootstrap = side->bootstrap_address;
    int rc = baton_receiver_open(side->managers[rank], &options, receiver, err.text, err.size);
    if (rc)
        return rc;
    init.pages = side->pages + first;
    init.page_count = count;
    rc = baton_receiver_init(*receiver, &init);
    if (!rc)
        rc = baton_pollset_add_receiver(side->set, group, *receiver);
    return rc ? error_set(err, rc, "receiver of rank %u: %s", rank, baton_error_text(rc)) : rc;
}

static int room_open(struct side *side, uint32_t group, uint64_t id, uint32_t first,
                     uint32_t count, struct error err)
{
    int rc = BATON_OK;
    for (uint32_t rank = 0; rank < side->ranks && !rc; rank++)
        rc = side->prefill ? sender_rank_open(side, group, rank, id, count, err)
                           : receiver_rank_open(side, group, rank, id, first, count, err);
    return rc;
}

/* Positions [first, first+count) on every rank; a full ring is waited for. */
static int room_send(struct side *side, uint32_t group, uint32_t first, uint32_t count,
                     bool last, struct error err)
{
    struct timespec pause = {.tv_nsec = 50000};
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        baton_sender *sender = side->rooms[group].senders[rank];
        int rc = baton_sender_send(sender, side->pages + first, count, last);
        while (rc == BATON_AGAIN) {
            nanosleep(&pause, NULL);
            rc = baton_sender_send(sender, side->pages + first, count, last);
        }
        if (rc && baton_sender_poll(sender) != BATON_FAILED)
            return error_set(err, rc, "send on rank %u: %s", rank, baton_error_text(rc));
    }
    return BATON_OK;
}

/* Until every one of the first `groups` rooms is in `state` or beyond, or has failed. */
static int rooms_wait(struct side *side, uint32_t groups, int state, struct error err)
{
    uint8_t states[ROLE_ROOMS_MAX];
    uint64_t until = clock_now_ns() + ROOM_TIMEOUT_NS;
    baton_poll_many(side->set, states, groups);
    for (;;) {
        uint32_t waiting = 0;
        for (uint32_t i = 0; i < groups; i++)
            waiting += states[i] != BATON_FAILED && states[i] < state;
        if (!waiting)
            return BATON_OK;
        if (clock_now_ns() > until)
            return error_set(err, BATON_ETIMEOUT, "%u of %u rooms are still %s after a minute",
                             waiting, groups, baton_state_name(states[0]));
        baton_pollset_wait(side->set, states, groups, 1000);
    }
}

static bool room_fenced(const struct side *side, uint32_t group)
{
    const struct side_room *room = &side->rooms[group];
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        if (room->senders[rank] && !baton_sender_fenced(room->senders[rank]))
            return false;
        if (room->receivers[rank] && !baton_receiver_fenced(room->receivers[rank]))
            return false;
    }
    return true;
}

/* A fence is not a state: the managers' eventfds tell it. */
static int rooms_wait_fenced(struct side *side, uint32_t groups, struct error err)
{
    struct pollfd ready[BENCH_RANKS_MAX];
    uint64_t until = clock_now_ns() + FENCE_TIMEOUT_NS;
    for (uint32_t rank = 0; rank < side->ranks; rank++)
        ready[rank] = (struct pollfd){baton_manager_eventfd(side->managers[rank]), POLLIN, 0};
    for (;;) {
        uint32_t waiting = 0;
        uint64_t cleared;
        for (uint32_t rank = 0; rank < side->ranks; rank++)
            if ((ready[rank].revents & POLLIN) &&
                read(ready[rank].fd, &cleared, sizeof(cleared)) < 0 && errno != EAGAIN)
                return error_set(err, BATON_ESYSTEM, "eventfd: %s", strerror(errno));
        for (uint32_t i = 0; i < groups; i++)
            waiting += !room_fenced(side, i);
        if (!waiting)
            return BATON_OK;
        if (clock_now_ns() > until)
            return error_set(err, BATON_ETIMEOUT, "%u of %u rooms are not fenced after 20 s",
                             waiting, groups);
        poll(ready, side->ranks, 100);
    }
}

/* Why the room failed, of the first rank that knows; 0 when it succeeded. */
static int room_failure(const struct side *side, uint32_t group, char *text, size_t size)
{
    const struct side_room *room = &side->rooms[group];
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        int code = side->prefill ? baton_sender_failure(room->senders[rank], text, size)
                                 : baton_receiver_failure(room->receivers[rank], text, size);
        if (code)
            return code;
    }
    return BATON_OK;
}

static void room_measure(const struct side *side, uint32_t group, struct role_answer *answer)
{
    const struct side_room *room = &side->rooms[group];
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        baton_timeline timeline = {.struct_size = sizeof(timeline)};
        if (side->prefill)
            baton_sender_timeline(room->senders[rank], &timeline);
        else
            baton_receiver_timeline(room->receivers[rank], &timeline);
        uint64_t copy_ns = timeline.last_byte_ns > timeline.first_send_ns
                               ? timeline.last_byte_ns - timeline.first_send_ns
                               : 0;
        answer->bytes += timeline.bytes;
        answer->operations += timeline.operations;
        answer->requests += timeline.requests;
        answer->doorbells += timeline.doorbells;
        if (copy_ns > answer->copy_ns)
            answer->copy_ns = copy_ns;
        if (rank == 0)
            answer->timeline = timeline;
    }
}

static void room_verify(const struct side *side, uint32_t first, uint32_t count,
                        struct role_answer *answer)
{
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        char where[sizeof(answer->wrong_where)] = "";
        uint64_t wrong = bench_pool_check(&side->pools[rank], side->pages, first, count, where,
                                          sizeof(where));
        if (wrong && !answer->wrong_bytes)
            memcpy(answer->wrong_where, where, sizeof(where));
        answer->wrong_bytes += wrong;
    }
}

static uint32_t pages_quarantined(const struct side *side)
{
    uint32_t pages = 0;
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        baton_counters counters = {.struct_size = sizeof(counters)};
        if (baton_manager_counters(side->managers[rank], &counters) == 0)
            pages += counters.pages_quarantined;
    }
    return pages;
}

/* ---- requests ---------------------------------------------------------------------------- */

/* Sleeps most of the way and spins the rest, so that both begin at the same instant. */
static void start_wait(uint64_t start_ns)
{
    if (start_ns > clock_now_ns() + SPIN_NS) {
        uint64_t wake = start_ns - SPIN_NS;
        struct timespec at = {(time_t)(wake / 1000000000), (long)(wake % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    while (clock_now_ns() < start_ns)
        continue;
}

static void progress_tell(struct side *side, uint64_t bytes)
{
    struct role_answer answer = {.kind = ROLE_PROGRESS, .bytes = bytes};
    if (send(side->fd, &answer, sizeof(answer), MSG_NOSIGNAL) < 0)
        _exit(1); /* nobody is there to be told */
}

static int room_send_chunks(struct side *side, const struct role_request *request,
                            struct role_answer *answer, struct error err)
{
    uint32_t chunks = request->chunks ? request->chunks : 1;
    uint32_t sent = 0;
    int rc = BATON_OK;
    if (chunks > request->count)
        chunks = request->count;
    for (uint32_t i = 0; i < chunks && !rc; i++) {
        uint32_t end = (uint32_t)((uint64_t)request->count * (i + 1) / chunks);
        struct timespec pause = {request->pace_us / 1000000, request->pace_us % 1000000 * 1000};
        if (request->pace_us)
            nanosleep(&pause, NULL);
        answer->send_ns = clock_now_ns();
        if (i == 0)
            answer->first_send_ns = answer->send_ns;
        rc = room_send(side, 0, request->first + sent, end - sent, i + 1 == chunks, err);
        sent = end;
        if (request->progress)
            progress_tell(side, sent * side->work.item_bytes * side->work.layers);
    }
    return rc;
}

static int room_run(struct side *side, const struct role_request *request,
                    struct role_answer *answer, struct error err)
{
    start_wait(request->start_ns);
    answer->open_ns = clock_now_ns();
    int rc = room_open(side, 0, request->room, request->first, request->count, err);
    if (!rc && side->prefill && request->wait_grants)
        rc = rooms_wait(side, 1, BATON_WAITING_FOR_INPUT, err);
    answer->ready_ns = clock_now_ns();
    if (!rc && side->prefill)
        rc = room_send_chunks(side, request, answer, err);
    if (!rc)
        rc = rooms_wait(side, 1, BATON_SUCCESS, err);
    answer->end_ns = clock_now_ns();
    return rc;
}

static int request_room(struct side *side, const struct role_request *request,
                        struct role_answer *answer, struct error err)
{
    if (!request->count || request->first >= side->work.pages ||
        request->count > side->work.pages - request->first)
        return error_set(err, BATON_EINVAL, "positions %u..+%u of %u pages", request->first,
                         request->count, side->work.pages);
    for (uint32_t rank = 0; rank < side->ranks && !side->prefill; rank++)
        bench_pool_poison(&side->pools[rank], side->pages, request->first, request->count);
    int rc = room_run(side, request, answer, err);
    if (!rc) {
        room_measure(side, 0, answer);
        answer->room_code = room_failure(side, 0, answer->room_text, sizeof(answer->room_text));
        answer->pages_quarantined = pages_quarantined(side);
    }
    if (!rc && answer->room_code) {
        rc = rooms_wait_fenced(side, 1, err);
        answer->fenced_ns = clock_now_ns();
    } else if (!rc && !side->prefill) {
        room_verify(side, request->first, request->count, answer);
    }
    room_close(side, 0);
    return rc;
}

static int request_limit(struct side *side, struct role_answer *answer, struct error err)
{
    if (!side->limit.src) {
        int rc = copy_limit_open(&side->work, &side->limit, err);
        if (rc)
            return rc;
        copy_limit_seconds(&side->limit); /* warm-up */
    }
    answer->seconds = copy_limit_seconds(&side->limit);
    return BATON_OK;
}

static int request_hold(struct side *side, const struct role_request *request, struct error err)
{
    uint32_t each = request->rooms ? side->work.pages / request->rooms : 0;
    int rc = BATON_OK;
    if (each < 2 || request->rooms > ROLE_ROOMS_MAX)
        return error_set(err, BATON_EINVAL, "%u rooms over %u pages", request->rooms,
                         side->work.pages);
    side->room_count = request->rooms;
    for (uint32_t i = 0; i < side->room_count && !rc; i++)
        rc = room_open(side, i, request->room + i, i * each, each, err);
    for (uint32_t i = 0; i < side->room_count && !rc && side->prefill; i++)
        rc = room_send(side, i, i * each, each / 2, false, err);
    return rc ? rc : rooms_wait(side, side->room_count, BATON_TRANSFERRING, err);
}

static int request_watch(struct side *side, struct role_answer *answer, struct error err)
{
    int rc = rooms_wait(side, side->room_count, BATON_SUCCESS, err);
    answer->end_ns = clock_now_ns();
    if (rc)
        return rc;
    answer->pages_quarantined = pages_quarantined(side);
    rc = rooms_wait_fenced(side, side->room_count, err);
    answer->fenced_ns = clock_now_ns();
    answer->room_code = room_failure(side, 0, answer->room_text, sizeof(answer->room_text));
    for (uint32_t i = 0; i < side->room_count; i++)
        room_close(side, i);
    return rc;
}

static int request_do(struct side *side, struct role_request *request,
                      struct role_answer *answer, struct error err)
{
    int rc;
    if (request->kind == ROLE_OPEN) {
        rc = side_open(side, request, err);
        answer->bootstrap_port = request->bootstrap_port;
        return rc;
    }
    if (!side->opened)
        return error_set(err, BATON_ESTATE, "request %u before OPEN", request->kind);
    switch (request->kind) {
    case ROLE_ROOM: return request_room(side, request, answer, err);
    case ROLE_LIMIT: return request_limit(side, answer, err);
    case ROLE_HOLD: return request_hold(side, request, err);
    case ROLE_WATCH: return request_watch(side, answer, err);
    default: return error_set(err, BATON_EINVAL, "unknown request %u", request->kind);
    }
}

int role_main(int argc, char **argv)
{
    static struct side side;
    struct role_request request;
    uint64_t fd = 0;
    char text[128] = "it is started by other commands";
    if (argc != 2 || (strcmp(argv[0], "prefill") != 0 && strcmp(argv[0], "decode") != 0) ||
        options_number(argv[1], "the descriptor", 3, 1 << 20, &fd, ERROR_BUFFER(text))) {
        fprintf(stderr, "baton role: not meant to be called by hand: %s\n", text);
        return 2;
    }
    side.fd = (int)fd;
    side.prefill = argv[0][0] == 'p';
    for (;;) {
        struct role_answer answer = {.kind = ROLE_DONE};
        ssize_t got = recv(side.fd, &request, sizeof(request), 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != (ssize_t)sizeof(request))
            break;
        answer.code = request_do(&side, &request, &answer, ERROR_BUFFER(answer.text));
        if (answer.code && !answer.text[0])
            snprintf(answer.text, sizeof(answer.text), "%s", baton_error_text(answer.code));
        if (send(side.fd, &answer, sizeof(answer), MSG_NOSIGNAL) != (ssize_t)sizeof(answer))
            break;
    }
    side_close(&side);
    return 0;
}
