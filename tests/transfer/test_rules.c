/* SPDX-License-Identifier: Apache-2.0 */
/* The eleven rules of a hand-over that two honest ranks can show: both managers in this process,
 * real sockets between them, and the library's clock pushed forward where a rule speaks of time.
 * What only a dishonest or half-dead peer can show is in test_order.c and test_faults.c.
 *
 * Above each test: which rule, and which lines it would notice the loss of. */
#include "fleet.h"
#include "proxy.h"
#include "puppet.h"

#include "base/clock.h"
#include "transfer/manager.h"
#include "transfer/room.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define SECONDS(n) ((n)*1000ull * NS_PER_MS)

/* ---- two ranks ---- */

static struct {
    baton_bootstrap *bootstrap;
    char address[64];
    struct fleet_rank prefill, decode;
} pair;

static struct fleet_options with_bootstrap(struct fleet_options options)
{
    snprintf(options.bootstrap, sizeof(options.bootstrap), "%s", pair.address);
    return options;
}

static void prefill_open(struct fleet_options options)
{
    char err[256];
    if (fleet_rank_open(&pair.prefill, &options, err, sizeof(err)) != BATON_OK)
        fail_msg("prefill: %s", err);
}

static void decode_open(struct fleet_options options)
{
    char err[256];
    if (fleet_rank_open(&pair.decode, &options, err, sizeof(err)) != BATON_OK)
        fail_msg("decode: %s", err);
}

static void pair_open(struct fleet_options prefill, struct fleet_options decode)
{
    prefill_open(with_bootstrap(prefill));
    decode_open(with_bootstrap(decode));
}

static void pair_open_over(const char *backends)
{
    struct fleet_options options = {0};
    snprintf(options.backends, sizeof(options.backends), "%s", backends);
    pair_open(options, options);
}

/* One whole hand-over of two pages, checked byte by byte. */
static void hand_over(uint64_t room, uint32_t seed)
{
    baton_sender *sender = fleet_sender(&pair.prefill, room, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, room, NULL);
    fleet_fill(&pair.prefill, 0, 2, seed);
    assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
    fleet_send(sender, 0, 2);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    fleet_sender_is(sender, BATON_SUCCESS);
    assert_int_equal(fleet_wrong_bytes(&pair.decode, 4, 2, seed), 0);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
}

static void sender_failed(baton_sender *sender, int code, const char *part)
{
    char text[512];
    fleet_sender_is(sender, BATON_FAILED);
    int failure = baton_sender_failure(sender, text, sizeof(text));
    ASSERT_SAYS(text, part);
    assert_string_equal(baton_error_name(failure), baton_error_name(code));
}

static void receiver_failed(baton_receiver *receiver, int code, const char *part)
{
    char text[512];
    fleet_receiver_is(receiver, BATON_FAILED);
    int failure = baton_receiver_failure(receiver, text, sizeof(text));
    ASSERT_SAYS(text, part);
    assert_string_equal(baton_error_name(failure), baton_error_name(code));
}

static void both_failed(baton_sender *sender, baton_receiver *receiver, int code,
                        const char *part)
{
    char here[512], there[512];
    receiver_failed(receiver, code, part);
    sender_failed(sender, code, part);
    baton_sender_failure(sender, here, sizeof(here));
    baton_receiver_failure(receiver, there, sizeof(there));
    assert_string_equal(here, there);
}

/* All that a test opened is given back: no room, no quarantine. */
static void nothing_left(void)
{
    struct fleet_rank *ranks[] = {&pair.prefill, &pair.decode};
    for (int i = 0; i < 2; i++) {
        if (!ranks[i]->manager)
            continue;
        EVENTUALLY(fleet_counters(ranks[i]).rooms_open == 0);
        assert_int_equal(fleet_counters(ranks[i]).rooms_quarantined, 0);
        assert_int_equal(fleet_counters(ranks[i]).pages_quarantined, 0);
    }
}

/* A few turns of the library's timer (50 ms each). */
static void let_it_tick(void)
{
    usleep(200 * 1000);
}

/* ---- holding the library's threads ---- */

struct hold {
    struct runtime_job link_job;
    struct worker_job worker_job;
    sem_t held, go;
};

static atomic_bool flood_stops; /* see test_a_flood_of_jobs_does_not_stop_the_clock */

/* What is held now: [0] the link thread, the rest the copy workers. Teardown lets go of it. */
static struct hold holds[1 + RUNTIME_WORKERS_MAX];
static bool hold_is_on[1 + RUNTIME_WORKERS_MAX];

static void hold_wait(struct hold *hold)
{
    sem_post(&hold->held);
    while (sem_wait(&hold->go) != 0)
        ;
}

static void hold_link_run(struct runtime_job *job)
{
    hold_wait((struct hold *)job);
}

static void hold_worker_run(struct worker_job *job)
{
    hold_wait((struct hold *)((char *)job - offsetof(struct hold, worker_job)));
}

static struct runtime *the_runtime(void)
{
    return pair.prefill.manager->m.runtime;
}

static void hold(uint32_t index)
{
    sem_init(&holds[index].held, 0, 0);
    sem_init(&holds[index].go, 0, 0);
    hold_is_on[index] = true;
    if (index == 0) {
        runtime_job_init(&holds[0].link_job, hold_link_run);
        runtime_post(the_runtime(), &holds[0].link_job);
    } else {
        worker_job_init(&holds[index].worker_job, hold_worker_run);
        worker_post(the_runtime()->workers[index - 1], &holds[index].worker_job);
    }
    while (sem_wait(&holds[index].held) != 0)
        ;
}

static void hold_link_thread(void)
{
    hold(0);
}

/* Each copy worker stands still, in the middle of its work as far as anyone can tell. */
static void hold_workers(void)
{
    uint32_t count = atomic_load(&the_runtime()->worker_count);
    for (uint32_t i = 0; i < count; i++)
        hold(1 + i);
}

static void hold_release(void)
{
    for (uint32_t i = 0; i < 1 + RUNTIME_WORKERS_MAX; i++) {
        if (hold_is_on[i])
            sem_post(&holds[i].go);
        hold_is_on[i] = false;
    }
}

/* ---- setup ---- */

static int setup(void **state)
{
    (void)state;
    memset(&pair, 0, sizeof(pair));
    if (baton_bootstrap_open("127.0.0.1", 0, &pair.bootstrap, NULL, 0) != BATON_OK)
        return -1;
    snprintf(pair.address, sizeof(pair.address), "127.0.0.1:%u",
             baton_bootstrap_port(pair.bootstrap));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    alarm(0);
    hold_release();
    atomic_store(&flood_stops, true);
    if (pair.decode.manager)
        fleet_rank_close(&pair.decode);
    if (pair.prefill.manager)
        fleet_rank_close(&pair.prefill);
    baton_bootstrap_close(pair.bootstrap);
    return 0;
}

/* ---- rule 1: nothing blocks the caller ---- */

/* Every call but *_wait and open/close of a manager returns while the link thread stands still
 * (runtime_post and the request bits of room.h; a runtime_call in any of them hangs here, and the
 * alarm ends the program). */
