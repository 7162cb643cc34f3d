/* SPDX-License-Identifier: Apache-2.0 */
#include "remote_prefill.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void reply_start(struct reply *reply);

/* ---- beginning and end ---------------------------------------------------------------------- */

static void choice_close(struct reply_choice *choice)
{
    delivery_close(choice->last_delivery);
    chat_text_close(&choice->chat);
    byte_buffer_free(&choice->text);
    token_records_free(&choice->tokens);
    token_records_free(&choice->prompt_tokens);
    free(choice->reason);
}

static void reply_close(struct reply *reply)
{
    for (uint32_t i = 0; i < reply->choice_count; i++)
        choice_close(&reply->choices[i]);
    for (uint32_t i = 0; i < reply->prompt_count; i++) {
        token_list_free(&reply->prompts[i].tokens);
        free(reply->prompts[i].text);
        generation_settings_release(&reply->prompts[i].settings);
    }
    struct api_server *server = reply->server;
    json_writer_free(&reply->out);
    free(reply->choices);
    free(reply->prompts);
    free(reply->cache_key);
    reply_rooms_free(&reply->rooms);
    free(reply->model_name);
    free(reply->body);
    free(reply);
    api_leave(server);
}

static void choices_abort(struct reply *reply)
{
    for (uint32_t i = 0; i < reply->choice_count; i++)
        if (reply->choices[i].finish == GENERATION_RUNNING)
            scheduler_abort(reply->server->scheduler, &reply->choices[i].generation);
}

static void client_left(struct http_exchange *exchange, void *context)
{
    struct reply *reply = context;
    (void)exchange;
    reply->exchange = NULL;
    atomic_fetch_add(&reply->server->metrics.clients_left, 1);
    if (reply->choice_count) /* until then the name may be being read */
        LOG_DEBUG(server, "request %s: the client left", reply->id);
    choices_abort(reply);
    if (reply->remote_pending) {
        remote_prefill_cancel(reply, "the client left");
        reply_close(reply);
    }
}

/* The exchange is over; what the scheduler still has is waited for. */
static void exchange_over(struct reply *reply)
{
    reply->exchange = NULL;
    if (!reply->unfinished)
        reply_close(reply);
}

static void stream_head(struct reply *reply)
{
    if (reply->head_sent)
        return;
    reply->head_sent = true;
    http_exchange_add_header(reply->exchange, "Cache-Control", "no-cache");
    http_exchange_stream_begin(reply->exchange, 200, "text/event-stream");
}

/* ---- from the body -------------------------------------------------------------------------- */

/* Of a request that is refused only its rooms matter: whoever waits in them is told. */
static void body_read(struct reply *reply, const char *body, size_t length)
{
    struct request_error unread = {0};
    bool refused = reply->error.status;
    json_t *object = request_parse(body, length, refused ? &unread : &reply->error);
    struct request_reader reader = {object, refused ? &unread : &reply->error};
    if (object && refused)
        reply_rooms_read(reply, &reader);
    else if (object)
        reply->format->read(reply, &reader);
    json_decref(object);
}

static void work_run(struct work *work)
{
    struct reply *reply = (struct reply *)(void *)((char *)work - offsetof(struct reply, work));
    body_read(reply, reply->body, reply->body_length);
    http_loop_post(reply->loop, &reply->prepared);
}

static void prepared_run(struct http_task *task)
{
    struct reply *reply =
        (struct reply *)(void *)((char *)task - offsetof(struct reply, prepared));
    free(reply->body);
    reply->body = NULL;
    reply_start(reply);
}

static void id_make(struct reply *reply)
{
    struct api_server *server = reply->server;
    uint64_t number = atomic_fetch_add(&server->id_next, 1);
    snprintf(reply->id, sizeof(reply->id), "%s%016llx%08llx", reply->format->id_prefix,
             (unsigned long long)server->id_base, (unsigned long long)number);
}

static void reply_begin(struct http_exchange *exchange, struct api_server *server,
                        const struct reply_format *format)
{
    size_t length;
    const char *body = http_exchange_body(exchange, &length);
    struct request_error refusal = {0};
    if (!api_ready_or_refuse(server, exchange))
        return;
    api_come_in(server, &refusal);
    struct reply *reply = calloc(1, sizeof(*reply));
    if (reply && length > INLINE_BODY_MAX)
        reply->body = malloc(length + 1);
    if (!reply || (length > INLINE_BODY_MAX && !reply->body)) {
        struct request_error error = {.status = 503, .text = "out of memory"};
        free(reply);
        api_reply_error(server, exchange, false, &error);
        api_leave(server);
        return;
    }
    reply->server = server;
    reply->format = format;
    reply->exchange = exchange;
    reply->error = refusal;
    reply->loop = http_exchange_loop(exchange);
    reply->prepared.run = prepared_run;
    reply->work.run = work_run;
    reply->received_ns = clock_now_ns();
    reply->created_unix = (uint64_t)time(NULL);
    id_make(reply);
    http_exchange_watch(exchange, client_left, NULL, reply);
    if (reply->body) {
        memcpy(reply->body, body, length);
        reply->body_length = length;
        work_pool_add(server->tokenizers, &reply->work);
        return;
    }
    body_read(reply, body, length);
    reply_start(reply);
}

