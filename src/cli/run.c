/* SPDX-License-Identifier: Apache-2.0 */
/* `baton run MODEL "prompt"`: one answer, streamed to the terminal. No port, no server. */
#include "worker_options.h"

#include "base/clock.h"
#include "server/conversation.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct values {
    struct worker_values worker; /* first: its options are part of the table */
    const char *system;
    uint32_t max_tokens;
    double temperature, top_p;
    uint64_t seed;
    uint32_t top_k;
    bool raw, stats;
};

#define RUN_OPTION(option_name, option_type, field, ...)                                    \
    {                                                                                       \
        .name = option_name, .type = option_type, .offset = offsetof(struct values, field), \
        __VA_ARGS__                                                                         \
    }

static const struct option options[] = {
    RUN_OPTION("max-new-tokens", OPTION_U32, max_tokens, .aliases = "max-tokens|n",
               .value = "N", .initial = "1024", .help = "Most tokens of the answer"),
    RUN_OPTION("system", OPTION_STRING, system, .value = "TEXT", .help = "The system message"),
    RUN_OPTION("raw", OPTION_BOOL, raw,
               .help = "The prompt is continued as it is, without the chat template"),
    RUN_OPTION("temperature", OPTION_REAL, temperature, .value = "X", .initial = "0",
               .help = "0 takes the likeliest token"),
    RUN_OPTION("top-p", OPTION_REAL, top_p, .value = "X", .initial = "1",
               .help = "Only the likeliest tokens with so much probability"),
    RUN_OPTION("top-k", OPTION_U32, top_k, .value = "N",
               .help = "Only so many likeliest tokens; 0 is all"),
    RUN_OPTION("seed", OPTION_U64, seed, .value = "N", .initial = "0",
               .help = "The same seed gives the same answer"),
    RUN_OPTION("stats", OPTION_BOOL, stats, .help = "Times and rates on stderr at the end"),
    WORKER_MODEL_OPTIONS,
};

