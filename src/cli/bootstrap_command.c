/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bootstrap`: the place where ranks find each other, as a process of its own. Engines
 * that bring their own processes need one somewhere; usually it lives in a prefill worker. */
#include "cli.h"

#include <pthread.h>
#include <signal.h>

struct values {
    const char *host;
    uint32_t port;
};

static const struct option options[] = {
    {.name = "host",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, host),
     .value = "HOST",
     .help = "Address to listen on. Without it: all"},
    {.name = "port",
     .type = OPTION_U32,
     .offset = offsetof(struct values, port),
     .value = "N",
     .initial = "8998",
     .max = 65535,
     .help = "Port to listen on; 0 takes any that is free"},
};

const struct command bootstrap_command = {
    .name = "bootstrap",
    .summary = "a bootstrap server, where prefill and decode ranks find each other",
    .text = "Listens until it is interrupted. It speaks the HTTP calls of SGLang's bootstrap "
            "server: /route, /register_dp_rank, /query_dp_ranks and /health.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

int bootstrap_main(int argc, char **argv)
{
    struct values values;
    baton_bootstrap *server = NULL;
    sigset_t end;
    char text[512];
    int status = CLI_OK, received = 0;
    if (!cli_parse(&bootstrap_command, argc, argv, &values, &status))
        return status;
    /* Blocked before the library starts its threads, so that only we take them. */
    sigemptyset(&end);
    sigaddset(&end, SIGINT);
    sigaddset(&end, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &end, NULL);
    if (baton_bootstrap_open(values.host, values.port, &server, text, sizeof(text)))
        return cli_failed("bootstrap", text);
    printf("bootstrap server on %s port %u\n", values.host ? values.host : "all addresses",
           baton_bootstrap_port(server));
    fflush(stdout);
    sigwait(&end, &received);
    baton_bootstrap_close(server);
    return CLI_OK;
}