static void test_no_call_waits_for_the_link_thread(void **state)
{
    (void)state;
    baton_pollset *set;
    uint8_t states[2];
    char text[64];
    int32_t pages[] = {0, 1};
    pair_open_over("loopback");
    hand_over(1, 1);
    nothing_left();
    baton_timeline timeline = {.struct_size = sizeof(timeline)};
    hold_link_thread();
    alarm(FLEET_BOUND_MS / 1000);
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    fleet_send(sender, 0, 2);
    assert_int_equal(fleet_grant(receiver, 0, 2), BATON_OK);
    assert_int_equal(baton_sender_poll(sender), BATON_BOOTSTRAPPING);
    assert_int_equal(baton_receiver_poll(receiver), BATON_BOOTSTRAPPING);
    assert_int_equal(baton_sender_send(sender, pages, 2, true), BATON_ESTATE);
    assert_int_equal(baton_pollset_open(2, &set), BATON_OK);
    assert_int_equal(baton_pollset_add_sender(set, 0, sender), BATON_OK);
    assert_int_equal(baton_pollset_add_receiver(set, 1, receiver), BATON_OK);
    baton_poll_many(set, states, 2);
    assert_int_equal(baton_pollset_wait(set, states, 2, 10), 0); /* bounded */
    assert_int_equal(baton_sender_abort(sender, "enough"), BATON_OK);
    assert_int_equal(baton_receiver_abort(receiver, "enough"), BATON_OK);
    assert_int_equal(baton_sender_failure(sender, text, sizeof(text)), BATON_OK);
    assert_int_equal(baton_receiver_failure(receiver, text, sizeof(text)), BATON_OK);
    assert_int_equal(baton_sender_fenced(sender), 0);
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    assert_int_equal(baton_sender_prefix(sender), 0);
    assert_int_equal(baton_sender_timeline(sender, &timeline), BATON_AGAIN);
    assert_int_equal(baton_receiver_timeline(receiver, &timeline), BATON_AGAIN);
    assert_int_equal(fleet_counters(&pair.decode).rooms_open, 1);
    baton_manager_tick(pair.decode.manager);
    baton_pollset_close(set);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    alarm(0);
    hold_release();
    nothing_left();
    hand_over(3, 3);
}

struct advance {
    struct room *room;
    uint32_t generation;
    int from, to;
    bool moved;
    int after;
};

/* Puts the word of an idle room to `from` and advances it; the word is put back. */
static void advance_on_link_thread(void *arg)
{
    struct advance *advance = arg;
    uint64_t before = atomic_load(&advance->room->word);
    atomic_store(&advance->room->word,
                 (uint64_t)advance->room->generation << 32 | (uint32_t)advance->from);
    advance->moved =
        room_advance(advance->room, advance->generation, (enum baton_state)advance->to);
    advance->after = (int)room_state(advance->room);
    atomic_store(&advance->room->word, before);
}

/* The lattice, all 25 edges: forward, or to FAILED; FAILED and SUCCESS are final; and nothing at
 * all for another generation (room.c:room_advance, each term of its condition). */
static void test_the_word_only_moves_forward(void **state)
{
    (void)state;
    pair_open_over("loopback");
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    struct room *room = sender_room(sender);
    for (int from = BATON_FAILED; from <= BATON_SUCCESS; from++)
        for (int to = BATON_FAILED; to <= BATON_SUCCESS; to++)
            for (int stale = 0; stale < 2; stale++) {
                struct advance advance = {
                    room, room->generation - (uint32_t)stale, from, to, false, 0};
                bool final = from == BATON_FAILED || from == BATON_SUCCESS;
                bool legal = !stale && !final && (to == BATON_FAILED || to > from);
                runtime_call(the_runtime(), advance_on_link_thread, &advance);
                assert_int_equal(advance.moved, legal);
                assert_int_equal(advance.after, legal ? to : from);
            }
    baton_sender_close(sender);
    nothing_left();
}

/* A handle that outlived its room sees nothing of the one that took its slot (the generation in
 * poll_many and baton_sender_poll; room_table.c:room_reset counts it up). */
static void test_an_old_generation_reads_nothing(void **state)
{
    (void)state;
    struct fleet_options one_room = {.max_rooms = 1};
    baton_pollset *set;
    uint8_t now;
    pair_open(one_room, one_room);
    baton_sender *old = fleet_sender(&pair.prefill, 1, NULL);
    assert_int_equal(baton_pollset_open(1, &set), BATON_OK);
    assert_int_equal(baton_pollset_add_sender(set, 0, old), BATON_OK);
    struct room *room = sender_room(old);
    uint32_t generation = room->generation;
    baton_sender_close(old);
    nothing_left();
    baton_sender *new = fleet_sender(&pair.prefill, 2, NULL);
    assert_ptr_equal(sender_room(new), room);
    assert_int_not_equal(room->generation, generation);
    baton_poll_many(set, &now, 1);
    assert_int_equal(now, BATON_FAILED);
    assert_int_equal(baton_sender_poll(new), BATON_BOOTSTRAPPING);
    baton_pollset_close(set);
    baton_sender_close(new);
}

static bool eventfd_rings(const struct fleet_rank *rank, int timeout_ms)
{
    uint64_t count;
    struct pollfd ready = {baton_manager_eventfd(rank->manager), POLLIN, 0};
    if (poll(&ready, 1, timeout_ms) != 1)
        return false;
    assert_int_equal(read(ready.fd, &count, sizeof(count)), sizeof(count));
    return true;
}

/* The link thread stands still when a room is aborted, so that the news can only come later. */
static void *release_later(void *arg)
{
    usleep(100 * 1000);
    hold_release();
    return arg;
}

/* The end is told by the eventfd (manager_notify's write), which is all that is asked here. */
static void test_the_eventfd_tells(void **state)
{
    (void)state;
    pair_open_over("loopback");
    hand_over(1, 1);
    nothing_left();
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    let_it_tick();
    hold_link_thread();
    eventfd_rings(&pair.decode, 0); /* what was before */
    assert_int_equal(baton_receiver_abort(receiver, "to hear it by eventfd"), BATON_OK);
    assert_false(eventfd_rings(&pair.decode, 0));
    hold_release();
    do {
        assert_true(eventfd_rings(&pair.decode, FLEET_BOUND_MS));
    } while (!baton_receiver_fenced(receiver));
    assert_int_equal(baton_receiver_poll(receiver), BATON_FAILED);
    baton_receiver_close(receiver);
    nothing_left();
}

