/* SPDX-License-Identifier: Apache-2.0 */
/* `baton up MODEL`: prefill workers, decode workers and a router on this machine, by one command. They
 * are watched and started again; Ctrl-C ends them all. */
#include "up_ask.h"
#include "up_display.h"
#include "worker_options.h"

#include "base/clock.h"
#include "router/policy.h"

#include <event2/event.h>
#include <inttypes.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_MS 100u
#define STATUS_MS 1000u
#define READY_SECONDS 300u /* for somebody who waits for an answer */
#define STOP_SECONDS 30u

struct values {
    struct worker_values worker; /* first: its options are part of the table */
    uint32_t prefill, decode, prefill_tp, decode_tp, port, router_threads, max_tokens;
    const char *host, *policy, *flow, *api_key, *log_level, *question;
};

#define UP_OPTION(option_name, option_type, field, ...)                                     \
    {                                                                                       \
        .name = option_name, .type = option_type, .offset = offsetof(struct values, field), \
        __VA_ARGS__                                                                         \
    }

static const struct option options[] = {
    UP_OPTION("prefill", OPTION_U32, prefill, .value = "N", .initial = "1", .max = 32,
              .help = "Prefill workers; with 0 the decode workers do all of it"),
    UP_OPTION("decode", OPTION_U32, decode, .value = "N", .initial = "1", .min = 1, .max = 32,
              .help = "Decode workers"),
    UP_OPTION("prefill-tp", OPTION_U32, prefill_tp, .value = "N", .max = 256,
              .help = "Ranks of each prefill worker. Without it: --tp-size"),
    UP_OPTION("decode-tp", OPTION_U32, decode_tp, .value = "N", .max = 256,
              .help = "Ranks of each decode worker. Without it: --tp-size"),
    UP_OPTION("host", OPTION_STRING, host, .value = "HOST", .initial = "127.0.0.1",
              .help = "Address of the router; 0.0.0.0 for all. Workers stay on this machine"),
    UP_OPTION("port", OPTION_U32, port, .value = "N", .initial = "8000", .max = 65535,
              .help = "Port of the router; 0 takes any that is free"),
    UP_OPTION("policy", OPTION_STRING, policy, .value = "NAME", .initial = "least_loaded",
              .choices = POLICY_NAMES, .help = "Which worker gets a request"),
    UP_OPTION("flow", OPTION_STRING, flow, .value = "FLOW", .initial = "pair",
              .choices = "pair|decode-first",
              .help = "Who finds the prefill worker: the router, or the decode worker itself"),
    UP_OPTION("router-threads", OPTION_U32, router_threads, .value = "N", .initial = "1",
              .min = 1, .max = 64, .help = "Event loops of the router"),
    UP_OPTION("api-key", OPTION_STRING, api_key, .value = "KEY",
              .help = "What clients must show as \"Authorization: Bearer KEY\""),
    UP_OPTION("log-level", OPTION_STRING, log_level, .value = "LEVEL",
              .choices = "error|warning|info|debug", .help = "What the processes log"),
    UP_OPTION("ask", OPTION_STRING, question, .value = "TEXT",
              .help = "A question to begin with. Its answer is streamed to stdout; where that "
                      "is no terminal, it ends after it"),
    UP_OPTION("max-new-tokens", OPTION_U32, max_tokens, .aliases = "max-tokens", .value = "N",
              .initial = "200", .min = 1, .help = "Most tokens of that answer"),
#define OWN_OPTIONS 13
    WORKER_MODEL_OPTIONS,
    WORKER_TRANSFER_OPTIONS,
    WORKER_PREFILL_OPTIONS,
    WORKER_DECODE_OPTIONS,
};

