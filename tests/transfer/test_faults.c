/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to the survivor: prefill and decode as real processes, one of them killed with
 * SIGKILL at every stage of a room, stopped with SIGSTOP in the middle of a copy, refused, out of
 * descriptors. The test itself never touches the library, so that it may fork (fleet.h).
 *
 *   test_faults kill BACKEND        every stage, either process
 *   test_faults stop                stopped processes, and what a fence is worth then
 *   test_faults refuse              ports, ranks, keys and TLS that do not fit, limits */
#include "fleet.h"
#include "puppet.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <signal.h>

#define PAGES 16u
#define PAGE_BYTES (1u << 20)

static struct {
    struct fleet_worker *bootstrap, *prefill, *decode;
    char address[64];
    const char *backend;
    bool reads;      /* decode executes the copies */
    unsigned stages; /* of a room's life in which to kill */
} crew;

/* ---- the crew ---- */

static struct fleet_options crew_options(const char *backends)
{
    struct fleet_options options = {.pages = PAGES, .page_bytes = PAGE_BYTES};
    snprintf(options.bootstrap, sizeof(options.bootstrap), "%s", crew.address);
    snprintf(options.backends, sizeof(options.backends), "%s", backends);
    return options;
}

static int setup(void **state)
{
    (void)state;
    crew.bootstrap = fleet_start();
    snprintf(crew.address, sizeof(crew.address), "127.0.0.1:%u",
             fleet_bootstrap(crew.bootstrap));
    crew.prefill = fleet_start();
    crew.decode = fleet_start();
    return 0;
}

/* Rooms end, handles close, the processes leave, and nothing leaked in any of them. */
static void all_quit(void)
{
    fleet_quit(crew.decode);
    fleet_quit(crew.prefill);
    fleet_quit(crew.bootstrap);
}

static struct fleet_reply call(struct fleet_worker *worker, struct fleet_order order)
{
    struct fleet_reply reply = fleet_order(worker, order);
    if (reply.code != BATON_OK)
        fail_msg("order %u: %s: %s", order.op, baton_error_name(reply.code), reply.text);
    return reply;
}

static void sender_open(uint64_t room)
{
    call(crew.prefill, (struct fleet_order){.op = FLEET_SENDER, .room = room});
}

static void receiver_open(uint64_t room, uint32_t deadline_ms)
{
    call(crew.decode,
         (struct fleet_order){.op = FLEET_RECEIVER, .room = room, .deadline_ms = deadline_ms});
}

static void receiver_grant(uint64_t room, uint32_t first, uint32_t count)
{
    call(crew.decode,
         (struct fleet_order){.op = FLEET_INIT, .room = room, .first = first, .count = count});
}

static void sender_send(uint64_t room, uint32_t first, uint32_t count)
{
    call(crew.prefill,
         (struct fleet_order){.op = FLEET_INIT, .sender = 1, .room = room, .count = count});
    call(crew.prefill,
         (struct fleet_order){
             .op = FLEET_SEND, .sender = 1, .room = room, .first = first, .count = count});
}

static void room_end(struct fleet_worker *worker, bool sender, uint64_t room)
{
    call(worker, (struct fleet_order){.op = FLEET_END, .sender = sender, .room = room});
}

static struct fleet_reply room_fence(struct fleet_worker *worker, bool sender, uint64_t room)
{
    struct fleet_reply reply =
        call(worker, (struct fleet_order){.op = FLEET_FENCE, .sender = sender, .room = room});
    if (!reply.fenced)
        fail_msg("room %llu is not fenced", (unsigned long long)room);
    return reply;
}

static baton_counters counters(struct fleet_worker *worker)
{
    return call(worker, (struct fleet_order){.op = FLEET_COUNTERS}).counters;
}

static uint64_t wrong_bytes(uint32_t first, uint32_t count, uint32_t seed)
{
    return call(crew.decode,
                (struct fleet_order){
                    .op = FLEET_CHECK, .first = first, .count = count, .seed = seed})
        .value;
}

static void fill(struct fleet_worker *worker, uint32_t first, uint32_t count, uint32_t seed)
{
    call(worker,
         (struct fleet_order){.op = FLEET_FILL, .first = first, .count = count, .seed = seed});
}