/* The same by a bounded wait: it wakes up for the change (runtime_changed), not at its end. */
static void test_a_bounded_wait_tells(void **state)
{
    (void)state;
    baton_pollset *set;
    pthread_t thread;
    uint8_t now = BATON_BOOTSTRAPPING;
    pair_open_over("loopback");
    baton_sender *sender = fleet_sender(&pair.prefill, 3, NULL);
    assert_int_equal(baton_pollset_open(1, &set), BATON_OK);
    assert_int_equal(baton_pollset_add_sender(set, 0, sender), BATON_OK);
    assert_int_equal(baton_poll_many(set, &now, 1), 1);
    assert_int_equal(baton_pollset_wait(set, &now, 1, 10), 0);
    hold_link_thread();
    assert_int_equal(baton_sender_abort(sender, "to hear it by wait"), BATON_OK);
    uint64_t start = fleet_now_ms();
    assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
    assert_int_equal(baton_pollset_wait(set, &now, 1, FLEET_BOUND_MS), 1);
    assert_int_equal(now, BATON_FAILED);
    assert_true(fleet_now_ms() - start < (uint64_t)FLEET_BOUND_MS / 2);
    pthread_join(thread, NULL);
    baton_pollset_close(set);
    baton_sender_close(sender);
    nothing_left();
}

/* ---- rule 2: a page belongs to whoever may still store into it ---- */

/* A room that fails while somebody is in the middle of a copy: FAILED at once, its pages only when
 * that somebody has let go (room.c:room_settle's `fenced`, leg_end's fence_remote and revoke;
 * receiver.c:region_take_pages). Until then they are counted and refused to others. */
static void quarantine_over(const char *backend)
{
    pair_open_over(backend);
    hand_over(1, 1); /* links and streams are up */
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 3), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    hold_workers();
    fleet_send(sender, 0, 3);
    fleet_sender_is(sender, BATON_TRANSFERRING);
    if (strcmp(backend, "cma") == 0) /* the reader is here, and starts with COMMIT */
        fleet_receiver_is(receiver, BATON_TRANSFERRING);
    assert_int_equal(baton_receiver_abort(receiver, "changed its mind"), BATON_OK);
    both_failed(sender, receiver, BATON_EABORTED, "changed its mind");

    let_it_tick();
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    assert_int_equal(fleet_counters(&pair.decode).rooms_quarantined, 1);
    assert_int_equal(fleet_counters(&pair.decode).pages_quarantined, 3);
    baton_receiver *next = fleet_receiver(&pair.decode, 3, NULL);
    assert_int_equal(fleet_grant(next, 2, 2), BATON_EBUSY);
    baton_receiver_close(receiver); /* closing the handle frees no page */
    let_it_tick();
    assert_int_equal(fleet_counters(&pair.decode).pages_quarantined, 3);
    assert_int_equal(fleet_grant(next, 0, 1), BATON_EBUSY);

    hold_release();
    EVENTUALLY(fleet_counters(&pair.decode).pages_quarantined == 0);
    assert_int_equal(fleet_counters(&pair.decode).rooms_quarantined, 0);
    assert_int_equal(fleet_counters(&pair.decode).fences, 1);
    EVENTUALLY(baton_sender_fenced(sender));
    assert_int_equal(fleet_grant(next, 0, 3), BATON_OK);
    baton_sender_close(sender);
    baton_receiver_close(next);
    nothing_left();
    hand_over(4, 4);
}

static void test_quarantine_loopback(void **state)
{
    (void)state;
    quarantine_over("loopback");
}
static void test_quarantine_shm(void **state)
{
    (void)state;
    quarantine_over("shm");
}
static void test_quarantine_cma(void **state)
{
    (void)state;
    quarantine_over("cma");
}
static void test_quarantine_tcp(void **state)
{
    (void)state;
    quarantine_over("tcp");
}

/* Abort by the sender while its own lane is in mid-copy: the same, told by the sender's FENCED. */
static void test_sender_aborts_in_mid_copy(void **state)
{
    (void)state;
    pair_open_over("shm");
    hand_over(1, 1);
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 3), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    hold_workers();
    fleet_send(sender, 0, 3);
    fleet_sender_is(sender, BATON_TRANSFERRING);
    assert_int_equal(baton_sender_abort(sender, "out of time"), BATON_OK);
    both_failed(sender, receiver, BATON_EABORTED, "out of time");
    let_it_tick();
    assert_int_equal(baton_sender_fenced(sender), 0);
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    hold_release();
    EVENTUALLY(baton_sender_fenced(sender) && baton_receiver_fenced(receiver));
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
}

/* Both sides give up at the same moment: the ABORTs cross, both rooms fail, both are fenced, and
 * every ABORT got its FENCED (room_on_abort's fence_told = false). */
static void test_crossing_aborts(void **state)
{
    (void)state;
    char text[512];
    const char *backends[] = {"loopback", "cma", "tcp"};
    for (int i = 0; i < 3; i++) {
        pair_open_over(backends[i]);
        baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
        baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
        assert_int_equal(fleet_grant(receiver, 0, 2), BATON_OK);
        fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
        hold_link_thread();
        assert_int_equal(baton_sender_abort(sender, "prefill gave up"), BATON_OK);
        assert_int_equal(baton_receiver_abort(receiver, "decode gave up"), BATON_OK);
        hold_release();
        fleet_sender_is(sender, BATON_FAILED);
        fleet_receiver_is(receiver, BATON_FAILED);
        assert_int_equal(baton_sender_failure(sender, text, sizeof(text)), BATON_EABORTED);
        ASSERT_SAYS(text, "gave up");
        EVENTUALLY(baton_sender_fenced(sender) && baton_receiver_fenced(receiver));
        baton_sender_close(sender);
        baton_receiver_close(receiver);
        nothing_left();
        fleet_rank_close(&pair.decode);
        fleet_rank_close(&pair.prefill);
    }
}

/* A manager that closes in mid-transfer lets the other side have its pages back: it has stopped,
 * and says so before it says goodbye (the process that could exit instead is the same one here). */
static void test_closing_a_manager_fences_its_peer(void **state)
{
    (void)state;
    struct fleet_options large = {.page_bytes = 4u << 20, .pages = 4};
    snprintf(large.backends, sizeof(large.backends), "faulty:shm:stall_after=1");
    pair_open(large, large);
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 4), BATON_OK);
    fleet_send(sender, 0, 4); /* no lane gets past its first page */
    fleet_sender_is(sender, BATON_TRANSFERRING);
    baton_sender_close(sender);
    fleet_rank_close(&pair.prefill);
    fleet_receiver_is(receiver, BATON_FAILED);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
}

/* ---- rule 3: one deadline, carried end to end ---- */

static baton_receiver *receiver_until(uint64_t room, uint32_t deadline_ms)
{
    baton_receiver_options options = BATON_RECEIVER_OPTIONS_INIT;
    baton_receiver *receiver = NULL;
    options.room = room;
    options.deadline_ms = deadline_ms;
    assert_int_equal(baton_receiver_open(pair.decode.manager, &options, &receiver, NULL, 0),
                     BATON_OK);
    return receiver;
}

static baton_sender *sender_until(uint64_t room, uint32_t deadline_ms)
{
    baton_sender_options options = BATON_SENDER_OPTIONS_INIT;
    baton_sender *sender = NULL;
    options.room = room;
    options.deadline_ms = deadline_ms;
    assert_int_equal(baton_sender_open(pair.prefill.manager, &options, &sender, NULL, 0),
                     BATON_OK);
    return sender;
}

/* The receiver's minute counts for the sender, who asked for five (room_tick; sender_on_open's
 * minimum; time_left_ms in OPEN). Until then nobody fails. */
