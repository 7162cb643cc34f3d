/* SPDX-License-Identifier: Apache-2.0 */
/* What the next step computes. The planner knows every generation that waits or runs, and their pages;
 * it knows neither engine nor threads, and whoever calls it computes (or, in tests, pretends to).
 *
 *   planner_add                       it waits
 *   loop: planner_plan                retractions, admissions; pages are there for every piece
 *         compute the plan's pieces
 *         planner_computed            for each piece
 *         planner_token               for each that got a token and goes on
 *         planner_remove              for each that is over, at any time between steps too
 */
#ifndef BATON_SCHED_PLANNER_H
#define BATON_SCHED_PLANNER_H

#include "kv_backup.h"
#include "token_ratio.h"
#include "wait_queue.h"

#define OVERTAKES_MAX 16 /* nobody is passed more often by those who came later */
#define SCAN_MAX 64      /* so many that do not fit are looked at for a step */

struct planner_limits {
    uint32_t max_running;
    uint32_t chunk_tokens;
    uint32_t rows; /* of logits of prompts in a step */
    double conservativeness;
};

struct step_piece {
    struct generation_state *state;
    uint32_t tokens; /* from state->computed on */
    uint32_t rows;   /* of the last ones, whose logits are wanted */
};

struct step_plan {
    struct step_piece *pieces; /* [max_running]: those that run, then pieces of prompts */
    uint32_t count, decoding, prefill_tokens, retracted;
    uint32_t admitted; /* for the first time */
};

struct planner {
    struct planner_limits limits;
    struct kv_books *books;
    struct kv_backups backups; /* of those that were retracted; set by whoever wants them */
    struct token_ratio ratio;
    struct wait_queue waiting;
    struct generation_state **active; /* [max_running]: RUNNING and PREFILL, as they came in */
    uint32_t active_count;
    struct generation_state *chunked; /* PREFILL between steps: at most one */
    struct sequence_load *loads;      /* [max_running]: scratch */
    struct step_plan plan;
    uint64_t arrivals, retractions, prompt_tokens, cached_tokens;
};

int planner_open(struct planner *planner, const struct planner_limits *limits,
                 struct kv_books *books, struct error err);
void planner_close(struct planner *planner); /* nobody waits or runs. All zero is fine. */

void planner_add(struct planner *planner, struct generation_state *state);

/* The pieces of the next step; none when nobody waits or runs. The plan is good until the next one.
 * A piece is never empty. */
const struct step_plan *planner_plan(struct planner *planner);

/* Nothing came of the plan and some are over: it is what is left of it. */
void planner_plan_rest(struct planner *planner);

void planner_computed(struct planner *planner, const struct step_piece *piece);
void planner_token(struct generation_state *state, int32_t token);

/* Leaves waiting or active; what it holds stays its own. */
void planner_detach(struct planner *planner, struct generation_state *state);

/* Its prompt is in its pages and its first token is known: it runs from the next step on. There is a
 * place for it (active_count < max_running). */
void planner_adopt(struct planner *planner, struct generation_state *state);

/* Pages that those who are active are expected to need. */
uint64_t planner_reserved(const struct planner *planner);

/* It is over, wherever it stands. keep: what it computed may be shared. */
void planner_remove(struct planner *planner, struct generation_state *state, bool keep);

static inline bool planner_is_idle(const struct planner *planner)
{
    return planner->active_count == 0 && wait_queue_count(&planner->waiting) == 0;
}

#endif
