/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in every order that a correct peer would not choose, and a few that no peer may say: a
 * puppet (puppet.h) on one side, a real manager on the other. Here the fences can be seen at work,
 * because a puppet can withhold its FENCED for as long as the test likes.
 *
 * Above each test: which lines of the library it would notice the loss of. */
#include "fleet.h"
#include "puppet.h"

#include "base/clock.h"
#include "transfer/manager.h"
#include "transfer/room.h"

#include <sys/socket.h>

#define PAGES 16
#define PAGE_BYTES 4096
#define SECONDS(n) ((n)*1000ull * NS_PER_MS)

static baton_bootstrap *bootstrap;
static char address[64];
static struct fleet_rank rank; /* the real side */
static struct puppet puppet;   /* the link */
static struct puppet stream;   /* its data stream, over tcp */
static uint8_t puppet_pages[PAGES * PAGE_BYTES];

static struct puppet_memory memory_over(const char *backend)
{
    return (struct puppet_memory){.address = puppet_pages,
                                  .pages = PAGES,
                                  .page_bytes = PAGE_BYTES,
                                  .backend = backend,
                                  .streams = 1};
}

static int setup(void **state)
{
    (void)state;
    memset(&rank, 0, sizeof(rank));
    puppet_init(&puppet);
    puppet_init(&stream);
    if (baton_bootstrap_open("127.0.0.1", 0, &bootstrap, NULL, 0) != BATON_OK)
        return -1;
    snprintf(address, sizeof(address), "127.0.0.1:%u", baton_bootstrap_port(bootstrap));
    for (size_t i = 0; i < sizeof(puppet_pages); i++)
        puppet_pages[i] = (uint8_t)(i * 7 + i / 256);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    puppet_close(&puppet);
    puppet_close(&stream);
    if (rank.manager)
        fleet_rank_close(&rank);
    baton_bootstrap_close(bootstrap);
    return 0;
}

static void rank_open(struct fleet_options options)
{
    char err[256];
    snprintf(options.bootstrap, sizeof(options.bootstrap), "%s", address);
    options.pages = PAGES;
    options.page_bytes = PAGE_BYTES;
    if (fleet_rank_open(&rank, &options, err, sizeof(err)) != BATON_OK)
        fail_msg("rank: %s", err);
}

static uint16_t rank_port(void)
{
    return (uint16_t)baton_manager_port(rank.manager);
}

/* The puppet is prefill: a receiver of `room` calls it and says OPEN, whose ticket is returned. */
static baton_receiver *receiver_calls(const char *backend, uint64_t room, uint32_t *ticket)
{
    struct fleet_options options = {.tcp_streams = 1};
    struct puppet_memory memory = memory_over(backend);
    snprintf(options.backends, sizeof(options.backends), "%s", backend);
    rank_open(options);
    puppet_listens(&puppet);
    puppet_route((uint16_t)baton_bootstrap_port(bootstrap), puppet.port, puppet.epoch);
    baton_receiver *receiver = fleet_receiver(&rank, room, NULL);
    puppet_serve(&puppet, &memory);
    *ticket = puppet_expect_open(&puppet, room).ticket;
    if (strcmp(backend, "tcp") == 0)
        puppet_stream_serve(&stream, &puppet);
    return receiver;
}

static baton_receiver *receiver_grants(const char *backend, uint64_t room, uint32_t first,
                                       uint32_t count, uint32_t *ticket)
{
    baton_receiver *receiver = receiver_calls(backend, room, ticket);
    assert_int_equal(fleet_grant(receiver, first, count), BATON_OK);
    struct wire_grant grant = puppet_expect_grant(&puppet, room);
    assert_int_equal(grant.ticket, *ticket);
    assert_int_equal(grant.pages.count, count);
    return receiver;
}

/* The puppet is decode: it joins a rank with the given backend. */
static void puppet_joins(const char *backend)
{
    struct fleet_options options = {.tcp_streams = 1};
    struct puppet_memory memory = memory_over(backend);
    snprintf(options.backends, sizeof(options.backends), "%s", backend);
    rank_open(options);
    puppet_join(&puppet, rank_port(), &memory);
    assert_string_equal(puppet.choice, backend);
    if (strcmp(backend, "tcp") == 0)
        puppet_stream_join(&stream, &puppet, rank_port(), 0);
}

static void receiver_failed(baton_receiver *receiver, int code, const char *part)
{
    char text[512];
    fleet_receiver_is(receiver, BATON_FAILED);
    int failure = baton_receiver_failure(receiver, text, sizeof(text));
    ASSERT_SAYS(text, part);
    assert_string_equal(baton_error_name(failure), baton_error_name(code));
}

static void sender_failed(baton_sender *sender, int code, const char *part)
{
    char text[512];
    fleet_sender_is(sender, BATON_FAILED);
    int failure = baton_sender_failure(sender, text, sizeof(text));
    ASSERT_SAYS(text, part);
    assert_string_equal(baton_error_name(failure), baton_error_name(code));
}

static void nothing_left(void)
{
    EVENTUALLY(fleet_counters(&rank).rooms_open == 0);
    assert_int_equal(fleet_counters(&rank).rooms_quarantined, 0);
    assert_int_equal(fleet_counters(&rank).pages_quarantined, 0);
}

/* A byte of a page that a worker of the library may be writing just now. */
__attribute__((no_sanitize("thread"))) static uint8_t peek(uint32_t offset)
{
    return *(volatile uint8_t *)(rank.memory + offset);
}

static void let_it_tick(void)
{
    usleep(200 * 1000);
}

/* One page over the puppet's stream, from grant to SUCCESS: the link still works. */
static void another_room_lands(uint64_t room)
{
    baton_receiver *receiver = fleet_receiver(&rank, room, NULL);
    uint32_t ticket = puppet_expect_open(&puppet, room).ticket;
    assert_int_equal(fleet_grant(receiver, PAGES - 1, 1), BATON_OK);
    puppet_expect_grant(&puppet, room);
    puppet_data(&stream, ticket, (PAGES - 1) * PAGE_BYTES, puppet_pages, PAGE_BYTES,
                PAGE_BYTES);
    puppet_say_commit(&puppet, room, ticket, 1, PAGE_BYTES, true);
    puppet_expect_room(&puppet, WIRE_LANDED, room);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    assert_memory_equal(rank.memory + (PAGES - 1) * PAGE_BYTES, puppet_pages, PAGE_BYTES);
    baton_receiver_close(receiver);
}

