/* SPDX-License-Identifier: Apache-2.0 */
/* See sampler.h. A row of 150,000 logits is passed over twice (sampler_weights.c); everything after
 * that looks only at blocks that can hold a candidate:
 *
 *   top_k   the k-th largest of the blocks' maxima is a bound: k tokens are at least as large
 *   top_p   all tokens below weight (1 - p) * total / count together weigh less than 1 - p
 *   min_p   is a bound already
 *
 * The candidates above the bound are few; sampler_select.c finds where the kept ones end. */
#include "sampler.h"
#include "sampler_random.h"
#include "sampler_select.h"
#include "sampler_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sampler {
    uint32_t vocab_size, blocks;
    float max;                    /* of the row in work */
    double total;                 /* of its weights */
    float *weights;               /* [vocab_size] */
    float *plain;                 /* [vocab_size]: the logits as they came */
    float *block_max;             /* [blocks] */
    double *block_sums;           /* [blocks] */
    struct candidate *candidates; /* [vocab_size], in the order of ids */
    struct candidate *ordered;    /* [vocab_size], where the head is looked for */
};

int sampler_open(uint32_t vocab_size, struct sampler **out, struct error err)
{
    struct sampler *sampler = calloc(1, sizeof(*sampler));
    if (!sampler)
        return error_set(err, BATON_ENOMEM, "no memory for a sampler");
    BATON_ASSERT(vocab_size > 0 && vocab_size <= INT32_MAX);
    sampler->vocab_size = vocab_size;
    sampler->blocks = weight_blocks(vocab_size);
    sampler->weights = calloc(vocab_size, sizeof(*sampler->weights));
    sampler->plain = calloc(vocab_size, sizeof(*sampler->plain));
    sampler->block_max = calloc(sampler->blocks, sizeof(*sampler->block_max));
    sampler->block_sums = calloc(sampler->blocks, sizeof(*sampler->block_sums));
    sampler->candidates = calloc(vocab_size, sizeof(*sampler->candidates));
    sampler->ordered = calloc(vocab_size, sizeof(*sampler->ordered));
    if (!sampler->weights || !sampler->plain || !sampler->block_max || !sampler->block_sums ||
        !sampler->candidates || !sampler->ordered) {
        sampler_close(sampler);
        return error_set(err, BATON_ENOMEM, "no memory to sample from %u tokens", vocab_size);
    }
    *out = sampler;
    return BATON_OK;
}

void sampler_close(struct sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->ordered);
    free(sampler->candidates);
    free(sampler->block_sums);
    free(sampler->block_max);
    free(sampler->plain);
    free(sampler->weights);
    free(sampler);
}

/* ---- what is asked for ---------------------------------------------------------------------- */

static int check_range(const char *name, float value, float low, float high, struct error err)
{
    if (value >= low && value <= high)
        return BATON_OK;
    return error_set(err, BATON_EINVAL, "%s is %g; it must be from %g to %g", name,
                     (double)value, (double)low, (double)high);
}

static int check_biases(const struct sampling *sampling, uint32_t vocab_size, struct error err)
{
    if (sampling->bias_count > SAMPLER_BIASES_MAX)
        return error_set(err, BATON_EINVAL, "logit_bias has %u tokens; at most %u are taken",
                         sampling->bias_count, SAMPLER_BIASES_MAX);
    for (uint32_t i = 0; i < sampling->bias_count; i++) {
        const struct logit_bias *bias = &sampling->biases[i];
        if (bias->token < 0 || (uint32_t)bias->token >= vocab_size)
            return error_set(err, BATON_EINVAL,
                             "logit_bias names token %d; the model knows tokens 0 to %u",
                             bias->token, vocab_size - 1);
        if (!isfinite(bias->bias))
            return error_set(err, BATON_EINVAL, "logit_bias of token %d is not a finite number",
                             bias->token);
    }
    return BATON_OK;
}

int sampling_check(const struct sampling *sampling, uint32_t vocab_size, struct error err)
{
    int rc = check_range("temperature", sampling->temperature, 0, 1e4f, err);
    if (!rc)
        rc = check_range("top_p", sampling->top_p, 0, 1, err);
    if (!rc)
        rc = check_range("min_p", sampling->min_p, 0, 1, err);
    if (!rc)
        rc = check_range("repetition_penalty", sampling->repetition_penalty, 0.01f, 100, err);
    if (!rc)
        rc = check_range("frequency_penalty", sampling->frequency_penalty, -100, 100, err);
    if (!rc)
        rc = check_range("presence_penalty", sampling->presence_penalty, -100, 100, err);
    if (!rc)
        rc = check_biases(sampling, vocab_size, err);
    if (!rc && sampling->top_logprobs > SAMPLER_TOP_MAX)
        rc = error_set(err, BATON_EINVAL, "top_logprobs is %u; at most %d are given",
                       sampling->top_logprobs, SAMPLER_TOP_MAX);
    return rc;
}

