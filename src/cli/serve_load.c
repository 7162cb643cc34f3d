/* SPDX-License-Identifier: Apache-2.0 */
/* See serve_load.h. A request is due at its instant of the plan, or, in a closed loop, when one before it
 * has ended. Its times count from when it was due: one that had to wait here, because so many were in
 * flight, has waited. */
#include "serve_load.h"

#include "net/http_client.h"
#include "net/sse.h"

#include "base/clock.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define CONNECT_MS 10000
#define PROGRESS_MS 250
#define EVENT_MAX (16u << 20)
#define ERROR_BODY_MAX 400

struct load {
    const struct serve_load_options *options;
    const struct serve_plan *plan; /* of this phase */
    struct event_base *base;
    struct http_client *client;
    struct event *next_timer, *progress_timer, *interrupt;
    char url[512];
    char authorization[300];
    bool warming;
    uint32_t next, limit; /* items of the plan: to send, and where to stop */
    uint32_t running;
    TAILQ_HEAD(, flight) flights;
    uint64_t start_ns, tokens_seen, progress_tokens, progress_ns;
    struct serve_result *result;
    struct error err;
    int code;
};

/* One request in flight. */
struct flight {
    TAILQ_ENTRY(flight) entry;
    struct load *load;
    struct http_request *request;
    uint32_t item;
    struct sse sse;
    struct serve_sample sample;
    int status;
    char error[400];               /* of the stream */
    char body[ERROR_BODY_MAX + 1]; /* of an answer that is no stream */
    size_t body_length;
};

static void requests_send(struct load *load);

/* ---- an answer ---------------------------------------------------------------------------- */

/* Tokens have come: `count` of them since the event before. */
static void tokens_note(struct flight *flight, uint32_t count)
{
    struct serve_sample *sample = &flight->sample;
    uint64_t now = clock_now_ns();
    if (!count)
        return;
    flight->load->tokens_seen += count;
    if (!sample->first_ns) {
        sample->first_ns = now;
    } else if (!flight->load->warming) {
        double gap = (double)(now - sample->last_ns) / 1e6 / count;
        for (uint32_t i = 0; i < count; i++)
            serve_series_add(&flight->load->result->stats.itl, gap);
    }
    sample->last_ns = now;
    sample->tokens += count;
}

static bool event_came(const char *name, const char *data, size_t length, void *context)
{
    struct flight *flight = context;
    struct serve_event event;
    enum serve_endpoint endpoint = flight->load->options->prompt.endpoint;
    (void)name;
    serve_event_read(endpoint, data, length, &event);
    if (*event.error && !*flight->error)
        memcpy(flight->error, event.error, sizeof(flight->error));
    if (event.prompt_tokens)
        flight->sample.prompt_tokens = event.prompt_tokens;
    if (endpoint == SERVE_GENERATE && event.tokens_so_far)
        tokens_note(flight, event.tokens_so_far > flight->sample.tokens
                                ? event.tokens_so_far - flight->sample.tokens
                                : 0);
    else
        tokens_note(flight, event.token);
    /* Some events carry several tokens, or none that is text; the server's count at the end is right. */
    if (endpoint != SERVE_GENERATE && event.tokens_so_far && flight->sample.first_ns)
        flight->sample.tokens = event.tokens_so_far;
    return true;
}

static void head_came(struct http_request *request, const struct http_head *head, void *context)
{
    struct flight *flight = context;
    (void)request;
    flight->status = head->status;
}

static void body_came(struct http_request *request, const char *bytes, size_t length,
                      void *context)
{
    struct flight *flight = context;
    (void)request;
    if (flight->status == 200) {
        if (!*flight->error && sse_feed(&flight->sse, bytes, length) != BATON_OK)
            snprintf(flight->error, sizeof(flight->error), "an event of more than 16 MiB");
        return;
    }
    size_t room = ERROR_BODY_MAX - flight->body_length;
    size_t taken = length < room ? length : room;
    memcpy(flight->body + flight->body_length, bytes, taken);
    flight->body_length += taken;
}

static const char *outcome_name(enum http_outcome outcome)
{
    switch (outcome) {
    case HTTP_OUTCOME_DONE: return "done";
    case HTTP_OUTCOME_UNREACHABLE: return "unreachable";
    case HTTP_OUTCOME_TIMEOUT: return "timeout";
    case HTTP_OUTCOME_BROKEN: return "connection broken";
    case HTTP_OUTCOME_GARBLED: return "no HTTP";
    case HTTP_OUTCOME_MEMORY: return "out of memory";
    }
    return "?";
}