/* ---- fences (rule 2) ---- */

/* shm: the writer is the peer. Without its FENCED nothing gives the pages back: not FAILED, not a
 * closed handle, not silence, not a lost link, not time (leg_end's fence_remote, leg_link_lost);
 * a new link to the same process is asked again (route_want, receiver_leg_ready), and its FENCED
 * counts. */
static void test_only_fenced_gives_shm_pages_back(void **state)
{
    (void)state;
    uint32_t ticket;
    struct puppet_memory memory = memory_over("shm");
    baton_receiver *receiver = receiver_grants("shm", 1, 0, 3, &ticket);
    assert_int_equal(baton_receiver_abort(receiver, "gone"), BATON_OK);
    puppet_expect_abort(&puppet, 1, BATON_EABORTED, "gone");
    fleet_receiver_is(receiver, BATON_FAILED);
    let_it_tick();
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    assert_int_equal(fleet_counters(&rank).pages_quarantined, 3);
    baton_receiver *next = fleet_receiver(&rank, 2, NULL);
    puppet_expect(&puppet, WIRE_FENCED); /* the receiver's own half */
    puppet_expect_open(&puppet, 2);
    assert_int_equal(fleet_grant(next, 2, 1), BATON_EBUSY);
    baton_receiver_close(receiver);
    baton_receiver_close(next);

    /* The puppet falls silent; its link is given up, and called again, without an answer. */
    for (int i = 0; i < 20; i++) {
        clock_advance_ns(SECONDS(1) - 100 * NS_PER_MS);
        usleep(60 * 1000);
    }
    EVENTUALLY(fleet_counters(&rank).links_lost == 1);
    assert_int_equal(fleet_counters(&rank).pages_quarantined, 3);
    puppet_hang_up(&puppet);
    clock_advance_ns(SECONDS(600));
    let_it_tick();
    assert_int_equal(fleet_counters(&rank).pages_quarantined, 3);
    assert_int_equal(fleet_counters(&rank).rooms_quarantined, 1);

    puppet_serve(&puppet, &memory);
    puppet_expect_abort(&puppet, 1, BATON_EABORTED, "gone");
    assert_int_equal(fleet_counters(&rank).pages_quarantined, 3);
    puppet_say_room(&puppet, WIRE_FENCED, 1, ticket);
    EVENTUALLY(fleet_counters(&rank).pages_quarantined == 0);
    assert_int_equal(fleet_counters(&rank).fences, 1);
    nothing_left();
    receiver = fleet_receiver(&rank, 3, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 3), BATON_OK);
    baton_receiver_close(receiver);
}

/* A FENCED that comes before the room failed is not one for the copies that follow it. */
static void test_an_early_fenced_is_no_fence(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("shm", 1, 0, 2, &ticket);
    puppet_say_room(&puppet, WIRE_FENCED, 1, ticket);
    puppet_say_room(&puppet, WIRE_FENCED, 99, 12345); /* nobody's */
    EVENTUALLY(fleet_counters(&rank).frames_stale >= 1);
    assert_int_equal(baton_receiver_abort(receiver, "no"), BATON_OK);
    fleet_receiver_is(receiver, BATON_FAILED);
    let_it_tick();
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    puppet_say_room(&puppet, WIRE_FENCED, 1, ticket ^ 0x10000); /* another grant's */
    let_it_tick();
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    puppet_say_room(&puppet, WIRE_FENCED, 1, ticket);
    EVENTUALLY(baton_receiver_fenced(receiver));
    puppet_say_room(&puppet, WIRE_FENCED, 1, ticket); /* twice is once */
    let_it_tick();
    assert_int_equal(fleet_counters(&rank).fences, 1);
    baton_receiver_close(receiver);
    nothing_left();
}

/* A sender that aborts still has to say FENCED: ABORT alone frees nothing. */
static void test_the_writers_abort_is_no_fence(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("shm", 1, 0, 2, &ticket);
    puppet_say_abort(&puppet, 1, ticket, BATON_ENOMEM, "prefill is out of memory");
    receiver_failed(receiver, BATON_ENOMEM, "prefill is out of memory");
    puppet_expect_room(&puppet, WIRE_FENCED, 1); /* each ABORT is answered */
    let_it_tick();
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    puppet_say_abort(&puppet, 1, ticket, BATON_ENOMEM, "once more");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    assert_int_equal(baton_receiver_fenced(receiver), 0);
    puppet_say_room(&puppet, WIRE_FENCED, 1, ticket);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
    nothing_left();
}

/* tcp: the storer is our own reader, so the fence needs no answer; and the rest of a frame that was
 * under way goes to nowhere, with the stream still in step (tcp_revoke_on_worker, the sink of
 * tcp_read_payload). */
static void test_tcp_sinks_the_rest_of_a_dead_frame(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 2, 1, &ticket);
    memset(rank.memory, 0, PAGES * PAGE_BYTES);
    puppet_data(&stream, ticket, 2 * PAGE_BYTES, puppet_pages, PAGE_BYTES, PAGE_BYTES / 2);
    EVENTUALLY(peek(2 * PAGE_BYTES + PAGE_BYTES / 2 - 1) == puppet_pages[PAGE_BYTES / 2 - 1]);
    assert_int_equal(baton_receiver_abort(receiver, "changed its mind"), BATON_OK);
    EVENTUALLY(baton_receiver_fenced(receiver));
    memset(rank.memory + 2 * PAGE_BYTES, 0xee, PAGE_BYTES); /* the page is ours again */
    puppet_write(stream.fd, puppet_pages + PAGE_BYTES / 2, PAGE_BYTES / 2);
    puppet_expect_abort(&puppet, 1, BATON_EABORTED, "changed");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    baton_receiver_close(receiver);
    another_room_lands(2); /* read behind the sunk bytes */
    for (uint32_t i = 0; i < PAGE_BYTES; i++)
        assert_int_equal(rank.memory[2 * PAGE_BYTES + i], 0xee);
    nothing_left();
}

