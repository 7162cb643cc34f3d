/* SPDX-License-Identifier: Apache-2.0 */
/* One question to a server, its answer streamed to stdout. */
#ifndef BATON_CLI_UP_ASK_H
#define BATON_CLI_UP_ASK_H

#include "net/http_client.h"
#include "net/sse.h"

struct ask {
    struct http_request *request;
    struct sse events;
    char problem[512]; /* what the server said instead */
    size_t problem_length;
    uint32_t pieces;
    bool finished; /* [DONE] has come */
    bool wrote;
    int status;
    void (*done)(struct ask *ask, const char *problem, void *context); /* NULL: all is well */
    void *context;
};

/* url: "http://host:port". `done` comes once, from the loop. */
int ask_start(struct ask *ask, struct http_client *client, const char *url,
              const char *authorization, const char *question, uint32_t max_tokens,
              struct error err);

#endif
