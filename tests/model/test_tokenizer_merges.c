/* SPDX-License-Identifier: Apache-2.0 */
/* The merge loop against a slow obvious one, on random merges and words of every length: the heap
 * of long words, the scan of short ones and the obvious loop must agree. The same for the
 * words that were seen before, and for where text over characters may be cut.
 *
 * BATON_TEST_SEED repeats a run. */
#include "test_tokenizer_files.h"

#include "model/tokenizer_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALPHABET 4
#define WORD_MAX 120

static uint64_t random_state, run_seed;

static uint64_t random_next(void) /* splitmix64 */
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t random_below(uint32_t bound)
{
    return (uint32_t)(random_next() % bound);
}

/* ---- merges ------------------------------------------------------------------------------ */

struct rule {
    uint32_t left, right, rank, result;
};

struct rules {
    struct rule items[200];
    size_t count;
    uint32_t tokens; /* ids in use */
};

/* Random pairs of tokens become new tokens; sometimes a token can be made in two ways, and
 * sometimes ranks are equal, as with scores. */
static void rules_make(struct rules *rules, struct merges *merges)
{
    *rules = (struct rules){.tokens = ALPHABET};
    assert_int_equal(merges_init(merges, random_below(3) ? 200 : 0, ERROR_NONE), 0);
    size_t wanted = random_below(200);
    bool unique = random_below(2);
    while (rules->count < wanted) {
        struct rule rule = {random_below(rules->tokens), random_below(rules->tokens),
                            unique ? (uint32_t)rules->count : random_below(20), 0};
        rule.result = random_below(5) ? rules->tokens++ : random_below(rules->tokens);
        bool known = false;
        for (size_t i = 0; i < rules->count; i++)
            known |= rules->items[i].left == rule.left && rules->items[i].right == rule.right;
        if (known) {
            wanted--;
            continue;
        }
        rules->items[rules->count++] = rule;
        assert_int_equal(merges_add(merges, rule.left, rule.right, rule.rank, rule.result), 0);
    }
}

static const struct rule *rule_find(const struct rules *rules, uint32_t left, uint32_t right)
{
    for (size_t i = 0; i < rules->count; i++) {
        if (rules->items[i].left == left && rules->items[i].right == right)
            return &rules->items[i];
    }
    return NULL;
}

/* Of all neighbours the pair of the smallest rank, the leftmost of equals; until there is none. */
static size_t merge_obviously(const struct rules *rules, uint32_t *ids, size_t count)
{
    for (;;) {
        const struct rule *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            const struct rule *rule = rule_find(rules, ids[i], ids[i + 1]);
            if (rule && (!best || rule->rank < best->rank)) {
                best = rule;
                at = i;
            }
        }
        if (!best)
            return count;
        ids[at] = best->result;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof(*ids));
        count--;
    }
}

static void word_compare(const struct rules *rules, const struct merges *merges,
                         struct merge_space *space)
{
    uint32_t expected[WORD_MAX], found[WORD_MAX];
    size_t length = random_below(4) ? random_below(30) : random_below(WORD_MAX);
    uint32_t letters = 1 + random_below(ALPHABET);
    for (size_t i = 0; i < length; i++)
        expected[i] = found[i] = random_below(letters);
    size_t expected_count = merge_obviously(rules, expected, length), count = length;
    assert_int_equal(merges_apply(merges, space, found, &count), 0);
    if (count != expected_count || memcmp(found, expected, count * sizeof(*found)) != 0)
        fail_msg("seed %llu: %zu symbols became %zu tokens, expected %zu",
                 (unsigned long long)run_seed, length, count, expected_count);
}

static void test_merges_equal_the_obvious_loop(void **state)
{
    (void)state;
    struct merge_space space = {0};
    for (int round = 0; round < 300; round++) {
        struct rules rules;
        struct merges merges;
        rules_make(&rules, &merges);
        for (int word = 0; word < 20; word++)
            word_compare(&rules, &merges, &space);
        merges_free(&merges);
    }
    merge_space_free(&space);
}

