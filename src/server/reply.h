/* SPDX-License-Identifier: Apache-2.0 */
/* One request to generate, from its body to the last byte of its reply. It may have several
 * prompts, and n choices of each; every choice is one generation of the scheduler's.
 *
 *   loop's thread       reply_begin: body -> prompts and settings (a long one: on a tokenizer thread)
 *   loop's thread       submit, or the error
 *   scheduler's thread  reply_deliver: copies the output into a message to the loop
 *   loop's thread       the message is added to its choice; streamed, or kept until all are finished
 *
 * A client that leaves takes the exchange with it; the reply lives on until the scheduler has let
 * go of its generations. A client that reads slowly makes its choices pile up what they have (text,
 * not events), which is bounded by the length of the context. */
#ifndef BATON_SERVER_REPLY_H
#define BATON_SERVER_REPLY_H

#include "api_state.h"
#include "chat_text.h"
#include "generation_settings.h"

#define REPLY_CHOICES_MAX 4096u

struct token_record {
    int32_t token;
    float logprob;                 /* NAN: there is none */
    uint32_t top_first, top_count; /* in `tops` */
};

/* Tokens with what is known of their probabilities, in order. */
struct token_records {
    struct token_record *items;
    size_t count, capacity;
    struct token_logprob *tops; /* of all of them, one after the other */
    size_t top_count, top_capacity;
};

/* Where the other half of a request is: "bootstrap_host", "bootstrap_port" and "bootstrap_room", each
 * one value or one for every choice. A single room is counted up over the choices. */
struct reply_rooms {
    json_t *hosts, *ports, *rooms; /* NULL: not given */
};

struct reply_prompt {
    struct token_list tokens;
    char *text; /* for echo; NULL: not wanted or not known */
    struct generation_settings settings;
    char rid[GENERATION_RID_BYTES];
    bool in_reasoning;
    struct remote_prefill *remote; /* who asks for a room for it; NULL: nobody */
    char bootstrap[96];            /* the room it got by that; "": none */
    uint64_t room;
};

struct reply_choice {
    struct generation generation;
    struct reply *reply;
    struct reply_prompt *prompt;
    uint32_t index;
    struct delivery *last_delivery; /* kept for the end: see reply_deliver.c */
    bool delivery_lost;             /* owner: the scheduler's thread */

    /* ---- what has come ---- */
    struct byte_buffer text;
    struct token_records tokens;
    struct token_records prompt_tokens; /* with prompt_logprobs */
    uint32_t cached_tokens;
    enum generation_finish finish;
    int32_t matched_token, matched_string;
    char *reason;          /* of ABORTED */
    struct chat_text chat; /* of chats only */
    uint32_t reasoning_tokens;
    uint64_t last_token_ns; /* 0: none yet */

    /* ---- what has gone ---- */
    bool begun;    /* the stream has something of this choice */
    bool finished; /* and its end */
    size_t text_sent, tokens_sent;
    size_t reasoning_sent, content_sent; /* of chat */
    uint32_t calls_sent;
};

struct reply;

/* The three APIs differ in how a body is read and in how a reply is written. */
struct reply_format {
    const char *id_prefix;
    /* Any thread. Fills prompts and the fields below from the body. */
    void (*read)(struct reply *reply, const struct request_reader *reader);
    /* Loop's thread. Its generations are submitted; NULL: nothing to say yet. */
    void (*submitted)(struct reply *reply);
    /* Loop's thread. What is new of a choice, as events of a stream; its end, too, if it has come. */
    void (*events)(struct reply *reply, struct reply_choice *choice);
    /* What a stream has after all choices have ended, but for [DONE]. */
    void (*last_events)(struct reply *reply);
    /* A whole reply into reply->out. */
    void (*whole)(struct reply *reply);
};
extern const struct reply_format generate_format, completion_format, chat_format;
extern const struct reply_format prefill_format;

struct reply {
    struct api_server *server;
    const struct reply_format *format;
    struct http_exchange *exchange; /* NULL: the client has gone */
    struct http_loop *loop;
    struct http_task prepared; /* from the tokenizer thread to the loop */
    struct work work;
    char *body; /* a copy, while a tokenizer thread reads it */
    size_t body_length;
    struct request_error error;

