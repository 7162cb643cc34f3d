/* SPDX-License-Identifier: Apache-2.0 */
/* GET /route: the topology (all ranks -1) or the address of one rank, once the group is
 * complete. Clients of several SGLang releases ask in slightly different words. */
#include "bootstrap_parts.h"

#include <errno.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>

static const char *query_find(struct evkeyvalq *query, const char *name, const char *older_name)
{
    const char *value = evhttp_find_header(query, name);
    if (!value && older_name)
        value = evhttp_find_header(query, older_name);
    return value;
}

/* fallback: what a client that does not know the parameter means; INT64_MIN: mandatory. */
static bool query_rank(const char *value, int64_t fallback, int64_t *out)
{
    char *end;
    if (!value) {
        *out = fallback;
        return fallback != INT64_MIN;
    }
    errno = 0;
    *out = strtoll(value, &end, 10);
    return end != value && *end == '\0' && !errno;
}

struct route_query {
    int64_t dp, cp, tp, pp;
};

/* Older clients say engine_rank for target_tp_rank and target_dp_group for prefill_dp_rank;
 * they know no cp, and the oldest no pp. */
static bool route_query_read(const char *text, struct route_query *out,
                             struct bootstrap_reply *reply)
{
    struct evkeyvalq query;
    const char *missing = NULL;
    TAILQ_INIT(&query);
    if (evhttp_parse_query_str(text, &query) != 0) {
        bootstrap_reply_text(reply, 400, "the query of GET /route cannot be read");
        return false;
    }
    bool older = evhttp_find_header(&query, "engine_rank") ||
                 evhttp_find_header(&query, "target_dp_group");
    if (!query_rank(query_find(&query, "prefill_dp_rank", "target_dp_group"), INT64_MIN,
                    &out->dp))
        missing = "prefill_dp_rank";
    else if (!query_rank(query_find(&query, "target_tp_rank", "engine_rank"), INT64_MIN,
                         &out->tp))
        missing = "target_tp_rank";
    int64_t fallback = !older || missing ? INT64_MIN : out->tp == -1 ? -1 : 0;
    if (!missing &&
        !query_rank(query_find(&query, "prefill_cp_rank", NULL), fallback, &out->cp))
        missing = "prefill_cp_rank";
    if (!missing && !query_rank(query_find(&query, "target_pp_rank", NULL), fallback, &out->pp))
        missing = "target_pp_rank";
    evhttp_clear_headers(&query);
    if (missing)
        bootstrap_reply_text(
            reply, 400, "Missing inputs for bootstrap server: GET /route needs the integer %s",
            missing);
    return !missing;
}

/* The keys are exactly SGLang's: its decode side makes a record of whatever is here and fails
 * on a key that it does not know. */
static json_t *topology_encode(const struct bootstrap_table *table)
{
    const struct bootstrap_group *group = &table->group;
    json_t *page_size = group->page_size < 0 ? json_null() : json_integer(group->page_size);
    json_t *http_port = group->http_port < 0 ? json_null() : json_integer(group->http_port);
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:s?, s:b, s:b, s:o}", "attn_tp_size",
                     (json_int_t)table->shape.tp, "attn_cp_size", (json_int_t)table->shape.cp,
                     "dp_size", (json_int_t)table->shape.dp, "pp_size",
                     (json_int_t)table->shape.pp, "page_size", page_size, "kv_cache_dtype",
                     *group->kv_cache_dtype ? group->kv_cache_dtype : NULL,
                     "follow_bootstrap_room", (int)group->follow_bootstrap_room,
                     "enable_dsa_cache_layer_split", (int)group->dsa_cache_layer_split,
                     "prefill_http_port", http_port);
}

static json_t *rank_encode(const struct bootstrap_rank_entry *rank)
{
    char epoch[24];
    json_t *json =
        json_pack("{s:s, s:I}", "rank_ip", rank->ip, "rank_port", (json_int_t)rank->port);
    snprintf(epoch, sizeof(epoch), "%" PRIu64, rank->epoch);
    if (json && rank->epoch && json_object_set_new(json, "epoch", json_string(epoch)) < 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static const struct bootstrap_rank_entry *rank_find(const struct bootstrap_table *table,
                                                    const struct route_query *query)
{
    const struct bootstrap_shape *shape = &table->shape;
    if (query->dp < 0 || query->dp >= shape->dp || query->cp < 0 || query->cp >= shape->cp ||
        query->tp < 0 || query->tp >= shape->tp || query->pp < 0 || query->pp >= shape->pp)
        return NULL;
    struct bootstrap_shape rank = {.dp = (uint32_t)query->dp,
                                   .cp = (uint32_t)query->cp,
                                   .tp = (uint32_t)query->tp,
                                   .pp = (uint32_t)query->pp};
    return &table->ranks[bootstrap_rank_slot(shape, &rank)];
}

void bootstrap_route_get(const struct bootstrap_table *table, const char *query_text,
                         struct bootstrap_reply *reply)
{
    struct route_query query;
    if (!route_query_read(query_text, &query, reply))
        return;
    if (!table->rank_count || table->ranks_present < table->rank_count) {
        bootstrap_reply_text(
            reply, 503,
            "Prefill server not fully registered yet (%u of %u workers registered).",
            table->ranks_present, table->rank_count);
        return;
    }
    if (query.dp == -1 && query.cp == -1 && query.tp == -1 && query.pp == -1) {
        bootstrap_reply_json(reply, topology_encode(table));
        return;
    }
    const struct bootstrap_rank_entry *rank = rank_find(table, &query);
    if (rank)
        bootstrap_reply_json(reply, rank_encode(rank));
    else
        bootstrap_reply_text(reply, 404,
                             "Bootstrap info not found for dp_rank=%" PRId64 " cp_rank=%" PRId64
                             " tp_rank=%" PRId64 " pp_rank=%" PRId64
                             " in a group of dp %u x cp %u x tp %u x pp %u",
                             query.dp, query.cp, query.tp, query.pp, table->shape.dp,
                             table->shape.cp, table->shape.tp, table->shape.pp);
}