static void test_the_smaller_rank_of_a_pair_stays(void **state)
{
    (void)state;
    struct merges merges;
    struct merge_space space = {0};
    assert_int_equal(merges_init(&merges, 0, ERROR_NONE), 0);
    assert_int_equal(merges_add(&merges, 0, 1, 5, 10), 0);
    assert_int_equal(merges_add(&merges, 0, 1, 3, 11), 0);
    assert_int_equal(merges_add(&merges, 0, 1, 4, 12), 0);
    uint32_t ids[2] = {0, 1};
    size_t count = 2;
    assert_int_equal(merges_apply(&merges, &space, ids, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(ids[0], 11);
    merges_free(&merges);
    merge_space_free(&space);
}

/* ---- scores ------------------------------------------------------------------------------ */

/* The better score goes first, the leftmost of equals before the others. */
static void test_scores_decide_which_neighbours_merge(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", "b", "c", "ab", "bc", "ca", "aa", "<s>"};
    static const float scores[] = {0, 0, 0, -2, -1, -2, -4, 0};
    struct vocabulary vocabulary = {0};
    struct merges merges;
    struct merge_space space = {0};
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(vocabulary_set(&vocabulary, i, texts[i], strlen(texts[i]),
                                        i == 7 ? TOKEN_CONTROL : TOKEN_NORMAL, ERROR_NONE),
                         0);
    assert_int_equal(vocabulary_index(&vocabulary, ERROR_NONE), 0);
    assert_int_equal(merges_init(&merges, 8, ERROR_NONE), 0);
    assert_int_equal(merges_from_scores(&merges, &vocabulary, scores, ERROR_NONE), 0);
    static const struct {
        uint32_t ids[3], expected[2];
    } words[] = {{{0, 1, 2}, {0, 4}},  /* bc is better than ab */
                 {{2, 0, 1}, {5, 1}},  /* ca and ab are equal: the left one */
                 {{0, 0, 0}, {6, 0}}}; /* and so are aa and aa */
    for (size_t i = 0; i < 3; i++) {
        uint32_t ids[3];
        size_t count = 3;
        memcpy(ids, words[i].ids, sizeof(ids));
        assert_int_equal(merges_apply(&merges, &space, ids, &count), 0);
        assert_int_equal(count, 2);
        assert_memory_equal(ids, words[i].expected, sizeof(words[i].expected));
    }
    merges_free(&merges);
    merge_space_free(&space);
    vocabulary_free(&vocabulary);
}

/* ---- words ------------------------------------------------------------------------------- */

/* A word, and ids that follow from its text. */
static void word_make(uint32_t number, char *text, size_t *length, uint32_t *ids, size_t *count)
{
    uint32_t hash = 2166136261u;
    *length = 1 + number % (WORD_TEXT_MAX + 3);
    for (size_t i = 0; i < *length; i++) {
        text[i] = (char)(number >> (i % 4 * 8));
        hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    }
    *count = hash % (WORD_IDS_MAX + 2);
    for (size_t i = 0; i < *count; i++)
        ids[i] = hash + (uint32_t)i;
}

/* Whatever is found is what was put; what does not fit is not there; not all of it is lost. */
static void test_words_are_remembered_as_they_were(void **state)
{
    (void)state;
    struct words *words = words_new();
    assert_non_null(words);
    size_t hits = 0;
    for (int i = 0; i < 200000; i++) {
        char text[WORD_TEXT_MAX + 3];
        uint32_t ids[WORD_IDS_MAX + 2];
        size_t length, count;
        word_make(random_below(12000) * 2654435761u, text, &length, ids, &count);
        const struct word *word = words_find(words, text, length);
        if (!word) {
            words_put(words, text, length, ids, count);
            continue;
        }
        hits++;
        assert_true(length <= WORD_TEXT_MAX && count <= WORD_IDS_MAX);
        assert_int_equal(word->id_count, count);
        if (count)
            assert_memory_equal(word->ids, ids, count * sizeof(*ids));
    }
    assert_true(hits > 20000);
    words_free(words);
}

/* ---- joints ------------------------------------------------------------------------------ */

static void test_joints_are_the_neighbours_within_tokens(void **state)
{
    (void)state;
    static const char *const texts[] = {"ab",
                                        "\xe2\x96\x81"
                                        "a",
                                        "b\xc3\xa9", "<x>",
                                        "\xff"
                                        "a"};
    static const enum token_kind kinds[] = {TOKEN_NORMAL, TOKEN_NORMAL, TOKEN_USER_DEFINED,
                                            TOKEN_CONTROL, TOKEN_NORMAL};
    struct vocabulary vocabulary = {0};
    struct joints joints = {0};
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(
            vocabulary_set(&vocabulary, i, texts[i], strlen(texts[i]), kinds[i], ERROR_NONE),
            0);
    assert_int_equal(joints_build(&joints, &vocabulary, ERROR_NONE), 0);
    assert_int_equal(joints.count, 3);
    assert_true(joints_have(&joints, 'a', 'b'));
    assert_true(joints_have(&joints, 0x2581, 'a'));
    assert_true(joints_have(&joints, 'b', 0xe9));
    assert_false(joints_have(&joints, 'b', 'a'));
    assert_false(joints_have(&joints, '<', 'x'));
    assert_false(joints_have(&joints, 0, 0));
    joints_free(&joints);
    vocabulary_free(&vocabulary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_equal_the_obvious_loop),
        cmocka_unit_test(test_the_smaller_rank_of_a_pair_stays),
        cmocka_unit_test(test_scores_decide_which_neighbours_merge),
        cmocka_unit_test(test_words_are_remembered_as_they_were),
        cmocka_unit_test(test_joints_are_the_neighbours_within_tokens),
    };
    const char *seed = getenv("BATON_TEST_SEED");
    run_seed = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
    random_state = run_seed;
    print_message("BATON_TEST_SEED=%llu\n", (unsigned long long)run_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
