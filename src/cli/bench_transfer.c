/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench transfer`: every backend, layout and page size that was asked for, one case
 * after the other, each in two fresh processes, with the limits and the peers of the same run
 * beside it. */
#include "cli.h"

#include "bench_limits.h"
#include "bench_report.h"
#include "bench_requests.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

struct values {
    struct option_strings backends;
    struct option_numbers item_bytes;
    struct option_strings layouts;
    uint32_t pages, layers, src_tp, dst_tp, threads, streams, iterations, rooms;
    uint64_t total_bytes, seed;
    bool peers, json, quiet;
    const char *peers_dir, *scatter;
    const char *ib_device, *prefill_device, *decode_device;
    uint32_t max_sge, max_inflight;
};

#define NUMBER(text, kind, field, default_text, least, most, words)                         \
    {                                                                                       \
        .name = text, .type = kind, .offset = offsetof(struct values, field), .value = "N", \
        .initial = default_text, .min = least, .max = most, .help = words                   \
    }

#define DEVICE(text, field, words)                                                     \
    {                                                                                  \
        .name = text, .type = OPTION_STRING, .offset = offsetof(struct values, field), \
        .value = "LIST", .help = words                                                 \
    }

static const struct option options[] = {
    {.name = "backend",
     .type = OPTION_STRINGS,
     .offset = offsetof(struct values, backends),
     .value = "B,..",
     .help =
         "Backends to measure: shm, cma, tcp, and by name verbs, verbs-read, ucx. Without it: "
         "those of the first three that work here"},
    {.name = "item-bytes",
     .type = OPTION_NUMBERS,
     .offset = offsetof(struct values, item_bytes),
     .value = "N,..",
     .min = 1,
     .max = 1ull << 32,
     .help =
         "Bytes of one page of one layer. Without it: 1536,6144,24576,98304, and 65536 where "
         "ranks differ (K and V of 16 tokens and 8 heads of 128 in bf16)"},
    NUMBER("pages", OPTION_U32, pages, NULL, 0, 1u << 30,
           "Pages to hand over. Without it: as many as make --total-bytes"),
    NUMBER("total-bytes", OPTION_U64, total_bytes, "96M", 1, 1ull << 40,
           "How much to hand over at each size"),
    NUMBER("layers", OPTION_U32, layers, "4", 1, BENCH_LAYERS_MAX, "Layers of the model"),
    {.name = "layout",
     .type = OPTION_STRINGS,
     .offset = offsetof(struct values, layouts),
     .value = "L,..",
     .initial = "per-layer",
     .choices = "per-layer|page-major|head|layer|paired",
     .help =
         "A pool for each layer, or all layers of a page in one run; where ranks differ, in "
         "one of three orders (\"baton bench order --help\" draws them); page-major is head"},
    {.name = "scatter",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, scatter),
     .value = "SIDE",
     .initial = "both",
     .choices = "both|prefill|decode|none",
     .help = "Whose pages are in random order; the other side's are neighbours"},
    NUMBER("src-tp", OPTION_U32, src_tp, "1", 1, BENCH_RANKS_MAX, "Prefill ranks"),
    NUMBER("dst-tp", OPTION_U32, dst_tp, "1", 1, BENCH_RANKS_MAX,
           "Decode ranks. With more than one rank on either side pages are split by heads, and "
           "the "
           "same bytes are also handed from one rank to one rank for comparison"),
    NUMBER("threads", OPTION_U32, threads, NULL, 0, 64,
           "Copy threads of each rank. Without it: 1, and one for each stream of tcp"),
    NUMBER("streams", OPTION_U32, streams, "2", 1, 16, "Connections per peer, for tcp"),
    DEVICE("ib-device", ib_device, "RDMA: devices of both sides, see \"baton info\""),
    DEVICE("prefill-device", prefill_device, "RDMA: of the prefill side"),
    DEVICE("decode-device", decode_device, "RDMA: of the decode side"),
    NUMBER(
        "max-sge", OPTION_U32, max_sge, NULL, 0, 1024,
        "RDMA: pieces of memory in one work request. Without it: the device's limit, up to 32"),
    NUMBER("max-inflight", OPTION_U32, max_inflight, NULL, 0, 1u << 20,
           "RDMA: work requests in flight on one queue pair. Without it: 256"),
    NUMBER("iterations", OPTION_U32, iterations, "7", 1, 1000,
           "Hand-overs that count, after one that does not"),
    NUMBER("rooms", OPTION_U32, rooms, "1000", 0, 100000,
           "Rooms of one page for p50 and p99; 0 leaves them out"),
    NUMBER("seed", OPTION_U64, seed, "7", 0, 0, "Decides the order of the pages"),
    {.name = "peers",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, peers),
     .help = "Measure NIXL and Mooncake on the same pages too (installs them the first time)"},
    {.name = "peers-dir",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, peers_dir),
     .value = "DIR",
     .help = "Where run_peers.sh is. Without it: bench/, here or beside the program"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "One JSON object per line instead of a table"},
    {.name = "quiet",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, quiet),
     .help = "No progress on standard error"},
};

const struct command bench_transfer_command = {
    .name = "bench transfer",
    .summary = "bandwidth and latency of each backend, beside the machine's limits",
    .text =
        "Hands KV pages from one process to another, in random order on both sides, checks "
        "every byte, and prints what it took. The memcpy of one core over the same pages, and "
        "iperf3 over loopback for tcp, are measured in the same run.\n\n"
        "  baton bench transfer\n"
        "  baton bench transfer --backend shm --item-bytes 24K --layout per-layer,page-major\n"
        "  baton bench transfer --src-tp 4 --dst-tp 2 --json\n"
        "  baton bench transfer --peers\n"
        "  baton bench transfer --backend verbs --prefill-device mlx5_0 --decode-device "
        "mlx5_1\n\n"
        "For RDMA the work requests and doorbells of one hand-over are printed too, beside the "
        "least number of requests that the page lists allow: runs of neighbouring remote "
        "pages, "
        "each split by max_sge and 4 MiB.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

struct run {
    struct values values;
    struct bench_report report;
    bool failed;
};

static void progress(const struct run *run, const char *what, const struct bench_case *work)
{
    if (!run->values.quiet)
        fprintf(stderr, "baton: %s, %s, %" PRIu64 " bytes x %u pages x %u layers, %u->%u\n",
                what, bench_layout_name(work), work->item_bytes, work->pages, work->layers,
                work->src_tp, work->dst_tp);
}

/* ---- what to measure --------------------------------------------------------------------- */

static bool backend_available(const char *name, char *why, size_t size)
{
    baton_backend_info info = {.struct_size = sizeof(info)};
    snprintf(why, size, "it is not built in");
    for (uint32_t i = 0; baton_backend_info_get(i, &info) == 0; i++) {
        if (strcmp(info.name, name) != 0)
            continue;
        snprintf(why, size, "%s", info.why);
        return info.available;
    }
    return false;
}

/* What was named must work; what was not named is left out when it does not. */
static int backends_choose(struct values *values, struct error err)
{
    static const char *const usual[] = {"shm", "cma", "tcp"};
    char why[128];
    for (uint32_t i = 0; i < values->backends.count; i++)
        if (!backend_available(values->backends.items[i], why, sizeof(why)))
            return error_set(err, BATON_EUNREACHABLE, "backend %s cannot be used here: %s",
                             values->backends.items[i], why);
    if (values->backends.count)
        return BATON_OK;
    for (uint32_t i = 0; i < 3; i++) {
        if (backend_available(usual[i], why, sizeof(why)))
            memcpy(values->backends.items[values->backends.count++], usual[i], 4);
        else
            fprintf(stderr, "baton: without %s: %s\n", usual[i], why);
    }
    return values->backends.count ? BATON_OK
                                  : error_set(err, BATON_EUNREACHABLE,
                                              "no backend works here; see \"baton info\"");
}

static void sizes_choose(struct values *values)
{
    static const uint64_t usual[] = {1536, 6144, 24576, 98304};
    if (values->item_bytes.count)
        return;
    if (values->src_tp > 1 || values->dst_tp > 1) {
        values->item_bytes.items[values->item_bytes.count++] = 65536;
        return;
    }
    for (uint32_t i = 0; i < 4; i++)
        values->item_bytes.items[values->item_bytes.count++] = usual[i];
}

static void device_copy(char *out, size_t size, const char *own, const char *common)
{
    const char *device = own ? own : common;
    snprintf(out, size, "%s", device ? device : "");
}

static enum order order_find(const char *layout)
{
    for (int order = 0; order < ORDERS; order++)
        if (strcmp(order_name((enum order)order), layout) == 0)
            return (enum order)order;
    return ORDER_HEAD; /* "page-major" */
}

static struct bench_case case_make(const struct values *values, const char *layout,
                                   uint64_t item_bytes, const char *backend)
{
    bool tcp = strcmp(backend, "tcp") == 0;
    uint64_t pages = values->pages;
    if (!pages)
        pages = values->total_bytes / (item_bytes * values->layers);
    struct bench_case work = {
        .item_bytes = item_bytes,
        .pages = pages ? (uint32_t)(pages < UINT32_MAX ? pages : UINT32_MAX) : 1,
        .layers = values->layers,
        .src_tp = values->src_tp,
        .dst_tp = values->dst_tp,
        .order = order_find(layout),
        .structured = values->src_tp > 1 || values->dst_tp > 1,
        .shared_pool = strcmp(backend, "shm") == 0,
        .threads = values->threads ? values->threads : (tcp ? values->streams : 1),
        .streams = values->streams,
        .seed = values->seed,
        .prefill_in_order =
            strcmp(values->scatter, "decode") == 0 || strcmp(values->scatter, "none") == 0,
        .decode_in_order =
            strcmp(values->scatter, "prefill") == 0 || strcmp(values->scatter, "none") == 0,
        .max_sge = values->max_sge,
        .max_inflight = values->max_inflight,
    };
    snprintf(work.backends, sizeof(work.backends), "%s", backend);
    device_copy(work.prefill_device, sizeof(work.prefill_device), values->prefill_device,
                values->ib_device);
    device_copy(work.decode_device, sizeof(work.decode_device), values->decode_device,
                values->ib_device);
    return work;
}

/* What the bench may assume of the devices on the side that posts; 32 is the library's own limit. */
static uint32_t max_sge_find(const struct bench_case *work, bool reads)
{
    baton_device_list *list = NULL;
    baton_port_info port = {.struct_size = sizeof(port)};
    uint32_t least = work->max_sge && work->max_sge < 32 ? work->max_sge : 32;
    const char *device = reads ? work->decode_device : work->prefill_device;
    if (baton_device_list_open(device, 0, &list, NULL, 0))
        return least;
    for (uint32_t i = 0; baton_device_list_port(list, i, &port) == 0; i++) {
        uint32_t most =
            reads && port.max_sge_read < port.max_sge ? port.max_sge_read : port.max_sge;
        if (port.rails && most && most < least)
            least = most;
    }
    baton_device_list_close(list);
    return least;
}

/* ---- measuring --------------------------------------------------------------------------- */

static void iperf3_take(const struct run *run, double *out)
{
    char text[256];
    if (!run->values.quiet)
        fprintf(stderr, "baton: iperf3 on loopback, one stream\n");
    if (iperf3_gbps(out, ERROR_BUFFER(text)))
        fprintf(stderr, "baton: without the limit of tcp: %s\n", text);
}

static int reference_take(const struct run *run, const struct bench_case *work, double *seconds,
                          struct error err)
{
    struct bench_case single = *work;
    struct bench_result result;
    single.src_tp = single.dst_tp = 1;
    progress(run, work->backends, &single);
    int rc = bench_case_run(&single, run->values.iterations, 0, &result, err);
    if (!rc)
        *seconds = result.seconds;
    return rc;
}

/* A case that cannot be measured is told and counted; the others still are. */
static void case_measure(struct run *run, const struct bench_case *work,
                         const struct peer_figures *peers)
{
    struct bench_row row = {.peers = peers};
    char text[1200];
    int rc = BATON_OK;
    if (work->structured)
        rc = reference_take(run, work, &row.reference_seconds, ERROR_BUFFER(text));
    if (!rc) {
        progress(run, work->backends, work);
        rc = bench_case_run(work, run->values.iterations, run->values.rooms, &row.result,
                            ERROR_BUFFER(text));
    }
    bool reads = strcmp(work->backends, "verbs-read") == 0;
    if (!rc && row.result.requests)
        rc = requests_minimum(work, reads, max_sge_find(work, reads), &row.requests_minimum,
                              ERROR_BUFFER(text));
    if (rc) {
        cli_failed(work->backends, text);
        run->failed = true;
        return;
    }
    if (strcmp(work->backends, "tcp") == 0)
        iperf3_take(run, &row.iperf3_gbps);
    bench_report_row(&run->report, &row);
    run->failed |= !row.result.verified;
}

static const struct peer_figures *peers_measure(const struct run *run,
                                                const struct bench_case *work,
                                                struct peer_figures *figures)
{
    char text[256];
    *figures = (struct peer_figures){0};
    progress(run, "peers", work);
    if (peers_run(run->values.peers_dir, work, run->values.iterations, figures,
                  ERROR_BUFFER(text)))
        fprintf(stderr, "baton: without peers: %s\n", text);
    bench_report_peers(&run->report, work, figures);
    return figures;
}

static void size_measure(struct run *run, const char *layout, uint64_t item_bytes)
{
    struct values *values = &run->values;
    struct peer_figures figures;
    const struct peer_figures *peers = NULL;
    for (uint32_t i = 0; i < values->backends.count; i++) {
        struct bench_case work =
            case_make(values, layout, item_bytes, values->backends.items[i]);
        if (i == 0 && values->peers && !work.structured)
            peers = peers_measure(run, &work, &figures);
        case_measure(run, &work, peers);
    }
}

static bool rdma_wanted(const struct values *values)
{
    for (uint32_t i = 0; i < values->backends.count; i++)
        if (strncmp(values->backends.items[i], "verbs", 5) == 0 ||
            strcmp(values->backends.items[i], "ucx") == 0)
            return true;
    return false;
}

static int cases_check(const struct values *values, struct error err)
{
    const char *devices[] = {values->ib_device, values->prefill_device, values->decode_device};
    for (uint32_t i = 0; i < 3; i++)
        if (devices[i] && strlen(devices[i]) >= sizeof(((struct bench_case *)0)->decode_device))
            return error_set(err, BATON_EINVAL, "a list of devices is too long: %s",
                             devices[i]);
    for (uint32_t i = 0; i < values->item_bytes.count; i++) {
        struct bench_case work =
            case_make(values, "per-layer", values->item_bytes.items[i], "shm");
        int rc = bench_case_check(&work, err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

int bench_transfer_main(int argc, char **argv)
{
    static struct run run;
    struct values *values = &run.values;
    char text[256];
    int status = CLI_OK;
    if (!cli_parse(&bench_transfer_command, argc, argv, values, &status))
        return status;
    sizes_choose(values);
    if (cases_check(values, ERROR_BUFFER(text))) {
        cli_failed("bench transfer", text);
        return CLI_USAGE;
    }
    if (backends_choose(values, ERROR_BUFFER(text)))
        return cli_failed("bench transfer", text);
    run.report = (struct bench_report){
        .json = values->json,
        .tp = values->src_tp > 1 || values->dst_tp > 1,
        .peers = values->peers,
        .rdma = rdma_wanted(values),
    };
    bench_report_begin(&run.report);
    for (uint32_t i = 0; i < values->layouts.count; i++)
        for (uint32_t j = 0; j < values->item_bytes.count; j++)
            size_measure(&run, values->layouts.items[i], values->item_bytes.items[j]);
    bench_report_end(&run.report, values->iterations);
    return run.failed ? CLI_FAILED : CLI_OK;
}
