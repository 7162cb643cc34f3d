/* SPDX-License-Identifier: Apache-2.0 */
#include "generation_settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void no_memory(const struct request_reader *reader)
{
    request_refuse(reader->error, 500, NULL, "out of memory");
}

/* ---- stops ---------------------------------------------------------------------------------- */

static void stop_string_add(const struct request_reader *reader, const json_t *value,
                            struct text_view *views, struct generation_settings *settings)
{
    if (!json_is_string(value)) {
        request_refuse(reader->error, 400, "stop",
                       "\"stop\" has %s in it; strings are expected", request_type_name(value));
        return;
    }
    uint32_t i = settings->stop_string_count;
    views[i] = (struct text_view){json_string_value(value), json_string_length(value)};
    settings->stop_texts[i] = strdup(json_string_value(value));
    if (!settings->stop_texts[i])
        no_memory(reader);
    else
        settings->stop_string_count++;
}

static void stop_strings_read(const struct request_reader *reader,
                              struct generation_settings *settings)
{
    char text[256];
    struct text_view views[STOP_STRINGS_MAX];
    const json_t *stop = request_any(reader, "stop"), *item;
    size_t i, count = json_is_array(stop) ? json_array_size(stop) : stop ? 1 : 0;
    if (!count)
        return;
    if (count > STOP_STRINGS_MAX) {
        request_refuse(reader->error, 400, "stop", "\"stop\" has %zu strings; the most is %d",
                       count, STOP_STRINGS_MAX);
        return;
    }
    settings->stop_texts = calloc(count, sizeof(*settings->stop_texts));
    if (!settings->stop_texts) {
        no_memory(reader);
        return;
    }
    if (json_is_array(stop)) {
        json_array_foreach(stop, i, item) stop_string_add(reader, item, views, settings);
    } else
        stop_string_add(reader, stop, views, settings);
    if (reader->error->status)
        return;
    int rc = stop_strings_open(views, settings->stop_string_count, &settings->stop_strings,
                               ERROR_BUFFER(text));
    if (rc)
        request_refuse(reader->error, request_status(rc), "stop", "\"stop\": %s", text);
}

static void stop_tokens_read(const struct request_reader *reader, uint32_t vocab_size,
                             struct generation_settings *settings)
{
    const json_t *tokens = request_array(reader, "stop_token_ids"), *item;
    size_t i, count = json_array_size(tokens);
    if (!count)
        return;
    if (count > STOP_TOKENS_MAX) {
        request_refuse(reader->error, 400, "stop_token_ids",
                       "\"stop_token_ids\" has %zu tokens; the most is %u", count,
                       STOP_TOKENS_MAX);
        return;
    }
    settings->stop_tokens = calloc(count, sizeof(*settings->stop_tokens));
    if (!settings->stop_tokens) {
        no_memory(reader);
        return;
    }
    json_array_foreach(tokens, i, item)
    {
        json_int_t token = json_integer_value(item);
        if (!json_is_integer(item) || token < 0 || token >= vocab_size)
            request_refuse(reader->error, 400, "stop_token_ids",
                           "\"stop_token_ids\"[%zu] is not a token of this model (0 to %u)", i,
                           vocab_size - 1);
        else
            settings->stop_tokens[settings->stop_token_count++] = (int32_t)token;
    }
}

/* ---- biases --------------------------------------------------------------------------------- */

