/* SPDX-License-Identifier: Apache-2.0 */
/* A decode worker whose prefill worker does not keep its word. The prefill side is made by hand of the
 * real parts (engine, pages, managers), so that it can stop wherever the test wants: after some pages, or
 * before the first token. The answer is always the one that a worker alone gives, and what landed is
 * not computed again. */
#include "worker_rig.h"

#include "sched/rank_group.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGES 64u
#define PAGE_TOKENS 16u
#define PROMPT 121u /* seven pages and a half */

static const char *golden;

/* ---- both sides ----------------------------------------------------------------------------- */

struct pair {
    struct rig decode;
    baton_bootstrap *bootstrap;
    char address[64];
    struct engine *engine; /* prefill's */
    struct kv_memory memory;
    struct rank_group group;
    uint64_t rooms;
};

static void prefill_open(struct pair *pair, uint32_t ranks)
{
    char text[512] = "";
    const struct engine_options engine = {
        .rank_count = ranks, .threads = ranks, .tokens_max = PROMPT, .logits_max = 1};
    const struct scheduler_options pages = {.pages = PAGES,
                                            .tokens_per_page = PAGE_TOKENS,
                                            .element = PAGE_ELEMENT_F16,
                                            .order = PAGE_ORDER_DEFAULT,
                                            .rank_count = ranks};
    const struct transfer_options transfer = {.bootstrap = pair->address};
    if (engine_open(&pair->decode.model.config, &pair->decode.model.weights, &engine, NULL,
                    NULL, &pair->engine, ERROR_BUFFER(text)) ||
        kv_memory_open(&pair->memory, pair->engine, &pages, ERROR_BUFFER(text)) ||
        rank_group_open(&pair->memory, &pair->decode.model.config, &transfer, 4, &pair->group,
                        ERROR_BUFFER(text)))
        fail_msg("%s", text);
}

static void pair_open(struct pair *pair, uint32_t prefill_ranks, uint32_t decode_ranks)
{
    char text[256] = "";
    struct rig_options options = rig_defaults;
    const struct transfer_options transfer = {.fallback = true};
    memset(pair, 0, sizeof(*pair));
    if (baton_bootstrap_open("127.0.0.1", 0, &pair->bootstrap, text, sizeof(text)))
        fail_msg("%s", text);
    snprintf(pair->address, sizeof(pair->address), "127.0.0.1:%u",
             baton_bootstrap_port(pair->bootstrap));
    options.ranks = decode_ranks;
    options.transfer = &transfer;
    rig_open(&pair->decode, golden, &options);
    prefill_open(pair, prefill_ranks);
}

static void pair_close(struct pair *pair)
{
    rig_close(&pair->decode);
    rank_group_close(&pair->group);
    engine_close(pair->engine);
    kv_memory_close(&pair->memory);
    baton_bootstrap_close(pair->bootstrap);
}

/* ---- one hand-over -------------------------------------------------------------------------- */

struct part {
    uint32_t pages;       /* so many are sent */
    bool wrong;           /* those of another prompt */
    const int32_t *token; /* the first token, sent with the last page; NULL: none */
    uint32_t pause_us;    /* then the room is given up; 0: it is left to itself */
};

/* The prompt's K and V into the first pages of the pool. */
static void prefill_compute(struct pair *pair, const int32_t *prompt, uint32_t count,
                            int32_t *pages)
{
    char text[256] = "";
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = (int32_t)i;
    const struct engine_sequence sequence = {
        .tokens = prompt, .token_count = count, .pages = pages, .page_count = PAGES};
    if (engine_step(pair->engine, &sequence, 1, NULL, ERROR_BUFFER(text)))
        fail_msg("%s", text);
}

static void room_end(struct group_room *room)
{
    while (group_room_state(room) != BATON_FAILED && group_room_state(room) != BATON_SUCCESS)
        usleep(500);
    while (!group_room_fenced(room))
        usleep(500);
    group_room_close(room);
}

/* Prefill opens a room, and the ticket is submitted with it. */
static struct group_room *room_begin(struct pair *pair, struct ticket *ticket)
{
    char text[256] = "";
    struct group_room *room;
    struct handover *handover = &ticket->generation.handover;
    *handover = (struct handover){.kind = HANDOVER_RECEIVE, .room = 1000 + pair->rooms++};
    memcpy(handover->bootstrap, pair->address, sizeof(pair->address));
    if (group_room_open_sender(&pair->group, handover->room, pair->address, 0, false, &room,
                               ERROR_BUFFER(text)))
        fail_msg("%s", text);
    ticket_submit(ticket);
    return room;
}

/* Hands a part of the ticket's prompt over and waits for the answer. */
static void hand_over(struct pair *pair, struct ticket *ticket, struct part part)
{
    int32_t pages[PAGES], other[PROMPT];
    uint32_t count = ticket->generation.prompt_count;
    for (uint32_t i = 0; i < count; i++)
        other[i] = ticket->prompt[count - 1 - i];
    prefill_compute(pair, part.wrong ? other : ticket->prompt, count, pages);
    struct group_room *room = room_begin(pair, ticket);
    while (group_room_state(room) == BATON_BOOTSTRAPPING)
        usleep(500);
    int32_t note = part.token ? rank_group_take_note(&pair->group) : -1;
    if (part.token)
        handover_note_write(&pair->group.notes[note],
                            &(struct token_choice){.token = *part.token}, 0);
    assert_int_equal(
        group_room_announce(room, (count + PAGE_TOKENS - 1) / PAGE_TOKENS, count, note), 0);
    assert_int_equal(group_room_send(room, pages, part.pages), 0);
    if (part.pause_us) {
        usleep(part.pause_us);
        group_room_abort(room, "prefill has had enough");
    }
    ticket_wait(ticket);
    room_end(room);
}

