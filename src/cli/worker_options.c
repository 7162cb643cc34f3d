/* SPDX-License-Identifier: Apache-2.0 */
/* From the options of a worker to a model that is loaded and scheduled. */
#include "worker_options.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define POOL_TOKENS 32768u /* unless the context is longer */

const char *worker_model_path(const struct worker_values *values,
                              const struct option_operands *operands, const char *command)
{
    if (operands->count)
        return operands->items[0];
    if (values->model_path)
        return values->model_path;
    fprintf(stderr,
            "baton %s: MODEL is missing: a .gguf file, or a folder with config.json and "
            "*.safetensors\n",
            command);
    return NULL;
}

bool worker_progress(void *context, uint64_t done, uint64_t total)
{
    uint64_t *shown = context;
    uint64_t now = clock_now_ns();
    if (!isatty(STDERR_FILENO) || (done < total && now - *shown < 100 * NS_PER_MS))
        return true;
    *shown = now;
    fprintf(stderr, "\rloading %3.0f %%", total ? 100.0 * (double)done / (double)total : 100.0);
    if (done >= total)
        fputs("\r\033[K", stderr);
    fflush(stderr);
    return true;
}

/* What the kernel says could be had without swapping. */
static uint64_t memory_available(void)
{
    char line[128];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

static enum page_element element_of(const char *name)
{
    if (strcmp(name, "bf16") == 0 || strcmp(name, "bfloat16") == 0)
        return PAGE_ELEMENT_BF16;
    if (strcmp(name, "f32") == 0 || strcmp(name, "float32") == 0)
        return PAGE_ELEMENT_F32;
    return PAGE_ELEMENT_F16;
}

static enum page_order order_of(const char *name)
{
    if (strcmp(name, "layer") == 0)
        return PAGE_ORDER_BY_LAYER;
    return strcmp(name, "head") == 0 ? PAGE_ORDER_BY_HEAD : PAGE_ORDER_BY_PAIR;
}

/* Bytes that one token has in the pools of all ranks. */
static int token_bytes(const struct worker_values *values, const struct model_config *config,
                       uint64_t *out, struct error err)
{
    struct page_shape shape;
    struct page_layout layout;
    int rc = engine_page_shape(config, values->tp_size, element_of(values->kv_type),
                               values->page_tokens, &shape, err);
    if (!rc)
        rc = page_layout_make(&shape, PAGE_ORDER_DEFAULT, &layout, err);
    if (!rc)
        *out = layout.page_stride * values->tp_size / values->page_tokens;
    return rc;
}

static int pool_memory(const struct worker_values *values, const struct model_config *config,
                       uint64_t *out, struct error err)
{
    uint64_t bytes, context = values->context_length;
    int rc = token_bytes(values, config, &bytes, err);
    if (rc)
        return rc;
    if (!context || context > config->context_length)
        context = config->context_length;
    uint64_t tokens = context > POOL_TOKENS ? context : POOL_TOKENS;
    uint64_t most = memory_available() / 4;
    *out = tokens * bytes;
    if (most && *out > most)
        *out = most;
    if (values->memory_share > 0)
        *out = (uint64_t)((values->memory_share < 1 ? values->memory_share : 1) *
                          (double)memory_available());
    if (values->kv_memory)
        *out = values->kv_memory;
    if (values->max_tokens)
        *out = (values->max_tokens + values->page_tokens - 1) / values->page_tokens *
               values->page_tokens * bytes;
    return BATON_OK;
}

/* Its address is the one by which others on this machine and our own ranks call it. */
int worker_open_bootstrap(const struct worker_values *values, struct worker *worker,
                          struct role_facts *facts, struct error err)
{
    bool any = strcmp(values->host, "0.0.0.0") == 0 || strcmp(values->host, "::") == 0;
    bool bare_v6 = !any && strchr(values->host, ':') && values->host[0] != '[';
    int rc = worker->bootstrap
                 ? BATON_OK
                 : baton_bootstrap_open(any ? NULL : values->host, values->bootstrap_port,
                                        &worker->bootstrap, err.text, err.size);
    if (rc)
        return rc;
    facts->bootstrap_port = baton_bootstrap_port(worker->bootstrap);
    snprintf(facts->bootstrap, sizeof(facts->bootstrap), bare_v6 ? "[%s]:%u" : "%s:%u",
             any ? "127.0.0.1" : values->host, facts->bootstrap_port);
    return BATON_OK;
}

static int transfer_make(const struct worker_values *values, enum worker_role role,
                         struct worker *worker, struct role_facts *facts,
                         struct transfer_options *out, struct error err)
{
    bool fake = strcmp(values->transfer_backend, "fake") == 0;
    *out = (struct transfer_options){
        .host = values->transfer_host,
        .bootstrap_allow = values->allow,
        .backends = fake || strcmp(values->transfer_backend, "auto") == 0
                        ? NULL
                        : values->transfer_backend,
        .fake = fake,
        .ib_device = values->ib_device,
        .key = values->transfer_key,
        .fingerprint = worker->model->fingerprint,
        .deadline_ms = values->deadline * 1000,
        .verify = values->verify,
        .layerwise = !values->no_layerwise,
        .optimistic = !values->no_optimistic,
        .fallback = !values->no_fallback,
        .local_tokens = values->local_tokens,
        .reserved_tokens = values->reserved_tokens,
    };
    if (role != ROLE_PREFILL)
        return BATON_OK;
    int rc = worker_open_bootstrap(values, worker, facts, err);
    out->bootstrap = facts->bootstrap;
    return rc;
}

static int scheduler_make(const struct worker_values *values, enum worker_role role,
                          struct worker *worker, struct error err)
{
    struct role_facts facts;
    struct transfer_options transfer;
    struct scheduler_options options = {
        .tokens_per_page = values->page_tokens,
        .element = element_of(values->kv_type),
        .order = order_of(values->page_order),
        .rank_count = values->tp_size,
        .max_running = values->max_running,
        .max_queued = values->max_queued ? values->max_queued : 4096,
        .chunk_tokens = values->chunk_tokens,
        .context_max = values->context_length,
        .conservativeness = (float)values->conservativeness,
        .prefix_cache = !values->no_cache,
    };
    int rc = pool_memory(values, &worker->model->config, &options.memory_bytes, err);
    if (!rc && role != ROLE_MIXED) {
        rc = transfer_make(values, role, worker, &facts, &transfer, err);
        options.transfer = &transfer;
    }
    if (rc)
        return rc;
    return scheduler_open(worker->model->engine, worker->model->tokenizer, &options,
                          &worker->scheduler, err);
}

static void log_level_set(const char *name)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    for (int i = 0; name && i < 4; i++)
        if (strcmp(name, names[i]) == 0)
            baton_log_level(i);
}

int worker_open(const struct worker_values *values, enum worker_role role, const char *path,
                struct worker *out, struct error err)
{
    struct worker worker = {0};
    uint64_t shown = 0;
    uint32_t rows = values->max_running + SCHEDULER_LOGITS;
    uint32_t tokens = values->chunk_tokens + values->max_running;
    log_level_set(values->log_level);
    const struct served_model_options options = {
        .path = path,
        .name = values->served_name,
        .chat_template = values->chat_template,
        .weight_version = values->weight_version,
        .engine =
            {
                .rank_count = values->tp_size,
                .threads = values->threads,
                .tokens_max = tokens > rows ? tokens : rows, /* each row is a token */
                .logits_max = rows,
                .kernels = values->kernels,
            },
    };
    int rc = served_model_open(&options, worker_progress, &shown, &worker.model, err);
    if (!rc)
        rc = scheduler_make(values, role, &worker, err);
    if (rc) {
        worker_close(&worker);
        return rc;
    }
    *out = worker;
    return BATON_OK;
}

void worker_close(struct worker *worker)
{
    scheduler_close(worker->scheduler);
    if (worker->bootstrap)
        baton_bootstrap_close(worker->bootstrap);
    served_model_close(worker->model);
    *worker = (struct worker){0};
}
