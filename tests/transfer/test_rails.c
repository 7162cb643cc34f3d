/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA on a wire that is slow, that is cut, and that comes back: two processes, two devices on the ends
 * of a veth pair, and `tc netem` between them. What a peer has posted goes on without it (that is
 * what RDMA is for), so here it is seen what a fence is worth.
 *
 * Runs where two devices are joined by a wire that may be broken: in the virtual machine of
 * tests/rdma (vm.sh --net pair), which names them in RDMA_DEVICE and RDMA_DEVICE2, and the network
 * device of the first in RDMA_NETDEV. Elsewhere it is skipped. */
#include "fleet.h"

#include <signal.h>

#define PAGES 32u
#define PAGE_BYTES (256u << 10)
/* The queue is long: a packet that it drops is one that RDMA sends again, with all behind it. What is not
 * said stays as it was, so the quick wire says its rate too. */
#define QUICK "delay 0ms rate 10gbit limit 50000"
#define SLOW "delay 20ms rate 6mbit limit 50000" /* 8 MB take eleven seconds */
#define CUT "loss 100%"

static struct {
    struct fleet_worker *bootstrap, *prefill, *decode;
    char address[64];
    const char *first, *second, *netdev;
} crew;

static void wire_is(const char *how)
{
    char command[160];
    snprintf(command, sizeof(command), "tc qdisc replace dev %s root netem %s", crew.netdev,
             how);
    if (system(command) != 0)
        fail_msg("'%s' failed", command);
}

static int setup(void **state)
{
    (void)state;
    wire_is(QUICK);
    crew.bootstrap = fleet_start();
    snprintf(crew.address, sizeof(crew.address), "127.0.0.1:%u",
             fleet_bootstrap(crew.bootstrap));
    crew.prefill = fleet_start();
    crew.decode = fleet_start();
    return 0;
}

static int teardown(void **state)
{
    wire_is(QUICK);
    return fleet_teardown(state);
}

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

static struct fleet_options options_of(const char *backend, const char *devices)
{
    struct fleet_options options = {.pages = PAGES,
                                    .page_bytes = PAGE_BYTES,
                                    .heartbeat_ms = 200,
                                    .silent_ms = 8000,
                                    .match_timeout_ms = 5000};
    snprintf(options.bootstrap, sizeof(options.bootstrap), "%s", crew.address);
    snprintf(options.backends, sizeof(options.backends), "%s", backend);
    snprintf(options.ib_device, sizeof(options.ib_device), "%s", devices);
    return options;
}

static void prefill_opens(const char *backend, const char *devices)
{
    struct fleet_options options = options_of(backend, devices);
    options.register_rank = 1;
    fleet_open(crew.prefill, options);
}

static void crew_opens(const char *backend)
{
    prefill_opens(backend, crew.first);
    fleet_open(crew.decode, options_of(backend, crew.second));
}

static void fill(struct fleet_worker *worker, uint32_t seed)
{
    call(worker, (struct fleet_order){.op = FLEET_FILL, .count = PAGES, .seed = seed});
}

static uint64_t wrong_bytes_of(uint32_t first, uint32_t count, uint32_t seed)
{
    return call(crew.decode,
                (struct fleet_order){
                    .op = FLEET_CHECK, .first = first, .count = count, .seed = seed})
        .value;
}

static uint64_t wrong_bytes(uint32_t seed)
{
    return wrong_bytes_of(0, PAGES, seed);
}

static baton_counters counters(struct fleet_worker *worker)
{
    return call(worker, (struct fleet_order){.op = FLEET_COUNTERS}).counters;
}

static void room_opens(uint64_t room, uint32_t deadline_ms)
{
    call(crew.prefill, (struct fleet_order){.op = FLEET_SENDER, .room = room});
    call(crew.decode,
         (struct fleet_order){.op = FLEET_RECEIVER, .room = room, .deadline_ms = deadline_ms});
    call(crew.decode, (struct fleet_order){.op = FLEET_INIT, .room = room, .count = PAGES});
    fleet_room_wait(crew.prefill, true, room, BATON_WAITING_FOR_INPUT);
    call(crew.prefill,
         (struct fleet_order){.op = FLEET_INIT, .sender = 1, .room = room, .count = PAGES});
}

