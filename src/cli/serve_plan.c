/* SPDX-License-Identifier: Apache-2.0 */
/* See serve_plan.h. A line of a trace:
 *
 *   {"timestamp": 40, "input_length": 1300, "output_length": 6, "hash_ids": [0, 1, 7]}
 *
 * Milliseconds; a hash stands for 512 tokens, the last one for the rest. Two requests whose lists begin
 * with the same hashes have prompts that begin with the same tokens. */
#include "serve_plan.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_SECOND 1e9
#define LENGTH_MAX (1u << 24)

/* ---- random numbers ----------------------------------------------------------------------- */

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

static uint64_t mix_two(uint64_t seed, uint64_t stream, uint64_t index)
{
    return mix(mix(mix(seed) ^ stream) ^ index);
}

/* Above 0, up to 1. */
static double uniform(uint64_t random)
{
    return ((double)(random >> 11) + 1) / 9007199254740992.0;
}

enum stream { STREAM_PREFIX = 1, STREAM_LENGTH, STREAM_ARRIVAL, STREAM_BLOCK, STREAM_ITEM };
#define STREAM_OF(kind, number) ((uint64_t)(kind) << 40 | (number))

uint64_t serve_plan_token(const struct serve_plan *plan, uint32_t item, uint32_t position)
{
    const struct serve_item *one = &plan->items[item];
    uint32_t block = position / SERVE_TRACE_BLOCK;
    if (position < plan->shared_prefix)
        return mix_two(plan->seed, STREAM_OF(STREAM_PREFIX, 0), position);
    if (block < one->block_count)
        return mix_two(plan->seed,
                       STREAM_OF(STREAM_BLOCK, plan->blocks[one->first_block + block]),
                       position % SERVE_TRACE_BLOCK);
    return mix_two(plan->seed, STREAM_OF(STREAM_ITEM, item), position);
}

/* ---- made ones ---------------------------------------------------------------------------- */

static bool item_add(struct serve_plan *plan, struct serve_item item)
{
    if (plan->count == plan->room) {
        uint32_t room = plan->room ? plan->room * 2 : 256;
        struct serve_item *grown = realloc(plan->items, room * sizeof(*grown));
        if (!grown)
            return false;
        plan->items = grown;
        plan->room = room;
    }
    plan->items[plan->count++] = item;
    return true;
}

static uint32_t length_choose(uint32_t most, uint32_t percent, uint64_t random)
{
    uint32_t least = (uint32_t)((uint64_t)most * percent / 100);
    if (least < 1)
        least = 1;
    return least >= most ? most : least + (uint32_t)(random % (most - least + 1));
}

static int requests_make(const struct serve_plan_options *options, struct serve_plan *plan,
                         struct error err)
{
    double at = 0;
    for (uint32_t i = 0; i < options->requests; i++) {
        struct serve_item item = {
            .due_ns = (uint64_t)(at * NS_PER_SECOND),
            .input_tokens = length_choose(options->input_tokens, options->length_percent,
                                          mix_two(plan->seed, STREAM_OF(STREAM_LENGTH, 0), i)),
            .output_tokens = length_choose(options->output_tokens, options->length_percent,
                                           mix_two(plan->seed, STREAM_OF(STREAM_LENGTH, 1), i)),
        };
        if (item.input_tokens < options->shared_prefix + 1)
            item.input_tokens = options->shared_prefix + 1;
        if (options->rate > 0)
            at -= log(uniform(mix_two(plan->seed, STREAM_OF(STREAM_ARRIVAL, 0), i))) /
                  options->rate;
        if (!item_add(plan, item))
            return error_set(err, BATON_ENOMEM, "out of memory for %u requests",
                             options->requests);
    }
    return BATON_OK;
}

/* ---- traces ------------------------------------------------------------------------------- */

