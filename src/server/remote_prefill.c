/* SPDX-License-Identifier: Apache-2.0 */
#include "remote_prefill.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CONNECT_MS 500
#define ANSWER_MS 2000
#define TRIES 2
#define AFFINITY_TOKENS \
    256u /* of a prompt's beginning, which decide where its prefix is kept */

/* One prompt on its way to a room. */
struct remote_prefill {
    struct api_server *server;
    struct reply *reply; /* NULL: the client has left; the room, if one comes, is given up */
    struct reply_prompt *prompt;
    struct http_request *request;
    uint32_t tries, target;
    uint32_t rooms; /* one for each choice, counted up */
    struct byte_buffer answer;
};

bool remote_prefill_wanted(const struct reply *reply)
{
    const struct api_server_options *options = &reply->server->options;
    if (reply->server->role != ROLE_DECODE || !options->prefill_count || reply->rooms.rooms ||
        reply->rooms.hosts)
        return false;
    for (uint32_t i = 0; i < reply->prompt_count; i++)
        if (reply->prompts[i].tokens.count >= options->local_tokens)
            return true;
    return false;
}

/* ---- what is asked for ---------------------------------------------------------------------- */

static void sampling_write(struct json_writer *out, const struct generation_settings *settings)
{
    const struct sampling *sampling = &settings->sampling;
    char token[24];
    json_put_key(out, "sampling_params");
    json_put_open(out, '{');
    json_put_key_real(out, "temperature", sampling->temperature);
    json_put_key_real(out, "top_p", sampling->top_p);
    json_put_key_real(out, "min_p", sampling->min_p);
    json_put_key_int(out, "top_k", sampling->top_k);
    json_put_key_real(out, "repetition_penalty", sampling->repetition_penalty);
    json_put_key_real(out, "frequency_penalty", sampling->frequency_penalty);
    json_put_key_real(out, "presence_penalty", sampling->presence_penalty);
    json_put_key_int(out, "sampling_seed", (int64_t)sampling->seed);
    json_put_key_int(out, "max_new_tokens", settings->max_new_tokens);
    json_put_key_int(out, "min_new_tokens", settings->min_new_tokens);
    json_put_key_bool(out, "ignore_eos", settings->ignore_eos);
    json_put_key_int(out, "n", settings->n);
    json_put_key(out, "stop_token_ids");
    json_put_open(out, '[');
    for (uint32_t i = 0; i < settings->stop_token_count; i++)
        json_put_int(out, settings->stop_tokens[i]);
    json_put_close(out, ']');
    json_put_key(out, "logit_bias");
    json_put_open(out, '{');
    for (uint32_t i = 0; i < sampling->bias_count; i++) {
        snprintf(token, sizeof(token), "%d", sampling->biases[i].token);
        json_put_key_real(out, token, sampling->biases[i].bias);
    }
    json_put_close(out, '}');
    json_put_close(out, '}');
}

static void body_write(struct json_writer *out, const struct remote_prefill *remote)
{
    const struct reply *reply = remote->reply;
    json_put_open(out, '{');
    json_put_key_text(out, "rid", reply->id);
    json_put_key(out, "input_ids");
    json_put_open(out, '[');
    for (size_t i = 0; i < remote->prompt->tokens.count; i++)
        json_put_int(out, remote->prompt->tokens.ids[i]);
    json_put_close(out, ']');
    sampling_write(out, &remote->prompt->settings);
    json_put_key_bool(out, "return_logprob", reply->logprobs);
    json_put_key_int(out, "top_logprobs_num", reply->top_logprobs);
    json_put_key_int(out, "priority", reply->priority);
    if (reply->cache_key)
        json_put_key_text(out, "extra_key", reply->cache_key);
    json_put_close(out, '}');
}

/* ---- who is asked --------------------------------------------------------------------------- */

static uint32_t target_first(const struct remote_prefill *remote)
{
    struct api_server *server = remote->server;
    const struct token_list *tokens = &remote->prompt->tokens;
    size_t count = tokens->count < AFFINITY_TOKENS ? tokens->count : AFFINITY_TOKENS;
    if (server->options.prefill_by_prefix)
        return (uint32_t)(XXH3_64bits(tokens->ids, count * sizeof(*tokens->ids)) %
                          server->options.prefill_count);
    return (uint32_t)(atomic_fetch_add(&server->prefill_next, 1) %
                      server->options.prefill_count);
}

static void remote_free(struct remote_prefill *remote)
{
    byte_buffer_free(&remote->answer);
    free(remote);
}

/* With a room, or without: the prompt's question is settled. */
static void remote_settled(struct remote_prefill *remote)
{
    struct reply *reply = remote->reply;
    remote->prompt->remote = NULL;
    remote_free(remote);
    if (--reply->remote_pending == 0)
        reply_continue(reply);
}

static void answer_came(struct http_request *request, const char *bytes, size_t length,
                        void *context)
{
    struct remote_prefill *remote = context;
    (void)request;
    if (remote->answer.length + length < 65536)
        byte_buffer_append(&remote->answer, bytes, length);
}

/* Where the answer says the first room is; false: it does not. */
static bool room_read(const json_t *answer, struct handover *out)
{
    const char *host = json_string_value(json_object_get(answer, "bootstrap_host"));
    const json_t *port = json_object_get(answer, "bootstrap_port");
    const json_t *room = json_object_get(answer, "bootstrap_room");
    if (!host || !*host || strlen(host) >= 64 || !json_is_integer(port) ||
        !json_is_integer(room) || json_integer_value(room) < 0)
        return false;
    snprintf(out->bootstrap, sizeof(out->bootstrap),
             strchr(host, ':') && host[0] != '[' ? "[%s]:%d" : "%s:%d", host,
             (int)json_integer_value(port));
    out->kind = HANDOVER_RECEIVE;
    out->room = (uint64_t)json_integer_value(room);
    return true;
}

