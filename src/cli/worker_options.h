/* SPDX-License-Identifier: Apache-2.0 */
/* The options of commands that load a model: how it is loaded, how its requests are scheduled, how
 * it is reached. SGLang's spellings are aliases. */
#ifndef BATON_CLI_WORKER_OPTIONS_H
#define BATON_CLI_WORKER_OPTIONS_H

#include "cli.h"

#include "server/api_server.h"

struct worker_values {
    /* ---- the model ---- */
    const char *model_path, *served_name, *chat_template, *weight_version, *kernels;
    uint32_t threads, tp_size;
    /* ---- the scheduler ---- */
    uint32_t max_running, max_queued, chunk_tokens, page_tokens, context_length;
    uint64_t max_tokens, kv_memory;
    const char *kv_type, *page_order;
    double conservativeness, memory_share;
    bool no_cache;
    /* ---- the API ---- */
    const char *host, *api_key, *certificate, *certificate_key, *log_level, *trace_file;
    uint32_t port, http_threads;
    uint64_t body_max;
    bool incremental, no_reasoning, no_tools;
    /* ---- hand-overs ---- */
    const char *transfer_backend, *ib_device, *allow, *transfer_key, *transfer_host;
    uint32_t bootstrap_port, local_tokens, reserved_tokens, deadline;
    struct option_repeated prefill_urls;
    const char *prefill_policy;
    bool verify, no_layerwise, no_optimistic, no_fallback;

    bool ignored; /* flags that others have and that mean nothing here */
};

/* Rows of an option table. */
#define WORKER_OPTION(option_name, option_type, field, ...)          \
    {                                                                \
        .name = option_name, .type = option_type,                    \
        .offset = offsetof(struct worker_values, field), __VA_ARGS__ \
    }

#define WORKER_MODEL_OPTIONS                                                                   \
    WORKER_OPTION("model-path", OPTION_STRING, model_path, .aliases = "model",                 \
                  .value = "MODEL", .help = "The model, where it is not the operand"),         \
        WORKER_OPTION("served-model-name", OPTION_STRING, served_name, .value = "NAME",        \
                      .help = "What clients call it. Without it: the file's name"),            \
        WORKER_OPTION("chat-template", OPTION_STRING, chat_template, .value = "FILE",          \
                      .help = "A Jinja template to use instead of the model's"),               \
        WORKER_OPTION("threads", OPTION_U32, threads, .value = "N", .max = 1024,               \
                      .help = "Threads that compute. Without it: one for each core"),          \
        WORKER_OPTION("tp-size", OPTION_U32, tp_size, .aliases = "tp|tensor-parallel-size",    \
                      .value = "N", .initial = "1", .min = 1, .max = 256,                      \
                      .help =                                                                  \
                          "Ranks that the model's heads are divided among; 2, 4 or 8 may be "  \
                          "more than its KV heads"),                                           \
        WORKER_OPTION("kernels", OPTION_STRING, kernels, .value = "NAME",                      \
                      .help = "Which kernels compute: portable, neon, i8mm, avx2, avx512, "    \
                              "amx. Without it: the best for this processor. All give the "    \
                              "same answers, but amx is more exact"),                          \
        WORKER_OPTION("context-length", OPTION_U32, context_length, .value = "N",              \
                      .help =                                                                  \
                          "Most tokens of a request. Without it: as many as the model has "    \
                          "been trained for"),                                                 \
        WORKER_OPTION("page-size", OPTION_U32, page_tokens, .value = "N", .initial = "16",     \
                      .min = 1, .max = 1024, .help = "Tokens in a page of the KV cache"),      \
        WORKER_OPTION("kv-cache-dtype", OPTION_STRING, kv_type, .value = "TYPE",               \
                      .initial = "auto",                                                       \
                      .choices = "auto|f16|bf16|f32|float16|bfloat16|float32",                 \
                      .help = "Numbers of the KV cache; auto is f16"),                         \
        WORKER_OPTION("page-order", OPTION_STRING, page_order, .value = "ORDER",               \
                      .initial = "pair", .choices = "pair|layer|head",                         \
                      .help =                                                                  \
                          "What is together in a page: a head's K and V, a layer's K, or a "   \
                          "head's layers (fewest pieces when ranks differ)"),                  \
        WORKER_OPTION("max-total-tokens", OPTION_U64, max_tokens, .value = "N",                \
                      .help = "Tokens in the KV cache. Without it: by --kv-memory"),           \
        WORKER_OPTION("kv-memory", OPTION_U64, kv_memory, .value = "BYTES",                    \
                      .help =                                                                  \
                          "Memory for the KV cache. Without it: enough for 32768 tokens or "   \
                          "one whole context, but at most a quarter of what is free"),         \
        WORKER_OPTION("mem-fraction-static", OPTION_REAL, memory_share, .value = "X",          \
                      .help = "Or this share of the memory that is free once the model is "    \
                              "loaded, such as 0.5"),                                          \
        WORKER_OPTION("max-running-requests", OPTION_U32, max_running, .value = "N",           \
                      .initial = "64", .min = 1, .max = 4096,                                  \
                      .help = "Requests that are computed at the same time"),                  \
        WORKER_OPTION("chunked-prefill-size", OPTION_U32, chunk_tokens, .value = "N",          \
                      .initial = "512", .min = 1, .max = 65536,                                \
                      .help = "Prompt tokens in a step: longer prompts are cut"),              \
        WORKER_OPTION("schedule-conservativeness", OPTION_REAL, conservativeness,              \
                      .value = "X", .initial = "1",                                            \
                      .help = "How much of what requests may generate is kept free for them"), \
        WORKER_OPTION("disable-radix-cache", OPTION_BOOL, no_cache,                            \
                      .help = "Prompts share nothing, and nothing is kept of them")