static void room_sends(uint64_t room)
{
    call(crew.prefill,
         (struct fleet_order){.op = FLEET_SEND, .sender = 1, .room = room, .count = PAGES});
}

static void room_fenced(struct fleet_worker *worker, bool sender, uint64_t room)
{
    struct fleet_order order = {.op = FLEET_FENCE, .sender = sender, .room = room};
    if (!call(worker, order).fenced)
        fail_msg("room %llu is not fenced", (unsigned long long)room);
}

static void room_closed(struct fleet_worker *worker, bool sender, uint64_t room)
{
    call(worker, (struct fleet_order){.op = FLEET_END, .sender = sender, .room = room});
}

/* A whole room of all pages, every byte checked. */
static void hand_over(uint64_t room)
{
    fill(crew.prefill, (uint32_t)room);
    room_opens(room, 0);
    room_sends(room);
    fleet_room_wait(crew.decode, false, room, BATON_SUCCESS);
    fleet_room_wait(crew.prefill, true, room, BATON_SUCCESS);
    assert_int_equal(wrong_bytes((uint32_t)room), 0);
    room_closed(crew.decode, false, room);
    room_closed(crew.prefill, true, room);
}

/* A room whose first bytes have come, and whose last are far away. */
static void room_is_under_way(uint64_t room, uint32_t deadline_ms)
{
    fill(crew.prefill, 1);
    fill(crew.decode, 2);
    room_opens(room, deadline_ms);
    wire_is(SLOW);
    room_sends(room);
    EVENTUALLY(wrong_bytes_of(0, 1, 2) > 0);
}

/* The pages are the owner's again: nothing may change in them, however long the wire is. */
static void pages_stay_mine(uint32_t seed)
{
    fill(crew.decode, seed);
    sleep(2);
    assert_int_equal(wrong_bytes(seed), 0);
}

/* ---- the writer ---- */

/* It is stopped, its device is not: what it has posted goes on being stored after the room has
 * failed. Only when decode has cut its own queue pair (at the link's end) is that over. */
static void test_a_stopped_writer(void **state)
{
    (void)state;
    crew_opens("verbs");
    hand_over(1);
    room_is_under_way(2, 3000);
    fleet_signal(crew.prefill, SIGSTOP);
    struct fleet_reply reply = fleet_room_wait(crew.decode, false, 2, BATON_FAILED);
    ASSERT_SAYS(reply.text, "deadline");
    assert_int_equal(reply.fenced, 0);
    fill(crew.decode, 3);
    assert_int_equal(counters(crew.decode).pages_quarantined, PAGES);
    EVENTUALLY(wrong_bytes(3) > 0); /* or this test tests nothing */
    room_fenced(crew.decode, false, 2);
    pages_stay_mine(4);
    assert_int_equal(counters(crew.decode).pages_quarantined, 0);
    wire_is(QUICK);
    fleet_signal(crew.prefill, SIGCONT);
    fleet_room_wait(crew.prefill, true, 2, BATON_FAILED);
    room_fenced(crew.prefill, true, 2);
    room_closed(crew.decode, false, 2);
    room_closed(crew.prefill, true, 2);
    hand_over(5);
    all_quit();
}

static void test_a_killed_writer(void **state)
{
    (void)state;
    crew_opens("verbs");
    room_is_under_way(1, 0);
    fleet_kill(crew.prefill);
    struct fleet_reply reply = fleet_room_wait(crew.decode, false, 1, BATON_FAILED);
    ASSERT_SAYS(reply.text, "rank 0 at");
    room_fenced(crew.decode, false, 1);
    pages_stay_mine(4);
    room_closed(crew.decode, false, 1);
    wire_is(QUICK);
    crew.prefill = fleet_start();
    prefill_opens("verbs", crew.first);
    hand_over(2);
    all_quit();
}

