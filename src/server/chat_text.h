/* SPDX-License-Identifier: Apache-2.0 */
/* What a model says in a chat, taken apart while it comes: its reasoning, its calls of tools, and
 * the reply itself.
 *
 *   <think>It rains.</think>\n\nTake this: <tool_call>{"name": "umbrella", "arguments": {}}</tool_call>
 *   reasoning "It rains."   content "Take this: "   tool call umbrella "{}"
 *
 * Text that may be the beginning of a mark is kept until that is decided, so nothing is ever taken
 * back. White space around the reasoning is dropped. Marks: <think> and </think> (Qwen3, DeepSeek and their like); <tool_call> around JSON (Qwen,
 * Hermes); a whole reply that is one JSON object with a name, perhaps after <|python_tag|>
 * (Llama 3). A call that is not sound JSON stays content. */
#ifndef BATON_SERVER_CHAT_TEXT_H
#define BATON_SERVER_CHAT_TEXT_H

#include "model/unicode.h"

#define CHAT_CALLS_MAX 128u

enum chat_tools { CHAT_TOOLS_NONE, CHAT_TOOLS_TAGS, CHAT_TOOLS_JSON };

struct chat_call {
    char id[32];
    char *name;
    char *arguments; /* JSON text */
};

struct chat_text {
    bool reasoning_parsed; /* false: <think> is text like any other */
    enum chat_tools tools;
    bool reasoning_now;         /* inside of <think> */
    bool reasoned;              /* now or before */
    bool call_now;              /* inside of <tool_call> */
    bool content_begun;         /* something other than white space */
    struct byte_buffer pending; /* not decided yet */
    struct byte_buffer reasoning, content;
    struct chat_call *calls;
    uint32_t call_count;
    bool failed; /* out of memory: something is missing */
};

/* in_reasoning: the prompt ended with <think>. */
void chat_text_open(struct chat_text *text, bool reasoning_parsed, bool in_reasoning,
                    enum chat_tools tools);
void chat_text_close(struct chat_text *text);
void chat_text_push(struct chat_text *text, struct text_view piece);
void chat_text_flush(struct chat_text *text); /* nothing more comes */

#endif