#define WORKER_SERVER_OPTIONS                                                                  \
    WORKER_OPTION("host", OPTION_STRING, host, .value = "HOST", .initial = "127.0.0.1",        \
                  .help = "Address to listen on; 0.0.0.0 for all"),                            \
        WORKER_OPTION("port", OPTION_U32, port, .value = "N", .initial = "30000",              \
                      .max = 65535, .help = "Port to listen on; 0 takes any that is free"),    \
        WORKER_OPTION("api-key", OPTION_STRING, api_key, .value = "KEY",                       \
                      .help = "What clients must show as \"Authorization: Bearer KEY\""),      \
        WORKER_OPTION("ssl-certfile", OPTION_STRING, certificate, .value = "FILE",             \
                      .help = "A certificate (PEM): HTTPS instead of HTTP"),                   \
        WORKER_OPTION("ssl-keyfile", OPTION_STRING, certificate_key, .value = "FILE",          \
                      .help = "Its key (PEM)"),                                                \
        WORKER_OPTION("max-queued-requests", OPTION_U32, max_queued, .value = "N",             \
                      .initial = "4096", .min = 1,                                             \
                      .help = "Requests that may wait; more are refused with 503"),            \
        WORKER_OPTION("max-body", OPTION_U64, body_max, .value = "BYTES", .initial = "64M",    \
                      .min = 1024, .help = "The largest request"),                             \
        WORKER_OPTION("http-threads", OPTION_U32, http_threads, .value = "N", .initial = "1",  \
                      .min = 1, .max = 64, .help = "Threads that serve connections"),          \
        WORKER_OPTION("weight-version", OPTION_STRING, weight_version, .value = "NAME",        \
                      .initial = "default", .help = "What replies call the weights"),          \
        WORKER_OPTION("incremental-streaming-output", OPTION_BOOL, incremental,                \
                      .aliases = "stream-output",                                              \
                      .help = "Streams of /generate have what is new, not all until now"),     \
        WORKER_OPTION("no-reasoning", OPTION_BOOL, no_reasoning,                               \
                      .help = "<think> stays in the answer's text"),                           \
        WORKER_OPTION("no-tool-calls", OPTION_BOOL, no_tools,                                  \
                      .help = "Calls of tools stay in the answer's text"),                     \
        WORKER_OPTION("log-level", OPTION_STRING, log_level, .value = "LEVEL",                 \
                      .choices = "error|warning|info|debug",                                   \
                      .help = "What is logged to stderr. Without it: $BATON_LOG, or warning"), \
        WORKER_OPTION("trace-file", OPTION_STRING, trace_file, .value = "FILE",                \
                      .help =                                                                  \
                          "What happened to each request, for Perfetto or chrome://tracing"),  \
        WORKER_OPTION("enable-metrics", OPTION_BOOL, ignored,                                  \
                      .aliases = "trust-remote-code|skip-server-warmup|enable-cache-report",   \
                      .flags = OPTION_HIDDEN, .help = "Always so")

