/* SPDX-License-Identifier: Apache-2.0 */
/* Sends a plan to a server and measures the answers, on one event loop. */
#ifndef BATON_CLI_SERVE_LOAD_H
#define BATON_CLI_SERVE_LOAD_H

#include "serve_prompt.h"
#include "serve_stats.h"

struct http_client;
struct event_base;

struct serve_load_options {
    const char *url; /* http://host:port */
    struct serve_prompt_options prompt;
    const char *api_key;  /* NULL: none */
    uint32_t concurrency; /* requests in flight at most; 0: no limit */
    uint32_t timeout_ms;  /* of one request; 0: none */
    uint32_t warmup;      /* requests before, which do not count */
    double slo_ttft_ms, slo_tpot_ms;
    bool progress; /* a line on standard error, again and again */
};

struct serve_result {
    struct serve_stats stats;
    uint32_t sent;
    double seconds; /* from the first request to the last answer */
    bool interrupted;
};

/* 0 also when requests fail: that is in the result. Negative: nothing could be sent. */
int serve_load_run(const struct serve_load_options *options, const struct serve_plan *plan,
                   struct event_base *base, struct http_client *client,
                   struct serve_result *result, struct error err);

/* The first model that the server lists; false: it does not. */
bool serve_model_ask(const char *url, const char *api_key, struct event_base *base,
                     struct http_client *client, char *model, size_t size, struct error err);

#endif