void reply_generate(struct http_exchange *exchange, void *context)
{
    reply_begin(exchange, context, &generate_format);
}

void reply_completion(struct http_exchange *exchange, void *context)
{
    reply_begin(exchange, context, &completion_format);
}

void reply_prefill(struct http_exchange *exchange, void *context)
{
    reply_begin(exchange, context, &prefill_format);
}

void reply_chat(struct http_exchange *exchange, void *context)
{
    reply_begin(exchange, context, &chat_format);
}

/* ---- to the scheduler ----------------------------------------------------------------------- */

static void choice_fill(struct reply *reply, struct reply_choice *choice,
                        struct reply_prompt *prompt, uint32_t number)
{
    struct generation *generation = &choice->generation;
    choice->reply = reply;
    choice->prompt = prompt;
    choice->matched_token = choice->matched_string = -1;
    generation_init(generation);
    generation_settings_apply(&prompt->settings, number, generation);
    const char *rid = prompt->rid[0] ? prompt->rid : reply->id;
    if (reply->choice_count == 1)
        snprintf(generation->rid, sizeof(generation->rid), "%s", rid);
    else
        snprintf(generation->rid, sizeof(generation->rid), "%.100s-%u", rid, choice->index);
    generation->prompt = (const int32_t *)prompt->tokens.ids;
    generation->prompt_count = (uint32_t)prompt->tokens.count;
    generation->sampling.logprobs = reply->logprobs;
    generation->sampling.top_logprobs = reply->logprobs ? reply->top_logprobs : 0;
    generation->prompt_logprobs = reply->logprobs && reply->logprob_start >= 0;
    if (generation->prompt_logprobs) {
        generation->prompt_logprobs_start = (uint32_t)reply->logprob_start;
        generation->prompt_top_logprobs = reply->top_logprobs;
    }
    generation->priority = reply->priority;
    if (reply->cache_key)
        generation->key =
            (struct prefix_key){reply->cache_key, (uint32_t)strlen(reply->cache_key)};
    generation->deliver = reply_deliver;
    generation->context = choice;
    if (reply->format == &chat_format) {
        const char *text = reply->server->model->chat_template_text;
        bool tags = text && strstr(text, "<tool_call>");
        chat_text_open(&choice->chat, reply->reasoning, prompt->in_reasoning,
                       !reply->tools ? CHAT_TOOLS_NONE
                       : tags        ? CHAT_TOOLS_TAGS
                                     : CHAT_TOOLS_JSON);
    }
}

static bool choices_open(struct reply *reply)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < reply->prompt_count; i++)
        count += reply->prompts[i].settings.n;
    if (count > REPLY_CHOICES_MAX) {
        request_refuse(&reply->error, 400, "n", "%llu replies in one request; the most is %u",
                       (unsigned long long)count, REPLY_CHOICES_MAX);
        return false;
    }
    reply->choices = calloc(count, sizeof(*reply->choices));
    if (!reply->choices) {
        request_refuse(&reply->error, 503, NULL, "out of memory");
        return false;
    }
    reply->choice_count = (uint32_t)count;
    uint32_t index = 0;
    for (uint32_t i = 0; i < reply->prompt_count; i++)
        for (uint32_t k = 0; k < reply->prompts[i].settings.n; k++, index++) {
            reply->choices[index].index = index;
            choice_fill(reply, &reply->choices[index], &reply->prompts[i], k);
            reply_rooms_apply(reply, index, &reply->choices[index].generation.handover);
            reply->choices[index].last_delivery = delivery_open(&reply->choices[index]);
            if (!reply->choices[index].last_delivery)
                request_refuse(&reply->error, 503, NULL, "out of memory");
        }
    return !reply->error.status;
}

/* All of them are submitted, or the reply fails and those that were are aborted. */
static void choices_submit(struct reply *reply)
{
    char text[512];
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        int rc = scheduler_submit(reply->server->scheduler, &reply->choices[i].generation,
                                  ERROR_BUFFER(text));
        if (rc) {
            request_refuse(&reply->error, request_status(rc), NULL, "%s", text);
            for (uint32_t k = i; k < reply->choice_count; k++)
                reply->choices[k].finish = GENERATION_FAILED; /* never begun */
            return;
        }
        reply->unfinished++;
    }
}