/* One whole room of one page between the two that are there now. */
static void hand_over(uint64_t room)
{
    fill(crew.prefill, 1, 1, (uint32_t)room);
    sender_open(room);
    receiver_open(room, 0);
    receiver_grant(room, PAGES - 1, 1);
    sender_send(room, 1, 1);
    fleet_room_wait(crew.decode, false, room, BATON_SUCCESS);
    fleet_room_wait(crew.prefill, true, room, BATON_SUCCESS);
    assert_int_equal(wrong_bytes(PAGES - 1, 1, (uint32_t)room), 0);
    room_end(crew.decode, false, room);
    room_end(crew.prefill, true, room);
}

/* ---- kill -9 at every stage ---- */

enum stage {
    STAGE_BEFORE_OPEN,
    STAGE_BOOTSTRAPPING,
    STAGE_WAITING,
    STAGE_GRANTED,
    STAGE_TRANSFERRING,
    STAGE_COMMITTED,
    STAGE_COUNT
};
static const char *const stage_names[] = {"before open", "bootstrapping", "waiting",
                                          "granted",     "transferring",  "committed"};

/* Copies take a quarter of a second each, on the side that executes them, so that there is a
 * middle to be killed in. */
static struct fleet_options slow_options(bool prefill)
{
    char backends[128];
    bool slow = prefill != crew.reads;
    snprintf(backends, sizeof(backends), "%s%s%s", slow ? "faulty:" : "", crew.backend,
             slow ? ":delay_us=250000" : "");
    struct fleet_options options = crew_options(backends);
    options.match_timeout_ms = 2000;
    options.register_rank = prefill;
    return options;
}

static void crew_open(bool prefill)
{
    struct fleet_worker **worker = prefill ? &crew.prefill : &crew.decode;
    if (!*worker)
        *worker = fleet_start();
    fleet_open(*worker, slow_options(prefill));
}

static void victim_dies(bool prefill)
{
    struct fleet_worker **worker = prefill ? &crew.prefill : &crew.decode;
    fleet_kill(*worker);
    *worker = NULL;
}

/* What is committed to a stopped process must fit into the buffers of its sockets. */
static uint32_t stage_pages(enum stage stage)
{
    return stage == STAGE_COMMITTED ? 1 : 8;
}

/* Prefill dies; what the receiver's room of `stage` has become is returned. */
static struct fleet_reply kill_prefill_at(enum stage stage, uint64_t room)
{
    if (stage == STAGE_BEFORE_OPEN)
        victim_dies(true);
    if (stage == STAGE_BOOTSTRAPPING)
        fleet_signal(crew.prefill, SIGSTOP); /* it will answer no HELLO */
    receiver_open(room, 0);
    if (stage >= STAGE_WAITING)
        fleet_room_wait(crew.decode, false, room, BATON_WAITING_FOR_INPUT);
    if (stage >= STAGE_GRANTED) {
        sender_open(room);
        receiver_grant(room, 0, stage_pages(stage));
        fleet_room_wait(crew.prefill, true, room, BATON_WAITING_FOR_INPUT);
    }
    if (stage >= STAGE_TRANSFERRING) {
        if (stage == STAGE_COMMITTED)
            fleet_signal(crew.decode, SIGSTOP);
        sender_send(room, 0, stage_pages(stage));
        fleet_room_wait(crew.prefill, true, room, BATON_TRANSFERRING);
        if (stage == STAGE_TRANSFERRING && crew.reads)
            fleet_room_wait(crew.decode, false, room, BATON_TRANSFERRING);
    }
    if (stage == STAGE_COMMITTED)
        EVENTUALLY(fleet_room_state(crew.prefill, true, room).committed);
    if (stage != STAGE_BEFORE_OPEN)
        victim_dies(true);
    if (stage == STAGE_COMMITTED) {
        fleet_signal(crew.decode, SIGCONT);
        /* What was committed may have landed, or its writer be gone: both are an end. */
        struct fleet_reply reply =
            call(crew.decode,
                 (struct fleet_order){.op = FLEET_WAIT, .room = room, .state = BATON_SUCCESS});
        assert_true(reply.state == BATON_SUCCESS || reply.state == BATON_FAILED);
        return reply;
    }
    return fleet_room_wait(crew.decode, false, room, BATON_FAILED);
}

static void test_kill_prefill_at_every_stage(void **state)
{
    (void)state;
    crew_open(false);
    for (enum stage stage = 0; stage < crew.stages; stage++) {
        uint64_t room = 100 + stage;
        crew_open(true);
        if (stage != STAGE_BOOTSTRAPPING) /* which has no link yet */
            hand_over(200 + stage);
        struct fleet_reply reply = kill_prefill_at(stage, room);
        print_message("    %s: %s\n", stage_names[stage], reply.text);
        if (reply.state == BATON_FAILED)
            ASSERT_SAYS(reply.text, "127.0.0.1:"); /* names the peer */
        room_fence(crew.decode, false, room);
        room_end(crew.decode, false, room);
    }
    crew_open(true);
    hand_over(1);
    EVENTUALLY(counters(crew.decode).rooms_open == 0);
    assert_int_equal(counters(crew.decode).pages_quarantined, 0);
    all_quit();
}

