/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler's thread hands to a loop's: a message with a copy of the output. One message
 * is made with each choice and kept for its end, so that the end can be told even when there is no
 * memory; what is lost before that ends the choice. */
#include "reply.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

struct delivery {
    struct http_task task;
    struct reply_choice *choice;
    struct token_records tokens, prompt_tokens;
    struct byte_buffer text;
    bool first, lost;
    uint32_t cached_tokens;
    enum generation_finish finish;
    int32_t matched_token, matched_string;
    int error;
    char *reason;
};

static void delivery_run(struct http_task *task);

struct delivery *delivery_open(struct reply_choice *choice)
{
    struct delivery *delivery = calloc(1, sizeof(*delivery));
    if (delivery) {
        delivery->choice = choice;
        delivery->task.run = delivery_run;
    }
    return delivery;
}

void delivery_close(struct delivery *delivery)
{
    if (!delivery)
        return;
    token_records_free(&delivery->tokens);
    token_records_free(&delivery->prompt_tokens);
    byte_buffer_free(&delivery->text);
    free(delivery->reason);
    free(delivery);
}

static bool delivery_fill(struct delivery *delivery, const struct generation_output *output)
{
    delivery->first = output->first;
    delivery->cached_tokens = output->cached_tokens;
    delivery->finish = output->finish;
    delivery->matched_token = output->matched_token;
    delivery->matched_string = output->matched_string;
    delivery->error = output->error;
    if (output->reason)
        delivery->reason = strdup(output->reason);
    return !(token_records_add(&delivery->tokens, output->tokens, output->token_count) ||
             token_records_add(&delivery->prompt_tokens, output->prompt_choices,
                               output->prompt_choices ? output->prompt_choice_count : 0) ||
             byte_buffer_append(&delivery->text, output->text.bytes, output->text.length));
}

void reply_deliver(struct generation *generation, const struct generation_output *output)
{
    struct reply_choice *choice = generation->context;
    struct delivery *delivery = choice->last_delivery;
    if (output->finish)
        choice->last_delivery = NULL;
    else if (choice->delivery_lost || !(delivery = delivery_open(choice))) {
        choice->delivery_lost = true;
        atomic_store(&generation->abort, true);
        return;
    }
    bool whole = delivery_fill(delivery, output);
    delivery->lost = choice->delivery_lost || !whole;
    choice->delivery_lost = delivery->lost;
    if (delivery->lost)
        atomic_store(&generation->abort, true);
    http_loop_post(choice->reply->loop, &delivery->task);
}

/* ---- the loop's thread ---------------------------------------------------------------------- */

static void times_count(struct reply_choice *choice, size_t tokens)
{
    struct metrics *metrics = &choice->reply->server->metrics;
    uint64_t now = clock_now_ns();
    if (!tokens)
        return;
    if (!choice->last_token_ns)
        histogram_add(&metrics->first_token, (double)(now - choice->reply->received_ns) / 1e9);
    else
        for (size_t i = 0; i < tokens; i++)
            histogram_add(&metrics->between_tokens,
                          (double)(now - choice->last_token_ns) / 1e9 / (double)tokens);
    choice->last_token_ns = now;
}

/* Tokens that come while the chat is in its reasoning are counted as such. */
static bool chat_add(struct reply_choice *choice, const struct delivery *delivery)
{
    if (choice->reply->format != &chat_format)
        return true;
    if (choice->chat.reasoning_now)
        choice->reasoning_tokens += (uint32_t)delivery->tokens.count;
    chat_text_push(&choice->chat,
                   (struct text_view){delivery->text.bytes, delivery->text.length});
    if (delivery->finish)
        chat_text_flush(&choice->chat);
    return !choice->chat.failed;
}

static bool choice_add(struct reply_choice *choice, struct delivery *delivery)
{
    if (delivery->first)
        choice->cached_tokens = delivery->cached_tokens;
    choice->finish = delivery->finish;
    choice->matched_token = delivery->matched_token;
    choice->matched_string = delivery->matched_string;
    free(choice->reason);
    choice->reason = delivery->reason;
    delivery->reason = NULL;
    times_count(choice, delivery->tokens.count);
    return !delivery->lost &&
           !byte_buffer_append(&choice->text, delivery->text.bytes, delivery->text.length) &&
           !token_records_join(&choice->tokens, &delivery->tokens) &&
           !token_records_join(&choice->prompt_tokens, &delivery->prompt_tokens) &&
           chat_add(choice, delivery);
}

static void delivery_run(struct http_task *task)
{
    struct delivery *delivery = (struct delivery *)task;
    struct reply_choice *choice = delivery->choice;
    bool whole = choice_add(choice, delivery);
    int error = delivery->error;
    delivery_close(delivery);
    if (!whole)
        reply_fail(choice->reply, BATON_ENOMEM, "out of memory");
    else if (choice->finish == GENERATION_FAILED ||
             (choice->finish == GENERATION_ABORTED && error == BATON_ETIMEOUT))
        reply_fail(choice->reply, error, choice->reason ? choice->reason : "it failed");
    reply_advance(choice);
}
