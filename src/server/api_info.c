/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints that tell about the worker: for routers, load generators, dashboards and people. */
#include "api_state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void api_health(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    if (!api_enter(server, exchange))
        return;
    http_exchange_reply(exchange, 200, "text/plain", "", 0);
    api_leave(server);
}

void api_models(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct json_writer out = {0};
    if (!api_ready_or_refuse(server, exchange))
        return;
    json_put_open(&out, '{');
    json_put_key_text(&out, "object", "list");
    json_put_key(&out, "data");
    json_put_open(&out, '[');
    json_put_open(&out, '{');
    json_put_key_text(&out, "id", server->model->name);
    json_put_key_text(&out, "object", "model");
    json_put_key_int(&out, "created", (int64_t)server->started_unix);
    json_put_key_text(&out, "owned_by", "sglang"); /* by this, routers know the API */
    json_put_key_text(&out, "root", server->model->name);
    json_put_key_null(&out, "parent");
    json_put_key_int(&out, "max_model_len", scheduler_context(server->scheduler));
    json_put_close(&out, '}');
    json_put_close(&out, ']');
    json_put_close(&out, '}');
    api_reply_json(server, exchange, &out);
}

static const char *architecture_name(enum model_family family)
{
    switch (family) {
    case MODEL_QWEN2: return "Qwen2ForCausalLM";
    case MODEL_QWEN3: return "Qwen3ForCausalLM";
    default: return "LlamaForCausalLM";
    }
}

void api_model_info(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct json_writer out = {0};
    if (!api_ready_or_refuse(server, exchange))
        return;
    const struct served_model *model = server->model;
    json_put_open(&out, '{');
    json_put_key_text(&out, "model_path", model->path);
    json_put_key_text(&out, "tokenizer_path", model->path);
    json_put_key_text(&out, "served_model_name", model->name);
    json_put_key_bool(&out, "is_generation", true);
    json_put_key_text(&out, "weight_version", model->weight_version);
    json_put_key_text(&out, "model_type", model_family_name(model->config.family));
    json_put_key(&out, "architectures");
    json_put_open(&out, '[');
    json_put_text(&out, architecture_name(model->config.family));
    json_put_close(&out, ']');
    json_put_key_null(&out, "preferred_sampling_params");
    json_put_key_int(&out, "context_length", scheduler_context(server->scheduler));
    json_put_key_int(&out, "vocab_size", model->config.vocab_size);
    json_put_close(&out, '}');
    api_reply_json(server, exchange, &out);
}

void api_server_info(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct json_writer out = {0};
    struct scheduler_stats stats;
    if (!api_ready_or_refuse(server, exchange))
        return;
    scheduler_stats(server->scheduler, &stats);
    json_put_open(&out, '{');
    json_put_key_text(&out, "version", baton_version());
    json_put_key_text(&out, "engine", "baton");
    json_put_key_text(&out, "kernels", engine_kernels_name(server->model->engine));
    json_put_key_int(&out, "threads", engine_threads(server->model->engine));
    json_put_key_text(&out, "model_path", server->model->path);
    json_put_key_text(&out, "tokenizer_path", server->model->path);
    json_put_key_text(&out, "served_model_name", server->model->name);
    json_put_key_text(&out, "disaggregation_mode", worker_role_name(server->role));
    json_put_key_int(&out, "disaggregation_bootstrap_port", server->bootstrap_port);
    json_put_key_int(&out, "tp_size", server->options.tp_size);
    json_put_key_int(&out, "dp_size", 1);
    json_put_key_int(&out, "pp_size", 1);
    json_put_key_text(&out, "load_balance_method", "round_robin");
    json_put_key_int(&out, "page_size", stats.tokens_per_page);
    json_put_key_int(&out, "context_length", scheduler_context(server->scheduler));
    json_put_key_int(&out, "max_total_num_tokens", scheduler_capacity(server->scheduler));
    json_put_key_int(&out, "max_running_requests", server->options.max_running);
    json_put_key_int(&out, "chunked_prefill_size", server->options.chunk_tokens);
    json_put_key(&out, "internal_states");
    json_put_open(&out, '[');
    json_put_open(&out, '{');
    json_put_key_real(&out, "last_gen_throughput", stats.generation_rate);
    json_put_close(&out, '}');
    json_put_close(&out, ']');
    json_put_close(&out, '}');
    api_reply_json(server, exchange, &out);
}

/* Wherever they stand. */
static int64_t requests_inside(const struct scheduler_stats *stats)
{
    return (int64_t)stats->running + stats->waiting + stats->bootstrapping + stats->inflight +
           stats->preallocating + stats->transferring + stats->landed;
}

/* ---- load ----------------------------------------------------------------------------------- */