/* cma: our own workers read; no answer of the peer is needed. */
static void test_cma_fences_itself(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("cma", 1, 0, 2, &ticket);
    assert_int_equal(baton_receiver_abort(receiver, "no"), BATON_OK);
    EVENTUALLY(baton_receiver_fenced(receiver));
    assert_int_equal(fleet_counters(&rank).pages_quarantined, 0);
    baton_receiver_close(receiver);
    nothing_left();
}

/* ---- COMMIT, DATA and LANDED at the receiver (rules 6 and 7) ---- */

/* A COMMIT that comes after the room's end changes nothing (receiver_leg: the ticket is 0 then). */
static void test_a_late_commit_is_stale(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    assert_int_equal(baton_receiver_abort(receiver, "no"), BATON_OK);
    puppet_expect_abort(&puppet, 1, BATON_EABORTED, "no");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    puppet_say_commit(&puppet, 1, ticket, 1, PAGE_BYTES, true);
    EVENTUALLY(fleet_counters(&rank).frames_stale == 2);
    assert_int_equal(baton_receiver_poll(receiver), BATON_FAILED);
    baton_receiver_close(receiver);
    another_room_lands(2);
    nothing_left();
}

/* A sender that stops short cannot make a room succeed: both sides hear ECORRUPT (leg_complete). */
static void test_fewer_bytes_than_the_grant_needs(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 2, &ticket);
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    puppet_say_commit(&puppet, 1, ticket, 2, PAGE_BYTES, true);
    receiver_failed(receiver, BATON_ECORRUPT, "committed 4096 bytes, the grant needs 8192");
    puppet_expect_abort(&puppet, 1, BATON_ECORRUPT, "the grant needs 8192");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
    another_room_lands(2);
}

/* Fewer pages than were granted: the same, whatever the byte count claims. */
static void test_fewer_pages_than_were_granted(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 2, &ticket);
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    puppet_say_commit(&puppet, 1, ticket, 1, PAGE_BYTES, true);
    fleet_receiver_is(receiver, BATON_FAILED);
    puppet_expect(&puppet, WIRE_ABORT);
    baton_receiver_close(receiver);
}

/* COMMIT before the bytes: order between the link and the streams is not assumed (leg_landed). */
static void test_commit_overtakes_the_bytes(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 2, &ticket);
    puppet_say_commit(&puppet, 1, ticket, 2, 2 * PAGE_BYTES, true);
    fleet_receiver_is(receiver, BATON_TRANSFERRING);
    puppet_data(&stream, ticket, PAGE_BYTES, puppet_pages + PAGE_BYTES, PAGE_BYTES, PAGE_BYTES);
    let_it_tick();
    assert_int_equal(baton_receiver_poll(receiver), BATON_TRANSFERRING);
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    puppet_expect_room(&puppet, WIRE_LANDED, 1);
    assert_memory_equal(rank.memory, puppet_pages, 2 * PAGE_BYTES);
    baton_receiver_close(receiver);
    nothing_left();
}

/* More bytes than COMMIT says: something is wrong, and it is said. */
static void test_more_bytes_than_committed(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 2, &ticket);
    for (int i = 0; i < 3; i++)
        puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    EVENTUALLY(peek(1) == puppet_pages[1]);
    let_it_tick();
    puppet_say_commit(&puppet, 1, ticket, 2, 2 * PAGE_BYTES, true);
    receiver_failed(receiver, BATON_EPROTOCOL, "12288 bytes where COMMIT said 8192");
    puppet_expect_abort(&puppet, 1, BATON_EPROTOCOL, "COMMIT said 8192");
    baton_receiver_close(receiver);
}

/* DATA for what was not granted costs the link, and stores nothing (tcp_run_allowed). */
static void data_is_refused(uint64_t offset, uint32_t length)
{
    uint32_t ticket;
    static uint8_t bytes[4 * PAGE_BYTES];
    baton_receiver *receiver = receiver_grants("tcp", 1, 4, 2, &ticket);
    memset(rank.memory, 0, PAGES * PAGE_BYTES);
    memset(bytes, 0xff, sizeof(bytes));
    puppet_data(&stream, ticket, offset, bytes, length,
                length < sizeof(bytes) ? length : (uint32_t)sizeof(bytes));
    receiver_failed(receiver, BATON_EPEER, "was not granted");
    for (uint32_t i = 0; i < PAGES * PAGE_BYTES; i++)
        assert_int_equal(rank.memory[i], 0);
    assert_int_equal(fleet_counters(&rank).frames_bad, 1);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
}

static void test_data_for_another_page(void **state)
{
    (void)state;
    data_is_refused(0, PAGE_BYTES);
}
static void test_data_across_the_end_of_the_grant(void **state)
{
    (void)state;
    data_is_refused(5 * PAGE_BYTES, PAGE_BYTES + 1);
}
static void test_data_before_the_grant(void **state)
{
    (void)state;
    data_is_refused(4 * PAGE_BYTES - 1, 2);
}
static void test_data_beyond_the_region(void **state)
{
    (void)state;
    data_is_refused(PAGES * PAGE_BYTES, PAGE_BYTES);
}
static void test_data_beyond_all_memory(void **state)
{
    (void)state;
    data_is_refused(UINT64_MAX - PAGE_BYTES, PAGE_BYTES);
}

