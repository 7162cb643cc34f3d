/* SPDX-License-Identifier: Apache-2.0 */
/* See planner.h. A step is made in three parts, in this order:
 *
 *   decode    a page for every running generation that is at the end of one. When there are not enough,
 *             some are retracted: their pages go back (what was computed stays in the prefix cache as
 *             long as it can) and they wait at the head of the queue.
 *   continue  the one prompt that is partly computed.
 *   admit     others, in the order of the queue, as long as tokens, rows, places and pages last.
 *
 * Why nothing gets stuck. A generation by itself always fits: submit saw to that. The last active one is
 * never retracted, and the one with the most generated tokens is the last to be. So somebody always gets
 * on and in the end finishes; when nobody is active, all pages can be had. */
#include "planner.h"

#include <stdlib.h>
#include <string.h>

int planner_open(struct planner *planner, const struct planner_limits *limits,
                 struct kv_books *books, struct error err)
{
    memset(planner, 0, sizeof(*planner));
    planner->limits = *limits;
    planner->books = books;
    token_ratio_init(&planner->ratio, limits->conservativeness);
    planner->active = calloc(limits->max_running, sizeof(*planner->active));
    planner->loads = calloc(limits->max_running, sizeof(*planner->loads));
    planner->plan.pieces = calloc(limits->max_running, sizeof(*planner->plan.pieces));
    if (planner->active && planner->loads && planner->plan.pieces)
        return BATON_OK;
    planner_close(planner);
    return error_set(err, BATON_ENOMEM, "no memory for steps of %u generations",
                     limits->max_running);
}

void planner_close(struct planner *planner)
{
    BATON_ASSERT(planner_is_idle(planner));
    free(planner->plan.pieces);
    free(planner->loads);
    free(planner->active);
    memset(planner, 0, sizeof(*planner));
}

static struct prefix_key key_of(const struct generation_state *state)
{
    return state->generation->key;
}

void planner_add(struct planner *planner, struct generation_state *state)
{
    state->arrival = planner->arrivals++;
    state->phase = PHASE_WAITING;
    uint32_t known = state->backup ? state->backup->tokens : 0, cached = 0;
    if (planner->books->cache)
        cached = prefix_cache_peek(planner->books->cache, key_of(state), state->tokens,
                                   generation_state_cacheable(state));
    state->uncached -= cached > known ? cached : known;
    wait_queue_add(&planner->waiting, state);
}

/* ---- leaving -------------------------------------------------------------------------------- */

static void share_computed(struct planner *planner, struct generation_state *state)
{
    kv_hold_share(planner->books, &state->hold, key_of(state), state->tokens, state->computed);
}

static void remove_active(struct planner *planner, struct generation_state *state)
{
    uint32_t i = 0;
    while (planner->active[i] != state)
        i++;
    planner->active_count--;
    memmove(planner->active + i, planner->active + i + 1,
            (planner->active_count - i) * sizeof(*planner->active));
    if (planner->chunked == state)
        planner->chunked = NULL;
}

static void deactivate(struct planner *planner, struct generation_state *state)
{
    remove_active(planner, state);
    kv_hold_release(planner->books, &state->hold);
    state->computed = 0;
}

void planner_detach(struct planner *planner, struct generation_state *state)
{
    if (state->phase == PHASE_WAITING)
        wait_queue_remove(&planner->waiting, state);
    else
        remove_active(planner, state);
}

void planner_adopt(struct planner *planner, struct generation_state *state)
{
    BATON_ASSERT(planner->active_count < planner->limits.max_running);
    state->phase = PHASE_RUNNING;
    planner->active[planner->active_count++] = state;
}

void planner_remove(struct planner *planner, struct generation_state *state, bool keep)
{
    kv_backup_drop(&planner->backups, state->backup);
    state->backup = NULL;
    if (state->phase == PHASE_WAITING) {
        wait_queue_remove(&planner->waiting, state);
        return;
    }
    if (keep)
        share_computed(planner, state);
    deactivate(planner, state);
}

/* ---- decode: pages for those that run, and retraction --------------------------------------- */

