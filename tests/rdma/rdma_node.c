/* SPDX-License-Identifier: Apache-2.0 */
/* One side of many hand-overs, as a program: started once as prefill and once as decode, on one
 * machine or on two, which then need nothing in common but their arguments. Room r is known to both
 * by its number, its pages are drawn at random on either side, and decode checks every byte.
 *
 *   test_rdma_node prefill|decode HOST:PORT BACKEND [NAME=VALUE ...]
 *
 *   HOST:PORT         of the bootstrap server, which prefill runs
 *   host=ADDRESS      this side's own address
 *   device=NAMES      RDMA devices, as ib_device
 *   rooms=N at_once=N pages=N       [20, 1, 8] both sides must agree
 *   tp=1|2|4 order=0..3             this side's own: TP size, enum baton_order
 *   break=ROOM by=COMMAND mend=COMMAND   prefill: half of the pages of that room are sent, then the
 *                     command runs, then the others are sent; mend runs when the room has ended
 *   failures=N may_fail=N           [0, 0] so many rooms must fail, and so many more may
 *
 * The pages of a failed room are marked once they are fenced and never used again: at the end, the
 * mark must still be there. */
#include "node_pages.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS_MAX 4u
#define SLOTS_MAX 64u
#define ROOM_PAGES_MAX 1024u
#define ROOM_DEADLINE_MS 60000u
#define PATIENCE_MS 60000u /* for the other process to start, and for fences */
#define NO_ROOM UINT32_MAX

static struct settings {
    bool prefill;
    char bootstrap[64];
    const char *backend, *host, *device, *by, *mend;
    uint32_t rooms, at_once, pages, tp, order, break_room, failures, may_fail;
} settings = {.rooms = 20, .at_once = 1, .pages = 8, .tp = 1, .break_room = NO_ROOM};

static struct rank {
    struct node_pages pages;
    baton_manager *manager;
} ranks[RANKS_MAX];

/* What one of the rooms that are under way at once uses: pages first_page .. + pages. */
static struct slot {
    uint32_t room; /* NO_ROOM: no more */
    uint32_t first_page;
    int32_t order[ROOM_PAGES_MAX];
    bool half_sent;
    baton_sender *senders[RANKS_MAX];
    baton_receiver *receivers[RANKS_MAX];
} slots[SLOTS_MAX];

static struct {
    uint32_t succeeded, failed, spare_page;
    uint64_t wrong_words, bytes, operations, requests, doorbells;
    char backend[16];
} tally;

static baton_bootstrap *bootstrap_server;
static baton_pollset *pollset;

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", settings.prefill ? "prefill" : "decode");
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void must(int code, const char *what, const char *text)
{
    if (code != BATON_OK)
        give_up("%s: %s: %s", what, baton_error_name(code), text);
}

/* ---- arguments --------------------------------------------------------------------------- */

static uint32_t number_of(const char *text, uint32_t least, uint32_t most)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (end == text || *end || number < least || number > most)
        give_up("%s is not a number from %u to %u", text, least, most);
    return (uint32_t)number;
}

static void setting_read(const char *argument)
{
    static const struct {
        const char *name;
        uint32_t *number;
        uint32_t least, most;
        const char **text;
    } known[] = {
        {"rooms=", &settings.rooms, 1, 1000000, NULL},
        {"at_once=", &settings.at_once, 1, SLOTS_MAX, NULL},
        {"pages=", &settings.pages, 1, ROOM_PAGES_MAX, NULL},
        {"tp=", &settings.tp, 1, RANKS_MAX, NULL},
        {"order=", &settings.order, 0, BATON_ORDER_TOKEN_MAJOR, NULL},
        {"break=", &settings.break_room, 0, 1000000, NULL},
        {"failures=", &settings.failures, 0, 1000, NULL},
        {"may_fail=", &settings.may_fail, 0, 1000, NULL},
        {"host=", NULL, 0, 0, &settings.host},
        {"device=", NULL, 0, 0, &settings.device},
        {"by=", NULL, 0, 0, &settings.by},
        {"mend=", NULL, 0, 0, &settings.mend},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        size_t length = strlen(known[i].name);
        if (strncmp(argument, known[i].name, length) != 0)
            continue;
        if (known[i].number)
            *known[i].number = number_of(argument + length, known[i].least, known[i].most);
        else
            *known[i].text = argument + length;
        return;
    }
    give_up("there is no argument %s", argument);
}