/* A ticket that names no live grant is a room that has ended: sunk and counted, nothing more. */
static void test_data_with_a_stale_ticket(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    memset(rank.memory, 0, PAGES * PAGE_BYTES);
    puppet_data(&stream, ticket + PAGES * 65536, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    puppet_data(&stream, 0, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    puppet_data(&stream, UINT32_MAX, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    EVENTUALLY(fleet_counters(&rank).frames_stale == 3);
    assert_int_equal(rank.memory[0], 0);
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    puppet_say_commit(&puppet, 1, ticket, 1, PAGE_BYTES, true);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    baton_receiver_close(receiver);
    nothing_left();
}

static void test_a_second_last_commit_costs_the_link(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 2, &ticket);
    puppet_say_commit(&puppet, 1, ticket, 2, 2 * PAGE_BYTES, true);
    puppet_say_commit(&puppet, 1, ticket, 2, 2 * PAGE_BYTES, true);
    receiver_failed(receiver, BATON_EPROTOCOL, "COMMIT out of place");
    puppet_expect(&puppet, WIRE_BYE);
    baton_receiver_close(receiver);
}

/* An ABORT that crossed LANDED is answered, and undoes nothing. */
static void test_an_abort_that_crosses_landed(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
    puppet_say_commit(&puppet, 1, ticket, 1, PAGE_BYTES, true);
    puppet_expect_room(&puppet, WIRE_LANDED, 1);
    puppet_say_abort(&puppet, 1, ticket, BATON_EABORTED, "too late");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    assert_int_equal(baton_receiver_poll(receiver), BATON_SUCCESS);
    baton_receiver_close(receiver);
    nothing_left();
}

/* QUERY: what landed did, for as many rooms as can be open at once; what did not has failed, and is
 * fenced (receiver_on_query, manager_outcome_find). */
static void test_query(void **state)
{
    (void)state;
    uint32_t first, ticket;
    enum { MANY = 6000 };
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 0, &first);
    puppet_say_commit(&puppet, 1, first, 0, 0, true);
    puppet_expect_room(&puppet, WIRE_LANDED, 1);
    baton_receiver_close(receiver);
    for (uint64_t room = 2; room < MANY; room++) {
        receiver = fleet_receiver(&rank, room, NULL);
        assert_int_equal(fleet_grant(receiver, 0, 0), BATON_OK); /* a full hit: no bytes */
        ticket = puppet_expect_open(&puppet, room).ticket;
        puppet_expect_grant(&puppet, room);
        puppet_say_commit(&puppet, room, ticket, 0, 0, true);
        puppet_expect_room(&puppet, WIRE_LANDED, room);
        baton_receiver_close(receiver);
    }
    puppet_say_room(&puppet, WIRE_QUERY, 1, first);
    assert_int_equal(puppet_expect_room(&puppet, WIRE_LANDED, 1).ticket, first);
    puppet_say_room(&puppet, WIRE_QUERY, 1, first ^ 1);
    puppet_expect_abort(&puppet, 1, BATON_EPEER, "before everything had landed");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    puppet_say_room(&puppet, WIRE_QUERY, MANY + 1, 77);
    puppet_expect_abort(&puppet, MANY + 1, BATON_EPEER, "before everything had landed");
    puppet_expect_room(&puppet, WIRE_FENCED, MANY + 1);
    nothing_left();
}

/* cma: source pages that the peer does not have, and lists that do not fit, fail the room. */
static void cma_commit_fails(struct wire_commit commit, const char *part)
{
    uint32_t ticket;
    char text[512];
    baton_receiver *receiver = receiver_grants("cma", 1, 0, 2, &ticket);
    commit.room = 1;
    commit.ticket = ticket;
    PUPPET_SAY(&puppet, commit, WIRE_COMMIT, &commit);
    fleet_receiver_is(receiver, BATON_FAILED);
    baton_receiver_failure(receiver, text, sizeof(text));
    ASSERT_SAYS(text, part);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
    nothing_left();
}

static struct wire_commit cma_commit(const int32_t *pages, uint32_t count, uint32_t total)
{
    struct watermark done = {.complete = count, .partial = count, .last = true};
    return (struct wire_commit){.flags = WIRE_COMMIT_SOURCE | WIRE_COMMIT_LAST,
                                .watermark = watermark_pack(done),
                                .total_pages = total,
                                .pages = {(const uint8_t *)pages, count}};
}

static void test_cma_pages_beyond_the_source(void **state)
{
    (void)state;
    int32_t pages[] = {0, INT32_MAX};
    cma_commit_fails(cma_commit(pages, 2, 2), "");
}
static void test_cma_more_pages_released_than_named(void **state)
{
    (void)state;
    int32_t pages[] = {0, 1};
    struct wire_commit commit = cma_commit(pages, 2, 2);
    struct watermark done = {.complete = 3, .partial = 3, .last = true};
    commit.watermark = watermark_pack(done);
    cma_commit_fails(commit, "releases pages that it does not name");
}
static void test_cma_fewer_pages_than_announced(void **state)
{
    (void)state;
    int32_t pages[] = {0};
    cma_commit_fails(cma_commit(pages, 1, 2), "");
}
static void test_cma_an_absurd_number_of_pages(void **state)
{
    (void)state;
    int32_t pages[] = {0, 1};
    cma_commit_fails(cma_commit(pages, 2, UINT32_MAX), "");
}

static void test_cma_reads_the_pages(void **state)
{
    (void)state;
    uint32_t ticket;
    int32_t pages[] = {3, 1};
    baton_receiver *receiver = receiver_grants("cma", 1, 0, 2, &ticket);
    struct wire_commit commit = cma_commit(pages, 2, 2);
    commit.room = 1;
    commit.ticket = ticket;
    PUPPET_SAY(&puppet, commit, WIRE_COMMIT, &commit);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    puppet_expect_room(&puppet, WIRE_LANDED, 1);
    assert_memory_equal(rank.memory, puppet_pages + 3 * PAGE_BYTES, PAGE_BYTES);
    assert_memory_equal(rank.memory + PAGE_BYTES, puppet_pages + PAGE_BYTES, PAGE_BYTES);
    baton_receiver_close(receiver);
    nothing_left();
}

/* AUX outside the granted slot, or where none was granted (receiver_on_aux). */
static void test_aux_without_a_slot(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    struct wire_aux aux = {
        .room = 1, .ticket = ticket, .offset = 0, .bytes = puppet_pages, .length = 4};
    PUPPET_SAY(&puppet, aux, WIRE_AUX, &aux);
    receiver_failed(receiver, BATON_EPROTOCOL, "AUX outside the granted slot");
    baton_receiver_close(receiver);
}

/* ---- a peer whose memory does not fit what it says (rule 7, 10) ---- */

/* CHOICE from a peer with no region, or pages of another size: it is not believed. Otherwise the
 * plan for a COMMIT of it would be made from a layout that matches nothing. */
static void misfit_is_refused(struct puppet_memory memory)
{
    rank_open((struct fleet_options){.backends = "tcp", .tcp_streams = 1});
    puppet_listens(&puppet);
    puppet_route((uint16_t)baton_bootstrap_port(bootstrap), puppet.port, puppet.epoch);
    baton_receiver *receiver = fleet_receiver(&rank, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 0, 1), BATON_OK);
    puppet_serve(&puppet, &memory);
    receiver_failed(receiver, BATON_ELAYOUT, "");
    baton_receiver_close(receiver);
    nothing_left();
}

