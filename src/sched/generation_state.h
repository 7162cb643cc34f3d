/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler keeps of a generation. All its memory is taken at submit, on the thread of whoever
 * submits, so that a generation that has begun does not fail for want of it (but for its text).
 *
 *   tokens   0 . . . . . . . . . prompt . . . . . . token_count . . . . . prompt + limit
 *            |<-- computed: their K and V are in the pages -->|
 *
 *   WAITING   computed = 0, no pages
 *   PREFILL   computed < token_count; the last piece gives a token
 *   RUNNING   computed = token_count - 1: one step, one token
 *
 * A phase is where a generation stands; which phases there are in what order is the role's. A prefill
 * or a decode worker adds its own (bootstrap, inflight; prealloc, transfer) before and after. */
#ifndef BATON_SCHED_GENERATION_STATE_H
#define BATON_SCHED_GENERATION_STATE_H

#include "admission.h"
#include "generation.h"
#include "kv_books.h"

enum generation_phase {
    PHASE_WAITING,
    PHASE_PREFILL,
    PHASE_RUNNING,
    /* Prefill's: before it waits, decode must know of the room; after it was computed, it must arrive. */
    PHASE_BOOTSTRAP,
    PHASE_INFLIGHT,
    /* Decode's: it wants pages; they are being filled; they are, and it wants a place to run. */
    PHASE_PREALLOC,
    PHASE_TRANSFER,
    PHASE_LANDED,
    PHASE_COUNT
};

struct group_room;
struct kv_backup;
struct limbo;

/* Something in the scheduler's inbox. */
enum message_kind {
    MESSAGE_SUBMIT,
    MESSAGE_ABORT_RID,
    MESSAGE_REFUSE_ROOM,
    MESSAGE_FLUSH_CACHE
};
struct message {
    struct mpsc_node node;
    enum message_kind kind;
};

struct generation_state {
    struct message message; /* MESSAGE_SUBMIT; first, so that it can be found from it */
    struct generation *generation;
    enum generation_phase phase;
    uint64_t arrival;    /* a number */
    uint64_t log_number; /* of its record */

    int32_t *tokens;
    uint32_t token_count, computed, generated;
    uint32_t limit; /* new tokens at most: max_new_tokens, clipped to context and pool */
    struct kv_hold hold;

    /* While it is handed over. */
    int opening; /* how that went: a code, and why */
    char opening_text[256];
    struct group_room *room; /* NULL: it is not, or not any more */
    struct limbo *limbo;     /* for its pages, should it end before the room is fenced */
    uint32_t pages_sent;
    bool landed; /* in the list of those that want a place */
    bool pinned; /* its pages must not be exchanged for others with the same content */
    uint64_t began_ns, granted_ns, sent_ns;
    uint64_t failed_ns; /* 0, or since when its pages' fence is waited for */
    struct generation_state *handing_previous, *handing_next;

    /* While it waits. */
    struct generation_state *previous, *next;
    bool retracted;
    struct kv_backup *backup; /* of its pages before it came to wait; NULL: they are computed */
    uint32_t overtaken;       /* how often somebody behind it was let in */
    uint32_t uncached;        /* tokens to be computed, when it was last looked at */

    /* What came of it. */
    struct stop_text text;
    struct token_history history;
    uint32_t cached_tokens; /* at its first admission */
    bool admitted;          /* once at least */
    bool delivered;         /* the first output */
    /* Of prompt tokens prompt_logprobs_start on; those before `rate_next` are known. */
    struct token_choice *prompt_choices;
    uint32_t rate_next;
};

/* ENOMEM, with a sentence. */
int generation_state_open(struct generation *generation, const struct tokenizer *tokenizer,
                          uint32_t limit, uint32_t tokens_per_page,
                          struct generation_state **out, struct error err);
/* Holds no pages any more. */
void generation_state_close(struct generation_state *state);

struct sequence_load generation_state_load(const struct generation_state *state);

/* Prompt tokens whose logprobs are still wanted? */
static inline bool generation_state_rates(const struct generation_state *state)
{
    return state->prompt_choices && state->rate_next < state->generation->prompt_count;
}

/* How much of it may come from the prefix cache: the logits of the last token are needed, and those
 * before every prompt token that is to be rated. */
uint32_t generation_state_cacheable(const struct generation_state *state);

/* Rows of logits that a piece of `tokens` tokens must give. */
uint32_t generation_state_rows(const struct generation_state *state, uint32_t tokens);

/* The longest piece that needs no more than `rows` rows. */
uint32_t generation_state_piece_max(const struct generation_state *state, uint32_t rows);

#endif