/* Decode dies; the sender's room. */
static struct fleet_reply kill_decode_at(enum stage stage, uint64_t room)
{
    if (stage == STAGE_BEFORE_OPEN)
        victim_dies(false);
    sender_open(room);
    if (stage >= STAGE_WAITING) {
        receiver_open(room, 0);
        fleet_room_wait(crew.decode, false, room, BATON_WAITING_FOR_INPUT);
        /* Its OPEN is out, but a kill could take it out of the socket. What came behind it on the
         * same link says that it has come. */
        hand_over(300 + stage);
    }
    if (stage >= STAGE_GRANTED) {
        receiver_grant(room, 0, stage_pages(stage));
        fleet_room_wait(crew.prefill, true, room, BATON_WAITING_FOR_INPUT);
    }
    if (stage >= STAGE_TRANSFERRING) {
        if (stage == STAGE_COMMITTED)
            fleet_signal(crew.decode, SIGSTOP);
        sender_send(room, 0, stage_pages(stage));
        fleet_room_wait(crew.prefill, true, room, BATON_TRANSFERRING);
    }
    if (stage == STAGE_COMMITTED)
        EVENTUALLY(fleet_room_state(crew.prefill, true, room).committed);
    if (stage != STAGE_BEFORE_OPEN)
        victim_dies(false);
    return fleet_room_wait(crew.prefill, true, room, BATON_FAILED);
}

static void test_kill_decode_at_every_stage(void **state)
{
    (void)state;
    crew_open(true);
    for (enum stage stage = 0; stage < crew.stages; stage++) {
        uint64_t room = 100 + stage;
        crew_open(false);
        hand_over(200 + stage);
        struct fleet_reply reply = kill_decode_at(stage, room);
        print_message("    %s: %s\n", stage_names[stage], reply.text);
        if (stage >= STAGE_WAITING)
            ASSERT_SAYS(reply.text, "rank 0 at 127.0.0.1:");
        else
            ASSERT_SAYS(reply.text, "no receiver opened the room");
        room_fence(crew.prefill, true, room);
        room_end(crew.prefill, true, room);
    }
    crew_open(false);
    hand_over(1);
    EVENTUALLY(counters(crew.prefill).rooms_open == 0);
    all_quit();
}

/* A process that dies in the middle of a copy by its own hand: no moment to choose for the test. */
static void test_death_in_mid_copy(void **state)
{
    (void)state;
    bool reads = crew.reads;
    char deadly[128];
    snprintf(deadly, sizeof(deadly), "faulty:%s:die_after=1:delay_us=100000", crew.backend);
    fleet_open(crew.prefill, crew_options(reads ? crew.backend : deadly));
    fleet_open(crew.decode, crew_options(reads ? deadly : crew.backend));
    sender_open(1);
    receiver_open(1, 0);
    receiver_grant(1, 0, 8);
    fleet_room_wait(crew.prefill, true, 1, BATON_WAITING_FOR_INPUT);
    call(crew.prefill,
         (struct fleet_order){.op = FLEET_INIT, .sender = 1, .room = 1, .count = 8});
    fleet_tell(crew.prefill,
               (struct fleet_order){.op = FLEET_SEND, .sender = 1, .room = 1, .count = 8});
    if (reads) {
        fleet_await_death(crew.decode);
        crew.decode = NULL;
        fleet_answer(crew.prefill);
        struct fleet_reply reply = fleet_room_wait(crew.prefill, true, 1, BATON_FAILED);
        ASSERT_SAYS(reply.text, "rank 0 at");
        room_fence(crew.prefill, true, 1);
        room_end(crew.prefill, true, 1);
    } else {
        fleet_await_death(crew.prefill);
        crew.prefill = NULL;
        struct fleet_reply reply = fleet_room_wait(crew.decode, false, 1, BATON_FAILED);
        ASSERT_SAYS(reply.text, "rank 0 at");
        room_fence(crew.decode, false, 1);
        room_end(crew.decode, false, 1);
        assert_int_equal(counters(crew.decode).pages_quarantined, 0);
    }
    crew_open(!reads);
    hand_over(2);
    all_quit();
}