static void retract(struct planner *planner, struct generation_state *state)
{
    if (!state->backup)
        state->backup = kv_backup_save(&planner->backups, state->hold.pages, state->computed);
    share_computed(planner, state);
    state->uncached = state->token_count - state->hold.cached * planner->books->tokens_per_page;
    deactivate(planner, state);
    state->phase = PHASE_WAITING;
    state->retracted = true;
    wait_queue_add(&planner->waiting, state);
    planner->retractions++;
}

/* Pages that those that run need for `steps` more tokens. What the partly computed prompt needs is not
 * counted: it takes what is left. */
static uint64_t decode_need(const struct planner *planner, uint32_t steps)
{
    uint64_t need = 0;
    for (uint32_t i = 0; i < planner->active_count; i++) {
        struct sequence_load load = generation_state_load(planner->active[i]);
        if (planner->active[i]->phase == PHASE_RUNNING)
            need += admission_need_soon(&load, steps, planner->books->tokens_per_page);
    }
    return need;
}

/* Whose pages are being sent cannot give them back. NULL: nobody else is left. */
static struct generation_state *find_victim(const struct planner *planner)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < planner->active_count; i++)
        if (!planner->active[i]->room)
            planner->loads[count++] = generation_state_load(planner->active[i]);
    if (count == 0)
        return NULL;
    uint32_t victim = admission_victim(planner->loads, count);
    for (uint32_t i = 0; i < planner->active_count; i++)
        if (!planner->active[i]->room && victim-- == 0)
            return planner->active[i];
    return NULL;
}

static void ratio_after_retraction(struct planner *planner)
{
    uint64_t generated = 0, max_new = 0;
    for (uint32_t i = 0; i < planner->active_count; i++) {
        generated += planner->active[i]->generated;
        max_new += planner->active[i]->limit;
    }
    token_ratio_retracted(&planner->ratio, planner->active_count, generated, max_new);
}

static void plan_decode(struct planner *planner)
{
    struct step_plan *plan = &planner->plan;
    if (decode_need(planner, 0) > kv_books_available(planner->books)) {
        struct generation_state *victim = NULL;
        while (planner->active_count > 1 &&
               (plan->retracted == 0 ||
                decode_need(planner, RETRACT_STEPS) > kv_books_available(planner->books)) &&
               (victim = find_victim(planner))) {
            retract(planner, victim);
            plan->retracted++;
        }
        ratio_after_retraction(planner);
    }
    for (uint32_t i = 0; i < planner->active_count; i++) {
        struct generation_state *state = planner->active[i];
        if (state->phase != PHASE_RUNNING)
            continue;
        if (!kv_hold_grow(planner->books, &state->hold,
                          pages_for(state->token_count, planner->books->tokens_per_page)))
            continue; /* what others are being handed over has the pages: it waits a step */
        plan->pieces[plan->count++] = (struct step_piece){state, 1, 1};
    }
    plan->decoding = plan->count;
    if (plan->decoding)
        token_ratio_decay(&planner->ratio);
}

/* ---- prompts -------------------------------------------------------------------------------- */

/* What is left in the step that is being made. */
struct step_room {
    uint32_t tokens, rows;
    uint64_t reserved; /* pages that must be left for those that are active */
};

uint64_t planner_reserved(const struct planner *planner)
{
    uint64_t reserved = 0;
    for (uint32_t i = 0; i < planner->active_count; i++) {
        const struct generation_state *state = planner->active[i];
        struct sequence_load load = generation_state_load(state);
        double ratio = state->phase == PHASE_RUNNING ? planner->ratio.now : 1;
        reserved += admission_need(&load, ratio, planner->books->tokens_per_page);
    }
    return reserved;
}

static struct step_room room_at_first(const struct planner *planner)
{
    return (struct step_room){planner->limits.chunk_tokens, planner->limits.rows,
                              planner_reserved(planner)};
}

static uint32_t piece_length(const struct planner *planner,
                             const struct generation_state *state, const struct step_room *room)
{
    uint32_t most = generation_state_piece_max(state, room->rows);
    bool alone = planner->plan.count == planner->plan.decoding;
    return admission_piece(state->computed, state->token_count,
                           most < room->tokens ? most : room->tokens, alone,
                           planner->books->tokens_per_page);
}

