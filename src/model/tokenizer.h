/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens. A tokenizer is read from the metadata of a GGUF file or from the tokenizer.json
 * of a Hugging Face folder, and gives the ids that Hugging Face's `tokenizers` gives.
 *
 *   struct token_list tokens = {0};
 *   if ((rc = tokenizer_open_gguf(file, &tokenizer, err)) ||
 *       (rc = tokenizer_encode(tokenizer, text, length, TOKENIZER_ADD_SPECIAL, &tokens, err)))
 *       ...
 *
 * Read here: BPE over bytes (GPT-2, Llama 3, Qwen, SmolLM ...) and BPE over characters with byte
 * fallback (SentencePiece: Llama 2, Mistral, Gemma). Nothing else: WordPiece and Unigram are
 * refused when they are opened.
 *
 * Threads: after opening, any number of threads may use one tokenizer at once.
 * Text back from tokens: detokenizer.h. */
#ifndef BATON_MODEL_TOKENIZER_H
#define BATON_MODEL_TOKENIZER_H

#include "unicode.h"

#include "base/error.h"

struct gguf;
struct tokenizer;

#define TOKEN_NONE UINT32_MAX

/* Tokens that the caller owns; all zero is empty. */
struct token_list {
    uint32_t *ids;
    size_t count, capacity;
};

int token_list_append(struct token_list *list, uint32_t id); /* ENOMEM */
void token_list_free(struct token_list *list);

/* ---- open and close ---------------------------------------------------------------------- */

/* Copies what it needs: the file may be closed afterwards. EINVAL: damaged or contradictory;
 * EUNSUPPORTED: sound, but of a kind that is not read here; ENOTFOUND: no tokenizer in it. */
int tokenizer_open_gguf(const struct gguf *file, struct tokenizer **out, struct error err);

/* tokenizer.json, and what tokenizer_config.json, generation_config.json and config.json of the
 * same folder say about special tokens, where they exist. */
int tokenizer_open_folder(const char *folder, struct tokenizer **out, struct error err);

void tokenizer_close(struct tokenizer *tokenizer); /* NULL is fine */

/* ---- encode ------------------------------------------------------------------------------ */

enum tokenizer_flags {
    /* BOS, EOS and whatever else the model wants around a text. */
    TOKENIZER_ADD_SPECIAL = 1,
    /* Control tokens spelled in the text ("<|im_start|>") become control tokens. Without it
     * they are text like any other: nothing a user writes can then end a turn or begin one.
     * User-defined tokens ("<think>" of some models) are text with an id of its own, and are
     * found either way. */
    TOKENIZER_PARSE_SPECIAL = 2,
};

/* Appends the text's tokens. Bytes that are not UTF-8 become U+FFFD first (utf8_repair). On
 * failure the list is as it was. ENOMEM; ELIMIT: a pattern of the tokenizer gave up on this
 * text. The time is that of n log n steps for n bytes, whatever the text. */
int tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t length,
                     uint32_t flags, struct token_list *list, struct error err);

/* The same for a text whose author is trusted but for parts of it, such as a chat template
 * with what users wrote filled in: no control token is found that has a byte in `untrusted`,
 * ranges in ascending order that do not overlap. The ids are otherwise those of the whole text,
 * which parts encoded one by one would not have. */
int tokenizer_encode_guarded(struct tokenizer *tokenizer, const char *text, size_t length,
                             const struct text_range *untrusted, size_t untrusted_count,
                             uint32_t flags, struct token_list *list, struct error err);

/* ---- the vocabulary ---------------------------------------------------------------------- */

/* One more than the largest id. */
uint32_t tokenizer_vocabulary_size(const struct tokenizer *tokenizer);

/* What the token adds to a text, which need not be whole characters; empty for ids that are not
 * tokens. A control token's text is its name. */
struct text_view tokenizer_text(const struct tokenizer *tokenizer, uint32_t id);

/* The token of that very name or text, TOKEN_NONE if there is none. Finds control tokens. */
uint32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t length);

/* No text but a signal ("<|im_end|>"): left out of what people read. */
bool tokenizer_is_control(const struct tokenizer *tokenizer, uint32_t id);
/* Found in a text as a whole before anything else: control and user-defined tokens. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id);
/* One byte of a character that has no token ("<0xE2>"). */
bool tokenizer_is_byte(const struct tokenizer *tokenizer, uint32_t id);

/* TOKEN_NONE where the model has none. */
uint32_t tokenizer_bos(const struct tokenizer *tokenizer);
uint32_t tokenizer_eos(const struct tokenizer *tokenizer); /* end of text */
uint32_t tokenizer_eot(const struct tokenizer *tokenizer); /* end of a turn in a chat */

/* Every token that ends a generation, ascending: EOS, EOT and their like. */
const uint32_t *tokenizer_ends(const struct tokenizer *tokenizer, size_t *count);
bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id);

/* The space that encoding put before the text is not part of it: a detokenizer drops it. */
bool tokenizer_drops_first_space(const struct tokenizer *tokenizer);

/* BPE over bytes, whose tokens are any bytes; otherwise all but byte tokens are whole characters. */
bool tokenizer_over_bytes(const struct tokenizer *tokenizer);

/* Bytes of memory that the tokenizer holds, for reports. */
size_t tokenizer_memory(const struct tokenizer *tokenizer);

#endif