const struct command up_command = {
    .name = "up",
    .summary = "a fleet on this machine: prefill workers, decode workers and their router",
    .text =
        "Starts the processes, waits until they answer, shows what each is doing, and starts "
        "again what dies. Ctrl-C ends all of them. The cores are divided among the workers "
        "unless --threads says how many each gets.\n\n"
        "  baton up model.gguf --prefill 2 --decode 1\n"
        "  baton up model.gguf --ask \"Why is the sky blue?\"",
    .operands = "[MODEL]",
    .operand_max = 1,
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

struct up {
    struct values values;
    struct event_base *base;
    struct http_client *client;
    struct fleet fleet;
    struct display display;
    struct event *interrupt, *terminate, *hangup, *tick, *bound;
    struct ask ask;
    char *authorization;
    char url[300];
    struct http_request *poll;
    char *report;
    size_t report_length;
    uint64_t began_ns;
    uint32_t ticks;
    bool ready, over;
    int status;
};

/* ---- the children's command lines ----------------------------------------------------------- */

struct word_list {
    const char **items;
    uint32_t count;
    bool full;
};

static void word_add(struct word_list *list, const char *word)
{
    if (list->count + 1 < FLEET_WORDS_MAX)
        list->items[list->count++] = word;
    else
        list->full = true;
}

/* What is not for `up` itself goes to every worker whose command knows it, as it was typed. */
static void words_forward(int argc, char **argv, const struct command *command,
                          struct word_list *list)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const struct option *option = options_find(&up_command, argv[i]);
        if (!option)
            continue;
        bool with_value = option->type != OPTION_BOOL && !strchr(argv[i], '=');
        if (option - options >= OWN_OPTIONS && options_find(command, argv[i]) &&
            strcmp(option->name, "model-path") != 0) {
            word_add(list, argv[i]);
            if (with_value)
                word_add(list, argv[i + 1]);
        }
        i += with_value;
    }
}

static uint32_t core_count(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof(cores), &cores) ? 1 : (uint32_t)CPU_COUNT(&cores);
}

static void number_add(struct word_list *list, const char *name, uint32_t number, char *text)
{
    sprintf(text, "%u", number);
    word_add(list, name);
    word_add(list, text);
}