static struct scheduler_stats stats_of(struct pair *pair)
{
    struct scheduler_stats stats;
    rig_wait_idle(&pair->decode, &stats);
    return stats;
}

static struct ticket *prompt_of(struct pair *pair, uint64_t seed)
{
    struct ticket *ticket = ticket_random(&pair->decode, seed, PROMPT);
    ticket->generation.ignore_eos = true;
    return ticket;
}

/* Sends five pages and gives up, until they had all landed before that. */
static struct ticket *break_off(struct pair *pair, struct part part, uint64_t seed)
{
    for (part.pause_us = 1000; part.pause_us < 4000000; part.pause_us *= 2, seed++) {
        uint64_t kept = stats_of(pair).kept_tokens;
        struct ticket *ticket = prompt_of(pair, seed);
        hand_over(pair, ticket, part);
        if (stats_of(pair).kept_tokens - kept == part.pages * PAGE_TOKENS)
            return ticket;
        assert_int_equal(stats_of(pair).kept_tokens, kept); /* all or, too early, nothing */
        if (!part.wrong)
            ticket_expect_alone(&pair->decode, ticket);
        ticket_drop(ticket);
    }
    fail_msg("%u pages never landed", part.pages);
    return NULL;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_what_landed_is_kept(void **state)
{
    (void)state;
    static const uint32_t ranks[][2] = {{1, 1}, {2, 1}, {1, 2}};
    for (size_t i = 0; i < 3; i++) {
        struct pair pair;
        pair_open(&pair, ranks[i][0], ranks[i][1]);
        struct ticket *ticket = break_off(&pair, (struct part){.pages = 5}, 1);
        ticket_expect_alone(&pair.decode, ticket);
        assert_int_equal(ticket->cached_tokens, 0);
        assert_true(stats_of(&pair).recomputed > 0);
        ticket_drop(ticket);
        pair_close(&pair);
    }
}

/* That it is used, and not only counted: with another prompt's pages the answer is another one. */
static void test_what_landed_is_used(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 1, 1);
    struct ticket *ticket = break_off(&pair, (struct part){.pages = 5, .wrong = true}, 1);
    struct answer *expected = answer_alone(&pair.decode, ticket);
    assert_int_not_equal(memcmp(ticket->answer.tokens, expected->tokens,
                                expected->count * sizeof(*expected->tokens)),
                         0);
    free(expected);
    ticket_drop(ticket);
    pair_close(&pair);
}

/* All pages, and no first token with them: decode computes the last position and draws it. */
static void test_first_token_is_missing(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 1, 1);
    for (uint64_t seed = 1; seed < 5; seed++) {
        struct ticket *ticket = prompt_of(&pair, seed);
        struct answer *expected = answer_alone(&pair.decode, ticket);
        bool comes = seed % 2; /* what came for one must not be taken for the next one's */
        hand_over(&pair, ticket,
                  (struct part){.pages = 8, .token = comes ? expected->tokens : NULL});
        answer_expect(ticket, expected);
        assert_int_equal(stats_of(&pair).kept_tokens, seed / 2 * (PROMPT - 1));
        assert_int_equal(stats_of(&pair).recomputed, seed / 2);
        free(expected);
        ticket_drop(ticket);
    }
    pair_close(&pair);
}

/* Who wants the prompt rated needs the logits of all of it. */
static void test_prompt_logprobs_need_all_of_it(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 1, 1);
    struct ticket *ticket = prompt_of(&pair, 1);
    ticket->generation.prompt_logprobs = true;
    ticket->generation.sampling.logprobs = true;
    hand_over(&pair, ticket, (struct part){.pages = 8});
    ticket_expect_alone(&pair.decode, ticket);
    assert_int_equal(ticket->prompt_choice_count, PROMPT);
    assert_int_equal(stats_of(&pair).kept_tokens, 0);
    ticket_drop(ticket);
    pair_close(&pair);
}

/* A step can take longer than the other side waits for a room, so rooms do not wait for its end. (The
 * scheduler's thread delivers in between; here it does not come back from there.) */
static void test_room_opens_during_a_step(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 1, 1);
    struct ticket *busy = ticket_random(&pair.decode, 5, 20), *late = prompt_of(&pair, 6);
    busy->generation.ignore_eos = true;
    busy->generation.max_new_tokens = 200;
    ticket_submit(busy);
    ticket_wait_tokens(busy, 1);
    pthread_mutex_lock(&busy->lock);
    usleep(50000); /* it has a token to deliver by now */
    struct group_room *room = room_begin(&pair, late);
    baton_counters counters = {.struct_size = sizeof(counters)};
    for (int i = 0; i < 9000 && !counters.links_up; i++) {
        usleep(1000);
        assert_int_equal(baton_manager_counters(pair.group.managers[0], &counters), BATON_OK);
    }
    pthread_mutex_unlock(&busy->lock);
    assert_int_equal(counters.links_up, 1); /* decode has asked for the room */
    group_room_abort(room, "seen enough");
    ticket_wait(late);
    ticket_expect_alone(&pair.decode, late); /* computed there */
    ticket_wait(busy);
    room_end(room);
    ticket_drop(busy);
    ticket_drop(late);
    pair_close(&pair);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_landed_is_kept),
        cmocka_unit_test(test_what_landed_is_used),
        cmocka_unit_test(test_first_token_is_missing),
        cmocka_unit_test(test_room_opens_during_a_step),
        cmocka_unit_test(test_prompt_logprobs_need_all_of_it),
    };
    if (argc != 2)
        return 2;
    golden = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
