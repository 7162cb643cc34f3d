/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests, for the three endpoints that `baton bench serve` knows, and what their streams say. */
#ifndef BATON_CLI_SERVE_PROMPT_H
#define BATON_CLI_SERVE_PROMPT_H

#include "serve_plan.h"

enum serve_endpoint { SERVE_GENERATE, SERVE_COMPLETIONS, SERVE_CHAT };

struct serve_prompt_options {
    enum serve_endpoint endpoint;
    bool ids;          /* token ids, not text */
    uint32_t id_count; /* ids are below this */
    bool ignore_eos;
    const char *model; /* NULL: the field is left out */
};

const char *serve_endpoint_path(enum serve_endpoint endpoint);
/* From malloc; NULL: no memory. */
char *serve_body(const struct serve_prompt_options *options, const struct serve_plan *plan,
                 uint32_t item, size_t *length);

struct serve_event {
    bool end;               /* [DONE] */
    bool token;             /* text came; at least one token */
    uint32_t tokens_so_far; /* the server's count; 0: it does not say */
    uint32_t prompt_tokens; /* 0: it does not say */
    char error[400];        /* "": none */
};
void serve_event_read(enum serve_endpoint endpoint, const char *data, size_t length,
                      struct serve_event *event);

#endif
