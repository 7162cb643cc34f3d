/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-overs, as the scheduler's thread sees them. A generation with a room is in the list `handing`,
 * whatever phase it is in; the list is looked through once a step.
 *
 *   prefill:  BOOTSTRAP -> WAITING -> PREFILL, pages are sent as they get ready -> INFLIGHT -> over
 *   decode:   PREALLOC -> TRANSFER -> LANDED -> RUNNING
 *                 \__________\____ failed: its pages are in limbo, the prompt is computed here -> WAITING
 */
#ifndef BATON_SCHED_HANDING_OVER_H
#define BATON_SCHED_HANDING_OVER_H

#include "limbo.h"
#include "scheduler_parts.h"

/* Opens the room of a generation that is submitted with one. Any thread: the other side waits for it, and a
 * step can take longer than it does. handover_begin, the scheduler's thread, tells what came of it. */
void handover_open(struct scheduler *scheduler, struct generation_state *state);
void handover_begin(struct scheduler *scheduler, struct generation_state *state);

/* Opens a room only to tell the other side that nobody will come. */
void handover_refuse(struct scheduler *scheduler, const struct handover *handover, int code,
                     const char *reason);

/* It is over, or goes on without the room: its room is aborted unless it has ended, and its pages go
 * to limbo if somebody may still touch them. Returns whether the pages stayed with it. */
bool handover_end(struct scheduler *scheduler, struct generation_state *state,
                  const char *reason);

/* Looks at all rooms, moves on what can be moved on. */
void handover_advance(struct scheduler *scheduler);

/* Something is on its way that will wake the thread. */
static inline bool handover_pending(const struct scheduler *scheduler)
{
    return scheduler->handing_first || scheduler->limbo;
}

/* prefill_side.c */
void prefill_begin(struct scheduler *scheduler, struct generation_state *state);
void prefill_advance(struct scheduler *scheduler, struct generation_state *state, int room);
/* Before a step: what was cached is sent, what will be computed is named. After a piece was computed:
 * what is whole. After its first token is known: the rest. */
void prefill_before_step(struct scheduler *scheduler, const struct step_plan *plan);
void prefill_computed(struct scheduler *scheduler, struct generation_state *state);
void prefill_token(struct scheduler *scheduler, struct generation_state *state,
                   const struct token_choice *choice);

/* decode_side.c */
void decode_begin(struct scheduler *scheduler, struct generation_state *state);
void decode_advance(struct scheduler *scheduler, struct generation_state *state, int room);
void decode_grant(struct scheduler *scheduler); /* pages for those that want some */
void decode_run(struct scheduler *scheduler);   /* places for those that have landed */
void decode_landed_remove(struct scheduler *scheduler, struct generation_state *state);

/* scheduler_thread.c */
void scheduler_finish(struct scheduler *scheduler, struct generation_state *state,
                      const struct token_choice *choice, const struct answer_finish *how);
void scheduler_finish_without_token(struct scheduler *scheduler, struct generation_state *state,
                                    enum generation_finish kind, int error, const char *reason);
void scheduler_fail(struct scheduler *scheduler, struct generation_state *state, int error,
                    const char *reason);
/* The next token is known: text, delivery, and the end if it is one. False: it is over. */
bool scheduler_accept(struct scheduler *scheduler, struct generation_state *state,
                      const struct token_choice *choice);

#endif