/* ---- candidates ----------------------------------------------------------------------------- */

static uint32_t block_end(const struct sampler *sampler, uint32_t block)
{
    uint32_t end = (block + 1) * WEIGHT_BLOCK;
    return end < sampler->vocab_size ? end : sampler->vocab_size;
}

/* All tokens with a logit of at least `floor`, in the order of ids. */
static uint32_t gather(struct sampler *sampler, const float *logits, float floor)
{
    uint32_t count = 0;
    for (uint32_t block = 0; block < sampler->blocks; block++) {
        if (sampler->block_max[block] < floor)
            continue;
        uint32_t end = block_end(sampler, block);
        for (uint32_t i = block * WEIGHT_BLOCK; i < end; i++)
            if (logits[i] >= floor)
                sampler->candidates[count++] =
                    (struct candidate){logits[i], sampler->weights[i], (int32_t)i};
    }
    return count;
}

/* A logit that at least k tokens reach: the k-th of the blocks' maxima. */
static float floor_of_top_k(struct sampler *sampler, uint32_t k)
{
    if (k == 0 || k > sampler->blocks)
        return -INFINITY;
    for (uint32_t i = 0; i < sampler->blocks; i++)
        sampler->ordered[i] = (struct candidate){sampler->block_max[i], 0, (int32_t)i};
    uint32_t head = candidates_head(sampler->ordered, sampler->blocks, k, INFINITY);
    return sampler->ordered[head - 1].logit;
}

/* The logit of a weight, a little lower to be on the safe side of rounding. */
static float floor_of_weight(const struct sampler *sampler, double weight, float temperature)
{
    if (weight <= 0)
        return -INFINITY;
    double logit = (double)sampler->max + (double)temperature * (log(weight) - 1e-4);
    return (float)(logit - 1e-6 * fabs(logit));
}

/* ---- drawing -------------------------------------------------------------------------------- */

/* From everything: the block first, then the token in it. Where rounding leaves the target beyond
 * the end, the last token that is possible at all. */
static int32_t draw_from_all(const struct sampler *sampler, double u)
{
    double target = u * sampler->total, sum = 0, before = 0;
    uint32_t block = 0, token = 0;
    for (uint32_t i = 0; i < sampler->blocks && sum <= target; i++) {
        if (sampler->block_sums[i] <= 0)
            continue;
        block = i;
        before = sum;
        sum += sampler->block_sums[i];
    }
    uint32_t end = block_end(sampler, block);
    sum = before;
    for (uint32_t i = block * WEIGHT_BLOCK; i < end && sum <= target; i++) {
        if (sampler->weights[i] <= 0)
            continue;
        token = i;
        sum += (double)sampler->weights[i];
    }
    return (int32_t)token;
}

/* The last of the kept ones: of the first top_k in the order the shortest beginning with top_p of
 * their weight. */
static struct candidate find_cut(struct sampler *sampler, const struct sampling *sampling,
                                 uint32_t count)
{
    uint32_t most = sampling->top_k && sampling->top_k < count ? sampling->top_k : count;
    struct candidate *ordered = sampler->ordered;
    double total = sampler->total;
    memcpy(ordered, sampler->candidates, count * sizeof(*ordered));
    if (sampling->top_k) {
        most = candidates_head(ordered, count, most, INFINITY);
        total = 0;
        for (uint32_t i = 0; i < most; i++)
            total += (double)ordered[i].weight;
    }
    if (sampling->top_p < 1)
        most = candidates_head(ordered, most, most, (double)sampling->top_p * total);
    return ordered[most - 1];
}

static int32_t draw_from_kept(struct sampler *sampler, const struct sampling *sampling,
                              uint32_t count, double u)
{
    struct candidate *kept = sampler->candidates;
    uint32_t kept_count = 0;
    bool cuts = sampling->top_k || sampling->top_p < 1;
    struct candidate cut = cuts ? find_cut(sampler, sampling, count) : (struct candidate){0};
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if ((cuts && candidate_before(&cut, &kept[i])) || kept[i].weight < sampling->min_p)
            continue;
        total += (double)kept[i].weight;
        kept[kept_count++] = kept[i];
    }
    uint32_t i = 0;
    for (; i + 1 < kept_count; i++) {
        sum += (double)kept[i].weight;
        if (sum > u * total)
            break;
    }
    return kept[i].token;
}

