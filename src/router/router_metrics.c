/* SPDX-License-Identifier: Apache-2.0 */
/* /metrics, in the text format of Prometheus. */
#include "router_parts.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds double from 10 us on: 10 us, 20 us, ... 5.2 s. */
static double bucket_bound(uint32_t index)
{
    return 1e-5 * (double)(1u << index);
}

void router_observe(struct router_histogram *histogram, uint64_t ns)
{
    uint32_t i = 0;
    while (i < ROUTER_BUCKETS && (double)ns * 1e-9 > bucket_bound(i))
        i++;
    router_count(&histogram->buckets[i]);
    atomic_store_explicit(&histogram->sum_ns,
                          atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed) + ns,
                          memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* The field at `offset` of all loops' numbers. */
static uint64_t sum(const struct router *router, size_t offset)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < router->options.threads; i++)
        total += load(
            (const _Atomic uint64_t *)(const void *)((const char *)&router->loops[i].numbers +
                                                     offset));
    return total;
}

static void counters_write(const struct router *router, FILE *out)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } rows[] = {
#define ROUTER_COUNTER_ROW(field, name, help) \
    {name, help, offsetof(struct router_numbers, field)},
        ROUTER_COUNTERS(ROUTER_COUNTER_ROW)
#undef ROUTER_COUNTER_ROW
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].help)
            fprintf(out, "# HELP baton:router_%.*s %s\n# TYPE baton:router_%.*s counter\n",
                    (int)strcspn(rows[i].name, "{"), rows[i].name, rows[i].help,
                    (int)strcspn(rows[i].name, "{"), rows[i].name);
        fprintf(out, "baton:router_%s %" PRIu64 "\n", rows[i].name,
                sum(router, rows[i].offset));
    }
}

static void histogram_write(const struct router *router, const char *name, const char *help,
                            size_t offset, FILE *out)
{
    uint64_t below = 0;
    fprintf(out, "# HELP baton:router_%s %s\n# TYPE baton:router_%s histogram\n", name, help,
            name);
    for (uint32_t i = 0; i <= ROUTER_BUCKETS; i++) {
        below += sum(router, offset + offsetof(struct router_histogram, buckets) +
                                 i * sizeof(_Atomic uint64_t));
        if (i < ROUTER_BUCKETS)
            fprintf(out, "baton:router_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
                    bucket_bound(i), below);
    }
    fprintf(out, "baton:router_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, below);
    fprintf(out, "baton:router_%s_sum %.9f\nbaton:router_%s_count %" PRIu64 "\n", name,
            (double)sum(router, offset + offsetof(struct router_histogram, sum_ns)) * 1e-9,
            name, below);
}

static void upstream_write(const struct upstream *upstream, const char *name, uint64_t value,
                           FILE *out)
{
    fprintf(out, "baton:router_worker_%s{worker=\"%s\",role=\"%s\"} %" PRIu64 "\n", name,
            upstream->url, upstream_role_name(upstream->role), value);
}

static void upstreams_write(const struct upstream_set *set, FILE *out)
{
    static const struct {
        const char *name, *type, *help;
    } rows[] = {
        {"up", "gauge", "1: it answers and is used."},
        {"in_flight", "gauge", "Requests of this router at the worker."},
        {"other_requests", "gauge", "Requests of others, as of its last load report."},
        {"requests_total", "counter", "Legs sent to the worker."},
        {"failures_total", "counter", "Of those, failed."},
    };
    uint64_t now = clock_now_ns();
    for (uint32_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        fprintf(out, "# HELP baton:router_worker_%s %s\n# TYPE baton:router_worker_%s %s\n",
                rows[row].name, rows[row].help, rows[row].name, rows[row].type);
        for (uint32_t i = 0; i < set->count; i++) {
            const struct upstream *one = set->items[i];
            const uint64_t values[] = {upstream_usable(one, now), atomic_load(&one->in_flight),
                                       atomic_load(&one->other_requests),
                                       load(&one->requests_total), load(&one->failures_total)};
            upstream_write(one, rows[row].name, values[row], out);
        }
    }
}

void router_metrics_reply(struct router *router, struct http_exchange *exchange)
{
    char *text = NULL;
    size_t length = 0;
    struct router_loop *loop = router_loop_of(router, exchange);
    FILE *out = open_memstream(&text, &length);
    if (out) {
        counters_write(router, out);
        histogram_write(router, "added_latency_seconds",
                        "What the router itself spent on a request.",
                        offsetof(struct router_numbers, added), out);
        histogram_write(router, "time_to_first_byte_seconds", "Until the answer began.",
                        offsetof(struct router_numbers, first_byte), out);
        histogram_write(router, "request_seconds", "Until the answer was out.",
                        offsetof(struct router_numbers, whole), out);
        fprintf(out,
                "# HELP baton:router_in_flight Requests whose answer is not out.\n"
                "# TYPE baton:router_in_flight gauge\nbaton:router_in_flight %u\n",
                atomic_load(&router->in_flight));
        fprintf(out,
                "# HELP baton:router_connections Connections of clients.\n"
                "# TYPE baton:router_connections gauge\nbaton:router_connections %u\n",
                http_server_connections(router->server));
        upstreams_write(loop->set, out);
        fclose(out);
    }
    if (text)
        http_exchange_reply(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text,
                            length);
    else
        http_exchange_reply_error(exchange, 500, "server_error", "out_of_memory",
                                  "out of memory");
    free(text);
}