static void test_the_receivers_deadline_ends_both(void **state)
{
    (void)state;
    pair_open_over("loopback");
    baton_receiver *receiver = receiver_until(1, 60000);
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 2), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    clock_advance_ns(SECONDS(50));
    let_it_tick();
    assert_int_equal(baton_receiver_poll(receiver), BATON_WAITING_FOR_INPUT);
    assert_int_equal(baton_sender_poll(sender), BATON_WAITING_FOR_INPUT);
    clock_advance_ns(SECONDS(11));
    /* Both may reach it in the same tick, each with its own milliseconds. */
    receiver_failed(receiver, BATON_ETIMEOUT, "the deadline passed");
    sender_failed(sender, BATON_ETIMEOUT, "the deadline passed");
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
}

static void test_the_senders_deadline_ends_both(void **state)
{
    (void)state;
    pair_open_over("loopback");
    baton_sender *sender = sender_until(1, 30000);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 2), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    clock_advance_ns(SECONDS(31));
    /* Both may reach it in the same tick, each with its own milliseconds. */
    receiver_failed(receiver, BATON_ETIMEOUT, "the deadline passed");
    sender_failed(sender, BATON_ETIMEOUT, "the deadline passed");
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
}

struct flood {
    struct runtime_job job;
    struct runtime *runtime;
};

static void flood_run(struct runtime_job *job)
{
    struct flood *flood = (struct flood *)job;
    usleep(100);
    if (!atomic_load(&flood_stops))
        runtime_post(flood->runtime, job);
}

/* However many jobs come, the link thread's timer has its turn: deadlines end rooms, heartbeats go
 * out, and a busy rank is not taken for a dead one (runtime_on_bell). */
static void test_a_flood_of_jobs_does_not_stop_the_clock(void **state)
{
    (void)state;
    static struct flood flood;
    pair_open_over("loopback");
    hand_over(1, 1);
    baton_sender *sender = sender_until(2, 100);
    flood.runtime = the_runtime();
    atomic_store(&flood_stops, false);
    runtime_job_init(&flood.job, flood_run);
    runtime_post(flood.runtime, &flood.job);
    sender_failed(sender, BATON_ETIMEOUT, "the deadline passed");
    hand_over(3, 3);
    atomic_store(&flood_stops, true);
    baton_sender_close(sender);
    nothing_left();
    assert_int_equal(fleet_counters(&pair.decode).links_lost, 0);
}