/* What sglang-router 0.3.2 reads. */
void api_get_load(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct json_writer out = {0};
    struct scheduler_stats stats;
    if (!api_ready_or_refuse(server, exchange))
        return;
    scheduler_stats(server->scheduler, &stats);
    json_put_open(&out, '[');
    json_put_open(&out, '{');
    json_put_key_int(&out, "dp_rank", 0);
    json_put_key_int(&out, "num_reqs", requests_inside(&stats));
    json_put_key_int(&out, "num_waiting_reqs", stats.waiting);
    json_put_key_int(&out, "num_tokens",
                     (int64_t)stats.used_tokens + stats.waiting_uncached_tokens);
    json_put_key_int(&out, "num_pending_tokens", stats.waiting_uncached_tokens);
    json_put_close(&out, '}');
    json_put_close(&out, ']');
    api_reply_json(server, exchange, &out);
}

static void disaggregation_write(struct json_writer *out, const struct api_server *server,
                                 const struct scheduler_stats *stats)
{
    json_put_key(out, "disaggregation");
    json_put_open(out, '{');
    json_put_key_text(out, "mode", worker_role_name(server->role));
    json_put_key_int(out, "prefill_bootstrap_queue_reqs", stats->bootstrapping);
    json_put_key_int(out, "prefill_inflight_queue_reqs", stats->inflight);
    json_put_key_int(out, "decode_prealloc_queue_reqs", stats->preallocating);
    json_put_key_int(out, "decode_transfer_queue_reqs", stats->transferring);
    json_put_key_int(out, "decode_retracted_queue_reqs", stats->retracted_waiting);
    json_put_key_real(out, "kv_transfer_speed_gb_s",
                      stats->transfer_ms > 0 ? stats->transfer_mb / stats->transfer_ms : 0);
    json_put_key_real(out, "kv_transfer_latency_ms", stats->transfer_ms);
    json_put_close(out, '}');
}

static void load_write(struct json_writer *out, const struct api_server *server,
                       const struct scheduler_stats *stats)
{
    uint32_t capacity = scheduler_capacity(server->scheduler);
    double usage = capacity ? (double)stats->used_tokens / capacity : 0;
    json_put_open(out, '{');
    json_put_key_int(out, "dp_rank", 0);
    json_put_key_int(out, "num_running_reqs", stats->running);
    json_put_key_int(out, "num_waiting_reqs", stats->waiting);
    json_put_key_int(out, "num_waiting_uncached_tokens", stats->waiting_uncached_tokens);
    json_put_key_int(out, "num_total_reqs", requests_inside(stats));
    json_put_key_int(out, "num_used_tokens", stats->used_tokens);
    json_put_key_int(out, "num_total_tokens",
                     (int64_t)stats->used_tokens + stats->waiting_uncached_tokens);
    json_put_key_int(out, "max_total_num_tokens", capacity);
    json_put_key_real(out, "token_usage", usage);
    json_put_key_real(out, "gen_throughput", stats->generation_rate);
    json_put_key_real(out, "cache_hit_rate", stats->cache_hit_rate);
    json_put_key_real(
        out, "utilization",
        server->options.max_running ? (double)stats->running / server->options.max_running : 0);
    json_put_key_int(out, "max_running_requests", server->options.max_running);
    if (server->role != ROLE_MIXED)
        disaggregation_write(out, server, stats);
    json_put_close(out, '}');
}

void api_loads(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct json_writer out = {0};
    struct scheduler_stats stats;
    if (!api_ready_or_refuse(server, exchange))
        return;
    scheduler_stats(server->scheduler, &stats);
    uint32_t capacity = scheduler_capacity(server->scheduler);
    json_put_open(&out, '{');
    json_put_key_int(&out, "timestamp", (int64_t)time(NULL));
    json_put_key_text(&out, "version", baton_version());
    json_put_key_int(&out, "dp_rank_count", 1);
    json_put_key(&out, "loads");
    json_put_open(&out, '[');
    load_write(&out, server, &stats);
    json_put_close(&out, ']');
    json_put_key(&out, "aggregate");
    json_put_open(&out, '{');
    json_put_key_int(&out, "total_running_reqs", stats.running);
    json_put_key_int(&out, "total_waiting_reqs", stats.waiting);
    json_put_key_int(&out, "total_reqs", requests_inside(&stats));
    json_put_key_int(&out, "total_tokens",
                     (int64_t)stats.used_tokens + stats.waiting_uncached_tokens);
    json_put_key_real(&out, "avg_token_usage",
                      capacity ? (double)stats.used_tokens / capacity : 0);
    json_put_key_real(&out, "avg_throughput", stats.generation_rate);
    json_put_close(&out, '}');
    json_put_close(&out, '}');
    api_reply_json(server, exchange, &out);
}

void api_metrics(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct byte_buffer page = {0};
    struct scheduler_stats stats;
    if (!api_ready_or_refuse(server, exchange))
        return;
    scheduler_stats(server->scheduler, &stats);
    const struct metrics_facts facts = {
        .model_name = server->model->name,
        .capacity_tokens = scheduler_capacity(server->scheduler),
        .max_running = server->options.max_running,
        .connections = http_server_connections(server->http),
        .transfers = server->options.transfers,
    };
    if (metrics_page(&server->metrics, &stats, &facts, &page))
        http_exchange_reply(exchange, 500, "text/plain", "out of memory\n", 14);
    else
        http_exchange_reply(exchange, 200, "text/plain; version=0.0.4; charset=utf-8",
                            page.bytes, page.length);
    byte_buffer_free(&page);
}