static void test_a_prefill_without_regions(void **state)
{
    (void)state;
    struct puppet_memory memory = memory_over("tcp");
    memory.no_regions = true;
    misfit_is_refused(memory);
}
static void test_a_prefill_with_other_pages(void **state)
{
    (void)state;
    struct puppet_memory memory = memory_over("tcp");
    memory.page_bytes = 2 * PAGE_BYTES;
    memory.pages = PAGES / 2;
    misfit_is_refused(memory);
}

static void test_register_comes_twice(void **state)
{
    (void)state;
    struct puppet_memory memory = memory_over("tcp");
    rank_open((struct fleet_options){.backends = "tcp"});
    puppet_init(&puppet);
    puppet.fd = puppet_dial(rank_port());
    puppet_hello(&puppet, WIRE_KIND_LINK, 0, 0);
    puppet_expect(&puppet, WIRE_HELLO);
    puppet_expect(&puppet, WIRE_REGISTER);
    puppet_register(&puppet, &memory);
    puppet_expect(&puppet, WIRE_CHOICE);
    puppet_register(&puppet, &memory);
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "REGISTER came twice");
}

/* The same at the initiator, before CHOICE, with nothing registered the first time. */
static void test_register_comes_twice_without_regions(void **state)
{
    (void)state;
    struct puppet_memory memory = memory_over("tcp");
    memory.no_regions = true;
    rank_open((struct fleet_options){.backends = "tcp"});
    puppet_listens(&puppet);
    puppet_route((uint16_t)baton_bootstrap_port(bootstrap), puppet.port, puppet.epoch);
    baton_receiver *receiver = fleet_receiver(&rank, 1, NULL);
    EVENTUALLY((puppet.fd = accept(puppet.listen_fd, NULL, NULL)) >= 0);
    puppet_expect(&puppet, WIRE_HELLO);
    puppet_hello(&puppet, WIRE_KIND_LINK, 0, 0);
    puppet_register(&puppet, &memory);
    puppet_register(&puppet, &memory);
    uint16_t type;
    while ((type = puppet_hear(&puppet)) == WIRE_REGISTER)
        ;
    assert_int_equal(type, WIRE_BYE);
    baton_receiver_close(receiver);
}

/* ---- GRANT, LANDED and ABORT at the sender ---- */

static baton_sender *sender_opened_by_puppet(const char *backend, uint64_t room,
                                             uint32_t ticket)
{
    puppet_joins(backend);
    baton_sender *sender = fleet_sender(&rank, room, NULL);
    puppet_say_open(&puppet, room, ticket, 60000);
    return sender;
}

static void test_landed_before_commit_means_nothing(void **state)
{
    (void)state;
    int32_t pages[] = {0};
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    puppet_say_room(&puppet, WIRE_LANDED, 1, 11);
    puppet_say_grant(&puppet, 1, 11, pages, 1, 60000);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    puppet_say_room(&puppet, WIRE_LANDED, 1, 11);
    puppet_say_room(&puppet, WIRE_LANDED, 1, 12);
    puppet_say_room(&puppet, WIRE_LANDED, 2, 11);
    EVENTUALLY(fleet_counters(&rank).frames_stale == 4);
    assert_int_equal(baton_sender_poll(sender), BATON_WAITING_FOR_INPUT);
    fleet_send(sender, 3, 1);
    assert_int_equal(puppet_expect_commit(&puppet, 1).ticket, 11);
    puppet_say_room(&puppet, WIRE_LANDED, 1, 12); /* another grant's */
    let_it_tick();
    assert_int_equal(baton_sender_poll(sender), BATON_TRANSFERRING);
    puppet_say_room(&puppet, WIRE_LANDED, 1, 11);
    fleet_sender_is(sender, BATON_SUCCESS);
    puppet_say_room(&puppet, WIRE_LANDED, 1, 11); /* final is final */
    puppet_say_abort(&puppet, 1, 11, BATON_ECORRUPT, "no, after all");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    assert_int_equal(baton_sender_poll(sender), BATON_SUCCESS);
    baton_sender_close(sender);
    nothing_left();
}

static void test_a_second_grant_costs_the_link(void **state)
{
    (void)state;
    int32_t pages[] = {0};
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    puppet_say_grant(&puppet, 1, 11, pages, 1, 60000);
    puppet_say_grant(&puppet, 1, 11, pages, 1, 60000);
    sender_failed(sender, BATON_EPROTOCOL, "granted twice");
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "room 1 was granted twice");
    baton_sender_close(sender);
    nothing_left();
}

static void test_a_grant_for_an_unknown_room(void **state)
{
    (void)state;
    int32_t pages[] = {0};
    puppet_joins("tcp");
    puppet_say_grant(&puppet, 5, 11, pages, 1, 60000);
    puppet_expect_abort(&puppet, 5, BATON_ENOTFOUND, "not open on the prefill side");
    assert_int_equal(puppet_expect_room(&puppet, WIRE_FENCED, 5).ticket, 11);
    assert_int_equal(fleet_counters(&rank).frames_stale, 1);
}

static void test_a_grant_with_another_ticket(void **state)
{
    (void)state;
    int32_t pages[] = {0};
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    puppet_say_grant(&puppet, 1, 12, pages, 1, 60000);
    puppet_expect(&puppet, WIRE_ABORT);
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    assert_int_equal(baton_sender_poll(sender), BATON_BOOTSTRAPPING);
    baton_sender_close(sender);
}

