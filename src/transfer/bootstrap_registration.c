/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a PUT /route becomes a registration in which every number is in its range and the
 * rank lies inside its group; or a 400 that names the key to correct. What the table makes of
 * it is in bootstrap_ranks.c. */
#include "bootstrap_parts.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct route_numbers { /* as SGLang names them */
    int64_t attn_tp_size, attn_tp_rank, attn_cp_size, attn_cp_rank, attn_dp_size, attn_dp_rank;
    int64_t pp_size, pp_rank, system_dp_size, system_dp_rank, rank_port;
};

static const struct number_rule {
    const char *key;
    size_t offset;
    int64_t least, most;
} number_rules[] = {
#define NUMBER(key) #key, offsetof(struct route_numbers, key)
    {NUMBER(attn_tp_size), 1, BOOTSTRAP_RANKS_MAX},
    {NUMBER(attn_tp_rank), 0, BOOTSTRAP_RANKS_MAX - 1},
    {NUMBER(attn_cp_size), 1, BOOTSTRAP_RANKS_MAX},
    {NUMBER(attn_cp_rank), 0, BOOTSTRAP_RANKS_MAX - 1},
    {NUMBER(attn_dp_size), 1, BOOTSTRAP_RANKS_MAX},
    {NUMBER(attn_dp_rank), 0, BOOTSTRAP_RANKS_MAX - 1},
    {NUMBER(pp_size), 1, BOOTSTRAP_RANKS_MAX},
    {NUMBER(pp_rank), 0, BOOTSTRAP_RANKS_MAX - 1},
    {NUMBER(system_dp_size), 1, BOOTSTRAP_RANKS_MAX},
    {NUMBER(system_dp_rank), 0, BOOTSTRAP_RANKS_MAX - 1},
    {NUMBER(rank_port), 1, UINT16_MAX},
#undef NUMBER
};

static bool route_numbers_read(const json_t *json, struct route_numbers *out,
                               struct bootstrap_reply *reply)
{
    for (size_t i = 0; i < sizeof(number_rules) / sizeof(number_rules[0]); i++) {
        const struct number_rule *rule = &number_rules[i];
        const json_t *value = json_object_get(json, rule->key);
        int64_t number;
        if (!value || json_is_null(value)) {
            bootstrap_reply_text(reply, 400, "PUT /route: the key \"%s\" is missing",
                                 rule->key);
            return false;
        }
        if (!bootstrap_number_read(value, &number) || number < rule->least ||
            number > rule->most) {
            bootstrap_reply_text(reply, 400,
                                 "PUT /route: \"%s\" must be an integer from %" PRId64
                                 " to %" PRId64,
                                 rule->key, rule->least, rule->most);
            return false;
        }
        *(int64_t *)((char *)out + rule->offset) = number;
    }
    return true;
}

/* Mandatory in SGLang, but null is an answer: "not said". */
static bool route_described(const json_t *json, struct bootstrap_group *group,
                            struct bootstrap_reply *reply)
{
    const json_t *page_size = json_object_get(json, "page_size");
    const json_t *dtype = json_object_get(json, "kv_cache_dtype");
    group->page_size = -1;
    if (!page_size || !dtype) {
        bootstrap_reply_text(reply, 400, "PUT /route: the key \"%s\" is missing",
                             page_size ? "kv_cache_dtype" : "page_size");
        return false;
    }
    if (!json_is_null(page_size) && (!bootstrap_number_read(page_size, &group->page_size) ||
                                     group->page_size < 0 || group->page_size > UINT32_MAX)) {
        bootstrap_reply_text(
            reply, 400, "PUT /route: \"page_size\" must be an integer from 0 to %u or null",
            UINT32_MAX);
        return false;
    }
    if (!json_is_null(dtype) &&
        (!json_is_string(dtype) || json_string_length(dtype) >= BOOTSTRAP_DTYPE_SIZE)) {
        bootstrap_reply_text(
            reply, 400,
            "PUT /route: \"kv_cache_dtype\" must be a string of up to %d bytes or null",
            BOOTSTRAP_DTYPE_SIZE - 1);
        return false;
    }
    if (json_is_string(dtype))
        snprintf(group->kv_cache_dtype, BOOTSTRAP_DTYPE_SIZE, "%s", json_string_value(dtype));
    return true;
}

