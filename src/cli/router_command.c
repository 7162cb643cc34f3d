/* SPDX-License-Identifier: Apache-2.0 */
/* `baton router`: one address for clients, many workers behind it. SIGTERM or SIGINT lets the requests
 * that are there finish (a second one does not), then it ends. */
#include "cli.h"

#include "base/clock.h"
#include "router/router.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct values {
    struct option_repeated prefill, decode, mixed;
    const char *host, *policy, *flow, *api_key, *certificate, *certificate_key, *authority;
    const char *log_level;
    uint32_t port, threads, retries, max_in_flight;
    double connect, first_byte, stall, total, health, health_timeout, load;
    uint32_t health_failures;
    uint64_t body_max;
    bool insecure, ignored;
};

#define ROUTER_OPTION(option_name, option_type, field, ...)                                 \
    {                                                                                       \
        .name = option_name, .type = option_type, .offset = offsetof(struct values, field), \
        __VA_ARGS__                                                                         \
    }

static const struct option options[] = {
    ROUTER_OPTION("prefill", OPTION_REPEATED, prefill, .value = "URL",
                  .second = "BOOTSTRAP_PORT",
                  .help = "A prefill worker. Without its bootstrap port it is asked for it"),
    ROUTER_OPTION("decode", OPTION_REPEATED, decode, .value = "URL", .help = "A decode worker"),
    ROUTER_OPTION("worker", OPTION_REPEATED, mixed, .aliases = "worker-url", .value = "URL",
                  .help = "A worker that does both (baton serve)"),
    ROUTER_OPTION("host", OPTION_STRING, host, .value = "HOST", .initial = "127.0.0.1",
                  .help = "Address to listen on; 0.0.0.0 for all"),
    ROUTER_OPTION("port", OPTION_U32, port, .value = "N", .initial = "8000", .max = 65535,
                  .help = "Port to listen on; 0 takes any that is free"),
    ROUTER_OPTION("policy", OPTION_STRING, policy, .value = "NAME", .initial = "least_loaded",
                  .choices = POLICY_NAMES, .help = "Which worker gets a request"),
    ROUTER_OPTION("flow", OPTION_STRING, flow, .value = "FLOW", .initial = "pair",
                  .choices = "pair|decode-first",
                  .help = "pair: prefill and decode get a request at the same time. "
                          "decode-first: only decode does, and finds a prefill worker itself"),
    ROUTER_OPTION("threads", OPTION_U32, threads, .value = "N", .initial = "1", .min = 1,
                  .max = 64, .help = "Event loops"),
    ROUTER_OPTION("retries", OPTION_U32, retries, .aliases = "retry-max-retries", .value = "N",
                  .initial = "1", .max = 16,
                  .help = "How often a request goes to other workers after a bad answer, while "
                          "the client has seen nothing; 0: not after the loss of a worker "
                          "either"),
    ROUTER_OPTION("max-in-flight", OPTION_U32, max_in_flight,
                  .aliases = "max-concurrent-requests", .value = "N", .initial = "4096",
                  .min = 1, .help = "Requests at a time; more are refused with 429"),
    ROUTER_OPTION("max-body", OPTION_U64, body_max, .value = "BYTES", .initial = "64M",
                  .min = 1024, .help = "The largest request"),
    ROUTER_OPTION("api-key", OPTION_STRING, api_key, .value = "KEY",
                  .help =
                      "What clients must show as \"Authorization: Bearer KEY\"; it is shown "
                      "to the workers too"),
    ROUTER_OPTION("ssl-certfile", OPTION_STRING, certificate, .value = "FILE",
                  .help = "A certificate (PEM): HTTPS instead of HTTP"),
    ROUTER_OPTION("ssl-keyfile", OPTION_STRING, certificate_key, .value = "FILE",
                  .help = "Its key (PEM)"),
    ROUTER_OPTION("worker-ca", OPTION_STRING, authority, .value = "FILE",
                  .help = "Who has signed the certificates of workers at https:// (PEM). "
                          "Without it: the system's authorities"),
    ROUTER_OPTION("worker-insecure", OPTION_BOOL, insecure,
                  .help = "Any certificate of a worker is good enough"),
    ROUTER_OPTION("connect-timeout", OPTION_REAL, connect, .value = "SECONDS", .initial = "2",
                  .help = "Until a worker has taken a connection; 0: no limit"),
    ROUTER_OPTION("first-byte-timeout", OPTION_REAL, first_byte, .value = "SECONDS",
                  .initial = "600", .help = "Until a worker's answer begins; 0: no limit"),
    ROUTER_OPTION("stall-timeout", OPTION_REAL, stall, .value = "SECONDS", .initial = "120",
                  .help = "Between two pieces of an answer; 0: no limit"),
    ROUTER_OPTION("request-timeout", OPTION_REAL, total, .aliases = "request-timeout-secs",
                  .value = "SECONDS", .initial = "1800",
                  .help = "For all of an answer; 0: no limit"),
    ROUTER_OPTION("health-interval", OPTION_REAL, health,
                  .aliases = "health-check-interval-secs", .value = "SECONDS", .initial = "5",
                  .help = "How often workers are asked for their health"),
    ROUTER_OPTION("health-timeout", OPTION_REAL, health_timeout,
                  .aliases = "health-check-timeout-secs", .value = "SECONDS", .initial = "5",
                  .help = "How long that may take"),
    ROUTER_OPTION("health-failures", OPTION_U32, health_failures,
                  .aliases = "health-failure-threshold", .value = "N", .initial = "2", .min = 1,
                  .help = "So many in a row, and the worker is not used (at once where nobody "
                          "listens)"),
    ROUTER_OPTION("load-interval", OPTION_REAL, load, .value = "SECONDS", .initial = "1",
                  .help = "How often workers are asked for their load, where the policy wants "
                          "it"),
    ROUTER_OPTION("log-level", OPTION_STRING, log_level, .value = "LEVEL",
                  .choices = "error|warning|info|debug",
                  .help = "What is logged to stderr. Without it: $BATON_LOG, or warning"),
    ROUTER_OPTION("pd-disaggregation", OPTION_BOOL, ignored, .flags = OPTION_HIDDEN,
                  .help = "Always so where there are prefill and decode workers"),
};

