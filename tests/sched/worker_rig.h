/* SPDX-License-Identifier: Apache-2.0 */
/* A whole scheduler on a tiny model with random weights, requests that remember what was delivered to
 * them, and the slow obvious way to get the same answer: alone, in one piece, without scheduler, prefix
 * cache or pages shared with anybody. */
#ifndef BATON_TESTS_SCHED_WORKER_RIG_H
#define BATON_TESTS_SCHED_WORKER_RIG_H

#include "engine/tiny_model.h"
#include "kv/random_source.h"
#include "sched/scheduler.h"

#include <pthread.h>

#define RIG_CONTEXT 512u

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define RIG_SANITIZED 1 /* several times slower */
#else
#define RIG_SANITIZED 0
#endif

struct rig_options {
    uint32_t pages, max_running, max_queued, chunk_tokens, ranks;
    bool prefix_cache;
    float conservativeness;
    uint32_t engine_tokens;                  /* 0: as many as the scheduler asks for */
    int32_t poisoned_token;                  /* its embedding is not a number; 0: none */
    const struct transfer_options *transfer; /* NULL: no hand-overs */
};
extern const struct rig_options rig_defaults;

struct rig {
    struct tiny_model model;
    struct tokenizer *tokenizer;
    struct engine *engine;
    struct scheduler *scheduler;
    struct session alone; /* the reference's own engine */
};

/* `golden` is the folder of the tokenizers' golden files. */
void rig_open(struct rig *rig, const char *golden, const struct rig_options *options);
/* What is left when the last delivery has been made and all is published. */
void rig_wait_idle(struct rig *rig, struct scheduler_stats *stats);
void rig_close_scheduler(struct rig *rig); /* checks that all pages came back */
void rig_close(struct rig *rig);

#define TICKET_TOKENS_MAX RIG_CONTEXT
#define TICKET_TEXT_MAX 8192u

/* What came of a generation. */
struct answer {
    int32_t tokens[TICKET_TOKENS_MAX];
    float logprobs[TICKET_TOKENS_MAX];
    uint32_t count;
    char text[TICKET_TEXT_MAX];
    size_t text_length;
    enum generation_finish finish;
    int32_t matched_token, matched_string;
};

/* A generation with its prompt and what was delivered. */
struct ticket {
    struct generation generation;
    int32_t prompt[RIG_CONTEXT];
    int32_t stop_tokens[2];
    struct answer answer;
    int error;
    char reason[256];
    uint32_t deliveries, cached_tokens;
    uint64_t order; /* of its first token among all */
    float prompt_logprobs[RIG_CONTEXT];
    uint32_t prompt_choice_count;
    bool had_first;
    uint32_t abort_after; /* sets its own abort flag with so many tokens; 0: never */
    struct rig *rig;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
};

void ticket_init(struct ticket *ticket, struct rig *rig);
void ticket_prompt(struct ticket *ticket, const int32_t *tokens, uint32_t count);
void ticket_free(struct ticket *ticket);
void ticket_submit(struct ticket *ticket); /* must be taken */
void ticket_wait(struct ticket *ticket);
void ticket_wait_tokens(struct ticket *ticket, uint32_t count);

/* Random tokens that are text. */
void rig_random_tokens(struct random_source *random, int32_t *tokens, uint32_t count);

/* The same generation by itself. */
void rig_alone(struct rig *rig, const struct ticket *ticket, struct answer *out);
struct answer *answer_alone(struct rig *rig, const struct ticket *ticket); /* to be freed */
void answer_expect(const struct ticket *ticket, const struct answer *expected);

/* Tickets with a random prompt; the long one has 20 + 40 tokens, drawn by its seed. */
struct ticket *ticket_random(struct rig *rig, uint64_t seed, uint32_t prompt_count);
struct ticket *ticket_long(struct rig *rig, uint64_t seed);
void ticket_drop(struct ticket *ticket);
void ticket_run(struct ticket *ticket); /* submits and waits */
void ticket_expect_alone(struct rig *rig, const struct ticket *ticket);

#endif
