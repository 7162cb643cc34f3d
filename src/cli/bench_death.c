/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench death`: kill -9 of one side in the middle of open rooms. Measured is how soon
 * the survivor's rooms have failed, and how soon its pages are its own again (fenced). The
 * victim holds a large pool, because the kernel takes its memory apart before it closes its
 * sockets. */
#include "cli.h"

#include "base/clock.h"
#include "bench_case.h"
#include "role.h"

#include <string.h>
#include <time.h>

struct values {
    struct option_strings backends;
    struct option_strings victims;
    uint64_t pool_bytes;
    uint32_t rooms, times;
    bool json;
};

static const struct option options[] = {
    {.name = "backend",
     .type = OPTION_STRINGS,
     .offset = offsetof(struct values, backends),
     .value = "B,..",
     .initial = "shm,cma,tcp",
     .choices = "shm|cma|tcp",
     .help = "Backends to measure"},
    {.name = "victim",
     .type = OPTION_STRINGS,
     .offset = offsetof(struct values, victims),
     .value = "SIDE,..",
     .initial = "prefill,decode",
     .choices = "prefill|decode",
     .help = "Which side dies"},
    {.name = "pool-bytes",
     .type = OPTION_U64,
     .offset = offsetof(struct values, pool_bytes),
     .value = "N",
     .initial = "256M",
     .min = 16u << 20,
     .max = 1ull << 36,
     .help = "Pool of each side"},
    {.name = "rooms",
     .type = OPTION_U32,
     .offset = offsetof(struct values, rooms),
     .value = "N",
     .initial = "16",
     .min = 1,
     .max = ROLE_ROOMS_MAX,
     .help = "Rooms that are open when it happens, half of each sent"},
    {.name = "times",
     .type = OPTION_U32,
     .offset = offsetof(struct values, times),
     .value = "N",
     .initial = "3",
     .min = 1,
     .max = 100,
     .help = "How often; medians are printed"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "One JSON object per line instead of a table"},
};

const struct command bench_death_command = {
    .name = "bench death",
    .summary = "kill -9 of a peer: how soon the other side knows, and has its pages back",
    .text =
        "Opens rooms between two processes, sends half of each, kills one process and measures "
        "on the other the time until all its rooms have failed, and until all their pages are "
        "fenced.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

struct death {
    double failed_ms, fenced_ms;
    uint32_t pages_quarantined;
    char reason[512];
};

static int rooms_hold(struct role *role, struct role *other, uint32_t rooms, struct error err)
{
    struct role_request request = {.kind = ROLE_HOLD, .rooms = rooms};
    struct role_answer answer;
    request.room = bench_room_next();
    for (uint32_t i = 1; i < rooms; i++)
        bench_room_next();
    int rc = role_ask(role, &request, err);
    if (!rc)
        rc = role_ask(other, &request, err);
    if (!rc)
        rc = role_answer(role, &answer, 60000, err);
    if (!rc)
        rc = role_answer(other, &answer, 60000, err);
    return rc;
}

static int death_watch(struct role *victim, struct role *survivor, struct death *out,
                       struct error err)
{
    struct role_request request = {.kind = ROLE_WATCH};
    struct role_answer answer;
    struct timespec settle = {.tv_nsec = 50000000}; /* let the survivor fall asleep */
    int rc = role_ask(survivor, &request, err);
    if (rc)
        return rc;
    nanosleep(&settle, NULL);
    uint64_t killed = clock_now_ns();
    role_kill(victim);
    rc = role_answer(survivor, &answer, 120000, err);
    if (rc)
        return rc;
    if (!answer.room_code)
        return error_set(err, BATON_ESTATE, "a room succeeded although its peer was killed");
    out->failed_ms = (double)(answer.end_ns - killed) * 1e-6;
    out->fenced_ms = (double)(answer.fenced_ns - killed) * 1e-6;
    out->pages_quarantined = answer.pages_quarantined;
    snprintf(out->reason, sizeof(out->reason), "%s", answer.room_text);
    return BATON_OK;
}

static int death_once(const struct bench_case *work, bool prefill_dies, uint32_t rooms,
                      struct death *out, struct error err)
{
    struct role prefill, decode;
    int rc = role_pair_open(work, &prefill, &decode, err);
    if (!rc)
        rc = rooms_hold(&decode, &prefill, rooms, err);
    if (!rc)
        rc = prefill_dies ? death_watch(&prefill, &decode, out, err)
                          : death_watch(&decode, &prefill, out, err);
    role_stop(&decode, &rc, err);
    role_stop(&prefill, &rc, err);
    return rc;
}

static void death_print(const struct values *values, const char *backend, const char *victim,
                        const struct death *death)
{
    if (values->json)
        printf("{\"bench\":\"death\",\"backend\":\"%s\",\"victim\":\"%s\",\"rooms\":%u,"
               "\"pool_bytes\":%llu,\"failed_ms\":%.3f,\"fenced_ms\":%.3f}\n",
               backend, victim, values->rooms, (unsigned long long)values->pool_bytes,
               death->failed_ms, death->fenced_ms);
    else
        printf("%-8s %-8s %6u %10.2f %10.2f  %s\n", backend, victim, values->rooms,
               death->failed_ms, death->fenced_ms, death->reason);
    fflush(stdout);
}

static int death_measure(const struct values *values, const char *backend, const char *victim,
                         struct error err)
{
    struct bench_case work = {.item_bytes = 64 << 10,
                              .layers = 4,
                              .src_tp = 1,
                              .dst_tp = 1,
                              .shared_pool = strcmp(backend, "shm") == 0,
                              .threads = 1,
                              .streams = 2,
                              .seed = 7};
    struct death death = {0};
    double failed[100], fenced[100];
    int rc = BATON_OK;
    work.pages = (uint32_t)(values->pool_bytes / (work.item_bytes * work.layers));
    snprintf(work.backends, sizeof(work.backends), "%s", backend);
    if (work.pages / values->rooms < 2)
        return error_set(err, BATON_EINVAL, "%u rooms in a pool of %u pages", values->rooms,
                         work.pages);
    for (uint32_t i = 0; i < values->times && !rc; i++) {
        rc = death_once(&work, strcmp(victim, "prefill") == 0, values->rooms, &death, err);
        failed[i] = death.failed_ms;
        fenced[i] = death.fenced_ms;
    }
    if (rc)
        return rc;
    death.failed_ms = samples_quantile(failed, values->times, 0.5);
    death.fenced_ms = samples_quantile(fenced, values->times, 0.5);
    death_print(values, backend, victim, &death);
    return BATON_OK;
}

int bench_death_main(int argc, char **argv)
{
    static struct values values;
    char text[1200];
    int status = CLI_OK;
    if (!cli_parse(&bench_death_command, argc, argv, &values, &status))
        return status;
    if (!values.json)
        printf("%-8s %-8s %6s %10s %10s  %s\n", "backend", "killed", "rooms", "failed ms",
               "fenced ms", "what the survivor says");
    for (uint32_t i = 0; i < values.backends.count; i++) {
        for (uint32_t j = 0; j < values.victims.count; j++) {
            const char *backend = values.backends.items[i];
            if (death_measure(&values, backend, values.victims.items[j], ERROR_BUFFER(text)))
                status = cli_failed(backend, text);
        }
    }
    return status;
}
