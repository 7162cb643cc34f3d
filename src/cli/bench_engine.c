/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench engine`: how fast a model computes on this machine, as llama.cpp's own programs
 * measure it, so that the two can stand side by side (bench/run_llama.sh):
 *
 *   prompt       one prompt of P tokens, the logits of the last             llama-bench -p
 *   prompts      N prompts of 128                                           llama-batched-bench
 *   generation   one stream of 128 tokens from an empty context             llama-bench -n
 *   streams      N streams of 128 tokens each, after prompts of 128         llama-batched-bench
 *
 * A generated token is the best one of its logits; finding it is part of the time. */
#include "cli.h"

#include "base/clock.h"
#include "bench_case.h"
#include "bench_engine_limits.h"
#include "bench_model.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHORT_PROMPT 128
#define GENERATED 128
#define REPETITIONS_MAX 100
#define STREAMS_MAX 256

struct values {
    const char *kernels;
    uint32_t threads, prompt, streams, repetitions;
    bool cpu_time, no_limits, json;
};

static const struct option options[] = {
    {.name = "threads",
     .type = OPTION_U32,
     .offset = offsetof(struct values, threads),
     .value = "N",
     .max = 256,
     .help = "Compute threads; 0: one for each core"},
    {.name = "kernels",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, kernels),
     .value = "NAME",
     .help = "Which kernels: portable, neon, i8mm, avx2, avx512, amx; otherwise the best"},
    {.name = "prompt",
     .type = OPTION_U32,
     .offset = offsetof(struct values, prompt),
     .value = "N",
     .initial = "512",
     .min = 1,
     .max = 65536,
     .help = "Tokens of the long prompt"},
    {.name = "streams",
     .type = OPTION_U32,
     .offset = offsetof(struct values, streams),
     .value = "N",
     .initial = "8",
     .min = 1,
     .max = STREAMS_MAX,
     .help = "Streams that are generated at once"},
    {.name = "repetitions",
     .type = OPTION_U32,
     .offset = offsetof(struct values, repetitions),
     .value = "N",
     .initial = "5",
     .min = 1,
     .max = REPETITIONS_MAX,
     .help = "Of each measurement; medians are printed"},
    {.name = "cpu-time",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, cpu_time),
     .help =
         "Count the processor's time instead of the clock's: for one thread on a machine that "
         "others use too"},
    {.name = "no-limits",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, no_limits),
     .help = "Leave out what the processor itself can do"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "One JSON object instead of a table"},
};

const struct command bench_engine_command = {
    .name = "bench engine",
    .summary = "tokens a second of a model on this machine's processors",
    .text =
        "Computes prompts and generates, one stream and several at once, and prints tokens a "
        "second, how long opening took, and the limits of the processor: integer products "
        "and reading of memory. bench/run_llama.sh prints llama.cpp's figures beside them.",
    .operands = "MODEL",
    .operand_min = 1,
    .operand_max = 1,
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

struct bench {
    struct bench_model model;
    uint32_t step_tokens; /* of a step at most */
    uint32_t streams;
    int32_t *prompt; /* tokens, long enough for every prompt */
};

struct figures {
    double prompt, prompts, generation, streams; /* tokens a second */
    double open_seconds, first_token_seconds;
    double resident_bytes, peak_bytes; /* without the pool */
};

/* ---- one measurement each: seconds, negative after an error ----------------------------------- */

/* Prompts of `length` in sequences 0 .. count - 1, as many in a step as go in. */
static int run_prompts(struct bench *bench, uint32_t count, uint32_t length, struct error err)
{
    struct engine_sequence sequences[STREAMS_MAX];
    uint32_t together = bench->step_tokens / length ? bench->step_tokens / length : 1;
    for (uint32_t first = 0; first < count; first += together) {
        uint32_t some = count - first < together ? count - first : together;
        for (uint32_t at = 0; at < length; at += bench->step_tokens) {
            uint32_t tokens = length - at;
            if (tokens > bench->step_tokens)
                tokens = bench->step_tokens;
            for (uint32_t i = 0; i < some; i++)
                sequences[i] =
                    bench_model_sequence(&bench->model, first + i, bench->prompt + at, tokens,
                                         at, at + tokens == length);
            int rc =
                engine_step(bench->model.engine, sequences, some, bench->model.logits, err);
            if (rc)
                return rc;
        }
    }
    return BATON_OK;
}

/* `count` streams, each from `position` on. */
static int run_generation(struct bench *bench, uint32_t count, uint32_t position,
                          struct error err)
{
    struct engine_sequence sequences[STREAMS_MAX];
    int32_t tokens[STREAMS_MAX];
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = bench->prompt[i];
    for (uint32_t n = 0; n < GENERATED; n++) {
        for (uint32_t i = 0; i < count; i++)
            sequences[i] =
                bench_model_sequence(&bench->model, i, &tokens[i], 1, position + n, 1);
        int rc = engine_step(bench->model.engine, sequences, count, bench->model.logits, err);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < count; i++)
            tokens[i] = bench_model_best(&bench->model, i);
    }
    return BATON_OK;
}

enum work { WORK_PROMPT, WORK_PROMPTS, WORK_GENERATION, WORK_STREAMS, WORK_COUNT };

static int run_work(struct bench *bench, const struct values *values, enum work work,
                    uint64_t *tokens, struct error err)
{
    switch (work) {
    case WORK_PROMPT:
        *tokens = values->prompt;
        return run_prompts(bench, 1, values->prompt, err);
    case WORK_PROMPTS:
        *tokens = (uint64_t)bench->streams * SHORT_PROMPT;
        return run_prompts(bench, bench->streams, SHORT_PROMPT, err);
    case WORK_GENERATION: *tokens = GENERATED; return run_generation(bench, 1, 0, err);
    default:
        *tokens = (uint64_t)bench->streams * GENERATED;
        return run_generation(bench, bench->streams, SHORT_PROMPT, err);
    }
}

/* The clock, or what the process has used of the processors. */
static uint64_t now_ns(bool cpu_time)
{
    struct timespec used;
    if (!cpu_time || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used))
        return clock_now_ns();
    return (uint64_t)used.tv_sec * 1000 * NS_PER_MS + (uint64_t)used.tv_nsec;
}

/* All four in turn, again and again, so that a slow moment hits them alike. */
static int measure(struct bench *bench, const struct values *values, struct figures *out,
                   struct error err)
{
    double rates[WORK_COUNT][REPETITIONS_MAX];
    for (uint32_t r = 0; r <= values->repetitions; r++) {
        for (int work = 0; work < WORK_COUNT; work++) {
            uint64_t tokens = 0, begin = now_ns(values->cpu_time);
            int rc = run_work(bench, values, (enum work)work, &tokens, err);
            if (rc)
                return rc;
            if (r > 0) /* the first is the warm-up */
                rates[work][r - 1] =
                    (double)tokens * 1e9 / (double)(now_ns(values->cpu_time) - begin);
        }
    }
    out->prompt = samples_quantile(rates[WORK_PROMPT], values->repetitions, 0.5);
    out->prompts = samples_quantile(rates[WORK_PROMPTS], values->repetitions, 0.5);
    out->generation = samples_quantile(rates[WORK_GENERATION], values->repetitions, 0.5);
    out->streams = samples_quantile(rates[WORK_STREAMS], values->repetitions, 0.5);
    return BATON_OK;
}

/* ---- opening ---------------------------------------------------------------------------------- */

/* A line of /proc/self/status, in bytes; 0 where there is none. */
static double status_bytes(const char *name)
{
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, name, strlen(name)) == 0)
            kilobytes = strtod(line + strlen(name), NULL);
    fclose(file);
    return kilobytes * 1024;
}

/* Opens, and computes a first token as a worker would for a prompt of a few words. */
static int open_bench(const struct values *values, const char *path, struct bench *bench,
                      struct figures *figures, struct error err)
{
    uint32_t longest =
        values->prompt > SHORT_PROMPT + GENERATED ? values->prompt : SHORT_PROMPT + GENERATED;
    const struct bench_model_options model = {
        .path = path,
        .kernels = values->kernels,
        .threads = values->threads,
        .sequences = values->streams,
        .positions = longest,
        .tokens_max = values->streams > 512 ? values->streams : 512,
        .logits_max = values->streams,
    };
    uint64_t begin = clock_now_ns();
    int rc = bench_model_open(&model, &bench->model, err);
    if (rc)
        return rc;
    figures->open_seconds = (double)(clock_now_ns() - begin) * 1e-9;
    bench->step_tokens = model.tokens_max;
    bench->streams = values->streams;
    bench->prompt = malloc(longest * sizeof(*bench->prompt));
    if (!bench->prompt)
        return error_set(err, BATON_ENOMEM, "no memory for a prompt of %u tokens", longest);
    for (uint32_t i = 0; i < longest; i++)
        bench->prompt[i] =
            (int32_t)(i * 7919u % engine_config(bench->model.engine)->vocab_size);
    rc = run_prompts(bench, 1, 16, err);
    figures->first_token_seconds = (double)(clock_now_ns() - begin) * 1e-9;
    return rc;
}

/* ---- printing --------------------------------------------------------------------------------- */

/* What the model would take if nothing but the limit counted: every weight but the embedding's is
 * multiplied once for a prompt's token, all of them are read once for a generated one. */
static double prompt_limit(const struct bench *bench, const struct engine_limits *limits)
{
    const struct model_config *config = engine_config(bench->model.engine);
    double hidden = config->hidden_size, heads = config->head_dim * (double)config->head_count;
    double kv = config->head_dim * (double)config->kv_head_count;
    double weights = config->layer_count *
                     (2 * hidden * heads + 2 * hidden * kv + 3 * hidden * config->ffn_size);
    return limits->integer_gops_each * 1e9 * engine_threads(bench->model.engine) /
           (2 * weights);
}

static double generation_limit(const struct bench *bench, const struct engine_limits *limits)
{
    return limits->read_gbps_all * 1e9 / (double)bench->model.file_bytes;
}

static void print_row(const char *what, double rate, double limit)
{
    printf("%-34s %10.1f", what, rate);
    if (limit > 0)
        printf(" %10.0f %7.0f %%", limit, 100 * rate / limit);
    printf("\n");
}

static void print_table(const struct bench *bench, const struct values *values,
                        const struct figures *figures, const struct engine_limits *limits)
{
    char what[64];
    double by_products = limits ? prompt_limit(bench, limits) : 0;
    double by_memory = limits ? generation_limit(bench, limits) : 0;
    printf("%s, kernels %s, %u threads\n", engine_config(bench->model.engine)->name,
           engine_kernels_name(bench->model.engine), engine_threads(bench->model.engine));
    printf("%-34s %10s %10s %9s\n", "", "tokens/s", limits ? "limit" : "",
           limits ? "share" : "");
    snprintf(what, sizeof(what), "prompt of %u", values->prompt);
    print_row(what, figures->prompt, by_products);
    snprintf(what, sizeof(what), "%u prompts of %u", bench->streams, SHORT_PROMPT);
    print_row(what, figures->prompts, by_products);
    print_row("generation, 1 stream", figures->generation, by_memory);
    snprintf(what, sizeof(what), "generation, %u streams", bench->streams);
    print_row(what, figures->streams, by_products);
    if (limits && limits->instruction)
        printf("limit: %s %.0f GOP/s a core, %.0f together\n", limits->instruction,
               limits->integer_gops_each,
               limits->integer_gops_each * engine_threads(bench->model.engine));
    if (limits)
        printf("limit: reading memory %.1f GB/s one core, %.1f together\n",
               limits->read_gbps_one, limits->read_gbps_all);
    printf("opened in %.2f s, first token after %.2f s; weights %.1f MB, resident without the "
           "pool %.1f MB (%.2f of it), at most %.1f MB\n",
           figures->open_seconds, figures->first_token_seconds,
           (double)bench->model.file_bytes * 1e-6, figures->resident_bytes * 1e-6,
           figures->resident_bytes / (double)bench->model.file_bytes,
           figures->peak_bytes * 1e-6);
}

static void print_json(const struct bench *bench, const struct values *values,
                       const struct figures *figures, const struct engine_limits *limits)
{
    printf("{\"bench\":\"engine\",\"kernels\":\"%s\",\"threads\":%u,\"prompt\":%u,"
           "\"streams\":%u,\"prompt_rate\":%.2f,\"prompts_rate\":%.2f,\"generation_rate\":%.2f,"
           "\"streams_rate\":%.2f,\"open_seconds\":%.3f,\"first_token_seconds\":%.3f,"
           "\"weights_bytes\":%llu,\"resident_bytes\":%.0f,\"peak_bytes\":%.0f",
           engine_kernels_name(bench->model.engine), engine_threads(bench->model.engine),
           values->prompt, bench->streams, figures->prompt, figures->prompts,
           figures->generation, figures->streams, figures->open_seconds,
           figures->first_token_seconds, (unsigned long long)bench->model.file_bytes,
           figures->resident_bytes, figures->peak_bytes);
    if (limits)
        printf(",\"integer_gops_each\":%.1f,\"read_gbps_one\":%.2f,\"read_gbps_all\":%.2f,"
               "\"prompt_limit\":%.1f,\"generation_limit\":%.1f",
               limits->integer_gops_each, limits->read_gbps_one, limits->read_gbps_all,
               prompt_limit(bench, limits), generation_limit(bench, limits));
    printf("}\n");
}

int bench_engine_main(int argc, char **argv)
{
    static struct bench bench;
    struct values values;
    struct figures figures;
    struct engine_limits limits;
    const char *path;
    char text[512];
    int status = CLI_OK;
    if (!bench_model_parse(&bench_engine_command, argc, argv, &values, &path, &status))
        return status;
    int rc = open_bench(&values, path, &bench, &figures, ERROR_BUFFER(text));
    if (!rc)
        rc = measure(&bench, &values, &figures, ERROR_BUFFER(text));
    figures.resident_bytes = status_bytes("VmRSS:") - (double)bench.model.pool_bytes;
    figures.peak_bytes = status_bytes("VmHWM:") - (double)bench.model.pool_bytes;
    if (!rc && !values.no_limits)
        rc = engine_limits_measure(engine_threads(bench.model.engine), &limits,
                                   ERROR_BUFFER(text));
    if (!rc)
        (values.json ? print_json : print_table)(&bench, &values, &figures,
                                                 values.no_limits ? NULL : &limits);
    bench_model_close(&bench.model);
    free(bench.prompt);
    return rc ? cli_failed("bench engine", text) : CLI_OK;
}