/* ---- stopped in mid-copy ---- */

#define STOPPED_DEADLINE_MS 1000
#define STOPPED_SILENT_MS 2000

/* Prefill stops itself in the middle of a copy over shm, with decode's pages mapped. (A signal to
 * oneself takes a moment to stop all threads; the delay keeps the copy from being over by then.) */
static void writer_stops(void)
{
    struct fleet_options options = crew_options("faulty:shm:stop_after=1:delay_us=100000");
    options.heartbeat_ms = 200;
    options.silent_ms = STOPPED_SILENT_MS;
    fleet_open(crew.prefill, options);
    snprintf(options.backends, sizeof(options.backends), "shm");
    fleet_open(crew.decode, options);
    fill(crew.prefill, 0, PAGES, 1);
    sender_open(1);
    receiver_open(1, STOPPED_DEADLINE_MS);
    receiver_grant(1, 0, PAGES);
    fleet_room_wait(crew.prefill, true, 1, BATON_WAITING_FOR_INPUT);
    call(crew.prefill,
         (struct fleet_order){.op = FLEET_INIT, .sender = 1, .room = 1, .count = PAGES});
    fleet_tell(crew.prefill,
               (struct fleet_order){.op = FLEET_SEND, .sender = 1, .room = 1, .count = PAGES});
    fleet_await_stopped(crew.prefill);

    /* The room ends at its deadline; its pages come back neither then nor with the link's end. */
    struct fleet_reply reply = fleet_room_wait(crew.decode, false, 1, BATON_FAILED);
    ASSERT_SAYS(reply.text, "deadline");
    assert_int_equal(reply.fenced, 0);
    EVENTUALLY(counters(crew.decode).links_lost == 1);
    usleep(300 * 1000);
    assert_int_equal(fleet_room_state(crew.decode, false, 1).fenced, 0);
    assert_int_equal(counters(crew.decode).rooms_quarantined, 1);
    assert_int_equal(counters(crew.decode).pages_quarantined, PAGES);
    call(crew.decode, (struct fleet_order){.op = FLEET_RECEIVER, .room = 2});
    reply = fleet_order(
        crew.decode,
        (struct fleet_order){.op = FLEET_INIT, .room = 2, .first = PAGES - 1, .count = 1});
    assert_int_equal(reply.code, BATON_EBUSY);
    room_end(crew.decode, false, 2);
}

/* What an engine that trusted FAILED, or the lost link, would have lost: the writer goes on where
 * it was stopped. After FENCED it cannot, and what is written into the pages then stays. */
static void test_a_stopped_writer_continues(void **state)
{
    (void)state;
    writer_stops();
    fill(crew.decode, 0, PAGES, 77);
    fleet_signal(crew.prefill, SIGCONT);
    fleet_answer(crew.prefill);
    room_fence(crew.decode, false, 1);
    uint64_t overwritten = wrong_bytes(0, PAGES, 77);
    print_message("    %llu bytes were stored after the room had failed\n",
                  (unsigned long long)overwritten);
    assert_true(overwritten > 0); /* or this test tests nothing */
    assert_int_equal(counters(crew.decode).pages_quarantined, 0);
    fill(crew.decode, 0, PAGES, 78);
    room_end(crew.decode, false, 1);
    room_end(crew.prefill, true, 1);
    usleep(300 * 1000);
    assert_int_equal(wrong_bytes(0, PAGES, 78), 0);
    hand_over(3); /* the link is back, too */
    assert_int_equal(wrong_bytes(0, PAGES - 1, 78), 0);
    all_quit();
}

/* Or it is killed: its exit is the fence (peer_on_exit, leg_peer_gone). */
static void test_a_stopped_writer_is_killed(void **state)
{
    (void)state;
    writer_stops();
    fleet_kill(crew.prefill);
    room_fence(crew.decode, false, 1);
    fill(crew.decode, 0, PAGES, 78);
    room_end(crew.decode, false, 1);
    crew.prefill = fleet_start();
    fleet_open(crew.prefill, crew_options("shm"));
    hand_over(3);
    assert_int_equal(wrong_bytes(0, PAGES - 1, 78), 0);
    all_quit();
}