/* Counts the request as answered or as one of the errors. */
static void flight_judge(struct flight *flight, const struct http_result *http)
{
    struct serve_stats *stats = &flight->load->result->stats;
    const struct serve_item *item = &flight->load->plan->items[flight->item];
    char reason[32];
    if (http->outcome != HTTP_OUTCOME_DONE) {
        serve_stats_error(stats, outcome_name(http->outcome), http->error);
    } else if (http->status != 200) {
        snprintf(reason, sizeof(reason), "HTTP %d", http->status);
        serve_stats_error(stats, reason, flight->body);
    } else if (*flight->error) {
        serve_stats_error(stats, "error in the stream", flight->error);
    } else if (!flight->sample.tokens) {
        serve_stats_error(stats, "no tokens", "the answer ended without a token");
    } else {
        stats->shorter += flight->sample.tokens < item->output_tokens;
        serve_stats_add(stats, &flight->sample);
    }
}

static int warmup_failed(struct load *load, const struct http_result *http, const char *body)
{
    if (http->outcome != HTTP_OUTCOME_DONE)
        return error_set(load->err, BATON_EPEER, "the warm-up failed: %s", http->error);
    return error_set(load->err, BATON_EPEER, "the warm-up failed: %s answers %d: %s", load->url,
                     http->status, body);
}

static void flight_free(struct flight *flight)
{
    TAILQ_REMOVE(&flight->load->flights, flight, entry);
    flight->load->running--;
    sse_close(&flight->sse);
    free(flight);
}

static void request_done(struct http_request *request, const struct http_result *http,
                         void *context)
{
    struct flight *flight = context;
    struct load *load = flight->load;
    (void)request;
    flight->sample.end_ns = clock_now_ns();
    if (!load->warming)
        flight_judge(flight, http);
    else if (http->outcome != HTTP_OUTCOME_DONE || http->status != 200)
        load->code = warmup_failed(load, http, flight->body);
    flight_free(flight);
    requests_send(load);
}

/* ---- sending ------------------------------------------------------------------------------ */

static int request_send(struct load *load, uint32_t item, uint64_t due_ns)
{
    const struct serve_load_options *options = load->options;
    struct http_header headers[] = {{"Content-Type", "application/json"},
                                    {"Accept", "text/event-stream"},
                                    {"Authorization", load->authorization}};
    struct iovec piece;
    char *body = serve_body(&options->prompt, load->plan, item, &piece.iov_len);
    struct flight *flight = calloc(1, sizeof(*flight));
    int code = BATON_ENOMEM;
    if (!body || !flight) {
        error_set(load->err, code, "out of memory for a request");
        goto drop;
    }
    piece.iov_base = body;
    flight->load = load;
    flight->item = item;
    flight->sample.due_ns = due_ns;
    flight->sample.prompt_tokens = load->plan->items[item].input_tokens;
    sse_open(&flight->sse, EVENT_MAX, event_came, flight);
    struct http_request_options request = {
        .method = "POST",
        .url = load->url,
        .headers = headers,
        .header_count = options->api_key ? 3 : 2,
        .body = &piece,
        .body_pieces = 1,
        .connect_ms = CONNECT_MS,
        .total_ms = options->timeout_ms,
        .head = head_came,
        .body_came = body_came,
        .done = request_done,
        .context = flight,
    };
    code = http_request_start(load->client, &request, &flight->request, load->err);
    if (code == BATON_OK) {
        free(body);
        TAILQ_INSERT_TAIL(&load->flights, flight, entry);
        load->running++;
        return BATON_OK;
    }
drop:
    free(body);
    free(flight);
    return code;
}

static void timer_set(struct event *timer, uint64_t delay_ns)
{
    struct timeval delay = {(time_t)(delay_ns / 1000000000),
                            (suseconds_t)(delay_ns / 1000 % 1000000)};
    event_add(timer, &delay);
}

/* All that are due and have a place. */
static void requests_send(struct load *load)
{
    uint32_t most = load->options->concurrency;
    while (load->next < load->limit && load->code == BATON_OK &&
           (!most || load->running < most)) {
        uint64_t now = clock_now_ns();
        uint64_t due = load->start_ns + load->plan->items[load->next].due_ns;
        bool planned = load->plan->items[load->next].due_ns > 0 && !load->warming;
        if (planned && due > now) {
            timer_set(load->next_timer, due - now);
            return;
        }
        load->code = request_send(load, load->next, planned ? due : now);
        if (load->code == BATON_OK)
            load->next++;
    }
    if (!load->running)
        event_base_loopbreak(load->base);
}

