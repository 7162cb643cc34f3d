/* SPDX-License-Identifier: Apache-2.0 */
/* Ten thousand rooms at once on one link between two processes: all succeed; all are aborted, by
 * either side; all lose their peer. No room may cost more for the others that there are, nothing
 * grow without end, and none stay behind. Times are printed, not asserted: the bound of the kit is
 * all that is demanded. */
#include "fleet.h"

#define ROOMS 10000u
#define PAGE_BYTES 4096u

static struct {
    struct fleet_worker *bootstrap, *prefill, *decode;
    struct fleet_options options;
} crew;

static struct fleet_reply call(struct fleet_worker *worker, struct fleet_order order)
{
    struct fleet_reply reply = fleet_order(worker, order);
    if (reply.code != BATON_OK)
        fail_msg("order %u: %s: %s", order.op, baton_error_name(reply.code), reply.text);
    return reply;
}

static void crew_open(const char *backends)
{
    crew.options = (struct fleet_options){.pages = ROOMS, .page_bytes = PAGE_BYTES};
    crew.bootstrap = fleet_start();
    snprintf(crew.options.bootstrap, sizeof(crew.options.bootstrap), "127.0.0.1:%u",
             fleet_bootstrap(crew.bootstrap));
    snprintf(crew.options.backends, sizeof(crew.options.backends), "%s", backends);
    crew.prefill = fleet_start();
    crew.decode = fleet_start();
    fleet_open(crew.prefill, crew.options);
    fleet_open(crew.decode, crew.options);
}

/* Opens all rooms on both sides; hold: the senders do not send. */
static void open_all(uint64_t first_room, bool hold)
{
    struct fleet_order order = {.op = FLEET_MANY, .room = first_room, .count = ROOMS};
    fleet_tell(crew.decode, order);
    order.sender = 1;
    order.seed = hold;
    call(crew.prefill, order);
    struct fleet_reply reply = fleet_answer(crew.decode);
    if (reply.code != BATON_OK)
        fail_msg("%s", reply.text);
}

static void wait_all(struct fleet_worker *worker, int state)
{
    struct fleet_reply reply =
        call(worker, (struct fleet_order){.op = FLEET_MANY_WAIT, .state = (uint32_t)state});
    if (reply.value)
        fail_msg("%llu rooms are not %s: %s", (unsigned long long)reply.value,
                 baton_state_name(state), reply.text);
}

static void fence_all(struct fleet_worker *worker)
{
    assert_int_equal(call(worker, (struct fleet_order){.op = FLEET_MANY_FENCE}).value, 0);
}

static void end_all(struct fleet_worker *worker)
{
    call(worker, (struct fleet_order){.op = FLEET_MANY_END});
    struct fleet_reply reply;
    EVENTUALLY((reply = call(worker, (struct fleet_order){.op = FLEET_COUNTERS}),
                reply.counters.rooms_open == 0));
    assert_int_equal(reply.counters.rooms_quarantined, 0);
    assert_int_equal(reply.counters.pages_quarantined, 0);
}

static uint64_t resident_kb(struct fleet_worker *worker)
{
    return call(worker, (struct fleet_order){.op = FLEET_MEMORY}).value;
}

static void all_quit(void)
{
    fleet_quit(crew.decode);
    fleet_quit(crew.prefill);
    fleet_quit(crew.bootstrap);
}

