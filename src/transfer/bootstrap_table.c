/* SPDX-License-Identifier: Apache-2.0 */
/* The table behind the bootstrap server, and the JSON on both sides of it.
 *
 * Problem. Prefill ranks come up in any order, die and come back; decode ranks ask where they
 * are. SGLang's server keeps the last PUT of each rank and calls the group complete when it
 * has counted enough PUTs: a rank that registers twice stands in for one that is missing, and
 * of two processes started by mistake as the same rank each takes half of the traffic. Here
 *
 *  - the group is complete when each of dp x cp x tp x pp ranks is there, however often it
 *    called;
 *  - a rank belongs to a process. The same process (its epoch, our extra key; or its
 *    ip:port) may register again at will. Another one takes the place of a dead one and is
 *    refused by a live one. Only a connect tells dead from alive, and this file does no
 *    I/O: it returns a question (bootstrap_pending) and is told the answer. Requests go on
 *    meanwhile, so the question names the registration it was asked about, and an answer
 *    about an older one is not used;
 *  - a PUT with other sizes is a mistake while anybody of the old group lives, and the
 *    first sign of a new group once all of them are gone: then the table starts afresh.
 *
 * Of what describes the group beside its sizes (page size, dtype, ...) the first PUT wins, as
 * in SGLang, until that first rank (the founder) is replaced by a new process: that one's
 * word then counts, or a restarted group would for ever be described by its predecessor.
 *
 * Threads: one at a time; the server calls from its event loop only.
 * Limits: BOOTSTRAP_RANKS_MAX ranks, rooms_max rooms for BOOTSTRAP_ROOM_TTL_NS.
 * Deliberately not here: who may register. The port belongs on a trusted network. */
#include "bootstrap_table.h"

#include "base/clock.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/random.h>

#define ROOM_BUCKETS 65536u /* fixed: sixteen rooms a bucket at the limit, and never a rehash */
#define IP_SIZE 64
#define DTYPE_SIZE 32 /* as in bootstrap_topology: what we tell, our client can read */
#define PATH_SIZE 64  /* longer than any path we serve */

struct shape {
    uint32_t dp, cp, tp, pp;
};

struct group { /* what the topology reply says beside the sizes; -1: nobody has said yet */
    int64_t page_size;
    int64_t http_port;
    char kv_cache_dtype[DTYPE_SIZE]; /* "": nobody has said yet */
    bool follow_bootstrap_room;
    bool dsa_cache_layer_split;
};

struct rank {
    uint64_t serial; /* 0: empty; else counts registrations of the whole table */
    uint64_t epoch;  /* 0: did not say */
    char ip[IP_SIZE];
    uint16_t port;
};

struct room {
    TAILQ_ENTRY(room) by_age;
    LIST_ENTRY(room) in_bucket;
    uint64_t number;
    uint64_t registered_ns;
    uint32_t dp_rank;
};
TAILQ_HEAD(room_age_list, room);
LIST_HEAD(room_bucket, room);

struct bootstrap_table {
    struct shape shape; /* all 0: nobody has registered */
    struct group group;
    struct rank *ranks; /* indexed by rank_slot() */
    uint32_t rank_count, ranks_present, founder;
    uint64_t serial;

    struct room_age_list rooms; /* oldest first */
    struct room_bucket *buckets;
    uint32_t room_count, rooms_max;
    uint64_t hash_key;
};

/* A PUT /route, checked. */
struct registration {
    struct shape shape, rank; /* rank.dp is the dp group */
    struct group group;
    char ip[IP_SIZE];
    uint16_t port;
    uint64_t epoch;
};

struct bootstrap_pending {
    struct registration registration;
    uint32_t count;
    struct bootstrap_endpoint endpoints[]; /* ascending by slot */
};

/* ---- replies --------------------------------------------------------------------------- */

void bootstrap_reply_free(struct bootstrap_reply *reply)
{
    free(reply->body);
    reply->body = NULL;
}

__attribute__((format(printf, 3, 4))) static void
reply_text(struct bootstrap_reply *reply, int status, const char *format, ...)
{
    char text[768];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    char *body = strdup(text);
    *reply = (struct bootstrap_reply){.status = body ? status : 500,
                                      .content_type = "text/plain; charset=utf-8",
                                      .body = body};
}

/* Takes the reference; NULL (no memory) is answered as such. */
static void reply_json(struct bootstrap_reply *reply, json_t *json)
{
    char *body = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    *reply = (struct bootstrap_reply){.status = body ? 200 : 500,
                                      .content_type = "application/json; charset=utf-8",
                                      .body = body};
}

/* ---- reading JSON ---------------------------------------------------------------------- */

