/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever the sizes: every decode rank gets each of its heads of each of its stages exactly once,
 * and every prefill rank hears from exactly as many decode ranks as it is told to wait for. */
#include "transfer/topology.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdint.h>
#include <string.h>

#define HEADS_MAX 64
#define RANKS_MAX 64

struct group {
    uint32_t tp, pp;
};

static struct topology_map map_of(struct group prefill, struct group decode, uint32_t tp_rank,
                                  uint32_t pp_rank, uint32_t heads)
{
    struct topology_map map;
    char text[200] = "";
    struct topology_rank rank = {decode.tp, tp_rank, decode.pp, pp_rank};
    int rc = topology_map_legs(prefill.tp, prefill.pp, rank, heads, &map, ERROR_BUFFER(text));
    if (rc)
        fail_msg("%s", text);
    return map;
}

/* Adds the heads that a leg brings to this decode rank, per prefill stage. */
static void leg_count_heads(struct group prefill, const struct topology_leg *leg,
                            uint32_t heads, uint32_t seen[RANKS_MAX][HEADS_MAX])
{
    uint32_t first, count;
    topology_heads(heads, prefill.tp, leg->tp_rank, &first, &count);
    for (uint32_t head = first; head < first + count; head++)
        seen[leg->pp_rank][head]++;
}

static void check_groups(struct group prefill, struct group decode, uint32_t heads)
{
    uint32_t grants[RANKS_MAX][RANKS_MAX] = {{0}}, required = 0;
    for (uint32_t pp = 0; pp < decode.pp; pp++)
        for (uint32_t tp = 0; tp < decode.tp; tp++) {
            struct topology_map map = map_of(prefill, decode, tp, pp, heads);
            uint32_t seen[RANKS_MAX][HEADS_MAX] = {{0}}, first, count;
            for (uint32_t i = 0; i < map.leg_count; i++) {
                const struct topology_leg *leg = &map.legs[i];
                assert_true(leg->tp_rank < prefill.tp && leg->pp_rank < prefill.pp);
                grants[leg->pp_rank][leg->tp_rank]++;
                if (!leg->dummy)
                    leg_count_heads(prefill, leg, heads, seen);
                if (i)
                    assert_true(leg->pp_rank <= map.legs[i - 1].pp_rank);
            }
            topology_heads(heads, decode.tp, tp, &first, &count);
            for (uint32_t stage = 0; stage < prefill.pp; stage++) {
                bool ours = prefill.pp != decode.pp || stage == pp;
                for (uint32_t head = first; head < first + count; head++)
                    assert_int_equal(seen[stage][head], ours);
            }
            required = map.required_dst;
        }
    for (uint32_t pp = 0; pp < prefill.pp; pp++)
        for (uint32_t tp = 0; tp < prefill.tp; tp++)
            assert_int_equal(grants[pp][tp], required);
}

static void test_topology_brings_every_head_once(void **state)
{
    (void)state;
    static const uint32_t heads[] = {0, 1, 2, 4, 8, 32};
    static const uint32_t sizes[] = {1, 2, 4, 8, 16};
    static const struct group stages[] = {{1, 1}, {3, 3}, {4, 1}, {1, 4}};
    for (size_t h = 0; h < sizeof(heads) / sizeof(*heads); h++)
        for (size_t p = 0; p < 5; p++)
            for (size_t d = 0; d < 5; d++)
                for (size_t s = 0; s < 4; s++)
                    check_groups((struct group){sizes[p], stages[s].tp},
                                 (struct group){sizes[d], stages[s].pp}, heads[h]);
    check_groups((struct group){3, 1}, (struct group){6, 1}, 12);
    check_groups((struct group){6, 1}, (struct group){3, 1}, 3);
}

static void test_topology_equal_sizes_pair_up(void **state)
{
    (void)state;
    struct topology_map map = map_of((struct group){8, 2}, (struct group){8, 2}, 5, 1, 8);
    assert_int_equal(map.leg_count, 1);
    assert_int_equal(map.legs[0].tp_rank, 5);
    assert_int_equal(map.legs[0].pp_rank, 1);
    assert_false(map.legs[0].dummy);
    assert_int_equal(map.required_dst, 1);
}

static void test_topology_more_decode_ranks_share_a_leg(void **state)
{
    (void)state;
    struct topology_map map = map_of((struct group){2, 1}, (struct group){8, 2}, 5, 1, 8);
    assert_int_equal(map.leg_count, 1);
    assert_int_equal(map.legs[0].tp_rank, 1);
    assert_int_equal(map.legs[0].pp_rank, 0);
    assert_int_equal(map.required_dst, 8); /* 4 heads ranks x 2 stages */
}