static void settings_read(int argc, char **argv)
{
    if (argc < 4 || (strcmp(argv[1], "prefill") != 0 && strcmp(argv[1], "decode") != 0))
        give_up("usage: %s prefill|decode HOST:PORT BACKEND [NAME=VALUE ...]", argv[0]);
    settings.prefill = strcmp(argv[1], "prefill") == 0;
    snprintf(settings.bootstrap, sizeof(settings.bootstrap), "%s", argv[2]);
    settings.backend = argv[3];
    for (int i = 4; i < argc; i++)
        setting_read(argv[i]);
    if (NODE_HEADS % settings.tp != 0)
        give_up("%u heads are not divided by tp=%u", NODE_HEADS, settings.tp);
}

/* ---- this side --------------------------------------------------------------------------- */

static struct sockaddr_in bootstrap_address(char host[64])
{
    snprintf(host, 64, "%s", settings.bootstrap);
    char *colon = strrchr(host, ':');
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (!colon)
        give_up("%s is not HOST:PORT", settings.bootstrap);
    *colon = '\0';
    address.sin_port = htons((uint16_t)number_of(colon + 1, 1, 65535));
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
        give_up("%s is not an IPv4 address", host);
    return address;
}

/* Decode may be started first, or on a machine that is ahead. */
static void bootstrap_await(const struct sockaddr_in *address)
{
    for (uint32_t waited = 0; waited < PATIENCE_MS; waited += 100) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            give_up("no socket: %s", strerror(errno));
        int failed =
            connect(fd, (const struct sockaddr *)(const void *)address, sizeof(*address));
        close(fd);
        if (!failed)
            return;
        usleep(100000);
    }
    give_up("nobody answers at %s", settings.bootstrap);
}

static void rank_open(struct rank *rank, uint32_t number)
{
    char err[256] = "";
    uint32_t ranges = settings.at_once + settings.failures + settings.may_fail;
    must(node_pages_open(&rank->pages, (int)settings.order, ranges * settings.pages, number,
                         settings.tp),
         "pages", "");
    baton_region region = {.struct_size = sizeof(region),
                           .kind = BATON_REGION_KV,
                           .name = "kv",
                           .layout = rank->pages.layout};
    baton_manager_options options = BATON_MANAGER_OPTIONS_INIT;
    options.rank = number;
    options.tp_size = settings.tp;
    options.host = settings.host;
    options.bootstrap = settings.bootstrap;
    options.register_rank = settings.prefill;
    options.backends = settings.backend;
    options.ib_device = settings.device;
    options.regions = &region;
    options.region_count = 1;
    options.deadline_ms = ROOM_DEADLINE_MS;
    options.match_timeout_ms = ROOM_DEADLINE_MS;
    must(baton_manager_open(&options, &rank->manager, err, sizeof(err)), "manager", err);
}

static void side_open(void)
{
    char host[64], err[256] = "";
    struct sockaddr_in address = bootstrap_address(host);
    if (settings.prefill)
        must(baton_bootstrap_open(host, ntohs(address.sin_port), &bootstrap_server, err,
                                  sizeof(err)),
             "bootstrap server", err);
    else
        bootstrap_await(&address);
    for (uint32_t i = 0; i < settings.tp; i++)
        rank_open(&ranks[i], i);
    must(baton_pollset_open(settings.at_once, &pollset), "poll set", "");
    tally.spare_page = settings.at_once * settings.pages;
}

static void side_close(void)
{
    baton_pollset_close(pollset);
    for (uint32_t i = 0; i < settings.tp; i++) {
        baton_manager_close(ranks[i].manager);
        node_pages_close(&ranks[i].pages);
    }
    if (bootstrap_server)
        baton_bootstrap_close(bootstrap_server);
}

/* ---- rooms ------------------------------------------------------------------------------- */

static void slot_shuffle(struct slot *slot)
{
    for (uint32_t i = 0; i < settings.pages; i++)
        slot->order[i] = (int32_t)(slot->first_page + i);
    for (uint32_t i = settings.pages - 1; i > 0; i--) {
        uint32_t other = (uint32_t)rand() % (i + 1);
        int32_t page = slot->order[i];
        slot->order[i] = slot->order[other];
        slot->order[other] = page;
    }
}

