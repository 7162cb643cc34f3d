/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench serve`: load against a server that speaks SGLang's or OpenAI's HTTP API. */
#include "cli.h"

#include "serve_load.h"
#include "serve_report.h"

#include "net/http_client.h"

#include <event2/event.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct values {
    const char *url, *endpoint, *prompt, *model, *api_key, *tls_ca, *json;
    const char *rate, *trace, *trace_scale;
    uint32_t concurrency, requests, input_tokens, output_tokens, length_percent, shared_prefix;
    uint32_t input_max, output_max, vocabulary, warmup, timeout, slo_ttft, slo_tpot;
    uint64_t seed;
    bool ignore_eos, insecure, quiet;
};

#define NUMBER(text, kind, field, default_text, least, most, words)                         \
    {                                                                                       \
        .name = text, .type = kind, .offset = offsetof(struct values, field), .value = "N", \
        .initial = default_text, .min = least, .max = most, .help = words                   \
    }
#define TEXT(text, field, what, words)                                                 \
    {                                                                                  \
        .name = text, .type = OPTION_STRING, .offset = offsetof(struct values, field), \
        .value = what, .help = words                                                   \
    }
#define SWITCH(text, field, default_text, words)                                     \
    {                                                                                \
        .name = text, .type = OPTION_BOOL, .offset = offsetof(struct values, field), \
        .initial = default_text, .help = words                                       \
    }

static const struct option options[] = {
    {.name = "url",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, url),
     .value = "URL",
     .flags = OPTION_REQUIRED,
     .help = "The server: http://HOST:PORT"},
    {.name = "endpoint",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, endpoint),
     .value = "NAME",
     .initial = "generate",
     .choices = "generate|completions|chat",
     .help = "/generate, /v1/completions or /v1/chat/completions"},
    NUMBER(
        "concurrency", OPTION_U32, concurrency, NULL, 0, 1u << 20,
        "Requests in flight: the next one is sent when one has ended. Without it 1, or, with "
        "--rate or --trace, as many as are due"),
    NUMBER("requests", OPTION_U32, requests, NULL, 0, 1u << 24,
           "How many. Without it 100, or all of the trace"),
    TEXT("rate", rate, "R", "Requests a second, at random instants (Poisson)"),
    TEXT("trace", trace, "FILE", "Instants and lengths from a trace (Mooncake's JSON lines)"),
    TEXT("trace-scale", trace_scale, "X", "The trace X times as fast as recorded"),
    NUMBER("input-tokens", OPTION_U32, input_tokens, "512", 1, 1u << 24, "Tokens of a prompt"),
    NUMBER("output-tokens", OPTION_U32, output_tokens, "64", 1, 1u << 24,
           "Tokens of an answer"),
    NUMBER("length-percent", OPTION_U32, length_percent, "100", 0, 100,
           "Lengths are even between this part of them and all of them"),
    NUMBER("shared-prefix", OPTION_U32, shared_prefix, "0", 0, 1u << 24,
           "Tokens with which every prompt begins"),
    NUMBER("input-max", OPTION_U32, input_max, "0", 0, 1u << 24,
           "Longer prompts of a trace are cut to this; 0: never"),
    NUMBER("output-max", OPTION_U32, output_max, "0", 0, 1u << 24,
           "Longer answers of a trace are cut to this; 0: never"),
    {.name = "prompt",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, prompt),
     .value = "KIND",
     .choices = "ids|text",
     .help = "Random token ids or words. Without it: ids for generate, text for the others"},
    NUMBER("vocabulary", OPTION_U32, vocabulary, "30000", 2, 1u << 30,
           "Token ids are below this"),
    SWITCH("ignore-eos", ignore_eos, "true", "Ask for answers of full length"),
    TEXT("model", model, "NAME",
         "What to ask completions and chat for. Without it: the server's first"),
    TEXT("api-key", api_key, "KEY", "Sent as Authorization: Bearer KEY"),
    NUMBER("warmup", OPTION_U32, warmup, "1", 0, 1u << 20,
           "Requests of the same lengths, sent before and not counted"),
    NUMBER("timeout", OPTION_U32, timeout, "600", 0, 86400,
           "Seconds that a request may take; 0: no limit"),
    NUMBER("slo-ttft", OPTION_U32, slo_ttft, "0", 0, 1u << 30,
           "Goodput: milliseconds to the first token; 0: any"),
    NUMBER("slo-tpot", OPTION_U32, slo_tpot, "0", 0, 1u << 30,
           "Goodput: milliseconds per further token; 0: any"),
    NUMBER("seed", OPTION_U64, seed, "1", 0, 0, "Decides lengths, instants and tokens"),
    TEXT("json", json, "FILE", "The figures as a JSON object; \"-\" is standard output"),
    TEXT("tls-ca", tls_ca, "FILE",
         "Who signs the server's certificate. Without it: the system's"),
    SWITCH("insecure", insecure, NULL, "Take any certificate"),
    SWITCH("quiet", quiet, NULL, "No progress on standard error"),
};

const struct command bench_serve_command = {
    .name = "bench serve",
    .summary = "load against a server, its latencies and throughput",
    .text =
        "Sends prompts of random tokens to an SGLang- or OpenAI-compatible server, reads the "
        "streams, and prints mean, p50, p90 and p99 of the time to the first token (TTFT), per "
        "further token (TPOT), between tokens (ITL) and of whole answers (E2E).\n\n"
        "  baton bench serve --url http://127.0.0.1:30000 --concurrency 8 --requests 200\n"
        "  baton bench serve --url http://127.0.0.1:30000 --rate 4 --endpoint chat\n"
        "  baton bench serve --url http://127.0.0.1:30000 --trace trace.jsonl --trace-scale 2 "
        "\\\n"
        "      --slo-ttft 500 --slo-tpot 50 --json result.json\n\n"
        "With --rate or --trace times count from the instant at which a request was due. "
        "Counts of tokens are the server's where it says them. Interrupted, it prints what it "
        "has.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

static int real_parse(const char *text, const char *name, double *out, struct error err)
{
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || !isfinite(value) || value <= 0)
        return error_set(err, BATON_EINVAL, "--%s %s: a number above 0 is needed", name, text);
    *out = value;
    return BATON_OK;
}

static int plan_options(const struct values *values, struct serve_plan_options *plan,
                        struct error err)
{
    int code = BATON_OK;
    *plan = (struct serve_plan_options){
        .requests = values->requests ? values->requests
                    : values->trace  ? 0
                                     : 100,
        .input_tokens = values->input_tokens,
        .output_tokens = values->output_tokens,
        .length_percent = values->length_percent,
        .shared_prefix = values->shared_prefix,
        .trace = values->trace,
        .trace_scale = 1,
        .input_max = values->input_max,
        .output_max = values->output_max,
        .seed = values->seed,
    };
    if (values->trace && values->rate)
        return error_set(err, BATON_EINVAL,
                         "--trace has instants of its own: leave --rate out");
    if (values->trace_scale && !values->trace)
        return error_set(err, BATON_EINVAL, "--trace-scale needs --trace");
    if (values->rate)
        code = real_parse(values->rate, "rate", &plan->rate, err);
    if (code == BATON_OK && values->trace_scale)
        code = real_parse(values->trace_scale, "trace-scale", &plan->trace_scale, err);
    return code;
}

static int load_options(const struct values *values, struct serve_load_options *load,
                        struct error err)
{
    bool open_loop = values->rate || values->trace;
    enum serve_endpoint endpoint = !strcmp(values->endpoint, "generate") ? SERVE_GENERATE
                                   : !strcmp(values->endpoint, "completions")
                                       ? SERVE_COMPLETIONS
                                       : SERVE_CHAT;
    *load = (struct serve_load_options){
        .url = values->url,
        .prompt = {.endpoint = endpoint,
                   .ids = values->prompt ? !strcmp(values->prompt, "ids")
                                         : endpoint == SERVE_GENERATE,
                   .id_count = values->vocabulary,
                   .ignore_eos = values->ignore_eos,
                   .model = values->model},
        .api_key = values->api_key,
        .concurrency = values->concurrency || open_loop ? values->concurrency : 1,
        .timeout_ms = values->timeout * 1000,
        .warmup = values->warmup,
        .slo_ttft_ms = values->slo_ttft,
        .slo_tpot_ms = values->slo_tpot,
        .progress = !values->quiet && isatty(STDERR_FILENO),
    };
    if (endpoint == SERVE_CHAT && load->prompt.ids)
        return error_set(err, BATON_EINVAL, "a chat is made of text: --prompt ids cannot be");
    return BATON_OK;
}

/* What was asked for, to be kept with the figures. The key is not. */
static char *settings_json(const struct values *values, const struct serve_load_options *load)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:s?, s:s, s:I, s:s?, s:s?, s:s?, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "url", values->url, "endpoint", values->endpoint, "model", load->prompt.model, "prompt",
        load->prompt.ids ? "ids" : "text", "concurrency", (json_int_t)load->concurrency, "rate",
        values->rate, "trace", values->trace, "trace_scale", values->trace_scale,
        "input_tokens", (json_int_t)values->input_tokens, "output_tokens",
        (json_int_t)values->output_tokens, "length_percent", (json_int_t)values->length_percent,
        "shared_prefix", (json_int_t)values->shared_prefix, "warmup", (json_int_t)load->warmup,
        "seed", (json_int_t)values->seed, "slo_ttft_ms", (json_int_t)values->slo_ttft,
        "slo_tpot_ms", (json_int_t)values->slo_tpot);
    char *text = root ? json_dumps(root, 0) : NULL;
    json_decref(root);
    return text;
}

/* A connection per request in flight: as many descriptors as we may have. */
static void descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int report(const struct values *values, const struct serve_load_options *load,
                  struct serve_result *result, struct error err)
{
    int code = BATON_OK;
    bool only_json = values->json && !strcmp(values->json, "-");
    if (!only_json)
        serve_report_print(result, stdout);
    if (values->json) {
        char *settings = settings_json(values, load);
        code = serve_report_json(result, settings ? settings : "{}", values->json, err);
        free(settings);
    }
    return code;
}

static int run(const struct values *values, struct error err)
{
    static char model[256];
    struct serve_plan_options wanted;
    struct serve_load_options load;
    struct serve_plan plan;
    struct serve_result result = {0};
    struct http_client *client = NULL;
    int code = plan_options(values, &wanted, err);
    if (code == BATON_OK)
        code = load_options(values, &load, err);
    if (code == BATON_OK)
        code = serve_plan_make(&wanted, &plan, err);
    if (code != BATON_OK)
        return code;
    descriptors_raise();
    struct event_base *base = event_base_new();
    struct http_client_options client_options = {.base = base,
                                                 .idle_max = 1u << 20,
                                                 .tls_authority = values->tls_ca,
                                                 .tls_unchecked = values->insecure};
    code = base ? http_client_open(&client_options, &client, err)
                : error_set(err, BATON_ENOMEM, "cannot make an event loop");
    if (code == BATON_OK && load.prompt.endpoint != SERVE_GENERATE && !load.prompt.model) {
        if (serve_model_ask(load.url, load.api_key, base, client, model, sizeof(model), err))
            load.prompt.model = model;
        else
            code = BATON_EPEER;
    }
    if (code == BATON_OK)
        code = serve_load_run(&load, &plan, base, client, &result, err);
    if (code == BATON_OK)
        code = report(values, &load, &result, err);
    if (code == BATON_OK && !result.stats.completed)
        code = error_set(err, BATON_EPEER, "no request was answered");
    http_client_close(client);
    if (base)
        event_base_free(base);
    serve_stats_free(&result.stats);
    serve_plan_free(&plan);
    return code;
}

int bench_serve_main(int argc, char **argv)
{
    struct values values;
    char text[512] = "";
    int status;
    if (!cli_parse(&bench_serve_command, argc, argv, &values, &status))
        return status;
    int code = run(&values, ERROR_BUFFER(text));
    if (code == BATON_OK)
        return CLI_OK;
    cli_failed("bench serve", text);
    return code == BATON_EINVAL ? CLI_USAGE : CLI_FAILED;
}
