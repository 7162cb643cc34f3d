/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize and /detokenize, as vLLM and SGLang have them.
 *
 *   {"prompt": "text"}     {"tokens": [...], "count": n, "max_model_len": m}
 *   {"tokens": [...]}      {"prompt": "text"}  ("text" is the same, SGLang's word)
 */
#include "api_state.h"
#include "conversation.h"

#include "model/detokenizer.h"

#include <string.h>

static bool body_open(struct api_server *server, struct http_exchange *exchange,
                      struct request_error *error, json_t **body)
{
    size_t length;
    const char *bytes = http_exchange_body(exchange, &length);
    if (!api_ready(server))
        request_refuse(error, 503, NULL, "the model is being loaded");
    *body = error->status ? NULL : request_parse(bytes, length, error);
    return *body != NULL;
}

static void tokens_make(struct api_server *server, const struct request_reader *reader,
                        struct token_list *tokens)
{
    char reason[512];
    bool special = true;
    const char *prompt =
        request_string(reader, request_has(reader, "prompt") ? "prompt" : "text");
    if (request_has(reader, "messages")) {
        struct conversation conversation;
        conversation_read(server->model, reader, &conversation);
        *tokens = conversation.tokens;
        return;
    }
    request_bool(reader, "add_special_tokens", &special);
    if (!prompt)
        request_refuse(reader->error, 400, "prompt",
                       "\"prompt\" or \"messages\" is needed: the text to tokenise");
    if (reader->error->status)
        return;
    int rc = tokenizer_encode(server->model->tokenizer, prompt, strlen(prompt),
                              TOKENIZER_PARSE_SPECIAL |
                                  (special ? (uint32_t)TOKENIZER_ADD_SPECIAL : 0),
                              tokens, ERROR_BUFFER(reason));
    if (rc)
        request_refuse(reader->error, request_status(rc), "prompt", "%s", reason);
}

void api_tokenize(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct request_error error = {0};
    struct token_list tokens = {0};
    struct json_writer out = {0};
    json_t *body = NULL;
    if (body_open(server, exchange, &error, &body)) {
        struct request_reader reader = {body, &error};
        tokens_make(server, &reader, &tokens);
    }
    if (error.status)
        api_reply_error(server, exchange, false, &error);
    else {
        json_put_open(&out, '{');
        json_put_key(&out, "tokens");
        json_put_open(&out, '[');
        for (size_t i = 0; i < tokens.count; i++)
            json_put_int(&out, tokens.ids[i]);
        json_put_close(&out, ']');
        json_put_key_int(&out, "count", (int64_t)tokens.count);
        json_put_key_int(&out, "max_model_len", scheduler_context(server->scheduler));
        json_put_close(&out, '}');
        api_reply_json(server, exchange, &out);
    }
    token_list_free(&tokens);
    json_decref(body);
}

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

void api_detokenize(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct request_error error = {0};
    struct byte_buffer text = {0};
    struct json_writer out = {0};
    json_t *body = NULL;
    if (body_open(server, exchange, &error, &body)) {
        struct request_reader reader = {body, &error};
        text_make(server, &reader, &text);
    }
    if (error.status)
        api_reply_error(server, exchange, false, &error);
    else {
        struct text_view view = {text.bytes ? text.bytes : "", text.length};
        json_put_open(&out, '{');
        json_put_key_view(&out, "prompt", view);
        json_put_key_view(&out, "text", view);
        json_put_close(&out, '}');
        api_reply_json(server, exchange, &out);
    }
    byte_buffer_free(&text);
    json_decref(body);
}
