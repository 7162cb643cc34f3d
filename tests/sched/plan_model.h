/* SPDX-License-Identifier: Apache-2.0 */
/* The planner once more, slow and obvious: plain arrays, everything counted anew and sorted anew for every
 * decision. Without a prefix cache, where pages are numbers only. */
#ifndef BATON_TESTS_SCHED_PLAN_MODEL_H
#define BATON_TESTS_SCHED_PLAN_MODEL_H

#include "sched/planner.h"

#define PLAN_MODEL_MAX 4096u

enum model_phase { MODEL_ABSENT, MODEL_WAITING, MODEL_PREFILL, MODEL_RUNNING };

struct model_request {
    enum model_phase phase;
    uint32_t prompt, tokens, computed, generated, limit, pages, overtaken;
    int32_t priority;
    uint64_t arrival, admitted;
    bool retracted;
};

struct model_piece {
    uint32_t request, tokens;
};

struct plan_model {
    struct planner_limits limits;
    uint32_t pages, tokens_per_page;
    struct model_request requests[PLAN_MODEL_MAX];
    uint32_t request_count;
    uint64_t admissions;
    uint32_t retracted; /* in the last plan */
    bool retracted_ratio;
    double ratio_after; /* of a retraction in the last plan */
    struct model_piece pieces[PLAN_MODEL_MAX];
    uint32_t piece_count;
};

/* `ratio` is the planner's; decode and retraction do not depend on it. */
void plan_model_decode(struct plan_model *model);
void plan_model_prompts(struct plan_model *model, double ratio);

#endif
