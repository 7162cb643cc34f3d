/* SPDX-License-Identifier: Apache-2.0 */
/* The table and the JSON lines of `baton bench transfer`. A ratio stands beside every figure,
 * since gigabytes a second say as much about the machine as about the program. */
#include "bench_report.h"

#include "base/error.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double gbps(uint64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
}

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* A figure, or a dash where nothing was measured. */
static void cell(int width, int digits, double value)
{
    if (value > 0)
        printf(" %*.*f", width, digits, value);
    else
        printf(" %*s", width, "-");
}

/* What a backend is measured against: tcp by what tcp can do here, if that is known. */
static bool limit_is_iperf3(const struct bench_row *row)
{
    return row->iperf3_gbps > 0 && strcmp(row->result.backend, "tcp") == 0;
}

const char *bench_layout_name(const struct bench_case *work)
{
    if (!work->structured && work->order != ORDER_PER_LAYER)
        return "page-major";
    return order_name((enum order)work->order);
}

void bench_report_begin(const struct bench_report *report)
{
    if (report->json)
        return;
    printf("%-16s %-10s %7s %6s %3s %5s %6s %6s %7s %5s %7s %5s %8s %7s %7s %7s %5s", "backend",
           "layout", "B/page", "pages", "lay", "tp", "GB/s", "best", "memcpy", "ratio",
           "iperf3", "ratio", "ops", "p50 us", "p99 us", "send50", "ctl%");
    if (report->rdma)
        printf(" %8s %8s %5s %6s", "requests", "least", "ratio", "bells");
    if (report->tp)
        printf(" %6s", "x 1->1");
    if (report->peers)
        printf(" %6s %6s", "x nixl", "x moon");
    printf("  bytes\n");
    fflush(stdout);
}

static void row_text(const struct bench_report *report, const struct bench_row *row)
{
    const struct bench_result *result = &row->result;
    const struct bench_case *work = &result->work;
    double ours = gbps(result->bytes, result->seconds);
    double limit = gbps(result->bytes, result->memcpy_seconds);
    char tp[16];
    snprintf(tp, sizeof(tp), "%u->%u", work->src_tp, work->dst_tp);
    printf("%-16s %-10s %7" PRIu64 " %6u %3u %5s", result->backend, bench_layout_name(work),
           work->item_bytes, work->pages, work->layers, tp);
    cell(6, 2, ours);
    cell(6, 2, gbps(result->bytes, result->best_seconds));
    cell(7, 2, limit);
    cell(5, 2, ratio(ours, limit));
    cell(7, 2, row->iperf3_gbps);
    cell(5, 2, ratio(ours, row->iperf3_gbps));
    printf(" %8" PRIu64, result->operations);
    cell(7, 1, result->p50_us);
    cell(7, 1, result->p99_us);
    cell(7, 1, result->send_p50_us);
    printf(" %5.1f", result->control_share * 100);
    if (report->rdma) {
        cell(8, 0, (double)result->requests);
        cell(8, 0, (double)row->requests_minimum);
        cell(5, 2, ratio((double)result->requests, (double)row->requests_minimum));
        cell(6, 0, (double)result->doorbells);
    }
    if (report->tp)
        cell(6, 2, ratio(result->seconds, row->reference_seconds));
    if (report->peers) {
        bool tcp = strcmp(result->backend, "tcp") == 0;
        cell(6, 1, row->peers ? ratio(ours, peers_best(row->peers, "nixl", tcp)) : 0);
        cell(6, 1, row->peers ? ratio(ours, peers_best(row->peers, "mooncake", true)) : 0);
    }
    if (result->verified)
        printf("  verified\n");
    else
        printf("  WRONG: %" PRIu64 " bytes, first at %s\n", result->wrong_bytes,
               result->wrong_where);
    fflush(stdout);
}

static void json_print(json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    BATON_ASSERT(text); /* only numbers and our own words are in it */
    puts(text);
    fflush(stdout);
    free(text);
}

static void set_real(json_t *object, const char *name, double value)
{
    json_object_set_new(object, name, value > 0 ? json_real(value) : json_null());
}