static void test_topology_replicas_are_dummies(void **state)
{
    (void)state;
    /* 8 prefill ranks hold 4 heads, two ranks each; decode rank 1 of 2 needs heads 2 and 3. */
    struct topology_map map = map_of((struct group){8, 1}, (struct group){2, 1}, 1, 0, 4);
    assert_int_equal(map.leg_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(map.legs[i].tp_rank, 4 + i);
        assert_int_equal(map.legs[i].dummy, i % 2);
    }
    /* A latent, and opaque pages: only the first leg sends. */
    for (uint32_t heads = 0; heads < 2; heads++) {
        map = map_of((struct group){4, 1}, (struct group){2, 1}, 1, 0, heads);
        assert_int_equal(map.leg_count, 2);
        assert_int_equal(map.legs[0].tp_rank, 2);
        assert_false(map.legs[0].dummy);
        assert_true(map.legs[1].dummy);
    }
}

static void test_topology_stages_come_highest_first(void **state)
{
    (void)state;
    struct topology_map map = map_of((struct group){2, 3}, (struct group){1, 1}, 0, 0, 1);
    assert_int_equal(map.leg_count, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(map.legs[i].pp_rank, 2 - i / 2);
        assert_int_equal(map.legs[i].tp_rank, i % 2);
        assert_int_equal(map.legs[i].dummy, i % 2);
    }
}

static void test_topology_heads_of_a_rank(void **state)
{
    (void)state;
    static const struct {
        uint32_t total, tp, rank, first, count;
    } cases[] = {{8, 1, 0, 0, 8}, {8, 4, 3, 6, 2}, {8, 8, 7, 7, 1},
                 {2, 8, 3, 0, 1}, {2, 8, 4, 1, 1}, {1, 4, 3, 0, 1},
                 {0, 4, 3, 0, 1}, {0, 1, 0, 0, 1}, {64, 2, 1, 32, 32}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint32_t first, count;
        topology_heads(cases[i].total, cases[i].tp, cases[i].rank, &first, &count);
        assert_int_equal(first, cases[i].first);
        assert_int_equal(count, cases[i].count);
    }
}

static void check_refused(int code, struct group prefill, struct topology_rank rank,
                          uint32_t heads, const char *word)
{
    struct topology_map map;
    char text[200] = "";
    memset(&map, 0x5a, sizeof(map));
    struct topology_map before = map;
    assert_int_equal(
        topology_map_legs(prefill.tp, prefill.pp, rank, heads, &map, ERROR_BUFFER(text)), code);
    if (!strstr(text, word))
        fail_msg("\"%s\" does not say \"%s\"", text, word);
    assert_memory_equal(&map, &before, sizeof(map)); /* outputs only on success */
}

static void test_topology_refuses_with_the_numbers(void **state)
{
    (void)state;
    typedef struct topology_rank rank;
    check_refused(BATON_ELAYOUT, (struct group){4, 1}, (rank){3, 0, 1, 0}, 12,
                  "prefill has 4, decode 3");
    check_refused(BATON_ELAYOUT, (struct group){4, 1}, (rank){4, 0, 1, 0}, 6, "6 KV heads");
    check_refused(BATON_ELAYOUT, (struct group){1, 1}, (rank){4, 0, 1, 0}, 6, "4 at decode");
    check_refused(BATON_ELAYOUT, (struct group){1, 4}, (rank){1, 0, 2, 0}, 8,
                  "prefill has 4, decode 2");
    check_refused(BATON_EINVAL, (struct group){0, 1}, (rank){1, 0, 1, 0}, 8, "tp size 0");
    check_refused(BATON_EINVAL, (struct group){1, 0}, (rank){1, 0, 1, 0}, 8, "pp size 0");
    check_refused(BATON_EINVAL, (struct group){1, 1}, (rank){2, 2, 1, 0}, 8, "tp 2 of 2");
    check_refused(BATON_EINVAL, (struct group){1, 1}, (rank){2, 1, 1, 1}, 8, "pp 1 of 1");
    check_refused(BATON_EINVAL, (struct group){1, 1}, (rank){0, 0, 0, 0}, 8, "of 0");
    check_refused(BATON_ELIMIT, (struct group){128, 1}, (rank){1, 0, 1, 0}, 8, "at most 64");
    check_refused(BATON_ELIMIT, (struct group){8, 9}, (rank){1, 0, 1, 0}, 8, "8 x 9");
    check_refused(BATON_ELIMIT, (struct group){1, 1}, (rank){1u << 20, 0, 1u << 20, 0}, 1,
                  "too large");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topology_brings_every_head_once),
        cmocka_unit_test(test_topology_equal_sizes_pair_up),
        cmocka_unit_test(test_topology_more_decode_ranks_share_a_leg),
        cmocka_unit_test(test_topology_replicas_are_dummies),
        cmocka_unit_test(test_topology_stages_come_highest_first),
        cmocka_unit_test(test_topology_heads_of_a_rank),
        cmocka_unit_test(test_topology_refuses_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