/* Another process takes the rank while the writer is stopped: that is no fence for the old one. */
static void test_a_stopped_writer_is_replaced(void **state)
{
    (void)state;
    struct fleet_worker *stopped;
    writer_stops();
    stopped = crew.prefill;
    crew.prefill = fleet_start();
    struct fleet_options options = crew_options("shm");
    options.register_rank = 1;
    fleet_open(crew.prefill, options);
    usleep(500 * 1000);
    assert_int_equal(fleet_room_state(crew.decode, false, 1).fenced, 0);
    assert_int_equal(counters(crew.decode).pages_quarantined, PAGES);
    fleet_kill(stopped);
    room_fence(crew.decode, false, 1);
    room_end(crew.decode, false, 1);
    hand_over(3);
    all_quit();
}

/* A peer that is stopped for longer than the heartbeat, with a room that waits: it is given up with
 * that reason, over tcp and cma the pages come back at once, and when it wakes up all is well. */
static void stopped_peer_over(const char *backend)
{
    struct fleet_options options = crew_options(backend);
    options.heartbeat_ms = 200;
    options.silent_ms = 1500;
    fleet_open(crew.prefill, options);
    fleet_open(crew.decode, options);
    hand_over(1);
    sender_open(2);
    receiver_open(2, 0);
    receiver_grant(2, 0, 4);
    fleet_room_wait(crew.prefill, true, 2, BATON_WAITING_FOR_INPUT);
    fleet_signal(crew.prefill, SIGSTOP);
    struct fleet_reply reply = fleet_room_wait(crew.decode, false, 2, BATON_FAILED);
    ASSERT_SAYS(reply.text, "has been silent for");
    ASSERT_SAYS(reply.text, "rank 0 at");
    assert_int_equal(reply.failure, BATON_EPEER);
    room_fence(crew.decode, false, 2);
    room_end(crew.decode, false, 2);
    fleet_signal(crew.prefill, SIGCONT);
    fleet_room_wait(crew.prefill, true, 2, BATON_FAILED);
    room_end(crew.prefill, true, 2);
    hand_over(3);

    sender_open(4);
    receiver_open(4, 0);
    receiver_grant(4, 0, 4);
    fleet_room_wait(crew.prefill, true, 4, BATON_WAITING_FOR_INPUT);
    fleet_signal(crew.decode, SIGSTOP);
    reply = fleet_room_wait(crew.prefill, true, 4, BATON_FAILED);
    ASSERT_SAYS(reply.text, "has been silent for");
    room_fence(crew.prefill, true, 4);
    room_end(crew.prefill, true, 4);
    fleet_signal(crew.decode, SIGCONT);
    fleet_room_wait(crew.decode, false, 4, BATON_FAILED);
    room_fence(crew.decode, false, 4);
    room_end(crew.decode, false, 4);
    hand_over(5);
    all_quit();
}

static void test_a_stopped_peer_tcp(void **state)
{
    (void)state;
    stopped_peer_over("tcp");
}
static void test_a_stopped_peer_cma(void **state)
{
    (void)state;
    stopped_peer_over("cma");
}
/* None of the calls waits for a peer that stands still (rule 1). */
static void test_calls_go_on_beside_a_stopped_peer(void **state)
{
    (void)state;
    fleet_open(crew.prefill, crew_options("shm"));
    fleet_open(crew.decode, crew_options("shm"));
    hand_over(1);
    sender_open(2);
    receiver_open(2, 0);
    receiver_grant(2, 0, 4);
    fleet_room_wait(crew.prefill, true, 2, BATON_WAITING_FOR_INPUT);
    fleet_signal(crew.decode, SIGSTOP);
    sender_send(2, 0, 4);
    sender_open(3);
    sender_send(3, 4, 4);
    call(crew.prefill, (struct fleet_order){.op = FLEET_ABORT, .sender = 1, .room = 3});
    fleet_room_wait(crew.prefill, true, 3, BATON_FAILED);
    room_end(crew.prefill, true, 3);
    fleet_signal(crew.decode, SIGCONT);
    fleet_room_wait(crew.prefill, true, 2, BATON_SUCCESS);
    fleet_room_wait(crew.decode, false, 2, BATON_SUCCESS);
    all_quit();
}

/* cma: a reader that was stopped after the last COMMIT may still read, and succeed. The source
 * pages stay locked until it has said what became of it (rule 6). */
