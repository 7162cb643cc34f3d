/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench poll`: what a scheduler pays for asking. It polls every room in every step, so a
 * poll must cost nanoseconds; here are open rooms, and the clock around many polls of them. */
#include "cli.h"

#include "base/clock.h"
#include "bench_case.h"

#include <stdlib.h>
#include <string.h>

#define POLL_ROUNDS 9
#define POLL_COUNT 2000000u
#define POLL_MANY_COUNT 20000u
#define POLL_ROOMS_MAX 4096

struct values {
    uint32_t rooms;
    bool json;
};

static const struct option options[] = {
    {.name = "rooms",
     .type = OPTION_U32,
     .offset = offsetof(struct values, rooms),
     .value = "N",
     .initial = "256",
     .min = 1,
     .max = POLL_ROOMS_MAX,
     .help = "Open rooms"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "One JSON object instead of text"},
};

const struct command bench_poll_command = {
    .name = "bench poll",
    .summary = "nanoseconds for one poll, and for a poll set",
    .text =
        "Opens rooms that wait for a peer and measures baton_sender_poll on each of them and "
        "baton_poll_many over all of them. Medians.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

struct bench {
    baton_bootstrap *bootstrap;
    baton_manager *manager;
    baton_pollset *set;
    struct bench_pool pool;
    baton_sender *senders[POLL_ROOMS_MAX];
    uint32_t rooms;
};

static int bench_manager_open(struct bench *bench, struct error err)
{
    struct bench_case work = {
        .item_bytes = 4096, .pages = 4, .layers = 1, .src_tp = 1, .dst_tp = 1};
    baton_manager_options manager = BATON_MANAGER_OPTIONS_INIT;
    baton_region region = {.struct_size = sizeof(region), .name = "kv"};
    char address[32];
    int rc = bench_pool_open(&work, 0, 1, false, &bench->pool, err);
    if (!rc)
        rc = baton_bootstrap_open("127.0.0.1", 0, &bench->bootstrap, err.text, err.size);
    if (rc)
        return rc;
    snprintf(address, sizeof(address), "127.0.0.1:%u", baton_bootstrap_port(bench->bootstrap));
    region.layout = bench->pool.layout;
    manager.bootstrap = address;
    manager.regions = &region;
    manager.region_count = 1;
    manager.match_timeout_ms = 300000; /* nobody is coming, and that is fine */
    return baton_manager_open(&manager, &bench->manager, err.text, err.size);
}

static int bench_rooms_open(struct bench *bench, uint32_t rooms, struct error err)
{
    int rc = baton_pollset_open(rooms, &bench->set);
    if (rc)
        return error_set(err, rc, "poll set: %s", baton_error_text(rc));
    for (uint32_t i = 0; i < rooms && !rc; i++) {
        baton_sender_options sender = BATON_SENDER_OPTIONS_INIT;
        sender.room = bench_room_next();
        rc = baton_sender_open(bench->manager, &sender, &bench->senders[i], err.text, err.size);
        if (rc)
            break;
        bench->rooms++;
        rc = baton_pollset_add_sender(bench->set, i, bench->senders[i]);
        if (rc)
            error_set(err, rc, "poll set: %s", baton_error_text(rc));
    }
    return rc;
}

static void bench_close(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->rooms; i++) {
        baton_pollset_clear(bench->set, i);
        baton_sender_close(bench->senders[i]);
    }
    if (bench->set)
        baton_pollset_close(bench->set);
    if (bench->manager)
        baton_manager_close(bench->manager);
    if (bench->bootstrap)
        baton_bootstrap_close(bench->bootstrap);
    bench_pool_close(&bench->pool);
}

static double poll_ns(const struct bench *bench)
{
    uint64_t states = 0, begin = clock_now_ns();
    for (uint32_t done = 0; done < POLL_COUNT;)
        for (uint32_t i = 0; i < bench->rooms && done < POLL_COUNT; i++, done++)
            states += (uint64_t)baton_sender_poll(bench->senders[i]);
    uint64_t took = clock_now_ns() - begin;
    BATON_ASSERT(states); /* they wait: none of them is in state 0 */
    return (double)took / POLL_COUNT;
}

static double poll_many_ns(const struct bench *bench)
{
    uint8_t states[POLL_ROOMS_MAX];
    uint64_t begin = clock_now_ns();
    for (uint32_t i = 0; i < POLL_MANY_COUNT; i++)
        baton_poll_many(bench->set, states, bench->rooms);
    return (double)(clock_now_ns() - begin) / POLL_MANY_COUNT;
}

static void bench_measure(const struct bench *bench, bool json)
{
    double one[POLL_ROUNDS], many[POLL_ROUNDS];
    for (uint32_t i = 0; i < POLL_ROUNDS; i++) {
        one[i] = poll_ns(bench);
        many[i] = poll_many_ns(bench);
    }
    double one_ns = samples_quantile(one, POLL_ROUNDS, 0.5);
    double many_ns = samples_quantile(many, POLL_ROUNDS, 0.5);
    if (json)
        printf("{\"bench\":\"poll\",\"rooms\":%u,\"poll_ns\":%.2f,\"poll_many_ns\":%.1f}\n",
               bench->rooms, one_ns, many_ns);
    else
        printf("one poll         %8.1f ns\n%4u rooms at once %7.1f ns (%.2f ns a room)\n",
               one_ns, bench->rooms, many_ns, many_ns / bench->rooms);
}

int bench_poll_main(int argc, char **argv)
{
    static struct bench bench;
    struct values values;
    char text[512];
    int status = CLI_OK;
    if (!cli_parse(&bench_poll_command, argc, argv, &values, &status))
        return status;
    int rc = bench_manager_open(&bench, ERROR_BUFFER(text));
    if (!rc)
        rc = bench_rooms_open(&bench, values.rooms, ERROR_BUFFER(text));
    if (!rc)
        bench_measure(&bench, values.json);
    bench_close(&bench);
    return rc ? cli_failed("bench poll", text) : CLI_OK;
}
