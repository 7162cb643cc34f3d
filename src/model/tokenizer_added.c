/* SPDX-License-Identifier: Apache-2.0 */
/* A tree of bytes. At every place of the text that one of the tokens could begin with, it is walked
 * as far as the text goes along; that costs at most the longest token's length, so the whole
 * search is linear in the text.
 *
 * A token that is found but may not be taken (a control token in untrusted text, a single word
 * that is part of a longer one) is stepped over as a whole, as in Hugging Face's library. */
#include "tokenizer_added.h"

#include <stdlib.h>

#define ADDED_BYTES_MAX 4096u

static int nodes_reserve(struct added_tokens *added, size_t more)
{
    void *nodes = added->nodes;
    int rc = array_reserve(&nodes, &added->node_capacity, added->node_count + more,
                           sizeof(*added->nodes));
    added->nodes = nodes;
    return rc;
}

static uint32_t node_new(struct added_tokens *added, uint8_t byte)
{
    added->nodes[added->node_count] = (struct added_node){0, 0, ADDED_NONE, byte};
    return (uint32_t)added->node_count++;
}

static uint32_t child_find(const struct added_tokens *added, uint32_t node, uint8_t byte)
{
    uint32_t child = added->nodes[node].child;
    while (child && added->nodes[child].byte != byte)
        child = added->nodes[child].sibling;
    return child;
}

static uint32_t child_make(struct added_tokens *added, uint32_t node, uint8_t byte)
{
    uint32_t child = child_find(added, node, byte);
    if (child)
        return child;
    child = node_new(added, byte);
    added->nodes[child].sibling = added->nodes[node].child;
    added->nodes[node].child = child;
    return child;
}

static int added_reserve(struct added_tokens *added, size_t length)
{
    void *tokens = added->tokens;
    if (length > UINT32_MAX / 2 - added->node_count - 256)
        return BATON_ENOMEM;
    int rc = array_reserve(&tokens, &added->capacity, added->count + 1, sizeof(*added->tokens));
    added->tokens = tokens;
    return rc ? rc : nodes_reserve(added, length + 256);
}

int added_tokens_add(struct added_tokens *added, const char *text, size_t length,
                     struct added_token token, struct error err)
{
    BATON_ASSERT(length > 0);
    if (length > ADDED_BYTES_MAX)
        return error_set(err, BATON_EINVAL,
                         "special token %u is a text of %zu bytes; at most %u are read",
                         token.id, length, ADDED_BYTES_MAX);
    if (added_reserve(added, length))
        return error_set(err, BATON_ENOMEM, "out of memory for special tokens");
    for (unsigned byte = 0; added->node_count < 256; byte++)
        node_new(added, (uint8_t)byte);
    uint32_t node = (uint8_t)text[0];
    for (size_t i = 1; i < length; i++)
        node = child_make(added, node, (uint8_t)text[i]);
    if (added->nodes[node].token != ADDED_NONE)
        return BATON_OK;
    added->nodes[node].token = (uint32_t)added->count;
    added->tokens[added->count++] = token;
    return BATON_OK;
}

void added_tokens_free(struct added_tokens *added)
{
    free(added->nodes);
    free(added->tokens);
    *added = (struct added_tokens){0};
}

/* The longest token that the text at `at` begins with. */
static const struct added_token *longest_at(const struct added_tokens *added,
                                            const struct added_search *search, size_t at,
                                            size_t *end)
{
    uint32_t found = ADDED_NONE, node = (uint8_t)search->text[at];
    for (size_t i = at + 1;; i++) {
        if (added->nodes[node].token != ADDED_NONE) {
            found = added->nodes[node].token;
            *end = i;
        }
        node = i < search->length ? child_find(added, node, (uint8_t)search->text[i]) : 0;
        if (!node)
            break;
    }
    return found == ADDED_NONE ? NULL : &added->tokens[found];
}

static bool touches_word(const struct added_search *search, size_t start, size_t end)
{
    size_t size, before = start;
    uint32_t code;
    while (before > 0 && start - before < 4) {
        before--;
        if (((uint8_t)search->text[before] & 0xc0) != 0x80)
            break;
    }
    if (before < start &&
        utf8_next(search->text + before, start - before, &size, &code) == UTF8_WHOLE &&
        unicode_is_word(code))
        return true;
    return end < search->length &&
           utf8_next(search->text + end, search->length - end, &size, &code) == UTF8_WHOLE &&
           unicode_is_word(code);
}

static bool may_take(const struct added_search *search, const struct added_token *token,
                     size_t start, size_t end)
{
    if (token->control &&
        (!search->parse_control ||
         text_ranges_touch(search->untrusted, search->untrusted_count, start, end)))
        return false;
    return !token->single_word || !touches_word(search, start, end);
}

bool added_search_next(const struct added_tokens *added, struct added_search *search,
                       struct added_match *out)
{
    while (added->count && search->at < search->length) {
        size_t start = search->at, end = start;
        const struct added_token *token = longest_at(added, search, start, &end);
        search->at = token ? end : start + 1;
        if (!token || start < search->done || !may_take(search, token, start, end))
            continue;
        if (token->takes_before) {
            size_t before = start - unicode_space_before(search->text, start);
            start = before > search->done ? before : search->done;
        }
        if (token->takes_after)
            end += unicode_space_after(search->text, search->length, end);
        search->done = end;
        *out = (struct added_match){start, end, token->id};
        return true;
    }
    return false;
}