const struct command router_command = {
    .name = "router",
    .summary = "one address for clients, and prefill and decode workers behind it",
    .text = "Every request goes to a prefill and a decode worker, with a room in which they "
            "meet; the answer is streamed back. What fails is tried on other workers while "
            "the client has seen nothing of it.\n\n"
            "  baton router --prefill http://h1:30000 8998 --decode http://h2:30001\n"
            "  curl localhost:8000/workers\n\n"
            "Workers can be added and removed while it runs (POST and DELETE /workers). A "
            "first SIGTERM or Ctrl-C lets requests finish, a second one ends at once.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

static uint32_t milliseconds(double seconds)
{
    double ms = seconds * 1000;
    return ms > 0 && ms < 1 ? 1 : ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

static struct router_options router_options_of(const struct values *values)
{
    return (struct router_options){
        .host = values->host,
        .port = (uint16_t)values->port,
        .threads = values->threads,
        .flow = strcmp(values->flow, "pair") == 0 ? ROUTER_PAIR : ROUTER_DECODE_FIRST,
        .policy = policy_find(values->policy),
        .body_max = values->body_max,
        .max_in_flight = values->max_in_flight,
        .retries = values->retries,
        .api_key = values->api_key,
        .certificate = values->certificate,
        .certificate_key = values->certificate_key,
        .worker_authority = values->authority,
        .worker_unchecked = values->insecure,
        .connect_ms = milliseconds(values->connect),
        .first_byte_ms = milliseconds(values->first_byte),
        .stall_ms = milliseconds(values->stall),
        .total_ms = milliseconds(values->total),
        .health_ms = milliseconds(values->health),
        .health_timeout_ms = milliseconds(values->health_timeout),
        .load_ms = milliseconds(values->load),
        .health_failures = values->health_failures,
    };
}

static int workers_add(struct router *router, const struct option_repeated *uses,
                       enum upstream_role role, struct error err)
{
    for (uint32_t i = 0; i < uses->count; i++) {
        const char *second = uses->items[i].second;
        uint64_t port = 0;
        /* sglang-router's word for "unknown" is none. */
        bool known = second && strcmp(second, "none") != 0;
        int rc = known ? options_number(second, "the bootstrap port", 1, 65535, &port, err)
                       : BATON_OK;
        if (!rc)
            rc = router_add(router, role, uses->items[i].value,
                            known ? (int)port : UPSTREAM_PORT_UNKNOWN, err);
        if (rc)
            return rc;
    }
    return BATON_OK;
}

/* Until the last answer is out, or the signal comes again. */
static void drain(struct router *router, const sigset_t *signals)
{
    const struct timespec tick = {.tv_nsec = 20 * NS_PER_MS};
    uint64_t said = clock_now_ns();
    router_drain(router);
    while (router_busy(router)) {
        if (sigtimedwait(signals, NULL, &tick) > 0) {
            fprintf(stderr, "baton: ending at once, %u requests are cut off\n",
                    router_busy(router));
            return;
        }
        if (clock_now_ns() - said > 5000 * NS_PER_MS) {
            said = clock_now_ns();
            fprintf(stderr, "baton: waiting for %u requests (once more ends at once)\n",
                    router_busy(router));
        }
    }
}

int router_main(int argc, char **argv)
{
    static struct values values;
    struct router *router = NULL;
    sigset_t signals;
    char text[1024];
    int status = CLI_OK, received = 0;
    if (!cli_parse(&router_command, argc, argv, &values, &status))
        return status;
    if (!values.certificate != !values.certificate_key)
        return cli_failed("router", "--ssl-certfile and --ssl-keyfile belong together");
    if (values.log_level)
        setenv("BATON_LOG", values.log_level, 1);
    /* Blocked before any thread is made, so that only this one takes them. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    const struct router_options router_options = router_options_of(&values);
    if (router_open(&router_options, &router, ERROR_BUFFER(text)))
        return cli_failed("router", text);
    int rc = workers_add(router, &values.prefill, UPSTREAM_PREFILL, ERROR_BUFFER(text));
    if (!rc)
        rc = workers_add(router, &values.decode, UPSTREAM_DECODE, ERROR_BUFFER(text));
    if (!rc)
        rc = workers_add(router, &values.mixed, UPSTREAM_MIXED, ERROR_BUFFER(text));
    if (rc)
        status = cli_failed("router", text);
    else {
        printf("baton: listening on %s://%s:%u\n", values.certificate ? "https" : "http",
               values.host, router_port(router));
        fflush(stdout);
        sigwait(&signals, &received);
        drain(router, &signals);
    }
    router_close(router);
    return status;
}