/* Pages outside the region that the puppet registered itself (leg_take_grant). */
static void test_a_grant_outside_the_region(void **state)
{
    (void)state;
    int32_t pages[] = {0, PAGES};
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    puppet_say_grant(&puppet, 1, 11, pages, 2, 60000);
    sender_failed(sender, BATON_EPROTOCOL, "a page outside its region");
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "a page outside its region");
    assert_int_equal(fleet_counters(&rank).frames_bad, 1);
    baton_sender_close(sender);
    nothing_left();
}

static void test_a_grant_of_an_aux_slot_that_is_none(void **state)
{
    (void)state;
    int32_t pages[] = {0};
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    struct wire_grant grant = {.room = 1,
                               .ticket = 11,
                               .time_left_ms = 60000,
                               .required_dst = 1,
                               .aux_slot = 3,
                               .pages = {(const uint8_t *)pages, 1}};
    PUPPET_SAY(&puppet, grant, WIRE_GRANT, &grant);
    sender_failed(sender, BATON_EPROTOCOL, "aux slot 3 of 0");
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "aux slot 3 of 0");
    baton_sender_close(sender);
}

/* A grant that the announced pages cannot fill: both hear it (leg_check_cover). */
static void test_a_grant_that_is_larger_than_the_sequence(void **state)
{
    (void)state;
    int32_t pages[] = {0, 1, 2};
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    puppet_say_grant(&puppet, 1, 11, pages, 3, 60000);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    fleet_send(sender, 0, 2);
    fleet_sender_is(sender, BATON_FAILED);
    puppet_expect(&puppet, WIRE_ABORT);
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    baton_sender_close(sender);
    nothing_left();
}

static void test_open_comes_twice(void **state)
{
    (void)state;
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    puppet_say_open(&puppet, 1, 12, 60000);
    puppet_expect_abort(&puppet, 1, BATON_EEXIST, "room 1 is open already with decode rank 0");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    baton_sender_close(sender);
}

/* The sender's deadline is the least of its own, OPEN's and GRANT's (rule 3). */
static void test_open_carries_the_deadline(void **state)
{
    (void)state;
    puppet_joins("tcp");
    baton_sender *sender = fleet_sender(&rank, 1, NULL);
    puppet_say_open(&puppet, 1, 11, 1000);
    EVENTUALLY(sender_room(sender) && fleet_counters(&rank).rooms_open == 1);
    let_it_tick();
    clock_advance_ns(SECONDS(2));
    sender_failed(sender, BATON_ETIMEOUT, "deadline");
    puppet_expect_abort(&puppet, 1, BATON_ETIMEOUT, "deadline");
    baton_sender_close(sender);
    nothing_left();
}

/* What a receiver says in OPEN and GRANT is what is left, not what there was. */
static void test_open_and_grant_say_the_time_left(void **state)
{
    (void)state;
    uint32_t ticket;
    struct puppet_memory memory = memory_over("tcp");
    rank_open(
        (struct fleet_options){.backends = "tcp", .tcp_streams = 1, .deadline_ms = 60000});
    puppet_listens(&puppet);
    puppet_route((uint16_t)baton_bootstrap_port(bootstrap), puppet.port, puppet.epoch);
    baton_receiver *receiver = fleet_receiver(&rank, 1, NULL);
    puppet_serve(&puppet, &memory);
    struct wire_open open = puppet_expect_open(&puppet, 1);
    ticket = open.ticket;
    assert_in_range(open.time_left_ms, 1, 60001);
    puppet_stream_serve(&stream, &puppet);
    clock_advance_ns(SECONDS(3)); /* less than what would make the puppet silent */
    assert_int_equal(fleet_grant(receiver, 0, 1), BATON_OK);
    struct wire_grant grant = puppet_expect_grant(&puppet, 1);
    assert_int_equal(grant.ticket, ticket);
    assert_in_range(grant.time_left_ms, 1, 57001);
    baton_receiver_close(receiver);
}

/* Decode's ABORT stops the copy and is answered when nothing reads or stores any more: the DATA
 * that is half written is finished, then comes FENCED. */
static void test_abort_in_mid_transfer(void **state)
{
    (void)state;
    int32_t pages[] = {0, 1};
    baton_sender *sender = sender_opened_by_puppet("tcp", 1, 11);
    puppet_say_grant(&puppet, 1, 11, pages, 2, 60000);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    puppet_say_abort(&puppet, 1, 11, BATON_EABORTED, "decode changed its mind");
    sender_failed(sender, BATON_EABORTED, "decode changed its mind");
    assert_int_equal(puppet_expect_room(&puppet, WIRE_FENCED, 1).ticket, 11);
    EVENTUALLY(baton_sender_fenced(sender));
    puppet_say_abort(&puppet, 1, 11, BATON_EABORTED, "again");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    baton_sender_close(sender);
    nothing_left();
    puppet_say_abort(&puppet, 1, 11, BATON_EABORTED, "and again, about nothing");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
}

/* ABORT for a room that prefill has not heard of yet: fenced at once, and remembered. */
static void test_abort_before_open(void **state)
{
    (void)state;
    puppet_joins("tcp");
    puppet_say_abort(&puppet, 9, 0, BATON_ELIMIT, "decode is full");
    puppet_expect_room(&puppet, WIRE_FENCED, 9);
    baton_sender *sender = fleet_sender(&rank, 9, NULL);
    sender_failed(sender, BATON_ELIMIT, "decode is full");
    baton_sender_close(sender);
    nothing_left();
}

/* OPEN and ABORT both come before the caller: one room has failed, his, and is counted once. */
static void test_open_and_abort_before_the_sender(void **state)
{
    (void)state;
    puppet_joins("tcp");
    puppet_say_open(&puppet, 9, 11, 60000);
    puppet_say_abort(&puppet, 9, 11, BATON_EABORTED, "decode changed its mind");
    puppet_expect_room(&puppet, WIRE_FENCED, 9);
    assert_int_equal(fleet_counters(&rank).rooms_failed, 0);
    baton_sender *sender = fleet_sender(&rank, 9, NULL);
    sender_failed(sender, BATON_EABORTED, "decode changed its mind");
    assert_int_equal(fleet_counters(&rank).rooms_failed, 1);
    baton_sender_close(sender);
    nothing_left();
}