/* Its pages are there. */
static void add_piece(struct planner *planner, struct generation_state *state, uint32_t tokens,
                      struct step_room *room)
{
    uint32_t rows = generation_state_rows(state, tokens);
    planner->plan.pieces[planner->plan.count++] = (struct step_piece){state, tokens, rows};
    planner->plan.prefill_tokens += tokens;
    room->tokens -= tokens;
    if (generation_state_rates(state))
        room->rows -= rows; /* of the others the one row is that of their place */
    planner->chunked = state->computed + tokens < state->token_count ? state : NULL;
}

/* The prompt that is partly computed goes on, with as much as there are pages for. Returns whether
 * others may follow. */
static bool plan_chunked(struct planner *planner, struct step_room *room)
{
    struct generation_state *state = planner->chunked;
    struct kv_books *books = planner->books;
    uint32_t wanted = piece_length(planner, state, room);
    uint64_t pages = (uint64_t)state->hold.count + kv_books_available(books);
    uint64_t fit = pages * books->tokens_per_page - state->computed;
    uint32_t tokens = wanted < fit ? wanted : (uint32_t)fit;
    if (tokens == 0)
        return false;
    uint32_t had = state->hold.count;
    bool grown = kv_hold_grow(books, &state->hold,
                              pages_for(state->computed + tokens, books->tokens_per_page));
    BATON_ASSERT(grown);
    room->reserved -= state->hold.count - had;
    add_piece(planner, state, tokens, room);
    return planner->chunked == NULL;
}

/* How many pages two sequences have in common at their beginning. */
static uint32_t common_pages(const struct generation_state *one, uint32_t one_count,
                             const struct generation_state *other, uint32_t tokens_per_page)
{
    uint32_t count = one_count < other->token_count ? one_count : other->token_count;
    struct prefix_key a = key_of(one), b = key_of(other);
    if (a.size != b.size || (a.size && memcmp(a.bytes, b.bytes, a.size)))
        return 0;
    uint32_t pages = 0;
    size_t page_bytes = tokens_per_page * sizeof(*one->tokens);
    while ((pages + 1) * tokens_per_page <= count &&
           memcmp(one->tokens + pages * tokens_per_page,
                  other->tokens + pages * tokens_per_page, page_bytes) == 0)
        pages++;
    return pages;
}

/* Somebody is just computing more of its beginning than is known: wait for that, rather than
 * compute it twice. Whoever was passed too often does not wait. */
static bool waits_for_prefix(const struct planner *planner,
                             const struct generation_state *state)
{
    if (!planner->books->cache || state->overtaken >= OVERTAKES_MAX)
        return false;
    uint32_t cacheable = generation_state_cacheable(state);
    for (uint32_t i = 0; i < planner->active_count; i++) {
        const struct generation_state *other = planner->active[i];
        if (other->phase == PHASE_PREFILL &&
            common_pages(state, cacheable, other, planner->books->tokens_per_page) >
                state->hold.count)
            return true;
    }
    return false;
}

/* The hold has its cached beginning, locked. Takes the pages of the first piece; 0: not now. */
static uint32_t fit_in(struct planner *planner, struct generation_state *state,
                       const struct step_room *room, uint32_t *need)
{
    struct kv_books *books = planner->books;
    struct sequence_load load = generation_state_load(state);
    *need = admission_need(&load, 1, books->tokens_per_page);
    if (waits_for_prefix(planner, state) || room->reserved + *need > kv_books_available(books))
        return 0;
    uint32_t tokens = piece_length(planner, state, room);
    if (tokens == 0 ||
        !kv_hold_grow(books, &state->hold,
                      pages_for(state->computed + tokens, books->tokens_per_page)))
        return 0;
    return tokens;
}

static void count_admission(struct planner *planner, struct generation_state *state,
                            uint32_t cached)
{
    if (!state->admitted) {
        state->cached_tokens = cached;
        planner->plan.admitted++;
        planner->prompt_tokens += state->token_count;
        planner->cached_tokens += cached;
    }
    state->admitted = true;
    state->retracted = false;
    state->overtaken = 0;
}

static void backup_return(struct planner *planner, struct generation_state *state)
{
    kv_backup_restore(&planner->backups, state->backup, state->hold.pages, state->hold.cached);
    kv_backup_drop(&planner->backups, state->backup);
    state->backup = NULL;
}

