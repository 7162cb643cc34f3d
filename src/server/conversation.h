/* SPDX-License-Identifier: Apache-2.0 */
/* From the messages of a chat to the tokens that the model reads: what clients send (parts, tool
 * calls with arguments as text, tools) is brought into the shape that chat templates expect, the
 * model's template makes one text of it, and the tokenizer tokens. */
#ifndef BATON_SERVER_CONVERSATION_H
#define BATON_SERVER_CONVERSATION_H

#include "request_reader.h"
#include "served_model.h"

struct conversation {
    struct token_list tokens;
    bool in_reasoning; /* the prompt ended inside of <think> */
    bool has_tools;    /* and the model may call them */
};

/* Reads messages, tools, tool_choice, chat_template_kwargs (other variables for the template),
 * continue_final_message and add_generation_prompt. What is wrong goes to the reader's error; the
 * caller frees out->tokens in any case. */
void conversation_read(const struct served_model *model, const struct request_reader *reader,
                       struct conversation *out);

/* A single message of a user: for the terminal. The caller frees out->tokens. */
int conversation_single(const struct served_model *model, const char *system, const char *user,
                        struct conversation *out, struct error err);

#endif