static bool words_make(struct up *up, int argc, char **argv, struct fleet_options *fleet)
{
    static char texts[5][16];
    static const struct command *const commands[] = {&prefill_command, &decode_command};
    const struct values *values = &up->values;
    const uint32_t ranks[] = {values->prefill_tp, values->decode_tp};
    uint32_t threads = core_count() / (values->prefill + values->decode);
    bool full = false;
    for (uint32_t kind = 0; kind <= CHILD_ROUTER; kind++) {
        struct word_list list = {.items = fleet->words[kind]};
        if (kind == CHILD_ROUTER) {
            word_add(&list, "--policy");
            word_add(&list, values->policy);
            word_add(&list, "--flow");
            word_add(&list, values->flow);
            number_add(&list, "--threads", values->router_threads, texts[4]);
        } else {
            words_forward(argc, argv, commands[kind], &list);
            if (!values->worker.threads)
                number_add(&list, "--threads", threads ? threads : 1, texts[kind]);
            if (ranks[kind])
                number_add(&list, "--tp-size", ranks[kind], texts[2 + kind]);
        }
        if (values->api_key) {
            word_add(&list, "--api-key");
            word_add(&list, values->api_key);
        }
        if (values->log_level) {
            word_add(&list, "--log-level");
            word_add(&list, values->log_level);
        }
        full |= list.full;
    }
    return !full;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void up_stop(struct up *up)
{
    const struct timeval patience = {STOP_SECONDS, 0};
    if (up->over)
        return;
    if (!up->fleet.stopping) {
        display_show(&up->display);
        display_line(&up->display, "stopping (once more ends at once)");
        event_add(up->bound, &patience);
    }
    fleet_stop(&up->fleet);
}

static void on_signal(evutil_socket_t number, short what, void *context)
{
    (void)number, (void)what;
    up_stop(context);
}

static void on_bound(evutil_socket_t fd, short what, void *context)
{
    struct up *up = context;
    (void)fd, (void)what;
    display_line(&up->display, "not all requests have ended within %u s", STOP_SECONDS);
    fleet_stop(&up->fleet);
}

static void on_ended(const char *problem, void *context)
{
    struct up *up = context;
    if (problem) {
        display_hide(&up->display);
        up->status = cli_failed("up", problem);
    }
    up->over = true;
    event_base_loopbreak(up->base);
}

static void on_changed(struct child *child, void *context)
{
    struct up *up = context;
    display_changed(&up->display, child);
}

static void on_said(struct child *child, const char *line, void *context)
{
    struct up *up = context;
    display_line(&up->display, "%s: %s", child->name, line);
}

/* ---- ready ---------------------------------------------------------------------------------- */

static void address_tell(struct up *up)
{
    const char *key = up->values.api_key;
    display_hide(&up->display);
    printf("\nbaton: listening on %s\n"
           "  curl %s/v1/chat/completions %s%s%s-d "
           "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n\n",
           up->url, up->url, key ? "-H 'Authorization: Bearer " : "", key ? key : "",
           key ? "' " : "");
    fflush(stdout);
    display_show(&up->display);
}

static void on_answered(struct ask *ask, const char *problem, void *context)
{
    struct up *up = context;
    (void)ask;
    if (problem)
        up->status = cli_failed("up", problem);
    address_tell(up);
    if (problem || !isatty(STDOUT_FILENO))
        up_stop(up);
}

static void up_is_ready(struct up *up)
{
    char text[256];
    up->ready = true;
    display_line(&up->display, "ready after %.1f s",
                 (double)(clock_now_ns() - up->began_ns) / 1e9);
    if (!up->values.question) {
        address_tell(up);
        return;
    }
    display_hide(&up->display);
    up->ask.done = on_answered;
    up->ask.context = up;
    if (ask_start(&up->ask, up->client, up->url, up->authorization, up->values.question,
                  up->values.max_tokens, ERROR_BUFFER(text))) {
        up->status = cli_failed("up", text);
        up_stop(up);
    }
}

/* ---- what the router says ------------------------------------------------------------------- */

static void report_read(struct up *up)
{
    json_t *report = json_loadb(up->report ? up->report : "", up->report_length, 0, NULL);
    const json_t *worker;
    size_t i;
    json_array_foreach(json_object_get(report, "workers"), i, worker)
    {
        const char *url = json_string_value(json_object_get(worker, "url"));
        const char *colon = url ? strrchr(url, ':') : NULL;
        unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
        for (uint32_t j = 0; j + 1 < up->fleet.count; j++) {
            struct child *child = &up->fleet.children[j];
            if (child->port != port)
                continue;
            child->used = json_is_true(json_object_get(worker, "is_healthy"));
            child->in_flight =
                (uint32_t)json_integer_value(json_object_get(worker, "in_flight"));
            child->requests =
                (uint64_t)json_integer_value(json_object_get(worker, "requests_total"));
        }
    }
    json_decref(report);
    display_draw(&up->display);
}

static void report_came(struct http_request *request, const char *bytes, size_t length,
                        void *context)
{
    struct up *up = context;
    (void)request;
    char *larger = realloc(up->report, up->report_length + length);
    if (!larger)
        return;
    memcpy(larger + up->report_length, bytes, length);
    up->report = larger;
    up->report_length += length;
}

static void report_done(struct http_request *request, const struct http_result *result,
                        void *context)
{
    struct up *up = context;
    (void)request;
    up->poll = NULL;
    if (result->outcome == HTTP_OUTCOME_DONE && result->status == 200) {
        if (up->ready)
            report_read(up);
        else if (!up->fleet.stopping)
            up_is_ready(up);
    }
    free(up->report);
    up->report = NULL;
    up->report_length = 0;
}

/* /readiness until it says yes, /workers after that. */
static void router_ask(struct up *up)
{
    const struct http_header key = {"Authorization", up->authorization};
    const struct child *router = fleet_router(&up->fleet);
    const char *host = up->values.host;
    char url[400], text[256];
    bool everywhere = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    snprintf(up->url, sizeof(up->url), strchr(host, ':') ? "http://[%s]:%u" : "http://%s:%u",
             everywhere ? "127.0.0.1" : host, router->port);
    snprintf(url, sizeof(url), "%s%s", up->url, up->ready ? "/workers" : "/readiness");
    const struct http_request_options request = {
        .url = url,
        .headers = &key,
        .header_count = key.value ? 1 : 0,
        .total_ms = 5000,
        .body_came = report_came,
        .done = report_done,
        .context = up,
    };
    if (http_request_start(up->client, &request, &up->poll, ERROR_BUFFER(text)))
        up->poll = NULL;
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    struct up *up = context;
    bool due = !up->ready || (up->display.live && up->ticks % (STATUS_MS / POLL_MS) == 0);
    (void)fd, (void)what;
    up->ticks++;
    if (fleet_router(&up->fleet)->state == CHILD_UP && !up->poll && due)
        router_ask(up);
    if (!up->ready && up->values.question && !up->fleet.stopping &&
        up->ticks > READY_SECONDS * 1000 / POLL_MS) {
        up->status = cli_failed("up", "the fleet did not get ready in time");
        up_stop(up);
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

static int up_open(struct up *up, struct fleet_options *fleet, struct error err)
{
    static const struct timeval tick = {0, POLL_MS * 1000};
    up->base = event_base_new();
    if (!up->base)
        return error_set(err, BATON_ENOMEM, "no event loop");
    const struct http_client_options client = {.base = up->base};
    int rc = http_client_open(&client, &up->client, err);
    if (rc)
        return rc;
    up->interrupt = evsignal_new(up->base, SIGINT, on_signal, up);
    up->terminate = evsignal_new(up->base, SIGTERM, on_signal, up);
    up->hangup = evsignal_new(up->base, SIGHUP, on_signal, up);
    up->tick = event_new(up->base, -1, EV_PERSIST, on_tick, up);
    up->bound = evtimer_new(up->base, on_bound, up);
    if (!up->interrupt || !up->terminate || !up->hangup || !up->tick || !up->bound ||
        event_add(up->interrupt, NULL) || event_add(up->terminate, NULL) ||
        event_add(up->hangup, NULL) || event_add(up->tick, &tick))
        return error_set(err, BATON_ENOMEM, "no event loop");
    fleet->base = up->base;
    display_open(&up->display, &up->fleet);
    return fleet_open(fleet, &up->fleet, err);
}

static void up_close(struct up *up)
{
    struct event *const events[] = {up->interrupt, up->terminate, up->hangup, up->tick,
                                    up->bound};
    fleet_close(&up->fleet);
    if (up->client)
        http_client_close(up->client);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            event_free(events[i]);
    if (up->base)
        event_base_free(up->base);
    free(up->report);
    free(up->authorization);
}

static bool key_make(struct up *up)
{
    return !up->values.api_key ||
           asprintf(&up->authorization, "Bearer %s", up->values.api_key) >= 0;
}

int up_main(int argc, char **argv)
{
    static struct up up;
    static struct fleet_options fleet;
    struct option_operands operands;
    char text[512];
    int status = CLI_OK;
    if (!cli_parse_operands(&up_command, argc, argv, &up.values, &operands, &status))
        return status;
    fleet.model = worker_model_path(&up.values.worker, &operands, "up");
    if (!fleet.model)
        return CLI_USAGE;
    if (access(fleet.model, R_OK))
        return cli_failed("up", "the model cannot be read: no such file or folder");
    fleet.prefill_count = up.values.prefill;
    fleet.decode_count = up.values.decode;
    fleet.decode_first = strcmp(up.values.flow, "decode-first") == 0;
    fleet.host = up.values.host;
    fleet.port = (uint16_t)up.values.port;
    fleet.changed = on_changed;
    fleet.said = on_said;
    fleet.ended = on_ended;
    fleet.context = &up;
    up.began_ns = clock_now_ns();
    if (!words_make(&up, argc, argv, &fleet) || !key_make(&up))
        return cli_failed("up", "too many options");
    if (up_open(&up, &fleet, ERROR_BUFFER(text)))
        up.status = cli_failed("up", text);
    else if (!up.over)
        event_base_dispatch(up.base);
    up_close(&up);
    return up.status;
}