/* A peer that does not read its data stream, while its link is well: the room ends at its deadline,
 * the source pages come back, and the others of the link go on (tcp_flush after cancel). */
static void test_a_peer_that_stops_reading_its_stream(void **state)
{
    (void)state;
    enum { LARGE = 16u << 20 };
    struct fleet_options options = {
        .backends = "tcp", .tcp_streams = 1, .pages = 4, .page_bytes = LARGE};
    struct puppet_memory memory = {.address = puppet_pages,
                                   .pages = 4,
                                   .page_bytes = LARGE,
                                   .backend = "tcp",
                                   .streams = 1};
    int32_t pages[] = {0, 1};
    char err[256];
    assert_int_equal(fleet_rank_open(&rank, &options, err, sizeof(err)), BATON_OK);
    puppet_join(&puppet, rank_port(), &memory);
    puppet_stream_join(&stream, &puppet, rank_port(), 0);
    baton_sender *sender = fleet_sender(&rank, 1, NULL);
    puppet_say_open(&puppet, 1, 11, 4000);
    puppet_say_grant(&puppet, 1, 11, pages, 2, 4000);
    fleet_sender_is(sender, BATON_WAITING_FOR_INPUT);
    fleet_send(sender, 0, 2);
    fleet_sender_is(sender, BATON_TRANSFERRING);
    let_it_tick(); /* 32 MiB do not fit into the socket */
    assert_int_equal(baton_sender_poll(sender), BATON_TRANSFERRING);
    clock_advance_ns(SECONDS(4)); /* the deadline, but not silence */
    sender_failed(sender, BATON_ETIMEOUT, "deadline");
    EVENTUALLY(baton_sender_fenced(sender));
    puppet_expect_abort(&puppet, 1, BATON_ETIMEOUT, "deadline");
    puppet_expect_room(&puppet, WIRE_FENCED, 1);
    baton_sender_close(sender);
    nothing_left();
}

/* ---- frames that may not come at all (rule 7) ---- */

static void test_a_replayed_frame_costs_the_link(void **state)
{
    (void)state;
    puppet_joins("tcp");
    puppet.sent--; /* the sequence of REGISTER once more */
    puppet_say_open(&puppet, 1, 11, 1000);
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "frame 1 came where 2 was due");
    assert_int_equal(fleet_counters(&rank).frames_bad, 1);
}

static void test_a_lost_frame_costs_the_link(void **state)
{
    (void)state;
    puppet_joins("tcp");
    puppet.sent++;
    puppet_say_open(&puppet, 1, 11, 1000);
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "frame 3 came where 2 was due");
}

static void test_another_epoch_costs_the_link(void **state)
{
    (void)state;
    puppet_joins("tcp");
    puppet.epoch ^= 1;
    puppet_say_open(&puppet, 1, 11, 1000);
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "epoch changed");
}

/* On a data stream as well: sequence, epoch, and frames that are no DATA (tcp_take_fixed). */
static void bad_stream_costs_the_link(void (*spoil)(uint32_t ticket))
{
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    spoil(ticket);
    receiver_failed(receiver, BATON_EPEER, "bad frame on data connection 0");
    assert_int_equal(fleet_counters(&rank).frames_bad, 1);
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
    puppet_expect(&puppet, WIRE_BYE);
}

static void spoil_sequence(uint32_t ticket)
{
    stream.sent++;
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
}
static void spoil_epoch(uint32_t ticket)
{
    stream.epoch ^= 1;
    puppet_data(&stream, ticket, 0, puppet_pages, PAGE_BYTES, PAGE_BYTES);
}
static void spoil_type(uint32_t ticket)
{
    puppet_say_commit(&stream, 1, ticket, 1, PAGE_BYTES, true);
}
static void spoil_bytes(uint32_t ticket)
{
    (void)ticket;
    puppet_write(stream.fd, puppet_pages, 100);
}

static void test_a_replayed_data_frame(void **state)
{
    (void)state;
    bad_stream_costs_the_link(spoil_sequence);
}
static void test_another_epoch_on_a_stream(void **state)
{
    (void)state;
    bad_stream_costs_the_link(spoil_epoch);
}
static void test_a_control_frame_on_a_stream(void **state)
{
    (void)state;
    bad_stream_costs_the_link(spoil_type);
}
static void test_garbage_on_a_stream(void **state)
{
    (void)state;
    bad_stream_costs_the_link(spoil_bytes);
}

/* Frames have one direction: OPEN, GRANT and LANDED come from decode; COMMIT, AUX and QUERY from
 * prefill (link_on_frame). */
static void test_frames_in_the_wrong_direction(void **state)
{
    (void)state;
    struct puppet_memory memory = memory_over("tcp");
    rank_open((struct fleet_options){.backends = "tcp", .tcp_streams = 1});
    for (int i = 0; i < 4; i++) {
        puppet_join(&puppet, rank_port(), &memory);
        struct wire_aux aux = {.room = 1, .ticket = 1, .bytes = puppet_pages, .length = 4};
        struct wire_choice choice = {.backend = wire_string_of("tcp")};
        if (i == 0)
            puppet_say_commit(&puppet, 1, 1, 1, 1, true);
        else if (i == 1)
            PUPPET_SAY(&puppet, aux, WIRE_AUX, &aux);
        else if (i == 2)
            puppet_say_room(&puppet, WIRE_QUERY, 1, 1);
        else
            PUPPET_SAY(&puppet, choice, WIRE_CHOICE, &choice);
        puppet_expect_bye(&puppet, BATON_EPROTOCOL, "");
        puppet_close(&puppet);
        puppet_init(&puppet);
    }
    assert_int_equal(fleet_counters(&rank).frames_bad, 4);
}

static void test_frames_in_the_other_wrong_direction(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    puppet_say_open(&puppet, 2, 1, 1000);
    receiver_failed(receiver, BATON_EPROTOCOL, "bad frame of type 5");
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "bad frame of type 5");
    baton_receiver_close(receiver);
}

