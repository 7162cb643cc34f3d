/* SPDX-License-Identifier: Apache-2.0 */
/* One generation: what is asked for, and what comes back. Whoever asks (an HTTP request, the
 * terminal) fills one in and submits it (scheduler.h). From then on it is the scheduler's, until
 * the output that finishes it has been delivered; then it is its maker's again.
 *
 *   generation_init, fields, scheduler_submit          any thread
 *   deliver(output) ... deliver(output with a finish)  the scheduler's thread
 *   free                                               any thread, after that
 *
 * A generation makes one sequence. `n` answers to one prompt are n generations; the prefix cache
 * sees to it that their prompt is computed once. */
#ifndef BATON_SCHED_GENERATION_H
#define BATON_SCHED_GENERATION_H

#include "base/mpsc.h"
#include "engine/sampler.h"
#include "engine/sampler_stop.h"
#include "kv/prefix_keys.h"

#define GENERATION_RID_BYTES 128

enum generation_finish {
    GENERATION_RUNNING = 0,
    GENERATION_STOP,    /* an end token, a stop token or a stop string */
    GENERATION_LENGTH,  /* max_new_tokens, or the end of the context */
    GENERATION_ABORTED, /* somebody called generation_abort, or the deadline passed */
    GENERATION_FAILED,  /* it could not be done; `error` and `reason` say why */
};

struct generation;

/* What has come of a generation since the last output. Everything it points to is good only during
 * the call. */
struct generation_output {
    const struct token_choice
        *tokens; /* the new ones; a retracted generation never repeats any */
    uint32_t token_count;
    struct text_view text; /* what they let out: see sampler_stop.h */

    /* With the first output only: */
    bool first;
    uint32_t cached_tokens; /* of the prompt, that were not computed again */
    /* Where prompt_logprobs was asked for: of prompt tokens prompt_logprobs_start .. the last. The
     * one of token 0 has no logprob (there is nothing before it): NAN. NULL otherwise. */
    const struct token_choice *prompt_choices;
    uint32_t prompt_choice_count;

    enum generation_finish finish;
    int32_t matched_token;  /* STOP by a token: which; otherwise -1 */
    int32_t matched_string; /* STOP by a string: its index; otherwise -1 */
    int error;              /* ABORTED, FAILED: a code of baton.h ... */
    const char *reason;     /* ... and a sentence for the client */
};

/* On the scheduler's thread, once a step at most. Must not block, and must not call the scheduler but
 * for scheduler_abort. */
typedef void generation_deliver(struct generation *generation,
                                const struct generation_output *output);

/* Where the other half of a generation is, when prefill and decode are apart. */
enum handover_kind {
    HANDOVER_NONE = 0,
    HANDOVER_SEND, /* compute the prompt and its first token here, and send them; the generation
                        finishes with LENGTH, and without tokens, when they have arrived */
    HANDOVER_RECEIVE /* prompt and first token come from a prefill worker */
};
#define HANDOVER_FAKE "2.2.2.2:1" /* a bootstrap address where every room succeeds at once */
struct handover {
    enum handover_kind kind;
    uint64_t room;
    char bootstrap[96]; /* "host:port" of the prefill side's bootstrap server */
};

struct generation_state; /* sched's own */

struct generation {
    /* ---- filled in by the maker, not changed after submit; pointers are borrowed ---- */
    char rid[GENERATION_RID_BYTES]; /* for logs and abort by name */
    const int32_t *prompt;
    uint32_t prompt_count;   /* at least 1 */
    uint32_t max_new_tokens; /* 0: only the prompt is computed (it finishes with LENGTH) */
    uint32_t
        min_new_tokens; /* end and stop tokens cannot come earlier, strings are not looked for */
    struct sampling sampling;
    const int32_t *stop_tokens;
    uint32_t stop_token_count;
    bool
        ignore_eos; /* the model's own end tokens are tokens like others; stop_tokens still stop */
    const struct stop_strings *stop_strings; /* NULL: none */
    bool keep_stop;      /* the stop string or token's text is part of the text */
    uint32_t text_flags; /* enum detokenizer_flags */
    bool prompt_logprobs;
    uint32_t prompt_logprobs_start; /* of this prompt token on */
    uint32_t prompt_top_logprobs;
    int32_t priority; /* higher goes first */
    struct prefix_key key;
    uint64_t deadline_ns; /* clock_now_ns; 0: none */
    struct handover handover;
    generation_deliver *deliver;
    void *context; /* the maker's */

    /* ---- sched's ---- */
    atomic_bool abort;
    struct generation_state *state;
};

/* Everything zero but what has another default. */
void generation_init(struct generation *generation);

#endif