static void next_due(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    requests_send(context);
}

static void progress_show(evutil_socket_t fd, short what, void *context)
{
    struct load *load = context;
    const struct serve_stats *stats = &load->result->stats;
    uint64_t now = clock_now_ns();
    double seconds = (double)(now - load->progress_ns) / 1e9;
    (void)fd, (void)what;
    fprintf(stderr, "\r\033[K%s%u of %u done, %u running, %u errors, %.0f tokens/s, %.0f s ",
            load->warming ? "warming up: " : "", stats->completed + stats->errors, load->limit,
            load->running, stats->errors,
            (double)(load->tokens_seen - load->progress_tokens) / seconds,
            (double)(now - load->start_ns) / 1e9);
    fflush(stderr);
    load->progress_tokens = load->tokens_seen;
    load->progress_ns = now;
}

static void interrupted(evutil_socket_t fd, short what, void *context)
{
    struct load *load = context;
    (void)fd, (void)what;
    load->result->interrupted = true;
    event_base_loopbreak(load->base);
}

static void phase_run(struct load *load, const struct serve_plan *plan, bool warming,
                      uint32_t limit)
{
    struct flight *flight;
    load->plan = plan;
    load->warming = warming;
    load->next = 0;
    load->limit = limit;
    load->start_ns = load->progress_ns = clock_now_ns();
    requests_send(load);
    if (load->running || load->next < load->limit)
        event_base_dispatch(load->base);
    event_del(load->next_timer);
    while ((flight = TAILQ_FIRST(&load->flights))) { /* interrupted, or it failed */
        http_request_cancel(flight->request);
        flight_free(flight);
    }
}

/* Other prompts than those that count: a prefix cache must not know them. */
static void warm_up(struct load *load, const struct serve_plan *plan)
{
    struct serve_plan other = *plan;
    uint32_t wanted = load->options->warmup;
    other.seed = ~other.seed;
    phase_run(load, &other, true, wanted < plan->count ? wanted : plan->count);
}

static bool timers_open(struct load *load)
{
    static const struct timeval often = {0, PROGRESS_MS * 1000};
    load->next_timer = evtimer_new(load->base, next_due, load);
    load->progress_timer = event_new(load->base, -1, EV_PERSIST, progress_show, load);
    load->interrupt = evsignal_new(load->base, SIGINT, interrupted, load);
    if (!load->next_timer || !load->progress_timer || !load->interrupt)
        return false;
    if (load->options->progress)
        event_add(load->progress_timer, &often);
    event_add(load->interrupt, NULL);
    return true;
}

static void timers_close(struct load *load)
{
    if (load->next_timer)
        event_free(load->next_timer);
    if (load->progress_timer)
        event_free(load->progress_timer);
    if (load->interrupt)
        event_free(load->interrupt);
    if (load->options->progress)
        fprintf(stderr, "\r\033[K");
}

int serve_load_run(const struct serve_load_options *options, const struct serve_plan *plan,
                   struct event_base *base, struct http_client *client,
                   struct serve_result *result, struct error err)
{
    struct load load = {
        .options = options, .base = base, .client = client, .result = result, .err = err};
    size_t length = strlen(options->url);
    while (length && options->url[length - 1] == '/')
        length--;
    snprintf(load.url, sizeof(load.url), "%.*s%s", (int)length, options->url,
             serve_endpoint_path(options->prompt.endpoint));
    snprintf(load.authorization, sizeof(load.authorization), "Bearer %s",
             options->api_key ? options->api_key : "");
    memset(result, 0, sizeof(*result));
    result->stats.slo_ttft_ms = options->slo_ttft_ms;
    result->stats.slo_tpot_ms = options->slo_tpot_ms;
    if (!timers_open(&load))
        load.code = error_set(err, BATON_ENOMEM, "out of memory for timers");
    TAILQ_INIT(&load.flights);
    if (load.code == BATON_OK && options->warmup)
        warm_up(&load, plan);
    if (load.code == BATON_OK && !result->interrupted)
        phase_run(&load, plan, false, plan->count);
    result->seconds = (double)(clock_now_ns() - load.start_ns) / 1e9;
    result->sent = load.next;
    timers_close(&load);
    return load.code;
}