/* Heartbeats alone are no link: REGISTER has to come in time (link_tick). */
static void test_a_peer_that_never_registers(void **state)
{
    (void)state;
    rank_open((struct fleet_options){.backends = "tcp"});
    puppet_init(&puppet);
    puppet.fd = puppet_dial(rank_port());
    puppet_hello(&puppet, WIRE_KIND_LINK, 0, 0);
    puppet_expect(&puppet, WIRE_HELLO);
    puppet_expect(&puppet, WIRE_REGISTER);
    for (int i = 0; i < 10; i++) {
        struct wire_heartbeat heartbeat = {.tick = (uint64_t)i};
        PUPPET_SAY(&puppet, heartbeat, WIRE_HEARTBEAT, &heartbeat);
        usleep(60 * 1000);
        clock_advance_ns(SECONDS(1) - 100 * NS_PER_MS);
    }
    puppet_expect(&puppet, WIRE_BYE);
}

/* A link that falls silent is given up, with that word (link_tick; heard_ns). */
static void test_a_silent_peer_is_given_up(void **state)
{
    (void)state;
    uint32_t ticket;
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    for (int i = 0; i < 8; i++) {
        clock_advance_ns(SECONDS(1) - 100 * NS_PER_MS);
        usleep(60 * 1000);
    }
    receiver_failed(receiver, BATON_EPEER, "has been silent for");
    puppet_expect_bye(&puppet, BATON_EPEER, "has been silent for");
    EVENTUALLY(baton_receiver_fenced(receiver));
    baton_receiver_close(receiver);
}

struct pause {
    struct runtime_job job;
    atomic_bool here, go, gone;
};

static void pause_run(struct runtime_job *job)
{
    struct pause *pause = (struct pause *)job;
    atomic_store(&pause->here, true);
    while (!atomic_load(&pause->go))
        usleep(1000);
    atomic_store(&pause->gone, true);
}

/* If our own timer was late, nobody is judged by it before his input was read (runtime.c's
 * priorities, manager_tick's judge): the link thread stands still for longer than silence takes,
 * while the peer's heartbeat lies in the socket. */
static void test_a_late_timer_judges_nobody(void **state)
{
    (void)state;
    uint32_t ticket;
    struct wire_heartbeat heartbeat = {.tick = 1};
    baton_receiver *receiver = receiver_grants("tcp", 1, 0, 1, &ticket);
    for (int i = 0; i < 3; i++) {
        struct pause pause = {.here = false};
        runtime_job_init(&pause.job, pause_run);
        runtime_post(rank.manager->m.runtime, &pause.job);
        EVENTUALLY(atomic_load(&pause.here));
        clock_advance_ns(SECONDS(20));
        PUPPET_SAY(&puppet, heartbeat, WIRE_HEARTBEAT, &heartbeat);
        usleep(100 * 1000); /* the timer is due, too */
        atomic_store(&pause.go, true);
        EVENTUALLY(atomic_load(&pause.gone));
        let_it_tick();
    }
    assert_int_equal(fleet_counters(&rank).links_up, 1);
    assert_int_equal(baton_receiver_poll(receiver), BATON_WAITING_FOR_INPUT);
    baton_receiver_close(receiver);
}

#define ORDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ORDER(test_only_fenced_gives_shm_pages_back),
        ORDER(test_an_early_fenced_is_no_fence),
        ORDER(test_the_writers_abort_is_no_fence),
        ORDER(test_tcp_sinks_the_rest_of_a_dead_frame),
        ORDER(test_cma_fences_itself),
        ORDER(test_a_late_commit_is_stale),
        ORDER(test_fewer_bytes_than_the_grant_needs),
        ORDER(test_fewer_pages_than_were_granted),
        ORDER(test_commit_overtakes_the_bytes),
        ORDER(test_more_bytes_than_committed),
        ORDER(test_data_for_another_page),
        ORDER(test_data_across_the_end_of_the_grant),
        ORDER(test_data_before_the_grant),
        ORDER(test_data_beyond_the_region),
        ORDER(test_data_beyond_all_memory),
        ORDER(test_data_with_a_stale_ticket),
        ORDER(test_a_second_last_commit_costs_the_link),
        ORDER(test_an_abort_that_crosses_landed),
        ORDER(test_query),
        ORDER(test_cma_pages_beyond_the_source),
        ORDER(test_cma_more_pages_released_than_named),
        ORDER(test_cma_fewer_pages_than_announced),
        ORDER(test_cma_an_absurd_number_of_pages),
        ORDER(test_cma_reads_the_pages),
        ORDER(test_aux_without_a_slot),
        ORDER(test_a_prefill_without_regions),
        ORDER(test_a_prefill_with_other_pages),
        ORDER(test_register_comes_twice),
        ORDER(test_register_comes_twice_without_regions),
        ORDER(test_landed_before_commit_means_nothing),
        ORDER(test_a_second_grant_costs_the_link),
        ORDER(test_a_grant_for_an_unknown_room),
        ORDER(test_a_grant_with_another_ticket),
        ORDER(test_a_grant_outside_the_region),
        ORDER(test_a_grant_of_an_aux_slot_that_is_none),
        ORDER(test_a_grant_that_is_larger_than_the_sequence),
        ORDER(test_open_comes_twice),
        ORDER(test_open_carries_the_deadline),
        ORDER(test_open_and_grant_say_the_time_left),
        ORDER(test_abort_in_mid_transfer),
        ORDER(test_abort_before_open),
        ORDER(test_open_and_abort_before_the_sender),
        ORDER(test_a_peer_that_stops_reading_its_stream),
        ORDER(test_a_replayed_frame_costs_the_link),
        ORDER(test_a_lost_frame_costs_the_link),
        ORDER(test_another_epoch_costs_the_link),
        ORDER(test_a_replayed_data_frame),
        ORDER(test_another_epoch_on_a_stream),
        ORDER(test_a_control_frame_on_a_stream),
        ORDER(test_garbage_on_a_stream),
        ORDER(test_frames_in_the_wrong_direction),
        ORDER(test_frames_in_the_other_wrong_direction),
        ORDER(test_a_peer_that_never_registers),
        ORDER(test_a_silent_peer_is_given_up),
        ORDER(test_a_late_timer_judges_nobody),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* one test: test_order test_query */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