/* SGLang reads its numbers with int(), so "17000" is as good as 17000. */
static bool number_read(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    const char *text = json_string_value(value);
    char *end;
    if (!text || !*text)
        return false;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || errno)
        return false;
    while (isspace((unsigned char)*end))
        end++;
    *out = number;
    return *end == '\0';
}

/* A decimal string, because epochs use all 64 bits and JSON integers have 63. */
static bool epoch_read(const json_t *value, uint64_t *out)
{
    *out = 0;
    if (!value || json_is_null(value))
        return true;
    if (json_is_integer(value)) {
        *out = (uint64_t)json_integer_value(value);
        return json_integer_value(value) >= 0;
    }
    const char *text = json_string_value(value);
    if (!text || !*text || text[strspn(text, "0123456789")])
        return false;
    errno = 0;
    *out = strtoull(text, NULL, 10);
    return errno == 0;
}

static bool room_read(const json_t *value, uint64_t *room)
{
    int64_t number;
    if (!number_read(value, &number) || number < 0)
        return false;
    *room = (uint64_t)number;
    return true;
}

/* Only what can stand in a host name or a numeric address: it goes into logs and replies. */
static bool ip_read(const json_t *value, char ip[IP_SIZE])
{
    const char *text = json_string_value(value);
    if (!text || !*text || strlen(text) >= IP_SIZE)
        return false;
    for (const char *c = text; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr(".:_-%[]", *c))
            return false;
    }
    snprintf(ip, IP_SIZE, "%s", text);
    return true;
}

static json_t *object_parse(const char *body, size_t size, struct error err)
{
    json_error_t problem;
    json_t *json = json_loadb(body ? body : "", body ? size : 0, 0, &problem);
    if (!json)
        error_set(err, BATON_EPROTOCOL, "it is not JSON: %s (at byte %d)", problem.text,
                  problem.position);
    else if (!json_is_object(json))
        error_set(err, BATON_EPROTOCOL, "it is JSON, but not an object");
    if (json_is_object(json))
        return json;
    json_decref(json);
    return NULL;
}

/* The object in a request's body; NULL with a 400 that says why not. */
static json_t *body_parse(const struct bootstrap_request *request,
                          struct bootstrap_reply *reply)
{
    char text[256];
    json_t *json = object_parse(request->body, request->body_size, ERROR_BUFFER(text));
    if (!json)
        reply_text(reply, 400, "the body of %s cannot be read: %s", request->method, text);
    return json;
}

/* ---- addresses ------------------------------------------------------------------------- */

/* "10.0.0.1:17000", "[::1]:17000" */
struct address_text {
    char text[IP_SIZE + 16];
};
static struct address_text address_format(const char *ip, uint16_t port)
{
    struct address_text out;
    bool bare_v6 = strchr(ip, ':') && *ip != '[';
    snprintf(out.text, sizeof(out.text), bare_v6 ? "[%s]:%u" : "%s:%u", ip, (unsigned)port);
    return out;
}

static bool address_equal(const char *ip_a, uint16_t port_a, const char *ip_b, uint16_t port_b)
{
    return port_a == port_b && strcasecmp(ip_a, ip_b) == 0;
}

/* What a connect needs; false for names, which could be resolved only by waiting. */
static bool address_numeric(const char *ip, char out[IP_SIZE])
{
    struct in6_addr ignored;
    size_t length = strlen(ip);
    bool bracketed = length > 2 && ip[0] == '[' && ip[length - 1] == ']';
    snprintf(out, IP_SIZE, "%.*s", (int)(bracketed ? length - 2 : length), ip + bracketed);
    if (strcasecmp(out, "localhost") == 0)
        strcpy(out, "127.0.0.1");
    return inet_pton(AF_INET, out, &ignored) == 1 || inet_pton(AF_INET6, out, &ignored) == 1;
}

/* ---- PUT /route: from JSON to a registration ------------------------------------------- */

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
            reply_text(reply, 400, "PUT /route: the key \"%s\" is missing", rule->key);
            return false;
        }
        if (!number_read(value, &number) || number < rule->least || number > rule->most) {
            reply_text(reply, 400,
                       "PUT /route: \"%s\" must be an integer from %" PRId64 " to %" PRId64,
                       rule->key, rule->least, rule->most);
            return false;
        }
        *(int64_t *)((char *)out + rule->offset) = number;
    }
    return true;
}

