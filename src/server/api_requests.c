/* SPDX-License-Identifier: Apache-2.0 */
/* GET /requests/RID: what happened to a request here, and when; and the same as a trace file that
 * Perfetto and chrome://tracing open, written by a tokenizer thread when a request is over. */
#include "api_state.h"

#include "base/clock.h"
#include "sched/request_log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *kind_name(enum handover_kind kind)
{
    return kind == HANDOVER_SEND ? "prefill" : kind == HANDOVER_RECEIVE ? "decode" : "mixed";
}

static const char *finish_name(enum generation_finish finish)
{
    static const char *const names[] = {NULL, "stop", "length", "abort", "error"};
    return names[finish];
}

static void record_write(struct json_writer *out, const struct request_record *record)
{
    uint64_t queued = record->moments_ns[MOMENT_QUEUED];
    json_put_open(out, '{');
    json_put_key_text(out, "rid", record->rid);
    json_put_key_text(out, "role", kind_name(record->kind));
    json_put_key_int(out, "prompt_tokens", record->prompt_tokens);
    json_put_key_int(out, "cached_tokens", record->cached_tokens);
    json_put_key_int(out, "completion_tokens", record->generated_tokens);
    json_put_key_text(out, "finish", finish_name(record->finish));
    json_put_key_text(out, "reason", record->reason[0] ? record->reason : NULL);
    if (record->kind != HANDOVER_NONE) {
        json_put_key_int(out, "room", (int64_t)record->room);
        json_put_key_text(out, "backend", record->backend[0] ? record->backend : NULL);
        json_put_key_text(out, "plan", record->plan[0] ? record->plan : NULL);
        json_put_key_int(out, "bytes", (int64_t)record->bytes);
        json_put_key_int(out, "operations", (int64_t)record->operations);
    }
    if (record->kind == HANDOVER_SEND)
        json_put_key_int(out, "early_bytes", (int64_t)record->early_bytes);
    json_put_key(out, "timeline_ms"); /* since it was queued */
    json_put_open(out, '{');
    for (uint32_t i = 0; i < MOMENT_COUNT; i++)
        if (record->moments_ns[i])
            json_put_key_real(out, request_moment_name(i),
                              ((double)record->moments_ns[i] - (double)queued) / 1e6);
    json_put_close(out, '}');
    json_put_close(out, '}');
}

void api_request(struct http_exchange *exchange, void *context)
{
    struct api_server *server = context;
    struct request_error error = {0};
    struct request_record record;
    struct json_writer out = {0};
    const char *rid = http_exchange_path(exchange) + strlen("/requests/");
    if (!api_ready_or_refuse(server, exchange))
        return;
    if (!scheduler_request(server->scheduler, rid, &record)) {
        request_refuse(&error, 404, NULL, "no request %.100s is known here, or not any more",
                       rid);
        api_reply_error(server, exchange, false, &error);
        return;
    }
    record_write(&out, &record);
    api_reply_json(server, exchange, &out);
}

/* ---- the trace file ------------------------------------------------------------------------- */

/* Perfetto reads an array that was never closed, so that events are only ever appended. */
int api_trace_open(struct api_server *server, const char *path, struct error err)
{
    if (!path)
        return BATON_OK;
    server->trace = fopen(path, "w");
    if (!server->trace)
        return error_set(err, BATON_ESYSTEM, "the trace file %s cannot be written", path);
    fputs("[\n", server->trace);
    return BATON_OK;
}

void api_trace_close(struct api_server *server)
{
    if (server->trace)
        fclose(server->trace);
}

struct trace_entry {
    struct work work;
    struct api_server *server;
    char rid[GENERATION_RID_BYTES];
};

/* A span from each moment to the next one that has come. */
static void spans_write(struct json_writer *out, const struct request_record *record)
{
    uint32_t from = MOMENT_QUEUED;
    for (uint32_t to = 1; to < MOMENT_COUNT; to++) {
        if (record->moments_ns[to] < record->moments_ns[from] || !record->moments_ns[to])
            continue;
        json_put_open(out, '{');
        json_put_key_text(out, "name", request_moment_name(to));
        json_put_key_text(out, "cat", kind_name(record->kind));
        json_put_key_text(out, "ph", "X");
        json_put_key_int(out, "ts", (int64_t)(record->moments_ns[from] / 1000));
        json_put_key_real(out, "dur",
                          (double)(record->moments_ns[to] - record->moments_ns[from]) / 1e3);
        json_put_key_int(out, "pid", getpid());
        json_put_key_int(out, "tid", (int64_t)record->number);
        json_put_key(out, "args");
        json_put_open(out, '{');
        json_put_key_text(out, "rid", record->rid);
        if (to == MOMENT_LANDED) {
            json_put_key_text(out, "plan", record->plan);
            json_put_key_int(out, "bytes", (int64_t)record->bytes);
            json_put_key_int(out, "early_bytes", (int64_t)record->early_bytes);
        }
        json_put_close(out, '}');
        json_put_close(out, '}');
        json_put_raw(out, ",\n", 2);
        out->comma = false;
        from = to;
    }
}

static void trace_run(struct work *work)
{
    struct trace_entry *entry = (struct trace_entry *)(void *)work;
    struct api_server *server = entry->server;
    struct request_record record;
    struct json_writer out = {0};
    if (scheduler_request(server->scheduler, entry->rid, &record)) {
        spans_write(&out, &record);
        if (!out.failed) /* a full disk costs the trace, not the service */
            fwrite(out.out.bytes, 1, out.out.length, server->trace);
        fflush(server->trace);
    }
    json_writer_free(&out);
    atomic_fetch_sub(&server->busy, 1);
    free(entry);
}

void api_trace(struct api_server *server, const char *rid)
{
    struct trace_entry *entry = server->trace ? calloc(1, sizeof(*entry)) : NULL;
    if (!entry)
        return;
    entry->work.run = trace_run;
    entry->server = server;
    snprintf(entry->rid, sizeof(entry->rid), "%s", rid);
    atomic_fetch_add(&server->busy, 1); /* the scheduler is needed until it is written */
    work_pool_add(server->tokenizers, &entry->work);
}