    /* ---- asked for ---- */
    char id[GENERATION_RID_BYTES];
    char *model_name; /* as the client wrote it; NULL: ours */
    bool stream, include_usage, usage_always;
    bool is_batch; /* /generate replies with an array */
    bool logprobs, logprob_texts, echo;
    uint32_t top_logprobs;
    int64_t logprob_start; /* -1: of no prompt token */
    int32_t priority;
    char *cache_key;
    struct reply_rooms rooms;
    bool tools, reasoning; /* of a chat: to be taken apart */
    struct reply_prompt *prompts;
    uint32_t prompt_count;

    uint32_t remote_pending; /* prompts that wait for a room */

    /* ---- the reply ---- */
    struct reply_choice *choices;
    uint32_t choice_count; /* 0 while the body is being read */
    uint32_t unfinished;
    uint64_t received_ns, created_unix;
    bool head_sent, failed;
    struct json_writer out;
};

/* Handlers of the endpoints. */
http_handler reply_generate, reply_completion, reply_chat, reply_prefill;

/* ---- for the formats ------------------------------------------------------------------------ */

/* Makes room for the prompts; false: there is an error (too many, no memory). */
bool reply_prompts_open(struct reply *reply, size_t count);
/* A prompt from text, or from an array of token ids. */
void reply_prompt_text(struct reply *reply, struct reply_prompt *prompt, const char *text,
                       size_t length, const char *field);
void reply_prompt_ids(struct reply *reply, struct reply_prompt *prompt, const json_t *ids,
                      const char *field);
/* stream, stream_options, priority, cache_salt, extra_key, rid, model. */
void reply_common_read(struct reply *reply, const struct request_reader *reader);

/* reply_rooms.c: says where choice `index` of reply->choice_count is handed over. False: refused. */
void reply_rooms_read(struct reply *reply, const struct request_reader *reader);
bool reply_rooms_apply(struct reply *reply, uint32_t index, struct handover *out);
/* The request was refused: whoever waits in its rooms is told why. */
void reply_rooms_refuse(struct reply *reply);
void reply_rooms_free(struct reply_rooms *rooms);

/* Sends reply->out as one event ("data: ...\n\n") and empties it. */
void reply_event(struct reply *reply);
const char *reply_model_name(const struct reply *reply);
struct text_view reply_token_text(const struct reply *reply, int32_t token);
/* "usage": {...} over all choices; choice: only its part; NULL: of all. */
void reply_usage_write(struct reply *reply, const struct reply_choice *choice);
/* format_openai.c: the beginning of an object of OpenAI's; the last event of a stream whose client
 * wants usage; usage, metadata and the end of a whole answer. */
void reply_head_write(struct reply *reply, const char *object);
void reply_usage_event(struct reply *reply, const char *object);
void reply_tail_write(struct reply *reply);
/* "matched_stop": token, string or null. */
void reply_matched_stop(struct reply *reply, const struct reply_choice *choice,
                        const char *key);
const char *reply_finish_name(const struct reply_choice *choice); /* "stop"; NULL: running */

/* token_records.c */
int token_records_add(struct token_records *records, const struct token_choice *choices,
                      uint32_t count);
int token_records_join(struct token_records *records, const struct token_records *more);
void token_records_free(struct token_records *records);

/* reply_deliver.c. One is made for each choice before it is submitted; NULL: no memory. */
struct delivery *delivery_open(struct reply_choice *choice);
void delivery_close(struct delivery *delivery); /* NULL is fine */
generation_deliver reply_deliver;
/* reply.c: the choice has something new, or has ended. Loop's thread. */
void reply_advance(struct reply_choice *choice);
/* Loop's thread. Its prompts have their rooms, or do without: on to the scheduler. */
void reply_continue(struct reply *reply);
/* Loop's thread. Ends the reply with an error, as far as that is still possible. */
void reply_fail(struct reply *reply, int code, const char *reason);

#endif
