/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP side of a worker: one port that speaks the OpenAI API and SGLang's. It listens before the
 * model is loaded, so that a taken port is an error at once, and replies 503 until then.
 *
 *   api_server_open            listens; /health says 503
 *   api_server_serve           the model and its scheduler are there: replies
 *   api_server_drain           new requests get 503; those that are there go on to their end
 *   api_server_busy == 0       the scheduler has nothing of ours any more
 *   api_server_hang_up         the port is closed, connections as soon as their reply is out
 *   api_server_connections == 0
 *   api_server_close           cuts what is left; then the scheduler may be closed
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

/* Of a worker that becomes a prefill worker: where its bootstrap server is. */
struct role_facts {
    uint32_t bootstrap_port;
    char bootstrap[96]; /* "host:port", as its own ranks call it; "": they know */
};

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
    const char *trace_file;  /* NULL: none */
    enum worker_role role;
    bool transfers; /* it can take part in hand-overs: the role may be changed */
    /* Prepares for a new role, while nothing runs; NULL: nothing to do. */
    int (*role_change)(void *context, enum worker_role role, struct role_facts *facts,
                       struct error err);
    void *role_context;
    uint32_t bootstrap_port; /* of a room whose request names none; a prefill worker's own */
    const char *const
        *prefill_urls; /* whom a decode worker asks to compute prompts; borrowed */
    uint32_t prefill_count;
    bool prefill_by_prefix; /* equal beginnings go to the same one; false: in turn */
    uint32_t local_tokens;  /* shorter prompts are computed here */
    bool fallback;          /* so are those for which no room is found */
    uint32_t max_running, tp_size, chunk_tokens;
};

struct api_server;

int api_server_open(const struct api_server_options *options, struct api_server **out,
                    struct error err);
/* bootstrap_port: of a prefill worker's own bootstrap server; 0: there is none. */
void api_server_serve(struct api_server *server, const struct served_model *model,
                      struct scheduler *scheduler, uint32_t bootstrap_port);
void api_server_drain(struct api_server *server);
uint32_t api_server_busy(struct api_server *server); /* requests in it */
void api_server_hang_up(struct api_server *server);
uint32_t api_server_connections(const struct api_server *server);
uint16_t api_server_port(const struct api_server *server);
/* Nothing may be busy: the scheduler must not deliver any more. NULL is fine. */
void api_server_close(struct api_server *server);

#endif