/* Mandatory in SGLang, but null is an answer: "not said". */
static bool route_described(const json_t *json, struct group *group,
                            struct bootstrap_reply *reply)
{
    const json_t *page_size = json_object_get(json, "page_size");
    const json_t *dtype = json_object_get(json, "kv_cache_dtype");
    group->page_size = -1;
    if (!page_size || !dtype) {
        reply_text(reply, 400, "PUT /route: the key \"%s\" is missing",
                   page_size ? "kv_cache_dtype" : "page_size");
        return false;
    }
    if (!json_is_null(page_size) && (!number_read(page_size, &group->page_size) ||
                                     group->page_size < 0 || group->page_size > UINT32_MAX)) {
        reply_text(reply, 400,
                   "PUT /route: \"page_size\" must be an integer from 0 to %u or null",
                   UINT32_MAX);
        return false;
    }
    if (!json_is_null(dtype) &&
        (!json_is_string(dtype) || json_string_length(dtype) >= DTYPE_SIZE)) {
        reply_text(reply, 400,
                   "PUT /route: \"kv_cache_dtype\" must be a string of up to %d bytes or null",
                   DTYPE_SIZE - 1);
        return false;
    }
    if (json_is_string(dtype))
        snprintf(group->kv_cache_dtype, DTYPE_SIZE, "%s", json_string_value(dtype));
    return true;
}

static bool route_options(const json_t *json, struct registration *out,
                          struct bootstrap_reply *reply)
{
    static const char follow[] = "follow_bootstrap_room";
    const json_t *balance = json_object_get(json, "load_balance_method");
    const json_t *split = json_object_get(json, "enable_dsa_cache_layer_split");
    const json_t *http_port = json_object_get(json, "prefill_http_port");
    const char *wrong = NULL;
    struct group *group = &out->group;

    group->follow_bootstrap_room =
        !json_is_string(balance) || strcmp(json_string_value(balance), follow) == 0;
    if (balance && !json_is_null(balance) && !json_is_string(balance))
        wrong = "\"load_balance_method\" must be a string or null";

    group->dsa_cache_layer_split = json_is_true(split) || json_integer_value(split) != 0;
    if (split && !json_is_null(split) && !json_is_boolean(split) && !json_is_integer(split))
        wrong = "\"enable_dsa_cache_layer_split\" must be true, false or null";

    group->http_port = -1;
    if (http_port && !json_is_null(http_port) &&
        (!number_read(http_port, &group->http_port) || group->http_port < 0 ||
         group->http_port > UINT16_MAX))
        wrong = "\"prefill_http_port\" must be an integer from 0 to 65535 or null";

    if (!epoch_read(json_object_get(json, "epoch"), &out->epoch))
        wrong =
            "\"epoch\" must be an unsigned 64-bit number, as a decimal string or an integer";
    if (!ip_read(json_object_get(json, "rank_ip"), out->ip))
        wrong = "\"rank_ip\" must be an address or a host name of up to 63 characters";
    if (wrong)
        reply_text(reply, 400, "PUT /route: %s", wrong);
    return !wrong;
}

static bool shape_contains(const struct shape *shape, const struct shape *rank,
                           struct bootstrap_reply *reply)
{
    uint64_t ranks = (uint64_t)shape->dp * shape->cp * shape->tp * shape->pp;
    const char *which = rank->dp >= shape->dp   ? "dp"
                        : rank->cp >= shape->cp ? "cp"
                        : rank->tp >= shape->tp ? "tp"
                        : rank->pp >= shape->pp ? "pp"
                                                : NULL;
    if (which)
        reply_text(
            reply, 400,
            "PUT /route: the %s rank is not below the %s size (rank dp %u cp %u tp %u pp %u "
            "in a group of dp %u x cp %u x tp %u x pp %u)",
            which, which, rank->dp, rank->cp, rank->tp, rank->pp, shape->dp, shape->cp,
            shape->tp, shape->pp);
    else if (ranks > BOOTSTRAP_RANKS_MAX)
        reply_text(
            reply, 400,
            "PUT /route: a group of dp %u x cp %u x tp %u x pp %u has more than %u ranks",
            shape->dp, shape->cp, shape->tp, shape->pp, BOOTSTRAP_RANKS_MAX);
    return !which && ranks <= BOOTSTRAP_RANKS_MAX;
}

