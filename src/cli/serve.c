/* SPDX-License-Identifier: Apache-2.0 */
/* `baton serve`, `baton prefill` and `baton decode`: a worker behind the OpenAI and SGLang APIs. The
 * first does all of a request, the others each a half, and hand over the KV cache in between. SIGTERM
 * or SIGINT lets the requests that are there finish (a second one does not), then it ends. */
#include "worker_options.h"

#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define CUT_OFF_MS 3000u
#define LEAVE_ROOMS_MS 1000u

static const struct option serve_options[] = {WORKER_MODEL_OPTIONS, WORKER_SERVER_OPTIONS};
static const struct option prefill_options[] = {WORKER_MODEL_OPTIONS, WORKER_SERVER_OPTIONS,
                                                WORKER_TRANSFER_OPTIONS,
                                                WORKER_PREFILL_OPTIONS};
static const struct option decode_options[] = {WORKER_MODEL_OPTIONS, WORKER_SERVER_OPTIONS,
                                               WORKER_TRANSFER_OPTIONS, WORKER_DECODE_OPTIONS,
                                               WORKER_DECODE_FIRST_OPTIONS};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const struct command serve_command = {
    .name = "serve",
    .summary = "one worker that answers: the OpenAI and SGLang APIs for a model",
    .text = "MODEL is a .gguf file, or a folder with config.json, tokenizer.json and "
            "*.safetensors.\n\n"
            "  baton serve model.gguf --port 8000\n"
            "  curl localhost:8000/v1/chat/completions -d "
            "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n\n"
            "A first SIGTERM or Ctrl-C lets requests finish, a second one ends at once.",
    .operands = "[MODEL]",
    .operand_max = 1,
    .options = serve_options,
    .option_count = COUNT(serve_options),
};

const struct command prefill_command = {
    .name = "prefill",
    .summary = "a worker that computes prompts and hands their KV cache to decode workers",
    .text = "Takes requests from a router, each with a room in which a decode worker waits for "
            "the pages.\n\n"
            "  baton prefill model.gguf --port 30000 --bootstrap-port 8998",
    .operands = "[MODEL]",
    .operand_max = 1,
    .options = prefill_options,
    .option_count = COUNT(prefill_options),
};

const struct command decode_command = {
    .name = "decode",
    .summary = "a worker that generates from the KV caches that prefill workers hand to it",
    .text =
        "Takes requests from a router, each with a room and the prefill worker's bootstrap "
        "address. Short prompts, requests without a room, and what could not be handed over "
        "it computes itself.\n\n"
        "  baton decode model.gguf --port 30001",
    .operands = "[MODEL]",
    .operand_max = 1,
    .options = decode_options,
    .option_count = COUNT(decode_options),
};

static struct api_server_options api_options(const struct worker_values *values,
                                             enum worker_role role)
{
    return (struct api_server_options){
        .host = values->host,
        .port = (uint16_t)values->port,
        .loops = values->http_threads,
        .tokenizer_threads = 2,
        .body_max = values->body_max,
        .api_key = values->api_key,
        .tls_certificate = values->certificate,
        .tls_key = values->certificate_key,
        .incremental_stream = values->incremental,
        .reasoning = !values->no_reasoning,
        .tools = !values->no_tools,
        .trace_file = values->trace_file,
        .role = role,
        .bootstrap_port = values->bootstrap_port,
        .prefill_by_prefix =
            values->prefill_policy && strcmp(values->prefill_policy, "prefix") == 0,
        .local_tokens = values->local_tokens,
        .fallback = !values->no_fallback,
        .max_running = values->max_running,
        .tp_size = values->tp_size,
        .chunk_tokens = values->chunk_tokens,
    };
}

static void signal_wait(const sigset_t *signals)
{
    siginfo_t from;
    while (sigwaitinfo(signals, &from) < 0)
        ; /* a debugger, or SIGSTOP and SIGCONT */
    LOG_INFO(serve, "%s from process %d: finishing", strsignal(from.si_signo),
             (int)from.si_pid);
}

/* ---- the end -------------------------------------------------------------------------------- */

typedef uint32_t count_left(struct api_server *server);

static uint32_t connections_left(struct api_server *server)
{
    return api_server_connections(server);
}

/* Until `left` says 0; false: the signal came again. */
static bool wait_for_none(struct api_server *server, count_left *left, const char *what,
                          const sigset_t *signals)
{
    const struct timespec tick = {.tv_nsec = 20 * NS_PER_MS};
    uint64_t said = clock_now_ns();
    while (left(server)) {
        if (sigtimedwait(signals, NULL, &tick) > 0)
            return false;
        if (clock_now_ns() - said > 5000 * NS_PER_MS) {
            said = clock_now_ns();
            fprintf(stderr, "baton: waiting for %u %s (once more ends at once)\n", left(server),
                    what);
        }
    }
    return true;
}

