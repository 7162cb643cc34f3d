/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench logits`: what the engine computes for given tokens, for scripts that compare it with
 * other implementations (bench/accuracy.py). Tokens come in and go out as numbers, so that nothing
 * but the engine is compared. */
#include "cli.h"

#include "bench_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STEP_TOKENS 128
#define POSITIONS_MAX 65536

struct values {
    const char *kernels, *output;
    uint32_t threads, generate;
};

static const struct option options[] = {
    {.name = "output",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, output),
     .value = "FILE",
     .help = "Write the logits of every position there: float32, vocabulary by vocabulary"},
    {.name = "generate",
     .type = OPTION_U32,
     .offset = offsetof(struct values, generate),
     .value = "N",
     .max = 4096,
     .help = "Print the N tokens that follow each line, always the best one"},
    {.name = "threads",
     .type = OPTION_U32,
     .offset = offsetof(struct values, threads),
     .value = "N",
     .max = 256,
     .help = "Compute threads; 0: one for each core"},
    {.name = "kernels",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, kernels),
     .value = "NAME",
     .help = "Which kernels: portable, neon, i8mm, avx2, avx512, amx; otherwise the best"},
};

const struct command bench_logits_command = {
    .name = "bench logits",
    .summary = "the logits of given tokens, to compare with other implementations",
    .text = "Reads lines of token numbers from standard input. Each line is a sequence of its "
            "own and begins at position 0. bench/accuracy.py uses it.",
    .operands = "MODEL",
    .operand_min = 1,
    .operand_max = 1,
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

/* A line's numbers; -1 for a word that is none. */
static int64_t line_tokens(const char *line, int32_t *tokens)
{
    int64_t count = 0;
    for (;;) {
        char *end;
        line += strspn(line, " \t\n");
        if (!*line)
            return count;
        long number = strtol(line, &end, 10);
        if (end == line || count == POSITIONS_MAX || number < 0 || number > INT32_MAX)
            return -1;
        tokens[count++] = (int32_t)number;
        line = end;
    }
}

/* All positions, some at a time; the logits of all of them, or of the last, are written. */
static int run_sequence(struct bench_model *model, const int32_t *tokens, uint32_t count,
                        FILE *output, struct error err)
{
    uint32_t vocab_size = engine_config(model->engine)->vocab_size;
    for (uint32_t at = 0; at < count; at += STEP_TOKENS) {
        uint32_t some = count - at < STEP_TOKENS ? count - at : STEP_TOKENS;
        uint32_t wanted = output ? some : at + some == count;
        struct engine_sequence sequence =
            bench_model_sequence(model, 0, tokens + at, some, at, wanted);
        int rc = engine_step(model->engine, &sequence, 1, model->logits, err);
        if (rc)
            return rc;
        if (output && fwrite(model->logits, vocab_size * sizeof(float), some, output) != some)
            return error_set(err, BATON_ESYSTEM, "cannot write the logits: %s",
                             strerror(errno));
    }
    return BATON_OK;
}

/* The best token after the sequence, then the best one after that, ... */
static int generate(struct bench_model *model, uint32_t position, uint32_t count,
                    struct error err)
{
    for (uint32_t n = 0; n < count; n++) {
        int32_t token = bench_model_best(model, 0);
        printf("%s%d", n ? " " : "", token);
        struct engine_sequence sequence =
            bench_model_sequence(model, 0, &token, 1, position + n, 1);
        int rc = engine_step(model->engine, &sequence, 1, model->logits, err);
        if (rc)
            return rc;
    }
    printf("\n");
    return BATON_OK;
}

static int run_lines(struct bench_model *model, const struct values *values, FILE *output,
                     struct error err)
{
    static int32_t tokens[POSITIONS_MAX];
    char *line = NULL;
    size_t size = 0;
    int rc = BATON_OK;
    for (uint32_t number = 1; !rc && getline(&line, &size, stdin) >= 0; number++) {
        int64_t count = line_tokens(line, tokens);
        if (count < 1)
            rc = error_set(err, BATON_EINVAL, "line %u is not a list of 1 to %d tokens", number,
                           POSITIONS_MAX);
        else
            rc = run_sequence(model, tokens, (uint32_t)count, output, err);
        if (!rc && values->generate)
            rc = generate(model, (uint32_t)count, values->generate, err);
    }
    free(line);
    return rc;
}

int bench_logits_main(int argc, char **argv)
{
    struct bench_model model = {0};
    struct values values;
    const char *path;
    char text[512];
    int status = CLI_OK;
    if (!bench_model_parse(&bench_logits_command, argc, argv, &values, &path, &status))
        return status;
    if (!values.output == !values.generate)
        return cli_failed("bench logits", "either --output or --generate says what is wanted");
    const struct bench_model_options open = {.path = path,
                                             .kernels = values.kernels,
                                             .threads = values.threads,
                                             .sequences = 1,
                                             .positions = 8192,
                                             .tokens_max = STEP_TOKENS,
                                             .logits_max = STEP_TOKENS};
    FILE *output = values.output ? fopen(values.output, "wb") : NULL;
    if (values.output && !output) {
        snprintf(text, sizeof(text), "cannot write %s: %s", values.output, strerror(errno));
        return cli_failed("bench logits", text);
    }
    int rc = bench_model_open(&open, &model, ERROR_BUFFER(text));
    if (!rc)
        rc = run_lines(&model, &values, output, ERROR_BUFFER(text));
    if (output && fclose(output) && !rc)
        rc = error_set(ERROR_BUFFER(text), BATON_ESYSTEM, "cannot write %s: %s", values.output,
                       strerror(errno));
    bench_model_close(&model);
    return rc ? cli_failed("bench logits", text) : CLI_OK;
}