static void set_integer(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* Words of other programs may be anything: what is not UTF-8 becomes an empty string. */
static void set_string(json_t *object, const char *name, const char *value)
{
    json_t *string = json_string(value);
    json_object_set_new(object, name, string ? string : json_string(""));
}

static json_t *case_json(const struct bench_case *work, const char *backend)
{
    json_t *object = json_object();
    set_string(object, "backend", backend);
    set_integer(object, "item_bytes", work->item_bytes);
    set_integer(object, "pages", work->pages);
    set_integer(object, "layers", work->layers);
    set_string(object, "layout", bench_layout_name(work));
    set_integer(object, "src_tp", work->src_tp);
    set_integer(object, "dst_tp", work->dst_tp);
    set_integer(object, "bytes", bench_case_bytes(work));
    return object;
}

static void row_json(const struct bench_row *row)
{
    const struct bench_result *result = &row->result;
    double ours = gbps(result->bytes, result->seconds);
    double memcpy_gbps = gbps(result->bytes, result->memcpy_seconds);
    double limit = limit_is_iperf3(row) ? row->iperf3_gbps : memcpy_gbps;
    json_t *object = case_json(&result->work, result->backend);
    set_integer(object, "threads", result->work.threads);
    set_integer(object, "streams", result->work.streams);
    set_real(object, "seconds", result->seconds);
    set_real(object, "best_seconds", result->best_seconds);
    set_real(object, "gbps", ours);
    set_real(object, "best_gbps", gbps(result->bytes, result->best_seconds));
    set_integer(object, "operations", result->operations);
    set_integer(object, "requests", result->requests);
    set_integer(object, "requests_minimum", row->requests_minimum);
    set_integer(object, "doorbells", result->doorbells);
    json_object_set_new(object, "packed", json_boolean(result->packed));
    json_object_set_new(object, "verified", json_boolean(result->verified));
    set_integer(object, "wrong_bytes", result->wrong_bytes);
    set_integer(object, "rooms", result->rooms);
    set_real(object, "p50_us", result->p50_us);
    set_real(object, "p99_us", result->p99_us);
    set_real(object, "send_p50_us", result->send_p50_us);
    set_real(object, "send_p99_us", result->send_p99_us);
    json_object_set_new(object, "control_share", json_real(result->control_share));
    set_real(object, "memcpy_gbps", memcpy_gbps);
    set_real(object, "iperf3_gbps", row->iperf3_gbps);
    set_string(object, "limit", limit_is_iperf3(row) ? "iperf3" : "memcpy");
    set_real(object, "limit_gbps", limit);
    set_real(object, "ratio", ratio(ours, limit));
    set_real(object, "reference_seconds", row->reference_seconds);
    set_real(object, "time_ratio", ratio(result->seconds, row->reference_seconds));
    json_print(object);
}

void bench_report_row(const struct bench_report *report, const struct bench_row *row)
{
    if (report->json)
        row_json(row);
    else
        row_text(report, row);
}

static void peer_text(const struct bench_case *work, const char *name,
                      const struct peer_figure *figure, uint64_t bytes)
{
    printf("%-16s %-10s %7" PRIu64 " %6u %3u %5s", name, bench_layout_name(work),
           work->item_bytes, work->pages, work->layers, "1->1");
    cell(6, 2, figure->gbps);
    cell(6, 2, gbps(bytes, figure->best_seconds));
    if (figure->gbps > 0)
        printf("  %s\n", figure->verified ? "verified" : "WRONG bytes");
    else
        printf("  failed: %s\n", figure->problem);
}

static void peer_json(const struct bench_case *work, const char *name,
                      const struct peer_figure *figure, uint64_t bytes)
{
    json_t *object = case_json(work, name);
    json_object_set_new(object, "peer", json_true());
    set_real(object, "seconds", figure->seconds);
    set_real(object, "best_seconds", figure->best_seconds);
    set_real(object, "gbps", figure->gbps);
    set_real(object, "best_gbps", gbps(bytes, figure->best_seconds));
    set_integer(object, "operations", figure->operations);
    json_object_set_new(object, "verified", json_boolean(figure->verified));
    if (figure->problem[0])
        set_string(object, "error", figure->problem);
    json_print(object);
}

void bench_report_peers(const struct bench_report *report, const struct bench_case *work,
                        const struct peer_figures *figures)
{
    uint64_t bytes = bench_case_bytes(work);
    for (uint32_t i = 0; i < figures->count; i++) {
        const struct peer_figure *figure = &figures->items[i];
        char name[80];
        bool tcp = strcmp(figure->transport, "tcp") == 0;
        snprintf(name, sizeof(name), "%s-%s", figure->peer, tcp ? "tcp" : "cma");
        if (report->json)
            peer_json(work, name, figure, bytes);
        else
            peer_text(work, name, figure, bytes);
    }
    fflush(stdout);
}

void bench_report_end(const struct bench_report *report, uint32_t iterations)
{
    if (report->json)
        return;
    printf("\nGB/s = 10^9 bytes a second, median of %u (best beside it), from send() to "
           "SUCCESS on "
           "every\nprefill rank. memcpy: one core over the same pages, taken between the "
           "iterations. p50, p99: a\nroom of one page, open to SUCCESS on both sides; send50: "
           "both sides ready, send() to SUCCESS.\nctl%%: the part of the time in which no byte "
           "moved.\n",
           iterations);
    if (report->rdma)
        puts("requests: RDMA work requests of one hand-over; least: as few as the page lists "
             "allow; bells: calls\nthat posted them, each of which has one completion.");
}