static void succeed_over(const char *backend)
{
    crew_open(backend);
    call(crew.prefill, (struct fleet_order){.op = FLEET_FILL, .count = ROOMS, .seed = 5});
    uint64_t before[2] = {0};
    for (uint64_t round = 0; round < 2; round++) {
        uint64_t start = fleet_now_ms();
        open_all(1 + round * ROOMS, false);
        wait_all(crew.decode, BATON_SUCCESS);
        wait_all(crew.prefill, BATON_SUCCESS);
        print_message("    %u rooms over %s: %llu ms\n", ROOMS, backend,
                      (unsigned long long)(fleet_now_ms() - start));
        end_all(crew.decode);
        end_all(crew.prefill);
        if (round == 0) {
            before[0] = resident_kb(crew.prefill);
            before[1] = resident_kb(crew.decode);
        }
    }
    struct fleet_reply reply =
        call(crew.decode, (struct fleet_order){.op = FLEET_CHECK, .count = ROOMS, .seed = 5});
    assert_int_equal(reply.value, 0);
    /* The second ten thousand found the memory of the first. */
    uint64_t after[2] = {resident_kb(crew.prefill), resident_kb(crew.decode)};
    print_message("    resident: prefill %llu, then %llu KiB; decode %llu, then %llu KiB\n",
                  (unsigned long long)before[0], (unsigned long long)after[0],
                  (unsigned long long)before[1], (unsigned long long)after[1]);
    assert_true(after[0] < 2 * before[0] + 65536);
    assert_true(after[1] < 2 * before[1] + 65536);
    all_quit();
}

static void test_ten_thousand_rooms_shm(void **state)
{
    (void)state;
    succeed_over("shm");
}
static void test_ten_thousand_rooms_cma(void **state)
{
    (void)state;
    succeed_over("cma");
}
static void test_ten_thousand_rooms_tcp(void **state)
{
    (void)state;
    succeed_over("tcp");
}

/* All rooms are granted and wait; one side gives all of them up at once. */
static void abort_all(bool by_sender)
{
    struct fleet_worker *one, *other;
    crew_open("shm");
    open_all(1, true);
    wait_all(crew.prefill, BATON_WAITING_FOR_INPUT);
    one = by_sender ? crew.prefill : crew.decode;
    other = by_sender ? crew.decode : crew.prefill;
    uint64_t start = fleet_now_ms();
    call(one, (struct fleet_order){.op = FLEET_MANY_ABORT, .text = "all of it"});
    wait_all(one, BATON_FAILED);
    wait_all(other, BATON_FAILED);
    fence_all(crew.decode);
    fence_all(crew.prefill);
    print_message("    %u rooms aborted by %s, failed and fenced: %llu ms\n", ROOMS,
                  by_sender ? "prefill" : "decode",
                  (unsigned long long)(fleet_now_ms() - start));
    end_all(crew.decode);
    end_all(crew.prefill);
    open_all(1 + ROOMS, false); /* the same pages, at once */
    wait_all(crew.decode, BATON_SUCCESS);
    wait_all(crew.prefill, BATON_SUCCESS);
    all_quit();
}

static void test_decode_aborts_ten_thousand(void **state)
{
    (void)state;
    abort_all(false);
}
static void test_prefill_aborts_ten_thousand(void **state)
{
    (void)state;
    abort_all(true);
}

/* Prefill is killed under ten thousand granted rooms. */
static void test_death_under_ten_thousand(void **state)
{
    (void)state;
    crew_open("shm");
    open_all(1, true);
    wait_all(crew.prefill, BATON_WAITING_FOR_INPUT);
    uint64_t start = fleet_now_ms();
    fleet_kill(crew.prefill);
    wait_all(crew.decode, BATON_FAILED);
    fence_all(crew.decode);
    print_message("    %u rooms whose writer died, failed and fenced: %llu ms\n", ROOMS,
                  (unsigned long long)(fleet_now_ms() - start));
    end_all(crew.decode);
    crew.prefill = fleet_start();
    fleet_open(crew.prefill, crew.options);
    open_all(1 + ROOMS, false);
    wait_all(crew.decode, BATON_SUCCESS);
    wait_all(crew.prefill, BATON_SUCCESS);
    all_quit();
}

#define SCALE(test) cmocka_unit_test_teardown(test, fleet_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SCALE(test_ten_thousand_rooms_shm),      SCALE(test_ten_thousand_rooms_cma),
        SCALE(test_ten_thousand_rooms_tcp),      SCALE(test_decode_aborts_ten_thousand),
        SCALE(test_prefill_aborts_ten_thousand), SCALE(test_death_under_ten_thousand),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* one test: test_scale test_ten_thousand_rooms_tcp */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