static void slot_send(struct slot *slot, uint32_t first, uint32_t end)
{
    for (uint32_t i = 0; i < settings.tp && end > first; i++)
        must(baton_sender_send(slot->senders[i], slot->order + first, end - first,
                               end == settings.pages),
             "send", "");
}

static void sender_start(struct slot *slot, uint32_t index, uint32_t number)
{
    char err[256] = "";
    const struct rank *rank = &ranks[number];
    for (uint32_t i = 0; i < settings.pages; i++)
        node_pages_fill(&rank->pages, slot->order[i], slot->room, i);
    baton_sender_options options = BATON_SENDER_OPTIONS_INIT;
    options.room = slot->room;
    must(baton_sender_open(rank->manager, &options, &slot->senders[number], err, sizeof(err)),
         "sender", err);
    baton_sender_init_options init = BATON_SENDER_INIT_OPTIONS_INIT;
    init.pages = settings.pages;
    must(baton_sender_init(slot->senders[number], &init), "sender's pages", "");
    must(baton_pollset_add_sender(pollset, index, slot->senders[number]), "poll set", "");
}

static void receiver_start(struct slot *slot, uint32_t index, uint32_t number)
{
    char err[256] = "";
    const struct rank *rank = &ranks[number];
    baton_receiver_options options = BATON_RECEIVER_OPTIONS_INIT;
    options.room = slot->room;
    options.bootstrap = settings.bootstrap;
    must(baton_receiver_open(rank->manager, &options, &slot->receivers[number], err,
                             sizeof(err)),
         "receiver", err);
    baton_receiver_init_options init = BATON_RECEIVER_INIT_OPTIONS_INIT;
    init.pages = slot->order;
    init.page_count = settings.pages;
    must(baton_receiver_init(slot->receivers[number], &init), "receiver's pages", "");
    must(baton_pollset_add_receiver(pollset, index, slot->receivers[number]), "poll set", "");
}

static void slot_start(struct slot *slot, uint32_t index)
{
    if (slot->room >= settings.rooms) {
        slot->room = NO_ROOM;
        return;
    }
    slot_shuffle(slot);
    for (uint32_t i = 0; i < settings.tp; i++) {
        if (settings.prefill)
            sender_start(slot, index, i);
        else
            receiver_start(slot, index, i);
    }
    slot->half_sent = settings.prefill && slot->room == settings.break_room;
    if (settings.prefill)
        slot_send(slot, 0, slot->half_sent ? settings.pages / 2 : settings.pages);
}

static void shell(const char *command)
{
    if (!command)
        return;
    int status = system(command); /* NOLINT: the point of it */
    if (status != 0)
        give_up("`%s` ended with %d", command, status);
}

static void timeline_add(const baton_timeline *timeline)
{
    tally.bytes += timeline->bytes;
    tally.operations += timeline->operations;
    tally.requests += timeline->requests;
    tally.doorbells += timeline->doorbells;
    memcpy(tally.backend, timeline->backend, sizeof(tally.backend));
}

static void slot_check(struct slot *slot)
{
    for (uint32_t i = 0; i < settings.tp; i++) {
        baton_timeline timeline = {.struct_size = sizeof(timeline)};
        if (settings.prefill)
            must(baton_sender_timeline(slot->senders[i], &timeline), "timeline", "");
        else
            must(baton_receiver_timeline(slot->receivers[i], &timeline), "timeline", "");
        timeline_add(&timeline);
        for (uint32_t page = 0; page < settings.pages && !settings.prefill; page++)
            tally.wrong_words +=
                node_pages_wrong(&ranks[i].pages, slot->order[page], slot->room, page);
    }
    tally.succeeded++;
}

/* Only a fence says that the pages are ours again. */
static void slot_await_fences(const struct slot *slot)
{
    for (uint32_t i = 0; i < settings.tp; i++) {
        for (uint32_t waited = 0;; waited += 10) {
            if (settings.prefill ? baton_sender_fenced(slot->senders[i])
                                 : baton_receiver_fenced(slot->receivers[i]))
                break;
            if (waited > PATIENCE_MS)
                give_up("room %u failed and is not fenced after %u ms", slot->room,
                        PATIENCE_MS);
            usleep(10000);
        }
    }
}