/* The writer lives and is told to stop: FENCED comes when all that it had posted is complete. */
static void test_abort_on_a_slow_wire(void **state)
{
    (void)state;
    crew_opens("verbs");
    room_is_under_way(1, 0);
    call(crew.decode, (struct fleet_order){.op = FLEET_ABORT, .room = 1, .text = "enough"});
    struct fleet_reply reply = fleet_room_wait(crew.prefill, true, 1, BATON_FAILED);
    ASSERT_SAYS(reply.text, "enough");
    room_fenced(crew.decode, false, 1);
    pages_stay_mine(4);
    room_fenced(crew.prefill, true, 1);
    wire_is(QUICK);
    room_closed(crew.decode, false, 1);
    room_closed(crew.prefill, true, 1);
    hand_over(2);
    assert_int_equal(counters(crew.decode).links_lost, 0);
    all_quit();
}

/* ---- the wire ---- */

/* No packet comes through: the queue pair fails, and with it the room, on both sides, with the reason.
 * The link is another network and stays; the next room waits for a new queue pair. */
static void wire_is_cut(const char *backend)
{
    crew_opens(backend);
    hand_over(1);
    room_is_under_way(2, 0);
    wire_is(CUT);
    struct fleet_reply reply = fleet_room_wait(crew.decode, false, 2, BATON_FAILED);
    print_message("    decode: %s\n", reply.text);
    ASSERT_SAYS(reply.text, "acknowledges nothing");
    reply = fleet_room_wait(crew.prefill, true, 2, BATON_FAILED);
    print_message("    prefill: %s\n", reply.text);
    ASSERT_SAYS(reply.text, "acknowledges nothing");
    room_fenced(crew.decode, false, 2);
    room_fenced(crew.prefill, true, 2);
    fill(crew.decode, 4);
    wire_is(QUICK);
    sleep(1);
    assert_int_equal(wrong_bytes(4), 0);
    room_closed(crew.decode, false, 2);
    room_closed(crew.prefill, true, 2);
    /* It is probed now and then; a room that comes too early is told why. */
    for (uint64_t room = 10;; room++) {
        fill(crew.prefill, (uint32_t)room);
        room_opens(room, 0);
        room_sends(room);
        reply =
            call(crew.decode,
                 (struct fleet_order){.op = FLEET_WAIT, .room = room, .state = BATON_SUCCESS});
        uint64_t wrong = reply.state == BATON_SUCCESS ? wrong_bytes((uint32_t)room) : 0;
        room_fenced(crew.decode, false, room);
        room_closed(crew.decode, false, room);
        room_closed(crew.prefill, true, room);
        assert_int_equal(wrong, 0);
        if (reply.state == BATON_SUCCESS)
            break;
        print_message("    too early: %s\n", reply.text);
        assert_true(room < 30);
        usleep(300 * 1000);
    }
    assert_int_equal(counters(crew.decode).links_lost, 0);
    assert_int_equal(counters(crew.decode).pages_quarantined, 0);
    all_quit();
}

static void test_the_wire_is_cut(void **state)
{
    (void)state;
    wire_is_cut("verbs");
}

static void test_the_wire_is_cut_while_reading(void **state)
{
    (void)state;
    wire_is_cut("verbs-read");
}

static uint64_t wire_bytes(void)
{
    char path[128];
    unsigned long long bytes = 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/tx_bytes", crew.netdev);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%llu", &bytes) != 1)
        fail_msg("cannot read %s", path);
    fclose(file);
    return bytes;
}

/* Two rails, of which only the first goes over the wire: with it cut, rooms go over the other, and
 * when it is back it is used again. */