static void reply_start(struct reply *reply)
{
    if (!reply->exchange) { /* the client left while its prompt was tokenised */
        request_refuse(&reply->error, 499, NULL, "the client left");
        reply_rooms_refuse(reply);
        reply_close(reply);
        return;
    }
    if (!reply->error.status && remote_prefill_wanted(reply))
        remote_prefill_begin(reply);
    else
        reply_continue(reply);
}

void reply_continue(struct reply *reply)
{
    if (reply->error.status)
        remote_prefill_cancel(reply, reply->error.text);
    if (reply->error.status || !choices_open(reply)) {
        reply_rooms_refuse(reply);
        api_reply_error(reply->server, reply->exchange, reply->stream, &reply->error);
        exchange_over(reply);
        return;
    }
    choices_submit(reply);
    if (reply->error.status) {
        reply->failed = true;
        api_reply_error(reply->server, reply->exchange, reply->stream, &reply->error);
        choices_abort(reply);
        reply_rooms_refuse(reply);
        exchange_over(reply);
    } else if (reply->format->submitted)
        reply->format->submitted(reply);
}

/* ---- what comes back ------------------------------------------------------------------------ */

void reply_fail(struct reply *reply, int code, const char *reason)
{
    struct http_exchange *exchange = reply->exchange;
    if (reply->failed || !exchange)
        return;
    reply->failed = true;
    reply->exchange = NULL;
    request_refuse(&reply->error, request_status(code), NULL, "%s", reason);
    if (!reply->head_sent)
        api_reply_error(reply->server, exchange, reply->stream, &reply->error);
    else {
        static const char data[] = "data: ", end[] = "\n\ndata: [DONE]\n\n";
        json_writer_reset(&reply->out);
        json_put_raw(&reply->out, data, sizeof(data) - 1);
        api_error_write(&reply->out, &reply->error);
        json_put_raw(&reply->out, end, sizeof(end) - 1);
        if (!reply->out.failed)
            http_exchange_stream_write(exchange, reply->out.out.bytes, reply->out.out.length);
        http_exchange_stream_end(exchange);
        atomic_fetch_add(&reply->server->metrics.replies_failed, 1);
    }
    choices_abort(reply);
}

void reply_event(struct reply *reply)
{
    if (reply->out.failed) {
        reply_fail(reply, BATON_ENOMEM, "out of memory");
        return;
    }
    json_put_raw(&reply->out, "\n\n", 2);
    if (reply->exchange && !reply->out.failed)
        http_exchange_stream_write(reply->exchange, reply->out.out.bytes,
                                   reply->out.out.length);
    json_writer_reset(&reply->out);
}

static void stream_end(struct reply *reply)
{
    static const char done[] = "data: [DONE]\n\n";
    reply->format->last_events(reply);
    if (!reply->exchange)
        return; /* it failed on the way */
    http_exchange_stream_write(reply->exchange, done, sizeof(done) - 1);
    http_exchange_stream_end(reply->exchange);
    reply->exchange = NULL;
    atomic_fetch_add(&reply->server->metrics.replies_ok, 1);
}

/* A slow reader: what comes stays with its choice until there is room again. */
static bool stream_held(struct reply *reply, const struct reply_choice *choice)
{
    if (choice->finish || !reply->head_sent ||
        http_exchange_backlog(reply->exchange) < HTTP_STREAM_HIGH)
        return false;
    atomic_fetch_add(&reply->server->metrics.streams_held, 1);
    return true;
}

static void stream_drained(struct http_exchange *exchange, void *context)
{
    struct reply *reply = context;
    for (uint32_t i = 0; i < reply->choice_count && reply->exchange == exchange; i++) {
        struct reply_choice *choice = &reply->choices[i];
        if (!choice->finished && (choice->tokens.count || choice->finish))
            reply->format->events(reply, choice);
    }
}

static void stream_advance(struct reply *reply, struct reply_choice *choice)
{
    if (!reply->head_sent)
        http_exchange_watch(reply->exchange, client_left, stream_drained, reply);
    stream_head(reply);
    if (!stream_held(reply, choice))
        reply->format->events(reply, choice);
}

static void whole_reply(struct reply *reply)
{
    struct http_exchange *exchange = reply->exchange;
    reply->exchange = NULL;
    json_writer_reset(&reply->out);
    reply->format->whole(reply);
    api_reply_json(reply->server, exchange, &reply->out);
}

void reply_advance(struct reply_choice *choice)
{
    struct reply *reply = choice->reply;
    if (choice->finish) {
        reply->unfinished--;
        api_trace(reply->server, choice->generation.rid);
        histogram_add(&reply->server->metrics.end_to_end,
                      (double)(clock_now_ns() - reply->received_ns) / 1e9);
    }
    if (reply->exchange && reply->stream)
        stream_advance(reply, choice);
    if (reply->unfinished)
        return;
    if (reply->exchange && reply->stream)
        stream_end(reply);
    else if (reply->exchange)
        whole_reply(reply);
    reply_close(reply);
}
