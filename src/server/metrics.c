/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <stdarg.h>
#include <stdio.h>

/* Seconds; the upper ends are SGLang's, the lower ones are for fast workers. */
static const double bounds[HISTOGRAM_BUCKETS - 1] = {
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06,
    0.08,  0.1,   0.2,   0.4,   0.6,   0.8,  1,     2,    4,    6,    8,
    10,    20,    40,    60,    80,    100,  200,   400,  800};

void histogram_add(struct histogram *histogram, double seconds)
{
    uint32_t i = 0;
    while (i < HISTOGRAM_BUCKETS - 1 && seconds > bounds[i])
        i++;
    atomic_fetch_add_explicit(&histogram->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_us, (uint64_t)(seconds * 1e6),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->count, 1, memory_order_relaxed);
}

struct page {
    struct byte_buffer *out;
    const char *model;
    int rc;
};

__attribute__((format(printf, 2, 3))) static void put(struct page *page, const char *format,
                                                      ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (length > 0 && !page->rc)
        page->rc = byte_buffer_append(
            page->out, line, (size_t)length < sizeof(line) ? (size_t)length : sizeof(line) - 1);
}

static void head(struct page *page, const char *name, const char *type, const char *help)
{
    put(page, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct page *page, const char *name, double value, const char *help)
{
    head(page, name, "gauge", help);
    put(page, "%s{model_name=\"%s\"} %.9g\n", name, page->model, value);
}

static void counter(struct page *page, const char *name, uint64_t value, const char *help)
{
    head(page, name, "counter", help);
    put(page, "%s{model_name=\"%s\"} %llu\n", name, page->model, (unsigned long long)value);
}

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void histogram_put(struct page *page, const char *name,
                          const struct histogram *histogram, const char *help)
{
    uint64_t below = 0;
    head(page, name, "histogram", help);
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        below += load(&histogram->buckets[i]);
        if (i + 1 < HISTOGRAM_BUCKETS)
            put(page, "%s_bucket{model_name=\"%s\",le=\"%g\"} %llu\n", name, page->model,
                bounds[i], (unsigned long long)below);
        else
            put(page, "%s_bucket{model_name=\"%s\",le=\"+Inf\"} %llu\n", name, page->model,
                (unsigned long long)below);
    }
    put(page, "%s_sum{model_name=\"%s\"} %.6f\n", name, page->model,
        (double)load(&histogram->sum_us) / 1e6);
    put(page, "%s_count{model_name=\"%s\"} %llu\n", name, page->model,
        (unsigned long long)below);
}

static void scheduler_put(struct page *page, const struct scheduler_stats *stats,
                          const struct metrics_facts *facts)
{
    gauge(page, "sglang:num_running_reqs", stats->running, "Requests that are computed now.");
    gauge(page, "sglang:num_queue_reqs", stats->waiting, "Requests that wait to be computed.");
    gauge(page, "sglang:num_retracted_reqs", stats->retracted_waiting,
          "Requests that lost their pages and wait for new ones.");
    gauge(page, "sglang:num_used_tokens", stats->used_tokens, "Tokens held by requests.");
    gauge(page, "sglang:token_usage",
          facts->capacity_tokens ? (double)stats->used_tokens / facts->capacity_tokens : 0,
          "Share of the pool that requests hold.");
    gauge(page, "sglang:max_total_num_tokens", facts->capacity_tokens, "Tokens in the pool.");
    gauge(page, "sglang:max_running_requests", facts->max_running, "Requests in a step.");
    gauge(page, "sglang:gen_throughput", stats->generation_rate, "Tokens generated a second.");
    gauge(page, "sglang:cache_hit_rate", stats->cache_hit_rate,
          "Share of prompt tokens that were cached.");
    gauge(page, "sglang:new_token_ratio", stats->new_token_ratio,
          "Share of the promised tokens that admission counts with.");
    counter(page, "sglang:prompt_tokens_total", stats->prompt_tokens, "Prompt tokens.");
    counter(page, "sglang:cached_tokens_total", stats->cached_tokens, "Of those, cached.");
    counter(page, "sglang:generation_tokens_total", stats->generated_tokens,
            "Tokens generated.");
    counter(page, "sglang:num_requests_total", stats->requests, "Requests taken.");
    counter(page, "sglang:num_aborted_requests_total", stats->aborted, "Requests aborted.");
    counter(page, "baton:failed_requests_total", stats->failed, "Requests that failed.");
    counter(page, "baton:retractions_total", stats->retractions, "Retractions.");
    counter(page, "baton:steps_total", stats->steps, "Steps of the engine.");
    head(page, "baton:pages", "gauge", "Pages of the KV pool by what they are.");
    put(page, "baton:pages{state=\"free\"} %u\n", stats->pages.free);
    put(page, "baton:pages{state=\"used\"} %u\n", stats->pages.used);
    put(page, "baton:pages{state=\"cached\"} %u\n", stats->pages.cached);
    put(page, "baton:pages{state=\"locked\"} %u\n", stats->pages.locked);
    put(page, "baton:pages{state=\"quarantined\"} %u\n", stats->pages.quarantined);
}