static void biases_read(const struct request_reader *reader, uint32_t vocab_size,
                        struct generation_settings *settings)
{
    const json_t *biases = request_object(reader, "logit_bias");
    const char *key;
    json_t *value;
    size_t count = json_object_size(biases);
    if (!count)
        return;
    if (count > SAMPLER_BIASES_MAX) {
        request_refuse(reader->error, 400, "logit_bias",
                       "\"logit_bias\" has %zu tokens; the most is %d", count,
                       SAMPLER_BIASES_MAX);
        return;
    }
    settings->biases = calloc(count, sizeof(*settings->biases));
    if (!settings->biases) {
        no_memory(reader);
        return;
    }
    json_object_foreach((json_t *)biases, key, value)
    {
        char *end;
        errno = 0;
        long long token = strtoll(key, &end, 10);
        double bias = json_number_value(value);
        if (errno || end == key || *end || token < 0 || token >= vocab_size)
            request_refuse(reader->error, 400, "logit_bias",
                           "\"logit_bias\": \"%.20s\" is not a token of this model (0 to %u)",
                           key, vocab_size - 1);
        else if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            request_refuse(reader->error, 400, "logit_bias",
                           "\"logit_bias\" of token %lld must be a number from -100 to 100",
                           token);
        else
            settings->biases[settings->sampling.bias_count++] =
                (struct logit_bias){(int32_t)token, (float)bias};
    }
    settings->sampling.biases = settings->biases;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* What would change the output and is not there: better refused than ignored. */
static void unsupported_refuse(const struct request_reader *reader)
{
    static const char *const names[] = {"json_schema", "regex", "ebnf", "structural_tag"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (request_has(reader, names[i]))
            request_refuse(reader->error, 400, names[i],
                           "\"%s\": output cannot be constrained to a grammar here", names[i]);
}

static uint64_t seed_draw(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        seed = (uint64_t)rand(); /* not a secret, only different */
    return seed;
}

static void seed_read(const struct request_reader *reader, struct generation_settings *settings)
{
    int64_t seed = 0;
    const char *name = request_has(reader, "sampling_seed") ? "sampling_seed" : "seed";
    if (request_has(reader, name)) {
        request_i64(reader, name, INT64_MIN, INT64_MAX, &seed);
        settings->sampling.seed = (uint64_t)seed;
    } else
        settings->sampling.seed = seed_draw();
}

static void top_k_read(const struct request_reader *reader,
                       struct generation_settings *settings)
{
    int64_t top_k = 0; /* -1 is "all", too */
    request_i64(reader, "top_k", -1, UINT32_MAX, &top_k);
    settings->sampling.top_k = top_k > 0 ? (uint32_t)top_k : 0;
}

void generation_settings_read(const struct request_reader *reader, uint32_t max_new_tokens,
                              uint32_t vocab_size, struct generation_settings *out)
{
    char text[256];
    bool skip_special = true;
    *out = (struct generation_settings){
        .sampling = SAMPLING_DEFAULT, .max_new_tokens = max_new_tokens, .n = 1};
    request_float(reader, "temperature", 0, 100, &out->sampling.temperature);
    request_float(reader, "top_p", 0, 1, &out->sampling.top_p);
    request_float(reader, "min_p", 0, 1, &out->sampling.min_p);
    request_float(reader, "repetition_penalty", 0, 100, &out->sampling.repetition_penalty);
    request_float(reader, "frequency_penalty", -2, 2, &out->sampling.frequency_penalty);
    request_float(reader, "presence_penalty", -2, 2, &out->sampling.presence_penalty);
    top_k_read(reader, out);
    seed_read(reader, out);
    request_u32(reader, "max_tokens", 0, UINT32_MAX, &out->max_new_tokens);
    request_u32(reader, "max_completion_tokens", 0, UINT32_MAX, &out->max_new_tokens);
    request_u32(reader, "max_new_tokens", 0, UINT32_MAX, &out->max_new_tokens);
    request_u32(reader, "min_tokens", 0, UINT32_MAX, &out->min_new_tokens);
    request_u32(reader, "min_new_tokens", 0, UINT32_MAX, &out->min_new_tokens);
    request_u32(reader, "n", 1, GENERATION_N_MAX, &out->n);
    request_bool(reader, "ignore_eos", &out->ignore_eos);
    request_bool(reader, "no_stop_trim", &out->keep_stop);
    request_bool(reader, "skip_special_tokens", &skip_special);
    out->show_special = !skip_special;
    stop_strings_read(reader, out);
    stop_tokens_read(reader, vocab_size, out);
    biases_read(reader, vocab_size, out);
    unsupported_refuse(reader);
    int rc = reader->error->status
                 ? BATON_OK
                 : sampling_check(&out->sampling, vocab_size, ERROR_BUFFER(text));
    if (rc)
        request_refuse(reader->error, request_status(rc), NULL, "%s", text);
}

void generation_settings_release(struct generation_settings *settings)
{
    stop_strings_close(settings->stop_strings);
    for (uint32_t i = 0; i < settings->stop_string_count; i++)
        free(settings->stop_texts[i]);
    free(settings->stop_texts);
    free(settings->stop_tokens);
    free(settings->biases);
    *settings = (struct generation_settings){0};
}

void generation_settings_apply(const struct generation_settings *settings, uint32_t number,
                               struct generation *generation)
{
    generation->sampling = settings->sampling;
    generation->sampling.seed += number;
    generation->max_new_tokens = settings->max_new_tokens;
    generation->min_new_tokens = settings->min_new_tokens;
    generation->stop_tokens = settings->stop_tokens;
    generation->stop_token_count = settings->stop_token_count;
    generation->stop_strings = settings->stop_strings;
    generation->ignore_eos = settings->ignore_eos;
    generation->keep_stop = settings->keep_stop;
    generation->text_flags = DETOKENIZER_CONTINUES;
    if (settings->show_special)
        generation->text_flags |= DETOKENIZER_SHOW_CONTROL;
}