static bool registration_read(const json_t *json, struct registration *out,
                              struct bootstrap_reply *reply)
{
    struct route_numbers numbers;
    *out = (struct registration){0};
    const json_t *ip = json_object_get(json, "rank_ip");
    if (!route_numbers_read(json, &numbers, reply))
        return false;
    if (!ip || json_is_null(ip)) {
        reply_text(reply, 400, "PUT /route: the key \"rank_ip\" is missing");
        return false;
    }
    if (!route_described(json, &out->group, reply) || !route_options(json, out, reply))
        return false;
    bool attention_dp = numbers.system_dp_size == 1;
    out->shape = (struct shape){
        .dp = (uint32_t)(attention_dp ? numbers.attn_dp_size : numbers.system_dp_size),
        .cp = (uint32_t)numbers.attn_cp_size,
        .tp = (uint32_t)numbers.attn_tp_size,
        .pp = (uint32_t)numbers.pp_size};
    out->rank = (struct shape){
        .dp = (uint32_t)(attention_dp ? numbers.attn_dp_rank : numbers.system_dp_rank),
        .cp = (uint32_t)numbers.attn_cp_rank,
        .tp = (uint32_t)numbers.attn_tp_rank,
        .pp = (uint32_t)numbers.pp_rank};
    out->port = (uint16_t)numbers.rank_port;
    return shape_contains(&out->shape, &out->rank, reply);
}

/* ---- PUT /route: who has the rank now? ------------------------------------------------- */

static uint32_t rank_slot(const struct shape *shape, const struct shape *rank)
{
    return ((rank->dp * shape->cp + rank->cp) * shape->tp + rank->tp) * shape->pp + rank->pp;
}

static bool shape_equal(const struct shape *a, const struct shape *b)
{
    return a->dp == b->dp && a->cp == b->cp && a->tp == b->tp && a->pp == b->pp;
}

/* Epochs decide where both sides have them; else the address must do. */
static bool rank_is_process(const struct rank *rank, const struct registration *registration)
{
    if (rank->epoch && registration->epoch)
        return rank->epoch == registration->epoch;
    return address_equal(rank->ip, rank->port, registration->ip, registration->port);
}

static bool pending_knows_gone(const struct bootstrap_pending *gone, uint32_t slot,
                               uint64_t serial)
{
    uint32_t low = 0, high = gone ? gone->count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (gone->endpoints[middle].slot < slot)
            low = middle + 1;
        else
            high = middle;
    }
    return gone && low < gone->count && gone->endpoints[low].slot == slot &&
           gone->endpoints[low].serial == serial;
}

/* Must somebody ask whether the process in this slot lives, before it loses its place? On yes,
 * numeric is where to ask. */
static bool rank_in_doubt(const struct rank *rank, uint32_t slot,
                          const struct registration *registration,
                          const struct bootstrap_pending *gone, char numeric[IP_SIZE])
{
    if (!rank->serial || rank_is_process(rank, registration))
        return false;
    /* Two processes cannot listen on one port: the old one is gone. */
    if (address_equal(rank->ip, rank->port, registration->ip, registration->port))
        return false;
    if (pending_knows_gone(gone, slot, rank->serial))
        return false;
    return address_numeric(rank->ip, numeric);
}

/* After a restart another rank may have got this rank's old port; a connect would find that
 * one. */
static bool rank_lost_its_address(const struct bootstrap_table *table, uint32_t slot)
{
    const struct rank *rank = &table->ranks[slot];
    for (uint32_t i = 0; i < table->rank_count; i++) {
        const struct rank *other = &table->ranks[i];
        if (other->serial > rank->serial &&
            address_equal(rank->ip, rank->port, other->ip, other->port))
            return true;
    }
    return false;
}

/* The slots that this registration would take from somebody: its own, or all if the sizes
 * differ. */
struct slot_range {
    uint32_t first, end;
};
static struct slot_range slots_claimed(const struct bootstrap_table *table,
                                       const struct registration *registration)
{
    if (!shape_equal(&table->shape, &registration->shape))
        return (struct slot_range){0, table->rank_count};
    uint32_t slot = rank_slot(&table->shape, &registration->rank);
    if (rank_lost_its_address(table, slot))
        return (struct slot_range){slot, slot};
    return (struct slot_range){slot, slot + 1};
}

static uint32_t doubts_collect(const struct bootstrap_table *table,
                               const struct registration *registration,
                               const struct bootstrap_pending *gone,
                               struct bootstrap_endpoint *out)
{
    struct slot_range range = slots_claimed(table, registration);
    char numeric[IP_SIZE];
    uint32_t count = 0;
    for (uint32_t slot = range.first; slot < range.end; slot++) {
        const struct rank *rank = &table->ranks[slot];
        if (!rank_in_doubt(rank, slot, registration, gone, numeric))
            continue;
        if (out) {
            struct bootstrap_endpoint *endpoint = &out[count];
            *endpoint = (struct bootstrap_endpoint){
                .port = rank->port, .slot = slot, .serial = rank->serial};
            memcpy(endpoint->ip, numeric, sizeof(numeric));
        }
        count++;
    }
    return count;
}