static bool route_options(const json_t *json, struct bootstrap_registration *out,
                          struct bootstrap_reply *reply)
{
    static const char follow[] = "follow_bootstrap_room";
    const json_t *balance = json_object_get(json, "load_balance_method");
    const json_t *split = json_object_get(json, "enable_dsa_cache_layer_split");
    const json_t *http_port = json_object_get(json, "prefill_http_port");
    const char *wrong = NULL;
    struct bootstrap_group *group = &out->group;

    group->follow_bootstrap_room =
        !json_is_string(balance) || strcmp(json_string_value(balance), follow) == 0;
    if (balance && !json_is_null(balance) && !json_is_string(balance))
        wrong = "\"load_balance_method\" must be a string or null";

    group->dsa_cache_layer_split = json_is_true(split) || json_integer_value(split) != 0;
    if (split && !json_is_null(split) && !json_is_boolean(split) && !json_is_integer(split))
        wrong = "\"enable_dsa_cache_layer_split\" must be true, false or null";

    group->http_port = -1;
    if (http_port && !json_is_null(http_port) &&
        (!bootstrap_number_read(http_port, &group->http_port) || group->http_port < 0 ||
         group->http_port > UINT16_MAX))
        wrong = "\"prefill_http_port\" must be an integer from 0 to 65535 or null";

    if (!bootstrap_epoch_read(json_object_get(json, "epoch"), &out->epoch))
        wrong =
            "\"epoch\" must be an unsigned 64-bit number, as a decimal string or an integer";
    if (!bootstrap_ip_read(json_object_get(json, "rank_ip"), out->ip))
        wrong = "\"rank_ip\" must be an address or a host name of up to 63 characters";
    if (wrong)
        bootstrap_reply_text(reply, 400, "PUT /route: %s", wrong);
    return !wrong;
}

static bool shape_contains(const struct bootstrap_shape *shape,
                           const struct bootstrap_shape *rank, struct bootstrap_reply *reply)
{
    uint64_t ranks = (uint64_t)shape->dp * shape->cp * shape->tp * shape->pp;
    const char *which = rank->dp >= shape->dp   ? "dp"
                        : rank->cp >= shape->cp ? "cp"
                        : rank->tp >= shape->tp ? "tp"
                        : rank->pp >= shape->pp ? "pp"
                                                : NULL;
    if (which)
        bootstrap_reply_text(
            reply, 400,
            "PUT /route: the %s rank is not below the %s size (rank dp %u cp %u tp %u pp %u "
            "in a group of dp %u x cp %u x tp %u x pp %u)",
            which, which, rank->dp, rank->cp, rank->tp, rank->pp, shape->dp, shape->cp,
            shape->tp, shape->pp);
    else if (ranks > BOOTSTRAP_RANKS_MAX)
        bootstrap_reply_text(
            reply, 400,
            "PUT /route: a group of dp %u x cp %u x tp %u x pp %u has more than %u ranks",
            shape->dp, shape->cp, shape->tp, shape->pp, BOOTSTRAP_RANKS_MAX);
    return !which && ranks <= BOOTSTRAP_RANKS_MAX;
}

bool bootstrap_registration_read(const json_t *json, struct bootstrap_registration *out,
                                 struct bootstrap_reply *reply)
{
    struct route_numbers numbers;
    *out = (struct bootstrap_registration){0};
    const json_t *ip = json_object_get(json, "rank_ip");
    if (!route_numbers_read(json, &numbers, reply))
        return false;
    if (!ip || json_is_null(ip)) {
        bootstrap_reply_text(reply, 400, "PUT /route: the key \"rank_ip\" is missing");
        return false;
    }
    if (!route_described(json, &out->group, reply) || !route_options(json, out, reply))
        return false;
    bool attention_dp = numbers.system_dp_size == 1;
    out->shape = (struct bootstrap_shape){
        .dp = (uint32_t)(attention_dp ? numbers.attn_dp_size : numbers.system_dp_size),
        .cp = (uint32_t)numbers.attn_cp_size,
        .tp = (uint32_t)numbers.attn_tp_size,
        .pp = (uint32_t)numbers.pp_size};
    out->rank = (struct bootstrap_shape){
        .dp = (uint32_t)(attention_dp ? numbers.attn_dp_rank : numbers.system_dp_rank),
        .cp = (uint32_t)numbers.attn_cp_rank,
        .tp = (uint32_t)numbers.attn_tp_rank,
        .pp = (uint32_t)numbers.pp_rank};
    out->port = (uint16_t)numbers.rank_port;
    return shape_contains(&out->shape, &out->rank, reply);
}
