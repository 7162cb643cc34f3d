/* SPDX-License-Identifier: Apache-2.0 */
/* `baton demo`: the hand-over in a few seconds, for someone who has just built it. A prefill
 * process gives 64 MB of KV pages to a decode process, first over the best backend of this
 * machine and then over tcp: once chunk by chunk as they would be computed, once all at a time.
 * In the end prefill is killed in the middle, and decode has to come out of it with a reason
 * and with its pages. */
#include "cli.h"

#include "base/clock.h"
#include "bench_case.h"
#include "role.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define DEMO_ITEM_BYTES (16u << 10)
#define DEMO_LAYERS 4u
#define DEMO_PAGES 1024u
#define DEMO_CHUNKS 16u
#define DEMO_PACE_US 40000u
#define DEMO_KILL_PERCENT 40u
#define ANSWER_TIMEOUT_MS 60000
#define BAR_WIDTH 32

const struct command demo_command = {
    .name = "demo",
    .summary = "two processes hand 64 MB over, and one of them is killed",
    .text =
        "A prefill process hands 64 MB of KV pages to a decode process, over the best backend "
        "of this machine and over tcp, and every byte is checked. Then prefill is killed in "
        "the middle of a hand-over, to show how decode ends it. Takes a few seconds; the exit "
        "status is 0 only if all of it went as it should.",
};

struct demo_row {
    const char *how;
    struct role_answer sent, received;
};

struct demo {
    struct demo_row rows[4];
    uint32_t row_count;
    uint64_t total_bytes;
    bool terminal;
};

/* ---- the progress line ------------------------------------------------------------------- */

static void bar_draw(const struct demo *demo, const char *what, uint64_t bytes)
{
    char bar[BAR_WIDTH + 1];
    uint64_t full =
        bytes < demo->total_bytes ? bytes * BAR_WIDTH / demo->total_bytes : BAR_WIDTH;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', full);
    bar[BAR_WIDTH] = '\0';
    printf("%s  %-26s [%s] %3" PRIu64 " of %" PRIu64 " MB", demo->terminal ? "\r" : "", what,
           bar, bytes >> 20, demo->total_bytes >> 20);
    fflush(stdout);
}

static void bar_move(const struct demo *demo, const char *what, uint64_t bytes)
{
    if (demo->terminal)
        bar_draw(demo, what, bytes);
}

/* ---- hand-overs -------------------------------------------------------------------------- */

static struct bench_case case_make(const char *backends)
{
    struct bench_case work = {.item_bytes = DEMO_ITEM_BYTES,
                              .pages = DEMO_PAGES,
                              .layers = DEMO_LAYERS,
                              .src_tp = 1,
                              .dst_tp = 1,
                              .shared_pool = 1,
                              .threads = 2,
                              .streams = 2,
                              .seed = 64};
    snprintf(work.backends, sizeof(work.backends), "%s", backends);
    return work;
}

static struct role_request request_make(bool chunked)
{
    return (struct role_request){.kind = ROLE_ROOM,
                                 .room = bench_room_next(),
                                 .count = DEMO_PAGES,
                                 .chunks = chunked ? DEMO_CHUNKS : 1,
                                 .pace_us = chunked ? DEMO_PACE_US : 0,
                                 .wait_grants = 1,
                                 .progress = 1};
}

/* Shows prefill's progress until all of it is sent and landed. With kill_at it is killed
 * instead, as soon as so many bytes are on their way, and *killed_ns says when. */
static int room_follow(const struct demo *demo, const char *what, struct role *prefill,
                       uint64_t kill_at, uint64_t *killed_ns, struct role_answer *sent,
                       struct error err)
{
    uint64_t bytes = 0;
    bar_move(demo, what, 0);
    for (;;) {
        int rc = role_answer(prefill, sent, ANSWER_TIMEOUT_MS, err);
        if (rc)
            return rc;
        if (sent->kind == ROLE_DONE)
            break;
        bytes = sent->bytes;
        bar_move(demo, what, bytes);
        if (kill_at && bytes >= kill_at) {
            *killed_ns = clock_now_ns();
            role_kill(prefill);
            break;
        }
    }
    bar_draw(demo, what, bytes);
    return BATON_OK;
}

static int hand_over(struct demo *demo, const char *what, bool chunked, struct role *prefill,
                     struct role *decode, struct error err)
{
    struct role_request request = request_make(chunked);
    struct demo_row *row = &demo->rows[demo->row_count];
    uint64_t killed = 0;
    row->how = chunked ? "in 16 chunks" : "at once";
    int rc = role_ask(decode, &request, err);
    if (!rc)
        rc = role_ask(prefill, &request, err);
    if (!rc)
        rc = room_follow(demo, what, prefill, 0, &killed, &row->sent, err);
    if (!rc)
        rc = role_answer(decode, &row->received, ANSWER_TIMEOUT_MS, err);
    if (rc)
        return rc;
    demo->row_count++;
    if (row->sent.room_code || row->received.room_code)
        return error_set(err, BATON_EABORTED, "prefill: %s; decode: %s", row->sent.room_text,
                         row->received.room_text);
    if (row->received.wrong_bytes)
        return error_set(err, BATON_ECORRUPT, "%" PRIu64 " bytes are wrong, the first at %s",
                         row->received.wrong_bytes, row->received.wrong_where);
    printf("  verified\n");
    return BATON_OK;
}