static void test_a_stopped_reader_keeps_the_source(void **state)
{
    (void)state;
    struct fleet_options options = crew_options("cma");
    options.heartbeat_ms = 200;
    options.silent_ms = 1000;
    options.match_timeout_ms = 1000;
    fleet_open(crew.prefill, options);
    snprintf(options.backends, sizeof(options.backends),
             "faulty:cma:stop_after=1:delay_us=100000");
    fleet_open(crew.decode, options);
    fill(crew.prefill, 0, PAGES, 1);
    sender_open(1);
    receiver_open(1, 0);
    receiver_grant(1, 0, PAGES);
    fleet_room_wait(crew.prefill, true, 1, BATON_WAITING_FOR_INPUT);
    sender_send(1, 0, PAGES);
    fleet_await_stopped(crew.decode);
    struct fleet_reply reply = fleet_room_wait(crew.prefill, true, 1, BATON_FAILED);
    ASSERT_SAYS(reply.text, "outcome is unknown");
    usleep(300 * 1000);
    assert_int_equal(fleet_room_state(crew.prefill, true, 1).fenced, 0);
    fleet_signal(crew.decode, SIGCONT);
    room_fence(crew.prefill, true, 1);
    reply = call(crew.decode,
                 (struct fleet_order){.op = FLEET_WAIT, .room = 1, .state = BATON_SUCCESS});
    if (reply.state == BATON_SUCCESS)
        assert_int_equal(wrong_bytes(0, PAGES, 1), 0);
    room_fence(crew.decode, false, 1);
    room_end(crew.prefill, true, 1);
    room_end(crew.decode, false, 1);
    hand_over(2);
    all_quit();
}

/* ---- what is refused ---- */

static void test_a_port_that_is_taken(void **state)
{
    (void)state;
    struct fleet_options options = crew_options("tcp");
    struct fleet_reply reply =
        call(crew.prefill, (struct fleet_order){.op = FLEET_OPEN, .options = options});
    options.port = (uint32_t)reply.value;
    reply =
        fleet_order(crew.decode, (struct fleet_order){.op = FLEET_OPEN, .options = options});
    assert_int_equal(reply.code, BATON_EBUSY);
    ASSERT_SAYS(reply.text, "is taken");
    reply = fleet_order(crew.decode,
                        (struct fleet_order){.op = FLEET_BOOTSTRAP, .count = options.port});
    assert_int_equal(reply.code, BATON_EBUSY);
    ASSERT_SAYS(reply.text, "taken");
    options.port = 0;
    fleet_open(crew.decode, options);
    hand_over(1);
    all_quit();
}

/* The second process with a rank is refused by the bootstrap server, and its senders say so. */
static void test_two_processes_with_one_rank(void **state)
{
    (void)state;
    fleet_open(crew.prefill, crew_options("tcp"));
    fleet_open(crew.decode, crew_options("tcp"));
    hand_over(1);
    struct fleet_worker *first = crew.prefill;
    crew.prefill = fleet_start();
    fleet_open(crew.prefill, crew_options("tcp"));
    sender_open(2);
    struct fleet_reply reply = fleet_room_wait(crew.prefill, true, 2, BATON_FAILED);
    assert_int_equal(reply.failure, BATON_EEXIST);
    print_message("    %s\n", reply.text);
    room_end(crew.prefill, true, 2);
    sender_open(3); /* at once this time */
    reply = fleet_room_wait(crew.prefill, true, 3, BATON_FAILED);
    assert_int_equal(reply.failure, BATON_EEXIST);
    room_end(crew.prefill, true, 3);
    fleet_quit(crew.prefill);
    crew.prefill = first;
    hand_over(4);
    all_quit();
}

/* No more descriptors: no pool, no manager, each with the reason; the process lives. */
static void test_out_of_descriptors(void **state)
{
    (void)state;
    struct fleet_options options = crew_options("shm,tcp");
    call(crew.decode, (struct fleet_order){.op = FLEET_FILES, .count = 0});
    struct fleet_reply reply =
        fleet_order(crew.decode, (struct fleet_order){.op = FLEET_OPEN, .options = options});
    assert_int_not_equal(reply.code, BATON_OK);
    ASSERT_SAYS(reply.text, "memfd");
    ASSERT_SAYS(reply.text, "ulimit -n");
    fleet_quit(crew.decode);
    options.foreign = 1;
    bool opened = false;
    for (uint32_t files = 0; !opened; files += 1 + files / 4) {
        crew.decode = fleet_start();
        call(crew.decode, (struct fleet_order){.op = FLEET_FILES, .count = files});
        reply = fleet_order(crew.decode,
                            (struct fleet_order){.op = FLEET_OPEN, .options = options});
        opened = reply.code == BATON_OK;
        if (!opened && !reply.text[0])
            fail_msg("%u descriptors: %s, and no reason", files, baton_error_name(reply.code));
        fleet_quit(crew.decode);
        assert_true(files < 100);
    }
    crew.decode = fleet_start();
    fleet_open(crew.prefill, crew_options("tcp"));
    fleet_open(crew.decode, crew_options("tcp"));
    hand_over(1);
    all_quit();
}