const struct command run_command = {
    .name = "run",
    .summary = "one answer of a model, streamed to the terminal",
    .text = "MODEL is a .gguf file or a Hugging Face folder; PROMPT is the question (\"-\", or "
            "none: it is read from stdin).\n\n"
            "  baton run model.gguf \"Why is the sky blue?\"",
    .operands = "[MODEL] [PROMPT]",
    .operand_max = 2,
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

/* The terminal's side of a generation. */
struct listener {
    struct generation generation;
    pthread_mutex_t mutex;
    pthread_cond_t change;
    enum generation_finish finish;
    bool unheard; /* stdout takes nothing any more */
    char reason[512];
    uint32_t tokens;
    uint64_t first_ns, last_ns;
};

static void listen_deliver(struct generation *generation,
                           const struct generation_output *output)
{
    struct listener *listener = generation->context;
    bool heard =
        fwrite(output->text.bytes, 1, output->text.length, stdout) == output->text.length &&
        !fflush(stdout);
    pthread_mutex_lock(&listener->mutex);
    listener->unheard |= !heard;
    listener->tokens += output->token_count;
    listener->last_ns = clock_now_ns();
    if (output->first)
        listener->first_ns = listener->last_ns;
    listener->finish = output->finish;
    if (output->reason)
        snprintf(listener->reason, sizeof(listener->reason), "%s", output->reason);
    pthread_cond_signal(&listener->change);
    pthread_mutex_unlock(&listener->mutex);
}

/* The newline that ends it is the terminal's or echo's, not the prompt's. NULL: out of memory. */
static char *stdin_read(void)
{
    struct byte_buffer text = {0};
    char block[4096];
    size_t length;
    int rc = BATON_OK;
    while (!rc && (length = fread(block, 1, sizeof(block), stdin)) > 0)
        rc = byte_buffer_append(&text, block, length);
    if (text.length && text.bytes[text.length - 1] == '\n')
        text.length--;
    if (rc || byte_buffer_append(&text, "", 1)) {
        byte_buffer_free(&text);
        return NULL;
    }
    return text.bytes;
}

static int prompt_encode(const struct values *values, const struct served_model *model,
                         const char *prompt, struct conversation *out, struct error err)
{
    if (!values->raw && model->chat_template)
        return conversation_single(model, values->system, prompt, out, err);
    *out = (struct conversation){0};
    return tokenizer_encode(model->tokenizer, prompt, strlen(prompt),
                            TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, &out->tokens, err);
}

static void stats_print(const struct listener *listener, uint64_t began, uint64_t submitted)
{
    double prompt = (double)(listener->first_ns - submitted) / 1e9;
    double rest = (double)(listener->last_ns - listener->first_ns) / 1e9;
    fprintf(stderr,
            "start to first token %.3f s; prompt %u tokens in %.3f s (%.0f tok/s); answer %u "
            "tokens, %.1f tok/s\n",
            (double)(listener->first_ns - began) / 1e9, listener->generation.prompt_count,
            prompt, listener->generation.prompt_count / prompt, listener->tokens,
            listener->tokens > 1 && rest > 0 ? (listener->tokens - 1) / rest : 0);
}

static int generate(const struct values *values, struct worker *worker,
                    const struct conversation *conversation, uint64_t began, struct error err)
{
    struct listener listener = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                .change = PTHREAD_COND_INITIALIZER};
    struct generation *generation = &listener.generation;
    generation_init(generation);
    generation->prompt = (const int32_t *)conversation->tokens.ids;
    generation->prompt_count = (uint32_t)conversation->tokens.count;
    generation->max_new_tokens = values->max_tokens;
    generation->sampling = SAMPLING_DEFAULT;
    generation->sampling.temperature = (float)values->temperature;
    generation->sampling.top_p = (float)values->top_p;
    generation->sampling.top_k = values->top_k;
    generation->sampling.seed = values->seed;
    generation->text_flags = DETOKENIZER_CONTINUES;
    generation->deliver = listen_deliver;
    generation->context = &listener;
    uint64_t submitted = clock_now_ns();
    int rc = scheduler_submit(worker->scheduler, generation, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&listener.mutex);
    while (!listener.finish) {
        if (listener.unheard) /* such as after "| head -1" */
            scheduler_abort(worker->scheduler, generation);
        pthread_cond_wait(&listener.change, &listener.mutex);
    }
    pthread_mutex_unlock(&listener.mutex);
    if (isatty(STDOUT_FILENO) || listener.tokens)
        putchar('\n');
    if (fflush(stdout) || listener.unheard)
        return error_set(err, BATON_ESYSTEM, "the answer cannot be written to stdout");
    if (listener.finish == GENERATION_FAILED || listener.finish == GENERATION_ABORTED)
        return error_set(err, BATON_EABORTED, "%s", listener.reason);
    if (values->stats)
        stats_print(&listener, began, submitted);
    return BATON_OK;
}

int run_main(int argc, char **argv)
{
    struct values values = {0}; /* some of a worker's options are not in the table */
    struct option_operands operands;
    struct worker worker = {0};
    struct conversation conversation = {0};
    char text[1024], *typed = NULL;
    int status = CLI_OK;
    uint64_t began = clock_now_ns();
    if (!cli_parse_operands(&run_command, argc, argv, &values, &operands, &status))
        return status;
    /* With --model-path the only operand is the prompt. */
    uint32_t prompt_at = values.worker.model_path ? 0 : 1;
    const char *path = values.worker.model_path
                           ? values.worker.model_path
                           : worker_model_path(&values.worker, &operands, "run");
    if (!path)
        return CLI_USAGE;
    const char *prompt = operands.count > prompt_at ? operands.items[prompt_at] : "-";
    if (strcmp(prompt, "-") == 0)
        prompt = typed = stdin_read();
    if (!prompt || !*prompt) {
        free(typed);
        return cli_failed("run", prompt ? "there is no prompt" : "out of memory");
    }
    values.worker.max_running = 1;
    int rc = worker_open(&values.worker, ROLE_MIXED, path, &worker, ERROR_BUFFER(text));
    if (!rc)
        rc = prompt_encode(&values, worker.model, prompt, &conversation, ERROR_BUFFER(text));
    if (!rc)
        rc = generate(&values, &worker, &conversation, began, ERROR_BUFFER(text));
    if (rc)
        status = cli_failed("run", text);
    token_list_free(&conversation.tokens);
    worker_close(&worker);
    free(typed);
    return status;
}
