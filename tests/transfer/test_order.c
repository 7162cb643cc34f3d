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

    /* The first connections on the puppet's backlog are dead by now. */
    int tries = 0;
    do {
        puppet_hang_up(&puppet);
        puppet.sent = puppet.heard = 0;
        struct timeval soon = {1, 0};
        EVENTUALLY((puppet.fd = accept(puppet.listen_fd, NULL, NULL)) >= 0);
        setsockopt(puppet.fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
        assert_true(++tries < 100);
    } while (puppet_hear(&puppet) != WIRE_HELLO || !puppet_shakes_hands(&puppet, &memory));
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