static void rooms_give_up(struct api_server *server, struct handover room, uint32_t count,
                          const char *reason)
{
    for (uint32_t i = 0; i < count; i++, room.room++)
        scheduler_refuse_room(server->scheduler, &room, BATON_EABORTED, reason);
}

/* The client has left, and nobody asks any more. */
static void orphan_done(struct remote_prefill *remote, const struct handover *room)
{
    struct api_server *server = remote->server;
    if (room)
        rooms_give_up(server, *room, remote->rooms, "the client left");
    remote_free(remote);
    api_leave(server);
}

/* No prefill worker took it. If it is not to be computed here, that is the client's answer. */
static void remote_refused(struct remote_prefill *remote, int status, const char *reason)
{
    const struct api_server_options *options = &remote->server->options;
    if (!options->fallback)
        request_refuse(&remote->reply->error, status >= 400 && status < 500 ? status : 503,
                       NULL, "no room at %s: %s", options->prefill_urls[remote->target],
                       reason);
    remote_settled(remote);
}

static void remote_ask(struct remote_prefill *remote);

static void request_done(struct http_request *request, const struct http_result *result,
                         void *context)
{
    struct remote_prefill *remote = context;
    const struct api_server_options *options = &remote->server->options;
    struct handover room = {0};
    json_t *answer = json_loadb(remote->answer.bytes ? remote->answer.bytes : "",
                                remote->answer.length, 0, NULL);
    bool found = result->outcome == HTTP_OUTCOME_DONE && result->status == 200 &&
                 room_read(answer, &room);
    (void)request;
    remote->request = NULL;
    if (!remote->reply) {
        orphan_done(remote, found ? &room : NULL);
    } else if (found) {
        memcpy(remote->prompt->bootstrap, room.bootstrap, sizeof(room.bootstrap));
        remote->prompt->room = room.room;
        remote_settled(remote);
    } else {
        LOG_WARNING(server, "request %s: no room at %s: %s (status %d)", remote->reply->id,
                    options->prefill_urls[remote->target], result->error, result->status);
        if (++remote->tries < TRIES) {
            remote->target = (remote->target + 1) % options->prefill_count;
            remote_ask(remote);
        } else {
            const char *said =
                json_string_value(json_object_get(json_object_get(answer, "error"), "message"));
            remote_refused(remote, result->status, said ? said : result->error);
        }
    }
    json_decref(answer);
}

static void remote_ask(struct remote_prefill *remote)
{
    struct api_server *server = remote->server;
    struct json_writer body = {0};
    char url[512], key[512], reason[256] = "out of memory";
    struct http_header headers[2] = {{"Content-Type", "application/json"}};
    uint32_t header_count = 1;
    struct http_client *client = api_client(server, remote->reply->loop);
    remote->answer.length = 0;
    body_write(&body, remote);
    snprintf(url, sizeof(url), "%s/prefill", server->options.prefill_urls[remote->target]);
    if (server->options.api_key) {
        snprintf(key, sizeof(key), "Bearer %s", server->options.api_key);
        headers[header_count++] = (struct http_header){"Authorization", key};
    }
    struct iovec piece = {body.out.bytes, body.out.length};
    const struct http_request_options options = {
        .method = "POST",
        .url = url,
        .headers = headers,
        .header_count = header_count,
        .body = &piece,
        .body_pieces = 1,
        .connect_ms = CONNECT_MS,
        .first_byte_ms = ANSWER_MS,
        .total_ms = ANSWER_MS,
        .body_came = answer_came,
        .done = request_done,
        .context = remote,
    };
    bool failed = body.failed || !client ||
                  http_request_start(client, &options, &remote->request, ERROR_BUFFER(reason));
    json_writer_free(&body);
    if (failed)
        remote_refused(remote, 503, reason);
}

void remote_prefill_begin(struct reply *reply)
{
    const struct api_server_options *options = &reply->server->options;
    reply->remote_pending = 1; /* ours, until all are begun */
    for (uint32_t i = 0; i < reply->prompt_count; i++) {
        struct reply_prompt *prompt = &reply->prompts[i];
        if (prompt->tokens.count < options->local_tokens)
            continue;
        struct remote_prefill *remote = calloc(1, sizeof(*remote));
        if (!remote)
            continue; /* computed here */
        *remote = (struct remote_prefill){.server = reply->server,
                                          .reply = reply,
                                          .prompt = prompt,
                                          .rooms = prompt->settings.n};
        remote->target = target_first(remote);
        prompt->remote = remote;
        reply->remote_pending++;
        remote_ask(remote);
    }
    if (--reply->remote_pending == 0)
        reply_continue(reply);
}

void remote_prefill_cancel(struct reply *reply, const char *reason)
{
    struct request_error ignored = {0};
    for (uint32_t i = 0; i < reply->prompt_count; i++) {
        struct reply_prompt *prompt = &reply->prompts[i];
        struct handover room = {.kind = HANDOVER_RECEIVE, .room = prompt->room};
        memcpy(room.bootstrap, prompt->bootstrap, sizeof(room.bootstrap));
        if (prompt->bootstrap[0])
            rooms_give_up(reply->server, room, prompt->settings.n, reason);
        if (!prompt->remote)
            continue;
        /* Whoever is asked may have begun: the answer is waited for, to say that nobody comes. */
        api_come_in(reply->server, &ignored);
        prompt->remote->reply = NULL;
        prompt->remote->prompt = NULL;
        prompt->remote = NULL;
        reply->remote_pending--;
    }
}