/* A deadline given at init replaces the one of open, on both sides (GRANT carries it). */
static void test_init_moves_the_deadline_of_both(void **state)
{
    (void)state;
    baton_receiver_init_options init = BATON_RECEIVER_INIT_OPTIONS_INIT;
    int32_t pages[] = {0, 1};
    pair_open_over("loopback");
    baton_receiver *receiver = receiver_until(1, 5000);
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    init.pages = pages;
    init.page_count = 2;
    init.deadline_ms = 60000;
    assert_int_equal(baton_receiver_init(receiver, &init), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    clock_advance_ns(SECONDS(8));
    let_it_tick();
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    clock_advance_ns(SECONDS(54));
    /* Both may reach it in the same tick, each with its own milliseconds. */
    receiver_failed(receiver, BATON_ETIMEOUT, "the deadline passed");
    sender_failed(sender, BATON_ETIMEOUT, "the deadline passed");
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
}

/* A room that only one side knows ends after match_timeout (sender_tick, receiver_tick). */
static void test_a_sender_nobody_comes_for(void **state)
{
    (void)state;
    pair_open_over("loopback");
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    let_it_tick();
    assert_int_equal(baton_sender_poll(sender), BATON_BOOTSTRAPPING);
    clock_advance_ns(SECONDS(11));
    sender_failed(sender, BATON_EUNMATCHED, "no receiver opened the room within 10000 ms");
    baton_sender_close(sender);
    nothing_left();
}

static void test_a_receiver_nobody_comes_for(void **state)
{
    (void)state;
    pair_open_over("loopback");
    hand_over(1, 1); /* prefill is there, but will not open room 2 */
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    clock_advance_ns(SECONDS(11));
    receiver_failed(receiver, BATON_EUNMATCHED, "no sender was opened for the room");
    baton_receiver_close(receiver);
    nothing_left();
}

static void test_a_receiver_without_a_prefill_group(void **state)
{
    (void)state;
    pair_open_over("loopback"); /* nobody has registered at the bootstrap server */
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    let_it_tick();
    assert_int_equal(baton_receiver_poll(receiver), BATON_BOOTSTRAPPING);
    clock_advance_ns(SECONDS(11));
    receiver_failed(receiver, BATON_EUNMATCHED, pair.address);
    baton_receiver_close(receiver);
    nothing_left();
}

/* ---- rule 4: failure is symmetric and has a reason ---- */

static void test_abort_reaches_the_other_side(void **state)
{
    (void)state;
    pair_open_over("loopback");
    for (uint64_t room = 1; room <= 4; room++) {
        baton_sender *sender = fleet_sender(&pair.prefill, room, NULL);
        baton_receiver *receiver = fleet_receiver(&pair.decode, room, NULL);
        if (room > 2)
            assert_int_equal(fleet_grant(receiver, 0, 2), BATON_OK);
        fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
        if (room % 2)
            assert_int_equal(baton_sender_abort(sender, "line\none, \"quoted\""), BATON_OK);
        else
            assert_int_equal(baton_receiver_abort(receiver, "two"), BATON_OK);
        fleet_sender_is(sender, BATON_FAILED);
        receiver_failed(receiver, BATON_EABORTED, room % 2 ? "one, \"quoted\"" : "two");
        assert_int_equal(baton_sender_abort(sender, "again"), BATON_ESTATE);
        EVENTUALLY(baton_receiver_fenced(receiver) && baton_sender_fenced(sender));
        baton_sender_close(sender);
        baton_receiver_close(receiver);
    }
    nothing_left();
}

/* Decode gave up before the request reached prefill: the sender that is opened then fails at once,
 * with decode's reason (room_on_abort's tombstone, from the phantom that OPEN had left). */
static void test_decode_gave_up_before_the_sender_existed(void **state)
{
    (void)state;
    pair_open_over("loopback");
    hand_over(1, 1);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    assert_int_equal(baton_receiver_abort(receiver, "the client hung up"), BATON_OK);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
    nothing_left(); /* the phantom is gone, the tombstone is there */
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    sender_failed(sender, BATON_EABORTED, "the client hung up");
    baton_sender_close(sender);
}

/* The same where there is no link yet when decode gives up: the ABORT is owed, and told as soon as
 * prefill can be found (abort_unresolved and abort_owed). */
static void test_decode_gave_up_before_prefill_was_there(void **state)
{
    (void)state;
    decode_open(with_bootstrap((struct fleet_options){0}));
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    assert_int_equal(baton_receiver_abort(receiver, "too early"), BATON_OK);
    fleet_receiver_is(receiver, BATON_FAILED);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
    prefill_open(with_bootstrap((struct fleet_options){.register_rank = 1}));
    EVENTUALLY(fleet_counters(&pair.decode).rooms_open == 0);
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    sender_failed(sender, BATON_EABORTED, "too early");
    baton_sender_close(sender);
}

/* Prefill failed before decode asked: OPEN is answered ABORT from the tombstone. */
static void test_the_sender_failed_before_decode_asked(void **state)
{
    (void)state;
    pair_open_over("loopback");
    hand_over(1, 1);
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    assert_int_equal(baton_sender_abort(sender, "prompt too long"), BATON_OK);
    fleet_sender_is(sender, BATON_FAILED);
    baton_sender_close(sender);
    nothing_left();
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    receiver_failed(receiver, BATON_EABORTED, "prompt too long");
    assert_int_equal(fleet_counters(&pair.prefill).rooms_refused, 1);
    baton_receiver_close(receiver);
    nothing_left();
}

/* A tombstone holds for match_timeout, and not for ever (expires_ns). */
static void test_tombstones_pass(void **state)
{
    (void)state;
    pair_open_over("loopback");
    hand_over(1, 1);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    assert_int_equal(baton_receiver_abort(receiver, "old story"), BATON_OK);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
    nothing_left();
    clock_advance_ns(SECONDS(11));
    hand_over(2, 2);
}

/* The owner's tick rides in heartbeats: a peer whose scheduler stands still is degraded, nothing
 * more, and recovers (link_tick, link_on_heartbeat). */
static void test_an_owner_that_stands_still_is_degraded(void **state)
{
    (void)state;
    struct fleet_options quick = {.heartbeat_ms = 50, .silent_ms = 5000};
    pair_open(quick, quick);
    hand_over(1, 1);
    for (int i = 0; i < 8; i++) {
        clock_advance_ns(SECONDS(1) - 100 * NS_PER_MS);
        let_it_tick();
        baton_manager_tick(pair.decode.manager); /* prefill's owner does not */
    }
    EVENTUALLY(fleet_counters(&pair.decode).links_degraded == 1);
    EVENTUALLY(fleet_counters(&pair.prefill).links_degraded == 0);
    assert_int_equal(fleet_counters(&pair.decode).links_up, 1);
    hand_over(2, 2); /* rooms go on, and polling moves the tick */
    EVENTUALLY((baton_manager_tick(pair.prefill.manager),
                fleet_counters(&pair.decode).links_degraded == 0));
}

/* ---- rule 5: peers are processes, not addresses ---- */

static void test_a_restarted_prefill_is_a_new_peer(void **state)
{
    (void)state;
    pair_open_over("loopback");
    hand_over(1, 1);
    uint64_t epoch = pair.prefill.manager->m.epoch;
    baton_receiver *orphan = fleet_receiver(&pair.decode, 2, NULL);
    fleet_receiver_is(orphan, BATON_WAITING_FOR_INPUT);
    fleet_rank_close(&pair.prefill);
    receiver_failed(orphan, BATON_EPEER, "closed");
    baton_receiver_close(orphan);
    prefill_open(with_bootstrap((struct fleet_options){.backends = "loopback"}));
    assert_int_not_equal(pair.prefill.manager->m.epoch, epoch);
    hand_over(3, 3);
    assert_int_equal(fleet_counters(&pair.decode).links_up, 1);
}

static void test_a_restarted_decode_is_a_new_peer(void **state)
{
    (void)state;
    pair_open_over("loopback");
    hand_over(1, 1);
    baton_sender *orphan = fleet_sender(&pair.prefill, 2, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    baton_receiver_close(receiver);
    fleet_rank_close(&pair.decode);
    fleet_sender_is(orphan, BATON_FAILED);
    baton_sender_close(orphan);
    decode_open(with_bootstrap((struct fleet_options){.backends = "loopback"}));
    hand_over(3, 3);
}

/* Somebody else answers where the route says that prefill is: he is not taken for it
 * (connection_on_hello's expected_epoch), and the route is read anew. */
static void test_a_stranger_at_the_old_address(void **state)
{
    (void)state;
    struct puppet stranger;
    uint16_t bootstrap = (uint16_t)baton_bootstrap_port(pair.bootstrap);
    puppet_listens(&stranger);
    puppet_route(bootstrap, stranger.port, stranger.epoch ^ 1);
    decode_open(with_bootstrap((struct fleet_options){0}));
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    EVENTUALLY((stranger.fd = accept(stranger.listen_fd, NULL, NULL)) >= 0);
    puppet_expect(&stranger, WIRE_HELLO);
    puppet_hello(&stranger, WIRE_KIND_LINK, 0, 0);
    puppet_expect_bye(&stranger, BATON_EPEER, "has been restarted since its route was read");
    assert_int_equal(baton_receiver_poll(receiver), BATON_BOOTSTRAPPING);
    puppet_close(&stranger);
    prefill_open(with_bootstrap((struct fleet_options){0}));
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 1), BATON_OK);
    fleet_send(sender, 0, 1);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    fleet_sender_is(sender, BATON_SUCCESS);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
}

/* And the other way round: prefill is called by somebody who means another process. */
static void test_a_caller_who_means_somebody_else(void **state)
{
    (void)state;
    struct puppet caller;
    prefill_open((struct fleet_options){0});
    puppet_init(&caller);
    caller.fd = puppet_dial((uint16_t)baton_manager_port(pair.prefill.manager));
    puppet_hello(&caller, WIRE_KIND_LINK, 0, pair.prefill.manager->m.epoch ^ 1);
    puppet_expect(&caller, WIRE_HELLO);
    puppet_expect_bye(&caller, BATON_EPEER, "this rank has been restarted");
    puppet_close(&caller);
}

/* ---- rule 6: the receiver decides ---- */

static struct proxy *bad_network(const char *backends)
{
    struct fleet_options options = {0};
    snprintf(options.backends, sizeof(options.backends), "%s", backends);
    prefill_open(options); /* has no bootstrap address: it does not register itself */
    struct proxy *proxy = proxy_open((uint16_t)baton_manager_port(pair.prefill.manager));
    puppet_route((uint16_t)baton_bootstrap_port(pair.bootstrap), proxy_port(proxy),
                 pair.prefill.manager->m.epoch);
    decode_open(with_bootstrap(options));
    return proxy;
}

/* LANDED is lost with the link: the sender asks on the next one, and both are SUCCESS
 * (leg_link_lost's doubt, sender_resume_doubts, receiver_on_query, manager_outcome_find). */
static void landed_is_lost_over(const char *backend)
{
    struct proxy *proxy = bad_network(backend);
    hand_over(1, 1);
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    fleet_fill(&pair.prefill, 0, 2, 2);
    assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    proxy_freeze(proxy, true, false);
    fleet_send(sender, 0, 2);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    EVENTUALLY(proxy_held_bytes(proxy) > 0);
    assert_int_equal(baton_sender_poll(sender), BATON_TRANSFERRING);
    assert_int_equal(baton_sender_abort(sender, "too late"), BATON_ESTATE);
    proxy_refuse(proxy, true);
    proxy_cut(proxy);
    proxy_freeze(proxy, false, false);
    EVENTUALLY(fleet_counters(&pair.prefill).links_lost == 1);
    let_it_tick();
    assert_int_equal(baton_sender_poll(sender), BATON_TRANSFERRING); /* in doubt, not failed */
    proxy_refuse(proxy, false);
    fleet_sender_is(sender, BATON_SUCCESS);
    assert_int_equal(fleet_wrong_bytes(&pair.decode, 4, 2, 2), 0);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
    hand_over(3, 3);
    fleet_rank_close(&pair.decode);
    proxy_close(proxy);
}