/* With too few descriptors for a link the room fails with a reason, and nothing spins; others'
 * rooms are not touched. */
static void test_out_of_descriptors_for_links(void **state)
{
    (void)state;
    struct fleet_options options = crew_options("tcp");
    options.match_timeout_ms = 1500;
    fleet_open(crew.prefill, options);
    fleet_open(crew.decode, options);
    hand_over(1);
    struct fleet_worker *first = crew.decode;
    crew.decode = fleet_start();
    fleet_open(crew.decode, options);
    call(crew.decode, (struct fleet_order){.op = FLEET_FILES, .count = 0});
    sender_open(2);
    receiver_open(2, 0);
    struct fleet_reply reply = fleet_room_wait(crew.decode, false, 2, BATON_FAILED);
    print_message("    %s\n", reply.text);
    assert_true(reply.text[0]);
    room_end(crew.decode, false, 2);
    room_end(crew.prefill, true, 2);
    fleet_quit(crew.decode);
    crew.decode = first;
    hand_over(3);
    all_quit();
}

/* Callers come when no descriptor is left to accept them with: they wait, the link thread does not
 * spin (an error callback on the listeners), and when some have gone all is well. */
static void test_callers_without_descriptors(void **state)
{
    (void)state;
    enum { CALLERS = 40 };
    int fds[CALLERS];
    struct fleet_options options = crew_options("tcp");
    struct fleet_reply reply =
        call(crew.prefill, (struct fleet_order){.op = FLEET_OPEN, .options = options});
    uint16_t port = (uint16_t)reply.value;
    fleet_open(crew.decode, options);
    hand_over(1);
    call(crew.prefill, (struct fleet_order){.op = FLEET_FILES, .count = 5});
    for (int i = 0; i < CALLERS; i++)
        fds[i] = puppet_dial(port);
    usleep(200 * 1000);
    uint64_t before = call(crew.prefill, (struct fleet_order){.op = FLEET_CPU}).value;
    usleep(1000 * 1000);
    uint64_t used = call(crew.prefill, (struct fleet_order){.op = FLEET_CPU}).value - before;
    print_message("    %llu us of processor time in a second\n", (unsigned long long)used);
    assert_true(used < 500 * 1000);
    hand_over(2); /* over the link that is there */
    for (int i = 0; i < CALLERS; i++)
        close(fds[i]);
    fleet_quit(crew.decode);
    crew.decode = fleet_start();
    fleet_open(crew.decode, options);
    hand_over(3);
    all_quit();
}

/* ---- keys and certificates ---- */

static char certificate_paths[2][2][160]; /* two authorities; certificate, key */
static char certificate_folder[] = "/tmp/baton-faults-XXXXXX";

static void certificate_make(int which)
{
    char(*paths)[160] = certificate_paths[which];
    snprintf(paths[0], sizeof(paths[0]), "%s/cert%d.pem", certificate_folder, which);
    snprintf(paths[1], sizeof(paths[1]), "%s/key%d.pem", certificate_folder, which);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    assert_non_null(key);
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1 + which);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)(which ? "other" : "baton"), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    FILE *file = fopen(paths[0], "we");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, certificate), 1);
    fclose(file);
    file = fopen(paths[1], "we");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static int certificates_make(void **state)
{
    (void)state;
    if (!mkdtemp(certificate_folder))
        return -1;
    certificate_make(0);
    certificate_make(1);
    return 0;
}

static int certificates_remove(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        unlink(certificate_paths[i / 2][i % 2]);
    rmdir(certificate_folder);
    return 0;
}

static struct fleet_options with_tls(struct fleet_options options, int which)
{
    memcpy(options.certificate, certificate_paths[which][0], sizeof(options.certificate));
    memcpy(options.certificate_key, certificate_paths[which][1],
           sizeof(options.certificate_key));
    memcpy(options.authority, certificate_paths[which][0], sizeof(options.authority));
    return options;
}

