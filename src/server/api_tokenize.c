/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize and /detokenize, as vLLM and SGLang have them.
 *
 *   {"prompt": "text"}     {"tokens": [...], "count": n, "max_model_len": m}
 *   {"tokens": [...]}      {"prompt": "text"}  ("text" is the same, SGLang's word)
 *
 * A long body is worked on by a tokenizer thread, like a long prompt. */
#include "api_state.h"
#include "conversation.h"

#include "model/detokenizer.h"

#include <stdlib.h>
#include <string.h>

struct tokenize_call;
typedef void tokenize_answer(struct tokenize_call *call, const struct request_reader *reader);

struct tokenize_call {
    struct work work; /* first: found from it */
    struct http_task task;
    struct api_server *server;
    struct http_exchange *exchange; /* NULL: the client has gone */
    struct http_loop *loop;
    tokenize_answer *answer;
    char *body; /* a copy, for the thread */
    size_t length;
    struct request_error error;
    struct json_writer out;
};

/* ---- text to tokens ------------------------------------------------------------------------- */

static void tokens_make(struct api_server *server, const struct request_reader *reader,
                        struct token_list *tokens)
{
    char reason[512];
    bool special = true;
    if (request_has(reader, "messages")) {
        struct conversation conversation;
        conversation_read(server->model, reader, &conversation);
        *tokens = conversation.tokens;
        return;
    }
    const char *name = request_has(reader, "prompt") ? "prompt" : "text";
    const json_t *prompt = request_any(reader, name);
    request_bool(reader, "add_special_tokens", &special);
    if (!json_is_string(prompt))
        request_refuse(reader->error, 400, "prompt",
                       "\"prompt\" (a string) or \"messages\" is needed: the text to tokenise");
    if (reader->error->status)
        return;
    int rc = tokenizer_encode(
        server->model->tokenizer, json_string_value(prompt), json_string_length(prompt),
        TOKENIZER_PARSE_SPECIAL | (special ? (uint32_t)TOKENIZER_ADD_SPECIAL : 0), tokens,
        ERROR_BUFFER(reason));
    if (rc)
        request_refuse(reader->error, request_status(rc), name, "%s", reason);
}

static void tokenize_run(struct tokenize_call *call, const struct request_reader *reader)
{
    struct json_writer *out = &call->out;
    struct token_list tokens = {0};
    tokens_make(call->server, reader, &tokens);
    json_put_open(out, '{');
    json_put_key(out, "tokens");
    json_put_open(out, '[');
    for (size_t i = 0; i < tokens.count; i++)
        json_put_int(out, tokens.ids[i]);
    json_put_close(out, ']');
    json_put_key_int(out, "count", (int64_t)tokens.count);
    json_put_key_int(out, "max_model_len", scheduler_context(call->server->scheduler));
    json_put_close(out, '}');
    token_list_free(&tokens);
}

/* ---- tokens to text ------------------------------------------------------------------------- */

static void text_make(struct api_server *server, const struct request_reader *reader,
                      struct byte_buffer *text)
{
    bool skip = false;
    struct token_list list = {0};
    size_t i;
    json_t *item;
    const json_t *tokens = request_array(reader, "tokens");
    request_bool(reader, "skip_special_tokens", &skip);
    if (!tokens)
        request_refuse(reader->error, 400, "tokens", "\"tokens\" is needed: an array of ids");
    json_array_foreach(tokens, i, item)
    {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= server->model->config.vocab_size)
            request_refuse(reader->error, 400, "tokens",
                           "\"tokens\"[%zu] is not a token of this model (0 to %u)", i,
                           server->model->config.vocab_size - 1);
        else if (token_list_append(&list, (uint32_t)id))
            request_refuse(reader->error, 503, NULL, "out of memory");
        if (reader->error->status)
            break;
    }
    if (!reader->error->status &&
        detokenizer_decode(server->model->tokenizer, list.ids, list.count,
                           skip ? 0 : DETOKENIZER_SHOW_CONTROL, text))
        request_refuse(reader->error, 503, NULL, "out of memory");
    token_list_free(&list);
}

static void detokenize_run(struct tokenize_call *call, const struct request_reader *reader)
{
    struct byte_buffer text = {0};
    text_make(call->server, reader, &text);
    struct text_view view = {text.bytes ? text.bytes : "", text.length};
    json_put_open(&call->out, '{');
    json_put_key_view(&call->out, "prompt", view);
    json_put_key_view(&call->out, "text", view);
    json_put_close(&call->out, '}');
    byte_buffer_free(&text);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void call_run(struct tokenize_call *call, const char *body, size_t length)
{
    json_t *object = request_parse(body, length, &call->error);
    struct request_reader reader = {object, &call->error};
    if (object)
        call->answer(call, &reader);
    json_decref(object);
}

static void call_reply(struct tokenize_call *call)
{
    struct api_server *server = call->server;
    if (call->exchange && call->error.status)
        api_reply_error(server, call->exchange, false, &call->error);
    else if (call->exchange)
        api_reply_json(server, call->exchange, &call->out);
    json_writer_free(&call->out);
    free(call->body);
    free(call);
    api_leave(server);
}

static void call_work(struct work *work)
{
    struct tokenize_call *call = (struct tokenize_call *)(void *)work;
    call_run(call, call->body, call->length);
    http_loop_post(call->loop, &call->task);
}

static void call_done(struct http_task *task)
{
    call_reply(
        (struct tokenize_call *)(void *)((char *)task - offsetof(struct tokenize_call, task)));
}

static void call_left(struct http_exchange *exchange, void *context)
{
    struct tokenize_call *call = context;
    (void)exchange;
    call->exchange = NULL;
}

static void call_begin(struct api_server *server, struct http_exchange *exchange,
                       tokenize_answer *answer)
{
    size_t length;
    const char *body = http_exchange_body(exchange, &length);
    if (!api_enter(server, exchange))
        return;
    struct tokenize_call *call = calloc(1, sizeof(*call));
    if (call && length > INLINE_BODY_MAX)
        call->body = malloc(length);
    if (!call || (length > INLINE_BODY_MAX && !call->body)) {
        struct request_error error = {.status = 503, .text = "out of memory"};
        free(call);
        api_reply_error(server, exchange, false, &error);
        api_leave(server);
        return;
    }
    call->work.run = call_work;
    call->task.run = call_done;
    call->server = server;
    call->exchange = exchange;
    call->loop = http_exchange_loop(exchange);
    call->answer = answer;
    if (call->body) {
        memcpy(call->body, body, length);
        call->length = length;
        http_exchange_watch(exchange, call_left, NULL, call);
        work_pool_add(server->tokenizers, &call->work);
        return;
    }
    call_run(call, body, length);
    call_reply(call);
}

void api_tokenize(struct http_exchange *exchange, void *context)
{
    call_begin(context, exchange, tokenize_run);
}

void api_detokenize(struct http_exchange *exchange, void *context)
{
    call_begin(context, exchange, detokenize_run);
}