static void test_one_of_two_rails(void **state)
{
    (void)state;
    char prefill[64], decode[64];
    snprintf(prefill, sizeof(prefill), "%s,%s", crew.first, crew.first);
    snprintf(decode, sizeof(decode), "%s,%s", crew.second, crew.first);
    prefill_opens("verbs", prefill);
    fleet_open(crew.decode, options_of("verbs", decode));
    uint64_t before = wire_bytes();
    hand_over(1);
    uint64_t over_wire = wire_bytes() - before;
    print_message("    both rails: %llu bytes over the wire for %u\n",
                  (unsigned long long)over_wire, PAGES * PAGE_BYTES);
    assert_true(over_wire > PAGES * PAGE_BYTES / 4);
    wire_is(CUT);
    uint64_t room = 2;
    for (uint32_t succeeded = 0; succeeded < 3; room++) {
        fill(crew.prefill, (uint32_t)room);
        room_opens(room, 0);
        room_sends(room);
        struct fleet_reply reply =
            call(crew.decode,
                 (struct fleet_order){.op = FLEET_WAIT, .room = room, .state = BATON_SUCCESS});
        if (reply.state == BATON_SUCCESS) {
            assert_int_equal(wrong_bytes((uint32_t)room), 0);
            succeeded++;
        } else {
            print_message("    cut: %s\n", reply.text);
            assert_int_equal(succeeded, 0); /* once the rail is known to be down, none fails */
        }
        room_fenced(crew.decode, false, room);
        room_closed(crew.decode, false, room);
        room_closed(crew.prefill, true, room);
    }
    wire_is(QUICK);
    bool used = false;
    for (uint32_t tries = 0; !used && tries < 40; tries++) {
        before = wire_bytes();
        hand_over(room++);
        used = wire_bytes() - before > PAGES * PAGE_BYTES / 4;
        usleep(200 * 1000);
    }
    assert_true(used);
    all_quit();
}

/* ---- many, and wrong names ---- */

static void test_two_thousand_rooms(void **state)
{
    (void)state;
    struct fleet_options options = options_of("verbs", crew.first);
    options.page_bytes = 8 << 10;
    options.register_rank = 1;
    fleet_open(crew.prefill, options);
    snprintf(options.ib_device, sizeof(options.ib_device), "%s", crew.second);
    options.register_rank = 0;
    fleet_open(crew.decode, options);
    for (uint64_t round = 0; round < 2000 / PAGES; round++) {
        struct fleet_order many = {
            .op = FLEET_MANY, .sender = 1, .room = 1000 + round * PAGES, .count = PAGES};
        fill(crew.prefill, (uint32_t)round);
        call(crew.prefill, many);
        many.sender = 0;
        call(crew.decode, many);
        many.op = FLEET_MANY_WAIT;
        many.state = BATON_SUCCESS;
        assert_int_equal(call(crew.decode, many).value, 0);
        many.sender = 1;
        assert_int_equal(call(crew.prefill, many).value, 0);
        assert_int_equal(wrong_bytes((uint32_t)round), 0);
        many.op = FLEET_MANY_END;
        call(crew.prefill, many);
        many.sender = 0;
        call(crew.decode, many);
    }
    assert_int_equal(counters(crew.decode).rooms_succeeded, 2000 / PAGES * PAGES);
    all_quit();
}

static void test_a_device_that_is_not_there(void **state)
{
    (void)state;
    struct fleet_options options = options_of("verbs", "mlx5_77");
    struct fleet_reply reply =
        fleet_order(crew.decode, (struct fleet_order){.op = FLEET_OPEN, .options = options});
    assert_int_equal(reply.code, BATON_EUNSUPPORTED);
    ASSERT_SAYS(reply.text, "there is no 'mlx5_77' here");
    snprintf(options.ib_device, sizeof(options.ib_device), "%s:1:200", crew.first);
    reply =
        fleet_order(crew.decode, (struct fleet_order){.op = FLEET_OPEN, .options = options});
    assert_int_equal(reply.code, BATON_EUNSUPPORTED);
    ASSERT_SAYS(reply.text, "no GID with index 200");
    all_quit();
}

#define RAILS(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RAILS(test_a_stopped_writer),
        RAILS(test_a_killed_writer),
        RAILS(test_abort_on_a_slow_wire),
        RAILS(test_the_wire_is_cut),
        RAILS(test_the_wire_is_cut_while_reading),
        RAILS(test_one_of_two_rails),
        RAILS(test_two_thousand_rooms),
        RAILS(test_a_device_that_is_not_there),
    };
    crew.first = getenv("RDMA_DEVICE");
    crew.second = getenv("RDMA_DEVICE2");
    crew.netdev = getenv("RDMA_NETDEV");
    if (!crew.first || !crew.second || !crew.netdev) {
        fprintf(stderr, "skipped: no two RDMA devices on a wire (see tests/rdma)\n");
        return 77;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("rails", tests, NULL, NULL) != 0;
}
