/* SPDX-License-Identifier: Apache-2.0 */
/* The client's half of the bootstrap contract: the bodies that it sends, and the replies that
 * it reads from a server that may be SGLang's own, another release, or no bootstrap server at
 * all. HTTP around it is in bootstrap_client.c. */
#include "bootstrap_parts.h"

#include <inttypes.h>
#include <stdio.h>

static char *json_encode(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

char *bootstrap_route_encode(const struct bootstrap_route *route)
{
    char epoch[24];
    snprintf(epoch, sizeof(epoch), "%" PRIu64, route->epoch);
    json_t *json = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:s?, s:s, s:b}",
        "attn_tp_size", (json_int_t)route->tp_size, "attn_tp_rank", (json_int_t)route->tp_rank,
        "attn_cp_size", (json_int_t)1, "attn_cp_rank", (json_int_t)0, "attn_dp_size",
        (json_int_t)route->dp_size, "attn_dp_rank", (json_int_t)route->dp_rank, "pp_size",
        (json_int_t)route->pp_size, "pp_rank", (json_int_t)route->pp_rank, "system_dp_size",
        (json_int_t)1, "system_dp_rank", (json_int_t)0, "rank_ip", route->rank_ip, "rank_port",
        (json_int_t)route->rank_port, "page_size", (json_int_t)route->page_size,
        "kv_cache_dtype", *route->kv_cache_dtype ? route->kv_cache_dtype : NULL,
        "load_balance_method", "follow_bootstrap_room", "enable_dsa_cache_layer_split", 0);
    if (json && route->epoch && json_object_set_new(json, "epoch", json_string(epoch)) < 0) {
        json_decref(json);
        return NULL;
    }
    return json_encode(json);
}

char *bootstrap_dp_rank_encode(uint64_t room, uint32_t dp_rank)
{
    return json_encode(json_pack("{s:I, s:I}", "bootstrap_room", (json_int_t)room, "dp_rank",
                                 (json_int_t)dp_rank));
}

char *bootstrap_rooms_encode(uint64_t room)
{
    return json_encode(json_pack("{s:[I]}", "bootstrap_rooms", (json_int_t)room));
}

/* A number of a reply: null and absent give the fallback (negative: it is mandatory). */
static int reply_number(const json_t *json, const char *key, int64_t least, int64_t most,
                        int64_t fallback, int64_t *out, struct error err)
{
    const json_t *value = json_object_get(json, key);
    if ((!value || json_is_null(value)) && fallback >= 0) {
        *out = fallback;
        return BATON_OK;
    }
    if (!value)
        return error_set(err, BATON_EPROTOCOL, "it lacks the key \"%s\"", key);
    if (!bootstrap_number_read(value, out) || *out < least || *out > most)
        return error_set(err, BATON_EPROTOCOL,
                         "its \"%s\" is not an integer from %" PRId64 " to %" PRId64, key,
                         least, most);
    return BATON_OK;
}

static int topology_read(const json_t *json, struct bootstrap_topology *out, struct error err)
{
    int64_t tp, pp, dp, page_size;
    const json_t *dtype = json_object_get(json, "kv_cache_dtype");
    const json_t *follow = json_object_get(json, "follow_bootstrap_room");
    int rc = reply_number(json, "attn_tp_size", 1, BOOTSTRAP_RANKS_MAX, -1, &tp, err);
    if (rc == BATON_OK)
        rc = reply_number(json, "pp_size", 1, BOOTSTRAP_RANKS_MAX, 1, &pp, err);
    if (rc == BATON_OK)
        rc = reply_number(json, "dp_size", 1, BOOTSTRAP_RANKS_MAX, 1, &dp, err);
    if (rc == BATON_OK)
        rc = reply_number(json, "page_size", 0, UINT32_MAX, 0, &page_size, err);
    if (rc < 0)
        return rc;
    struct bootstrap_topology topology = {.tp_size = (uint32_t)tp,
                                          .pp_size = (uint32_t)pp,
                                          .dp_size = (uint32_t)dp,
                                          .page_size = (uint32_t)page_size,
                                          .follow_bootstrap_room = !json_is_false(follow)};
    if (json_is_string(dtype)) {
        if (json_string_length(dtype) >= sizeof(topology.kv_cache_dtype))
            return error_set(err, BATON_EPROTOCOL,
                             "its \"kv_cache_dtype\" is longer than %zu bytes",
                             sizeof(topology.kv_cache_dtype) - 1);
        snprintf(topology.kv_cache_dtype, sizeof(topology.kv_cache_dtype), "%s",
                 json_string_value(dtype));
    } else if (dtype && !json_is_null(dtype)) {
        return error_set(err, BATON_EPROTOCOL, "its \"kv_cache_dtype\" is not a string");
    }
    *out = topology;
    return BATON_OK;
}

int bootstrap_topology_decode(const char *body, size_t size, struct bootstrap_topology *out,
                              struct error err)
{
    json_t *json = bootstrap_object_parse(body, size, err);
    if (!json)
        return BATON_EPROTOCOL;
    int rc = topology_read(json, out, err);
    json_decref(json);
    return rc;
}

static int rank_read(const json_t *json, struct bootstrap_rank *out, struct error err)
{
    struct bootstrap_rank rank = {0};
    int64_t port;
    if (!bootstrap_ip_read(json_object_get(json, "rank_ip"), rank.rank_ip))
        return error_set(err, BATON_EPROTOCOL, "its \"rank_ip\" is no address or host name");
    int rc = reply_number(json, "rank_port", 1, UINT16_MAX, -1, &port, err);
    if (rc < 0)
        return rc;
    if (!bootstrap_epoch_read(json_object_get(json, "epoch"), &rank.epoch))
        return error_set(err, BATON_EPROTOCOL, "its \"epoch\" is no unsigned 64-bit number");
    rank.rank_port = (uint16_t)port;
    *out = rank;
    return BATON_OK;
}

int bootstrap_rank_decode(const char *body, size_t size, struct bootstrap_rank *out,
                          struct error err)
{
    json_t *json = bootstrap_object_parse(body, size, err);
    if (!json)
        return BATON_EPROTOCOL;
    int rc = rank_read(json, out, err);
    json_decref(json);
    return rc;
}

int bootstrap_dp_rank_decode(const char *body, size_t size, uint64_t room, uint32_t *dp_rank,
                             struct error err)
{
    char key[24];
    int64_t number;
    json_t *json = bootstrap_object_parse(body, size, err);
    if (!json)
        return BATON_EPROTOCOL;
    snprintf(key, sizeof(key), "%" PRIu64, room);
    const json_t *value = json_object_get(json, key);
    int rc = !value || json_is_null(value)
                 ? error_set(err, BATON_AGAIN, "room %s is not registered there yet", key)
                 : reply_number(json, key, 0, BOOTSTRAP_RANKS_MAX - 1, -1, &number, err);
    json_decref(json);
    if (rc == BATON_OK)
        *dp_rank = (uint32_t)number;
    return rc;
}