/* Lets it in if it fits. */
static bool admit(struct planner *planner, struct generation_state *state,
                  struct step_room *room)
{
    struct kv_books *books = planner->books;
    uint32_t need;
    kv_hold_match(books, &state->hold, key_of(state), state->tokens,
                  generation_state_cacheable(state));
    state->computed = state->hold.cached * books->tokens_per_page;
    if (state->backup && state->backup->tokens > state->computed)
        state->computed = state->backup->tokens; /* the pages are filled once they are there */
    wait_queue_set_uncached(&planner->waiting, state, state->token_count - state->computed);
    uint32_t had = state->hold.count;
    uint32_t tokens = fit_in(planner, state, room, &need);
    if (tokens == 0) {
        kv_hold_release(books, &state->hold);
        state->computed = 0;
        return false;
    }
    wait_queue_overtake(state);
    wait_queue_remove(&planner->waiting, state);
    room->reserved += need - (state->hold.count - had);
    if (state->backup)
        backup_return(planner, state);
    state->phase = PHASE_PREFILL;
    planner->active[planner->active_count++] = state;
    count_admission(planner, state, state->hold.cached * books->tokens_per_page);
    add_piece(planner, state, tokens, room);
    return true;
}

/* Retracted ones are let in one after the other, and nobody else before they are all in. Of the rest a
 * smaller one may pass one that does not fit, but not forever: `passes` is how often the most patient
 * of those who were refused can still be passed. */
static void plan_admissions(struct planner *planner, struct step_room *room)
{
    bool retracted = planner->waiting.retracted.count > 0;
    struct generation_state *next,
        *state = retracted ? planner->waiting.retracted.first : planner->waiting.fresh.first;
    uint32_t refused = 0, passes = OVERTAKES_MAX;
    for (; state && refused < SCAN_MAX && passes > 0; state = next) {
        next = state->next;
        if (planner->chunked || room->tokens == 0 ||
            planner->active_count == planner->limits.max_running)
            return;
        if (admit(planner, state, room)) {
            passes -= refused > 0;
            continue;
        }
        if (retracted)
            return;
        refused++;
        if (OVERTAKES_MAX - state->overtaken < passes)
            passes = OVERTAKES_MAX - state->overtaken;
    }
}

const struct step_plan *planner_plan(struct planner *planner)
{
    struct step_plan *plan = &planner->plan;
    plan->count = plan->decoding = plan->prefill_tokens = 0;
    plan->retracted = plan->admitted = 0;
    if (planner_is_idle(planner)) {
        token_ratio_reset(&planner->ratio);
        return plan;
    }
    plan_decode(planner);
    struct step_room room = room_at_first(planner);
    if (planner->chunked && !plan_chunked(planner, &room))
        return plan;
    if (plan->retracted == 0)
        plan_admissions(planner, &room);
    return plan;
}

static bool is_active(const struct planner *planner, const struct generation_state *state)
{
    for (uint32_t i = 0; i < planner->active_count; i++)
        if (planner->active[i] == state)
            return true;
    return false;
}

void planner_plan_rest(struct planner *planner)
{
    struct step_plan *plan = &planner->plan;
    uint32_t count = plan->count, decoding = plan->decoding;
    plan->count = plan->decoding = plan->prefill_tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct step_piece piece = plan->pieces[i];
        if (!is_active(planner, piece.state))
            continue;
        plan->pieces[plan->count++] = piece;
        plan->decoding += i < decoding; /* they come first */
        plan->prefill_tokens += i < decoding ? 0 : piece.tokens;
    }
}

/* ---- after the step ------------------------------------------------------------------------- */

void planner_computed(struct planner *planner, const struct step_piece *piece)
{
    struct generation_state *state = piece->state;
    state->computed += piece->tokens;
    if (state->phase == PHASE_PREFILL &&
        (!state->pinned || kv_hold_is_first(planner->books, &state->hold, key_of(state),
                                            state->tokens, state->computed)))
        share_computed(planner, state);
}

void planner_token(struct generation_state *state, int32_t token)
{
    BATON_ASSERT(state->computed == state->token_count && state->generated < state->limit);
    state->tokens[state->token_count++] = token;
    state->generated++;
    state->phase = PHASE_RUNNING;
}