static void transfer_put(struct page *page, const struct scheduler_stats *stats)
{
    double ms = stats->transfer_ms;
    gauge(page, "sglang:num_prefill_bootstrap_queue_reqs", stats->bootstrapping,
          "Requests that decode has not given pages yet.");
    gauge(page, "sglang:num_prefill_inflight_queue_reqs", stats->inflight,
          "Requests that are computed and on their way.");
    gauge(page, "sglang:num_decode_prealloc_queue_reqs", stats->preallocating,
          "Requests that wait for pages.");
    gauge(page, "sglang:num_decode_transfer_queue_reqs", stats->transferring,
          "Requests whose pages are being filled.");
    gauge(page, "baton:landed_reqs", stats->landed, "Requests that wait for a place to run.");
    gauge(page, "baton:limbo_rooms", stats->limbo,
          "Failed hand-overs whose pages are not yet safe to use.");
    gauge(page, "sglang:kv_transfer_latency_ms", ms,
          "From the first byte to the last one's arrival, lately.");
    gauge(page, "sglang:kv_transfer_total_mb", stats->transfer_mb,
          "Megabytes of a hand-over, lately.");
    gauge(page, "sglang:kv_transfer_speed_gb_s", ms > 0 ? stats->transfer_mb / ms : 0,
          "Bytes of a hand-over by its time, lately.");
    gauge(page, "sglang:kv_transfer_bootstrap_ms", stats->bootstrap_ms,
          "Until both sides know of a room, lately.");
    gauge(page, "sglang:kv_transfer_alloc_ms", stats->alloc_ms,
          "Until decode had pages for it, lately.");
    counter(page, "sglang:num_transfer_failed_reqs_total", stats->handovers_failed,
            "Hand-overs that failed.");
    counter(page, "baton:handovers_total", stats->handovers, "Hand-overs begun.");
    counter(page, "baton:handovers_declined_total", stats->handovers_declined,
            "Hand-overs that decode did without.");
    counter(page, "baton:recomputed_total", stats->recomputed,
            "Prompts computed at decode after a failed hand-over.");
    counter(page, "baton:kept_tokens_total", stats->kept_tokens,
            "Tokens of failed hand-overs that had landed and were not computed again.");
    counter(page, "baton:steps_given_up_total", stats->given_up,
            "Steps begun again because somebody in them was gone.");
    counter(page, "baton:transfer_sent_bytes_total", stats->transfers.bytes_sent,
            "Bytes sent.");
    counter(page, "baton:transfer_received_bytes_total", stats->transfers.bytes_received,
            "Bytes received.");
    counter(page, "baton:transfer_fallbacks_total", stats->transfers.fallbacks,
            "Links that did not get the first backend.");
    gauge(page, "baton:transfer_links", stats->transfers.links_up, "Links to other workers.");
}

/* A label's value cannot have these in it as they are. */
static void label_copy(const char *name, char *out, size_t size)
{
    size_t length = 0;
    for (; *name && length + 3 < size; name++) {
        if (*name == '"' || *name == '\\')
            out[length++] = '\\';
        out[length++] = *name == '\n' ? ' ' : *name;
    }
    out[utf8_valid_prefix(out, length)] =
        '\0'; /* a long name may have been cut inside a character */
}

int metrics_page(const struct metrics *metrics, const struct scheduler_stats *stats,
                 const struct metrics_facts *facts, struct byte_buffer *out)
{
    char model[128];
    struct page page = {.out = out, .model = model};
    label_copy(facts->model_name, model, sizeof(model));
    scheduler_put(&page, stats, facts);
    if (facts->transfers)
        transfer_put(&page, stats);
    histogram_put(&page, "sglang:time_to_first_token_seconds", &metrics->first_token,
                  "From the request to its first token.");
    histogram_put(&page, "sglang:inter_token_latency_seconds", &metrics->between_tokens,
                  "From one token to the next.");
    histogram_put(&page, "sglang:e2e_request_latency_seconds", &metrics->end_to_end,
                  "From the request to its last token.");
    counter(&page, "baton:http_requests_total", load(&metrics->requests), "HTTP requests.");
    head(&page, "baton:http_replies_total", "counter", "Replies to HTTP requests.");
    put(&page, "baton:http_replies_total{kind=\"ok\"} %llu\n",
        (unsigned long long)load(&metrics->replies_ok));
    put(&page, "baton:http_replies_total{kind=\"refused\"} %llu\n",
        (unsigned long long)load(&metrics->replies_refused));
    put(&page, "baton:http_replies_total{kind=\"failed\"} %llu\n",
        (unsigned long long)load(&metrics->replies_failed));
    counter(&page, "baton:clients_left_total", load(&metrics->clients_left),
            "Clients that left before their reply was out.");
    counter(&page, "baton:streams_held_total", load(&metrics->streams_held),
            "Times a stream waited for a slow reader.");
    gauge(&page, "baton:http_connections", facts->connections, "Connections.");
    return page.rc;
}