static void slot_bury(struct slot *slot)
{
    char text[256] = "";
    int code = BATON_OK;
    for (uint32_t i = 0; i < settings.tp && code == BATON_OK; i++)
        code = settings.prefill
                   ? baton_sender_failure(slot->senders[i], text, sizeof(text))
                   : baton_receiver_failure(slot->receivers[i], text, sizeof(text));
    printf("room %u failed: %s: %s\n", slot->room, baton_error_name(code), text);
    slot_await_fences(slot);
    tally.failed++;
    if (tally.failed > settings.failures + settings.may_fail)
        give_up("more rooms failed than %u", settings.failures + settings.may_fail);
    if (settings.prefill)
        return;
    for (uint32_t i = 0; i < settings.tp; i++)
        for (uint32_t page = 0; page < settings.pages; page++)
            node_pages_stamp(&ranks[i].pages, slot->order[page]);
    slot->first_page = tally.spare_page;
    tally.spare_page += settings.pages;
}

static void slot_end(struct slot *slot, uint32_t index, int state)
{
    if (state == BATON_SUCCESS)
        slot_check(slot);
    else
        slot_bury(slot);
    must(baton_pollset_clear(pollset, index), "poll set", "");
    for (uint32_t i = 0; i < settings.tp; i++) {
        if (settings.prefill)
            baton_sender_close(slot->senders[i]);
        else
            baton_receiver_close(slot->receivers[i]);
    }
    if (slot->room == settings.break_room)
        shell(settings.mend);
    slot->room += settings.at_once;
    slot_start(slot, index);
}

static void rooms_run(void)
{
    uint8_t states[SLOTS_MAX] = {0};
    uint32_t live = settings.at_once < settings.rooms ? settings.at_once : settings.rooms;
    for (uint32_t i = 0; i < live; i++) {
        slots[i] = (struct slot){.room = i, .first_page = i * settings.pages};
        slot_start(&slots[i], i);
    }
    while (live > 0) {
        baton_pollset_wait(pollset, states, settings.at_once, 100);
        live = 0;
        for (uint32_t i = 0; i < settings.at_once && i < settings.rooms; i++) {
            struct slot *slot = &slots[i];
            if (slot->room == NO_ROOM)
                continue;
            live++;
            if (slot->half_sent && states[i] == BATON_TRANSFERRING) {
                slot->half_sent = false;
                shell(settings.by);
                slot_send(slot, settings.pages / 2, settings.pages);
            } else if (states[i] == BATON_SUCCESS || states[i] == BATON_FAILED) {
                slot_end(slot, i, states[i]);
            }
        }
    }
}

/* ---- verdict ----------------------------------------------------------------------------- */

/* Every page of decode but those of the last rooms was never granted, or marked when its room had
 * failed and was fenced. Nobody may have stored into one since. */
static uint64_t marks_touched(void)
{
    uint64_t touched = 0;
    for (uint32_t page = 0; page < ranks[0].pages.layout.pages; page++) {
        bool in_use = false;
        for (uint32_t i = 0; i < settings.at_once; i++)
            in_use |= page - slots[i].first_page < settings.pages;
        for (uint32_t i = 0; i < settings.tp && !in_use; i++)
            touched += node_pages_touched(&ranks[i].pages, (int32_t)page);
    }
    return touched;
}

static int verdict(void)
{
    uint64_t touched = settings.prefill ? 0 : marks_touched();
    printf("%s: %u of %u rooms succeeded, %u failed; %s, %" PRIu64 " bytes, %" PRIu64
           " operations, %" PRIu64 " requests, %" PRIu64 " doorbells; %" PRIu64
           " wrong words, %" PRIu64 " bytes stored after a fence\n",
           settings.prefill ? "prefill" : "decode", tally.succeeded, settings.rooms,
           tally.failed, tally.backend, tally.bytes, tally.operations, tally.requests,
           tally.doorbells, tally.wrong_words, touched);
    if (tally.failed < settings.failures)
        printf("%u rooms should have failed\n", settings.failures);
    return tally.failed < settings.failures || tally.wrong_words || touched;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    settings_read(argc, argv);
    srand((unsigned)settings.prefill + 1);
    side_open();
    rooms_run();
    int failed = verdict();
    side_close();
    return failed;
}