static int backend_show(struct demo *demo, const char *backends, const char *title,
                        struct error err)
{
    struct bench_case work = case_make(backends);
    struct role prefill, decode;
    printf("%s\n", title);
    int rc = role_pair_open(&work, &prefill, &decode, err);
    if (!rc)
        rc = hand_over(demo, "as chunks are computed", true, &prefill, &decode, err);
    if (!rc)
        rc = hand_over(demo, "all pages at once", false, &prefill, &decode, err);
    role_stop(&decode, &rc, err);
    role_stop(&prefill, &rc, err);
    return rc;
}

/* ---- the kill ---------------------------------------------------------------------------- */

static int death_judge(const struct role_answer *received, uint64_t killed, struct error err)
{
    if (!killed)
        return error_set(err, BATON_ESTATE,
                         "the hand-over ended before prefill could be killed");
    if (!received->room_code)
        return error_set(err, BATON_ESTATE, "decode says SUCCESS although prefill was killed");
    printf("  killed\n  decode's room failed %.1f ms later: \"%s\"\n",
           (double)(received->end_ns - killed) * 1e-6, received->room_text);
    if (received->pages_quarantined)
        printf("  %u pages stayed in quarantine until nobody could write them any more\n",
               received->pages_quarantined);
    printf("  all %u pages were decode's own again %.1f ms after the kill\n", DEMO_PAGES,
           (double)(received->fenced_ns - killed) * 1e-6);
    return BATON_OK;
}

static int death_show(struct demo *demo, struct error err)
{
    struct bench_case work = case_make("");
    struct role_request request = request_make(true);
    struct role_answer sent, received;
    struct role prefill, decode;
    uint64_t killed = 0;
    printf("\nkill -9 of prefill in the middle\n");
    int rc = role_pair_open(&work, &prefill, &decode, err);
    if (!rc)
        rc = role_ask(&decode, &request, err);
    if (!rc)
        rc = role_ask(&prefill, &request, err);
    if (!rc)
        rc = room_follow(demo, "as chunks are computed", &prefill,
                         demo->total_bytes * DEMO_KILL_PERCENT / 100, &killed, &sent, err);
    if (!rc)
        rc = role_answer(&decode, &received, ANSWER_TIMEOUT_MS, err);
    if (!rc)
        rc = death_judge(&received, killed, err);
    role_stop(&decode, &rc, err);
    role_stop(&prefill, &rc, err);
    return rc;
}

/* ---- the table --------------------------------------------------------------------------- */

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static void table_print(const struct demo *demo)
{
    printf("\n%-8s %-13s %7s %6s %9s %9s %9s %9s %12s\n", "backend", "sent", "GB/s", "ops",
           "granted", "1st send", "last byte", "landed", "after last");
    for (uint32_t i = 0; i < demo->row_count; i++) {
        const struct demo_row *row = &demo->rows[i];
        const baton_timeline *timeline = &row->sent.timeline;
        uint64_t tail_ns = row->sent.end_ns - row->sent.send_ns;
        char rate[16] = "-"; /* a paced hand-over has none */
        if (row->sent.send_ns == row->sent.first_send_ns && tail_ns)
            snprintf(rate, sizeof(rate), "%.2f", (double)row->sent.bytes / (double)tail_ns);
        printf("%-8s %-13s %7s %6" PRIu64 " %6.2f ms %6.2f ms %6.2f ms %6.2f ms %9.3f ms\n",
               timeline->backend, row->how, rate, timeline->operations,
               ms(timeline->granted_ns), ms(timeline->first_send_ns),
               ms(timeline->last_byte_ns), ms(timeline->ended_ns), ms(tail_ns));
    }
    printf(
        "times since the room was opened; \"after last\": from the last send() to SUCCESS\n");
}

int demo_main(int argc, char **argv)
{
    static struct demo demo;
    char text[1200];
    int status = CLI_OK;
    if (!cli_parse(&demo_command, argc, argv, &demo, &status))
        return status;
    demo.total_bytes = (uint64_t)DEMO_ITEM_BYTES * DEMO_LAYERS * DEMO_PAGES;
    demo.terminal = isatty(STDOUT_FILENO);
    printf("A prefill and a decode process; %u pages of %u layers x %u KB, in random order on "
           "both "
           "sides.\n\n",
           DEMO_PAGES, DEMO_LAYERS, DEMO_ITEM_BYTES >> 10);
    struct error err = ERROR_BUFFER(text);
    int rc = backend_show(&demo, "", "over the best backend here", err);
    if (!rc)
        rc = backend_show(&demo, "tcp", "over tcp", err);
    if (!rc) {
        table_print(&demo);
        rc = death_show(&demo, err);
    }
    if (rc) {
        printf("\n");
        return cli_failed("demo", text);
    }
    printf("\nAll bytes were where they belong.\n");
    return CLI_OK;
}