static void group_describe(struct group *group, const struct group *said, bool founder)
{
    if (founder)
        *group = *said;
    if (group->page_size < 0)
        group->page_size = said->page_size;
    if (group->http_port < 0)
        group->http_port = said->http_port;
    if (!*group->kv_cache_dtype)
        memcpy(group->kv_cache_dtype, said->kv_cache_dtype, DTYPE_SIZE);
    if (said->page_size >= 0 && said->page_size != group->page_size)
        LOG_WARNING(bootstrap,
                    "a rank registers page size %" PRId64 " in a group of page size %" PRId64
                    "; the first one stays",
                    said->page_size, group->page_size);
}

static bool table_reshape(struct bootstrap_table *table,
                          const struct registration *registration)
{
    const struct shape *shape = &registration->shape;
    uint32_t count = shape->dp * shape->cp * shape->tp * shape->pp;
    struct rank *ranks = calloc(count, sizeof(*ranks));
    if (!ranks)
        return false;
    free(table->ranks);
    table->ranks = ranks;
    table->rank_count = count;
    table->ranks_present = 0;
    table->shape = *shape;
    table->founder = rank_slot(shape, &registration->rank);
    return true;
}

static void rank_store(struct bootstrap_table *table, const struct registration *registration)
{
    uint32_t slot = rank_slot(&table->shape, &registration->rank);
    struct rank *rank = &table->ranks[slot];
    bool fresh = !rank->serial || !rank_is_process(rank, registration);
    group_describe(&table->group, &registration->group, fresh && slot == table->founder);
    table->ranks_present += !rank->serial;
    LOG_INFO(bootstrap, "rank dp %u cp %u tp %u pp %u %s at %s, %u of %u registered",
             registration->rank.dp, registration->rank.cp, registration->rank.tp,
             registration->rank.pp, rank->serial ? "again" : "new",
             address_format(registration->ip, registration->port).text, table->ranks_present,
             table->rank_count);
    *rank = (struct rank){
        .serial = ++table->serial, .epoch = registration->epoch, .port = registration->port};
    memcpy(rank->ip, registration->ip, sizeof(rank->ip));
}

static struct bootstrap_pending *pending_new(const struct bootstrap_table *table,
                                             const struct registration *registration,
                                             uint32_t count)
{
    struct bootstrap_pending *pending =
        malloc(sizeof(*pending) + count * sizeof(pending->endpoints[0]));
    if (!pending)
        return NULL;
    pending->registration = *registration;
    pending->count = doubts_collect(table, registration, NULL, pending->endpoints);
    return pending;
}

static void reply_changed(struct bootstrap_reply *reply)
{
    reply_text(reply, 503, "another process registered in the meantime; ask again");
}

/* gone: a question that was answered "all gone", or NULL when nobody has been asked yet. */
static struct bootstrap_pending *registration_apply(struct bootstrap_table *table,
                                                    const struct registration *registration,
                                                    const struct bootstrap_pending *gone,
                                                    struct bootstrap_reply *reply)
{
    uint32_t doubts = doubts_collect(table, registration, gone, NULL);
    if (doubts && !gone) {
        struct bootstrap_pending *pending = pending_new(table, registration, doubts);
        if (!pending)
            reply_text(reply, 500, "out of memory");
        return pending;
    }
    if (doubts) {
        reply_changed(reply);
        return NULL;
    }
    if (!shape_equal(&table->shape, &registration->shape) &&
        !table_reshape(table, registration)) {
        reply_text(reply, 500, "out of memory");
        return NULL;
    }
    rank_store(table, registration);
    reply_text(reply, 200, "OK");
    return NULL;
}

static struct bootstrap_pending *route_put(struct bootstrap_table *table,
                                           const struct bootstrap_request *request,
                                           struct bootstrap_reply *reply)
{
    struct registration registration;
    json_t *json = body_parse(request, reply);
    if (!json)
        return NULL;
    bool ok = registration_read(json, &registration, reply);
    json_decref(json);
    return ok ? registration_apply(table, &registration, NULL, reply) : NULL;
}

uint32_t bootstrap_pending_count(const struct bootstrap_pending *pending)
{
    return pending->count;
}

const struct bootstrap_endpoint *
bootstrap_pending_endpoint(const struct bootstrap_pending *pending, uint32_t index)
{
    BATON_ASSERT(index < pending->count);
    return &pending->endpoints[index];
}

void bootstrap_pending_free(struct bootstrap_pending *pending)
{
    free(pending);
}