/* Within a step the scheduler lets go of everything; an engine that hangs is not waited for. */
static void cut_off(struct api_server *server, struct worker *worker)
{
    const struct timespec tick = {.tv_nsec = 5 * NS_PER_MS};
    uint64_t began = clock_now_ns();
    fprintf(stderr, "baton: ending at once, %u requests are cut off\n",
            api_server_busy(server));
    scheduler_drain(worker->scheduler);
    while (api_server_busy(server)) {
        scheduler_abort_rid(worker->scheduler, "");
        nanosleep(&tick, NULL);
        if (clock_now_ns() - began > CUT_OFF_MS * NS_PER_MS)
            _exit(CLI_FAILED);
    }
}

/* Who waits in a room that was refused at the last moment is told before the worker goes, if that can
 * be done soon. */
static void leave_rooms(struct worker *worker)
{
    const struct timespec tick = {.tv_nsec = 5 * NS_PER_MS};
    uint64_t began = clock_now_ns();
    struct scheduler_stats stats;
    scheduler_flush_cache(worker->scheduler, 0); /* it has looked at its inbox */
    do {
        scheduler_flush_cache(worker->scheduler, 0); /* and has published what came of it */
        scheduler_stats(worker->scheduler, &stats);
        if (!stats.transfers.rooms_open)
            return;
        nanosleep(&tick, NULL);
    } while (clock_now_ns() - began < LEAVE_ROOMS_MS * NS_PER_MS);
}

/* New requests are refused, those that are there end, their last bytes go out. A second signal cuts
 * that short. */
static int finish(struct api_server *server, struct worker *worker, const sigset_t *signals)
{
    api_server_drain(server);
    if (!wait_for_none(server, api_server_busy, "requests", signals)) {
        cut_off(server, worker);
        return CLI_FAILED;
    }
    leave_rooms(worker);
    api_server_hang_up(server);
    return wait_for_none(server, connections_left, "connections", signals) ? CLI_OK
                                                                           : CLI_FAILED;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* Every client is a file, and shells start programs with few. */
static void files_allow(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void say_ready(const struct worker_values *values, const struct worker *worker,
                      uint16_t port, double seconds)
{
    const struct served_model *model = worker->model;
    printf("baton: %s (%.0f MB, %s kernels, %u threads, KV cache %u tokens) in %.2f s\n",
           model->name, (double)model->weight_bytes / 1e6, engine_kernels_name(model->engine),
           engine_threads(model->engine), scheduler_capacity(worker->scheduler), seconds);
    if (worker->bootstrap)
        printf("baton: bootstrap server on port %u\n", baton_bootstrap_port(worker->bootstrap));
    printf("baton: listening on %s://%s:%u\n", values->certificate ? "https" : "http",
           values->host, port);
    fflush(stdout);
}

/* What a change of role needs to know. */
struct role_context {
    const struct worker_values *values;
    struct worker *worker;
};

static int role_change(void *context, enum worker_role role, struct role_facts *facts,
                       struct error err)
{
    struct role_context *roles = context;
    if (role != ROLE_PREFILL)
        return BATON_OK;
    return worker_open_bootstrap(roles->values, roles->worker, facts, err);
}

static int worker_main(const struct command *command, enum worker_role role, int argc,
                       char **argv)
{
    struct worker_values values = {0};
    struct option_operands operands;
    struct api_server *server = NULL;
    struct worker worker = {0};
    sigset_t signals;
    char text[1024];
    int status = CLI_OK;
    uint64_t began = clock_now_ns();
    if (!cli_parse_operands(command, argc, argv, &values, &operands, &status))
        return status;
    const char *path = worker_model_path(&values, &operands, command->name);
    if (!path)
        return CLI_USAGE;
    if (!values.certificate != !values.certificate_key)
        return cli_failed(command->name, "--ssl-certfile and --ssl-keyfile belong together");
    files_allow();
    /* Blocked before any thread is made, so that only this one takes them. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    const char *urls[OPTION_REPEATED_MAX];
    struct api_server_options api = api_options(&values, role);
    for (uint32_t i = 0; i < values.prefill_urls.count; i++)
        urls[i] = values.prefill_urls.items[i].value;
    struct role_context roles = {&values, &worker};
    api.transfers = role != ROLE_MIXED;
    api.role_change = role_change;
    api.role_context = &roles;
    api.prefill_urls = urls;
    api.prefill_count = values.prefill_urls.count;
    if (api_server_open(&api, &server, ERROR_BUFFER(text)))
        return cli_failed(command->name, text);
    if (worker_open(&values, role, path, &worker, ERROR_BUFFER(text))) {
        api_server_close(server);
        return cli_failed(command->name, text);
    }
    api_server_serve(server, worker.model, worker.scheduler,
                     worker.bootstrap ? baton_bootstrap_port(worker.bootstrap) : 0);
    say_ready(&values, &worker, api_server_port(server),
              (double)(clock_now_ns() - began) / 1e9);
    signal_wait(&signals);
    status = finish(server, &worker, &signals);
    api_server_close(server);
    worker_close(&worker);
    return status;
}

int serve_main(int argc, char **argv)
{
    return worker_main(&serve_command, ROLE_MIXED, argc, argv);
}

int prefill_main(int argc, char **argv)
{
    return worker_main(&prefill_command, ROLE_PREFILL, argc, argv);
}

int decode_main(int argc, char **argv)
{
    return worker_main(&decode_command, ROLE_DECODE, argc, argv);
}