static void test_landed_is_lost_shm(void **state)
{
    (void)state;
    landed_is_lost_over("shm");
}
static void test_landed_is_lost_cma(void **state)
{
    (void)state;
    landed_is_lost_over("cma");
}
static void test_landed_is_lost_tcp(void **state)
{
    (void)state;
    landed_is_lost_over("tcp");
}

/* COMMIT is lost with the link: the receiver fails, the sender asks and hears that. */
static void commit_is_lost_over(const char *backend)
{
    struct proxy *proxy = bad_network(backend);
    hand_over(1, 1);
    baton_sender *sender = fleet_sender(&pair.prefill, 2, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 2, NULL);
    assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    proxy_freeze(proxy, false, true);
    fleet_send(sender, 0, 2);
    EVENTUALLY(atomic_load(&sender_room(sender)->committed));
    EVENTUALLY(proxy_held_bytes(proxy) > 0);
    proxy_refuse(proxy, true);
    proxy_cut(proxy);
    proxy_freeze(proxy, false, false);
    receiver_failed(receiver, BATON_EPEER, "lost");
    let_it_tick();
    assert_int_equal(baton_sender_poll(sender), BATON_TRANSFERRING);
    proxy_refuse(proxy, false);
    /* By QUERY, or by the receiver's own ABORT where it has a fence to ask for. */
    sender_failed(sender, BATON_EPEER, "link");
    EVENTUALLY(baton_receiver_fenced(receiver));
    EVENTUALLY(baton_sender_fenced(sender));
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
    hand_over(3, 3);
    fleet_rank_close(&pair.decode);
    proxy_close(proxy);
}

static void test_commit_is_lost_shm(void **state)
{
    (void)state;
    commit_is_lost_over("shm");
}
static void test_commit_is_lost_cma(void **state)
{
    (void)state;
    commit_is_lost_over("cma");
}
static void test_commit_is_lost_tcp(void **state)
{
    (void)state;
    commit_is_lost_over("tcp");
}

/* The link does not come back: the wait has an end too (sender_tick's doubt_ns). */
static void test_a_doubt_that_nobody_clears_ends(void **state)
{
    (void)state;
    struct proxy *proxy = bad_network("shm");
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    proxy_freeze(proxy, true, false);
    fleet_send(sender, 0, 2);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    proxy_refuse(proxy, true);
    proxy_cut(proxy);
    EVENTUALLY(fleet_counters(&pair.prefill).links_lost == 1);
    clock_advance_ns(SECONDS(11));
    sender_failed(sender, BATON_EPEER, "outcome is unknown");
    EVENTUALLY(baton_sender_fenced(sender));
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
    fleet_rank_close(&pair.decode);
    proxy_close(proxy);
}

/* A link that breaks before the last COMMIT fails both, and is there again for the next room: one
 * loss blacklists nobody. */
static void test_a_link_lost_in_mid_transfer(void **state)
{
    (void)state;
    struct proxy *proxy = bad_network("tcp");
    for (uint64_t room = 1; room <= 3; room++) {
        baton_sender *sender = fleet_sender(&pair.prefill, room, NULL);
        baton_receiver *receiver = fleet_receiver(&pair.decode, room, NULL);
        assert_int_equal(fleet_grant(receiver, 0, 2), BATON_OK);
        fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
        proxy_cut(proxy);
        sender_failed(sender, BATON_EPEER, "lost");
        receiver_failed(receiver, BATON_EPEER, "lost");
        EVENTUALLY(baton_receiver_fenced(receiver) && baton_sender_fenced(sender));
        baton_sender_close(sender);
        baton_receiver_close(receiver);
        hand_over(room + 10, (uint32_t)room);
    }
    nothing_left();
    fleet_rank_close(&pair.decode);
    proxy_close(proxy);
}

/* An abort that was asked for before the last COMMIT and is looked at after it comes too late as
 * well (room_job). The request bit is set by hand: that is the moment between the caller's look
 * at `committed` and its request. */
static void test_an_abort_that_races_the_last_commit(void **state)
{
    (void)state;
    struct proxy *proxy = bad_network("shm");
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    proxy_freeze(proxy, true, false); /* LANDED waits */
    fleet_send(sender, 0, 2);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    struct room *room = sender_room(sender);
    assert_true(atomic_load(&room->committed));
    atomic_fetch_or(&room->requests, REQUEST_ABORT);
    runtime_post(the_runtime(), &room->job);
    let_it_tick();
    proxy_freeze(proxy, false, false);
    fleet_sender_is(sender, BATON_SUCCESS);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
    fleet_rank_close(&pair.decode);
    proxy_close(proxy);
}

/* A sender that is closed after its last COMMIT does not take the pages away from the receiver, and
 * leaves nothing behind. */
static void test_a_sender_closed_after_its_last_commit(void **state)
{
    (void)state;
    const char *backends[] = {"shm", "cma"};
    for (int i = 0; i < 2; i++) {
        struct proxy *proxy = bad_network(backends[i]);
        baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
        baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
        assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
        fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
        proxy_freeze(proxy, true, false);
        fleet_send(sender, 0, 2);
        fleet_receiver_is(receiver, BATON_SUCCESS);
        baton_sender_close(sender);
        let_it_tick();
        proxy_freeze(proxy, false, false);
        EVENTUALLY(fleet_counters(&pair.prefill).rooms_open == 0);
        assert_int_equal(baton_receiver_poll(receiver), BATON_SUCCESS);
        baton_receiver_close(receiver);
        fleet_rank_close(&pair.decode);
        fleet_rank_close(&pair.prefill);
        proxy_close(proxy);
    }
}

/* ---- rule 7: whom a request may make us call ---- */

/* The bootstrap address of a receiver comes out of a client's request: only those on the list are
 * called (bootstrap_address_allowed in baton_receiver_open). */
static void test_only_allowed_bootstrap_addresses_are_called(void **state)
{
    (void)state;
    char err[256] = "";
    baton_receiver_options options = BATON_RECEIVER_OPTIONS_INIT;
    baton_receiver *receiver = NULL;
    struct fleet_options careful = {.backends = "loopback", .allow = "127.0.0.0/8,prefill-1"};
    pair_open((struct fleet_options){.backends = "loopback"}, careful);
    hand_over(1, 1);
    options.room = 2;
    options.bootstrap = "169.254.169.254:80";
    assert_int_equal(
        baton_receiver_open(pair.decode.manager, &options, &receiver, err, sizeof(err)),
        BATON_EAUTH);
    ASSERT_SAYS(err, "169.254.169.254");
    options.bootstrap = "prefill-10:8998";
    assert_int_equal(
        baton_receiver_open(pair.decode.manager, &options, &receiver, err, sizeof(err)),
        BATON_EAUTH);
    assert_null(receiver);
    nothing_left();
}

