/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP side of a worker: one port that speaks the OpenAI API and SGLang's. It listens before the
 * model is loaded, so that a taken port is an error at once, and replies 503 until then.
 *
 *   api_server_open         listens; /health says 503
 *   api_server_serve        the model and its scheduler are there: replies
 *   api_server_drain        no new generations; those that are there end
 *   api_server_close        after the scheduler was closed
 */
#ifndef BATON_SERVER_API_SERVER_H
#define BATON_SERVER_API_SERVER_H

#include "metrics.h"
#include "served_model.h"
#include "work_pool.h"

#include "net/http_server.h"

enum worker_role {
    ROLE_MIXED = 0, /* does both */
    ROLE_PREFILL,   /* computes prompts and sends them away */
    ROLE_DECODE     /* goes on with what it is sent */
};
const char *worker_role_name(enum worker_role role); /* SGLang's words: null, prefill, decode */

struct api_server_options {
    const char *host;
    uint16_t port;
    uint32_t loops, tokenizer_threads;
    uint64_t body_max;
    const char *api_key; /* NULL: open */
    const char *tls_certificate, *tls_key;
    bool incremental_stream; /* /generate streams what is new rather than all until now */
    bool reasoning;          /* <think> is taken apart */
    bool tools;              /* and so are calls */
    enum worker_role role;
    uint32_t bootstrap_port; /* of a room whose request names none */
    uint32_t max_running, tp_size, chunk_tokens;
};

struct api_server;

int api_server_open(const struct api_server_options *options, struct api_server **out,
                    struct error err);
void api_server_serve(struct api_server *server, const struct served_model *model,
                      struct scheduler *scheduler);
void api_server_drain(struct api_server *server);
uint32_t api_server_busy(const struct api_server *server); /* requests in it */
uint16_t api_server_port(const struct api_server *server);
void api_server_close(struct api_server *server); /* NULL is fine */

#endif