static void reply_conflict(const struct bootstrap_table *table,
                           const struct registration *registration,
                           const struct bootstrap_endpoint *alive,
                           struct bootstrap_reply *reply)
{
    const struct shape *new = &registration->shape, *old = &table->shape;
    const struct shape *rank = &registration->rank;
    struct address_text address = address_format(alive->ip, alive->port);
    char cp[32] = "";
    if (!shape_equal(new, old)) {
        reply_text(
            reply, 409,
            "this rank says dp %u x cp %u x tp %u x pp %u, but the group registered here is "
            "dp %u x cp %u x tp %u x pp %u and its process at %s lives; start all ranks of a "
            "group with the same sizes, or stop the old group first",
            new->dp, new->cp, new->tp, new->pp, old->dp, old->cp, old->tp, old->pp,
            address.text);
        return;
    }
    if (old->cp > 1)
        snprintf(cp, sizeof(cp), " cp %u", rank->cp);
    reply_text(
        reply, 409,
        "rank tp %u pp %u dp %u%s is already registered by a live process at %s; stop that "
        "one first, or start this one as another rank",
        rank->tp, rank->pp, rank->dp, cp, address.text);
}

static bool endpoint_current(const struct bootstrap_table *table,
                             const struct bootstrap_endpoint *endpoint)
{
    return endpoint->slot < table->rank_count &&
           table->ranks[endpoint->slot].serial == endpoint->serial;
}

void bootstrap_pending_finish(struct bootstrap_table *table, struct bootstrap_pending *pending,
                              int64_t alive, struct bootstrap_reply *reply)
{
    BATON_ASSERT(alive < (int64_t)pending->count);
    if (alive >= 0 && !endpoint_current(table, &pending->endpoints[alive])) {
        reply_changed(reply);
    } else if (alive >= 0) {
        reply_conflict(table, &pending->registration, &pending->endpoints[alive], reply);
        LOG_WARNING(bootstrap, "refused a registration from %s: %s",
                    address_format(pending->registration.ip, pending->registration.port).text,
                    reply->body ? reply->body : "");
    } else if (alive == BOOTSTRAP_UNKNOWN) {
        reply_text(
            reply, 503,
            "cannot find out now whether the process registered before for this rank lives; "
            "ask again");
    } else {
        registration_apply(table, &pending->registration, pending, reply);
    }
    free(pending);
}

/* ---- GET /route ------------------------------------------------------------------------ */

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
        reply_text(reply, 400, "the query of GET /route cannot be read");
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
        reply_text(reply, 400,
                   "Missing inputs for bootstrap server: GET /route needs the integer %s",
                   missing);
    return !missing;
}

/* The keys are exactly SGLang's: its decode side makes a record of whatever is here and fails
 * on a key that it does not know. */