/* ---- rule 8: rooms are unique ---- */

static void test_a_room_is_open_once(void **state)
{
    (void)state;
    char err[256] = "";
    baton_sender_options so = BATON_SENDER_OPTIONS_INIT;
    baton_receiver_options ro = BATON_RECEIVER_OPTIONS_INIT;
    baton_sender *second_sender = NULL;
    baton_receiver *second_receiver = NULL;
    pair_open_over("loopback");
    baton_sender *sender = fleet_sender(&pair.prefill, 7, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 7, NULL);
    so.room = ro.room = 7;
    assert_int_equal(
        baton_sender_open(pair.prefill.manager, &so, &second_sender, err, sizeof(err)),
        BATON_EEXIST);
    ASSERT_SAYS(err, "room 7 is already open here");
    assert_null(second_sender);
    err[0] = 0;
    assert_int_equal(
        baton_receiver_open(pair.decode.manager, &ro, &second_receiver, err, sizeof(err)),
        BATON_EEXIST);
    ASSERT_SAYS(err, "room 7 is already open here");
    assert_int_equal(fleet_counters(&pair.decode).rooms_refused, 1);

    /* The first ones have not noticed. */
    assert_int_equal(fleet_grant(receiver, 0, 1), BATON_OK);
    fleet_send(sender, 0, 1);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    fleet_sender_is(sender, BATON_SUCCESS);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    hand_over(7, 7); /* the number is free again after the end */
}

/* Two decode workers were given the same room: the second hears it, and the first goes on
 * (sender_on_open). */
static void test_two_receivers_of_one_room(void **state)
{
    (void)state;
    char err[256];
    struct fleet_rank other;
    pair_open_over("loopback");
    struct fleet_options options =
        with_bootstrap((struct fleet_options){.backends = "loopback"});
    assert_int_equal(fleet_rank_open(&other, &options, err, sizeof(err)), BATON_OK);
    baton_sender *sender = fleet_sender(&pair.prefill, 7, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 7, NULL);
    fleet_receiver_is(receiver, BATON_WAITING_FOR_INPUT);
    baton_receiver *second = fleet_receiver(&other, 7, NULL);
    receiver_failed(second, BATON_EEXIST, "room 7 is open already with decode rank 0");
    assert_int_equal(fleet_counters(&pair.prefill).rooms_refused, 1);
    assert_int_equal(fleet_grant(receiver, 0, 1), BATON_OK);
    fleet_send(sender, 0, 1);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    fleet_sender_is(sender, BATON_SUCCESS);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    baton_receiver_close(second);
    fleet_rank_close(&other);
}

static void test_the_smallest_and_the_largest_room(void **state)
{
    (void)state;
    char err[256] = "";
    baton_sender_options so = BATON_SENDER_OPTIONS_INIT;
    baton_receiver_options ro = BATON_RECEIVER_OPTIONS_INIT;
    baton_sender *sender;
    baton_receiver *receiver;
    pair_open_over("loopback");
    hand_over(0, 1);
    hand_over(INT64_MAX, 2);
    so.room = ro.room = (uint64_t)INT64_MAX + 1;
    assert_int_equal(baton_sender_open(pair.prefill.manager, &so, &sender, err, sizeof(err)),
                     BATON_EINVAL);
    ASSERT_SAYS(err, "over 2^63-1");
    assert_int_equal(baton_receiver_open(pair.decode.manager, &ro, &receiver, err, sizeof(err)),
                     BATON_EINVAL);
}

static void test_max_rooms_is_a_clear_limit(void **state)
{
    (void)state;
    char err[256] = "";
    struct fleet_options two = {.max_rooms = 2};
    baton_sender *senders[3] = {0};
    pair_open(two, (struct fleet_options){0});
    for (uint64_t i = 0; i < 2; i++)
        senders[i] = fleet_sender(&pair.prefill, i, NULL);
    baton_sender_options options = BATON_SENDER_OPTIONS_INIT;
    options.room = 2;
    assert_int_equal(
        baton_sender_open(pair.prefill.manager, &options, &senders[2], err, sizeof(err)),
        BATON_ELIMIT);
    ASSERT_SAYS(err, "max_rooms");
    /* Rooms that only decode knows have as many places of their own. */
    baton_receiver *early[2] = {fleet_receiver(&pair.decode, 9, NULL),
                                fleet_receiver(&pair.decode, 10, NULL)};
    fleet_receiver_is(early[0], BATON_WAITING_FOR_INPUT);
    fleet_receiver_is(early[1], BATON_WAITING_FOR_INPUT);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 11, NULL);
    receiver_failed(receiver, BATON_ELIMIT, "no free room on the prefill side");
    baton_receiver_close(receiver);
    baton_receiver_close(early[0]);
    baton_receiver_close(early[1]);
    baton_sender_close(senders[0]);
    baton_sender_close(senders[1]);
    nothing_left();
    hand_over(3, 3);
}

/* ---- rules 9 and 10: what cannot be mapped is refused at REGISTER, with the reason ---- */

/* Decode hears the reason at once, and says which rooms fail over it: prefill's sender does not wait for
 * a receiver that will never reach it, whether it comes before the refusal or after. */
static void mismatch_is_refused(struct fleet_options prefill, struct fleet_options decode,
                                const char *part)
{
    char text[512];
    prefill.match_timeout_ms = decode.match_timeout_ms = 600000;
    pair_open(prefill, decode);
    for (uint64_t room = 1; room < 3; room++) {
        baton_sender *sender = room == 1 ? fleet_sender(&pair.prefill, room, NULL) : NULL;
        baton_receiver *receiver = fleet_receiver(&pair.decode, room, NULL);
        receiver_failed(receiver, BATON_ELAYOUT, part);
        assert_true(fleet_counters(&pair.prefill).links_refused >= room);
        assert_true(fleet_counters(&pair.decode).links_refused >= room);
        assert_int_equal(fleet_counters(&pair.decode).links_up, 0);
        if (!sender)
            sender = fleet_sender(&pair.prefill, room, NULL);
        fleet_sender_is(sender, BATON_FAILED);
        assert_int_equal(baton_sender_failure(sender, text, sizeof(text)), BATON_ELAYOUT);
        ASSERT_SAYS(text, part);
        baton_sender_close(sender);
        baton_receiver_close(receiver);
    }
    nothing_left();
}

static void test_other_page_sizes_are_refused(void **state)
{
    (void)state;
    mismatch_is_refused((struct fleet_options){.page_bytes = 4096},
                        (struct fleet_options){.page_bytes = 8192}, "region 'kv'");
}

static void test_another_model_is_refused(void **state)
{
    (void)state;
    mismatch_is_refused((struct fleet_options){.fingerprint = "model-a"},
                        (struct fleet_options){.fingerprint = "model-b"},
                        "fingerprint model-a, the peer model-b");
}

