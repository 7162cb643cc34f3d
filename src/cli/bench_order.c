/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench order`: the measurement behind the engine's choice of a page order. Both halves are
 * printed, because the choice is between them: an order that keeps a rank's heads together is good
 * for ranks of unequal number, one that keeps a layer together is good for attention. The
 * decision is in docs/rdma.md. */
#include "bench_order.h"

#include "cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct values {
    struct option_strings models;
    uint64_t pool_bytes;
    uint32_t rounds, max_sge;
    bool reads, plan_only, attention_only, json;
};

static const struct option options[] = {
    {.name = "model",
     .type = OPTION_STRINGS,
     .offset = offsetof(struct values, models),
     .value = "M,..",
     .initial = "SmolLM2-135M,Llama-3-8B,Qwen3-8B",
     .choices = "SmolLM2-135M|Llama-3-8B|Qwen3-8B",
     .help = "Whose shapes"},
    {.name = "pool-bytes",
     .type = OPTION_U64,
     .offset = offsetof(struct values, pool_bytes),
     .value = "N",
     .initial = "512M",
     .min = 1 << 20,
     .max = 1ull << 36,
     .help = "Attention: the pool of each order; four are there at once"},
    {.name = "rounds",
     .type = OPTION_U32,
     .offset = offsetof(struct values, rounds),
     .value = "N",
     .initial = "5",
     .min = 1,
     .max = 100,
     .help = "Attention: passes over each pool; medians are printed"},
    {.name = "max-sge",
     .type = OPTION_U32,
     .offset = offsetof(struct values, max_sge),
     .value = "N",
     .initial = "30",
     .min = 1,
     .max = 1024,
     .help = "Pieces of memory in one work request"},
    {.name = "reads",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, reads),
     .help = "The destination reads (verbs-read); without it the source writes (verbs)"},
    {.name = "plan-only",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, plan_only),
     .help = "Only count requests"},
    {.name = "attention-only",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, attention_only),
     .help = "Only measure attention"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "One JSON object per line instead of tables"},
};

const struct command bench_order_command = {
    .name = "bench order",
    .summary = "what the order of a page's dimensions costs, on the wire and in attention",
    .text =
        "Counts the copies and RDMA requests of one page for each pairing of page orders, from "
        "the real plan, for equal and unequal numbers of ranks; and times decode attention "
        "over pools in each order, with small and huge pages, beside per-layer pools.\n\n"
        "  layer      [page][layer][k|v][head][token][dim]\n"
        "  head       [page][head][layer][k|v][token][dim]\n"
        "  paired     [page][layer][head][k|v][token][dim]\n"
        "  per-layer  a pool for each layer's K and V: [page][head][token][dim]",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

static const struct order_shape shapes[] = {
    {"SmolLM2-135M", 30, 3, 3, 64},
    {"Llama-3-8B", 32, 8, 4, 128},
    {"Qwen3-8B", 36, 8, 4, 128},
};

static const char *const pages_names[PAGES_KINDS] = {"in order", "gathered", "scattered"};

#define TPS_MAX 6
struct tp_pair {
    uint32_t src, dst;
};

/* Numbers of ranks that divide the heads. */
static uint32_t tps_choose(const struct order_shape *shape, struct tp_pair out[TPS_MAX])
{
    static const struct tp_pair all[] = {{1, 1}, {1, 2}, {2, 1}, {4, 2},
                                         {1, 4}, {4, 1}, {1, 3}, {3, 1}};
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (count < TPS_MAX && shape->heads % all[i].src == 0 && shape->heads % all[i].dst == 0)
            out[count++] = all[i];
    return count;
}

static void json_line(json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    BATON_ASSERT(text); /* only numbers and our own words are in it */
    puts(text);
    fflush(stdout);
    free(text);
}

/* ---- on the wire ------------------------------------------------------------------------- */

static void plan_header(const struct order_shape *shape, const struct tp_pair *tps,
                        uint32_t tp_count)
{
    printf("\n%s: %u layers, %u KV heads of %u, two bytes each: a page of %u tokens is %llu "
           "bytes\n%-10s %-10s %-9s",
           shape->name, shape->layers, shape->heads, shape->dim, ORDER_TOKENS,
           (unsigned long long)order_page_bytes(shape), "source", "destin.", "pages");
    for (uint32_t i = 0; i < tp_count; i++)
        printf("  |%7s %u->%u %8s", "runs", tps[i].src, tps[i].dst, "B/req");
    printf("\n");
}

static void plan_json(const struct order_question *question, const struct order_count *count)
{
    json_line(json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:f, s:f, s:f}", "bench", "order", "model",
        question->shape->name, "source", order_name(question->src_order), "destination",
        order_name(question->dst_order), "pages", pages_names[question->pages], "reads",
        (int)question->reads, "src_tp", (int)question->src_tp, "dst_tp", (int)question->dst_tp,
        "runs_per_page", count->runs, "requests_per_page", count->requests, "bytes_per_request",
        count->request_bytes));
}

static int plan_row(const struct values *values, struct order_question question,
                    const struct tp_pair *tps, uint32_t tp_count, struct error err)
{
    struct order_count count;
    if (!values->json)
        printf("%-10s %-10s %-9s", order_name(question.src_order),
               order_name(question.dst_order), pages_names[question.pages]);
    for (uint32_t i = 0; i < tp_count; i++) {
        question.src_tp = tps[i].src;
        question.dst_tp = tps[i].dst;
        int rc = order_count(&question, &count, err);
        if (rc)
            return rc;
        if (values->json)
            plan_json(&question, &count);
        else
            printf("  |%6.1f %5.1f %8.0f", count.runs, count.requests, count.request_bytes);
    }
    if (!values->json)
        printf("\n");
    return BATON_OK;
}

static int plan_table(const struct values *values, const struct order_shape *shape,
                      struct error err)
{
    struct tp_pair tps[TPS_MAX];
    uint32_t tp_count = tps_choose(shape, tps);
    int rc = BATON_OK;
    if (!values->json)
        plan_header(shape, tps, tp_count);
    for (int pages = 0; pages < PAGES_KINDS && !rc; pages++)
        for (int src = 0; src < (int)ORDERS && !rc; src++)
            for (int dst = 0; dst < (int)ORDERS && !rc; dst++) {
                struct order_question question = {.shape = shape,
                                                  .src_order = (enum order)src,
                                                  .dst_order = (enum order)dst,
                                                  .pages = (enum order_pages)pages,
                                                  .max_sge = values->max_sge,
                                                  .reads = values->reads};
                rc = plan_row(values, question, tps, tp_count, err);
            }
    return rc;
}

/* ---- in attention ------------------------------------------------------------------------ */

static const char *const kernel_names[KERNELS] = {"engine", "attention", "read only"};

static void attention_print(const struct values *values,
                            const struct attention_question *question,
                            const struct attention_answer *answer, uint32_t list,
                            uint32_t kernel)
{
    const struct attention_figures *figures = &answer->figures[list][kernel];
    const char *size = question->huge ? "huge" : "small";
    const char *pages = list ? "in order" : "scattered";
    const double *ratio = figures->ratio;
    double seconds = figures->seconds[ORDER_PER_LAYER];
    double gbps = (double)answer->bytes / seconds / 1e9;
    if (values->json)
        json_line(json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "bench",
                            kernel_names[kernel], "model", question->shape->name, "memory",
                            size, "pages", pages, "huge_share", answer->huge_share,
                            "per_layer_seconds", seconds, "per_layer_gbps", gbps, "layer_ratio",
                            ratio[ORDER_LAYER], "head_ratio", ratio[ORDER_HEAD], "paired_ratio",
                            ratio[ORDER_PAIRED]));
    else
        printf("%-13s %-9s %-6s %-9s %11.4f %6.2f %8.3f %8.3f %8.3f\n", question->shape->name,
               kernel_names[kernel], size, pages, seconds, gbps, ratio[ORDER_LAYER],
               ratio[ORDER_HEAD], ratio[ORDER_PAIRED]);
    fflush(stdout);
}

static int attention_rows(const struct values *values, const struct order_shape *shape,
                          struct error err)
{
    for (int huge = 0; huge < 2; huge++) {
        struct attention_answer answer;
        struct attention_question question = {.shape = shape,
                                              .pool_bytes = values->pool_bytes,
                                              .huge = huge,
                                              .rounds = values->rounds};
        int rc = attention_measure(&question, &answer, err);
        if (rc)
            return rc;
        if (huge && answer.huge_share < 0.9)
            fprintf(stderr, "baton: only %.0f %% of the pools got huge pages\n",
                    answer.huge_share * 100);
        for (uint32_t kernel = 0; kernel < KERNELS; kernel++)
            for (uint32_t list = 0; list < 2; list++)
                attention_print(values, &question, &answer, list, kernel);
    }
    return BATON_OK;
}

static bool model_wanted(const struct values *values, const struct order_shape *shape)
{
    for (uint32_t i = 0; i < values->models.count; i++)
        if (strcmp(values->models.items[i], shape->name) == 0)
            return true;
    return false;
}

static int plan_print(const struct values *values, struct error err)
{
    int rc = BATON_OK;
    if (!values->json)
        printf("Of one page of the sequence, over all ranks: copies of the plan, RDMA %s "
               "(under the numbers of\nranks; up to %u pieces each), bytes in one of them.\n",
               values->reads ? "reads" : "writes", values->max_sge);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && !rc; i++)
        if (model_wanted(values, &shapes[i]))
            rc = plan_table(values, &shapes[i], err);
    return rc;
}

static int attention_table(const struct values *values, struct error err)
{
    int rc = BATON_OK;
    if (!values->json)
        printf("\nDecode attention, one thread, a pool of %llu MB for each order: seconds of "
               "processor time for one token\nof every sequence (1,024 tokens each) with "
               "per-layer pools, and the ratio of the others to that.\n"
               "%-13s %-9s %-6s %-9s %11s %6s %8s %8s %8s\n",
               (unsigned long long)(values->pool_bytes >> 20), "model", "kernel", "memory",
               "pages", "per-layer s", "GB/s", "layer", "head", "paired");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && !rc; i++)
        if (model_wanted(values, &shapes[i]))
            rc = attention_rows(values, &shapes[i], err);
    return rc;
}

int bench_order_main(int argc, char **argv)
{
    struct values values;
    char text[256];
    int status = CLI_OK, rc = BATON_OK;
    if (!cli_parse(&bench_order_command, argc, argv, &values, &status))
        return status;
    if (!values.attention_only)
        rc = plan_print(&values, ERROR_BUFFER(text));
    if (!rc && !values.plan_only)
        rc = attention_table(&values, ERROR_BUFFER(text));
    return rc ? cli_failed("bench order", text) : CLI_OK;
}
