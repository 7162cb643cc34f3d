/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler beside an obvious one: double precision, a full sort, sums in plain loops. And what the
 * obvious one cannot say: that what is drawn has the right distribution (chi-square), that nothing
 * but seed and position matters, and what happens at the edges. */
#include "engine/sampler.h"
#include "engine/sampler_random.h"
#include "random_weights.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB_MAX 5000

/* ---- the obvious sampler -------------------------------------------------------------------- */

struct obvious {
    uint32_t count;
    double weights[VOCAB_MAX]; /* 0: not kept */
    double total;
    int32_t order[VOCAB_MAX];
};

static const float *order_logits;

static int compare_order(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (order_logits[i] != order_logits[j])
        return order_logits[i] > order_logits[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static void obvious_make(struct obvious *o, const float *logits, uint32_t count,
                         const struct sampling *sampling)
{
    o->count = count;
    for (uint32_t i = 0; i < count; i++)
        o->order[i] = (int32_t)i;
    order_logits = logits;
    qsort(o->order, count, sizeof(*o->order), compare_order);
    double max = (double)logits[o->order[0]];
    for (uint32_t i = 0; i < count; i++)
        o->weights[i] = exp(((double)logits[i] - max) / (double)sampling->temperature);
    uint32_t kept = sampling->top_k && sampling->top_k < count ? sampling->top_k : count;
    double mass = 0, sum = 0;
    for (uint32_t i = 0; i < kept; i++)
        mass += o->weights[o->order[i]];
    for (uint32_t i = 0; i < count; i++) {
        bool in = i < kept && (i == 0 || sum < (double)sampling->top_p * mass);
        sum += o->weights[o->order[i]];
        if (!in || o->weights[o->order[i]] < (double)sampling->min_p)
            o->weights[o->order[i]] = 0;
    }
    o->total = 0;
    for (uint32_t i = 0; i < count; i++)
        o->total += o->weights[i];
}

/* Is the token the one for u, or would another u within 1e-5 give it? */
static bool obvious_agrees(const struct obvious *o, double u, int32_t token)
{
    double before = 0;
    for (int32_t i = 0; i < token; i++)
        before += o->weights[i];
    double from = before / o->total, to = (before + o->weights[token]) / o->total;
    return o->weights[token] > 0 && u > from - 1e-5 && u < to + 1e-5;
}

/* ---- fixtures ------------------------------------------------------------------------------- */

static struct sampler *open_sampler(uint32_t vocab_size)
{
    struct sampler *sampler;
    assert_int_equal(sampler_open(vocab_size, &sampler, ERROR_NONE), BATON_OK);
    return sampler;
}

static int32_t pick(struct sampler *sampler, const float *logits, uint32_t count,
                    const struct sampling *sampling, uint64_t position)
{
    struct token_choice choice;
    char text[256] = "";
    float *copy = malloc(count * sizeof(*copy));
    assert_non_null(copy);
    memcpy(copy, logits, count * sizeof(*copy));
    const struct sampler_row row = {.logits = copy, .sampling = sampling, .position = position};
    if (sampler_pick(sampler, &row, &choice, ERROR_BUFFER(text)))
        fail_msg("%s", text);
    free(copy);
    return choice.token;
}

static void random_logits(struct random_stream *random, float *logits, uint32_t count)
{
    float scale = 1.0f + 12.0f * fabsf(random_stream_float(random, 1));
    bool coarse = random_stream_below(random, 3) == 0; /* many ties */
    for (uint32_t i = 0; i < count; i++) {
        logits[i] = random_stream_float(random, scale);
        if (coarse)
            logits[i] = roundf(logits[i]);
        if (random_stream_below(random, 50) == 0)
            logits[i] = -INFINITY;
    }
    logits[random_stream_below(random, count)] = scale;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_sampler_equals_the_obvious_one(void **state)
{
    (void)state;
    const uint32_t sizes[] = {1, 2, 17, 256, 257, 1000, VOCAB_MAX};
    const uint32_t top_ks[] = {0, 0, 1, 2, 5, 40, 900, 100000};
    const float top_ps[] = {1, 1, 0, 0.1f, 0.5f, 0.9f, 0.99f, 0.9999f};
    const float min_ps[] = {0, 0, 0.01f, 0.1f, 0.5f, 1};
    const float temperatures[] = {0.1f, 0.7f, 1, 2, 30};
    struct random_stream random = {11};
    struct obvious *o = malloc(sizeof(*o));
    float *logits = malloc(VOCAB_MAX * sizeof(*logits));
    assert_non_null(o);
    assert_non_null(logits);
    for (int round = 0; round < 3000; round++) {
        uint32_t count = sizes[random_stream_below(&random, 7)];
        struct sampler *sampler = open_sampler(count);
        struct sampling sampling = SAMPLING_DEFAULT;
        random_logits(&random, logits, count);
        sampling.temperature = temperatures[random_stream_below(&random, 5)];
        sampling.top_k = top_ks[random_stream_below(&random, 8)];
        sampling.top_p = top_ps[random_stream_below(&random, 8)];
        sampling.min_p = min_ps[random_stream_below(&random, 6)];
        sampling.seed = random_stream_next(&random);
        obvious_make(o, logits, count, &sampling);
        for (uint64_t position = 0; position < 4; position++) {
            int32_t token = pick(sampler, logits, count, &sampling, position);
            if (!obvious_agrees(o, sampler_uniform(sampling.seed, position), token))
                fail_msg("round %d: %u tokens, temperature %g, top_k %u, top_p %g, min_p %g: "
                         "token %d, of weight %g of %g",
                         round, count, (double)sampling.temperature, sampling.top_k,
                         (double)sampling.top_p, (double)sampling.min_p, token,
                         o->weights[token], o->total);
        }
        sampler_close(sampler);
    }
    free(logits);
    free(o);
}

/* Sum over all tokens of (seen - expected)^2 / expected, where enough are expected. */
static void check_distribution(const char *name, uint32_t count, struct sampling sampling)
{
    enum { DRAWS = 20000 };
    struct random_stream random = {count};
    struct obvious *o = malloc(sizeof(*o));
    float *logits = malloc(count * sizeof(*logits));
    uint32_t *seen = calloc(count, sizeof(*seen));
    struct sampler *sampler = open_sampler(count);
    assert_non_null(o);
    assert_non_null(logits);
    assert_non_null(seen);
    for (uint32_t i = 0; i < count; i++)
        logits[i] = random_stream_float(&random, 3);
    obvious_make(o, logits, count, &sampling);
    for (uint64_t i = 0; i < DRAWS; i++)
        seen[pick(sampler, logits, count, &sampling, i)]++;
    double chi_square = 0, rest_seen = 0, rest_expected = 0;
    int cells = 0;
    for (uint32_t i = 0; i < count; i++) {
        double expected = DRAWS * o->weights[i] / o->total;
        if (o->weights[i] <= 0)
            assert_int_equal(seen[i], 0);
        if (expected < 10) {
            rest_seen += seen[i];
            rest_expected += expected;
            continue;
        }
        chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
        cells++;
    }
    if (rest_expected >= 10) {
        chi_square += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        cells++;
    }
    /* cells - 1 degrees of freedom: mean cells - 1, variance twice that; five deviations. */
    double limit = cells - 1 + 5 * sqrt(2.0 * (cells - 1)) + 5;
    if (chi_square > limit)
        fail_msg("%s: chi-square %g with %d cells; at most %g were expected", name, chi_square,
                 cells, limit);
    sampler_close(sampler);
    free(seen);
    free(logits);
    free(o);
}

static void test_draws_have_the_right_distribution(void **state)
{
    (void)state;
    struct sampling sampling = SAMPLING_DEFAULT;
    sampling.seed = 12345;
    check_distribution("all", 100, sampling);
    check_distribution("all, several blocks", 700, sampling);
    sampling.temperature = 2;
    sampling.top_k = 20;
    check_distribution("top_k", 300, sampling);
    sampling.top_p = 0.6f;
    check_distribution("top_k and top_p", 300, sampling);
    sampling.top_k = 0;
    sampling.seed = 0;
    check_distribution("top_p", 300, sampling);
    sampling.top_p = 1;
    sampling.min_p = 0.2f;
    check_distribution("min_p", 300, sampling);
}

/* Neighbouring seeds and neighbouring positions are as good as independent. */
static void test_uniform_numbers_are_uniform(void **state)
{
    (void)state;
    enum { CELLS = 64, SEEDS = 400, POSITIONS = 400 };
    static uint32_t pairs_position[CELLS], pairs_seed[CELLS];
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (uint64_t position = 0; position < POSITIONS; position++) {
            double u = sampler_uniform(seed, position);
            assert_true(u >= 0 && u < 1);
            int here = (int)(u * 8);
            int next = (int)(sampler_uniform(seed, position + 1) * 8);
            int beside = (int)(sampler_uniform(seed + 1, position) * 8);
            pairs_position[here * 8 + next]++;
            pairs_seed[here * 8 + beside]++;
        }
    double expected = (double)SEEDS * POSITIONS / CELLS, positions = 0, seeds = 0;
    for (int i = 0; i < CELLS; i++) {
        positions += pow(pairs_position[i] - expected, 2) / expected;
        seeds += pow(pairs_seed[i] - expected, 2) / expected;
    }
    assert_true(positions < 63 + 5 * sqrt(2 * 63) && seeds < 63 + 5 * sqrt(2 * 63));
}

/* In whatever order and with whatever between them. */
static void test_only_seed_and_position_matter(void **state)
{
    (void)state;
    enum { COUNT = 600, DRAWS = 50 };
    struct random_stream random = {3};
    float logits[COUNT], others[COUNT];
    int32_t tokens[DRAWS];
    struct sampling sampling = SAMPLING_DEFAULT, other = SAMPLING_DEFAULT;
    struct sampler *sampler = open_sampler(COUNT);
    sampling.top_p = 0.95f;
    sampling.seed = 7;
    other.top_k = 3;
    random_logits(&random, logits, COUNT);
    random_logits(&random, others, COUNT);
    for (uint64_t i = 0; i < DRAWS; i++)
        tokens[i] = pick(sampler, logits, COUNT, &sampling, i);
    sampler_close(sampler);
    sampler = open_sampler(COUNT);
    int changed = 0;
    for (uint64_t i = DRAWS; i-- > 0;) {
        pick(sampler, others, COUNT, &other, i);
        assert_int_equal(pick(sampler, logits, COUNT, &sampling, i), tokens[i]);
        other.seed = 8;
        other.top_k = 0;
        other.top_p = 0.95f;
        changed += pick(sampler, logits, COUNT, &other, i) != tokens[i];
    }
    assert_true(changed > 0);
    sampler_close(sampler);
}

static void test_edges(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    float logits[COUNT];
    struct sampler *sampler = open_sampler(COUNT);
    struct sampling sampling = SAMPLING_DEFAULT;
    const struct sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    /* all impossible but one */
    for (int i = 0; i < COUNT; i++)
        logits[i] = -INFINITY;
    logits[271] = -5;
    for (uint64_t i = 0; i < 20; i++) {
        assert_int_equal(pick(sampler, logits, COUNT, &sampling, i), 271);
        sampling.top_p = i % 2 ? 1 : 0.5f;
        sampling.top_k = i % 3 ? 0 : 7;
    }
    assert_int_equal(pick(sampler, logits, COUNT, &greedy, 0), 271);
    /* equal ones: the lower id is the likelier */
    for (int i = 0; i < COUNT; i++)
        logits[i] = 2;
    assert_int_equal(pick(sampler, logits, COUNT, &greedy, 0), 0);
    sampling = SAMPLING_DEFAULT;
    sampling.top_p = 0;
    assert_int_equal(pick(sampler, logits, COUNT, &sampling, 9), 0);
    sampling.top_p = 1;
    sampling.top_k = 5;
    bool seen[COUNT] = {false};
    for (uint64_t i = 0; i < 200; i++)
        seen[pick(sampler, logits, COUNT, &sampling, i)] = true;
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(seen[i], i < 5);
    /* more than there are */
    sampling.top_k = UINT32_MAX;
    for (uint64_t i = 0; i < 200; i++)
        assert_in_range(pick(sampler, logits, COUNT, &sampling, i), 0, COUNT - 1);
    sampler_close(sampler);
}

static void expect_error(struct sampler *sampler, const float *logits, uint32_t count,
                         const char *reason)
{
    float copy[400];
    char text[256] = "";
    const struct sampling sampling = SAMPLING_DEFAULT;
    struct token_choice choice = {.token = -7};
    memcpy(copy, logits, count * sizeof(*copy));
    const struct sampler_row row = {.logits = copy, .sampling = &sampling};
    assert_int_equal(sampler_pick(sampler, &row, &choice, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_int_equal(choice.token, -7);
    if (!strstr(text, reason))
        fail_msg("\"%s\" does not say \"%s\"", text, reason);
}

static void test_numbers_that_are_none_are_refused(void **state)
{
    (void)state;
    enum { COUNT = 333 };
    float logits[COUNT] = {0};
    struct sampler *sampler = open_sampler(COUNT);
    for (int i = 0; i < COUNT; i++) {
        char reason[64];
        snprintf(reason, sizeof(reason), "token %d is not a number", i);
        logits[i] = NAN;
        expect_error(sampler, logits, COUNT, reason);
        logits[i] = 0;
    }
    logits[332] = INFINITY;
    expect_error(sampler, logits, COUNT, "token 332 is infinite");
    for (int i = 0; i < COUNT; i++)
        logits[i] = -INFINITY;
    expect_error(sampler, logits, COUNT, "none of the 333 tokens is possible");
    sampler_close(sampler);
}

static void test_penalties_and_biases(void **state)
{
    (void)state;
    enum { COUNT = 400 };
    const int32_t prompt[] = {3, 3, 7};
    const struct logit_bias biases[] = {{9, 1.5f}, {11, -100}};
    const int32_t forbidden[] = {20, 21};
    struct token_history history = {0};
    struct random_stream random = {1};
    float logits[COUNT], expected[COUNT];
    for (int i = 0; i < COUNT; i++)
        expected[i] = logits[i] = random_stream_float(&random, 4);
    logits[3] = expected[3] = 2;
    logits[7] = expected[7] = -2;
    assert_int_equal(token_history_add_prompt(&history, prompt, 3), BATON_OK);
    for (int i = 0; i < COUNT / 2; i++) /* enough for the table to grow */
        for (int times = i % 3; times > 0; times--)
            assert_int_equal(token_history_add_output(&history, i), BATON_OK);
    for (int i = 0; i < COUNT; i++) {
        int outputs = i < COUNT / 2 ? i % 3 : 0;
        if (outputs || i == 3 || i == 7)
            expected[i] = expected[i] > 0 ? expected[i] / 1.25f : expected[i] * 1.25f;
        expected[i] -= (float)outputs * 0.5f + (outputs ? 0.25f : 0);
    }
    expected[9] += 1.5f;
    expected[11] -= 100;
    expected[20] = expected[21] = -INFINITY;
    struct sampler *sampler = open_sampler(COUNT);
    struct sampling sampling = {.top_p = 1,
                                .repetition_penalty = 1.25f,
                                .frequency_penalty = 0.5f,
                                .presence_penalty = 0.25f,
                                .biases = biases,
                                .bias_count = 2};
    const struct sampler_row row = {.logits = logits,
                                    .sampling = &sampling,
                                    .history = &history,
                                    .forbidden = forbidden,
                                    .forbidden_count = 2};
    struct token_choice choice;
    assert_true(sampling_has_penalties(&sampling));
    assert_int_equal(sampler_pick(sampler, &row, &choice, ERROR_NONE), BATON_OK);
    int best = 0;
    for (int i = 0; i < COUNT; i++) {
        if (i != 20 && i != 21)
            assert_true(fabsf(logits[i] - expected[i]) < 1e-5f);
        best = expected[i] > expected[best] ? i : best;
    }
    assert_int_equal(choice.token, best);
    assert_true(isinf(logits[20]) && isinf(logits[21]));
    sampler_close(sampler);
    token_history_free(&history);
}

/* Those of the model, whatever the request asks for besides. */
static void test_logprobs(void **state)
{
    (void)state;
    enum { COUNT = 1500 };
    const struct logit_bias biases[] = {{4, 30}};
    struct random_stream random = {5};
    float logits[COUNT], plain[COUNT];
    double total = 0;
    for (int i = 0; i < COUNT; i++) {
        plain[i] = random_stream_float(&random, 6);
        if (i % 7 == 0)
            plain[i] = roundf(plain[i]);
    }
    for (int i = 0; i < COUNT; i++)
        total += exp((double)plain[i]);
    struct sampler *sampler = open_sampler(COUNT);
    struct sampling sampling = {.temperature = 0.3f,
                                .top_p = 1,
                                .repetition_penalty = 1,
                                .biases = biases,
                                .bias_count = 1,
                                .logprobs = true};
    int32_t order[COUNT];
    for (int i = 0; i < COUNT; i++)
        order[i] = i;
    order_logits = plain;
    qsort(order, COUNT, sizeof(*order), compare_order);
    for (uint32_t top = 0; top <= SAMPLER_TOP_MAX; top += 1 + top / 3) {
        struct token_choice choice;
        sampling.top_logprobs = top;
        memcpy(logits, plain, sizeof(logits));
        const struct sampler_row row = {.logits = logits, .sampling = &sampling};
        assert_int_equal(sampler_pick(sampler, &row, &choice, ERROR_NONE), BATON_OK);
        assert_int_equal(choice.token, 4); /* the bias */
        assert_true(fabs((double)choice.logprob - ((double)plain[4] - log(total))) < 1e-5);
        assert_int_equal(choice.top_count, top);
        for (uint32_t i = 0; i < top; i++) {
            assert_int_equal(choice.top[i].token, order[i]);
            assert_true(fabs((double)choice.top[i].logprob -
                             ((double)plain[order[i]] - log(total))) < 1e-5);
        }
        struct token_choice rated;
        assert_int_equal(sampler_rate(sampler, plain, 4, top, &rated, ERROR_NONE), BATON_OK);
        assert_int_equal(rated.token, 4);
        assert_memory_equal(&rated.logprob, &choice.logprob, sizeof(float));
        assert_memory_equal(rated.top, choice.top, top * sizeof(*rated.top));
    }
    sampler_close(sampler);
}

static void test_more_logprobs_than_tokens(void **state)
{
    (void)state;
    const float logits[] = {1, 3, 2};
    struct sampler *sampler = open_sampler(3);
    struct token_choice choice;
    assert_int_equal(sampler_rate(sampler, logits, 0, 20, &choice, ERROR_NONE), BATON_OK);
    assert_int_equal(choice.top_count, 3);
    assert_int_equal(choice.top[0].token, 1);
    assert_int_equal(choice.top[2].token, 0);
    sampler_close(sampler);
}

static void test_parameters_are_checked(void **state)
{
    (void)state;
    const struct logit_bias far[] = {{100, 1}}, infinite[] = {{1, INFINITY}};
    struct sampling good = SAMPLING_DEFAULT;
    assert_int_equal(sampling_check(&good, 100, ERROR_NONE), BATON_OK);
    struct {
        struct sampling sampling;
        const char *reason;
    } bad[] = {
        {good, "temperature is -1"}, {good, "temperature is nan"}, {good, "top_p is 1.5"},
        {good, "min_p is -0.1"},     {good, "repetition_penalty"}, {good, "frequency_penalty"},
        {good, "presence_penalty"},  {good, "names token 100"},    {good, "not a finite"},
        {good, "top_logprobs"},      {good, "at most 1024"},
    };
    bad[0].sampling.temperature = -1;
    bad[1].sampling.temperature = NAN;
    bad[2].sampling.top_p = 1.5f;
    bad[3].sampling.min_p = -0.1f;
    bad[4].sampling.repetition_penalty = 0;
    bad[5].sampling.frequency_penalty = INFINITY;
    bad[6].sampling.presence_penalty = -INFINITY;
    bad[7].sampling.biases = far;
    bad[7].sampling.bias_count = 1;
    bad[8].sampling.biases = infinite;
    bad[8].sampling.bias_count = 1;
    bad[9].sampling.top_logprobs = SAMPLER_TOP_MAX + 1;
    bad[10].sampling.bias_count = SAMPLER_BIASES_MAX + 1;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        char text[256] = "";
        assert_int_equal(sampling_check(&bad[i].sampling, 100, ERROR_BUFFER(text)),
                         BATON_EINVAL);
        if (!strstr(text, bad[i].reason))
            fail_msg("\"%s\" does not say \"%s\"", text, bad[i].reason);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler_equals_the_obvious_one),
        cmocka_unit_test(test_draws_have_the_right_distribution),
        cmocka_unit_test(test_uniform_numbers_are_uniform),
        cmocka_unit_test(test_only_seed_and_position_matter),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_numbers_that_are_none_are_refused),
        cmocka_unit_test(test_penalties_and_biases),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_more_logprobs_than_tokens),
        cmocka_unit_test(test_parameters_are_checked),
    };
    return cmocka_run_group_tests_name("engine.sampler", tests, NULL, NULL);
}