static void test_another_aux_schema_is_refused(void **state)
{
    (void)state;
    mismatch_is_refused((struct fleet_options){.aux_count = 4},
                        (struct fleet_options){.aux_count = 8}, "aux field 'token'");
}

static void test_an_unchecked_model_is_accepted(void **state)
{
    (void)state;
    pair_open((struct fleet_options){.fingerprint = "model-a"}, (struct fleet_options){0});
    hand_over(1, 1);
}

static void test_no_backend_in_common(void **state)
{
    (void)state;
    pair_open((struct fleet_options){.backends = "shm"},
              (struct fleet_options){.backends = "tcp"});
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    receiver_failed(receiver, BATON_EUNREACHABLE, "backend");
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    nothing_left();
}

/* ---- rule 11: it says what it did ---- */

/* Decode would have liked cma; prefill only has tcp. The room says so, and the fallback is counted
 * (link_choose's text, link_ready's count). */
static void test_a_fallback_is_said_and_counted(void **state)
{
    (void)state;
    pair_open((struct fleet_options){.backends = "tcp"},
              (struct fleet_options){.backends = "cma,tcp"});
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 3), BATON_OK);
    fleet_send(sender, 0, 3);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    fleet_sender_is(sender, BATON_SUCCESS);
    baton_timeline sent = {.struct_size = sizeof(sent)};
    baton_timeline got = {.struct_size = sizeof(got)};
    assert_int_equal(baton_sender_timeline(sender, &sent), BATON_OK);
    assert_int_equal(baton_receiver_timeline(receiver, &got), BATON_OK);
    assert_string_equal(sent.backend, "tcp");
    assert_string_equal(got.backend, "tcp");
    assert_int_equal(sent.bytes, 3 * 32768);
    assert_int_equal(got.bytes, 3 * 32768);
    assert_true(sent.operations >= 1 && got.operations >= 1);
    assert_int_equal(sent.peers, 1);
    assert_int_equal(sent.state, BATON_SUCCESS);
    assert_true(got.bootstrapped_ns && got.bootstrapped_ns <= got.granted_ns);
    assert_true(got.granted_ns <= got.first_send_ns && got.first_send_ns <= got.last_byte_ns);
    assert_true(got.last_byte_ns <= got.ended_ns);
    assert_true(sent.first_send_ns && sent.last_byte_ns <= sent.ended_ns);
    assert_int_equal(fleet_counters(&pair.decode).fallbacks, 1);
    assert_int_equal(fleet_counters(&pair.prefill).fallbacks, 0);
    ASSERT_SAYS(got.reason, "cma");
    assert_int_equal(fleet_counters(&pair.prefill).bytes_sent, 3 * 32768);
    assert_int_equal(fleet_counters(&pair.decode).bytes_received, 3 * 32768);
    assert_int_equal(fleet_counters(&pair.decode).rooms_succeeded, 1);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
}

/* Memory that the writer cannot map: shm says why not, cma carries it. */
static void test_foreign_memory_goes_over_cma(void **state)
{
    (void)state;
    struct fleet_options options = {.backends = "shm,cma,tcp", .foreign = 1};
    pair_open(options, options);
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 3), BATON_OK);
    fleet_send(sender, 0, 3);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    baton_timeline got = {.struct_size = sizeof(got)};
    assert_int_equal(baton_receiver_timeline(receiver, &got), BATON_OK);
    assert_string_equal(got.backend, "cma");
    assert_int_equal(fleet_counters(&pair.decode).fallbacks, 1);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
}

/* A failed room has its times, too, and when its pages came back. */
static void test_a_failed_room_has_a_timeline(void **state)
{
    (void)state;
    pair_open_over("loopback");
    baton_sender *sender = fleet_sender(&pair.prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&pair.decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 3), BATON_OK);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    assert_int_equal(baton_receiver_abort(receiver, "no"), BATON_OK);
    fleet_receiver_is(receiver, BATON_FAILED);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_timeline got = {.struct_size = sizeof(got)};
    assert_int_equal(baton_receiver_timeline(receiver, &got), BATON_OK);
    assert_int_equal(got.state, BATON_FAILED);
    assert_true(got.granted_ns <= got.ended_ns && got.ended_ns <= got.fenced_ns);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
}

#define RULE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RULE(test_no_call_waits_for_the_link_thread),
        RULE(test_the_word_only_moves_forward),
        RULE(test_an_old_generation_reads_nothing),
        RULE(test_the_eventfd_tells),
        RULE(test_a_bounded_wait_tells),
        RULE(test_quarantine_loopback),
        RULE(test_quarantine_shm),
        RULE(test_quarantine_cma),
        RULE(test_quarantine_tcp),
        RULE(test_sender_aborts_in_mid_copy),
        RULE(test_crossing_aborts),
        RULE(test_closing_a_manager_fences_its_peer),
        RULE(test_the_receivers_deadline_ends_both),
        RULE(test_the_senders_deadline_ends_both),
        RULE(test_a_flood_of_jobs_does_not_stop_the_clock),
        RULE(test_init_moves_the_deadline_of_both),
        RULE(test_a_sender_nobody_comes_for),
        RULE(test_a_receiver_nobody_comes_for),
        RULE(test_a_receiver_without_a_prefill_group),
        RULE(test_abort_reaches_the_other_side),
        RULE(test_decode_gave_up_before_the_sender_existed),
        RULE(test_decode_gave_up_before_prefill_was_there),
        RULE(test_the_sender_failed_before_decode_asked),
        RULE(test_tombstones_pass),
        RULE(test_an_owner_that_stands_still_is_degraded),
        RULE(test_a_restarted_prefill_is_a_new_peer),
        RULE(test_a_restarted_decode_is_a_new_peer),
        RULE(test_a_stranger_at_the_old_address),
        RULE(test_a_caller_who_means_somebody_else),
        RULE(test_landed_is_lost_shm),
        RULE(test_landed_is_lost_cma),
        RULE(test_landed_is_lost_tcp),
        RULE(test_commit_is_lost_shm),
        RULE(test_commit_is_lost_cma),
        RULE(test_commit_is_lost_tcp),
        RULE(test_a_doubt_that_nobody_clears_ends),
        RULE(test_a_link_lost_in_mid_transfer),
        RULE(test_an_abort_that_races_the_last_commit),
        RULE(test_a_sender_closed_after_its_last_commit),
        RULE(test_only_allowed_bootstrap_addresses_are_called),
        RULE(test_a_room_is_open_once),
        RULE(test_two_receivers_of_one_room),
        RULE(test_the_smallest_and_the_largest_room),
        RULE(test_max_rooms_is_a_clear_limit),
        RULE(test_other_page_sizes_are_refused),
        RULE(test_another_model_is_refused),
        RULE(test_another_aux_schema_is_refused),
        RULE(test_an_unchecked_model_is_accepted),
        RULE(test_no_backend_in_common),
        RULE(test_a_fallback_is_said_and_counted),
        RULE(test_foreign_memory_goes_over_cma),
        RULE(test_a_failed_room_has_a_timeline),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* one test: test_rules test_landed* */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