static json_t *topology_encode(const struct bootstrap_table *table)
{
    const struct group *group = &table->group;
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

static json_t *rank_encode(const struct rank *rank)
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

static const struct rank *rank_find(const struct bootstrap_table *table,
                                    const struct route_query *query)
{
    const struct shape *shape = &table->shape;
    if (query->dp < 0 || query->dp >= shape->dp || query->cp < 0 || query->cp >= shape->cp ||
        query->tp < 0 || query->tp >= shape->tp || query->pp < 0 || query->pp >= shape->pp)
        return NULL;
    struct shape rank = {.dp = (uint32_t)query->dp,
                         .cp = (uint32_t)query->cp,
                         .tp = (uint32_t)query->tp,
                         .pp = (uint32_t)query->pp};
    return &table->ranks[rank_slot(shape, &rank)];
}

static void route_get(struct bootstrap_table *table, const char *query_text,
                      struct bootstrap_reply *reply)
{
    struct route_query query;
    if (!route_query_read(query_text, &query, reply))
        return;
    if (!table->rank_count || table->ranks_present < table->rank_count) {
        reply_text(reply, 503,
                   "Prefill server not fully registered yet (%u of %u workers registered).",
                   table->ranks_present, table->rank_count);
        return;
    }
    if (query.dp == -1 && query.cp == -1 && query.tp == -1 && query.pp == -1) {
        reply_json(reply, topology_encode(table));
        return;
    }
    const struct rank *rank = rank_find(table, &query);
    if (rank)
        reply_json(reply, rank_encode(rank));
    else
        reply_text(reply, 404,
                   "Bootstrap info not found for dp_rank=%" PRId64 " cp_rank=%" PRId64
                   " tp_rank=%" PRId64 " pp_rank=%" PRId64
                   " in a group of dp %u x cp %u x tp %u x pp %u",
                   query.dp, query.cp, query.tp, query.pp, table->shape.dp, table->shape.cp,
                   table->shape.tp, table->shape.pp);
}

/* ---- rooms: which dp rank has which ---------------------------------------------------- */

/* Keyed, so that nobody can choose rooms that all fall into one bucket. */
static struct room_bucket *room_bucket(const struct bootstrap_table *table, uint64_t number)
{
    uint64_t mixed = number ^ table->hash_key;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    mixed ^= table->hash_key >> 7;
    return &table->buckets[(mixed ^ (mixed >> 31)) % ROOM_BUCKETS];
}

static struct room *room_find(const struct bootstrap_table *table, uint64_t number)
{
    struct room *room;
    LIST_FOREACH(room, room_bucket(table, number), in_bucket)
    {
        if (room->number == number)
            return room;
    }
    return NULL;
}

static bool room_expired(const struct room *room, uint64_t now)
{
    return now - room->registered_ns > BOOTSTRAP_ROOM_TTL_NS;
}

static void room_remove(struct bootstrap_table *table, struct room *room)
{
    TAILQ_REMOVE(&table->rooms, room, by_age);
    LIST_REMOVE(room, in_bucket);
    table->room_count--;
    free(room);
}

void bootstrap_table_sweep(struct bootstrap_table *table)
{
    uint64_t now = clock_now_ns();
    struct room *oldest;
    while ((oldest = TAILQ_FIRST(&table->rooms)) && room_expired(oldest, now))
        room_remove(table, oldest);
}

uint32_t bootstrap_table_rooms(const struct bootstrap_table *table)
{
    return table->room_count;
}

static bool room_store(struct bootstrap_table *table, uint64_t number, uint32_t dp_rank)
{
    bootstrap_table_sweep(table);
    struct room *room = room_find(table, number);
    if (room) {
        TAILQ_REMOVE(&table->rooms, room, by_age);
    } else {
        if (table->room_count >= table->rooms_max || !(room = malloc(sizeof(*room))))
            return false;
        room->number = number;
        LIST_INSERT_HEAD(room_bucket(table, number), room, in_bucket);
        table->room_count++;
    }
    room->dp_rank = dp_rank;
    room->registered_ns = clock_now_ns();
    TAILQ_INSERT_TAIL(&table->rooms, room, by_age);
    return true;
}

static void dp_rank_register(struct bootstrap_table *table,
                             const struct bootstrap_request *request,
                             struct bootstrap_reply *reply)
{
    uint64_t room;
    int64_t dp_rank;
    json_t *json = body_parse(request, reply);
    if (!json)
        return;
    if (!room_read(json_object_get(json, "bootstrap_room"), &room))
        reply_text(
            reply, 400,
            "POST /register_dp_rank: \"bootstrap_room\" must be an integer from 0 to 2^63-1");
    else if (!number_read(json_object_get(json, "dp_rank"), &dp_rank) || dp_rank < 0 ||
             dp_rank >= BOOTSTRAP_RANKS_MAX)
        reply_text(reply, 400,
                   "POST /register_dp_rank: \"dp_rank\" must be an integer from 0 to %u",
                   BOOTSTRAP_RANKS_MAX - 1);
    else if (!room_store(table, room, (uint32_t)dp_rank))
        reply_text(
            reply, 503,
            "%u rooms are registered, no more fit; each is forgotten after 120 s, ask again",
            table->room_count);
    else
        reply_text(reply, 200, "OK");
    json_decref(json);
}

static bool dp_rank_collect(const struct bootstrap_table *table, const json_t *rooms,
                            json_t *out, struct bootstrap_reply *reply)
{
    uint64_t now = clock_now_ns();
    for (size_t i = 0; i < json_array_size(rooms); i++) {
        const json_t *value = json_array_get(rooms, i);
        uint64_t number;
        char key[24];
        if (json_is_null(value))
            continue;
        if (!room_read(value, &number)) {
            reply_text(reply, 400,
                       "POST /query_dp_ranks: entry %zu of \"bootstrap_rooms\" must be an "
                       "integer from "
                       "0 to 2^63-1",
                       i);
            return false;
        }
        const struct room *room = room_find(table, number);
        if (!room || room_expired(room, now))
            continue;
        snprintf(key, sizeof(key), "%" PRIu64, number);
        if (json_object_set_new(out, key, json_integer(room->dp_rank)) < 0) {
            reply_text(reply, 500, "out of memory");
            return false;
        }
    }
    return true;
}

static void dp_ranks_query(struct bootstrap_table *table,
                           const struct bootstrap_request *request,
                           struct bootstrap_reply *reply)
{
    json_t *json = body_parse(request, reply);
    if (!json)
        return;
    const json_t *rooms = json_object_get(json, "bootstrap_rooms");
    json_t *found = json_object();
    if (!rooms || !(json_is_array(rooms) || json_is_null(rooms)))
        reply_text(reply, 400,
                   "POST /query_dp_ranks: \"bootstrap_rooms\" must be a list of integers");
    else if (!found)
        reply_text(reply, 500, "out of memory");
    else if (dp_rank_collect(table, rooms, found, reply))
        reply_json(reply, json_incref(found));
    json_decref(found);
    json_decref(json);
}

/* ---- dispatch -------------------------------------------------------------------------- */

/* Cuts the URI into path and query. evhttp's own parser takes the "health" of "//health" for
 * a host, so the raw URI is read here, with repeated slashes collapsed. */
static const char *uri_split(const char *uri, char path[PATH_SIZE])
{
    if (strncasecmp(uri, "http://", 7) == 0)
        uri += 7 + strcspn(uri + 7, "/?#");
    size_t length = 0, end = strcspn(uri, "?#");
    for (size_t i = 0; i < end && length < PATH_SIZE - 1; i++) {
        if (uri[i] != '/' || !length || path[length - 1] != '/')
            path[length++] = uri[i];
    }
    path[length] = '\0';
    return uri[end] == '?' ? uri + end + 1 : "";
}

static void reply_wrong_method(struct bootstrap_reply *reply, const char *path,
                               const char *allow)
{
    reply_text(reply, 405, "Method not allowed: %s takes %s", path, allow);
    reply->allow = allow;
}

static struct bootstrap_pending *route_handle(struct bootstrap_table *table, const char *query,
                                              const struct bootstrap_request *request,
                                              struct bootstrap_reply *reply)
{
    if (strcmp(request->method, "PUT") == 0)
        return route_put(table, request, reply);
    if (strcmp(request->method, "GET") == 0)
        route_get(table, query, reply);
    else
        reply_wrong_method(reply, "/route", "GET, PUT");
    return NULL;
}

struct bootstrap_pending *bootstrap_table_handle(struct bootstrap_table *table,
                                                 const struct bootstrap_request *request,
                                                 struct bootstrap_reply *reply)
{
    char path[PATH_SIZE];
    const char *query = uri_split(request->uri, path);
    bool is_post = strcmp(request->method, "POST") == 0;
    if (strcmp(path, "/route") == 0)
        return route_handle(table, query, request, reply);
    if (strcmp(path, "/register_dp_rank") == 0 && is_post)
        dp_rank_register(table, request, reply);
    else if (strcmp(path, "/query_dp_ranks") == 0 && is_post)
        dp_ranks_query(table, request, reply);
    else if (strcmp(path, "/register_dp_rank") == 0 || strcmp(path, "/query_dp_ranks") == 0)
        reply_wrong_method(reply, path, "POST");
    else if (strcmp(path, "/health") != 0)
        reply_text(reply, 404,
                   "Not found: this bootstrap server has /route, /register_dp_rank, "
                   "/query_dp_ranks and /health");
    else if (strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0)
        reply_text(reply, 200, "OK");
    else
        reply_wrong_method(reply, path, "GET, HEAD");
    return NULL;
}

struct bootstrap_table *bootstrap_table_new(uint32_t rooms_max)
{
    struct bootstrap_table *table = calloc(1, sizeof(*table));
    if (!table)
        return NULL;
    table->buckets = calloc(ROOM_BUCKETS, sizeof(*table->buckets));
    if (!table->buckets) {
        free(table);
        return NULL;
    }
    table->rooms_max = rooms_max;
    TAILQ_INIT(&table->rooms);
    if (getrandom(&table->hash_key, sizeof(table->hash_key), GRND_NONBLOCK) < 0)
        table->hash_key = clock_now_ns();
    return table;
}

void bootstrap_table_free(struct bootstrap_table *table)
{
    if (!table)
        return;
    while (!TAILQ_EMPTY(&table->rooms))
        room_remove(table, TAILQ_FIRST(&table->rooms));
    free(table->buckets);
    free(table->ranks);
    free(table);
}

/* ---- the client's half ----------------------------------------------------------------- */

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
    if (!number_read(value, out) || *out < least || *out > most)
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
    json_t *json = object_parse(body, size, err);
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
    if (!ip_read(json_object_get(json, "rank_ip"), rank.rank_ip))
        return error_set(err, BATON_EPROTOCOL, "its \"rank_ip\" is no address or host name");
    int rc = reply_number(json, "rank_port", 1, UINT16_MAX, -1, &port, err);
    if (rc < 0)
        return rc;
    if (!epoch_read(json_object_get(json, "epoch"), &rank.epoch))
        return error_set(err, BATON_EPROTOCOL, "its \"epoch\" is no unsigned 64-bit number");
    rank.rank_port = (uint16_t)port;
    *out = rank;
    return BATON_OK;
}

int bootstrap_rank_decode(const char *body, size_t size, struct bootstrap_rank *out,
                          struct error err)
{
    json_t *json = object_parse(body, size, err);
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
    json_t *json = object_parse(body, size, err);
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