static bool blocks_add(struct serve_plan *plan, const json_t *hashes, struct serve_item *item)
{
    size_t count = json_array_size(hashes);
    if (plan->block_count + count > plan->block_room) {
        size_t room = 2 * (plan->block_count + count) + 1024;
        uint32_t *grown = realloc(plan->blocks, room * sizeof(*grown));
        if (!grown)
            return false;
        plan->blocks = grown;
        plan->block_room = room;
    }
    item->first_block = (uint32_t)plan->block_count;
    item->block_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        plan->blocks[plan->block_count++] =
            (uint32_t)json_integer_value(json_array_get(hashes, i));
    return true;
}

static uint32_t length_cut(json_int_t length, uint32_t most)
{
    if (length < 1)
        return 1;
    return most && length > most ? most : (uint32_t)length;
}

/* 0, EINVAL: not such a line, ENOMEM. */
static int line_read(const struct serve_plan_options *options, struct serve_plan *plan,
                     const json_t *line)
{
    const json_t *timestamp = json_object_get(line, "timestamp");
    const json_t *input = json_object_get(line, "input_length");
    const json_t *output = json_object_get(line, "output_length");
    const json_t *hashes = json_object_get(line, "hash_ids");
    if (!json_is_number(timestamp) || !json_is_integer(input) || !json_is_integer(output) ||
        json_number_value(timestamp) < 0 || json_integer_value(input) > LENGTH_MAX ||
        json_integer_value(output) > LENGTH_MAX)
        return BATON_EINVAL;
    struct serve_item item = {
        .due_ns = (uint64_t)(json_number_value(timestamp) * 1e6 / options->trace_scale),
        .input_tokens = length_cut(json_integer_value(input), options->input_max),
        .output_tokens = length_cut(json_integer_value(output), options->output_max),
    };
    return blocks_add(plan, hashes, &item) && item_add(plan, item) ? BATON_OK : BATON_ENOMEM;
}

static int trace_read(const struct serve_plan_options *options, struct serve_plan *plan,
                      struct error err)
{
    FILE *file = fopen(options->trace, "re");
    char *text = NULL;
    size_t room = 0;
    int code = BATON_OK;
    if (!file)
        return error_set(err, BATON_EINVAL, "cannot read the trace %s: %s", options->trace,
                         strerror(errno));
    for (uint32_t number = 1; code == BATON_OK && getline(&text, &room, file) > 0; number++) {
        if (options->requests && plan->count == options->requests)
            break;
        if (text[strspn(text, " \t\r\n")] == 0)
            continue;
        json_t *line = json_loads(text, 0, NULL);
        code = line_read(options, plan, line);
        json_decref(line);
        if (code == BATON_EINVAL)
            error_set(err, code,
                      "line %u of the trace %s is not {\"timestamp\": ms, \"input_length\": "
                      "tokens, \"output_length\": tokens, \"hash_ids\": [...]}",
                      number, options->trace);
        else if (code)
            error_set(err, code, "out of memory for the trace %s", options->trace);
    }
    free(text);
    fclose(file);
    if (code == BATON_OK && !plan->count)
        return error_set(err, BATON_EINVAL, "the trace %s is empty", options->trace);
    return code;
}

/* Traces are sorted but for a few; what is due first must be first. */
static int item_compare(const void *left, const void *right)
{
    const struct serve_item *a = left, *b = right;
    return (a->due_ns > b->due_ns) - (a->due_ns < b->due_ns);
}

int serve_plan_make(const struct serve_plan_options *options, struct serve_plan *plan,
                    struct error err)
{
    *plan = (struct serve_plan){.seed = options->seed, .shared_prefix = options->shared_prefix};
    int code =
        options->trace ? trace_read(options, plan, err) : requests_make(options, plan, err);
    if (code != BATON_OK)
        serve_plan_free(plan);
    else if (options->trace)
        qsort(plan->items, plan->count, sizeof(*plan->items), item_compare);
    return code;
}

void serve_plan_free(struct serve_plan *plan)
{
    free(plan->items);
    free(plan->blocks);
    *plan = (struct serve_plan){0};
}