/* The receiver's room must fail, with the reason, well before match_timeout would end it. */
static void refused_with(struct fleet_options prefill, struct fleet_options decode,
                         const char *part)
{
    prefill.match_timeout_ms = decode.match_timeout_ms = 600000;
    fleet_open(crew.prefill, prefill);
    fleet_open(crew.decode, decode);
    sender_open(1);
    receiver_open(1, 0);
    struct fleet_reply reply = fleet_room_wait(crew.decode, false, 1, BATON_FAILED);
    print_message("    %s\n", reply.text);
    ASSERT_SAYS(reply.text, part);
    room_fence(crew.decode, false, 1);
    room_end(crew.decode, false, 1);
    room_end(crew.prefill, true, 1);
    all_quit();
}

static struct fleet_options with_key(const char *key)
{
    struct fleet_options options = crew_options("tcp");
    snprintf(options.key, sizeof(options.key), "%s", key);
    return options;
}

static void test_the_right_key(void **state)
{
    (void)state;
    fleet_open(crew.prefill, with_key("open sesame"));
    fleet_open(crew.decode, with_key("open sesame"));
    hand_over(1);
    all_quit();
}
static void test_a_wrong_key(void **state)
{
    (void)state;
    refused_with(with_key("open sesame"), with_key("open barley"), "shared key");
}
static void test_no_key(void **state)
{
    (void)state;
    refused_with(with_key("open sesame"), with_key(""), "shared key");
}
static void test_a_key_too_many(void **state)
{
    (void)state;
    refused_with(with_key(""), with_key("open sesame"), "shared key");
}
static void test_the_right_certificate(void **state)
{
    (void)state;
    fleet_open(crew.prefill, with_tls(crew_options("tcp"), 0));
    fleet_open(crew.decode, with_tls(crew_options("tcp"), 0));
    hand_over(1);
    all_quit();
}
static void test_the_wrong_certificate(void **state)
{
    (void)state;
    refused_with(with_tls(crew_options("tcp"), 0), with_tls(crew_options("tcp"), 1), "TLS");
}
static void test_tls_against_plain(void **state)
{
    (void)state;
    refused_with(crew_options("tcp"), with_tls(crew_options("tcp"), 0), "TLS");
}
static void test_plain_against_tls(void **state)
{
    (void)state;
    refused_with(with_tls(crew_options("tcp"), 0), crew_options("tcp"), "TLS");
}

#define FAULT(test) cmocka_unit_test_setup_teardown(test, setup, fleet_teardown)

static const struct CMUnitTest kill_tests[] = {
    FAULT(test_kill_prefill_at_every_stage),
    FAULT(test_kill_decode_at_every_stage),
    FAULT(test_death_in_mid_copy),
};

static const struct CMUnitTest stop_tests[] = {
    FAULT(test_a_stopped_writer_continues),
    FAULT(test_a_stopped_writer_is_killed),
    FAULT(test_a_stopped_writer_is_replaced),
    FAULT(test_a_stopped_peer_tcp),
    FAULT(test_a_stopped_peer_cma),
    FAULT(test_calls_go_on_beside_a_stopped_peer),
    FAULT(test_a_stopped_reader_keeps_the_source),
};

static const struct CMUnitTest refuse_tests[] = {
    FAULT(test_a_port_that_is_taken),
    FAULT(test_two_processes_with_one_rank),
    FAULT(test_out_of_descriptors),
    FAULT(test_out_of_descriptors_for_links),
    FAULT(test_callers_without_descriptors),
    FAULT(test_the_right_key),
    FAULT(test_a_wrong_key),
    FAULT(test_no_key),
    FAULT(test_a_key_too_many),
    FAULT(test_the_right_certificate),
    FAULT(test_the_wrong_certificate),
    FAULT(test_tls_against_plain),
    FAULT(test_plain_against_tls),
};

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (argc > 3)
        cmocka_set_test_filter(argv[3]); /* one test: test_faults kill shm test_death* */
    crew.backend = argc > 2 ? argv[2] : "shm";
    crew.reads = strcmp(crew.backend, "cma") == 0 || strcmp(crew.backend, "verbs-read") == 0;
    /* ucx commits when the receiver's own process has taken part, which a stopped one does not. */
    crew.stages = strcmp(crew.backend, "ucx") == 0 ? STAGE_COMMITTED : STAGE_COUNT;
    if (strcmp(what, "kill") == 0)
        return cmocka_run_group_tests(kill_tests, NULL, NULL);
    if (strcmp(what, "stop") == 0)
        return cmocka_run_group_tests(stop_tests, NULL, NULL);
    if (strcmp(what, "refuse") == 0)
        return cmocka_run_group_tests(refuse_tests, certificates_make, certificates_remove);
    fprintf(stderr, "usage: test_faults kill BACKEND, or stop, or refuse\n");
    return 2;
}