static int32_t draw(struct sampler *sampler, const struct sampler_row *row)
{
    const struct sampling *sampling = row->sampling;
    double u = sampler_uniform(sampling->seed, row->position);
    sampler->total =
        weights_make(row->logits, sampler->vocab_size, sampler->max, 1 / sampling->temperature,
                     sampler->weights, sampler->block_sums);
    if (!sampling->top_k && sampling->top_p >= 1 && sampling->min_p <= 0)
        return draw_from_all(sampler, u);
    float floor = floor_of_top_k(sampler, sampling->top_k);
    if (!sampling->top_k || sampling->top_p >= 1) { /* else top_p is of the weight of all k */
        double outside = (1 - (double)sampling->top_p) * sampler->total / sampler->vocab_size;
        double weight = fmax(outside, (double)sampling->min_p);
        floor = fmaxf(floor, floor_of_weight(sampler, weight, sampling->temperature));
    }
    return draw_from_kept(sampler, sampling, gather(sampler, row->logits, floor), u);
}

static int32_t likeliest(const struct sampler *sampler, const float *logits)
{
    uint32_t block = 0;
    while (sampler->block_max[block] != sampler->max)
        block++;
    uint32_t i = block * WEIGHT_BLOCK;
    while (logits[i] != sampler->max)
        i++;
    return (int32_t)i;
}

/* ---- log-probabilities ---------------------------------------------------------------------- */

/* The row has been scanned. Returns what to subtract from a logit. */
static double rate(struct sampler *sampler, const float *logits, uint32_t top,
                   struct token_choice *out)
{
    double total = weights_make(logits, sampler->vocab_size, sampler->max, 1, sampler->weights,
                                sampler->block_sums);
    double normal = (double)sampler->max + log(total);
    out->top_count = top < sampler->vocab_size ? top : sampler->vocab_size;
    if (out->top_count == 0)
        return normal;
    uint32_t count = gather(sampler, logits, floor_of_top_k(sampler, out->top_count));
    candidates_head(sampler->candidates, count, out->top_count, INFINITY);
    candidates_sort(sampler->candidates, out->top_count);
    for (uint32_t i = 0; i < out->top_count; i++)
        out->top[i] =
            (struct token_logprob){sampler->candidates[i].token,
                                   (float)((double)sampler->candidates[i].logit - normal)};
    return normal;
}

int sampler_rate(struct sampler *sampler, const float *logits, int32_t token, uint32_t top,
                 struct token_choice *out, struct error err)
{
    BATON_ASSERT(token >= 0 && (uint32_t)token < sampler->vocab_size && top <= SAMPLER_TOP_MAX);
    int rc = logits_scan(logits, sampler->vocab_size, sampler->block_max, &sampler->max, err);
    if (rc)
        return rc;
    double normal = rate(sampler, logits, top, out);
    out->token = token;
    out->logprob = (float)((double)logits[token] - normal);
    return BATON_OK;
}

/* ---- a token -------------------------------------------------------------------------------- */

static bool row_is_changed(const struct sampler_row *row)
{
    return row->sampling->bias_count || row->forbidden_count ||
           (row->history && sampling_has_penalties(row->sampling));
}

static void change_row(const struct sampler_row *row)
{
    const struct sampling *sampling = row->sampling;
    if (row->history)
        token_history_apply(row->history, sampling->repetition_penalty,
                            sampling->frequency_penalty, sampling->presence_penalty,
                            row->logits);
    for (uint32_t i = 0; i < sampling->bias_count; i++)
        row->logits[sampling->biases[i].token] += sampling->biases[i].bias;
    for (uint32_t i = 0; i < row->forbidden_count; i++)
        row->logits[row->forbidden[i]] = -INFINITY;
}

int sampler_pick(struct sampler *sampler, const struct sampler_row *row,
                 struct token_choice *out, struct error err)
{
    const struct sampling *sampling = row->sampling;
    const float *plain = row->logits;
    uint32_t count = sampler->vocab_size;
    struct token_choice choice = {.top_count = 0};
    double normal = 0;
    int rc = logits_scan(row->logits, count, sampler->block_max, &sampler->max, err);
    if (rc)
        return rc;
    if (sampling->logprobs)
        normal = rate(sampler, row->logits, sampling->top_logprobs, &choice);
    if (row_is_changed(row)) {
        if (sampling->logprobs)
            plain = memcpy(sampler->plain, row->logits, count * sizeof(*plain));
        change_row(row);
        rc = logits_scan(row->logits, count, sampler->block_max, &sampler->max, err);
        if (rc)
            return rc;
    }
    bool greedy = sampling->temperature < SAMPLER_TEMPERATURE_MIN || sampling->top_k == 1;
    choice.token = greedy ? likeliest(sampler, row->logits) : draw(sampler, row);
    if (sampling->logprobs)
        choice.logprob = (float)((double)plain[choice.token] - normal);
    *out = choice;
    return BATON_OK;
}