#define WORKER_TRANSFER_OPTIONS                                                                \
    WORKER_OPTION("bootstrap-port", OPTION_U32, bootstrap_port,                                \
                  .aliases = "disaggregation-bootstrap-port", .value = "N", .initial = "8998", \
                  .max = 65535,                                                                \
                  .help =                                                                      \
                      "Where prefill workers are found: a prefill worker listens on it, a "    \
                      "decode worker takes it where a request names none"),                    \
        WORKER_OPTION(                                                                         \
            "transfer-backend", OPTION_STRING, transfer_backend,                               \
            .aliases = "disaggregation-transfer-backend", .value = "B,..", .initial = "auto",  \
            .help = "How pages travel: auto, or a list of shm, cma, tcp, verbs, ucx, "         \
                    "fake in order of preference"),                                            \
        WORKER_OPTION("ib-device", OPTION_STRING, ib_device,                                   \
                      .aliases = "disaggregation-ib-device", .value = "NAME,..",               \
                      .help = "RDMA devices. Without it: the fastest that are up"),            \
        WORKER_OPTION("transfer-host", OPTION_STRING, transfer_host, .value = "HOST",          \
                      .help = "Address for other workers. Without it: the one that reaches "   \
                              "them"),                                                         \
        WORKER_OPTION("transfer-key", OPTION_STRING, transfer_key, .value = "KEY",             \
                      .help = "A secret that the other workers must know too"),                \
        WORKER_OPTION("transfer-timeout", OPTION_U32, deadline, .value = "SECONDS",            \
                      .initial = "300", .min = 1, .max = 86400,                                \
                      .help = "A hand-over that takes longer has failed"),                     \
        WORKER_OPTION("verify-transfer", OPTION_BOOL, verify,                                  \
                      .help = "Every page is proven by a sum over its bytes")

#define WORKER_PREFILL_OPTIONS                                                                \
    WORKER_OPTION("no-layerwise", OPTION_BOOL, no_layerwise,                                  \
                  .help = "Pages are sent when all layers are computed, not layer by layer"), \
        WORKER_OPTION("no-optimistic", OPTION_BOOL, no_optimistic,                            \
                      .help = "Nothing is computed before decode has pages for it")

/* Of a decode worker that finds prefill workers itself. */
#define WORKER_DECODE_FIRST_OPTIONS                                                       \
    WORKER_OPTION("prefill", OPTION_REPEATED, prefill_urls, .value = "URL",               \
                  .help = "Prefill workers to ask when a request names none"),            \
        WORKER_OPTION("prefill-policy", OPTION_STRING, prefill_policy, .value = "POLICY", \
                      .initial = "round_robin", .choices = "round_robin|prefix",          \
                      .help = "Which of them: in turn, or by the prompt's beginning")

#define WORKER_DECODE_OPTIONS                                                                  \
    WORKER_OPTION("local-prefill-tokens", OPTION_U32, local_tokens, .value = "N",              \
                  .initial = "64",                                                             \
                  .help = "Prompts with fewer uncached tokens are computed here"),             \
        WORKER_OPTION("num-reserved-decode-tokens", OPTION_U32, reserved_tokens, .value = "N", \
                      .initial = "512", .min = 1,                                              \
                      .help = "Tokens kept free for each prompt that is on its way"),          \
        WORKER_OPTION("allow-bootstrap", OPTION_STRING, allow, .value = "CIDR,..",             \
                      .initial =                                                               \
                          "localhost,127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,"     \
                          "169.254.0.0/16,::1/128,fc00::/7,fe80::/10",                         \
                      .help = "Prefill workers that requests may name"),                       \
        WORKER_OPTION("no-fallback", OPTION_BOOL, no_fallback,                                 \
                      .help = "A failed hand-over is an error, not computed here")

/* A model that is loaded and its scheduler. */
struct worker {
    struct served_model *model;
    struct scheduler *scheduler;
    baton_bootstrap *bootstrap; /* of a prefill worker */
};

/* The operand or --model-path; NULL, and it was said that there is none. */
const char *worker_model_path(const struct worker_values *values,
                              const struct option_operands *operands, const char *command);
int worker_open(const struct worker_values *values, enum worker_role role, const char *path,
                struct worker *out, struct error err);
void worker_close(struct worker *worker);

/* A worker that becomes a prefill worker needs a bootstrap server. */
int worker_open_bootstrap(const struct worker_values *values, struct worker *worker,
                          struct role_facts *facts, struct error err);

/* A line on a terminal that says how far the loading is. */
bool worker_progress(void *context, uint64_t done, uint64_t total);

#endif
